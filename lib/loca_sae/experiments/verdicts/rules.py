"""One claim, one row: how the parts of a rule become a verdict."""

from collections.abc import Iterable

import pandas as pd

Row = dict[str, str]
UNJUDGED = "cannot be judged"
SHORT = {"nmse": "NMSE", "dead": "dead", "absorption": "absorption", "delta_f1": "dF1"}


def claim_row(claim: str, says: str, measured: str, parts: Iterable[bool | None]) -> Row:
    """ "yes" if every part of the rule holds, "no" if none, "in part" between, else unjudged."""
    known = [part for part in parts if part is not None]
    read = "yes" if all(known) else "in part" if any(known) else "no"
    holds = read if known else UNJUDGED
    return {"claim": claim, "the paper says": says, "measured here": measured, "holds here": holds}


def rises(values: pd.Series, tolerance: float = 0.0) -> bool:
    """Whether a sequence ends above where it starts."""
    return bool(values.iloc[-1] > values.iloc[0] + tolerance)


def span(values: pd.Series) -> str:
    return f"{values.iloc[0]:.3f} → {values.iloc[-1]:.3f}"


def listed(values: pd.Series) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
