"""Make the page of a variant differ from the page of the same notebook's other runs.

A book may hold several runs of one notebook (`tools.profiles`). Sphinx wants labels that are
unique in the whole book, and a reader wants titles that tell the pages apart. Keys of glue and
ids in HTML are a page's own and stay.
"""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

_TITLE = re.compile(r"^# .*\S", re.MULTILINE)
# what gives a label: (label)=, the options :name: and :label:, $$ ... $$ (label), {#label}
_DEFINITION = re.compile(
    r"(?P<before>^[ ]{0,3}\((?=[^)\s]+\)=)|^[ ]*:(?:name|label):[ ]+|\{#"
    # and no formula that begins with a bracket
    r"|\$\$[ ]*\((?=[A-Za-z][\w:.-]*\)[ ]*$))"
    r"(?P<label>[^\s(){}]+)",
    re.MULTILINE,
)
# what refers to one: {eq}`label`, {numref}`text <label>`, [text](#label), [](label), <#label>
_REFERENCE = re.compile(
    r"(?P<before>\{(?:eq|ref|numref|math:numref)\}`(?:[^`<]*<)?|\]\(#?|<(?:project:)?#)"
    r"(?P<label>[^\s`<>()]+)"
)


def distinguish(notebook: NotebookNode, variant: str, model: str | None = None) -> None:
    """Say the variant in title and metadata, and give the page's own labels its name as suffix.

    The title becomes `Title on VARIANT` for a variant that is named after the run's `model`, else
    `Title (VARIANT)`. References follow where the label is defined on this page, and still point
    to the other page where it is not. Doing it twice changes nothing more.
    """
    notebook.metadata.setdefault("loca_sae", NotebookNode())["variant"] = variant
    _extend_title(notebook, f" on {variant}" if model == variant else f" ({variant})")
    suffix = f"-{variant}"
    own = set(labels(notebook))

    def renamed(match: re.Match[str]) -> str:
        label = match["label"]
        end = suffix if label in own and not label.endswith(suffix) else ""
        return match["before"] + label + end

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _REFERENCE.sub(renamed, _DEFINITION.sub(renamed, cell.source))
        figure = _figure(cell)
        if figure.get("name") and not figure["name"].endswith(suffix):
            figure["name"] += suffix


def labels(notebook: NotebookNode) -> Iterator[str]:
    """The labels that a page defines: in its Markdown, and as the names of its cells' figures."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (match["label"] for match in _DEFINITION.finditer(cell.source))
        if name := _figure(cell).get("name"):
            yield name


def title(notebook: NotebookNode) -> str:
    """The first heading of a notebook, without its mark; "" where it has none."""
    found = (_TITLE.search(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    return next((match[0].removeprefix("# ") for match in found if match), "")


def _extend_title(notebook: NotebookNode, end: str) -> None:
    if title(notebook).endswith(end):
        return
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and _TITLE.search(cell.source):
            cell.source = _TITLE.sub(lambda match: match[0] + end, cell.source, count=1)
            return


def _figure(cell: NotebookNode) -> NotebookNode:
    return cell.metadata.get("mystnb", {}).get("figure", {})
