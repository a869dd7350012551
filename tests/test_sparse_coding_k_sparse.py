"""Orthogonal matching pursuit with z >= 0, against brute force and scikit-learn."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.linear_model import orthogonal_mp

from loca_sae import sparse_coding
from loca_sae.sparse_coding import batched_omp, coordinate_descent, k_sparse
from test_sparse_coding import problem
from test_sparse_coding_refit import error, nnls_error

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["compiled", "batched"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both engines: the CPU's, and the one of other devices."""
    if request.param == "batched":
        monkeypatch.setattr(coordinate_descent, "fits", lambda W_dec: False)
    return request.param


def least_error(x: torch.Tensor, atoms: torch.Tensor, k: int) -> torch.Tensor:
    """The least squared error of all supports of k atoms, each by scipy."""
    features = atoms.double().numpy()
    least = [
        min(
            nnls_error(features[list(support)], row)
            for support in combinations(range(len(features)), k)
        )
        for row in x.double().numpy()
    ]
    return torch.tensor(least, dtype=torch.float64)


def test_exchanges_close_in_on_the_best_of_all_supports(engine: str) -> None:
    x, atoms = problem(40, 6, 10)
    optimum = least_error(x, atoms, 3)
    size = x.double().square().sum(1)
    distances = []
    for exchanges in (0, 1, 4, 30):
        z = sparse_coding.omp(x, atoms, 3, exchanges)
        assert bool((z >= 0).all()) and int((z > 0).sum(1).max()) <= 3
        above = (error(x, atoms, z) - optimum) / size
        assert float(above.min()) > -1e-9
        distances.append(above)
    for fewer, more in zip(distances, distances[1:], strict=False):
        assert bool((more <= fewer + 1e-9).all())
    found = [int((above < 1e-9).sum()) for above in distances]
    assert found[-1] > found[0] and found[-1] >= 30
    assert float(distances[-1].mean()) < 0.5 * float(distances[0].mean())


@pytest.mark.parametrize("k", [1, 3, 8])
def test_on_orthogonal_atoms_of_any_norm_the_best_support_is_found(engine: str, k: int) -> None:
    x, _ = problem(30, 8, 8)
    norms = torch.linspace(0.2, 5, 8)
    rotation = torch.linalg.qr(problem(8, 8, 8, seed=3)[0])[0]
    z = sparse_coding.omp(x @ rotation, torch.diag(norms) @ rotation, k)
    positive = x.clamp(min=0)
    bar = positive.topk(k, dim=1).values[:, -1:]
    assert torch.allclose(z * norms, positive.where(positive >= bar, 0.0), atol=1e-5)


def test_where_no_value_turns_negative_the_pursuit_is_scikit_learns(engine: str) -> None:
    """Positive atoms and targets built of a few of them; both signs are then chosen alike."""
    generator = torch.Generator().manual_seed(1)
    atoms = torch.nn.functional.normalize(
        torch.eye(40, 60).T * 3 + torch.rand(60, 40, generator=generator)
    ).double()
    weights = torch.rand(30, 60, generator=generator) + 0.5
    x = (weights * (torch.rand(30, 60, generator=generator) < 0.07)).double() @ atoms
    x += 0.1 * torch.rand(30, 40, generator=generator)
    theirs = torch.tensor(orthogonal_mp(atoms.T.numpy(), x.T.numpy(), n_nonzero_coefs=3).T)
    agree = (theirs >= 0).all(1)
    assert int(agree.sum()) >= 15
    ours = sparse_coding.omp(x, atoms, 3, exchanges=0)
    assert torch.allclose(ours[agree], theirs[agree], atol=1e-8)


def test_values_are_the_optimum_on_their_support_and_full_supports_are_used(engine: str) -> None:
    x, atoms = problem(50, 32, 128)
    z = sparse_coding.omp(x, atoms, 6)
    assert bool(((z > 0).sum(1) == 6).all())
    assert torch.allclose(sparse_coding.refit(x, atoms, z), z, atol=1e-6)


def test_with_every_atom_allowed_the_pursuit_ends_at_non_negative_least_squares(
    engine: str,
) -> None:
    x, atoms = problem(20, 8, 12, unit=False)
    z = sparse_coding.omp(x.double(), atoms.double(), 12)
    best = sparse_coding.refit(x.double(), atoms.double(), torch.ones(20, 12))
    assert torch.allclose(error(x, atoms, z), error(x, atoms, best), atol=1e-9)


def test_each_sample_has_its_own_number_of_atoms(engine: str) -> None:
    x, atoms = problem(30, 16, 40)
    k = torch.arange(30) % 5
    z = sparse_coding.omp(x, atoms, k)
    assert torch.equal((z > 0).sum(1), k)
    for number in range(5):
        alone = sparse_coding.omp(x[k == number], atoms, number)
        assert torch.allclose(z[k == number], alone, atol=1e-5)


def test_zero_and_duplicate_atoms_are_never_both_used(engine: str) -> None:
    x, atoms = problem(40, 8, 20, unit=False)
    atoms[0] = 0
    atoms[2] = atoms[1]
    atoms[3] = 7 * atoms[1]
    z = sparse_coding.omp(x, atoms, 6)
    assert not bool(z[:, 0].any())
    assert int((z[:, 1:4] > 0).sum(1).max()) == 1
    assert not bool(sparse_coding.omp(x, torch.zeros(20, 8), 6).any())


def test_a_target_that_no_atom_points_to_gets_no_code(engine: str) -> None:
    atoms = torch.eye(4)
    x = torch.stack([-torch.ones(4), torch.zeros(4), torch.tensor([1.0, -1, -1, 0])])
    z = sparse_coding.omp(x, atoms, 3)
    assert torch.equal(z, torch.tensor([[0.0] * 4, [0.0] * 4, [1.0, 0, 0, 0]]))


def test_a_target_of_k_atoms_is_written_in_them(engine: str) -> None:
    generator = torch.Generator().manual_seed(0)
    _, atoms = problem(1, 64, 128)
    truth = torch.zeros(40, 128)
    at = torch.rand(40, 128, generator=generator).topk(5, dim=1).indices
    truth.scatter_(1, at, 1 + torch.rand(40, 5, generator=generator))
    z = sparse_coding.omp(truth @ atoms, atoms, 5)
    assert torch.allclose(z, truth, atol=1e-4)


def test_both_engines_choose_the_same_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    x, atoms = problem(60, 24, 80, unit=False)
    compiled = sparse_coding.omp(x.double(), atoms.double(), 7)
    monkeypatch.setattr(coordinate_descent, "fits", lambda W_dec: False)
    monkeypatch.setattr(batched_omp, "_CHUNK_FLOATS", 1)
    batched = sparse_coding.omp(x.double(), atoms.double(), 7)
    assert torch.allclose(compiled, batched, atol=1e-9)


def test_chunks_of_samples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, atoms = problem(100, 24, 80)
    whole = sparse_coding.omp(x, atoms, 5)
    assert torch.equal(whole, sparse_coding.omp(x, atoms, 5))
    rows: list[int] = []
    correlations = coordinate_descent.correlations

    def spy(x: torch.Tensor, W_dec: torch.Tensor) -> np.ndarray:
        rows.append(len(x))
        return correlations(x, W_dec)

    monkeypatch.setattr(coordinate_descent, "correlations", spy)
    monkeypatch.setattr(k_sparse, "_CHUNK_FLOATS", 1)
    assert torch.allclose(sparse_coding.omp(x, atoms, 5), whole, atol=1e-5)
    assert max(rows) == 32 and sum(rows) == 100


def test_wrong_inputs_are_named() -> None:
    x, atoms = problem(4, 8, 12)
    with pytest.raises(ValueError, match="13 to 13; with 12 atoms"):
        sparse_coding.omp(x, atoms, 13)
    with pytest.raises(ValueError, match="k is -1"):
        sparse_coding.omp(x, atoms, -1)
    with pytest.raises(ValueError, match="-2 to 3"):
        sparse_coding.omp(x, atoms, torch.tensor([1, 2, 3, -2]))
    for k in (torch.ones(3, dtype=torch.int64), torch.ones(4)):
        with pytest.raises(ValueError, match=r"an integer tensor with one number a sample: \[4\]"):
            sparse_coding.omp(x, atoms, k)
    with pytest.raises(ValueError, match="exchanges is -1"):
        sparse_coding.omp(x, atoms, 2, -1)
    x[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"x holds NaN .* row 1"):
        sparse_coding.omp(x, atoms, 2)


def test_no_samples_and_no_atoms_give_empty_codes(engine: str) -> None:
    x, atoms = problem(4, 8, 12)
    assert sparse_coding.omp(x[:0], atoms, 3).shape == (0, 12)
    assert not bool(sparse_coding.omp(x, atoms, 0).any())
