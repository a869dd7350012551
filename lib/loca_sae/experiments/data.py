"""The activations that an experiment works on: training, held-out, and labelled texts."""

from typing import NamedTuple

import pandas as pd
import torch

from loca_sae import activations, corpus
from loca_sae.activations import Activations
from loca_sae.parameters import Parameters

# labelled texts are short; a context of this many tokens holds most of a text
TEXT_CONTEXT = 48


class ConceptSplit(NamedTuple):
    """Activations of labelled texts of one split.

    x: [rows, d_in], scaled like the training activations.
    text: [rows], which text a row belongs to.
    labels: one a text.
    """

    x: torch.Tensor
    text: torch.Tensor
    labels: list[str]


class Concept(NamedTuple):
    """One labelled set; the splits share no group (novel, package, lemma, ...)."""

    name: str
    train: ConceptSplit
    test: ConceptSplit


class Data(NamedTuple):
    """What every SAE of an experiment is trained and measured on."""

    train: Activations
    heldout: Activations
    concepts: list[Concept]


def load(p: Parameters) -> Data:
    """Harvest, or find in the store, the activations that the parameters ask for."""
    train = harvest(p, "train", p.tokens, scale=None)
    heldout = harvest(p, "eval", p.eval_tokens, scale=train.scale)
    concepts = [load_concept(p, name, train.scale) for name in p.concepts]
    return Data(train, heldout, concepts)


def harvest(
    p: Parameters, split: str, tokens: int, scale: float | None, keep_all: bool = False
) -> Activations:
    """One split of the corpus; the held-out split takes the scale of the training split.

    keep_all: mask neither position 0 nor massive tokens.
    """
    return activations.harvest(
        p.model,
        p.layer,
        corpus=p.corpus,
        split=split,
        tokens=tokens,
        context=p.context,
        seed=p.seed,
        autocast=p.autocast,
        device=p.device,
        scale=scale,
        keep_all=keep_all,
    )


def load_concept(p: Parameters, name: str, scale: float) -> Concept:
    """``p.labels`` labels of a set, ``p.texts`` training and half as many test texts of each."""
    frame = corpus.concept(name)
    labels = choose_labels(frame, p.labels, p.seed)
    splits = []
    for split, texts in (("train", p.texts), ("test", max(2, p.texts // 2))):
        chosen = choose_texts(frame, split, labels, texts, p.seed)
        rows = activations.harvest_texts(
            p.model,
            p.layer,
            chosen["text"].tolist(),
            context=TEXT_CONTEXT,
            tokens_per_text=p.tokens_per_text,
            seed=p.seed,
            scale=scale,
            autocast=p.autocast,
            device=p.device,
        )
        splits.append(ConceptSplit(rows.x, rows.text, chosen["label"].tolist()))
    return Concept(name, *splits)


def choose_labels(frame: pd.DataFrame, count: int, seed: int) -> list[str]:
    """A seeded choice of labels, all of them when the set has no more than ``count``."""
    labels = pd.Series(sorted(frame["label"].unique()))
    chosen = labels.sample(min(count, len(labels)), random_state=seed)
    return sorted(chosen.tolist())


def choose_texts(
    frame: pd.DataFrame, split: str, labels: list[str], texts: int, seed: int
) -> pd.DataFrame:
    """At most ``texts`` texts of each label, drawn with the seed, in the order of the file."""
    rows = frame[(frame["split"] == split) & frame["label"].isin(labels)]
    parts = [
        group.sample(min(texts, len(group)), random_state=seed)
        for _, group in rows.groupby("label", sort=True)
    ]
    return pd.concat(parts).sort_index().reset_index(drop=True)
