"""The page of a variant has its own title and labels, and says the same otherwise."""

import nbformat
import pytest
from nbformat import NotebookNode

from tools.variants import distinguish, labels, title

TEXT = """# Modes of inference

(sec-modes)=
## Modes

$$
a = b
$$ (eq-modes)

:::{figure} a.svg
:name: fig-drawn
:alt: two bars
:::

See {eq}`eq-modes`, {eq}`eq-objective`, {numref}`Figure %s <fig-plot>`, {numref}`fig-drawn`,
{ref}`sec-modes`, [here](#sec-modes), [method](method.md), {doc}`method`, {glue:text}`fig-plot`.
"""


@pytest.fixture
def page() -> NotebookNode:
    made = nbformat.v4.new_notebook()
    plot = nbformat.v4.new_code_cell("fig-plot")
    plot.metadata["mystnb"] = {"figure": {"name": "fig-plot", "caption": "One."}}
    made.cells = [nbformat.v4.new_markdown_cell(TEXT), nbformat.v4.new_code_cell("1"), plot]
    return made


def test_the_title_says_the_model_or_else_the_variant(page: NotebookNode) -> None:
    other = nbformat.from_dict(page)
    distinguish(page, "tiny", model="tiny")
    assert title(page) == "Modes of inference on tiny"
    assert "\n## Modes\n" in page.cells[0].source
    distinguish(other, "wide", model="tiny")
    assert title(other) == "Modes of inference (wide)"


def test_labels_of_two_variants_and_of_the_plain_page_have_nothing_in_common(
    page: NotebookNode,
) -> None:
    pages = [page, nbformat.from_dict(page), nbformat.from_dict(page)]
    distinguish(pages[1], "tiny")
    distinguish(pages[2], "tiny-b")
    found = [label for one in pages for label in labels(one)]
    assert found[:4] == ["sec-modes", "eq-modes", "fig-drawn", "fig-plot"]
    assert len(set(found)) == 12


def test_references_follow_their_labels_and_those_to_other_pages_stay(page: NotebookNode) -> None:
    distinguish(page, "tiny")
    text = page.cells[0].source
    assert "(sec-modes-tiny)=" in text and "$$ (eq-modes-tiny)" in text
    assert ":name: fig-drawn-tiny\n" in text
    assert text[text.index("See") :] == (
        "See {eq}`eq-modes-tiny`, {eq}`eq-objective`, {numref}`Figure %s <fig-plot-tiny>`, "
        "{numref}`fig-drawn-tiny`,\n{ref}`sec-modes-tiny`, [here](#sec-modes-tiny), "
        "[method](method.md), {doc}`method`, {glue:text}`fig-plot`.\n"
    )


def test_code_captions_and_formulas_stay(page: NotebookNode) -> None:
    page.cells[0].source = "# A\n$$ (a+b)\n= c $$ and $(x)$ and $$(d)$$\n"
    distinguish(page, "tiny")
    assert page.cells[0].source == "# A (tiny)\n$$ (a+b)\n= c $$ and $(x)$ and $$(d)$$\n"
    assert [cell.source for cell in page.cells[1:]] == ["1", "fig-plot"]
    assert page.cells[2].metadata["mystnb"]["figure"] == {
        "name": "fig-plot-tiny",
        "caption": "One.",
    }


def test_doing_it_twice_changes_nothing_more(page: NotebookNode) -> None:
    distinguish(page, "tiny", model="tiny")
    once = nbformat.writes(page)
    distinguish(page, "tiny", model="tiny")
    assert nbformat.writes(page) == once


def test_a_page_without_a_title_gets_none() -> None:
    made = nbformat.v4.new_notebook()
    distinguish(made, "tiny")
    assert title(made) == "" and made.cells == []
