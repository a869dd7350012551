"""Codes of either sign, as non-negative codes on a dictionary and its mirror image.

z W_dec with z of either sign equals [z+, z-] [W_dec; -W_dec], and ||z||_1 is the sum of both
parts. Every certificate and exact solver for z >= 0 therefore serves the signed problem too.
"""

import torch


def mirrored(W_dec: torch.Tensor) -> torch.Tensor:
    """[W_dec; -W_dec], [2 d_sae, d_in]."""
    return torch.cat([W_dec, -W_dec])


def split(codes: torch.Tensor) -> torch.Tensor:
    """[max(z, 0), max(-z, 0)], [n, 2 d_sae]."""
    return torch.cat([codes.clamp(min=0), (-codes).clamp(min=0)], dim=-1)


def merge(codes: torch.Tensor) -> torch.Tensor:
    """The signed codes [n, d_sae] of non-negative ones [n, 2 d_sae]."""
    positive, negative = codes.chunk(2, dim=-1)
    return positive - negative
