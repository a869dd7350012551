"""Notebook 02: the same decoders, with codes inferred in full, semi and non mode."""

import pandas as pd

from loca_sae import corpus
from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.data import Data
from loca_sae.experiments.loca import loca_sae
from loca_sae.experiments.measures import measure
from loca_sae.experiments.saes import sae
from loca_sae.inference import Mode, Solver
from loca_sae.parameters import AmortizationInterventions, LocaParameters
from loca_sae.training import Trained


def run(p: AmortizationInterventions) -> pd.DataFrame:
    """One row an SAE and mode; "non" twice, after ``non_steps`` ISTA steps and at the optimum."""
    data = experiment_data.load(p)
    settings: list[tuple[Mode, int | None, Solver, str]] = [
        ("full", None, "ista", "full"),
        ("semi", p.semi_steps, "ista", f"semi ({p.semi_steps} steps)"),
        ("non", p.non_steps, "ista", f"non ({p.non_steps} steps)"),
        ("non", None, "exact", "non (exact)"),
    ]
    rows = []
    for trained in compared_saes(p, data):
        for mode, steps, solver, name in settings:
            row = measure(trained, data, p, mode, steps=steps, solver=solver)
            rows.append({**row, "inference": name})
    return pd.DataFrame(rows)


def compared_saes(p: LocaParameters, data: Data) -> list[Trained]:
    """Standard, TopK, and the LocA-SAE that was trained from that TopK."""
    return [
        sae(p, data, "standard"),
        sae(p, data, "topk", p.k),
        loca_sae(p, data).trained,
    ]


def beside_the_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Our rows next to the paper's for the same architecture and mode, where the paper has one.

    The models differ, so a difference is not an error of either: it says where the scale matters.
    """
    ours = table[table["solver"] == "ista"].set_index(["architecture", "mode"])
    paper = corpus.paper_tables()
    paper = paper[(paper["source"] == "main table") & paper["sae"].isin(table["architecture"])]
    rows = []
    for _, row in paper.iterrows():
        mine = ours.loc[(row["sae"], row["mode"])]
        rows.append(
            {
                "SAE": row["sae"],
                "mode": row["mode"],
                "paper's model": row["model"],
                "NMSE paper": row["nmse"],
                "NMSE here": mine["nmse"],
                "dead paper": row["dead_rate"],
                "dead here": mine["dead"],
                "dF1 paper": row["delta_f1"],
                "dF1 here": mine["delta_f1"],
                "absorption paper": row["absorption_rate"],
                "absorption here": mine["absorption"],
            }
        )
    return pd.DataFrame(rows)
