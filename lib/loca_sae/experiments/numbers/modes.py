"""Notebook 02."""

import pandas as pd

from loca_sae.experiments.decomposition import PARTS
from loca_sae.experiments.kinds import KINDS, of_kind
from loca_sae.experiments.numbers.values import Values, number, provenance


def amortization(table: pd.DataFrame, parts: pd.DataFrame) -> Values:
    """How often each kind of inference beats the encoder, and the medians of the decomposition.

    table: notebook 02's, under native. parts: its `decomposition`. The keys do not depend on which
    SAEs a reader chose, so that the prose holds for any list of them:

    - saes, rows, matched, unmatched (rows whose L0 agrees with the encoder's or does not);
    - <kind>-lower: SAEs in which a kind of inference has a lower NMSE than the encoder, and
      <kind>-nmse: its median over the SAEs; kinds as in `KINDS`, written with underscores;
    - <part>-median, -low, -high: over the SAEs, of each part of the decomposition and of the
      price's share of the encoder's NMSE; value-larger: SAEs whose value choice is the larger part;
    - semi-duality_gap, non-duality_gap (medians) and lasso-duality_gap (the largest): relative;
    - cheapest-sae, dearest-sae: with the smallest and the largest share, and their shares.
    """
    values: Values = provenance(table)
    matched = int(table["l0_matched"].astype(bool).sum())
    values |= {"saes": len(parts), "rows": len(table)}
    values |= {"matched": matched, "unmatched": len(table) - matched}
    return {**values, **_by_kind(table), **_by_part(parts)}


def _by_kind(table: pd.DataFrame) -> Values:
    values: Values = {}
    encoder = of_kind(table, "encoder")["nmse"]
    for kind in KINDS:
        rows = of_kind(table, kind)
        key = kind.replace(", ", "_").replace(" ", "_")
        values[f"{key}-nmse"] = number(rows["nmse"].median())
        values[f"{key}-lower"] = int((rows["nmse"] < encoder.reindex(rows.index)).sum())
    for kind in ("semi", "non", "lasso"):
        gaps = of_kind(table, kind)["duality_gap"].astype(float)
        values[f"{kind}-duality_gap"] = number(gaps.max() if kind == "lasso" else gaps.median())
    return values


def _by_part(parts: pd.DataFrame) -> Values:
    values: Values = {"value-larger": int((parts["value"] > parts["support"]).sum())}
    for part in (*PARTS, "price_share"):
        values[f"{part}-median"] = number(parts[part].median())
        values[f"{part}-low"] = number(parts[part].min())
        values[f"{part}-high"] = number(parts[part].max())
    order = parts.dropna(subset="price_share").sort_values("price_share")
    for name, row in (("cheapest", order.iloc[0]), ("dearest", order.iloc[-1])):
        values[f"{name}-sae"] = str(row["sae"])
        values[f"{name}-share"] = number(row["price_share"])
    return values
