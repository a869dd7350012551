"""A pytest plugin that gives nbval numeric tolerances and makes it insist on committed outputs.

`pytest --nbval` executes every code cell and compares its outputs with the committed ones. nbval
compares character by character, which no trained model survives on another kind of CPU, and it
passes cells that were never executed. With this plugin:

- texts (stdout, text/plain, text/html, text/markdown, text/latex, glued values, ...) agree when
  their words are equal and their numbers are within a tolerance (`tools.number_text`). A cell
  sets its own by the metadata `{"tolerance": {"rtol": 0.1, "atol": 0.01}}`;
- HTML tags are words, with everything that stands in them; pictures inside are cut out first;
- images are compared by presence: as many of each type as before;
- stderr is ignored: progress bars, and warnings that name folders;
- folders of the machine are named `<repository>` and so on, as in the committed notebooks;
- a cell that has code but no committed run fails, and so does a notebook without any output.

nbval's own markers (`nbval-ignore-output`, `nbval-skip`, `raises-exception`) keep their meaning.
"""

import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from tools.number_text import ATOL, RTOL, Tolerance, difference
from tools.tidy import scrub

_ROOT = Path(__file__).resolve().parent.parent
_TAG = re.compile(r"<[^<>]*>")
_EMBEDDED = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=\s]+")
_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    """Put our notebook in the place of nbval's."""
    return [
        TolerantNotebook.from_parent(parent, path=file_path) if type(item) is IPyNbFile else item
        for item in (yield)
    ]


class TolerantNotebook(IPyNbFile):  # type: ignore[misc]
    """A notebook whose cells are compared with tolerances."""

    def collect(self) -> Iterator[pytest.Item]:
        items = list(super().collect())
        if self.config.option.nbval:  # --nbval-lax compares only what is marked
            yield CommittedOutputs.from_parent(self, name="committed outputs")
        for item in items:
            yield TolerantCell.from_parent(
                self, name=item.name, cell_num=item.cell_num, cell=item.cell, options=item.options
            )


class CommittedOutputs(pytest.Item):
    """Fails for a notebook that nbval would pass without comparing anything."""

    def runtest(self) -> None:
        cells = [cell for cell in self.parent.nb.cells if cell.cell_type == "code"]  # type: ignore[union-attr]
        if not any(cell.outputs for cell in cells):
            pytest.fail(
                f"{self.path.name} has no committed outputs, so there is nothing to compare with; "
                "execute it and commit the result: make notebooks",
                pytrace=False,
            )

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}::{self.name}"


class TolerantCell(IPyNbCell):  # type: ignore[misc]
    """A cell that is compared with tolerances."""

    def runtest(self) -> None:
        super().runtest()
        # nbval compares nothing then; only after the run, since later cells need this one
        if self.options["check"] and self.cell.source.strip() and not self.cell.execution_count:
            self.raise_cell_error("This cell was committed without having been run: make notebooks")

    def compare_outputs(self, test: Any, ref: Any, skip_compare: Any = None) -> bool:
        """Whether new outputs agree with the committed ones; nbval calls it and reports."""
        skip = skip_compare or self.parent.skip_compare
        committed, new = _by_kind(ref, skip), _by_kind(test, skip)
        problems = _differences(committed, new, self._clean, _tolerance(self.cell.metadata))
        self.comparison_traceback = [f"{self.colors.FAIL}{p}{self.colors.ENDC}" for p in problems]
        return not problems

    def _clean(self, text: str) -> str:
        return scrub(self.sanitize(text), _ROOT)


def _tolerance(metadata: Any) -> Tolerance:
    given = dict(metadata.get("tolerance", {}))
    tolerance = Tolerance(float(given.pop("rtol", RTOL)), float(given.pop("atol", ATOL)))
    if given or min(tolerance.rtol, tolerance.atol) < 0:
        raise ValueError(
            f"a cell's tolerance is {dict(metadata['tolerance'])}; "
            "it takes 'rtol' and 'atol', neither of them negative"
        )
    return tolerance


def _by_kind(outputs: Any, skip: Any) -> dict[str, list[Any]]:
    """Outputs by kind, in order: a stream's name, a mime type, or a field of an error."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for output in outputs:
        if output.output_type == "stream":
            kinds[output.name].append(output.text)
        elif output.output_type == "error":
            kinds["error"].append(f"{output.ename}: {output.evalue}")
        else:
            for mime, value in output.data.items():
                if mime not in skip or _is_image(mime):
                    kinds[mime].append(value)
    kinds.pop("stderr", None)
    return kinds


def _differences(
    committed: dict[str, list[Any]], new: dict[str, list[Any]], clean: Any, tolerance: Tolerance
) -> list[str]:
    problems = []
    for kind in sorted(committed.keys() | new.keys()):
        old, now = committed.get(kind, []), new.get(kind, [])
        if len(old) != len(now):
            problems.append(f"{kind}: {len(old)} outputs are committed, {len(now)} came now")
        elif not _is_image(kind):
            pairs = [_compare(kind, *pair, clean, tolerance) for pair in zip(old, now, strict=True)]
            problems += [f"{kind}: {problem}" for problem in pairs if problem]
    return problems


def _compare(kind: str, old: Any, new: Any, clean: Any, tolerance: Tolerance) -> str | None:
    if not (isinstance(old, str) and isinstance(new, str)):
        old, new = repr(old), repr(new)  # JSON
    old, new = clean(old), clean(new)
    if not kind.endswith("html"):
        return difference(old, new, tolerance)
    (old_tags, old_text), (new_tags, new_text) = _split_html(old), _split_html(new)
    if old_tags != new_tags:
        pairs = zip([*old_tags, "the end"], [*new_tags, "the end"], strict=False)
        first = next(f"committed {a}, now {b}" for a, b in pairs if a != b)
        return f"the tags differ: {first}"
    return difference(old_text, new_text, tolerance)


def _split_html(html: str) -> tuple[list[str], str]:
    """Tags, and the text between them; a bar stands for each tag, so that cells stay apart."""
    html = _EMBEDDED.sub("(image)", _SVG.sub("<svg>", html))
    return _TAG.findall(html), _TAG.sub(" | ", html)


def _is_image(kind: str) -> bool:
    return "image/" in kind or kind == "application/pdf"
