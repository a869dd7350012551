"""The library is built in layers: a module imports only what stands above it in this list."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import imports

ROOT = Path(__file__).resolve().parent.parent
MODULES = imports.library_modules(ROOT / "lib")

# From the ground up. A line is a module or package, or a module that was split for size and the
# one it serves. Inside a package, modules may import one another.
LAYERS = [
    *["sparse_coding", "grouping", "metrics", "probing"],
    "store",
    *["model_packages", "model_folders", "model_hub", "model_conversion", "models"],
    *["data", "hub_text", "documents", "corpus"],
    *["harvesting", "text_activations", "activations", "precision"],
    *["names", "sae_folders", "architecture"],
    *["recipes", "steering", "resuming", "training", "loca_training"],
    *["protocols", "inference", "external_saes"],
    *["tpp", "interventions"],
    "parameters",
    "experiments",
    *["plotting", "reporting"],
]
# what a command line, a parameter check or a table of contents needs: they must start at once
LIGHT = ["", "store", "data", "models", "documents", "corpus", "protocols", "sae_folders"]
LIGHT += ["parameters"]
HEAVY = ["torch", "transformers", "transformer_lens", "sae_lens", "sklearn", "scipy", "numba"]
HEAVY += ["datasets", "matplotlib", "seaborn"]


def layer(module: str) -> str:
    """`loca_sae.store.source` belongs to `store`; the package itself to nothing."""
    return module.partition(".")[2].partition(".")[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_layers_above(module: str) -> None:
    own = layer(module)
    if own:
        assert own in LAYERS, f"{module} has no place in the order: give it one in LAYERS"
    above = LAYERS[: LAYERS.index(own)] if own else []
    below = {
        name
        for name in imports.direct_imports(module, MODULES)
        if layer(name) not in ("", own, *above)
    }
    assert not below, f"{module} imports {sorted(below)}, which stand beside or below it"


def test_nothing_outside_the_notebooks_imports_the_experiments() -> None:
    importers = {
        name
        for name in MODULES
        if layer(name) != "experiments"
        and any(layer(other) == "experiments" for other in imports.direct_imports(name, MODULES))
    }
    assert not importers


def test_light_modules_start_without_heavy_libraries() -> None:
    script = """
import importlib, json, sys
light, heavy = json.loads(sys.argv[1])
loaded = {}
for name in light:
    importlib.import_module(name)
    found = sorted(set(heavy) & set(sys.modules))
    if found:
        loaded[name] = found
        break
print(json.dumps(loaded))
"""
    names = [f"loca_sae.{name}".rstrip(".") for name in LIGHT]
    process = subprocess.run(
        [sys.executable, "-c", script, json.dumps([names, HEAVY])],
        env={"PYTHONPATH": str(ROOT / "lib"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(process.stdout) == {}, "imported at the head of a light module"


def test_an_import_against_the_order_is_noticed(tmp_path: Path) -> None:
    """The reader of imports sees lazy, relative and `from package import module` forms."""
    package = tmp_path / "loca_sae"
    (package / "store").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "metrics.py").write_text("x = 1\n")
    (package / "models.py").write_text("x = 1\n")
    (package / "store" / "__init__.py").write_text("def f():\n    from loca_sae import models\n")
    (package / "store" / "a.py").write_text("from ..metrics import x\nfrom . import b\n")
    (package / "store" / "b.py").write_text("import loca_sae.models as m\n")
    modules = imports.library_modules(tmp_path)
    assert imports.direct_imports("loca_sae.store", modules) == {"loca_sae", "loca_sae.models"}
    assert imports.direct_imports("loca_sae.store.a", modules) >= {
        "loca_sae.metrics",
        "loca_sae.store.b",
    }
    assert "loca_sae.models" in imports.reachable({"loca_sae.store.b"}, modules)
