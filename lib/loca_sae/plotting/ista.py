"""Notebook 04: measures against the number of ISTA steps."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loca_sae.plotting.style import COLOURS, LABELS, finish, style


def plot_ista_steps(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """One measure against the ISTA steps of semi mode; the certified optimum as a line."""
    semi = table[table["mode"] != "non"].sort_values("ista_steps")
    exact = table[table["solver"] == "exact"].iloc[0]
    ax.plot(semi["ista_steps"], semi[measure], color=COLOURS["semi"], marker="o", markersize=4)
    if pd.notna(exact[measure]):
        ax.axhline(exact[measure], color=COLOURS["non"], linestyle="--", linewidth=1.2)
        ax.annotate(
            "optimum", (1, exact[measure]), xycoords=("axes fraction", "data"), ha="right",
            va="bottom", fontsize=7, color=COLOURS["non"],
        )  # fmt: skip
    ax.set(xlabel="ISTA steps after the encoder", ylabel=LABELS[measure])
    return ax


def figure_ista_ablation(table: pd.DataFrame) -> Figure:
    """A panel a measure: reconstruction, distance to the optimum, pathologies."""
    measures = ["nmse", "duality_gap", "gap_relative", "dead", "delta_f1", "absorption"]
    with style():
        figure, axes = plt.subplots(2, 3, figsize=(9.2, 5.2), sharex=True)
        for ax, measure in zip(axes.flat, measures, strict=True):
            plot_ista_steps(table, measure, ax)
        axes[0, 1].set_yscale("log")
        return finish(figure, table)
