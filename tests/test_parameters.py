"""Each parameter is refused where it must be, in a sentence, before any model is loaded."""

import subprocess
import sys

import nbformat
import papermill
import pytest

from loca_sae.parameters import NOTEBOOKS as MODELS
from loca_sae.parameters import LocaSae, ParameterError, TrainingDynamics, table
from repository import NOTEBOOKS, ROOT


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_defaults_are_valid(model) -> None:
    assert model.check({}).seed == 0


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_notebooks_parameters_cell_has_the_models_names_defaults_types_and_help(model) -> None:
    path = NOTEBOOKS / f"{model.notebook}.ipynb"
    inspected = papermill.inspect_notebook(str(path))
    assert list(inspected) == list(model.model_fields)
    for name, field in model.model_fields.items():
        written = inspected[name]
        assert eval(written["default"]) == field.default, name
        assert written["help"].strip() == field.description, name
        assert written["inferred_type_name"] != "None", name


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_notebook_checks_its_parameters_before_anything_heavy_is_imported(model) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{model.notebook}.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0].strip() == f"from loca_sae.parameters import {model.__name__}"
    assert code[2].startswith(f"p = {model.__name__}.from_notebook(globals())")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"typo": 3}, "typo: there is no such parameter"),
        ({"token": 3}, "Did you mean 'tokens'?"),
        ({"layer": 99}, "layer: 99 is outside smollm2-135m, which has 30 layers (0 to 29)"),
        ({"layer": -1}, "layer: got -1"),
        ({"k": 0}, "k: got 0, but input should be greater than or equal to 1"),
        ({"k": 1000}, "k is 1000, but d_sae is 512"),
        ({"seed": "abc"}, "seed: got 'abc'"),
        ({"tokens": 1.5}, "tokens: got 1.5"),
        ({"corpus": "no-such-file.txt"}, "neither 'minipile', nor 'hub:<dataset id>'"),
        ({"concepts": ["emotions"]}, "'emotions' is no labelled set"),
        ({"device": "abacus"}, "device: 'abacus' cannot be used here"),
        ({"first_checkpoint": 201}, "first_checkpoint is 201, but steps is 200"),
        ({"ks": [8, 600]}, "the largest of ks is 600, but d_sae is 512"),
        ({"ks": [8, 0]}, "ks.1: got 0"),
        ({"lr": 0}, "lr: got 0"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(given, words) -> None:
    with pytest.raises(ParameterError) as error:
        TrainingDynamics.check(given)
    assert words in str(error.value)
    assert "01_training_dynamics" in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loca_k": 27}, "sum to 26, but loca_k is 27"),
        ({"group_sizes": [64] * 7 + [65]}, "sum to 513, but d_sae is 512"),
        ({"group_sizes": [256, 256]}, "give one budget for each group"),
        ({"d_sae": 32}, "group_ks[0] is 6, but the size of group 0 is 4"),
    ],
)
def test_budgets_and_groups_that_do_not_add_up_are_refused(given, words) -> None:
    with pytest.raises(ParameterError) as error:
        LocaSae.check(given)
    assert words in str(error.value)


def test_an_unknown_model_is_refused_with_the_packaged_alternatives(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ParameterError) as error:
        TrainingDynamics.check({"model": "no-such-model"})
    assert "no-such-model" in str(error.value) and "smollm2-135m" in str(error.value)


def test_several_problems_are_reported_together() -> None:
    with pytest.raises(ParameterError) as error:
        TrainingDynamics.check({"typo": 1, "k": 0})
    assert "2 parameters cannot be used" in str(error.value)


def test_a_notebooks_namespace_gives_parameters_and_leaves_the_rest() -> None:
    namespace = {"In": [], "_private": 3, "sys": sys, "TrainingDynamics": TrainingDynamics}
    assert TrainingDynamics.from_notebook({**namespace, "seed": 7}).seed == 7
    with pytest.raises(ParameterError, match="sedd"):
        TrainingDynamics.from_notebook({**namespace, "sedd": 7})


def test_the_table_describes_every_parameter() -> None:
    rows = table(TrainingDynamics)
    assert [row["parameter"] for row in rows] == list(TrainingDynamics.model_fields)
    assert all(row["meaning"] and row["type"] and row["default"] for row in rows)


def test_checking_parameters_imports_no_heavy_library() -> None:
    code = (
        "import sys; from loca_sae.parameters import TrainingDynamics; TrainingDynamics.check({});"
        "heavy = {'torch', 'transformers', 'transformer_lens', 'sae_lens'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
