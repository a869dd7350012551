"""The SAEs of the experiments: one recipe from a notebook's parameters."""

import numpy as np

from loca_sae.experiments.data import Data
from loca_sae.parameters import Parameters
from loca_sae.training import Recipe, Trained, train

# where the steered weight of a penalty starts: below the weights that an L0 of 20 needed on
# SmolLM2-135M and Gemma-3-270M, since a weight that is too large at first kills latents
STARTING_WEIGHTS = {"standard": 3.0, "gated": 1.0, "jumprelu": 0.3}


def checkpoint_steps(p: Parameters) -> list[int]:
    """``p.checkpoints`` optimizer steps, evenly spaced in the logarithm, the last step included."""
    spaced = np.geomspace(p.first_checkpoint, p.steps, p.checkpoints)
    return sorted({int(step) for step in spaced.round()})


def recipe(p: Parameters, architecture: str, sparsity: float | None = None) -> Recipe:
    """The recipe of an SAE of ``architecture`` at ``sparsity`` (k, or the weight of a penalty).

    sparsity None: at a mean L0 of ``p.k``, by k or by steering the weight, so that architectures
    can be compared.
    """
    target = None
    if sparsity is None:
        sparsity = STARTING_WEIGHTS.get(architecture, p.k)
        target = float(p.k) if architecture in STARTING_WEIGHTS else None
    return Recipe(
        architecture=architecture,
        d_sae=p.d_sae,
        sparsity=float(sparsity),
        steps=p.steps,
        batch_size=p.batch_size,
        lr=p.lr,
        seed=p.seed,
        target_l0=target,
    )


def sae(p: Parameters, data: Data, architecture: str, sparsity: float | None = None) -> Trained:
    """Train that SAE on the training activations, or find it in the store.

    Every notebook saves the same checkpoints, so that an SAE of one is found by the others.
    """
    return train(
        data.train,
        recipe(p, architecture, sparsity),
        checkpoints=checkpoint_steps(p),
        device=p.device,
    )
