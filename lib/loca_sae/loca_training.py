"""The four phases of a LocA-SAE (Sun, Wang and Hu, ICLR 2026, section on local amortization).

1. Pretrain a global TopK SAE.
2. Measure the angular variance of each latent, sort the latents by it, cut them into groups.
3. Copy: each group's encoder starts as the pretrained encoder's rows of its latents; the decoder
   rows move with them. Since the groups' encoders are column blocks of one matrix, this is a
   permutation of the latents, and with the groups' budgets added up to one TopK nothing changes.
4. Fine-tune jointly under group-wise TopK, at half the learning rate.

High-AVar latents get the larger budgets: group 0 has the highest angular variance.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from sae_lens import SAE

from loca_sae import grouping, store
from loca_sae.activations import Activations
from loca_sae.training import Recipe, Trained, train

Order = Literal["avar", "random"]
_MODULES = ["loca_sae.loca_training"]


@dataclass(frozen=True)
class LocaRun:
    """What the four phases left behind.

    pretrained: phase 1. latents: phase 2, one row a latent of the *pretrained* SAE (columns latent,
    count, avar, group). trained: phase 4, its latents in group order.
    """

    pretrained: Trained
    latents: pd.DataFrame
    trained: Trained


def train_loca(
    activations: Activations,
    pretraining: Recipe,
    *,
    group_ks: list[int],
    group_sizes: list[int] | None = None,
    finetune_steps: int,
    avar_batches: int = 200,
    min_count: int = 10,
    order: Order = "avar",
    checkpoints: tuple[int, ...] = (),
    device: str = "cpu",
) -> LocaRun:
    """Run, or find in the store, the four phases on top of the TopK recipe ``pretraining``.

    group_sizes: latents of each group, high AVar first; None means equal groups.
    avar_batches: at most this many batches of training activations go into phase 2.
    min_count: firings below which a latent's AVar is undefined; such latents come last.
    order: "random" assigns latents to groups by chance instead, the control for phase 2.
    checkpoints: saved steps of phase 1 (they name the artifact, so callers that share a
        pretrained SAE must agree on them).
    """
    if pretraining.architecture != "topk":
        raise ValueError(
            f"phase 1 pretrains a global TopK SAE; the recipe says {pretraining.architecture!r}."
        )
    sizes = group_sizes or grouping.equal_sizes(pretraining.d_sae, len(group_ks))
    pretrained = train(activations, pretraining, checkpoints=checkpoints, device=device)
    latents = measure_latents(activations, pretrained, sizes, avar_batches, min_count, order)
    permutation = torch.tensor(latents.sort_values("position")["latent"].tolist())
    recipe = replace(
        pretraining,
        architecture="loca",
        sparsity=float(sum(group_ks)),
        steps=finetune_steps,
        lr=pretraining.lr / 2,
        group_sizes=tuple(sizes),
        group_ks=tuple(group_ks),
    )
    trained = train(
        activations,
        recipe,
        initial=permuted(pretrained.load(device=device), permutation),
        initial_name=f"{pretrained.path.name}/{order}-{avar_batches}-{min_count}",
        device=device,
    )
    return LocaRun(pretrained, latents, trained)


def continue_topk(
    activations: Activations,
    pretrained: Trained,
    *,
    k: int,
    steps: int,
    device: str = "cpu",
) -> Trained:
    """The control for phases 2 to 4: the same SAE, extra steps and learning rate, a plain TopK."""
    recipe = replace(pretrained.recipe, sparsity=float(k), steps=steps, lr=pretrained.recipe.lr / 2)
    return train(
        activations,
        recipe,
        initial=pretrained.load(device=device),
        initial_name=pretrained.path.name,
        device=device,
    )


def measure_latents(
    activations: Activations,
    pretrained: Trained,
    group_sizes: list[int],
    avar_batches: int,
    min_count: int,
    order: Order,
) -> pd.DataFrame:
    """Phase 2: columns latent, count, avar (nan when undefined), group, position (in the order)."""
    parameters = {
        "sae": pretrained.path.name,
        "group_sizes": list(group_sizes),
        "avar_batches": avar_batches,
        "min_count": min_count,
        "order": order,
    }

    def build(folder: Path) -> None:
        sae = pretrained.load()
        avar = _angular_variance(sae, activations, pretrained.recipe, avar_batches, min_count)
        if order == "random":
            grouped = grouping.random_groups(
                avar.value.numel(), group_sizes, pretrained.recipe.seed
            )
        else:
            grouped = grouping.group_latents(avar.value, group_sizes)
        position = torch.empty_like(grouped.order)
        position[grouped.order] = torch.arange(len(grouped.order))
        frame = pd.DataFrame(
            {
                "latent": range(len(position)),
                "count": avar.firings.numpy(),
                "avar": avar.value.numpy(),
                "group": grouped.group_of.numpy(),
                "position": position.numpy(),
            }
        )
        frame.to_parquet(folder / "latents.parquet", index=False)

    artifact = store.artifact("latents", parameters, build, modules=_MODULES, name=order)
    return pd.read_parquet(artifact.path / "latents.parquet")


@torch.no_grad()
def _angular_variance(
    sae: SAE[Any], activations: Activations, recipe: Recipe, batches: int, min_count: int
) -> grouping.AngularVariance:
    """AVar of each latent over at most ``batches`` training batches, one epoch if that is less."""
    accumulator = grouping.AngularVarianceAccumulator(recipe.d_sae, activations.d_in)
    stream = activations.batches(recipe.batch_size, seed=recipe.seed)
    for _ in range(min(batches, max(1, activations.n // recipe.batch_size))):
        x = next(stream)
        accumulator.update(x, sae.encode(x))
    return accumulator.result(min_count)


@torch.no_grad()
def permuted(sae: SAE[Any], permutation: torch.Tensor) -> SAE[Any]:
    """Phase 3: the same SAE with latent ``permutation[i]`` at place i and a unit-norm decoder.

    A TopK SAE saved by SAELens already has unit-norm decoder rows; checked here, because copying
    an encoder without its scale would change what the budgets select.
    """
    norms = sae.W_dec.norm(dim=-1)
    if not torch.allclose(norms, torch.ones_like(norms), atol=1e-4):
        raise ValueError(
            f"decoder rows have norms between {norms.min():.3g} and {norms.max():.3g}; "
            "fold them first (sae.fold_W_dec_norm())."
        )
    sae.W_enc.data = sae.W_enc.data[:, permutation].contiguous()
    sae.b_enc.data = sae.b_enc.data[permutation].contiguous()
    sae.W_dec.data = sae.W_dec.data[permutation].contiguous()
    return sae
