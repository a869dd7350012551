"""Profiles: files of notebook parameters, `notebooks/profiles/<profile>.yaml`.

    common:                  # for every notebook
      d_sae: 1024
    03_loca_sae:             # for this one; wins over `common`
      finetune_steps: 1500
    02_modes--gemma:         # a further run of 02_modes, its variant "gemma"
      model: gemma           # wins over `02_modes`

A run is named as its section. Each notebook has a plain run, named as the notebook itself, and
one for each of its variants: the same source with other parameters, and a page of its own.
An absent section means the notebook's own defaults. Whether a name or a value makes sense is
for the notebook to judge (`loca_sae.parameters`); here only the form of the file is checked.
"""

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

COMMON = "common"
VARIANT = "--"
# parts of file names, of addresses and of labels; one hyphen, since two begin a variant
_VARIANT_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")


class ProfileError(ValueError):
    """A profile is missing or is not laid out as a profile."""


def notebook_names(folder: Path) -> list[str]:
    """The notebooks of a folder in their order: every `NN_name.ipynb` that is no variant's."""
    names = [path.stem for path in folder.glob("[0-9][0-9]_*.ipynb")]
    return sorted(name for name in names if VARIANT not in name)


def split(run: str) -> tuple[str, str | None]:
    """Notebook and variant of a run; a plain run has no variant."""
    notebook, mark, variant = run.partition(VARIANT)
    return notebook, variant if mark else None


def join(notebook: str, variant: str | None) -> str:
    """The run of a notebook, plain without a variant: what `split` takes apart."""
    return f"{notebook}{VARIANT}{variant}" if variant else notebook


def load(profile: str, folder: Path) -> dict[str, dict[str, Any]]:
    """The parameters of each run of the notebooks in `folder` under a profile, by run.

    The order is that of the notebooks, each one's plain run first and then its variants as the
    file has them. A later one of common, notebook's and variant's section wins.
    Raises ProfileError when the file is missing or malformed, or names an unknown notebook.
    """
    path = folder / "profiles" / f"{profile}.yaml"
    content = _read(path)
    names = notebook_names(folder)
    for section, values in content.items():
        _check_section(path, str(section), values, names)
    common = content.get(COMMON) or {}
    plain = {name: {**common, **(content.get(name) or {})} for name in names}
    runs: dict[str, dict[str, Any]] = {}
    for name in names:
        runs[name] = plain[name]
        variants = [run for run in content if run.startswith(name + VARIANT)]
        runs |= {run: {**plain[name], **(content[run] or {})} for run in variants}
    return runs


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise ProfileError(
            f"there is no profile {path.stem!r}; the profiles are: {', '.join(known) or 'none'}."
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ProfileError(f"{path.name} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ProfileError(
            f"{path.name} must hold sections ('{COMMON}:' and notebook names), "
            f"but it holds a {type(content).__name__}."
        )
    return content


def _check_section(path: Path, section: str, values: Any, names: list[str]) -> None:
    notebook, variant = split(section)
    if notebook not in names and section != COMMON:
        close = difflib.get_close_matches(notebook, names, n=1)
        hint = f" Did you mean {section.replace(notebook, close[0], 1)!r}?" if close else ""
        raise ProfileError(
            f"{path.name}: {section!r} is neither '{COMMON}' nor a notebook.{hint} "
            f"The notebooks are: {', '.join(names)}."
        )
    if variant is not None and not _VARIANT_NAME.fullmatch(variant):
        raise ProfileError(
            f"{path.name}: {variant!r} in {section!r} cannot name a variant, which is lower-case "
            "letters and digits, with single hyphens or underscores between them."
        )
    if values is not None and not isinstance(values, dict):
        raise ProfileError(
            f"{path.name}: section {section!r} must hold lines 'parameter: value', "
            f"but it is {values!r}."
        )
    for name, value in (values or {}).items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ProfileError(f"{path.name}: {name!r} in {section!r} cannot name a parameter.")
        if not _is_plain(value):
            raise ProfileError(
                f"{path.name}: {name} in {section!r} is {value!r}; a parameter is a number, a "
                "text, a truth value or a list of these."
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) and not isinstance(item, list) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
