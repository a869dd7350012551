"""Which cells there are, and having the missing ones measured."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from benchmarks import settings
from benchmarks.cells import Cells, Job
from benchmarks.settings import Subject
from benchmarks.solvers import SOLVERS
from benchmarks.worker import calibration_of

# every library that brings threads of its own reads one of these when it starts
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def jobs(
    subject: Subject, d_sae: int, dictionary: str, without: Sequence[str] = ()
) -> Iterator[list[Job]]:
    """Lists of jobs, one list a process: one dictionary and one number of threads each."""
    counts = settings.thread_counts(d_sae)
    for threads in reversed(counts):  # all threads first: they also calibrate
        found = []
        for l0 in settings.L0_TARGETS:
            job = Job(subject.model, subject.layer, dictionary, d_sae, threads, l0, "solve")
            found.append(calibration_of(job))
            found += [dataclasses.replace(job, solver=s) for s in SOLVERS if s not in without]
            if l0 == settings.SCALING_L0 and threads == counts[-1]:
                found += [dataclasses.replace(job, rows=rows) for rows in scaling_rows(d_sae)]
        yield found


def scaling_rows(d_sae: int) -> tuple[int, ...]:
    """Further numbers of samples for the scaling of `solve`, beside the ROWS that it is measured
    with anyway; the largest only at the headline's d_sae."""
    rows = [n for n in settings.SCALING_ROWS if n != settings.ROWS]
    return tuple(rows if d_sae == settings.HEADLINE else [n for n in rows if n < settings.ROWS])


def measure(wanted: list[Job], cells: Cells) -> None:
    """Run a worker for the jobs that no cell holds yet. RuntimeError if it dies."""
    missing = [job for job in wanted if job not in cells]
    if not missing:
        return
    threads = max(job.threads for job in wanted)
    request = {
        "jobs": [dataclasses.asdict(job) for job in missing],
        "threads": threads,
        "environment": cells.environment,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker"],
        input=json.dumps(request),
        text=True,
        cwd=settings.ROOT,
        env={**os.environ, **dict.fromkeys(_THREADS, str(threads))},
    )
    cells.refresh()
    if done.returncode != 0:
        last = next((job.solver for job in missing if job not in cells), "none")
        raise RuntimeError(
            f"the measuring process ended with code {done.returncode} at the solver {last!r}. What "
            "was measured is kept: run `make bench` again to go on."
        )
