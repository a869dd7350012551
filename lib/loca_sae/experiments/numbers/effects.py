"""Notebook 05."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, provenance


def downstream(table: pd.DataFrame, splice: pd.DataFrame, probes: pd.DataFrame) -> Values:
    """Mean TPP scores, the splice's cost in nats, and what the probes start from."""
    values: Values = provenance(table)
    for (architecture, mode), rows in table.groupby(["architecture", "mode"]):
        values[f"tpp-{architecture}-{mode}"] = float(rows["score"].mean())
    for _, row in splice.iterrows():
        values[f"ce-{row['architecture']}-{row['mode']}"] = float(row["added_cross_entropy"])
    values["clean-ce"] = float(splice["clean_cross_entropy"].iloc[0])
    values["probe-mean"] = float(probes["accuracy"].mean())
    values["probe-low"] = float(probes["accuracy"].min())
    values["classes"] = len(probes)
    return values
