"""Notebook 02: what inference alone changes."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loca_sae.plotting.style import COLOURS, LABELS, PALETTE, finish, style

# full, semi, non, and the optimum
_INFERENCE = [COLOURS["full"], COLOURS["semi"], COLOURS["non"], PALETTE[9]]


def plot_modes(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """One measure for each architecture, a bar a kind of inference, in the order of the table."""
    shades = _INFERENCE[: table["inference"].nunique()]
    sns.barplot(
        table, x="architecture", y=measure, hue="inference", palette=shades, ax=ax, legend=False
    )
    ax.set(xlabel="", ylabel=LABELS[measure])
    return ax


def figure_modes(table: pd.DataFrame) -> Figure:
    """A panel a measure: what inference alone changes, at the same decoder and density."""
    measures = ["nmse", "dead", "dense_0.1", "delta_f1", "absorption", "gap_relative"]
    with style():
        figure, axes = plt.subplots(2, 3, figsize=(9.2, 5.6))
        for ax, measure in zip(axes.flat, measures, strict=True):
            plot_modes(table, measure, ax)
        kinds = list(table["inference"].unique())
        handles = [Patch(color=c, label=k) for c, k in zip(_INFERENCE, kinds, strict=False)]
        figure.legend(handles=handles, loc="upper center", ncol=len(handles))
        figure = finish(figure, table)
        figure.subplots_adjust(top=0.92)
        return figure
