"""SAEs that the companion did not train: a folder in SAELens's format, or a release on the hub.

They are measured in their own units. An SAE of the companion carries in its metadata the factor
(``activation_scale``) by which activations were multiplied; any other one is taken to expect the
model's own activations, which is what SAELens's released SAEs do once their normalization is
folded into the weights.

What an SAE's configuration says is checked before anything is computed: `sae_folders` for folders
already among a notebook's parameters, and here again for every SAE, whose weights are then read.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sae_lens import SAE

from loca_sae import architecture as _registers_loca  # noqa: F401
from loca_sae import sae_folders
from loca_sae.inference import dictionary, family
from loca_sae.sae_folders import SaeMismatch


@dataclass(frozen=True)
class ExternalSae:
    """An SAE from elsewhere, with what a table says about it.

    spec: the folder or "release:id" it was asked for by.
    label: name of the folder, or the SAE's id in its release.
    identity: JSON values: a checksum over configuration and weights.
    architecture: the family that was trained, as far as the configuration tells.
    scale: factor on the model's activations that the SAE expects.
    """

    spec: str
    label: str
    identity: dict[str, Any]
    architecture: str
    d_sae: int
    scale: float
    sae: SAE[Any]

    def load(self, device: str = "cpu") -> SAE[Any]:
        """The SAE in float32, for inference."""
        return self.sae.to(device=device).eval()


def open_sae(spec: str, model: str, d_in: int, layer: int) -> ExternalSae:
    """The SAE of a folder, or of "release:id" from the hub or its local cache.

    SaeMismatch (a ValueError) for an SAE that cannot be had, that does not read the residual
    stream of ``model``, of width d_in, after block ``layer``, or whose decoder is not one
    dictionary of non-negative codes.
    """
    if sae_folders.is_folder(spec):
        sae_folders.check_config(spec, sae_folders.read_config(spec), model, d_in, layer)
        sae = _from_folder(spec)
        label = Path(spec).resolve().name
    else:
        sae = _from_hub(spec)
        label = spec.partition(":")[2]
    sae_folders.check_config(spec, sae.cfg.to_dict(), model, d_in, layer)
    try:
        dictionary(sae)
    except ValueError as error:
        raise SaeMismatch(f"saes: {spec!r}: {error}") from None
    scale = sae.cfg.metadata.activation_scale
    return ExternalSae(
        spec=spec,
        label=label,
        identity={"external": _checksum(sae)},
        architecture=family(sae),
        d_sae=int(sae.cfg.d_sae),
        scale=1.0 if scale is None else float(scale),
        sae=sae,
    )


def _from_folder(spec: str) -> SAE[Any]:
    try:
        return SAE.load_from_disk(spec, dtype="float32")
    except Exception as error:  # a damaged file fails in many ways; the reader gets one sentence
        raise SaeMismatch(
            f"saes: {spec!r} cannot be loaded by SAELens ({_first_line(error)}); save the SAE "
            "again with save_inference_model."
        ) from error


def _from_hub(spec: str) -> SAE[Any]:
    release, _, sae_id = spec.partition(":")
    try:
        return SAE.from_pretrained(release, sae_id, dtype="float32")
    except Exception as error:  # whatever SAELens or the network stack raises
        raise SaeMismatch(
            f"saes: {spec!r} cannot be had from the hub ({_first_line(error)}). Without a network, "
            "fetch the SAE elsewhere, save it with save_inference_model and give that folder."
        ) from error


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
