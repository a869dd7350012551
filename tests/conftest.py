"""Fixtures that tests of several modules use: the real language model, and a tiny one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# No test may depend on a network, and progress bars would clutter the report.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

TINY_VOCABULARY = 64
TINY_CONTEXT = 64


@pytest.fixture(scope="session")
def smollm2() -> TransformerBridge:
    """SmolLM2-135M as the companion loads it; converted into the reader's store if it is not yet.

    Session-wide and shared: leave no hook behind.
    """
    from loca_sae import models

    return models.load("smollm2-135m")


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty store for one test."""
    root = tmp_path / "store"
    monkeypatch.setenv("LOCA_STORE", str(root))
    yield root


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small problems only lose by being shared out between threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["coordinate descent", "fista"])
def solve_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both engines of `sparse_coding.solve`: the CPU's, and the one of other devices."""
    from loca_sae.sparse_coding import exact

    if request.param == "fista":
        monkeypatch.setattr(exact, "fits", lambda W_dec: False)
    return request.param


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama (3 blocks, d_model 16) and a 64-token tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TINY_VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=TINY_CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    LlamaForCausalLM(config).save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_neox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random GPT-NeoX, the Pythias' architecture (3 blocks, d_model 16)."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=TINY_VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=TINY_CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    folder = tmp_path_factory.mktemp("tiny") / "neox"
    GPTNeoXForCausalLM(config).save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


def save_tiny_tokenizer(folder: Path) -> None:
    """A tokenizer of single characters: two special tokens, letters, digits and punctuation."""
    from tokenizers import Regex, Tokenizer
    from tokenizers import models as token_models
    from tokenizers.decoders import Fuse
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST0123456789 .,"
    pieces = ["<bos>", "<eos>", "<unk>", *characters]
    if len(pieces) > TINY_VOCABULARY:
        raise ValueError(f"{len(pieces)} tokens do not fit the tiny models")
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    inner = Tokenizer(token_models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        pad_token="<eos>",
    ).save_pretrained(folder)
