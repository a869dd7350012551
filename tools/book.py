"""Execute the notebooks of the book by Snakemake and put the results into book/.

    python -m tools.book [profile]

Snakemake works in _build/executed/<profile>, which a fresh clone does not have: there everything
is computed, whatever is committed in book/ and however new git made it look. Afterwards a
notebook executed before is executed again only when its source, its parameters, the library files
it reaches, the data or the pins changed; contents decide, not times.

It may be killed at any time. Snakemake's own lock then stays behind and is removed by the next
run, which is safe because a lock of the operating system, gone with its holder, tells whether
another run is at work.
"""

import csv
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import ancestry, profiles

BENCHMARKS = Path("book", "benchmarks.csv")
# a column of its own for the variant: in prose two hyphens would turn into a dash
_COLUMNS = ["notebook", "variant", "profile", "minutes", "peak memory (MiB)"]
# the runner says how far it is; of Snakemake only errors and the end are of interest
_QUIET = ["--quiet", "host", "progress", "reason", "rules"]


def main(profile: str, root: Path) -> int:
    """Execute what has to be executed, then publish; returns the exit code."""
    try:
        profiles.load(profile, root / "notebooks")
    except profiles.ProfileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with _alone(root) as lock:
        code = _snakemake(profile, root, lock)
        if code == 0:
            publish(profile, root)
    return code


@contextmanager
def _alone(root: Path) -> Iterator[int]:
    """Hold the lock of this working copy; waits, with a word about it, while another run has it.

    Snakemake inherits the open file, so that the lock outlives a killed supervisor as long as
    Snakemake does.
    """
    path = root / "_build" / "lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another run is executing notebooks here: waiting until it ends.", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()


def _snakemake(profile: str, root: Path, lock: int) -> int:
    base = [sys.executable, "-m", "snakemake", "--snakefile", "Snakefile", "--cores", _cores()]
    config = ["--config", f"profile={profile}"]
    environment = {**os.environ, ancestry.VARIABLE: str(os.getpid())}
    # a lock left by a killed run; nobody else can be at work, see above
    if any((root / ".snakemake" / "locks").glob("*")):
        unlock = [*base, "--unlock", "--quiet", "all", *config]
        subprocess.run(unlock, cwd=root, env=environment, check=True, capture_output=True)
    command = [*base, "--rerun-incomplete", "--keep-going", *_QUIET, *config]
    parent = os.getppid()
    process = subprocess.Popen(command, cwd=root, env=environment, pass_fds=[lock])
    try:
        while True:
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                if os.getppid() != parent:  # make was killed: nobody waits for the result
                    process.kill()
                    return 143
    except KeyboardInterrupt:
        # Snakemake got the interrupt too and ends its jobs
        return process.wait() or 130


def _cores() -> str:
    return str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())


def publish(profile: str, root: Path) -> None:
    """Copy the executed notebooks and their time and memory into book/, where bytes differ.

    _toc.yml lists the pages of variants whichever profile is published. So the page of a variant
    that this profile does not have stays as it is, from the profile that made it, with its row.
    """
    executed = root / "_build" / "executed" / profile
    runs = list(profiles.load(profile, root / "notebooks"))
    for run in runs:
        _copy_if_different(executed / f"{run}.ipynb", root / "book" / f"{run}.ipynb")
    path = root / BENCHMARKS
    rows = [_row(run, profile, executed / f"{run}.benchmark.tsv") for run in runs]
    rows += [row for row in _old_rows(path) if profiles.join(row[0], row[1]) not in runs]
    # stable: a notebook's rows stay together, its plain run first
    rows.sort(key=lambda row: row[0])
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(rows)
    os.replace(partial, path)


def _old_rows(path: Path) -> list[list[str]]:
    """The rows of variants whose page is still in the book."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        head, *rows = list(csv.reader(stream)) or [[]]
    if head != _COLUMNS:
        return []
    return [
        row
        for row in rows
        if row[1] and (path.parent / f"{profiles.join(row[0], row[1])}.ipynb").exists()
    ]


def _row(run: str, profile: str, measured: Path) -> list[str]:
    seconds, mebibytes = _benchmark(measured)
    notebook, variant = profiles.split(run)
    return [notebook, variant or "", profile, f"{seconds / 60:.1f}", f"{mebibytes:.0f}"]


def _benchmark(path: Path) -> tuple[float, float]:
    """Wall seconds and peak resident memory, children included, as Snakemake measured them."""
    with path.open(encoding="utf-8", newline="") as stream:
        row = next(csv.DictReader(stream, delimiter="\t"))
    return float(row["s"]), float(row["max_rss"] if row["max_rss"] != "NA" else "nan")


def _copy_if_different(source: Path, target: Path) -> None:
    content = source.read_bytes()
    if target.exists() and target.read_bytes() == content:
        return
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "laptop", Path.cwd()))
