"""What all of them share: provenance, and which numbers move in steps."""

import pandas as pd

Values = dict[str, float | int | str]
# measures that move in steps (a text, a latent): two kinds of CPU may differ by a step or two
_COARSE = ("dead", "dense_0.1", "absorption", "delta_f1", "tpp", "probe")


def coarse(values: Values) -> Values:
    """The numbers that are shares of few texts or latents."""
    return {key: value for key, value in values.items() if set(key.split("-")) & set(_COARSE)}


def fine(values: Values) -> Values:
    """The others: errors, objectives, densities, counts."""
    return {key: value for key, value in values.items() if key not in coarse(values)}


def provenance(table: pd.DataFrame) -> Values:
    """What was measured on what; SAEs from elsewhere have no known number of training tokens."""
    row = table.iloc[0]
    known = table["train_tokens"].dropna()
    return {
        "model": str(row["model"]),
        "layer": int(row["layer"]),
        "train-tokens": int(known.iloc[0]) if len(known) else "an unknown number of",
        "eval-tokens": int(row["eval_tokens"]),
    }


def number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
