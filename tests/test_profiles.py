"""Profiles are read with clear errors, and the committed ones fit the notebooks."""

from pathlib import Path

import pytest

from loca_sae import parameters
from tools import profiles

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = sorted(path.stem for path in (ROOT / "notebooks" / "profiles").glob("*.yaml"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    for name in ("02_second", "01_first", "checkpoint"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    return tmp_path


def save(folder: Path, text: str) -> None:
    (folder / "profiles" / "mine.yaml").write_text(text)


def test_a_notebooks_own_section_wins_over_common(folder: Path) -> None:
    save(folder, "common: {k: 1, seed: 3}\n02_second: {k: 2, ks: [1, 2]}\n")
    assert profiles.load("mine", folder) == {
        "01_first": {"k": 1, "seed": 3},
        "02_second": {"k": 2, "seed": 3, "ks": [1, 2]},
    }


def test_a_variant_is_a_further_run_whose_section_wins_over_its_notebooks(folder: Path) -> None:
    save(folder, "common: {k: 1}\n01_first: {k: 2, d: 8}\n01_first--b: {k: 3}\n01_first--a:\n")
    runs = profiles.load("mine", folder)
    assert runs == {
        "01_first": {"k": 2, "d": 8},
        "01_first--b": {"k": 3, "d": 8},
        "01_first--a": {"k": 2, "d": 8},
        "02_second": {"k": 1},
    }
    # a notebook's plain run first, then its variants as written, wherever they are written
    assert list(runs) == ["01_first", "01_first--b", "01_first--a", "02_second"]


def test_runs_keep_the_notebooks_order_whatever_the_order_of_the_sections(folder: Path) -> None:
    save(folder, "02_second--x: {k: 1}\n01_first--z: {k: 2}\n01_first: {k: 3}\n")
    assert list(profiles.load("mine", folder)) == [
        "01_first",
        "01_first--z",
        "02_second",
        "02_second--x",
    ]


def test_a_run_splits_into_its_notebook_and_its_variant() -> None:
    assert profiles.split("02_second--gemma-3-270m") == ("02_second", "gemma-3-270m")
    assert profiles.split("02_second") == ("02_second", None)
    for run in ("02_second--gemma-3-270m", "02_second"):
        assert profiles.join(*profiles.split(run)) == run


@pytest.mark.parametrize("text", ["", "common:\n", "# nothing\n01_first:\n"])
def test_an_empty_profile_means_the_defaults(folder: Path, text: str) -> None:
    save(folder, text)
    assert profiles.load("mine", folder) == {"01_first": {}, "02_second": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("01_frist: {k: 1}", "Did you mean '01_first'"),
        ("01_frist--big: {k: 1}", "Did you mean '01_first--big'.*notebooks are: 01_first, 02"),
        ("common--big: {k: 1}", "neither 'common' nor a notebook"),
        ("01_first--: {k: 1}", "'' in '01_first--' cannot name a variant"),
        ("01_first--a--b: {k: 1}", "'a--b' in .* cannot name a variant"),
        ("01_first--a/b: {k: 1}", "lower-case letters and digits"),
        ("01_first--big: 3", "must hold lines 'parameter: value'"),
        ("01_first: 3", "must hold lines 'parameter: value'"),
        ("01_first: {k: {a: 1}}", "a list of these"),
        ("01_first: {a b: 1}", "cannot name a parameter"),
        ("- k", "must hold sections"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_malformed_profile_is_refused_with_a_reason(
    folder: Path, text: str, message: str
) -> None:
    save(folder, text)
    with pytest.raises(profiles.ProfileError, match=message):
        profiles.load("mine", folder)


def test_an_unknown_profile_is_refused_with_the_known_ones(folder: Path) -> None:
    save(folder, "")
    with pytest.raises(profiles.ProfileError, match="'laptpo'; the profiles are: mine"):
        profiles.load("laptpo", folder)


def test_the_four_profiles_exist_for_the_five_notebooks() -> None:
    assert COMMITTED == ["full", "laptop", "paper", "smoke"]
    assert profiles.notebook_names(ROOT / "notebooks") == sorted(parameters.NOTEBOOKS)


@pytest.mark.parametrize("profile", COMMITTED)
def test_a_committed_profile_uses_only_parameters_its_notebooks_have(profile: str) -> None:
    """Names only: a value such as the device may be possible on another machine alone."""
    for run, values in profiles.load(profile, ROOT / "notebooks").items():
        notebook, _ = profiles.split(run)
        assert set(values) <= set(parameters.NOTEBOOKS[notebook].model_fields), run


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_notebook_02_runs_on_both_packaged_models(profile: str) -> None:
    runs = profiles.load(profile, ROOT / "notebooks")
    names = ["02_amortization_interventions", "02_amortization_interventions--gemma-3-270m"]
    assert [(runs[name]["model"], runs[name]["layer"]) for name in names] == [
        ("smollm2-135m", 20),
        ("gemma-3-270m", 12),
    ]
    model = parameters.NOTEBOOKS[names[0]]
    assert [model.check(runs[name]).model for name in names] == ["smollm2-135m", "gemma-3-270m"]


def test_smoke_is_the_defaults() -> None:
    assert not any(profiles.load("smoke", ROOT / "notebooks").values())
