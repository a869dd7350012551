"""SAEs from elsewhere: opened as SAELens opens them, or refused in a sentence before any work."""

import json

import pytest
import torch

import toys
from loca_sae.external_saes import open_sae
from loca_sae.parameters import AmortizationInterventions, ParameterError
from loca_sae.sae_folders import SaeMismatch

MODEL, LAYER = "smollm2-135m", 20


def saved(folder, kind: str = "topk", **changes):
    """A random SAE in a folder, with some fields of its configuration changed."""
    toys.random_sae(kind, folder)
    path = folder / "cfg.json"
    config = json.loads(path.read_text())
    config["metadata"] |= changes.pop("metadata", {})
    path.write_text(json.dumps({**config, **changes}))
    return str(folder)


def opened(spec: str):
    return open_sae(spec, MODEL, toys.D_IN, LAYER)


@pytest.mark.parametrize("architecture", toys.ARCHITECTURES)
def test_a_saved_sae_of_each_architecture_is_opened_as_the_one_that_was_trained(
    architecture, tmp_path
) -> None:
    external = opened(saved(tmp_path / architecture, architecture))
    x = toys.activations()
    expected = toys.SAE.load_from_disk(tmp_path / architecture).encode(x)
    assert torch.equal(external.load().encode(x), expected)
    assert external.architecture == architecture.removesuffix("_unscaled")
    assert (external.label, external.d_sae, external.scale) == (architecture, toys.D_SAE, 1.0)


def test_saelens_own_note_tells_the_family_too(tmp_path) -> None:
    notes = {"trained_architecture": None, "training_architecture": "batchtopk"}
    assert opened(saved(tmp_path / "a", "batchtopk", metadata=notes)).architecture == "batchtopk"
    notes = {"trained_architecture": None, "training_architecture": None}
    assert opened(saved(tmp_path / "b", "batchtopk", metadata=notes)).architecture == "jumprelu"


def test_identity_follows_the_contents_and_units_follow_the_metadata(tmp_path) -> None:
    first = opened(saved(tmp_path / "a"))
    assert opened(saved(tmp_path / "b")).identity == first.identity
    scaled = opened(saved(tmp_path / "c", metadata={"activation_scale": 0.25}))
    assert scaled.scale == 0.25 and scaled.identity != first.identity


def test_half_precision_weights_are_read_in_float32(tmp_path) -> None:
    sae = toys.random_sae("standard", tmp_path / "wide")
    sae.to(torch.bfloat16)
    sae.cfg.dtype = "bfloat16"
    sae.save_model(tmp_path / "half")
    assert opened(str(tmp_path / "half")).load().W_dec.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_in": 64}, "width 64"),
        ({"metadata": {"hook_name": "blocks.3.hook_resid_post"}}, "set layer to 3"),
        ({"metadata": {"hook_layer": 4}}, "set layer to 4"),
        ({"metadata": {"hook_name": "blocks.20.hook_mlp_out"}}, "only the residual stream"),
        ({"metadata": {"model_name": "google/gemma-2-2b"}}, "set model to 'google/gemma-2-2b'"),
        ({"architecture": "transcoder"}, "'transcoder'"),
        ({"normalize_activations": "layer_norm"}, "normalizes its input at run time"),
    ],
)
def test_an_sae_that_does_not_fit_is_refused_with_what_to_do(changes, words, tmp_path) -> None:
    with pytest.raises(SaeMismatch, match=words):
        opened(saved(tmp_path / "sae", **changes))


def test_a_hook_before_a_block_is_the_one_after_the_block_below(tmp_path) -> None:
    hook = {"hook_name": "blocks.21.hook_resid_pre", "model_name": "HuggingFaceTB/SmolLM2-135M"}
    assert opened(saved(tmp_path / "sae", metadata=hook)).label == "sae"


def test_a_configuration_of_an_older_saelens_is_read_where_it_keeps_its_notes(tmp_path) -> None:
    with pytest.raises(SaeMismatch, match="set layer to 5"):
        opened(saved(tmp_path / "sae", hook_name="blocks.5.hook_resid_post", metadata={}))


def test_damaged_files_and_an_unreachable_hub_are_said_in_one_sentence(tmp_path) -> None:
    spec = saved(tmp_path / "sae")
    (tmp_path / "sae" / "sae_weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(SaeMismatch, match="cannot be loaded by SAELens"):
        opened(spec)
    with pytest.raises(SaeMismatch, match="Without a network") as error:
        opened("gemma-scope-2b-pt-res-canonical:layer_12/width_16k/canonical")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("saes", "words"),
    [
        (["no-such-folder"], "'no-such-folder' is no folder"),
        (["release:"], "'release:' is no folder"),
        (["{empty}"], "holds no cfg.json"),
        (["{toy}"], "width 12"),
    ],
)
def test_a_wrong_sae_is_found_among_the_parameters(saes, words, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    places = {"empty": tmp_path / "empty", "toy": saved(tmp_path / "toy")}
    with pytest.raises(ParameterError, match=words):
        AmortizationInterventions.check({"saes": [spec.format(**places) for spec in saes]})
