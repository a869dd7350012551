"""The certified solver against brute force, other solvers and the optimality conditions."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.decomposition import sparse_encode
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from loca_sae import sparse_coding
from loca_sae.sparse_coding import coordinate_descent
from test_sparse_coding import minimum, problem

pytestmark = pytest.mark.usefixtures("one_thread")


def least(x, atoms, lam) -> torch.Tensor:
    """The minimum of each sample by scikit-learn in float64; its error is divided by 2 d_in."""
    lasso = Lasso(
        alpha=lam / x.shape[1], positive=True, fit_intercept=False, tol=1e-10, max_iter=100_000
    )
    features, rows = atoms.double().numpy().T, x.double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it may stop a little above
        codes = torch.tensor(np.stack([lasso.fit(features, row).coef_ for row in rows]))
    return sparse_coding.objective(x.double(), codes, atoms.double(), lam)


def check_certificate(x, atoms, lam, solution, tol=1e-5) -> None:
    """The objective is that of the codes, and the gap is within tol and covers the distance."""
    value = sparse_coding.objective(x, solution.codes, atoms, lam)
    assert torch.allclose(solution.objective, value, rtol=1e-9, atol=1e-30)
    assert bool((solution.codes >= 0).all())
    assert bool((solution.duality_gap <= tol * solution.objective).all())
    distance = value - least(x, atoms, lam)
    assert bool((solution.duality_gap >= distance - 1e-9 * value).all())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000), st.floats(0.01, 2.0))
def test_small_problems_are_solved_as_brute_force_over_supports_does(d_in, d_sae, seed, lam):
    x, atoms = problem(2, d_in, d_sae, seed, unit=False)
    solution = sparse_coding.solve(x, atoms, lam)
    for row, value in zip(x.double().numpy(), solution.objective.tolist(), strict=True):
        least = minimum(row, atoms.double().numpy(), lam)
        assert least * (1 - 1e-9) <= value <= least * (1 + 1.1e-5) + 1e-12


def test_the_optimality_conditions_hold(solve_engine: str) -> None:
    x, atoms = problem(60, 32, 128)
    lam = 0.1
    solution = sparse_coding.solve(x, atoms, lam, tol=1e-8)
    z = solution.codes.double()
    h = (x.double() - z @ atoms.double()) @ atoms.double().T
    assert float((h - lam).abs()[z > 0].max()) < 1e-3 * lam
    assert float(h.max()) < lam * (1 + 1e-3)
    assert 1 < float((z > 0).sum(1).float().mean()) < 32
    check_certificate(x, atoms, lam, solution, tol=1e-8)


def test_the_codes_are_those_of_two_solvers_of_scikit_learn(solve_engine: str) -> None:
    x, atoms = problem(12, 40, 25)  # fewer atoms than dimensions: the code is unique
    lam = 0.2
    codes = sparse_coding.solve(x, atoms, lam, tol=1e-9).codes.numpy()
    # sparse_encode minimises our objective; Lasso divides the error by 2 n, here n = d_in = 40
    by_encode = sparse_encode(
        x.double().numpy(),
        atoms.double().numpy(),
        algorithm="lasso_cd",
        alpha=lam,
        positive=True,
        max_iter=20_000,
    )
    lasso = Lasso(alpha=lam / 40, positive=True, fit_intercept=False, tol=1e-9, max_iter=20_000)
    by_lasso = [lasso.fit(atoms.double().numpy().T, row).coef_ for row in x.double().numpy()]
    assert np.abs(codes - by_encode).max() < 2e-3
    assert np.abs(codes - np.stack(by_lasso)).max() < 1e-4


def test_orthonormal_atoms_have_a_closed_form(solve_engine: str) -> None:
    x, _ = problem(30, 12, 12)
    atoms = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
    solution = sparse_coding.solve(x, atoms, 0.25)
    assert torch.allclose(solution.codes, (x @ atoms.T - 0.25).clamp(min=0), atol=1e-4)


def test_without_a_penalty_the_solution_is_that_of_non_negative_least_squares(
    solve_engine: str,
) -> None:
    x, atoms = problem(15, 30, 20)
    solution = sparse_coding.solve(x, atoms, 0.0, tol=1e-6)
    for row, code in zip(x.double().numpy(), solution.codes.numpy(), strict=True):
        assert np.abs(code - nnls(atoms.double().numpy().T, row)[0]).max() < 1e-3


def test_without_a_penalty_more_atoms_than_dimensions_leave_no_residual(solve_engine: str) -> None:
    x, atoms = problem(10, 8, 64)
    solution = sparse_coding.solve(x, atoms, 0.0)
    assert float((x - solution.codes @ atoms).norm(dim=1).max()) < 1e-3


@pytest.mark.parametrize("d_sae", [3, 200])
def test_fewer_and_more_atoms_than_dimensions_are_both_certified(
    solve_engine: str, d_sae: int
) -> None:
    x, atoms = problem(20, 16, d_sae)
    check_certificate(x, atoms, 0.1, sparse_coding.solve(x, atoms, 0.1))


def test_zero_atoms_take_no_weight_even_when_started_with_some(solve_engine: str) -> None:
    x, atoms = problem(20, 16, 40)
    alone = sparse_coding.solve(x, atoms, 0.1).objective
    padded = torch.cat([torch.zeros(2, 16), atoms, torch.zeros(1, 16)])
    solution = sparse_coding.solve(x, padded, 0.1, z0=torch.ones(20, 43))
    assert float(solution.codes[:, [0, 1, 42]].abs().max()) == 0
    assert torch.allclose(solution.objective, alone, rtol=2e-5)


def test_a_dictionary_of_zeros_has_the_zero_code(solve_engine: str) -> None:
    x, _ = problem(4, 6, 5)
    solution = sparse_coding.solve(x, torch.zeros(5, 6), 0.1)
    assert float(solution.codes.max()) == 0 and float(solution.duality_gap.max()) == 0


def test_duplicate_atoms_share_one_weight(solve_engine: str) -> None:
    x, atoms = problem(20, 30, 12)
    single = sparse_coding.solve(x, atoms, 0.1, tol=1e-8)
    doubled = sparse_coding.solve(x, torch.cat([atoms, atoms]), 0.1, tol=1e-8)
    assert torch.allclose(doubled.objective, single.objective, rtol=1e-7)
    assert torch.allclose(doubled.codes[:, :12] + doubled.codes[:, 12:], single.codes, atol=1e-3)


def test_a_penalty_above_the_largest_correlation_gives_the_zero_code(solve_engine: str) -> None:
    x, atoms = problem(20, 16, 40)
    lam = float(sparse_coding.lambda_max(x, atoms).max())
    solution = sparse_coding.solve(x, atoms, 1.01 * lam, z0=torch.ones(20, 40))
    assert float(solution.codes.max()) == 0 and float(solution.duality_gap.max()) == 0
    assert bool((sparse_coding.solve(x, atoms, 0.9 * lam).codes > 0).any())


def test_a_target_of_zero_and_no_target_at_all_are_no_trouble(solve_engine: str) -> None:
    _, atoms = problem(1, 6, 9)
    solution = sparse_coding.solve(torch.zeros(3, 6), atoms, 0.1, z0=torch.ones(3, 9))
    assert float(solution.codes.max()) < 1e-6
    nothing = sparse_coding.solve(torch.zeros(0, 6), atoms, 0.1)
    assert nothing.codes.shape == (0, 9) and nothing.objective.shape == (0,)


def test_a_support_too_large_for_a_working_set_is_swept_whole() -> None:
    draw = torch.Generator().manual_seed(0)
    atoms = torch.randn(800, 700, generator=draw) / math.sqrt(700)
    x = torch.rand(4, 800, generator=draw) @ atoms
    solution = sparse_coding.solve(x.double(), atoms.double(), 0.003)
    assert int((solution.codes > 0).sum(1).min()) > 512
    gap = sparse_coding.duality_gap(x.double(), solution.codes, atoms.double(), 0.003)
    assert bool((gap <= 1e-5 * solution.objective).all())


def test_a_tolerance_beyond_float32_is_reached_in_float64(solve_engine: str) -> None:
    x, atoms = problem(10, 24, 60)
    solution = sparse_coding.solve(x.double(), atoms.double(), 0.1, tol=1e-11)
    assert solution.codes.dtype == torch.float64
    check_certificate(x.double(), atoms.double(), 0.1, solution, tol=1e-11)


def test_a_small_penalty_that_float32_cannot_certify_is_finished_in_float64() -> None:
    x, atoms = problem(30, 24, 60)
    solution = sparse_coding.solve(x, atoms, 1e-4, tol=1e-5)
    check_certificate(x, atoms, 1e-4, solution)


def test_warm_starts_change_the_work_and_not_the_answer(solve_engine: str) -> None:
    x, atoms = problem(40, 32, 128)
    cold = sparse_coding.solve(x, atoms, 0.1)
    near = sparse_coding.solve(x, atoms, 0.101).codes
    warm = sparse_coding.solve(x, atoms, 0.1, z0=near)
    assert torch.allclose(warm.objective, cold.objective, rtol=2e-5)
    again = sparse_coding.solve(x, atoms, 0.1, z0=cold.codes)
    # a code whose gap is just below tol may be refined: the running estimate is stricter than tol
    assert again.iterations < cold.iterations
    assert torch.allclose(again.codes, cold.codes, atol=1e-3)
    assert bool((again.objective <= cold.objective * (1 + 1e-7)).all())


def test_the_certificate_of_the_kernel_is_the_one_of_plain_float64_products() -> None:
    x, atoms = problem(60, 32, 128)
    solution = sparse_coding.solve(x, atoms, 0.1)
    plain = sparse_coding.duality_gap(x, solution.codes, atoms, 0.1)
    assert torch.allclose(solution.duality_gap, plain, rtol=1e-6, atol=1e-12)


def test_the_same_call_gives_the_same_bits_alone_and_beside_another() -> None:
    torch.set_num_threads(2)
    x, atoms = problem(200, 32, 128)
    alone = sparse_coding.solve(x, atoms, 0.1)
    with ThreadPoolExecutor(2) as pool:
        beside = list(pool.map(lambda _: sparse_coding.solve(x, atoms, 0.1), range(2)))
    for other in beside:
        assert torch.equal(other.codes, alone.codes)
        assert torch.equal(other.duality_gap, alone.duality_gap)


def test_chunks_of_samples_bound_memory_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, atoms = problem(100, 24, 60)
    whole = sparse_coding.solve(x, atoms, 0.1)
    rows: list[int] = []
    correlations = coordinate_descent.correlations

    def spy(x: torch.Tensor, W_dec: torch.Tensor) -> np.ndarray:
        rows.append(len(x))
        return correlations(x, W_dec)

    monkeypatch.setattr(coordinate_descent, "correlations", spy)
    monkeypatch.setattr(coordinate_descent, "_CHUNK_FLOATS", 1)
    parts = sparse_coding.solve(x, atoms, 0.1)
    assert max(rows) == 32 and sum(rows) == 100
    assert torch.allclose(parts.objective, whole.objective, rtol=1e-5)


def test_samples_that_do_not_get_there_are_reported_and_keep_their_true_gap(
    solve_engine: str,
) -> None:
    x, atoms = problem(20, 32, 128)
    with pytest.warns(RuntimeWarning, match="did not reach a relative duality gap of 1e-09"):
        solution = sparse_coding.solve(x, atoms, 0.02, tol=1e-9, max_iterations=2)
    distance = solution.objective - least(x, atoms, 0.02)
    assert bool((solution.duality_gap >= distance - 1e-12).all())
    assert float((solution.duality_gap / solution.objective).max()) > 1e-9


def test_a_reached_tolerance_warns_of_nothing(solve_engine: str) -> None:
    x, atoms = problem(20, 32, 128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse_coding.solve(x, atoms, 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.full((2, 3), math.nan)}, "x holds NaN or infinite values in 2 of 2 rows"),
        ({"x": torch.full((2, 3), 3e38)}, "overflows"),
        ({"W_dec": torch.full((4, 3), -math.inf)}, "W_dec holds NaN"),
        ({"lam": -1.0}, "finite number >= 0"),
        ({"tol": 0.0}, "relative duality gap to reach"),
        ({"z0": -torch.ones(2, 4)}, "negative entries"),
        ({"max_iterations": 0}, "integer >= 1"),
    ],
)
def test_input_that_cannot_be_meant_is_refused_with_a_reason(arguments, message) -> None:
    usual = {"x": torch.ones(2, 3), "W_dec": torch.ones(4, 3), "lam": 0.1}
    with pytest.raises(ValueError, match=message):
        sparse_coding.solve(**(usual | arguments))
