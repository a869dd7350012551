"""Measured cells on disk: one JSON line each, written at once, so that a killed run goes on."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from loca_sae.store import source

# whose code decides what is measured; the rest of the library may change without new timings
_MODULES = ("benchmarks.solvers", "benchmarks.measuring")


@dataclass(frozen=True)
class Job:
    """What one cell measures. ``rows`` is None where the solver's speed decides."""

    model: str
    layer: int
    dictionary: str
    d_sae: int
    threads: int
    l0_target: int
    solver: str
    rows: int | None = None


def environment() -> str:
    """A digest of what else decides a timing: machine, versions, the code of the solvers."""
    described = {name: value for name, value in machine.describe().items() if name != "load"}
    said = [described, source.fingerprint(_MODULES)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


class Cells:
    """The cells of one file that were measured in this environment."""

    def __init__(self, path: Path, environment: str) -> None:
        self.path, self.environment = path, environment
        self._found = self._read()

    def __contains__(self, job: Job) -> bool:
        return job in self._found

    def __getitem__(self, job: Job) -> dict[str, Any]:
        return self._found[job]

    def put(self, job: Job, measured: dict[str, Any]) -> None:
        """Keep a cell, on disk before this returns."""
        line = {"job": asdict(job), "environment": self.environment, "measured": measured}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            # a line of its own, also behind one that a kill cut off
            file.write("\n" + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[job] = measured

    def refresh(self) -> None:
        """Read what another process has added."""
        self._found = self._read()

    def _read(self) -> dict[Job, dict[str, Any]]:
        if not self.path.is_file():
            return {}
        found = {}
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:  # empty, or cut off by a kill
                continue
            if line["environment"] == self.environment:
                found[Job(**line["job"])] = line["measured"]
        return found
