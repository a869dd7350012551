"""Notebook 04: how many ISTA steps after the encoder, and what they change."""

import pandas as pd

from loca_sae import corpus
from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.measures import measure
from loca_sae.experiments.saes import sae
from loca_sae.parameters import IstaAblation


def run(p: IstaAblation) -> pd.DataFrame:
    """Full mode, semi mode after each number of steps (lambda calibrated for each), the optimum."""
    data = experiment_data.load(p)
    trained = sae(p, data, p.architecture, p.k)
    rows = [{**measure(trained, data, p, "full"), "ista_steps": 0}]
    rows += [measure(trained, data, p, "semi", steps=steps) for steps in sorted(p.ista_steps)]
    rows.append(measure(trained, data, p, "non", solver="exact"))
    return pd.DataFrame(rows)


def paper_rows() -> pd.DataFrame:
    """The paper's step ablation (BatchTopK, semi): columns model, ista_steps and its measures."""
    paper = corpus.paper_tables()
    paper = paper[paper["source"] == "step ablation"].copy()
    paper["ista_steps"] = paper["setting"].str.extract(r"(\d+)", expand=False).astype(int)
    columns = ["model", "ista_steps", "nmse", "dead_rate", "delta_f1", "absorption_rate"]
    return paper[columns].reset_index(drop=True)
