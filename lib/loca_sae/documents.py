"""Documents by the name of a corpus, in a seeded order, on one side of a train/eval split.

- ``minipile``: the companion's mini-pile, 17 domains, about 2.7 M tokens to train on. Its own split
  is used: no group (novel, encyclopedia article, source file, ...) is on both sides.
- the path of a .txt, .jsonl or .parquet file, read whole. In .txt, blank lines part documents (or,
  if there are none, line ends do); .jsonl and .parquet need a field ``text`` and may have
  ``domain``, ``licence`` and ``source``.
- ``hub:<dataset id>``: the train split of a hub data set, streamed (see `hub_text`).

Of the last two, a tenth of the documents are for evaluation, by a hash of the text alone: a text
stays on its side whatever the seed and wherever it is repeated.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loca_sae import data, hub_text

EVAL_SHARE = 10  # one document in so many
FORMS = "'minipile', a .txt, .jsonl or .parquet file, or 'hub:<dataset id>'"
_SPLITS = {"train": "train", "eval": "heldout"}  # ours -> the mini-pile's
_HUB = "hub:"


class Document(NamedTuple):
    """A text and what is known of it; domain and licence are "" where the corpus does not say."""

    text: str
    domain: str
    licence: str
    source: str


def documents(
    corpus: str,
    split: str,
    seed: int,
    limit: int | None = None,
    *,
    domains: Sequence[str] | None = None,
    exclude_licences: Sequence[str] = (),
) -> Iterator[Document]:
    """The documents of one split, in the order of the seed, at most ``limit``.

    split: "train" or "eval".
    domains: only these; None is all.
    exclude_licences: leave out documents whose licence names one of these, as a word or the
        beginning of one, in any case: "GPL" drops "GPL-2.0-or-later" and also "CC-BY-SA-3.0 OR
        GPL-2.0-or-later", but not "LGPL-3.0"; "CC-BY" drops "CC-BY-SA-3.0" too.
    Raises ValueError for a corpus that does not exist or cannot be read (a hub data set without a
    network: within five seconds), and for a domain or licence that the corpus does not have (this
    is not known of a hub data set, which is streamed).
    """
    if split not in _SPLITS:
        raise ValueError(f"split is {split!r}; expected 'train' or 'eval'.")
    wanted = _Wanted(domains, exclude_licences)
    if corpus.startswith(_HUB):
        stream = _from_hub(corpus.removeprefix(_HUB), split, seed)
    else:
        pool = _pool(corpus)
        wanted.check(corpus, [document for document, _ in pool])
        order = np.random.default_rng(seed).permutation(len(pool))
        stream = (pool[i][0] for i in order if pool[i][1] == split)
    return itertools.islice((document for document in stream if wanted(document)), limit)


def identity(corpus: str) -> dict[str, str]:
    """What tells this corpus from any other, for the parameters of an artifact made from it.

    Name and checksum; a hub data set goes by its name alone, since asking the hub for its version
    would need a network even when the artifact exists.
    """
    if corpus == "minipile":
        return {"name": corpus, "sha256": data.checksum("minipile.parquet")}
    if corpus.startswith(_HUB):
        return {"name": corpus}
    path = _file(corpus)
    with path.open("rb") as file:
        return {"name": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


class _Wanted:
    """Whether a document's domain and licence are wanted."""

    def __init__(self, domains: Sequence[str] | None, exclude: Sequence[str]) -> None:
        for name, value in (("domains", domains), ("exclude_licences", exclude)):
            if isinstance(value, str):
                raise ValueError(f"{name} is {value!r}; expected a list, [{value!r}].")
        self.domains = None if domains is None else set(domains)
        self.exclude = {licence: _word(licence) for licence in exclude}

    def __call__(self, document: Document) -> bool:
        if self.domains is not None and document.domain not in self.domains:
            return False
        return not any(pattern.search(document.licence) for pattern in self.exclude.values())

    def check(self, corpus: str, pool: Sequence[Document]) -> None:
        """A misspelt licence must not let its texts through, nor a domain leave nothing over."""
        domains = sorted({document.domain for document in pool} - {""})
        licences = sorted({document.licence for document in pool} - {""})
        unknown = sorted((self.domains or set()) - set(domains))
        if unknown or self.domains == set():
            raise ValueError(
                f"domains {unknown} are not in corpus {corpus!r}; "
                f"it has {', '.join(domains) or 'none'}."
            )
        for licence, pattern in self.exclude.items():
            if not any(map(pattern.search, licences)):
                raise ValueError(
                    f"exclude_licences: no licence of corpus {corpus!r} names {licence!r}; "
                    f"it has {'; '.join(licences) or 'none'}."
                )


def _word(licence: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(licence)}(?![^\W\d_])", re.IGNORECASE)


def _pool(corpus: str) -> list[tuple[Document, str]]:
    """All documents of a corpus with their split, in the order of the file."""
    if corpus == "minipile":
        sides = {theirs: ours for ours, theirs in _SPLITS.items()}
        rows = _parquet_rows(io.BytesIO(data.read("minipile.parquet")), corpus)
        return [(_document(row, ""), sides[row["split"]]) for row in rows]
    path = _file(corpus)
    rows = {".txt": _txt_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[path.suffix](
        path, corpus
    )
    pool = [_document(row, path.name) for row in rows if (row["text"] or "").strip()]
    if not pool:
        raise ValueError(f"corpus {corpus!r} is empty: it has no document with any text.")
    return [(document, _side(document.text)) for document in pool]


def _file(corpus: str) -> Path:
    path = Path(corpus).expanduser()
    if path.suffix in (".txt", ".jsonl", ".parquet") and path.is_file():
        return path
    what = "is no such file" if path.suffix else "is unknown"
    if corpus and path.exists():
        what = "is not of a kind that can be read"
    close = difflib.get_close_matches(corpus, ["minipile"], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"corpus {corpus!r} {what}; expected {FORMS}.{hint}")


def _txt_rows(path: Path, corpus: str) -> Iterator[dict[str, Any]]:
    text = _decoded(path, corpus)
    blocks = re.split(r"\n(?:[^\S\n]*\n)+", text.strip())
    return ({"text": block} for block in (blocks if len(blocks) > 1 else text.splitlines()))


def _jsonl_rows(path: Path, corpus: str) -> Iterator[dict[str, Any]]:
    # only \n ends a line: JSON text may hold the other separators that splitlines knows
    for number, line in enumerate(_decoded(path, corpus).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"corpus {corpus!r}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            found = sorted(row) if isinstance(row, dict) else type(row).__name__
            raise ValueError(
                f"corpus {corpus!r}, line {number} has no field 'text' with a string; "
                f"it has {found}."
            )
        yield row


def _decoded(path: Path, corpus: str) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"corpus {corpus!r} is not UTF-8 text: {error}") from error


def _parquet_rows(file: Path | io.BytesIO, corpus: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = ("text", "domain", "licence", "license", "source", "split")
    try:
        columns = pq.read_schema(file).names
        table = pq.read_table(file, columns=[name for name in known if name in columns])
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"corpus {corpus!r} is not a readable parquet file: {error}") from error
    kind = table.schema.field("text").type if "text" in columns else pa.null()
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(
            f"corpus {corpus!r} has no column 'text' with strings; its columns are {columns}."
        )
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _from_hub(dataset: str, split: str, seed: int) -> Iterator[Document]:
    rows = hub_text.stream(dataset, seed)
    found = (_document(row, dataset) for row in rows if (row["text"] or "").strip())
    return (document for document in found if _side(document.text) == split)


def _document(row: Mapping[str, Any], source: str) -> Document:
    meta = row.get("meta")
    pile_set = meta.get("pile_set_name") if isinstance(meta, Mapping) else None  # the Pile's copies
    return Document(
        row["text"],
        str(row.get("domain") or pile_set or ""),
        str(row.get("licence") or row.get("license") or ""),
        str(row.get("source") or source),
    )


def _side(text: str) -> str:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return "train" if int.from_bytes(digest, "big") % EVAL_SHARE else "eval"
