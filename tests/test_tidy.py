"""An executed notebook keeps nothing of the run but its results."""

from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tools.tidy import INJECTED, scrub, tidy, write


def stream(name: str, text: str) -> NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


@pytest.fixture
def executed() -> NotebookNode:
    made = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell("1", id="kept")
    cell.metadata = NotebookNode(
        {"papermill": {"duration": 1.5}, "execution": {"iopub.busy": "now"}, "tags": ["hide-input"]}
    )
    cell.outputs = [stream("stdout", "a"), stream("stderr", "bar"), stream("stdout", "b")]
    injected = nbformat.v4.new_code_cell("# Parameters\nk = 3\n")
    injected.metadata["tags"] = [INJECTED]
    made.cells = [injected, cell]
    made.metadata.update(
        {
            "papermill": {"start_time": "now"},
            "language_info": {"name": "python", "version": "3.11.7"},
            "kernelspec": {"name": "mine", "display_name": "Mine"},
        }
    )
    return made


def test_times_and_machine_are_gone_and_results_stay(
    executed: NotebookNode, tmp_path: Path
) -> None:
    assert tidy(executed, tmp_path, "laptop") == ["bar"]
    assert executed.cells[1].metadata == {"tags": ["hide-input"]}
    assert [output.text for output in executed.cells[1].outputs] == ["ab"]
    assert set(executed.metadata) == {"kernelspec", "language_info", "loca_sae"}
    assert executed.metadata["kernelspec"]["name"] == "python3"
    assert executed.metadata["language_info"] == {"name": "python"}


def test_the_injected_cell_has_a_fixed_id_and_names_its_profile(
    executed: NotebookNode, tmp_path: Path
) -> None:
    tidy(executed, tmp_path, "laptop")
    assert executed.cells[0].id == INJECTED
    assert executed.cells[0].source == "# the values of the profile laptop\nk = 3"


def test_tidying_twice_changes_nothing(executed: NotebookNode, tmp_path: Path) -> None:
    tidy(executed, tmp_path, "laptop")
    once = nbformat.writes(executed)
    tidy(executed, tmp_path, "laptop")
    assert nbformat.writes(executed) == once


def test_folders_of_the_machine_get_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCA_STORE", "/srv/me/cache/store")
    monkeypatch.setenv("HOME", "/srv/me")
    root = Path("/srv/me/companion")
    said = scrub("/srv/me/cache/store/x, /srv/me/companion/lib, /srv/me/y, /srv/mean/z", root)
    assert said == "<store>/x, <repository>/lib, <home>/y, /srv/mean/z"
    assert scrub("/tmp/ipykernel_12/345.py:3: UserWarning", root) == "<cell>:3: UserWarning"


def test_a_notebook_is_written_whole_or_not_at_all(executed: NotebookNode, tmp_path: Path) -> None:
    path = tmp_path / "out" / "a.ipynb"
    write(executed, path)
    before = path.read_bytes()
    executed.cells[0].source = object()  # cannot be written
    with pytest.raises((TypeError, AttributeError)):
        write(executed, path)
    assert path.read_bytes() == before
