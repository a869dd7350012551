"""One digest of all that an executed notebook depends on.

Times of files mean nothing after a `git clone`, and a notebook's file also changes when its smoke
outputs are refreshed. So Snakemake is told contents: what the notebook says (its cells, not their
outputs), the library files that it can reach, the data and the pins. The parameters of the
profile stand beside the digest.
"""

import hashlib
import json
from pathlib import Path

from tools import imports

# all of the data by its checksums, all of the installed packages by their pins
COMMON = ("data/SHA256SUMS", "requirements.lock", "models.lock")


def inputs(notebook: Path, root: Path) -> list[Path]:
    """The files that an executed notebook depends on, the notebook itself first."""
    library = imports.notebook_sources(notebook, root / "lib")
    common = [root / name for name in COMMON if (root / name).exists()]
    return [notebook, *library, *common]


def digest(files: list[Path], root: Path) -> str:
    """SHA-256 over names and contents; of notebooks only sources and metadata count."""
    total = hashlib.sha256()
    for path in files:
        content = _notebook_text(path) if path.suffix == ".ipynb" else path.read_bytes()
        name = path.relative_to(root).as_posix().encode()
        total.update(b"%d %s %d " % (len(name), name, len(content)))
        total.update(content)
    return total.hexdigest()


def _notebook_text(path: Path) -> bytes:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    said = [
        [cell["cell_type"], "".join(cell["source"]), cell.get("metadata", {})] for cell in cells
    ]
    return json.dumps(said, sort_keys=True).encode()
