"""What a killed training takes up again: weights, optimizer, schedules, controller and curve."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sae_lens import SAETrainer

from loca_sae.steering import L0Controller


def save(
    folder: Path,
    trainer: SAETrainer[Any, Any],
    controller: L0Controller | None,
    curve: list[dict[str, float]],
) -> None:
    """Write weights, states and curve, then swap them in: a kill leaves the older one."""
    fresh = folder.with_name("resume.new")
    shutil.rmtree(fresh, ignore_errors=True)
    trainer.save_checkpoint("trainer", base_path=fresh)
    if controller is not None:
        (fresh / "controller.json").write_text(json.dumps(controller.state()))
    (fresh / "curve.json").write_text(json.dumps(curve))
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def load(
    folder: Path,
    trainer: SAETrainer[Any, Any],
    controller: L0Controller | None,
    batches: Iterator[torch.Tensor],
) -> list[dict[str, float]]:
    """Bring the trainer to where a killed run last saved it; [] when there is nothing to resume."""
    if not (folder / "curve.json").exists():
        return []
    trainer.sae.load_weights_from_checkpoint(folder / "trainer")
    trainer.load_trainer_state(folder / "trainer")
    if controller is not None:
        controller.restore(
            json.loads((folder / "controller.json").read_text()), trainer.coefficient_schedulers
        )
    for _ in range(trainer.n_training_steps):
        next(batches)  # the same order of batches as the undisturbed run
    curve: list[dict[str, float]] = json.loads((folder / "curve.json").read_text())
    return curve
