"""Notebook 02."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, number, provenance


def amortization(table: pd.DataFrame) -> Values:
    """NMSE, L0 and certificate of each SAE under each kind of inference."""
    values: Values = provenance(table)
    for _, row in table.iterrows():
        kind = "exact" if row["solver"] == "exact" else row["mode"]
        for measure in ("nmse", "l0", "dead", "absorption", "delta_f1", "duality_gap"):
            values[f"{row['architecture']}-{kind}-{measure}"] = number(row[measure])
    values["matched"] = int(table["l0_matched"].sum())
    values["rows"] = len(table)
    return values
