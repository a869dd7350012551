"""Edits of the residual stream while the language model runs, and what they do to its predictions.

An edit is a function of activations, [batch, pos, d_in] -> the same shape, applied at
``blocks.{layer}.hook_out`` of a TransformerBridge. It sees them in the units of the SAE,
x_scaled = scale * x, in float32, and the model receives

    x + (edit(scale * x) - scale * x) / scale,

so that an edit that changes nothing leaves the model's own bits alone, at any scale and dtype.

Position 0 is not edited unless asked for: its activation is far outside what an SAE was trained on
(it was masked there), and the model's attention leans on it.

`ablate` keeps the SAE's reconstruction error: taking latent j out of x gives x - z_j W_dec[j],
which equals x + decode(z with z_j = 0) - decode(z). `splice` drops the error instead.
Targeted probe perturbation, which needs no forward pass, is in `loca_sae.tpp`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loca_sae import models
from loca_sae.tpp import tpp as tpp

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Edit = Callable[[Tensor], Tensor]


class HookNotFired(RuntimeError):
    """The edit did not act exactly once in each forward pass, so its results mean nothing."""


@contextmanager
def edit_residual(
    model: "TransformerBridge",
    layer: int,
    edit: Edit,
    *,
    scale: float = 1.0,
    skip_first: bool = True,
) -> Iterator[None]:
    """While the context is open, every forward pass of ``model`` goes through ``edit``.

    layer: the edit acts on the residual stream after this block.
    edit: maps activations [batch, pos, d_in], scaled, float32, to the same shape.
    scale: of the activations (``Activations.scale``): x_scaled = scale * x.
    skip_first: leave position 0 alone. A pass over a single position is a step of generation with
        a cache; its position is not the first one, so it is edited.

    Raises ValueError when the model has no such layer or the edit returns another shape, and
    HookNotFired on leaving the context when a pass went by without the edit, or with more than
    one, or when there was no pass at all.
    """
    if not scale > 0:
        raise ValueError(f"scale is {scale}; activations are scaled by a positive number.")
    name = _known_hook(model, layer)
    fired: list[int] = []  # one count a forward pass

    def act(x: Tensor, hook: Any) -> Tensor:
        if fired:
            fired[-1] += 1
        start = 1 if skip_first and x.shape[1] > 1 else 0
        return torch.cat([x[:, :start], _edited(x[:, start:], edit, scale)], dim=1)

    # the wrapped model sees every pass; several methods of the bridge go past its own hooks
    watch = model.original_model.register_forward_pre_hook(lambda *_: fired.append(0))
    try:
        with model.hooks(fwd_hooks=[(name, act)]):
            yield
    finally:
        watch.remove()
    # not reached when the body raised: that error must stay the visible one
    if not fired or any(count != 1 for count in fired):
        raise HookNotFired(
            f"the edit at {name} must act once in each forward pass; it acted {fired} times in "
            f"{len(fired)} passes. Call the model inside the context, and do not stop the pass "
            f"before block {layer} ends."
        )


@torch.no_grad()
def run_with_edit(
    model: "TransformerBridge",
    tokens: Tensor,
    layer: int,
    edit: Edit,
    *,
    scale: float = 1.0,
    skip_first: bool = True,
) -> Tensor:
    """Logits [batch, pos, d_vocab] of tokens [batch, pos] under the edit; see `edit_residual`."""
    with edit_residual(model, layer, edit, scale=scale, skip_first=skip_first):
        return model(tokens, return_type="logits")


def ablate(x: Tensor, z: Tensor, W_dec: Tensor, latents: Sequence[int] | Tensor) -> Tensor:
    """x [..., d_in] without the contributions z_j W_dec[j] of ``latents``; the error is kept.

    z: codes [..., d_sae] of x on the same dictionary W_dec [d_sae, d_in] (codes and atoms of
    ``inference.prepare``, say: the units of z must be those of W_dec).
    Raises ValueError for a latent outside 0..d_sae-1.
    """
    chosen = _latents(latents, len(W_dec)).to(z.device)
    return x - z[..., chosen] @ W_dec[chosen]


def ablation(encode: Edit, W_dec: Tensor, latents: Sequence[int] | Tensor) -> Edit:
    """The edit that ablates ``latents``; encode maps rows [n, d_in] to codes [n, d_sae]."""

    def edit(x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        return ablate(rows, encode(rows), W_dec, latents).view_as(x)

    return edit


def splice(reconstruct: Edit) -> Edit:
    """The edit that puts x_hat in the place of x; reconstruct maps rows [n, d_in] to x_hat."""
    return lambda x: reconstruct(x.flatten(0, -2)).view_as(x)


def cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """Next-token cross-entropy in nats, [batch, pos - 1].

    Entry [b, i] is -log p(tokens[b, i + 1] | tokens[b, : i + 1]): entry 0 is the prediction made
    at position 0.
    """
    if logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and tokens {tuple(tokens.shape)} must "
            "agree in batch and position."
        )
    log_p = logits[:, :-1].float().log_softmax(-1)
    return -log_p.gather(-1, tokens[:, 1:, None].to(log_p.device).long()).squeeze(-1)


def kl_per_position(clean_logits: Tensor, edited_logits: Tensor) -> Tensor:
    """KL(clean || edited) of the next-token distributions in nats, [batch, pos]."""
    if clean_logits.shape != edited_logits.shape:
        raise ValueError(
            f"logits differ in shape: clean {tuple(clean_logits.shape)}, edited "
            f"{tuple(edited_logits.shape)}; run both on the same tokens."
        )
    clean, edited = (logits.float().log_softmax(-1) for logits in (clean_logits, edited_logits))
    return (clean.exp() * (clean - edited)).sum(-1)


def next_token_kl(
    clean_logits: Tensor,
    edited_logits: Tensor,
    *,
    mask: Tensor | None = None,
    skip_first: bool = True,
) -> float:
    """KL(clean || edited) in nats, mean over the positions of all texts, each weighted the same.

    logits: [batch, pos, d_vocab]. mask: [batch, pos], true where a position counts (leave out
    padding). skip_first: position 0 is excluded, as it is from the edits; the last is included.
    """
    kl = kl_per_position(clean_logits, edited_logits)
    keep = torch.ones_like(kl, dtype=torch.bool) if mask is None else mask.to(kl.device).bool()
    if keep.shape != kl.shape:
        raise ValueError(f"mask has shape {tuple(keep.shape)}; expected {tuple(kl.shape)}.")
    if skip_first:
        keep = keep & (torch.arange(kl.shape[1], device=kl.device) > 0)
    if not keep.any():
        raise ValueError(
            "no position is left to average over; give texts of two tokens or more, "
            "or skip_first=False."
        )
    return float(kl[keep].double().mean())


def _edited(x: Tensor, edit: Edit, scale: float) -> Tensor:
    scaled = x.float() * scale
    changed = edit(scaled)
    if changed.shape != scaled.shape:
        raise ValueError(
            f"the edit returned shape {tuple(changed.shape)} for activations of "
            f"shape {tuple(scaled.shape)}; it must keep the shape."
        )
    return x + ((changed - scaled) / scale).to(x.dtype)


def _known_hook(model: "TransformerBridge", layer: int) -> str:
    name = models.hook_name(layer)
    # the bridge ignores a name that it does not know
    if name not in model.hook_dict:
        raise ValueError(
            f"the model has no hook {name!r}: layer is {layer}, and its layers are "
            f"0..{model.cfg.n_layers - 1}."
        )
    return name


def _latents(latents: Sequence[int] | Tensor, d_sae: int) -> Tensor:
    chosen = torch.as_tensor(latents)
    if chosen.numel() == 0:
        return torch.empty(0, dtype=torch.long)
    if chosen.dtype == torch.bool or chosen.is_floating_point():
        raise ValueError(f"latents must be indices, not {chosen.dtype}; use mask.nonzero().")
    if int(chosen.min()) < 0 or int(chosen.max()) >= d_sae:
        raise ValueError(
            f"latents {int(chosen.min())}..{int(chosen.max())} are outside 0..{d_sae - 1}."
        )
    return chosen.flatten().unique().long()  # a latent given twice is ablated once
