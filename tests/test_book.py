"""The book's sources and, where it was built, its pages: nothing here builds it.

Checked: each figure has a caption and a text alternative that is not a file name; each entry of
the table of contents and each citation exists; colours have enough contrast in both themes; a
built page loads nothing from elsewhere.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from tools import profiles, variants

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
SITE = ROOT / "_build" / "html"
FILE_NAME = re.compile(r"^[\w./\\-]+\.(svg|png|jpe?g|gif|webp)$|^[0-9a-f]{16,}$", re.IGNORECASE)


# ---- text alternatives ----


def alt_problem(alt: str | None) -> str | None:
    """Why ``alt`` is no text alternative of a figure that carries content; None if it is one."""
    text = (alt or "").strip()
    if not text:
        return "no alt text"
    if FILE_NAME.match(text):
        return f"alt text is a file name: {text!r}"
    if len(text.split()) < 4:
        return f"alt text says too little: {text!r}"
    return None


def markdown_sources() -> Iterator[tuple[str, str]]:
    """Name and text of every page and of every Markdown cell of the source notebooks."""
    for page in sorted(BOOK.glob("*.md")):
        yield page.name, page.read_text(encoding="utf-8")
    for path, cell in notebook_cells():
        if cell.cell_type == "markdown":
            yield path.name, cell.source


def notebook_cells() -> Iterator[tuple[Path, Any]]:
    for folder in (BOOK, ROOT / "notebooks"):
        for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
            for cell in nbformat.read(path, as_version=4).cells:
                yield path, cell


FIGURE = re.compile(r"^(`{3,}|:{3,})\{figure\}([^\n]*)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


def figure_problems(text: str) -> list[str]:
    """What is missing in the ``{figure}`` directives and images of a Markdown text."""
    problems = []
    for _, target, body in FIGURE.findall(text):
        options = dict(re.findall(r"^:([\w-]+):[ ]*(.*)$", body, re.MULTILINE))
        caption = re.sub(r"^:[\w-]+:.*$", "", body, flags=re.MULTILINE).strip()
        found = [alt_problem(options.get("alt"))]
        found.append(None if options.get("name") else "no :name:")
        found.append(None if caption else "no caption")
        problems += [f"{target.strip()}: {problem}" for problem in found if problem]
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
        if problem := alt_problem(alt):
            problems.append(f"{target}: {problem}")
    return problems


def test_every_figure_of_a_page_has_caption_label_and_alt_text() -> None:
    found = {name: figure_problems(text) for name, text in markdown_sources()}
    assert not {name: problems for name, problems in found.items() if problems}


def test_figures_without_a_text_alternative_are_found() -> None:
    named = "```{figure} a.svg\n:name: a\n:alt: figures/a.svg\n\nA caption.\n```\n"
    assert figure_problems(named) == ["a.svg: alt text is a file name: 'figures/a.svg'"]
    bare = ":::{figure} b.svg\n:alt: three bars that fall to the right\n:::\n"
    assert figure_problems(bare) == ["b.svg: no :name:", "b.svg: no caption"]
    assert figure_problems("![](c.png)") == ["c.png: no alt text"]
    assert alt_problem("0123456789abcdef0123") and alt_problem("a plot")


def test_every_figure_of_a_notebook_has_caption_label_and_alt_text() -> None:
    problems, figures = [], 0
    for path, cell in notebook_cells():
        outputs = cell.get("outputs", [])
        if not any(kind.startswith("image/") for out in outputs for kind in out.get("data", {})):
            continue
        figures += 1
        settings = cell.metadata.get("mystnb", {})
        figure = settings.get("figure", {})
        problem = alt_problem(settings.get("image", {}).get("alt"))
        problem = problem or (None if figure.get("caption") else "no caption")
        problem = problem or (None if figure.get("name") else "no name")
        if problem:
            problems.append(f"{path.name}: {problem}: {cell.source[:60]!r}")
    if not figures and not problems:
        pytest.skip("no notebook with a figure yet: execute them with `make notebooks`.")
    assert not problems


# ---- table of contents and citations ----


def toc_entries() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    pages = [page for chapter in chapters for page in (chapter, *chapter.get("sections", []))]
    return [toc["root"], *(page["file"] for page in pages)]


def test_every_entry_of_the_table_of_contents_exists() -> None:
    found = {f"book/{path.stem}" for kind in ("*.md", "*.ipynb") for path in BOOK.glob(kind)}
    missing = [entry for entry in toc_entries() if entry not in found]
    notebooks = [e for e in toc_entries() if re.match(r"book/\d\d_", e)]
    assert len([name for name in notebooks if profiles.VARIANT not in name]) == 5
    if missing == notebooks:
        pytest.skip("no notebook has been executed for the book yet: run `make book`.")
    assert not missing


def test_every_page_of_the_book_is_in_the_table_of_contents() -> None:
    listed = set(toc_entries())
    pages = [*BOOK.glob("*.md"), *BOOK.glob("*.ipynb")]
    assert [p.name for p in pages if f"book/{p.stem}" not in listed] == []


def test_a_variants_page_is_a_section_of_its_notebooks_chapter() -> None:
    """So that chapter n stays notebook 0n."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    assert not [c["file"] for c in chapters if profiles.VARIANT in c["file"]]
    known = {f"book/{run}" for run in profiles.load("laptop", ROOT / "notebooks")}
    for chapter in chapters:
        for section in chapter.get("sections", []):
            assert profiles.split(section["file"])[0] == chapter["file"]
            assert section["file"] in known, "make book would not execute it"


def test_no_two_notebook_pages_share_a_label_or_a_title() -> None:
    pages = [nbformat.read(path, as_version=4) for path in sorted(BOOK.glob("*.ipynb"))]
    labels = [label for page in pages for label in variants.labels(page)]
    titles = [variants.title(page) for page in pages]
    assert sorted(set(labels)) == sorted(labels)
    assert sorted(set(titles)) == sorted(titles)


def bibliography_keys() -> list[str]:
    text = (BOOK / "references.bib").read_text(encoding="utf-8")
    return re.findall(r"^@\w+\{([^,\s]+),", text, re.MULTILINE)


def cited_keys(text: str) -> set[str]:
    roles = re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)
    return {key.strip() for role in roles for key in role.split(",")}


def test_every_citation_is_in_the_bibliography_and_the_other_way_round() -> None:
    keys = bibliography_keys()
    assert len(keys) == len(set(keys))
    cited: set[str] = set()
    for name, text in markdown_sources():
        unknown = cited_keys(text) - set(keys)
        assert not unknown, f"{name} cites {sorted(unknown)}, which references.bib does not have"
        cited |= cited_keys(text)
    assert set(keys) - cited == set()


def test_several_keys_in_one_citation_are_read_apart() -> None:
    assert cited_keys("as {cite:p}`a2020,b2021` and {cite}`c` say") == {"a2020", "b2021", "c"}


# ---- contrast ----

# page backgrounds of the theme, light and dark
BACKGROUND = {"light": "#ffffff", "dark": "#121212"}


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2, of #rrggbb."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_agrees_with_the_values_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_drawn_figures_and_links_are_readable_in_both_themes(theme: str) -> None:
    css = (BOOK / "_static" / "custom.css").read_text(encoding="utf-8")
    block = re.search(rf'html\[data-theme="{theme}"\] \{{(.*?)\}}', css, re.DOTALL)
    assert block
    colours = dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6});", block[1]))
    assert {"--sv-a", "--sv-b", "--sv-c", "--pst-color-link"} <= set(colours)
    weak = {n: c for n, c in colours.items() if contrast(c, BACKGROUND[theme]) < 4.5}
    assert not weak


def test_drawn_figures_leave_their_colours_to_the_page() -> None:
    files = sorted((BOOK / "_static" / "figures").glob("*.svg"))
    assert files
    for path in files:
        svg = path.read_text(encoding="utf-8")
        assert "viewBox" in svg and "<style" not in svg and "<image" not in svg
        # a fixed colour is only a fallback: it needs a class that the style sheet colours
        fixed = [tag for tag in re.findall(r"<[^>]+>", svg) if re.search(r'="#[0-9a-f]+"', tag)]
        assert all("sv-" in tag for tag in fixed), path.name


# ---- the built site ----

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "image": "href",
    "use": "href",
}
LINKS_THAT_LOAD = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon"}
REMOTE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
CSS_LOAD = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
REMOTE_IN_SCRIPT = re.compile(r"[\"'](https?:)?//[^\"'\s]+\.(?:m?js|css|woff2?)\b", re.IGNORECASE)


class Page(HTMLParser):
    """Collects what a page loads from elsewhere, and the images whose text alternative is bad."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.remote: list[str] = []
        self.bad_images: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._within = tag if tag in ("script", "style") else ""
        addresses = [given.get(LOADS.get(tag, "")), *(given.get("srcset") or "").split(",")]
        if tag == "link" and LINKS_THAT_LOAD & set((given.get("rel") or "").split()):
            addresses.append(given.get("href"))
        self.remote += [f"<{tag}> {a}" for a in addresses if a and REMOTE.match(a)]
        self.remote += CSS_LOAD.findall(given.get("style") or "")
        if tag == "img" and "logo" not in (given.get("class") or ""):
            self._check_image(given.get("alt"), given.get("src"))

    def _check_image(self, alt: str | None, src: str | None) -> None:
        if problem := alt_problem(alt):
            self.bad_images.append(f"{src}: {problem}")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "style":
            self.remote += CSS_LOAD.findall(data)
        if self._within == "script" and (found := REMOTE_IN_SCRIPT.search(data)):
            self.remote.append(f"script text {found[0]}")


def test_what_a_page_loads_from_elsewhere_is_found() -> None:
    head = '<link rel="stylesheet" href="//cdn.example/a.css"><script src="local.js"></script>'
    body = '<a href="https://example.org">out</a><img src="https://example.org/b.png" alt="b.png">'
    script = "<script>const LATER = 'https://cdn.example/lib.js'</script>"
    style = "<style>@import url(https://fonts.example/c)</style><p style='background:url(d.png)'>"
    page = Page(head + body + script + style)
    assert len(page.remote) == 4
    assert page.bad_images == ["https://example.org/b.png: alt text is a file name: 'b.png'"]


def built(pattern: str) -> list[Path]:
    if not (SITE / "index.html").is_file():
        pytest.skip("the site has not been built: `make site` builds it in _build/html.")
    return sorted(SITE.rglob(pattern))


def test_no_page_of_the_built_site_loads_anything_from_elsewhere() -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in built("*.html")}
    assert not {str(path.relative_to(SITE)): p.remote for path, p in pages.items() if p.remote}


def test_no_style_sheet_of_the_built_site_loads_anything_from_elsewhere() -> None:
    sheets = {path: CSS_LOAD.findall(path.read_text(encoding="utf-8")) for path in built("*.css")}
    assert not {path.name: found for path, found in sheets.items() if found}


def test_every_image_of_the_built_site_has_a_text_alternative() -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in built("*.html")}
    assert not {path.name: p.bad_images for path, p in pages.items() if p.bad_images}


def test_drawn_figures_of_the_built_site_stand_in_the_page_with_their_alternative() -> None:
    built("*.html")
    page = (SITE / "book" / "intro.html").read_text(encoding="utf-8")
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', page)
    assert labels
    assert not [label for label in labels if alt_problem(label)]


def test_the_built_site_has_its_own_copy_of_mathjax() -> None:
    pages = [path.read_text(encoding="utf-8") for path in built("method.html")]
    assert pages and all("_static/mathjax/tex-svg.js" in page for page in pages)
    copy = SITE / "_static" / "mathjax" / "tex-svg.js"
    assert copy.read_bytes() == (BOOK / "_static" / "mathjax" / "tex-svg.js").read_bytes()
