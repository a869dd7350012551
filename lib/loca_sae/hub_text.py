"""Texts of a hub data set, streamed: nothing is downloaded beyond what is read.

The order is that of the data set's files, shuffled by the seed, and of a buffer of `BUFFER`
documents within them; a shuffle of the whole would need the whole. No code that comes with a data
set is run. Without a network the reader learns so within five seconds: the hub is first asked about
the data set, in a thread that is abandoned when it does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loca_sae import model_hub

BUFFER = 1000
PROBE_SECONDS = 3.0


def stream(dataset: str, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of the train split, each with a string (or None) under "text".

    Raises ValueError, at once, if the data set cannot be had or has no such column.
    """
    _probe(dataset)
    from datasets import load_dataset

    try:
        shuffled = load_dataset(dataset, split="train", streaming=True).shuffle(
            seed=seed, buffer_size=BUFFER
        )
        rows = iter(shuffled)
        first = next(rows, None)
    except Exception as error:  # whatever the network stack raises, the reader gets one sentence
        raise _unavailable(dataset, error) from error
    if first is None or not isinstance(first.get("text"), str | None) or "text" not in first:
        found = "no rows" if first is None else f"the columns {sorted(first)}"
        raise ValueError(f"hub data set {dataset!r} has no column 'text' with strings but {found}.")
    return _rest(dataset, first, rows)


def _rest(
    dataset: str, first: dict[str, Any], rows: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    yield first
    try:
        yield from rows
    except Exception as error:
        raise _unavailable(dataset, error) from error


def _probe(dataset: str) -> None:
    from huggingface_hub import HfApi

    try:
        model_hub.within(
            PROBE_SECONDS, lambda: HfApi().dataset_info(dataset, timeout=PROBE_SECONDS)
        )
    except Exception as error:
        raise _unavailable(dataset, error) from error


def _unavailable(dataset: str, error: Exception) -> ValueError:
    from huggingface_hub import constants

    text = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {text[0] if text else 'no details'}"
    return ValueError(
        f"hub data set {dataset!r} cannot be read from {constants.ENDPOINT} ({reason}). Check its "
        "name (owner/name), the network, and HF_TOKEN if it is gated; without a network use "
        "'minipile' or a local .txt, .jsonl or .parquet file."
    )
