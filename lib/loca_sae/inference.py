"""The paper's three ways to infer codes from one and the same trained decoder.

- ``"full"``: the SAE's own encoder, one pass (fully amortized).
- ``"semi"``: start at the encoder's code, then ``steps`` proximal gradient steps (ISTA).
- ``"non"``: start at zero, ``steps`` such steps (the paper uses about 200), or the certified
  optimum (``solver="exact"``).

All three are expressed on the SAE's *effective dictionary*: decoder rows scaled to unit norm, the
codes in the matching units, and ``x - b_dec`` as the target, so that the objective
``1/2 ||x - b_dec - z W_dec||^2 + lam * sum_j z_j`` (sum over d_in; no mean) is the same for each
mode and ``lam`` means the same thing for each SAE. The paper writes the objective without the 1/2:
its lambda is twice this ``lam``. The modes are compared at equal density: ``lam`` is found by
bisection on the mean L0 of the very solver that is used.

Protocol "native": each SAE is run as SAELens runs it, with its biases, thresholds and trained k.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from sae_lens import SAE

from loca_sae import sparse_coding

Mode = Literal["full", "semi", "non"]
Solver = Literal["ista", "exact"]
MODES: tuple[Mode, ...] = get_args(Mode)
SEMI_STEPS, NON_STEPS = 25, 200
_CHUNK = 4096
# lambda is sought down to the mean lambda_max / 2048: below that it no longer decides what fires
_LAMBDA_SPAN = 256.0


class Dictionary(NamedTuple):
    """An SAE's decoder as a sparse coder sees it.

    W_dec: [d_sae, d_in], rows of unit norm (zero rows stay zero).
    b_dec: [d_in], subtracted from x to give the target.
    code_scale: [d_sae], multiplies the SAE's own feature_acts to give codes on ``W_dec``.
    """

    W_dec: torch.Tensor
    b_dec: torch.Tensor
    code_scale: torch.Tensor


@torch.no_grad()
def dictionary(sae: SAE[Any]) -> Dictionary:
    """Effective dictionary of a SAELens SAE: ``decode(f) = (f * code_scale) @ W_dec + b_dec``.

    Nothing is folded into the encoder, since folding changes what a TopK selects. SAELens's TopK
    family may already give codes in units of the decoder norm (``rescale_acts_by_decoder_norm``).
    Raises ValueError when the SAE normalizes its input at run time, because its reconstruction is
    then not a linear function of the codes.
    """
    normalization = sae.cfg.normalize_activations
    if normalization not in ("none", "expected_average_only_in"):
        raise ValueError(
            f"this SAE normalizes its input at run time (normalize_activations={normalization!r}); "
            "its decoder is not one dictionary. Fold the normalization first, or use an SAE "
            "with normalize_activations='none'."
        )
    norms = sae.W_dec.norm(dim=-1)
    already_rescaled = bool(getattr(sae.cfg, "rescale_acts_by_decoder_norm", False))
    return Dictionary(
        W_dec=(sae.W_dec / norms.clamp(min=1e-8)[:, None]).detach(),
        b_dec=sae.b_dec.detach(),
        code_scale=torch.ones_like(norms) if already_rescaled else norms.detach(),
    )


@dataclass(frozen=True)
class Inference:
    """One SAE in one mode, ready to encode: ``infer(x) -> codes [n, d_sae]`` (see `prepare`).

    lam: the L1 weight of semi and non; nan in full mode, which has none.
    target_l0, l0: mean L0 of full mode, and of this mode, on the calibration activations.
    matched: whether the two agree within 1 %.
    """

    sae: SAE[Any]
    dictionary: Dictionary
    mode: Mode
    steps: int
    solver: Solver
    lam: float
    target_l0: float
    l0: float
    matched: bool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Codes [n, d_sae] >= 0 on the effective dictionary for activations x [n, d_in]."""
        return _encode(self.sae, self.dictionary, x, self.mode, self.lam, self.steps, self.solver)

    def reconstruct(self, codes: torch.Tensor) -> torch.Tensor:
        """x_hat [n, d_in] = codes W_dec + b_dec."""
        return codes @ self.dictionary.W_dec + self.dictionary.b_dec

    def round_trip(self, x: torch.Tensor) -> torch.Tensor:
        """x_hat [n, d_in] of activations x [n, d_in] in this mode."""
        return self.reconstruct(self(x))


def prepare(
    sae: SAE[Any],
    x: torch.Tensor,
    mode: Mode,
    *,
    steps: int | None = None,
    solver: Solver = "ista",
    lam: float | None = None,
    target_l0: float | None = None,
) -> Inference:
    """Fix everything that a mode needs before it encodes; calibrate ``lam`` where it is not given.

    x [n, d_in]: calibration activations (a few hundred are enough).
    steps: ISTA steps; by default 25 in semi and 200 in non mode.
    target_l0: the mean L0 to match; by default that of full mode on ``x``.
    """
    _check(mode, solver, steps)
    steps = (SEMI_STEPS if mode == "semi" else NON_STEPS) if steps is None else steps
    atoms = dictionary(sae)
    full_l0 = _mean_l0(_encode(sae, atoms, x, "full", 0.0, 0, solver))
    target = full_l0 if target_l0 is None else target_l0
    if mode == "full":
        return Inference(sae, atoms, mode, 0, solver, float("nan"), target, full_l0, True)
    if lam is not None:
        l0 = _mean_l0(_encode(sae, atoms, x, mode, lam, steps, solver))
        matched = abs(l0 - target) <= 0.01 * target
        return Inference(sae, atoms, mode, steps, solver, lam, target, l0, matched)
    if target == 0:
        raise ValueError(
            "the encoder fires on none of the calibration activations, so there is no density to "
            "match; give lam or target_l0, or an SAE that fires."
        )
    found = sparse_coding.calibrate_lambda(
        lambda value: _encode(sae, atoms, x, mode, value, steps, solver),
        target,
        x=x - atoms.b_dec,
        W_dec=atoms.W_dec,
        span=_LAMBDA_SPAN,
    )
    return Inference(sae, atoms, mode, steps, solver, found.lam, target, found.l0, found.converged)


def encode(
    sae: SAE[Any],
    x: torch.Tensor,
    mode: Mode = "full",
    *,
    lam: float | None = None,
    steps: int | None = None,
    solver: Solver = "ista",
) -> torch.Tensor:
    """Codes [n, d_sae] of activations x [n, d_in] in one mode; see `prepare` for the arguments.

    Without ``lam``, semi and non are calibrated on ``x`` itself to the mean L0 of full mode.
    """
    return prepare(sae, x, mode, lam=lam, steps=steps, solver=solver)(x)


def _check(mode: str, solver: str, steps: int | None) -> None:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; use one of {list(MODES)}.")
    if solver not in get_args(Solver):
        raise ValueError(f"solver {solver!r} is unknown; use one of {list(get_args(Solver))}.")
    if solver == "exact" and mode == "semi":
        raise ValueError(
            "the exact solution is the same wherever it starts, so semi mode has no exact solver; "
            "use mode='non'."
        )
    if steps is not None and steps < 0:
        raise ValueError(f"steps is {steps}; it counts ISTA steps and cannot be negative.")


@torch.no_grad()
def _encode(
    sae: SAE[Any],
    atoms: Dictionary,
    x: torch.Tensor,
    mode: Mode,
    lam: float,
    steps: int,
    solver: Solver,
) -> torch.Tensor:
    chunks = [_encode_chunk(sae, atoms, c, mode, lam, steps, solver) for c in x.split(_CHUNK)]
    return torch.cat(chunks)


def _encode_chunk(
    sae: SAE[Any],
    atoms: Dictionary,
    x: torch.Tensor,
    mode: Mode,
    lam: float,
    steps: int,
    solver: Solver,
) -> torch.Tensor:
    start = None if mode == "non" else (sae.encode(x) * atoms.code_scale).to(x.dtype)
    if mode == "full":
        assert start is not None
        return start
    target = x - atoms.b_dec
    if solver == "exact":
        return sparse_coding.solve(target, atoms.W_dec, lam, z0=start).codes
    return sparse_coding.ista(target, atoms.W_dec, lam, steps, z0=start)


def _mean_l0(codes: torch.Tensor) -> float:
    return float((codes > 0).sum(-1).double().mean())
