"""C11, on the table of notebook 05."""

import pandas as pd

from loca_sae.experiments.verdicts.rules import Row, claim_row


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
        claim_row(
            "C11",
            "Semi and non latents are more selective under TPP (and GIS, not measured here).",
            f"mean TPP score, {measured}",
            parts,
        )
    ]
