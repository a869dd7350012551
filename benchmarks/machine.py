"""The machine and the versions, without names of hosts, users or folders."""

import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "numba", "numpy", "scipy", "scikit-learn")


@cache
def describe() -> dict[str, Any]:
    """CPU, cores, memory, system, versions; load: mean of running processes before the run."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _cpu() -> str:
    """The model's name, with family and model number where the name is a bare brand."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in info.read_text(encoding="utf-8").splitlines())
    fields: dict[str, str] = {}
    for key, _, value in pairs:
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    if "cpu family" not in fields:
        return name
    return f"{name} (family {fields['cpu family']}, model {fields.get('model', '?')})"


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError, AttributeError):
        return None
