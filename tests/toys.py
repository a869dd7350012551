"""Small SAEs and activations that several test files share."""

import torch
from sae_lens import (
    SAE,
    BatchTopKTrainingSAE,
    BatchTopKTrainingSAEConfig,
    StandardTrainingSAE,
    StandardTrainingSAEConfig,
    TopKTrainingSAE,
    TopKTrainingSAEConfig,
)

from loca_sae.architecture import LocATrainingSAE, LocATrainingSAEConfig

D_IN, D_SAE = 12, 32
ARCHITECTURES = ["standard", "topk", "topk_unscaled", "batchtopk", "loca"]


def random_sae(architecture: str, folder) -> SAE:
    """A saved and loaded SAELens SAE with random weights and decoder norms away from 1."""
    torch.manual_seed(3)
    size = {"d_in": D_IN, "d_sae": D_SAE}
    sae = {
        "standard": lambda: StandardTrainingSAE(StandardTrainingSAEConfig(**size)),
        "topk": lambda: TopKTrainingSAE(TopKTrainingSAEConfig(**size, k=5)),
        "topk_unscaled": lambda: TopKTrainingSAE(
            TopKTrainingSAEConfig(**size, k=5, rescale_acts_by_decoder_norm=False)
        ),
        "batchtopk": lambda: BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(**size, k=5)),
        "loca": lambda: LocATrainingSAE(
            LocATrainingSAEConfig(**size, group_sizes=[8, 24], group_ks=[3, 2])
        ),
    }[architecture]()
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.copy_(torch.randn_like(parameter))
        if architecture == "batchtopk":
            sae.topk_threshold.fill_(0.7)
    sae.save_inference_model(folder)
    return SAE.load_from_disk(folder)


def activations(n: int = 60, seed: int = 0) -> torch.Tensor:
    """[n, D_IN], with a mean direction, as residual streams have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, D_IN, generator=generator) * 2 + 1


class ToyActivations:
    """The reading side of ``loca_sae.activations.Activations``, over a tensor in memory."""

    def __init__(self, x: torch.Tensor, name: str = "toy") -> None:
        self.x, self.name, self.scale = x, name, 1.0
        self.n, self.d_in = x.shape
        self.stats = {"model": "toy", "layer": 0}

    def sample(self, n: int, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.x[torch.randperm(self.n, generator=generator)[:n]]

    def batches(self, batch_size: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self.x[torch.randint(self.n, (batch_size,), generator=generator)]

    def iterate(self, batch_size: int):
        yield from self.x.split(batch_size)


def sparse_activations(n: int = 2000, seed: int = 0) -> torch.Tensor:
    """[n, D_IN] from 20 known directions, two of them active in a sample."""
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.nn.functional.normalize(torch.randn(20, D_IN, generator=generator), dim=1)
    codes = torch.zeros(n, 20)
    codes.scatter_(1, torch.rand(n, 20, generator=generator).topk(2).indices, 1.0)
    return codes * (1 + torch.rand(n, 20, generator=generator)) @ atoms * 3
