"""One SAE in one mode under one protocol, ready to encode."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from sae_lens import SAE, MatchingPursuitSAE, MatchingPursuitSAEConfig

from loca_sae import sparse_coding
from loca_sae.inference import density, signed
from loca_sae.inference.dictionary import Dictionary, dictionary
from loca_sae.inference.encoder import encoder_codes
from loca_sae.inference.settings import Mode, Settings, Solver, settings
from loca_sae.protocols import Protocol

_CHUNK = 4096


@dataclass(frozen=True)
class Inference:
    """One SAE in one mode, ready to encode: ``infer(x) -> codes [n, d_sae]`` (see `prepare`).

    settings: mode, protocol, steps, solver, refit; also readable from here.
    lam: the L1 weight; nan where none takes part (full mode, greedy solvers).
    target_l0, l0: the mean L0 to match, and that of this mode before refitting, on the calibration
        activations.
    matched: whether the two agree within 1 %.
    """

    sae: SAE[Any]
    dictionary: Dictionary
    settings: Settings
    lam: float
    target_l0: float
    l0: float
    matched: bool

    @property
    def mode(self) -> Mode:
        return self.settings.mode

    @property
    def steps(self) -> int:
        return self.settings.steps

    @property
    def solver(self) -> Solver:
        return self.settings.solver

    @property
    def refit(self) -> bool:
        return self.settings.refit

    @property
    def protocol(self) -> Protocol:
        return self.settings.protocol

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Codes [n, d_sae] on the effective dictionary for activations x [n, d_in].

        Non-negative, except in semi and non mode under a protocol with signed codes: a latent
        fires where its code is not 0.
        """
        return Coder(self.sae, self.dictionary, self.settings, self.target_l0)(x, self.lam)

    def refitted(self, x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Codes of this mode [n, d_sae] for x, their values replaced by the best on their support.

        Non-negative least squares for each sample; what ``refit=True`` does after the mode.
        """
        return _refitted(self.target(x), self.dictionary.W_dec, codes)

    def target(self, x: torch.Tensor) -> torch.Tensor:
        """What the codes explain: x - b_dec, or x where the protocol leaves the bias out."""
        return x - self.dictionary.b_dec

    def reconstruct(self, codes: torch.Tensor) -> torch.Tensor:
        """x_hat [n, d_in] = codes W_dec + b_dec."""
        return codes @ self.dictionary.W_dec + self.dictionary.b_dec

    def round_trip(self, x: torch.Tensor) -> torch.Tensor:
        """x_hat [n, d_in] of activations x [n, d_in] in this mode."""
        return self.reconstruct(self(x))

    def objective(
        self, x: torch.Tensor, codes: torch.Tensor, lam: float | None = None
    ) -> torch.Tensor:
        """1/2 ||target - codes W_dec||^2 + lam ||codes||_1 of each sample, [n] float64."""
        z, atoms = self._non_negative(codes)
        return sparse_coding.objective(self.target(x), z, atoms, self.lam if lam is None else lam)

    def duality_gap(self, x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """An upper bound of objective minus minimum of each sample, [n] float64."""
        z, atoms = self._non_negative(codes)
        return sparse_coding.duality_gap(self.target(x), z, atoms, self.lam)

    def _non_negative(self, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes >= 0 and the atoms they belong to, whatever sign the protocol allows."""
        if not self.protocol.signed:
            return codes, self.dictionary.W_dec
        return signed.split(codes), signed.mirrored(self.dictionary.W_dec)


def prepare(
    sae: SAE[Any],
    x: torch.Tensor,
    mode: Mode,
    protocol: str | Protocol = "native",
    *,
    steps: int | None = None,
    solver: Solver = "ista",
    refit: bool = False,
    lam: float | None = None,
    target_l0: float | None = None,
) -> Inference:
    """Fix everything that a mode needs before it encodes; calibrate ``lam`` where it is not given.

    x [n, d_in]: calibration activations (a few hundred are enough), in the SAE's own units.
    steps: ISTA steps; by default 25 in semi and 200 in non mode.
    solver: of non mode: "ista" steps from zero; "exact", the certified optimum of the objective;
        "omp" (non-negative orthogonal matching pursuit with exchange steps) with as many atoms a
        sample as the encoder fires; "matching_pursuit" (SAELens's) with as many iterations as the
        encoder fires latents in the mean.
    refit: replace the values by non-negative least squares on the support that the mode chose.
    target_l0: the mean L0 to match; by default what the protocol aims at on ``x``.
    ValueError: unknown names, a mode without such a solver, an encoder that fires nowhere.
    """
    chosen = settings(mode, protocol, steps, solver, refit)
    atoms = dictionary(sae, chosen.protocol)
    full = Coder(sae, atoms, replace(chosen, mode="full"), 0.0).before_refit(x, float("nan"))
    wanted = density.mean_l0(full)
    if chosen.needs_lam:
        wanted = density.target(full, chosen.protocol)
    if target_l0 is not None and not chosen.greedy:
        wanted = target_l0
    coder = Coder(sae, atoms, chosen, wanted)
    if not chosen.needs_lam:
        lam = float("nan")
        l0 = density.mean_l0(coder.before_refit(x, lam) if chosen.greedy else full)
    elif lam is not None:
        l0 = density.mean_l0(coder.before_refit(x, lam))
    else:
        if wanted == 0 and chosen.protocol.lam_target == "l0":
            raise ValueError(
                "the encoder fires on none of the calibration activations, so there is no density "
                "to match; give lam or target_l0, or an SAE that fires."
            )
        lam, l0 = density.find_lambda(
            lambda value: coder.before_refit(x, value),
            wanted,
            x - atoms.b_dec,
            atoms.W_dec,
            chosen.protocol,
        )
    return Inference(sae, atoms, chosen, lam, wanted, l0, density.matches(l0, wanted))


def encode(
    sae: SAE[Any],
    x: torch.Tensor,
    mode: Mode = "full",
    protocol: str | Protocol = "native",
    *,
    lam: float | None = None,
    steps: int | None = None,
    solver: Solver = "ista",
    refit: bool = False,
) -> torch.Tensor:
    """Codes [n, d_sae] of activations x [n, d_in] in one mode; see `prepare` for the arguments.

    Without ``lam``, semi and non are calibrated on ``x`` itself to the mean L0 of full mode.
    """
    infer = prepare(sae, x, mode, protocol, lam=lam, steps=steps, solver=solver, refit=refit)
    return infer(x)


@dataclass(frozen=True)
class Coder:
    """``coder(x, lam)``: codes by the settings, without a fixed lambda.

    iterations: of matching pursuit.
    """

    sae: SAE[Any]
    atoms: Dictionary
    settings: Settings
    iterations: float

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, lam: float) -> torch.Tensor:
        return torch.cat([self._refitted(part, self._infer(part, lam)) for part in x.split(_CHUNK)])

    @torch.no_grad()
    def before_refit(self, x: torch.Tensor, lam: float) -> torch.Tensor:
        """The mode's own codes, whose density is what lambda is matched on."""
        return torch.cat([self._infer(part, lam) for part in x.split(_CHUNK)])

    def _infer(self, x: torch.Tensor, lam: float) -> torch.Tensor:
        chosen, W_dec, target = self.settings, self.atoms.W_dec, x - self.atoms.b_dec
        if chosen.mode == "non" and chosen.solver == "matching_pursuit":
            return _matching_pursuit(target, W_dec, max(1, round(self.iterations)))
        start = None
        if not (chosen.mode == "non" and chosen.solver == "ista"):
            start = encoder_codes(self.sae, self.atoms, x, chosen.protocol)
        if chosen.mode == "full":
            assert start is not None
            return start
        if chosen.solver == "omp":
            assert start is not None
            return sparse_coding.omp(target, W_dec, (start != 0).sum(-1))
        if chosen.solver == "exact":
            return self._exact(target, lam, start)
        signs = chosen.protocol.signed
        return sparse_coding.ista(target, W_dec, lam, chosen.steps, z0=start, signed=signs)

    def _exact(self, target: torch.Tensor, lam: float, start: torch.Tensor | None) -> torch.Tensor:
        W_dec = self.atoms.W_dec
        if not self.settings.protocol.signed:
            return sparse_coding.solve(target, W_dec, lam, z0=start).codes
        z0 = None if start is None else signed.split(start)
        return signed.merge(sparse_coding.solve(target, signed.mirrored(W_dec), lam, z0=z0).codes)

    def _refitted(self, x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        if not self.settings.refit:
            return codes
        return _refitted(x - self.atoms.b_dec, self.atoms.W_dec, codes)


@torch.no_grad()
def _refitted(target: torch.Tensor, W_dec: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Least squares on the support and signs of the codes."""
    if bool((codes < 0).any()):
        atoms = signed.mirrored(W_dec)
        return signed.merge(sparse_coding.refit(target, atoms, signed.split(codes)))
    return sparse_coding.refit(target, W_dec, codes)


def _matching_pursuit(target: torch.Tensor, W_dec: torch.Tensor, iterations: int) -> torch.Tensor:
    """SAELens's matching pursuit on these atoms, for a fixed number of iterations."""
    config = MatchingPursuitSAEConfig(
        d_in=W_dec.shape[1],
        d_sae=W_dec.shape[0],
        residual_threshold=0.0,
        max_iterations=iterations,
        apply_b_dec_to_input=False,
        device=str(W_dec.device),
    )
    coder = MatchingPursuitSAE(config)
    coder.W_dec.data = W_dec
    return coder.encode(target)
