"""Notebook 01: how reconstruction, pathologies and the amortization gap move during training."""

import pandas as pd

from loca_sae.experiments import data as experiment_data
from loca_sae.experiments.data import Data
from loca_sae.experiments.measures import measure
from loca_sae.experiments.saes import checkpoint_steps, sae
from loca_sae.parameters import TrainingDynamics
from loca_sae.training import Trained


def run(p: TrainingDynamics) -> pd.DataFrame:
    """One row an SAE and checkpoint, in full mode, with the gap to the certified optimum."""
    data = experiment_data.load(p)
    rows = []
    for trained in train_all(p, data):
        for step in checkpoint_steps(p):
            row = measure(trained, data, p, "full", step=step)
            rows.append({**row, "seen_tokens": step * p.batch_size})
    return pd.DataFrame(rows)


def train_all(p: TrainingDynamics, data: Data) -> list[Trained]:
    """Standard SAEs over the L1 weights and TopK SAEs over k, each with the same checkpoints."""
    sweep = [("standard", weight) for weight in p.l1_coefficients]
    sweep += [("topk", float(k)) for k in p.ks]
    return [sae(p, data, architecture, sparsity) for architecture, sparsity in sweep]
