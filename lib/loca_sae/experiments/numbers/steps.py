"""Notebook 04."""

import pandas as pd

from loca_sae.experiments.numbers.values import Values, number, provenance


def ista_ablation(table: pd.DataFrame) -> Values:
    """Of the first SAE: the encoder, the fewest and most steps from either start, the optimum.

    And over all SAEs: in how many more steps lowered the NMSE of semi codes below the encoder's,
    raw and refitted, and the largest duality gap that the most steps from zero left.
    """
    values: Values = provenance(table)
    first = table[table["sae"] == table["sae"].iloc[0]]
    raw, refit = (first[first["refit"].astype(bool) == flag] for flag in (False, True))
    values["architecture"] = str(first["architecture"].iloc[0])
    counts = sorted(table["ista_steps"].astype(float).dropna().unique())
    values["fewest-steps"], values["most-steps"] = int(counts[1]), int(counts[-1])
    for name, start, steps in (
        ("encoder", "encoder", 0.0),
        ("fewest", "encoder", counts[1]),
        ("most", "encoder", counts[-1]),
        ("zero", "zero", counts[-1]),
        ("exact", "optimum", None),
    ):
        row, refitted = (_row(rows, start, steps) for rows in (raw, refit))
        for measure in ("nmse", "l0", "duality_gap", "gap_relative", "dead", "absorption"):
            values[f"{name}-{measure}"] = number(row[measure])
        values[f"{name}-refitted-nmse"] = number(refitted["nmse"])
    values["saes"] = int(table["sae"].nunique())
    values["matched"] = int(table["l0_matched"].astype(bool).sum())
    values["rows"] = len(table)
    values |= _over_all(table, counts[-1])
    return values


def ista_protocols(protocols: pd.DataFrame) -> Values:
    """What the steps from the encoder do under each protocol, and how dense the codes are there.

    protocols: ``ista_ablation.under_protocols``. Of each protocol: NMSE and L0 of the encoder and
    after the most steps (<protocol>-encoder-nmse, <protocol>-most-l0, ...), and target_l0, the L0
    that lambda was aimed at. d_sae and protocol-steps, the most steps, are those of all of them.
    """
    values: Values = {"d_sae": int(protocols["d_sae"].iloc[0])}
    values["protocol-steps"] = int(protocols["ista_steps"].max())
    for name, rows in protocols.groupby("protocol", sort=False):
        path = rows.sort_values("ista_steps")
        for place, row in (("encoder", path.iloc[0]), ("most", path.iloc[-1])):
            for measure in ("nmse", "l0"):
                values[f"{name}-{place}-{measure}"] = number(row[measure])
        values[f"{name}-target_l0"] = number(path["target_l0"].iloc[-1])
    return values


def _over_all(table: pd.DataFrame, most: float) -> Values:
    lower = {"raw": 0, "refitted": 0}
    gaps = []
    for _, found in table.groupby("sae", sort=False):
        encoder = _row(found[~found["refit"].astype(bool)], "encoder", 0.0)["nmse"]
        for name, flag in (("raw", False), ("refitted", True)):
            rows = found[found["refit"].astype(bool) == flag]
            lower[name] += int(_row(rows, "encoder", most)["nmse"] < encoder)
        gaps.append(_row(found[~found["refit"].astype(bool)], "zero", most)["duality_gap"])
    values: Values = {f"lower-{name}": count for name, count in lower.items()}
    values["largest-gap"], values["smallest-gap"] = float(max(gaps)), float(min(gaps))
    return values


def _row(rows: pd.DataFrame, start: str, steps: float | None) -> pd.Series:
    chosen = rows["start"] == start
    if steps is not None:
        chosen &= rows["ista_steps"].astype(float) == steps
    return rows[chosen].iloc[0]
