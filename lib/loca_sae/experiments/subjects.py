"""What can be measured: an SAE of the companion at one of its checkpoints, or a reader's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sae_lens import SAE

from loca_sae.external_saes import ExternalSae
from loca_sae.training import Trained


@dataclass(frozen=True)
class Subject:
    """One SAE with one set of weights.

    identity: JSON values that tell it from any other SAE, for the names of artifacts.
    label: how tables and figures call it.
    architecture: the family that was trained (`loca_sae.inference.family`).
    sparsity: k, or the weight of the sparsity penalty; None if it is not known.
    step: optimizer step of the weights; None if it is not known.
    seed: of the training; None if it is not known.
    scale: factor on the model's activations that the SAE expects; None: that of the data.
    own: whether the companion trained it, on the training split of the data.
    load: device -> the SAE.
    """

    identity: dict[str, Any]
    label: str
    architecture: str
    d_sae: int
    sparsity: float | None
    step: int | None
    seed: int | None
    scale: float | None
    own: bool
    load: Callable[[str], SAE[Any]]


def subject(given: Trained | ExternalSae, step: int | None = None) -> Subject:
    """What of an SAE the measures need. step: of a checkpoint; None is the last one.

    ValueError for a step of an SAE that the companion did not train: it has no checkpoints.
    """
    if isinstance(given, Trained):
        return _of_trained(given, given.recipe.steps if step is None else step)
    if step is not None:
        raise ValueError(f"{given.label} has no checkpoints, so there is no step {step} of it.")
    return Subject(
        identity=given.identity,
        label=given.label,
        architecture=given.architecture,
        d_sae=given.d_sae,
        sparsity=None,
        step=None,
        seed=None,
        scale=given.scale,
        own=False,
        load=given.load,
    )


def _of_trained(given: Trained, step: int) -> Subject:
    recipe = given.recipe
    return Subject(
        identity={"sae": given.path.name, "step": step},
        label=recipe.architecture,
        architecture=recipe.architecture,
        d_sae=recipe.d_sae,
        sparsity=recipe.sparsity,
        step=step,
        seed=recipe.seed,
        scale=None,
        own=True,
        load=lambda device: given.load(step, device=device),
    )
