"""The SAEs and the inputs: trained and harvested once, kept in the store, handed over as a file.

SAELens takes seconds to import and the worker needs only tensors, so a problem travels as
safetensors: W_dec and the encoder in units of unit-norm atoms, and x = activations - b_dec.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from benchmarks import settings
from benchmarks.settings import Subject
from benchmarks.solvers import Problem

if TYPE_CHECKING:
    from sae_lens import SAE


def prepare(subject: Subject, d_sae: int) -> str:
    """Train the SAE of this size, or find it; write the problem file, or find it. Its name."""
    from loca_sae import activations, training

    common: dict[str, Any] = {"context": 128, "seed": 0}
    train = activations.harvest(
        subject.model, subject.layer, split="train", tokens=subject.train_tokens, **common
    )
    heldout = activations.harvest(
        subject.model,
        subject.layer,
        split="eval",
        tokens=subject.eval_tokens,
        scale=train.scale,
        **common,
    )
    steps = settings.TRAINING_STEPS[d_sae]
    recipe = training.Recipe(
        "topk", d_sae, settings.K, steps, batch_size=settings.BATCH_SIZE, lr=settings.LR
    )
    trained = training.train(train, recipe)
    name = f"{subject.model}-{trained.path.name}"
    path = problem_path(name)
    if not path.is_file():
        rows = min(heldout.n, max(settings.SCALING_ROWS))
        # spread over documents: neighbouring rows of a context resemble one another
        save(path, trained.load(), heldout.sample(rows, seed=0))
    return name


def problem_path(name: str) -> Path:
    """Where the tensors of a dictionary and its inputs are handed over."""
    return settings.BUILD / "problems" / f"{name}.safetensors"


@torch.no_grad()
def save(path: Path, sae: "SAE[Any]", x: torch.Tensor) -> None:
    """Write the tensors of a `Problem`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: value.contiguous() for name, value in tensors(sae, x).items()}, partial)
    partial.replace(path)


@torch.no_grad()
def tensors(sae: "SAE[Any]", x: torch.Tensor) -> dict[str, torch.Tensor]:
    """x - b_dec, unit atoms, and a TopK encoder that gives codes on these atoms from x - b_dec.

    ValueError unless the SAE is a TopK one that selects in units of the decoder's norm: for
    another one, folding the norm into the encoder would change which latents it selects.
    """
    from loca_sae.inference import dictionary

    if sae.cfg.architecture() != "topk" or not sae.cfg.rescale_acts_by_decoder_norm:
        raise ValueError(
            f"this is a {sae.cfg.architecture()!r} SAE; the benchmark's encoder pass is that of a "
            "'topk' SAE with rescale_acts_by_decoder_norm."
        )
    atoms = dictionary(sae)
    norms = sae.W_dec.norm(dim=-1)
    b_enc = sae.b_enc if sae.cfg.apply_b_dec_to_input else sae.b_enc + sae.b_dec @ sae.W_enc
    return {
        "x": x - atoms.b_dec,
        "W_dec": atoms.W_dec,
        "W_enc": sae.W_enc.detach() * norms,
        "b_enc": b_enc.detach() * norms,
    }


def width(name: str) -> int:
    """d_in of a dictionary that `prepare` wrote."""
    with safe_open(problem_path(name), framework="pt") as file:
        return int(file.get_slice("W_dec").get_shape()[1])


def load(name: str, threads: int) -> Problem:
    """The problem of a file that `prepare` wrote, lam not yet calibrated."""
    return Problem(**load_file(problem_path(name)), lam=float("nan"), k=settings.K, threads=threads)
