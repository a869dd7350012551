"""FISTA on batches until certified: the engine behind `solve` off the CPU, or without numba."""

import torch

from loca_sae.sparse_coding import checks, dictionary, first_order
from loca_sae.sparse_coding.certificate import duality_gap, objective
from loca_sae.sparse_coding.outcome import Outcome

_CHUNK_FLOATS = 2**24
_STEPS_PER_CHECK = 25
_PATIENCE = 40  # checks without a better distance after which a sample is given up


def accelerate(given: checks.Problem, z: torch.Tensor, tol: float, max_steps: int) -> Outcome:
    """Solve for each row of given.x from z [n, d_sae] >= 0 on, in place (dtype of given.x)."""
    outcome = Outcome.empty(len(z))
    bound = dictionary.lipschitz(given.W_dec)
    step = 1 / bound if bound > 0 else 1.0
    rows = max(1, _CHUNK_FLOATS // z.shape[1])
    for chunk in torch.arange(len(z), device=z.device).split(rows):
        part, codes = given._replace(x=given.x[chunk]), z[chunk]
        outcome.put(chunk, _solve(part, codes, tol, max_steps, step))
        z[chunk] = codes
    return outcome


def _solve(
    given: checks.Problem, z: torch.Tensor, tol: float, max_steps: int, step: float
) -> Outcome:
    """One chunk; samples leave the batch as they reach tol or stop getting better."""
    outcome = Outcome.empty(len(z))
    active = torch.arange(len(z), device=z.device)
    x, state, taken = given.x, first_order.start_fista(z.clone()), 0
    best = torch.full((len(z),), torch.inf, dtype=torch.float64, device=z.device)
    stale = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    while len(active):
        judged, distance = _judge(x, state.z, given, tol, taken)
        distance = distance.to(z.device)
        stale = torch.where(distance < best, 0, stale + 1)
        best = torch.minimum(best, distance)
        leaving = judged.done.to(z.device) | (stale >= _PATIENCE) | (taken >= max_steps)
        if bool(leaving.any()):
            z[active[leaving]] = state.z[leaving]
            outcome.put(active[leaving], Outcome(*(v[leaving.cpu()] for v in judged)))
            keep = ~leaving
            active, x, best, stale = active[keep], x[keep], best[keep], stale[keep]
            state = first_order.FistaState(*(v[keep] for v in state))
        for _ in range(min(_STEPS_PER_CHECK, max_steps - taken) if len(active) else 0):
            first_order.fista_step(state, x, given.W_dec, given.lam, step)
            taken += 1
    return outcome


def _judge(
    x: torch.Tensor, z: torch.Tensor, given: checks.Problem, tol: float, taken: int
) -> tuple[Outcome, torch.Tensor]:
    """The outcome as it stands, and the distance from optimal that has to shrink."""
    W_dec, lam = given.W_dec, given.lam
    value, gap = objective(x, z, W_dec, lam), duality_gap(x, z, W_dec, lam)
    distance, done = gap, gap <= tol * value
    if lam == 0.0:
        distance, scale = _violation(x, z, W_dec)
        done = done | (distance <= tol * scale)
    steps = torch.full((len(z),), taken)
    return Outcome(value.cpu(), gap.cpu(), steps, done.cpu()), distance


def _violation(
    x: torch.Tensor, z: torch.Tensor, W_dec: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """At lam = 0: largest violation of the optimality conditions, and largest correlation."""
    x, z, atoms = checks.double(x), checks.double(z), checks.double(W_dec)
    residual = x - z @ atoms
    h = residual @ atoms.T
    violation = torch.maximum(h.amax(1), torch.where(z > 0, h.abs(), 0.0).amax(1)).clamp(min=0)
    vanished = residual.square().sum(1) <= 1e-10 * x.square().sum(1)
    return violation.masked_fill(vanished, 0.0), (x @ atoms.T).amax(1).clamp(min=0)
