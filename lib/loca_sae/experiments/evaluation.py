"""What an SAE is measured on under a protocol: held-out tokens, and texts with labels.

A protocol decides which positions and which layer count, what the labels of the probes are, and
whether probes are scored on the texts they were fitted on. `evaluation` turns that choice into
data, so that the measures themselves need not know about it.
"""

from typing import Any, NamedTuple

import torch

from loca_sae.activations import Activations
from loca_sae.experiments.data import Concept, ConceptSplit, Data, harvest, load_concept
from loca_sae.parameters import Parameters
from loca_sae.protocols import RELEASED_TOKENS, Protocol

ABOVE, REST = "norm above the median", "the rest"


class EvaluationData(NamedTuple):
    """The data of one protocol.

    tokens: activations on which reconstruction and firing are measured.
    concepts: labelled sets; train and test are the same object where probes are scored on the data
        they were fitted on.
    probed: the labels a probe is fitted for, each against the rest; None means every label.
    key: JSON values that tell this data from any other, for the names of artifacts.
    """

    tokens: Activations
    concepts: list[Concept]
    probed: tuple[str, ...] | None
    key: dict[str, Any]

    def in_units(self, scale: float) -> "EvaluationData":
        """The same data with ``scale`` times the model's own activations.

        For an SAE that was trained in other units than the companion's.
        """
        if scale == self.tokens.scale:
            return self
        factor = scale / self.tokens.scale
        concepts = []
        for name, train, test in self.concepts:
            scaled = _times(train, factor)
            concepts.append(
                Concept(name, scaled, scaled if test is train else _times(test, factor))
            )
        return self._replace(
            tokens=self.tokens.at_scale(scale), concepts=concepts, key={**self.key, "scale": scale}
        )


def evaluation(
    data: Data, p: Parameters, chosen: Protocol, tokens: int | None = None
) -> EvaluationData:
    """The data that a protocol measures on, all in the units of ``data``.

    tokens: how many held-out tokens will be measured; None: all that ``p`` asks for. What has to
    be harvested for this protocol alone (another layer, every position) is not made longer.
    Texts with labels are read at the protocol's layer; their first position is never taken.
    ValueError for the layer below layer 0.
    """
    held_out = _held_out(data, p, chosen, tokens)
    key: dict[str, Any] = {"tokens": held_out.name, "labels": chosen.labels}
    if chosen.labels == "norm":
        n = min(held_out.n, RELEASED_TOKENS if tokens is None else tokens)
        concept = norm_concept(held_out, n, same=chosen.probe_split == "same")
        return EvaluationData(held_out, [concept], (ABOVE,), {**key, "probed tokens": n})
    key["concepts"] = [p.concepts, p.labels, p.texts, p.tokens_per_text, p.seed]
    concepts = data.concepts
    if chosen.layer_offset:
        below = _at_layer(p, chosen)
        concepts = [load_concept(below, name, data.heldout.scale) for name in p.concepts]
    if chosen.probe_split == "same":
        concepts = [concept._replace(test=concept.train) for concept in concepts]
    return EvaluationData(held_out, concepts, None, key)


def norm_concept(tokens: Activations, n: int, *, same: bool) -> Concept:
    """The public release's label on each of the first ``n`` tokens: is its norm above the median?

    Every token stands for a text of its own. same: train and test are the same tokens; otherwise
    the first and the second half of the documents.
    """
    x = next(tokens.iterate(n))
    norms = x.norm(dim=1)
    labels = [ABOVE if high else REST for high in (norms > norms.median()).tolist()]
    if same:
        split = _tokens_as_texts(x, labels)
        return Concept("norm", split, split)
    cut = between_documents(tokens.documents[:n])
    train, test = slice(None, cut), slice(cut, None)
    splits = [_tokens_as_texts(x[half], labels[half]) for half in (train, test)]
    return Concept("norm", *splits)


def between_documents(documents: torch.Tensor) -> int:
    """The row, nearest the middle, at which a document begins that none before it belongs to.

    documents [n]: of each token in reading order, -1 for a separator. ValueError if there is one
    document only.
    """
    places = (documents >= 0).nonzero().flatten()
    owner = documents[places]
    begins = places[1:][owner[1:] != owner[:-1]]
    if not len(begins):
        raise ValueError(
            f"all {len(documents)} tokens are of one document, which cannot be on both sides of a "
            "split; measure on more tokens, or use probe_split='same'."
        )
    return int(begins[(begins - len(documents) / 2).abs().argmin()])


def _held_out(data: Data, p: Parameters, chosen: Protocol, tokens: int | None) -> Activations:
    if chosen.positions == "masked" and chosen.layer_offset == 0:
        return data.heldout
    return harvest(
        _at_layer(p, chosen),
        "eval",
        p.eval_tokens if tokens is None else min(tokens, p.eval_tokens),
        scale=data.heldout.scale,
        keep_all=chosen.positions == "all",
    )


def _at_layer(p: Parameters, chosen: Protocol) -> Parameters:
    """The parameters with the layer that the protocol reads."""
    layer = p.layer + chosen.layer_offset
    if layer < 0:
        raise ValueError(
            f"protocol {chosen.name!r} reads the layer below layer {p.layer}, and there is none; "
            "choose a layer of 1 or more, or a protocol with layer_offset 0."
        )
    return p.model_copy(update={"layer": layer})


def _tokens_as_texts(x: torch.Tensor, labels: list[str]) -> ConceptSplit:
    return ConceptSplit(x, torch.arange(len(x)), labels)


def _times(split: ConceptSplit, factor: float) -> ConceptSplit:
    return split._replace(x=split.x * factor)
