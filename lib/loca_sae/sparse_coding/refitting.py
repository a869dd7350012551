"""Values anew on a given support: non-negative least squares for each sample."""

import torch

from loca_sae.sparse_coding import batched_nnls, checks, coordinate_descent, dictionary
from loca_sae.sparse_coding.threads import over_slices

_SLICE = 32  # samples a thread takes at a time


@torch.no_grad()
def refit(x: torch.Tensor, W_dec: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Minimise 1/2 ||x - z W_dec||^2 over z >= 0 with z_j = 0 wherever codes_j = 0.

    x: [n, d_in], the target (an SAE's x - b_dec); W_dec: [d_sae, d_in], atoms of any norm.
    codes: [n, d_sae], read for where they are not 0 (a mask will do) and as a start; not changed.

    Returns z [n, d_sae] in the dtype of x (float32 for half precision), worked out in float64 and
    exact but for rounding, so that codes >= 0 never have a lower error. An atom of the support may
    come out as 0. Of atoms that depend on one another (duplicates, more atoms than d_in) not all
    are used; the reconstruction is the best one, and it is unique.

    An active-set method, warm-started [1]: on the CPU compiled, one sample after another, on other
    devices and without numba in batches. Memory beside the codes is bounded.
    ValueError: shapes, devices, NaN or infinite values.

    [1] Lawson, Hanson, "Solving Least Squares Problems" (1974), chapter 23.
    """
    given = checks.problem(x, W_dec)
    start = codes.to(given.x.dtype) if codes.dtype == torch.bool else codes.detach()
    z = checks.codes(start.abs(), given, "codes").contiguous()
    if z.device.type != "cpu" or not coordinate_descent.available():
        batched_nnls.on_support(given, z)
    else:
        _compiled(given, z)
    return z


def _compiled(given: checks.Problem, z: torch.Tensor) -> None:
    from loca_sae.sparse_coding.nnls_kernels import refit_slice

    x, codes, W_dec = given.x.numpy(), z.numpy(), given.W_dec.numpy()
    norms = dictionary.norms(given.W_dec).numpy()

    def work(part: slice) -> None:
        refit_slice(x[part], codes[part], norms, W_dec)

    over_slices(work, len(x), _SLICE)
