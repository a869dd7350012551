"""Notebook 04: how many ISTA steps, from which start, refitted or not, and what they change."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from loca_sae import corpus
from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.compared import trained_saes
from loca_sae.experiments.data import Data
from loca_sae.experiments.grid_sample import for_grid
from loca_sae.experiments.measures import measure, measure_pair
from loca_sae.experiments.paper_rows import MEASURES
from loca_sae.inference import Mode
from loca_sae.parameters import IstaAblation
from loca_sae.protocols import PROTOCOLS
from loca_sae.training import Trained

STARTS: dict[Mode, str] = {"full": "encoder", "semi": "encoder", "non": "zero"}


def run(p: IstaAblation) -> pd.DataFrame:
    """Every SAE after each number of steps from both starts, and at the optimum; native protocol.

    Columns of `measures.measure`, and start ("encoder", "zero" or "optimum"). Every row comes
    twice: refit False, and refit True with the values refitted on the same support. The encoder
    itself is the row of 0 steps; lambda is calibrated anew for each number of steps and start.
    """
    data = experiment_data.load(p)
    rows = [
        row
        for trained in trained_saes(p, data, p.architectures)
        for row in _sweep(trained, data, p, sorted(p.ista_steps))
    ]
    return pd.DataFrame(rows)


def under_protocols(p: IstaAblation) -> pd.DataFrame:
    """The first SAE after each number of steps from the encoder, under each protocol.

    All on the first ``p.protocol_tokens`` held-out tokens, and with no more than 50 steps, the
    paper's largest number; nothing is refitted.
    """
    data = experiment_data.load(p)
    trained = trained_saes(p, data, p.architectures[:1])[0]
    rows = []
    for name, chosen in PROTOCOLS.items():
        fewer = for_grid(p, chosen)
        sample = {"calibration_tokens": fewer.calibration_tokens}
        for steps in (0, *[steps for steps in sorted(p.ista_steps) if steps <= 50]):
            mode: Mode = "semi" if steps else "full"
            row = measure(
                trained,
                data,
                fewer,
                mode,
                name,
                steps=steps or None,
                gap=False,
                tokens=p.protocol_tokens,
            )
            rows.append({**row, **sample, "ista_steps": steps, "start": "encoder"})
    return pd.DataFrame(rows)


def _sweep(
    trained: Trained, data: Data, p: IstaAblation, counts: Sequence[int]
) -> list[dict[str, Any]]:
    rows = [
        {**row, "ista_steps": 0, "start": "encoder"}
        for row in measure_pair(trained, data, p, "full")
    ]
    modes: tuple[Mode, ...] = ("semi", "non")
    for mode in modes:
        for steps in counts:
            pair = measure_pair(trained, data, p, mode, steps=steps)
            rows += [{**row, "start": STARTS[mode]} for row in pair]
    optimum = measure_pair(trained, data, p, "non", solver="exact")
    return rows + [{**row, "start": "optimum"} for row in optimum]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row an SAE: NMSE of the encoder, of the most steps from either start, of the optimum.

    Each raw and refitted, with the relative duality gap of the raw codes: how far the most steps
    from zero, the paper's non-amortized code, still are from the optimum.
    """
    rows = []
    for name, found in table.groupby("sae", sort=False):
        most = found.loc[found["start"] == "zero", "ista_steps"].max()
        ends = {
            "encoder": found[found["ista_steps"] == 0],
            f"semi, {int(most)}": found[(found["start"] == "encoder") & _at(found, most)],
            f"non, {int(most)}": found[(found["start"] == "zero") & _at(found, most)],
            "optimum": found[found["start"] == "optimum"],
        }
        row: dict[str, Any] = {"SAE": name}
        for end, pair in ends.items():
            by_refit = pair.set_index(pair["refit"].astype(bool))
            row[f"NMSE {end}"] = by_refit.loc[False, "nmse"]
            row[f"{end}, refitted"] = by_refit.loc[True, "nmse"]
        raw = ends[f"non, {int(most)}"]
        raw = raw[~raw["refit"].astype(bool)]
        row[f"duality gap non, {int(most)}"] = float(raw["duality_gap"].iloc[0])
        rows.append(row)
    return pd.DataFrame(rows)


def _at(rows: pd.DataFrame, steps: float) -> pd.Series:
    return rows["ista_steps"].astype(float) == steps


def paper_rows() -> pd.DataFrame:
    """The paper's step ablation (BatchTopK, semi): columns model, ista_steps and its measures."""
    paper = corpus.paper_tables()
    paper = paper[paper["source"] == "step ablation"].copy()
    paper["ista_steps"] = paper["setting"].str.extract(r"(\d+)", expand=False).astype(int)
    columns = ["model", "ista_steps", "nmse", "dead_rate", "delta_f1", "absorption_rate"]
    return paper[columns].reset_index(drop=True)


def beside_the_paper(table: pd.DataFrame) -> pd.DataFrame:
    """The paper's steps for BatchTopK in semi mode, ours for the same number, and the difference.

    Steps that the table does not have stand without ours.
    """
    semi = table[(table["architecture"] == "batchtopk") & (table["mode"] == "semi")]
    semi = semi[~semi["refit"].astype(bool)].set_index("ista_steps")
    rows = []
    for _, paper in paper_rows().iterrows():
        row: dict[str, Any] = {"paper's model": paper["model"], "ISTA steps": paper["ista_steps"]}
        for column, (ours, heading) in MEASURES.items():
            mine = semi[ours].get(paper["ista_steps"], float("nan"))
            row[f"{heading} paper"] = float(paper[column])
            row[f"{heading} here"] = float(mine)
            row[f"{heading} difference"] = float(mine) - float(paper[column])
        rows.append(row)
    return pd.DataFrame(rows)
