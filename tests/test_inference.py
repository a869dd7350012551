"""Full, semi and non mode, on every architecture that the library trains."""

from dataclasses import replace

import pytest
import torch

from loca_sae import sparse_coding
from loca_sae.inference import dictionary, encode, prepare
from loca_sae.protocols import PROTOCOLS
from toys import ARCHITECTURES, D_IN, D_SAE, activations, random_sae


@pytest.fixture(params=ARCHITECTURES)
def sae(request, tmp_path):
    return random_sae(request.param, tmp_path)


def random_sae_in_memory():
    """A Standard SAE whose codes a signed solver can improve on."""
    from sae_lens import StandardSAE, StandardSAEConfig

    torch.manual_seed(0)
    sae = StandardSAE(StandardSAEConfig(d_in=D_IN, d_sae=D_SAE))
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return sae


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


def test_full_mode_is_the_saes_own_encode_in_units_of_the_decoder_norm(sae) -> None:
    x = activations()
    with torch.no_grad():
        own = sae.encode(x) * dictionary(sae).code_scale
    torch.testing.assert_close(encode(sae, x, "full", "native"), own)


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
    if sae.cfg.architecture() == "matching_pursuit":
        return  # its encoder is its decoder
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


def test_non_mode_is_never_above_full_mode_at_any_sample(sae) -> None:
    """The optimum within its certificate; 4000 steps from zero within what is left of the gap."""
    x = activations(20)
    full, exact = encode(sae, x), prepare(sae, x, "non", lam=0.5, solver="exact")
    walked = prepare(sae, x, "non", lam=0.5, steps=4000)
    ceiling = exact.objective(x, full)
    for infer in (exact, walked):
        codes = infer(x)
        left = infer.duality_gap(x, codes)
        assert (infer.objective(x, codes) - left <= ceiling + 1e-9).all()
        assert (infer.objective(x, codes) <= ceiling * (1 + 1e-3)).all()


@pytest.mark.parametrize(
    ("mode", "solver"), [("full", "ista"), ("semi", "ista"), ("non", "ista"), ("non", "exact")]
)
def test_refitting_keeps_the_support_and_never_raises_the_error(sae, mode, solver) -> None:
    x = activations(30)
    raw = prepare(sae, x, mode, solver=solver, lam=0.5)
    refitted = prepare(sae, x, mode, solver=solver, lam=0.5, refit=True)
    before, after = raw(x), refitted(x)
    assert not bool(((after != 0) & (before == 0)).any())
    error_before = (x - raw.reconstruct(before)).square().sum(1)
    error_after = (x - refitted.reconstruct(after)).square().sum(1)
    assert (error_after <= error_before * (1 + 1e-4) + 1e-6).all()
    assert raw.l0 == refitted.l0, "density is matched on the mode's own codes"


def test_refitted_values_are_scipys_non_negative_least_squares(sae) -> None:
    nnls = pytest.importorskip("scipy.optimize").nnls
    x = activations(8)
    infer = prepare(sae, x, "full", refit=True)
    support, codes, target = encode(sae, x) > 0, infer(x), infer.target(x)
    for i in range(len(x)):
        atoms = infer.dictionary.W_dec[support[i]].double().numpy()
        if len(atoms):
            best = nnls(atoms.T, target[i].double().numpy())[1] ** 2
            reached = float((target[i] - codes[i] @ infer.dictionary.W_dec).square().sum())
            assert reached == pytest.approx(best, rel=1e-3, abs=1e-4)


def test_k_sparse_codes_use_no_more_atoms_than_the_encoder_does_on_each_token(sae) -> None:
    x = activations(40)
    infer = prepare(sae, x, "non", solver="omp")
    codes = infer(x)
    assert (codes >= 0).all()
    assert ((codes > 0).sum(1) <= (encode(sae, x) > 0).sum(1)).all()
    assert infer.matched == (abs(infer.l0 - infer.target_l0) <= 0.01 * infer.target_l0)


def test_matching_pursuit_is_saelenss_with_the_encoders_mean_number_of_iterations(sae) -> None:
    from sae_lens import MatchingPursuitSAE, MatchingPursuitSAEConfig

    x = activations(30)
    infer = prepare(sae, x, "non", solver="matching_pursuit")
    rounds = max(1, round(float((encode(sae, x) > 0).sum(1).float().mean())))
    other = MatchingPursuitSAE(
        MatchingPursuitSAEConfig(
            d_in=D_IN, d_sae=D_SAE, residual_threshold=0.0, max_iterations=rounds
        )
    )
    with torch.no_grad():
        other.W_dec.copy_(infer.dictionary.W_dec)
        other.b_dec.copy_(infer.dictionary.b_dec)
        torch.testing.assert_close(infer(x), other.encode(x))


def test_signed_codes_are_soft_thresholded_on_both_sides_of_zero(sae) -> None:
    chosen = replace(PROTOCOLS["native"], signed=True)
    x, atoms = activations(5), dictionary(sae)
    target, D = (x - atoms.b_dec).double(), atoms.W_dec.double()
    step, z = 1 / float(torch.linalg.matrix_norm(D, 2) ** 2), torch.zeros(5, D_SAE).double()
    for _ in range(3):
        moved = z - step * (z @ D - target) @ D.T
        z = moved.sign() * (moved.abs() - step * 0.4).clamp(min=0)
    actual = encode(sae, x, "non", chosen, lam=0.4, steps=3)
    assert (actual < 0).any()
    torch.testing.assert_close(actual.double(), z, rtol=1e-2, atol=1e-2)


def test_the_signed_optimum_is_certified_and_below_the_non_negative_one() -> None:
    sae = random_sae_in_memory()
    x, chosen = activations(12), replace(PROTOCOLS["native"], signed=True)
    both = prepare(sae, x, "non", chosen, lam=0.5, solver="exact")
    positive = prepare(sae, x, "non", lam=0.5, solver="exact")
    codes = both(x)
    assert (codes < 0).any()
    objective = both.objective(x, codes)
    assert (both.duality_gap(x, codes) <= 1e-4 * objective + 1e-9).all()
    assert (objective <= positive.objective(x, positive(x)) * (1 + 1e-4)).all()


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
    from loca_sae.inference import modes

    x = activations(50)
    whole = encode(sae, x, "semi", lam=0.3, steps=4)
    monkeypatch.setattr(modes, "_CHUNK", 7)
    torch.testing.assert_close(encode(sae, x, "semi", lam=0.3, steps=4), whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "amortized"}, "mode 'amortized' is unknown"),
        ({"mode": "non", "solver": "lars"}, "solver 'lars' is unknown"),
        ({"mode": "semi", "solver": "exact"}, "use mode='non'"),
        ({"mode": "semi", "steps": -1}, "cannot be negative"),
        ({"mode": "full", "solver": "omp"}, "use it with mode='non'"),
        ({"protocol": "relased"}, "protocol 'relased' is unknown"),
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
