"""What the solvers derive from a dictionary once: its Gram matrix and its Lipschitz constant.

Both are remembered for the dictionary seen last, since a calibration calls a solver a dozen times
with the same atoms. The memory compares the atoms themselves, so that it cannot serve a stale
value for a decoder that was changed in place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Generic, TypeVar

import torch

from loca_sae.sparse_coding import checks

GRAM_LIMIT = 2**31  # bytes: dictionaries with a larger Gram matrix are coded without one
_KEPT_LIMIT = 2**28  # bytes: a larger Gram matrix is not kept between calls
_MARGIN = 1 + 1e-6

Value = TypeVar("Value")

_held: ContextVar[list[tuple[torch.Tensor, torch.Tensor]] | None] = ContextVar("held", default=None)


class _LastSeen(Generic[Value]):
    """The value of a function of W_dec for the W_dec seen last."""

    def __init__(self, compute: Callable[[torch.Tensor], Value]) -> None:
        self._compute = compute
        self._lock = Lock()
        self._kept: tuple[torch.Tensor, Value] | None = None

    def __call__(self, W_dec: torch.Tensor) -> Value:
        with self._lock:
            kept = self._kept
        if kept is not None and _same(kept[0], W_dec):
            return kept[1]
        value = self._compute(W_dec)
        with self._lock:
            self._kept = (W_dec.clone(), value)
        return value


def lipschitz(W_dec: torch.Tensor) -> float:
    """A safe upper bound of sigma_max(W_dec)^2, the Lipschitz constant of the smooth part.

    The largest eigenvalue of the smaller of W_dec W_dec^T and W_dec^T W_dec in float64, times
    1 + 1e-6. A step of 1 / lipschitz makes ISTA decrease the objective; a step of 1 / sigma_max
    diverges, and a few power iterations underestimate sigma_max. 0 for a dictionary of zeros.
    """
    checks.problem(W_dec, W_dec)
    return _lipschitz(W_dec.detach())


def gram(W_dec: torch.Tensor) -> torch.Tensor:
    """W_dec W_dec^T [d_sae, d_sae], in the dtype of W_dec."""
    held = _held.get()
    for atoms, product in held or ():
        if _same(atoms, W_dec):
            return product
    product = _gram(W_dec) if gram_bytes(W_dec) <= _KEPT_LIMIT else W_dec @ W_dec.T
    if held is not None:
        held.append((W_dec.clone(), product))
    return product


@contextmanager
def holding_grams() -> Iterator[None]:
    """Keep every Gram matrix asked for until the block ends: for work chunk by chunk.

    Without it a large one is made anew for each chunk, and one of float64 displaces the float32's.
    """
    token = _held.set([])
    try:
        yield
    finally:
        _held.reset(token)


def norms(W_dec: torch.Tensor) -> torch.Tensor:
    """||W_dec_j|| of each atom [d_sae], in float64."""
    if W_dec.device.type == "mps":
        W_dec = W_dec.cpu()
    return torch.linalg.vector_norm(W_dec, dim=1, dtype=torch.float64)


def gram_bytes(W_dec: torch.Tensor) -> int:
    """Size of that matrix."""
    return W_dec.shape[0] ** 2 * W_dec.element_size()


def _largest_eigenvalue(W_dec: torch.Tensor) -> float:
    atoms = checks.double(W_dec)
    smaller = atoms.T @ atoms if atoms.shape[0] > atoms.shape[1] else atoms @ atoms.T
    return _MARGIN * max(float(torch.linalg.eigvalsh(smaller)[-1]), 0.0)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    alike = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
    return alike and torch.equal(a, b)


_lipschitz: _LastSeen[float] = _LastSeen(_largest_eigenvalue)
_gram: _LastSeen[torch.Tensor] = _LastSeen(lambda W_dec: W_dec @ W_dec.T)
