"""The parameters of the notebooks: one pydantic model each, the only place where they are defined.

A notebook's parameters cell repeats the names and defaults (papermill needs them as plain
assignments); its next cell hands the namespace to ``from_notebook``, which refuses unknown names,
wrong types and impossible values in one sentence each, before any model is loaded. papermill
itself only warns about a name it does not know.

This module is light: it needs neither torch nor a language model, so a wrong parameter fails in
the first seconds.
"""

from loca_sae.parameters.base import ParameterError, Parameters, Positive
from loca_sae.parameters.notebooks import (
    NOTEBOOKS,
    AmortizationInterventions,
    DownstreamInterventions,
    IstaAblation,
    LocaParameters,
    LocaSae,
    TrainingDynamics,
)
from loca_sae.parameters.table import table

__all__ = [
    "AmortizationInterventions",
    "DownstreamInterventions",
    "IstaAblation",
    "LocaParameters",
    "LocaSae",
    "NOTEBOOKS",
    "ParameterError",
    "Parameters",
    "Positive",
    "TrainingDynamics",
    "table",
]
