"""Training through SAELens's trainer: what it learns, what it saves, what a kill costs."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from sae_lens import SAE, SAETrainer, TopKTrainingSAE, TopKTrainingSAEConfig
from sae_lens.config import LoggingConfig, SAETrainerConfig

from loca_sae import recipes, steering, training
from loca_sae.names import ARCHITECTURES
from loca_sae.training import Recipe, train
from repository import ROOT
from toys import D_IN, ToyActivations, sparse_activations

RECIPE = Recipe(architecture="topk", d_sae=40, sparsity=3, steps=120, batch_size=64, lr=3e-3)


pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def toy() -> ToyActivations:
    return ToyActivations(sparse_activations())


def of(architecture: str, **changes) -> Recipe:
    """The recipe above for an architecture, at about three active latents."""
    sparsity = {"standard": 0.05, "gated": 0.05, "jumprelu": 0.02}.get(architecture, 3)
    groups = {"group_sizes": (20, 20), "group_ks": (2, 1)} if architecture == "loca" else {}
    recipe = replace(RECIPE, architecture=architecture, sparsity=sparsity)
    return replace(recipe, **{**groups, **changes})


def training_codes(trained, recipe: Recipe, x: torch.Tensor, monkeypatch):
    """(codes, SAE) of the training SAE itself at the end, trained once more in another store."""
    ends = []
    save = training.TrainingSAE.save_inference_model

    def remembered(sae, folder):
        ends.append(sae)
        return save(sae, folder)

    monkeypatch.setattr(training.TrainingSAE, "save_inference_model", remembered)
    monkeypatch.setenv("LOCA_STORE", str(trained.path.parents[1]) + "-again")
    train(ToyActivations(x), recipe)
    with torch.no_grad():
        return ends[-1].eval().encode(x), ends[-1]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "matching_pursuit"])
def test_each_architecture_learns_saves_and_loads_to_the_codes_it_had(
    toy, architecture, monkeypatch
) -> None:
    recipe = of(architecture, steps=300)
    trained = train(toy, recipe)
    loaded = trained.load()
    with torch.no_grad():
        codes, x_hat = loaded.encode(toy.x), loaded(toy.x)
    assert (x_hat - toy.x).square().sum() < 0.35 * toy.x.square().sum()
    curve = trained.curve()
    assert curve["mse"].iloc[-1] < 0.5 * curve["mse"].iloc[0]
    assert curve["tokens"].iloc[-1] == recipe.steps * recipe.batch_size
    batched = architecture in ("batchtopk", "matryoshka_batchtopk")
    assert loaded.cfg.architecture() == ("jumprelu" if batched else architecture)
    assert loaded.cfg.metadata.trained_architecture == architecture

    own, sae = training_codes(trained, recipe, toy.x, monkeypatch)
    if architecture in ("topk", "loca", "batchtopk", "matryoshka_batchtopk"):
        norms = sae.W_dec.norm(dim=-1).detach()
        assert torch.allclose(loaded.W_dec.norm(dim=-1), torch.ones(recipe.d_sae), atol=1e-5)
        torch.testing.assert_close(loaded.W_dec, (sae.W_dec / norms[:, None]).detach())
    if batched:  # a threshold in place of a budget shared by the batch: codes agree where both fire
        assert float((codes > 0).sum(1).float().mean()) == pytest.approx(3.0, rel=0.15)
        both = (own > 0) & (codes > 0)
        assert both.sum() > 0.8 * (own > 0).sum()
        torch.testing.assert_close(codes[both], own[both], rtol=1e-4, atol=1e-4)
    else:
        torch.testing.assert_close(codes, own, rtol=1e-4, atol=1e-4)


def test_matryoshka_widths_are_nested_and_end_at_the_whole_dictionary(toy) -> None:
    assert recipes.matryoshka_widths(1024) == [128, 256, 512, 1024]
    assert recipes.matryoshka_widths(3) == [1, 3]
    assert recipes.saelens_fields(of("matryoshka_batchtopk"))["matryoshka_widths"] == [
        5,
        10,
        20,
        40,
    ]


@pytest.mark.parametrize("architecture", recipes.PENALISED)
def test_the_weight_of_the_penalty_is_steered_to_the_wanted_l0(toy, architecture) -> None:
    recipe = of(architecture, steps=600, target_l0=3.0, sparsity=0.2)
    trained = train(toy, recipe)
    with torch.no_grad():
        l0 = float((trained.load().encode(toy.x) > 0).sum(1).float().mean())
    assert l0 == pytest.approx(3.0, rel=0.1)
    curve = trained.curve()
    assert curve["coefficient"].nunique() > 50
    # what the recipe asks for at the start, times the first of SAELens's warm-up steps
    assert curve["coefficient"].iloc[0] <= 0.2


def test_without_a_target_the_weight_stays_where_the_recipe_put_it(toy) -> None:
    curve = train(toy, of("standard")).curve()
    assert set(curve["coefficient"].iloc[10:]) == {0.05}
    assert train(toy, of("topk")).curve()["coefficient"].isna().all()


def test_the_controller_finds_the_weight_of_a_known_response() -> None:
    """A plant whose L0 is 50 / weight, reached with a delay: an L0 of 10 needs a weight of 5."""
    controller, l0 = steering.L0Controller(target=10.0, weight=0.1, steps=600), 500.0
    for _ in range(600):
        l0 += 0.05 * (50 / controller.update(l0) - l0)
    assert l0 == pytest.approx(10.0, rel=0.03)
    assert controller.weight == pytest.approx(5.0, rel=0.05)


def test_the_wanted_l0_falls_steadily_to_the_target_and_never_starts_below_it() -> None:
    controller = steering.L0Controller(target=10.0, weight=1.0, steps=100)
    wanted = []
    for _ in range(100):
        controller.update(640.0)
        wanted.append(controller.wanted())
    assert wanted == sorted(wanted, reverse=True) and wanted[-1] == 10.0
    assert wanted[34] == pytest.approx(10 * 64 ** (1 / 4))  # half of the glide, on a parabola
    below = steering.L0Controller(target=10.0, weight=1.0, steps=100)
    below.update(2.0)
    assert below.wanted() == 10.0


def test_the_weights_are_those_of_saelens_own_fit_from_the_same_start(toy) -> None:
    """The loop here adds checkpoints and a curve; it must not change a single step."""
    trained = train(toy, RECIPE)
    with torch.random.fork_rng():
        torch.manual_seed(RECIPE.seed)
        sae = TopKTrainingSAE(TopKTrainingSAEConfig(d_in=D_IN, d_sae=40, k=3))
    with torch.no_grad():
        sae.b_dec.copy_(toy.sample(toy.n, 0).mean(0))
    config = SAETrainerConfig(
        total_training_samples=120 * 64,
        train_batch_size_samples=64,
        lr=3e-3,
        lr_end=0.0,
        lr_warm_up_steps=6,
        lr_decay_steps=24,
        dead_feature_window=25,
        logger=LoggingConfig(log_to_wandb=False),
    )
    SAETrainer(config, sae, toy.batches(64, seed=0)).fit()
    sae.fold_W_dec_norm()
    torch.testing.assert_close(trained.load().W_dec, sae.W_dec, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained.load().W_enc, sae.W_enc, rtol=1e-5, atol=1e-6)


def test_the_same_recipe_gives_the_same_weights_and_another_seed_does_not(
    toy, tmp_path, monkeypatch
) -> None:
    first = train(toy, RECIPE).load().W_dec
    monkeypatch.setenv("LOCA_STORE", str(tmp_path / "elsewhere"))
    assert torch.equal(train(toy, RECIPE).load().W_dec, first)
    assert not torch.equal(train(toy, replace(RECIPE, seed=1)).load().W_dec, first)


def test_checkpoints_are_saved_where_asked_and_differ(toy) -> None:
    trained = train(toy, RECIPE, checkpoints=[0, 10, 50])
    assert trained.checkpoints == [0, 10, 50, 120]
    weights = [trained.load(step).W_dec for step in trained.checkpoints]
    assert all(not torch.equal(a, b) for a, b in zip(weights, weights[1:], strict=False))
    with pytest.raises(ValueError, match=r"saved steps: \[0, 10, 50, 120\]"):
        trained.load(11)


def test_a_finished_sae_is_found_again_and_not_trained_again(toy, monkeypatch) -> None:
    train(toy, RECIPE)
    monkeypatch.setattr(training, "_fit", lambda *_: pytest.fail("trained again"))
    assert train(toy, RECIPE).checkpoints == [120]


def test_metadata_say_where_the_sae_belongs_and_how_its_input_was_scaled(toy) -> None:
    metadata = train(toy, RECIPE).load().cfg.metadata
    assert metadata.hook_name == "blocks.0.hook_out"
    assert metadata.model_name == "toy" and metadata.activation_scale == 1.0


def test_any_saelens_user_can_load_the_folder(toy) -> None:
    path = train(toy, RECIPE).path / "steps" / "120"
    sae = SAE.load_from_disk(path)
    assert sae.cfg.architecture() == "topk" and sae.cfg.k == 3


def test_a_killed_training_resumes_to_the_weights_of_an_undisturbed_one(toy, tmp_path) -> None:
    child = textwrap.dedent(
        """
        import time
        from toys import ToyActivations, sparse_activations
        from loca_sae import training
        from test_training import RECIPE
        training.RESUME_EVERY = 20
        def slow(batches):
            for i, batch in enumerate(batches):
                time.sleep(0.0 if i < 60 else 0.2)
                yield batch
        toy = ToyActivations(sparse_activations())
        fast, toy.batches = toy.batches, lambda *a, **k: slow(fast(*a, **k))
        training.train(toy, RECIPE, checkpoints=[10])
        """
    )
    store = tmp_path / "killed"
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "lib")])
    environment = {**os.environ, "LOCA_STORE": str(store), "PYTHONPATH": paths}
    process = subprocess.Popen([sys.executable, "-c", child], env=environment)
    deadline = time.monotonic() + 120
    while not (saved := list(store.glob("sae/*.partial/resume/trainer"))):
        assert process.poll() is None and time.monotonic() < deadline, "nothing to resume was saved"
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert saved[0].parents[1].exists() and not list(store.glob("sae/*[!l]/manifest.json"))

    undisturbed = train(toy, RECIPE, checkpoints=[10])
    expected, curve = undisturbed.load().W_dec, undisturbed.curve()
    os.environ["LOCA_STORE"] = str(store)  # restored by the fixture
    taken = []
    original = toy.batches

    def counted(*arguments, **keywords):
        for batch in original(*arguments, **keywords):
            taken.append(1)
            yield batch

    toy.batches = counted
    steps = []
    step = training.SAETrainer.step
    training.SAETrainer.step = lambda self, batch: (steps.append(1), step(self, batch))[1]
    try:
        resumed = train(toy, RECIPE, checkpoints=[10])
    finally:
        training.SAETrainer.step = step
    assert 0 < len(steps) < RECIPE.steps, "finished steps were repeated"
    assert torch.equal(resumed.load().W_dec, expected)
    assert resumed.curve()["step"].tolist() == curve["step"].tolist()
    assert resumed.checkpoints == [10, 120]
    assert not (Path(resumed.path) / "resume").exists()


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    "recipe",
    [
        of("standard", target_l0=3.0),
        of("gated", target_l0=3.0),
        of("jumprelu", target_l0=3.0),
        of("batchtopk"),
        of("matryoshka_batchtopk"),
        of("matching_pursuit"),
        of("loca"),
    ],
    ids=lambda recipe: recipe.architecture,
)
def test_weights_threshold_and_controller_survive_an_interruption(
    toy, recipe, tmp_path, monkeypatch
) -> None:
    whole = train(toy, recipe)
    monkeypatch.setenv("LOCA_STORE", str(tmp_path / "interrupted"))
    monkeypatch.setattr(training, "RESUME_EVERY", 50)
    step = training.SAETrainer.step

    def until_75(trainer, batch):
        if trainer.n_training_steps == 75:
            raise Killed
        return step(trainer, batch)

    with monkeypatch.context() as broken, pytest.raises(Killed):
        broken.setattr(training.SAETrainer, "step", until_75)
        train(toy, recipe)
    resumed = train(toy, recipe)
    expected = dict(whole.load().named_parameters())
    for name, parameter in resumed.load().named_parameters():
        assert torch.equal(parameter, expected[name]), name
    pd.testing.assert_frame_equal(resumed.curve(), whole.curve())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "dense"}, "'dense' has no recipe here; use one of"),
        ({"target_l0": 3.0}, "'topk' SAE has the L0 of its own budget; set sparsity"),
        ({"architecture": "gated", "target_l0": 40.0}, "less than d_sae = 40"),
        ({"architecture": "jumprelu", "target_l0": 0.0}, "target_l0 is 0; expected more than 0"),
        ({"architecture": "standard", "sparsity": 0.0}, "weight of a penalty, above 0"),
        ({"architecture": "matching_pursuit", "sparsity": 2.5}, "k, a whole number from 1"),
        ({"sparsity": 41}, "k, a whole number from 1 to d_sae = 40"),
        ({"architecture": "loca"}, "'loca' needs both"),
        ({"group_sizes": (20, 20), "group_ks": (2, 1)}, "the others take neither"),
        ({"architecture": "loca", "group_sizes": (20, 10), "group_ks": (2, 1)}, "must partition"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused_at_once(toy, change, words) -> None:
    with pytest.raises((ValueError, KeyError), match=words):
        train(toy, replace(RECIPE, **change))


def test_checkpoints_outside_the_run_and_unnamed_initial_weights_are_refused(toy) -> None:
    with pytest.raises(ValueError, match="between 0 and steps"):
        train(toy, RECIPE, checkpoints=[121])
    with pytest.raises(ValueError, match="initial_name"):
        train(toy, RECIPE, initial=train(toy, RECIPE).load())
