"""The SAEs of the experiments: one recipe from a notebook's parameters."""

import numpy as np

from loca_sae.experiments.data import Data
from loca_sae.parameters import Parameters
from loca_sae.training import Recipe, Trained, train

# Where the steered weight of a penalty starts: near or below the weights that an L0 of 20 needed at
# the end on SmolLM2-135M (2.6, 3.5, 1.2) and Gemma-3-270M (4.5, 4.6, 1.1), since a weight that is
# too large at first kills latents. JumpReLU needs most care: on Gemma, 800 steps, weights of 1,
# 0.3, 0.03 and 0.003 left 47, 40, 26 and 15 % dead. See `starting_weight` for shorter runs.
STARTING_WEIGHTS = {"standard": 3.0, "gated": 1.0, "jumprelu": 0.003}
LONG = 800  # steps


def starting_weight(architecture: str, steps: int) -> float:
    """The weight to begin with; for JumpReLU larger in a run too short to climb from so low.

    On SmolLM2-135M, 200 steps, weights of 0.003, 0.012, 0.03 and 0.06 ended at an L0 of 109, 29, 22
    and 20 for a target of 20.
    """
    weight = STARTING_WEIGHTS[architecture]
    return weight * max(1.0, LONG / steps) ** 2 if architecture == "jumprelu" else weight


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
        steered = architecture in STARTING_WEIGHTS
        sparsity = starting_weight(architecture, p.steps) if steered else p.k
        target = float(p.k) if steered else None
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
