"""Notebooks are executed in this environment and leave tidy files, or say clearly why not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import run_notebook

ROOT = Path(__file__).resolve().parent.parent


def save_notebook(path: Path, *sources: str) -> None:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in ("k = 1  # how many", *sources)]
    made.cells[0].metadata["tags"] = ["parameters"]
    # a kernel that is registered nowhere: the runner must not look it up
    made.metadata["kernelspec"] = {"name": "elsewhere", "display_name": "?", "language": "python"}
    path.parent.mkdir(exist_ok=True)
    nbformat.write(made, path)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notebooks" / "profiles").mkdir(parents=True)
    (tmp_path / "notebooks" / "profiles" / "laptop.yaml").write_text("common: {k: 5}\n")
    # somebody registered a broken "python3" that Jupyter would find first
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "broken", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def texts(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [output.text for cell in cells for output in cell.outputs]


def test_executing_twice_gives_the_same_file(repository: Path) -> None:
    save_notebook(
        repository / "notebooks" / "01_first.ipynb",
        "import sys\nprint(k, sys.prefix == PREFIX)".replace("PREFIX", repr(sys.prefix)),
        "import os\nprint(os.getcwd(), file=sys.stderr)\nprint(os.getcwd())",
    )
    files = []
    for name in ("a", "b"):
        output = repository / name / "01_first.ipynb"
        arguments = ["execute", "01_first", "--profile", "laptop", "--output", str(output)]
        assert run_notebook.main(arguments, repository) == 0
        files.append(output.read_bytes())
        assert str(repository) in output.with_suffix(".log").read_text()
    assert files[0] == files[1]
    assert texts(output) == ["5 True\n", "<repository>/notebooks\n"]
    assert str(repository).encode() not in files[0]
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "01_first.ipynb",
        "01_first.log",
    ]


def test_a_variant_runs_its_notebook_with_its_own_parameters_and_says_so_in_its_title(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = repository / "notebooks" / "01_first.ipynb"
    save_notebook(source, "print(k)")
    made = nbformat.read(source, as_version=4)
    made.cells.insert(0, nbformat.v4.new_markdown_cell("# First"))
    nbformat.write(made, source)
    profile = repository / "notebooks" / "profiles" / "laptop.yaml"
    profile.write_text("common: {k: 5}\n01_first--big: {k: 9}\n")
    output = repository / "out" / "01_first--big.ipynb"
    arguments = ["execute", "01_first--big", "--profile", "laptop", "--output", str(output)]
    assert run_notebook.main(arguments, repository) == 0
    assert "01_first--big: done" in capsys.readouterr().err
    page = nbformat.read(output, as_version=4)
    assert page.cells[0].source == "# First (big)"
    assert page.metadata["loca_sae"] == {"profile": "laptop", "variant": "big"}
    assert page.cells[-1].outputs[0].text == "9\n"
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "01_first--big.ipynb",
        "01_first--big.log",
    ]


def test_refreshing_keeps_defaults_and_injects_no_cell(repository: Path) -> None:
    path = repository / "notebooks" / "01_first.ipynb"
    save_notebook(path, "print(k)")
    before = nbformat.read(path, as_version=4)
    assert run_notebook.main(["refresh"], repository) == 0
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert [cell.id for cell in after.cells] == [cell.id for cell in before.cells]
    assert texts(path) == ["1\n"]
    assert [cell.execution_count for cell in after.cells] == [1, 2]


def test_a_failing_notebook_is_kept_and_the_old_output_stays(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_notebook(repository / "notebooks" / "01_first.ipynb", "print('so far')", "{}['no such']")
    output = repository / "out" / "01_first.ipynb"
    output.parent.mkdir()
    output.write_text("old")
    arguments = ["execute", "01_first", "--profile", "laptop", "--output", str(output)]
    assert run_notebook.main(arguments, repository) == 1
    said = capsys.readouterr().err
    assert "01_first: failed. In [4], KeyError: 'no such'" in said
    assert "out/01_first.failed.ipynb" in said and "out/01_first.log" in said
    assert output.read_text() == "old"
    failed = (repository / "out" / "01_first.failed.ipynb").read_text()
    assert "so far" in failed and "KeyError" in failed


def test_unknown_names_are_refused_with_the_known_ones(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_notebook(repository / "notebooks" / "01_first.ipynb")
    assert run_notebook.main(["refresh", "01_frist"], repository) == 2
    assert "the notebooks are: 01_first" in capsys.readouterr().err
    arguments = ["execute", "01_first", "--profile", "lap", "--output", "x.ipynb"]
    assert run_notebook.main(arguments, repository) == 2
    assert "the profiles are: laptop" in capsys.readouterr().err
    arguments = ["execute", "01_first--big", "--profile", "laptop", "--output", "x.ipynb"]
    assert run_notebook.main(arguments, repository) == 2
    said = capsys.readouterr().err
    assert "no run '01_first--big' in the profile 'laptop'; the runs are: 01_first." in said
    assert run_notebook.main(["refresh", "01_first--big"], repository) == 2
    assert "the notebooks are: 01_first" in capsys.readouterr().err


def test_a_runner_whose_supervisor_is_gone_stops_and_writes_nothing(repository: Path) -> None:
    save_notebook(repository / "notebooks" / "01_first.ipynb", "import time\ntime.sleep(60)")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    output = repository / "01_first.ipynb"
    command = [sys.executable, "-m", "tools.run_notebook", "execute", "01_first"]
    process = subprocess.run(
        [*command, "--profile", "laptop", "--output", str(output)],
        cwd=repository,
        env={**os.environ, "LOCA_SUPERVISOR": str(gone.pid)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert process.returncode == 143
    assert "was killed" in process.stderr
    assert not output.exists()
