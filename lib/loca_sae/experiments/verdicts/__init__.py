"""What the paper claims beside what a table shows, by a rule stated in each docstring.

Every function returns rows with the keys claim, "the paper says", "measured here", "holds here"
("yes", "in part", "no" or "cannot be judged"); `amortization` has a reading for each protocol in
place of the last. One model and one seed: these are readings of one run, not a last word on the
claim.
"""

from loca_sae.experiments.verdicts.dynamics import training_dynamics
from loca_sae.experiments.verdicts.effects import downstream
from loca_sae.experiments.verdicts.local import loca
from loca_sae.experiments.verdicts.protocols import amortization
from loca_sae.experiments.verdicts.rules import Row
from loca_sae.experiments.verdicts.steps import ista_ablation

__all__ = [
    "Row",
    "amortization",
    "downstream",
    "ista_ablation",
    "loca",
    "training_dynamics",
]
