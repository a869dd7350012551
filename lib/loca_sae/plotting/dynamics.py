"""Notebook 01: every measure over training."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loca_sae.plotting.style import COLOURS, LABELS, finish, style


def plot_over_training(table: pd.DataFrame, measure: str, ax: Axes, label: bool) -> Axes:
    """One measure against the tokens seen, a line an SAE, labelled by its final L0.

    table: rows of one architecture from ``training_dynamics.run``. Gaps at checkpoints where the
    optimum could not be brought to the encoder's density are drawn hollow.
    """
    sparsities = sorted(table["sparsity"].unique())
    shades = sns.light_palette(
        COLOURS[table["architecture"].iloc[0]], n_colors=len(sparsities) + 2
    )[2:]
    for shade, (_, rows) in zip(shades, table.groupby("sparsity", sort=True), strict=True):
        rows = rows.sort_values("seen_tokens")
        ax.plot(rows["seen_tokens"], rows[measure], color=shade, marker="o", markersize=3.5)
        if measure.startswith("gap"):
            hollow = rows[~rows["gap_l0_matched"].astype(bool)]
            ax.plot(hollow["seen_tokens"], hollow[measure], "o", color="white", markersize=2)
        final = rows.iloc[-1]
        if label:
            ax.annotate(
                f"L0 {final['l0']:.0f}",
                (final["seen_tokens"], final[measure]),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    ax.set(xscale="log", xlabel="training tokens seen", ylabel=LABELS[measure])
    ax.margins(x=0.12)
    return ax


def figure_training_dynamics(table: pd.DataFrame) -> Figure:
    """A row an architecture, a column a measure."""
    measures = ["nmse", "dead", "dense_0.1", "delta_f1", "absorption", "gap_relative"]
    architectures = list(table["architecture"].unique())
    with style():
        figure, axes = plt.subplots(
            len(measures), len(architectures), figsize=(7.2, 11.5), sharex=True, squeeze=False
        )
        for column, architecture in enumerate(architectures):
            rows = table[table["architecture"] == architecture]
            for ax, measure in zip(axes[:, column], measures, strict=True):
                # lines keep their order in NMSE and colour everywhere: one labelled row is enough
                plot_over_training(rows, measure, ax, label=measure == "nmse")
                ax.label_outer()
            axes[0, column].set_title(architecture)
        for row in axes:
            _share_limits(row)
        return finish(figure, table)


def _share_limits(axes: np.ndarray) -> None:
    """The same y range for axes that a reader compares, starting at 0."""
    top = max(ax.get_ylim()[1] for ax in axes)
    bottom = min(0.0, *(ax.dataLim.ymin for ax in axes))
    for ax in axes:
        ax.set_ylim(bottom, top)
