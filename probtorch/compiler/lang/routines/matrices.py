"""Products of matrices, Cholesky factors and triangular solves by the blocks of a GPU.

A block has whole tiles of a product, or whole matrices of a batch, from beginning to end; all
blocks share large ones that are to have a Cholesky factor. The bits are the same however many
blocks there are. Matrices lie by rows. On a processor LAPACK does this (`render/runtime`).

Factors and solves go by panels of 16 rows, so that most of the work is products of tiles (Golub and
Van Loan 2013, algorithm 4.2.4). Read `elimination.py` next.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probtorch.compiler.lang.cells import Array, Cell
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value

__all__ = ["FLOATS", "MATRICES", "corner_of", "downdate", "room_of", "substitute"]

FLOATS = {"d": "double", "s": "float"}
_Reader = Callable[[Value, Value], Value]


def room_of(w: KernelFunction, ty: str) -> Array:
    """Memory of the block for tiles, one for all functions of a kernel."""
    return w.array(w.runtime("pt_room", "ptr"), ty)


# ---------------------------------------------------------------------------------------- products


@dataclass(frozen=True)
class _Product:
    """C = A B, of m x k by k x n: rows of c are `ld` apart, `steps` lead along rows and columns of
    a, then of b.
    """

    a: Array
    b: Array
    c: Array
    ld: Value
    m: Value
    n: Value
    k: Value
    steps: Sequence[Value]


def _tile(
    w: KernelFunction, product: _Product, tile: Value, room: Array, *, per: int, subtract: bool
) -> None:
    """Write a tile of C = A B, or C -= A B.

    It has 16 `per` rows and columns; a thread has the elements of rows t / 16 + 16 r and columns
    t % 16 + 16 s. The next 16 terms are loaded while these are multiplied; neighbours among the
    threads load neighbours in memory.
    """
    c, ld, m, n, k = product.c, product.ld, product.m, product.n, product.k
    ai, ak, bk, bj = product.steps
    side, t = 16 * per, w.thread
    across = (n + (side - 1)) // side
    row, column = tile // across * side, tile % across * side
    # An odd number keeps the columns of a tile in different banks.
    apart = side + 1
    i, j = t >> 4, t & 15
    a, b = product.a.at(row * ai), product.b.at(column * bj)
    rows, columns = m - row, n - column
    left, right = room, room.at(16 * apart)

    def loads(unit: Value, far: Value, near: Value) -> list[tuple[Value, Value]]:
        """Where in a tile this thread's elements are: along its side, and across."""
        straight = unit == 1
        at, across = w.where(straight, far, t & (side - 1)), w.where(straight, near, t // side)
        down, along = w.where(straight, w.whole(16), 0), w.where(straight, w.whole(0), 16 // per)
        return [(at + down * u, across + along * u) for u in range(per)]

    of_a, of_b = loads(ak, i, j), loads(bk, i, j)
    xs, ys = ([w.variable(a.ty) for _ in range(per)] for _ in range(2))

    def load(first: Value) -> None:
        for x, (at, q) in zip(xs, of_a, strict=True):
            inside = w.logical_and(at < rows, first + q < k)
            _load_if(w, x, inside, a, at * ai + (first + q) * ak)
        for y, (at, q) in zip(ys, of_b, strict=True):
            inside = w.logical_and(at < columns, first + q < k)
            _load_if(w, y, inside, b, (first + q) * bk + at * bj)

    sums = [[w.variable(a.ty, 0.0) for _ in range(per)] for _ in range(per)]
    load(w.whole(0))
    with w.loop(0, k, 16) as first:
        w.barrier()
        for x, (at, q) in zip(xs, of_a, strict=True):
            left[q * apart + at] = x.value
        for y, (at, q) in zip(ys, of_b, strict=True):
            right[q * apart + at] = y.value
        w.barrier()
        load(first + 16)
        with w.loop(0, 16, unroll=True) as q:
            entries = [right[q * apart + j + 16 * s] for s in range(per)]
            for r, of_row in enumerate(sums):
                entry = left[q * apart + i + 16 * r]
                for total, other in zip(of_row, entries, strict=True):
                    total.value = total.value + entry * other
    w.barrier()
    for r, of_row in enumerate(sums):
        for s, total in enumerate(of_row):
            down, along = row + i + 16 * r, column + j + 16 * s
            with w.when(w.logical_and(down < m, along < n)):
                at = down * ld + along
                c[at] = c[at] - total.value if subtract else total.value


def _load_if(w: KernelFunction, cell: Cell, inside: Value, array: Array, index: Value) -> None:
    """Set a cell to an element that is there; else to 0."""
    cell.value = 0
    with w.when(inside):
        cell.value = array[index]


def _gemm(
    w: KernelFunction, a: Array, b: Array, c: Array, m: Value, n: Value, *numbers: Value, per: int
) -> None:
    """C = A B for a batch; `numbers` are k, steps along the rows and columns of a and b, and from
    one matrix to the next, and how many there are.
    """
    k, *steps, next_a, next_b, batch = numbers
    tiles, room = _tiles(m, n, 16 * per), room_of(w, a.ty)
    with w.blocks(batch * tiles) as t:
        p = t // tiles
        left, right = a.at(p * next_a), b.at(p * next_b)
        product = _Product(left, right, c.at(p * m * n), n, m, n, k, steps)
        _tile(w, product, t % tiles, room, per=per, subtract=False)


def _tiles(m: Value, n: Value, side: int) -> Value:
    return (m + (side - 1)) // side * ((n + (side - 1)) // side)


def _downdate(
    w: KernelFunction, turn: Value, turns: Value, a: Array, b: Array, c: Array, *numbers: Value
) -> None:
    """C -= A B for every tile whose turn it is; `numbers` are the distance of the rows of c, m, n,
    k, steps along the rows and columns of a and b.
    """
    ld, m, n, k, *steps = numbers
    product, room = _Product(a, b, c, ld, m, n, k, steps), room_of(w, a.ty)
    with w.loop(turn, _tiles(m, n, 64), turns) as tile:
        _tile(w, product, tile, room, per=4, subtract=True)


def downdate(
    w: KernelFunction,
    a: Array,
    b: Array,
    c: Array,
    *numbers: Value | int,
    turn: tuple[Value | int, Value | int] = (0, 1),
) -> None:
    """C -= A B, all tiles unless blocks take turns; `numbers` as `_downdate` has them."""
    first, sizes = map(w.whole, turn), map(w.whole, numbers)
    symbol = f"pt_downdate_{'d' if a.ty == 'double' else 's'}"
    w.runtime(symbol, "void", *first, a, b, c, *sizes)


# --------------------------------------------------------------------------------------- triangles


def corner_of(
    w: KernelFunction, corner: Array, a: Array, down: Value | int, along: Value | int, width: Value
) -> _Reader:
    """Copy the 16 x 16 at a corner of a matrix into a tile; returns what reads entry (i, j)."""
    i, j = w.thread >> 4, w.thread & 15
    x = w.variable(a.ty)
    _load_if(w, x, w.logical_and(i < width, j < width), a, i * down + j * along)
    corner[i * 17 + j] = x.value
    w.barrier()
    return lambda i, j: corner[i * 17 + j]


def substitute(
    w: KernelFunction,
    entry: _Reader,
    x: Array,
    apart: Value | int,
    n: Value,
    *,
    upper: Value | bool = False,
    unit: Value | bool = False,
) -> None:
    """Solve with a triangle in place of a vector x, whose elements are so far apart."""
    upper = w.truth(upper)
    with w.loop(0, n) as r:
        i = w.where(upper, n - 1 - r, r)
        rest = w.variable(x.ty, x[i * apart])
        with w.loop(w.where(upper, i + 1, 0), w.where(upper, n, i)) as k:
            rest.value = rest.value - entry(i, k) * x[k * apart]
        x[i * apart] = w.where(unit, rest.value, rest.value / entry(i, i))


def _trsm(w: KernelFunction, a: Array, b: Array, n: Value, m: Value, *more: Value) -> None:
    """A x = b in place of b, a column for each thread; `more` is whether a is upper, whether its
    diagonal is 1, how many there are, the distance of the matrices a.
    """
    upper, unit, batch, apart = more
    with w.share(batch, m, everyone=True) as (p, column):
        triangle, x = a.at(p * apart), b.at(p * n * m + column)
        entry = lambda i, k: triangle[i * n + k]
        substitute(w, entry, x, m, n, upper=upper, unit=w.truth(unit))


def _trsm_wide(w: KernelFunction, a: Array, b: Array, n: Value, m: Value, *more: Value) -> None:
    """The same by 64 columns for each block."""
    upper, unit, batch, apart = more
    strips, room = (m + 63) >> 6, room_of(w, a.ty)
    with w.blocks(batch * strips) as t:
        first = t % strips * 64
        across = w.minimum(m - first, 64)
        triangle, x = a.at(t // strips * apart), b.at(t // strips * n * m + first)
        with w.loop(0, n, 16) as done:
            width, up = w.minimum(n - done, 16), w.truth(upper)
            k = w.where(up, n - done - width, done)
            entry = corner_of(w, room, triangle.at(k * n + k), n, 1, width)
            with w.when(w.thread < across):
                column = x.at(k * m + w.thread)
                substitute(w, entry, column, m, width, upper=upper, unit=w.truth(unit))
            w.barrier()
            rest = w.where(up, 0, k + width)
            beside, others = triangle.at(rest * n + k), x.at(rest * m)
            sizes = m, n - done - width, across, width, n, 1, m, 1
            downdate(w, beside, x.at(k * m), others, *sizes)
            w.barrier()


# -------------------------------------------------------------------------------- Cholesky factors


def _cholesky(
    w: KernelFunction, a: Array, n: Value, batch: Value, check: Value, *, together: bool
) -> None:
    """Lower factors in place; what is not positive definite becomes nan, and fails if `check`."""
    with w.loop(0, batch) if together else w.blocks(batch) as m:
        bad = _factor(w, a.at(m * n * n), n, together)
        first = w.thread == 0
        if together:
            first = w.logical_and(first, w.team[0] == 0)
        with w.when(first):
            w.fail_if(w.logical_and(bad, w.truth(check)))
        w.barrier()


def _factor(w: KernelFunction, a: Array, n: Value, together: bool) -> Value:
    """The lower factor of one matrix in its place, or nan; whether it is not positive definite.

    Of all blocks `together` each factors the corners for itself.
    """
    block, blocks = w.team if together else (w.whole(0), w.whole(1))
    corner = room_of(w, a.ty)
    i, j = w.thread >> 4, w.thread & 15
    bad, k = w.variable("i1", False), w.variable("i64", 0)
    with w.repeat_while(lambda: w.logical_and(k.value < n, w.logical_not(bad.value))):
        at = k.value
        width = w.minimum(n - at, 16)
        panel = a.at(at * n + at)
        entry = _factor_corner(w, panel, n, width, corner, bad)
        with w.when(w.logical_not(bad.value)):
            with w.share(n - at - width, everyone=together) as r:
                substitute(w, entry, panel.at((width + r) * n), 1, width)
            # Nobody may read the old corner any more when the new one is stored.
            mine = entry(i, j)
            w.barrier(everyone=together)
            inside = w.logical_and(j <= i, i < width)
            with w.when(w.logical_and(block == 0, inside)):
                panel[i * n + j] = mine
            # Tiles from the first column to the diagonal, numbered through, strip after strip; what
            # they leave above it is not read.
            below, rest, turn = panel.at(width * n), n - at - width, w.variable("i64", block)
            with w.loop(0, rest, 64) as r:
                across = r + w.minimum(rest - r, 64)
                to = panel.at((width + r) * n + width)
                sizes = n, across - r, across, width, n, 1, 1, n
                downdate(w, below.at(r * n), below, to, *sizes, turn=(turn.value, blocks))
                done = ((across + 63) >> 6) % blocks
                turn.value = (turn.value + blocks - done) % blocks
            w.barrier(everyone=together)
        k.value = at + 16
    # Somebody may still read the corner in which another found the wrong pivot.
    w.barrier(everyone=together)
    with w.share(n, n, everyone=together) as (r, c):
        with w.when(w.logical_or(bad.value, c > r)):
            a[r * n + c] = w.where(bad.value, w.value(math.nan, a.ty), 0.0)
    return bad.value


def _factor_corner(
    w: KernelFunction, a: Array, n: Value, width: Value, corner: Array, bad: Cell
) -> _Reader:
    """Factor a corner in a tile; returns what reads its entries, and sets `bad`."""
    i, j = w.thread >> 4, w.thread & 15
    entry = corner_of(w, corner, a, n, 1, width)
    q = w.variable("i64", 0)
    with w.repeat_while(lambda: w.logical_and(q.value < width, w.logical_not(bad.value))):
        at = q.value
        pivot = entry(at, at)
        bad.value = w.logical_not(pivot > 0.0)
        w.barrier()
        with w.when(w.logical_not(bad.value)):
            root = w.sqrt(pivot)
            with w.when(w.logical_and(j == at, i >= at)):
                corner[i * 17 + at] = w.where(i == at, root, entry(i, at) / root)
            w.barrier()
            with w.when(w.logical_and(j > at, i >= j)):
                corner[i * 17 + j] = entry(i, j) - entry(i, at) * entry(j, at)
            w.barrier()
        q.value = at + 1
    return entry


MATRICES = {}
for _letter, _ty in FLOATS.items():
    _three, _solve = f"{_ty}* {_ty}* {_ty}*", f"{_ty}* {_ty}*" + " i64" * 6
    MATRICES[f"pt_downdate_{_letter}"] = KernelRoutine(
        _downdate, f"i64 i64 {_three}" + " i64" * 8, "void"
    )
    for _name, _types, _body in (
        ("gemm", _three + " i64" * 10, functools.partial(_gemm, per=1)),
        ("gemm_wide", _three + " i64" * 10, functools.partial(_gemm, per=4)),
        ("trsm", _solve, _trsm),
        ("trsm_wide", _solve, _trsm_wide),
        ("cholesky", f"{_ty}* i64 i64 i64", functools.partial(_cholesky, together=False)),
        ("cholesky_together", f"{_ty}* i64 i64 i64", functools.partial(_cholesky, together=True)),
    ):
        MATRICES[f"pt_{_name}_{_letter}"] = KernelRoutine(_body, _types, "void", grid=True)
