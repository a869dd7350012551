"""Working-set coordinate descent on the CPU: the engine behind `solve`.

For one sample: take the atoms that violate the optimality conditions most into a small working
set, solve the problem restricted to it by cyclic coordinate descent on its own small Gram matrix,
look at all atoms again, repeat until the duality gap is small. Where sweeps creep, a step to the
minimiser on the current support (by Cholesky, cut at the first code to reach 0) helps out.

Sources: [1] Friedman, Hastie, Tibshirani, "Regularization Paths for Generalized Linear Models via
Coordinate Descent" (2010), covariance updates; [2] Massias, Gramfort, Salmon, "Celer: a Fast Solver
for the Lasso with Dual Extrapolation" (2018), working sets and inner tolerances set by the gap.
"""

from functools import cache

import numpy as np
import torch

from loca_sae.sparse_coding import checks, dictionary
from loca_sae.sparse_coding.outcome import Outcome
from loca_sae.sparse_coding.threads import over_slices

_CHUNK_FLOATS = 2**23  # correlations held at a time: 32 MiB in float32
_SLICE = 32  # samples a thread takes at a time
_PATIENCE = 4  # rounds without progress that float32 is given; float64 may use all its sweeps


@cache
def available() -> bool:
    """Whether numba can be imported."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def fits(W_dec: torch.Tensor) -> bool:
    """Whether this engine takes such a dictionary: on the CPU, its Gram matrix within bounds."""
    small = dictionary.gram_bytes(W_dec) <= dictionary.GRAM_LIMIT
    return W_dec.device.type == "cpu" and small and available()


def descend(given: checks.Problem, z: torch.Tensor, tol: float, max_sweeps: int) -> Outcome:
    """Solve for each row of given.x from z [n, d_sae] >= 0 on, in place (dtype of given.x)."""
    from loca_sae.sparse_coding.kernels import solve_slice

    outcome = Outcome.empty(len(z))
    if not len(z):
        return outcome
    W_dec, gram = given.W_dec.numpy(), dictionary.gram(given.W_dec).numpy()
    longest = float(gram.diagonal().max())
    patience = _PATIENCE if z.dtype == torch.float32 else max_sweeps
    rows = max(_SLICE, _CHUNK_FLOATS // z.shape[1])
    for start in range(0, len(z), rows):
        chunk = slice(start, start + rows)
        x = given.x[chunk]
        q = correlations(x, given.W_dec)
        arrays = (q, z[chunk].numpy(), x.numpy())
        results = [part[chunk].numpy() for part in outcome]

        def work(
            part: slice,
            arrays: tuple[np.ndarray, ...] = arrays,
            results: list[np.ndarray] = results,
        ) -> None:
            q, codes, x = (a[part] for a in arrays)
            into = [r[part] for r in results]
            limits = (given.lam, tol, max_sweeps, patience)
            solve_slice(q, codes, x, W_dec, gram, longest, *limits, *into)

        over_slices(work, len(x), _SLICE)
    return outcome


def correlations(x: torch.Tensor, W_dec: torch.Tensor) -> np.ndarray:
    """x W_dec^T [n, d_sae] of tensors on the CPU; ValueError where it overflows."""
    q = x @ W_dec.T
    if not checks.all_finite(q):
        raise ValueError(
            f"x W_dec^T overflows {x.dtype} (largest |x| {float(x.abs().max()):.3g}, largest "
            f"|W_dec| {float(W_dec.abs().max()):.3g}); scale the activations, for example to a "
            "mean norm of sqrt(d_in)."
        )
    return q.numpy()
