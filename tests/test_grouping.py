"""Angular variance by its definition, and groups that keep to the order it gives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loca_sae import grouping
from loca_sae.grouping import (
    AngularVarianceAccumulator,
    angular_variance,
    equal_sizes,
    group_latents,
    random_groups,
)


def random_data(n: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator) * 3 + 1
    return x, (torch.randn(n, 8, generator=generator) - torch.arange(8) / 3).clamp(min=0)


def test_it_is_one_minus_the_length_of_the_mean_direction_where_the_latent_fires() -> None:
    x, z = random_data()
    found = angular_variance(x, z, min_count=1)
    for j in range(8):
        directions = [row / row.norm() for row, code in zip(x, z[:, j], strict=True) if code > 0]
        assert int(found.firings[j]) == len(directions)
        expected = 1 - float(torch.stack(directions).mean(0).norm()) if directions else math.nan
        assert float(found.value[j]) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_known_directions_have_known_angular_variance() -> None:
    x = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    z = torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    value = angular_variance(x, z, min_count=2).value.tolist()
    # one direction; two at a right angle; two that cancel
    assert value == pytest.approx([0.0, 1 - math.sqrt(0.5), 1.0])


def test_the_length_of_activations_and_codes_plays_no_part() -> None:
    x, z = random_data()
    lengths = torch.rand(len(x), 1) + 0.1
    stretched = angular_variance(x * lengths, z * 7, min_count=1).value
    expected = angular_variance(x, z, min_count=1).value
    torch.testing.assert_close(stretched, expected, equal_nan=True, atol=1e-6, rtol=0)


def test_batches_give_the_same_as_the_whole() -> None:
    x, z = random_data()
    accumulator = AngularVarianceAccumulator(8, 5)
    for part, part_z in zip(x.split(7), z.split(7), strict=True):
        accumulator.update(part, part_z)
    whole = angular_variance(x, z, min_count=3)
    torch.testing.assert_close(accumulator.result(3).value, whole.value, equal_nan=True)


def test_a_latent_below_the_minimum_count_has_no_angular_variance() -> None:
    x, z = random_data()
    found = angular_variance(x, z, min_count=60)
    assert torch.equal(found.value.isnan(), found.firings < 60) and found.value.isnan().any()


def test_a_single_firing_has_angular_variance_zero_which_is_why_a_minimum_is_needed() -> None:
    z = torch.zeros(300, 8)
    z[3, 0] = 1.0
    x, _ = random_data()
    assert float(angular_variance(x, z, min_count=1).value[0]) == pytest.approx(0, abs=1e-6)
    assert math.isnan(float(angular_variance(x, z, min_count=2).value[0]))


def test_groups_are_cut_from_falling_angular_variance_and_undefined_latents_come_last() -> None:
    value = torch.tensor([0.2, torch.nan, 0.9, 0.0, 0.5])
    groups = group_latents(value, [2, 1, 2])
    assert groups.order.tolist() == [2, 4, 0, 3, 1]
    assert groups.group_of.tolist() == [1, 2, 0, 2, 0]


@given(st.integers(1, 60).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d))))
def test_equal_sizes_partition_the_latents_and_differ_by_at_most_one(case) -> None:
    d_sae, n_groups = case
    sizes = equal_sizes(d_sae, n_groups)
    assert sum(sizes) == d_sae and len(sizes) == n_groups and max(sizes) - min(sizes) <= 1


@given(st.integers(0, 1000))
def test_random_groups_hold_every_latent_once_and_follow_the_seed(seed) -> None:
    groups = random_groups(10, [4, 6], seed)
    assert sorted(groups.order.tolist()) == list(range(10))
    assert (groups.group_of == 0).sum() == 4
    assert torch.equal(groups.order, random_groups(10, [4, 6], seed).order)


def test_another_seed_gives_another_order() -> None:
    orders = {tuple(random_groups(10, [10], seed).order.tolist()) for seed in range(20)}
    assert len(orders) > 15


def test_the_papers_budgets_sum_to_26() -> None:
    assert sum(grouping.PAPER_BUDGETS) == 26 and len(grouping.PAPER_BUDGETS) == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: group_latents(torch.ones(4), [2, 1]), "sum to the 4 latents"),
        (lambda: group_latents(torch.ones(4), [4, 0]), "must be positive"),
        (lambda: random_groups(4, [5], 0), "sum to the 4 latents"),
        (lambda: equal_sizes(4, 5), "choose 1 to 4 groups"),
        (lambda: angular_variance(torch.ones(3, 2), torch.ones(3, 2), 0), "must fire once"),
        (lambda: angular_variance(torch.zeros(3, 2), torch.ones(3, 2)), "no direction"),
        (lambda: AngularVarianceAccumulator(4, 2).update(torch.ones(3, 2), torch.ones(3, 5)),
         "expected"),
    ],
)  # fmt: skip
def test_input_that_cannot_be_grouped_is_refused(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
