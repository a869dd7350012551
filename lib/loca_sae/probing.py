"""Probes: how well a few latents, or a direction, tell the texts of a concept from the rest.

Shapes: codes z [n, d_sae], activations x [n, d_in], labels y [n] of zeros and ones (any sequence).
A row is a token or, after `pool`, a text. Everything is fitted on the training split and scored on
the test split; statistics (means, standard deviations, ranking) come from the training split only.

- F1@k: latents ranked by the absolute Pearson correlation of their code with y, z-scored, then a
  logistic regression with balanced class weights (scikit-learn, L2 with C = 1) on the first k.
  dF1 = F1@2 - F1@1: what a second latent adds when the concept is split over two [1].
- Absorption proxy [1]: among the positives, the share on which the main latent is off while an
  auxiliary one is on. It is not the first-letter measure of Chanin et al. [2].
- Linear probes on activations, for targeted probe perturbation and for the concepts themselves.

Sources
1. Sun, Wang, Hu. The Price of Amortized Inference in Sparse Autoencoders. ICLR 2026.
2. Chanin et al. A is for Absorption. 2024.
3. Karvonen et al. SAEBench. 2025 (pooling and mean-difference ranking of k-sparse probing).
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

Labels = Sequence[int] | np.ndarray | Tensor
Reading = Literal["checked", "released"]


class DeltaF1(NamedTuple):
    """F1 with one latent, with two, and ``delta = f1_2 - f1_1``."""

    f1_1: float
    f1_2: float
    delta: float


class AbsorptionProxy(NamedTuple):
    """See `absorption_proxy`.

    rate: in [0, 1]; nan without test positives or without any candidate for the main latent.
    main: index of the main latent, None without a candidate.
    aux: indices of the auxiliary latents, best first (fewer when fewer are candidates).
    main_correlation: signed, on the training split. Negative (reading "released" only) means that
        the main latent is off *because* the concept is there, and the rate is then meaningless.
    n_positives: number of test positives, the denominator of the rate.
    """

    rate: float
    main: int | None
    aux: list[int]
    main_correlation: float
    n_positives: int


class LinearProbe(NamedTuple):
    """Says 1 where ``x @ weight + bias > 0``; weight [d_in], bias a scalar, both float64."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Decision values [n] (float64) of activations x [n, d_in]."""
        return x.to(self.weight) @ self.weight + self.bias


def one_vs_rest(labels: Sequence[Any]) -> dict[Any, Tensor]:
    """For each distinct label, sorted: y [n] (int64), this label (1) against the rest (0)."""
    names = np.asarray(labels)
    distinct = np.unique(names).tolist()
    return {name: torch.from_numpy(np.equal(names, name).astype(np.int64)) for name in distinct}


def pool(z: Tensor, text: Tensor, n_texts: int, how: Literal["mean", "max"] = "mean") -> Tensor:
    """Codes (or activations) of texts from those of their tokens.

    z: [rows, d]; text: [rows], index in 0..n_texts-1 of the text that a row belongs to.
    Returns [n_texts, d]: the mean [3] or the maximum over the rows of each text.
    Raises ValueError when a text has no row, since it then has no codes at all.
    """
    text = torch.as_tensor(text, device=z.device).long()
    if text.shape != z.shape[:1]:
        raise ValueError(f"one text index a row: got {tuple(text.shape)} for {len(z)} rows of z.")
    if how not in ("mean", "max"):
        raise ValueError(f"how={how!r} is unknown; pool with 'mean' or 'max'.")
    if len(text) and (int(text.min()) < 0 or int(text.max()) >= n_texts):
        raise ValueError(
            f"text indices must lie in 0..{n_texts - 1}; got {int(text.min())}..{int(text.max())}."
        )
    empty = (torch.bincount(text, minlength=n_texts) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"{len(empty)} of {n_texts} texts have no row (first: {empty[:5]}); "
            "drop these texts and their labels before pooling."
        )
    into = z.new_zeros(n_texts, z.shape[1])
    index = text[:, None].expand_as(z)
    return into.scatter_reduce(0, index, z, "mean" if how == "mean" else "amax", include_self=False)


def correlations(z: Tensor, y: Labels) -> Tensor:
    """Pearson correlation [d_sae] (float64) of each latent's code with the 0/1 label.

    A constant latent (a dead one, say) or a constant label has none: 0 there.
    """
    label = _binary(y, len(z)).to(z.device)
    if not torch.isfinite(z).all():
        raise ValueError("the codes hold NaN or infinite values; find out why before probing them.")
    centred = z.double()
    centred = centred - centred.mean(0)
    target = label.double() - label.double().mean()
    norms = centred.square().sum(0).sqrt() * target.norm()
    # by equality, not by a small norm: the mean of equal numbers is off by rounding
    varies = (z.amax(0) > z.amin(0)) & (norms > 0)
    return torch.where(varies, target @ centred / norms.where(varies, 1.0), 0.0)


def f1_at_k(z_train: Tensor, y_train: Labels, z_test: Tensor, y_test: Labels, k: int) -> float:
    """F1 on the test split of a balanced logistic regression on the k best latents.

    Latents are ranked by |correlation| on the training split (ties: lower index first) and
    z-scored with its statistics. nan when the test split has no positives.
    Raises ValueError when k is not in 1..d_sae or the training labels hold one class only.
    """
    _check_splits(z_train, z_test)
    if not 1 <= k <= z_train.shape[1]:
        raise ValueError(f"k={k} latents of {z_train.shape[1]}: choose k in 1..d_sae.")
    ranking = _descending(correlations(z_train, y_train).abs())
    return _f1(z_train, y_train, z_test, y_test, ranking[:k])


def delta_f1(z_train: Tensor, y_train: Labels, z_test: Tensor, y_test: Labels) -> DeltaF1:
    """F1@1, F1@2 and their difference; arguments and errors as in `f1_at_k`."""
    _check_splits(z_train, z_test)
    if z_train.shape[1] < 2:
        raise ValueError("dF1 compares one latent with two; the codes have only one latent.")
    ranking = _descending(correlations(z_train, y_train).abs())
    one, two = (_f1(z_train, y_train, z_test, y_test, ranking[:k]) for k in (1, 2))
    return DeltaF1(one, two, two - one)


def absorption_proxy(
    z_train: Tensor,
    y_train: Labels,
    z_test: Tensor,
    y_test: Labels,
    n_aux: int = 5,
    reading: Reading = "checked",
) -> AbsorptionProxy:
    """Share of the test positives on which the main latent is off and any auxiliary one is on.

    Latents are ranked by |correlation| on the training split: the first is the main latent, the
    next ``n_aux`` are the auxiliary ones. On means z > 0.

    reading: which latents are ranked.
        "checked" (default): those with a positive correlation. A latent that fires less on the
        concept than elsewhere cannot stand for it, and would count as absorbed nearly always.
        "released": all of them, without a look at the sign. The public release ranks this way,
        and measures on the data that it ranked on: pass the same codes twice to do that too.
    """
    _check_splits(z_train, z_test)
    if reading not in ("checked", "released"):
        raise ValueError(f"reading={reading!r} is unknown; use 'checked' or 'released'.")
    if n_aux < 1:
        raise ValueError(f"n_aux={n_aux}: at least one auxiliary latent is needed.")
    positives = _binary(y_test, len(z_test)).bool().to(z_test.device)
    count = int(positives.sum())
    correlation = correlations(z_train, y_train)
    strength = correlation if reading == "checked" else correlation.abs()
    chosen = [j for j in _descending(strength)[: n_aux + 1].tolist() if strength[j] > 0]
    if not chosen:
        return AbsorptionProxy(float("nan"), None, [], 0.0, count)
    on = z_test[positives][:, chosen] > 0
    absorbed = ~on[:, 0] & on[:, 1:].any(1)
    rate = float(absorbed.double().mean()) if count else float("nan")
    return AbsorptionProxy(rate, chosen[0], chosen[1:], float(correlation[chosen[0]]), count)


def mean_difference_ranking(z: Tensor, y: Labels) -> Tensor:
    """Latents [d_sae] by |mean code on positives - mean code on the rest|, largest first [3]."""
    positive = _both_classes(y, len(z)).bool().to(z.device)
    return _descending((z[positive].double().mean(0) - z[~positive].double().mean(0)).abs())


def linear_probe(x_train: Tensor, y_train: Labels, C: float = 1.0) -> LinearProbe:
    """Logistic regression on activations x [n, d_in], class weights balanced, L2 penalty 1/(2C).

    The penalty depends on the units of x: give activations scaled to a mean norm of sqrt(d_in).
    """
    from sklearn.linear_model import LogisticRegression

    label = _both_classes(y_train, len(x_train)).numpy()
    x = x_train.detach().cpu().double()
    # the intercept is not penalised, so centring moves no optimum; it only helps the solver
    mean = x.mean(0)
    fit = LogisticRegression(C=C, class_weight="balanced", max_iter=2000, tol=1e-6)
    fit.fit((x - mean).numpy(), label)
    weight = torch.from_numpy(fit.coef_[0]).to(x_train.device)
    return LinearProbe(weight, float(fit.intercept_[0]) - mean.to(weight) @ weight)


def accuracy(probe: LinearProbe, x: Tensor, y: Labels) -> float:
    """Share of the rows of x [n, d_in] whose 0/1 label the probe says."""
    label = _binary(y, len(x)).bool().to(x.device)
    return float(((probe(x) > 0) == label).double().mean())


def _f1(z_train: Tensor, y_train: Labels, z_test: Tensor, y_test: Labels, latents: Tensor) -> float:
    from sklearn.linear_model import LogisticRegression

    train, test = (z[:, latents].detach().cpu().double() for z in (z_train, z_test))
    mean, std = train.mean(0), train.std(0, correction=0)
    # a latent that is constant in training says nothing, whatever it does in the test split
    scale = torch.where(train.amax(0) > train.amin(0), 1 / std, 0.0)
    wanted = _binary(y_test, len(test)).numpy()
    fit = LogisticRegression(class_weight="balanced")
    fit.fit(((train - mean) * scale).numpy(), _both_classes(y_train, len(train)).numpy())
    said = fit.predict(((test - mean) * scale).numpy())
    if not wanted.any():
        return float("nan")
    hits = float((said & wanted).sum())
    return 2 * hits / float(said.sum() + wanted.sum())


def _descending(values: Tensor) -> Tensor:
    return values.argsort(descending=True, stable=True)


def _binary(y: Labels, n: int) -> Tensor:
    label = (y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))).detach().cpu()
    if label.shape != (n,):
        raise ValueError(f"labels have shape {tuple(label.shape)}; expected one a row, ({n},).")
    if not ((label == 0) | (label == 1)).all():
        raise ValueError("labels must be 0 or 1 (concept against the rest); see `one_vs_rest`.")
    return label.long()


def _both_classes(y: Labels, n: int) -> Tensor:
    label = _binary(y, n)
    if label.min() == label.max():
        raise ValueError(f"all {n} labels are {int(label[0])}; a probe needs both classes.")
    return label


def _check_splits(z_train: Tensor, z_test: Tensor) -> None:
    if z_train.ndim != 2 or z_test.ndim != 2 or z_train.shape[1] != z_test.shape[1]:
        raise ValueError(
            "codes of the splits must be [n, d_sae] with the same d_sae; got "
            f"{tuple(z_train.shape)} and {tuple(z_test.shape)}."
        )
