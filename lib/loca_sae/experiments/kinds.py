"""The kinds of inference that notebook 02 compares, by what tells them apart in a table's rows."""

from typing import NamedTuple

import pandas as pd


class Kind(NamedTuple):
    """mode, solver and refit of the rows of one kind; full mode has no solver."""

    mode: str
    solver: str | None
    refit: bool


KINDS = {
    "encoder": Kind("full", None, False),
    "encoder, refitted": Kind("full", None, True),
    "semi": Kind("semi", "ista", False),
    "non": Kind("non", "ista", False),
    "lasso": Kind("non", "exact", False),
    "lasso, refitted": Kind("non", "exact", True),
    "k-sparse": Kind("non", "omp", False),
    "matching pursuit": Kind("non", "matching_pursuit", False),
}


def of_kind(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one kind, with the SAE's label as index; empty where there are none.

    ValueError for a name that is not in `KINDS`, and for an SAE with two rows of one kind.
    """
    if name not in KINDS:
        raise ValueError(f"kind of inference {name!r} is unknown; use one of {list(KINDS)}.")
    kind = KINDS[name]
    chosen = (table["mode"] == kind.mode) & (table["refit"].astype(bool) == kind.refit)
    if kind.solver is not None:
        chosen &= table["solver"] == kind.solver
    rows = table[chosen].set_index("sae")
    twice = rows.index[rows.index.duplicated()].unique()
    if len(twice):
        raise ValueError(
            f"{list(twice)} have more than one row of kind {name!r}: give a table of one "
            "protocol and one number of steps, with one label an SAE."
        )
    return rows
