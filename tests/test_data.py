"""The data folder: complete, as its checksums say, and refused where it is not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loca_sae import data


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of part of the data folder, which a test may damage."""
    folder = tmp_path / "data"
    for name in ("SHA256SUMS", "paper/tables.csv", "concepts/era.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data.data_dir() / name, folder / name)
    monkeypatch.setenv("LOCA_DATA", str(folder))
    return folder


def test_every_data_file_is_listed_with_its_checksum() -> None:
    folder = data.data_dir()
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    listed = {line[66:]: line[:64] for line in lines}
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for ending in ("*.parquet", "*.csv")
        for path in folder.rglob(ending)
        if "build" not in path.parts[len(folder.parts) :]
    }
    assert listed == found


def test_concept_names_are_the_files_of_the_folder() -> None:
    files = {path.stem for path in (data.data_dir() / "concepts").glob("*.parquet")}
    assert data.concept_names() == sorted(files)
    assert len(files) == 9


@pytest.mark.parametrize("name", data.concept_names())
def test_a_concept_set_has_labels_on_both_sides_and_no_key_on_two(name: str) -> None:
    frame = data.concept(name)
    assert list(frame.columns) == ["text", "label", "split", "source", "licence", "key"]
    assert not frame.isna().any().any()
    assert frame["text"].str.strip().str.len().min() > 0
    assert (frame["licence"].str.len() > 0).all()
    train, test = (frame[frame["split"] == split] for split in ("train", "test"))
    assert set(train["label"]) == set(test["label"]) == set(frame["label"])
    assert not set(train["key"]) & set(test["key"])
    assert test.groupby("label").size().min() >= 24


def test_an_unknown_concept_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no labelled set.*code_language.*Did you mean 'domain'"):
        data.concept("domains")


def test_the_papers_numbers_are_those_of_its_claims_and_gaps_stay_gaps() -> None:
    table = data.paper_tables()
    assert len(table) == 18
    loca = table[table["sae"] == "loca"]
    assert loca["dead_rate"].tolist() == [0.0, 0.0]
    exception = table[(table["sae"] == "topk") & (table["mode"] == "non")].iloc[0]
    assert (exception["delta_f1"], exception["absorption_rate"]) == (0.197, 0.400)
    assert exception[["nmse", "dead_rate", "dense_rate"]].isna().all()
    assert table["source"].notna().all()


def test_a_changed_file_is_refused_with_its_name(copied: Path) -> None:
    assert len(data.concept("era")) == 1604
    contents = bytearray((copied / "paper" / "tables.csv").read_bytes())
    contents[-3] ^= 1
    (copied / "paper" / "tables.csv").write_bytes(contents)
    with pytest.raises(data.DataUnavailable, match=r"tables\.csv is not the file that SHA256SUMS"):
        data.paper_tables()


def test_a_missing_or_unlisted_file_is_refused(copied: Path) -> None:
    with pytest.raises(data.DataUnavailable, match=r"minipile\.parquet cannot be read.*restore"):
        data.read("minipile.parquet")
    (copied / "more.csv").write_text("a\n1\n")
    with pytest.raises(data.DataUnavailable, match=r"'more\.csv' is not in .*SHA256SUMS"):
        data.read("more.csv")


def test_a_broken_list_of_checksums_is_refused(copied: Path) -> None:
    (copied / "SHA256SUMS").write_text("nonsense\n")
    with pytest.raises(data.DataUnavailable, match="SHA256SUMS cannot be read"):
        data.concept_names()


def test_a_file_is_hashed_once_a_process(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = hashlib.sha256
    monkeypatch.setattr(data.hashlib, "sha256", lambda b: (hashed.append(len(b)), real(b))[1])
    for _ in range(3):
        data.concept("era")
    assert hashed == [(copied / "concepts" / "era.parquet").stat().st_size]


def test_without_a_data_folder_the_reader_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCA_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(data.DataUnavailable, match="LOCA_DATA is .*nowhere.*set LOCA_DATA"):
        data.concept_names()
    monkeypatch.delenv("LOCA_DATA")
    monkeypatch.setattr(data, "__file__", str(tmp_path / "lib" / "loca_sae" / "data.py"))
    with pytest.raises(data.DataUnavailable, match="set LOCA_DATA to the folder data/"):
        data.data_dir()


def test_data_and_corpus_import_nothing_heavy() -> None:
    code = """
import sys
from loca_sae import corpus, data
data.concept_names()
heavy = "torch transformers sae_lens pandas pyarrow datasets huggingface_hub sklearn".split()
print([name for name in heavy if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(data.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr
