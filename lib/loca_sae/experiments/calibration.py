"""Lambdas, and the certified optimum of an SAE: found once, whatever is measured with them.

A lambda depends on the SAE, on how codes are inferred and on the calibration sample, but not on
labels or probes. So a walk through protocols, or the same codes with refitted values, finds it in
the store.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sae_lens import SAE

from loca_sae import store
from loca_sae.inference import Inference, Settings, dictionary, prepare
from loca_sae.protocols import NATIVE, Protocol


@dataclass(frozen=True)
class Bench:
    """An SAE with the activations on which its lambdas are calibrated.

    identity: JSON values that tell this SAE and this sample from any other.
    sample: [n, d_in], in the SAE's own units.
    """

    sae: SAE[Any]
    identity: dict[str, Any]
    sample: torch.Tensor


class Optimum(NamedTuple):
    """The certified optimum at the lambda where its mean L0 is that of the encoder.

    lam: that lambda. objective: mean of 1/2 ||x - z W_dec||^2 + lam sum(z) over the sample.
    matched: whether the two mean L0 agree within 1 %.
    """

    lam: float
    objective: float
    matched: bool


def calibrated(bench: Bench, chosen: Settings) -> Inference:
    """A mode ready to encode, its lambda from the store or found by `inference.prepare`."""
    chosen = replace(chosen, protocol=coding(chosen.protocol), refit=False)
    if not chosen.needs_lam:
        return _prepared(bench, chosen)
    key = {**bench.identity, "settings": asdict(chosen)}

    def build(folder: Path) -> None:
        found = _prepared(bench, chosen)
        fields = {name: getattr(found, name) for name in ("lam", "target_l0", "l0", "matched")}
        (folder / "lambda.json").write_text(json.dumps(fields))

    artifact = store.artifact("lambda", key, build, modules=[__name__], name=_name(chosen))
    fields = json.loads((artifact.path / "lambda.json").read_text())
    return Inference(bench.sae, dictionary(bench.sae, chosen.protocol), chosen, **fields)


def optimum(bench: Bench, protocol: Protocol) -> Optimum | None:
    """The optimum that amortization gaps are taken to; None if the encoder fires nowhere.

    Whatever a protocol aims its own lambda at, here the mean L0 is matched, by bisection.
    """
    reading = replace(coding(protocol), lam_target="l0", lam_search="bisection")
    key = {**bench.identity, "protocol": asdict(reading)}

    def build(folder: Path) -> None:
        (folder / "optimum.json").write_text(json.dumps(_optimum(bench, reading)))

    artifact = store.artifact("optimum", key, build, modules=[__name__], name="optimum")
    found = json.loads((artifact.path / "optimum.json").read_text())
    return None if found is None else Optimum(*found)


def coding(protocol: Protocol) -> Protocol:
    """A protocol with every choice that does not change codes set to native, and without a name.

    The positions and the layer show in the sample itself.
    """
    neutral = ("labels", "probe_split", "main_latent", "positions", "layer_offset")
    return replace(protocol, name="", **{field: getattr(NATIVE, field) for field in neutral})


def _optimum(bench: Bench, reading: Protocol) -> Optimum | None:
    encoder = prepare(bench.sae, bench.sample, "full", reading)
    if encoder.l0 == 0:
        return None
    infer = calibrated(bench, Settings("non", reading, 0, "exact", False))
    objective = infer.objective(bench.sample, infer(bench.sample))
    return Optimum(infer.lam, float(objective.mean()), infer.matched)


def _prepared(bench: Bench, chosen: Settings) -> Inference:
    return prepare(
        bench.sae,
        bench.sample,
        chosen.mode,
        chosen.protocol,
        steps=chosen.steps,
        solver=chosen.solver,
    )


def _name(chosen: Settings) -> str:
    return f"{chosen.mode}-{chosen.solver}-{chosen.steps}"
