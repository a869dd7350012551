"""Harvesting: what is masked, scaled, resumed, and how much memory it takes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loca_sae import corpus, harvesting, models, precision, text_activations
from loca_sae.activations import Activations, harvest, harvest_texts

LAYER = 1
CONTEXT = 32


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus of 300 short documents of random letters, as JSON lines."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyABCDE0123. "))
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpus") / "story.jsonl"
    texts = ("".join(generator.choice(letters, generator.integers(80, 240))) for _ in range(300))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture
def massive(tiny_llama: Path, tmp_path: Path) -> Path:
    """The tiny Llama with a huge embedding of the letter a, which the residual stream carries."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids("a")] *= 100
    model.save_pretrained(tmp_path / "massive")
    tokenizer.save_pretrained(tmp_path / "massive")
    return tmp_path / "massive"


def hidden_states(folder: Path, tokens: torch.Tensor, layer: int) -> torch.Tensor:
    """By transformers alone: the input of the block that follows."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(tokens, output_hidden_states=True).hidden_states[layer + 1]


# ---------------------------------------------------------------- harvest


def test_kept_rows_masks_and_scale_are_those_of_a_loop_over_all_tokens(
    massive: Path, story: str, own_store: Path
) -> None:
    found = harvest(str(massive), LAYER, corpus=story, tokens=900, context=CONTEXT, batch_size=4)
    tokenizer = models.tokenizer(str(massive))
    contexts = corpus.contexts(tokenizer, story, "train", 900, CONTEXT, 0)
    hidden = hidden_states(massive, contexts.tokens, LAYER)

    norms = [float(x.norm()) for row in hidden for x in row[1:]]
    limit = 10 * sorted(norms)[len(norms) // 2]
    rows, tokens, positions, documents = [], [], [], []
    dropped = 0
    for c in range(len(hidden)):
        for p in range(1, CONTEXT):
            if hidden[c, p].norm() > limit:
                dropped += 1
                assert tokenizer.decode([int(contexts.tokens[c, p])]) == "a"
                continue
            rows.append(hidden[c, p])
            tokens.append(int(contexts.tokens[c, p]))
            positions.append(p)
            documents.append(int(contexts.document[c, p]))
    scale = math.sqrt(16) / (sum(float(x.norm()) for x in rows) / len(rows))

    assert dropped > 5
    assert found.stats["massive_masked"] == dropped
    assert found.stats["first_masked"] == len(hidden) == 29
    assert found.stats["tokens"] == 29 * CONTEXT
    assert found.stats["kept"] == found.n == len(rows)
    assert found.scale == pytest.approx(scale, rel=1e-5)
    everything = found.rows(range(found.n))
    torch.testing.assert_close(everything, torch.stack(rows) * scale, rtol=1e-4, atol=1e-5)
    assert everything.norm(dim=1).mean() == pytest.approx(4.0, rel=1e-5)
    assert found.tokens.tolist() == tokens
    assert found.positions.tolist() == positions
    assert found.documents.tolist() == documents


@pytest.mark.parametrize("layer", [0, 2])
def test_a_neox_model_is_harvested_as_transformers_computes_it(
    tiny_neox: Path, story: str, own_store: Path, layer: int
) -> None:
    found = harvest(str(tiny_neox), layer, corpus=story, tokens=128, context=CONTEXT)
    contexts = corpus.contexts(models.tokenizer(str(tiny_neox)), story, "train", 128, CONTEXT, 0)
    if layer < 2:  # transformers hands out the last block's output only after the final norm
        expected = hidden_states(tiny_neox, contexts.tokens, layer)[:, 1:].reshape(-1, 16)
        torch.testing.assert_close(found.rows(range(found.n)) / found.scale, expected)
    assert (found.n, found.d_in) == (4 * 31, 16)


def test_the_evaluation_split_is_other_text_under_the_training_scale(
    tiny_llama: Path, story: str, own_store: Path
) -> None:
    train = harvest(str(tiny_llama), LAYER, corpus=story, tokens=256, context=CONTEXT)
    held_out = harvest(
        str(tiny_llama),
        LAYER,
        corpus=story,
        split="eval",
        tokens=256,
        context=CONTEXT,
        scale=train.scale,
    )
    assert held_out.scale == train.scale != held_out.stats["scale"]
    own = harvest(str(tiny_llama), LAYER, corpus=story, split="eval", tokens=256, context=CONTEXT)
    assert own.path == held_out.path  # the scale is applied on reading: nothing was harvested twice
    assert own.name != held_out.name
    torch.testing.assert_close(own.rows([0, 5]) * train.scale / own.scale, held_out.rows([0, 5]))


def test_a_harvest_that_masks_nothing_holds_position_0_and_massive_tokens_in_place(
    massive: Path, story: str, own_store: Path
) -> None:
    arguments: dict[str, Any] = {"corpus": story, "tokens": 250, "context": CONTEXT}
    masked = harvest(str(massive), LAYER, **arguments)
    found = harvest(str(massive), LAYER, **arguments, scale=masked.scale, keep_all=True)
    contexts = corpus.contexts(models.tokenizer(str(massive)), story, "train", 250, CONTEXT, 0)
    hidden = hidden_states(massive, contexts.tokens, LAYER).reshape(-1, 16)

    assert found.n == found.stats["kept"] == 8 * CONTEXT
    torch.testing.assert_close(
        found.rows(range(found.n)), hidden * masked.scale, rtol=1e-4, atol=1e-5
    )
    assert found.positions.tolist() == list(range(CONTEXT)) * 8
    assert found.tokens.tolist() == contexts.tokens.flatten().tolist()
    assert found.documents.tolist() == contexts.document.flatten().tolist()
    counts = {"first_masked": 0, "massive_masked": 0, "first_kept": 8}
    assert {name: found.stats[name] for name in counts} == counts
    assert found.stats["massive_kept"] >= masked.stats["massive_masked"] > 0
    assert found.scale == masked.scale and found.path != masked.path


def test_a_finished_harvest_needs_no_model(
    tiny_llama: Path, story: str, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = harvest(str(tiny_llama), LAYER, corpus=story, tokens=128, context=CONTEXT)
    monkeypatch.setattr(models, "load", lambda *arguments: pytest.fail("the model was loaded"))
    assert harvest(str(tiny_llama), LAYER, corpus=story, tokens=128, context=CONTEXT).path == (
        first.path
    )


def test_blocks_after_the_layer_do_not_run(tiny_llama: Path) -> None:
    model = models.load(str(tiny_llama))
    ran = []
    hooks = [(f"blocks.{i}.attn.hook_in", lambda x, hook: ran.append(hook.name)) for i in range(3)]
    with model.hooks(fwd_hooks=hooks):
        harvesting.residual(model, torch.zeros(2, 5, dtype=torch.long), LAYER)
    assert ran == ["blocks.0.attn.hook_in", "blocks.1.attn.hook_in"]


def test_a_hook_that_stays_silent_is_an_error(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.load(str(tiny_llama))
    monkeypatch.setattr(models, "hook_name", lambda layer: f"blocks.{layer}.hook_unknown")
    with pytest.raises(RuntimeError, match="fired 0 times in one forward pass"):
        harvesting.residual(model, torch.zeros(2, 5, dtype=torch.long), LAYER)


def test_activations_that_are_not_finite_are_refused_and_the_context_named(
    massive: Path, story: str, own_store: Path
) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = models.tokenizer(str(massive))
    (token,) = tokenizer("a", add_special_tokens=False).input_ids
    model = AutoModelForCausalLM.from_pretrained(massive)
    with torch.no_grad():
        model.model.embed_tokens.weight[token] = float("nan")
    model.save_pretrained(massive)
    contexts = corpus.contexts(tokenizer, story, "train", 128, CONTEXT, 0)
    row = int(torch.nonzero(torch.eq(contexts.tokens, token))[0, 0])
    # the whole context: attention multiplies what comes later by zero, and 0 * NaN is NaN
    with pytest.raises(ValueError, match=rf"NaN or infinite, first in context {row} at position 1"):
        harvest(str(massive), LAYER, corpus=story, tokens=128, context=CONTEXT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 3}, "layer is 3, but .* has 3 layers; choose 0 to 2"),
        ({"tokens": 0}, "tokens is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"context": 1}, "context is 1"),
        ({"massive_multiple": 1.0}, "massive_multiple is 1.0"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"keep_all": True}, "no scale follows; give a training split's"),
        ({"tokens": 10**7}, "too few tokens"),
    ],
)
def test_impossible_arguments_are_refused(
    tiny_llama: Path, story: str, own_store: Path, arguments: dict[str, Any], message: str
) -> None:
    given_arguments = {"layer": LAYER, "corpus": story, "tokens": 64, "context": CONTEXT}
    with pytest.raises(ValueError, match=message):
        harvest(str(tiny_llama), **{**given_arguments, **arguments})


# ---------------------------------------------------------------- kill and resume, memory

SLOW_HARVEST = """
import sys, time
from loca_sae import activations, harvesting
exact = harvesting.residual
def slow(*arguments):
    time.sleep(0.05)
    return exact(*arguments)
harvesting.residual = slow
activations.harvest(sys.argv[1], 1, corpus=sys.argv[2], tokens=4096, context=32, batch_size=2)
"""


def child(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "TQDM_DISABLE"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**inherited, "PYTHONPATH": str(Path(models.__file__).parents[1]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_harvest_killed_with_minus_nine_resumes_at_the_last_finished_block(
    tiny_llama: Path, story: str, own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child(SLOW_HARVEST, str(tiny_llama), story, LOCA_STORE=str(own_store))
    deadline = time.monotonic() + 120
    while blocks_done(own_store) < 12:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, stderr = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert re.search(r"\d\d:\d\d<\d\d:\d\d, +[\d.]+k?tok/s", stderr)  # the bar: time left, rate

    finished = blocks_done(own_store)
    assert 12 <= finished < 64
    computed: list[int] = []
    exact = harvesting.residual

    def counting(model: Any, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        computed.append(len(tokens))
        return exact(model, tokens, *rest)

    monkeypatch.setattr(harvesting, "residual", counting)
    arguments: dict[str, Any] = {"tokens": 4096, "context": 32, "batch_size": 2}
    resumed = harvest(str(tiny_llama), LAYER, corpus=story, **arguments)
    assert len(computed) == 64 - finished
    assert resumed.stats["resumed_blocks"] == finished

    monkeypatch.setenv("LOCA_STORE", str(tmp_path / "another"))
    undisturbed = harvest(str(tiny_llama), LAYER, corpus=story, **arguments)
    assert undisturbed.stats["resumed_blocks"] == 0
    assert undisturbed.name == resumed.name
    for file in (harvesting.ROWS, harvesting.NORMS, harvesting.CONTEXTS):
        assert (undisturbed.path / file).read_bytes() == (resumed.path / file).read_bytes(), file


def blocks_done(store: Path) -> int:
    found = list(store.glob("activations/*.partial/progress.json"))
    return int(json.loads(found[0].read_text())["blocks"]) if found else 0


PEAK = """
import resource, sys
from loca_sae import activations
unit = 1 if sys.platform == "darwin" else 1024
for tokens in (10_000, 100_000):
    found = activations.harvest(sys.argv[1], 0, corpus=sys.argv[2], tokens=tokens, context=64)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, found.path)
"""


def test_peak_memory_is_the_same_for_ten_times_the_tokens(
    tiny_llama: Path, story: str, own_store: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    wide = tmp_path / "wide"
    LlamaForCausalLM(config).save_pretrained(wide)
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(wide)
    text = tmp_path / "long.jsonl"
    text.write_text(Path(story).read_text() * 4)
    output, error = child(PEAK, str(wide), str(text), LOCA_STORE=str(own_store)).communicate()
    (few, _), (many, folder) = (line.split() for line in output.splitlines())
    rows = (Path(folder) / harvesting.ROWS).stat().st_size
    assert rows > 90e6, error  # what would be in memory if it were kept, or mapped, there
    assert int(many) - int(few) < 25e6


# ---------------------------------------------------------------- reading


@pytest.fixture
def circle(tmp_path: Path) -> Activations:
    """50 rows: points (cos i, sin i); rows 7 and 30 are massive, so 48 are kept. Scale 3."""
    norms = np.ones(50, dtype=np.float32)
    norms[[7, 30]] = 11
    angles = np.arange(50)
    rows = norms[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    np.save(tmp_path / harvesting.ROWS, rows.astype(np.float32))
    np.save(tmp_path / harvesting.NORMS, norms)
    stats = {"massive_multiple": 10.0, "median_norm": 1.0, "scale": 1.0}
    (tmp_path / harvesting.STATS).write_text(json.dumps(stats))
    return Activations(tmp_path, scale=3.0)


KEPT = [i for i in range(50) if i not in (7, 30)]


def which(x: torch.Tensor) -> list[int]:
    """The i of each row 3 (cos i, sin i), by comparing with all of them."""
    angles = torch.arange(50)
    points = 3 * torch.stack([angles.cos(), angles.sin()], 1)
    distances = torch.cdist(x.double(), points.double())
    assert distances.min(1).values.max() < 1e-5
    return [int(i) for i in distances.argmin(1)]


def test_rows_are_those_kept_in_order_and_scaled(circle: Activations) -> None:
    assert (circle.n, circle.d_in) == (48, 2)
    assert which(circle.rows(range(48))) == KEPT
    assert which(circle.rows(torch.tensor([47, 0, 7]))) == [49, 0, 8]
    assert circle.rows([1]).dtype == torch.float32


def test_one_pass_reads_every_row_once_in_order(circle: Activations) -> None:
    batches = list(circle.iterate(20))
    assert [len(batch) for batch in batches] == [20, 20, 8]
    assert which(torch.cat(batches)) == KEPT


@pytest.mark.parametrize("batch_size", [1, 16, 20, 48, 100])
def test_every_kept_row_comes_exactly_once_an_epoch(circle: Activations, batch_size: int) -> None:
    stream = circle.batches(batch_size, seed=4)
    batches = [next(stream) for _ in range(math.ceil(3 * 48 / batch_size))]
    assert {len(batch) for batch in batches} == {batch_size}
    order = which(torch.cat(batches))
    epochs = [order[start : start + 48] for start in (0, 48, 96)]
    assert [Counter(epoch) for epoch in epochs] == [Counter(KEPT)] * 3
    assert len({tuple(epoch) for epoch in (*epochs, KEPT)}) == 4  # each shuffled, each otherwise


def test_the_order_of_batches_depends_on_the_seed_alone(circle: Activations) -> None:
    def first(seed: int) -> list[int]:
        stream = circle.batches(30, seed)
        return which(torch.cat([next(stream) for _ in range(4)]))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_a_sample_holds_different_rows_and_depends_on_the_seed(circle: Activations) -> None:
    drawn = which(circle.sample(48, seed=0))
    assert sorted(drawn) == KEPT
    assert which(circle.sample(10, seed=1)) == which(circle.sample(10, seed=1))
    assert which(circle.sample(10, seed=1)) != which(circle.sample(10, seed=2))
    with pytest.raises(ValueError, match="asked for 49 of 48"):
        circle.sample(49, seed=0)


# ---------------------------------------------------------------- texts


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=5),
    wanted=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
def test_tokens_of_a_text_are_evenly_spaced_and_never_the_first(
    lengths: list[int], wanted: int, seed: int
) -> None:
    keep = text_activations.spaced(np.array(lengths), 40, wanted, seed)
    for row, length in zip(keep, lengths, strict=True):
        places = np.flatnonzero(row)
        assert len(places) == min(wanted, length - 1)
        assert places[0] >= 1
        assert places[-1] < length
        gaps = np.diff([*places, places[0] + length - 1])  # as on a ring of length - 1 positions
        assert gaps.max() - gaps.min() <= 1


def test_texts_give_the_activations_that_each_text_has_alone(
    tiny_llama: Path, own_store: Path
) -> None:
    texts = ["abc", "The quick brown fox jumps over the lazy dog again and again", "12 34. 56"]
    found = harvest_texts(str(tiny_llama), LAYER, texts, scale=2.0, context=20, batch_size=2)
    tokenizer = models.tokenizer(str(tiny_llama))
    expected, owners = [], []
    for index, text in enumerate(texts):
        ids = [0, *tokenizer(text, add_special_tokens=False).input_ids][:20]
        alone = hidden_states(tiny_llama, torch.tensor([ids]), LAYER)[0, 1:]
        expected.append(2.0 * alone)
        owners += [index] * len(alone)
    torch.testing.assert_close(found.x, torch.cat(expected), rtol=1e-4, atol=1e-6)
    assert found.text.tolist() == owners


def test_a_few_tokens_of_each_text_are_a_part_of_all_of_them(
    tiny_llama: Path, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["some words here", "x", "and some more words there"]
    full = harvest_texts(str(tiny_llama), LAYER, texts, scale=1.0, context=20)
    few = harvest_texts(str(tiny_llama), LAYER, texts, scale=1.0, context=20, tokens_per_text=4)
    assert Counter(few.text.tolist()) == {0: 4, 1: 1, 2: 4}
    for index in range(3):
        distances = torch.cdist(few.x[few.text == index], full.x[full.text == index])
        assert distances.min(1).values.max() < 1e-5
    monkeypatch.setattr(models, "load", lambda *arguments: pytest.fail("the model was loaded"))
    again = harvest_texts(str(tiny_llama), LAYER, texts, scale=3.0, context=20, tokens_per_text=4)
    torch.testing.assert_close(again.x, 3 * few.x)


def test_texts_without_tokens_are_refused_by_number(tiny_llama: Path, own_store: Path) -> None:
    with pytest.raises(ValueError, match="1 of 3 texts have no token .* text 1"):
        harvest_texts(str(tiny_llama), LAYER, ["a", "", "b"], scale=1.0)
    with pytest.raises(ValueError, match="no texts"):
        harvest_texts(str(tiny_llama), LAYER, [], scale=1.0)
    with pytest.raises(ValueError, match="tokens_per_text is 0"):
        harvest_texts(str(tiny_llama), LAYER, ["a"], scale=1.0, tokens_per_text=0)


# ---------------------------------------------------------------- autocast


def test_the_effect_of_rounding_is_what_a_known_rounding_gives() -> None:
    """x' = x + e with e orthogonal to x and of norm 0.01 ||x||: all four numbers by hand."""
    angles = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    x = 5 * np.stack([np.cos(angles), np.sin(angles), 0 * angles], 1)
    e = 0.05 * np.stack([-np.sin(angles), np.cos(angles), 0 * angles], 1)
    effect = precision.compare(x, x + e)
    assert effect.relative_error == pytest.approx(0.01)
    assert effect.centred_error == pytest.approx(0.01)  # the mean is 0
    assert effect.cosine_mean == pytest.approx(1 / math.sqrt(1.0001))
    assert effect.cosine_min == pytest.approx(1 / math.sqrt(1.0001))
    far = np.array([12.0, 0.0, 0.0])
    shifted = precision.compare(x + far, x + far + e)
    assert shifted.relative_error == pytest.approx(0.05 / math.sqrt(25 + 144))
    assert shifted.centred_error == pytest.approx(0.01)


def test_autocast_changes_activations_a_little_and_is_another_artifact(
    tiny_llama: Path, story: str, own_store: Path
) -> None:
    arguments: dict[str, Any] = {"corpus": story, "tokens": 256, "context": CONTEXT}
    exact = harvest(str(tiny_llama), LAYER, **arguments)
    rounded = harvest(str(tiny_llama), LAYER, autocast=True, **arguments)
    assert rounded.path != exact.path
    difference = (rounded.rows(range(rounded.n)) - exact.rows(range(exact.n))).norm()
    relative = float(difference / exact.rows(range(exact.n)).norm())
    assert 1e-6 < relative < 0.02
    effect = precision.bf16_effect(str(tiny_llama), LAYER, text=story, tokens=256, context=CONTEXT)
    assert 1e-6 < effect.relative_error < 0.02
    assert effect.cosine_min > 0.999
    assert effect.tokens == 8 * 31
