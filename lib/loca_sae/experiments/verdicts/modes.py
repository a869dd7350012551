"""C6 and C9, on the table of notebook 02."""

import pandas as pd

from loca_sae.experiments.verdicts.rules import SHORT, Row, claim_row


def amortization(table: pd.DataFrame) -> list[Row]:
    """Rules for C6 and C9 on the table of notebook 02.

    C6: over the SAEs and the two ISTA modes, NMSE, dead, absorption and dF1 are each lower than in
    full mode in more than half of the cases. C9: LocA in full mode has no dead latent, dF1 and
    absorption below TopK's in full mode, and an NMSE above its own in non mode.
    """
    ista = table[table["solver"] == "ista"]
    wide = ista.pivot(index="architecture", columns="mode")
    rows, parts = [], []
    for measure in ("nmse", "dead", "absorption", "delta_f1"):
        full = wide[measure]["full"]
        lower = pd.concat([wide[measure][mode] < full for mode in ("semi", "non")])
        parts.append(bool(lower.mean() > 0.5))
        rows.append(f"{SHORT[measure]} lower in {int(lower.sum())} of {len(lower)}")
    loca, topk = wide.loc["loca"], wide.loc["topk"]
    return [
        claim_row(
            "C6",
            "Semi and non lower NMSE, dead rate, absorption and (partly) splitting, at the same "
            "decoder and density.",
            "; ".join(rows),
            parts,
        ),
        claim_row(
            "C9",
            "LocA, one pass: no dead latents, low dF1 and absorption, NMSE worse than non.",
            f"dead {loca['dead']['full']:.3f}; dF1 {loca['delta_f1']['full']:.3f} (TopK "
            f"{topk['delta_f1']['full']:.3f}); absorption {loca['absorption']['full']:.3f} (TopK "
            f"{topk['absorption']['full']:.3f}); NMSE {loca['nmse']['full']:.3f} (non "
            f"{loca['nmse']['non']:.3f})",
            [
                loca["dead"]["full"] == 0,
                loca["delta_f1"]["full"] < topk["delta_f1"]["full"],
                loca["absorption"]["full"] < topk["absorption"]["full"],
                loca["nmse"]["full"] > loca["nmse"]["non"],
            ],
        ),
    ]
