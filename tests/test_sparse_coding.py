"""Objective, certificate, ISTA and FISTA against closed forms, brute force and plain loops."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loca_sae import sparse_coding
from loca_sae.sparse_coding import certificate, first_order


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Problems as small as these only lose by being shared out between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(n: int, d_in: int, d_sae: int, seed: int = 0, unit: bool = True):
    """Random targets and atoms in float32; the targets are sparse combinations plus noise."""
    draw = torch.Generator().manual_seed(seed)
    atoms = torch.randn(d_sae, d_in, generator=draw)
    if unit:
        atoms /= atoms.norm(dim=1, keepdim=True)
    weights = torch.rand(n, d_sae, generator=draw)
    weights *= torch.rand(n, d_sae, generator=draw) < 0.2
    return weights @ atoms + 0.1 * torch.randn(n, d_in, generator=draw), atoms


def by_hand(x: np.ndarray, z: np.ndarray, atoms: np.ndarray, lam: float) -> float:
    """The objective of one sample, term by term."""
    error = [x[i] - sum(z[j] * atoms[j, i] for j in range(len(z))) for i in range(len(x))]
    return 0.5 * sum(e * e for e in error) + lam * sum(z)


def minimum(x: np.ndarray, atoms: np.ndarray, lam: float) -> float:
    """The least objective of one sample, by trying every support."""
    best = by_hand(x, np.zeros(len(atoms)), atoms, lam)
    for size in range(1, len(atoms) + 1):
        for support in itertools.combinations(range(len(atoms)), size):
            part = atoms[list(support)]
            code = np.linalg.lstsq(part @ part.T, part @ x - lam, rcond=None)[0]
            if (code >= 0).all():
                z = np.zeros(len(atoms))
                z[list(support)] = code
                best = min(best, by_hand(x, z, atoms, lam))
    return best


def paper_steps(x, z, atoms, lam, step_size, steps):
    """The paper's update for one sample after another, in float64."""
    D = atoms.double().T
    rows = []
    for target, code in zip(x.double(), z.double(), strict=True):
        for _ in range(steps):
            code = torch.clamp(code - step_size * (D.T @ (D @ code - target) + lam), min=0)
        rows.append(code)
    return torch.stack(rows)


small = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10_000))


def test_the_objective_is_the_sum_written_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    x, atoms = problem(7, 5, 6)
    z = torch.rand(7, 6)
    wanted = [by_hand(*pair, atoms.numpy(), 0.3) for pair in zip(x.numpy(), z.numpy(), strict=True)]
    assert sparse_coding.objective(x, z, atoms, 0.3).tolist() == pytest.approx(wanted, rel=1e-6)
    monkeypatch.setattr(certificate, "_CHUNK_FLOATS", 12)  # two samples at a time
    assert sparse_coding.objective(x, z, atoms, 0.3).tolist() == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(small, st.floats(0.01, 2.0), st.floats(0.0, 2.0))
def test_the_duality_gap_is_never_below_the_true_distance_to_the_minimum(size, lam, spread) -> None:
    d_in, d_sae, seed = size
    x, atoms = problem(1, d_in, d_sae, seed, unit=False)
    z = spread * torch.rand(1, d_sae, generator=torch.Generator().manual_seed(seed))
    gap = float(sparse_coding.duality_gap(x, z, atoms, lam))
    value = float(sparse_coding.objective(x, z, atoms, lam))
    least = minimum(x[0].double().numpy(), atoms.double().numpy(), lam)
    assert gap >= value - least - 1e-9 * (1 + value)


def test_the_duality_gap_closes_at_the_closed_form_optimum_of_orthonormal_atoms() -> None:
    x, _ = problem(20, 8, 8)
    atoms = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))[0]
    optimum = (x @ atoms.T - 0.2).clamp(min=0)
    relative = sparse_coding.duality_gap(x, optimum, atoms, 0.2) / x.square().sum(1)
    assert float(relative.max()) < 1e-6
    away = sparse_coding.duality_gap(x, optimum + 0.1, atoms, 0.2)
    distance = sparse_coding.objective(x, optimum + 0.1, atoms, 0.2)
    distance -= sparse_coding.objective(x, optimum, atoms, 0.2)
    assert bool((away >= distance - 1e-6).all()) and float(distance.min()) > 0


def test_at_lambda_max_the_zero_code_becomes_optimal() -> None:
    x, atoms = problem(10, 6, 9)
    x[0] = 0
    largest = sparse_coding.lambda_max(x, atoms)
    assert largest[0] == 0
    for row, lam in zip(x[1:], largest[1:].tolist(), strict=True):
        above = sparse_coding.duality_gap(row[None], torch.zeros(1, 9), atoms, lam * (1 + 1e-9))
        below = sparse_coding.ista(row[None], atoms, 0.95 * lam, 1)
        assert float(above) < 1e-6 and bool((below > 0).any())


@pytest.mark.parametrize("shape", [(5, 12), (12, 5)])
def test_the_lipschitz_constant_is_just_above_the_largest_squared_singular_value(shape) -> None:
    atoms = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    largest = float(torch.linalg.svdvals(atoms.double())[0]) ** 2
    assert largest < sparse_coding.lipschitz(atoms) < largest * (1 + 1e-5)
    assert sparse_coding.lipschitz(torch.zeros(3, 2)) == 0


def test_a_dictionary_changed_in_place_is_not_served_its_old_constants() -> None:
    x, atoms = problem(40, 10, 20)
    before = sparse_coding.lipschitz(atoms)
    atoms.data *= 2
    assert sparse_coding.lipschitz(atoms) == pytest.approx(4 * before, rel=1e-5)
    assert float(sparse_coding.solve(x, atoms, 0.1).duality_gap.max()) < 1e-4


@pytest.mark.parametrize("start", ["zeros", "given"])
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_ista_takes_exactly_the_steps_of_the_paper(start: str, steps: int) -> None:
    x, atoms = problem(30, 16, 40)
    z0 = torch.rand(30, 40) if start == "given" else torch.zeros(30, 40)
    kept = z0.clone()
    found = sparse_coding.ista(
        x, atoms, 0.15, steps, z0=z0 if start == "given" else None, step_size=0.1
    )
    wanted = paper_steps(x, z0, atoms, 0.15, 0.1, steps)
    assert float((found - wanted).abs().max()) < 1e-5 and torch.equal(z0, kept)


def test_sparse_products_and_dense_products_take_the_same_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, atoms = problem(70, 64, 300)  # 300 latents: more than one tile; 70 samples: three slices
    taken: list[int] = []
    by_gram = first_order._ista_by_gram

    def spy(x, z, given, steps, *rest) -> None:
        taken.append(steps)
        by_gram(x, z, given, steps, *rest)

    monkeypatch.setattr(first_order, "_ista_by_gram", spy)
    sparse = sparse_coding.ista(x, atoms, 0.6, 60)
    assert taken and taken[0] > 30, "the sparse products were not used: this test shows nothing"
    monkeypatch.setattr(first_order, "_gram_pays", lambda *_: False)
    dense = sparse_coding.ista(x, atoms, 0.6, 60)
    assert len(taken) == 1 and float((sparse - dense).abs().max()) < 1e-5


def test_ista_works_through_chunks_as_through_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, atoms = problem(50, 16, 40)
    whole = sparse_coding.ista(x, atoms, 0.2, 30)
    monkeypatch.setattr(first_order, "_CHUNK_FLOATS", 7 * 40)
    assert float((sparse_coding.ista(x, atoms, 0.2, 30) - whole).abs().max()) < 1e-6


@settings(max_examples=25, deadline=None)
@given(small, st.floats(0.0, 1.0))
def test_with_the_safe_step_the_objective_never_rises(size, lam) -> None:
    d_in, d_sae, seed = size
    x, atoms = problem(3, d_in, d_sae, seed, unit=False)
    z = torch.rand(3, d_sae, generator=torch.Generator().manual_seed(seed))
    value = sparse_coding.objective(x, z, atoms, lam)
    for _ in range(15):
        z = sparse_coding.ista(x, atoms, lam, 1, z0=z)
        value, last = sparse_coding.objective(x, z, atoms, lam), value
        assert bool((value <= last * (1 + 1e-6) + 1e-9).all())


def test_a_step_of_one_over_sigma_instead_of_its_square_diverges() -> None:
    x, atoms = problem(20, 10, 60)
    bound = sparse_coding.lipschitz(atoms)
    assert bound > 4  # otherwise 1 / sigma would still be a safe step
    start = float(sparse_coding.objective(x, torch.zeros(20, 60), atoms, 0.1).mean())
    wrong = sparse_coding.ista(x, atoms, 0.1, 10, step_size=1 / math.sqrt(bound))
    right = sparse_coding.ista(x, atoms, 0.1, 10, step_size=1 / bound)
    assert float(sparse_coding.objective(x, wrong, atoms, 0.1).mean()) > 100 * start
    assert float(sparse_coding.objective(x, right, atoms, 0.1).mean()) < start
    endless = sparse_coding.ista(x, atoms, 0.1, 400, step_size=1 / math.sqrt(bound))
    assert not bool(torch.isfinite(endless).all())


def test_fista_is_nearer_the_optimum_than_ista_after_as_many_steps() -> None:
    x, atoms = problem(40, 24, 96)
    gaps = [
        float(sparse_coding.duality_gap(x, coder(x, atoms, 0.05, 150), atoms, 0.05).mean())
        for coder in (sparse_coding.ista, sparse_coding.fista)
    ]
    assert gaps[1] < gaps[0] / 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(4)}, "two axes"),
        ({"x": torch.ones(2, 3, dtype=torch.int64)}, "floating"),
        ({"x": torch.ones(2, 5)}, "do not fit"),
        ({"x": torch.tensor([[1.0, math.nan, 0.0]])}, r"x holds NaN or infinite values in 1 of 1"),
        ({"W_dec": torch.full((4, 3), math.inf)}, "W_dec holds NaN or infinite"),
        ({"lam": -0.1}, "finite number >= 0"),
        ({"lam": math.nan}, "finite number >= 0"),
        ({"steps": -1}, "integer >= 0"),
        ({"steps": 1.5}, "integer >= 0"),
        ({"step_size": 0.0}, "number > 0"),
        ({"z0": torch.ones(2, 3)}, r"\[n, d_sae\]"),
        ({"z0": -torch.ones(2, 4)}, "negative entries"),
        ({"z0": torch.full((2, 4), math.nan)}, "z0 holds NaN"),
    ],
)
def test_input_that_cannot_be_meant_is_refused_with_a_reason(arguments, message) -> None:
    usual = {"x": torch.ones(2, 3), "W_dec": torch.ones(4, 3), "lam": 0.1, "steps": 2}
    with pytest.raises(ValueError, match=message):
        sparse_coding.ista(**(usual | arguments))


def test_half_precision_is_coded_in_float32() -> None:
    x, atoms = problem(5, 8, 12)
    for coder in (sparse_coding.ista, sparse_coding.fista):
        found = coder(x.bfloat16(), atoms.bfloat16(), 0.1, 20)
        wanted = coder(x.bfloat16().float(), atoms.bfloat16().float(), 0.1, 20)
        assert found.dtype == torch.float32 and torch.equal(found, wanted)
