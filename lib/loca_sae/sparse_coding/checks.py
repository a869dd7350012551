"""One place for what every function of this package asks of its tensors."""

import math
from typing import NamedTuple

import torch


class Problem(NamedTuple):
    """Checked inputs: x [n, d_in], W_dec [d_sae, d_in] (one dtype, contiguous), lam."""

    x: torch.Tensor
    W_dec: torch.Tensor
    lam: float


def problem(x: torch.Tensor, W_dec: torch.Tensor, lam: float = 0.0) -> Problem:
    """Check targets, atoms and lam; half precision becomes float32. Raises ValueError."""
    for name, value in (("x", x), ("W_dec", W_dec)):
        if value.ndim != 2 or not value.is_floating_point():
            raise ValueError(
                f"{name} is {value.dtype} of shape {tuple(value.shape)}; it must be a floating "
                "tensor of two axes: x [n, d_in], W_dec [d_sae, d_in]."
            )
    if x.shape[1] != W_dec.shape[1] or 0 in W_dec.shape:
        raise ValueError(
            f"x {tuple(x.shape)} and W_dec {tuple(W_dec.shape)} do not fit: x is [n, d_in] and "
            "W_dec [d_sae, d_in], one atom a row, with the same d_in."
        )
    if x.device != W_dec.device:
        raise ValueError(f"x is on {x.device}, W_dec on {W_dec.device}; move them to one device.")
    _refuse_non_finite("x", x)
    _refuse_non_finite("W_dec", W_dec)
    dtype = torch.float64 if torch.float64 in (x.dtype, W_dec.dtype) else torch.float32
    x, W_dec = (t.detach().to(dtype).contiguous() for t in (x, W_dec))
    return Problem(x, W_dec, penalty(lam))


def penalty(lam: float) -> float:
    """lam as a float; refuses what is negative or not finite."""
    value = float(lam)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"lam is {lam}; the L1 weight must be a finite number >= 0.")
    return value


def codes(z: torch.Tensor, given: Problem, name: str = "z") -> torch.Tensor:
    """Check codes z [n, d_sae] against a problem; returned in its dtype. Raises ValueError."""
    wanted = (given.x.shape[0], given.W_dec.shape[0])
    if tuple(z.shape) != wanted:
        raise ValueError(
            f"{name} has shape {tuple(z.shape)}; codes for these x and W_dec are [n, d_sae] = "
            f"{list(wanted)}."
        )
    if z.device != given.x.device:
        raise ValueError(f"{name} is on {z.device}, x on {given.x.device}; use one device.")
    lowest = _refuse_non_finite(name, z)
    if lowest < 0:
        raise ValueError(
            f"{name} has negative entries (lowest {lowest:.3g}); codes are z >= 0 here. "
            "Clamp them first if that is what is meant."
        )
    return z.detach().to(given.x.dtype)


def count(name: str, value: int, least: int = 0) -> None:
    """Refuse a count that is not an integer >= least."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be an integer >= {least}.")


def double(t: torch.Tensor) -> torch.Tensor:
    """t in float64, on the CPU where its own device has no float64 (Apple's MPS)."""
    return t.cpu().double() if t.device.type == "mps" else t.double()


def all_finite(value: torch.Tensor) -> bool:
    """Whether no entry is NaN or infinite; one pass, where isfinite().all() takes three."""
    return all(math.isfinite(end) for end in _span(value))


def _span(value: torch.Tensor) -> tuple[float, float]:
    """Lowest and highest entry, nan if any is; (0, 0) of nothing."""
    if not value.numel():
        return 0.0, 0.0
    low, high = torch.aminmax(value.detach())
    return float(low), float(high)


def _refuse_non_finite(name: str, value: torch.Tensor) -> float:
    """The lowest entry; ValueError where an entry is NaN or infinite."""
    low, high = _span(value)
    if math.isfinite(low) and math.isfinite(high):
        return low
    rows = (~torch.isfinite(value)).any(dim=1).nonzero()[:, 0]
    raise ValueError(
        f"{name} holds NaN or infinite values in {rows.numel()} of {value.shape[0]} rows (first: "
        f"row {int(rows[0])}). Drop or repair these rows; half precision overflows on massive "
        "activations."
    )
