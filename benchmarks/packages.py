"""SPAMS for the benchmark: installed beside the environment, or reported as missing."""

import importlib
import subprocess
import sys
from pathlib import Path

from benchmarks import settings


def install(folder: Path = settings.PACKAGES, pins: Path = settings.REQUIREMENTS) -> str:
    """Install the pins into ``folder``, once; returns "" or why it could not be done.

    Without its dependencies: numpy and scipy are those of the environment.
    """
    stamp = folder / "installed.txt"
    wanted = pins.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    command += ["--only-binary", ":all:", "--target", str(folder), "--requirement", str(pins)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return "SPAMS could not be installed: " + _reason(done.stderr)
    stamp.write_text(wanted, encoding="utf-8")
    return ""


def _reason(stderr: str) -> str:
    """pip's own line of error, without addresses, which would name a server of this machine."""
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    line = errors[-1].removeprefix("ERROR:").strip() if errors else "pip failed."
    return " ".join(word for word in line.split() if "/" not in word)


def missing(folder: Path = settings.PACKAGES) -> str:
    """ "" if SPAMS can be imported from ``folder`` (which joins the path), else why not."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        importlib.import_module("spams")
    except Exception as error:  # a compiled module may fail in many ways
        return f"SPAMS cannot be imported ({type(error).__name__})."
    return ""
