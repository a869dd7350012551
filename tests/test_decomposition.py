"""The price of amortization, cut into parts, on tables made by hand."""

import numpy as np
import pandas as pd
import pytest

from loca_sae.experiments.decomposition import decomposition, levels_table, parts_table
from loca_sae.experiments.kinds import KINDS, of_kind

HEAD = {
    "protocol": "native", "model": "toy", "layer": 1, "d_sae": 64, "train_tokens": 1000,
    "eval_tokens": 200, "seed": 0,
}  # fmt: skip
INFERENCE = {
    "encoder": "full", "encoder, refitted": "full, refitted", "semi": "semi (25 steps)",
    "non": "non (200 steps)", "lasso": "non (exact)", "lasso, refitted": "non (exact), refitted",
    "k-sparse": "k-sparse (OMP)", "matching pursuit": "matching pursuit",
}  # fmt: skip
# what a TopK SAE on SmolLM2-135M looked like, in the order of KINDS
NMSE = dict(zip(KINDS, [0.098, 0.093, 0.129, 0.139, 0.140, 0.086, 0.092, 0.097], strict=True))


def all_kinds(sae: str = "topk", architecture: str | None = None, **measures) -> pd.DataFrame:
    """A row a kind of inference; a measure is a number, or a number for some of the kinds."""
    rows = []
    for name, kind in KINDS.items():
        row = {
            **HEAD,
            "sae": sae,
            "architecture": architecture or sae,
            "inference": INFERENCE[name],
        }
        row |= {"mode": kind.mode, "solver": kind.solver or "ista", "refit": kind.refit}
        row |= {"nmse": NMSE[name], "l0": 20.0, "l0_matched": True, "gap_relative": 0.1}
        row |= dict.fromkeys(["dead", "dense_0.1", "delta_f1", "absorption"], 0.2)
        row["duality_gap"] = None if kind.mode == "full" else 0.01
        for measure, value in measures.items():
            if not isinstance(value, dict):
                row[measure] = value
            elif name in value:
                row[measure] = value[name]
        rows.append(row)
    return pd.DataFrame(rows)


def test_value_and_support_choice_add_up_to_the_price_of_amortization() -> None:
    saes = ("standard", "topk", "gated")
    rng = np.random.default_rng(0)
    table = pd.concat(
        [all_kinds(s, nmse=dict(zip(KINDS, rng.random(8), strict=True))) for s in saes]
    )
    parts = decomposition(table)
    assert list(parts["sae"]) == list(saes)
    assert np.allclose(parts["value"] + parts["support"], parts["price"])
    by = {name: of_kind(table, name)["nmse"].to_numpy() for name in KINDS}
    assert np.allclose(parts["price"], by["encoder"] - by["k-sparse"])
    assert np.allclose(parts["shrinkage"], by["lasso"] - by["lasso, refitted"])
    assert np.allclose(parts["lasso_support"], by["lasso, refitted"] - by["k-sparse"])
    assert np.allclose(parts["price_share"], parts["price"] / by["encoder"])


def test_the_parts_keep_the_sign_that_comes_out() -> None:
    row = decomposition(all_kinds(nmse={"k-sparse": 0.095})).iloc[0]
    assert row["value"] == pytest.approx(0.005)
    assert row["support"] == pytest.approx(-0.002), "a greedy support may lose to the encoder's"
    assert row["price"] == pytest.approx(0.003)


def test_the_l0s_stand_beside_the_errors() -> None:
    table = all_kinds(l0={"encoder, refitted": 19.0, "lasso, refitted": 18.0})
    parts = decomposition(table)
    l0, nmse = (levels_table(parts, measure).iloc[0] for measure in ("l0", "nmse"))
    assert (l0["encoder"], l0["encoder, refitted"], l0["lasso, refitted"]) == (20.0, 19.0, 18.0)
    assert (nmse["SAE"], nmse["encoder"], nmse["lasso"]) == ("topk", 0.098, 0.140)


def test_readers_see_one_column_a_part() -> None:
    shown = parts_table(decomposition(all_kinds()))
    assert list(shown.columns)[:4] == [
        "SAE",
        "value choice",
        "support choice",
        "price of amortization",
    ]
    assert shown.iloc[0]["price of amortization"] == pytest.approx(0.006)


def test_a_kind_that_one_sae_lacks_is_unknown_and_one_that_all_lack_is_an_error() -> None:
    two = pd.concat([all_kinds("topk"), all_kinds("gated")], ignore_index=True)
    lacking = two[~((two["sae"] == "gated") & (two["solver"] == "omp"))]
    parts = decomposition(lacking).set_index("sae")
    assert np.isnan(parts.loc["gated", "price"]) and parts.loc["topk", "price"] > 0
    with pytest.raises(ValueError, match="no row of kind 'k-sparse'"):
        decomposition(two[two["solver"] != "omp"])


def test_two_rows_of_one_kind_are_refused() -> None:
    table = pd.concat([all_kinds(), all_kinds()])
    with pytest.raises(ValueError, match="more than one row of kind"):
        decomposition(table)
    with pytest.raises(ValueError, match="'guess' is unknown"):
        of_kind(table, "guess")


def test_each_row_of_a_table_is_of_exactly_one_kind() -> None:
    table = all_kinds()
    found = [of_kind(table, name)["inference"].tolist() for name in KINDS]
    assert found == [[INFERENCE[name]] for name in KINDS]
