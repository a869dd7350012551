"""From measured cells to ratios, scaling and verdicts: pure functions of lists of rows.

A row is a job's fields beside what was measured (`rows_of`).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import settings
from benchmarks.settings import Target

Row = dict[str, Any]
GROUP = ("model", "d_sae", "threads", "l0_target")


def ratios(cells: Sequence[Row], targets: Sequence[Target] = settings.TARGETS) -> list[Row]:
    """Each target's ratio of samples/s in each group it is stated for, and whether it is met.

    A condition on codes ("at the same gap", "at a lower objective") is part of the target: the
    gap of `solve` must be within tol, and its mean objective on the rows that both saw below the
    peer's, the encoder excepted, which minimises nothing.
    """
    found = []
    for target in targets:
        for group, members in _groups(cells).items():
            model, d_sae, threads, l0 = group
            if target.l0 not in (None, l0) or target.solver not in members:
                continue
            row: Row = {"target": target.name, **dict(zip(GROUP, group, strict=True))}
            row |= {"wanted": target.least, "headline": d_sae == settings.HEADLINE}
            if target.peer in members:
                row |= _ratio(members[target.solver], members[target.peer])
                row["met"] = _met(row, target)
            else:
                row |= {"ratio": None, "met": None}
            found.append(row)
    return found


def _ratio(own: Row, peer: Row) -> Row:
    mine, theirs = common_objectives(own, peer)
    return {
        "ratio": own["samples_per_second"] / peer["samples_per_second"],
        "objective_ratio": mine / theirs,
        "gap_max": own["gap_max"],
        "peer_gap_mean": peer["gap_mean"],
    }


def _met(row: Row, target: Target) -> bool:
    certified = row["gap_max"] <= settings.TOL
    # within tol of the optimum, so at most so much above any other code
    lower = row["objective_ratio"] <= 1 + settings.TOL
    return bool(row["ratio"] >= target.least and certified and lower)


def common_objectives(a: Row, b: Row) -> tuple[float, float]:
    """Mean objectives of two cells on the first rows that both were judged on."""
    rows = min(len(a["objectives"]), len(b["objectives"]))
    return float(np.mean(a["objectives"][:rows])), float(np.mean(b["objectives"][:rows]))


def common_rows(members: Sequence[Row]) -> int:
    """How many first rows all of these cells were judged on."""
    return min(len(member["objectives"]) for member in members)


def details(cells: Sequence[Row]) -> list[Row]:
    """A row a solver and group: speed, memory, gap, and the objective on the rows common to all,
    relative to that of the exact solver (1 is the optimum)."""
    found = []
    for group, members in _groups(cells).items():
        rows = common_rows(list(members.values()))
        optimum = float(np.mean(members["solve"]["objectives"][:rows]))
        for solver, cell in members.items():
            mean = float(np.mean(cell["objectives"][:rows]))
            row: Row = {**dict(zip(GROUP, group, strict=True)), "solver": solver}
            row |= {key: cell[key] for key in ("samples_per_second", "gap_mean", "gap_max", "l0")}
            row |= {"objective": mean, "objective_ratio": mean / optimum, "common_rows": rows}
            row |= {"memory_mib": cell["memory_mib"], "rows": cell["rows"], "lam": cell["lam"]}
            found.append(row)
    return found


def _groups(cells: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for cell in cells:
        if cell["wanted_rows"] is None:
            groups.setdefault(tuple(cell[key] for key in GROUP), {})[cell["solver"]] = cell
    return groups


def scaling(cells: Sequence[Row]) -> list[Row]:
    """Fitted exponents of the time of `solve` in n, in d_sae, and of what a further sample costs.

    in n: whole calls at the headline's d_sae. in d_sae: whole calls of the most samples that every
    size was measured with, which hold the Gram matrix, made once a call and of d_sae^2 cost.
    a sample: the slope between the numbers of samples, where that fixed cost drops out.
    """
    found = []
    for model, sizes in _timed(cells).items():
        in_n = sizes.get(settings.HEADLINE, {})
        shared = sorted(set.intersection(*(set(rows) for rows in sizes.values())))
        whole = {d_sae: sizes[d_sae][shared[-1]] for d_sae in sorted(sizes)}
        each = {d_sae: slope({n: sizes[d_sae][n] for n in shared}) for d_sae in sorted(sizes)}
        for name, times in (("n", in_n), ("d_sae", whole), ("d_sae, a further sample", each)):
            power = exponent(times)
            limit = settings.EXPONENT + settings.EXPONENT_SLACK
            met = None if power is None else power <= limit
            row = {"model": model, "of": name, "exponent": power, "met": met}
            found.append({**row, "seconds": {str(key): times[key] for key in sorted(times)}})
    return found


def _timed(cells: Sequence[Row]) -> dict[str, dict[int, dict[int, float]]]:
    """model -> d_sae -> number of samples -> seconds of `solve`, with all threads."""
    own = [c for c in cells if c["solver"] == "solve" and c["l0_target"] == settings.SCALING_L0]
    most = max((cell["threads"] for cell in own), default=0)
    timed: dict[str, dict[int, dict[int, float]]] = {}
    for cell in own:
        if cell["threads"] == most:
            times = timed.setdefault(cell["model"], {}).setdefault(cell["d_sae"], {})
            times[cell["rows"]] = float(np.median(cell["seconds"]))
    return timed


def exponent(times: dict[int, float]) -> float | None:
    """The power p of the least-squares fit log(time) = p log(size) + c; None below two sizes."""
    if len(times) < 2 or min(times.values()) <= 0:
        return None
    sizes = [math.log(size) for size in times]
    return float(np.polyfit(sizes, [math.log(value) for value in times.values()], 1)[0])


def slope(times: dict[int, float]) -> float:
    """Seconds that one further sample takes: the slope of the line through (n, seconds)."""
    if len(times) < 2:
        return math.nan
    return float(np.polyfit(list(times), list(times.values()), 1)[0])
