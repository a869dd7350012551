"""One function a solver, all for the same problem:

    min_{z >= 0} 1/2 ||x - z W_dec||^2 + lam sum(z)        (one sample; sum over d_in)

What their own documentation calls lambda is ours in each case: SPAMS's mode 2 minimises
1/2 ||x - D a||^2 + lambda1 ||a||_1, and scikit-learn's ``sparse_encode`` divides its alpha by the
number of features because its Lasso divides the squared error by it too. tests/test_benchmarks.py
holds each of them against the certified optimum.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import settings
from loca_sae import sparse_coding


class Problem(NamedTuple):
    """x [n, d_in]: held-out activations minus b_dec. W_dec [d_sae, d_in]: unit rows.
    W_enc [d_in, d_sae], b_enc [d_sae]: the encoder, in units of those codes. k: its TopK."""

    x: torch.Tensor
    W_dec: torch.Tensor
    lam: float
    W_enc: torch.Tensor
    b_enc: torch.Tensor
    k: int
    threads: int


class Solver(NamedTuple):
    """run: problem -> codes, as the solver gives them (`dense` makes a tensor of them).
    fast: takes all rows, whatever its speed in a pilot: a fixed cost must not be all it shows."""

    label: str
    run: Callable[[Problem], Any]
    fast: bool = False


def _solve(p: Problem) -> torch.Tensor:
    return sparse_coding.solve(p.x, p.W_dec, p.lam, tol=settings.TOL).codes


def _ista(p: Problem) -> torch.Tensor:
    return sparse_coding.ista(p.x, p.W_dec, p.lam, settings.STEPS)


def _ista_dense(p: Problem, rows: int = 1024) -> torch.Tensor:
    """z <- max(z - a (D^T (D z - x) + lam), 0) by dense products, the formula as it is written."""
    step = 1 / sparse_coding.lipschitz(p.W_dec)
    parts = []
    for x in p.x.split(rows):
        z = x.new_zeros(len(x), len(p.W_dec))
        for _ in range(settings.STEPS):
            z = (z - step * ((z @ p.W_dec - x) @ p.W_dec.T + p.lam)).clamp_(min=0)
        parts.append(z)
    return torch.cat(parts)


def _fista(p: Problem) -> torch.Tensor:
    return sparse_coding.fista(p.x, p.W_dec, p.lam, settings.STEPS)


def _sklearn(p: Problem, algorithm: str) -> np.ndarray:
    from joblib import parallel_config
    from sklearn.decomposition import sparse_encode

    with warnings.catch_warnings(), parallel_config("threading"):
        warnings.simplefilter("ignore")  # of convergence: the table shows the gap instead
        return sparse_encode(
            p.x.numpy(),
            p.W_dec.numpy(),
            algorithm=algorithm,
            alpha=p.lam,
            positive=True,
            n_jobs=p.threads,
        )


def _spams(p: Problem) -> Any:
    """A sparse [d_sae, n] matrix: the transpose of our codes. Rows of ours are SPAMS's columns."""
    import spams

    return spams.lasso(
        np.asfortranarray(p.x.numpy().T),
        D=np.asfortranarray(p.W_dec.numpy().T),
        lambda1=p.lam,
        mode=2,
        pos=True,
        numThreads=p.threads,
    )


def _encoder(p: Problem) -> torch.Tensor:
    """The TopK encoder: x W_enc + b_enc, the k largest kept, those below zero dropped."""
    top = torch.addmm(p.b_enc, p.x, p.W_enc).topk(p.k, dim=1)
    return p.x.new_zeros(len(p.x), len(p.W_dec)).scatter_(1, top.indices, top.values.relu_())


SOLVERS = {
    "solve": Solver("solve (ours)", _solve, fast=True),
    "spams": Solver("SPAMS lasso", _spams, fast=True),
    "ista": Solver("ISTA-200 (ours)", _ista),
    "ista_dense": Solver("ISTA-200 (dense)", _ista_dense),
    "fista": Solver("FISTA-200", _fista),
    "lasso_cd": Solver("scikit-learn lasso_cd", lambda p: _sklearn(p, "lasso_cd")),
    "lasso_lars": Solver("scikit-learn lasso_lars", lambda p: _sklearn(p, "lasso_lars")),
    "encoder": Solver("encoder pass", _encoder, fast=True),
}


def dense(codes: Any, rows: int) -> torch.Tensor:
    """The codes of the first ``rows`` samples as a float tensor [rows, d_sae] >= 0."""
    if hasattr(codes, "tocsc"):
        codes = np.ascontiguousarray(codes.tocsc()[:, :rows].toarray().T)
    return torch.as_tensor(codes[:rows]).clamp(min=0)


def forget(p: Problem) -> None:
    """Make the library forget what it remembers of W_dec (Gram matrix, Lipschitz constant).

    Each timed call then pays for it, as the calls of other solvers do. Only the dictionary seen
    last is remembered, so one of a single atom takes its place.
    """
    sparse_coding.solve(p.x[:1], p.W_dec[:1], p.lam)
    sparse_coding.lipschitz(p.W_dec[:1])
