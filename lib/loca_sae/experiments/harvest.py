"""What was harvested: counts, masks, norms, and what bfloat16 autocast would change."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from loca_sae import corpus, models, precision, store
from loca_sae.experiments.data import Data
from loca_sae.parameters import Parameters

_PRECISION_TOKENS = 512


def report(p: Parameters, data: Data) -> pd.DataFrame:
    """One row a split of the corpus. Norms are the model's own, before scaling.

    tokens were read, kept is what remains after masking position 0 of each context and every token
    whose norm exceeds 10 times the median; scale turns the mean norm of the training split into
    sqrt(d_in) and is used for both.
    """
    rows = []
    for split, found in (("train", data.train), ("held-out", data.heldout)):
        stats = found.stats
        rows.append(
            {
                "split": split,
                "tokens": stats["tokens"],
                "kept": found.n,
                "first masked": stats["first_masked"],
                "massive masked": stats["massive_masked"],
                "median norm": stats["median_norm"],
                "mean norm": stats["mean_norm"],
                "scale": found.scale,
                "autocast": bool(stats["autocast"]),
            }
        )
    return pd.DataFrame(rows)


def autocast_effect(p: Parameters) -> dict[str, float]:
    """The fields of `precision.PrecisionEffect` for this model and layer, cached in the store."""
    key: dict[str, Any] = {
        "model": models.identity(p.model),
        "layer": p.layer,
        "corpus": corpus.identity(p.corpus),
        "context": p.context,
        "seed": p.seed,
        "device": p.device,
        "tokens": _PRECISION_TOKENS,
    }

    def build(folder: Path) -> None:
        effect = precision.bf16_effect(
            p.model,
            p.layer,
            text=p.corpus,
            tokens=_PRECISION_TOKENS,
            context=p.context,
            seed=p.seed,
            device=p.device,
        )
        (folder / "effect.json").write_text(json.dumps(effect._asdict()))

    artifact = store.artifact("precision", key, build, modules=[__name__], name=Path(p.model).name)
    effect: dict[str, float] = json.loads((artifact.path / "effect.json").read_text())
    return effect
