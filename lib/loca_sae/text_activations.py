"""Activations at a few tokens of each of many short texts, for labelled sets and probes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loca_sae import corpus, harvesting, models, store

if TYPE_CHECKING:
    import torch

_MODULES = ("loca_sae.text_activations",)
_TEXT = "text.npy"


class TextActivations(NamedTuple):
    """Scaled activations of texts.

    x [rows, d_in]: float32, multiplied by the training split's scale.
    text [rows]: index of the row's text, ascending.
    stats: texts, rows, kept, massive_masked, massive_multiple, median_norm, mean_norm.
    """

    x: torch.Tensor
    text: torch.Tensor
    stats: dict[str, Any]


def harvest_texts(
    model: str,
    layer: int,
    texts: Sequence[str],
    *,
    scale: float,
    context: int = 64,
    tokens_per_text: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    autocast: bool = False,
    device: str = "cpu",
    massive_multiple: float = 10.0,
) -> TextActivations:
    """Activations of the model named ``model`` at evenly spaced tokens of each text, or at all.

    Each text is a context of its own, cut at ``context`` tokens (the first one is BOS). The first
    position is never taken; rows of massive norm are dropped by the rule of `activations`, with the
    median over these texts.
    scale: the training split's (`Activations.scale`).
    tokens_per_text: at most so many tokens a text, evenly spaced, at an offset drawn with ``seed``;
    None takes all.
    Cached in the store. Raises ValueError for a text without tokens.
    """
    models.check_layer(model, layer)
    if tokens_per_text is not None and tokens_per_text < 1:
        raise ValueError(f"tokens_per_text is {tokens_per_text}; expected at least 1, or None.")
    if not texts:
        raise ValueError("no texts were given.")
    parameters = {
        "model": models.identity(model),
        "layer": layer,
        "texts": hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest(),
        "context": context,
        "tokens_per_text": tokens_per_text,
        "seed": seed,
        "batch_size": batch_size,
        "autocast": autocast,
        "device": device.partition(":")[0],
        "massive_multiple": massive_multiple,
    }

    def build(folder: Path) -> None:
        contexts = corpus.text_contexts(models.tokenizer(model), texts, context)
        keep = spaced(np.asarray(contexts.length), context, tokens_per_text, seed)
        harvesting.write_rows(
            folder,
            model,
            layer,
            contexts,
            keep,
            batch_size=batch_size,
            autocast=autocast,
            device=device,
        )
        np.save(folder / _TEXT, np.nonzero(keep)[0])
        d_in = models.describe(model).d_model
        stats = harvesting.summarize(folder, d_in, massive_multiple)
        harvesting.write_json(folder / harvesting.STATS, {"texts": len(texts), **stats})

    label = f"{Path(model).name}-{layer}-{len(texts)}"
    artifact = store.artifact("text_activations", parameters, build, modules=_MODULES, name=label)
    return _read(artifact.path, scale)


def spaced(length: np.ndarray, context: int, tokens_per_text: int | None, seed: int) -> np.ndarray:
    """Bool [n, context]: which of the positions 1 to length - 1 of each text are taken.

    With m positions and k <= m wanted, the i-th is 1 + floor((i + u) m / k), u uniform in [0, 1)
    for each text; they are all different. Raises ValueError if a text has no position beyond 0.
    """
    empty = np.flatnonzero(length < 2)
    if len(empty):
        raise ValueError(
            f"{len(empty)} of {len(length)} texts have no token after the first position, the "
            f"first of them text {int(empty[0])}; leave such texts out."
        )
    keep = np.zeros((len(length), context), dtype=bool)
    # a hair below 1, so that rounding never reaches the position after the last
    offsets = np.random.default_rng(seed).random(len(length)) * (1 - 1e-9)
    for row, (m, u) in enumerate(zip(length - 1, offsets, strict=True)):
        k = int(m) if tokens_per_text is None else min(int(m), tokens_per_text)
        keep[row, 1 + np.floor((np.arange(k) + u) * (m / k)).astype(int)] = True
    return keep


def _read(folder: Path, scale: float) -> TextActivations:
    import torch

    stats = json.loads((folder / harvesting.STATS).read_text("utf-8"))
    norms = np.load(folder / harvesting.NORMS)
    kept = norms <= stats["massive_multiple"] * stats["median_norm"]
    x: np.ndarray = np.load(folder / harvesting.ROWS, mmap_mode="r")[kept]
    text = np.load(folder / _TEXT)[kept]
    return TextActivations(torch.from_numpy(x).mul_(scale), torch.from_numpy(text), stats)
