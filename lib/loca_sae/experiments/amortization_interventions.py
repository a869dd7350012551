"""Notebook 02: the same decoders, with codes inferred in full, semi and non mode."""

from typing import Any, NamedTuple

import pandas as pd

from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.compared import compared_saes
from loca_sae.experiments.data import Data
from loca_sae.experiments.kinds import of_kind
from loca_sae.experiments.measures import measure, measure_pair
from loca_sae.experiments.paper_rows import beside_the_paper
from loca_sae.experiments.subjects import Subject, subject
from loca_sae.external_saes import ExternalSae
from loca_sae.inference import Mode, Solver
from loca_sae.parameters import AmortizationInterventions
from loca_sae.training import Trained

__all__ = ["beside_the_paper", "comparable", "density_table", "run"]

_WITHIN = 0.1  # SAEs whose L0 is within this share of the wanted one count as comparable
_SIDE_BY_SIDE = {"full": "encoder", "semi": "semi", "non": "non", "exact": "lasso"}


class _Way(NamedTuple):
    """One call of `measure`; ``refitted`` names the second row of a pair."""

    mode: Mode
    steps: int | None
    solver: Solver
    name: str
    refitted: str | None = None


def run(p: AmortizationInterventions) -> pd.DataFrame:
    """Eight rows an SAE, one a kind of inference (`kinds.KINDS`), under the native protocol.

    Columns of `measures.measure`, and: inference (the kind's name), wanted_l0 (what the SAE was
    trained to reach, for LocA its budgets together; None for one from elsewhere).
    """
    data = experiment_data.load(p)
    rows = [row for trained in compared_saes(p, data) for row in _rows(trained, data, p)]
    return pd.DataFrame(rows)


def _rows(
    trained: Trained | ExternalSae, data: Data, p: AmortizationInterventions
) -> list[dict[str, Any]]:
    wanted = _wanted_l0(subject(trained), p)
    rows = []
    for way in _ways(p):
        arguments: dict[str, Any] = {"steps": way.steps, "solver": way.solver}
        if way.refitted is None:
            found = [(way.name, measure(trained, data, p, way.mode, **arguments))]
        else:
            pair = measure_pair(trained, data, p, way.mode, **arguments)
            found = list(zip((way.name, way.refitted), pair, strict=True))
        rows += [{**row, "inference": name, "wanted_l0": wanted} for name, row in found]
    return rows


def _wanted_l0(sae: Subject, p: AmortizationInterventions) -> float | None:
    if not sae.own:
        return None
    return float(p.loca_k if sae.architecture == "loca" else p.k)


def _ways(p: AmortizationInterventions) -> list[_Way]:
    return [
        _Way("full", None, "ista", "full", "full, refitted"),
        _Way("semi", p.semi_steps, "ista", f"semi ({p.semi_steps} steps)"),
        _Way("non", p.non_steps, "ista", f"non ({p.non_steps} steps)"),
        _Way("non", None, "exact", "non (exact)", "non (exact), refitted"),
        _Way("non", None, "omp", "k-sparse (OMP)"),
        _Way("non", None, "matching_pursuit", "matching pursuit"),
    ]


def comparable(table: pd.DataFrame) -> pd.DataFrame:
    """Per SAE the L0 it was trained for, the L0 its encoder reaches, and whether within 10 %."""
    rows = of_kind(table, "encoder")
    wanted = rows["wanted_l0"].astype(float)
    within = (rows["l0"] - wanted).abs() <= _WITHIN * wanted
    return pd.DataFrame(
        {
            "SAE": rows.index,
            "wanted L0": wanted.to_numpy(),
            "L0 reached": rows["l0"].to_numpy(),
            "within 10 %": [
                "–" if pd.isna(aim) else "yes" if near else "no"
                for aim, near in zip(wanted, within, strict=True)
            ],
        }
    )


def density_table(table: pd.DataFrame) -> pd.DataFrame:
    """Per SAE lambda, L0 and density of full, semi, non and the optimum, side by side.

    L0 and density are those on the evaluation tokens. "matched" is "yes" only if lambda brought
    each of the three to the encoder's mean L0 within 1 % on the calibration tokens; "largest
    difference" is what remains of that on the evaluation tokens, as a share of the encoder's L0.
    """
    kinds = {name: of_kind(table, kind) for name, kind in _SIDE_BY_SIDE.items()}
    full = kinds["full"]
    out = pd.DataFrame({"SAE": full.index})
    others = [name for name in kinds if name != "full"]
    for quantity, column in (("λ", "lam"), ("L0", "l0"), ("density", "density")):
        for name, rows in kinds.items():
            if quantity != "λ" or name != "full":
                out[f"{quantity} {name}"] = rows[column].reindex(full.index).astype(float).array
    ratios = [kinds[name]["l0"].reindex(full.index) / full["l0"] - 1 for name in others]
    out["largest difference"] = pd.concat(ratios, axis=1).abs().max(axis=1).to_numpy()
    matched = [kinds[name]["l0_matched"].reindex(full.index).astype(bool) for name in others]
    out["matched"] = ["yes" if all(row) else "no" for row in zip(*matched, strict=True)]
    return out
