"""The paper's three ways to infer codes from one and the same trained decoder.

- ``"full"``: the SAE's own encoder, one pass (fully amortized).
- ``"semi"``: start at the encoder's code, then ``steps`` proximal gradient steps (ISTA).
- ``"non"``: start at zero, ``steps`` such steps (the paper uses about 200), or the certified
  optimum (``solver="exact"``), or a greedy code of the encoder's own sparsity (``solver="omp"``,
  ``"matching_pursuit"``).

All are expressed on the SAE's *effective dictionary*: decoder rows scaled to unit norm, the codes
in the matching units, and ``x - b_dec`` as the target, so that the objective
``1/2 ||x - b_dec - z W_dec||^2 + lam * sum_j z_j`` (sum over d_in; no mean) is the same for each
mode and ``lam`` means the same thing for each SAE. The paper writes the objective without the 1/2:
its lambda is twice this ``lam``. The modes are compared at equal density: ``lam`` is found by
bisection on the mean L0 of the very solver that is used.

An L1 penalty shrinks codes. ``refit=True`` keeps the support that a mode chose and replaces the
values by the best non-negative ones, which separates what the support costs from what the
shrinkage costs.

All this is the protocol "native". `loca_sae.protocols` has the other ways of measuring; a name or
a `Protocol` of one's own goes into every function here.
"""

from loca_sae.inference.dictionary import Dictionary, dictionary, family
from loca_sae.inference.modes import Inference, encode, prepare
from loca_sae.inference.settings import MODES, NON_STEPS, SEMI_STEPS, Mode, Settings, Solver

__all__ = [
    "MODES",
    "NON_STEPS",
    "SEMI_STEPS",
    "Dictionary",
    "Inference",
    "Mode",
    "Settings",
    "Solver",
    "dictionary",
    "encode",
    "family",
    "prepare",
]
