"""Language models by name, loaded as a TransformerLens TransformerBridge.

A name is one of `NAMES`, a hub id, or the path of a local folder:

- ``smollm2-135m`` and ``gemma-3-270m`` come from Python packages that carry quantised GGUF files.
  They are converted once into the store (bfloat16 safetensors) and need no network.
- ``pythia-160m-deduped`` and ``gemma-2-2b``, the paper's models, come from the hub or its local
  cache, as does any other hub id.
- A folder needs config.json, a tokenizer and safetensors weights, or one GGUF file.

Code that comes with a model is never executed; weights are read only from safetensors or GGUF.

The residual stream after block L is read at ``blocks.L.hook_out`` (`hook_name`). Of the bridge's
aliases some are ignored without a word on some architectures; this one fires on all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loca_sae import model_conversion, model_folders, model_hub, model_packages, store
from loca_sae.model_packages import ModelUnavailable

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "NAMES",
    "ModelInfo",
    "ModelUnavailable",
    "check_layer",
    "describe",
    "folder",
    "hook_name",
    "identity",
    "load",
    "tokenizer",
]


class ModelInfo(NamedTuple):
    """What is known of a model before it is loaded.

    source: "package", "hub" or "folder".
    n_layers, d_model: number of blocks; width of the residual stream.
    default_layer: the layer the companion uses: the paper's for the paper's models, else the block
        at two thirds of the depth.
    licence: of the weights.
    """

    name: str
    source: str
    n_layers: int
    d_model: int
    default_layer: int
    licence: str


_UNKNOWN_LICENCE = "not known here; see where the model comes from"
_KNOWN = {
    info.name: info
    for info in (
        ModelInfo("smollm2-135m", "package", 30, 576, 20, "Apache-2.0"),
        ModelInfo("gemma-3-270m", "package", 18, 640, 12, "Gemma Terms of Use"),
        ModelInfo("pythia-160m-deduped", "hub", 12, 768, 8, "Apache-2.0"),
        ModelInfo("gemma-2-2b", "hub", 26, 2304, 12, "Gemma Terms of Use"),
    )
}
_SHORT_NAMES = {repo: name for name, repo in model_hub.REPOSITORIES.items()}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

NAMES: tuple[str, ...] = tuple(_KNOWN)


def hook_name(layer: int) -> str:
    """The bridge's hook on the residual stream after block ``layer`` (0 is the first block)."""
    return f"blocks.{layer}.hook_out"


def describe(name: str) -> ModelInfo:
    """Depth, width, default layer and licence of a model, without loading it.

    Known names need no network and no heavy import; another hub id is looked up in the local hub
    cache and then, for at most four seconds, on the hub. Describing a model does not say that it
    can be loaded: a packaged one may not be installed, a hub one not reachable.
    Raises ModelUnavailable.
    """
    name = _SHORT_NAMES.get(name, name)
    if name in _KNOWN:
        return _KNOWN[name]
    local = _local_folder(name)
    if local is None:
        config, source = model_hub.config(name, _repository(name)), "hub"
    else:
        config, source = model_folders.read_config(name, folder(name)), "folder"
    size = model_folders.size(name, config)
    default_layer = 2 * size.n_layers // 3
    return ModelInfo(name, source, size.n_layers, size.d_model, default_layer, _UNKNOWN_LICENCE)


def identity(name: str) -> dict[str, str]:
    """What tells this model from any other, for the parameters of an artifact made with it.

    A checksum of the weights, or the hub's commit. Light for packaged models; a hub model that is
    not cached is downloaded.
    """
    if name in model_packages.PACKAGED:
        return model_packages.identity(name)
    local = _local_folder(name)
    if local is not None:
        return model_folders.identity(name, local)
    repo = _repository(name)
    return {"hub": repo, "commit": model_hub.snapshot(name, repo).name}


def folder(name: str) -> Path:
    """The folder with the model's config, tokenizer and safetensors, made or fetched if needed."""
    if name in model_packages.PACKAGED:
        return _converted_package(name)
    local = _local_folder(name)
    path = model_hub.snapshot(name, _repository(name)) if local is None else local
    gguf = model_folders.gguf_file(name, path)
    if gguf is not None:
        return _converted_file(name, gguf)
    model_folders.refuse_unsafe(name, model_folders.read_config(name, path))
    return path


def check_layer(name: str, layer: int) -> None:
    """ValueError unless the model has the layer; ModelUnavailable if the model is not known."""
    n_layers = describe(name).n_layers
    if not 0 <= layer < n_layers:
        raise ValueError(
            f"layer is {layer}, but {name!r} has {n_layers} layers; choose 0 to {n_layers - 1}."
        )


def load(name: str, device: str = "cpu", dtype: str = "float32") -> TransformerBridge:
    """The model as a TransformerBridge in evaluation mode, no parameter requiring a gradient.

    dtype: "float32" or "bfloat16". float16 is refused: the residual stream of these models holds
    values up to 1e5, beyond its range.
    Raises ModelUnavailable (a hub model without a network: within five seconds) and ValueError.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(
            f"dtype is {dtype!r}; expected 'float32' or 'bfloat16' (float16 overflows on the "
            "massive activations of these models)."
        )
    _check_device(device)
    path = folder(name)  # before the imports of many seconds: an absent model is reported at once
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    try:
        with model_conversion.quiet_transformers():
            model = TransformerBridge.boot_transformers(
                str(path), device=device, dtype=getattr(torch, dtype)
            )
    except ValueError as error:
        architectures = model_folders.read_config(name, path).get("architectures")
        raise ModelUnavailable(
            f"model {name!r} ({architectures}, in {path}) could not be loaded by TransformerLens: "
            f"{error}"
        ) from error
    model.eval()
    model.requires_grad_(False)
    return model


def tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer (Hugging Face); one object a folder and process."""
    return _tokenizer(str(folder(name)))


@lru_cache(maxsize=8)
def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    with model_conversion.quiet_transformers():
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return
    raise ValueError(
        f"device is {device!r}; expected 'cpu', or 'cuda' where torch finds a CUDA device "
        f"(torch.cuda.is_available() is {torch.cuda.is_available()} here)."
    )


def _local_folder(name: str) -> Path | None:
    path = Path(name).expanduser()
    if model_folders.is_model_folder(path):
        return path
    if path.is_absolute() or name.startswith((".", "~")) or path.is_dir():
        raise ModelUnavailable(
            f"model {name!r}: {path} is not a folder with a config.json or a GGUF file."
        )
    return None


def _repository(name: str) -> str:
    repo = model_hub.REPOSITORIES.get(name, name)
    if _HUB_ID.fullmatch(repo):
        return repo
    raise ModelUnavailable(
        f"model {name!r} is none of {', '.join(NAMES)}, no hub id (owner/name) and no folder."
    )


def _converted_package(name: str) -> Path:
    def build(path: Path) -> None:
        joined = path / model_packages.PACKAGED[name].gguf
        model_packages.join(name, joined)
        model_conversion.convert(joined, path)
        joined.unlink()

    return _converted(model_packages.identity(name), build)


def _converted_file(name: str, gguf: Path) -> Path:
    parameters = model_folders.identity(name, gguf.parent)
    return _converted(parameters, lambda path: model_conversion.convert(gguf, path))


def _converted(parameters: dict[str, str], build: Callable[[Path], None]) -> Path:
    """The converted GGUF: one artifact for one file, whether it came in a package or a folder."""
    modules = ("loca_sae.model_conversion",)
    label = Path(parameters["gguf"]).stem
    return store.artifact("model", parameters, build, modules=modules, name=label).path
