"""Which lambda makes a mode as dense as the protocol wants it."""

from collections.abc import Callable

import torch

from loca_sae import sparse_coding
from loca_sae.protocols import RELEASED_LAMBDAS, Protocol

RTOL = 0.01  # two mean L0 within this share of each other count as matched
_DENSE_AT = 0.1  # a latent is dense if it fires on this share of the tokens
# lambda is sought down to the mean lambda_max / 2048: below that it no longer decides what fires
_LAMBDA_SPAN = 256.0


def mean_l0(codes: torch.Tensor) -> float:
    """Mean number of codes other than 0 a sample."""
    return float((codes != 0).sum(-1).double().mean())


def target(full: torch.Tensor, protocol: Protocol) -> float:
    """The mean L0 to aim at, given full mode's codes [n, d_sae].

    Under lam_target "l0" that of full mode. Under "dense" the share of dense latents, taken for a
    share of non-zeros as the public release does, times d_sae.
    """
    if protocol.lam_target == "l0":
        return mean_l0(full)
    rate = (full != 0).double().mean(0)
    return float((rate >= _DENSE_AT).sum())


def matches(l0: float, wanted: float) -> bool:
    """Whether a mean L0 agrees with the one it was meant to have."""
    return abs(l0 - wanted) <= RTOL * wanted


def find_lambda(
    encode: Callable[[float], torch.Tensor],
    wanted: float,
    x: torch.Tensor,
    W_dec: torch.Tensor,
    protocol: Protocol,
) -> tuple[float, float]:
    """(lam, the mean L0 it gives on x): by bisection, or the nearest of the release's nine.

    encode: lam -> codes [n, d_sae]. Where no latent is dense the aim is 0, which lambda_max meets.
    """
    if protocol.lam_search == "grid":
        return _nearest_of_nine(encode, wanted)
    if wanted == 0:
        lam = float(sparse_coding.lambda_max(x, W_dec).max())
        return lam, mean_l0(encode(lam))
    found = sparse_coding.calibrate_lambda(
        lambda lam: encode(lam).abs(), wanted, x=x, W_dec=W_dec, rtol=RTOL, span=_LAMBDA_SPAN
    )
    return found.lam, found.l0


def _nearest_of_nine(encode: Callable[[float], torch.Tensor], wanted: float) -> tuple[float, float]:
    """The release's lambda whose mean L0 is nearest. From the largest down, and no further than
    the L0 wanted: it grows as lambda falls, so that the smaller ones are only farther off."""
    tried: list[tuple[float, float]] = []
    for lam in sorted(RELEASED_LAMBDAS, reverse=True):
        tried.append((lam, mean_l0(encode(lam))))
        if tried[-1][1] >= wanted:
            break
    return min(tried, key=lambda one: abs(one[1] - wanted))
