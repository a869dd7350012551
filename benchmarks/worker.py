"""The process that measures: `python -m benchmarks.worker`, a JSON list of jobs on its input.

All jobs of one process have one dictionary and one number of threads, which the parent sets in the
environment before torch, numpy's BLAS and SPAMS's OpenMP start.
"""

import dataclasses
import json
import os
import sys
from typing import Any

import torch

from benchmarks import dictionaries, measuring, packages, settings
from benchmarks.cells import Cells, Job
from benchmarks.solvers import SOLVERS, Problem
from loca_sae import sparse_coding
from loca_sae.sparse_coding.dictionary import holding_grams

CALIBRATION = "calibration"


def run(jobs: list[Job], cells: Cells, problem: Problem) -> None:
    """Measure what is not measured yet, for as long as the process that asked for it lives."""
    parent = os.getppid()
    for job in jobs:
        if job in cells:
            continue
        if os.getppid() != parent:  # killed; the next run must not be timed beside this one
            return
        ready = problem
        if job.solver != CALIBRATION:
            ready = problem._replace(lam=cells[calibration_of(job)]["lam"])
        measured = perform(job, ready)
        cells.put(job, measured)
        print(describe(job, measured), flush=True)


def perform(job: Job, problem: Problem) -> dict[str, Any]:
    """One cell."""
    if job.solver == CALIBRATION:
        return calibrate(problem, job.l0_target)
    measured = measuring.measure(problem, SOLVERS[job.solver], job.rows)
    return {**measured, "lam": problem.lam}


def calibration_of(job: Job) -> Job:
    """The job that finds lam for this one: once a dictionary and density, for all threads."""
    return dataclasses.replace(job, solver=CALIBRATION, rows=None, threads=0)


def calibrate(problem: Problem, l0: int) -> dict[str, Any]:
    """lam at which the exact codes of the first rows have this mean L0."""
    x = problem.x[: settings.CALIBRATION_ROWS]
    with holding_grams():  # which is most of the cost of one large dictionary
        found = sparse_coding.calibrate_lambda(
            lambda lam: sparse_coding.solve(x, problem.W_dec, lam, tol=1e-4).codes,
            l0,
            x=x,
            W_dec=problem.W_dec,
        )
    return {"lam": found.lam, "l0": found.l0, "converged": found.converged, "rows": len(x)}


def describe(job: Job, measured: dict[str, Any]) -> str:
    """The line that tells progress."""
    head = f"{job.model} d_sae {job.d_sae:>5} L0 {job.l0_target}"
    if job.solver == CALIBRATION:
        return f"  {head}  lambda {measured['lam']:.4g}, L0 reached {measured['l0']:.2f}"
    return (
        f"  {head}  {job.threads} thread(s)  {SOLVERS[job.solver].label:<24} "
        f"{measured['samples_per_second']:>10,.1f} samples/s  gap {measured['gap_mean']:.1e}"
        f"  ({measured['rows']} rows)"
    )


def main() -> None:
    """Read jobs, check that the threads are as asked, measure."""
    request = json.load(sys.stdin)
    jobs = [Job(**job) for job in request["jobs"]]
    threads = request["threads"]
    torch.set_num_threads(threads)
    packages.missing()  # puts SPAMS on the path; its jobs are only sent if it is there
    cells = Cells(settings.BUILD / "cells.jsonl", request["environment"])
    run(jobs, cells, dictionaries.load(jobs[0].dictionary, threads))


if __name__ == "__main__":
    main()
