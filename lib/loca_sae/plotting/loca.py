"""Notebook 03: angular variance, training curves, LocA beside its controls."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from loca_sae.plotting.style import LABELS, PALETTE, finish, style


def plot_angular_variance(latents: pd.DataFrame, ax: Axes) -> Axes:
    """Angular variance of each latent against how often it fired, coloured by its group."""
    groups = latents["group"].nunique()
    sns.scatterplot(
        latents.dropna(subset="avar"),
        x="count",
        y="avar",
        hue="group",
        palette=sns.color_palette("viridis_r", groups),
        s=9,
        linewidth=0,
        legend="full",
        ax=ax,
    )
    ax.set(xscale="log", xlabel="firings in phase 2", ylabel="angular variance (AVar)")
    ax.xaxis.set_minor_formatter(NullFormatter())
    sns.move_legend(ax, "lower right", title="group", ncol=2, fontsize=7)
    return ax


def plot_curves(curves: pd.DataFrame, ax: Axes) -> Axes:
    """Training NMSE by optimizer step, a line a variant, smoothed over five points."""
    for colour, (name, rows) in zip(PALETTE, curves.groupby("variant", sort=False), strict=False):
        smooth = rows["nmse"].rolling(5, min_periods=1).mean()
        ax.plot(rows["step"], smooth, label=name, color=colour, linewidth=1.4)
    ax.set(xlabel="optimizer step", ylabel="NMSE of the batch", yscale="log")
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_formatter(ScalarFormatter())
    ax.legend(fontsize=7)
    return ax


def plot_variants(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """One measure, a horizontal bar a variant, with its value at the end."""
    colours = PALETTE[: len(table)]
    bars = ax.barh(table["variant"], table[measure], color=colours, height=0.65)
    ax.bar_label(bars, fmt="%.3f", fontsize=7, padding=2)
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.set(xlabel=LABELS[measure])
    return ax


def figure_loca(latents: pd.DataFrame, curves: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Phase 2, the training curves, and LocA beside its controls."""
    measures = ["nmse", "dead", "delta_f1", "absorption"]
    with style():
        figure = plt.figure(figsize=(9.2, 6.4))
        grid = figure.add_gridspec(2, 4, height_ratios=[1.35, 1])
        plot_angular_variance(latents, figure.add_subplot(grid[0, :2]))
        plot_curves(curves, figure.add_subplot(grid[0, 2:]))
        for index, measure in enumerate(measures):
            ax = plot_variants(table, measure, figure.add_subplot(grid[1, index]))
            if index:
                ax.set_yticklabels([])
        return finish(figure, table)
