"""Make an executed notebook depend on nothing but its code, its parameters and its results.

Removed or replaced: times, papermill's and the executor's metadata, widget state, the minor
version of Python, random cell ids, folders of this machine, and what was written to stderr
(progress bars and warnings, which the log keeps). Executing an unchanged notebook again then
gives the same file, up to numbers that really differ.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

INJECTED = "injected-parameters"
# set by executors, or true of one run only
_RUN_METADATA = ("papermill", "execution", "ExecuteTime", "widgets")


def tidy(notebook: NotebookNode, root: Path, profile: str | None = None) -> list[str]:
    """Clean an executed notebook in place; returns what its cells wrote to stderr.

    `root` is the repository; a profile, when given, is named in the notebook's metadata and at
    the head of the injected parameters.
    """
    _drop_run_metadata(notebook.metadata)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata["language_info"] = {"name": "python"}
    if profile is not None:
        notebook.metadata["loca_sae"] = {"profile": profile}
    warnings: list[str] = []
    for cell in notebook.cells:
        _drop_run_metadata(cell.metadata)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]  # papermill adds an empty list
        if INJECTED in cell.metadata.get("tags", []):
            _tidy_injected(cell, profile)
        if cell.cell_type == "code":
            warnings += _tidy_outputs(cell, root)
    return warnings


def scrub(text: str, root: Path) -> str:
    """Replace this machine's folders in a text: `<store>`, `<repository>`, `<home>`, `<cell>`."""
    # IPython names a cell's source file after the process and a hash
    text = re.sub(r"\S*ipykernel_\d+[/\\]\d+\.py", "<cell>", text)
    for folder, name in _folders(root):
        text = re.sub(re.escape(folder) + r"(?![\w.-])", name, text)
    return text


def _folders(root: Path) -> list[tuple[str, str]]:
    """Folders to replace, innermost first, so that a store inside the home keeps its name."""
    named = [(os.environ.get("LOCA_STORE", ""), "<store>"), (str(root), "<repository>")]
    named += [(str(Path.home()), "<home>"), (tempfile.gettempdir(), "<temporary>")]
    usable = [(folder.rstrip("/"), name) for folder, name in named if len(folder) > 1]
    return sorted(usable, key=lambda pair: -len(pair[0]))


def _drop_run_metadata(metadata: Any) -> None:
    for key in _RUN_METADATA:
        metadata.pop(key, None)


def _tidy_injected(cell: NotebookNode, profile: str | None) -> None:
    cell["id"] = INJECTED  # papermill draws a random one
    head, _, values = cell.source.partition("\n")
    if profile is not None and head == "# Parameters":
        cell.source = f"# the values of the profile {profile}\n{values}".rstrip()


def _tidy_outputs(cell: NotebookNode, root: Path) -> list[str]:
    warnings: list[str] = []
    kept: list[NotebookNode] = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            warnings.append(output.text)
        elif kept and _same_stream(kept[-1], output):
            # how often a process flushes is chance
            kept[-1].text += output.text
        else:
            kept.append(output)
    cell.outputs = [_scrub_output(output, root) for output in kept]
    return warnings


def _same_stream(left: NotebookNode, right: NotebookNode) -> bool:
    return left.output_type == right.output_type == "stream" and left.name == right.name


def _scrub_output(output: NotebookNode, root: Path) -> NotebookNode:
    if output.output_type == "stream":
        output.text = scrub(output.text, root)
    elif output.output_type == "error":
        output.evalue = scrub(output.evalue, root)
        output.traceback = [scrub(line, root) for line in output.traceback]
    else:
        for mime, value in output.data.items():
            if isinstance(value, str) and "image/" not in mime:
                output.data[mime] = scrub(value, root)
    return output


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as stream:
        nbformat.write(notebook, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
