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
from loca_sae import models, store
from loca_sae.activations import Activations

CURVE_POINTS = 100
RESUME_EVERY = 500
_MODULES = ["loca_sae.training"]


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an SAE, given the activations it is trained on.

    architecture: SAELens's key ("standard", "topk", "batchtopk", ..., "loca").
    sparsity: ``k`` of the TopK family; the l1 coefficient of "standard".
    steps, batch_size: optimizer steps and activations a step.
    lr: Adam's learning rate, after a linear warm-up over 5 % of the steps and before a linear
        decay to zero over the last 20 %.
    seed: of the initial weights and of the order of the activations.
    group_sizes, group_ks: of "loca" only.
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
        """Columns step, tokens, mse (sum over d_in, mean over the batch), l0 (of the batch)."""
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
    sae_class, config_class = get_sae_training_class(recipe.architecture)
    config = config_class(
        d_in=activations.d_in,
        d_sae=recipe.d_sae,
        device=device,
        metadata=_metadata(activations, recipe),
        **_sparsity_fields(recipe),
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


def _sparsity_fields(recipe: Recipe) -> dict[str, Any]:
    if recipe.architecture == "standard":
        return {
            "l1_coefficient": recipe.sparsity,
            "l1_warm_up_steps": max(1, recipe.steps // 20),
        }
    if recipe.architecture == "loca":
        return {"group_sizes": list(recipe.group_sizes), "group_ks": list(recipe.group_ks)}
    if recipe.architecture in ("topk", "batchtopk"):
        return {"k": int(recipe.sparsity)}
    raise ValueError(
        f"architecture {recipe.architecture!r} has no recipe here; "
        "use 'standard', 'topk', 'batchtopk' or 'loca'."
    )


def _metadata(activations: Activations, recipe: Recipe) -> SAEMetadata:
    stats = activations.stats
    return SAEMetadata(
        model_name=stats["model"],
        hook_name=models.hook_name(stats["layer"]),
        hook_layer=stats["layer"],
        activation_scale=activations.scale,
        activations=activations.name,
        training_seed=recipe.seed,
        training_steps=recipe.steps,
    )


@torch.no_grad()
def _copy_weights(source: SAE[Any], target: TrainingSAE[Any]) -> None:
    """Copy encoder, decoder and biases; shapes must agree."""
    for name in ("W_enc", "b_enc", "W_dec", "b_dec"):
        value, parameter = getattr(source, name), getattr(target, name)
        if value.shape != parameter.shape:
            raise ValueError(
                f"initial {name} has shape {tuple(value.shape)}, "
                f"the new SAE needs {tuple(parameter.shape)}."
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
        lr_warm_up_steps=recipe.steps // 20,
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
    curve = _resume(folder / "resume", trainer, batches)
    every = max(1, recipe.steps // CURVE_POINTS)
    progress = tqdm(
        total=recipe.steps, initial=trainer.n_training_steps, desc=recipe.architecture, unit="step"
    )
    if trainer.n_training_steps == 0 and 0 in checkpoints:
        sae.save_inference_model(folder / "steps" / "0")
    while trainer.n_training_steps < recipe.steps:
        trainer.maybe_reset_sparsity()
        output = trainer.step(next(batches))
        trainer.n_training_steps += 1
        step = trainer.n_training_steps
        if step % every == 0 or step in (1, recipe.steps):
            curve.append(_curve_point(step, recipe, output.losses["mse_loss"], output.feature_acts))
        if step == recipe.steps:
            trainer.set_final_sae_metadata()
        if step in checkpoints:
            sae.save_inference_model(folder / "steps" / str(step))
        if step % RESUME_EVERY == 0:
            _save_resume(folder / "resume", trainer, curve)
        progress.update()
    progress.close()
    pd.DataFrame(curve).to_parquet(folder / "curve.parquet", index=False)
    shutil.rmtree(folder / "resume", ignore_errors=True)


def _curve_point(
    step: int, recipe: Recipe, mse: torch.Tensor, feature_acts: torch.Tensor
) -> dict[str, float]:
    return {
        "step": step,
        "tokens": step * recipe.batch_size,
        "mse": float(mse.detach()),
        "l0": float((feature_acts.detach() > 0).sum(-1).float().mean()),
    }


def _save_resume(
    folder: Path, trainer: SAETrainer[Any, Any], curve: list[dict[str, float]]
) -> None:
    """Write weights, optimizer state and curve, then swap them in: a kill leaves the older one."""
    fresh = folder.with_name("resume.new")
    shutil.rmtree(fresh, ignore_errors=True)
    trainer.save_checkpoint("trainer", base_path=fresh)
    (fresh / "curve.json").write_text(json.dumps(curve))
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _resume(
    folder: Path, trainer: SAETrainer[Any, Any], batches: Iterator[torch.Tensor]
) -> list[dict[str, float]]:
    """Bring the trainer to where a killed run last saved it; [] when there is nothing to resume."""
    if not (folder / "curve.json").exists():
        return []
    trainer.sae.load_weights_from_checkpoint(folder / "trainer")
    trainer.load_trainer_state(folder / "trainer")
    for _ in range(trainer.n_training_steps):
        next(batches)  # the same order of batches as the undisturbed run
    curve: list[dict[str, float]] = json.loads((folder / "curve.json").read_text())
    return curve
