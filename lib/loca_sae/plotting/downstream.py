"""Notebook 05: targeted probe perturbation and the splice."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loca_sae.plotting.style import COLOURS, finish, style


def plot_tpp(table: pd.DataFrame, ax: Axes) -> Axes:
    """Targeted probe perturbation: score against the number of ablated latents, a line a mode."""
    for mode, rows in table.groupby("mode", sort=False):
        by_n = rows.groupby("n")["score"].mean()
        ax.plot(
            by_n.index, by_n, color=COLOURS[str(mode)], marker="o", markersize=3.5, label=str(mode)
        )
    ax.set(xscale="log", xlabel="latents ablated (N)", ylabel="TPP score (accuracy)")
    ax.axhline(0, color="0.4", linewidth=0.8)
    return ax


def figure_tpp(table: pd.DataFrame) -> Figure:
    """A column an architecture, a row a labelled set."""
    concepts, architectures = table["concept"].unique(), table["architecture"].unique()
    with style():
        figure, axes = plt.subplots(
            len(concepts),
            len(architectures),
            figsize=(9.2, 1 + 2.3 * len(concepts)),
            sharex=True,
            sharey="row",
            squeeze=False,
        )
        for row, concept in zip(axes, concepts, strict=True):
            for ax, architecture in zip(row, architectures, strict=True):
                chosen = (table["concept"] == concept) & (table["architecture"] == architecture)
                plot_tpp(table[chosen], ax)
                ax.set_title(f"{architecture}, {concept}")
                ax.label_outer()
        axes[0, 0].legend(fontsize=7)
        return finish(figure, table)


def plot_splice(table: pd.DataFrame, ax: Axes) -> Axes:
    """Cross-entropy added by replacing the residual with a reconstruction, by SAE and mode."""
    sns.barplot(
        table,
        x="architecture",
        y="added_cross_entropy",
        hue="mode",
        palette={mode: COLOURS[mode] for mode in table["mode"].unique()},
        ax=ax,
    )
    ax.set(xlabel="", ylabel="added cross-entropy (nats a token)")
    sns.move_legend(ax, "best", title="", fontsize=7)
    return ax


def figure_splice(table: pd.DataFrame) -> Figure:
    """What the language model loses when it reads a reconstruction."""
    with style():
        figure, ax = plt.subplots(figsize=(5.6, 3.6))
        plot_splice(table, ax)
        return finish(figure, table)
