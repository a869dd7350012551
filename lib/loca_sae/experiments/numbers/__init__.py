"""The numbers that the notebooks' prose refers to, computed from their tables (see ``glue``)."""

from loca_sae.experiments.numbers.dynamics import training_dynamics
from loca_sae.experiments.numbers.effects import downstream
from loca_sae.experiments.numbers.local import loca
from loca_sae.experiments.numbers.modes import amortization
from loca_sae.experiments.numbers.steps import ista_ablation, ista_protocols
from loca_sae.experiments.numbers.values import Values, coarse, fine
from loca_sae.experiments.numbers.walk import walk

__all__ = [
    "Values",
    "amortization",
    "coarse",
    "downstream",
    "fine",
    "ista_ablation",
    "ista_protocols",
    "loca",
    "training_dynamics",
    "walk",
]
