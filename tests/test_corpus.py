"""Documents and contexts: against SAELens's own packing, the file itself, and brute force."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sae_lens.tokenization_and_batching import concat_and_batch_sequences

from loca_sae import corpus, data, hub_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS = 0, 1
WORDS = [f"w{i}" for i in range(50)]


def word_tokenizer(**special: str | None) -> PreTrainedTokenizerFast:
    """One token a word, split at white space; "<bos>" in a text is the BOS token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<bos>", "<eos>", "<unk>", *WORDS])}
    inner = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", **special)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(bos_token="<bos>", eos_token="<eos>")


@pytest.fixture(scope="module")
def pile() -> pd.DataFrame:
    """The mini-pile, read without the library."""
    return pq.read_table(data.data_dir() / "minipile.parquet").to_pandas()


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def toy(tmp_path: Path) -> str:
    """A local file with 300 documents of 1 to 30 words, three of them repeated."""
    draw = random.Random(0)
    rows = [
        {
            "text": " ".join(draw.choices(WORDS, k=draw.randint(1, 30))) + f" w{i % 50} unique{i}",
            "domain": "even" if i % 2 == 0 else "odd",
            "licence": ["MIT", "GPL-2.0-or-later", "LGPL-3.0", ""][i % 4],
        }
        for i in range(300)
    ]
    return jsonl(tmp_path / "toy.jsonl", [*rows, *rows[:3]])


def saelens(documents: list[list[int]], context: int) -> list[list[int]]:
    """SAELens's packing with a BOS token at the head of contexts and between documents."""
    packed = concat_and_batch_sequences(
        (torch.tensor(ids, dtype=torch.long) for ids in documents),
        context_size=context,
        begin_batch_token_id=BOS,
        begin_sequence_token_id=None,
        sequence_separator_token_id=BOS,
    )
    return [row.tolist() for row in packed]


# ---- packing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_packing_equals_that_of_saelens(seed: int) -> None:
    draw = random.Random(seed)
    context = draw.choice([2, 3, 5, 8, 16])
    documents = [
        [draw.choice([BOS, 3, 4, 5]) for _ in range(draw.choice([0, 1, 2, 3, 7, 15, 16, 40]))]
        for _ in range(draw.randint(0, 20))
    ]
    packed = [row for row, _ in corpus.pack(documents, context, BOS)]
    assert packed == saelens(documents, context)


@pytest.mark.parametrize("context", [2, 4, 9])
def test_the_owners_give_each_document_back(context: int) -> None:
    draw = random.Random(1)
    documents = [[draw.randint(1, 9) for _ in range(draw.randint(0, 25))] for _ in range(30)]
    collected: dict[int, list[int]] = {}
    for row, owner in corpus.pack([*documents, [9] * 2 * context], context, BOS):
        for token, index in zip(row, owner, strict=True):
            if index < 0:
                assert token == BOS
            else:
                collected.setdefault(index, []).append(token)
    for index, ids in enumerate(documents):
        assert collected.get(index, []) == ids


def test_contexts_of_a_corpus_equal_those_of_saelens(
    toy: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    found = corpus.contexts(tokenizer, toy, "train", tokens=2000, context=16, seed=3)
    documents = list(corpus.documents(toy, "train", 3))
    ids = [tokenizer(d.text, add_special_tokens=False)["input_ids"] for d in documents]
    assert found.tokens.tolist() == saelens(ids, 16)[: 2000 // 16]
    assert found.tokens.dtype == torch.int64
    assert found.document.dtype == torch.int32
    assert (found.tokens[:, 0] == BOS).all()
    assert (found.length == 16).all()
    row, column = 40, 9
    owner = int(found.document[row, column])
    assert owner < 0 or int(found.tokens[row, column]) in ids[owner]


@pytest.mark.parametrize(("tokens", "contexts"), [(1, 1), (16, 1), (17, 2), (160, 10)])
def test_there_are_as_many_contexts_as_hold_the_tokens(
    toy: str, tokenizer: PreTrainedTokenizerFast, tokens: int, contexts: int
) -> None:
    found = corpus.contexts(tokenizer, toy, "train", tokens, 16, 0)
    assert found.tokens.shape == found.document.shape == (contexts, 16)


def test_fewer_tokens_are_a_prefix(toy: str, tokenizer: PreTrainedTokenizerFast) -> None:
    few, many = (corpus.contexts(tokenizer, toy, "train", n, 16, 5) for n in (300, 3000))
    n = len(few.tokens)
    assert torch.equal(few.tokens, many.tokens[:n])
    assert torch.equal(few.document, many.document[:n])


def test_too_few_tokens_are_an_error_that_says_how_many_there_are(
    toy: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = [
        tokenizer(d.text, add_special_tokens=False)["input_ids"]
        for d in corpus.documents(toy, "eval", 0)
    ]
    there = len(saelens(ids, 16))
    assert len(corpus.contexts(tokenizer, toy, "eval", there * 16, 16, 0).tokens) == there
    message = rf"too few tokens in its eval split: it fills {there} contexts of 16 \({there * 16}"
    with pytest.raises(ValueError, match=message):
        corpus.contexts(tokenizer, toy, "eval", there * 16 + 1, 16, 0)


@pytest.mark.parametrize(("tokens", "context"), [(0, 16), (-5, 16), (100, 1), (100, 0)])
def test_impossible_sizes_are_refused(
    toy: str, tokenizer: PreTrainedTokenizerFast, tokens: int, context: int
) -> None:
    with pytest.raises(ValueError, match="(tokens|context) is .*; expected"):
        corpus.contexts(tokenizer, toy, "train", tokens, context, 0)


def test_a_tokenizer_without_bos_begins_with_eos_and_without_both_is_refused(toy: str) -> None:
    found = corpus.contexts(word_tokenizer(eos_token="<eos>"), toy, "train", 64, 16, 0)
    assert (found.tokens[:, 0] == EOS).all()
    with pytest.raises(ValueError, match="neither a BOS nor an EOS token"):
        corpus.contexts(word_tokenizer(), toy, "train", 64, 16, 0)


def test_texts_become_one_context_each_padded_on_the_right(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    texts = ["w0 w1", "", "<bos> w2", "w3 w4 w5 w6 w7 w8", "w1 w2 w3 w4"]
    found = corpus.text_contexts(tokenizer, texts, 5)
    w = 3  # id of w0
    assert found.tokens.tolist() == [
        [BOS, w, w + 1, EOS, EOS],
        [BOS, EOS, EOS, EOS, EOS],
        [BOS, w + 2, EOS, EOS, EOS],
        [BOS, w + 3, w + 4, w + 5, w + 6],
        [BOS, w + 1, w + 2, w + 3, w + 4],
    ]
    assert found.length.tolist() == [3, 1, 2, 5, 5]
    assert found.document.tolist() == [
        [-1, 0, 0, -1, -1],
        [-1, -1, -1, -1, -1],
        [2, 2, -1, -1, -1],
        [-1, 3, 3, 3, 3],
        [-1, 4, 4, 4, 4],
    ]


def test_many_texts_keep_their_order(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = [f"w{i % 50}" for i in range(101)]
    found = corpus.text_contexts(tokenizer, texts, 4)
    assert found.tokens[:, 1].tolist() == [3 + i % 50 for i in range(101)]


# ---- the mini-pile ----------------------------------------------------------------------------


def test_the_minipile_comes_whole_with_its_own_split_domains_and_licences(
    pile: pd.DataFrame,
) -> None:
    rows = {row.text: row for row in pile.itertuples()}
    groups: dict[str, set[str]] = {}
    for split, theirs in (("train", "train"), ("eval", "heldout")):
        found = list(corpus.documents("minipile", split, 0))
        assert Counter(d.text for d in found) == Counter(pile[pile["split"] == theirs]["text"])
        for d in found:
            row = rows[d.text]
            assert (d.domain, d.licence, d.source) == (row.domain, row.licence, row.source)
        groups[split] = {rows[d.text].group for d in found}
    assert not groups["train"] & groups["eval"]
    assert pile["domain"].nunique() == 17


def test_the_seed_permutes_the_documents(pile: pd.DataFrame) -> None:
    first, second, again = (
        [d.text for d in corpus.documents("minipile", "eval", seed)] for seed in (0, 1, 0)
    )
    assert first == again
    assert first != second
    assert sorted(first) == sorted(second)
    assert first != pile[pile["split"] == "heldout"]["text"].tolist()
    # a permutation, not a rotation or the like: few neighbours stay neighbours
    pairs = set(zip(first, first[1:], strict=False)) & set(zip(second, second[1:], strict=False))
    assert len(pairs) < 10


def test_limit_takes_a_prefix() -> None:
    everything = list(corpus.documents("minipile", "eval", 4))
    assert list(corpus.documents("minipile", "eval", 4, limit=7)) == everything[:7]


def test_domains_can_be_chosen(pile: pd.DataFrame) -> None:
    chosen = ["fiction", "science"]
    found = list(corpus.documents("minipile", "train", 2, domains=chosen))
    wanted = pile[(pile["split"] == "train") & pile["domain"].isin(chosen)]
    assert Counter(d.text for d in found) == Counter(wanted["text"])
    everything = [d for d in corpus.documents("minipile", "train", 2) if d.domain in chosen]
    assert found == everything  # the order of what stays does not change


def test_licences_can_be_dropped(pile: pd.DataFrame) -> None:
    found = list(corpus.documents("minipile", "train", 0, exclude_licences=("gpl", "CC-BY-SA")))
    dropped = {
        "GPL-2.0-or-later",
        "GPL-2.0-or-later (GCIDE); the entries kept are of Webster 1913, public domain",
        "Artistic-1.0-Perl OR GPL-1.0-or-later",
        "CC-BY-SA-3.0",
        "CC-BY-SA-3.0 OR GPL-2.0-or-later",
    }
    wanted = pile[(pile["split"] == "train") & ~pile["licence"].isin(dropped)]
    assert Counter(d.text for d in found) == Counter(wanted["text"])


def test_a_licence_is_matched_by_words_not_by_letters(toy: str) -> None:
    found = list(corpus.documents(toy, "train", 0, exclude_licences=["GPL"]))
    assert {d.licence for d in found} == {"MIT", "LGPL-3.0", ""}
    with pytest.raises(ValueError, match="no licence of corpus .* names 'MI'.*LGPL-3.0"):
        corpus.documents(toy, "train", 0, exclude_licences=["MI"])


def test_contexts_take_the_same_choices(toy: str, tokenizer: PreTrainedTokenizerFast) -> None:
    found = corpus.contexts(tokenizer, toy, "train", 500, 16, 0, domains=["even"])
    ids = [
        tokenizer(d.text, add_special_tokens=False)["input_ids"]
        for d in corpus.documents(toy, "train", 0)
        if d.domain == "even"
    ]
    assert found.tokens.tolist() == saelens(ids, 16)[: len(found.tokens)]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"domains": ["fictoin"]}, r"domains \['fictoin'\] are not in .* it has code_c, "),
        ({"domains": []}, "it has code_c"),
        ({"domains": "fiction"}, r"expected a list, \['fiction'\]"),
        ({"exclude_licences": ["GLP"]}, "no licence of corpus 'minipile' names 'GLP'; it has Apa"),
        ({"exclude_licences": "GPL"}, r"expected a list, \['GPL'\]"),
        ({"split": "test"}, "split is 'test'; expected 'train' or 'eval'"),
    ],
)
def test_a_misspelt_choice_is_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corpus.documents(**{"corpus": "minipile", "split": "train", "seed": 0, **choice})


# ---- local files ------------------------------------------------------------------------------


def test_a_local_file_is_split_by_text_whatever_the_seed(toy: str) -> None:
    rows = [json.loads(line) for line in Path(toy).read_text().splitlines()]
    sides = [
        [Counter(d.text for d in corpus.documents(toy, split, seed)) for split in ("train", "eval")]
        for seed in (0, 1)
    ]
    assert sides[0] == sides[1]
    train, held_out = sides[0]
    assert not train.keys() & held_out.keys()
    assert train + held_out == Counter(row["text"] for row in rows)
    assert 15 <= sum(held_out.values()) <= 50  # a tenth of 303; binomial, 3.5 sigma
    by_text = {row["text"]: row for row in rows}
    for d in corpus.documents(toy, "train", 0):
        assert (d.domain, d.licence) == (by_text[d.text]["domain"], by_text[d.text]["licence"])
        assert d.source == "toy.jsonl"


def everything(name: str) -> list[corpus.Document]:
    """Both sides, sorted by text."""
    return sorted(d for split in ("train", "eval") for d in corpus.documents(name, split, 0))


def test_a_text_file_has_documents_between_blank_lines_or_else_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "my.txt"
    path.write_bytes(b"\xef\xbb\xbfa first\r\nparagraph\r\n \t\r\n\r\nb second\r\n")
    assert [d.text for d in everything(str(path))] == ["a first\nparagraph", "b second"]
    path.write_text("a first\nb second\nc third\n")
    assert [d.text for d in everything(str(path))] == ["a first", "b second", "c third"]


def test_parquet_columns_and_other_spellings_are_taken_up(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": None}, {"text": " \n"}, {"text": "b", "license": "MIT"}]
    for kind in (pa.string(), pa.large_string()):
        schema = pa.schema([("text", kind), ("license", kind), ("n", pa.int64())])
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "x.parquet")
        found = everything(str(tmp_path / "x.parquet"))
        assert found == [("a", "", "", "x.parquet"), ("b", "", "MIT", "x.parquet")]


def test_json_text_may_hold_odd_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n\n")
    assert [d.text for d in everything(str(path))] == ["a\u2028b\x85c"]


def unreadable(folder: Path) -> dict[str, tuple[str, str]]:
    """File that cannot be a corpus -> (its name, what the error must say)."""
    good = io.BytesIO()
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), good)
    numbers = io.BytesIO()
    pq.write_table(pa.table({"text": [1, 2]}), numbers)
    contents = {
        "no text field.jsonl": (b'{"text": "a"}\n{"body": "b"}\n', "line 2 .*'text'.*'body'"),
        "text is a number.jsonl": (b'{"text": 1}\n', "line 1 has no field 'text' with a string"),
        "a list.jsonl": (b"[1]\n", "line 1 .* it has list"),
        "no json.jsonl": (b"hello\n", "line 1 is not JSON"),
        "no text column.parquet": (good.getvalue(), r"no column 'text'.*\['body', 'n'\]"),
        "numbers.parquet": (numbers.getvalue(), "no column 'text' with strings"),
        "no parquet.parquet": (b"hello", "not a readable parquet file"),
        "cut.parquet": (good.getvalue()[:-20], "not a readable parquet file"),
        "empty.txt": (b"", "is empty"),
        "white.txt": (b" \n\n \n", "is empty"),
        "empty.jsonl": (b'{"text": " "}\n', "is empty"),
        "latin.txt": ("café".encode("latin-1"), "is not UTF-8"),
        "table.csv": (b"text\na\n", "not of a kind that can be read; expected 'minipile'"),
    }
    for name, (contents_, _) in contents.items():
        (folder / name).write_bytes(contents_)
    return {name: (str(folder / name), message) for name, (_, message) in contents.items()}


def test_a_file_that_cannot_be_a_corpus_is_refused_with_its_reason(tmp_path: Path) -> None:
    for name, message in unreadable(tmp_path).values():
        with pytest.raises(ValueError, match=f"corpus '.*{message}"):
            corpus.documents(name, "train", 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minipille", "is unknown; expected 'minipile', .*hub:<dataset id>.*mean 'minipile'"),
        ("nowhere/text.jsonl", "is no such file; expected 'minipile'"),
        ("", "is unknown; expected"),
    ],
)
def test_an_unknown_corpus_is_refused_with_the_forms_there_are(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corpus.documents(name, "train", 0)
    with pytest.raises(ValueError, match=message):
        corpus.identity(name)


def test_the_identity_of_a_file_follows_its_contents(toy: str) -> None:
    before = corpus.identity(toy)
    assert before["name"] == "toy.jsonl"
    with Path(toy).open("a") as file:
        file.write('{"text": "more"}\n')
    assert corpus.identity(toy) != before
    assert corpus.identity("hub:a/b") == {"name": "hub:a/b"}
    line = next(
        line
        for line in (data.data_dir() / "SHA256SUMS").read_text().splitlines()
        if "minipile" in line
    )
    assert corpus.identity("minipile") == {"name": "minipile", "sha256": line[:64]}


# ---- the hub ----------------------------------------------------------------------------------


def test_a_hub_data_set_without_a_network_is_refused_at_once() -> None:
    """The conftest sets HF_HUB_OFFLINE."""
    with pytest.raises(ValueError, match="hub data set 'a/b' cannot be read .*'minipile'"):
        corpus.documents("hub:a/b", "train", 0)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("silent", [True, False])
def test_a_hub_that_does_not_answer_is_an_error_within_five_seconds(
    silent: bool, silent_port: int
) -> None:
    code = """
import time
from loca_sae import corpus
start = time.monotonic()
try:
    corpus.documents("hub:monology/pile-uncopyrighted", "train", 0)
except ValueError as error:
    print(time.monotonic() - start)
    print(error)
"""
    # the name .invalid never resolves
    host = f"127.0.0.1:{silent_port}" if silent else "hub.invalid"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(corpus.__file__).parents[1]),
        "HF_ENDPOINT": f"http://{host}",
        "HF_HUB_OFFLINE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    seconds, message = done.stdout.splitlines()
    assert float(seconds) < 5
    assert "hub data set 'monology/pile-uncopyrighted' cannot be read" in message
    assert host in message


def stream_of(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Let `datasets` stream these rows in place of the hub's; returns how it was called."""
    import datasets

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def load_dataset(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=3)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub_text, "_probe", lambda dataset: None)
    return calls


def test_a_hub_data_set_is_streamed_shuffled_and_split_by_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        {"text": f"text {i}", "meta": {"pile_set_name": ["Github", "ArXiv"][i % 2]}}
        for i in range(600)
    ]
    calls = stream_of(rows, monkeypatch)
    found = {
        (split, seed): list(corpus.documents("hub:me/pile", split, seed))
        for split in ("train", "eval")
        for seed in (0, 1)
    }
    assert calls[0] == (("me/pile",), {"split": "train", "streaming": True})
    for seed in (0, 1):
        texts = [{d.text for d in found[split, seed]} for split in ("train", "eval")]
        assert not texts[0] & texts[1]
        assert texts[0] | texts[1] == {row["text"] for row in rows}
    assert found["train", 0] != found["train", 1]
    assert sorted(found["train", 0]) == sorted(found["train", 1])
    assert found["train", 0] == list(corpus.documents("hub:me/pile", "train", 0))
    for d in found["eval", 0]:
        assert d.domain == ["Github", "ArXiv"][int(d.text.split()[1]) % 2]
        assert d.source == "me/pile"


def test_a_hub_data_set_without_text_is_refused_with_its_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for row in ({"content": "a", "n": 1}, {"text": ["a"], "n": 1}):
        stream_of([row] * 5, monkeypatch)
        with pytest.raises(ValueError, match="no column 'text' with strings but the columns"):
            corpus.documents("hub:me/x", "train", 0)


def test_a_stream_that_breaks_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def shuffle(self, **options: Any) -> Iterator[dict[str, str]]:
            yield {"text": "first"}
            raise ConnectionResetError("the peer went away")

    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **options: Broken())
    monkeypatch.setattr(hub_text, "_probe", lambda dataset: None)
    with pytest.raises(ValueError, match="hub data set 'me/x' cannot be read .*the peer went away"):
        list(corpus.documents("hub:me/x", "train", 0))
