"""Non-negative least squares for batches of samples in torch: `refit` off the CPU or without numba.

The active-set method of `nnls_kernels`, with all samples of a batch taking each step together.
"""

import torch

from loca_sae.sparse_coding import checks, dictionary

_CHUNK_FLOATS = 2**24  # atoms gathered, or their products, at a time: 128 MiB in float64
_RIDGE = 1e-12  # of the Gram matrix's diagonal: lets dependent atoms share instead of failing
_OPTIMAL = 1e-11  # a correlation below this share of ||x|| ||atom|| counts as none
_TINY_SQUARED_NORM = 1e-30


def on_support(given: checks.Problem, z: torch.Tensor) -> None:
    """Refit z [n, d_sae] >= 0 in place, each row on its support."""
    atoms, norms = checks.double(given.W_dec), dictionary.norms(given.W_dec)
    widest = int((z > 0).sum(1).max()) if len(z) else 0
    if not widest:
        return
    rows = max(1, _CHUNK_FLOATS // (widest * max(widest, atoms.shape[1])))
    for x, codes in zip(given.x.split(rows), z.split(rows), strict=True):
        at = (codes > 0).byte().argsort(dim=1, descending=True, stable=True)[:, :widest]
        start = checks.double(codes.gather(1, at))
        home = at.to(atoms.device)
        allowed = (start > 0) & (norms[home] ** 2 > _TINY_SQUARED_NORM)
        fitted = fit(checks.double(x), atoms[home], start.where(allowed, 0.0), allowed)
        codes.zero_().scatter_(1, at, fitted.to(codes))


def fit(
    x: torch.Tensor, atoms: torch.Tensor, z: torch.Tensor, allowed: torch.Tensor
) -> torch.Tensor:
    """argmin over z >= 0 of 1/2 ||x - z atoms||^2, sample by sample, from z on; all in float64.

    x: [n, d_in]; atoms: [n, m, d_in], each sample's own; z [n, m] >= 0 and 0 where not allowed;
    allowed: [n, m], which atoms may be used, none of them zero.
    """
    gram, b = atoms @ atoms.mT, torch.einsum("nmd,nd->nm", atoms, x)
    bar = _OPTIMAL * x.norm(dim=1, keepdim=True)
    size = atoms.norm(dim=2)
    if atoms.shape[1] > atoms.shape[2]:  # wide supports depend on one another: grow from none
        z = torch.zeros_like(z)
    z, members = settle(gram, b, z, z > 0)
    refused = torch.zeros_like(members)
    for _ in range(5 * atoms.shape[1] + 50):
        residual = x - torch.einsum("nm,nmd->nd", z, atoms)
        cosine = torch.einsum("nmd,nd->nm", atoms, residual) / size.clamp(min=1e-300)
        cosine = cosine.masked_fill(members | refused | ~allowed, -torch.inf)
        top, best = cosine.max(1, keepdim=True)
        going = top > bar
        if not bool(going.any()):
            break
        z, settled = settle(gram, b, z, members.scatter(1, best, going | members.gather(1, best)))
        stayed = settled.gather(1, best)
        left = (members & ~settled).any(1, keepdim=True)
        refused = (refused & ~(left & stayed)).scatter(
            1, best, (going & ~stayed) | refused.gather(1, best)
        )
        members = settled
    return z


def settle(
    gram: torch.Tensor, b: torch.Tensor, z: torch.Tensor, members: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move to the minimiser on the members; those that reach 0 on the way leave.

    gram: [n, m, m]; b, z, members: [n, m]. Returns z and the members that are left.
    """
    while True:
        aim = least_squares(gram, b, members)
        blocked = members & (aim <= 0)
        ratio = torch.where(blocked, (z / (z - aim)).nan_to_num(0.0), torch.inf)
        reach, first = ratio.min(1, keepdim=True)
        moving = blocked.any(1, keepdim=True)
        if not bool(moving.any()):
            return aim, members
        step = torch.where(moving, reach, 1.0)
        z = torch.where(members, z + step * (aim - z), 0.0)
        z = torch.where(moving & (first == _positions(z)), 0.0, z.clamp(min=0))
        members = members & ~(blocked & (z <= 0))


def least_squares(gram: torch.Tensor, b: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """The unconstrained solution on the members [n, m], 0 elsewhere."""
    factor = torch.linalg.cholesky(restricted(gram, members))
    aim = torch.cholesky_solve(b.where(members, 0.0)[:, :, None], factor)[:, :, 0]
    return aim.where(members, 0.0)


def restricted(gram: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """The Gram matrix on the members, scaled identity elsewhere, with the ridge."""
    diagonal = gram.diagonal(dim1=1, dim2=2)
    inside = members[:, :, None] & members[:, None, :]
    kept = gram.where(inside, 0.0)
    outside = torch.where(members, _RIDGE * diagonal, 1.0)
    return kept + torch.diag_embed(outside)


def _positions(z: torch.Tensor) -> torch.Tensor:
    return torch.arange(z.shape[1], device=z.device)
