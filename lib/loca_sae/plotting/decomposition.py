"""Notebook 02: the price of amortized inference, and which part of it is which."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from loca_sae.plotting.modes import look, rows_of_saes
from loca_sae.plotting.style import PALETTE, finish, style

VALUE, SUPPORT, SHRINKAGE = PALETTE[3], PALETTE[0], "0.35"
# part -> heading and colour of its column of numbers
_COLUMNS = {
    "value": ("value\nchoice", VALUE),
    "support": ("support\nchoice", SUPPORT),
    "price": ("price\n(both)", "black"),
    "shrinkage": ("lasso's\nshrinkage", SHRINKAGE),
}
# level -> mode, solver and refit, which decide its mark, and how the legend calls it
_MARKS = {
    "encoder": ("full", "", False, "encoder"),
    "refitted": ("full", "", True, "encoder, refitted"),
    "ksparse": ("non", "omp", False, "k-sparse (OMP)"),
    "lasso": ("non", "exact", False, "exact lasso"),
    "lasso_refitted": ("non", "exact", True, "exact lasso, refitted"),
}


def plot_decomposition(parts: pd.DataFrame, ax: Axes) -> Axes:
    """A row an SAE, on one scale of NMSE.

    Above: from the encoder's code over its refitted values (value choice) to the k-sparse code
    (support choice). Below: from the exact lasso code to its refitted values (shrinkage).
    """
    for y, (_, row) in enumerate(parts.iterrows()):
        nmse = {level: float(row[f"nmse_{level}"]) for level in _MARKS}
        for start, end, shift, colour in (
            ("encoder", "refitted", -0.2, VALUE),
            ("refitted", "ksparse", -0.03, SUPPORT),
            ("lasso", "lasso_refitted", 0.24, SHRINKAGE),
        ):
            ax.plot([nmse[start], nmse[end]], [y + shift] * 2, color=colour, linewidth=2.2)
        ax.plot([nmse["refitted"]] * 2, [y - 0.2, y - 0.03], color="0.6", linewidth=0.8)
        heights = {"encoder": -0.2, "refitted": -0.2, "ksparse": -0.03}
        for level in _MARKS:
            ax.plot(nmse[level], y + heights.get(level, 0.24), markersize=5, **_mark(level))
    rows_of_saes(ax, list(parts["sae"]))
    ax.set_xlabel("NMSE at the encoder's L0")
    return ax


def figure_decomposition(parts: pd.DataFrame) -> Figure:
    """What is the price of amortized inference, and which part of it is which?

    parts: from ``experiments.decomposition``. The parts stand beside the lines as numbers, a
    positive one being an error that better inference takes away.
    """
    height = 0.52 * len(parts) + 1.55
    with style():
        figure, (ax, numbers) = plt.subplots(
            1, 2, figsize=(8.6, height), sharey=True, width_ratios=[1.55, 1]
        )
        plot_decomposition(parts, ax)
        _numbers(parts, numbers)
        figure = finish(figure, parts)
        figure.subplots_adjust(top=1 - 0.8 / height, wspace=0.03)
        lines = [Line2D([], [], label=label, color=c, lw=2.2) for label, c in _line_labels()]
        marks = [Line2D([], [], label=_MARKS[level][3], **_mark(level)) for level in _MARKS]
        figure.legend(handles=marks + lines, loc="upper left", ncol=4, columnspacing=1.0)
        return figure


def _mark(level: str) -> dict[str, Any]:
    mode, solver, refit, _ = _MARKS[level]
    return look(pd.Series({"mode": mode, "solver": solver, "refit": refit}))


def _line_labels() -> list[tuple[str, Any]]:
    return [("value choice", VALUE), ("support choice", SUPPORT), ("shrinkage", SHRINKAGE)]


def _numbers(parts: pd.DataFrame, ax: Axes) -> None:
    for x, (part, (heading, colour)) in enumerate(_COLUMNS.items()):
        ax.text(x, -0.58, heading, ha="center", va="bottom", color=colour, fontsize=8)
        for y, value in enumerate(parts[part]):
            text = "–" if pd.isna(value) else f"{value:+.4f}"
            ax.text(x, y, text, ha="center", va="center", color=colour, fontsize=8.5)
    rows_of_saes(ax, list(parts["sae"]))
    ax.set_xlim(-0.6, len(_COLUMNS) - 0.4)
    ax.axis("off")
