"""Notebook 01."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, provenance


def training_dynamics(table: pd.DataFrame) -> Values:
    """Medians over the SAEs at the first and the last checkpoint."""
    values: Values = provenance(table)
    groups = table.groupby(["architecture", "sparsity"])
    values["saes"] = groups.ngroups
    values["checkpoints"] = int(table["step"].nunique())
    values["steps"] = int(table["step"].max())
    for name, step in (("first", table["step"].min()), ("last", table["step"].max())):
        rows = table[table["step"] == step]
        values[f"{name}-tokens"] = int(rows["seen_tokens"].iloc[0])
        for measure in ("nmse", "gap_relative", "dead", "dense_0.1", "absorption", "delta_f1"):
            values[f"{name}-{measure}"] = float(rows[measure].median())
    values["unmatched"] = int((~table["gap_l0_matched"].astype(bool)).sum())
    values["rows"] = len(table)
    return values
