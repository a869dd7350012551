"""The objective of non-negative sparse coding, and how far a code is from its optimum.

    L(x, z) = 1/2 ||x - z W_dec||^2 + lam * sum_j z_j,   z >= 0        (one sample; sum over d_in)

Everything here is evaluated in float64, since gaps are small differences of large numbers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from loca_sae.sparse_coding import checks

_CHUNK_FLOATS = 2**22  # codes taken at a time: 32 MiB in float64


@torch.no_grad()
def objective(x: torch.Tensor, z: torch.Tensor, W_dec: torch.Tensor, lam: float) -> torch.Tensor:
    """L(x, z) of each sample: 1/2 ||x - z W_dec||^2 + lam * sum_j z_j.

    x: [n, d_in], the target (an SAE's x - b_dec); z: [n, d_sae] >= 0; W_dec: [d_sae, d_in].
    Returns [n] in float64. The paper (section 3) writes no 1/2; its lambda is 2 * lam.
    """
    parts = [_fit(piece).primal for piece in _pieces(x, z, W_dec, lam)]
    return torch.cat(parts) if parts else x.new_zeros(0, dtype=torch.float64)


@torch.no_grad()
def duality_gap(x: torch.Tensor, z: torch.Tensor, W_dec: torch.Tensor, lam: float) -> torch.Tensor:
    """An upper bound of L(x, z) - min_z' L(x, z') for each sample, without knowing the minimum.

    The dual of the problem is: maximise x.t - 1/2 ||t||^2 over t with W_dec t <= lam in each
    entry (one-sided, since z >= 0). Any such t bounds the minimum from below; taken here is
    t = s (x - z W_dec) with the best admissible s >= 0. At the optimum s = 1 and the gap is 0.
    At lam = 0 only s = 0 is admissible in general, so that the bound is L itself: true, but loose.

    Shapes as in `objective`; returns [n] in float64, absolute, >= 0 (rounding below 0 is cut off).
    Source: Mairal, Bach, Ponce, "Sparse Modeling for Image and Vision Processing" (2014), sec. 5.
    """
    parts = [_gap(piece) for piece in _pieces(x, z, W_dec, lam)]
    return torch.cat(parts) if parts else x.new_zeros(0, dtype=torch.float64)


@torch.no_grad()
def lambda_max(x: torch.Tensor, W_dec: torch.Tensor) -> torch.Tensor:
    """The smallest lam at which the optimal code of a sample is zero: max_j (x W_dec^T)_j, or 0.

    Returns [n] in float64.
    """
    given = checks.problem(x, W_dec)
    atoms = checks.double(given.W_dec)
    parts = [
        (checks.double(rows) @ atoms.T).amax(dim=1).clamp(min=0)
        for rows in given.x.split(_rows(given))
    ]
    return torch.cat(parts) if parts else x.new_zeros(0, dtype=torch.float64)


def soft_threshold_nonneg(z: torch.Tensor, threshold: float | torch.Tensor) -> torch.Tensor:
    """max(z - threshold, 0): the proximal map of threshold * sum_j z_j restricted to z >= 0."""
    return (z - threshold).clamp(min=0)


class _Fit(NamedTuple):
    x: torch.Tensor
    residual: torch.Tensor
    W_dec: torch.Tensor
    lam: float
    primal: torch.Tensor


class _Piece(NamedTuple):
    x: torch.Tensor
    z: torch.Tensor
    W_dec: torch.Tensor
    lam: float


def _pieces(x: torch.Tensor, z: torch.Tensor, W_dec: torch.Tensor, lam: float) -> Iterator[_Piece]:
    """float64 pieces of checked inputs, a bounded number of samples at a time."""
    given = checks.problem(x, W_dec, lam)
    z = checks.codes(z, given)
    atoms = checks.double(given.W_dec)
    rows = _rows(given)
    for x_part, z_part in zip(given.x.split(rows), z.split(rows), strict=True):
        yield _Piece(checks.double(x_part), checks.double(z_part), atoms, given.lam)


def _rows(given: checks.Problem) -> int:
    return max(1, _CHUNK_FLOATS // max(given.W_dec.shape))


def _fit(piece: _Piece) -> _Fit:
    x, z, W_dec, lam = piece
    residual = x - z @ W_dec
    return _Fit(x, residual, W_dec, lam, 0.5 * residual.square().sum(1) + lam * z.sum(1))


def _gap(piece: _Piece) -> torch.Tensor:
    x, residual, W_dec, lam, primal = _fit(piece)
    h_max = (residual @ W_dec.T).amax(dim=1)
    r_sq, xr = residual.square().sum(1), (x * residual).sum(1)
    scale = (xr / r_sq).nan_to_num(0.0).clamp(min=0)
    # Without an atom that correlates with the residual every s is admissible, and 1 is kept.
    admissible = torch.where(h_max > 0, lam / h_max, torch.ones_like(h_max))
    scale = torch.minimum(scale, admissible)
    return (primal - scale * xr + 0.5 * scale.square() * r_sq).clamp(min=0)
