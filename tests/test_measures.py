"""Rows of a table on toy data: what they say, and what is computed only once."""

import json
from types import SimpleNamespace

import pytest
import torch

import toys
from loca_sae import metrics, store
from loca_sae.experiments import calibration, measures
from loca_sae.experiments.data import Concept, ConceptSplit, Data
from loca_sae.experiments.measures import measure, measure_pair
from loca_sae.external_saes import open_sae
from loca_sae.inference import prepare

TOKENS = toys.sparse_activations(400, seed=1)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def toy_data(x: torch.Tensor = TOKENS) -> Data:
    """Held-out tokens, and eight texts of four tokens whose label is the sign of a direction."""
    splits = []
    for rows in (x[:96], x[96:192]):
        rows = rows[rows[:, 0].argsort()]
        labels = ["low"] * 12 + ["high"] * 12
        splits.append(ConceptSplit(rows, torch.arange(96) // 4, labels))
    return Data(toys.ToyActivations(x), toys.ToyActivations(x), [Concept("sign", *splits)])


def toy_parameters(**changes) -> SimpleNamespace:
    given = {"model": "smollm2-135m", "layer": 20, "device": "cpu", "seed": 0}
    given |= {"calibration_tokens": 200, "concepts": ["sign"], "labels": 2, "texts": 12}
    return SimpleNamespace(**given | {"tokens_per_text": 4} | changes)


def an_sae(tmp_path, architecture: str = "topk", scale: float | None = None):
    folder = tmp_path / architecture
    toys.random_sae(architecture, folder)
    if scale is not None:
        config = json.loads((folder / "cfg.json").read_text())
        config["metadata"]["activation_scale"] = scale
        (folder / "cfg.json").write_text(json.dumps(config))
    return open_sae(str(folder), "smollm2-135m", toys.D_IN, 20)


@pytest.mark.parametrize("architecture", toys.ARCHITECTURES)
def test_the_encoders_row_equals_saelens_own_encode_and_decode(
    architecture, tmp_path, own_store
) -> None:
    external = an_sae(tmp_path, architecture)
    row = measure(external, toy_data(), toy_parameters(), "full", gap=False)
    acts = external.sae.encode(TOKENS)
    error = (TOKENS - external.sae.decode(acts)).double().square().sum()
    assert row["nmse"] == pytest.approx(float(error / TOKENS.double().square().sum()), rel=1e-5)
    assert row["l0"] == pytest.approx(float((acts != 0).sum(-1).double().mean()))
    assert row["dead"] == pytest.approx(float((acts == 0).all(0).double().mean()))
    assert row["density"] == row["l0"] / toys.D_SAE
    assert row["lam"] is None and row["duality_gap"] is None and row["gap"] is None
    assert row["sae"] == architecture and row["train_tokens"] is None and row["labels"] == 2


def test_a_pair_shares_support_and_lambda_and_refitting_only_lowers_the_error(
    tmp_path, own_store
) -> None:
    external, data, p = an_sae(tmp_path), toy_data(), toy_parameters()
    for mode, solver in (("full", "ista"), ("semi", "ista"), ("non", "exact")):
        plain, refitted = measure_pair(external, data, p, mode, solver=solver)
        assert plain == measure(external, data, p, mode, solver=solver)
        assert refitted == measure(external, data, p, mode, solver=solver, refit=True)
        assert refitted["nmse"] < plain["nmse"] and refitted["lam"] == plain["lam"]
        assert refitted["l0"] <= plain["l0"] and (plain["refit"], refitted["refit"]) == (0, 1)
        assert refitted["duality_gap"] is None
        assert (plain["duality_gap"] is None) == (mode == "full")
        direct = prepare(external.sae, data.heldout.sample(200, 0), mode, solver=solver, refit=True)
        x_hat = direct.round_trip(TOKENS)
        assert refitted["nmse"] == pytest.approx(metrics.nmse(TOKENS, x_hat), rel=1e-4)


def test_gaps_are_taken_to_one_certified_optimum_which_has_none_to_itself(
    tmp_path, own_store
) -> None:
    external, data, p = an_sae(tmp_path), toy_data(), toy_parameters()
    exact = measure(external, data, p, "non", solver="exact")
    assert abs(exact["gap_relative"]) < 1e-4 and exact["duality_gap"] < 1e-4
    assert exact["lam"] == exact["gap_lam"]
    for mode, solver in (("full", "ista"), ("semi", "ista"), ("non", "omp")):
        row = measure(external, data, p, mode, solver=solver)
        assert row["gap"] > 0 and row["gap_lam"] == exact["gap_lam"]
        assert row["gap_l0_matched"] and row["gap_relative"] > 0


def test_lambda_is_sought_once_for_an_sae_mode_and_solver(tmp_path, own_store, monkeypatch) -> None:
    sought = []
    found = calibration._prepared

    def counted(bench, chosen):
        sought.append((chosen.mode, chosen.solver, chosen.needs_lam))
        return found(bench, chosen)

    monkeypatch.setattr(calibration, "_prepared", counted)
    external, data, p = an_sae(tmp_path), toy_data(), toy_parameters()
    measure(external, data, p, "full")
    measure_pair(external, data, p, "non", solver="exact")
    measure(external, data, p, "non", "described", solver="exact")
    assert [way for way in sought if way[2]] == [("non", "exact", True)]


def test_protocols_that_cannot_differ_share_one_computation(tmp_path, own_store) -> None:
    external, data, p = an_sae(tmp_path, "standard"), toy_data(), toy_parameters()
    measure(external, data, p, "full", gap=False)
    native = measures.named("native")
    changed = measures.replace(native, name="mine", k="tenth", gates=False, signed=True)
    row = measure(external, data, p, "full", changed, gap=False)
    assert row["protocol"] == "mine"
    assert len(list((store.root() / "measures").iterdir())) == 1


def test_an_sae_in_other_units_gets_the_activations_in_them(tmp_path, own_store) -> None:
    plain = an_sae(tmp_path / "a")
    p = toy_parameters()
    expected = measure(plain, toy_data(), p, "semi")
    stored = toy_data(TOKENS * 3)
    stored.heldout.scale = 3.0  # what is read is three times the model's own values
    row = measure(plain, stored, p, "semi")
    for column in ("nmse", "l0", "dead", "f1_1", "absorption", "gap_relative"):
        assert row[column] == pytest.approx(expected[column], rel=1e-3), column
    companions = an_sae(tmp_path / "b", scale=3.0)
    x = TOKENS * 3
    row = measure(companions, stored, p, "full", gap=False)
    x_hat = companions.sae(x)
    assert row["nmse"] == pytest.approx(metrics.nmse(x, x_hat), rel=1e-4)


def test_fewer_tokens_are_the_first_ones(tmp_path, own_store) -> None:
    external = an_sae(tmp_path)
    row = measure(external, toy_data(), toy_parameters(), "full", gap=False, tokens=100)
    first = TOKENS[:100]
    assert row["eval_tokens"] == 100
    assert row["nmse"] == pytest.approx(metrics.nmse(first, external.sae(first)), rel=1e-5)


def test_an_sae_from_elsewhere_has_no_checkpoints(tmp_path) -> None:
    with pytest.raises(ValueError, match="no checkpoints"):
        measure(an_sae(tmp_path), toy_data(), toy_parameters(), "full", step=10)
