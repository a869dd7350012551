"""Values refitted on a support, against scipy's solver and the optimality conditions."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from loca_sae import sparse_coding
from loca_sae.sparse_coding import batched_nnls, coordinate_descent
from test_sparse_coding import problem

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["compiled", "batched"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both engines: the CPU's, and the one of other devices."""
    if request.param == "batched":
        monkeypatch.setattr(coordinate_descent, "available", lambda: False)
    return request.param


def supports(n: int, d_sae: int, share: float, seed: int = 0) -> torch.Tensor:
    """Random codes [n, d_sae] of which about a share is positive."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(n, d_sae, generator=generator)
    return values * (torch.rand(n, d_sae, generator=generator) < share)


def error(x: torch.Tensor, atoms: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x.double() - z.double() @ atoms.double()).square().sum(1)


def nnls_error(atoms: np.ndarray, row: np.ndarray) -> float:
    """The least squared error of a row [d_in] by scipy (whose own residual is less accurate)."""
    rest = row - nnls(atoms.T, row)[0] @ atoms if len(atoms) else row
    return float(rest @ rest)


def best_error(x: torch.Tensor, atoms: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The least squared error on each support, by scipy in float64."""
    rows = []
    for row, code in zip(x.double().numpy(), codes, strict=True):
        used = atoms.double().numpy()[(code != 0).numpy()]
        rows.append(nnls_error(used, row))
    return torch.tensor(np.array(rows))


def check_optimal(x: torch.Tensor, atoms: torch.Tensor, codes: torch.Tensor) -> None:
    z = sparse_coding.refit(x, atoms, codes)
    assert z.dtype == x.dtype and bool((z >= 0).all()) and not bool(z[codes == 0].any())
    ours, best = error(x, atoms, z), best_error(x, atoms, codes)
    size = x.double().square().sum(1)
    assert float(((ours - best) / size).max()) < 1e-10
    assert float(((ours - best) / size).min()) > -1e-10


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("d_sae", [10, 60])
def test_values_are_scipys_on_narrow_and_wide_supports(
    engine: str, share: float, d_sae: int
) -> None:
    x, atoms = problem(40, 16, d_sae, unit=False)
    check_optimal(x, atoms, supports(40, d_sae, share))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_duplicate_dependent_and_zero_atoms_leave_the_error_at_its_minimum(
    engine: str, share: float
) -> None:
    x, atoms = problem(40, 16, 24, unit=False)
    atoms = (64 * atoms).round() / 64  # so that sums of atoms are exact in float32
    atoms[1] = atoms[0]
    atoms[2] = 2 * atoms[0]
    atoms[3] = atoms[4] + atoms[5]
    atoms[6] = 0
    atoms[7] = -atoms[8]
    codes = supports(40, 24, share)
    check_optimal(x, atoms, codes)
    assert not bool(sparse_coding.refit(x, atoms, codes)[:, 6].any())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 10_000), st.floats(0.1, 1.0))
def test_any_small_problem_is_solved_as_scipy_does(d_in, d_sae, seed, share):
    x, atoms = problem(3, d_in, d_sae, seed, unit=False)
    check_optimal(x, atoms, supports(3, d_sae, share, seed))


def test_the_optimality_conditions_hold(engine: str) -> None:
    x, atoms = problem(50, 32, 128)
    x, atoms = x.double(), atoms.double()
    codes = supports(50, 128, 0.15)
    z = sparse_coding.refit(x, atoms, codes)
    h = (x - z @ atoms) @ atoms.T
    assert float(h.abs()[z > 0].max()) < 1e-9
    assert float(h[(codes > 0) & (z == 0)].max()) < 1e-9


def test_nearly_parallel_atoms_are_fitted_in_float64(engine: str) -> None:
    x, atoms = problem(30, 16, 12)
    atoms[6:] = atoms[:6] + 1e-3 * atoms[6:]
    check_optimal(x, atoms, torch.ones(30, 12))


def test_the_error_is_never_above_that_of_the_codes(engine: str) -> None:
    x, atoms = problem(60, 24, 64)
    lasso = sparse_coding.solve(x, atoms, 0.2).codes
    for codes in (lasso, supports(60, 64, 0.2), sparse_coding.refit(x, atoms, lasso)):
        z = sparse_coding.refit(x, atoms, codes)
        assert bool((error(x, atoms, z) <= error(x, atoms, codes) * (1 + 1e-10)).all())


def test_a_lasso_code_is_shrunk_and_refitting_undoes_it() -> None:
    """Orthonormal atoms: the lasso takes lam off each value, which refitting puts back."""
    x, _ = problem(20, 8, 8)
    codes = sparse_coding.solve(x, torch.eye(8), 0.3, tol=1e-9).codes
    back = sparse_coding.refit(x, torch.eye(8), codes)
    assert torch.allclose(back, x.where(x > 0.3, 0.0), atol=1e-6)


def test_a_mask_or_negative_entries_mark_the_support_too(engine: str) -> None:
    x, atoms = problem(20, 16, 24)
    codes = supports(20, 24, 0.3)
    wanted = sparse_coding.refit(x, atoms, codes)
    for marks in (codes > 0, -codes, codes.double()):
        assert torch.allclose(sparse_coding.refit(x, atoms, marks), wanted, atol=1e-5)


def test_codes_stay_as_they_are_and_empty_supports_stay_empty(engine: str) -> None:
    x, atoms = problem(10, 16, 24)
    codes = supports(10, 24, 0.3)
    codes[3] = 0
    before = codes.clone()
    z = sparse_coding.refit(x, atoms, codes)
    assert torch.equal(codes, before) and not bool(z[3].any())
    assert not bool(sparse_coding.refit(x, atoms, torch.zeros(10, 24)).any())
    assert sparse_coding.refit(x[:0], atoms, codes[:0]).shape == (0, 24)


def test_chunks_of_samples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, atoms = problem(70, 16, 24)
    codes = supports(70, 24, 0.3)
    compiled = sparse_coding.refit(x, atoms, codes)
    monkeypatch.setattr(coordinate_descent, "available", lambda: False)
    monkeypatch.setattr(batched_nnls, "_CHUNK_FLOATS", 1)
    assert torch.allclose(sparse_coding.refit(x, atoms, codes), compiled, atol=1e-6)


def test_wrong_inputs_are_named() -> None:
    x, atoms = problem(4, 8, 12)
    codes = supports(4, 12, 0.5)
    with pytest.raises(ValueError, match=r"codes has shape \(3, 12\)"):
        sparse_coding.refit(x, atoms, codes[:3])
    spoilt = codes.clone()
    spoilt[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"codes holds NaN .* row 2"):
        sparse_coding.refit(x, atoms, spoilt)
    with pytest.raises(ValueError, match="x holds NaN"):
        sparse_coding.refit(x * torch.inf, atoms, codes)


def test_nothing_is_warned_of_on_the_way() -> None:
    x, atoms = problem(20, 16, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse_coding.refit(x.bfloat16(), atoms.bfloat16(), supports(20, 24, 0.5))
