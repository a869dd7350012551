"""Which SAEs a notebook compares: its own, by architecture, and those that a reader names."""

from collections.abc import Sequence
from dataclasses import replace

from loca_sae.experiments.data import Data
from loca_sae.experiments.loca import loca_sae
from loca_sae.experiments.saes import sae
from loca_sae.external_saes import ExternalSae, open_sae
from loca_sae.parameters import AmortizationInterventions, LocaParameters
from loca_sae.training import Trained


def trained_saes(p: LocaParameters, data: Data, architectures: Sequence[str]) -> list[Trained]:
    """The comparable SAE of each architecture: an L0 of ``p.k``, or LocA's own budgets."""
    return [
        loca_sae(p, data).trained if name == "loca" else sae(p, data, name)
        for name in architectures
    ]


def external_saes(p: AmortizationInterventions, d_in: int) -> list[ExternalSae]:
    """``p.saes``, each checked. Equal labels are told apart by a number."""
    found: list[ExternalSae] = []
    for spec in p.saes:
        opened = open_sae(spec, p.model, d_in, p.layer)
        taken = {*p.architectures, *(other.label for other in found)}
        label, count = opened.label, 2
        while label in taken:
            label, count = f"{opened.label} ({count})", count + 1
        found.append(replace(opened, label=label))
    return found


def compared_saes(p: AmortizationInterventions, data: Data) -> list[Trained | ExternalSae]:
    """All SAEs of notebook 02, those from elsewhere last (they are checked first)."""
    others = external_saes(p, data.train.d_in)
    return [*trained_saes(p, data, p.architectures), *others]
