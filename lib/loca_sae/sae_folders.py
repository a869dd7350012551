"""What a saved SAE's own configuration says, checked without loading any weights.

Light: a wrong folder among a notebook's parameters is found in its first cells.
"""

import json
import re
from pathlib import Path
from typing import Any

CONFIG = "cfg.json"
# SAELens's other kinds, which do not code the activation they read by one dictionary
_OTHER_KINDS = re.compile("transcoder|temporal|abstopk|crosscoder")
_RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_(resid_post|resid_pre|out)")
# the only values of normalize_activations under which a decoder is one dictionary
ONE_DICTIONARY = ("none", "expected_average_only_in")


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


def check_config(spec: str, config: dict[str, Any], model: str, d_in: int, layer: int) -> None:
    """SaeMismatch unless the SAE fits the residual stream of ``model`` after block ``layer``.

    d_in: width of that residual stream. What a configuration does not say cannot be checked.
    """
    noted = {**config, **(config.get("metadata") or {})}
    kind = str(config.get("architecture", "standard"))
    if _OTHER_KINDS.search(kind):
        raise SaeMismatch(
            f"saes: {spec!r} is of kind {kind!r}, which does not code an activation by latents of "
            "one dictionary; give an SAE."
        )
    _check_model(spec, noted.get("model_name"), model)
    if int(config["d_in"]) != d_in:
        raise SaeMismatch(
            f"saes: {spec!r} was trained on activations of width {config['d_in']}, but those of "
            f"{model} are {d_in} wide; set model to the one it was trained on."
        )
    _check_hook(spec, noted, layer)
    normalization = config.get("normalize_activations", "none")
    if normalization not in ONE_DICTIONARY:
        raise SaeMismatch(
            f"saes: {spec!r} normalizes its input at run time "
            f"(normalize_activations={normalization!r}), so its decoder is not one dictionary; "
            "fold the normalization first."
        )


def _check_model(spec: str, trained_on: Any, model: str) -> None:
    # a local folder may be called anything, so its name says nothing against the SAE
    if not trained_on or is_folder(model):
        return
    names = [str(each).rstrip("/").rpartition("/")[2].lower() for each in (trained_on, model)]
    if names[0] != names[1]:
        raise SaeMismatch(
            f"saes: {spec!r} was trained on {trained_on!r}, but model is {model!r}; set model to "
            f"{trained_on!r}, or to a local folder that holds it."
        )


def _check_hook(spec: str, noted: dict[str, Any], layer: int) -> None:
    hook, trained_after = noted.get("hook_name"), noted.get("hook_layer")
    if hook:
        match = _RESIDUAL.fullmatch(str(hook))
        if match is None:
            raise SaeMismatch(
                f"saes: {spec!r} reads {hook!r}, but only the residual stream between blocks is "
                "measured here (blocks.<layer>.hook_resid_post, hook_resid_pre or hook_out)."
            )
        # before block L is after block L - 1
        trained_after = int(match[1]) - (match[2] == "resid_pre")
    if trained_after is not None and int(trained_after) != layer:
        raise SaeMismatch(
            f"saes: {spec!r} was trained after block {trained_after}, but layer is {layer}; set "
            f"layer to {trained_after}."
        )
