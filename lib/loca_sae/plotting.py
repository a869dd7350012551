"""Figures from the experiments' tables: ``plot_x(table, ax) -> Axes``, one visual language.

Figures have a transparent background and dark ink; the book's style sheet inverts them in dark
mode. Colours are seaborn's colour-blind palette and always mean the same thing: an architecture, a
mode. Every figure carries a line that says what it was measured on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, ScalarFormatter

_PALETTE = sns.color_palette("colorblind")
COLOURS = {
    "standard": _PALETTE[0],
    "topk": _PALETTE[1],
    "loca": _PALETTE[2],
    "batchtopk": _PALETTE[4],
    "full": _PALETTE[7],
    "semi": _PALETTE[3],
    "non": _PALETTE[0],
}
# full, semi, non, and the optimum
_INFERENCE = [COLOURS["full"], COLOURS["semi"], COLOURS["non"], _PALETTE[9]]
LABELS = {
    "nmse": "NMSE",
    "fvu": "FVU",
    "l0": "L0 (active latents a token)",
    "dead": "dead latents (share)",
    "dense_0.1": "dense@0.1 (share)",
    "dense_0.2": "dense@0.2 (share)",
    "delta_f1": "dF1 (splitting)",
    "absorption": "absorption (proxy)",
    "gap_relative": "amortization gap (relative)",
    "duality_gap": "relative duality gap",
}
STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.85",
    "legend.frameon": False,
    "svg.hashsalt": "loca-sae",
}


@contextmanager
def style() -> Iterator[None]:
    """The book's look, for figures made inside the ``with`` block."""
    rc: Any = {**sns.axes_style("ticks"), **STYLE}
    with plt.rc_context(rc):
        yield


def provenance(table: pd.DataFrame) -> str:
    """The line under every figure: model, layer, tokens, seed, protocol."""
    row = table.iloc[0]
    seeds = ", ".join(str(seed) for seed in sorted(table["seed"].unique()))
    return (
        f"{row['model']}, layer {row['layer']} · d_sae {row['d_sae']:,} · trained on "
        f"{row['train_tokens']:,} tokens, measured on {row['eval_tokens']:,} held-out tokens · "
        f"seed {seeds} · protocol {row['protocol']}"
    )


def finish(figure: Figure, table: pd.DataFrame) -> Figure:
    """Lay the figure out and write the provenance line under it."""
    inch = 1 / figure.get_figheight()
    figure.tight_layout(rect=(0, 0.2 * inch, 1, 1))
    figure.text(0.5, 0.005, provenance(table), ha="center", va="bottom", fontsize=7, color="0.35")
    return figure


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
    for colour, (name, rows) in zip(_PALETTE, curves.groupby("variant", sort=False), strict=False):
        smooth = rows["nmse"].rolling(5, min_periods=1).mean()
        ax.plot(rows["step"], smooth, label=name, color=colour, linewidth=1.4)
    ax.set(xlabel="optimizer step", ylabel="NMSE of the batch", yscale="log")
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_formatter(ScalarFormatter())
    ax.legend(fontsize=7)
    return ax


def plot_variants(table: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """One measure, a horizontal bar a variant, with its value at the end."""
    colours = _PALETTE[: len(table)]
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
