"""Finding the lam at which a solver's codes have a wanted mean density."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from loca_sae.sparse_coding import checks
from loca_sae.sparse_coding.certificate import lambda_max

_WIDEN, _WIDEST = 4.0, 16.0  # factor of the first step of the bracket search, and of the others
_SPAN = 1e6  # how far from the first trial lam is sought, either way, unless told otherwise
_CLOSEST = 1e-7  # a bracket this narrow, relative to lam, holds a jump of the L0


class Calibration(NamedTuple):
    """lam, the mean L0 it gave, how many times codes were computed, and whether that L0 is
    within rtol of the target. Without convergence lam is the best of those tried: say so."""

    lam: float
    l0: float
    evaluations: int
    converged: bool


def calibrate_lambda(
    encode: Callable[[float], torch.Tensor],
    target_l0: float,
    low: float | None = None,
    high: float | None = None,
    *,
    x: torch.Tensor | None = None,
    W_dec: torch.Tensor | None = None,
    rtol: float = 0.01,
    max_evaluations: int = 40,
    span: float = _SPAN,
) -> Calibration:
    """The lam at which ``encode(lam)`` has a mean L0 of ``target_l0``, by bisection in log lam.

    encode: maps lam to codes [n, d_sae]; use the very solver, start and steps that will be used.
    target_l0: wanted mean number of codes > 0 a sample.
    low, high: lam > 0 between which to begin; the bracket is moved until it holds the target.
    x [n, d_in], W_dec [d_sae, d_in]: in place of these, to begin below the mean `lambda_max`.
        With neither the search begins at 1, right for activations of mean norm sqrt(d_in).
    rtol: relative accuracy of the mean L0.
    span: lam is sought within this factor of the first trial, either way. Solvers slow down where
        the penalty hardly acts, so an unreachable density costs much to refute far below.

    L0 is taken to fall as lam grows. Trials alternate between the secant in (log lam, log L0) and
    the middle of the bracket. converged is False where the L0 jumps over the target, where no lam
    reaches it, or when max_evaluations are spent. ValueError: a target <= 0, not finite or above
    d_sae, a bracket that is none, codes that are not [n, d_sae].
    """
    if not math.isfinite(target_l0) or target_l0 <= 0:
        raise ValueError(f"target_l0 is {target_l0}; a mean L0 to reach must be > 0.")
    if not 0 < rtol < 1:
        raise ValueError(f"rtol is {rtol}; the relative accuracy must lie between 0 and 1.")
    checks.count("max_evaluations", max_evaluations, least=1)
    search = _Search(encode, target_l0, rtol, max_evaluations, span)
    _bracket(search, _first_trials(low, high, x, W_dec))
    _narrow(search)
    return search.result()


class _Search:
    """The trials so far: the best, and the closest on either side of the target."""

    def __init__(
        self,
        encode: Callable[[float], torch.Tensor],
        target: float,
        rtol: float,
        most: int,
        span: float,
    ) -> None:
        self.span = span
        self._encode, self.target, self._rtol, self._most = encode, target, rtol, most
        self._evaluations = 0
        self._best: tuple[float, float] = (math.nan, math.inf)
        self.dense: tuple[float, float] | None = None  # (lam, L0) with L0 above the target
        self.sparse: tuple[float, float] | None = None  # (lam, L0) with L0 below it

    @property
    def over(self) -> bool:
        """Whether to stop: target reached or trials spent."""
        return self._hit(self._best[1]) or self._evaluations >= self._most

    def try_lam(self, lam: float) -> None:
        """Compute codes at lam and remember their L0."""
        l0 = _mean_l0(self._encode(lam), self.target)
        self._evaluations += 1
        if abs(l0 - self.target) < abs(self._best[1] - self.target):
            self._best = (lam, l0)
        if l0 > self.target and (self.dense is None or lam > self.dense[0]):
            self.dense = (lam, l0)
        if l0 <= self.target and (self.sparse is None or lam < self.sparse[0]):
            self.sparse = (lam, l0)

    def result(self) -> Calibration:
        """The best trial."""
        return Calibration(*self._best, self._evaluations, self._hit(self._best[1]))

    def _hit(self, l0: float) -> bool:
        return abs(l0 - self.target) <= self._rtol * self.target


def _mean_l0(codes: torch.Tensor, target: float) -> float:
    if codes.ndim != 2 or len(codes) == 0:
        raise ValueError(
            f"encode returned a tensor of shape {tuple(codes.shape)}; codes [n, d_sae] of at "
            "least one sample are needed."
        )
    if target > codes.shape[1]:
        raise ValueError(
            f"target_l0 is {target}, but there are only {codes.shape[1]} latents that can fire."
        )
    if not bool(torch.isfinite(codes).all()):
        raise ValueError("encode returned NaN or infinite codes; is the solver's step too large?")
    return int((codes > 0).sum()) / len(codes)


def _first_trials(
    low: float | None, high: float | None, x: torch.Tensor | None, W_dec: torch.Tensor | None
) -> list[float]:
    if (x is None) != (W_dec is None):
        raise ValueError("give both x and W_dec to begin from lambda_max, or neither.")
    trials = [float(lam) for lam in (low, high) if lam is not None]
    if any(not math.isfinite(lam) or lam <= 0 for lam in trials) or trials != sorted(set(trials)):
        raise ValueError(f"low is {low}, high is {high}; a bracket needs 0 < low < high.")
    if trials:
        return trials
    if x is None or W_dec is None:
        return [1.0]
    largest = float(lambda_max(x, W_dec).mean())
    return [largest / 8 if largest > 0 else 1.0]


def _bracket(search: _Search, trials: list[float]) -> None:
    """Move outwards from the first trials until the target lies between two of them."""
    for lam in trials:
        if not search.over:
            search.try_lam(lam)
    factor, first = _WIDEN, trials[0]
    while not search.over and (search.dense is None or search.sparse is None):
        if search.dense is not None:
            lam = search.dense[0] * factor
        else:
            assert search.sparse is not None  # a trial falls on one side or the other
            lam = search.sparse[0] / factor
        if not first / search.span <= lam <= first * search.span:
            return
        search.try_lam(lam)
        factor = _WIDEST


def _narrow(search: _Search) -> None:
    """Shrink the bracket, by the secant and by halves in turn."""
    halve = False
    while not search.over and search.dense is not None and search.sparse is not None:
        (low, l0_low), (high, l0_high) = search.dense, search.sparse
        if high - low <= _CLOSEST * high:
            return
        share = 0.5
        if not halve and l0_high > 0:
            share = math.log(l0_low / search.target) / math.log(l0_low / l0_high)
            share = min(max(share, 0.02), 0.98)
        search.try_lam(low * (high / low) ** share)
        halve = not halve
