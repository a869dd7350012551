"""ISTA, as the paper takes its inference steps, and FISTA with adaptive restart.

Sources: [1] the paper, section 3 (the update). [2] Beck, Teboulle, "A Fast Iterative
Shrinkage-Thresholding Algorithm" (2009). [3] O'Donoghue, Candes, "Adaptive Restart for Accelerated
Gradient Schemes" (2015), gradient scheme.
"""

import math
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import torch

from loca_sae.sparse_coding import checks, dictionary
from loca_sae.sparse_coding.threads import over_slices

_CHUNK_FLOATS = 2**23  # codes worked on at a time: 32 MiB in float32
_SLICE = 32  # samples a thread takes at a time


@torch.no_grad()
def ista(
    x: torch.Tensor,
    W_dec: torch.Tensor,
    lam: float,
    steps: int,
    z0: torch.Tensor | None = None,
    step_size: float | None = None,
    signed: bool = False,
) -> torch.Tensor:
    """``steps`` times z <- max(z - a (D^T (D z - x) + lam), 0), with D = W_dec^T [1].

    x: [n, d_in], the target (an SAE's x - b_dec); W_dec: [d_sae, d_in]; z0: [n, d_sae] >= 0, zeros
    by default, not changed. step_size: a; by default 1 / `lipschitz`, at which the objective
    1/2 ||x - z W_dec||^2 + lam sum(z) falls in each step. Too large an a diverges to inf or nan.
    signed: soft-threshold on both sides of zero instead, for codes of either sign and lam ||z||_1.

    Returns codes [n, d_sae]. Memory beside them is bounded by chunks of samples. On a CPU the same
    step is taken through the Gram matrix once codes are sparse, which differs only in rounding.
    """
    given, step = _prepared(x, W_dec, lam, steps, step_size)
    z = start(given, z0)
    if signed:
        for x_part, z_part in _chunks(given.x, z):
            _ista_signed(x_part, z_part, given, steps, step)
        return z
    gram = cache(lambda: dictionary.gram(given.W_dec))  # only made if a chunk asks for it
    for x_part, z_part in _chunks(given.x, z):
        left = _ista_dense(x_part, z_part, given, steps, step)
        if left:
            _ista_by_gram(x_part, z_part, given, left, step, gram())
    return z


@torch.no_grad()
def fista(
    x: torch.Tensor, W_dec: torch.Tensor, lam: float, steps: int, z0: torch.Tensor | None = None
) -> torch.Tensor:
    """ISTA with momentum [2], restarted for a sample whenever the momentum points uphill [3].

    Arguments and result as in `ista`, with a = 1 / `lipschitz`.
    """
    given, step = _prepared(x, W_dec, lam, steps, None)
    z = start(given, z0)
    for x_part, z_part in _chunks(given.x, z):
        state = start_fista(z_part)
        for _ in range(steps):
            fista_step(state, x_part, given.W_dec, given.lam, step)
    return z


class FistaState(NamedTuple):
    """z [n, d_sae] (updated in place), the extrapolated point y, and the momentum counter t."""

    z: torch.Tensor
    y: torch.Tensor
    t: torch.Tensor


def start_fista(z: torch.Tensor) -> FistaState:
    """FISTA at z, without momentum yet."""
    return FistaState(z, z.clone(), torch.ones_like(z[:, :1]))


def fista_step(
    state: FistaState, x: torch.Tensor, W_dec: torch.Tensor, lam: float, step: float
) -> None:
    """One step in place."""
    z, y, t = state
    new = y.addmm(torch.addmm(x, y, W_dec, beta=-1), W_dec.T, alpha=-step)
    new.sub_(step * lam).clamp_(min=0)
    moved = new - z
    uphill = y.sub_(new).mul_(moved).sum(1, keepdim=True) > 0
    t.masked_fill_(uphill, 1.0)
    t_next = 0.5 * (1 + (1 + 4 * t.square()).sqrt())
    torch.addcmul(new, moved, (t - 1) / t_next, out=y)
    t.copy_(t_next)
    z.copy_(new)


def _prepared(
    x: torch.Tensor, W_dec: torch.Tensor, lam: float, steps: int, step_size: float | None
) -> tuple[checks.Problem, float]:
    checks.count("steps", steps)
    given = checks.problem(x, W_dec, lam)
    if step_size is None:
        bound = dictionary.lipschitz(given.W_dec)
        return given, 1 / bound if bound > 0 else 1.0
    if not math.isfinite(step_size) or step_size <= 0:
        raise ValueError(f"step_size is {step_size}; it must be a finite number > 0.")
    return given, float(step_size)


def start(given: checks.Problem, z0: torch.Tensor | None) -> torch.Tensor:
    """A fresh copy of z0 in the problem's dtype, or zeros [n, d_sae]."""
    if z0 is None:
        return given.x.new_zeros(given.x.shape[0], given.W_dec.shape[0])
    return checks.codes(z0, given, "z0").clone(memory_format=torch.contiguous_format)


def _chunks(x: torch.Tensor, z: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    rows = max(1, _CHUNK_FLOATS // z.shape[1])
    return zip(x.split(rows), z.split(rows), strict=True)


def _ista_dense(
    x: torch.Tensor, z: torch.Tensor, given: checks.Problem, steps: int, step: float
) -> int:
    """Steps in place by dense products, until codes are sparse; returns how many are left."""
    W_dec, lam = given.W_dec, given.lam
    residual = torch.empty_like(x)
    for taken in range(steps):
        if taken > 0 and _gram_pays(z, W_dec, steps - taken):
            return steps - taken
        torch.addmm(x, z, W_dec, beta=-1, out=residual)
        z.addmm_(residual, W_dec.T, alpha=-step).sub_(step * lam).clamp_(min=0)
    return 0


def _ista_signed(
    x: torch.Tensor, z: torch.Tensor, given: checks.Problem, steps: int, step: float
) -> None:
    """Steps in place by dense products, with z <- sign(z) max(|z| - a lam, 0)."""
    residual = torch.empty_like(x)
    for _ in range(steps):
        torch.addmm(x, z, given.W_dec, beta=-1, out=residual)
        z.addmm_(residual, given.W_dec.T, alpha=-step)
        z.copy_(torch.nn.functional.softshrink(z, step * given.lam))


def _gram_pays(z: torch.Tensor, W_dec: torch.Tensor, steps: int) -> bool:
    """Whether rows of the Gram matrix cost less than dense products (measured: 4 to 1 a row)."""
    d_sae, d_in = W_dec.shape
    if z.device.type != "cpu" or dictionary.gram_bytes(W_dec) > dictionary.GRAM_LIMIT:
        return False
    if 2 * steps * z.shape[0] < d_sae:  # too little work to pay for the matrix itself
        return False
    return 2 * int(z.count_nonzero()) < z.shape[0] * d_in


def _ista_by_gram(
    x: torch.Tensor,
    z: torch.Tensor,
    given: checks.Problem,
    steps: int,
    step: float,
    gram: torch.Tensor,
) -> None:
    from loca_sae.sparse_coding.ista_kernel import ista_slice

    q, codes, products = (x @ given.W_dec.T).numpy(), z.numpy(), gram.numpy()

    def work(part: slice) -> None:
        ista_slice(q[part], codes[part], products, given.lam, step, steps)

    over_slices(work, len(q), _SLICE)
