"""Notebook 02: what inference alone changes."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from loca_sae.plotting.style import COLOURS, LABELS, PALETTE, finish, style

MEASURES = ["nmse", "dead", "dense_0.1", "delta_f1", "absorption", "gap_relative"]
_BAND = 0.78  # of a row's height is used by its dots


def look(row: pd.Series) -> dict[str, Any]:
    """Colour and marker of a kind of inference: filled as inferred, hollow with refitted values."""
    if row["mode"] == "full":
        colour, marker = COLOURS["full"], "s"
    elif row["mode"] == "semi":
        colour, marker = COLOURS["semi"], "^"
    elif row["solver"] == "ista":
        colour, marker = COLOURS["non"], "v"
    elif row["solver"] == "exact":
        colour, marker = PALETTE[9], "o"
    else:
        colour, marker = PALETTE[5], "D" if row["solver"] == "omp" else "X"
    face = "white" if row["refit"] else colour
    return {"color": colour, "marker": marker, "markerfacecolor": face, "linestyle": "none"}


def plot_modes(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """One measure, a row an SAE and a dot a kind of inference, in the order of the table.

    Within a row the kinds stand below one another, so that equal values do not hide each other.
    """
    saes, kinds = list(table["sae"].unique()), list(table["inference"].unique())
    shift = dict(
        zip(kinds, _BAND * (np.arange(len(kinds)) + 0.5) / len(kinds) - _BAND / 2, strict=True)
    )
    for kind, rows in table.groupby("inference", sort=False):
        y = rows["sae"].map(saes.index) + shift[kind]
        ax.plot(pd.to_numeric(rows[measure]), y, markersize=4.5, label=kind, **look(rows.iloc[0]))
    rows_of_saes(ax, saes)
    ax.set_xlabel(LABELS[measure])
    ax.locator_params(axis="x", nbins=4)
    return ax


def rows_of_saes(ax: Axes, saes: list[str]) -> None:
    """Rows for SAEs from top to bottom, every other one shaded."""
    for index in range(0, len(saes), 2):
        ax.axhspan(index - 0.5, index + 0.5, color="0.5", alpha=0.08, linewidth=0)
    ax.set_ylim(len(saes) - 0.5, -0.5)
    ax.set_yticks(range(len(saes)), saes)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def figure_modes(table: pd.DataFrame) -> Figure:
    """A panel a measure: what inference alone changes, at the same decoder and density."""
    height = 2 * (0.42 * table["sae"].nunique() + 0.55) + 0.9
    with style():
        figure, axes = plt.subplots(2, 3, figsize=(8.6, height), sharey=True)
        for ax, measure in zip(axes.flat, MEASURES, strict=True):
            plot_modes(table, measure, ax)
        figure = finish(figure, table)
        figure.subplots_adjust(top=1 - 0.62 / height)
        kinds = table.drop_duplicates("inference")
        handles = [
            Line2D([], [], label=row["inference"], **look(row)) for _, row in kinds.iterrows()
        ]
        figure.legend(handles=handles, loc="upper center", ncol=4)
        return figure
