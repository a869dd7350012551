"""ISTA compiled for sparse codes: the same steps as with dense products, for fewer operations.

``D^T (D z - x)`` equals ``z gram - q`` with the Gram matrix of the atoms, and ``z gram`` needs only
the rows of atoms in use: tens to hundreds out of thousands. Columns are taken in tiles, so that the
part of the Gram matrix in work stays in cache over all samples of a slice. See `kernels.py` for the
way such kernels are compiled and run.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import numba
import numpy as np

# No "nnan" and "ninf" here: an ISTA that diverges must really show inf and nan.
_jit = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "arcp", "nsz"})

_TILE = 256


@_jit
def ista_slice(q, z, gram, lam, step_size, steps):
    """steps times z <- max(z - step_size (z gram - q + lam), 0), in place.

    q, z: [n, d_sae], q = x W_dec^T.
    """
    n, d_sae = q.shape
    used = np.empty((2, n, d_sae), np.int32)
    weight = np.empty((2, n, d_sae), q.dtype)
    count = np.zeros((2, n), np.int64)
    h = np.empty(_TILE, q.dtype)
    for s in range(n):
        _collect(z[s], 0, d_sae, used[0, s], weight[0, s], count[0], s)
    for step in range(steps):
        old, new = step % 2, (step + 1) % 2
        count[new] = 0
        for start in range(0, d_sae, _TILE):
            stop = min(start + _TILE, d_sae)
            for s in range(n):
                _tile_of_h(h, q[s], gram, start, stop, used[old, s], weight[old, s], count[old, s])
                _prox_step(z[s][start:stop], h, lam, step_size)
                _collect(z[s], start, stop, used[new, s], weight[new, s], count[new], s)


@_jit
def _tile_of_h(h, q, gram, start, stop, used, weight, count):
    """h[: stop - start] = (q - z gram)[start:stop], four atoms at a time."""
    h = h[: stop - start]
    h[:] = q[start:stop]
    last = count - count % 4
    for e in range(0, last, 4):
        w0, w1, w2, w3 = weight[e], weight[e + 1], weight[e + 2], weight[e + 3]
        row0, row1 = gram[used[e]][start:stop], gram[used[e + 1]][start:stop]
        row2, row3 = gram[used[e + 2]][start:stop], gram[used[e + 3]][start:stop]
        for c in range(h.shape[0]):
            h[c] -= (w0 * row0[c] + w1 * row1[c]) + (w2 * row2[c] + w3 * row3[c])
    for e in range(last, count):
        w, row = weight[e], gram[used[e]][start:stop]
        for c in range(h.shape[0]):
            h[c] -= w * row[c]


@_jit
def _prox_step(z, h, lam, step_size):
    a, shift, zero = z.dtype.type(step_size), z.dtype.type(step_size * lam), z.dtype.type(0.0)
    for c in range(z.shape[0]):
        moved = z[c] + a * h[c] - shift
        z[c] = zero if moved <= zero else moved  # keeps nan, unlike max


@_jit
def _collect(z, start, stop, used, weight, count, s):
    """Append the positive entries of z[start:stop] (and nan, which must not be lost)."""
    k = count[s]
    for j in range(start, stop):
        if not z[j] <= 0.0:
            used[k] = j
            weight[k] = z[j]
            k += 1
    count[s] = k
