"""Measures against loops written out, and against SAELens's own explained variance."""

import pytest
import torch

from loca_sae import metrics


def data(n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator) + 3
    return x, x + 0.5 * torch.randn(n, 6, generator=generator)


def codes(n: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(n, 9, generator=generator) - torch.arange(9) / 4).clamp(min=0)


def test_nmse_is_the_mean_squared_error_over_the_mean_squared_norm() -> None:
    x, x_hat = data()
    error = sum(float(((a - b) ** 2).sum()) for a, b in zip(x, x_hat, strict=True))
    norm = sum(float((a**2).sum()) for a in x)
    assert metrics.nmse(x, x_hat) == pytest.approx(error / norm, rel=1e-6)
    assert metrics.nmse(x, torch.zeros_like(x)) == pytest.approx(1.0)


def test_fvu_is_one_minus_saelens_explained_variance() -> None:
    from sae_lens.evals import ExplainedVarianceCalculator

    x, x_hat = data()
    calculator = ExplainedVarianceCalculator()
    for part, part_hat in zip(x.split(64), x_hat.split(64), strict=True):
        calculator.add_batch(part_hat, part)
    assert metrics.fvu(x, x_hat) == pytest.approx(1 - float(calculator.compute()), rel=1e-4)


def test_predicting_the_mean_has_fvu_one_although_its_nmse_is_small() -> None:
    x, _ = data()
    mean = x.mean(0).expand_as(x)
    assert metrics.fvu(x, mean) == pytest.approx(1.0)
    assert metrics.nmse(x, mean) < 0.2


def test_firing_measures_agree_with_counting_by_hand() -> None:
    z = codes()
    rate = [sum(float(v) > 0 for v in z[:, j]) / len(z) for j in range(9)]
    assert metrics.firing_rate(z).tolist() == pytest.approx(rate)
    assert metrics.l0(z) == pytest.approx(sum(rate))
    assert metrics.dense_rate(metrics.firing_rate(z), 0.2) == sum(r >= 0.2 for r in rate) / 9


def test_a_latent_is_dead_at_or_below_the_threshold_and_dense_at_or_above_it() -> None:
    rate = torch.tensor([0.0, 1e-6, 2e-6, 0.1, 0.2, 1.0], dtype=torch.float64)
    assert metrics.dead_rate(rate) == pytest.approx(2 / 6)
    assert metrics.dense_rate(rate, 0.1) == pytest.approx(3 / 6)
    assert metrics.dense_rate(rate, 0.2) == pytest.approx(2 / 6)


def test_batches_give_the_same_numbers_as_the_whole() -> None:
    (x, x_hat), z = data(), codes()
    error, firing = metrics.Reconstruction(), metrics.Firing()
    for part, part_hat, part_z in zip(x.split(7), x_hat.split(7), z.split(7), strict=True):
        error.update(part, part_hat)
        firing.update(part_z)
    assert error.nmse() == pytest.approx(metrics.nmse(x, x_hat), rel=1e-12)
    assert error.fvu() == pytest.approx(metrics.fvu(x, x_hat), rel=1e-12)
    assert torch.equal(firing.rate(), metrics.firing_rate(z)) and firing.n == len(z)


def test_sums_do_not_lose_small_errors_beside_large_activations() -> None:
    x = torch.full((20_000, 4), 1000.0)
    x[::2] += 1
    assert metrics.fvu(x, x - 0.5) == pytest.approx(1.0, rel=1e-3)


def test_the_amortization_gap_is_the_excess_objective_over_the_optimum() -> None:
    """With orthonormal atoms the optimum is known: soft-thresholded correlations."""
    generator = torch.Generator().manual_seed(2)
    atoms = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    x, lam = torch.randn(50, 6, generator=generator), 0.3
    best = (x @ atoms.T - lam).clamp(min=0)
    worse = best + 0.1

    def loss(z: torch.Tensor) -> float:
        return float((0.5 * (x - z @ atoms).square().sum(1) + lam * z.sum(1)).mean())

    gap = metrics.amortization_gap(x, worse, best, atoms, lam)
    assert gap.absolute == pytest.approx(loss(worse) - loss(best), rel=1e-4)
    assert gap.relative == pytest.approx((loss(worse) - loss(best)) / loss(best), rel=1e-4)
    assert metrics.amortization_gap(x, best, best, atoms, lam).absolute == 0
    assert gap.absolute > 0 > metrics.amortization_gap(x, best, worse, atoms, lam).absolute


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.nmse(torch.ones(3, 2), torch.ones(3, 1)), "both must be"),
        (lambda: metrics.nmse(torch.zeros(3, 2), torch.ones(3, 2)), "every activation is zero"),
        (lambda: metrics.fvu(torch.ones(3, 2), torch.ones(3, 2)), "all activations are the same"),
        (lambda: metrics.Reconstruction().nmse(), "call update first"),
        (lambda: metrics.Firing().rate(), "call update first"),
        (lambda: metrics.l0(torch.ones(3)), "expected \\[n, d_sae\\]"),
        (lambda: metrics.dense_rate(torch.ones(3), 0), "lies in"),
        (lambda: metrics.dead_rate(torch.tensor([3.0])), "values in \\[0, 1\\]"),
    ],
)
def test_input_that_has_no_measure_is_refused(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
