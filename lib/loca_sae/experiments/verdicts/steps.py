"""C10, on the table of notebook 04."""

import numpy as np
import pandas as pd

from loca_sae.experiments.verdicts.rules import SHORT, Row, claim_row


def ista_ablation(table: pd.DataFrame) -> list[Row]:
    """Rule for C10 on the table of notebook 04.

    NMSE falls from each number of steps to the next, the encoder (0 steps) included; the
    pathologies move little: dead, dF1 and absorption each stay within 0.05 of the first semi row.
    """
    path = table[table["mode"] != "non"].sort_values("ista_steps")
    semi = path[path["mode"] == "semi"]
    moves = {m: float(np.ptp(semi[m])) for m in ("dead", "delta_f1", "absorption")}
    nmse = " → ".join(f"{value:.3f}" for value in path["nmse"])
    return [
        claim_row(
            "C10",
            "More semi steps lower NMSE monotonically; the pathologies move little.",
            f"NMSE {nmse}; range over the steps: "
            + ", ".join(f"{SHORT[name]} {value:.3f}" for name, value in moves.items()),
            [bool(path["nmse"].is_monotonic_decreasing), max(moves.values()) < 0.05],
        )
    ]
