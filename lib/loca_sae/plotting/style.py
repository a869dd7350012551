"""The one visual language: colours, labels, and the line that says what was measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

PALETTE = sns.color_palette("colorblind")
COLOURS = {
    "standard": PALETTE[0],
    "topk": PALETTE[1],
    "loca": PALETTE[2],
    "batchtopk": PALETTE[4],
    "gated": PALETTE[5],
    "jumprelu": PALETTE[9],
    "matryoshka_batchtopk": PALETTE[6],
    "full": PALETTE[7],
    "semi": PALETTE[3],
    "non": PALETTE[0],
}
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
    """The line under every figure: model, layer, tokens, seed, protocol.

    SAEs that the companion did not train have no known number of training tokens.
    """
    row = table.iloc[0]
    seeds = ", ".join(str(seed) for seed in sorted(table["seed"].unique()))
    sizes = ", ".join(f"{size:,}" for size in sorted(table["d_sae"].unique()))
    known = table["train_tokens"].dropna()
    trained = f"trained on {int(known.iloc[0]):,} tokens, " if len(known) else ""
    return (
        f"{row['model']}, layer {row['layer']} · d_sae {sizes} · {trained}measured on "
        f"{row['eval_tokens']:,} held-out tokens · "
        f"seed {seeds} · protocol {row['protocol']}"
    )


def finish(figure: Figure, table: pd.DataFrame) -> Figure:
    """Lay the figure out and write the provenance line under it."""
    inch = 1 / figure.get_figheight()
    figure.tight_layout(rect=(0, 0.2 * inch, 1, 1))
    figure.text(0.5, 0.005, provenance(table), ha="center", va="bottom", fontsize=7, color="0.35")
    return figure
