"""Steer the weight of a sparsity penalty while an SAE trains, until its mean L0 is the wanted one.

The L0 that a weight leads to depends on the data, the width and the length of training, and an SAE
answers to a change of the weight only tens of steps later. So the weight follows a controller on
the logarithm, with e = log(L0 / wanted L0), L0 being a running mean over batches:

    weight = exp(level + PROPORTIONAL e),    level += INTEGRAL e    after every optimizer step.

The proportional term answers at once, the integral one finds the level at which e stays zero. The
wanted L0 does not jump to the target, which would first kill most latents and then have to win them
back: its logarithm falls from the L0 of the first batch along a parabola that flattens towards the
target, so that the level need not turn round when it gets there.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sae_lens.training.optim import CoefficientScheduler

# Chosen on SmolLM2-135M, layer 20 (200, 400 and 1,600 steps, 1,024 latents, batch 128, target 20).
GLIDE = 0.7  # share of the steps until the wanted L0 is the target; then it has time to settle
# An L0 twice the wanted one raises the weight by a factor 2 ** PROPORTIONAL at once, and by
# 2 ** (INTEGRAL n) if it persists for n steps. With (0.5, 0.02) short runs ended up to 11 % below
# the target; with (2, 0.05) or (1, 0.1) the L0 of a Standard SAE swung between 10 and 40.
PROPORTIONAL = 0.7
INTEGRAL = 0.03
MEMORY = 0.7  # of the running mean: three batches; a longer one delays the answer, and swings more
LARGEST_ERROR = 1.0  # a factor e; a first batch far from the target must not throw the weight off


@dataclass
class L0Controller:
    """The weight of one penalty, steered to a mean L0.

    target: mean number of active latents a sample wanted at the end.
    weight: of the penalty at the start, above 0.
    steps: optimizer steps of the whole training.
    level: logarithm of the weight that the integral has reached.
    step, first_l0, mean_l0: optimizer steps seen, L0 of the first one, running mean.
    """

    target: float
    weight: float
    steps: int
    level: float = math.nan
    step: int = 0
    first_l0: float = math.nan
    mean_l0: float = math.nan

    def wanted(self) -> float:
        """The L0 to have now; the target from ``GLIDE * steps`` on, or if it started below it."""
        left = max(0.0, 1 - self.step / (GLIDE * self.steps)) ** 2
        return self.target * max(1.0, self.first_l0 / self.target) ** left

    def update(self, l0: float) -> float:
        """The weight for the next step, after a step whose batch had the mean L0 ``l0``."""
        if self.step == 0:
            self.level, self.first_l0, self.mean_l0 = math.log(self.weight), l0, l0
        self.mean_l0 = MEMORY * self.mean_l0 + (1 - MEMORY) * l0
        error = math.log(max(self.mean_l0, 1e-3) / self.wanted())
        error = max(-LARGEST_ERROR, min(LARGEST_ERROR, error))
        self.step += 1
        self.level += INTEGRAL * error
        self.weight = math.exp(self.level + PROPORTIONAL * error)
        return self.weight

    def steer(self, schedulers: Mapping[str, CoefficientScheduler], l0: float) -> None:
        """Update, and hand the weight to SAELens's schedulers, which keep their own warm-up."""
        self.update(l0)
        self._hand_over(schedulers)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return asdict(self)

    def restore(
        self, state: Mapping[str, Any], schedulers: Mapping[str, CoefficientScheduler]
    ) -> None:
        """Take up ``state`` where `state` left it; SAELens saves a scheduler's step only."""
        for name, value in state.items():
            setattr(self, name, value)
        self._hand_over(schedulers)

    def _hand_over(self, schedulers: Mapping[str, CoefficientScheduler]) -> None:
        for scheduler in schedulers.values():
            scheduler.final_value = self.weight
            # recomputes the present value from the step that the scheduler is at
            scheduler.load_state_dict(scheduler.state_dict())
