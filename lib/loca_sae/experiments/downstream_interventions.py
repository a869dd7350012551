"""Notebook 05: do codes inferred better make interventions more selective?

Two readings. Targeted probe perturbation (TPP) ablates the latents of one class and asks whether
only that class's probe suffers. The splice runs the language model with its residual replaced by
each mode's reconstruction, through a TransformerLens hook, and asks what the next token loses.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from loca_sae import corpus, interventions, models, probing, store
from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.compared import trained_saes
from loca_sae.experiments.data import Concept, Data
from loca_sae.experiments.measures import calibration_sample, pooled, provenance
from loca_sae.inference import MODES, Inference, Mode, prepare
from loca_sae.parameters import DownstreamInterventions
from loca_sae.tpp import fit_probes, tpp
from loca_sae.training import Trained

_COMPARED = ("standard", "topk", "loca")
_SPLICE_BATCH = 4
_Key = tuple[int, Mode]  # which SAE, which mode


def run(p: DownstreamInterventions) -> pd.DataFrame:
    """TPP: one row an SAE, mode, labelled set, class and number N of ablated latents."""
    data = experiment_data.load(p)
    frames = []
    for trained in trained_saes(p, data, _COMPARED):
        for mode in MODES:
            frame = _tpp_cached(trained, mode, data, p)
            frames.append(frame.assign(**provenance(trained, data, p), mode=mode))
    return pd.concat(frames, ignore_index=True)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """`run`, averaged over classes: one row an SAE, mode, labelled set and N."""
    keys = ["protocol", "model", "layer", "architecture", "sparsity", "d_sae", "train_tokens"]
    keys += ["eval_tokens", "seed", "mode", "concept", "n"]
    return table.groupby(keys, sort=False, as_index=False).mean(numeric_only=True)


def splice(p: DownstreamInterventions) -> pd.DataFrame:
    """One row an SAE and mode: cross-entropy added and KL to the clean model, under the splice.

    Every column is a mean over the same held-out contexts, in nats a token: clean_cross_entropy,
    spliced_cross_entropy, added_cross_entropy (their difference), kl (clean to spliced).
    """
    data = experiment_data.load(p)
    saes = trained_saes(p, data, _COMPARED)
    key = {
        "saes": [trained.path.name for trained in saes],
        "heldout": data.heldout.name,
        "calibration_tokens": p.calibration_tokens,
        "contexts": p.splice_contexts,
        "seed": p.seed,
    }

    def build(folder: Path) -> None:
        infers = {
            (i, mode): _prepared(trained, mode, data, p)
            for i, trained in enumerate(saes)
            for mode in MODES
        }
        rows = [
            {**provenance(saes[i], data, p), "mode": mode, **values}
            for (i, mode), values in _spliced(infers, data, p).items()
        ]
        pd.DataFrame(rows).to_parquet(folder / "splice.parquet", index=False)

    artifact = store.artifact("splice", key, build, modules=[__name__], name=Path(p.model).name)
    return pd.read_parquet(artifact.path / "splice.parquet")


def probe_accuracy(p: DownstreamInterventions) -> pd.DataFrame:
    """Accuracy of a linear probe on the raw activations, by set and class: where TPP starts."""
    data = experiment_data.load(p)
    rows = []
    for concept in data.concepts:
        x_train, x_test = (pooled_activations(split) for split in (concept.train, concept.test))
        for name, probe in fit_probes(x_train, concept.train.labels).items():
            y_test = [int(label == name) for label in concept.test.labels]
            rows.append((concept.name, name, probing.accuracy(probe, x_test, y_test)))
    return pd.DataFrame(rows, columns=["concept", "class", "accuracy"])


def pooled_activations(split: experiment_data.ConceptSplit) -> torch.Tensor:
    """Mean activation [n_texts, d_in] of each text."""
    return probing.pool(split.x, split.text, len(split.labels))


def _key(trained: Trained, mode: str, data: Data, p: DownstreamInterventions) -> dict[str, Any]:
    return {
        "sae": trained.path.name,
        "mode": mode,
        "heldout": data.heldout.name,
        "calibration_tokens": p.calibration_tokens,
        "seed": p.seed,
    }


def _prepared(trained: Trained, mode: Mode, data: Data, p: DownstreamInterventions) -> Inference:
    return prepare(trained.load(device=p.device), calibration_sample(data, p), mode)


def _tpp_cached(
    trained: Trained, mode: Mode, data: Data, p: DownstreamInterventions
) -> pd.DataFrame:
    key = {
        **_key(trained, mode, data, p),
        "concepts": [p.concepts, p.labels, p.texts, p.tokens_per_text],
        "ablations": sorted(p.ablations),
    }

    def build(folder: Path) -> None:
        infer = _prepared(trained, mode, data, p)
        frames = [_tpp(infer, concept, p) for concept in data.concepts]
        pd.concat(frames, ignore_index=True).to_parquet(folder / "tpp.parquet", index=False)

    name = f"{trained.recipe.architecture}-{mode}"
    artifact = store.artifact("tpp", key, build, modules=[__name__], name=name)
    return pd.read_parquet(artifact.path / "tpp.parquet")


def _tpp(infer: Inference, concept: Concept, p: DownstreamInterventions) -> pd.DataFrame:
    x_train, x_test = (pooled_activations(split) for split in (concept.train, concept.test))
    z_train, z_test = (pooled(infer, split, p.device) for split in (concept.train, concept.test))
    atoms = infer.dictionary.W_dec.cpu()
    table = tpp(
        x_train,
        z_train,
        concept.train.labels,
        x_test,
        z_test,
        concept.test.labels,
        atoms,
        n_values=[n for n in sorted(p.ablations) if n <= len(atoms)],
        # latents without an effect would be taken by index, and LocA sorts its latents by AVar
        positive_only=True,
    )
    return table.assign(concept=concept.name)


def _spliced(
    infers: dict[_Key, Inference], data: Data, p: DownstreamInterventions
) -> dict[_Key, dict[str, float]]:
    """Run every splice beside one clean pass a batch. Position 0 keeps its own activation, and
    the prediction made there does not count."""
    model = models.load(p.model, device=p.device)
    tokens = _heldout_tokens(p)
    totals = {key: torch.zeros(3, dtype=torch.float64) for key in infers}
    for batch in tokens.to(p.device).split(_SPLICE_BATCH):
        with torch.no_grad():
            clean = model(batch, return_type="logits")
        before = _loss(clean, batch)
        for key, infer in infers.items():
            edit = interventions.splice(infer.round_trip)
            spliced = interventions.run_with_edit(
                model, batch, p.layer, edit, scale=data.train.scale
            )
            kl = interventions.next_token_kl(clean, spliced)
            row = torch.tensor([before, _loss(spliced, batch), kl], dtype=torch.float64)
            totals[key] += len(batch) * row
    return {key: _means(total / len(tokens)) for key, total in totals.items()}


def _heldout_tokens(p: DownstreamInterventions) -> torch.Tensor:
    """The first ``splice_contexts`` contexts [n, context] of the held-out split."""
    return corpus.contexts(
        models.tokenizer(p.model),
        p.corpus,
        "eval",
        p.splice_contexts * p.context,
        p.context,
        p.seed,
    ).tokens


def _loss(logits: torch.Tensor, tokens: torch.Tensor) -> float:
    return float(interventions.cross_entropy(logits, tokens)[:, 1:].double().mean())


def _means(values: torch.Tensor) -> dict[str, float]:
    before, after, kl = values.tolist()
    return {
        "clean_cross_entropy": before,
        "spliced_cross_entropy": after,
        "added_cross_entropy": after - before,
        "kl": kl,
    }
