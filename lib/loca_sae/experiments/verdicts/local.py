"""C9 against controls and C13, on the tables of notebook 03."""

import numpy as np
import pandas as pd

from loca_sae.experiments.verdicts.rules import Row, claim_row, listed


def loca(table: pd.DataFrame, latents: pd.DataFrame) -> list[Row]:
    """Rules for C9 (against the controls) and C13 on the tables of notebook 03.

    C9: LocA has no dead latents, and lower dF1 and absorption than *both* controls (TopK after the
    same extra steps; LocA with random groups). C13 cannot be settled by a proxy; what is shown is
    whether AVar says more than how often a latent fires: |Spearman correlation| below 0.5.
    """
    by = table.set_index("variant")
    ours = by.loc["LocA"]
    controls = by.loc[["TopK, extra steps", "LocA, random groups"]]
    known = latents.dropna(subset="avar")
    rank = float(known["avar"].corr(known["count"], method="spearman"))
    return [
        claim_row(
            "C9",
            "LocA, one pass: no dead latents, low dF1 and absorption.",
            f"dead {ours['dead']:.3f} (controls {listed(controls['dead'])}); dF1 "
            f"{ours['delta_f1']:.3f} ({listed(controls['delta_f1'])}); absorption "
            f"{ours['absorption']:.3f} ({listed(controls['absorption'])})",
            [
                bool(ours["dead"] == 0),
                bool((ours["delta_f1"] < controls["delta_f1"]).all()),
                bool((ours["absorption"] < controls["absorption"]).all()),
            ],
        ),
        claim_row(
            "C13",
            "AVar orders latents by polysemanticity (a proxy).",
            f"over {len(known)} latents, Spearman correlation of AVar with the firing count "
            f"{rank:.2f}",
            [None if np.isnan(rank) else abs(rank) < 0.5],
        ),
    ]
