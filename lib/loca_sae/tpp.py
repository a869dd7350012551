"""Targeted probe perturbation (TPP): do the latents of a class act on that class only? [1]

For each class a linear probe, this class against the rest, is fitted on mean-pooled activations of
training texts. The latents of a class are ranked, on training texts, by

    effect_j = max(mean code on the class - mean code off it, 0) * (w_class . W_dec[j]),

the first N are set to zero with the reconstruction error kept, and

    score = drop of this class's probe accuracy - mean drop of the other classes' probe accuracies.

Ablation is linear in the codes and so is the mean over tokens: ablating pooled codes equals pooling
ablated tokens, sum_t (x_t - z_tj W_dec[j]) / T = x - z_j W_dec[j] with pooled x and z. Everything
here works on pooled x [n_texts, d_in] and z [n_texts, d_sae] (`probing.pool`, how="mean").

**What each accuracy is measured on.** SAEBench scores each probe, on-target or off-target, on its
own balanced test set: all test texts of the probe's own class and as many drawn evenly, and anew at
each call, from the other classes; all of them are ablated with the latents of the class under
test. Here each probe is scored on all test texts, the same for clean and ablated, by balanced
accuracy: (share of its class accepted + share of the rest rejected) / 2. With equally many texts a
class that is the expected value of SAEBench's accuracy over its draws, and no draw is needed.
Chance is 1/2. In the same way the mean code off a class runs over all texts of the rest.

Differences from SAEBench: its probes are trained by Adam with an L1 penalty, ours are scikit-learn
logistic regressions (L2). The same as there: latents are ranked by signed effect, and at most as
many are ablated as have a nonzero effect (column ``ablated``). When fewer than that are positive
(column ``positive``), the ranking goes on into effects of exactly zero, latents that fire less on
the class than off it, in an order that means nothing (here: by index). At large N this moves the
score; ``positive_only=True`` ablates latents of positive effect only.

With two classes the off-target probe is the on-target probe with its sign turned, and the score
says nothing: use three or more.

Sources
1. Karvonen et al. SAEBench. 2025: targeted probe perturbation.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loca_sae.probing import LinearProbe, linear_probe, one_vs_rest

if TYPE_CHECKING:
    import pandas as pd

N_VALUES = (2, 5, 10, 20, 50, 100, 500)


def fit_probes(x_train: Tensor, labels_train: Sequence[Any]) -> dict[Any, LinearProbe]:
    """One probe a class, against the rest, on pooled activations x [n_texts, d_in].

    They depend on the language model only: fit them once, use them for every SAE and mode.
    """
    return {name: linear_probe(x_train, y) for name, y in one_vs_rest(labels_train).items()}


def effects(z_train: Tensor, y_train: Tensor, probe: LinearProbe, W_dec: Tensor) -> Tensor:
    """effect_j [d_sae] (float64) of each latent on a class; y [n_texts] is 1 on the class."""
    on = y_train.bool().to(z_train.device)
    rise = z_train[on].double().mean(0) - z_train[~on].double().mean(0)
    return rise.clamp(min=0) * (W_dec.to(probe.weight) @ probe.weight)


def top_latents(effect: Tensor, n: int, positive_only: bool = False) -> Tensor:
    """Indices of the ``n`` latents of largest effect, fewer when fewer effects count.

    At most as many as have a nonzero effect (SAEBench), or a positive one.
    """
    if not 0 < n <= len(effect):
        raise ValueError(f"n={n} latents of {len(effect)}: choose n_values within 1..d_sae.")
    count = int((effect > 0 if positive_only else effect != 0).sum())
    return effect.argsort(descending=True, stable=True)[: min(n, count)]


def tpp(
    x_train: Tensor,
    z_train: Tensor,
    labels_train: Sequence[Any],
    x_test: Tensor,
    z_test: Tensor,
    labels_test: Sequence[Any],
    W_dec: Tensor,
    *,
    n_values: Sequence[int] = N_VALUES,
    probes: Mapping[Any, LinearProbe] | None = None,
    positive_only: bool = False,
) -> "pd.DataFrame":
    """TPP of every class and every N; probes and latents from the training texts, drops on test.

    x: mean-pooled activations [n_texts, d_in]; z: mean-pooled codes [n_texts, d_sae] >= 0 of the
    same texts on the dictionary W_dec [d_sae, d_in]; labels: the class of each text.
    probes: of `fit_probes`, when they were fitted before.
    positive_only: leave effects of zero out; False is SAEBench's choice.
    Returns one row a class and N: class, n, ablated, positive (latents), clean_accuracy (of the
    class's own probe), on_target_drop, off_target_drop, score. Accuracies are fractions of 1.
    Raises ValueError for fewer than two classes, classes that differ between the splits, shapes
    that do not fit, or an N above d_sae.
    """
    import pandas as pd

    _check(x_train, z_train, labels_train, W_dec)
    _check(x_test, z_test, labels_test, W_dec)
    train, test = one_vs_rest(labels_train), one_vs_rest(labels_test)
    if len(train) < 2 or train.keys() != test.keys():
        raise ValueError(
            "TPP needs two classes or more, the same in both splits; got "
            f"{list(train)} in training and {list(test)} in test."
        )
    probes = fit_probes(x_train, labels_train) if probes is None else probes
    if missing := [name for name in train if name not in probes]:
        raise ValueError(f"no probe for the classes {missing}; fit them with `fit_probes`.")
    ordered = [probes[name] for name in train]
    wanted = torch.stack(list(test.values()), dim=1).bool().to(x_test.device)
    scores = torch.stack([probe(x_test) for probe in ordered], dim=1)
    clean = _balanced_accuracy(scores, wanted)
    directions = torch.stack([probe.weight for probe in ordered], dim=1)
    pull = W_dec.to(directions) @ directions  # [d_sae, classes]: what a unit of code adds
    rows = []
    for i, name in enumerate(train):
        effect = effects(z_train, train[name], ordered[i], W_dec)
        for n in n_values:
            chosen = top_latents(effect, n, positive_only)
            ablated = scores - z_test[:, chosen].to(pull) @ pull[chosen]
            drop = (clean - _balanced_accuracy(ablated, wanted)).tolist()
            on, off = drop[i], (sum(drop) - drop[i]) / (len(drop) - 1)
            positive = int((effect[chosen] > 0).sum())
            rows.append((name, n, len(chosen), positive, float(clean[i]), on, off, on - off))
    columns = ["class", "n", "ablated", "positive", "clean_accuracy"]
    return pd.DataFrame(rows, columns=[*columns, "on_target_drop", "off_target_drop", "score"])


def mean_over_classes(table: "pd.DataFrame") -> "pd.DataFrame":
    """The means over the classes of `tpp`'s table: one row an N, every class weighted the same."""
    return table.drop(columns="class").groupby("n", as_index=False).mean()


def _balanced_accuracy(scores: Tensor, wanted: Tensor) -> Tensor:
    """[classes]: mean of the share accepted of a class and the share rejected of the rest."""
    said, wanted = (scores > 0).double(), wanted.double()
    accepted = (said * wanted).sum(0) / wanted.sum(0)
    rejected = ((1 - said) * (1 - wanted)).sum(0) / (1 - wanted).sum(0)
    return (accepted + rejected) / 2


def _check(x: Tensor, z: Tensor, labels: Sequence[Any], W_dec: Tensor) -> None:
    if not len(x) == len(z) == len(labels):
        raise ValueError(
            f"x, z and labels must speak of the same texts; got {len(x)}, {len(z)} "
            f"and {len(labels)} of them. Pool tokens into texts first."
        )
    if W_dec.shape != (z.shape[-1], x.shape[-1]):
        raise ValueError(
            f"W_dec has shape {tuple(W_dec.shape)}; expected [d_sae, d_in] = "
            f"[{z.shape[-1]}, {x.shape[-1]}]."
        )
