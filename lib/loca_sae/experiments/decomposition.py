"""What of an encoder's error is due to its values, and what to the latents it chose.

An SAE's encoder makes two guesses on each token: which latents fire (the support) and how strongly
(the values). Both can be replaced, one after the other, without changing how many latents fire:

    encoder  --better values-->  encoder, refitted  --better support-->  k-sparse

The drop in NMSE of the first arrow is the *value choice*, that of the second the *support choice*;
together they are the *price of amortization* against the best known code of the same size on each
token. A lasso code of the same mean L0 is no such code, since its penalty shrinks what it keeps:
the drop when it is refitted is the *shrinkage*.

All numbers are differences of NMSE (of the same tokens, so the denominators are equal) and carry
the sign that comes out. The value choice cannot be negative. The support choice can: orthogonal
matching pursuit with exchange steps is greedy, not optimal, and may find a support that is worse
than the encoder's. So the price is a lower bound of what the best code of that size would show.
"""

import pandas as pd

from loca_sae.experiments.kinds import of_kind

# column suffix -> kind of inference
LEVELS = {
    "encoder": "encoder",
    "refitted": "encoder, refitted",
    "ksparse": "k-sparse",
    "lasso": "lasso",
    "lasso_refitted": "lasso, refitted",
    "pursuit": "matching pursuit",
}
# part -> the two levels whose difference it is
PARTS = {
    "value": ("encoder", "refitted"),
    "support": ("refitted", "ksparse"),
    "price": ("encoder", "ksparse"),
    "shrinkage": ("lasso", "lasso_refitted"),
    "lasso_support": ("lasso_refitted", "ksparse"),
}
PART_HEADINGS = {
    "sae": "SAE",
    "value": "value choice",
    "support": "support choice",
    "price": "price of amortization",
    "price_share": "price / encoder's NMSE",
    "shrinkage": "shrinkage of the lasso",
    "lasso_support": "lasso support − k-sparse support",
}
_PROVENANCE = ["protocol", "model", "layer", "d_sae", "train_tokens", "eval_tokens", "seed"]


def decomposition(table: pd.DataFrame) -> pd.DataFrame:
    """One row an SAE, in the order of ``table`` (notebook 02's, of one protocol).

    Columns: what identifies the SAE (sae, architecture and provenance); ``nmse_<level>`` and
    ``l0_<level>`` for the levels encoder, refitted, ksparse, lasso, lasso_refitted and pursuit;
    the parts value = encoder - refitted, support = refitted - ksparse, price = value + support,
    price_share = price / encoder, shrinkage = lasso - lasso_refitted and lasso_support =
    lasso_refitted - ksparse, all of NMSE. The L0s stand beside them because least squares may set
    a chosen latent to zero, and because the lasso meets the encoder's L0 in the mean only.

    ValueError if ``table`` lacks a kind of inference altogether; NaN where one SAE lacks it.
    """
    encoder = of_kind(table, "encoder")
    head = [c for c in ["architecture", *_PROVENANCE] if c in table]
    parts = encoder[head].copy()
    for level, kind in LEVELS.items():
        rows = of_kind(table, kind)
        if rows.empty:
            raise ValueError(
                f"the table has no row of kind {kind!r}, which the decomposition needs; it has "
                f"{sorted(table['inference'].unique())}."
            )
        for measure in ("nmse", "l0"):
            parts[f"{measure}_{level}"] = rows[measure].astype(float)
    for part, (above, below) in PARTS.items():
        parts[part] = parts[f"nmse_{above}"] - parts[f"nmse_{below}"]
    parts["price_share"] = parts["price"] / parts["nmse_encoder"]
    return parts.reset_index()


def parts_table(parts: pd.DataFrame) -> pd.DataFrame:
    """The parts of each SAE under the headings that a reader sees."""
    return parts[list(PART_HEADINGS)].rename(columns=PART_HEADINGS)


def levels_table(parts: pd.DataFrame, measure: str) -> pd.DataFrame:
    """``measure`` ("nmse" or "l0", on all held-out tokens) of each SAE and kind of code."""
    shown = {f"{measure}_{level}": kind for level, kind in LEVELS.items()}
    return parts[["sae", *shown]].rename(columns={"sae": "SAE", **shown})
