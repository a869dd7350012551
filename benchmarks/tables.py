"""The results as one JSON file and as the tables of the book's page."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import settings
from benchmarks.solvers import SOLVERS
from benchmarks.summary import Row

STEM = "exact_inference"
DASH = "–"


def write_json(results: dict[str, Any], path: Path) -> None:
    """All of it, readable as a diff."""
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_csvs(results: dict[str, Any], folder: Path) -> None:
    """A table a question, `exact_inference_<name>.csv`."""
    for name, table in tables(results).items():
        with (folder / f"{STEM}_{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(table)


def tables(results: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Name -> header and rows, as text."""
    headline = [row for row in results["ratios"] if row["headline"]]
    larger = [row for row in results["ratios"] if not row["headline"]]
    details = results["details"]
    found = {
        "machine": _machine(results["machine"]),
        "dictionaries": _dictionaries(results["dictionaries"]),
        "ratios": _ratios(headline),
        "ratios_larger": _ratios(larger),
        "scaling": _scaling(results["scaling"]),
    }
    for d_sae in settings.SIZES:
        found[f"details_{d_sae}"] = _details([r for r in details if r["d_sae"] == d_sae])
    return found


def _machine(machine: dict[str, Any]) -> list[list[str]]:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        ["what", "value"],
        ["CPU", str(machine["cpu"])],
        ["cores", str(machine["cores"])],
        ["memory", f"{machine['memory_gib']} GiB"],
        ["system", f"{machine['system']}, Python {machine['python']}"],
        ["libraries", versions],
        ["load average when the run began", _text(machine["load"])],
        ["not measured", "; ".join(machine["skipped"].values()) or "nothing"],
    ]


def _dictionaries(rows: Sequence[Row]) -> list[list[str]]:
    header = ["model", "layer", "d_in", "d_sae", "training steps", "L0 wanted", "L0", "λ"]
    body = []
    for row in rows:
        for l0, found in row["calibrations"].items():
            head = [row["model"], row["layer"], row["d_in"], row["d_sae"], row["steps"], l0]
            body.append([*map(str, head), f"{found['l0']:.1f}", f"{found['lam']:.3g}"])
    return [header, *body]


def _ratios(rows: Sequence[Row]) -> list[list[str]]:
    header = ["target", "model", "d_sae", "threads", "L0", "speed ratio", "objective", "met"]
    return [
        header,
        *(
            [
                row["target"],
                row["model"],
                str(row["d_sae"]),
                str(row["threads"]),
                str(row["l0_target"]),
                ratio_text(row),
                _text(row.get("objective_ratio"), ".6f"),
                verdict(row["met"]),
            ]
            for row in rows
        ),
    ]


def ratio_text(row: Row) -> str:
    """The ratio as its target states it: times the speed of the peer, or times its cost."""
    if row["ratio"] is None:
        return "not measured"
    if row["wanted"] < 1:
        return f"{1 / row['ratio']:.2f} times the time"
    return f"{row['ratio']:.1f} times the speed"


def verdict(met: bool | None) -> str:
    """yes, no, or that nothing can be said."""
    return "not measured" if met is None else "yes" if met else "no"


def _scaling(rows: Sequence[Row]) -> list[list[str]]:
    header = ["model", "time against", "exponent", "times", "at most linear"]
    return [
        header,
        *(
            [
                row["model"],
                row["of"],
                _text(row["exponent"], ".2f"),
                ", ".join(f"{key}: {_seconds(value)}" for key, value in row["seconds"].items()),
                verdict(row["met"]),
            ]
            for row in rows
        ),
    ]


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.05 else f"{1000 * value:.3g} ms"


def _details(rows: Sequence[Row]) -> list[list[str]]:
    header = ["model", "L0", "threads", "solver", "samples/s", "objective", "gap (mean)"]
    header += ["gap (largest)", "memory (MiB)", "samples"]
    return [
        header,
        *(
            [
                row["model"],
                str(row["l0_target"]),
                str(row["threads"]),
                SOLVERS[row["solver"]].label,
                f"{row['samples_per_second']:,.{0 if row['samples_per_second'] >= 100 else 1}f}",
                f"{row['objective_ratio']:.6f}",
                f"{row['gap_mean']:.1e}",
                f"{row['gap_max']:.1e}",
                _text(row["memory_mib"], ".0f"),
                str(row["rows"]),
            ]
            for row in rows
        ),
    ]


def _text(value: Any, form: str = "") -> str:
    return DASH if value is None else format(value, form)
