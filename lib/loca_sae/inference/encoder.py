"""Full mode: the encoder, as SAELens runs it or as a protocol reads it."""

from typing import Any

import torch
from sae_lens import SAE

from loca_sae.inference.dictionary import Dictionary, family
from loca_sae.protocols import Protocol


def encoder_codes(
    sae: SAE[Any], atoms: Dictionary, x: torch.Tensor, protocol: Protocol
) -> torch.Tensor:
    """Codes [n, d_sae] >= 0 on ``atoms`` of activations x [n, d_in], by the encoder alone.

    Under native this is SAELens's own ``encode``, in units of the decoder's norm.
    """
    if not protocol.decoder_bias and sae.cfg.apply_b_dec_to_input:
        x = x + sae.b_dec  # which the encoder then subtracts
    chosen = protocol.effective(family(sae), "full")
    if chosen.k == "tenth":
        return _largest(sae, atoms, x, max(1, atoms.W_dec.shape[0] // 10))
    if not chosen.gates or not chosen.loca_groups:
        return _pre_activations(sae, x).relu() * sae.W_dec.norm(dim=-1)
    return (sae.encode(x) * atoms.code_scale).to(x.dtype)


def _pre_activations(sae: SAE[Any], x: torch.Tensor) -> torch.Tensor:
    """x W_enc + b_enc, in the SAE's own units. A gated SAE has no b_enc: its two biases belong to
    the gate and to the magnitudes, and leaving out the gated path leaves x W_enc."""
    pre = sae.process_sae_in(x) @ sae.W_enc
    b_enc = getattr(sae, "b_enc", None)
    return (pre if b_enc is None else pre + b_enc).to(x.dtype)


def _largest(sae: SAE[Any], atoms: Dictionary, x: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest latents of a sample after a ReLU, selected in the units the SAE selects in."""
    acts = _pre_activations(sae, x).relu()
    norms = sae.W_dec.norm(dim=-1)
    selected_by = acts * norms if bool((atoms.code_scale == 1).all()) else acts
    kept = torch.zeros_like(acts).scatter_(-1, selected_by.topk(k, dim=-1).indices, 1.0)
    return acts * norms * kept
