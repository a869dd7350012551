"""On how many activations the public release's grid of lambdas is searched."""

from typing import TypeVar

from loca_sae.parameters import Parameters
from loca_sae.protocols import Protocol

P = TypeVar("P", bound=Parameters)
_SHARE = 4  # one in so many calibration activations


def for_grid(p: P, reading: Protocol) -> P:
    """The parameters with a smaller calibration sample where lambda comes from the grid.

    Codes under the released protocol are dense and each lambda of the grid is tried with all ISTA
    steps. Elsewhere ``p`` itself.
    """
    if reading.lam_search != "grid":
        return p
    return p.model_copy(update={"calibration_tokens": max(1, p.calibration_tokens // _SHARE)})
