"""What bfloat16 autocast does to harvested activations, measured rather than assumed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loca_sae import corpus, harvesting, models


class PrecisionEffect(NamedTuple):
    """Activations under autocast, x', against float32 ones, x, over tokens that are kept.

    relative_error: sqrt(sum ||x' - x||^2 / sum ||x||^2).
    centred_error: the same with x minus its mean over tokens in the denominator, for the mean
        direction can hold half of ||x||^2 and hides an error in what varies.
    cosine_mean, cosine_min: over tokens, between x' and x.
    tokens: how many.
    """

    relative_error: float
    centred_error: float
    cosine_mean: float
    cosine_min: float
    tokens: int


def bf16_effect(
    model: str,
    layer: int,
    *,
    text: str = "minipile",
    tokens: int = 2048,
    context: int = 128,
    seed: int = 0,
    batch_size: int = 16,
    device: str = "cpu",
    massive_multiple: float = 10.0,
) -> PrecisionEffect:
    """Measure autocast on the evaluation split of corpus ``text``; masks as in `activations`."""
    contexts = corpus.contexts(models.tokenizer(model), text, "eval", tokens, context, seed)
    bridge = models.load(model, device)
    exact, rounded = (
        np.concatenate(
            [
                harvesting.residual(bridge, part, layer, autocast).double().cpu().numpy()
                for part in contexts.tokens.split(batch_size)
            ]
        )[harvesting.not_first(contexts)]
        for autocast in (False, True)
    )
    norms = np.linalg.norm(exact, axis=1)
    kept = norms <= massive_multiple * np.median(norms)
    return compare(exact[kept], rounded[kept])


def compare(exact: np.ndarray, rounded: np.ndarray) -> PrecisionEffect:
    """The differences between two sets of activations [n, d_in], float64; see PrecisionEffect."""
    error = np.sum((rounded - exact) ** 2)
    cosine = np.sum(exact * rounded, 1) / (
        np.linalg.norm(exact, axis=1) * np.linalg.norm(rounded, axis=1)
    )
    return PrecisionEffect(
        relative_error=float(np.sqrt(error / np.sum(exact**2))),
        centred_error=float(np.sqrt(error / np.sum((exact - exact.mean(0)) ** 2))),
        cosine_mean=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        tokens=len(exact),
    )
