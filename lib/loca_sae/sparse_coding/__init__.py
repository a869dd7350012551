"""Non-negative sparse coding on a fixed dictionary: solvers, certificate, calibration, k-sparse.

Throughout, per sample and with the sum over d_in (no mean):

    L(x, z) = 1/2 ||x - z W_dec||^2 + lam * sum_j z_j,    z >= 0

x [n, d_in] is the target (an SAE's x - b_dec), z [n, d_sae] the codes, W_dec [d_sae, d_in] the
atoms, one a row. The paper writes the objective without the 1/2: its lambda is 2 * lam here. Codes
depend on the norms of the atoms; to compare SAEs, scale decoder rows to unit norm first.
"""

from loca_sae.sparse_coding.calibration import Calibration, calibrate_lambda
from loca_sae.sparse_coding.certificate import (
    duality_gap,
    lambda_max,
    objective,
    soft_threshold_nonneg,
)
from loca_sae.sparse_coding.dictionary import lipschitz
from loca_sae.sparse_coding.exact import Solution, solve
from loca_sae.sparse_coding.first_order import fista, ista
from loca_sae.sparse_coding.k_sparse import omp
from loca_sae.sparse_coding.refitting import refit

__all__ = [
    "Calibration",
    "Solution",
    "calibrate_lambda",
    "duality_gap",
    "fista",
    "ista",
    "lambda_max",
    "lipschitz",
    "objective",
    "omp",
    "refit",
    "soft_threshold_nonneg",
    "solve",
]
