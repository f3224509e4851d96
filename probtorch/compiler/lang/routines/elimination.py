"""Elimination with partial pivoting, and what follows from it, by the blocks of a GPU.

A block has a matrix of a batch. Matrices lie by columns, as for functions of the same names on a
processor, where LAPACK does this (`render/runtime/matrices.py`), and are overwritten; working space
is not needed: solves apply their row exchanges on the way. Panels have 16 columns (Golub and Van
Loan 2013, algorithm 3.4.1).
"""

from __future__ import annotations

import functools
import math

from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.blocks import of_block
from probtorch.compiler.lang.routines.matrices import (
    FLOATS,
    corner_of,
    downdate,
    room_of,
    substitute,
)

__all__ = ["ELIMINATION"]


def _eliminate(w: KernelFunction, a: Array, b: Array, n: Value, m: Value) -> Value:
    """Eliminate in A (n x n), with the same steps in B (n x m).

    U is left on and above A's diagonal, in B what U X = B is to be solved with. Returns -1, and
    leaves it unfinished, if a pivot is 0; else whether the number of exchanges is odd. Nan is a
    pivot where it comes first, elsewhere any number is larger, as in the BLAS of LAPACK.
    """
    taken = w.array(room_of(w, a.ty).pointer, "i64")
    corner = taken.at(16, a.ty)
    bad, odd, k = w.variable("i1", False), w.variable("i64", 0), w.variable("i64", 0)
    with w.repeat_while(lambda: w.logical_and(k.value < n, w.logical_not(bad.value))):
        first = k.value
        end = w.minimum(first + 16, n)
        j = w.variable("i64", first)
        with w.repeat_while(lambda: w.logical_and(j.value < end, w.logical_not(bad.value))):
            here = j.value
            column = a.at(here * n)
            at = _pivot(w, column, here, n)
            with w.when(w.thread == 0):
                taken[here - first] = at
            with w.share(end - first) as c:
                _exchange(a.at((first + c) * n), at, here)
            odd.value = odd.value ^ w.convert(at != here, "i64")
            w.barrier()
            pivot = column[here]
            bad.value = pivot == 0.0
            with w.when(w.logical_not(bad.value)):
                with w.share(n - here - 1) as t:
                    i = here + 1 + t
                    factor = column[i] / pivot
                    column[i] = factor
                    with w.loop(here + 1, end) as c:
                        a[c * n + i] = a[c * n + i] - factor * a[c * n + here]
                w.barrier()
            j.value = here + 1
        with w.when(w.logical_not(bad.value)):
            width, right = end - first, n - end
            entry = corner_of(w, corner, a.at(first * n + first), 1, n, width)
            with w.share(right + m) as c:
                columns = a.at((end + c) * n), b.at((c - right) * n)
                x = w.array(w.where(c < right, *(y.pointer for y in columns)), a.ty)
                with w.loop(0, width) as r:
                    _exchange(x, taken[r], first + r)
                substitute(w, entry, x.at(first), 1, width, unit=True)
            w.barrier()
            # C' -= B' A' is what tiles see.
            lower = a.at(first * n + end)
            for y, count in ((a.at(end * n), right), (b, m)):
                sizes = n, count, right, width, n, 1, n, 1
                downdate(w, y.at(first), lower, y.at(end), *sizes)
            w.barrier()
        k.value = end
    # Somebody may still read the pivot that is 0.
    w.barrier()
    return w.where(bad.value, w.whole(-1), odd.value)


def _pivot(w: KernelFunction, column: Array, start: Value, n: Value) -> Value:
    """Where the pivot of a column is."""
    best, at = w.variable(column.ty, 0.0), w.variable("i64", -1)
    with w.share(n - start) as t:
        i, x = start + t, column[start + t]
        unknown = w.where(t == 0, w.value(math.inf, x.ty), -1.0)
        size = w.where(w.isnan(x), unknown, w.abs(x))
        with w.when(w.logical_or(at.value < 0, size > best.value)):
            best.value, at.value = size, i
    return of_block(w, "argmax", best.value, at.value)


def _exchange(x: Array, i: Value, j: Value) -> None:
    one, other = x[i], x[j]
    x[i], x[j] = other, one


def _finish(w: KernelFunction, a: Array, b: Array, n: Value, m: Value) -> None:
    """U X = B in place of B."""
    corner, last = room_of(w, a.ty), ((n - 1) >> 4) * 16
    with w.loop(0, n, 16) as done:
        k = last - done
        width = w.minimum(n - k, 16)
        entry = corner_of(w, corner, a.at(k * n + k), 1, n, width)
        with w.share(m) as c:
            substitute(w, entry, b.at(c * n + k), 1, width, upper=True)
        w.barrier()
        downdate(w, b.at(k), a.at(k * n), b, n, m, k, width, n, 1, n, 1)
        w.barrier()


def _eliminated(w: KernelFunction, a: Array, b: Array, n: Value, m: Value) -> Value:
    symbol = f"pt_eliminate_{'d' if a.ty == 'double' else 's'}"
    return w.on_grid(symbol, "i64", a, b, n, m)


def _solve(
    w: KernelFunction, a: Array, b: Array, n: Value, m: Value, batch: Value, _: Value
) -> None:
    """A X = B in place of B; fails if one is singular."""
    with w.blocks(batch) as p:
        left, right = a.at(p * n * n), b.at(p * n * m)
        singular = _eliminated(w, left, right, n, m) < 0
        with w.when(w.logical_not(singular)):
            _finish(w, left, right, n, m)
        with w.when(w.thread == 0):
            w.fail_if(singular)
        w.barrier()


def _inv(
    w: KernelFunction, a: Array, out: Array, n: Value, batch: Value, _: Value, check: Value
) -> None:
    """Inverses; nan, and a failure if `check`, for singular ones."""
    with w.blocks(batch) as p:
        left, right = a.at(p * n * n), out.at(p * n * n)
        with w.share(n, n) as (i, j):
            right[i * n + j] = w.convert(i == j, a.ty)
        w.barrier()
        singular = _eliminated(w, left, right, n, n) < 0
        regular, other = w.branch(w.logical_not(singular))
        with regular:
            _finish(w, left, right, n, n)
        with other, w.share(n * n) as i:
            right[i] = math.nan
        with w.when(w.thread == 0):
            w.fail_if(w.logical_and(singular, w.truth(check)))
        w.barrier()


def _determinants(
    w: KernelFunction,
    a: Array,
    signs: Array,
    logs: Array,
    n: Value,
    batch: Value,
    _: Value,
    *,
    whole: bool,
) -> None:
    """Signs and logarithms of determinants; 0 and -inf if A is singular. Or determinants, in the
    place of the signs.
    """
    ty = a.ty
    with w.blocks(batch) as p:
        left = a.at(p * n * n)
        parity = _eliminated(w, left, left, n, w.whole(0))
        singular = parity < 0
        below = w.variable("i64", 0)
        with w.share(n) as i:
            d = left[i * n + i]
            below.value = below.value + w.convert(d < 0.0, "i64")
            left[i * n + i] = w.log(w.abs(d))
        odd = (of_block(w, "sum", below.value) + parity) & 1
        with w.when(w.thread == 0):
            size = w.variable(ty, 0.0)
            with w.loop(0, n) as i:
                size.value = size.value + left[i * n + i]
            sign = w.where(singular, w.value(0.0, ty), w.where(odd == 1, w.value(-1.0, ty), 1.0))
            log = w.where(singular, -math.inf, size.value)
            signs[p] = sign * w.exp(log) if whole else sign
            if not whole:
                logs[p] = log
        w.barrier()


ELIMINATION = {}
for _letter, _ty in FLOATS.items():
    _one, _two = f"{_ty}*", f"{_ty}* {_ty}*"
    ELIMINATION[f"pt_eliminate_{_letter}"] = KernelRoutine(
        _eliminate, f"{_two} i64 i64", "i64", grid=True
    )
    # The last but for `check` has room for LAPACK's pivots.
    for _name, _types, _body in (
        ("solve", f"{_two} i64 i64 i64 ptr", _solve),
        ("inv", f"{_two} i64 i64 ptr i64", _inv),
        ("slogdet", f"{_two} {_one} i64 i64 ptr", functools.partial(_determinants, whole=False)),
        ("det", f"{_two} {_one} i64 i64 ptr", functools.partial(_determinants, whole=True)),
    ):
        ELIMINATION[f"pt_{_name}_{_letter}"] = KernelRoutine(_body, _types, "void", grid=True)
