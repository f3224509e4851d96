"""Leading principal directions of draws and of gradients, and the matrix within their subspace.

What `estimates.low_rank` (infer/mcmc/warm_up) does with `principal`, in pieces: wide_routines.py
puts them together. Products are BLAS's, orthonormal directions LAPACK's. Matrices lie by rows:
BLAS, which has them by columns, sees their transposes. Rows of draws and gradients are kept as they
are, less their means; it is the few directions that they are multiplied by which are scaled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.function import KernelRoutine
from probtorch.infer.mcmc.warm_up.spectrum_routines import SPECTRUM, median

if TYPE_CHECKING:
    from probtorch.compiler.lang.nodes import Operand, Value
    from probtorch.compiler.render.writer import Writer

__all__ = ["BLOCK", "PRINCIPAL", "WorkRoom", "sums"]

# What LAPACK's factorisation works with, for each column; 32 is the width of its blocks.
BLOCK = 64
# The distance from 1 to the next number.
EPS = 2.0**-52


class WorkRoom:
    """Working space, given out part by part."""

    def __init__(self, place: Array) -> None:
        self.place = place

    def take(self, count: Operand) -> Array:
        taken = self.place
        self.place = taken.at(count)
        return taken


def _centred(
    w: Writer,
    pairs: Array,
    apart: Value,
    dim: Value,
    step: Value,
    count: Value,
    rows: Array,
    squares: Array,
) -> None:
    """Copy `count` rows, `step` apart, less their means, and add up their squares.

    Both are 0 where all rows are equal but for rounding, as `estimates.Rows` has it.
    """
    number = w.as_float(count)
    each, rounding = 1.0 / number, number * w.sqrt(number) * EPS
    with w.loop(0, 2) as side:
        source, to = pairs.at(side * apart * dim), rows.at(side * count * dim)
        mean = squares.at(side * dim)
        with w.loop(0, dim) as i:
            mean[i] = 0.0
        with w.loop(0, count) as r:
            row = source.at(r * step * dim)
            with w.loop(0, dim) as i:
                mean[i] = mean[i] + row[i]
        with w.loop(0, count) as r:
            row, here = source.at(r * step * dim), to.at(r * dim)
            with w.loop(0, dim) as i:
                here[i] = row[i] - mean[i] * each
        with w.loop(0, dim) as i:
            mean[i] = 0.0
        with w.loop(0, count) as r:
            here = to.at(r * dim)
            with w.loop(0, dim) as i:
                mean[i] = mean[i] + here[i] * here[i]
        with w.loop(0, dim) as i, w.when(w.sqrt(mean[i]) <= w.abs(source[i]) * rounding):
            mean[i] = 0.0
            with w.loop(0, count) as r:
                to[r * dim + i] = 0.0


def _product(
    w: Writer,
    turned: tuple[str, str],
    sizes: tuple[Value, Value, Value],
    a: tuple[Array, Value],
    b: tuple[Array, Value],
    c: tuple[Array, Value],
) -> None:
    """BLAS's product of what it sees: c, (m, n), of a and b with k between them."""
    one, zero = w.variable("double", 1.0), w.variable("double", 0.0)
    w.fortran("pt_dgemm", *turned, *sizes, one, *a, *b, zero, *c)


def _along(
    w: Writer,
    rows: Array,
    count: Value,
    dim: Value,
    directions: Array,
    number: Value,
    scale: Array,
    scaled: Array,
    along: Array,
) -> None:
    """Products (number, count) of directions times scales and rows; `scaled` is working space."""
    with w.loop(0, number) as j:
        one, to = directions.at(j * dim), scaled.at(j * dim)
        with w.loop(0, dim) as i:
            to[i] = one[i] * scale[i]
    sizes = count, number, dim
    _product(w, ("T", "N"), sizes, (rows, dim), (scaled, dim), (along, count))


def _principal(
    w: Writer,
    rows: Array,
    count: Value,
    dim: Value,
    roots: Array,
    number: Value,
    passes: Value,
    directions: Array,
    work: Array,
) -> Value:
    """Orthonormal rows that the leading principal directions of draws and of gradients span.

    `roots` are scales and their inverses. Returns how many rows there are, two times `number` at
    most; 0 where they cannot be found.
    """
    each = w.minimum(number, w.maximum(w.quotient(count, 2), w.whole(1)))
    every = w.quotient(count, each)
    scaled, along = work, work.at(number * dim)
    for side in range(2):
        of, scale = rows.at(count * dim * side), roots.at(dim * (1 - side))
        guess = directions.at(each * dim * side)
        # Rows are a guess of their own principal directions.
        with w.loop(0, each) as j:
            row, to = of.at(j * every * dim), guess.at(j * dim)
            with w.loop(0, dim) as i:
                to[i] = row[i] * scale[i]
        with w.loop(0, passes):
            w.call("along", "void", of, count, dim, guess, each, scale, scaled, along)
            _product(w, ("N", "N"), (dim, each, count), (of, dim), (along, count), (guess, dim))
            with w.loop(0, each) as j:
                to = guess.at(j * dim)
                with w.loop(0, dim) as i:
                    to[i] = to[i] * scale[i]
        with w.loop(0, each) as j:
            to = guess.at(j * dim)
            size = 1.0 / w.sqrt(to.dot(to, dim))
            with w.loop(0, dim) as i:
                to[i] = to[i] * size
    both, info = each * 2, w.integer_variable()
    tau, rest, length = work, work.at(both), both * BLOCK
    w.fortran("pt_dgeqrf", dim, both, directions, dim, tau, rest, length, info)
    failed = w.variable("i1", info.value != 0)
    w.fortran("pt_dorgqr", dim, both, both, directions, dim, tau, rest, length, info)
    failed.value = w.logical_or(failed.value, info.value != 0)
    return w.where(failed.value, w.whole(0), both)


def _within(
    w: Writer,
    rows: Array,
    count: Value,
    dim: Value,
    roots: Array,
    directions: Array,
    number: Value,
    products: Array,
    work: Array,
) -> None:
    """Sums of products (2, number, number) of scaled draws and gradients along some directions."""
    scaled, along = work, work.at(number * dim)
    for side in range(2):
        of, scale = rows.at(count * dim * side), roots.at(dim * (1 - side))
        w.call("along", "void", of, count, dim, directions, number, scale, scaled, along)
        into, sizes = products.at(number * number * side), (number, number, count)
        _product(w, ("T", "N"), sizes, (along, count), (along, count), (into, number))


def sums(w: Writer, squares: Array, variance: Array, dim: Value) -> tuple[Value, Value]:
    """Write the sums of squares of draws and gradients that are scaled by a diagonal."""
    of_x, of_g = w.variable("double", 0.0), w.variable("double", 0.0)
    with w.loop(0, dim) as i:
        of_x.value = of_x.value + squares[i] / variance[i]
        of_g.value = of_g.value + squares[dim + i] * variance[i]
    return of_x.value, of_g.value


def _found(
    w: Writer,
    products: Array,
    number: Value,
    count: Value,
    dim: Value,
    of_x: Value,
    of_g: Value,
    ridge: Value,
    found: Array,
    work: Array,
) -> Value:
    """Find the variances along some directions, by what most have in common, and how these are
    put together, (number, number): `found` has that number, the variances, then the rows.

    `products` are sums along them, `of_x` and `of_g` sums over all dimensions, of `count` rows.
    Returns 1, or 0 where there is no such matrix.
    """
    square, rows_there = number * number, w.as_float(count)
    variances, rows = found.at(1), found.at(number + 1)
    each = 1.0 / rows_there
    x, g = w.variable("double", of_x), w.variable("double", of_g)
    with w.loop(0, number) as k:
        x.value = x.value - products[k * number + k]
        g.value = g.value - products[square + k * number + k]
    # Beyond them, the one number that is best for all.
    fine = w.logical_and(x.value > 0.0, g.value > 0.0)
    beyond = w.where(fine, w.sqrt(x.value / g.value), w.value(1.0, "double"))
    with w.loop(0, square * 2) as i:
        work[i] = products[i] * each
    w.leave_if(
        w.call("pt_geometric_mean", "i64", work, number, ridge, variances, rows) == 0, w.whole(0)
    )
    values, ordered = work, work.at(dim)
    with w.loop(0, dim) as i:
        values[i] = beyond
    # Those that differ come last: all others are in order as they are.
    values.at(dim - number).copy(variances, number)
    common = median(w, values, dim, ordered)
    each = 1.0 / common
    total = w.variable("double", common)
    with w.loop(0, number) as k:
        variances[k] = variances[k] * each
        total.value = total.value + variances[k] + 1.0 / variances[k]
    found[0] = common
    return w.where(w.abs(total.value) < float("inf"), w.whole(1), w.whole(0))


def _chosen(
    w: Writer, variances: Array, number: Value, cut: Value, rank: Value, order: Array
) -> Value:
    """Put the numbers of those that matter most in order, none within `cut`; returns how many."""
    count, going = w.variable("i64", 0), w.variable("i1", True)
    with w.loop(0, number) as k:
        v = variances[k]
        order.at(number)[k] = w.maximum(v, 1.0 / v)
    apart = order.at(number)
    with w.repeat_while(lambda: w.logical_and(going.value, count.value < rank)):
        place, most = w.variable("i64", -1), w.variable("double", cut)
        with w.loop(0, number) as k, w.when(apart[k] > most.value):
            most.value, place.value = apart[k], k
        going.value = place.value >= 0
        with w.when(going.value):
            order[count.value] = w.as_float(place.value)
            apart[place.value] = 0.0
            count.value = count.value + 1
    return count.value


def _quadratic(w: Writer, products: Array, vector: Array, number: Value) -> Value:
    total = w.variable("double", 0.0)
    with w.loop(0, number) as i:
        part = vector[i] * products.at(i * number).dot(vector, number)
        total.value = total.value + part
    return total.value


def _roots(w: Writer, variance: Array, roots: Array, dim: Value) -> None:
    """Scales, and their inverses behind them."""
    with w.loop(0, dim) as i:
        roots[i] = w.sqrt(variance[i])
        roots[dim + i] = 1.0 / roots[i]


_ONE, _TWO, _THREE = "double*", "double* double*", "double* double* double*"
PRINCIPAL = SPECTRUM | {
    "centred": KernelRoutine(_centred, f"{_ONE} i64 i64 i64 i64 {_TWO}", "void"),
    "along": KernelRoutine(_along, f"{_ONE} i64 i64 {_ONE} i64 {_THREE}", "void"),
    "roots": KernelRoutine(_roots, f"{_TWO} i64", "void"),
    "principal": KernelRoutine(_principal, f"{_ONE} i64 i64 {_ONE} i64 i64 {_TWO}", "i64"),
    "within": KernelRoutine(_within, f"{_ONE} i64 i64 {_TWO} i64 {_TWO}", "void"),
    "found": KernelRoutine(_found, f"{_ONE} i64 i64 i64 double double double {_TWO}", "i64"),
    "chosen": KernelRoutine(_chosen, f"{_ONE} i64 double i64 {_ONE}", "i64"),
    "quadratic": KernelRoutine(_quadratic, f"{_TWO} i64"),
}
