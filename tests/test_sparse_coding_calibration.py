"""The calibration of lambda against densities known in closed form."""

import math

import pytest
import torch

from loca_sae import sparse_coding
from test_sparse_coding import problem


def exponential(lam: float) -> torch.Tensor:
    """Codes [1000, 100] of which 100 exp(-lam / 3) a sample are positive, up to rounding."""
    level = torch.linspace(0, 1, 100_000).reshape(1000, 100)
    return (level < math.exp(-lam / 3)).float()


@pytest.mark.parametrize("target", [0.5, 7.0, 60.0, 99.0])
def test_the_wanted_density_is_found_where_the_closed_form_has_it(target: float) -> None:
    found = sparse_coding.calibrate_lambda(exponential, target)
    assert found.converged and abs(found.l0 - target) <= 0.01 * target
    assert found.lam == pytest.approx(-3 * math.log(target / 100), rel=0.01, abs=0.04)
    assert found.l0 == float((exponential(found.lam) > 0).sum(1).double().mean())


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_search_does_not_depend_on_the_units(scale: float) -> None:
    found = sparse_coding.calibrate_lambda(lambda lam: exponential(lam / scale), 20.0)
    assert found.converged and found.lam == pytest.approx(-3 * scale * math.log(0.2), rel=0.02)


@pytest.mark.parametrize("solver", ["ista", "solve"])
def test_a_calibrated_solver_reaches_its_density_within_one_percent(solver: str) -> None:
    x, atoms = problem(300, 32, 128)

    def encode(lam: float) -> torch.Tensor:
        if solver == "ista":
            return sparse_coding.ista(x, atoms, lam, 50)
        return sparse_coding.solve(x, atoms, lam).codes

    found = sparse_coding.calibrate_lambda(encode, 6.0, x=x, W_dec=atoms)
    density = float((encode(found.lam) > 0).sum(1).double().mean())
    assert found.converged and density == pytest.approx(6.0, rel=0.01)
    assert found.evaluations <= 12


@pytest.mark.parametrize("bracket", [(1.0, 10.0), (20.0, 30.0), (0.01, 0.02), (4.0, None)])
def test_a_bracket_beside_the_target_is_moved(bracket) -> None:
    found = sparse_coding.calibrate_lambda(exponential, 30.0, *bracket)
    assert found.converged and found.l0 == pytest.approx(30.0, rel=0.01)


def test_a_density_that_jumps_over_the_target_is_reported_not_claimed() -> None:
    found = sparse_coding.calibrate_lambda(lambda lam: torch.ones(5, 8) * (lam < 2.5), 3.0)
    assert not found.converged and found.l0 in (0.0, 8.0) and found.evaluations <= 40


@pytest.mark.parametrize("constant", [0, 4])
def test_a_density_that_no_penalty_reaches_is_reported(constant: int) -> None:
    codes = torch.zeros(5, 8)
    codes[:, :constant] = 1
    found = sparse_coding.calibrate_lambda(lambda lam: codes, 2.0)
    assert not found.converged and found.l0 == constant and found.evaluations <= 40


def test_the_trials_are_bounded() -> None:
    seen: list[float] = []

    def encode(lam: float) -> torch.Tensor:
        seen.append(lam)
        return exponential(lam)

    found = sparse_coding.calibrate_lambda(encode, 0.7, rtol=1e-6, max_evaluations=3)
    assert not found.converged and found.evaluations == 3 == len(seen) and found.lam in seen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sparse_coding.calibrate_lambda(exponential, 0.0), "must be > 0"),
        (lambda: sparse_coding.calibrate_lambda(exponential, math.nan), "must be > 0"),
        (lambda: sparse_coding.calibrate_lambda(exponential, 101.0), "only 100 latents"),
        (lambda: sparse_coding.calibrate_lambda(exponential, 5.0, 3.0, 2.0), "low < high"),
        (lambda: sparse_coding.calibrate_lambda(exponential, 5.0, -1.0), "low < high"),
        (lambda: sparse_coding.calibrate_lambda(exponential, 5.0, rtol=0.0), "between 0 and 1"),
        (lambda: sparse_coding.calibrate_lambda(exponential, 5.0, x=torch.ones(1, 1)), "both"),
        (lambda: sparse_coding.calibrate_lambda(lambda lam: torch.ones(3), 1.0), "shape"),
        (
            lambda: sparse_coding.calibrate_lambda(lambda lam: torch.full((2, 2), math.nan), 1.0),
            "NaN",
        ),
    ],
)
def test_impossible_targets_and_brackets_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
