"""The numbers that the notebooks' prose refers to, computed from their tables (see ``glue``)."""

import pandas as pd

# measures that move in steps (a text, a latent): two kinds of CPU may differ by a step or two
_COARSE = ("dead", "dense_0.1", "absorption", "delta_f1", "tpp", "probe")


def coarse(values: dict[str, float | int | str]) -> dict[str, float | int | str]:
    """The numbers that are shares of few texts or latents."""
    return {key: value for key, value in values.items() if set(key.split("-")) & set(_COARSE)}


def fine(values: dict[str, float | int | str]) -> dict[str, float | int | str]:
    """The others: errors, objectives, densities, counts."""
    return {key: value for key, value in values.items() if key not in coarse(values)}


def training_dynamics(table: pd.DataFrame) -> dict[str, float | int | str]:
    """Medians over the SAEs at the first and the last checkpoint."""
    values: dict[str, float | int | str] = _provenance(table)
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


def amortization(table: pd.DataFrame) -> dict[str, float | int | str]:
    """NMSE, L0 and certificate of each SAE under each kind of inference."""
    values: dict[str, float | int | str] = _provenance(table)
    for _, row in table.iterrows():
        kind = "exact" if row["solver"] == "exact" else row["mode"]
        for measure in ("nmse", "l0", "dead", "absorption", "delta_f1", "duality_gap"):
            values[f"{row['architecture']}-{kind}-{measure}"] = _number(row[measure])
    values["matched"] = int(table["l0_matched"].sum())
    values["rows"] = len(table)
    return values


def loca(table: pd.DataFrame, latents: pd.DataFrame) -> dict[str, float | int | str]:
    """LocA and its controls, and the range of angular variance."""
    values: dict[str, float | int | str] = _provenance(table)
    keys = {
        "TopK, phase 1": "pretrained",
        "TopK, extra steps": "extra",
        "LocA, random groups": "random",
        "LocA": "loca",
    }
    for _, row in table.iterrows():
        for measure in ("nmse", "fvu", "l0", "dead", "absorption", "delta_f1"):
            values[f"{keys[row['variant']]}-{measure}"] = _number(row[measure])
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


def ista_ablation(table: pd.DataFrame) -> dict[str, float | int | str]:
    """The encoder, the fewest and the most ISTA steps, and the certified optimum."""
    values: dict[str, float | int | str] = _provenance(table)
    semi = table[table["mode"] == "semi"].sort_values("ista_steps")
    named = {
        "encoder": table[table["mode"] == "full"].iloc[0],
        "fewest": semi.iloc[0],
        "most": semi.iloc[-1],
        "exact": table[table["solver"] == "exact"].iloc[0],
    }
    for name, row in named.items():
        for measure in ("nmse", "l0", "duality_gap", "gap_relative", "dead", "absorption"):
            values[f"{name}-{measure}"] = _number(row[measure])
    values["fewest-steps"] = int(semi["ista_steps"].iloc[0])
    values["most-steps"] = int(semi["ista_steps"].iloc[-1])
    values["architecture"] = str(table["architecture"].iloc[0])
    return values


def downstream(
    table: pd.DataFrame, splice: pd.DataFrame, probes: pd.DataFrame
) -> dict[str, float | int | str]:
    """Mean TPP scores, the splice's cost in nats, and what the probes start from."""
    values: dict[str, float | int | str] = _provenance(table)
    for (architecture, mode), rows in table.groupby(["architecture", "mode"]):
        values[f"tpp-{architecture}-{mode}"] = float(rows["score"].mean())
    for _, row in splice.iterrows():
        values[f"ce-{row['architecture']}-{row['mode']}"] = float(row["added_cross_entropy"])
    values["clean-ce"] = float(splice["clean_cross_entropy"].iloc[0])
    values["probe-mean"] = float(probes["accuracy"].mean())
    values["probe-low"] = float(probes["accuracy"].min())
    values["classes"] = len(probes)
    return values


def _provenance(table: pd.DataFrame) -> dict[str, float | int | str]:
    row = table.iloc[0]
    return {
        "model": str(row["model"]),
        "layer": int(row["layer"]),
        "train-tokens": int(row["train_tokens"]),
        "eval-tokens": int(row["eval_tokens"]),
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
