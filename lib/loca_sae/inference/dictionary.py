"""An SAE's decoder as a sparse coder sees it."""

from typing import Any, NamedTuple

import torch
from sae_lens import SAE

from loca_sae.protocols import Protocol, protocol
from loca_sae.sae_folders import ONE_DICTIONARY


class Dictionary(NamedTuple):
    """Atoms, bias, and the units of the codes.

    W_dec: [d_sae, d_in], rows of unit norm (zero rows stay zero).
    b_dec: [d_in], subtracted from x to give the target; zeros where the protocol leaves it out.
    code_scale: [d_sae], multiplies the SAE's own feature_acts to give codes on ``W_dec``.
    """

    W_dec: torch.Tensor
    b_dec: torch.Tensor
    code_scale: torch.Tensor


@torch.no_grad()
def dictionary(sae: SAE[Any], chosen: str | Protocol = "native") -> Dictionary:
    """Effective dictionary of a SAELens SAE: ``decode(f) = (f * code_scale) @ W_dec + b_dec``.

    Nothing is folded into the encoder, since folding changes what a TopK selects. SAELens's TopK
    family may already give codes in units of the decoder norm (``rescale_acts_by_decoder_norm``).
    Raises ValueError when the SAE normalizes its input at run time, because its reconstruction is
    then not a linear function of the codes.
    """
    normalization = sae.cfg.normalize_activations
    if normalization not in ONE_DICTIONARY:
        raise ValueError(
            f"this SAE normalizes its input at run time (normalize_activations={normalization!r}); "
            "its decoder is not one dictionary. Fold the normalization first, or use an SAE "
            "with normalize_activations='none'."
        )
    norms = sae.W_dec.norm(dim=-1)
    already_rescaled = bool(getattr(sae.cfg, "rescale_acts_by_decoder_norm", False))
    return Dictionary(
        W_dec=(sae.W_dec / norms.clamp(min=1e-8)[:, None]).detach(),
        b_dec=decoder_bias(sae) if protocol(chosen).decoder_bias else torch.zeros_like(sae.b_dec),
        code_scale=torch.ones_like(norms) if already_rescaled else norms.detach(),
    )


def decoder_bias(sae: SAE[Any]) -> torch.Tensor:
    """What the SAE's own decode adds. Matching pursuit adds b_dec only if it was subtracted."""
    if sae.cfg.architecture() == "matching_pursuit" and not sae.cfg.apply_b_dec_to_input:
        return torch.zeros_like(sae.b_dec)
    return sae.b_dec.detach()


def family(sae: SAE[Any]) -> str:
    """The architecture that was trained.

    SAELens saves BatchTopK and Matryoshka SAEs as JumpReLU SAEs with a learnt threshold. What they
    were is noted in the metadata, by the companion's training (trained_architecture) or SAELens's
    own trainer (training_architecture). Without such a note, SAELens's key.
    """
    metadata = sae.cfg.metadata
    noted = metadata.trained_architecture or metadata.training_architecture
    return str(noted or sae.cfg.architecture())
