"""The data that come with the companion, each file checked against SHA256SUMS when it is read.

`concept` gives the labelled sets for probes, `paper_tables` the paper's published numbers, `read`
any file that SHA256SUMS lists. data/README.md says where every text is from, and its licence.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

CHECKSUMS = "SHA256SUMS"
_CONCEPTS = "concepts/"
_checked: set[tuple[Path, str]] = set()  # files found right by this process


class DataUnavailable(ValueError):
    """The data folder or a file of it is missing or damaged; the message says what to do."""


def data_dir() -> Path:
    """The data folder: $LOCA_DATA, else data/ of the source tree this library lies in.

    Raises DataUnavailable if there is none.
    """
    chosen = os.environ.get("LOCA_DATA")
    path = Path(chosen).expanduser() if chosen else Path(__file__).resolve().parents[2] / "data"
    if not (path / CHECKSUMS).is_file():
        where = f"LOCA_DATA is {chosen!r}" if chosen else f"expected it at {path}"
        raise DataUnavailable(
            f"no data folder ({where}): it must hold {CHECKSUMS}. The library installed on its "
            "own does not bring the data; set LOCA_DATA to the folder data/ of the companion."
        )
    return path.absolute()


def read(name: str) -> bytes:
    """The contents of a file of the data folder, such as "minipile.parquet".

    The first reading in a process compares the checksum. Raises DataUnavailable for a file that
    SHA256SUMS does not list, that is missing, or that differs.
    """
    expected, path = checksum(name), data_dir() / name
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise DataUnavailable(
            f"{path} cannot be read ({error.strerror}); restore it (git checkout -- data)."
        ) from error
    if (path, expected) not in _checked:
        found = hashlib.sha256(contents).hexdigest()
        if found != expected:
            raise DataUnavailable(
                f"{path} is not the file that {CHECKSUMS} lists: sha256 {found[:12]}..., expected "
                f"{expected[:12]}... Restore it (git checkout -- data), or, if you changed it on "
                f"purpose, put its new checksum into {CHECKSUMS}."
            )
        _checked.add((path, expected))
    return contents


def checksum(name: str) -> str:
    """The sha256 that SHA256SUMS lists for a file."""
    listed = _listed()
    if name not in listed:
        raise DataUnavailable(f"{name!r} is not in {data_dir() / CHECKSUMS}.")
    return listed[name]


def concept_names() -> list[str]:
    """Names of the labelled sets, sorted."""
    files = (Path(name) for name in _listed() if name.startswith(_CONCEPTS))
    return sorted(path.stem for path in files)


def concept(name: str) -> pd.DataFrame:
    """A labelled set: columns text, label, split, source, licence, key.

    split: "train" or "test" (the set `language` has "ood" as well); train and test share no key
    (the group a text is from: a novel, a package, a lemma). Raises ValueError for an unknown name.
    """
    import pandas as pd

    known = concept_names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name!r} is no labelled set; there are {', '.join(known)}.{hint}")
    return pd.read_parquet(io.BytesIO(read(f"{_CONCEPTS}{name}.parquet")))


def paper_tables() -> pd.DataFrame:
    """Numbers the paper reports: model, sae, mode, setting, five measures, source (its section).

    What could not be found is NaN. dense_rate is text, since the one value known is a bound.
    """
    import pandas as pd

    return pd.read_csv(io.BytesIO(read("paper/tables.csv")))


def _listed() -> dict[str, str]:
    """File name -> sha256, from lines of sha256sum(1)."""
    path = data_dir() / CHECKSUMS
    try:
        pairs = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line]
        return {name.lstrip("*"): digest for digest, name in pairs}
    except (OSError, ValueError) as error:
        raise DataUnavailable(
            f"{path} cannot be read ({error}); restore it (git checkout -- data)."
        ) from error
