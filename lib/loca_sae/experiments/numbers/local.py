"""Notebook 03."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, number, provenance


def loca(table: pd.DataFrame, latents: pd.DataFrame) -> Values:
    """LocA and its controls, and the range of angular variance."""
    values: Values = provenance(table)
    keys = {
        "TopK, phase 1": "pretrained",
        "TopK, extra steps": "extra",
        "LocA, random groups": "random",
        "LocA": "loca",
    }
    for _, row in table.iterrows():
        for measure in ("nmse", "fvu", "l0", "dead", "absorption", "delta_f1"):
            values[f"{keys[row['variant']]}-{measure}"] = number(row[measure])
    known = latents.dropna(subset="avar")
    values |= {
        "latents": len(latents),
        "undefined": int(latents["avar"].isna().sum()),
        "avar-low": float(known["avar"].min()),
        "avar-median": float(known["avar"].median()),
        "avar-high": float(known["avar"].max()),
        "rank": float(known["avar"].corr(known["count"], method="spearman")),
    }
    return values
