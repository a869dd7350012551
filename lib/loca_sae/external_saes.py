"""SAEs that the companion did not train: a folder in SAELens's format, or a release on the hub.

They are measured in their own units. An SAE of the companion carries in its metadata the factor
(``activation_scale``) by which activations were multiplied; any other one is taken to expect the
model's own activations, which is what SAELens's released SAEs do once their normalization is
folded into the weights.

`check` reads a folder's cfg.json and nothing else, so that a wrong folder, width or layer is found
before any model is loaded. `load` asks the same of an SAE from the hub, and whether its decoder is
one dictionary.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loca_sae import models

if TYPE_CHECKING:
    from sae_lens import SAE

_CONFIG, _WEIGHTS = "cfg.json", "sae_weights.safetensors"
# SAELens's other kinds of dictionary, which do not reconstruct the activation they read token by
# token with non-negative codes
_OTHER_KINDS = re.compile("transcoder|temporal|abstopk|crosscoder")
_RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_(resid_post|resid_pre|out)")


@dataclass(frozen=True)
class ExternalSae:
    """An SAE from elsewhere, with what a table says about it.

    label: name of the folder, or the SAE's id in its release; made longer where two are alike.
    identity: JSON values: a checksum of the weights and the configuration.
    architecture: the family that was trained, as far as the configuration tells.
    scale: factor on the model's activations that the SAE expects.
    """

    name: str
    label: str
    identity: dict[str, Any]
    architecture: str
    d_sae: int
    scale: float
    sae: SAE[Any]

    def load(self, device: str = "cpu") -> SAE[Any]:
        """The SAE in float32, for inference."""
        return self.sae.to(device=device).eval()


def check(name: str, model: str, layer: int) -> None:
    """ValueError, in a sentence, if the SAE called ``name`` cannot be measured on this residual.

    name: a folder with cfg.json and sae_weights.safetensors, or "release:sae_id"; of the latter
        only the form is checked here. Light: no tensor is read.
    """
    if is_folder(name):
        check_config(name, _read_config(Path(name).expanduser()), model, layer)
    elif not all(name.partition(":")):
        raise ValueError(
            f"saes: {name!r} is neither an existing folder nor 'release:sae_id'; give a folder that "
            "SAELens saved (cfg.json and sae_weights.safetensors), or a release and an id of "
            "SAELens's table of pretrained SAEs."
        )


def is_folder(name: str) -> bool:
    """Whether ``name`` is a folder on this machine, rather than a release on the hub."""
    return Path(name).expanduser().is_dir()


def check_config(name: str, config: dict[str, Any], model: str, layer: int) -> None:
    """ValueError if an SAE of this configuration does not read the residual after ``layer``.

    config: SAELens's, as in cfg.json. What a configuration does not say cannot be checked.
    """
    metadata = config.get("metadata") or {}
    noted = {**config, **metadata}
    kind = str(config.get("architecture", "standard"))
    if _OTHER_KINDS.search(kind):
        raise ValueError(
            f"saes: {name!r} is of kind {kind!r}, which does not code an activation by "
            "non-negative latents of one dictionary; give an SAE."
        )
    _check_model(name, noted.get("model_name"), model)
    _check_hook(name, noted, layer)
    width = models.describe(model).d_model
    if config.get("d_in") != width:
        raise ValueError(
            f"saes: {name!r} reads activations of width {config.get('d_in')}, but {model} has a "
            f"residual stream of width {width}; set model to the one that the SAE was trained on."
        )


def load(names: Sequence[str], model: str, layer: int, device: str = "cpu") -> list[ExternalSae]:
    """The SAEs of these names, checked; folders from disk, the others from the hub or its cache.

    ValueError for an SAE that cannot be had or cannot be measured: see `check`, and
    `inference.dictionary` for SAEs that normalize their input at run time.
    """
    found = []
    for name, label in zip(names, labels(names), strict=True):
        check(name, model, layer)
        sae = _from_folder(name, device) if is_folder(name) else _from_hub(name, device)
        check_config(name, sae.cfg.to_dict(), model, layer)
        found.append(_described(name, label, sae))
    return found


def labels(names: Sequence[str]) -> list[str]:
    """A short label for each SAE: its last part, or as many parts as tell it from the others."""
    parts = [_parts(name) for name in names]
    chosen = []
    for own in parts:
        # an SAE named twice stays alike however long the label is
        others = [other for other in parts if other != own]
        size = 1
        while size < len(own) and any(other[-size:] == own[-size:] for other in others):
            size += 1
        chosen.append("/".join(own[-size:]))
    return chosen


def _parts(name: str) -> list[str]:
    if is_folder(name):
        return list(Path(name).expanduser().resolve().parts)
    release, _, sae_id = name.partition(":")
    return [release, sae_id]


def _read_config(folder: Path) -> dict[str, Any]:
    missing = [file for file in (_CONFIG, _WEIGHTS) if not (folder / file).is_file()]
    if missing:
        raise ValueError(
            f"saes: folder {str(folder)!r} has no {' and no '.join(missing)}; give the folder that "
            "sae.save_inference_model wrote (or a checkpoint folder of SAELens's trainer)."
        )
    try:
        config: dict[str, Any] = json.loads((folder / _CONFIG).read_text("utf-8"))
        config["d_in"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"saes: {str(folder / _CONFIG)!r} is no configuration of SAELens "
            f"({type(error).__name__}: {error}); save the SAE again with save_inference_model."
        ) from None
    return config


def _check_model(name: str, trained_on: Any, model: str) -> None:
    # a local folder may be called anything, so its name says nothing against the SAE
    if not trained_on or is_folder(model):
        return
    theirs, ours = (
        str(each).rstrip("/").rpartition("/")[2].lower() for each in (trained_on, model)
    )
    if theirs != ours:
        raise ValueError(
            f"saes: {name!r} was trained on {trained_on!r}, but model is {model!r}; set model to "
            f"{trained_on!r}, or to a local folder that holds it."
        )


def _check_hook(name: str, noted: dict[str, Any], layer: int) -> None:
    hook, theirs = noted.get("hook_name"), noted.get("hook_layer")
    if hook:
        match = _RESIDUAL.fullmatch(str(hook))
        if match is None:
            raise ValueError(
                f"saes: {name!r} reads {hook!r}, but only the residual stream between blocks is "
                "measured here (blocks.<layer>.hook_resid_post, hook_resid_pre or hook_out)."
            )
        # before block L is after block L - 1
        theirs = int(match[1]) - (match[2] == "resid_pre")
    if theirs is not None and int(theirs) != layer:
        raise ValueError(
            f"saes: {name!r} reads the residual stream after block {theirs}, but layer is {layer}; "
            f"set layer to {theirs}."
        )


def _from_folder(name: str, device: str) -> SAE[Any]:
    from sae_lens import SAE

    from loca_sae import architecture as _registers_loca  # noqa: F401

    folder = Path(name).expanduser()
    try:
        return SAE.load_from_disk(folder, device=device, dtype="float32")
    except Exception as error:  # a damaged file fails in many ways; the reader gets one sentence
        raise ValueError(
            f"saes: {name!r} cannot be loaded by SAELens ({_first_line(error)}); save the SAE "
            "again with save_inference_model."
        ) from error


def _from_hub(name: str, device: str) -> SAE[Any]:
    from sae_lens import SAE

    release, _, sae_id = name.partition(":")
    try:
        return SAE.from_pretrained(release, sae_id, device=device, dtype="float32")
    except Exception as error:  # whatever SAELens or the network stack raises
        raise ValueError(
            f"saes: {name!r} cannot be had from the hub ({_first_line(error)}). Without a network, "
            "fetch the SAE elsewhere, save it with save_inference_model and give that folder."
        ) from error


def _described(name: str, label: str, sae: SAE[Any]) -> ExternalSae:
    from loca_sae import inference

    try:
        inference.dictionary(sae)
    except ValueError as error:
        raise ValueError(f"saes: {name!r}: {error}") from None
    return ExternalSae(
        name=name,
        label=label,
        identity={"external": _checksum(sae)},
        architecture=inference.family(sae),
        d_sae=int(sae.cfg.d_sae),
        scale=float(getattr(sae.cfg.metadata, "activation_scale", None) or 1.0),
        sae=sae,
    )


def _checksum(sae: SAE[Any]) -> str:
    """sha256 over the configuration and the weights, wherever they came from."""
    config = {**sae.cfg.to_dict(), "device": None}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for key, weight in sorted(sae.state_dict().items()):
        digest.update(key.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")
