"""What the paper claims beside what a table shows, by a rule stated in each docstring.

Every function returns rows with the keys claim, "the paper says", "measured here", "holds here"
("yes", "in part", "no" or "cannot be judged"). One model, one seed and the native protocol: these
are readings of one run, not a last word on the claim.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

Row = dict[str, str]
_SHORT = {"nmse": "NMSE", "dead": "dead", "absorption": "absorption", "delta_f1": "dF1"}


def _row(claim: str, says: str, measured: str, parts: Iterable[bool | None]) -> Row:
    """ "yes" if every part of the rule holds, "no" if none, "in part" between, else unjudged."""
    known = [part for part in parts if part is not None]
    if not known:
        holds = "cannot be judged"
    else:
        holds = "yes" if all(known) else "in part" if any(known) else "no"
    return {"claim": claim, "the paper says": says, "measured here": measured, "holds here": holds}


def _rises(values: pd.Series, tolerance: float = 0.0) -> bool:
    """Whether a sequence ends above where it starts."""
    return bool(values.iloc[-1] > values.iloc[0] + tolerance)


def _span(values: pd.Series) -> str:
    return f"{values.iloc[0]:.3f} → {values.iloc[-1]:.3f}"


def training_dynamics(table: pd.DataFrame) -> list[Row]:
    """Rules for C1 to C5 on the table of notebook 01.

    "More sparsity" runs over the SAEs of one architecture from the largest to the smallest L0 at
    the last step. C1: NMSE and the dead rate rise along it (Standard). C2: the first checkpoints
    have dense@0.2 above 0.66 somewhere, and dense@0.1 at the last step is not cleared (above 0.001)
    in the sparsest SAE. C3: for the sparsest Standard SAE at the last step, dead, dF1 and
    absorption each reach at least half of the paper's number. C4: TopK has a lower dense@0.1 and
    dead rate than Standard (means at the last step), while its absorption and dF1 rise with
    sparsity. C5: the relative gap falls from the first to the last checkpoint in most SAEs while
    absorption falls in at most half of them. Checkpoints at which the optimum could not be brought
    to the encoder's density take no part in C5's gap.
    """
    last = table[table["step"] == table["step"].max()].sort_values("l0", ascending=False)
    first = table[table["step"] == table["step"].min()]
    standard = last[last["architecture"] == "standard"]
    topk = last[last["architecture"] == "topk"]
    sparsest = standard.iloc[-1]
    by_sae = table.sort_values("step").groupby(["architecture", "sparsity"])
    matched = table[table["gap_l0_matched"].astype(bool)].sort_values("step")
    by_matched = matched.groupby(["architecture", "sparsity"])["gap_relative"]
    gap_falls = by_matched.agg(lambda v: v.iloc[-1] < v.iloc[0])[by_matched.size() > 1]
    absorption_falls = by_sae["absorption"].agg(lambda v: v.iloc[-1] < v.iloc[0])
    early_dense = first.loc[first["architecture"] == "standard", "dense_0.2"].max()
    reached = [
        sparsest["dead"] >= 0.3524 / 2,
        sparsest["delta_f1"] >= 0.5008 / 2,
        sparsest["absorption"] >= 0.9164 / 2,
    ]
    return [
        _row(
            "C1",
            "Standard: more sparsity raises NMSE and the dead rate.",
            f"with sparsity, NMSE {_span(standard['nmse'])}, dead {_span(standard['dead'])}",
            [_rises(standard["nmse"]), _rises(standard["dead"])],
        ),
        _row(
            "C2",
            "Standard: early checkpoints have dense@0.2 above 0.66; sparsity does not clear dense "
            "latents.",
            f"dense@0.2 at the first checkpoint up to {early_dense:.3f}; dense@0.1 of the sparsest "
            f"SAE at the end {sparsest['dense_0.1']:.3f}",
            [bool(early_dense > 0.66), sparsest["dense_0.1"] > 0.001],
        ),
        _row(
            "C3",
            "Standard, high sparsity, late: dead 0.352, dF1 0.501, absorption 0.916.",
            f"dead {sparsest['dead']:.3f}, dF1 {sparsest['delta_f1']:.3f}, "
            f"absorption {sparsest['absorption']:.3f}",
            reached,
        ),
        _row(
            "C4",
            "TopK holds dense latents down and eases dead ones, but absorption and dF1 rise with "
            "sparsity.",
            f"mean dense@0.1 {topk['dense_0.1'].mean():.3f} (Standard "
            f"{standard['dense_0.1'].mean():.3f}), dead {topk['dead'].mean():.3f} "
            f"({standard['dead'].mean():.3f}); with sparsity, absorption "
            f"{_span(topk['absorption'])}, dF1 {_span(topk['delta_f1'])}",
            [
                topk["dense_0.1"].mean() < standard["dense_0.1"].mean(),
                topk["dead"].mean() < standard["dead"].mean(),
                _rises(topk["absorption"]),
                _rises(topk["delta_f1"]),
            ],
        ),
        _row(
            "C5",
            "The amortization gap falls during training; the pathologies do not follow it.",
            f"the relative gap falls in {int(gap_falls.sum())} of {len(gap_falls)} SAEs, "
            f"absorption in {int(absorption_falls.sum())}",
            [gap_falls.mean() > 0.5, absorption_falls.mean() <= 0.5],
        ),
    ]


def amortization(table: pd.DataFrame) -> list[Row]:
    """Rules for C6 and C9 on the table of notebook 02.

    C6: over the SAEs and the two ISTA modes, NMSE, dead, absorption and dF1 are each lower than in
    full mode in more than half of the cases. C9: LocA in full mode has no dead latent, dF1 and
    absorption below TopK's in full mode, and an NMSE above its own in non mode.
    """
    ista = table[table["solver"] == "ista"]
    wide = ista.pivot(index="architecture", columns="mode")
    rows, parts = [], []
    for measure in ("nmse", "dead", "absorption", "delta_f1"):
        full = wide[measure]["full"]
        lower = pd.concat([wide[measure][mode] < full for mode in ("semi", "non")])
        parts.append(bool(lower.mean() > 0.5))
        rows.append(f"{_SHORT[measure]} lower in {int(lower.sum())} of {len(lower)}")
    loca, topk = wide.loc["loca"], wide.loc["topk"]
    return [
        _row(
            "C6",
            "Semi and non lower NMSE, dead rate, absorption and (partly) splitting, at the same "
            "decoder and density.",
            "; ".join(rows),
            parts,
        ),
        _row(
            "C9",
            "LocA, one pass: no dead latents, low dF1 and absorption, NMSE worse than non.",
            f"dead {loca['dead']['full']:.3f}; dF1 {loca['delta_f1']['full']:.3f} (TopK "
            f"{topk['delta_f1']['full']:.3f}); absorption {loca['absorption']['full']:.3f} (TopK "
            f"{topk['absorption']['full']:.3f}); NMSE {loca['nmse']['full']:.3f} (non "
            f"{loca['nmse']['non']:.3f})",
            [
                loca["dead"]["full"] == 0,
                loca["delta_f1"]["full"] < topk["delta_f1"]["full"],
                loca["absorption"]["full"] < topk["absorption"]["full"],
                loca["nmse"]["full"] > loca["nmse"]["non"],
            ],
        ),
    ]


def loca(table: pd.DataFrame, latents: pd.DataFrame) -> list[Row]:
    """Rules for C9 (against the controls) and C13 on the tables of notebook 03.

    C9: LocA has no dead latents, and lower dF1 and absorption than *both* controls (TopK after the
    same extra steps; LocA with random groups). C13 cannot be settled by a proxy; what is shown is
    whether AVar says more than how often a latent fires: |Spearman correlation| below 0.5.
    """
    by = table.set_index("variant")
    ours = by.loc["LocA"]
    controls = by.loc[["TopK, extra steps", "LocA, random groups"]]
    known = latents.dropna(subset="avar")
    rank = float(known["avar"].corr(known["count"], method="spearman"))
    return [
        _row(
            "C9",
            "LocA, one pass: no dead latents, low dF1 and absorption.",
            f"dead {ours['dead']:.3f} (controls {_list(controls['dead'])}); dF1 "
            f"{ours['delta_f1']:.3f} ({_list(controls['delta_f1'])}); absorption "
            f"{ours['absorption']:.3f} ({_list(controls['absorption'])})",
            [
                bool(ours["dead"] == 0),
                bool((ours["delta_f1"] < controls["delta_f1"]).all()),
                bool((ours["absorption"] < controls["absorption"]).all()),
            ],
        ),
        _row(
            "C13",
            "AVar orders latents by polysemanticity (a proxy).",
            f"over {len(known)} latents, Spearman correlation of AVar with the firing count "
            f"{rank:.2f}",
            [None if np.isnan(rank) else abs(rank) < 0.5],
        ),
    ]


def ista_ablation(table: pd.DataFrame) -> list[Row]:
    """Rule for C10 on the table of notebook 04.

    NMSE falls from each number of steps to the next, the encoder (0 steps) included; the
    pathologies move little: dead, dF1 and absorption each stay within 0.05 of the first semi row.
    """
    path = table[table["mode"] != "non"].sort_values("ista_steps")
    semi = path[path["mode"] == "semi"]
    moves = {m: float(np.ptp(semi[m])) for m in ("dead", "delta_f1", "absorption")}
    nmse = " → ".join(f"{value:.3f}" for value in path["nmse"])
    return [
        _row(
            "C10",
            "More semi steps lower NMSE monotonically; the pathologies move little.",
            f"NMSE {nmse}; range over the steps: "
            + ", ".join(f"{_SHORT[name]} {value:.3f}" for name, value in moves.items()),
            [bool(path["nmse"].is_monotonic_decreasing), max(moves.values()) < 0.05],
        )
    ]


def downstream(table: pd.DataFrame) -> list[Row]:
    """Rule for the TPP half of C11 on the table of notebook 05.

    For each SAE, the mean score over sets, classes and N is higher in semi and in non mode than in
    full mode; the parts of the rule are the pairs (SAE, mode).
    """
    mean = table.groupby(["architecture", "mode"], sort=False)["score"].mean().unstack("mode")
    parts = [
        bool(mean.loc[a, m] > mean.loc[a, "full"]) for a in mean.index for m in ("semi", "non")
    ]
    measured = "; ".join(
        f"{a}: full {r['full']:.3f}, semi {r['semi']:.3f}, non {r['non']:.3f}"
        for a, r in mean.iterrows()
    )
    return [
        _row(
            "C11",
            "Semi and non latents are more selective under TPP (and GIS, not measured here).",
            f"mean TPP score, {measured}",
            parts,
        )
    ]


def _list(values: pd.Series) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
