"""Notebook 04: measures against the number of ISTA steps."""

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, ScalarFormatter

from loca_sae.plotting.style import COLOURS, LABELS, finish, style

_STARTS = {"encoder": COLOURS["semi"], "zero": COLOURS["non"]}
_OPTIMUM, _ENCODER, _GAP = "0.25", COLOURS["full"], "0.6"
_COLUMNS = 3


def plot_ista_steps(rows: pd.DataFrame, ax: Axes) -> Axes:
    """NMSE of one SAE against ISTA steps, from both starts; the duality gap on the right axis.

    rows: those of one SAE from ``ista_ablation.run``. Solid: the steps' own values; dashed:
    refitted. The encoder and the optimum are level lines. Returns the axis of the gap.
    """
    refit = rows["refit"].astype(bool)
    for level, colour in (("encoder", _ENCODER), ("optimum", _OPTIMUM)):
        at = rows["start"] == level if level == "optimum" else rows["ista_steps"] == 0
        for dashed in (False, True):
            value = rows.loc[at & (refit == dashed), "nmse"].iloc[0]
            ax.axhline(value, color=colour, linestyle="--" if dashed else "-", linewidth=1)
    gap = ax.twinx()
    for start, colour in _STARTS.items():
        path = rows[(rows["start"] == start) & (rows["ista_steps"].astype(float) > 0)]
        path = path.sort_values("ista_steps")
        for dashed in (False, True):
            line = path[path["refit"].astype(bool) == dashed]
            look = {"linestyle": "--"} if dashed else {"marker": "o", "markersize": 3}
            ax.plot(line["ista_steps"], line["nmse"], color=colour, **look)
        raw = path[~path["refit"].astype(bool)]
        mark = "^" if start == "encoder" else "v"
        gap.plot(
            raw["ista_steps"], raw["duality_gap"], color=_GAP, linestyle=":", linewidth=1,
            marker=mark, markersize=3,
        )  # fmt: skip
    counts = sorted(rows["ista_steps"].astype(float).dropna().unique())[1:]
    ax.set(xscale="log", xlabel="ISTA steps", ylabel=LABELS["nmse"])
    ax.set_xticks(_spread(counts))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    gap.set(yscale="log", ylabel=LABELS["duality_gap"])
    gap.grid(False)
    gap.spines["right"].set_visible(True)
    for part in (gap.yaxis.label, gap.spines["right"]):
        part.set_color("0.45")
    gap.tick_params(axis="y", colors="0.45", labelsize=7)
    return gap


def figure_ista_ablation(table: pd.DataFrame) -> Figure:
    """A panel an SAE, in the order of the table; the first one is twice as wide."""
    names = list(table["sae"].unique())
    lines = math.ceil((len(names) + 2) / _COLUMNS)  # the wide panel, and a cell for the legend
    with style():
        figure = plt.figure(figsize=(9.2, 0.45 + 2.5 * lines))
        grid = figure.add_gridspec(lines, _COLUMNS)
        for index, name in enumerate(names):
            line, column = divmod(index + (index > 0), _COLUMNS)
            ax = figure.add_subplot(grid[line, :2] if index == 0 else grid[line, column])
            gap = plot_ista_steps(table[table["sae"] == name], ax)
            ax.set_title(name)
            if column > 0:
                ax.set_ylabel("")
            if index and column < _COLUMNS - 1 and name != names[-1]:
                gap.set_ylabel("")
        line, column = divmod(len(names) + 1, _COLUMNS)
        key = figure.add_subplot(grid[line, column])
        key.axis("off")
        key.legend(handles=_legend(), loc="center", fontsize=8)
        return finish(figure, table)


def figure_ista_pathologies(table: pd.DataFrame) -> Figure:
    """dead, dF1 and absorption of the first SAE against the steps, from both starts."""
    rows = table[(table["sae"] == table["sae"].iloc[0]) & ~table["refit"].astype(bool)]
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(9.2, 2.9))
        for ax, measure in zip(axes, ("dead", "delta_f1", "absorption"), strict=True):
            for start, colour in _STARTS.items():
                path = rows[(rows["start"] == start) & (rows["ista_steps"].astype(float) > 0)]
                path = path.sort_values("ista_steps")
                ax.plot(
                    path["ista_steps"], path[measure], color=colour, marker="o", markersize=3,
                    label=f"from {'the encoder' if start == 'encoder' else 'zero'}",
                )  # fmt: skip
            encoder = rows.loc[rows["ista_steps"] == 0, measure].iloc[0]
            optimum = rows.loc[rows["start"] == "optimum", measure].iloc[0]
            ax.axhline(encoder, color=_ENCODER, linewidth=1, label="encoder")
            ax.axhline(optimum, color=_OPTIMUM, linewidth=1, label="optimum")
            ax.set(xscale="log", xlabel="ISTA steps", ylabel=LABELS[measure])
            ax.set_xticks(_spread(sorted(path["ista_steps"].astype(float))))
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.xaxis.set_minor_formatter(NullFormatter())
        axes[0].legend(fontsize=7)
        return finish(figure, table)


def _spread(counts: list[float]) -> list[float]:
    """Those counts that are half as large again as the one before: labels need room."""
    kept: list[float] = []
    for count in counts:
        if not kept or count >= 1.8 * kept[-1]:
            kept.append(count)
    return kept


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=_STARTS["encoder"], marker="o", markersize=3, label="semi"),
        Line2D([], [], color=_STARTS["zero"], marker="o", markersize=3, label="non"),
        Line2D([], [], color=_ENCODER, label="encoder"),
        Line2D([], [], color=_OPTIMUM, label="optimum"),
        Line2D([], [], color="0.25", linestyle="--", label="dashed: refitted"),
        Line2D([], [], color=_GAP, linestyle=":", marker="^", markersize=3, label="gap, semi"),
        Line2D([], [], color=_GAP, linestyle=":", marker="v", markersize=3, label="gap, non"),
    ]
