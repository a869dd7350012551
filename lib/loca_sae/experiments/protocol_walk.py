"""From the released protocol to the native one, one choice at a time: which moves which number?

The walk is cumulative (`protocols.walk`): each step keeps the choices made before it, so that what
a step shows is the effect of its choice after those; in another order the same choice may move the
numbers more or less. A choice that cannot matter to an SAE or a mode leaves its row as it was.

Everything here is measured on the same number of tokens, ``walk_tokens``. Codes under the released
protocol are dense and each lambda of its grid is tried with all ISTA steps, so the grid is searched
on a quarter of the calibration activations; the column calibration_tokens says on how many.
"""

from typing import Any, cast

import pandas as pd

from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.compared import compared_saes
from loca_sae.experiments.data import Data
from loca_sae.experiments.grid_sample import for_grid
from loca_sae.experiments.measures import measure
from loca_sae.experiments.subjects import subject
from loca_sae.experiments.walk_changes import summary
from loca_sae.external_saes import ExternalSae
from loca_sae.inference import MODES, Mode
from loca_sae.parameters import AmortizationInterventions
from loca_sae.protocols import PROTOCOLS, Protocol, walk
from loca_sae.training import Trained

__all__ = ["protocols_table", "run", "summary", "walked_saes"]


def run(p: AmortizationInterventions) -> pd.DataFrame:
    """A row for each step of the walk, of each walked SAE in each of ``p.walk_modes``.

    Columns of `measures.measure`, with the name of the step as protocol, and: switch (the choice
    made last), order (0 is released), applies (False where the choice cannot matter to this SAE
    and mode: the row is that of the step before), calibration_tokens and inference.
    """
    data = experiment_data.load(p)
    rows = [
        row
        for trained in walked_saes(p, compared_saes(p, data))
        for mode in p.walk_modes
        for row in _steps(trained, data, p, cast(Mode, mode))
    ]
    return pd.DataFrame(rows)


def protocols_table(p: AmortizationInterventions) -> pd.DataFrame:
    """Every SAE of notebook 02 in full, semi and non mode under each of the three protocols."""
    data = experiment_data.load(p)
    rows = [
        _measured(trained, data, p, mode, chosen)
        for trained in compared_saes(p, data)
        for chosen in PROTOCOLS.values()
        for mode in MODES
    ]
    return pd.DataFrame(rows)


def walked_saes(
    p: AmortizationInterventions, saes: list[Trained | ExternalSae]
) -> list[Trained | ExternalSae]:
    """Those of ``p.walk_architectures`` and SAEs from elsewhere; without any, the first SAE."""
    chosen = [
        sae
        for sae in saes
        if not subject(sae).own or subject(sae).architecture in p.walk_architectures
    ]
    return chosen or saes[:1]


def _steps(
    trained: Trained | ExternalSae, data: Data, p: AmortizationInterventions, mode: Mode
) -> list[dict[str, Any]]:
    """The rows of one SAE in one mode; a step that changes nothing in effect is not measured."""
    architecture = subject(trained).architecture
    rows: list[dict[str, Any]] = []
    before: Protocol | None = None
    for order, (switch, chosen) in enumerate(walk()):
        effect = chosen.effective(architecture, mode)
        applies = effect != before
        row = _measured(trained, data, p, mode, chosen) if applies else rows[-1]
        step = {"protocol": chosen.name, "switch": switch, "order": order, "applies": applies}
        rows.append({**row, **step})
        before = effect
    return rows


def _measured(
    trained: Trained | ExternalSae,
    data: Data,
    p: AmortizationInterventions,
    mode: Mode,
    chosen: Protocol,
) -> dict[str, Any]:
    steps = {"full": None, "semi": p.semi_steps, "non": p.non_steps}[mode]
    smaller = for_grid(p, chosen.effective(subject(trained).architecture, mode))
    row = measure(
        trained, data, smaller, mode, chosen, steps=steps, gap=False, tokens=p.walk_tokens
    )
    name = mode if steps is None else f"{mode} ({steps} steps)"
    return {**row, "calibration_tokens": smaller.calibration_tokens, "inference": name}
