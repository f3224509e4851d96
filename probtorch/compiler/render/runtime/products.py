"""Products of matrices that fit in the cache: c = a b, row-major, either operand turned.

A tile of c stays in registers while k runs: some rows times two vectors. Each step loads two
vectors of b and multiplies them by numbers of a, one per row. Columns of b lie side by side in
memory, unless b is turned: then each panel of them is transposed into scratch memory first.

Edges need no masks. The last tile of a row or column begins earlier, so that it ends with the
matrix, and computes some numbers again, by the same operations: they come out the same.

Nothing else is packed, or blocked for the cache. That makes these faster than BLAS for small
products and slower for large ones: `is_suitable` says which. Panels are parts that threads share
(`pool.py`). Read `_write_tile` first, then `_write_panel`. The tiles are those of BLIS (Van Zee and
van de Geijn 2015), without the loops around them.
"""

import itertools
from contextlib import contextmanager

from probtorch.compiler.lang.nodes import Shuffle
from probtorch.compiler.lang.types import BYTES, vector
from probtorch.compiler.native import host
from probtorch.compiler.render.runtime import pool

__all__ = ["is_suitable", "signature", "write"]

_FLOATS = {"d": "double", "s": "float"}
# Rows of tiles, largest first, by the number of vector registers: two accumulators for each row,
# two vectors of b, and one number of a.
_ROWS = {32: (12, 8), 16: (6, 4)}
_ALONE = "nounwind noinline"
# Sums over k run in one chain: of 4096 floats they were three times less exact than those of BLAS,
# of 200 the same bits.
_LONGEST = 512
# Bytes of all operands up to which these were faster than BLAS, with 1 MB of second-level cache.
_LARGEST = 3 * 2**19
# Multiplications from which panels are shared by threads: about 60 us, as for loop nests.
_SHARED = 3_000_000


def is_suitable(m, n, k, p, turned_b):
    """Return whether the functions here can take a product of these sizes, and beat BLAS."""
    size = (m * n + n * k + m * k) * BYTES[_FLOATS[p]]
    if m < 8 or n < 8 or not 8 <= k <= _LONGEST or size > _LARGEST:
        return False
    if turned_b and m < 12:  # a panel that is transposed must serve more than a few rows
        return False
    return pool.supported() or m * n * k < _SHARED


def signature(p):
    """Return the function for matrices of doubles ("d") or floats ("s")."""
    # a b c; m n k; in a, from row to row and along it; leading size of b, whether b is turned.
    # c lies apart, without gaps.
    return {f"pt_product_{p}": ("void", ["ptr"] * 3 + ["i64"] * 7)}


def write(text, p):
    """Write the module of a function."""
    ty = _FLOATS[p]
    for rows, width in itertools.product(_rows(), _widths(ty)):
        _write_tile(text, rows, width, ty)
    _write_transpose(text, ty)
    _write_panel(text, ty)
    _write_product(text, p)


def _rows():
    """Rows of tiles, largest first."""
    here = host.target()
    many = here.vector_bits == 512 or here.triple.startswith(("aarch64", "arm64"))
    return _ROWS[32 if many else 16]


def _lanes(ty):
    return host.target().vector_bits // (8 * BYTES[ty])


def _widths(ty):
    """Columns of tiles, largest first."""
    lanes = _lanes(ty)
    return 2 * lanes, lanes, lanes // 2


# ------------------------------------------------------------------------------------------ a tile


def _write_tile(text, rows, width, ty):
    """A tile of c: `rows` by `width`, for all k."""
    types = ["ptr", "i64", "i64", "ptr", "i64", "ptr", "i64", "i64"]
    w = text.function(_tile(rows, width), "void", types, linkage="internal", attributes=_ALONE)
    a, down_a, along_a, b, ldb, c, ldc, k = w.arguments
    lanes = min(width, _lanes(ty))
    wide = vector(ty, lanes)
    columns = range(0, width, lanes)
    zero = w.convert(w.value(0.0, ty), wide)
    sums = {(i, j): w.variable(wide, zero) for i in range(rows) for j in columns}
    # One step of k a round: of four, LLVM loaded the numbers early and spilled them, at 60 % of
    # the speed. The multiplications hide the loop's own instructions. Prefetching c, and rows of
    # a or b to come, gained 1 % of a training step or nothing: no more than the noise.
    with w.loop(0, k) as step:
        across = [w.load_at(w.offset(b, step * ldb + j, ty), wide) for j in columns]
        first = w.offset(a, step * along_a, ty)
        for i in range(rows):
            x = w.convert(w.load(first, down_a * i, ty), wide)
            for j, y in zip(columns, across, strict=True):
                sums[i, j].value = x * y + sums[i, j].value
    for (i, j), total in sums.items():
        w.store_at(total.value, w.offset(c, ldc * i + j, ty))
    w.finish()


def _tile(rows, width):
    return f"tile_{rows}_{width}"


# ---------------------------------------------------------------------------------------- a panel


def _write_panel(text, ty):
    """Panel `number` of c: the columns that one panel of b gives, tiles below one another."""
    w = text.function("panel", "i64", ["ptr", "i64"], linkage="internal")
    context, number = w.arguments
    a, b, c = (w.load(context, i, "ptr") for i in range(3))
    m, n, k, down_a, along_a, ldb, turned_b = (w.load(context, i, "i64") for i in range(3, 10))
    widths = _widths(ty)
    scratch = w.on_stack(widths[0] * _LONGEST, ty)
    panel, step = w.variable("ptr"), w.variable("i64")
    # More than one where c is narrower than a panel.
    with _pieces(w, n, widths, number * widths[0], widths[0]) as (j, width):
        transposed, direct = w.branch(turned_b)
        with transposed:
            w.call("transpose", "void", w.offset(b, j * ldb, ty), ldb, scratch, width, k)
            panel.value, step.value = scratch, width
        with direct:
            panel.value, step.value = w.offset(b, j, ty), ldb
        with _pieces(w, m, _rows(), 0, m) as (i, height):
            left, into = w.offset(a, i * down_a, ty), w.offset(c, i * n + j, ty)
            arguments = left, down_a, along_a, panel.value, step.value, into, n, k
            for rows, columns in itertools.product(_rows(), widths):
                with w.when(w.logical_and(height == rows, width == columns)):
                    w.call(_tile(rows, columns), "void", *arguments)
    w.finish(w.whole(0))


def _write_transpose(text, ty):
    """Columns of a panel: out[j, i] = x[i, j] for i < width and j < k, in squares."""
    types = ["ptr", "i64", "ptr", "i64", "i64"]
    w = text.function("transpose", "void", types, linkage="internal", attributes=_ALONE)
    x, ldx, out, width, k = w.arguments
    # Half a vector is a side: fewer exchanges, and two of them in a cycle where there are 512 bits.
    side = _lanes(ty) // 2
    with _pieces(w, k, [side], 0, k) as (j, _), _pieces(w, width, [side], 0, width) as (i, _):
        source, into = w.offset(x, ldx * i + j, ty), w.offset(out, j * width + i, ty)
        wide = vector(ty, side)
        rows = [w.load_at(w.offset(source, ldx * r, ty), wide) for r in range(side)]
        for r, column in enumerate(_transposed(w, rows)):
            w.store_at(column, w.offset(into, width * r, ty))
    w.finish()


def _transposed(w, rows):
    """Transpose a square of vectors: exchange its quarters, then theirs, and so on."""
    n = len(rows)
    half = n // 2
    while half:
        low = [i for i in range(n) if not i & half]
        left = [i if i in low else n + i - half for i in range(n)]
        right = [i + half if i in low else n + i for i in range(n)]
        for i in low:
            x, y = rows[i], rows[i + half]
            rows[i], rows[i + half] = (w.put(Shuffle(x, y, at)) for at in (left, right))
        half //= 2
    return rows


# ------------------------------------------------------------------------------------- the product


def _write_product(text, p):
    """All panels, one after the other or shared by threads."""
    ((symbol, (result, types)),) = signature(p).items()
    w = text.function(symbol, result, types)
    _, _, _, m, n, k, *_ = w.arguments
    context = w.on_stack(len(w.arguments), "i64")
    for i, x in enumerate(w.arguments):
        w.store(context, i, x, x.ty)
    widest = _widths(_FLOATS[p])[0]
    count = w.lshr(n + (widest - 1), widest.bit_length() - 1)
    if not pool.supported():
        _write_panels(w, context, count)
        w.finish()
        return
    several, alone = w.branch(w.logical_and(count > 1, m * n * k >= _SHARED))
    with several:
        w.module.declare("declare i64 @pt_parallel(ptr, ptr, i64) nounwind")
        w.call("pt_parallel", "i64", w.symbol("panel"), context, count)
    with alone:
        _write_panels(w, context, count)
    w.finish()


def _write_panels(w, context, count):
    with w.loop(0, count) as number:
        w.call("panel", "i64", context, number)


@contextmanager
def _pieces(w, size, sizes, start, count):
    """Run the body for the pieces of a range that cover `count` of it; gives begin and size.

    A piece is the smallest of `sizes` that holds the rest, or the largest. The last one begins
    earlier, to end with the range, which is never shorter than the smallest size.
    """
    start = w.whole(start)
    at, end = w.variable("i64", start), w.minimum(start + count, size)
    with w.repeat_while(lambda: at.value < end):
        rest = size - at.value
        chosen = w.whole(sizes[-1])
        for piece, smaller in zip(sizes[-2::-1], sizes[:0:-1], strict=True):
            chosen = w.where(w.logical_and(rest > smaller, size >= piece), w.whole(piece), chosen)
        yield w.minimum(at.value, size - chosen), chosen
        at.value = at.value + chosen
