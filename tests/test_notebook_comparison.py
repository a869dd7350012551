"""`pytest --nbval` on small made notebooks, in a pytest of its own: what passes and what fails."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from tools.run_notebook import Job, run

ROOT = Path(__file__).resolve().parent.parent
CELLS = {
    "text": "print('nmse 0.0975 over 2048 latents of blocks.20.hook_out')",
    "table": "import pandas as pd\npd.DataFrame({'gap': [0.25, 1.5]}, index=['full', 'semi'])",
    "value": "1234.5",
    "noise": "import sys\nprint('a warning', file=sys.stderr)\nprint('kept')",
    "folder": "import tools\nprint(tools.__file__)",
    "picture": (
        "from IPython.display import Image, display\ndisplay(Image(data=b'bbb', format='png'))"
    ),
}


def notebook(cells: list[str]) -> NotebookNode:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    return made


def replace_in(cell: NotebookNode, old: str, new: str) -> None:
    """Change a committed output, which is as if the code had given something else now."""
    found = 0
    for output in cell.outputs:
        holder, keys = (output, ["text"]) if output.output_type == "stream" else (output.data, None)
        for key in keys or list(holder):
            found += old in holder[key]
            holder[key] = holder[key].replace(old, new)
    assert found, f"{old!r} is in no output"


def clear(cell: NotebookNode) -> None:
    cell.outputs = []


def never_run(cell: NotebookNode) -> None:
    cell.outputs, cell.execution_count = [], None


def tolerant(cell: NotebookNode, **tolerance: float) -> None:
    cell.metadata["tolerance"] = tolerance


def other_picture(cell: NotebookNode) -> None:
    cell.outputs[0].data["image/png"] = "AAAA"


# name: (index of the cell, what happened to its committed outputs, whether it still passes)
Change = Callable[[NotebookNode], Any]
CASES: dict[str, tuple[int, Change, bool]] = {
    "unchanged": (0, lambda cell: None, True),
    "number_within": (0, lambda cell: replace_in(cell, "0.0975", "0.0965"), True),
    "number_beyond": (0, lambda cell: replace_in(cell, "0.0975", "0.0875"), False),
    "count_beyond": (0, lambda cell: replace_in(cell, "2048", "1900"), False),
    "word": (0, lambda cell: replace_in(cell, "latents", "neurons"), False),
    "number_in_a_word": (0, lambda cell: replace_in(cell, "blocks.20", "blocks.21"), False),
    "number_missing": (0, lambda cell: replace_in(cell, "0.0975 ", ""), False),
    "table_within": (1, lambda cell: replace_in(cell, "0.25", "0.251"), True),
    "table_beyond": (1, lambda cell: replace_in(cell, "0.25", "0.35"), False),
    "table_column": (1, lambda cell: replace_in(cell, "gap", "gab"), False),
    "tag": (1, lambda cell: replace_in(cell, "<td>", "<th>"), False),
    "value_beyond": (2, lambda cell: replace_in(cell, "1234.5", "1434.5"), False),
    "own_tolerance": (
        2,
        lambda cell: (replace_in(cell, "1234.5", "1434.5"), tolerant(cell, rtol=0.2)),
        True,
    ),
    "wrong_tolerance": (2, lambda cell: tolerant(cell, relative=0.2), False),
    "stderr": (3, lambda cell: None, True),
    "folder": (4, lambda cell: replace_in(cell, "<repository>", "<repository>"), True),
    "output_missing": (2, clear, False),
    "cell_never_run": (2, never_run, False),
    "other_picture": (5, other_picture, True),
    "no_picture": (5, clear, False),
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Run `pytest --nbval` over one notebook a case; what failed in each."""
    folder = tmp_path_factory.mktemp("repository")
    executed = folder / "executed.ipynb"
    nbformat.write(notebook([*CELLS.values(), "print('another cell')"]), folder / "source.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        job = Job(
            name="source",
            source=folder / "source.ipynb",
            output=executed,
            failed=folder / "failed",
            log=folder / "log",
            parameters={},
        )
        assert run(job, ROOT)
    (folder / "notebooks").mkdir()
    for name, (index, change, _) in CASES.items():
        made = nbformat.read(executed, as_version=4)
        change(made.cells[index])
        made.cells = [made.cells[index], made.cells[-1]]
        nbformat.write(made, folder / "notebooks" / f"{name}.ipynb")
    silent = notebook(["x = 1"])
    silent.cells[0].execution_count = 1
    nbformat.write(silent, folder / "notebooks" / "no_outputs.ipynb")
    shutil.copy(ROOT / "conftest.py", folder)
    return run_nbval(folder)


def run_nbval(folder: Path) -> dict[str, set[str]]:
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "notebooks"]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "--junitxml=report.xml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*command, *options], cwd=folder, env=environment, stdout=subprocess.DEVNULL, timeout=300
    )
    failed: dict[str, set[str]] = defaultdict(set)
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        name = case.attrib["classname"].split(".")[1]
        failed[name] |= {case.attrib["name"]} if list(case) else set()
    return failed


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_a_result_that_did_not_really_change_passes(
    failures: dict[str, set[str]], name: str
) -> None:
    assert name in failures and not failures[name]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case[2]])
def test_a_result_that_changed_fails_in_its_cell(failures: dict[str, set[str]], name: str) -> None:
    assert failures[name] == {"Cell 0"}


def test_a_notebook_without_committed_outputs_fails(failures: dict[str, set[str]]) -> None:
    assert failures["no_outputs"] == {"committed outputs"}
