"""LocA: a TopK SAE whose sparsity budget is spent group by group, as a SAELens plugin.

Importing this module registers the architecture ``"loca"`` with SAELens, so that
``SAE.load_from_disk``, ``SAETrainer``, SAELens's runners and its evals treat it like any other.

The method (Sun, Wang and Hu, "The Price of Amortized Inference in Sparse Autoencoders", ICLR 2026)
gives every group of latents its own encoder, its own TopK budget, and one shared decoder. A linear
encoder cut by groups of latents *is* one matrix ``W_enc [d_in, d_sae]`` whose column blocks belong
to the groups: separate encoders and one encoder with group-wise TopK compute the same codes. So
only the activation function differs from SAELens's TopK, and folding, scaling, saving and loading
are inherited.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from sae_lens import (
    TopKSAE,
    TopKSAEConfig,
    TopKTrainingSAE,
    TopKTrainingSAEConfig,
    register_sae_class,
    register_sae_training_class,
)
from sae_lens.registry import SAE_CLASS_REGISTRY, SAE_TRAINING_CLASS_REGISTRY
from torch import nn

ARCHITECTURE = "loca"


def check_groups(d_sae: int, group_sizes: Sequence[int], group_ks: Sequence[int]) -> None:
    """Raise ValueError unless the sizes partition ``d_sae`` and every budget fits its group."""
    if len(group_sizes) != len(group_ks):
        raise ValueError(
            f"group_sizes has {len(group_sizes)} entries and group_ks {len(group_ks)}: "
            "give one budget for each group."
        )
    if sum(group_sizes) != d_sae:
        raise ValueError(
            f"group_sizes {list(group_sizes)} sum to {sum(group_sizes)}, but d_sae is {d_sae}: "
            "the groups must partition the latents."
        )
    for index, (size, k) in enumerate(zip(group_sizes, group_ks, strict=True)):
        if size < 1 or not 1 <= k <= size:
            raise ValueError(
                f"group {index} has {size} latents and a budget of {k}: "
                "a group needs at least one latent and a budget between 1 and its size."
            )


class GroupTopK(nn.Module):
    """The largest ``group_ks[g]`` entries of each contiguous group, after a ReLU; zeros elsewhere.

    Input and output are [..., d_sae]. With one group this is SAELens's TopK.
    """

    def __init__(self, group_sizes: Sequence[int], group_ks: Sequence[int]) -> None:
        super().__init__()
        self.group_sizes = list(group_sizes)
        self.group_ks = list(group_ks)

    def forward(self, hidden_pre: torch.Tensor) -> torch.Tensor:
        feature_acts = torch.zeros_like(hidden_pre)
        start = 0
        for size, k in zip(self.group_sizes, self.group_ks, strict=True):
            top = hidden_pre[..., start : start + size].topk(k, dim=-1, sorted=False)
            # the offset turns positions within the group into latents
            feature_acts.scatter_(-1, top.indices + start, top.values.relu())
            start += size
        return feature_acts


def _one_group_if_unset(cfg: "LocASAEConfig | LocATrainingSAEConfig") -> None:
    """Fill the defaults that depend on other fields, then check the groups."""
    if not cfg.group_sizes and not cfg.group_ks:
        cfg.group_sizes, cfg.group_ks = [cfg.d_sae], [cfg.k]
    # config files and callers may hold tuples or numpy integers; json wants plain lists of ints
    cfg.group_sizes = [int(size) for size in cfg.group_sizes]
    cfg.group_ks = [int(k) for k in cfg.group_ks]
    check_groups(cfg.d_sae, cfg.group_sizes, cfg.group_ks)
    cfg.k = sum(cfg.group_ks)


@dataclass
class LocASAEConfig(TopKSAEConfig):
    """Inference configuration.

    group_sizes: number of latents in each group, in the order of the latents; sums to d_sae.
    group_ks: largest number of active latents in each group.
    Left empty, both describe a single group with the budget ``k``. ``k`` is always the sum of
    ``group_ks``.
    """

    group_sizes: list[int] = field(default_factory=list)
    group_ks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_group_if_unset(self)

    @classmethod
    def architecture(cls) -> str:
        return ARCHITECTURE


class LocASAE(TopKSAE):
    """A LocA-SAE for inference: SAELens's TopKSAE with group-wise TopK."""

    cfg: LocASAEConfig  # type: ignore[assignment]

    def get_activation_fn(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return GroupTopK(self.cfg.group_sizes, self.cfg.group_ks)


@dataclass
class LocATrainingSAEConfig(TopKTrainingSAEConfig):
    """Training configuration: SAELens's TopK training fields and the two of LocASAEConfig."""

    group_sizes: list[int] = field(default_factory=list)
    group_ks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        _one_group_if_unset(self)
        super().__post_init__()

    @classmethod
    def architecture(cls) -> str:
        return ARCHITECTURE


class LocATrainingSAE(TopKTrainingSAE):
    """A LocA-SAE in training (phase 4): SAELens's loss and auxiliary loss, group-wise TopK."""

    cfg: LocATrainingSAEConfig  # type: ignore[assignment]

    def get_activation_fn(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return GroupTopK(self.cfg.group_sizes, self.cfg.group_ks)


def register() -> None:
    """Make SAELens know ``"loca"``. Safe to call again: SAELens itself refuses a second time."""
    if ARCHITECTURE not in SAE_CLASS_REGISTRY:
        register_sae_class(ARCHITECTURE, LocASAE, LocASAEConfig)
    if ARCHITECTURE not in SAE_TRAINING_CLASS_REGISTRY:
        register_sae_training_class(ARCHITECTURE, LocATrainingSAE, LocATrainingSAEConfig)


register()
