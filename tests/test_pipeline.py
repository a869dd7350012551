"""The book's pipeline computes what changed and nothing else, and survives `kill -9`."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from tools import ancestry, provenance
from tools.book import publish

ROOT = Path(__file__).resolve().parent.parent
CODE = """
import time
from pathlib import Path
with open("../executed", "a") as stream:
    print(NAME, file=stream)
while k and Path("../wait").exists():
    time.sleep(0.1)
print(k, VALUE)
"""


def save_notebook(folder: Path, name: str, library: str) -> None:
    made = nbformat.v4.new_notebook()
    code = CODE.replace("NAME", repr(name)).replace("VALUE", f"{library}.value")
    path = f"import sys\nsys.path.insert(0, '../lib')\nfrom loca_sae import {library}"
    made.cells = [nbformat.v4.new_code_cell(source) for source in ("k = 0", path, code)]
    made.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(made, folder / "notebooks" / f"{name}.ipynb")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small repository: two notebooks, each with a library module of its own."""
    for folder in ("notebooks/profiles", "lib/loca_sae", "book"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "Snakefile", tmp_path)
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / "notebooks" / "profiles" / "laptop.yaml").write_text("02_second: {k: 2}\n")
    (tmp_path / "lib" / "loca_sae" / "__init__.py").write_text("")
    for name, library in (("01_first", "alpha"), ("02_second", "beta")):
        (tmp_path / "lib" / "loca_sae" / f"{library}.py").write_text("value = 1\n")
        save_notebook(tmp_path, name, library)
        # committed pages, newer than everything else: they must not count as computed
        (tmp_path / "book" / f"{name}.ipynb").write_text("committed")
    return tmp_path


def start(clone: Path) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != "LOCA_SUPERVISOR"}
    command = [sys.executable, "-m", "tools.book", "laptop"]
    with (clone / "messages").open("ab") as messages:
        return subprocess.Popen(
            command, cwd=clone, env=environment, stdout=messages, stderr=messages
        )


def book(clone: Path) -> list[str]:
    """Run the pipeline to its end; the notebooks it executed, in order."""
    done = executed(clone)
    code = start(clone).wait(timeout=120)
    assert code == 0, (clone / "messages").read_text()
    return executed(clone)[len(done) :]


def executed(clone: Path) -> list[str]:
    path = clone / "executed"
    return path.read_text().split() if path.exists() else []


def wait_for(condition: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_a_book_is_computed_once_and_again_only_where_it_changed(clone: Path) -> None:
    assert book(clone) == ["01_first", "02_second"]
    page = nbformat.read(clone / "book" / "02_second.ipynb", as_version=4)
    assert page.cells[-1].outputs[0].text == "2 1\n"
    with (clone / "book" / "benchmarks.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["notebook"] for row in rows] == ["01_first", "02_second"]
    # two interpreters, the runner's and the kernel's, are more than one
    assert all(float(row["peak memory (MiB)"]) > 60 for row in rows)

    # new times and other smoke outputs are no change; a lost page is put back
    source = nbformat.read(clone / "notebooks" / "01_first.ipynb", as_version=4)
    source.cells[2].outputs = [nbformat.v4.new_output("stream", name="stdout", text="x")]
    nbformat.write(source, clone / "notebooks" / "01_first.ipynb")
    (clone / "lib" / "loca_sae" / "alpha.py").touch()
    (clone / "book" / "01_first.ipynb").write_text("committed")
    assert book(clone) == []
    assert "committed" not in (clone / "book" / "01_first.ipynb").read_text()

    (clone / "lib" / "loca_sae" / "beta.py").write_text("value = 7\n")
    assert book(clone) == ["02_second"]
    assert '"2 7\\n"' in (clone / "book" / "02_second.ipynb").read_text()

    (clone / "notebooks" / "profiles" / "laptop.yaml").write_text(
        "01_first: {k: 3}\n02_second: {k: 2}"
    )
    assert book(clone) == ["01_first"]


def rows_of(clone: Path) -> list[tuple[str, str, str]]:
    with (clone / "book" / "benchmarks.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    return [(row["notebook"], row["variant"], row["profile"]) for row in rows]


def test_a_variant_is_executed_after_its_notebook_and_has_its_page_and_row(clone: Path) -> None:
    profile = clone / "notebooks" / "profiles" / "laptop.yaml"
    profile.write_text("02_second: {k: 2}\n01_first--two-b: {k: 4}\n01_first: {k: 3}\n")
    assert book(clone) == ["01_first", "01_first", "02_second"]
    shown = {
        path.stem: nbformat.read(path, as_version=4).cells[-1].outputs[0].text
        for path in sorted((clone / "book").glob("*.ipynb"))
    }
    assert shown == {"01_first": "3 1\n", "01_first--two-b": "4 1\n", "02_second": "2 1\n"}
    assert rows_of(clone) == [
        ("01_first", "", "laptop"),
        ("01_first", "two-b", "laptop"),
        ("02_second", "", "laptop"),
    ]

    # its own parameters are its own reason to run again
    profile.write_text("02_second: {k: 2}\n01_first--two-b: {k: 5}\n01_first: {k: 3}\n")
    assert book(clone) == ["01_first"]
    assert '"5 1\\n"' in (clone / "book" / "01_first--two-b.ipynb").read_text()


def test_publishing_a_profile_without_a_variant_keeps_the_variants_page_and_row(
    clone: Path,
) -> None:
    executed = clone / "_build" / "executed" / "laptop"
    executed.mkdir(parents=True)
    for name in ("01_first", "02_second"):
        (executed / f"{name}.ipynb").write_text("new")
        (executed / f"{name}.benchmark.tsv").write_text("s\tmax_rss\n60\t100\n")
    (clone / "book" / "01_first--big.ipynb").write_text("old")
    benchmarks = clone / "book" / "benchmarks.csv"
    benchmarks.write_text(
        "notebook,variant,profile,minutes,peak memory (MiB)\n00_gone,,full,1.0,1\n"
        "01_first,,full,1.0,1\n01_first,big,full,7.0,1\n02_second,gone,full,1.0,1\n"
    )
    publish("laptop", clone)
    assert (clone / "book" / "01_first--big.ipynb").read_text() == "old"
    assert (clone / "book" / "01_first.ipynb").read_text() == "new"
    assert benchmarks.read_text().splitlines()[1:] == [
        "01_first,,laptop,1.0,100",
        "01_first,big,full,7.0,1",
        "02_second,,laptop,1.0,100",
    ]


def test_a_table_of_other_columns_is_written_anew(clone: Path) -> None:
    executed = clone / "_build" / "executed" / "laptop"
    executed.mkdir(parents=True)
    for name in ("01_first", "02_second"):
        (executed / f"{name}.ipynb").write_text("new")
        (executed / f"{name}.benchmark.tsv").write_text("s\tmax_rss\n60\tNA\n")
    for old in ("", "notebook,profile\n01_first,full\n"):
        (clone / "book" / "benchmarks.csv").write_text(old)
        publish("laptop", clone)
        assert rows_of(clone) == [("01_first", "", "laptop"), ("02_second", "", "laptop")]


def test_a_killed_run_ends_wholly_and_is_taken_up_again(clone: Path) -> None:
    (clone / "wait").touch()  # 02_second does not end by itself
    supervisor = start(clone)
    wait_for(lambda: executed(clone) == ["01_first", "02_second"])
    (snakemake,) = psutil.Process(supervisor.pid).children()
    others = snakemake.children(recursive=True)
    assert len(others) >= 2, "the runner and the kernel"
    os.kill(snakemake.pid, signal.SIGKILL)
    assert supervisor.wait(20) != 0
    wait_for(lambda: not any(ancestry.alive(process.pid) for process in others), seconds=20)
    assert not (clone / "_build" / "executed" / "laptop" / "02_second.ipynb").exists()
    assert (clone / "book" / "02_second.ipynb").read_text() == "committed"

    (clone / "wait").unlink()
    assert book(clone) == ["02_second"]
    assert "committed" not in (clone / "book" / "02_second.ipynb").read_text()


def test_a_second_run_waits_for_the_first(clone: Path) -> None:
    (clone / "wait").touch()
    first = start(clone)
    wait_for(lambda: "02_second" in executed(clone))
    second = start(clone)
    wait_for(lambda: "waiting until it ends" in (clone / "messages").read_text())
    assert second.poll() is None
    (clone / "wait").unlink()
    assert first.wait(60) == 0 and second.wait(60) == 0
    assert executed(clone) == ["01_first", "02_second"]


def test_a_notebook_depends_on_all_that_it_reaches_and_on_nothing_else(clone: Path) -> None:
    (clone / "lib" / "loca_sae" / "alpha.py").write_text(
        "def f():\n    from loca_sae import gamma\n"
    )
    (clone / "lib" / "loca_sae" / "gamma.py").write_text("value = 1\n")
    files = provenance.inputs(clone / "notebooks" / "01_first.ipynb", clone)
    assert [path.name for path in files] == [
        "01_first.ipynb",
        "__init__.py",
        "alpha.py",
        "gamma.py",
        "requirements.lock",
    ]
    before = provenance.digest(files, clone)
    (clone / "requirements.lock").write_text("a==2\n")
    assert provenance.digest(files, clone) != before
