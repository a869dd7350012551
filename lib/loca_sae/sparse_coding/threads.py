"""Slices of samples side by side: ordinary threads around kernels that release the GIL.

As many threads as torch uses, and only while torch itself waits: no oversubscription, and
``torch.set_num_threads`` or ``OMP_NUM_THREADS`` govern both. Which thread takes a slice changes
nothing in its result.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def over_slices(work: Callable[[slice], None], n: int, size: int) -> None:
    """Call ``work`` on slices of at most ``size`` that cover range(n)."""
    slices = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    workers = min(torch.get_num_threads(), len(slices))
    if workers <= 1:
        for part in slices:
            work(part)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, slices):
            pass
