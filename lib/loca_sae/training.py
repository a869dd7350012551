"""Train a SAELens SAE on harvested activations, with SAELens's own trainer, into the store.

SAELens owns the step: loss, auxiliary loss, Adam, gradient clipping, schedules, firing statistics.
What is added here is what an experiment on training dynamics needs around it: one seed for
everything, checkpoints at chosen steps, the loss curve as a table, resumption after a kill, and an
artifact whose name is its recipe.

Two facts of the trainer matter when reading the losses: the reconstruction loss sums over d_in and
averages over the batch, and nothing in it draws from a seeded generator of its own, so the seed is
set around the initialisation here and the batches bring their own.
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sae_lens import SAE, SAETrainer, TrainingSAE
from sae_lens.config import LoggingConfig, SAETrainerConfig
from sae_lens.registry import get_sae_training_class
from sae_lens.saes.sae import SAEMetadata
from tqdm import tqdm

from loca_sae import architecture as _registers_loca  # noqa: F401
from loca_sae import models, resuming, store
from loca_sae.activations import Activations
from loca_sae.recipes import WARM_UP, Recipe, saelens_fields
from loca_sae.steering import L0Controller

__all__ = ["Recipe", "Trained", "train"]

CURVE_POINTS = 100
RESUME_EVERY = 500
_MODULES = ["loca_sae.training"]


@dataclass(frozen=True)
class Trained:
    """A trained SAE in the store: ``load()`` the last step or one of ``checkpoints``."""

    path: Path
    recipe: Recipe

    @property
    def checkpoints(self) -> list[int]:
        """The saved steps, in order; the last one is the end of training."""
        return sorted(int(folder.name) for folder in (self.path / "steps").iterdir())

    def load(self, step: int | None = None, device: str = "cpu") -> SAE[Any]:
        """The SAE after ``step`` optimizer steps (None: at the end), for inference."""
        step = self.checkpoints[-1] if step is None else step
        if step not in self.checkpoints:
            raise ValueError(f"no checkpoint at step {step}; saved steps: {self.checkpoints}.")
        return SAE.load_from_disk(self.path / "steps" / str(step), device=device).eval()

    def curve(self) -> pd.DataFrame:
        """Columns step, tokens, mse (sum over d_in, mean over the batch), l0 (of the batch),
        coefficient (weight of the sparsity penalty in that step; nan where there is none)."""
        return pd.read_parquet(self.path / "curve.parquet")


def train(
    activations: Activations,
    recipe: Recipe,
    *,
    checkpoints: Sequence[int] = (),
    initial: SAE[Any] | None = None,
    initial_name: str = "",
    device: str = "cpu",
) -> Trained:
    """Train under ``recipe``, or find in the store the SAE that was trained so.

    activations: the training split, already masked and scaled.
    checkpoints: optimizer steps after which the SAE is saved besides the last one.
    initial: start from this SAE's weights instead of SAELens's initialisation; ``initial_name``
        must then identify it, since it becomes part of the artifact's name.
    Raises ValueError for a recipe SAELens cannot train, before any work starts.
    """
    if initial is not None and not initial_name:
        raise ValueError("initial weights need an initial_name: it is part of the artifact's name.")
    steps = sorted({*checkpoints, recipe.steps})
    if steps[0] < 0 or steps[-1] > recipe.steps:
        raise ValueError(f"checkpoints {steps} must lie between 0 and steps = {recipe.steps}.")
    new_sae = partial(_training_sae, activations, recipe, initial, device)
    new_sae()  # a wrong recipe fails here, not behind a lock
    parameters = {
        **json.loads(json.dumps(asdict(recipe))),
        "activations": activations.name,
        "checkpoints": steps,
        "initial": initial_name,
        "device": torch.device(device).type,
    }
    artifact = store.artifact(
        "sae",
        parameters,
        lambda folder: _fit(folder, activations, recipe, steps, new_sae()),
        modules=_MODULES,
        name=f"{recipe.architecture}-{recipe.sparsity:g}-{recipe.d_sae}",
    )
    return Trained(artifact.path, recipe)


def _training_sae(
    activations: Activations, recipe: Recipe, initial: SAE[Any] | None, device: str
) -> TrainingSAE[Any]:
    """A SAELens training SAE, initialised under the seed, its b_dec at the mean activation.

    The mean direction of a residual stream holds much of its norm; a bias that starts there does
    not have to travel, and the encoder sees centred inputs from the first step.
    """
    fields = saelens_fields(recipe)  # first: it refuses what SAELens would misread
    sae_class, config_class = get_sae_training_class(recipe.architecture)
    config = config_class(
        d_in=activations.d_in,
        d_sae=recipe.d_sae,
        device=device,
        metadata=_metadata(activations, recipe),
        **fields,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        sae = sae_class(config)
    with torch.no_grad():
        if initial is None:
            sae.b_dec.copy_(activations.sample(min(activations.n, 8192), recipe.seed).mean(0))
        else:
            _copy_weights(initial, sae)
    return sae


def _metadata(activations: Activations, recipe: Recipe) -> SAEMetadata:
    stats = activations.stats
    return SAEMetadata(
        model_name=stats["model"],
        hook_name=models.hook_name(stats["layer"]),
        hook_layer=stats["layer"],
        activation_scale=activations.scale,
        activations=activations.name,
        # SAELens saves BatchTopK and Matryoshka SAEs as JumpReLU ones
        trained_architecture=recipe.architecture,
        target_l0=recipe.target_l0,
        training_seed=recipe.seed,
        training_steps=recipe.steps,
    )


@torch.no_grad()
def _copy_weights(source: SAE[Any], target: TrainingSAE[Any]) -> None:
    """Copy every parameter of ``target`` from ``source``; names and shapes must agree."""
    for name, parameter in target.named_parameters():
        value = getattr(source, name, None)
        shape = None if value is None else tuple(value.shape)
        if shape != parameter.shape:
            raise ValueError(
                f"initial {name} has shape {shape}, the new SAE needs {tuple(parameter.shape)}."
            )
        parameter.copy_(value)


def _trainer(
    sae: TrainingSAE[Any], recipe: Recipe, batches: Iterator[torch.Tensor]
) -> SAETrainer[Any, Any]:
    config = SAETrainerConfig(
        total_training_samples=recipe.steps * recipe.batch_size,
        train_batch_size_samples=recipe.batch_size,
        lr=recipe.lr,
        lr_end=0.0,  # None fails an assertion in the trainer
        lr_warm_up_steps=recipe.steps // WARM_UP,
        lr_decay_steps=recipe.steps // 5,
        device=str(sae.device),
        # the default of 1000 steps would never declare a latent dead in a short run,
        # and the auxiliary loss that revives dead latents would never act
        dead_feature_window=max(25, min(1000, recipe.steps // 10)),
        logger=LoggingConfig(log_to_wandb=False),
    )
    return SAETrainer(config, sae, batches)


def _fit(
    folder: Path,
    activations: Activations,
    recipe: Recipe,
    checkpoints: Sequence[int],
    sae: TrainingSAE[Any],
) -> None:
    """Run the optimizer steps that are still missing in ``folder`` and write the artifact."""
    batches = activations.batches(recipe.batch_size, seed=recipe.seed)
    trainer = _trainer(sae, recipe, batches)
    controller = None
    if recipe.target_l0 is not None:
        controller = L0Controller(recipe.target_l0, recipe.sparsity, recipe.steps)
    curve = resuming.load(folder / "resume", trainer, controller, batches)
    every = max(1, recipe.steps // CURVE_POINTS)
    progress = tqdm(
        total=recipe.steps, initial=trainer.n_training_steps, desc=recipe.architecture, unit="step"
    )
    if trainer.n_training_steps == 0 and 0 in checkpoints:
        sae.save_inference_model(folder / "steps" / "0")
    while trainer.n_training_steps < recipe.steps:
        trainer.maybe_reset_sparsity()
        point = _step(trainer, controller, next(batches))
        step = trainer.n_training_steps
        if step % every == 0 or step in (1, recipe.steps):
            curve.append(point)
        if step == recipe.steps:
            trainer.set_final_sae_metadata()
        if step in checkpoints:
            sae.save_inference_model(folder / "steps" / str(step))
        if step % RESUME_EVERY == 0:
            resuming.save(folder / "resume", trainer, controller, curve)
        progress.update()
    progress.close()
    pd.DataFrame(curve).to_parquet(folder / "curve.parquet", index=False)
    shutil.rmtree(folder / "resume", ignore_errors=True)


def _step(
    trainer: SAETrainer[Any, Any], controller: L0Controller | None, batch: torch.Tensor
) -> dict[str, float]:
    """One optimizer step and what it did: a row of the curve."""
    coefficient = max(trainer.get_coefficients().values(), default=math.nan)
    output = trainer.step(batch)
    trainer.n_training_steps += 1
    l0 = float((output.feature_acts.detach() > 0).sum(-1).float().mean())
    if controller is not None:
        controller.steer(trainer.coefficient_schedulers, l0)
    return {
        "step": trainer.n_training_steps,
        "tokens": trainer.n_training_samples,
        "mse": float(output.losses["mse_loss"].detach()),
        "l0": l0,
        "coefficient": coefficient,
    }
