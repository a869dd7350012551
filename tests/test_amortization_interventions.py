"""Notebook 02's table on SAEs that a reader brought, and what is read off such tables."""

import pandas as pd
import pytest
import torch

import toys
from loca_sae.experiments import amortization_interventions, compared
from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.amortization_interventions import (
    beside_the_paper,
    comparable,
    density_table,
)
from loca_sae.experiments.data import Concept, ConceptSplit, Data
from loca_sae.experiments.decomposition import decomposition
from loca_sae.experiments.kinds import KINDS, of_kind
from loca_sae.parameters import AmortizationInterventions, ParameterError
from loca_sae.sae_folders import SaeMismatch

INFERENCES = [
    "full",
    "full, refitted",
    "semi (5 steps)",
    "non (20 steps)",
    "non (exact)",
    "non (exact), refitted",
    "k-sparse (OMP)",
    "matching pursuit",
]


@pytest.fixture
def toy_data(monkeypatch) -> Data:
    """Activations of no language model, in place of a harvest."""
    x = toys.sparse_activations(300, seed=1)
    split = ConceptSplit(x[:96], torch.arange(96) // 4, ["a", "b"] * 12)
    concepts = [Concept("toy", split, split._replace(x=x[96:192]))]
    data = Data(toys.ToyActivations(x), toys.ToyActivations(x), concepts)
    monkeypatch.setattr(experiment_data, "load", lambda p: data)
    return data


def parameters(**changes) -> AmortizationInterventions:
    """Unchecked, since a toy SAE fits no real model."""
    given = {"architectures": [], "semi_steps": 5, "non_steps": 20, "calibration_tokens": 100}
    return AmortizationInterventions.model_construct(**given | changes)


def test_any_folder_goes_through_the_whole_table_and_what_is_made_of_it(
    toy_data, own_store, tmp_path
) -> None:
    for architecture in toys.ARCHITECTURES:
        toys.random_sae(architecture, tmp_path / architecture)
    p = parameters(saes=[str(tmp_path / architecture) for architecture in toys.ARCHITECTURES])
    table = amortization_interventions.run(p)
    assert table["sae"].tolist() == [a for a in toys.ARCHITECTURES for _ in INFERENCES]
    assert table["inference"].tolist() == INFERENCES * len(toys.ARCHITECTURES)
    assert all(len(of_kind(table, kind)) == len(toys.ARCHITECTURES) for kind in KINDS)
    assert table[["nmse", "l0", "dead", "f1_1"]].notna().all().all()
    gaps = table["gap_relative"].astype(float)
    assert (gaps > -1e-3).all(), "no code can beat the certified optimum"
    parts = decomposition(table)
    assert (parts["value"] > -1e-6).all() and (parts["shrinkage"] > -1e-6).all()
    assert set(comparable(table)["within 10 %"]) == {"–"}
    assert len(density_table(table)) == len(toys.ARCHITECTURES)


def test_a_saved_sae_that_does_not_fit_is_refused_before_any_training(
    toy_data, own_store, tmp_path, monkeypatch
) -> None:
    toys.random_sae("topk", tmp_path / "sae")
    wide = toys.ToyActivations(torch.zeros(10, 99))
    monkeypatch.setattr(
        compared, "trained_saes", lambda *_: pytest.fail("trained before the check")
    )
    monkeypatch.setattr(experiment_data, "load", lambda p: toy_data._replace(train=wide))
    with pytest.raises(SaeMismatch, match="width 12"):
        amortization_interventions.run(
            parameters(architectures=["topk"], saes=[str(tmp_path / "sae")])
        )


def test_two_folders_of_one_name_get_two_labels(toy_data, tmp_path) -> None:
    folders = [tmp_path / place / "topk" for place in ("a", "b")]
    for folder in folders:
        toys.random_sae("topk", folder)
    p = parameters(architectures=["topk"], saes=[str(folder) for folder in folders])
    labels = [sae.label for sae in compared.external_saes(p, toys.D_IN)]
    assert len({"topk", *labels}) == 3


def test_nothing_to_compare_and_unknown_architectures_are_refused() -> None:
    with pytest.raises(ParameterError, match="nothing to compare"):
        AmortizationInterventions.check({"architectures": []})
    with pytest.raises(ParameterError, match="'topkk' is unknown"):
        AmortizationInterventions.check({"architectures": ["topkk"]})


def modes_table(architecture: str, nmse: dict[str, float], **columns) -> pd.DataFrame:
    """The encoder, semi, non and the optimum of one SAE; ``columns`` give one value a row."""
    rows = [("full", "ista"), ("semi", "ista"), ("non", "ista"), ("non", "exact")]
    frame = pd.DataFrame(rows, columns=["mode", "solver"]).assign(
        sae=architecture, architecture=architecture, refit=False, d_sae=100, lam=[None, 1, 2, 3]
    )
    frame["nmse"] = [nmse["full"], nmse["semi"], nmse["non"], nmse["non"]]
    for measure in ("dead", "delta_f1", "absorption"):
        frame[measure] = frame["nmse"]
    for name, values in columns.items():
        frame[name] = values
    return frame


@pytest.mark.parametrize(("missed", "word"), [(False, "yes"), (True, "no")])
def test_modes_of_unequal_density_are_not_called_matched(missed, word) -> None:
    table = modes_table(
        "topk",
        {"full": 0.4, "semi": 0.2, "non": 0.2},
        l0=[20.0, 20.1, 19.0, 20.0],
        density=[0.2, 0.201, 0.19, 0.2],
        l0_matched=[True, True, not missed, True],
    )
    row = density_table(table).iloc[0]
    assert row["matched"] == word and row["largest difference"] == pytest.approx(0.05)
    assert (row["λ semi"], row["L0 non"], row["density exact"]) == (1, 19.0, 0.2)


def test_an_sae_is_comparable_within_a_tenth_of_the_l0_it_was_trained_for() -> None:
    nmse = {"full": 0.4, "semi": 0.2, "non": 0.2}
    near = modes_table("topk", nmse, l0=21.9, wanted_l0=20.0)
    far = modes_table("gated", nmse, l0=22.1, wanted_l0=20.0)
    assert comparable(pd.concat([near, far]))["within 10 %"].tolist() == ["yes", "no"]


def test_the_papers_direction_is_compared_with_ours_where_it_has_one() -> None:
    falls = beside_the_paper(modes_table("topk", {"full": 0.4, "semi": 0.2, "non": 0.2}))
    semi = falls[(falls["mode"] == "semi") & (falls["measure"] == "NMSE")].iloc[0]
    assert (semi["paper"], semi["here"]) == (0.087, 0.2)
    assert semi["difference"] == pytest.approx(0.113) and semi["remark"] == "falls in both"
    rises = beside_the_paper(modes_table("topk", {"full": 0.2, "semi": 0.4, "non": 0.2}))
    semi = rises[(rises["mode"] == "semi") & (rises["measure"] == "NMSE")].iloc[0]
    assert semi["remark"] == "falls in the paper, rises here"
    non = falls[falls["mode"] == "non"]
    assert set(non["remark"]) == {"no full row"} and set(non["measure"]) == {"dF1", "absorption"}
