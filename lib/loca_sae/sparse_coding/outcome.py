"""What an engine reports back to `solve`."""

from typing import NamedTuple

import torch


class Outcome(NamedTuple):
    """Per sample: objective and duality gap (float64), iterations, done; all [n], on the CPU."""

    objective: torch.Tensor
    duality_gap: torch.Tensor
    iterations: torch.Tensor
    done: torch.Tensor

    @staticmethod
    def empty(n: int) -> "Outcome":
        """Room for n samples."""
        value, gap = torch.zeros(2, n, dtype=torch.float64)
        return Outcome(value, gap, torch.zeros(n, dtype=torch.int64), torch.zeros(n).bool())

    def put(self, rows: torch.Tensor, part: "Outcome") -> None:
        """Copy the outcome of some samples into their rows."""
        for whole, values in zip(self, part, strict=True):
            whole[rows.cpu()] = values.cpu()
