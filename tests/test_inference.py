"""Full, semi and non mode, on every architecture that the library trains."""

import pytest
import torch

from loca_sae import sparse_coding
from loca_sae.inference import dictionary, encode, prepare
from toys import ARCHITECTURES, activations, random_sae


@pytest.fixture(params=ARCHITECTURES)
def sae(request, tmp_path):
    return random_sae(request.param, tmp_path)


def loop_ista(x, W_dec, lam, steps, z):
    """The paper's update, one sample and one latent at a time, in float64."""
    x, W_dec, z = x.double(), W_dec.double(), z.double().clone()
    step = 1 / float(torch.linalg.matrix_norm(W_dec, 2) ** 2)
    for _ in range(steps):
        for i in range(len(x)):
            residual = z[i] @ W_dec - x[i]
            z[i] = torch.stack(
                [max(z[i, j] - step * (W_dec[j] @ residual + lam), torch.zeros((), dtype=x.dtype))
                 for j in range(len(W_dec))]
            )  # fmt: skip
    return z


def test_the_dictionary_has_unit_rows_and_decodes_as_the_sae_does(sae) -> None:
    x = activations()
    with torch.no_grad():
        codes, expected = encode(sae, x), sae(x)
    atoms = dictionary(sae)
    torch.testing.assert_close(atoms.W_dec.norm(dim=-1), torch.ones(len(atoms.W_dec)))
    torch.testing.assert_close(codes @ atoms.W_dec + atoms.b_dec, expected, rtol=1e-4, atol=1e-4)


def test_full_mode_fires_exactly_where_the_saes_own_encoder_fires(sae) -> None:
    x = activations()
    with torch.no_grad():
        assert torch.equal(encode(sae, x) > 0, sae.encode(x) > 0)


def test_semi_mode_is_the_papers_update_from_the_encoders_code(sae) -> None:
    x, atoms = activations(6), dictionary(sae)
    start = encode(sae, x)
    expected = loop_ista(x - atoms.b_dec, atoms.W_dec, 0.4, 3, start)
    actual = encode(sae, x, "semi", lam=0.4, steps=3)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=1e-2)


def test_non_mode_is_the_papers_update_from_zero_and_ignores_the_encoder(sae) -> None:
    x, atoms = activations(6), dictionary(sae)
    expected = loop_ista(x - atoms.b_dec, atoms.W_dec, 0.4, 3, torch.zeros(6, len(atoms.W_dec)))
    actual = encode(sae, x, "non", lam=0.4, steps=3)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=1e-2)
    with torch.no_grad():
        sae.W_enc.zero_()
    assert torch.equal(encode(sae, x, "non", lam=0.4, steps=3), actual)


def test_the_exact_solution_has_the_lowest_objective_of_all_modes(sae) -> None:
    x, atoms = activations(), dictionary(sae)
    target, lam = x - atoms.b_dec, 0.5

    def objective(codes):
        return sparse_coding.objective(target, codes, atoms.W_dec, lam).mean()

    best = objective(encode(sae, x, "non", lam=lam, solver="exact"))
    for mode in ("full", "semi", "non"):
        assert best <= objective(encode(sae, x, mode, lam=lam)) + 1e-4


def test_lambda_is_calibrated_to_the_l0_of_full_mode(sae) -> None:
    x = activations(400)
    full_l0 = float((encode(sae, x) > 0).sum(1).float().mean())
    for mode, solver in (("semi", "ista"), ("non", "ista"), ("non", "exact")):
        infer = prepare(sae, x, mode, solver=solver)
        l0 = float((infer(x) > 0).sum(1).float().mean())
        assert infer.l0 == pytest.approx(l0)
        assert infer.matched == (abs(l0 - full_l0) <= 0.01 * full_l0 + 1e-9)
        if infer.matched:
            assert l0 == pytest.approx(full_l0, rel=0.0101)


def test_semi_with_no_steps_is_full_mode(sae) -> None:
    x = activations()
    assert torch.equal(encode(sae, x, "semi", lam=0.3, steps=0), encode(sae, x))


def test_a_long_input_is_encoded_in_chunks_with_the_same_result(sae, monkeypatch) -> None:
    from loca_sae import inference

    x = activations(50)
    whole = encode(sae, x, "semi", lam=0.3, steps=4)
    monkeypatch.setattr(inference, "_CHUNK", 7)
    torch.testing.assert_close(encode(sae, x, "semi", lam=0.3, steps=4), whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "amortized"}, "mode 'amortized' is unknown"),
        ({"mode": "non", "solver": "lars"}, "solver 'lars' is unknown"),
        ({"mode": "semi", "solver": "exact"}, "use mode='non'"),
        ({"mode": "semi", "steps": -1}, "cannot be negative"),
    ],
)
def test_unknown_settings_are_refused_with_the_known_ones(tmp_path, arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        encode(random_sae("topk", tmp_path), activations(4), **arguments)


def test_an_sae_that_normalizes_at_run_time_is_refused(tmp_path) -> None:
    sae = random_sae("standard", tmp_path)
    sae.cfg.normalize_activations = "layer_norm"
    with pytest.raises(ValueError, match="layer_norm"):
        dictionary(sae)
