"""How codes are to be inferred: the mode, its solver, and whether values are refitted."""

from dataclasses import dataclass
from typing import Literal, get_args

from loca_sae.protocols import Protocol, protocol

Mode = Literal["full", "semi", "non"]
Solver = Literal["ista", "exact", "omp", "matching_pursuit"]
MODES: tuple[Mode, ...] = get_args(Mode)
SEMI_STEPS, NON_STEPS = 25, 200


@dataclass(frozen=True)
class Settings:
    """Everything about an inference except the SAE and lambda.

    steps: ISTA steps; 0 where none are taken.
    refit: after the mode, replace the values by the non-negative least squares solution on the
        support that the mode chose.
    """

    mode: Mode
    protocol: Protocol
    steps: int
    solver: Solver
    refit: bool

    @property
    def needs_lam(self) -> bool:
        """Whether an L1 weight takes part."""
        return self.mode != "full" and self.solver in ("ista", "exact")

    @property
    def greedy(self) -> bool:
        """Whether atoms are chosen one after the other, as many as the encoder uses."""
        return self.mode == "non" and self.solver in ("omp", "matching_pursuit")


def settings(
    mode: str, chosen: str | Protocol, steps: int | None, solver: str, refit: bool
) -> Settings:
    """Check a choice and fill in the defaults: 25 steps in semi, 200 in non mode.

    ValueError for unknown names, negative steps, and a solver that a mode does not have.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; use one of {list(MODES)}.")
    if solver not in get_args(Solver):
        raise ValueError(f"solver {solver!r} is unknown; use one of {list(get_args(Solver))}.")
    if solver == "exact" and mode == "semi":
        raise ValueError(
            "the exact solution is the same wherever it starts, so semi mode has no exact solver; "
            "use mode='non'."
        )
    if solver in ("omp", "matching_pursuit") and mode != "non":
        raise ValueError(f"solver {solver!r} starts at zero; use it with mode='non'.")
    if steps is not None and steps < 0:
        raise ValueError(f"steps is {steps}; it counts ISTA steps and cannot be negative.")
    if mode == "full" or solver != "ista":
        steps = 0
    elif steps is None:
        steps = SEMI_STEPS if mode == "semi" else NON_STEPS
    return Settings(mode, protocol(chosen), steps, solver, bool(refit))  # type: ignore[arg-type]
