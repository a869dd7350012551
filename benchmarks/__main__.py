"""Measure what is missing, then write and print the results. BENCH_FRESH=1 measures all anew."""

import os
import sys
from typing import Any

from filelock import FileLock, Timeout

from benchmarks import dictionaries, machine, packages, plan, report, settings, summary, tables
from benchmarks.cells import Cells, Job, environment
from benchmarks.summary import Row
from benchmarks.worker import CALIBRATION, calibration_of


def main() -> int:
    """0, also when a target is missed; 1 when the run could not be finished."""
    settings.BUILD.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(settings.BUILD / "running.lock").acquire(timeout=0):
            return _run()
    except Timeout:
        print("Another benchmark is running in this clone; wait for it.", file=sys.stderr)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


def _run() -> int:
    machine.describe()  # first of all: the load average before this run adds to it
    path = settings.BUILD / "cells.jsonl"
    if os.environ.get("BENCH_FRESH", "") not in ("", "0"):
        path.unlink(missing_ok=True)
    reason = packages.install() or packages.missing()
    skipped = {"spams": reason} if reason else {}
    for text in skipped.values():
        print(f"Going on without it: {text}", flush=True)
    cells = Cells(path, environment())
    jobs = measure(cells, skipped)
    results = collect(jobs, cells, skipped)
    write(results)
    print("\n".join(["", *report.lines(results)]))
    return 0


def measure(cells: Cells, skipped: dict[str, str]) -> list[Job]:
    """All jobs, small dictionaries first; measured when this returns."""
    found = []
    for d_sae in settings.SIZES:
        for subject in settings.SUBJECTS:
            name = dictionaries.prepare(subject, d_sae)
            for jobs in plan.jobs(subject, d_sae, name, without=list(skipped)):
                plan.measure(jobs, cells)
                found += jobs
    return found


def collect(jobs: list[Job], cells: Cells, skipped: dict[str, str]) -> dict[str, Any]:
    """What results.json holds."""
    rows = [row_of(job, cells) for job in jobs if job.solver != CALIBRATION]
    return {
        "machine": {**machine.describe(), "skipped": skipped},
        "settings": {
            "tol": settings.TOL,
            "steps": settings.STEPS,
            "judged_rows": settings.JUDGED_ROWS,
            "k": settings.K,
            "batch_size": settings.BATCH_SIZE,
            "lr": settings.LR,
        },
        "dictionaries": described(jobs, cells),
        "ratios": summary.ratios(rows),
        "scaling": summary.scaling(rows),
        "details": summary.details(rows),
    }


def row_of(job: Job, cells: Cells) -> Row:
    """A job beside what was measured."""
    fields = {name: getattr(job, name) for name in ("model", "d_sae", "threads", "l0_target")}
    return {**fields, "solver": job.solver, "wanted_rows": job.rows, **cells[job]}


def described(jobs: list[Job], cells: Cells) -> list[Row]:
    """The dictionaries, each with its calibrated lam by L0."""
    found: dict[str, Row] = {}
    for job in jobs:
        row = found.setdefault(
            job.dictionary,
            {
                "model": job.model,
                "layer": job.layer,
                "d_in": dictionaries.width(job.dictionary),
                "d_sae": job.d_sae,
                "steps": settings.TRAINING_STEPS[job.d_sae],
                "calibrations": {},
            },
        )
        row["calibrations"][str(job.l0_target)] = cells[calibration_of(job)]
    return list(found.values())


def write(results: dict[str, Any]) -> None:
    """The JSON, the tables and the figure."""
    from benchmarks import figure

    tables.write_json(results, settings.RESULTS)
    tables.write_csvs(results, settings.BOOK)
    figure.save(figure.draw(results["details"]), settings.FIGURE)


if __name__ == "__main__":
    sys.exit(main())
