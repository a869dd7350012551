"""The four phases: what each one keeps, and what the controls share with LocA."""

from dataclasses import replace

import pytest
import torch

from loca_sae.loca_training import continue_topk, permuted, train_loca
from loca_sae.training import Recipe
from toys import D_IN, ToyActivations, random_sae, sparse_activations

PRETRAINING = Recipe(architecture="topk", d_sae=40, sparsity=4, steps=120, batch_size=64, lr=3e-3)


pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def toy() -> ToyActivations:
    return ToyActivations(sparse_activations())


def run(toy, **changes):
    settings = {"group_ks": [2, 1, 1], "group_sizes": [20, 10, 10], "finetune_steps": 60}
    return train_loca(toy, PRETRAINING, **{**settings, **changes})


def by_hand(sae, x, min_count):
    """AVar by its definition, one latent at a time, in float64."""
    codes, directions = sae.encode(x), torch.nn.functional.normalize(x.double(), dim=1)
    values = []
    for j in range(codes.shape[1]):
        rows = directions[codes[:, j] > 0]
        values.append(1 - float(rows.mean(0).norm()) if len(rows) >= min_count else float("nan"))
    return values


def test_phase_2_orders_latents_by_the_definition_of_angular_variance(toy) -> None:
    found = run(toy, avar_batches=8, min_count=5)
    stream = toy.batches(64, seed=0)
    x = torch.cat([next(stream) for _ in range(8)])
    with torch.no_grad():
        expected = by_hand(found.pretrained.load(), x, 5)
    assert found.latents["avar"].tolist() == pytest.approx(expected, abs=1e-5, nan_ok=True)
    in_order = found.latents.sort_values("position")
    defined = in_order["avar"].dropna()
    assert defined.is_monotonic_decreasing
    assert in_order["avar"].isna().to_numpy()[len(defined) :].all(), "undefined latents come last"
    assert in_order["group"].tolist() == [0] * 20 + [1] * 10 + [2] * 10


def test_phase_3_only_renames_latents(tmp_path) -> None:
    torch.manual_seed(0)
    original = random_sae("topk", tmp_path)
    order = torch.randperm(original.cfg.d_sae)
    x = torch.randn(50, D_IN)
    with torch.no_grad():
        codes, output = original.encode(x), original(x)
        moved = permuted(original, order)
        torch.testing.assert_close(moved.encode(x), codes[:, order])
        torch.testing.assert_close(moved(x), output)


def test_phase_3_refuses_a_decoder_that_is_not_folded(tmp_path) -> None:
    sae = random_sae("standard", tmp_path)
    with pytest.raises(ValueError, match="fold_W_dec_norm"):
        permuted(sae, torch.arange(sae.cfg.d_sae))


def test_phase_4_starts_from_the_pretrained_rows_and_keeps_to_the_budgets(toy) -> None:
    found = run(toy)
    order = torch.tensor(found.latents.sort_values("position")["latent"].tolist())
    before, after = found.pretrained.load(), found.trained.load()
    cosine = torch.cosine_similarity(before.W_dec[order], after.W_dec, dim=1)
    assert cosine.median() > 0.9
    with torch.no_grad():
        codes = after.encode(toy.x)
    for part, k in zip(codes.split([20, 10, 10], dim=1), [2, 1, 1], strict=True):
        assert int((part > 0).sum(1).max()) <= k
    assert found.trained.recipe.lr == PRETRAINING.lr / 2


def test_random_groups_share_phase_1_and_differ_in_the_order_only(toy) -> None:
    avar, chance = run(toy), run(toy, order="random")
    assert chance.pretrained.path == avar.pretrained.path
    assert chance.trained.path != avar.trained.path
    assert sorted(chance.latents["position"]) == sorted(avar.latents["position"])
    assert chance.latents["position"].tolist() != avar.latents["position"].tolist()
    assert chance.trained.recipe == avar.trained.recipe


def test_one_group_is_the_plain_continuation(toy) -> None:
    """With a single group LocA is TopK, so phases 2 to 4 reduce to training on."""
    one = run(toy, group_ks=[4], group_sizes=[40])
    plain = continue_topk(toy, one.pretrained, k=4, steps=60)
    order = torch.tensor(one.latents.sort_values("position")["latent"].tolist())
    torch.testing.assert_close(
        one.trained.load().W_dec, plain.load().W_dec[order], rtol=1e-3, atol=1e-4
    )


def test_phase_1_must_be_a_global_topk(toy) -> None:
    with pytest.raises(ValueError, match="global TopK"):
        train_loca(
            toy, replace(PRETRAINING, architecture="standard"), group_ks=[1], finetune_steps=10
        )
