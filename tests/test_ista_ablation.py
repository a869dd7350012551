"""The sweep over ISTA steps, on toy activations and a trained toy SAE, and its parameters."""

import pandas as pd
import pytest
import torch

from loca_sae import plotting
from loca_sae.experiments import data as experiment_data
from loca_sae.experiments import ista_ablation, numbers
from loca_sae.experiments.data import Concept, ConceptSplit, Data
from loca_sae.parameters import IstaAblation, ParameterError
from test_experiments import ista_table
from toys import ToyActivations, sparse_activations

STEPS = [5, 25, 200]


def toy_data() -> Data:
    x = sparse_activations(1200)
    labels = ["strong" if value > 0 else "weak" for value in (x[:80, 0] - x[:80, 0].median())]
    train = ConceptSplit(x[:40], torch.arange(40), labels[:40])
    test = ConceptSplit(x[40:80], torch.arange(40), labels[40:])
    tokens = ToyActivations(x[80:900], "train"), ToyActivations(x[900:], "eval")
    return Data(*tokens, [Concept("domain", train, test)])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> pd.DataFrame:
    """BatchTopK and TopK SAEs of 32 latents, swept; one row a start, number of steps and refit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCA_STORE", str(tmp_path_factory.mktemp("store")))
        patch.setattr(experiment_data, "load", lambda p: toy_data())
        small = {"d_sae": 32, "k": 4, "steps": 60, "batch_size": 64, "first_checkpoint": 20}
        small |= {"group_ks": [3, 2], "loca_k": 5, "lr": 0.01, "calibration_tokens": 300}
        given = {"architectures": ["batchtopk", "topk"], "ista_steps": STEPS, **small}
        return ista_ablation.run(IstaAblation.check(given))


def raw(table: pd.DataFrame) -> pd.DataFrame:
    return table[~table["refit"].astype(bool)]


def test_every_sae_has_both_starts_at_each_number_of_steps_raw_and_refitted(sweep) -> None:
    expected = {("encoder", 0), ("optimum", -1)}
    expected |= {(start, n) for start in ("encoder", "zero") for n in STEPS}
    for _, rows in sweep.groupby(["sae", "refit"]):
        assert len(rows) == len(expected)
        assert set(zip(rows["start"], rows["ista_steps"].fillna(-1), strict=True)) == expected
    assert list(sweep["sae"].unique()) == ["batchtopk", "topk"]


def test_the_duality_gap_falls_with_the_steps_from_either_start(sweep) -> None:
    """Guaranteed for the objective at one lambda; here lambda is calibrated for each number."""
    for _, path in raw(sweep[sweep["ista_steps"] > 0]).groupby(["sae", "start"]):
        gaps = path.sort_values("ista_steps")["duality_gap"].astype(float)
        assert (gaps.diff().dropna() < 0).all()


def test_the_exact_row_is_at_the_optimum_and_no_row_is_below_it(sweep) -> None:
    exact = raw(sweep[sweep["start"] == "optimum"])
    assert (exact["duality_gap"].astype(float) <= 1e-4).all()
    assert (raw(sweep)["gap_relative"].astype(float) > -1e-3).all()


def test_refitting_never_raises_nmse_and_keeps_lambda(sweep) -> None:
    keys = ["sae", "start", "ista_steps"]
    pairs = sweep.assign(ista_steps=sweep["ista_steps"].fillna(-1)).pivot(
        index=keys, columns="refit", values=["nmse", "lam"]
    )
    assert (pairs["nmse"][True] <= pairs["nmse"][False] + 1e-6).all()
    assert pairs["lam"][True].equals(pairs["lam"][False].rename(True))


def test_lambda_is_matched_to_the_encoders_l0_for_each_row_or_the_row_says_so(sweep) -> None:
    for _, rows in sweep.groupby("sae"):
        aim = rows.loc[rows["ista_steps"] == 0, "calibration_l0"].iloc[0]
        near = (rows["calibration_l0"] - aim).abs() <= 0.01 * aim
        assert (near == rows["l0_matched"]).all()
    searched = raw(sweep[sweep["mode"] != "full"])
    assert searched.groupby("sae")["lam"].nunique().min() > len(STEPS), "one lambda a row"


def test_the_figure_has_a_panel_an_sae_and_says_what_was_measured(sweep) -> None:
    figure = plotting.figure_ista_ablation(sweep)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["batchtopk", "topk"]
    first, second = (ax for ax in figure.axes if ax.get_title())
    assert first.get_position().width > second.get_position().width
    figure.canvas.draw()
    (line,) = figure.texts
    box = line.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width, "the provenance line is cut off"


@pytest.mark.parametrize("saes", [1, 2, 4, 7])
def test_the_figure_has_room_for_its_legend_whatever_the_number_of_saes(saes) -> None:
    one = ista_table([0.4, 0.3, 0.2, 0.1])
    figure = plotting.figure_ista_ablation(
        pd.concat([one.assign(sae=f"sae {index}") for index in range(saes)])
    )
    assert sum(ax.get_title() != "" for ax in figure.axes) == saes
    (key,) = (ax.get_legend() for ax in figure.axes if ax.get_legend())
    labels = [text.get_text() for text in key.get_texts()]
    assert {"semi", "non", "encoder", "optimum", "dashed: refitted"} < set(labels)


def test_the_numbers_of_the_protocols_tell_a_fall_at_equal_density_from_one_at_another() -> None:
    table = raw(ista_table([0.4, 0.3, 0.2, 0.1]))
    path = table[table["start"] == "encoder"].assign(target_l0=20.0)
    dense = path.assign(protocol="released", l0=[20.0, 40.0, 60.0], nmse=[0.5, 0.2, 0.1])
    values = numbers.ista_protocols(pd.concat([path, dense]))
    assert (values["native-encoder-nmse"], values["native-most-nmse"]) == (0.4, 0.2)
    assert (values["released-most-nmse"], values["released-most-l0"]) == (0.1, 60.0)
    assert (values["released-target_l0"], values["protocol-steps"], values["d_sae"]) == (20, 10, 64)
    assert {type(value) for value in values.values()} <= {int, float}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"architectures": []}, "architectures: got []"),
        ({"architectures": ["batchtop"]}, "architectures: 'batchtop' is unknown"),
        ({"architectures": ["topk", "topk"]}, "more than once"),
        ({"ista_steps": [5]}, "ista_steps: got [5]"),
        ({"ista_steps": [5, 0]}, "ista_steps.1: got 0"),
        ({"ista_steps": [5, 25, 5]}, "more than once"),
        ({"ista_steps": [100, 200]}, "has none up to 50"),
        ({"layer": 0}, "no layer below it"),
        ({"loca_k": 27}, "sum to 26, but loca_k is 27"),
    ],
)
def test_a_sweep_that_cannot_be_made_is_refused_in_a_sentence(given, words) -> None:
    with pytest.raises(ParameterError) as error:
        IstaAblation.check(given)
    assert words in str(error.value)
