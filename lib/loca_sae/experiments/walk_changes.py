"""Which choice moves which number: the steps of the walk from released to native, compared."""

from typing import Any

import pandas as pd

# measure -> its heading in the summary
MEASURES = {
    "nmse": "NMSE",
    "dead": "dead",
    "dense_0.1": "dense@0.1",
    "delta_f1": "dF1",
    "absorption": "absorption",
}


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """What each step that applies changed: a row a step, SAE and mode, in the order of ``table``.

    Columns sae, mode, switch, order; and for each of `MEASURES` the value after the step minus the
    value before it, NaN where either does not exist.
    """
    measures = list(MEASURES)
    rows = table.sort_values("order", kind="stable")
    steps = rows[["sae", "mode", "switch", "order"]].copy()
    values = rows[measures].astype(float)
    steps[measures] = values.groupby([rows["sae"], rows["mode"]], sort=False).diff()
    return steps[rows["applies"].astype(bool) & (rows["order"] > 0)]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Which choice moves which number: a row a switch, in the order of the walk.

    table: from `run`. Each measure's change at that switch is a mean over the SAEs and modes to
    which it applies ("applies in", of so many). "moves most" names the measures that no other
    switch changes by as much, in the mean of absolute changes. A switch that applies nowhere has
    no numbers.
    """
    moved = changes(table)
    mean = moved.groupby("switch")[list(MEASURES)].mean()
    movers = largest(table)
    cases = table.groupby("switch")["applies"].agg(["sum", "size"])
    rows = []
    for switch in table.sort_values("order")["switch"].unique()[1:]:
        row: dict[str, Any] = {"choice": switch}
        for measure, heading in MEASURES.items():
            row[heading] = mean[measure].get(switch, float("nan"))
        most = [MEASURES[measure] for measure, mover in movers.items() if mover == switch]
        row["moves most"] = ", ".join(most)
        row["applies in"] = "{} of {}".format(*(int(n) for n in cases.loc[switch]))
        rows.append(row)
    return pd.DataFrame(rows)


def largest(table: pd.DataFrame) -> dict[str, str]:
    """Measure -> the switch with the largest mean absolute change of it; none if nothing moved."""
    steps = changes(table)
    steps[list(MEASURES)] = steps[list(MEASURES)].abs()
    by_switch = steps.groupby("switch", sort=False)[list(MEASURES)]
    moved = by_switch.mean()
    return {m: str(moved[m].idxmax()) for m in MEASURES if moved[m].max() > 0}
