"""The LocA plugin against separate encoders written out by hand, and SAELens's own paths."""

import json

import pytest
import torch
from sae_lens import SAE, TopKTrainingSAE, TopKTrainingSAEConfig, TrainingSAE
from sae_lens.registry import get_sae_class, get_sae_training_class

from loca_sae import architecture
from loca_sae.architecture import (
    GroupTopK,
    LocASAE,
    LocASAEConfig,
    LocATrainingSAE,
    LocATrainingSAEConfig,
)

SIZES, BUDGETS, D_IN = [6, 4, 8], [2, 1, 3], 5


@pytest.fixture
def trained_like() -> LocATrainingSAE:
    """A training SAE with every weight random, decoder norms away from 1 included."""
    torch.manual_seed(0)
    sae = LocATrainingSAE(
        LocATrainingSAEConfig(d_in=D_IN, d_sae=18, group_sizes=SIZES, group_ks=BUDGETS)
    )
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return sae


def separate_encoders(sae: SAE, x: torch.Tensor) -> torch.Tensor:
    """One encoder, one TopK and one loop a group, sharing only the decoder: the paper's picture."""
    norms = sae.W_dec.norm(dim=-1)
    parts, start = [], 0
    for size, k in zip(SIZES, BUDGETS, strict=True):
        rows = slice(start, start + size)
        encoder, bias = sae.W_enc[:, rows].clone(), sae.b_enc[rows].clone()
        codes = torch.zeros(len(x), size)
        for i, sample in enumerate(x):
            pre = ((sample - sae.b_dec) @ encoder + bias) * norms[rows]
            for j in sorted(range(size), key=lambda j, pre=pre: float(pre[j]))[-k:]:
                codes[i, j] = max(float(pre[j]), 0.0)
        parts.append(codes)
        start += size
    return torch.cat(parts, dim=1)


def test_codes_equal_separate_encoders_with_their_own_budgets(
    trained_like: LocATrainingSAE,
) -> None:
    x = torch.randn(50, D_IN)
    with torch.no_grad():
        torch.testing.assert_close(trained_like.encode(x), separate_encoders(trained_like, x))


def test_every_group_stays_within_its_budget(trained_like: LocATrainingSAE) -> None:
    codes = trained_like.encode(torch.randn(200, D_IN))
    for part, k in zip(codes.split(SIZES, dim=1), BUDGETS, strict=True):
        assert int((part > 0).sum(1).max()) <= k


def test_one_group_is_saelens_topk() -> None:
    torch.manual_seed(1)
    plain = TopKTrainingSAE(TopKTrainingSAEConfig(d_in=D_IN, d_sae=18, k=4))
    one = LocATrainingSAE(LocATrainingSAEConfig(d_in=D_IN, d_sae=18, k=4))
    one.load_state_dict(plain.state_dict())
    x = torch.randn(30, D_IN)
    assert torch.equal(one.encode(x), plain.encode(x))
    assert (one.cfg.group_sizes, one.cfg.group_ks) == ([18], [4])


def test_a_saved_sae_loads_through_saelens_with_the_same_reconstruction(
    trained_like: LocATrainingSAE, tmp_path
) -> None:
    x = torch.randn(30, D_IN)
    trained_like.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    assert isinstance(loaded, LocASAE)
    assert loaded.cfg.group_sizes == SIZES and loaded.cfg.group_ks == BUDGETS
    assert json.loads((tmp_path / "cfg.json").read_text())["architecture"] == "loca"
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), trained_like(x))
        # saving folded the decoder norms, so the codes are in the same units
        torch.testing.assert_close(loaded.encode(x), trained_like.encode(x))
    loaded.save_model(tmp_path / "again")
    again = SAE.load_from_disk(tmp_path / "again")
    assert torch.equal(again.encode(x), loaded.encode(x))


def test_a_training_checkpoint_loads_as_a_training_sae(
    trained_like: LocATrainingSAE, tmp_path
) -> None:
    trained_like.save_model(tmp_path)
    loaded = TrainingSAE.load_from_disk(tmp_path)
    x = torch.randn(10, D_IN)
    assert isinstance(loaded, LocATrainingSAE)
    assert torch.equal(loaded.encode(x), trained_like.encode(x))


def test_folding_the_decoder_norm_changes_no_reconstruction(trained_like: LocATrainingSAE) -> None:
    x = torch.randn(30, D_IN)
    with torch.no_grad():
        before = trained_like(x)
        trained_like.fold_W_dec_norm()
        torch.testing.assert_close(trained_like(x), before)
        norms = trained_like.W_dec.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones(18))


def test_folding_the_activation_scale_gives_the_same_codes_on_raw_inputs(
    trained_like: LocATrainingSAE,
) -> None:
    x = torch.randn(30, D_IN)
    with torch.no_grad():
        expected = trained_like(4.0 * x) / 4.0
        trained_like.fold_activation_norm_scaling_factor(4.0)
        torch.testing.assert_close(trained_like(x), expected)


def test_saelens_knows_the_architecture_and_a_second_registration_is_harmless() -> None:
    architecture.register()
    assert get_sae_class("loca") == (LocASAE, LocASAEConfig)
    assert get_sae_training_class("loca") == (LocATrainingSAE, LocATrainingSAEConfig)


@pytest.mark.parametrize(
    ("sizes", "budgets", "words"),
    [
        ([6, 4], [2, 1, 3], "one budget for each group"),
        ([6, 4, 7], BUDGETS, "must partition"),
        (SIZES, [2, 5, 3], "group 1"),
        (SIZES, [2, 0, 3], "group 1"),
    ],
)
def test_groups_that_do_not_fit_are_refused(sizes, budgets, words) -> None:
    with pytest.raises(ValueError, match=words):
        LocASAEConfig(d_in=D_IN, d_sae=18, group_sizes=sizes, group_ks=budgets)


def test_gradients_reach_only_the_latents_that_fired() -> None:
    pre = torch.randn(4, 18, requires_grad=True)
    codes = GroupTopK(SIZES, BUDGETS)(pre)
    codes.sum().backward()
    assert torch.equal(pre.grad != 0, codes > 0)
