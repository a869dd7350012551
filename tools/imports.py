"""Which modules of the library a source imports, read from the source without running it.

The Snakefile asks which library files a notebook can reach, so that a notebook is executed again
when one of them changed and only then; the layer test asks who imports whom.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "loca_sae"


def imported_names(tree: ast.AST, module: str = "", is_package: bool = False) -> Iterator[str]:
    """Yield the dotted name of everything that `tree` imports, wherever the statement stands.

    `from a import b` yields "a" and "a.b", since b may be a module. Relative imports are resolved
    against `module`, the dotted name of the file itself.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    above = node.level - 1 if is_package else node.level
    parts = module.split(".")
    parts = parts[: len(parts) - above]
    return ".".join([*parts, *([node.module] if node.module else [])])


def library_modules(lib: Path) -> dict[str, Path]:
    """Map the dotted name of every module of the library to its file; lib is the folder above."""
    modules = {}
    for path in sorted((lib / PACKAGE).rglob("*.py")):
        parts = path.relative_to(lib).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = path
    return modules


def direct_imports(name: str, modules: dict[str, Path]) -> set[str]:
    """The modules of the library that the module `name` imports itself, lazily or not.

    A package counts as imported by everything inside it that is imported from elsewhere, because
    Python runs its `__init__` first.
    """
    path = modules[name]
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    found = imported_names(tree, name, path.name == "__init__.py")
    return _known(found, modules) - {name}


def reachable(names: set[str], modules: dict[str, Path]) -> set[str]:
    """`names` and all modules of the library that they import, directly or through others."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(direct_imports(name, modules))
    return seen


def notebook_sources(notebook: Path, lib: Path) -> list[Path]:
    """The files of the library that the code cells of a notebook can reach, sorted."""
    modules = library_modules(lib)
    names = _known(imported_names(ast.parse(code_of(notebook))), modules)
    return sorted(modules[name] for name in reachable(names, modules))


def code_of(notebook: Path) -> str:
    """The code cells of a notebook as one source; IPython's magics and shell lines left out."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n".join(sources).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def _known(names: Iterator[str], modules: dict[str, Path]) -> set[str]:
    known: set[str] = set()
    for name in names:
        parts = name.split(".")
        prefixes = (".".join(parts[: n + 1]) for n in range(len(parts)))
        known.update(prefix for prefix in prefixes if prefix in modules)
    return known
