"""Two changes to the HTML of the book: drawn figures that follow the theme, and no remote address.

1. An SVG shown through ``<img>`` does not see the page's style sheet, so it cannot follow the
   light/dark switch. A ``{figure}`` with ``:figclass: drawn`` is therefore written into the page,
   where ``book/_static/custom.css`` colours it; caption, number and alt text stay those of the
   directive. Other builders keep the plain image.
2. The interactive-kernel plugin that Jupyter Book loads on every page names a remote script (it
   would be fetched on a button that this book does not have). Its scripts are left out.
"""

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform

KERNEL_PLUGIN = re.compile(r"thebe", re.IGNORECASE)


def inline(svg: str, alt: str) -> str:
    """Return the ``<svg>`` element of a file with its role and the text alternative ``alt``."""
    start = svg.find("<svg")
    if start < 0:
        raise ExtensionError("a figure with :figclass: drawn is not an SVG file")
    attributes = f'<svg role="img" aria-label="{html.escape(alt, quote=True)}"'
    return attributes + svg[start + len("<svg") :].strip()


class InlineDrawnFigures(SphinxPostTransform):
    """Replace the image of each figure of class ``drawn`` by the SVG's own markup."""

    # before Sphinx copies images, which happens at priority 200
    default_priority = 50
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for figure in self.document.findall(nodes.figure):
            if "drawn" not in figure["classes"]:
                continue
            for image in list(figure.findall(nodes.image)):
                path = Path(self.app.srcdir, image["uri"])
                markup = inline(path.read_text(encoding="utf-8"), image.get("alt", ""))
                image.replace_self(nodes.raw("", markup, format="html"))


def drop_kernel_plugin_nodes(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Remove the inline kernel settings which the plugin appends to each page."""
    for node in list(doctree.findall(nodes.raw)):
        text = node.astext()
        if "text/x-thebe-config" in text or text.lstrip().startswith("<script>kernelName"):
            node.parent.remove(node)


def drop_kernel_plugin_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Remove the plugin's script elements from the page's list."""
    scripts = context.get("script_files", [])
    kept = []
    for script in scripts:
        body = (getattr(script, "attributes", None) or {}).get("body") or ""
        if not KERNEL_PLUGIN.search(f"{getattr(script, 'filename', script)} {body}"):
            kept.append(script)
    context["script_files"] = kept


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(InlineDrawnFigures)
    # after the plugin's own handlers
    app.connect("doctree-resolved", drop_kernel_plugin_nodes, priority=900)
    app.connect("html-page-context", drop_kernel_plugin_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
