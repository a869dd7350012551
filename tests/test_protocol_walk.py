"""Each choice of the released protocol does to the codes, the data and the labels what it says."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from loca_sae.experiments import evaluation as evaluations
from loca_sae.experiments import walk_changes
from loca_sae.experiments.data import Concept, ConceptSplit, Data
from loca_sae.experiments.evaluation import ABOVE, REST, between_documents, evaluation, norm_concept
from loca_sae.experiments.numbers import walk as walk_numbers
from loca_sae.inference import dictionary, encode, prepare
from loca_sae.parameters import AmortizationInterventions, ParameterError
from loca_sae.protocols import NATIVE, RELEASED_LAMBDAS
from toys import D_SAE, ToyActivations, activations, random_sae

# ---------------------------------------------------------------- codes


def by_hand(sae, x, keep=lambda acts, norms: acts) -> torch.Tensor:
    """ReLU(x W_enc + b_enc) on unit atoms; a loop over samples and latents."""
    centred = x - sae.b_dec if sae.cfg.apply_b_dec_to_input else x
    b_enc = getattr(sae, "b_enc", None)
    b_enc = torch.zeros(D_SAE) if b_enc is None else b_enc  # a gated SAE has none
    norms = sae.W_dec.norm(dim=1)
    rows = []
    for sample in centred:
        acts = torch.stack([(sample @ sae.W_enc[:, j] + b_enc[j]).relu() for j in range(D_SAE)])
        rows.append(keep(acts, norms) * norms)
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["topk", "topk_unscaled", "batchtopk", "matryoshka_batchtopk"])
def test_a_tenth_keeps_the_three_largest_of_32_latents_by_the_units_of_the_sae(
    name, tmp_path
) -> None:
    sae = random_sae(name, tmp_path)
    rescaled = bool(getattr(sae.cfg, "rescale_acts_by_decoder_norm", False))

    def three(acts, norms):
        strength = acts * norms if rescaled else acts
        cut = strength.sort(descending=True).values[2]
        return torch.where(strength >= cut, acts, 0.0)

    with torch.no_grad():
        codes = encode(sae, activations(9), "full", replace(NATIVE, k="tenth"))
        torch.testing.assert_close(codes, by_hand(sae, activations(9), three))
    assert ((codes > 0).sum(1) <= 3).all() and not torch.equal(codes, encode(sae, activations(9)))


@pytest.mark.parametrize(
    ("name", "choice"), [("jumprelu", "gates"), ("gated", "gates"), ("loca", "loca_groups")]
)
def test_without_gates_or_groups_the_encoder_is_a_plain_relu(name, choice, tmp_path) -> None:
    sae = random_sae(name, tmp_path)
    with torch.no_grad():
        codes = encode(sae, activations(9), "full", replace(NATIVE, **{choice: False}))
        torch.testing.assert_close(codes, by_hand(sae, activations(9)))
    assert not torch.equal(codes > 0, encode(sae, activations(9)) > 0)


@pytest.mark.parametrize("name", ["standard", "topk", "jumprelu"])
def test_without_the_decoder_bias_the_sae_is_the_one_whose_bias_is_zero(name, tmp_path) -> None:
    sae, x = random_sae(name, tmp_path), activations(9)
    infer = prepare(sae, x, "full", replace(NATIVE, decoder_bias=False))
    codes, reconstructed = infer(x), infer.round_trip(x)
    native = encode(sae, x)
    with torch.no_grad():
        sae.b_dec.zero_()
        torch.testing.assert_close(codes, sae.encode(x) * dictionary(sae).code_scale)
        torch.testing.assert_close(reconstructed, sae.decode(sae.encode(x)))
    # an SAE that does not subtract its bias before encoding keeps its codes
    assert torch.equal(codes, native) == (not sae.cfg.apply_b_dec_to_input)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("wanted", [1.0, 9.0, 25.0, 32.0])
def test_the_grid_gives_the_nearest_of_nine_lambdas(wanted, signed, tmp_path) -> None:
    sae, x = random_sae("topk", tmp_path), activations(30) / 30
    chosen = replace(NATIVE, lam_search="grid", signed=signed)
    found = prepare(sae, x, "semi", chosen, target_l0=wanted, steps=20)
    l0s = {}
    for lam in RELEASED_LAMBDAS:
        codes = encode(sae, x, "semi", chosen, lam=lam, steps=20)
        l0s[lam] = float((codes != 0).sum(1).double().mean())
    assert found.lam in l0s and found.l0 == pytest.approx(l0s[found.lam])
    assert abs(found.l0 - wanted) == min(abs(l0 - wanted) for l0 in l0s.values())


def test_the_dense_target_is_the_number_of_latents_that_fire_on_a_tenth_of_the_tokens(
    tmp_path,
) -> None:
    sae, x = random_sae("topk", tmp_path), activations(50)
    fires = (encode(sae, x) > 0).tolist()
    dense = sum(sum(row[j] for row in fires) >= 5 for j in range(D_SAE))
    infer = prepare(sae, x, "semi", replace(NATIVE, lam_target="dense"), steps=5)
    assert infer.target_l0 == dense != prepare(sae, x, "semi", steps=5).target_l0


# ---------------------------------------------------------------- data and labels


class Read(ToyActivations):
    """Toy activations with documents."""

    def __init__(self, x: torch.Tensor, documents: list[int]) -> None:
        super().__init__(x)
        self.documents = torch.tensor(documents)


def spread(norms: list[float]) -> torch.Tensor:
    """[n, 3]: vectors of these norms in different directions."""
    directions = torch.nn.functional.normalize(torch.randn(len(norms), 3), dim=1)
    return directions * torch.tensor(norms)[:, None]


def test_norm_labels_say_which_of_the_tokens_measured_lie_above_their_median() -> None:
    x = spread([1, 5, 2, 9, 3, 4, 100, 200])
    found = norm_concept(Read(x, [0] * 8), 6, same=True)
    assert found.train.labels == [REST, ABOVE, REST, ABOVE, REST, ABOVE]
    assert found.test is found.train and torch.equal(found.train.x, x[:6])
    assert found.train.text.tolist() == [0, 1, 2, 3, 4, 5], "each token is a text of its own"


def test_held_out_norm_probes_share_no_document_and_one_median() -> None:
    x = spread([9, 8, 7, 6, 5, 4, 3, 2])
    found = norm_concept(Read(x, [0, 0, 0, -1, 1, 1, 1, 2]), 8, same=False)
    assert torch.equal(found.train.x, x[:4]) and torch.equal(found.test.x, x[4:])
    assert found.train.labels == [ABOVE] * 4 and found.test.labels == [REST] * 4


@pytest.mark.parametrize(
    ("documents", "row"),
    [
        ([0, 0, 1, 1], 2),
        ([0, 1, 1, 1, 1, 2, 2, 2], 5),
        ([0, 0, -1, 0, 0, -1, 1, 1], 6),
        ([-1, 3, 3, -1, 7, 7], 4),
    ],
)
def test_documents_are_cut_at_the_change_nearest_the_middle(documents, row) -> None:
    assert between_documents(torch.tensor(documents)) == row


def test_one_document_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="all 3 tokens are of one document"):
        between_documents(torch.tensor([-1, 4, 4]))


@pytest.fixture
def toy_data() -> Data:
    split = ConceptSplit(torch.ones(2, 3), torch.arange(2), ["a", "b"])
    other = ConceptSplit(torch.zeros(2, 3), torch.arange(2), ["a", "b"])
    held_out = Read(spread([1, 2, 3, 4]), [0, 0, 1, 1])
    return Data(held_out, held_out, [Concept("letters", split, other)])  # type: ignore[arg-type]


@pytest.fixture
def harvested(monkeypatch) -> list[dict]:
    """What `evaluation` asks to be harvested, in place of a model."""
    asked: list[dict] = []

    def harvest(p, split, tokens, scale, keep_all=False):
        asked.append({"layer": p.layer, "split": split, "tokens": tokens, "keep_all": keep_all})
        found = Read(spread([5, 6, 7, 8]), [0, 0, 1, 1])
        found.name = f"layer {p.layer}"
        return found

    def load_concept(p, name, scale):
        asked.append({"layer": p.layer, "concept": name, "scale": scale})
        return Concept(name, None, None)

    monkeypatch.setattr(evaluations, "harvest", harvest)
    monkeypatch.setattr(evaluations, "load_concept", load_concept)
    return asked


P = AmortizationInterventions.check({"eval_tokens": 1000})


def test_native_measures_what_the_experiment_has_and_harvests_nothing(toy_data, harvested) -> None:
    found = evaluation(toy_data, P, NATIVE, 100)
    assert found.tokens is toy_data.heldout and found.concepts is toy_data.concepts
    assert harvested == [] and found.probed is None


def test_every_position_and_the_layer_below_are_harvested_as_asked(toy_data, harvested) -> None:
    evaluation(toy_data, P, replace(NATIVE, positions="all"), 300)
    evaluation(toy_data, P, replace(NATIVE, positions="all", layer_offset=-1, labels="norm"))
    evaluation(toy_data, P, replace(NATIVE, layer_offset=-1), 3000)
    assert harvested == [
        {"layer": 20, "split": "eval", "tokens": 300, "keep_all": True},
        {"layer": 19, "split": "eval", "tokens": 1000, "keep_all": True},
        {"layer": 19, "split": "eval", "tokens": 1000, "keep_all": False},
        {"layer": 19, "concept": "domain", "scale": 1.0},
    ]


def test_norm_labels_and_probes_on_the_same_data(toy_data, harvested) -> None:
    by_norm = evaluation(toy_data, P, replace(NATIVE, labels="norm", probe_split="same"), 4)
    assert by_norm.probed == (ABOVE,) and len(by_norm.concepts) == 1
    assert by_norm.concepts[0].test is by_norm.concepts[0].train
    same = evaluation(toy_data, P, replace(NATIVE, probe_split="same"), 4)
    assert same.concepts[0].test is same.concepts[0].train is toy_data.concepts[0].train


def test_what_is_measured_has_a_key_of_its_own_under_each_choice_of_data(
    toy_data, harvested
) -> None:
    choices = [{}, {"labels": "norm"}, {"positions": "all"}, {"layer_offset": -1}]
    keys = [str(evaluation(toy_data, P, replace(NATIVE, **c), 4).key) for c in choices]
    assert len(set(keys[:3])) == 3 and keys[3] != keys[0]


def test_the_layer_below_layer_0_is_refused(toy_data) -> None:
    below = replace(NATIVE, name="lower", layer_offset=-1)
    with pytest.raises(ValueError, match="'lower' reads the layer below layer 0"):
        evaluation(toy_data, P.model_copy(update={"layer": 0}), below)


# ---------------------------------------------------------------- the walk


@pytest.fixture
def measured(monkeypatch):
    """The walk on three made-up SAEs, with `measure` replaced by one that counts."""
    from loca_sae.experiments import protocol_walk as walks

    saes = [
        SimpleNamespace(label=name, own=own, architecture=architecture)
        for name, own, architecture in (
            ("topk", True, "topk"), ("loca", True, "loca"), ("mine", False, "gated"),
        )
    ]  # fmt: skip
    asked = []

    def measure(trained, data, p, mode, chosen, *, steps, gap, tokens):
        asked.append((trained.label, mode, getattr(chosen, "name", chosen), p.calibration_tokens))
        return {"protocol": chosen.name, "sae": trained.label, "mode": mode, "nmse": len(asked)}

    monkeypatch.setattr(walks, "measure", measure)
    monkeypatch.setattr(walks, "subject", lambda trained: trained)
    monkeypatch.setattr(walks, "compared_saes", lambda p, data: saes)
    monkeypatch.setattr(walks.experiment_data, "load", lambda p: None)
    return walks, asked


def test_a_step_that_cannot_matter_repeats_the_row_before_and_is_not_measured(measured) -> None:
    walks, asked = measured
    table = walks.run(AmortizationInterventions.check({"calibration_tokens": 400}))
    assert list(table["sae"].unique()) == ["topk", "mine"], "loca does not walk, guests do"
    assert len(table) == 2 * 2 * 13 and len(asked) == int(table["applies"].sum())
    full = table[(table["sae"] == "topk") & (table["mode"] == "full")].set_index("switch")
    idle = ["thresholds and gates", "LocA's groups", "non-negative codes"]
    idle += ["lambda aims at L0", "lambda by bisection"]
    assert sorted(full.index[~full["applies"]]) == sorted(idle)
    assert full["nmse"]["thresholds and gates"] == full["nmse"]["position 0 masked"]
    assert list(full["protocol"]) == list(full.index) and list(full["order"]) == list(range(13))
    grid = table[table["calibration_tokens"] == 100]
    assert set(grid["mode"]) == {"semi"} and grid["order"].max() == 8


def test_the_three_protocols_are_measured_for_every_sae_and_mode(measured) -> None:
    walks, asked = measured
    table = walks.protocols_table(AmortizationInterventions.check({}))
    assert table.groupby(["sae", "protocol", "mode"]).ngroups == len(table) == 3 * 3 * 3
    assert list(table["protocol"].unique()) == ["native", "described", "released"]


def test_without_a_wanted_architecture_the_first_sae_walks(measured) -> None:
    walks, _ = measured
    p = AmortizationInterventions.check({"walk_architectures": ["jumprelu"]})
    own = [SimpleNamespace(own=True, architecture=name) for name in ("topk", "loca")]
    assert walks.walked_saes(p, own) == own[:1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"walk_architectures": ["topq"]}, "walk_architectures: 'topq' is unknown"),
        ({"walk_modes": ["fully"]}, "walk_modes: 'fully' is unknown; use some of"),
        ({"walk_modes": []}, "walk_modes: got []"),
        ({"walk_tokens": 1}, "walk_tokens: got 1"),
        ({"layer": 0}, "layer: 0 has no layer below it"),
    ],
)
def test_a_walk_that_cannot_be_is_refused_before_anything_runs(given, words) -> None:
    with pytest.raises(ParameterError) as error:
        AmortizationInterventions.check(given)
    assert words in str(error.value)


def walk_table() -> pd.DataFrame:
    """Two SAEs in full mode: layer moves NMSE of both, k applies to one and kills its latents."""
    rows = []
    for sae, values in {"topk": [(0.9, 0.1), (0.5, 0.2), (0.5, 0.8)],
                        "gated": [(0.7, 0.3), (0.1, 0.2), (0.1, 0.2)]}.items():  # fmt: skip
        for order, (nmse, dead) in enumerate(values):
            switch = ["released", "layer", "k"][order]
            applies = order < 2 or sae == "topk"
            measures = {"nmse": nmse, "dead": dead, "dense_0.1": 0.5, "delta_f1": None}
            rows.append({"sae": sae, "architecture": sae, "mode": "full", "switch": switch})
            rows[-1] |= {"order": order, "applies": applies, **measures, "absorption": nmse}
            rows[-1] |= {"eval_tokens": 64, "calibration_tokens": 32, "protocol": switch}
            rows[-1] |= {"model": "toy", "layer": 1, "d_sae": 8, "train_tokens": 9, "seed": 0}
    return pd.DataFrame(rows)


def test_the_summary_averages_each_change_over_the_saes_that_it_applies_to() -> None:
    found = walk_changes.summary(walk_table()).set_index("choice")
    assert list(found.index) == ["layer", "k"]
    assert found["NMSE"].tolist() == pytest.approx([-0.5, 0.0])
    assert found["dead"].tolist() == pytest.approx([0.0, 0.6])
    assert found["applies in"].tolist() == ["2 of 2", "1 of 2"]
    assert found["moves most"].tolist() == ["NMSE, absorption", "dead"]
    assert found["dF1"].isna().all()


def test_numbers_of_the_walk_name_the_largest_mover_even_if_its_changes_cancel() -> None:
    table = walk_table()
    table.loc[table["switch"] == "k", "dead"] = [0.21, 0.2]
    values = walk_numbers(table)
    assert values["walk-dead-mover"] == "layer" and values["walk-dead-moved"] == pytest.approx(0.0)
    assert values["walk-nmse-mover"] == "layer" and values["walk-nmse-moved"] == pytest.approx(-0.5)
    assert values["walk-nmse-released"] == pytest.approx(0.8)
    assert values["walk-nmse-native"] == pytest.approx(0.3)
    assert values["walk-delta_f1-mover"] == values["walk-dense_0.1-mover"] == "no choice"
    assert (values["walk-saes"], values["walk-choices"], values["walk-tokens"]) == (2, 2, 64)
    assert values["walk-grid_tokens"] == "no"


def test_the_figure_of_the_walk_marks_the_steps_that_apply_and_names_all() -> None:
    from loca_sae import plotting

    figure = plotting.figure_protocol_walk(walk_table())
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["released", "layer", "k"]
    paths = {line.get_label(): line for line in ax.lines}
    assert list(paths["topk"].get_xdata()) == [0.9, 0.5, 0.5]
    assert paths["topk"].get_markevery() == [0, 1, 2]
    assert paths["gated"].get_markevery() == [0, 1]
    assert any("protocol released to native" in text.get_text() for text in figure.texts)
