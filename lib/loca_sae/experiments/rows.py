"""One SAE, one way to infer codes, through every measure; with its values refitted too, if asked.

Codes are inferred once. The refitted variant keeps their support and replaces their values, so the
two rows of a pair share lambda and support and differ in nothing else.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from loca_sae import metrics, probing
from loca_sae.experiments.calibration import Bench, calibrated, optimum
from loca_sae.experiments.data import Concept, ConceptSplit
from loca_sae.experiments.evaluation import EvaluationData
from loca_sae.inference import Inference, Settings
from loca_sae.protocols import Protocol

_CHUNK = 2048
Row = dict[str, Any]


def rows(
    bench: Bench,
    evaluated: EvaluationData,
    chosen: Settings,
    *,
    pair: bool,
    gap: bool,
    tokens: int | None,
) -> list[Row]:
    """The measures of a mode's codes, and after them those of the refitted codes if ``pair``.

    gap: also take the amortization gap to the certified optimum.
    tokens: measure on the first so many held-out tokens; None takes all.
    """
    infer = _Remembering(**vars(calibrated(bench, chosen)))
    device = str(bench.sample.device)
    common: Row = {
        "ista_steps": infer.steps if chosen.needs_lam and chosen.solver == "ista" else None,
        "lam": infer.lam if chosen.needs_lam else None,
        "target_l0": infer.target_l0,
        "calibration_l0": infer.l0,
        "l0_matched": infer.matched,
    }
    parts = [
        reconstruction(infer, evaluated, device, pair, tokens),
        concept_measures(infer, evaluated, device, pair, chosen.protocol),
        on_sample(infer, bench, chosen.protocol, pair, gap),
    ]
    return [
        common | {"refit": refit} | first | second | third
        for refit, first, second, third in zip((False, True), *parts, strict=False)
    ]


@dataclass(frozen=True)
class _Remembering(Inference):
    """An inference that answers at once when it is asked twice running for the same activations.

    Labels of the tokens themselves are probed on the tokens that reconstruction was measured on.
    """

    last: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.last or not torch.equal(self.last[0], x):
            self.last[:] = [x, super().__call__(x)]
        return self.last[1]


def variants(infer: Inference, x: torch.Tensor, pair: bool) -> list[torch.Tensor]:
    """The codes [n, d_sae] of x [n, d_in], and the refitted ones if ``pair``."""
    codes = infer(x)
    return [codes, infer.refitted(x, codes)] if pair else [codes]


@torch.no_grad()
def reconstruction(
    infer: Inference, evaluated: EvaluationData, device: str, pair: bool, tokens: int | None
) -> list[Row]:
    """NMSE, FVU, L0 and firing rates on the held-out tokens, in bounded memory."""
    errors = [metrics.Reconstruction() for _ in range(1 + pair)]
    firings = [metrics.Firing() for _ in range(1 + pair)]
    left = evaluated.tokens.n if tokens is None else tokens
    for x in evaluated.tokens.iterate(_CHUNK):
        x = x[:left].to(device)
        for error, firing, codes in zip(errors, firings, variants(infer, x, pair), strict=True):
            error.update(x, infer.reconstruct(codes))
            firing.update(codes)
        left -= len(x)
        if left <= 0:
            break
    return [_reconstructed(*both) for both in zip(errors, firings, strict=True)]


def _reconstructed(error: metrics.Reconstruction, firing: metrics.Firing) -> Row:
    rate = firing.rate()
    return {
        "nmse": error.nmse(),
        "fvu": error.fvu(),
        "l0": firing.l0(),
        "density": firing.l0() / len(rate),
        "dead": metrics.dead_rate(rate),
        "dense_0.1": metrics.dense_rate(rate, 0.1),
        "dense_0.2": metrics.dense_rate(rate, 0.2),
    }


def on_sample(
    infer: Inference, bench: Bench, protocol: Protocol, pair: bool, gap: bool
) -> list[Row]:
    """Duality gap and amortization gap on the calibration sample.

    duality_gap: mean gap / mean objective of the mode's own problem, in [0, 1]: how far its codes
        can be from the optimum. None where no lambda takes part, and for refitted codes, which
        are not meant to solve that problem.
    gap: the paper's L(x, z) - L(x, z_o), mean over the sample, with the certified optimum as z_o
        and one lambda for both: that at which the *optimum* has the mean L0 of the encoder, the
        same for every mode of an SAE. gap_relative divides by the optimum's objective.
    """
    x = bench.sample
    best = optimum(bench, protocol) if gap else None
    found: list[Row] = []
    for codes in variants(infer, x, pair):
        certified = infer.settings.needs_lam and not found
        row: Row = {"duality_gap": _duality_gap(infer, x, codes) if certified else None}
        row |= dict.fromkeys(("gap", "gap_relative", "gap_lam"), None)
        row["gap_l0_matched"] = False
        if best is not None:
            above = float(infer.objective(x, codes, best.lam).mean()) - best.objective
            row |= {"gap": above, "gap_relative": above / best.objective, "gap_lam": best.lam}
            row["gap_l0_matched"] = best.matched
        found.append(row)
    return found


def _duality_gap(infer: Inference, x: torch.Tensor, codes: torch.Tensor) -> float:
    return float(infer.duality_gap(x, codes).mean() / infer.objective(x, codes).mean())


def concept_measures(
    infer: Inference, evaluated: EvaluationData, device: str, pair: bool, protocol: Protocol
) -> list[Row]:
    """dF1 and the absorption proxy, each a mean over all probed labels of all sets.

    Codes are averaged over the tokens of a text; probes are fitted on the training texts and
    scored on the test texts, which share no group with them unless the protocol says "same".
    """
    scores: list[list[tuple[float, ...]]] = [[] for _ in range(1 + pair)]
    for concept in evaluated.concepts:
        train = pooled_variants(infer, concept.train, device, pair)
        same = concept.test is concept.train
        test = train if same else pooled_variants(infer, concept.test, device, pair)
        for found, z_train, z_test in zip(scores, train, test, strict=True):
            found += _probed(z_train, z_test, concept, evaluated.probed, protocol)
    named = []
    for found in scores:
        means = torch.tensor(found, dtype=torch.float64).nanmean(0).tolist()
        f1, delta, absorption = (None if value != value else value for value in means)
        named.append(
            {"f1_1": f1, "delta_f1": delta, "absorption": absorption, "labels": len(found)}
        )
    return named


def _probed(
    train: torch.Tensor,
    test: torch.Tensor,
    concept: Concept,
    probed: tuple[str, ...] | None,
    protocol: Protocol,
) -> list[tuple[float, ...]]:
    """(F1@1, dF1, absorption) of each probed label."""
    reading: probing.Reading = "checked" if protocol.main_latent == "positive" else "released"
    found: list[tuple[float, ...]] = []
    for label, y_train in probing.one_vs_rest(concept.train.labels).items():
        if probed is not None and label not in probed:
            continue
        y_test = [int(other == label) for other in concept.test.labels]
        f1 = probing.delta_f1(train, y_train, test, y_test)
        absorbed = probing.absorption_proxy(train, y_train, test, y_test, reading=reading)
        found.append((f1.f1_1, f1.delta, absorbed.rate))
    return found


def pooled_variants(
    infer: Inference, split: ConceptSplit, device: str, pair: bool
) -> list[torch.Tensor]:
    """Mean codes [n_texts, d_sae] of the texts of a split, and those of the refitted codes."""
    return [
        probing.pool(codes.cpu(), split.text, len(split.labels))
        for codes in variants(infer, split.x.to(device), pair)
    ]
