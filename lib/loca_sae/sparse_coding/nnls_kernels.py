"""The compiled loops of `refit` and `omp`: non-negative least squares on growing supports.

For one sample the atoms in use, ``members``, keep the Cholesky factor of their Gram matrix in
float64, taken from the rows of W_dec themselves. An atom that enters appends a row to the factor,
one that leaves is rotated out: both cost the square of the support. An atom that depends on the
members is refused: it is orthogonal to the residual and cannot lower the error. See `kernels.py`
for the way such kernels are compiled and run, and why they stand in one file.

Source: Lawson, Hanson, "Solving Least Squares Problems" (1974), chapter 23.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import numba
import numpy as np

_jit = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "arcp", "nsz"})

_TINY_SQUARED_NORM = 1e-30  # an atom with a squared norm below this counts as a zero column
_DEPENDENT = 1e-12  # share of its squared norm that an atom must add to the span of the members
_OPTIMAL = 1e-11  # a correlation below this share of ||x|| ||atom|| counts as none
_LEAST_FALL = 1e-10  # an exchange must lower the squared error by this share of ||x||^2
_FREE, _MEMBER, _REFUSED = 0, 1, 2


@_jit
def refit_slice(x, codes, norms, W_dec):
    """Replace each row of codes [n, d_sae] by the minimiser on its support (where it is != 0).

    x: [n, d_in]; norms: [d_sae], those of the atoms, float64.
    """
    d_sae, d_in = W_dec.shape
    state = _room(d_in, d_in, d_sae)
    for s in range(x.shape[0]):
        support = np.flatnonzero(codes[s])
        _refit(x[s], codes[s], support, norms, W_dec, state)


@_jit
def omp_slice(x, q, k, exchanges, floor, norms, W_dec, gram, codes):
    """Write non-negative orthogonal matching pursuit with k[s] atoms into codes [n, d_sae] (zeros).

    q = x W_dec^T [n, d_sae]; gram: [d_sae, d_sae]. floor: share of ||x|| below which a correlation
    with a normalised atom counts as none.
    """
    d_sae, d_in = W_dec.shape
    most = min(max(0, k.max()), d_in)
    state, kept = _room(most, d_in, d_sae), _room(most, 1, 1)
    h = np.empty(d_sae, q.dtype)
    inverse = np.zeros(d_sae, q.dtype)
    for j in range(d_sae):
        if norms[j] ** 2 > _TINY_SQUARED_NORM:
            inverse[j] = 1.0 / norms[j]
    for s in range(x.shape[0]):
        limit = min(k[s], most)
        _clear(state)
        size = np.sqrt(_dot(x[s], x[s]))
        p = _pursue(0, limit, -1, x[s], q[s], floor * size, inverse, W_dec, gram, h, state)
        if 0 < p < d_sae:
            p = _exchange(
                p, limit, exchanges, x[s], q[s], floor * size, inverse, W_dec, gram, h, state, kept
            )
        for a in range(p):
            codes[s, state[0][a]] = state[3][a]


@_jit
def _room(most, d_in, d_sae):
    """Members, factor, their products with x, values, where these tend, residual, and status."""
    members, status = np.empty(most, np.int64), np.zeros(d_sae, np.int8)
    factor = np.empty((most, most), np.float64)
    b, z, aim = np.empty((3, most), np.float64)
    return members, factor, b, z, aim, np.empty(d_in, np.float64), status


@_jit
def _clear(state):
    state[6][:] = _FREE


@_jit
def _refit(x, code, support, norms, W_dec, state):
    members, z, residual, status = state[0], state[3], state[5], state[6]
    p, bar = 0, _OPTIMAL * np.sqrt(_dot(x, x))
    for j in support:
        status[j] = _FREE
    if len(support) <= W_dec.shape[1]:  # wider ones are mostly zeros in the end: grow from none
        for j in support:
            if _append(j, p, x, W_dec, state):
                z[p] = max(np.float64(code[j]), 0.0)
                p += 1
        p = _settle(p, state)
    for _ in range(5 * len(support) + 50):
        _residual(residual, x, p, W_dec, state)
        best, top = -1, bar
        for j in support:
            if status[j] == _FREE and norms[j] ** 2 > _TINY_SQUARED_NORM:
                correlation = _dot(W_dec[j], residual) / norms[j]
                if correlation > top:
                    best, top = j, correlation
        if best < 0:
            break
        p = _enter(best, p, x, W_dec, state)
    code[:] = 0.0
    for a in range(p):
        code[members[a]] = z[a]


@_jit
def _pursue(p, limit, banned, x, q, bar, inverse, W_dec, gram, h, state):
    """Add the atom that correlates most until there are `limit`, or none correlates positively."""
    status = state[6]
    for _ in range(10 * limit + 10):
        if p >= limit:
            break
        _residual_correlations(h, q, p, gram, state)
        best, top = -1, bar
        for j in range(h.shape[0]):
            if h[j] * inverse[j] > top and status[j] == _FREE and j != banned:
                best, top = j, np.float64(h[j] * inverse[j])
        if best < 0:
            break
        p = _enter(best, p, x, W_dec, state)
    return p


@_jit
def _exchange(p, limit, exchanges, x, q, bar, inverse, W_dec, gram, h, state, kept):
    """Drop an atom, the least useful first, and pursue without it; keep what lowers the error.

    At most `exchanges` times; stops when the loss of no atom can be made good.
    """
    x_sq, tried = _dot(x, x), 0
    loss = np.empty(limit, np.float64)
    for _ in range(exchanges):
        explained = _explained(p, state)
        if tried >= p or x_sq - explained <= _LEAST_FALL * x_sq:
            break
        if tried == 0:
            _losses(loss, p, state)
        before = p
        _copy(kept, state, p)
        a = np.argsort(loss[:p])[tried]
        dropped = state[0][a]
        _remove(a, p, state)
        _forgive(state[6])
        p = _settle(p - 1, state)
        p = _pursue(p, limit, dropped, x, q, bar, inverse, W_dec, gram, h, state)
        if _explained(p, state) > explained + _LEAST_FALL * x_sq:
            tried = 0
        else:
            tried += 1
            for b in range(p):
                state[6][state[0][b]] = _FREE
            p = before
            _copy(state, kept, p)
            for b in range(p):
                state[6][state[0][b]] = _MEMBER
    return p


@_jit
def _losses(loss, p, state):
    """How much the squared error grows without each member: z^2 / (the inverse Gram's diagonal)."""
    factor, z = state[1], state[3]
    column = np.empty(p, np.float64)
    for a in range(p):
        total = 0.0
        for i in range(a, p):
            rest = 1.0 if i == a else 0.0
            for c in range(a, i):
                rest -= factor[i, c] * column[c]
            column[i] = rest / factor[i, i]
            total += column[i] ** 2
        loss[a] = z[a] ** 2 / total


@_jit
def _explained(p, state):
    """||x||^2 minus the squared error, at the least squares solution on the members."""
    total = 0.0
    for a in range(p):
        total += state[2][a] * state[3][a]
    return total


@_jit
def _copy(into, source, p):
    into[0][:p] = source[0][:p]
    for a in range(p):
        into[1][a, : a + 1] = source[1][a, : a + 1]
    into[2][:p] = source[2][:p]
    into[3][:p] = source[3][:p]


@_jit
def _enter(j, p, x, W_dec, state):
    """Let atom j in and settle. Returns the number of members.

    An atom that cannot stay is refused until another one leaves, so that it is not tried forever.
    """
    status = state[6]
    if not _append(j, p, x, W_dec, state):
        status[j] = _REFUSED
        return p
    before = p + 1
    p = _settle(before, state)
    stayed = status[j] == _MEMBER
    if p < before and stayed:
        _forgive(status)
    if not stayed:
        status[j] = _REFUSED
    return p


@_jit
def _forgive(status):
    for j in range(status.shape[0]):
        if status[j] == _REFUSED:
            status[j] = _FREE


@_jit
def _append(j, p, x, W_dec, state):
    """Make atom j the member p, with value 0. False where it depends on the members so far."""
    members, factor, b, z, status = state[0], state[1], state[2], state[3], state[6]
    squared = _dot(W_dec[j], W_dec[j])
    if p == members.shape[0] or squared <= _TINY_SQUARED_NORM:
        return False
    pivot = squared
    for a in range(p):
        rest = _dot(W_dec[members[a]], W_dec[j])
        for c in range(a):
            rest -= factor[a, c] * factor[p, c]
        factor[p, a] = rest / factor[a, a]
        pivot -= factor[p, a] ** 2
    if pivot <= _DEPENDENT * squared:
        return False
    factor[p, p] = np.sqrt(pivot)
    members[p], b[p], z[p], status[j] = j, _dot(W_dec[j], x), 0.0, _MEMBER
    return True


@_jit
def _remove(at, p, state):
    """Take member `at` out of p members; rotations make the factor triangular again."""
    members, factor, b, z, status = state[0], state[1], state[2], state[3], state[6]
    status[members[at]] = _FREE
    for a in range(at, p - 1):
        members[a], b[a], z[a] = members[a + 1], b[a + 1], z[a + 1]
        factor[a, : a + 2] = factor[a + 1, : a + 2]
    for c in range(at, p - 1):
        length = np.hypot(factor[c, c], factor[c, c + 1])
        cos, sin = factor[c, c] / length, factor[c, c + 1] / length
        for a in range(c, p - 1):
            left, right = factor[a, c], factor[a, c + 1]
            factor[a, c] = cos * left + sin * right
            factor[a, c + 1] = cos * right - sin * left


@_jit
def _settle(p, state):
    """Move to the minimiser on the members; those that reach 0 on the way leave. Returns p."""
    z, aim = state[3], state[4]
    while p > 0:
        _least_squares(p, state)
        reach, blocking = 1.0, -1
        for a in range(p):
            if aim[a] <= 0.0 and z[a] <= reach * (z[a] - aim[a]):
                reach, blocking = (z[a] / (z[a] - aim[a]) if z[a] > 0.0 else 0.0), a
        if blocking < 0:
            z[:p] = aim[:p]
            break
        for a in range(p):
            z[a] += reach * (aim[a] - z[a])
        z[blocking] = 0.0
        for a in range(p - 1, -1, -1):
            if aim[a] <= 0.0 and z[a] <= 0.0:
                _remove(a, p, state)
                p -= 1
    return p


@_jit
def _least_squares(p, state):
    """aim = the least squares solution on the members."""
    factor, b, aim = state[1], state[2], state[4]
    for a in range(p):
        rest = b[a]
        for c in range(a):
            rest -= factor[a, c] * aim[c]
        aim[a] = rest / factor[a, a]
    for a in range(p - 1, -1, -1):
        aim[a] /= factor[a, a]
        for c in range(a):
            aim[c] -= factor[a, c] * aim[a]


@_jit
def _residual(residual, x, p, W_dec, state):
    residual[:] = x
    for a in range(p):
        weight, row = state[3][a], W_dec[state[0][a]]
        for c in range(x.shape[0]):
            residual[c] -= weight * row[c]


@_jit
def _residual_correlations(h, q, p, gram, state):
    """h = q - z gram, four atoms at a time."""
    members, z, kind = state[0], state[3], h.dtype.type
    h[:] = q
    last = p - p % 4
    for a in range(0, last, 4):
        w0, w1, w2, w3 = kind(z[a]), kind(z[a + 1]), kind(z[a + 2]), kind(z[a + 3])
        row0, row1 = gram[members[a]], gram[members[a + 1]]
        row2, row3 = gram[members[a + 2]], gram[members[a + 3]]
        for c in range(h.shape[0]):
            h[c] -= (w0 * row0[c] + w1 * row1[c]) + (w2 * row2[c] + w3 * row3[c])
    for a in range(last, p):
        w, row = kind(z[a]), gram[members[a]]
        for c in range(h.shape[0]):
            h[c] -= w * row[c]


@_jit
def _dot(a, b):
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total
