"""Codes returned as sparse CSR: the same, and never dense beyond a chunk of samples."""

from collections.abc import Iterator

import pytest
import torch

from loca_sae import sparse_coding
from loca_sae.sparse_coding import dictionary, exact
from loca_sae.sparse_coding.checks import Problem
from loca_sae.sparse_coding.outcome import Outcome
from test_sparse_coding import problem

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Chunks of 32 samples of 60 codes; the list gathers how many rows were solved at a time."""
    monkeypatch.setattr(exact, "_CHUNK_FLOATS", 32 * 60)
    rows: list[int] = []
    run = exact._run

    def spy(given: Problem, z: torch.Tensor, tol: float, most: int) -> Outcome:
        rows.append(len(z))
        return run(given, z, tol, most)

    monkeypatch.setattr(exact, "_run", spy)
    yield rows


def test_sparse_codes_are_the_dense_ones_with_the_same_certificate(solve_engine, chunks) -> None:
    x, atoms = problem(100, 24, 60)
    x[40] = 0  # a row without any code
    dense = sparse_coding.solve(x, atoms, 0.1)
    chunks.clear()
    solution = sparse_coding.solve(x, atoms, 0.1, sparse=True)
    assert solution.codes.layout == torch.sparse_csr and solution.codes.shape == (100, 60)
    assert chunks == [32, 32, 32, 4]
    assert torch.allclose(solution.codes.to_dense(), dense.codes, atol=1e-6)
    assert torch.allclose(solution.objective, dense.objective, rtol=1e-6)
    assert bool((solution.duality_gap <= 1e-5 * solution.objective).all())
    assert bool((solution.codes.values() > 0).all())
    assert len(solution.codes.values()) == int((dense.codes > 0).sum())


def test_the_same_call_gives_the_same_codes_bit_for_bit(chunks) -> None:
    x, atoms = problem(70, 24, 60)
    first, second = (sparse_coding.solve(x, atoms, 0.1, sparse=True).codes for _ in range(2))
    assert torch.equal(first.to_dense(), second.to_dense())


def test_samples_that_need_float64_get_there_in_chunks_too(chunks) -> None:
    x, atoms = problem(70, 24, 60)
    dense = sparse_coding.solve(x, atoms, 0.05, tol=1e-8)
    solution = sparse_coding.solve(x, atoms, 0.05, tol=1e-8, sparse=True)
    assert torch.allclose(solution.codes.to_dense(), dense.codes, atol=1e-5)
    assert bool((solution.duality_gap <= 1e-8 * solution.objective).all())


def test_a_warm_start_may_be_dense_or_sparse(solve_engine, chunks) -> None:
    x, atoms = problem(70, 24, 60)
    near = sparse_coding.solve(x, atoms, 0.12, sparse=True).codes
    before = near.to_dense()
    results = [
        sparse_coding.solve(x, atoms, 0.1, z0=z0, sparse=sparse).codes.to_dense()
        for sparse in (False, True)
        for z0 in (near, before)
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[2], results[3])
    assert torch.allclose(results[0], results[2], atol=1e-4)
    assert torch.equal(near.to_dense(), before)


def test_chunks_share_one_gram_matrix_of_any_size(chunks, monkeypatch) -> None:
    x, atoms = problem(100, 24, 60)
    monkeypatch.setattr(dictionary, "_KEPT_LIMIT", 0)  # so that none is kept between calls
    made: list[torch.Tensor] = []
    with dictionary.holding_grams():
        made += [dictionary.gram(atoms), dictionary.gram(atoms.clone())]
        made.append(dictionary.gram(atoms.double()))
    assert made[0] is made[1] and made[2].dtype == torch.float64
    assert dictionary.gram(atoms) is not made[0]


def test_no_samples_and_no_codes_give_empty_csr(solve_engine) -> None:
    x, atoms = problem(5, 24, 60)
    assert sparse_coding.solve(x[:0], atoms, 0.1, sparse=True).codes.shape == (0, 60)
    empty = sparse_coding.solve(x, atoms, 1e6, sparse=True).codes
    assert empty.shape == (5, 60) and len(empty.values()) == 0


def test_wrong_starts_are_named() -> None:
    x, atoms = problem(5, 24, 60)
    codes = sparse_coding.solve(x, atoms, 0.1, sparse=True).codes
    with pytest.raises(ValueError, match="z0 stores NaN, infinite or negative"):
        sparse_coding.solve(x, atoms, 0.1, z0=-1 * codes, sparse=True)
    with pytest.raises(ValueError, match=r"z0 has shape \(5, 60\)"):
        sparse_coding.solve(x[:3], atoms, 0.1, z0=codes, sparse=True)
