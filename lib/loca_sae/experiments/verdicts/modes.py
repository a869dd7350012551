"""C6, C7, C8, C9 and C12, on a table of notebook 02 measured under one protocol."""

from collections.abc import Sequence

import pandas as pd

from loca_sae.experiments.kinds import of_kind
from loca_sae.experiments.verdicts.rules import SHORT, Row, claim_row

LASSO, BETTER = ("semi", "non"), ("lasso, refitted", "k-sparse")
_STEADY = ("dead", "dense_0.1", "delta_f1", "absorption")
_C6 = "dead rate, absorption and (partly) splitting, at the same decoder and density"


def readings(table: pd.DataFrame) -> list[Row]:
    """Every claim of notebook 02 on one table, whose rows share a model and a protocol."""
    return [
        better_inference(table, LASSO, "C6", f"Semi and non lower NMSE, {_C6}."),
        better_inference(
            table,
            BETTER,
            "C6, without shrinkage",
            "The same, read on codes that no L1 penalty shrinks: the exact lasso code refitted, "
            "and the k-sparse code.",
        ),
        jumprelu_absorption(table),
        gated_and_steady(table),
        local_amortization(table),
        topk_gets_worse(table),
    ]


def better_inference(table: pd.DataFrame, kinds: Sequence[str], claim: str, says: str) -> Row:
    """Rule for C6: NMSE, dead, absorption and dF1 each lower than the encoder's in most cases.

    A case is an SAE and a kind of inference; each measure is a part of the rule and holds if more
    than half of its cases are lower. Left out are cases where both values are 0 (there is nothing
    to lower) and, unless the protocol is "released", whose grid of lambdas is not meant to match
    anything, rows whose L0 could not be matched.
    """
    full = of_kind(table, "encoder")
    parts: list[bool | None] = []
    words = []
    for measure in ("nmse", "dead", "absorption", "delta_f1"):
        pairs = [(full[measure], _matched(of_kind(table, kind))[measure]) for kind in kinds]
        cases = pd.concat(
            [pd.DataFrame({"full": a, "other": b}).astype(float).dropna() for a, b in pairs]
        )
        cases = cases[(cases != 0).any(axis=1)]
        lower = int((cases["other"] < cases["full"]).sum())
        parts.append(lower > len(cases) / 2 if len(cases) else None)
        words.append(f"{SHORT[measure]} lower in {lower} of {len(cases)}")
    return claim_row(claim, says, f"{' and '.join(kinds)}: {', '.join(words)}", parts)


def jumprelu_absorption(table: pd.DataFrame) -> Row:
    """Rule for C7: JumpReLU's absorption is high with the encoder and gone with other codes.

    High: at least half of the paper's 0.923 in full mode. Gone: in semi and in non mode each below
    a tenth of full mode's.
    """
    values = _by_kind(table, "jumprelu", "absorption")
    says = "Gemma-2-2B, JumpReLU: absorption 0.923 in full mode, 0.000 in semi and non."
    if values is None:
        return claim_row("C7", says, "no JumpReLU SAE in this table", [])
    full, semi, non = values
    return claim_row(
        "C7",
        says,
        f"{_model(table)}: absorption {_three(values)}",
        [full >= 0.923 / 2, semi < full / 10, non < full / 10],
    )


def gated_and_steady(table: pd.DataFrame) -> Row:
    """Rule for C8: Gated is dense and not dead; BatchTopK and Matryoshka change less.

    Gated, full mode: a dead rate of at most the other SAEs' median; dense@0.1 of at least 0.1 and
    more than twice the other SAEs' median. Steadier: the mean absolute change from full to semi
    and non mode, over dead, dense@0.1, dF1 and absorption (all shares; NMSE has no upper end), is
    below the median of the SAEs that are neither BatchTopK nor Matryoshka. A part whose SAE is
    not in the table does not count.
    """
    full = of_kind(table, "encoder")
    changes = _changes(table).reindex(full.index)
    architecture = full["architecture"]
    parts: list[bool | None] = []
    words = []
    gated, others = full[architecture == "gated"], full[architecture != "gated"]
    if len(gated) and len(others):
        dead, dense = gated["dead"].mean(), gated["dense_0.1"].mean()
        parts.append(bool(dead <= others["dead"].median()))
        parts.append(bool(dense >= 0.1 and dense > 2 * others["dense_0.1"].median()))
        words.append(
            f"Gated dead {dead:.3f} (others' median {others['dead'].median():.3f}), dense@0.1 "
            f"{dense:.3f} ({others['dense_0.1'].median():.3f})"
        )
    steady = architecture.isin(["batchtopk", "matryoshka_batchtopk"])
    rest = changes[~steady].median()
    for name in ("batchtopk", "matryoshka_batchtopk"):
        change = changes[architecture == name].mean()
        if not pd.isna(change) and not pd.isna(rest):
            parts.append(bool(change < rest))
            words.append(f"mean change of {name} {change:.3f} (others' median {rest:.3f})")
    says = (
        "Gated: low dead rate, very high dense rate. BatchTopK and Matryoshka: steadier than the "
        "others under semi and non."
    )
    measured = "; ".join(words) or "neither Gated nor BatchTopK nor Matryoshka in this table"
    return claim_row("C8", says, measured, parts)


def local_amortization(table: pd.DataFrame) -> Row:
    """Rule for C9: LocA in full mode has no dead latent, dF1 and absorption below TopK's in full
    mode, and an NMSE above its own in non mode."""
    says = "LocA, one pass: no dead latents, low dF1 and absorption, NMSE worse than non."
    full = of_kind(table, "encoder")
    measures = full[["dead", "delta_f1", "absorption"]].astype(float)
    full = measures.groupby(full["architecture"]).mean()
    nmse = _by_kind(table, "loca", "nmse")
    if nmse is None or "topk" not in full.index:
        return claim_row("C9", says, "no LocA and TopK SAE side by side in this table", [])
    loca, topk = full.loc["loca"], full.loc["topk"]
    return claim_row(
        "C9",
        says,
        f"dead {loca['dead']:.3f}; dF1 {loca['delta_f1']:.3f} (TopK {topk['delta_f1']:.3f}); "
        f"absorption {loca['absorption']:.3f} (TopK {topk['absorption']:.3f}); NMSE "
        f"{nmse[0]:.3f} (non {nmse[2]:.3f})",
        [
            bool(loca["dead"] == 0),
            bool(loca["delta_f1"] < topk["delta_f1"]),
            bool(loca["absorption"] < topk["absorption"]),
            nmse[0] > nmse[2],
        ],
    )


def topk_gets_worse(table: pd.DataFrame) -> Row:
    """Rule for C12: TopK's dF1 and absorption are each higher in non than in full mode."""
    says = "Exception: Gemma-2-2B, TopK in non mode gets worse (dF1 0.197, absorption 0.400)."
    splitting = _by_kind(table, "topk", "delta_f1")
    absorption = _by_kind(table, "topk", "absorption")
    if splitting is None or absorption is None:
        return claim_row("C12", says, "no TopK SAE in this table", [])
    return claim_row(
        "C12",
        says,
        f"{_model(table)}: dF1 {_three(splitting)}; absorption {_three(absorption)}",
        [splitting[2] > splitting[0], absorption[2] > absorption[0]],
    )


def _matched(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the encoder's density; all of them under a protocol that does not match it."""
    return rows[rows["l0_matched"].astype(bool) | (rows["protocol"] == "released")]


def _by_kind(table: pd.DataFrame, architecture: str, measure: str) -> list[float] | None:
    """A measure in full, semi and non mode, mean over the SAEs of an architecture; or None."""
    rows = table[table["architecture"] == architecture]
    values = [of_kind(rows, kind)[measure].astype(float).mean() for kind in ("encoder", *LASSO)]
    return None if pd.isna(values).any() else [float(value) for value in values]


def _changes(table: pd.DataFrame) -> pd.Series:
    """Mean absolute change from full to semi and non mode of each SAE, over `_STEADY`."""
    full = of_kind(table, "encoder")[list(_STEADY)].astype(float)
    moved = [(of_kind(table, kind)[list(_STEADY)].astype(float) - full).abs() for kind in LASSO]
    return pd.concat([change.mean(axis=1) for change in moved], axis=1).mean(axis=1)


def _three(values: list[float]) -> str:
    full, semi, non = values
    return f"full {full:.3f}, semi {semi:.3f}, non {non:.3f}"


def _model(table: pd.DataFrame) -> str:
    row = table.iloc[0]
    return f"{row['model']}, layer {row['layer']}"
