"""Factorisations and solves by LAPACK, one matrix of a batch after the other.

Matrices follow one another in memory, "by columns" as LAPACK has them unless said otherwise: so a
row-major matrix is the transpose of what LAPACK sees. Every working array is passed in; nothing
is allocated here. Where eager execution would raise an error the functions return true.
"""

import math

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.ops.spectral import TELLING

__all__ = ["ROUTINES"]


def _failed(w, info, any_failed):
    """Note whether LAPACK's `info` reports a failure; returns that."""
    bad = info.value != 0
    any_failed.value = w.logical_or(any_failed.value, bad)
    return bad


def _of(a, name):
    """The symbol of LAPACK's function for matrices such as this one."""
    return f"pt_{'d' if a.ty == 'double' else 's'}{name}"


def _cholesky(w, a, n, batch):
    """Lower factors in place, by rows; those that do not exist become nan. Only the lower triangle
    is read.
    """
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as b:
        one = a.at(b * n * n)
        w.fortran(_of(a, "potrf"), "U", n, one, n, info)
        bad = _failed(w, info, failed)
        with w.loop(0, n) as i:
            row = one.at(i * n)
            with w.when(bad), w.loop(0, n) as j:
                row[j] = math.nan
            with w.when(w.logical_not(bad)), w.loop(i + 1, n) as j:
                row[j] = 0.0
    return failed.value


def _trsm(w, a, b, n, m, upper, unit, batch, step):
    """Solve a x = b in place of b, both by rows; `step` is from one a to the next, 0 for one in
    all.
    """
    uplo, diag = (w.variable("i8") for _ in range(2))
    uplo.value = w.where(w.truth(upper), w.value(ord("L"), "i8"), ord("U"))
    diag.value = w.where(w.truth(unit), w.value(ord("U"), "i8"), ord("N"))
    one = w.variable(a.ty, 1.0)
    with w.loop(0, batch) as k:
        left, right = a.at(k * step), b.at(k * n * m)
        w.fortran(_of(a, "trsm"), "R", uplo, "N", diag, m, n, one, left, n, right, m)


def _gemm(w, a, b, c, m, n, k, lda, ldb, turned_a, turned_b, step_a, step_b, batch):
    """Products c = a b by rows; each operand with leading size, transposition, and step."""
    flags = []
    for turned in (turned_b, turned_a):
        flags.append(w.variable("i8"))
        flags[-1].value = w.where(w.truth(turned), w.value(ord("T"), "i8"), ord("N"))
    one, zero = w.variable(a.ty, 1.0), w.variable(a.ty, 0.0)
    with w.loop(0, batch) as i:
        left, right = a.at(i * step_a), b.at(i * step_b)
        into = c.at(i * m * n)
        # By columns c' = b' a'.
        w.fortran(_of(a, "gemm"), *flags, n, m, k, one, right, ldb, left, lda, zero, into, n)


def _solve(w, a, b, n, m, batch, pivots):
    """Solve a x = b in place of b; a is overwritten."""
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as k:
        left, right = a.at(k * n * n), b.at(k * n * m)
        w.fortran(_of(a, "gesv"), n, m, left, n, pivots, right, n, info)
        _failed(w, info, failed)
    return failed.value


def _inv(w, a, out, n, batch, pivots):
    """Inverses of a, which is overwritten; nan for singular matrices."""
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as k:
        left, into = a.at(k * n * n), out.at(k * n * n)
        with w.loop(0, n) as j, w.loop(0, n) as i:
            into[j * n + i] = w.where(i <= j, w.where(j <= i, w.value(1.0, a.ty), 0.0), 0.0)
        w.fortran(_of(a, "gesv"), n, n, left, n, pivots, into, n, info)
        with w.when(_failed(w, info, failed)), w.loop(0, n * n) as i:
            into[i] = math.nan
    return failed.value


def _slogdet(w, a, signs, logs, n, batch, pivots):
    """Signs and logarithms of determinants of a, which is overwritten; 0 and -inf if singular."""
    info = w.integer_variable()
    sign, total = w.variable(a.ty), w.variable(a.ty)
    with w.loop(0, batch) as k:
        one = a.at(k * n * n)
        w.fortran(_of(a, "getrf"), n, n, one, n, pivots, info)
        sign.value, total.value = 1.0, 0.0
        with w.loop(0, n) as i:
            pivot = w.convert(w.array(pivots, w.integer)[i], "i64")
            d = one[i * n + i]
            flips = (pivot != i + 1) != (d < 0.0)
            sign.value = w.where(flips, -sign.value, sign.value)
            total.value = total.value + w.log(w.abs(d))
        with w.when(info.value != 0):
            sign.value, total.value = 0.0, -math.inf
        signs[k], logs[k] = sign.value, total.value


def _det(w, a, out, logs, n, batch, pivots):
    """Determinants by `slogdet`, with the same arguments, as NumPy has them."""
    _slogdet(w, a, out, logs, n, batch, pivots)
    with w.loop(0, batch) as k:
        out[k] = out[k] * w.exp(logs[k])


def _lu(w, a, pivots, rows, m, n, batch, exchanges):
    """LU factors in place of a (m rows, n columns), row exchanges, and the order of rows."""
    info, k = w.integer_variable(), w.minimum(m, n)
    with w.loop(0, batch) as b:
        w.fortran(_of(a, "getrf"), m, n, a.at(b * m * n), m, exchanges, info)
        with w.loop(0, m) as i:
            rows[b * m + i] = i
        with w.loop(0, k) as i:
            other = w.convert(w.array(exchanges, w.integer)[i], "i64")
            pivots[b * k + i] = w.convert(other, "i32")
            mine, theirs = b * m + i, b * m + other - 1
            kept = rows[mine]
            rows[mine] = rows[theirs]
            rows[theirs] = kept


def _eigh(w, a, values, n, batch, work, lwork, iwork, liwork):
    """Eigenvalues, and eigenvectors in place of the symmetric a, whose lower triangle is read."""
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as k:
        one, into = a.at(k * n * n), values.at(k * n)
        w.fortran(
            _of(a, "syevd"), "V", "L", n, one, n, into, work, lwork, iwork, liwork, info
        )  # fmt: skip
        _failed(w, info, failed)
        with w.loop(0, n) as j:
            vector = one.at(j * n)
            sign = _sign_of_vector(w, vector, n, 1)
            with w.loop(0, n) as i:
                vector[i] = vector[i] * sign
    return failed.value


def _sign_of_vector(w, x, n, step):
    """1 or -1, which makes the first telling element of x positive, as in eager runs."""
    largest, sign = w.variable(x.ty, 0.0), w.variable(x.ty, 0.0)
    with w.loop(0, n) as i:
        largest.value = w.maximum(largest.value, w.abs(x[i * step]))
    with w.loop(0, n) as i:
        tells = w.logical_and(sign.value == 0.0, w.abs(x[i * step]) > largest.value * TELLING)
        sign.value = w.where(tells, _sign(w, x[i * step]), sign.value)
    return sign.value


def _svd(w, a, u, s, vh, m, n, batch, work, lwork, iwork):
    """Thin singular value decompositions of a (m rows, n columns), which is overwritten."""
    k = w.minimum(m, n)
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as i:
        one = a.at(i * m * n)
        left, middle = u.at(i * m * k), s.at(i * k)
        right = vh.at(i * k * n)
        w.fortran(
            _of(a, "gesdd"), "S", m, n, one, m, middle, left, m, right, k, work, lwork, iwork, info
        )  # fmt: skip
        _failed(w, info, failed)
        with w.loop(0, k) as j:
            sign = _sign_of_vector(w, right.at(j), n, k)
            with w.loop(0, m) as r:
                left[j * m + r] = left[j * m + r] * sign
            with w.loop(0, n) as c:
                right[c * k + j] = right[c * k + j] * sign
    return failed.value


def _qr(w, a, q, r, m, n, batch, tau, work, lwork):
    """Factors q (m by k) and r (k by n), k = min(m, n), of a, which is overwritten.

    Columns of q and rows of r change their signs where the diagonal of r is negative.
    """
    k = w.minimum(m, n)
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as b:
        one = a.at(b * m * n)
        basis, upper = q.at(b * m * k), r.at(b * k * n)
        w.fortran(_of(a, "geqrf"), m, n, one, m, tau, work, lwork, info)
        _failed(w, info, failed)
        with w.loop(0, n) as j, w.loop(0, k) as i:
            sign = _sign(w, one[i * m + i])
            x = w.where(i <= j, one[j * m + i], 0.0)
            upper[j * k + i] = x * sign
        basis.copy(one, m * k)
        w.fortran(_of(a, "orgqr"), m, k, k, basis, m, tau, work, lwork, info)
        _failed(w, info, failed)
        with w.loop(0, k) as j:
            sign = _sign(w, one[j * m + j])
            with w.loop(0, m) as i:
                basis[j * m + i] = basis[j * m + i] * sign
    return failed.value


def _sign(w, x):
    return w.where(x < 0.0, w.value(-1.0, x.ty), 1.0)


def _routines(p, ty):
    """The functions for matrices of doubles ("d") or floats ("s"), and their types."""
    one, two, three = (" ".join([f"{ty}*"] * k) for k in (1, 2, 3))
    for name, body, result, types in (
        ("cholesky", _cholesky, "i1", f"{one} i64 i64"),
        ("trsm", _trsm, "void", two + " i64" * 6),
        ("gemm", _gemm, "void", three + " i64" * 10),
        ("solve", _solve, "i1", f"{two} i64 i64 i64 ptr"),
        ("inv", _inv, "i1", f"{two} i64 i64 ptr"),
        ("slogdet", _slogdet, "void", f"{three} i64 i64 ptr"),
        ("det", _det, "void", f"{three} i64 i64 ptr"),
        ("lu", _lu, "void", f"{one} i32* i64* i64 i64 i64 ptr"),
        ("eigh", _eigh, "i1", f"{two} i64 i64 ptr i64 ptr i64"),
        ("svd", _svd, "i1", f"{two} {two} i64 i64 i64 ptr i64 ptr"),
        ("qr", _qr, "i1", f"{three} i64 i64 i64 ptr ptr i64"),
    ):
        yield f"pt_{name}_{p}", KernelRoutine(body, types, result)


# Each is compiled by itself.
ROUTINES = dict(_routines("d", "double")) | dict(_routines("s", "float"))
