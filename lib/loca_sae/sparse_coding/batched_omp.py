"""Orthogonal matching pursuit for batches of samples in torch: `omp` off the CPU or without numba.

The steps of `nnls_kernels.omp_slice`, with all samples of a batch taking each step together.
"""

from typing import NamedTuple

import torch

from loca_sae.sparse_coding import batched_nnls, checks, dictionary

_CHUNK_FLOATS = 2**24  # atoms gathered, or correlations, at a time: 128 MiB in float64
_LEAST_FALL = 1e-10  # an exchange must lower the squared error by this share of ||x||^2
_TINY_SQUARED_NORM = 1e-30


class _Batch(NamedTuple):
    """What stays the same for a batch of samples."""

    x: torch.Tensor  # [n, d_in] float64
    atoms: torch.Tensor  # [d_sae, d_in] float64
    inverse: torch.Tensor  # [d_sae], 1 / norm, 0 of zero atoms
    limits: torch.Tensor  # [n]
    bar: torch.Tensor  # [n, 1], the least correlation that counts


class _Support(NamedTuple):
    """Slots [n, m] for atoms: which, their values, whether in use."""

    at: torch.Tensor
    z: torch.Tensor
    used: torch.Tensor


def pursue(
    given: checks.Problem, limits: torch.Tensor, exchanges: int, floor: float, z: torch.Tensor
) -> None:
    """Write codes of at most limits [n] atoms into z [n, d_sae] (zeros)."""
    atoms, norms = checks.double(given.W_dec), dictionary.norms(given.W_dec)
    inverse = torch.where(norms**2 > _TINY_SQUARED_NORM, 1 / norms, 0.0)
    slots = min(int(limits.max()), atoms.shape[1])
    rows = max(1, _CHUNK_FLOATS // max(len(atoms), slots * max(slots, atoms.shape[1])))
    for part, most, codes in zip(
        given.x.split(rows), limits.split(rows), z.split(rows), strict=True
    ):
        x = checks.double(part)
        bar = floor * x.norm(dim=1, keepdim=True)
        batch = _Batch(x, atoms, inverse, most.to(x.device).clamp(max=slots), bar)
        support = _grow(batch, _none(batch, slots))
        support = _exchange(batch, support, exchanges)
        values = support.z.where(support.used, 0.0)
        codes.scatter_add_(1, support.at.to(codes.device), values.to(codes))


def _none(batch: _Batch, slots: int) -> _Support:
    n, device = len(batch.x), batch.x.device
    at = torch.zeros(n, slots, dtype=torch.int64, device=device)
    return _Support(at, torch.zeros_like(at, dtype=torch.float64), torch.zeros_like(at).bool())


def _grow(batch: _Batch, support: _Support, banned: torch.Tensor | None = None) -> _Support:
    """Add the atom that correlates most until limits are reached or none correlates positively."""
    at, z, used = support
    refused = torch.zeros(len(batch.x), len(batch.atoms), dtype=torch.bool, device=z.device)
    for _ in range(10 * at.shape[1] + 10):
        cosine = _residual(batch, at, z) @ batch.atoms.T * batch.inverse
        cosine.masked_fill_(refused, -torch.inf)
        shut = torch.where(used, -torch.inf, torch.inf).to(cosine)
        cosine.scatter_reduce_(1, at, shut, "amin")
        if banned is not None:
            cosine.scatter_(1, banned, -torch.inf)
        top, best = cosine.max(1, keepdim=True)
        going = (top > batch.bar) & (used.sum(1) < batch.limits)[:, None]
        if not bool(going.any()):
            break
        slot = used.byte().argmin(1, keepdim=True)  # the first one free
        at = at.scatter(1, slot, torch.where(going, best, at.gather(1, slot)))
        z, settled = _settle(batch, at, z, used.scatter(1, slot, going | used.gather(1, slot)))
        stayed = settled.gather(1, slot)
        left = (used & ~settled).any(1, keepdim=True)
        refused &= ~(left & stayed)
        refused.scatter_(1, best, (going & ~stayed) | refused.gather(1, best))
        used = settled
    return _Support(at, z, used)


def _exchange(batch: _Batch, support: _Support, exchanges: int) -> _Support:
    """Drop an atom, the least useful first, and grow without it; keep what lowers the error."""
    tried = torch.zeros(len(batch.x), 1, dtype=torch.int64, device=batch.x.device)
    total = batch.x.square().sum(1, keepdim=True)
    error = _error(batch, support)
    for _ in range(exchanges):
        going = (tried < support.used.sum(1, keepdim=True)) & (error > _LEAST_FALL * total)
        if not bool(going.any()):
            break
        order = _losses(batch, support).argsort(dim=1, stable=True)
        slot = order.gather(1, tried.clamp(max=order.shape[1] - 1))
        banned = support.at.gather(1, slot)
        without = support.used.scatter(1, slot, False)
        shorter = support.z.where(without, 0.0)
        z, used = _settle(batch, support.at, shorter, without)
        trial = _grow(batch, _Support(support.at, z, used), banned)
        value = _error(batch, trial)
        better = going & (value < error - _LEAST_FALL * total)
        support = _Support(
            *(torch.where(better, a, b) for a, b in zip(trial, support, strict=True))
        )
        error = torch.where(better, value, error)
        tried = torch.where(better, 0, tried + 1)
    return support


def _settle(
    batch: _Batch, at: torch.Tensor, z: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = batch.atoms[at]
    b = torch.einsum("nmd,nd->nm", chosen, batch.x)
    return batched_nnls.settle(chosen @ chosen.mT, b, z, used)


def _losses(batch: _Batch, support: _Support) -> torch.Tensor:
    """How much the squared error grows without each atom: z^2 / (the inverse Gram's diagonal)."""
    chosen = batch.atoms[support.at]
    gram = batched_nnls.restricted(chosen @ chosen.mT, support.used)
    share = torch.cholesky_inverse(torch.linalg.cholesky(gram)).diagonal(dim1=1, dim2=2)
    return (support.z.square() / share).where(support.used, torch.inf)


def _residual(batch: _Batch, at: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return batch.x - torch.einsum("nm,nmd->nd", z, batch.atoms[at])


def _error(batch: _Batch, support: _Support) -> torch.Tensor:
    """||x - z W_dec||^2 of each sample, [n, 1]."""
    return _residual(batch, support.at, support.z).square().sum(1, keepdim=True)
