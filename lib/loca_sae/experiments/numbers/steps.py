"""Notebook 04."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, number, provenance


def ista_ablation(table: pd.DataFrame) -> Values:
    """The encoder, the fewest and the most ISTA steps, and the certified optimum."""
    values: Values = provenance(table)
    semi = table[table["mode"] == "semi"].sort_values("ista_steps")
    named = {
        "encoder": table[table["mode"] == "full"].iloc[0],
        "fewest": semi.iloc[0],
        "most": semi.iloc[-1],
        "exact": table[table["solver"] == "exact"].iloc[0],
    }
    for name, row in named.items():
        for measure in ("nmse", "l0", "duality_gap", "gap_relative", "dead", "absorption"):
            values[f"{name}-{measure}"] = number(row[measure])
    values["fewest-steps"] = int(semi["ista_steps"].iloc[0])
    values["most-steps"] = int(semi["ista_steps"].iloc[-1])
    values["architecture"] = str(table["architecture"].iloc[0])
    return values
