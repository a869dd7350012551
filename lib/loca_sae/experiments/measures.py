"""One SAE in one mode, through every measure: a row of a table, cached in the store."""

import json
from pathlib import Path
from typing import Any

import torch

from loca_sae import metrics, probing, sparse_coding, store
from loca_sae.experiments.data import Concept, ConceptSplit, Data
from loca_sae.inference import Inference, Mode, Solver, prepare
from loca_sae.parameters import Parameters
from loca_sae.training import Trained

PROTOCOL = "native"
_CHUNK = 2048


def measure(
    trained: Trained,
    data: Data,
    p: Parameters,
    mode: Mode,
    *,
    step: int | None = None,
    steps: int | None = None,
    solver: Solver = "ista",
    gap: bool = True,
) -> dict[str, Any]:
    """Every measure of one SAE (at optimizer step ``step``) in one mode.

    steps: ISTA steps of semi and non (None: the mode's default).
    gap: also take the amortization gap against the certified optimum, at the lambda at which the
        optimum has the mean L0 of full mode.
    Returns a flat dict; every row carries what identifies it (see ``provenance``).
    """
    step = trained.recipe.steps if step is None else step
    key = {
        "sae": trained.path.name,
        "step": step,
        "mode": mode,
        "steps": steps,
        "solver": solver,
        "gap": gap,
        "heldout": data.heldout.name,
        "concepts": _concept_key(p),
        "calibration_tokens": p.calibration_tokens,
    }

    def build(folder: Path) -> None:
        sae = trained.load(step, device=p.device)
        row = _measure(sae, data, p, mode, steps, solver, gap)
        (folder / "row.json").write_text(json.dumps(row))

    artifact = store.artifact(
        "measures", key, build, modules=[__name__], name=f"{trained.recipe.architecture}-{mode}"
    )
    row = json.loads((artifact.path / "row.json").read_text())
    return {**provenance(trained, data, p), "step": step, "mode": mode, "solver": solver, **row}


def provenance(trained: Trained, data: Data, p: Parameters) -> dict[str, Any]:
    """What a reader needs to know about a row before believing it."""
    recipe = trained.recipe
    return {
        "protocol": PROTOCOL,
        "model": p.model,
        "layer": p.layer,
        "architecture": recipe.architecture,
        "sparsity": recipe.sparsity,
        "d_sae": recipe.d_sae,
        "train_tokens": data.train.n,
        "eval_tokens": data.heldout.n,
        "seed": recipe.seed,
    }


def calibration_sample(data: Data, p: Parameters) -> torch.Tensor:
    """The held-out activations on which lambda is calibrated."""
    return data.heldout.sample(min(p.calibration_tokens, data.heldout.n), p.seed).to(p.device)


def _concept_key(p: Parameters) -> list[Any]:
    return [p.concepts, p.labels, p.texts, p.tokens_per_text, p.seed]


def _measure(
    sae: Any,
    data: Data,
    p: Parameters,
    mode: Mode,
    steps: int | None,
    solver: Solver,
    gap: bool,
) -> dict[str, Any]:
    sample = calibration_sample(data, p)
    infer = prepare(sae, sample, mode, steps=steps, solver=solver)
    row: dict[str, Any] = {
        "ista_steps": infer.steps if solver == "ista" and mode != "full" else None,
        "lam": infer.lam if mode != "full" else None,
        "target_l0": infer.target_l0,
        "l0_matched": infer.matched,
    }
    row |= reconstruction(infer, data, p)
    codes = infer(sample)
    if mode != "full":
        row["duality_gap"] = relative_duality_gap(infer, sample, codes)
    if gap:
        row |= amortization(infer, sample, codes)
    row |= concept_measures(infer, data.concepts, p.device)
    return row


@torch.no_grad()
def reconstruction(infer: Inference, data: Data, p: Parameters) -> dict[str, float]:
    """NMSE, FVU, L0 and firing rates on all held-out tokens, in bounded memory."""
    error = metrics.Reconstruction()
    firing = metrics.Firing()
    for x in data.heldout.iterate(_CHUNK):
        x = x.to(p.device)
        codes = infer(x)
        error.update(x, infer.reconstruct(codes))
        firing.update(codes)
    rate = firing.rate()
    return {
        "nmse": error.nmse(),
        "fvu": error.fvu(),
        "l0": firing.l0(),
        "dead": metrics.dead_rate(rate),
        "dense_0.1": metrics.dense_rate(rate, 0.1),
        "dense_0.2": metrics.dense_rate(rate, 0.2),
    }


def relative_duality_gap(infer: Inference, x: torch.Tensor, codes: torch.Tensor) -> float:
    """How far this mode's codes can be from the optimum: mean gap / mean objective, in [0, 1]."""
    atoms, target = infer.dictionary.W_dec, x - infer.dictionary.b_dec
    gap = sparse_coding.duality_gap(target, codes, atoms, infer.lam).mean()
    return float(gap / sparse_coding.objective(target, codes, atoms, infer.lam).mean())


def amortization(infer: Inference, x: torch.Tensor, codes: torch.Tensor) -> dict[str, Any]:
    """The paper's gap L(x, z) - L(x, z_o), mean over x, with the certified optimum as z_o.

    L needs one lambda for both: the one at which the *optimum* has the mean L0 of full mode, the
    same for every mode of an SAE. ``gap_relative`` divides by the optimum's objective.
    """
    if infer.target_l0 == 0:  # an encoder that fires nowhere has no density to match
        return {"gap": None, "gap_relative": None, "gap_lam": None, "gap_l0_matched": False}
    optimum = prepare(infer.sae, x, "non", solver="exact", target_l0=infer.target_l0)
    target = x - infer.dictionary.b_dec
    gap = metrics.amortization_gap(target, codes, optimum(x), infer.dictionary.W_dec, optimum.lam)
    return {
        "gap": gap.absolute,
        "gap_relative": gap.relative,
        "gap_lam": optimum.lam,
        "gap_l0_matched": optimum.matched,
    }


def concept_measures(infer: Inference, concepts: list[Concept], device: str) -> dict[str, float]:
    """dF1 and the absorption proxy, each a mean over all labels of all sets, one against the rest.

    Codes are averaged over the tokens of a text; probes are fitted on the training texts and
    scored on the test texts, which share no group with them.
    """
    rows = []
    for concept in concepts:
        train, test = (pooled(infer, split, device) for split in (concept.train, concept.test))
        for label, y_train in probing.one_vs_rest(concept.train.labels).items():
            y_test = [int(other == label) for other in concept.test.labels]
            split_f1 = probing.delta_f1(train, y_train, test, y_test)
            absorbed = probing.absorption_proxy(train, y_train, test, y_test)
            rows.append((split_f1.f1_1, split_f1.delta, absorbed.rate))
    f1, delta, absorption = torch.tensor(rows, dtype=torch.float64).nanmean(0).tolist()
    return {"f1_1": f1, "delta_f1": delta, "absorption": absorption, "labels": len(rows)}


def pooled(infer: Inference, split: ConceptSplit, device: str) -> torch.Tensor:
    """Mean codes [n_texts, d_sae] of the texts of a split."""
    return probing.pool(infer(split.x.to(device)).cpu(), split.text, len(split.labels))
