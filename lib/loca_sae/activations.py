"""Residual activations of a language model over a corpus: harvested once, read as training data.

What is kept. Position 0 of each context is always masked: it carries the model's attention sink,
with a norm about a hundred times that of other tokens. A token elsewhere is masked too if its norm
exceeds ``massive_multiple`` (10) times the median norm of the tokens that are not first. Both are
counted in ``stats``. ``keep_all`` masks neither, for protocols that read every position.

Scale. Stored rows are the model's own values; whatever is read through `Activations` is multiplied
by ``scale`` = sqrt(d_in) / mean norm of the kept rows, so that the mean norm becomes sqrt(d_in)
[1]. An evaluation split must be given the training split's scale.

[1] Anthropic interpretability team, "Update on how we train SAEs", April 2024 (the same
    normalisation, there as E||x||_2 = sqrt(d_in)).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loca_sae import corpus as corpora
from loca_sae import harvesting, models, store
from loca_sae.text_activations import TextActivations, harvest_texts

if TYPE_CHECKING:
    import torch

__all__ = ["Activations", "TextActivations", "harvest", "harvest_texts"]

MASSIVE_MULTIPLE = 10.0
_MODULES = ("loca_sae.harvesting",)


class Activations:
    """The kept activations of one harvest, [n, d_in], memory-mapped and scaled on reading.

    name: identifies the artifact and, if it was given, the scale; for the parameters of what is
        computed from these activations.
    n, d_in: number of kept rows; width of the residual stream.
    scale: factor on the stored rows.
    stats: counts and norms before scaling: model, layer, corpus, split, tokens (read by the
        model), kept, first_masked, massive_masked, massive_multiple, median_norm, mean_norm (of
        kept rows), scale (of this split itself), autocast, seconds, blocks, resumed_blocks. Of a
        harvest with keep_all also first_kept and massive_kept (by norm alone, so most first
        positions count there too); its mean_norm and scale are those of the other rows.
    """

    def __init__(self, folder: Path, scale: float | None = None) -> None:
        """Open a finished harvest; scale None takes the harvest's own."""
        self.path = folder
        self.stats: dict[str, Any] = json.loads((folder / harvesting.STATS).read_text("utf-8"))
        if scale is not None and not 0 < scale < float("inf"):
            raise ValueError(f"scale is {scale}; expected a positive number, or None.")
        self.name = folder.name if scale is None else f"{folder.name}@{scale!r}"
        self.scale = float(self.stats["scale"] if scale is None else scale)
        self._rows = np.load(folder / harvesting.ROWS, mmap_mode="r")
        norms = np.load(folder / harvesting.NORMS)
        limit = self.stats["massive_multiple"] * self.stats["median_norm"]
        kept = norms <= (np.inf if self.stats.get("keep_all") else limit)
        self._kept = np.flatnonzero(kept)
        self.n = len(self._kept)
        self.d_in = int(self._rows.shape[1])

    def __repr__(self) -> str:
        return f"Activations({self.name}: {self.n} rows of {self.d_in}, scale {self.scale:.4g})"

    def at_scale(self, scale: float) -> Activations:
        """The same rows in other units: ``scale`` times the model's own values."""
        return Activations(self.path, scale)

    def rows(self, index: torch.Tensor | np.ndarray | Sequence[int]) -> torch.Tensor:
        """Rows [m, d_in] at the given places (0 to n - 1) among the kept ones, scaled float32."""
        import torch

        places = self._kept[np.asarray(index, dtype=np.int64)]
        return torch.from_numpy(np.array(self._rows[places])).mul_(self.scale)

    def sample(self, n: int, seed: int) -> torch.Tensor:
        """``n`` different rows [n, d_in] drawn at random; ValueError if there are fewer."""
        if not 0 < n <= self.n:
            raise ValueError(f"asked for {n} of {self.n} activations; ask for 1 to {self.n}.")
        return self.rows(np.random.default_rng(seed).choice(self.n, size=n, replace=False))

    def batches(self, batch_size: int, seed: int) -> Iterator[torch.Tensor]:
        """Endless batches [batch_size, d_in] from shuffled epochs.

        Each kept row comes exactly once an epoch; a batch that reaches the end of one epoch is
        filled up from the next. The order depends on the seed and the number of rows only.
        """
        _positive("batch_size", batch_size)
        waiting = np.empty(0, dtype=np.int64)
        epoch = 0
        while True:
            while len(waiting) < batch_size:
                order = np.random.default_rng([seed, epoch]).permutation(self.n)
                waiting = np.concatenate([waiting, order])
                epoch += 1
            yield self.rows(waiting[:batch_size])
            waiting = waiting[batch_size:]

    def iterate(self, batch_size: int) -> Iterator[torch.Tensor]:
        """One pass over all rows in reading order; the last batch may be smaller."""
        _positive("batch_size", batch_size)
        for start in range(0, self.n, batch_size):
            yield self.rows(np.arange(start, min(start + batch_size, self.n)))

    @property
    def tokens(self) -> torch.Tensor:
        """Token id of each kept row, [n] int64."""
        return self._of_contexts("tokens")

    @property
    def positions(self) -> torch.Tensor:
        """Position in its context of each kept row, [n] int64; at least 1 without keep_all."""
        import torch

        return torch.from_numpy(self._places[self._kept] % self.stats["context"])

    @property
    def documents(self) -> torch.Tensor:
        """Index of the document of each kept row, [n] int64; -1 for a separator."""
        return self._of_contexts("document")

    def _of_contexts(self, field: str) -> torch.Tensor:
        contexts = harvesting.load_contexts(self.path / harvesting.CONTEXTS)
        return getattr(contexts, field).flatten()[self._places[self._kept]].long()

    @cached_property
    def _places(self) -> np.ndarray:
        """Where each stored row stands in the flattened contexts."""
        contexts = harvesting.load_contexts(self.path / harvesting.CONTEXTS)
        return np.flatnonzero(_stored(contexts, bool(self.stats.get("keep_all"))))


def harvest(
    model: str,
    layer: int,
    *,
    corpus: str = "minipile",
    split: str = "train",
    tokens: int,
    context: int = 128,
    seed: int = 0,
    batch_size: int = 16,
    autocast: bool = False,
    device: str = "cpu",
    scale: float | None = None,
    massive_multiple: float = MASSIVE_MULTIPLE,
    keep_all: bool = False,
) -> Activations:
    """Activations after block ``layer`` of the model named ``model``, from the store or computed.

    tokens: about how many tokens the model reads (whole contexts of ``context`` tokens).
    seed: of the corpus' order.
    batch_size: contexts in a forward pass; also the block after which a killed harvest resumes.
    autocast: matrix products in bfloat16; `precision.bf16_effect` says what that does.
    scale: the training split's scale for an evaluation split; None computes it.
    keep_all: mask nothing, neither position 0 nor massive tokens. It then needs the scale of a
        training split, since one massive token swamps the mean norm.
    The model is loaded only if rows are missing. Raises ValueError for impossible arguments or
    activations that are not finite, ModelUnavailable for the model.
    """
    models.check_layer(model, layer)
    for key, value in (("tokens", tokens), ("batch_size", batch_size)):
        _positive(key, value)
    if context < 2:
        raise ValueError(f"context is {context}; position 0 is masked, so it must be at least 2.")
    if not massive_multiple > 1:
        raise ValueError(f"massive_multiple is {massive_multiple}; expected a number above 1.")
    if keep_all and scale is None:
        raise ValueError("keep_all masks nothing, so no scale follows; give a training split's.")
    parameters = {
        "model": models.identity(model),
        "layer": layer,
        "corpus": corpora.identity(corpus),
        "split": split,
        "tokens": tokens,
        "context": context,
        "seed": seed,
        "batch_size": batch_size,
        "autocast": autocast,
        "device": device.partition(":")[0],
        "massive_multiple": massive_multiple,
        **({"keep_all": True} if keep_all else {}),  # the others keep their names in the store
    }

    def build(folder: Path) -> None:
        contexts = harvesting.corpus_contexts(folder, model, corpus, split, tokens, context, seed)
        keep = _stored(contexts, keep_all)
        run = harvesting.write_rows(
            folder,
            model,
            layer,
            contexts,
            keep,
            batch_size=batch_size,
            autocast=autocast,
            device=device,
        )
        d_in = models.describe(model).d_model
        stats = {
            **{**parameters, "model": model, "corpus": corpus},
            "tokens": keep.size,
            "first_masked": len(keep),
            **harvesting.summarize(folder, d_in, massive_multiple),
            **run,
        }
        if keep_all:
            kept = {"first_kept": len(keep), "massive_kept": stats["massive_masked"]}
            stats |= {"kept": stats["rows"], "first_masked": 0, "massive_masked": 0, **kept}
        harvesting.write_json(folder / harvesting.STATS, stats)

    label = f"{Path(model).name}-{layer}-{split}-{tokens}"
    artifact = store.artifact("activations", parameters, build, modules=_MODULES, name=label)
    return Activations(artifact.path, scale)


def _stored(contexts: corpora.Contexts, keep_all: bool) -> np.ndarray:
    """Bool [n, context]: the tokens whose activations a harvest writes."""
    if not keep_all:
        return harvesting.not_first(contexts)
    width = contexts.tokens.shape[1]
    return np.asarray(np.arange(width) < np.asarray(contexts.length)[:, None])


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}; expected a positive whole number.")
