"""Small SAEs and activations that several test files share."""

import torch
from sae_lens import SAE
from sae_lens.registry import get_sae_training_class

from loca_sae import architecture as _registers_loca  # noqa: F401

D_IN, D_SAE = 12, 32
# what SAELens's training config needs besides the sizes; "topk_unscaled" is a TopK SAE that selects
# without regard to decoder norms
OPTIONS: dict[str, dict] = {
    "standard": {},
    "topk": {"k": 5},
    "topk_unscaled": {"k": 5, "rescale_acts_by_decoder_norm": False},
    "batchtopk": {"k": 5},
    "gated": {},
    "jumprelu": {},
    "matryoshka_batchtopk": {"k": 5, "matryoshka_widths": [4, 8, 16, D_SAE]},
    "matching_pursuit": {"max_iterations": 5, "residual_threshold": 0.0, "decoder_init_norm": 1.0},
    "loca": {"group_sizes": [8, 24], "group_ks": [3, 2]},
}
ARCHITECTURES = list(OPTIONS)


def random_sae(architecture: str, folder) -> SAE:
    """A saved and loaded SAELens SAE with random weights and decoder norms away from 1.

    Thresholds are positive, as trained ones are. Matching pursuit keeps unit rows: its greedy steps
    are projections only then.
    """
    torch.manual_seed(3)
    kind = architecture.removesuffix("_unscaled")
    sae_class, config_class = get_sae_training_class(kind)
    options = OPTIONS[architecture]
    sae = sae_class(config_class(d_in=D_IN, d_sae=D_SAE, **options))
    sae.cfg.metadata.trained_architecture = kind
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.copy_(torch.randn_like(parameter))
        if architecture == "gated":
            sae.r_mag.mul_(0.3)
        if architecture == "jumprelu":
            sae.threshold.abs_()
        if architecture == "matching_pursuit":
            sae.W_dec.div_(sae.W_dec.norm(dim=-1, keepdim=True))
        if "batchtopk" in architecture:
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

    def at_scale(self, scale: float) -> "ToyActivations":
        scaled = ToyActivations(self.x * (scale / self.scale), f"{self.name}@{scale!r}")
        scaled.scale = scale
        return scaled

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
