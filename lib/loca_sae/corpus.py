"""Text as fixed contexts of tokens: documents by name, tokenised and packed in a seeded order.

Packing follows SAELens's rules [1], so that an SAE trained here reads what one trained there would.
Documents follow each other, a BOS token between two and at the start of each context. A context
ends where it is full, and the next one goes on with the same document; a last context that is not
full is dropped. Where a document or context begins with a BOS token of its own, none is added.

`documents` and its neighbours in `loca_sae.documents` and `loca_sae.data` are at home here too.

[1] sae_lens.tokenization_and_batching.concat_and_batch_sequences, as ActivationsStore calls it with
    prepend_bos and "bos" as the separator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loca_sae.data import concept, concept_names, data_dir, paper_tables
from loca_sae.documents import Document, documents, identity

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Contexts",
    "Document",
    "concept",
    "concept_names",
    "contexts",
    "data_dir",
    "documents",
    "identity",
    "pack",
    "paper_tables",
    "text_contexts",
]

_BATCH = 32  # documents tokenised in one call


class Contexts(NamedTuple):
    """Token contexts for a language model.

    tokens [n, context]: int64, column 0 is BOS; padded on the right where length < context.
    length [n]: int64, number of tokens that are no padding.
    document [n, context]: int32, which document (in the order of `documents`) or text a token is
        from; -1 for an added BOS and for padding.
    """

    tokens: torch.Tensor
    length: torch.Tensor
    document: torch.Tensor


def contexts(
    tokenizer: PreTrainedTokenizerBase,
    corpus: str,
    split: str,
    tokens: int,
    context: int,
    seed: int,
    *,
    domains: Sequence[str] | None = None,
    exclude_licences: Sequence[str] = (),
) -> Contexts:
    """ceil(tokens / context) full contexts of one split of a corpus.

    Fewer tokens under the same seed give a prefix of what more tokens give. Arguments from corpus
    to exclude_licences: see `documents`.
    Raises ValueError as `documents` does, and if the corpus has too few tokens.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; expected a positive whole number.")
    _check_context(context)
    bos = _bos(tokenizer)
    found = documents(corpus, split, seed, domains=domains, exclude_licences=exclude_licences)
    texts = (document.text for document in found)
    n = -(-tokens // context)
    rows = np.empty((n, context), dtype=np.int64)
    owners = np.empty((n, context), dtype=np.int32)
    filled = 0
    for row, owner in itertools.islice(pack(_tokenised(tokenizer, texts), context, bos), n):
        rows[filled], owners[filled] = row, owner
        filled += 1
    if filled < n:
        raise ValueError(
            f"corpus {corpus!r} has too few tokens in its {split} split: it fills {filled} "
            f"contexts of {context} ({filled * context:,} tokens), but {n} ({n * context:,}) "
            "were asked for. Ask for fewer tokens, or use a larger corpus."
        )
    return _contexts(rows, np.full(n, context, dtype=np.int64), owners)


def text_contexts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], context: int
) -> Contexts:
    """One context a text: BOS, then as much of the text as fits, then padding."""
    _check_context(context)
    bos = _bos(tokenizer)
    padding = next(
        i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, bos) if i is not None
    )
    rows = np.full((len(texts), context), padding, dtype=np.int64)
    owners = np.full((len(texts), context), -1, dtype=np.int32)
    length = np.empty(len(texts), dtype=np.int64)
    for index, ids in enumerate(_tokenised(tokenizer, texts)):
        added = int(not ids or ids[0] != bos)
        rows[index, 0] = bos
        piece = ids[: context - added]
        end = length[index] = added + len(piece)
        rows[index, added:end], owners[index, added:end] = piece, index
    return _contexts(rows, length, owners)


def pack(
    documents_ids: Iterable[Sequence[int]], context: int, bos: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Full contexts of token ids, each with the index of the document every token is from (or -1).

    The rules are in this module's head. An empty document leaves no trace.
    """
    row: list[int] = []
    owner: list[int] = []
    for index, ids in enumerate(documents_ids):
        start = 0
        while start < len(ids):
            if (start == 0 or not row) and ids[start] != bos:
                row.append(bos)
                owner.append(-1)
            piece = ids[start : start + context - len(row)]
            row.extend(piece)
            owner.extend([index] * len(piece))
            start += len(piece)
            if len(row) == context:
                yield row, owner
                row, owner = [], []


def _tokenised(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of each text, without special tokens."""
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        # verbose=False: texts longer than the model's window are packed, not fed whole
        yield from tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]


def _bos(tokenizer: PreTrainedTokenizerBase) -> int:
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError(
        "the tokenizer has neither a BOS nor an EOS token to begin a context with; "
        "set tokenizer.bos_token to one of its special tokens."
    )


def _check_context(context: int) -> None:
    if context < 2:
        raise ValueError(
            f"context is {context}; expected at least 2, since its first token is BOS."
        )


def _contexts(rows: np.ndarray, length: np.ndarray, owners: np.ndarray) -> Contexts:
    import torch

    return Contexts(torch.from_numpy(rows), torch.from_numpy(length), torch.from_numpy(owners))
