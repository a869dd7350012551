"""The compiled loops of `solve`: working-set coordinate descent, one sample after another.

Every kernel works on a slice of samples and releases the GIL; `threads.py` runs slices side by
side in ordinary Python threads. numba's own ``parallel=True`` is not used: its thread layers may
be absent (TBB, OpenMP), one of them is not thread-safe, and a second OpenMP pool beside torch's
oversubscribes small machines. ``cache=True`` keeps the machine code on disk, so that only the
first process after a change pays the compilation. All kernels of `solve` stand in this one file on
purpose: that cache notices a change only in the file of the function that is called.

Notation, for one sample: ``q = x W_dec^T`` [d_sae] are the correlations of the target with the
atoms, ``gram = W_dec W_dec^T`` [d_sae, d_sae], ``h = q - z gram`` the correlations of the residual.
z is optimal when h_j = lam on its support and h_j <= lam elsewhere.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The compiled functions take arrays of either precision; numba infers their types at each call.

import numba
import numpy as np

# No "nnan" and "ninf" here: an ISTA that diverges must really show inf and nan.
_jit = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "arcp", "nsz"})

_SET_SIZE = 512  # a sample that needs more atoms than this is swept over the whole dictionary
_PADDING = 16  # keeps rows of the small Gram matrix from falling on the same cache lines
_FIRST_ENTRY = 0.3  # atoms enter an empty set that exceed lam by this share of the largest excess
_ENTRY = 0.15  # and later, when fewer exceed it and most of these stay, by this one
_INNER_SHARE = 0.03  # a round on the working set ends when its gap is this share of the whole gap
_BLOCK = 32  # neighbouring atoms whose largest correlation is kept, to skip them all at once
_TILE = 2048  # correlations brought up to date at a time: they and four rows stay in cache
_SWEEPS_PER_CHECK = 3
_SWEEPS_PER_ROUND = 60  # then jump, and compute h afresh: updates let rounding errors pile up
_JUMPS = 8
_TINY_SQUARED_NORM = 1e-30  # an atom with a squared norm below this counts as a zero column


@_jit
def solve_slice(
    q, z, x, W_dec, gram, longest, lam, tol, max_sweeps, patience, objective, gap, sweeps, done
):
    """Minimise 1/2 ||x - z W_dec||^2 + lam sum(z) over z >= 0 for each row, starting at z.

    q, z: [n, d_sae]; x: [n, d_in]; longest: the largest entry on the diagonal of gram (the caller
    finds it once; looking it up costs a cache miss an atom). z is overwritten by the codes. Written
    per sample: objective
    and absolute duality gap (float64, of exactly these codes), sweeps, and done (gap <= tol *
    objective, or the optimality conditions at lam = 0). A sample is left as it is when max_sweeps
    are spent, or after `patience` rounds that hardly improved it, twice: then with h from x itself.
    """
    n, d_sae = q.shape
    size = min(d_sae, _SET_SIZE)
    members = np.empty(size, np.int64)
    inside = np.empty(d_sae, np.bool_)
    small = np.empty((size, size + _PADDING), q.dtype)
    q_set, z_set, h_set = np.empty((3, size), q.dtype)
    h = np.empty(d_sae, q.dtype)
    peaks = np.empty((d_sae + _BLOCK - 1) // _BLOCK, q.dtype)
    residual = np.empty(x.shape[1], np.float64)
    everyone = np.arange(d_sae)
    used = np.empty(d_sae, np.int64)
    work = (members, inside, small, q_set, z_set, h_set, h, peaks, residual, everyone, used)
    for s in range(n):
        objective[s], gap[s], sweeps[s], done[s] = _solve(
            q[s], z[s], x[s], W_dec, gram, longest, lam, tol, max_sweeps, patience, work
        )


@_jit
def _solve(q, z, x, W_dec, gram, longest, lam, tol, max_sweeps, patience, work):
    members, inside, small, q_set, z_set, h_set, h, peaks, residual, everyone, used = work
    x_sq = _dot(x, x)
    aim = 0.5 * tol  # below tol, since the certificate is stricter than the running estimate
    n_set, sweeps, stale, best = _restart_set(q, z, gram, work), 0, 0, np.inf
    refined = False
    while True:
        atoms = members[:n_set] if n_set >= 0 else everyone
        count = _residual_correlations(h, q, z, gram, atoms, used)
        if refined:
            _refine(h, x, z, W_dec, used[:count], residual)
        top = _find_peaks(h, peaks)
        distance, scale = _distance(q, z, h, used[:count], top, lam, x_sq)
        stale = 0 if distance < 0.9 * best else stale + 1
        best = min(best, distance)
        if stale >= patience and not refined:
            refined, stale, best = True, 0, np.inf
            continue
        spent = sweeps >= max_sweeps or stale >= patience
        if spent or distance <= aim * scale:
            primal, gap = _certificate(
                x, z, h, peaks, used[:count], W_dec, longest, lam, x_sq, residual
            )
            done = gap <= tol * primal or (lam == 0.0 and distance <= tol * scale)
            if spent or done:
                return primal, gap, sweeps, done
            aim *= 0.2
        goal = max(_INNER_SHARE * distance, 0.3 * aim * scale)
        if n_set >= 0:
            n_set = _grow_set(n_set, top, q, z, gram, lam, work)
        if n_set < 0:
            sweeps += _descend(q, z, h, gram, everyone, lam, x_sq, goal, max_sweeps - sweeps)
            continue
        for i in range(n_set):
            h_set[i] = h[members[i]]
        first = everyone[:n_set]
        swept = _descend(q_set, z_set, h_set, small, first, lam, x_sq, goal, max_sweeps - sweeps)
        sweeps += swept
        if swept >= _SWEEPS_PER_ROUND:
            for _ in range(_JUMPS):
                if not _jump(z_set, h_set, small, n_set, lam):
                    break
        for i in range(n_set):
            z[members[i]] = z_set[i]


@_jit
def _descend(q, z, h, gram, first, lam, x_sq, goal, max_sweeps):
    """Sweep over the first coordinates (0, 1, ...) until `_distance` is at most goal; keeps h up to
    date."""
    sweeps, n = 0, first.shape[0]
    while sweeps < min(max_sweeps, _SWEEPS_PER_ROUND):
        moved = False
        for _ in range(_SWEEPS_PER_CHECK):
            moved = _sweep(z, h, gram, n, lam)
            sweeps += 1
        if not moved or _distance(q, z, h, first, h[:n].max(), lam, x_sq)[0] <= goal:
            break
    return sweeps


@_jit
def _sweep(z, h, gram, n, lam):
    zero, threshold = z.dtype.type(0.0), z.dtype.type(lam)
    moved = False
    for i in range(n):
        curvature = gram[i, i]
        new = zero
        if curvature > _TINY_SQUARED_NORM:
            new = max(z[i] + (h[i] - threshold) / curvature, zero)
        step = new - z[i]
        if step != zero:
            moved = True
            z[i] = new
            row = gram[i]
            for j in range(n):
                h[j] -= step * row[j]
    return moved


@_jit
def _jump(z, h, gram, n, lam):
    """Move to the minimiser on the support of z, or as far towards it as z stays >= 0.

    For ill-conditioned supports, on which sweeps creep. The objective cannot rise, since it is
    convex along the way. Returns whether an atom was dropped, so that another jump may pay.
    """
    support = np.flatnonzero(z[:n])
    factor = np.empty((len(support), len(support)), np.float64)
    if not _cholesky(factor, gram, support):
        return False
    move = _solve_factored(factor, h, support, lam)
    reach, blocking = 1.0, -1
    for a in range(len(support)):
        if move[a] < 0.0 and -z[support[a]] / move[a] < reach:
            reach, blocking = -z[support[a]] / move[a], a
    for a in range(len(support)):
        j = support[a]
        new = z.dtype.type(max(z[j] + reach * move[a], 0.0))
        if a == blocking:
            new = z.dtype.type(0.0)
        step = new - z[j]
        z[j] = new
        for i in range(n):
            h[i] -= step * gram[j, i]
    return blocking >= 0


@_jit
def _cholesky(factor, gram, support):
    """Lower factor of gram + ridge on the support. The ridge, at the size of the rounding, lets
    dependent atoms be told apart by lam alone: the jump then runs until one of them is 0."""
    ridge = 0.0
    for j in support:
        ridge = max(ridge, 16 * len(support) * np.finfo(gram.dtype).eps * gram[j, j])
    for a in range(len(support)):
        for b in range(a + 1):
            rest = np.float64(gram[support[a], support[b]])
            for c in range(b):
                rest -= factor[a, c] * factor[b, c]
            if a > b:
                factor[a, b] = rest / factor[b, b]
            elif rest + ridge <= 0.0:
                return False
            else:
                factor[a, a] = np.sqrt(rest + ridge)
    return True


@_jit
def _solve_factored(factor, h, support, lam):
    move = np.empty(len(support), np.float64)
    for a in range(len(support)):
        rest = np.float64(h[support[a]]) - lam
        for b in range(a):
            rest -= factor[a, b] * move[b]
        move[a] = rest / factor[a, a]
    for a in range(len(support) - 1, -1, -1):
        for b in range(a + 1, len(support)):
            move[a] -= factor[b, a] * move[b]
        move[a] /= factor[a, a]
    return move


@_jit
def _distance(q, z, h, atoms, h_max, lam, x_sq):
    """How far z, which is 0 outside ``atoms``, is from optimal, and the scale that tol refers to.

    For lam > 0 the duality gap (from inner products, hence an estimate) and the objective. At
    lam = 0 the scaled residual is no useful dual point; then the largest violation of the
    optimality conditions and the largest correlation, or 0 once the residual itself has vanished.
    """
    zq, zh, z_sum, violation = 0.0, 0.0, 0.0, 0.0
    for j in atoms:
        if z[j] > 0.0:
            zq += np.float64(z[j]) * q[j]
            zh += np.float64(z[j]) * h[j]
            z_sum += z[j]
            violation = max(violation, abs(np.float64(h[j])))
    largest = np.float64(h_max)
    xr, r_sq = x_sq - zq, max(x_sq - zq - zh, 0.0)
    if lam == 0.0:
        q_max = max(np.float64(q.max()), 0.0)
        return (0.0 if r_sq <= 1e-10 * x_sq else max(violation, largest)), q_max
    primal = 0.5 * r_sq + lam * z_sum
    return _gap(primal, xr, r_sq, largest, lam), primal


@_jit
def _gap(primal, xr, r_sq, h_max, lam):
    """primal minus the dual value of s * residual, for the best feasible s in [0, 1 or more]."""
    if r_sq <= 0.0:
        return primal
    s = max(xr / r_sq, 0.0)
    s = min(s, lam / h_max) if h_max > 0.0 else min(s, 1.0)
    return max(primal - s * xr + 0.5 * s * s * r_sq, 0.0)


@_jit
def _certificate(x, z, h, peaks, used, W_dec, longest, lam, x_sq, residual):
    """Objective and duality gap of z in float64, from x and W_dec themselves.

    Only atoms whose computed correlation h_j comes near lam can decide whether the dual point is
    feasible. The margin bounds the rounding of h in the worst case (Higham, Accuracy and Stability
    of Numerical Algorithms, section 3.1), so leaving out the others loses no rigour.
    """
    _subtract(residual, x, z, W_dec, used)
    z_sum, terms = 0.0, x.shape[0] + 2 + used.shape[0]
    for j in used:
        z_sum += np.float64(z[j])
    reach = np.sqrt(x_sq) + z_sum * np.sqrt(longest)
    margin = 1.01 * terms * np.finfo(z.dtype).eps * np.sqrt(longest) * reach
    # Of the atoms left out nothing is known but that they do not exceed lam.
    bound = np.float64(lam)
    for b in range(peaks.shape[0]):
        if peaks[b] > lam - margin:
            for j in range(b * _BLOCK, min((b + 1) * _BLOCK, z.shape[0])):
                if h[j] > lam - margin:
                    bound = max(bound, _dot(W_dec[j], residual))
    r_sq = _dot(residual, residual)
    primal = 0.5 * r_sq + lam * z_sum
    return primal, _gap(primal, _dot(x, residual), r_sq, bound, lam)


@_jit
def _dot(a, b):
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@_jit
def _residual_correlations(h, q, z, gram, atoms, used):
    """h = q - z gram, touching only the rows of atoms in use, four at a time.

    Writes those among ``atoms`` with z > 0 to ``used``, and returns how many.
    """
    count = 0
    for j in atoms:
        if z[j] > 0.0:
            used[count] = j
            count += 1
    last = count - count % 4
    for start in range(0, h.shape[0], _TILE):
        tile = h[start : start + _TILE]
        tile[:] = q[start : start + _TILE]
        for e in range(0, last, 4):
            a, b, c, d = used[e], used[e + 1], used[e + 2], used[e + 3]
            z_a, z_b, z_c, z_d = z[a], z[b], z[c], z[d]
            row_a, row_b = gram[a][start:], gram[b][start:]
            row_c, row_d = gram[c][start:], gram[d][start:]
            for i in range(tile.shape[0]):
                tile[i] -= (z_a * row_a[i] + z_b * row_b[i]) + (z_c * row_c[i] + z_d * row_d[i])
        for e in range(last, count):
            weight, row = z[used[e]], gram[used[e]][start:]
            for i in range(tile.shape[0]):
                tile[i] -= weight * row[i]
    return count


@_jit
def _refine(h, x, z, W_dec, used, residual):
    """h = W_dec (x - z W_dec) in float64: dear, but without the rounding of q and gram, which
    hides the last digits of h where x is much longer than its residual."""
    _subtract(residual, x, z, W_dec, used)
    for j in range(h.shape[0]):
        h[j] = _dot(W_dec[j], residual)


@_jit
def _subtract(residual, x, z, W_dec, used):
    """residual = x - z W_dec in float64."""
    residual[:] = x
    for j in used:
        weight = np.float64(z[j])
        for c in range(x.shape[0]):
            residual[c] -= weight * W_dec[j, c]


@_jit
def _find_peaks(h, peaks):
    """The largest h of each block of neighbours, and of all."""
    top = h[0]
    for b in range(peaks.shape[0]):
        block = h[b * _BLOCK : (b + 1) * _BLOCK]
        peak = block[0]
        for i in range(block.shape[0]):
            peak = block[i] if block[i] > peak else peak
        peaks[b] = peak
        top = max(top, peak)
    return top


@_jit
def _restart_set(q, z, gram, work):
    """Make the support of z the working set. Returns its size, or -1 where it has no room."""
    members, inside = work[0], work[1]
    inside[:] = False
    n_set = 0
    for j in range(z.shape[0]):
        if z[j] > 0.0:
            if n_set == members.shape[0]:
                return -1
            _add(j, n_set, q, z, gram, work)
            n_set += 1
    return n_set


@_jit
def _grow_set(n_set, top, q, z, gram, lam, work):
    """Add the atoms that violate the optimality conditions most. Returns the size, or -1.

    top: the largest h.
    """
    members, used = work[0], work[10]
    bar = lam + (_ENTRY if n_set > 0 else _FIRST_ENTRY) * (top - lam)
    if top <= lam:
        return n_set
    count = _newcomers(work, bar)
    if n_set + count > members.shape[0]:
        n_set = _restart_set(q, z, gram, work)
        if n_set < 0 or 2 * n_set > members.shape[0]:
            return -1
        count = _newcomers(work, bar)
        while n_set + count > members.shape[0]:
            bar += 0.3 * (top - bar)
            count = _newcomers(work, bar)
    for i in range(count):
        _add(used[i], n_set, q, z, gram, work)
        n_set += 1
    return n_set


@_jit
def _newcomers(work, bar):
    """Write the atoms with h above the bar that are not in the set to ``used``; how many."""
    inside, h, peaks, used = work[1], work[6], work[7], work[10]
    count = 0
    for b in range(peaks.shape[0]):
        if peaks[b] > bar:
            for j in range(b * _BLOCK, min((b + 1) * _BLOCK, h.shape[0])):
                if h[j] > bar and not inside[j]:
                    used[count] = j
                    count += 1
    return count


@_jit
def _add(j, n_set, q, z, gram, work):
    members, inside, small, q_set, z_set = work[0], work[1], work[2], work[3], work[4]
    members[n_set] = j
    inside[j] = True
    q_set[n_set] = q[j]
    z_set[n_set] = z[j]
    for i in range(n_set + 1):
        small[n_set, i] = small[i, n_set] = gram[j, members[i]]
