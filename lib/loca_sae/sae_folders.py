"""What a saved SAE's own configuration says, checked without loading any weights.

Light: a wrong folder among a notebook's parameters is found in its first cells.
"""

import json
import re
from pathlib import Path
from typing import Any

CONFIG = "cfg.json"
RUN_TIME = ("layer_norm", "constant_norm_rescale", "constant_scalar_rescale")


class SaeMismatch(ValueError):
    """An SAE cannot be found, cannot be read, or does not fit the model and layer."""


def is_folder(spec: str) -> bool:
    """Whether this names a folder; "release:id" otherwise."""
    return Path(spec).is_dir()


def read_config(spec: str) -> dict[str, Any]:
    """The configuration of a saved SAE; SaeMismatch when there is none to read."""
    path = Path(spec) / CONFIG
    if not path.is_file():
        raise SaeMismatch(
            f"saes: {spec!r} holds no {CONFIG}; give a folder that SAELens saved an SAE into."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SaeMismatch(f"saes: {CONFIG} in {spec!r} is not valid JSON ({error}).") from None
    if not isinstance(config, dict) or "d_in" not in config:
        raise SaeMismatch(f"saes: {CONFIG} in {spec!r} names no d_in, so it is no SAE's.")
    return config


def check_config(spec: str, config: dict[str, Any], d_in: int, layer: int) -> None:
    """SaeMismatch unless the SAE fits a residual stream of width d_in after block ``layer``."""
    if int(config["d_in"]) != d_in:
        raise SaeMismatch(
            f"saes: {spec!r} was trained on activations of width {config['d_in']}, but the model's "
            f"are {d_in} wide; set model to the one it was trained on."
        )
    trained_on = hook_layer(config)
    if trained_on is not None and trained_on != layer:
        raise SaeMismatch(
            f"saes: {spec!r} was trained after block {trained_on}, but layer is {layer}; set "
            f"layer to {trained_on}."
        )
    normalization = config.get("normalize_activations", "none")
    if normalization in RUN_TIME:
        raise SaeMismatch(
            f"saes: {spec!r} normalizes its input at run time "
            f"(normalize_activations={normalization!r}), so its decoder is not one dictionary; "
            "fold the normalization first."
        )


def hook_layer(config: dict[str, Any]) -> int | None:
    """The block after which the SAE reads, from its metadata; None where they do not say."""
    metadata = config.get("metadata") or {}
    for source in (metadata, config):
        name = str(source.get("hook_name") or "")
        found = re.fullmatch(r"blocks\.(\d+)\.(hook_resid_(?:post|pre)|hook_out)", name)
        if found:
            return int(found[1]) - (found[2] == "hook_resid_pre")
        if isinstance(source.get("hook_layer"), int):
            return int(source["hook_layer"])
    return None
