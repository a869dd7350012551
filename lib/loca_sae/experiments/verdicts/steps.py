"""C10, on the tables of notebook 04."""

import numpy as np
import pandas as pd

from loca_sae.experiments.verdicts.rules import SHORT, UNJUDGED, Row, claim_row

_LITTLE = 0.05


def ista_ablation(protocols: pd.DataFrame) -> list[Row]:
    """Rule for C10 on the table ``ista_ablation.under_protocols`` of notebook 04.

    NMSE falls from each number of steps to the next, the encoder (0 steps) included; the
    pathologies move little: dead, dF1 and absorption each stay within 0.05 over the semi rows.
    One row; keys as in `protocols.amortization`: the reading under each protocol in a column.
    """
    read = {name: _reading(rows) for name, rows in protocols.groupby("protocol", sort=False)}
    native = read["native"]
    row = {key: native[key] for key in ("claim", "the paper says")}
    row["measured here (native)"] = native["measured here"]
    for name in ("native", "described", "released"):
        row[name] = read[name]["holds here"] if name in read else UNJUDGED
    return [row]


def _reading(rows: pd.DataFrame) -> Row:
    path = rows.sort_values("ista_steps")
    semi = path[path["mode"] == "semi"]
    moves = {m: float(np.ptp(semi[m].astype(float))) for m in ("dead", "delta_f1", "absorption")}
    nmse = " → ".join(f"{value:.3f}" for value in path["nmse"])
    falls = bool((path["nmse"].astype(float).diff().dropna() < 0).all())
    return claim_row(
        "C10",
        "More semi steps lower NMSE monotonically; the pathologies move little.",
        f"{path['sae'].iloc[0]}: NMSE {nmse}; range over the steps: "
        + ", ".join(f"{SHORT[name]} {value:.3f}" for name, value in moves.items()),
        [falls, max(moves.values()) <= _LITTLE],
    )
