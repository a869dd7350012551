"""From an experiment's table to what a reader sees: a styled table, and numbers glued into prose.

No number of the book is typed: prose refers to what ``glue`` recorded when the notebook ran.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from loca_sae.plotting import provenance

HEADINGS = {
    "architecture": "SAE",
    "sparsity": "k or L1 weight",
    "ista_steps": "ISTA steps",
    "lam": "λ",
    "nmse": "NMSE",
    "fvu": "FVU",
    "l0": "L0",
    "l0_matched": "L0 matched",
    "dense_0.1": "dense@0.1",
    "dense_0.2": "dense@0.2",
    "f1_1": "F1@1",
    "delta_f1": "dF1",
    "gap_relative": "gap (relative)",
    "duality_gap": "duality gap (relative)",
    "added_cross_entropy": "added CE (nats)",
    "kl": "KL (nats)",
}


def show(table: pd.DataFrame, columns: Sequence[str], name: str) -> Styler:
    """The chosen columns with the field's headings, three digits, and a caption on provenance.

    name: fixes the ids in the HTML, so that a re-run gives the same document.
    """
    shown = table[list(columns)].rename(columns=HEADINGS)
    numbers = shown.select_dtypes("number").columns
    return (
        shown.style.format(_number, subset=list(numbers), na_rep="–")
        .format(na_rep="–", subset=[c for c in shown.columns if c not in numbers])
        .hide(axis="index")
        .set_caption(provenance(table))
        .set_uuid(name)
        .set_table_attributes('class="dataframe"')
    )


def verdicts(rows: Sequence[Mapping[str, Any]], table: pd.DataFrame, name: str) -> Styler:
    """Claims of the paper beside what was measured here (see ``experiments.verdicts``)."""
    frame = pd.DataFrame(list(rows))
    return (
        frame.style.hide(axis="index")
        .set_caption(provenance(table))
        .set_uuid(name)
        .set_table_attributes('class="dataframe"')
    )


def glue(values: Mapping[str, Any], prefix: str) -> None:
    """Record values under ``<prefix>-<key>`` for ``{glue:text}`` in the prose, displaying nothing."""
    from myst_nb import glue as record  # only the notebooks need myst-nb

    for key, value in values.items():
        record(f"{prefix}-{key}", value, display=False)


def _number(value: float) -> str:
    if float(value).is_integer() and abs(value) >= 1:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:,.2f}"
