"""The store under what happens to it: races, kills, damage, changed code, full and locked disks."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from loca_sae import store
from loca_sae.store import __main__ as cli
from loca_sae.store import source

LIB = str(Path(store.__file__).parents[2])
pytestmark = pytest.mark.usefixtures("own_store")


class Builder:
    """A build function that counts its calls and writes two files."""

    def __init__(self, text: str = "hello") -> None:
        self.text, self.calls = text, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "sub").mkdir(exist_ok=True)
        (folder / "sub" / "text.txt").write_text(self.text)
        (folder / "numbers.bin").write_bytes(bytes(range(256)) * 20)


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": LIB}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for {what}")
        time.sleep(0.01)


@pytest.fixture
def made() -> tuple[Builder, Path]:
    """A finished artifact and the function that built it."""
    build = Builder()
    return build, store.artifact("toy", {"a": 1}, build, name="one").path


def again(build: Builder) -> store.Artifact:
    return store.artifact("toy", {"a": 1}, build, name="one")


def test_an_artifact_is_built_once_and_then_found() -> None:
    build = Builder()
    first = store.artifact("toy", {"a": 1, "b": [1, 2]}, build, name="my model/7")
    second = store.artifact("toy", {"b": (1, 2), "a": 1}, build, name="my model/7")
    assert build.calls == 1
    assert first.path == second.path
    assert first.path.parent == store.root() / "toy"
    assert first.path.name.startswith("my-model-7-")
    assert first.manifest == second.manifest
    assert (first.path / "sub" / "text.txt").read_text() == "hello"


def test_the_manifest_tells_parameters_versions_checksums_sizes_and_time() -> None:
    import hashlib

    found = store.artifact("toy", {"a": 1.5}, Builder())
    on_disk = json.loads((found.path / "manifest.json").read_text())
    for manifest in (found.manifest, on_disk):
        assert manifest["kind"] == "toy"
        assert manifest["parameters"] == {"a": 1.5}
        assert set(manifest["versions"]) == {
            *("torch", "transformers", "transformer-lens", "sae-lens", "numba")
        }
        assert manifest["files"]["sub/text.txt"] == {
            "size": 5,
            "sha256": hashlib.sha256(b"hello").hexdigest(),
        }
        assert set(manifest["files"]) == {"sub/text.txt", "numbers.bin"}
        assert manifest["seconds"] >= 0
        assert manifest["created"].startswith("20")


@pytest.mark.parametrize("other", [{"a": 2}, {"a": 1, "b": None}, {"a": "1"}, {}])
def test_other_parameters_are_another_artifact(other: dict[str, Any]) -> None:
    build = Builder()
    assert store.artifact("toy", {"a": 1}, build).path != store.artifact("toy", other, build).path
    assert build.calls == 2


def test_another_version_of_a_library_is_another_artifact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = Builder()
    store.artifact("toy", {"a": 1}, build)
    monkeypatch.setattr(store, "_version", lambda library: f"{library} of tomorrow")
    store.artifact("toy", {"a": 1}, build)
    assert build.calls == 2


@pytest.mark.parametrize("bad", [{"a": float("nan")}, {"a": object()}, {"a": {1, 2}}])
def test_parameters_that_are_no_json_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="parameters of a 'toy' artifact must be JSON"):
        store.artifact("toy", bad, Builder())


@pytest.mark.parametrize("kind", ["", "../x", "a/b", "A", ".locks"])
def test_a_kind_that_is_no_plain_word_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="kind is"):
        store.artifact(kind, {}, Builder())


RACER = """
import os, sys, time
from pathlib import Path
from loca_sae import store
side = Path(sys.argv[1])
(side / f"arrived-{os.getpid()}").touch()
def build(folder):
    with (side / "builds").open("a") as file:
        file.write("one\\n")
    while len(list(side.glob("arrived-*"))) < 2:
        time.sleep(0.01)
    time.sleep(0.5)
    (folder / "x").write_text("made")
found = store.artifact("toy", {"race": 1}, build)
print(found.path, (found.path / "x").read_text())
"""


def test_two_processes_that_want_one_artifact_build_it_once(tmp_path: Path) -> None:
    racers = [python(RACER, tmp_path) for _ in range(2)]
    outputs = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0], outputs
    assert (tmp_path / "builds").read_text() == "one\n"
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][0].endswith("made\n")


def test_two_threads_that_want_one_artifact_build_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "loca_sae.store")
    build = Builder()
    building = threading.Event()

    def slowly(folder: Path) -> None:
        building.set()
        until(lambda: "waiting for another" in caplog.text, "the second thread to wait")
        build(folder)

    found: list[Path] = []
    first = threading.Thread(target=lambda: found.append(store.artifact("toy", {}, slowly).path))
    second = threading.Thread(target=lambda: found.append(store.artifact("toy", {}, build).path))
    first.start()
    building.wait(30)
    second.start()
    first.join(30)
    second.join(30)
    assert build.calls == 1
    assert len(found) == 2 and found[0] == found[1]


SLEEPER = """
import sys, time
from pathlib import Path
from loca_sae import store
def build(folder):
    (folder / "half").write_text("first half")
    Path(sys.argv[1]).touch()
    time.sleep(600)
store.artifact("toy", {"a": 1}, build, name="one")
"""


@pytest.fixture
def building(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of building an artifact."""
    process = python(SLEEPER, tmp_path / "started")
    until(lambda: (tmp_path / "started").exists() or process.poll() is not None, "the build")
    yield process
    process.kill()
    process.communicate()


def test_a_build_killed_in_the_middle_leaves_no_lock_and_is_taken_up(
    building: subprocess.Popen[str],
) -> None:
    building.send_signal(signal.SIGKILL)
    building.wait(10)
    assert [entry.state for entry in cli.entries()] == ["partial"]
    seen: list[str] = []

    def resume(folder: Path) -> None:
        seen.append((folder / "half").read_text())
        (folder / "rest").write_text("second half")

    started = time.monotonic()
    found = store.artifact("toy", {"a": 1}, resume, name="one")
    assert time.monotonic() - started < 5
    assert seen == ["first half"]
    assert set(found.manifest["files"]) == {"half", "rest"}
    assert [entry.state for entry in cli.entries()] == ["complete"]


def test_a_build_killed_between_manifest_and_renaming_is_taken_up(
    made: tuple[Builder, Path],
) -> None:
    build, path = made
    path.rename(path.with_name(path.name + ".partial"))
    found = again(build)
    assert found.path == path
    assert set(found.manifest["files"]) == {"sub/text.txt", "numbers.bin"}


def test_a_build_that_fails_leaves_nothing_finished_and_keeps_its_files() -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("first half")
        raise ZeroDivisionError("the build's own error")

    with pytest.raises(ZeroDivisionError, match="the build's own error"):
        store.artifact("toy", {}, fail)
    [entry] = cli.entries()
    assert entry.state == "partial"
    assert (entry.path / "half").exists()


def test_a_build_that_writes_nothing_or_a_manifest_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="wrote no file"):
        store.artifact("toy", {}, lambda folder: None)
    with pytest.raises(RuntimeError, match="manifest.json, a reserved name"):
        store.artifact("toy", {}, lambda folder: _write(folder / "manifest.json", b"{}"))


def _write(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)


def flip_one_byte(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def rewrite(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


DAMAGES = {
    "one byte flipped": (lambda path: flip_one_byte(path / "numbers.bin"), "numbers.bin"),
    "cut short": (
        lambda path: os.truncate(path / "numbers.bin", 5000),
        "numbers.bin has 5000 bytes, 5120 were written",
    ),
    "emptied": (
        lambda path: os.truncate(path / "sub" / "text.txt", 0),
        "sub/text.txt has 0 bytes, 5 were written",
    ),
    "deleted": (lambda path: (path / "sub" / "text.txt").unlink(), "sub/text.txt"),
    "folder deleted": (lambda path: shutil.rmtree(path / "sub"), "sub/text.txt"),
    "manifest flipped": (lambda path: flip_one_byte(path / "manifest.json"), "manifest.json"),
    "manifest edited": (
        lambda path: rewrite(path / "manifest.json", '"a": 1', '"a": 7'),
        "checksum of manifest.json",
    ),
    "manifest deleted": (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
    "manifest no object": (lambda path: _write(path / "manifest.json", b"[]"), "manifest.json"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_artifact_is_reported_and_rebuilt(how: str, made: tuple[Builder, Path]) -> None:
    build, path = made
    damage, file = DAMAGES[how]
    damage(path)
    with pytest.warns(store.DamagedArtifact, match=file):
        found = again(build)
    assert build.calls == 2
    assert found.path == path
    assert (path / "sub" / "text.txt").read_text() == "hello"
    assert (path / "numbers.bin").read_bytes() == bytes(range(256)) * 20
    assert [entry.state for entry in cli.entries()] == ["complete"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again(build)
    assert build.calls == 2


def test_a_copied_store_is_checked_once_and_served(
    made: tuple[Builder, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, path = made
    shutil.copytree(store.root(), tmp_path / "copy", copy_function=shutil.copy)
    monkeypatch.setenv("LOCA_STORE", str(tmp_path / "copy"))
    hashed: list[str] = []
    real = store.integrity._sha256
    monkeypatch.setattr(
        store.integrity, "_sha256", lambda path: (hashed.append(path.name), real(path))[1]
    )
    assert again(build).path == tmp_path / "copy" / "toy" / path.name
    assert sorted(hashed) == ["numbers.bin", "text.txt"]
    again(build)
    assert len(hashed) == 2
    assert build.calls == 1


def test_an_unreadable_file_is_no_damage(
    made: tuple[Builder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, path = made

    def refuse(path: Path) -> list[int]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(store.integrity, "_stamp", refuse)
    with pytest.raises(store.StoreUnavailable, match="could not read .*Permission denied"):
        again(build)
    assert (path / "numbers.bin").exists()


# ---- the source fingerprint -------------------------------------------------------------------

PACKAGE = {
    "__init__.py": "",
    "top.py": '''
"""Docstring."""
from typing import TYPE_CHECKING
from . import middle
if TYPE_CHECKING:
    from fakelib import typing_only
def f(x):
    """What f does."""
    from fakelib.sub.deep import g  # within a function
    return g(x) + middle.VALUE
class Empty:
    """Only a docstring."""
''',
    "middle.py": "VALUE = 1\n",
    "typing_only.py": "VALUE = 1\n",
    "unrelated.py": "VALUE = 1\n",
    "sub/__init__.py": "from ..low import *\n",
    "sub/deep.py": "def g(x): return x\n",
    "low.py": "import json, os.path\n",
}


@pytest.fixture
def fakelib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path; never imported."""
    folder = tmp_path / "path" / "fakelib"
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def fingerprint_of_top() -> dict[str, str]:
    """As a new process would see it."""
    source._file.cache_clear()
    source._parse.cache_clear()
    return source.fingerprint(["fakelib.top"])


def test_the_fingerprint_follows_imports_and_imports_nothing(fakelib: Path) -> None:
    assert set(fingerprint_of_top()) == {
        *("fakelib", "fakelib.top", "fakelib.middle", "fakelib.low"),
        *("fakelib.sub", "fakelib.sub.deep"),
    }
    assert not any(name.startswith("fakelib") for name in sys.modules)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("top.py", "x) +", "x) -"),
        ("top.py", "class Empty", "class Empti"),
        ("middle.py", "1", "2"),
        ("sub/__init__.py", "from", "X = 3\nfrom"),
        ("sub/deep.py", "return x", "return -x"),
        ("low.py", "json", "csv"),
    ],
)
def test_changed_code_changes_the_fingerprint(
    fakelib: Path, file: str, before: str, after: str
) -> None:
    old = fingerprint_of_top()
    rewrite(fakelib / file, before, after)
    assert fingerprint_of_top() != old


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("top.py", "# within a function", "# elsewhere"),
        ("top.py", "What f does.", "What it does, better said."),
        ("top.py", '    """What f does."""\n', ""),
        ("top.py", '"""Docstring."""', ""),
        ("top.py", "g(x) + middle.VALUE", "(g(x)\n            + middle.VALUE)"),
        ("top.py", "Only a docstring.", "Nothing."),
        ("top.py", "import typing_only", "import unrelated"),
        ("middle.py", "VALUE = 1", "# a comment\nVALUE = 1"),
        ("unrelated.py", "1", "2"),
        ("typing_only.py", "1", "2"),
    ],
)
def test_a_comment_a_docstring_or_an_unrelated_file_changes_nothing(
    fakelib: Path, file: str, before: str, after: str
) -> None:
    old = fingerprint_of_top()
    rewrite(fakelib / file, before, after)
    assert fingerprint_of_top() == old


def test_an_artifact_is_rebuilt_after_a_change_of_code_and_not_after_a_comment(
    fakelib: Path,
) -> None:
    build = Builder()

    def ask() -> Path:
        fingerprint_of_top()
        return store.artifact("toy", {}, build, modules=["fakelib.top"]).path

    first = ask()
    (fakelib / "middle.py").write_text("VALUE = 1  # one\n")
    assert ask() == first
    assert build.calls == 1
    (fakelib / "middle.py").write_text("VALUE = 2\n")
    assert ask() != first
    assert build.calls == 2


def test_a_module_without_source_is_refused() -> None:
    for name in ("no_such_module", "loca_sae.no_such_module", "sys", "__main__"):
        with pytest.raises(ValueError, match="no Python source file"):
            source.fingerprint([name])
    with pytest.raises(ValueError, match="expected a sequence"):
        source.fingerprint("loca_sae.corpus")


def test_the_store_is_light_and_its_own_code_is_in_no_fingerprint() -> None:
    code = """
import sys
from loca_sae import store
from loca_sae.store import source
print(*source.fingerprint(["loca_sae.training"]))
print([name for name in ("torch", "numpy", "pandas", "sae_lens") if name in sys.modules])
"""
    output, errors = python(code).communicate(timeout=60)
    names, heavy = output.splitlines()
    assert {"loca_sae.training", "loca_sae.models"} <= set(names.split()), errors
    assert not any(name.startswith("loca_sae.store") for name in names.split())
    assert heavy == "[]"


# ---- where the store is -----------------------------------------------------------------------


def test_loca_store_moves_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Builder()
    for place in (tmp_path / "here", tmp_path / "there" / "deeper"):
        monkeypatch.setenv("LOCA_STORE", str(place))
        assert place in store.artifact("toy", {}, build).path.parents
    assert build.calls == 2
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCA_STORE", "~/mine")
    assert store.root() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCA_STORE", "relative")
    assert store.root() == tmp_path / "relative"


@pytest.mark.parametrize("value", [None, ""])
def test_without_loca_store_it_is_the_users_cache(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCA_STORE")
    if value is not None:
        monkeypatch.setenv("LOCA_STORE", value)
    assert store.root().is_absolute()
    assert store.root().parts[-1] == "loca_sae"


def test_a_store_that_cannot_be_made_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCA_STORE", str(tmp_path / "file" / "store"))
    with pytest.raises(store.StoreUnavailable, match="Set LOCA_STORE to a folder"):
        store.artifact("toy", {}, Builder())


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Builder]]:
    """A store with one artifact, seen by a user who may only read it."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        monkeypatch.setenv("LOCA_STORE", place)
        build = Builder()
        store.artifact("toy", {"a": 1}, build)
        folders = [Path(place), *(p for p in Path(place).rglob("*") if p.is_dir())]
        for folder in folders:
            folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:  # root may write anywhere
            os.seteuid(65534)
        try:
            yield Path(place), build
        finally:
            os.seteuid(user)
            for folder in folders:
                folder.chmod(0o755)


def test_a_read_only_store_serves_what_it_has_and_refuses_the_rest_clearly(
    read_only: tuple[Path, Builder],
) -> None:
    _, build = read_only
    store.artifact("toy", {"a": 1}, build)
    assert build.calls == 1
    with pytest.raises(store.StoreUnavailable, match="Permission denied.*Set LOCA_STORE"):
        store.artifact("toy", {"a": 2}, build)
    with pytest.raises(store.StoreUnavailable, match="Permission denied.*Set LOCA_STORE"):
        store.artifact("other", {}, build)
    assert build.calls == 1


def test_a_full_disk_is_a_clear_error_and_keeps_what_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("first half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill_as_numpy(folder: Path) -> None:
        raise OSError("Not enough free space to write 32000000 bytes after offset 128")

    def fill_within_a_library(folder: Path) -> None:
        raise RuntimeError("enforce fail at inline_container.cc")

    with pytest.raises(store.StoreUnavailable, match="(?s)disk .* is full.*No space left.* rm"):
        store.artifact("toy", {"a": 1}, fill)
    [entry] = cli.entries()
    assert (entry.path / "half").exists()
    with pytest.raises(store.StoreUnavailable, match="disk .* is full.*Not enough free space"):
        store.artifact("toy", {"a": 1}, fill_as_numpy)
    with pytest.raises(RuntimeError, match="enforce fail"):
        store.artifact("toy", {"a": 2}, fill_within_a_library)
    usage = shutil.disk_usage(store.root())._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(store.StoreUnavailable, match="is full.*enforce fail"):
        store.artifact("toy", {"a": 2}, fill_within_a_library)


# ---- python -m loca_sae.store -----------------------------------------------------------------


@pytest.fixture
def several() -> dict[str, Path]:
    """Three artifacts of two kinds."""
    wanted = [("sae", "topk-20"), ("sae", "standard-1"), ("activations", "smollm2")]
    return {
        name: store.artifact(kind, {"name": name}, Builder(), name=name).path
        for kind, name in wanted
    }


def test_ls_shows_kind_name_size_age_and_state(
    several: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    partial = store.root() / "sae" / "half-0123456789ab.partial"
    partial.mkdir()
    (partial / "x").write_bytes(bytes(3 * 2**20))
    day_ago = time.time() - 86400 * 2
    os.utime(partial / "x", (day_ago, day_ago))
    assert cli.main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    by_name = {line.split()[0]: line.split()[1:] for line in lines[:-1]}
    assert by_name[f"sae/{partial.name}"] == ["3.0", "MiB", "2", "d", "partial"]
    topk = by_name[f"sae/{several['topk-20'].name}"]
    assert topk[1] == "KiB" and float(topk[0]) > 5 and topk[-1] == "complete"
    assert lines[-1].startswith("4 artifacts")
    assert cli.main(["ls", "sae", "--name", "topk"]) == 0
    assert capsys.readouterr().out.count("sae/") == 1


def test_ls_of_a_store_that_does_not_exist_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls"]) == 0
    assert capsys.readouterr().out.startswith("0 artifacts, 0 B")


def test_verify_finds_what_opening_cannot_and_exits_with_1(
    several: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify"]) == 0
    assert capsys.readouterr().out.count("  ok") == 3
    victim = several["topk-20"] / "numbers.bin"
    times = victim.stat()
    flip_one_byte(victim)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a failing disk would
    assert cli.main(["verify"]) == 1
    output = capsys.readouterr().out
    assert output.count("  ok") == 2
    assert f"{victim.parent.name}  DAMAGED: the checksum of numbers.bin" in output
    assert cli.main(["verify", "activations"]) == 0


def test_the_command_runs_as_a_module_with_its_exit_code(several: dict[str, Path]) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "loca_sae.store", *arguments],
            env={**os.environ, "PYTHONPATH": LIB},
            input="",
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run("ls").returncode == 0
    (several["topk-20"] / "numbers.bin").unlink()
    verified = run("verify")
    assert verified.returncode == 1
    assert "numbers.bin" in verified.stdout
    assert run("rm", "sae").returncode == 1  # asked, no answer
    assert several["topk-20"].exists()
    assert run("rm", "sae", "--yes").returncode == 0
    assert {entry.kind for entry in cli.entries()} == {"activations"}
    assert run("frobnicate").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["sae"], {"smollm2"}),
        (["--name", "topk"], {"standard-1", "smollm2"}),
        (["sae", "--name", "s"], {"topk-20", "smollm2"}),
        (["--all"], set()),
    ],
)
def test_rm_removes_by_kind_by_prefix_or_all(
    several: dict[str, Path], arguments: list[str], left: set[str]
) -> None:
    assert cli.main(["rm", *arguments, "--yes"]) == 0
    assert {name for name, path in several.items() if path.exists()} == left


def test_rm_asks_first(
    several: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions: list[str] = []
    answers = iter(["", "n", "y"])
    monkeypatch.setattr("builtins.input", lambda q: (questions.append(q), next(answers))[1])
    assert cli.main(["rm", "--all"]) == 1
    assert cli.main(["rm", "--all"]) == 1
    assert len(list(cli.entries())) == 3
    assert "Remove these 3" in questions[0] and "KiB" in questions[0]
    assert f"sae/{several['topk-20'].name}" in capsys.readouterr().out
    assert cli.main(["rm", "--all"]) == 0
    assert not list(cli.entries())


def test_rm_without_a_choice_or_a_match_removes_nothing(several: dict[str, Path]) -> None:
    assert cli.main(["rm", "--yes"]) == 2
    assert cli.main(["rm", "no-such-kind", "--yes"]) == 1
    assert len(list(cli.entries())) == 3


def test_rm_leaves_what_another_process_is_building(
    building: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["rm", "--all", "--yes"]) == 1
    assert "in use by another process" in capsys.readouterr().err
    [entry] = cli.entries()
    assert entry.state == "partial"
    building.kill()
    building.wait(10)
    assert cli.main(["rm", "--all", "--yes"]) == 0
    assert not list(cli.entries())


def test_a_lock_that_is_held_is_a_timeout_only_for_those_who_do_not_wait(
    building: subprocess.Popen[str],
) -> None:
    [entry] = cli.entries()
    finished = entry.path.with_name(entry.path.name.removesuffix(".partial"))
    with pytest.raises(filelock.Timeout), store.locked(finished, wait=False):
        pass
