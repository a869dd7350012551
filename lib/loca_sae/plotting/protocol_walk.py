"""Notebook 02: from the released protocol to the native one, one choice at a time."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from loca_sae.plotting.style import COLOURS, LABELS, finish, style

MEASURES = ["nmse", "dead", "dense_0.1", "delta_f1", "absorption"]
_WIDE = 30.0  # NMSEs that span more than this factor are shown on a logarithmic scale
_BAND = 0.5  # of a row's height is used by the marks of different SAEs
_MARKS = ["o", "s", "^", "D", "v", "P", "X"]


def plot_walk(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """One measure in one mode: a path an SAE from released (above) down to native.

    A mark stands at each step whose choice applies to the SAE; elsewhere the path goes straight
    down. Within a row the marks of SAEs stand below one another, so that equal values do not hide
    each other. table: rows of one mode, from ``experiments.protocol_walk``.
    """
    saes = table["sae"].nunique()
    for index, (sae, rows) in enumerate(table.groupby("sae", sort=False)):
        rows = rows.sort_values("order")
        x = pd.to_numeric(rows[measure])
        y = rows["order"] + _BAND * ((index + 0.5) / saes - 0.5)
        look = _look(rows.iloc[0], index)
        applies = [int(place) for place in np.flatnonzero(rows["applies"].astype(bool))]
        ax.plot(x, y, drawstyle="steps-pre", lw=1.1, markevery=applies, label=sae, **look)
    steps = table.drop_duplicates("order").sort_values("order")
    for order in steps["order"][::2]:
        ax.axhspan(order - 0.5, order + 0.5, color="0.5", alpha=0.08, linewidth=0)
    ax.set_ylim(steps["order"].max() + 0.6, -0.6)
    ax.set_yticks(steps["order"], steps["switch"])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    return ax


def figure_protocol_walk(table: pd.DataFrame) -> Figure:
    """Which choice moves which number: a column a measure, a block of rows a mode.

    Paths start at the released protocol and take on one choice of native a row, each on top of
    those above it, so that the lowest row is native. A column has one scale for all modes.
    """
    modes = list(table["mode"].unique())
    steps = table["order"].nunique()
    height = len(modes) * (0.2 * steps + 0.35) + 1.0
    with style():
        figure, axes = plt.subplots(
            len(modes),
            len(MEASURES),
            figsize=(8.8, height),
            sharex="col",
            sharey="row",
            squeeze=False,
        )
        for row, mode in zip(axes, modes, strict=True):
            for ax, measure in zip(row, MEASURES, strict=True):
                plot_walk(table[table["mode"] == mode], measure, ax)
            row[0].annotate(
                f"{mode} mode", (0, 1), (-6, 7), "axes fraction", "offset points", ha="right",
                weight="bold",
            )  # fmt: skip
        for ax, measure in zip(axes[-1], MEASURES, strict=True):
            ax.locator_params(axis="x", nbins=4)
            ax.set_xlabel(LABELS[measure].replace(" (", "\n("))
        if _spans_magnitudes(table["nmse"]):
            axes[0, 0].set_xscale("log")  # of the whole column
            axes[-1, 0].xaxis.set_minor_formatter(NullFormatter())
        figure = finish(figure, table.assign(protocol="released to native, choice by choice"))
        figure.subplots_adjust(top=1 - 0.5 / height, wspace=0.12)
        handles = axes[0, 0].get_legend_handles_labels()[0]
        figure.legend(handles=[_key(line) for line in handles], loc="upper center", ncol=7)
        return figure


def _look(row: pd.Series, index: int) -> dict[str, Any]:
    """The architecture's colour, and a mark of its own; hollow, so that equal values show."""
    colour = COLOURS.get(str(row["sae"]), COLOURS.get(str(row["architecture"]), "0.2"))
    mark = _MARKS[index % len(_MARKS)]
    return {"color": colour, "marker": mark, "markersize": 4.0, "markerfacecolor": "white"}


def _key(line: Line2D) -> Line2D:
    """The line's entry in the legend, where a path has its mark at both ends otherwise."""
    return Line2D(
        [], [], color=line.get_color(), marker=line.get_marker(), markersize=4.0,
        markerfacecolor="white", label=str(line.get_label()),
    )  # fmt: skip


def _spans_magnitudes(values: pd.Series) -> bool:
    known = pd.to_numeric(values).dropna()
    return bool(len(known) and known.min() > 0 and known.max() > _WIDE * known.min())
