"""Notebook 02, the walk from released to native."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, number
from loca_sae.experiments.walk_changes import MEASURES, changes, largest


def walk(table: pd.DataFrame) -> Values:
    """Where the walk starts and ends, and which choice moves each measure most.

    table: from `protocol_walk.run`. Keys, for each measure m of nmse, dead, dense_0.1, delta_f1
    and absorption:

    - walk-saes, walk-modes, walk-choices, walk-tokens, walk-grid_tokens (calibration activations
      on which the release's lambdas were compared, or "no" where no mode needs one);
    - walk-m-released, walk-m-native: medians over SAEs and modes;
    - walk-m-mover: the choice with the largest mean absolute change of m, and walk-m-moved: that
      change with its sign, in the mean over the SAEs and modes that it applies to.
    """
    moved, movers = changes(table), largest(table)
    values: Values = {
        "walk-saes": int(table["sae"].nunique()),
        "walk-modes": ", ".join(table["mode"].unique()),
        "walk-choices": int(table["order"].max()),
        "walk-tokens": int(table["eval_tokens"].min()),
        "walk-grid_tokens": _grid_tokens(table),
    }
    ends = {"released": table["order"].min(), "native": table["order"].max()}
    for measure in MEASURES:
        for name, order in ends.items():
            at_end = table.loc[table["order"] == order, measure].astype(float)
            values[f"walk-{measure}-{name}"] = number(at_end.median())
        mover = movers.get(measure, "no choice")
        mean = moved.loc[moved["switch"] == mover, measure].mean()
        values[f"walk-{measure}-mover"] = mover
        values[f"walk-{measure}-moved"] = 0.0 if pd.isna(mean) else number(mean)
    return values


def _grid_tokens(table: pd.DataFrame) -> int | str:
    searched = table[(table["mode"] != "full") & (table["order"] == table["order"].min())]
    return int(searched["calibration_tokens"].min()) if len(searched) else "no"
