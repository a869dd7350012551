"""Convert a GGUF file, once, into a folder that every Hugging Face tool can load.

A model read straight from GGUF keeps its quantisation settings, which TransformerLens does not
understand, and takes tens of seconds to load. The converted folder (config, tokenizer, bfloat16
safetensors) loads in one to five seconds. The weights are those of the quantised file,
dequantised and rounded to bfloat16; nothing is recovered that the quantisation lost.

This module imports nothing else of the library, so that a change elsewhere does not make the store
convert again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def convert(gguf: Path, destination: Path) -> None:
    """Write config, tokenizer and bfloat16 weights of the file ``gguf`` into ``destination``.

    Peak memory of the process, measured: 0.9 GiB for SmolLM2-135M, 3.1 GiB for Gemma-3-270M (the
    float32 embedding of 262,144 tokens, and the vocabulary unpacked beside it).
    """
    with quiet_transformers():
        _convert_weights(gguf, destination)
        gc.collect()  # the weights are gone before the tokenizer unpacks the vocabulary again
        _convert_tokenizer(gguf, destination)


def _convert_weights(gguf: Path, destination: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    # without dequantize=True the weights may stay packed, and then cannot be saved
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(destination)


def _convert_tokenizer(gguf: Path, destination: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(destination)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice of transformers on stderr (notebooks would keep them)."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
