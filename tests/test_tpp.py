"""TPP against planted classes and against a loop over tokens."""

import pandas as pd
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor

from loca_sae import probing
from loca_sae.probing import LinearProbe
from loca_sae.tpp import effects, fit_probes, mean_over_classes, top_latents, tpp

D_IN, D_SAE, CLASSES, TOKENS = 5, 12, 3, 4


class Texts:
    """Random tokens of labelled texts: class c lifts activation c and the codes of latents 4c.."""

    def __init__(self, per_class: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        n = per_class * CLASSES
        label = torch.arange(n) % CLASSES
        self.labels = ["abc"[c] for c in label]
        self.x = torch.randn(n, TOKENS, D_IN, generator=rng)
        self.z = (torch.randn(n, TOKENS, D_SAE, generator=rng) - 0.5).relu()
        for i, c in enumerate(label.tolist()):
            self.x[i, :, c] += 0.8
            self.z[i, :, 4 * c : 4 * c + 3] += 0.3

    def pooled(self) -> tuple[Tensor, Tensor, list[str]]:
        text = torch.arange(len(self.x)).repeat_interleave(TOKENS)
        x, z = (probing.pool(t.flatten(0, 1), text, len(self.x)) for t in (self.x, self.z))
        return x, z, self.labels


def by_hand(
    train: Texts, test: Texts, W_dec: Tensor, probes: dict[str, LinearProbe], n: int
) -> dict[str, tuple[float, float]]:
    """On- and off-target drop a class: every ablation token by token, the error put back."""
    drops = {}
    for name, probe in probes.items():
        effect = []
        for j in range(D_SAE):
            means = train.z[:, :, j].mean(1)
            on = [float(m) for m, label in zip(means, train.labels, strict=True) if label == name]
            off = [float(m) for m, label in zip(means, train.labels, strict=True) if label != name]
            rise = max(sum(on) / len(on) - sum(off) / len(off), 0)
            effect.append(rise * float(probe.weight @ W_dec[j].double()))
        chosen = sorted(range(D_SAE), key=lambda j: -effect[j])[:n]
        edited = test.z.clone()
        edited[:, :, chosen] = 0
        error = test.x - test.z @ W_dec
        ablated = (edited @ W_dec + error).mean(1)
        change = {}
        for other, judge in probes.items():
            truth = [label == other for label in test.labels]
            clean, after = (
                balanced_accuracy_score(truth, (judge(x) > 0).numpy())
                for x in (test.x.mean(1), ablated)
            )
            change[other] = clean - after
        rest = [value for other, value in change.items() if other != name]
        drops[name] = (change[name], sum(rest) / len(rest))
    return drops


def random_decoder(seed: int = 9) -> Tensor:
    return torch.randn(D_SAE, D_IN, generator=torch.Generator().manual_seed(seed))


def planted() -> tuple[Tensor, Tensor, list[str], Tensor, dict[str, LinearProbe]]:
    """Class c is latent c with code 3, written along the direction that its probe reads."""
    labels = ["a", "b", "c"] * 6
    z = torch.zeros(18, 6)
    for i in range(18):
        z[i, i % 3] = 3.0
    W_dec = torch.eye(6)
    eye = torch.eye(6, dtype=torch.float64)
    probes = {c: LinearProbe(eye[i], torch.tensor(-1.5)) for i, c in enumerate("abc")}
    return z @ W_dec, z, labels, W_dec, probes


@pytest.mark.parametrize("n", [1, 2, 3])
def test_drops_equal_those_of_tokens_ablated_one_by_one_and_then_pooled(n: int) -> None:
    train, test, W_dec = Texts(20, seed=0), Texts(15, seed=1), random_decoder()
    table = tpp(*train.pooled(), *test.pooled(), W_dec, n_values=[n])
    known = by_hand(train, test, W_dec, fit_probes(*train.pooled()[::2]), n)
    assert any(abs(on) > 0.05 for on, _ in known.values())
    for row in table.itertuples():
        on, off = known[str(row._1)]
        assert row.on_target_drop == pytest.approx(on)
        assert row.off_target_drop == pytest.approx(off)
        assert row.score == pytest.approx(on - off)


def test_ablating_the_latent_that_a_probe_reads_brings_that_probe_to_chance_and_no_other() -> None:
    x, z, labels, W_dec, probes = planted()
    table = tpp(x, z, labels, x, z, labels, W_dec, n_values=[2, 5], probes=probes)
    assert len(table) == 6
    assert (table.clean_accuracy == 1).all()
    assert (table.on_target_drop == 0.5).all()  # 1 -> chance, which is 1/2
    assert (table.off_target_drop == 0).all()
    assert (table.score == 0.5).all()
    assert (table.ablated == 1).all() and (table.positive == 1).all()  # one nonzero effect


def test_a_latent_shared_by_all_classes_scores_nothing() -> None:
    x, z, labels, W_dec, probes = planted()
    shared = z.clone()
    shared[:, 5] = 4.0
    probes = {c: LinearProbe(p.weight + torch.eye(6)[5], p.bias - 4.0) for c, p in probes.items()}
    x = shared @ W_dec
    # one class shows the shared latent a little more, so that it is the only one with an effect
    only = torch.zeros_like(shared)
    only[:, 5] = shared[:, 5] + torch.tensor([float(c == "a") for c in labels])
    table = tpp(x, only, labels, x, only, labels, W_dec, n_values=[1], probes=probes)
    first = table[table["class"] == "a"].iloc[0]
    assert first.on_target_drop == pytest.approx(0.5)
    assert first.off_target_drop == pytest.approx(0.5)
    assert first.score == pytest.approx(0)


def test_probes_are_fitted_and_latents_chosen_on_the_training_texts() -> None:
    train, test, W_dec = Texts(20, seed=0), Texts(15, seed=1), random_decoder()
    x, z, labels = test.pooled()
    before = tpp(*train.pooled(), x, z, labels, W_dec, n_values=[2])
    shuffled = tpp(*train.pooled(), x, z.roll(4, dims=1), labels, W_dec, n_values=[2])
    assert before.clean_accuracy.equals(shuffled.clean_accuracy)
    # latent 0 of the training texts is latent 4 of these test texts: its ablation must differ
    assert not before.on_target_drop.equals(shuffled.on_target_drop)


def test_balanced_accuracy_is_the_mean_of_saebenchs_accuracy_over_its_draws() -> None:
    train, test = Texts(20, seed=0), Texts(16, seed=1)
    x, _, labels = test.pooled()
    probe = fit_probes(*train.pooled()[::2])["a"]
    W_dec = random_decoder()
    table = tpp(*train.pooled(), *test.pooled(), W_dec, n_values=[1])
    right = (probe(x) > 0) == torch.tensor([label == "a" for label in labels])
    of = {c: right[[i for i, label in enumerate(labels) if label == c]].double() for c in "abc"}
    rng = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(2000):
        rest = [of[c][torch.randperm(16, generator=rng)[:8]] for c in "bc"]
        draws.append(torch.cat([of["a"], *rest]).mean())
    assert table.clean_accuracy[0] == pytest.approx(float(torch.stack(draws).mean()), abs=4e-3)


def test_effects_are_clipped_at_zero_rise_and_keep_the_sign_of_the_probe() -> None:
    z = torch.tensor([[2.0, 0, 2], [2, 0, 2], [0, 2, 0]])
    y = torch.tensor([1, 1, 0])
    W_dec = torch.tensor([[1.0, 0], [1, 0], [-1, 0]])
    probe = LinearProbe(torch.tensor([3.0, 0]).double(), torch.tensor(0.0))
    assert effects(z, y, probe, W_dec).tolist() == [6, 0, -6]


def test_latents_are_ranked_by_signed_effect_and_zero_effects_do_not_count() -> None:
    effect = torch.tensor([0.0, -1, 0, 3, 5])
    assert top_latents(effect, 2).tolist() == [4, 3]
    assert top_latents(effect, 5).tolist() == [4, 3, 0]  # three effects are nonzero
    assert top_latents(effect, 5, positive_only=True).tolist() == [4, 3]


def test_with_positive_only_every_ablated_latent_has_a_positive_effect() -> None:
    train, test, W_dec = Texts(20, seed=0), Texts(15, seed=1), random_decoder()
    every, some = (
        tpp(*train.pooled(), *test.pooled(), W_dec, n_values=[D_SAE], positive_only=only)
        for only in (False, True)
    )
    assert (every.ablated > every.positive).all()
    assert some.ablated.equals(some.positive) and some.positive.equals(every.positive)


def test_the_mean_over_classes_weighs_every_class_the_same() -> None:
    table = pd.DataFrame({"class": list("abab"), "n": [2, 2, 5, 5], "score": [0.1, 0.3, 0.0, 1.0]})
    assert mean_over_classes(table).to_dict("list") == {"n": [2, 5], "score": [0.2, 0.5]}


def test_bad_input_is_refused_with_what_came_and_what_is_expected() -> None:
    x, z, labels, W_dec, probes = planted()
    with pytest.raises(ValueError, match="two classes or more"):
        tpp(x, z, ["a"] * 18, x, z, ["a"] * 18, W_dec)
    with pytest.raises(ValueError, match="the same in both splits"):
        tpp(x, z, labels, x, z, ["a"] * 18, W_dec)
    with pytest.raises(ValueError, match=r"expected \[d_sae, d_in\]"):
        tpp(x, z, labels, x, z, labels, W_dec[:2])
    with pytest.raises(ValueError, match="Pool tokens into texts first"):
        tpp(x[:3], z, labels, x, z, labels, W_dec)
    with pytest.raises(ValueError, match="n=500 latents of 6"):
        tpp(x, z, labels, x, z, labels, W_dec, n_values=[500])
    with pytest.raises(ValueError, match="no probe for the classes"):
        tpp(x, z, labels, x, z, labels, W_dec, probes={"a": probes["a"]})
