"""Codes of many samples as one sparse CSR tensor, put together from dense chunks."""

import warnings
from collections.abc import Iterable

import torch

from loca_sae.sparse_coding import checks


def stack(chunks: Iterable[torch.Tensor], shape: tuple[int, int]) -> torch.Tensor:
    """Dense chunks [rows, d_sae], taken one at a time, as one CSR tensor of the given shape."""
    ends, columns, values, entries = [], [], [], 0
    for chunk in chunks:
        row_ends = chunk.count_nonzero(dim=1).cumsum(0) + entries
        at = chunk.nonzero()
        ends.append(row_ends)
        columns.append(at[:, 1].clone())
        values.append(chunk[at[:, 0], at[:, 1]])
        entries += len(at)
    first = ends[0].new_zeros(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            torch.cat([first, *ends]),
            torch.cat(columns),
            torch.cat(values),
            shape,
            check_invariants=False,  # told explicitly, or torch warns
        )


def take(codes: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Rows start to stop of codes, dense; codes may be CSR or dense."""
    if codes.layout != torch.sparse_csr:
        return codes[start:stop]
    ends = codes.crow_indices()[start : stop + 1]
    entries = slice(int(ends[0]), int(ends[-1]))
    rows = torch.repeat_interleave(ends.diff())
    dense = codes.values().new_zeros(len(ends) - 1, codes.shape[1])
    dense[rows, codes.col_indices()[entries]] = codes.values()[entries]
    return dense


def check(codes: torch.Tensor, given: checks.Problem, name: str) -> None:
    """Check codes, CSR or dense, against a problem as a whole. Raises ValueError."""
    if codes.layout != torch.sparse_csr:
        checks.codes(codes, given, name)
        return
    stored = codes.values()
    if stored.numel() and not (checks.all_finite(stored) and float(stored.min()) >= 0):
        raise ValueError(f"{name} stores NaN, infinite or negative values; codes are z >= 0 here.")
    empty = given.x.new_zeros(()).expand(codes.shape)  # shape and device, without the memory
    checks.codes(empty.to(codes.device), given, name)
