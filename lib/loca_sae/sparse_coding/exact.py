"""Exact non-negative sparse coding with a certificate for each sample."""

import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch

from loca_sae.sparse_coding import checks, dictionary, first_order, sparse_rows
from loca_sae.sparse_coding.batched_fista import accelerate
from loca_sae.sparse_coding.certificate import objective
from loca_sae.sparse_coding.coordinate_descent import descend, fits
from loca_sae.sparse_coding.outcome import Outcome

_CHUNK_FLOATS = 2**23  # codes taken to float64 at a time: 64 MiB


class Solution(NamedTuple):
    """What `solve` returns.

    codes: [n, d_sae] >= 0, in the dtype of x (float32 for half precision); dense or sparse CSR.
    objective: [n] float64, 1/2 ||x - codes W_dec||^2 + lam * sum(codes).
    duality_gap: [n] float64, absolute: objective minus the minimum is at most this.
    iterations: most iterations any sample took: sweeps of coordinate descent, or FISTA steps.
    """

    codes: torch.Tensor
    objective: torch.Tensor
    duality_gap: torch.Tensor
    iterations: int


@torch.no_grad()
def solve(
    x: torch.Tensor,
    W_dec: torch.Tensor,
    lam: float,
    tol: float = 1e-5,
    z0: torch.Tensor | None = None,
    max_iterations: int = 20_000,
    sparse: bool = False,
) -> Solution:
    """Minimise 1/2 ||x - z W_dec||^2 + lam * sum_j z_j over z >= 0 for each sample, certified.

    x: [n, d_in], the target (an SAE's x - b_dec); W_dec: [d_sae, d_in], atoms of any norm.
    tol: each sample stops at duality_gap <= tol * objective, checked in float64.
    z0: [n, d_sae] >= 0, a code to start from (an encoder's, or that of a nearby lam), dense or
        sparse CSR; not changed.
    max_iterations: bound on sweeps (CPU) or steps (other devices) a sample, in each precision.
    sparse: return codes as a sparse CSR tensor. Dense codes then exist for one chunk of samples at
        a time (32 MiB in float32), whatever n is; values are those of the dense result.

    On the CPU by working-set coordinate descent (`coordinate_descent`) in float32; samples that
    cannot reach tol there go on in float64. On other devices, without numba, or when the Gram
    matrix would pass 2 GiB, by FISTA with restart. Deterministic; memory beyond the codes is
    bounded by chunks of samples. Samples that do not reach tol are reported by a RuntimeWarning
    and keep their true, larger gap.

    At lam = 0 the gap says little (see `duality_gap`): a sample then stops when the optimality
    conditions hold within tol times its largest correlation, or its residual is 1e-5 of x.
    ValueError: shapes, devices, NaN or infinite values, negative lam or z0, tol <= 0.
    """
    given = checks.problem(x, W_dec, lam)
    checks.count("max_iterations", max_iterations, least=1)
    if not math.isfinite(tol) or tol <= 0:
        raise ValueError(f"tol is {tol}; the relative duality gap to reach must be > 0.")
    if sparse:
        codes, outcome = _in_chunks(given, z0, tol, max_iterations)
    else:
        codes = first_order.start(given, z0 if z0 is None else z0.to_dense())
        outcome = _run(given, codes, tol, max_iterations)
    _report(outcome, tol)
    most = int(outcome.iterations.max()) if len(given.x) else 0
    home = "cpu" if codes.device.type == "mps" else codes.device
    return Solution(codes, outcome.objective.to(home), outcome.duality_gap.to(home), most)


def _run(given: checks.Problem, z: torch.Tensor, tol: float, most: int) -> Outcome:
    """Solve from z on, in place."""
    engine = descend if fits(given.W_dec) else accelerate
    outcome = engine(given, z, tol, most)
    if given.x.dtype == torch.float32 and not bool(outcome.done.all()):
        outcome = _in_double(given, z, outcome, tol, most)
    return outcome


def _in_chunks(
    given: checks.Problem, z0: torch.Tensor | None, tol: float, most: int
) -> tuple[torch.Tensor, Outcome]:
    """Solve chunk after chunk, keeping of each only its sparse codes."""
    n, d_sae = len(given.x), len(given.W_dec)
    outcome = Outcome.empty(n)
    if z0 is not None:
        sparse_rows.check(z0, given, "z0")

    def chunks() -> Iterator[torch.Tensor]:
        for rows in torch.arange(n).split(max(1, _CHUNK_FLOATS // d_sae)):
            start, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
            part = given._replace(x=given.x[start:stop])
            begin = None if z0 is None else sparse_rows.take(z0, start, stop)
            z = first_order.start(part, begin)
            outcome.put(rows, _run(part, z, tol, most))
            yield z

    with dictionary.holding_grams():
        return sparse_rows.stack(chunks(), (n, d_sae)), outcome


def _in_double(
    given: checks.Problem, z: torch.Tensor, outcome: Outcome, tol: float, most: int
) -> Outcome:
    """Go on in float64 with the samples that are not done; certify their rounded codes.

    The dual point belongs to the codes before rounding: it bounds the minimum whichever codes it
    came from, and that of the rounded ones would be far less tight.
    """
    if given.x.device.type == "mps":
        return outcome
    rest = (~outcome.done).nonzero()[:, 0].to(z.device)
    W_dec = given.W_dec.double()
    engine = descend if fits(W_dec) else accelerate
    for rows in rest.split(max(1, _CHUNK_FLOATS // z.shape[1])):
        part = checks.Problem(given.x[rows].double(), W_dec, given.lam)
        finer = z[rows].double()
        further = engine(part, finer, 0.5 * tol, most)
        z[rows] = finer.to(z.dtype)
        value = objective(given.x[rows], z[rows], given.W_dec, given.lam).cpu()
        gap = (value - (further.objective - further.duality_gap)).clamp(min=0)
        at = rows.cpu()
        outcome.objective[at], outcome.duality_gap[at] = value, gap
        outcome.iterations[at] += further.iterations
        outcome.done[at] = (gap <= tol * value) | (further.done & (given.lam == 0))
    return outcome


def _report(outcome: Outcome, tol: float) -> None:
    missed = int((~outcome.done).sum())
    if missed:
        share = (outcome.duality_gap / outcome.objective)[~outcome.done].max()
        warnings.warn(
            f"{missed} of {len(outcome.done)} samples did not reach a relative duality gap of "
            f"{tol:g} (largest: {float(share):.2g}). Raise max_iterations, or tol, or lam.",
            RuntimeWarning,
            stacklevel=3,
        )
