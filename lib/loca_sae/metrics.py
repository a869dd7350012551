"""Measures of reconstruction, firing and amortization: pure functions, and accumulators of them.

Shapes: activations x and reconstructions x_hat [n, d_in], codes z [n, d_sae]. A latent fires where
its code is not 0: where it is > 0, unless a protocol allows negative codes. Sums run in float64.
`Reconstruction` and `Firing` give the same numbers from batches, in memory that does not grow with
n.

Sources
1. Sun, Wang, Hu. The Price of Amortized Inference in Sparse Autoencoders. ICLR 2026.
2. Bloom et al. SAELens: explained variance is 1 - FVU.
"""

from typing import NamedTuple

from torch import Tensor

from loca_sae import sparse_coding

DEAD_THRESHOLD = 1e-6


class AmortizationGap(NamedTuple):
    """absolute: mean over samples of L(x, z_a) - L(x, z_o). relative: absolute / mean L(x, z_o)."""

    absolute: float
    relative: float


class Reconstruction:
    """NMSE and FVU over batches."""

    def __init__(self) -> None:
        self._n = 0
        self._error = 0.0
        self._square = 0.0
        self._sum: Tensor | None = None

    def update(self, x: Tensor, x_hat: Tensor) -> None:
        """Take in a batch. Raises ValueError when the shapes differ or are not [n, d_in]."""
        if x.shape != x_hat.shape or x.ndim != 2:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and x_hat {tuple(x_hat.shape)}; "
                "both must be [n, d_in]."
            )
        exact = x.double()
        self._n += len(x)
        self._error += float((exact - x_hat.double()).square().sum())
        self._square += float(exact.square().sum())
        total = exact.sum(0)
        self._sum = total if self._sum is None else self._sum + total

    def nmse(self) -> float:
        """mean ||x - x_hat||^2 / mean ||x||^2, uncentred [1]."""
        return self._error / self._positive(self._square, "every activation is zero")

    def fvu(self) -> float:
        """mean ||x - x_hat||^2 / mean ||x - mean x||^2, the centred one: 1 - explained variance."""
        self._seen()
        assert self._sum is not None
        around_mean = self._square - float(self._sum.square().sum()) / self._n
        # the difference of two large sums: below their rounding there is no variance to explain
        if around_mean <= 1e-12 * self._square:
            around_mean = 0.0
        return self._error / self._positive(around_mean, "all activations are the same")

    def _positive(self, value: float, problem: str) -> float:
        self._seen()
        if value <= 0:
            raise ValueError(f"{problem}, so there is nothing to divide the error by.")
        return value

    def _seen(self) -> None:
        if self._n == 0:
            raise ValueError("no activations were given yet; call update first.")


class Firing:
    """How often each latent fires, and L0, over batches."""

    def __init__(self) -> None:
        self.n = 0
        self._count: Tensor | None = None

    def update(self, z: Tensor) -> None:
        """Take in the codes of a batch, [n, d_sae]."""
        if z.ndim != 2:
            raise ValueError(f"codes have shape {tuple(z.shape)}; expected [n, d_sae].")
        self.n += len(z)
        count = (z != 0).sum(0)
        self._count = count if self._count is None else self._count + count

    def count(self) -> Tensor:
        """Number of samples on which each latent fired, [d_sae] int64."""
        if self._count is None:
            raise ValueError("no codes were given yet; call update first.")
        return self._count

    def rate(self) -> Tensor:
        """Share of the samples on which each latent fired, [d_sae] float64."""
        return self.count().double() / self.n

    def l0(self) -> float:
        """Mean number of latents that fire on a sample."""
        return float(self.rate().sum())


def nmse(x: Tensor, x_hat: Tensor) -> float:
    """See `Reconstruction.nmse`."""
    return _reconstruction(x, x_hat).nmse()


def fvu(x: Tensor, x_hat: Tensor) -> float:
    """See `Reconstruction.fvu`."""
    return _reconstruction(x, x_hat).fvu()


def l0(z: Tensor) -> float:
    """See `Firing.l0`."""
    return _firing(z).l0()


def firing_rate(z: Tensor) -> Tensor:
    """See `Firing.rate`."""
    return _firing(z).rate()


def dead_rate(rate: Tensor, threshold: float = DEAD_THRESHOLD) -> float:
    """Share of latents whose firing rate [d_sae] is at most ``threshold``.

    With n samples a rate below 1/n can only be 0: print n beside it, since a latent that is dead
    on few tokens may fire on more.
    """
    return float((_rates(rate) <= threshold).double().mean())


def dense_rate(rate: Tensor, threshold: float) -> float:
    """Share of latents whose firing rate [d_sae] is at least ``threshold`` (dense@threshold)."""
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}; a firing rate to reach lies in (0, 1].")
    return float((_rates(rate) >= threshold).double().mean())


def amortization_gap(
    x: Tensor, z_a: Tensor, z_o: Tensor, W_dec: Tensor, lam: float
) -> AmortizationGap:
    """The gap of codes z_a to the optimal codes z_o under the one objective L [1].

    L(x, z) = 1/2 ||x - z W_dec||^2 + lam sum(z), per sample, with the sum over d_in; x is the
    target (x - b_dec). Negative values mean that z_o was not optimal.
    """
    ours = sparse_coding.objective(x, z_a, W_dec, lam).double().mean()
    best = sparse_coding.objective(x, z_o, W_dec, lam).double().mean()
    return AmortizationGap(float(ours - best), float((ours - best) / best))


def _reconstruction(x: Tensor, x_hat: Tensor) -> Reconstruction:
    both = Reconstruction()
    both.update(x, x_hat)
    return both


def _firing(z: Tensor) -> Firing:
    firing = Firing()
    firing.update(z)
    return firing


def _rates(rate: Tensor) -> Tensor:
    if rate.ndim != 1 or bool((rate < 0).any()) or bool((rate > 1).any()):
        raise ValueError(
            f"firing rates must be [d_sae] values in [0, 1]; got shape {tuple(rate.shape)} "
            "(see `firing_rate`)."
        )
    return rate


__all__ = [
    "AmortizationGap",
    "DEAD_THRESHOLD",
    "Firing",
    "Reconstruction",
    "amortization_gap",
    "dead_rate",
    "dense_rate",
    "firing_rate",
    "fvu",
    "l0",
    "nmse",
]
