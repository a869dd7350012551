"""The best code of k atoms that greedy selection finds: orthogonal matching pursuit, z >= 0.

Sources: [1] Pati, Rezaiifar, Krishnaprasad, "Orthogonal Matching Pursuit" (1993). [2] Bruckstein,
Elad, Zibulevsky, "On the Uniqueness of Nonnegative Sparse Solutions to Underdetermined Systems of
Equations" (2008), section on OMP with z >= 0. [3] Zhu et al., "A Polynomial Algorithm for Best-
Subset Selection Problem" (2020): exchanges that start from the least useful member.
"""

import torch

from loca_sae.sparse_coding import batched_omp, checks, coordinate_descent, dictionary
from loca_sae.sparse_coding.threads import over_slices

_CHUNK_FLOATS = 2**23  # correlations held at a time: 32 MiB in float32
_SLICE = 32  # samples a thread takes at a time
_EXCHANGES = 10
# share of ||x|| that a correlation with a normalised atom must pass to be more than rounding
_FLOORS = {torch.float32: 1e-6, torch.float64: 1e-12}


@torch.no_grad()
def omp(
    x: torch.Tensor, W_dec: torch.Tensor, k: int | torch.Tensor, exchanges: int = _EXCHANGES
) -> torch.Tensor:
    """Non-negative orthogonal matching pursuit: a low 1/2 ||x - z W_dec||^2 with k atoms, z >= 0.

    x: [n, d_in], the target (an SAE's x - b_dec); W_dec: [d_sae, d_in], atoms of any norm.
    k: most atoms a sample, an int or an integer tensor [n]; 0 to d_sae.
    exchanges: most trials of exchange steps a sample; 0 for none.

    The atom with the largest cosine to the residual enters, values are fitted anew by non-negative
    least squares (atoms may leave), until k are in use or none correlates positively [1, 2]. Then a
    trial drops the atom whose loss costs least, fills up by pursuit without it, and is kept if the
    error falls; the atom next in line is dropped if not [3]. Finding the best support is NP-hard:
    this is a good one, and its error never rises with `exchanges`.

    Returns codes [n, d_sae] in the dtype of x (float32 for half precision), values to rounding the
    optimum on their support. Atoms are chosen in the precision of x. Deterministic; memory beside
    codes and the Gram matrix is bounded by chunks. On the CPU compiled, in batches on other
    devices, without numba or when the Gram matrix would pass 2 GiB.
    ValueError: shapes, devices, NaN or infinite values, k outside 0 to d_sae, exchanges < 0.
    """
    given = checks.problem(x, W_dec)
    checks.count("exchanges", exchanges)
    limits = _limits(k, given)
    z = given.x.new_zeros(len(given.x), len(given.W_dec))
    if not len(z) or int(limits.max()) == 0:
        return z
    engine = _compiled if coordinate_descent.fits(given.W_dec) else batched_omp.pursue
    engine(given, limits, exchanges, _FLOORS[given.x.dtype], z)
    return z


def _limits(k: int | torch.Tensor, given: checks.Problem) -> torch.Tensor:
    """k of each sample [n], checked, on the device of x."""
    n, d_sae = len(given.x), len(given.W_dec)
    if not isinstance(k, torch.Tensor):
        checks.count("k", k)
        k = torch.full((n,), min(k, d_sae + 1))
    if tuple(k.shape) != (n,) or k.is_floating_point() or k.dtype in (torch.bool, torch.complex64):
        raise ValueError(
            f"k is {k.dtype} of shape {tuple(k.shape)}; it must be an int, or an integer tensor "
            f"with one number a sample: [{n}]."
        )
    if n and not 0 <= int(k.min()) <= int(k.max()) <= d_sae:
        raise ValueError(
            f"k runs from {int(k.min())} to {int(k.max())}; with {d_sae} atoms it must lie "
            f"between 0 and {d_sae}."
        )
    return k.to(given.x.device, torch.int64)


def _compiled(
    given: checks.Problem, limits: torch.Tensor, exchanges: int, floor: float, z: torch.Tensor
) -> None:
    from loca_sae.sparse_coding.nnls_kernels import omp_slice

    W_dec, gram = given.W_dec.numpy(), dictionary.gram(given.W_dec).numpy()
    norms = dictionary.norms(given.W_dec).numpy()
    rows = max(_SLICE, _CHUNK_FLOATS // z.shape[1])
    for start in range(0, len(z), rows):
        chunk = slice(start, start + rows)
        q = coordinate_descent.correlations(given.x[chunk], given.W_dec)
        arrays = (given.x[chunk].numpy(), q, limits[chunk].numpy(), z[chunk].numpy())

        def work(part: slice, arrays: tuple = arrays) -> None:
            x, q, k, codes = (a[part] for a in arrays)
            omp_slice(x, q, k, exchanges, floor, norms, W_dec, gram, codes)

        over_slices(work, len(arrays[0]), _SLICE)
