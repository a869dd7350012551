"""Notebook 03: the four phases of LocA-SAE, what angular variance orders, and two controls."""

import pandas as pd
import torch

from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.data import Data
from loca_sae.experiments.measures import measure
from loca_sae.experiments.saes import checkpoint_steps, recipe
from loca_sae.loca_training import LocaRun, Order, continue_topk, train_loca
from loca_sae.parameters import LocaParameters, LocaSae
from loca_sae.training import Trained


def loca_sae(p: LocaParameters, data: Data, order: Order = "avar") -> LocaRun:
    """The four phases under a notebook's parameters; phase 1 is the notebook's TopK SAE."""
    return train_loca(
        data.train,
        recipe(p, "topk", p.k),
        group_ks=p.group_ks,
        group_sizes=p.group_sizes or None,
        finetune_steps=p.finetune_steps,
        avar_batches=p.avar_batches,
        min_count=p.min_count,
        order=order,
        checkpoints=tuple(checkpoint_steps(p)),
        device=p.device,
    )


def run(p: LocaSae) -> pd.DataFrame:
    """One row an SAE, in full mode: LocA, what it started from, and the controls."""
    data = experiment_data.load(p)
    rows = []
    for name, trained in variants(p, data).items():
        rows.append({**measure(trained, data, p, "full"), "variant": name})
    return pd.DataFrame(rows)


def variants(p: LocaSae, data: Data) -> dict[str, Trained]:
    """LocA and the SAEs that tell its parts apart.

    - the pretrained TopK SAE (phase 1);
    - the same SAE after the extra steps with one TopK of the total budget: what the larger budget
      and the extra training do by themselves;
    - LocA with latents assigned to groups by chance: what the budgets do without angular variance.
    """
    run_avar = loca_sae(p, data)
    plain = continue_topk(
        data.train, run_avar.pretrained, k=p.loca_k, steps=p.finetune_steps, device=p.device
    )
    return {
        "TopK, phase 1": run_avar.pretrained,
        "TopK, extra steps": plain,
        "LocA, random groups": loca_sae(p, data, order="random").trained,
        "LocA": run_avar.trained,
    }


def latents(p: LocaSae) -> pd.DataFrame:
    """Phase 2, one row a latent: count, avar, group (0 has the highest AVar)."""
    return loca_sae(p, experiment_data.load(p)).latents


def curves(p: LocaSae) -> pd.DataFrame:
    """Training curves of phases 1 and 4 and of the plain continuation, by optimizer step."""
    data = experiment_data.load(p)
    trained = variants(p, data)
    frames = []
    for name, before in (
        ("TopK, phase 1", 0),
        ("TopK, extra steps", p.steps),
        ("LocA, random groups", p.steps),
        ("LocA", p.steps),
    ):
        curve = trained[name].curve()
        norm = _mean_square_norm(data)
        frames.append(
            curve.assign(variant=name, step=curve["step"] + before, nmse=curve["mse"] / norm)
        )
    return pd.concat(frames, ignore_index=True)


def _mean_square_norm(data: Data) -> float:
    """Mean ||x||^2 of the training activations, which turns a loss into an NMSE."""
    total = torch.zeros((), dtype=torch.float64)
    for x in data.train.iterate(4096):
        total += x.double().square().sum()
    return float(total / data.train.n)
