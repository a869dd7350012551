"""From an experiment's table to what a reader sees: a styled table, and numbers glued into prose.

No number of the book is typed: prose refers to what ``glue`` recorded when the notebook ran.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from IPython.display import HTML

from loca_sae import parameters
from loca_sae.parameters import Parameters
from loca_sae.plotting import provenance

HEADINGS = {
    "sae": "SAE",
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


def show(table: pd.DataFrame, columns: Sequence[str], name: str) -> HTML:
    """The chosen columns with the field's headings and a caption on provenance.

    name: fixes the ids in the HTML, so that a re-run gives the same document.
    """
    return plain(table[list(columns)].rename(columns=HEADINGS), name, provenance(table))


def verdicts(rows: Sequence[Mapping[str, str]], table: pd.DataFrame, name: str) -> HTML:
    """Claims of the paper beside what was measured here (see ``experiments.verdicts``)."""
    return plain(pd.DataFrame(list(rows)), name, provenance(table))


def plain(table: pd.DataFrame, name: str, caption: str) -> HTML:
    """A table as it is, with a caption of its own and numbers shown as `_number` says."""
    numbers = table.select_dtypes("number").columns
    style = (
        table.style.format(_number, subset=list(numbers), na_rep="–")
        .hide(axis="index")
        .set_caption(caption)
        .set_uuid(name)
        .set_table_attributes('class="dataframe"')
    )
    # a Styler's plain text is its address in memory, another one in each run
    return HTML(style.to_html())


def parameter_table(model: type[Parameters], name: str) -> HTML:
    """The parameters of a notebook with type, default and meaning, from their pydantic model."""
    return plain(pd.DataFrame(parameters.table(model)), name, f"parameters of {model.notebook}")


def glue(values: Mapping[str, Any], prefix: str) -> None:
    """Record values as ``<prefix>-<key>`` for ``{glue:text}`` in prose, displaying nothing."""
    from myst_nb import glue as record  # only the notebooks need myst-nb

    for key, value in values.items():
        record(f"{prefix}-{key}", value, display=False)


def _number(value: Any) -> str:
    """Integers with separators, else three decimals, fewer above 1 and a power below 0.0005."""
    if float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) < 0.0005:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:,.2f}"
