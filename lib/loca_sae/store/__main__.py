"""``python -m loca_sae.store ls|verify|rm``: look after the artifacts on disk."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loca_sae import store
from loca_sae.store import integrity

_LEFTOVERS = {store.PARTIAL: "partial", store.DAMAGED: "damaged"}


class Entry(NamedTuple):
    """One folder of the store. state: "complete", "partial" (unfinished) or "damaged"."""

    path: Path
    state: str
    size: int
    age: float

    @property
    def kind(self) -> str:
        return self.path.parent.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (1: damage found, or nothing removed; 2: usage)."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (OSError, store.StoreUnavailable) as error:
        print(error, file=sys.stderr)
        return 1


def entries(kind: str | None = None, prefix: str = "") -> Iterator[Entry]:
    """What the store holds, by kind and name."""
    root = store.root()
    folders = sorted(root.glob("*/*")) if root.is_dir() else []
    for path in folders:
        hidden = path.parent.name.startswith(".")
        wanted = kind in (None, path.parent.name) and path.name.startswith(prefix)
        if path.is_dir() and wanted and not hidden:
            yield _entry(path)


def ls(options: argparse.Namespace) -> int:
    """Print kind, name, size, age and state of each artifact."""
    found = list(entries(options.kind, options.name))
    _print(found)
    total = _size(sum(entry.size for entry in found))
    print(f"{len(found)} artifacts, {total} in {store.root()}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Compare every file of every finished artifact with its checksum."""
    damaged = 0
    for entry in entries(options.kind, options.name):
        label, problem = f"{entry.kind}/{entry.path.name}", ""
        if entry.state == "complete":
            _, problem = integrity.check(entry.path, everything=True)
        damaged += bool(problem)
        verdict = f"DAMAGED: {problem}" if problem else entry.state.replace("complete", "ok")
        print(f"{label}  {verdict}", flush=True)
    if damaged:
        print(f"{damaged} damaged; each is computed again when next asked for, or use rm.")
    return 1 if damaged else 0


def rm(options: argparse.Namespace) -> int:
    """Remove what matches, after a question unless told not to ask."""
    if not (options.all or options.kind or options.name):
        print("rm: say what to remove: a kind, --name PREFIX, or --all", file=sys.stderr)
        return 2
    found = list(entries(options.kind, options.name))
    if not found:
        print(f"nothing in {store.root()} matches", file=sys.stderr)
        return 1
    _print(found)
    question = f"Remove these {len(found)} ({_size(sum(entry.size for entry in found))})? [y/N] "
    if not options.yes and not _confirmed(question):
        print("nothing removed", file=sys.stderr)
        return 1
    busy = [entry for entry in found if not _remove(entry)]
    for entry in busy:
        print(f"kept, in use by another process: {entry.kind}/{entry.path.name}", file=sys.stderr)
    return 1 if busy else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loca_sae.store",
        description=f"Look after the artifacts in {store.root()} (LOCA_STORE moves it).",
    )
    commands = parser.add_subparsers(required=True, metavar="ls|verify|rm")
    for run in (ls, verify, rm):
        command = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        command.add_argument("kind", nargs="?", help="only this kind (model, activations, ...)")
        command.add_argument("--name", default="", metavar="PREFIX", help="only such names")
        command.set_defaults(run=run)
    command.add_argument("--all", action="store_true", help="everything in the store")
    command.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _entry(path: Path) -> Entry:
    state = next((s for end, s in _LEFTOVERS.items() if path.name.endswith(end)), "complete")
    files = []
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a build in progress removes files
            files += [file.stat()] if file.is_file() else []
    latest = max((status.st_mtime for status in files), default=path.stat().st_mtime)
    return Entry(path, state, sum(status.st_size for status in files), time.time() - latest)


def _remove(entry: Entry) -> bool:
    """False if another process holds the artifact's lock."""
    finished = entry.path.with_name(_without_leftover(entry.path.name))
    try:
        with store.locked(finished, wait=False):
            aside = finished.with_name(finished.name + store.DAMAGED)
            if entry.path != aside and entry.path.exists():
                shutil.rmtree(aside, ignore_errors=True)
                entry.path.rename(aside)  # at once: never a half-removed artifact in place
            shutil.rmtree(aside)
    except TimeoutError:
        return False
    return True


def _without_leftover(name: str) -> str:
    for end in _LEFTOVERS:
        name = name.removesuffix(end)
    return name


def _confirmed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # not a terminal
        return False


def _print(found: Sequence[Entry]) -> None:
    width = max((len(f"{entry.kind}/{entry.path.name}") for entry in found), default=0)
    for entry in found:
        label = f"{entry.kind}/{entry.path.name}".ljust(width)
        print(f"{label}  {_size(entry.size):>10}  {_age(entry.age):>8}  {entry.state}")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


if __name__ == "__main__":
    sys.exit(main())
