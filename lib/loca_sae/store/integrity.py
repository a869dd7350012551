"""The manifest of an artifact: written when it is finished, compared when it is opened.

manifest.json names every file with its size and sha256, and carries a checksum of itself. Beside
it, .verified.json keeps size and modification time of each file when its checksum was last found
right, so that gigabytes are not hashed at every opening: only a file whose time differs from that
stamp is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MANIFEST, STAMPS = "manifest.json", ".verified.json"
_FORMAT = 1


def seal(folder: Path, head: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Write the manifest over all files in ``folder`` and wait until the disk has them.

    Raises RuntimeError if there is no file, or one with a reserved name.
    """
    paths = contents(folder)
    reserved = [name for name in (MANIFEST, STAMPS) if (folder / name).exists()]
    if reserved or not paths:
        what = f"wrote {reserved[0]}, a reserved name" if reserved else "wrote no file"
        raise RuntimeError(f"the build function of a {head.get('kind')!r} artifact {what}.")
    stamps = {path: _stamp(folder / path) for path in paths}
    manifest = {
        "format": _FORMAT,
        **head,
        "files": {path: _describe(folder / path) for path in paths},
        "seconds": round(seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    _write_json(folder / MANIFEST, {**manifest, "sha256": _digest(manifest)})
    _write_stamps(folder, stamps)
    return manifest


def unseal(folder: Path) -> None:
    """Remove the manifest that a process killed just before its last step may have left."""
    for name in (MANIFEST, STAMPS):
        for path in folder.glob(name + "*"):
            path.unlink()


def check(folder: Path, everything: bool = False) -> tuple[dict[str, Any] | None, str]:
    """(manifest, "") if the files are what was written, else (None, what is wrong).

    Checksums are computed for files that changed since they were last right, or for all.
    Raises OSError for a file that may be intact but cannot be read now (permissions).
    """
    manifest, problem = read_manifest(folder)
    if manifest is None:
        return None, problem
    old = {} if everything else _read_stamps(folder)
    new = {}
    for path, expected in manifest["files"].items():
        try:
            new[path] = _stamp(folder / path)  # before the checksum: a later change must show
            problem = _compare(folder / path, path, expected, new[path] == old.get(path))
        except OSError as error:
            problem = _damage(path, error)
        if problem:
            return None, problem
    if new != old:
        _write_stamps(folder, new)
    return manifest, ""


def read_manifest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """(manifest, "") or (None, what is wrong), without looking at the other files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except OSError as error:
        return None, _damage(MANIFEST, error)
    except ValueError:
        return None, f"{MANIFEST} is not readable as JSON"
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        return None, f"{MANIFEST} is not of format {_FORMAT}"
    if manifest.pop("sha256", None) != _digest(manifest):
        return None, f"the checksum of {MANIFEST} is not that of what was written"
    return manifest, ""


def contents(folder: Path) -> list[str]:
    """Paths of all files below ``folder`` but our own two: relative, forward slashes, sorted."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in paths if not path.startswith((MANIFEST, STAMPS)))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _compare(path: Path, name: str, expected: Mapping[str, Any], known: bool) -> str:
    size = path.stat().st_size
    if size != expected["size"]:
        return f"{name} has {size} bytes, {expected['size']} were written"
    if not known and _sha256(path) != expected["sha256"]:
        return f"the checksum of {name} is not that of the file that was written"
    return ""


def _damage(name: str, error: OSError) -> str:
    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
        raise error  # too many open files, no permission: no reason to remove anything
    return f"{name} cannot be read: {error.strerror}"


def _describe(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": _sha256(path, sync=True)}


def _sha256(path: Path, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:  # or a power cut could leave a finished artifact with empty files
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _read_stamps(folder: Path) -> dict[str, Any]:
    try:
        stamps = json.loads((folder / STAMPS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _write_stamps(folder: Path, stamps: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a store that can only be read works, hashing each time
        _write_json(folder / STAMPS, stamps)


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
