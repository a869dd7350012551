"""What the source code of a module says, apart from its comments, docstrings and layout."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LIBRARY = "loca_sae"
# the store moves results and computes none: its own code is no reason to compute them again
_NEUTRAL = f"{_LIBRARY}.store"


class _Parsed(NamedTuple):
    """digest: hash of the code. imports: modules of the same or of this library it may import."""

    digest: str
    imports: tuple[str, ...]


def fingerprint(modules: Sequence[str]) -> dict[str, str]:
    """Hash of the code of each module and of all it imports, directly or not, from its package.

    Followed are import statements anywhere in a file, within functions too, that lead into
    `loca_sae` or the package of a named module; `importlib` calls and ``if TYPE_CHECKING`` are not.
    Nothing is imported to find this out. A file is read once a process: what counts is the code
    that runs, not an edit made since.
    Raises ValueError for a module without a Python source file.
    """
    if isinstance(modules, str):
        raise ValueError(f"modules is {modules!r}; expected a sequence of names, [{modules!r}].")
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or name == _NEUTRAL or name.startswith(_NEUTRAL + "."):
            continue
        path = _file(name)
        if path is None:
            raise ValueError(
                f"module {name!r} has no Python source file that could be found; expected the name "
                "of a module that can be imported (a script, __main__, cannot)."
            )
        parsed = _parse(path, name)
        found[name] = parsed.digest
        waiting += [child for child in parsed.imports if _file(child) is not None]
    return dict(sorted(found.items()))


@cache
def _file(name: str) -> Path | None:
    """The source file of a module, found by its path: importing its parents could take seconds."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module made by hand
        return None
    if spec is None or top == "__main__":  # a script's name says nothing about its code
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for location in spec.submodule_search_locations or ():
        base = Path(location, *rest)
        for path in (base.with_name(base.name + ".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def _parse(path: Path, name: str) -> _Parsed:
    tree = _Essence().visit(ast.parse(path.read_bytes()))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    inside = {_LIBRARY, name.partition(".")[0]}
    imports = {found for node in ast.walk(tree) for found in _imported(node, package)}
    return _Parsed(
        hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16],
        tuple(sorted(found for found in imports if found.partition(".")[0] in inside)),
    )


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Names an import statement may load: importing a.b.c runs a, a.b and a.b.c."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        parents = parents[: len(parents) - node.level + 1] if node.level else []
        base = ".".join(parents + ([node.module] if node.module else []))
        targets = [f"{base}.{alias.name}" for alias in node.names]  # a name or a submodule
    else:
        return
    for target in targets:
        parts = target.split(".")
        for end in range(1, len(parts) + 1):
            yield ".".join(parts[:end])


class _Essence(ast.NodeTransformer):
    """Drops what does not run: docstrings and imports for type checkers (comments are gone)."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        unused = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        return node.orelse if unused else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node
