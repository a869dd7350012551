"""Time, memory, objective and duality gap of one solver on one problem.

Memory is the kernel's own high-water mark of the process's resident memory (VmHWM of
/proc/self/status, reset by writing 5 to /proc/self/clear_refs) during a timed call, minus what was
resident before it: temporary matrices and the codes, not the inputs. It is exact where sampling
would miss peaks, and exists on Linux only; elsewhere the column stays empty.
"""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import settings
from benchmarks.solvers import Problem, Solver, dense, forget
from loca_sae import sparse_coding

MIB = 2**20


class Call(NamedTuple):
    """seconds of wall time, peak additional MiB (None: not measurable), and what was returned."""

    seconds: float
    memory: float | None
    result: Any


def measure(problem: Problem, solver: Solver, rows: int | None = None) -> dict[str, Any]:
    """One cell: ``solver`` on the first rows of ``problem``.

    rows: how many; None lets a slow solver take as many as its time allows. A call on a few rows
    comes first and is not counted: it compiles and loads.
    """
    solver.run(_first(problem, 8))
    most = min(len(problem.x), settings.ROWS)
    least = min(settings.least_rows(len(problem.W_dec)), most)
    rows = rows or (most if solver.fast else least)
    grow = not solver.fast
    calls = [_call(solver.run, _first(problem, rows))]
    while grow and rows < most and 4 * calls[0].seconds <= settings.CALL_SECONDS:
        rows = min(4 * rows, most)
        calls = [_call(solver.run, _first(problem, rows))]
    while _again([call.seconds for call in calls]):
        calls = [call._replace(result=None) for call in calls]
        calls.append(_call(solver.run, _first(problem, rows)))
    seconds = [call.seconds for call in calls]
    memory = [call.memory for call in calls if call.memory is not None]
    return {
        "rows": rows,
        "seconds": [round(value, 6) for value in seconds],
        "samples_per_second": rows / statistics.median(seconds),
        "memory_mib": round(max(memory), 1) if memory else None,
        **_judge(problem, calls[-1].result, min(rows, settings.JUDGED_ROWS)),
    }


def _first(problem: Problem, rows: int) -> Problem:
    return problem._replace(x=problem.x[:rows])


def _again(seconds: list[float]) -> bool:
    """Whether to repeat once more."""
    if len(seconds) < settings.REPEATS:
        return sum(seconds) < settings.ENOUGH_SECONDS
    next_total = sum(seconds) + seconds[-1]
    return len(seconds) < settings.MOST_REPEATS and next_total <= settings.REPEAT_SECONDS


def _call(run: Callable[[Problem], Any], problem: Problem) -> Call:
    forget(problem)
    gc.collect()
    before = _reset_peak()
    start = time.perf_counter()
    result = run(problem)
    seconds = time.perf_counter() - start
    memory = None if before is None else (_status("VmHWM") - before) / MIB
    return Call(seconds, memory, result)


def _judge(problem: Problem, codes: Any, rows: int) -> dict[str, Any]:
    """Objective and gap of each of the first rows, in float64, whatever the solver says of them."""
    z, x = dense(codes, rows), problem.x[:rows]
    if not bool(torch.isfinite(z).all()):
        raise ValueError("a solver returned codes that are not finite.")
    value = sparse_coding.objective(x, z, problem.W_dec, problem.lam)
    gap = sparse_coding.duality_gap(x, z, problem.W_dec, problem.lam) / value
    return {
        "objectives": [float(f"{number:.9g}") for number in value.tolist()],
        "gap_mean": float(gap.mean()),
        "gap_max": float(gap.max()),
        "l0": float((z > 0).sum(1).double().mean()),
    }


def _reset_peak() -> float | None:
    """Give freed memory back, reset the high-water mark; resident bytes, None if not on Linux."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, AttributeError):
        return None


def _status(field: str) -> float:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
