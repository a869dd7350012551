"""A row of a table: one SAE, one kind of inference, one protocol; computed once, then in the store.

Two rows whose protocols differ only in a choice that cannot matter there (a threshold for an SAE
that has none, say) share one computation (`Protocol.effective`).
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from loca_sae import store
from loca_sae.experiments.calibration import Bench
from loca_sae.experiments.data import ConceptSplit, Data
from loca_sae.experiments.evaluation import EvaluationData, evaluation
from loca_sae.experiments.rows import Row, pooled_variants, rows
from loca_sae.experiments.subjects import Subject, subject
from loca_sae.external_saes import ExternalSae
from loca_sae.inference import Inference, Mode, Settings, Solver
from loca_sae.inference.settings import settings
from loca_sae.parameters import Parameters
from loca_sae.protocols import Protocol
from loca_sae.protocols import protocol as named
from loca_sae.training import Trained


def measure(
    trained: Trained | ExternalSae,
    data: Data,
    p: Parameters,
    mode: Mode,
    protocol: str | Protocol = "native",
    *,
    step: int | None = None,
    steps: int | None = None,
    solver: Solver = "ista",
    refit: bool = False,
    gap: bool = True,
    tokens: int | None = None,
) -> Row:
    """Every measure of one SAE (at optimizer step ``step``) in one mode under one protocol.

    steps: ISTA steps of semi and non (None: the mode's default).
    refit: replace the values by non-negative least squares on the support that the mode chose.
    gap: also take the amortization gap against the certified optimum, at the lambda at which the
        optimum has the mean L0 of full mode.
    tokens: measure on the first so many held-out tokens; None takes all.
    Returns a flat dict; every row carries what identifies it (see `provenance`). A value that does
    not exist (the lambda of the encoder, say) is None.
    """
    chosen = settings(mode, protocol, steps, solver, refit)
    found = _Measurement.of(trained, data, p, chosen, step=step, gap=gap, tokens=tokens)
    return found.rows(pair=refit)[int(refit)]


def measure_pair(
    trained: Trained | ExternalSae,
    data: Data,
    p: Parameters,
    mode: Mode,
    protocol: str | Protocol = "native",
    *,
    step: int | None = None,
    steps: int | None = None,
    solver: Solver = "ista",
    gap: bool = True,
    tokens: int | None = None,
) -> tuple[Row, Row]:
    """(row, row with refitted values): `measure` twice, for the price of inferring codes once."""
    chosen = settings(mode, protocol, steps, solver, False)
    found = _Measurement.of(trained, data, p, chosen, step=step, gap=gap, tokens=tokens)
    plain, refitted = found.rows(pair=True)
    return plain, refitted


@dataclass(frozen=True)
class _Measurement:
    """What decides a row: the SAE, the data, how codes are inferred, and on how much."""

    subject: Subject
    evaluated: EvaluationData
    chosen: Settings
    head: dict[str, Any]
    calibration: tuple[int, int]  # tokens and seed of the calibration sample
    device: str
    gap: bool
    tokens: int | None

    @classmethod
    def of(
        cls,
        trained: Trained | ExternalSae,
        data: Data,
        p: Parameters,
        chosen: Settings,
        *,
        step: int | None,
        gap: bool,
        tokens: int | None,
    ) -> "_Measurement":
        sae = subject(trained, step)
        effective = chosen.protocol.effective(sae.architecture, chosen.mode)
        evaluated = evaluation(data, p, chosen.protocol, tokens)
        if sae.scale is not None:
            evaluated = evaluated.in_units(sae.scale)
        head = _head(sae, data, p, chosen.protocol, evaluated, tokens)
        n = min(p.calibration_tokens, evaluated.tokens.n)
        chosen = replace(chosen, protocol=effective, refit=False)
        return cls(sae, evaluated, chosen, head, (n, p.seed), p.device, gap, tokens)

    def rows(self, *, pair: bool) -> list[Row]:
        """The row, and the refitted one if ``pair``; from the store or computed."""
        key = {
            **self._identity(),
            "settings": asdict(self.chosen),
            "data": self.evaluated.key,
            "gap": self.gap,
            "tokens": self.tokens,
            "pair": pair,
        }

        def build(folder: Path) -> None:
            found = rows(
                self._bench(),
                self.evaluated,
                self.chosen,
                pair=pair,
                gap=self.gap,
                tokens=self.tokens,
            )
            (folder / "rows.json").write_text(json.dumps(found))

        name = f"{self.subject.label}-{self.chosen.mode}"
        artifact = store.artifact("measures", key, build, modules=[__name__], name=name)
        measured = json.loads((artifact.path / "rows.json").read_text())
        how = {"step": self.subject.step, "mode": self.chosen.mode, "solver": self.chosen.solver}
        return [{**self.head, **how, **row} for row in measured]

    def _bench(self) -> Bench:
        n, seed = self.calibration
        sample = self.evaluated.tokens.sample(n, seed).to(self.device)
        return Bench(self.subject.load(self.device), self._identity(), sample)

    def _identity(self) -> dict[str, Any]:
        return {
            **self.subject.identity,
            "sample": [self.evaluated.tokens.name, *self.calibration],
            "device": torch.device(self.device).type,
        }


def provenance(
    trained: Trained | ExternalSae, data: Data, p: Parameters, protocol: str | Protocol = "native"
) -> dict[str, Any]:
    """What a reader needs to know about a row before believing it."""
    chosen = named(protocol)
    return _head(subject(trained), data, p, chosen, evaluation(data, p, chosen), None)


def _head(
    sae: Subject,
    data: Data,
    p: Parameters,
    protocol: Protocol,
    evaluated: EvaluationData,
    tokens: int | None,
) -> dict[str, Any]:
    n = evaluated.tokens.n
    return {
        "protocol": protocol.name,
        "model": p.model,
        "layer": p.layer,
        "sae": sae.label,
        "architecture": sae.architecture,
        "sparsity": sae.sparsity,
        "d_sae": sae.d_sae,
        "train_tokens": data.train.n if sae.own else None,
        "eval_tokens": n if tokens is None else min(tokens, n),
        "seed": p.seed if sae.seed is None else sae.seed,
    }


def calibration_sample(data: Data, p: Parameters) -> torch.Tensor:
    """The held-out activations on which lambda is calibrated under native."""
    return data.heldout.sample(min(p.calibration_tokens, data.heldout.n), p.seed).to(p.device)


def pooled(infer: Inference, split: ConceptSplit, device: str) -> torch.Tensor:
    """Mean codes [n_texts, d_sae] of the texts of a split."""
    return pooled_variants(infer, split, device, pair=False)[0]
