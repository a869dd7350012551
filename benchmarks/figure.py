"""The figure of the book's page: how fast, and how far from the optimum."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import settings
from benchmarks.solvers import SOLVERS
from benchmarks.summary import Row
from loca_sae.plotting.style import PALETTE, style

# marker and colour: a solver is known by either alone
_LOOK = {
    "solve": ("o", PALETTE[0]),
    "spams": ("s", PALETTE[1]),
    "ista": ("v", PALETTE[2]),
    "ista_dense": ("^", PALETTE[4]),
    "fista": ("D", PALETTE[5]),
    "lasso_cd": ("P", PALETTE[8]),
    "lasso_lars": ("X", PALETTE[6]),
    "encoder": ("*", PALETTE[7]),
}


def draw(details: Sequence[Row]) -> Figure:
    """A row of panels a model, a panel a d_sae: gap against speed, all threads. Filled marks are
    for the lower L0, hollow ones for the higher."""
    models = [subject.model for subject in settings.SUBJECTS]
    sizes = [d_sae for d_sae in settings.SIZES if any(r["d_sae"] == d_sae for r in details)]
    with style():
        figure, axes = plt.subplots(
            len(models),
            len(sizes),
            figsize=(3.0 * len(sizes), 2.5 * len(models) + 0.9),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for line, model in zip(axes, models, strict=True):
            for ax, d_sae in zip(line, sizes, strict=True):
                own = [r for r in details if (r["model"], r["d_sae"]) == (model, d_sae)]
                most = max((row["threads"] for row in own), default=0)
                panel([row for row in own if row["threads"] == most], ax)
                ax.set_title(f"{model}, d_sae {d_sae:,}")
            line[0].set_ylabel("relative duality gap (mean)")
        for ax in axes[-1]:
            ax.set_xlabel("samples a second")
        handles, labels = _legend(axes[0][0], details)
        figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=8)
        figure.tight_layout(rect=(0, 0.8 / figure.get_figheight(), 1, 1))
    return figure


def panel(rows: Sequence[Row], ax: Axes) -> Axes:
    """One dictionary. The line is the gap that the exact solver is asked for."""
    for row in rows:
        marker, colour = _LOOK[row["solver"]]
        low = row["l0_target"] == min(settings.L0_TARGETS)
        ax.plot(
            row["samples_per_second"],
            max(row["gap_mean"], 1e-8),
            marker=marker,
            color=colour,
            markerfacecolor=colour if low else "none",
            markersize=9 if marker == "*" else 6,
            linestyle="none",
        )
    ax.axhline(settings.TOL, color="0.4", linewidth=0.8, linestyle="--")
    ax.set_xscale("log")
    ax.set_yscale("log")
    return ax


def _legend(ax: Axes, details: Sequence[Row]) -> tuple[list, list[str]]:
    measured = {row["solver"] for row in details}
    names = [name for name in SOLVERS if name in measured]
    handles = [
        ax.plot([], [], marker=_LOOK[name][0], color=_LOOK[name][1], linestyle="none")[0]
        for name in names
    ]
    return handles, [SOLVERS[name].label for name in names]


def save(figure: Figure, path: Path) -> None:
    """As SVG, transparent, without a date: the same numbers give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(path, metadata={"Date": None, "Creator": None}, transparent=True)
    plt.close(figure)
