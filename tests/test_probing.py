"""Probes against planted concepts, brute-force loops, scikit-learn and optimality conditions."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from loca_sae import probing


def noisy_codes(n: int, d_sae: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sparse codes of which latents 2 and 4 weakly follow the label."""
    rng = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=rng) < 0.3).long()
    z = (torch.randn(n, d_sae, generator=rng) - 0.5).relu()
    z[:, 2] += 1.2 * y * torch.rand(n, generator=rng)
    z[:, 4] += 0.8 * y
    return z, y


def split_concept(n: int = 120) -> tuple[Tensor, Tensor]:
    """Half of the positives fire latent 3, the other half latent 7; negatives fire neither."""
    y = (torch.arange(n) % 3 == 0).long()
    first = torch.arange(n) % 6 == 0
    z = torch.zeros(n, 10)
    z[first, 3] = 1.0
    z[y.bool() & ~first, 7] = 2.0
    return z, y


def absorbed_concept(n: int, absorbed: int, both_off: int) -> tuple[Tensor, Tensor]:
    """n positives, n negatives. Latent 0 is the parent; of the positives ``absorbed`` fire one of
    the children 1..3 alone and ``both_off`` fire nothing."""
    y = torch.cat([torch.ones(n), torch.zeros(n)]).long()
    z = torch.zeros(2 * n, 12)
    z[absorbed + both_off : n, 0] = 1.0
    for i in range(absorbed):
        z[i, 1 + i % 3] = 1.0
    return z, y


def test_correlations_are_pearsons_and_zero_for_constant_latents() -> None:
    z, y = noisy_codes(200, 6, seed=0)
    z = z.double()
    z[:, 1] = 0.1  # a number whose mean rounding may move
    z[:, 5] = 0.0
    got = probing.correlations(z, y)
    for j in range(6):
        if j in (1, 5):
            assert got[j] == 0  # exactly: a constant latent is no candidate for anything
        else:
            assert got[j] == pytest.approx(np.corrcoef(z[:, j], y)[0, 1])


@pytest.mark.parametrize("k", [1, 2, 5])
def test_f1_at_k_equals_scikit_learns_pipeline_on_the_latents_found_by_a_loop(k: int) -> None:
    (z, y), (z_test, y_test) = noisy_codes(300, 8, seed=1), noisy_codes(200, 8, seed=2)
    z_test = 1.5 * z_test  # so that statistics of the test split would give other z-scores
    strength = [abs(np.corrcoef(z[:, j], y)[0, 1]) for j in range(8)]
    best = sorted(range(8), key=lambda j: -strength[j])[:k]
    scaler = StandardScaler().fit(z[:, best].double().numpy())
    fit = LogisticRegression(class_weight="balanced")
    fit.fit(scaler.transform(z[:, best].double().numpy()), y.numpy())
    known = f1_score(y_test, fit.predict(scaler.transform(z_test[:, best].double().numpy())))
    assert 0.3 < known < 1
    assert probing.f1_at_k(z, y, z_test, y_test, k) == pytest.approx(known, abs=1e-9)


def test_a_concept_split_over_two_latents_gains_a_third_from_the_second() -> None:
    z, y = split_concept()
    found = probing.delta_f1(z, y, z, y)
    # one half of the positives, no false alarm: 2 * 1 * 0.5 / 1.5
    assert found.f1_1 == pytest.approx(2 / 3)
    assert found.f1_2 == 1.0
    assert found.delta == pytest.approx(1 / 3)


def test_delta_f1_is_the_difference_of_the_two_scores() -> None:
    (z, y), (z_test, y_test) = noisy_codes(300, 8, seed=1), noisy_codes(200, 8, seed=2)
    found = probing.delta_f1(z, y, z_test, y_test)
    assert found.f1_1 == probing.f1_at_k(z, y, z_test, y_test, 1)
    assert found.delta == probing.f1_at_k(z, y, z_test, y_test, 2) - found.f1_1


def test_latents_are_chosen_on_the_training_split_only() -> None:
    z, y = split_concept()
    elsewhere = z.roll(1, dims=1)  # in the test split other latents carry the concept
    # both chosen latents are always off there: nothing, or all, is called positive
    score = probing.f1_at_k(z, y, elsewhere, y, 2)
    assert score in (0.0, f1_score(y, torch.ones_like(y)))


def test_a_latent_that_is_constant_in_training_does_not_move_the_score() -> None:
    z, y = split_concept()
    z = z.double()
    z[:, 0] = 0.1
    shifted = z.clone()
    shifted[:, 0] = 50.0
    assert probing.f1_at_k(z, y, shifted, y, 10) == probing.f1_at_k(z, y, z, y, 10)


def test_a_latent_that_fires_on_all_but_the_concept_is_a_perfect_probe() -> None:
    y = (torch.arange(40) % 4 == 0).long()
    z = torch.zeros(40, 3)
    z[:, 1] = 1.0 - y
    assert probing.f1_at_k(z, y, z, y, 1) == 1.0


def test_f1_without_test_positives_is_undefined() -> None:
    z, y = split_concept()
    assert math.isnan(probing.f1_at_k(z, y, z[:5], torch.zeros(5), 1))


def test_a_parent_absorbed_by_its_children_gives_the_planted_rate() -> None:
    train, y_train = absorbed_concept(100, absorbed=20, both_off=5)
    test, y_test = absorbed_concept(40, absorbed=12, both_off=4)
    found = probing.absorption_proxy(train, y_train, test, y_test)
    assert found.rate == 12 / 40
    assert found.main == 0
    assert sorted(found.aux) == [1, 2, 3]  # latents that never fire are no candidates
    assert found.n_positives == 40
    assert found.main_correlation == pytest.approx(np.corrcoef(train[:, 0], y_train)[0, 1])


def test_a_text_on_which_the_parent_fires_is_not_absorbed_whatever_else_fires() -> None:
    z, y = absorbed_concept(100, absorbed=20, both_off=0)
    busy = z.clone()
    busy[20:100, 1] = 1.0
    assert probing.absorption_proxy(z, y, busy, y).rate == 0.2


def test_only_the_next_five_latents_can_absorb() -> None:
    n = 70
    y = torch.cat([torch.ones(n), torch.zeros(n)]).long()
    z = torch.zeros(2 * n, 7)
    z[:28, 0] = 1.0
    for j, count in enumerate([12, 10, 8, 6, 4, 2], start=1):
        start = int((z[:n] > 0).any(1).sum())
        z[start : start + count, j] = 1.0
    found = probing.absorption_proxy(z, y, z, y)
    assert found.aux == [1, 2, 3, 4, 5]
    assert found.rate == 40 / 70
    assert probing.absorption_proxy(z, y, z, y, n_aux=6).rate == 42 / 70


def test_an_anti_correlated_main_latent_shows_as_released_and_is_passed_over_when_checked() -> None:
    n = 50
    y = torch.cat([torch.ones(n), torch.zeros(n)]).long()
    z = torch.zeros(2 * n, 4)
    z[n:, 0] = 1.0  # fires on everything but the concept
    z[:30, 1] = 1.0
    released = probing.absorption_proxy(z, y, z, y, reading="released")
    assert (released.main, released.rate) == (0, 0.6)
    assert released.main_correlation == pytest.approx(-1.0)
    checked = probing.absorption_proxy(z, y, z, y)
    assert (checked.main, checked.aux, checked.rate) == (1, [], 0.0)
    assert checked.main_correlation > 0


def test_without_a_candidate_or_a_positive_the_absorption_rate_is_undefined() -> None:
    z, y = absorbed_concept(10, absorbed=2, both_off=0)
    silent = probing.absorption_proxy(torch.zeros_like(z), y, z, y)
    assert math.isnan(silent.rate) and silent.main is None
    nobody = probing.absorption_proxy(z, y, z, torch.zeros(20))
    assert math.isnan(nobody.rate) and nobody.n_positives == 0


@pytest.mark.parametrize("how", ["mean", "max"])
def test_pooling_equals_a_loop_over_the_texts(how: str) -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(30, 4, generator=rng)
    text = torch.randint(0, 5, (30,), generator=rng)
    got = probing.pool(z, text, 5, how=how)  # type: ignore[arg-type]
    for i in range(5):
        rows = z[text == i]
        known = rows.mean(0) if how == "mean" else rows.max(0).values
        torch.testing.assert_close(got[i], known)


def test_a_text_without_tokens_cannot_be_pooled() -> None:
    with pytest.raises(ValueError, match=r"1 of 3 texts have no row \(first: \[1\]\)"):
        probing.pool(torch.ones(2, 4), torch.tensor([0, 2]), 3)


def test_one_vs_rest_gives_each_label_its_indicator_with_plain_keys() -> None:
    for labels in (["b", "a", "b"], pd.Series(["b", "a", "b"])):
        found = probing.one_vs_rest(labels)  # type: ignore[arg-type]
        assert {name: y.tolist() for name, y in found.items()} == {"a": [0, 1, 0], "b": [1, 0, 1]}
    assert all(type(name) is int for name in probing.one_vs_rest([2, 1]))


def test_mean_difference_ranking_puts_the_largest_difference_first_whatever_its_sign() -> None:
    y = torch.tensor([1, 1, 0, 0])
    z = torch.tensor([[1.0, 0, 5], [1, 0, 5], [0, 3, 5], [0, 3, 5]])
    assert probing.mean_difference_ranking(z, y).tolist() == [1, 0, 2]


def test_a_linear_probe_satisfies_the_optimality_condition_of_balanced_logistic_regression() -> (
    None
):
    rng = torch.Generator().manual_seed(3)
    y = (torch.arange(90) % 5 == 0).long()
    x = torch.randn(90, 4, generator=rng) + 7 + y[:, None] * torch.tensor([1.0, -1, 0, 0])
    C = 0.7
    probe = probing.linear_probe(x, y, C=C)
    class_weight = torch.where(y == 1, 90 / (2 * y.sum()), 90 / (2 * (90 - y.sum()))).double()
    residual = class_weight * (torch.sigmoid(x.double() @ probe.weight + probe.bias) - y)
    assert (C * residual @ x.double() + probe.weight).abs().max() < 1e-2
    assert residual.sum().abs() < 1e-2
    assert 0.5 < probing.accuracy(probe, x, y) < 1


def test_accuracy_counts_the_rows_on_the_right_side_of_the_plane() -> None:
    probe = probing.LinearProbe(torch.tensor([1.0, 0.0]).double(), torch.tensor(-1.0).double())
    x = torch.tensor([[2.0, 9], [0, 9], [1, 9], [3, 9]])
    assert probing.accuracy(probe, x, [1, 0, 1, 1]) == 0.75  # on the plane means 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, y: probing.f1_at_k(z, y, z, y, 0), "k=0"),
        (lambda z, y: probing.f1_at_k(z, y, z, y, 11), "k=11 latents of 10"),
        (lambda z, y: probing.f1_at_k(z, y, z[:, :5], y, 1), "same d_sae"),
        (lambda z, y: probing.f1_at_k(z, torch.ones(120), z, y, 1), "all 120 labels are 1"),
        (lambda z, y: probing.delta_f1(z[:, :1], y, z[:, :1], y), "only one latent"),
        (lambda z, y: probing.correlations(z, y + 1), "must be 0 or 1"),
        (lambda z, y: probing.correlations(z, y[:7]), r"\(7,\)"),
        (lambda z, y: probing.correlations(z / 0, y), "NaN or infinite"),
        (lambda z, y: probing.absorption_proxy(z, y, z, y, n_aux=0), "n_aux=0"),
        (lambda z, y: probing.absorption_proxy(z, y, z, y, reading="x"), "'checked' or 'released'"),  # type: ignore[arg-type]
        (lambda z, y: probing.linear_probe(z, torch.zeros(120)), "both classes"),
        (lambda z, y: probing.pool(z, y, 2, how="sum"), "'mean' or 'max'"),  # type: ignore[arg-type]
        (lambda z, y: probing.pool(z, y, 1), r"0\.\.0"),
        (lambda z, y: probing.pool(z, y[:3], 2), "one text index a row"),
    ],
)
def test_bad_input_is_refused_with_what_came_and_what_is_expected(
    call: Callable[[Tensor, Tensor], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(*split_concept())
