"""The SAEs of the experiments: one recipe from a notebook's parameters."""

import numpy as np

from loca_sae.experiments.data import Data
from loca_sae.parameters import Parameters
from loca_sae.training import Recipe, Trained, train


def checkpoint_steps(p: Parameters) -> list[int]:
    """``p.checkpoints`` optimizer steps, evenly spaced in the logarithm, the last step included."""
    spaced = np.geomspace(p.first_checkpoint, p.steps, p.checkpoints)
    return sorted({int(step) for step in spaced.round()})


def recipe(p: Parameters, architecture: str, sparsity: float) -> Recipe:
    """The recipe of an SAE of ``architecture`` at ``sparsity`` (k, or the L1 weight)."""
    return Recipe(
        architecture=architecture,
        d_sae=p.d_sae,
        sparsity=float(sparsity),
        steps=p.steps,
        batch_size=p.batch_size,
        lr=p.lr,
        seed=p.seed,
    )


def sae(p: Parameters, data: Data, architecture: str, sparsity: float) -> Trained:
    """Train that SAE on the training activations, or find it in the store.

    Every notebook saves the same checkpoints, so that an SAE of one is found by the others.
    """
    return train(
        data.train,
        recipe(p, architecture, sparsity),
        checkpoints=checkpoint_steps(p),
        device=p.device,
    )
