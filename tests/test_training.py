"""Training through SAELens's trainer: what it learns, what it saves, what a kill costs."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sae_lens import SAE, SAETrainer, TopKTrainingSAE, TopKTrainingSAEConfig
from sae_lens.config import LoggingConfig, SAETrainerConfig

from loca_sae import training
from loca_sae.training import Recipe, train
from repository import ROOT
from toys import D_IN, ToyActivations, sparse_activations

RECIPE = Recipe(architecture="topk", d_sae=40, sparsity=3, steps=120, batch_size=64, lr=3e-3)


pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def toy() -> ToyActivations:
    return ToyActivations(sparse_activations())


@pytest.mark.parametrize(
    ("architecture", "sparsity"), [("standard", 0.05), ("topk", 3), ("batchtopk", 3), ("loca", 3)]
)
def test_each_architecture_learns_to_reconstruct(toy, architecture, sparsity) -> None:
    recipe = replace(RECIPE, architecture=architecture, sparsity=sparsity, steps=300)
    if architecture == "loca":
        recipe = replace(recipe, group_sizes=(20, 20), group_ks=(2, 1))
    trained = train(toy, recipe)
    with torch.no_grad():
        error = (trained.load()(toy.x) - toy.x).square().sum() / toy.x.square().sum()
    assert error < 0.35
    curve = trained.curve()
    assert curve["mse"].iloc[-1] < 0.5 * curve["mse"].iloc[0]
    assert curve["tokens"].iloc[-1] == recipe.steps * recipe.batch_size


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "dense"}, "dense"),
        ({"architecture": "gated"}, "has no recipe here"),
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
