"""Factorisations and solves by LAPACK, one matrix of a batch after the other.

Matrices follow one another in memory, "by columns" as LAPACK has them unless said otherwise: so a
row-major matrix is the transpose of what LAPACK sees. Every working array is passed in; nothing
is allocated here. Where eager execution would raise an error the functions return true.
"""

import math

from probtorch.compiler.render.writer import Writer

__all__ = ["names", "signature", "write"]

_FLOATS = {"d": "double", "s": "float"}


def _matrix_functions():
    # ptr: arrays; i64: sizes and flags, in the order that each function below unpacks.
    return {
        "cholesky": ("i1", "ptr i64 i64", _write_cholesky),
        "trsm": ("void", "ptr ptr i64 i64 i64 i64 i64 i64", _write_trsm),
        "gemm": ("void", "ptr ptr ptr" + " i64" * 10, _write_gemm),
        "solve": ("i1", "ptr ptr i64 i64 i64 ptr", _write_solve),
        "inv": ("i1", "ptr ptr i64 i64 ptr", _write_inv),
        "slogdet": ("void", "ptr ptr ptr i64 i64 ptr", _write_slogdet),
        "det": ("void", "ptr ptr ptr i64 i64 ptr", _write_det),
        "lu": ("void", "ptr ptr ptr i64 i64 i64 ptr", _write_lu),
        "eigh": ("i1", "ptr ptr i64 i64 ptr i64 ptr i64", _write_eigh),
        "svd": ("i1", "ptr ptr ptr ptr i64 i64 i64 ptr i64 ptr", _write_svd),
        "qr": ("i1", "ptr ptr ptr i64 i64 i64 ptr ptr i64", _write_qr),
    }


def names():
    """Return the names of the functions, each of which is a module."""
    return tuple(_matrix_functions())


def signature(name, p):
    """Return a function for matrices of doubles ("d") or floats ("s")."""
    result, types, _ = _matrix_functions()[name]
    return {f"pt_{name}_{p}": (result, types.split())}


def write(text, name, p):
    """Write the module of a function."""
    if name == "det":
        _write_function(text, "slogdet", p, "internal ")
    _write_function(text, name, p)


def _write_function(text, name, p, linkage=""):
    result, types, writer = _matrix_functions()[name]
    writer(Writer(text, f"pt_{name}_{p}", result, types.split(), linkage=linkage), p, _FLOATS[p])


def _failed(w, info, any_failed):
    """Note whether LAPACK's `info` reports a failure; returns that."""
    bad = info.value != 0
    any_failed.value = w.logical_or(any_failed.value, bad)
    return bad


def _write_cholesky(w, p, ty):
    """Lower factors in place, by rows; those that do not exist become nan. Only the lower triangle
    is read.
    """
    a, n, batch = w.arguments
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as b:
        one = w.offset(a, b * n * n, ty)
        w.fortran(f"pt_{p}potrf", "U", n, one, n, info)
        bad = _failed(w, info, failed)
        with w.loop(0, n) as i:
            row = w.offset(one, i * n, ty)
            with w.when(bad), w.loop(0, n) as j:
                w.store(row, j, math.nan, ty)
            with w.when(w.logical_not(bad)), w.loop(i + 1, n) as j:
                w.store(row, j, 0.0, ty)
    w.finish(failed.value)


def _write_trsm(w, p, ty):
    """Solve a x = b in place of b, both by rows; `step` is from one a to the next, 0 for one in
    all.
    """
    a, b, n, m, upper, unit, batch, step = w.arguments
    uplo, diag = (w.variable("i8") for _ in range(2))
    uplo.value = w.where(w.truth(upper), w.value(ord("L"), "i8"), ord("U"))
    diag.value = w.where(w.truth(unit), w.value(ord("U"), "i8"), ord("N"))
    one = w.variable(ty, 1.0)
    with w.loop(0, batch) as k:
        left, right = w.offset(a, k * step, ty), w.offset(b, k * n * m, ty)
        w.fortran(f"pt_{p}trsm", "R", uplo, "N", diag, m, n, one, left, n, right, m)
    w.finish()


def _write_gemm(w, p, ty):
    """Products c = a b by rows; each operand with leading size, transposition, and step."""
    a, b, c, m, n, k, lda, ldb, turned_a, turned_b, step_a, step_b, batch = w.arguments
    flags = []
    for turned in (turned_b, turned_a):
        flags.append(w.variable("i8"))
        flags[-1].value = w.where(w.truth(turned), w.value(ord("T"), "i8"), ord("N"))
    one, zero = w.variable(ty, 1.0), w.variable(ty, 0.0)
    with w.loop(0, batch) as i:
        left, right = w.offset(a, i * step_a, ty), w.offset(b, i * step_b, ty)
        into = w.offset(c, i * m * n, ty)
        # By columns c' = b' a'.
        w.fortran(f"pt_{p}gemm", *flags, n, m, k, one, right, ldb, left, lda, zero, into, n)
    w.finish()


def _write_solve(w, p, ty):
    """Solve a x = b in place of b; a is overwritten."""
    a, b, n, m, batch, pivots = w.arguments
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as k:
        left, right = w.offset(a, k * n * n, ty), w.offset(b, k * n * m, ty)
        w.fortran(f"pt_{p}gesv", n, m, left, n, pivots, right, n, info)
        _failed(w, info, failed)
    w.finish(failed.value)


def _write_inv(w, p, ty):
    """Inverses of a, which is overwritten; nan for singular matrices."""
    a, out, n, batch, pivots = w.arguments
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as k:
        left, into = w.offset(a, k * n * n, ty), w.offset(out, k * n * n, ty)
        _fill_identity(w, into, n, ty)
        w.fortran(f"pt_{p}gesv", n, n, left, n, pivots, into, n, info)
        with w.when(_failed(w, info, failed)), w.loop(0, n * n) as i:
            w.store(into, i, math.nan, ty)
    w.finish(failed.value)


def _fill_identity(w, into, n, ty):
    with w.loop(0, n) as j, w.loop(0, n) as i:
        w.store(into, j * n + i, w.where(i <= j, w.where(j <= i, w.value(1.0, ty), 0.0), 0.0), ty)


def _write_slogdet(w, p, ty):
    """Signs and logarithms of determinants of a, which is overwritten; 0 and -inf if singular."""
    a, signs, logs, n, batch, pivots = w.arguments
    info = w.integer_variable()
    sign, total = w.variable(ty), w.variable(ty)
    with w.loop(0, batch) as k:
        one = w.offset(a, k * n * n, ty)
        w.fortran(f"pt_{p}getrf", n, n, one, n, pivots, info)
        sign.value, total.value = 1.0, 0.0
        with w.loop(0, n) as i:
            pivot = w.convert(w.load(pivots, i, w.integer), "i64")
            d = w.load(one, i * n + i, ty)
            flips = (pivot != i + 1) != (d < 0.0)
            sign.value = w.where(flips, -sign.value, sign.value)
            total.value = total.value + w.log(w.abs(d))
        with w.when(info.value != 0):
            sign.value, total.value = 0.0, -math.inf
        w.store(signs, k, sign.value, ty)
        w.store(logs, k, total.value, ty)
    w.finish()


def _write_det(w, p, ty):
    """Determinants by `slogdet`, with the same arguments, as NumPy has them."""
    a, out, logs, n, batch, pivots = w.arguments
    w.call(f"pt_slogdet_{p}", "void", a, out, logs, n, batch, pivots)
    with w.loop(0, batch) as k:
        w.store(out, k, w.load(out, k, ty) * w.exp(w.load(logs, k, ty)), ty)
    w.finish()


def _write_lu(w, p, ty):
    """LU factors in place of a (m rows, n columns), row exchanges, and the order of rows."""
    a, pivots, rows, m, n, batch, exchanges = w.arguments
    info, k = w.integer_variable(), w.minimum(m, n)
    with w.loop(0, batch) as b:
        w.fortran(f"pt_{p}getrf", m, n, w.offset(a, b * m * n, ty), m, exchanges, info)
        with w.loop(0, m) as i:
            w.store(rows, b * m + i, i, "i64")
        with w.loop(0, k) as i:
            other = w.convert(w.load(exchanges, i, w.integer), "i64")
            w.store(pivots, b * k + i, w.convert(other, "i32"), "i32")
            mine, theirs = b * m + i, b * m + other - 1
            kept = w.load(rows, mine, "i64")
            w.store(rows, mine, w.load(rows, theirs, "i64"), "i64")
            w.store(rows, theirs, kept, "i64")
    w.finish()


def _write_eigh(w, p, ty):
    """Eigenvalues, and eigenvectors in place of the symmetric a, whose lower triangle is read."""
    a, values, n, batch, work, lwork, iwork, liwork = w.arguments
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as k:
        one, into = w.offset(a, k * n * n, ty), w.offset(values, k * n, ty)
        w.fortran(
            f"pt_{p}syevd", "V", "L", n, one, n, into, work, lwork, iwork, liwork, info
        )  # fmt: skip
        _failed(w, info, failed)
    w.finish(failed.value)


def _write_svd(w, p, ty):
    """Thin singular value decompositions of a (m rows, n columns), which is overwritten."""
    a, u, s, vh, m, n, batch, work, lwork, iwork = w.arguments
    k = w.minimum(m, n)
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as i:
        one = w.offset(a, i * m * n, ty)
        left, middle = w.offset(u, i * m * k, ty), w.offset(s, i * k, ty)
        right = w.offset(vh, i * k * n, ty)
        w.fortran(
            f"pt_{p}gesdd", "S", m, n, one, m, middle, left, m, right, k, work, lwork, iwork, info
        )  # fmt: skip
        _failed(w, info, failed)
    w.finish(failed.value)


def _write_qr(w, p, ty):
    """Factors q (m by k) and r (k by n), k = min(m, n), of a, which is overwritten.

    Columns of q and rows of r change their signs where the diagonal of r is negative.
    """
    a, q, r, m, n, batch, tau, work, lwork = w.arguments
    k = w.minimum(m, n)
    info, failed = w.integer_variable(), w.variable("i1", 0)
    with w.loop(0, batch) as b:
        one = w.offset(a, b * m * n, ty)
        basis, upper = w.offset(q, b * m * k, ty), w.offset(r, b * k * n, ty)
        w.fortran(f"pt_{p}geqrf", m, n, one, m, tau, work, lwork, info)
        _failed(w, info, failed)
        with w.loop(0, n) as j, w.loop(0, k) as i:
            sign = _sign(w, w.load(one, i * m + i, ty))
            x = w.where(i <= j, w.load(one, j * m + i, ty), 0.0)
            w.store(upper, j * k + i, x * sign, ty)
        w.array(basis, ty).copy(w.array(one, ty), m * k)
        w.fortran(f"pt_{p}orgqr", m, k, k, basis, m, tau, work, lwork, info)
        _failed(w, info, failed)
        with w.loop(0, k) as j:
            sign = _sign(w, w.load(one, j * m + j, ty))
            with w.loop(0, m) as i:
                w.store(basis, j * m + i, w.load(basis, j * m + i, ty) * sign, ty)
    w.finish(failed.value)


def _sign(w, x):
    return w.where(x < 0.0, w.value(-1.0, x.ty), 1.0)
