"""Run a language model over contexts and write its residual stream to disk, block by block.

A block is one forward pass over `batch_size` contexts. Its rows are written to their place in a
preallocated file, flushed to disk, and only then counted in progress.json; so a process killed at
any moment resumes at the last finished block, and memory does not grow with the number of tokens
(the file is written with plain writes: the pages of a memory map would count as the process's own).

The forward pass stops after the layer that is read. Rows are stored as they come, unscaled float32:
float16 would overflow on the massive activations of these models.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from loca_sae import corpus, models
from loca_sae.corpus import Contexts

if TYPE_CHECKING:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

ROWS, NORMS, CONTEXTS, STATS = "rows.npy", "norms.npy", "contexts.safetensors", "stats.json"
_PROGRESS = "progress.json"


def corpus_contexts(
    folder: Path, name: str, text: str, split: str, tokens: int, context: int, seed: int
) -> Contexts:
    """Contexts of corpus ``text``, tokenised for the model ``name`` once and kept in ``folder``."""
    path = folder / CONTEXTS
    if not path.is_file():  # a resumed harvest has it already
        tokenizer = models.tokenizer(name)
        save_contexts(path, corpus.contexts(tokenizer, text, split, tokens, context, seed))
    return load_contexts(path)


def not_first(contexts: Contexts) -> np.ndarray:
    """Bool [n, context]: real tokens other than the first of each context."""
    position = np.arange(contexts.tokens.shape[1])
    return (position > 0) & (position < np.asarray(contexts.length)[:, None])


def residual(
    model: TransformerBridge, tokens: torch.Tensor, layer: int, autocast: bool = False
) -> torch.Tensor:
    """The residual stream after block ``layer``, [n, context, d_in] float32; tokens [n, context].

    The forward pass stops there. autocast: matrix products in bfloat16 (the stream itself stays
    float32). Raises RuntimeError unless the hook fired exactly once: a hook that is silently
    ignored must not leave stale or missing activations behind.
    """
    import torch

    name = models.hook_name(layer)
    seen: list[torch.Tensor] = []
    device = next(model.parameters()).device
    with (
        torch.no_grad(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast),
        model.hooks(fwd_hooks=[(name, lambda x, hook: seen.append(x.detach().float()))]),
    ):
        model(tokens.to(device), return_type=None, stop_at_layer=layer + 1, use_cache=False)
    if len(seen) != 1:
        raise RuntimeError(
            f"the hook {name} fired {len(seen)} times in one forward pass, expected exactly once; "
            "this model's architecture cannot be harvested through TransformerBridge."
        )
    return seen[0]


def write_rows(
    folder: Path,
    name: str,
    layer: int,
    contexts: Contexts,
    keep: np.ndarray,
    *,
    batch_size: int,
    autocast: bool = False,
    device: str = "cpu",
) -> dict[str, float]:
    """Write the rows of all kept positions into ``folder``; continue where an earlier try stopped.

    keep [n, context], bool: the positions whose activations are written, in reading order, to
    rows.npy [keep.sum(), d_in]; their Euclidean norms go to norms.npy [keep.sum()].
    Returns {"seconds", "blocks", "resumed_blocks"}; seconds add up over the tries.
    Raises ValueError for activations that are not finite, naming the token.
    """
    d_in = models.describe(name).d_model
    ends = np.cumsum(keep.sum(1))
    n_contexts, context = keep.shape
    n_blocks = math.ceil(n_contexts / batch_size)
    progress = _read_progress(folder, int(ends[-1]), d_in)
    resumed = int(progress["blocks"])
    if resumed < n_blocks:
        model = models.load(name, device)
        with (
            _array_file(folder / ROWS) as (rows, rows_start),
            _array_file(folder / NORMS) as (norms, norms_start),
            _bar(name, layer, contexts, resumed * batch_size) as bar,
        ):
            for block in range(resumed, n_blocks):
                started = time.perf_counter()
                part = slice(block * batch_size, min((block + 1) * batch_size, n_contexts))
                x = residual(model, contexts.tokens[part], layer, autocast).cpu().numpy()
                kept = np.ascontiguousarray(x[keep[part]])
                _check_finite(x, keep[part], contexts, part.start, name, layer)
                first = int(ends[part.start - 1]) if part.start else 0
                _write_at(rows, rows_start + 4 * d_in * first, kept)
                _write_at(norms, norms_start + 4 * first, np.linalg.norm(kept, axis=1))
                progress = {
                    "blocks": block + 1,
                    "seconds": progress["seconds"] + time.perf_counter() - started,
                }
                write_json(folder / _PROGRESS, progress)
                bar.update(int(contexts.length[part].sum()))
    return {"seconds": progress["seconds"], "blocks": n_blocks, "resumed_blocks": resumed}


def summarize(folder: Path, d_in: int, massive_multiple: float) -> dict[str, Any]:
    """Which rows count, and the scale that gives them a mean norm of sqrt(d_in).

    A row is massive if its norm exceeds ``massive_multiple`` times the median norm of all rows
    (position 0 is not among the rows). Massive rows are counted and left out of mean and scale.
    """
    norms = np.load(folder / NORMS)
    median = float(np.median(norms))
    kept = norms <= massive_multiple * median
    mean = float(norms[kept].mean(dtype=np.float64))
    if not mean > 0:
        raise ValueError(f"all {len(norms)} activations are zero; there is nothing to scale.")
    return {
        "rows": len(norms),
        "kept": int(kept.sum()),
        "massive_masked": int((~kept).sum()),
        "massive_multiple": massive_multiple,
        "median_norm": median,
        "mean_norm": mean,
        "scale": math.sqrt(d_in) / mean,
    }


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file is never half written."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(value, indent=1), "utf-8")
    os.replace(partial, path)


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Store contexts as safetensors, whole or not at all."""
    import torch
    from safetensors.torch import save_file

    tensors = {
        key: torch.as_tensor(value).contiguous() for key, value in contexts._asdict().items()
    }
    partial = path.with_suffix(".tmp")
    save_file(tensors, partial)
    os.replace(partial, path)


def load_contexts(path: Path) -> Contexts:
    """Read what `save_contexts` wrote."""
    from safetensors.torch import load_file

    return Contexts(**load_file(path))


def _read_progress(folder: Path, n_rows: int, d_in: int) -> dict[str, float]:
    path = folder / _PROGRESS
    if path.is_file():
        return dict(json.loads(path.read_text("utf-8")))
    for file, shape in ((ROWS, (n_rows, d_in)), (NORMS, (n_rows,))):
        np.lib.format.open_memmap(folder / file, mode="w+", dtype=np.float32, shape=shape)
    return {"blocks": 0, "seconds": 0.0}


@contextmanager
def _array_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The .npy file opened for writing in place, and where its data start."""
    start = np.load(path, mmap_mode="r").offset
    with path.open("r+b", buffering=0) as file:
        yield file, start


def _write_at(file: BinaryIO, position: int, values: np.ndarray) -> None:
    """Write float32 values at a byte position and wait until the disk has them."""
    data = np.ascontiguousarray(values, dtype=np.float32).data.cast("B")
    file.seek(position)
    while data:  # a raw write may be short
        data = data[file.write(data) :]
    os.fsync(file.fileno())


def _bar(name: str, layer: int, contexts: Contexts, contexts_done: int) -> Any:
    from tqdm import tqdm

    lengths = contexts.length
    return tqdm(
        total=int(lengths.sum()),
        initial=int(lengths[:contexts_done].sum()),
        desc=f"{name} layer {layer}",
        unit="tok",
        unit_scale=True,
    )


def _check_finite(
    x: np.ndarray, keep: np.ndarray, contexts: Contexts, start: int, name: str, layer: int
) -> None:
    bad = np.argwhere(~np.isfinite(x).all(-1) & keep)
    if len(bad):
        row, position = (int(i) for i in bad[0])
        raise ValueError(
            f"model {name!r}, layer {layer}: {len(bad)} activations of one block are NaN or "
            f"infinite, first in context {start + row} at position {position} (token "
            f"{int(contexts.tokens[start + row, position])}). Are the weights intact? If autocast "
            "was on, try without; else choose an earlier layer."
        )
