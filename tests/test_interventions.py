"""Residual edits on tiny random models, against Hugging Face's own hooks and closed forms."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from loca_sae import interventions
from loca_sae.interventions import HookNotFired, edit_residual, run_with_edit

D_IN, D_SAE, LAYER = 16, 24, 0
TINY: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": D_IN,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
TOKENS = torch.tensor([[0, 3, 7, 11, 4, 9], [0, 5, 5, 19, 2, 1]])


def boot(config: PreTrainedConfig, folder: Path) -> Any:
    """A bridge on a randomly initialised model that was saved to ``folder``."""
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = WordLevel({f"w{i}": i for i in range(20)}, unk_token="w0")
    names = {"bos_token": "w0", "eos_token": "w0", "pad_token": "w0", "unk_token": "w0"}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **names).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()


@pytest.fixture(scope="module", params=["llama", "neox"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = LlamaConfig(**TINY) if request.param == "llama" else GPTNeoXConfig(**TINY)
    return boot(config, tmp_path_factory.mktemp(request.param))


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def hugging_face(model: Any, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The logits when a PyTorch hook on the wrapped model's own block changes its output."""
    inner = model.original_model
    blocks = inner.model.layers if hasattr(inner, "model") else inner.gpt_neox.layers

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    handle = blocks[LAYER].register_forward_hook(hook)
    try:
        return inner(TOKENS).logits
    finally:
        handle.remove()


def sparse_coder() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """encode and W_dec [d_sae, d_in] of a random ReLU coder that needs rows [n, d_in]."""
    rng = torch.Generator().manual_seed(1)
    W_enc = torch.randn(D_IN, D_SAE, generator=rng)
    W_dec = torch.nn.functional.normalize(torch.randn(D_SAE, D_IN, generator=rng), dim=1)

    def encode(x: Tensor) -> Tensor:
        assert x.ndim == 2
        return (x @ W_enc - 0.5).relu()

    return encode, W_dec


@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_an_identity_edit_leaves_the_logits_unchanged_bit_by_bit(model: Any, scale: float) -> None:
    clean = model(TOKENS)
    edited = run_with_edit(model, TOKENS, LAYER, lambda x: x, scale=scale, skip_first=False)
    assert torch.equal(clean, edited)


@pytest.mark.parametrize("skip_first", [True, False])
def test_an_edit_equals_a_hugging_face_hook_on_the_unscaled_stream(
    model: Any, skip_first: bool
) -> None:
    scale, shift = 2.5, torch.linspace(-1, 1, D_IN)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, int(skip_first) :] = x[:, int(skip_first) :] * 3 + shift / scale
        return x

    known = hugging_face(model, change)
    got = run_with_edit(
        model, TOKENS, LAYER, lambda x: 3 * x + shift, scale=scale, skip_first=skip_first
    )
    torch.testing.assert_close(got, known, atol=1e-5, rtol=1e-4)
    assert (got - model(TOKENS)).abs().max() > 1e-2


def test_position_0_is_edited_only_when_asked_for(model: Any) -> None:
    seen = []
    for skip_first in (True, False):
        with edit_residual(model, LAYER, lambda x: seen.append(x) or x, skip_first=skip_first):  # type: ignore[func-returns-value]
            model(TOKENS)
    assert torch.equal(seen[0], seen[1][:, 1:])
    assert seen[1].shape == (2, 6, D_IN)


def test_an_edit_acts_in_every_step_of_cached_generation(model: Any) -> None:
    widths = []

    def note(x: Tensor) -> Tensor:
        widths.append(x.shape[1])
        return x

    with edit_residual(model, LAYER, note):
        model.generate(TOKENS[:1], max_new_tokens=3, do_sample=False, verbose=False)
    assert widths == [5, 1, 1]


def test_an_unknown_layer_is_refused_before_the_model_runs(model: Any) -> None:
    with (
        pytest.raises(ValueError, match=r"layer is 2, and its layers are 0\.\.1"),
        edit_residual(model, 2, lambda x: x),
    ):
        pytest.fail("the context opened")


def test_a_hook_that_never_fires_is_an_error(model: Any) -> None:
    with pytest.raises(HookNotFired, match="in 0 passes"), edit_residual(model, 1, lambda x: x):
        pass
    with (
        pytest.raises(HookNotFired, match=r"acted \[0\] times in 1 passes"),
        edit_residual(model, 1, lambda x: x),
    ):
        model.run_with_hooks(TOKENS, stop_at_layer=1)


def test_a_pass_without_the_edit_shows_among_passes_with_it(model: Any) -> None:
    with (
        pytest.raises(HookNotFired, match=r"\[1, 0\] times in 2 passes"),
        edit_residual(model, 1, lambda x: x),
    ):
        model.run_with_cache(TOKENS)
        model.run_with_hooks(TOKENS, stop_at_layer=1)


def test_a_hook_that_fires_twice_in_a_pass_is_an_error(model: Any) -> None:
    with (
        pytest.raises(HookNotFired, match=r"\[2\] times in 1 passes"),
        edit_residual(model, LAYER, lambda x: x),
    ):
        model(TOKENS)
        model.blocks[LAYER].hook_out(torch.zeros(1, 2, D_IN))


def test_an_error_in_the_body_stays_visible_and_the_hook_is_gone_afterwards(model: Any) -> None:
    clean = model(TOKENS)
    with pytest.raises(KeyError), edit_residual(model, LAYER, lambda x: x * 0):
        raise KeyError
    with edit_residual(model, LAYER, lambda x: x * 0):
        assert not torch.equal(model(TOKENS), clean)
    assert torch.equal(model(TOKENS), clean)
    assert not model.original_model._forward_pre_hooks


def test_an_edit_that_changes_the_shape_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="it must keep the shape"):
        run_with_edit(model, TOKENS, LAYER, lambda x: x[:, :1])
    with pytest.raises(ValueError, match="positive number"):
        run_with_edit(model, TOKENS, LAYER, lambda x: x, scale=0)


def test_ablation_equals_putting_the_error_back_after_decoding_edited_codes() -> None:
    encode, W_dec = sparse_coder()
    x = torch.randn(7, D_IN, generator=torch.Generator().manual_seed(2))
    z = encode(x)
    edited = z.clone()
    edited[:, [3, 10]] = 0
    known = x + edited @ W_dec - z @ W_dec
    assert (known - x).norm() > 0.1
    torch.testing.assert_close(interventions.ablate(x, z, W_dec, [3, 10]), known)
    torch.testing.assert_close(interventions.ablate(x, z, W_dec, torch.tensor([10, 3, 3])), known)
    assert torch.equal(interventions.ablate(x, z, W_dec, []), x)


def test_an_ablation_in_the_model_takes_the_scaled_atom_out_of_the_stream(model: Any) -> None:
    encode, W_dec = sparse_coder()
    scale, j = 20.0, 6

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        for row in x[:, 1:].flatten(0, 1).split(1):
            row -= encode(scale * row)[:, j : j + 1] * W_dec[j] / scale
        return x

    known = hugging_face(model, lambda x: torch.cat([change(t) for t in x.split(1)]))
    edit = interventions.ablation(encode, W_dec, [j])
    got = run_with_edit(model, TOKENS, LAYER, edit, scale=scale)
    torch.testing.assert_close(got, known, atol=1e-5, rtol=1e-4)
    assert (got - model(TOKENS)).abs().max() > 1e-3


def test_a_spliced_reconstruction_takes_the_place_of_the_stream(model: Any) -> None:
    encode, W_dec = sparse_coder()
    scale = 20.0

    def change(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], encode(scale * x[:, 1:].flatten(0, 1)).mm(W_dec)
                          .view_as(x[:, 1:]) / scale], dim=1)  # fmt: skip

    edit = interventions.splice(lambda rows: encode(rows) @ W_dec)
    got = run_with_edit(model, TOKENS, LAYER, edit, scale=scale)
    torch.testing.assert_close(got, hugging_face(model, change), atol=1e-5, rtol=1e-4)


def test_latents_outside_the_dictionary_or_given_as_a_mask_are_refused() -> None:
    encode, W_dec = sparse_coder()
    x = torch.ones(2, D_IN)
    with pytest.raises(ValueError, match=r"latents -1\.\.3 are outside 0\.\.23"):
        interventions.ablate(x, encode(x), W_dec, [3, -1])
    with pytest.raises(ValueError, match="use mask.nonzero"):
        interventions.ablate(x, encode(x), W_dec, torch.ones(D_SAE, dtype=torch.bool))


def test_cross_entropy_is_pytorchs_of_the_next_token(model: Any) -> None:
    logits = model(TOKENS)
    got = interventions.cross_entropy(logits, TOKENS)
    assert got.shape == (2, 5)
    for b in range(2):
        for i in range(5):
            known = torch.nn.functional.cross_entropy(logits[b, i], TOKENS[b, i + 1])
            torch.testing.assert_close(got[b, i], known)
    with pytest.raises(ValueError, match="agree in batch and position"):
        interventions.cross_entropy(logits, TOKENS[:, 1:])


def test_kl_of_two_coins_has_its_closed_form_in_nats_and_its_direction() -> None:
    p, q = 0.9, 0.4
    clean = torch.tensor([[[p, 1 - p]]]).log() + 3  # an added constant changes no distribution
    edited = torch.tensor([[[q, 1 - q]]]).log()
    known = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    got = interventions.next_token_kl(clean, edited, skip_first=False)
    assert got == pytest.approx(known, rel=1e-5)
    assert interventions.next_token_kl(edited, clean, skip_first=False) != pytest.approx(known)


def test_kl_is_a_mean_over_the_positions_that_count() -> None:
    rng = torch.Generator().manual_seed(4)
    clean, edited = (torch.randn(2, 4, 5, generator=rng) for _ in range(2))
    each = interventions.kl_per_position(clean, edited)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    mean = interventions.next_token_kl
    assert mean(clean, edited) == pytest.approx(float(each[:, 1:].mean()))
    assert mean(clean, edited, skip_first=False) == pytest.approx(float(each.mean()))
    kept = torch.cat([each[0, 1:], each[1, 1:2]])
    assert mean(clean, edited, mask=mask) == pytest.approx(float(kept.mean()))
    with pytest.raises(ValueError, match="no position is left"):
        mean(clean[:, :1], edited[:, :1])
    with pytest.raises(ValueError, match="differ in shape"):
        mean(clean, edited[:, :2])
    with pytest.raises(ValueError, match="mask has shape"):
        mean(clean, edited, mask=mask[:1])
