"""Angular variance of latents, and groups of latents made from it (LocA-SAE, phase 2).

    AVar_j = 1 - || mean over the samples where j fires of x / ||x|| ||

x is the activation itself (scaled or not: its length drops out), not centred. 0 means that latent j
fires on one direction only, values near 1 that the directions cancel [1].

The estimate is confounded with the count: with one firing it is 0 whatever the latent is, and for
m directions drawn evenly it is about 1 - 1/sqrt(m). So a latent needs ``min_count`` firings,
and has no angular variance (nan) below that.

Source: 1. Sun, Wang, Hu. The Price of Amortized Inference in Sparse Autoencoders. ICLR 2026.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# the paper's budgets, for the group of highest angular variance first
PAPER_BUDGETS = (6, 5, 4, 3, 3, 2, 2, 1)


class AngularVariance(NamedTuple):
    """value: [d_sae] float64 in [0, 1], nan below the minimum count. firings: [d_sae] int64."""

    value: Tensor
    firings: Tensor


class Grouping(NamedTuple):
    """order: latent at each place, [d_sae]; groups are contiguous in it. group_of: group of each
    latent, [d_sae], group 0 first in the order."""

    order: Tensor
    group_of: Tensor


class AngularVarianceAccumulator:
    """Angular variance over batches; memory for one direction a latent, [d_sae, d_in] float64."""

    def __init__(self, d_sae: int, d_in: int) -> None:
        self._sum = torch.zeros(d_sae, d_in, dtype=torch.float64)
        self._count = torch.zeros(d_sae, dtype=torch.int64)

    def update(self, x: Tensor, z: Tensor) -> None:
        """Take in activations x [n, d_in] and their codes z [n, d_sae].

        Raises ValueError for shapes that do not fit, and for an x of length 0, which has no
        direction, on which a latent fires.
        """
        if x.shape != (len(z), self._sum.shape[1]) or z.shape[1:] != self._count.shape:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and z {tuple(z.shape)}; expected "
                f"[n, {self._sum.shape[1]}] and [n, {len(self._count)}]."
            )
        fired = (z > 0).to(self._sum)
        length = x.double().norm(dim=1, keepdim=True)
        if bool(((length.flatten().cpu() == 0) & fired.any(1)).any()):
            raise ValueError("a latent fires on an activation of length 0, which has no direction.")
        direction = (x.double() / length.clamp(min=1e-300)).to(self._sum)
        self._sum += fired.T @ direction
        self._count += fired.sum(0).long()

    def result(self, min_count: int = 10) -> AngularVariance:
        """The estimate; nan for latents that fired fewer than ``min_count`` (at least 1) times."""
        if min_count < 1:
            raise ValueError(f"min_count is {min_count}; a latent must fire once to have an AVar.")
        mean = self._sum / self._count.clamp(min=1)[:, None]
        value = (1 - mean.norm(dim=1)).clamp(0, 1)
        value[self._count < min_count] = torch.nan
        return AngularVariance(value, self._count.clone())


def angular_variance(x: Tensor, z: Tensor, min_count: int = 10) -> AngularVariance:
    """Angular variance of each latent, from activations x [n, d_in] and codes z [n, d_sae]."""
    accumulator = AngularVarianceAccumulator(z.shape[1], x.shape[1])
    accumulator.update(x, z)
    return accumulator.result(min_count)


def equal_sizes(d_sae: int, n_groups: int) -> list[int]:
    """Sizes of ``n_groups`` groups that differ by at most one; the first ones are the larger."""
    if not 1 <= n_groups <= d_sae:
        raise ValueError(f"{n_groups} groups of {d_sae} latents: choose 1 to {d_sae} groups.")
    size, extra = divmod(d_sae, n_groups)
    return [size + (group < extra) for group in range(n_groups)]


def group_latents(value: Tensor, group_sizes: Sequence[int]) -> Grouping:
    """Latents by falling angular variance [d_sae], cut into groups: group 0 has the highest.

    Latents without an angular variance (nan) come last, into the groups with the smallest budgets:
    they fire too rarely to need more. Ties keep the order of the latents.
    """
    _check_sizes(len(value), group_sizes)
    # nan below every value, which is at least 0
    order = value.nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
    return _cut(order, group_sizes)


def random_groups(d_sae: int, group_sizes: Sequence[int], seed: int) -> Grouping:
    """The control: the same sizes, latents in an order drawn with the seed."""
    _check_sizes(d_sae, group_sizes)
    order = torch.randperm(d_sae, generator=torch.Generator().manual_seed(seed))
    return _cut(order, group_sizes)


def _cut(order: Tensor, group_sizes: Sequence[int]) -> Grouping:
    group_of = torch.empty_like(order)
    sizes = torch.tensor(list(group_sizes))
    group_of[order] = torch.arange(len(sizes)).repeat_interleave(sizes)
    return Grouping(order, group_of)


def _check_sizes(d_sae: int, group_sizes: Sequence[int]) -> None:
    if min(group_sizes, default=0) < 1 or sum(group_sizes) != d_sae:
        raise ValueError(
            f"group sizes {list(group_sizes)} sum to {sum(group_sizes)}; they must be positive "
            f"and sum to the {d_sae} latents."
        )
