"""Artifacts on disk: each a folder, written whole or not at all, found again by what made it.

    <root>/<kind>/<name>-<hash>/            the files of the artifact, manifest.json
    <root>/<kind>/<name>-<hash>.partial/    a build in progress, or what a killed one left

The hash stands for the kind, the parameters, the versions of the libraries that compute, and the
source code of the modules that the caller names (`source.fingerprint`). So a change of any of them
makes another artifact, and a stale one is never served.

``root()`` is $LOCA_STORE, or else the user's cache folder. ``python -m loca_sae.store`` lists,
verifies and removes artifacts.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from loca_sae.store import integrity, source

__all__ = ["Artifact", "DamagedArtifact", "StoreUnavailable", "artifact", "locked", "root"]

LIBRARIES = ("torch", "transformers", "transformer-lens", "sae-lens", "numba")
PARTIAL, DAMAGED = ".partial", ".damaged"
_LOCKS = ".locks"
_FULL = 16 * 2**20  # bytes; a build that failed with less free space failed for want of it
_NO_SPACE = re.compile("no space left|not enough free space|quota exceeded", re.IGNORECASE)
_log = logging.getLogger(__name__)


class StoreUnavailable(ValueError):
    """The store's folder cannot be made, written to, or is full; the message says what to do."""


class DamagedArtifact(UserWarning):
    """A stored file was not what was written; the artifact is computed again."""


class Artifact(NamedTuple):
    """A finished artifact: its folder, and what manifest.json says about it.

    manifest: kind, name, parameters, versions, source (module -> hash), files (path -> size in
        bytes, sha256), seconds (of the last build call), created (UTC, ISO 8601).
    """

    path: Path
    manifest: dict[str, Any]


def root() -> Path:
    """The store's folder: $LOCA_STORE, else the user's cache folder. It need not exist yet."""
    moved = os.environ.get("LOCA_STORE")
    if moved:
        return Path(moved).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("loca_sae"))


def artifact(
    kind: str,
    parameters: Mapping[str, Any],
    build: Callable[[Path], None],
    *,
    modules: Sequence[str] = (),
    name: str = "",
) -> Artifact:
    """The artifact of these parameters: found in the store, or else built there by ``build``.

    kind: lower-case word, the sub-folder.
    parameters: whatever decides the contents, as JSON values (no NaN).
    build: called with a folder to write into. The folder may hold files of an earlier try that was
        killed or failed, made by the same code for the same parameters: take them up or overwrite
        them. It must not write manifest.json.
    modules: modules whose source decides the contents, with all they import from this library.
    name: to make the folder recognisable; no part of the hash.

    A second process (or thread) that asks for the same artifact waits for the first. Sizes are
    checked on every call, checksums of files that changed since they were last checked; damage
    raises the warning DamagedArtifact, and the artifact is built again.
    Raises ValueError for a kind or parameters that are no JSON, StoreUnavailable (a ValueError)
    for a folder that cannot be used; what ``build`` raises passes through.
    """
    key = _key(kind, parameters, modules)
    folder = root() / kind / _folder_name(name, key)
    found, _ = _open(folder)
    if found is not None:
        return found
    with locked(folder):
        found, problem = _open(folder)  # another process may have built it meanwhile
        if found is not None:
            return found
        if problem:
            _discard(folder, problem)
        return _build(folder, {**key, "name": name}, build)


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of an artifact's folder; the system drops it when the process dies.

    Without ``wait``, raises TimeoutError if another process holds it.
    """
    from filelock import FileLock, Timeout

    path = folder.parent.parent / _LOCKS / f"{folder.parent.name}-{folder.name}.lock"
    with _usable("make", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    with _usable("write to", path.parent):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise
            _log.info("waiting for another process that builds %s", folder)
            lock.acquire(timeout=-1, poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()


def _key(kind: str, parameters: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any]:
    """All that the hash stands for."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", kind):
        raise ValueError(f"kind is {kind!r}; expected a lower-case word such as 'activations'.")
    try:
        plain = json.loads(json.dumps(dict(parameters), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"parameters of a {kind!r} artifact must be JSON values (numbers but not NaN, text, "
            f"true/false, null, lists, mappings with text keys): {error}"
        ) from error
    return {
        "kind": kind,
        "parameters": plain,
        "versions": {library: _version(library) for library in LIBRARIES},
        "source": source.fingerprint(modules),
    }


@cache
def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _folder_name(name: str, key: dict[str, Any]) -> str:
    canonical = json.dumps(key, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:80]
    return f"{readable}-{digest}" if readable else digest


def _open(folder: Path) -> tuple[Artifact | None, str]:
    """The artifact, or None and what is wrong with it ("" if it is not there at all)."""
    with _usable("read", folder):
        if not os.path.lexists(folder):
            return None, ""
        manifest, problem = integrity.check(folder)
    return (None, problem) if manifest is None else (Artifact(folder, manifest), "")


def _discard(folder: Path, problem: str) -> None:
    warnings.warn(
        f"{folder} is damaged ({problem}); it is removed and computed again.",
        DamagedArtifact,
        stacklevel=3,
    )
    aside = folder.with_name(folder.name + DAMAGED)
    with _usable("remove the damaged", folder):
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)  # at once, so that nobody opens a half-removed folder
        shutil.rmtree(aside, ignore_errors=True)


def _build(folder: Path, head: dict[str, Any], build: Callable[[Path], None]) -> Artifact:
    partial = folder.with_name(folder.name + PARTIAL)
    with _usable("make", partial):
        partial.mkdir(parents=True, exist_ok=True)
        integrity.unseal(partial)
    started = time.perf_counter()
    try:
        build(partial)
        manifest = integrity.seal(partial, head, time.perf_counter() - started)
        partial.rename(folder)
    except Exception as error:
        _explain_full_disk(partial, error)
        raise
    return Artifact(folder, manifest)


def _explain_full_disk(partial: Path, error: Exception) -> None:
    # libraries wrap the system's error in exceptions of their own, or ask for room beforehand
    said_so = _NO_SPACE.search(str(error)) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )
    if said_so or (partial.is_dir() and shutil.disk_usage(partial).free < _FULL):
        raise StoreUnavailable(
            f"the disk of the store {root()} is full, or its quota reached, while building "
            f"{partial}: {error}. What is finished stays there for the next try. Make room "
            "(python -m loca_sae.store ls, then rm), or set LOCA_STORE to a folder on another disk."
        ) from error


@contextmanager
def _usable(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except TimeoutError:  # an OSError too, but about a lock, not about the folder
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"the store {root()} cannot be used: could not {action} {path} "
            f"({error.strerror or error}). Set LOCA_STORE to a folder that you can write to."
        ) from error
