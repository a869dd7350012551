"""What determines an SAE, and SAELens's training options for each architecture."""

from dataclasses import dataclass
from typing import Any

# the architectures whose sparsity is the weight of a penalty: their L0 follows from it only
# through training, so that a wanted L0 has to be steered to
PENALISED = ("standard", "gated", "jumprelu")
_SPARSE_BY_COUNT = ("topk", "batchtopk", "matryoshka_batchtopk", "matching_pursuit")
# widths of the inner Matryoshka dictionaries, as shares of d_sae; the whole is always the last
MATRYOSHKA_SHARES = (1 / 8, 1 / 4, 1 / 2)
WARM_UP = 20  # learning rate and penalty grow from zero over one of so many parts of the steps

# SAELens's defaults for JumpReLU (threshold 0.01, bandwidth 0.05, gradient to the threshold alone)
# leave an L0 of 380 after 400 steps however large the weight: Adam moves a threshold by about lr a
# step. With the straight-through gradient to the encoder too, as in Anthropic's version [1], the L0
# follows the weight. Tried on SmolLM2-135M, 400 steps, steered to an L0 of 20: the "step" penalty
# at bandwidths 0.25, 0.5, 1 and 2 gave NMSE 0.231, 0.227, 0.225, 0.227 and 15, 11, 14, 13 % dead;
# "tanh" (bandwidth 2) 0.221 and 21 % dead; "quadratic", which has a target of its own, 0.241 and
# 76 % dead, since it holds every sample to the target and starts far from it. The pre-activation
# loss on latents that went dead brings them back: weights 0.1, 1 and 10 left 7, 6 and 2 % dead
# (bandwidth 0.5), at NMSE 0.227, 0.231 and 0.256.
# [1] Anthropic interpretability team, "Circuits Updates", January 2025.
JUMPRELU: dict[str, Any] = {
    "jumprelu_init_threshold": 0.01,
    "jumprelu_bandwidth": 0.5,
    "jumprelu_sparsity_loss_mode": "step",
    "jumprelu_ste_to_input": True,
    "pre_act_loss_coefficient": 0.3,
}


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an SAE, given the activations it is trained on.

    architecture: SAELens's key: "standard", "topk", "batchtopk", "gated", "jumprelu",
        "matryoshka_batchtopk", "matching_pursuit" or "loca".
    sparsity: ``k`` of the TopK family and of matching pursuit (greedy steps a sample); the weight
        of the sparsity penalty of "standard" and "gated" (L1) and of "jumprelu" (L0).
    steps, batch_size: optimizer steps and activations a step.
    lr: Adam's learning rate, after a linear warm-up over 5 % of the steps and before a linear
        decay to zero over the last 20 %.
    seed: of the initial weights and of the order of the activations.
    group_sizes, group_ks: of "loca" only.
    target_l0: of "standard", "gated" and "jumprelu" only: mean number of active latents a sample
        to arrive at. The penalty's weight then starts at ``sparsity`` and is steered.
    """

    architecture: str
    d_sae: int
    sparsity: float
    steps: int
    batch_size: int = 256
    lr: float = 1e-3
    seed: int = 0
    group_sizes: tuple[int, ...] = ()
    group_ks: tuple[int, ...] = ()
    target_l0: float | None = None


def check(recipe: Recipe) -> None:
    """Raise ValueError, with what to change, for a recipe that cannot be trained."""
    name, sparsity, target = recipe.architecture, recipe.sparsity, recipe.target_l0
    known = (*PENALISED, *_SPARSE_BY_COUNT, "loca")
    if name not in known:
        raise ValueError(f"architecture {name!r} has no recipe here; use one of {list(known)}.")
    if (name == "loca") != bool(recipe.group_sizes or recipe.group_ks):
        raise ValueError(
            f"group_sizes {recipe.group_sizes} and group_ks {recipe.group_ks} with architecture "
            f"{name!r}: 'loca' needs both, the others take neither (see loca_training.train_loca)."
        )
    if target is not None and name not in PENALISED:
        raise ValueError(
            f"target_l0 is {target:g}, but a {name!r} SAE has the L0 of its own budget; set "
            f"sparsity instead (a target is for {list(PENALISED)})."
        )
    if target is not None and not 0 < target < recipe.d_sae:
        raise ValueError(
            f"target_l0 is {target:g}; expected more than 0 and less than d_sae = {recipe.d_sae}."
        )
    if name in _SPARSE_BY_COUNT and (sparsity != int(sparsity) or not 0 < sparsity <= recipe.d_sae):
        raise ValueError(
            f"sparsity is {sparsity:g}; for {name!r} it is k, a whole number from 1 to d_sae = "
            f"{recipe.d_sae}."
        )
    if name in PENALISED and not 0 < sparsity < float("inf"):
        raise ValueError(
            f"sparsity is {sparsity:g}; for {name!r} it is the weight of a penalty, above 0."
        )


def matryoshka_widths(d_sae: int) -> list[int]:
    """Nested dictionary widths up to d_sae, strictly increasing."""
    return sorted({max(1, int(share * d_sae)) for share in MATRYOSHKA_SHARES} | {d_sae})


def saelens_fields(recipe: Recipe) -> dict[str, Any]:
    """The fields of SAELens's training config that the recipe decides, sizes left out.

    Raises ValueError as `check` does.
    """
    check(recipe)
    k, warm_up = int(recipe.sparsity), max(1, recipe.steps // WARM_UP)
    # SAELens keeps the threshold that stands for the batch's budget at inference as a running mean
    # that starts at zero; its rate of 0.01 leaves it too low after fewer than about 500 steps
    budget = {"k": k, "topk_threshold_lr": max(0.01, min(1.0, 10 / recipe.steps))}
    penalty = {"l1_coefficient": recipe.sparsity, "l1_warm_up_steps": warm_up}
    fields: dict[str, dict[str, Any]] = {
        "standard": penalty,
        "gated": penalty,
        "jumprelu": {
            "l0_coefficient": recipe.sparsity,
            "l0_warm_up_steps": warm_up,
            **JUMPRELU,
        },
        "topk": {"k": k},
        "batchtopk": budget,
        "matryoshka_batchtopk": {
            **budget,
            "matryoshka_widths": matryoshka_widths(recipe.d_sae),
        },
        "matching_pursuit": {
            "max_iterations": k,
            "residual_threshold": 0.0,
            "decoder_init_norm": 1.0,
        },
        "loca": {"group_sizes": list(recipe.group_sizes), "group_ks": list(recipe.group_ks)},
    }
    return fields[recipe.architecture]
