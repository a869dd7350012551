"""C1 to C5, on the table of notebook 01."""

import pandas as pd

from loca_sae.experiments.verdicts.rules import Row, claim_row, rises, span


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
        claim_row(
            "C1",
            "Standard: more sparsity raises NMSE and the dead rate.",
            f"with sparsity, NMSE {span(standard['nmse'])}, dead {span(standard['dead'])}",
            [rises(standard["nmse"]), rises(standard["dead"])],
        ),
        claim_row(
            "C2",
            "Standard: early checkpoints have dense@0.2 above 0.66; sparsity does not clear dense "
            "latents.",
            f"dense@0.2 at the first checkpoint up to {early_dense:.3f}; dense@0.1 of the sparsest "
            f"SAE at the end {sparsest['dense_0.1']:.3f}",
            [bool(early_dense > 0.66), sparsest["dense_0.1"] > 0.001],
        ),
        claim_row(
            "C3",
            "Standard, high sparsity, late: dead 0.352, dF1 0.501, absorption 0.916.",
            f"dead {sparsest['dead']:.3f}, dF1 {sparsest['delta_f1']:.3f}, "
            f"absorption {sparsest['absorption']:.3f}",
            reached,
        ),
        claim_row(
            "C4",
            "TopK holds dense latents down and eases dead ones, but absorption and dF1 rise with "
            "sparsity.",
            f"mean dense@0.1 {topk['dense_0.1'].mean():.3f} (Standard "
            f"{standard['dense_0.1'].mean():.3f}), dead {topk['dead'].mean():.3f} "
            f"({standard['dead'].mean():.3f}); with sparsity, absorption "
            f"{span(topk['absorption'])}, dF1 {span(topk['delta_f1'])}",
            [
                topk["dense_0.1"].mean() < standard["dense_0.1"].mean(),
                topk["dead"].mean() < standard["dead"].mean(),
                rises(topk["absorption"]),
                rises(topk["delta_f1"]),
            ],
        ),
        claim_row(
            "C5",
            "The amortization gap falls during training; the pathologies do not follow it.",
            f"the relative gap falls in {int(gap_falls.sum())} of {len(gap_falls)} SAEs, "
            f"absorption in {int(absorption_falls.sum())}",
            [gap_falls.mean() > 0.5, absorption_falls.mean() <= 0.5],
        ),
    ]
