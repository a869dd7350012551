"""What a folder with a language model must hold before anything in it is loaded.

Two refusals guard the reader's machine: a model that needs its own Python code is never loaded, and
weights are read only from safetensors or GGUF, which are plain tensors (a .bin or .pt file is a
pickle, and unpickling runs code).
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from loca_sae.model_packages import ModelUnavailable

INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model", "model_dim")


class Size(NamedTuple):
    """Depth and width of a language model: n_layers blocks, a residual stream of d_model."""

    n_layers: int
    d_model: int


def is_model_folder(folder: Path) -> bool:
    """Whether ``folder`` holds a config.json or a GGUF file."""
    return folder.is_dir() and ((folder / "config.json").is_file() or any(folder.glob("*.gguf")))


def read_config(name: str, folder: Path) -> dict[str, Any]:
    """The parsed config.json of ``folder``; ModelUnavailable if it is absent or no JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"model {name!r}: cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise ModelUnavailable(f"model {name!r}: {path} holds no JSON object.")
    return config


def size(name: str, config: dict[str, Any]) -> Size:
    """Depth and width from a Hugging Face config, under any of the usual key names."""
    inner = {**config, **(config.get("text_config") or {})}
    found = [
        next((inner[key] for key in keys if isinstance(inner.get(key), int)), None)
        for keys in (_LAYERS, _WIDTH)
    ]
    if found[0] is None or found[1] is None:
        raise ModelUnavailable(
            f"model {name!r}: its config.json (model_type {config.get('model_type')!r}) states no "
            f"number of layers (one of {_LAYERS}) or no width (one of {_WIDTH}); "
            "use a decoder-only language model."
        )
    return Size(found[0], found[1])


def refuse_unsafe(name: str, config: dict[str, Any]) -> None:
    """ModelUnavailable if the config asks for its own Python code, or for weights in a pickle.

    A config that offers code (auto_map) beside a class that transformers has is fine: the class
    is used, the code is not.
    """
    weights = config.get("transformers_weights")
    if weights is not None and not str(weights).endswith((".safetensors", INDEX)):
        raise ModelUnavailable(
            f"model {name!r} is refused: its config.json names {weights!r} as the weights; "
            "weights are read only from safetensors or GGUF."
        )
    if "auto_map" not in config:
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise ModelUnavailable(
            f"model {name!r} is refused: its config.json (model_type "
            f"{config.get('model_type')!r}) asks for Python code from the model's own folder "
            "(auto_map), and code that comes with a model is never executed here. "
            "Use a model whose class is part of transformers."
        )


def gguf_file(name: str, folder: Path) -> Path | None:
    """The folder's GGUF file, if its weights are in that form; None if they are safetensors.

    Raises ModelUnavailable where the folder has weights of neither form, an incomplete set of
    safetensors shards, or several GGUF files.
    """
    if (folder / "model.safetensors").is_file():
        return None
    if (folder / INDEX).is_file():
        _check_shards(name, folder)
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelUnavailable(
            f"model {name!r}: {folder} holds several GGUF files "
            f"({', '.join(file.name for file in files)}); keep the one to load in a folder of "
            "its own."
        )
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise ModelUnavailable(
            f"model {name!r} is refused: {folder} has weights only as pickles "
            f"({', '.join(pickles)}), and unpickling runs code. Convert them to safetensors (load "
            "them where you trust them, then save_pretrained) or use a repository that has them."
        )
    raise ModelUnavailable(
        f"model {name!r}: {folder} holds neither model.safetensors, nor {INDEX}, nor a GGUF file."
    )


def identity(name: str, folder: Path) -> dict[str, str]:
    """What distinguishes the model in a folder from any other, wherever the folder lies.

    A GGUF file's name and sha256, or one sha256 over config, tokenizer and safetensors.
    """
    gguf = gguf_file(name, folder)
    if gguf is not None:
        return {"gguf": gguf.name, "sha256": _sha256(gguf)}
    digest = hashlib.sha256()
    for pattern in ("*.json", "*.safetensors", "*.model", "*.txt"):
        for file in sorted(folder.glob(pattern)):
            digest.update(f"{file.name} {_sha256(file)}\n".encode())
    return {"safetensors": folder.resolve().name, "sha256": digest.hexdigest()}


def _sha256(file: Path) -> str:
    stat = file.stat()
    return _sha256_of(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256_of(file: Path, size: int, mtime: int) -> str:
    """Hash of the file's content; size and mtime are there so that a changed file is read again."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_shards(name: str, folder: Path) -> None:
    shards = set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values())
    other = sorted(shard for shard in shards if not shard.endswith(".safetensors"))
    if other:
        raise ModelUnavailable(
            f"model {name!r} is refused: {INDEX} points at {other[0]}; weights are read only from "
            "safetensors or GGUF."
        )
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise ModelUnavailable(
            f"model {name!r}: {folder} lacks {len(missing)} of {len(shards)} weight files "
            f"({missing[0]}, ...)."
        )
