"""Calls of a lowered program on a GPU: kernels of our own, and what CuPy does.

`kernel_of` gives a device function: for sorting and its kin (`lang/routines/sorting.py`), and for
matrices (`matrices.py` and `elimination.py` there) up to sizes from which on a library is faster. A
block has a tile of a product, or a whole matrix to factor and to solve with. Such kernels can be
part of a captured graph and of loops on the device, and report failures as others do. `LIBRARY` has
the rest: functions of the array module and of flat arrays. Of these the executor captures products,
which it makes by cuBLAS itself; what goes through CuPy stands between two captured graphs. A call
that is in neither makes the function run eagerly, with a reason that names it.
"""

import math

import numpy as np

from probtorch.compiler.lang.cuda import THREADS
from probtorch.compiler.lang.routines.sorting import RUN, SHORT_ROW
from probtorch.compiler.render.cuda_own import OwnKernel
from probtorch.errors import CompileError

__all__ = ["LIBRARY", "kernel_of", "library_of"]

# Multiplications of a product up to which our own kernels do it: cuBLAS is faster at the product,
# but takes longer to start, and has no place in loops on the device. The second number is for
# products with enough tiles of 64 x 64 to keep half of a GPU busy: they read their operands a
# quarter as often as those in tiles of 16 x 16. None of these has been measured on a GPU.
_OWN_PRODUCT, _OWN_WIDE_PRODUCT, _WIDE_TILES = 2**23, 2**25, 64
# Rows and columns of matrices up to which one block factors them. Not measured on a GPU: a block
# has but one multiprocessor, but needs no start of a library and leaves no gap in a graph. All
# blocks share larger ones that are to have a Cholesky factor, unless there are many of them.
_OWN_MATRIX = 512
# Rows of triangles up to which a thread solves for a column by itself. Not measured on a GPU
# either: it waits for memory at each of n * n / 2 steps, where a block loads 16 x 64 elements at
# once.
_SHORT_TRIANGLE = 32
# Elements of a row up to which a block sorts it or selects in it; CuPy's sort of a longer one
# occupies the whole device. Not measured on a GPU. An estimate: in each of 11 passes a thread makes
# 8 times 43 loads that wait for each other, of 50 cycles: 0.1 ms, about what a call through CuPy
# between two graphs costs.
_LONG_ROW = 2**14
# Places in a row while it is sorted have 32 bits.
_MOST = 2**31


def kernel_of(call, *, large=False):
    """Return the `OwnKernel` of a call; None if a library should do it.

    `large` for one that must be ours if any is, however large: library calls have no place in it.
    """
    product = _product_of(call)
    if product is not None:
        buffers, at = product
        return _own_product(buffers, at, large)
    if call.name != "routine":
        return None
    found = _OWN.get(call.attrs["symbol"].removeprefix("pt_").rpartition("_")[0])
    return None if found is None else found(call, call.attrs["arguments"], large)


def _product_of(call):
    """Return ``(buffers, attributes)`` if a call is of products, of a batch or not; else None.

    The attributes are those of a `gemm`, and the steps from one matrix to the next.
    """
    if call.name == "gemm":
        return call.buffers, {**call.attrs, "steps": (0, 0), "batch": 1}
    if call.attrs.get("symbol") not in ("pt_gemm_d", "pt_gemm_s"):
        return None
    *buffers, m, n, k, lda, ldb, turned_a, turned_b, a, b, batch = call.attrs["arguments"]
    at = {"m": m, "n": n, "k": k, "offsets": (0, 0), "ld": (lda, ldb), "steps": (a, b)}
    return buffers, {**at, "transposed": (bool(turned_a), bool(turned_b)), "batch": batch}


def _own_product(buffers, at, large):
    m, n, k, batch = (at[name] for name in ("m", "n", "k", "batch"))
    work, tiles = batch * m * n * k, batch * _tiles(m, n, 64)
    # Tiles of which the larger part lies outside of the product are no gain.
    wide = tiles >= _WIDE_TILES and 2 * batch * m * n >= 64 * 64 * tiles
    if work > (_OWN_WIDE_PRODUCT if wide else _OWN_PRODUCT) and not large:
        return None
    along = []
    for ld, turned in zip(at["ld"], at["transposed"], strict=True):
        along += [1, ld] if turned else [ld, 1]
    a, b, c = buffers
    first, second = at["offsets"]
    passed = [(a, first), (b, second), c, m, n, k, *along, *at["steps"], batch]
    letter = "d" if c.dtype == np.float64 else "s"
    if wide:
        return OwnKernel(f"pt_gemm_wide_{letter}", passed, tiles * THREADS, work)
    return OwnKernel(f"pt_gemm_{letter}", passed, batch * _tiles(m, n, 16) * THREADS, work)


def _tiles(m, n, size):
    return -(-m // size) * -(-n // size)


def _named(call, kind):
    """The symbol of another function for the same matrices."""
    name, _, letter = call.attrs["symbol"].rpartition("_")
    return f"{name}_{kind}_{letter}"


def _own_cholesky(call, arguments, large):
    _, n, batch = arguments
    fails, work = bool(call.attrs["fails"]), batch * n**3 // 3
    passed = [*arguments, int(fails)]
    if n > _OWN_MATRIX and batch * 64 <= n:
        # As many blocks as there are tiles in the largest triangle.
        threads = _tiles(n, n, 64) // 2 * THREADS
        return OwnKernel(_named(call, "together"), passed, threads, work, fails, together=True)
    return OwnKernel(call.attrs["symbol"], passed, batch * THREADS, work, fails)


def _own_trsm(call, arguments, large):
    _, _, n, m, _, _, batch, _ = arguments
    work = batch * m * n * n
    if n <= _SHORT_TRIANGLE:
        return OwnKernel(call.attrs["symbol"], arguments, batch * m, work)
    threads = batch * -(-m // 64) * THREADS
    return OwnKernel(_named(call, "wide"), arguments, threads, work)


def _own_solve(call, arguments, large):
    _, _, n, m, batch, _ = arguments
    return _own_matrices(call, arguments, max(n, m), batch, n**3 // 3 + 2 * n * n * m, large)


def _own_inv(call, arguments, large):
    n, batch = arguments[2:4]
    passed = [*arguments, int(bool(call.attrs["fails"]))]
    return _own_matrices(call, passed, n, batch, 7 * n**3 // 3, large)


def _own_determinants(call, arguments, large):
    n, batch = arguments[3:5]
    return _own_matrices(call, arguments, n, batch, n**3 // 3, large)


def _own_matrices(call, passed, size, batch, work, large):
    """Return the kernel of a function for which a block has a matrix; None if they are large."""
    if size > _OWN_MATRIX and not large:
        return None
    fails = bool(call.attrs["fails"])
    return OwnKernel(call.attrs["symbol"], passed, batch * THREADS, batch * work, fails)


def _own_searchsorted(call, arguments, large):
    _, _, rows, n, count, _, _ = arguments
    return _own_rows(call, rows * count, rows * count * n.bit_length())


def _own_argsort(call, arguments, large):
    _, rows, n, *_ = arguments
    if n >= _MOST or (n > _LONG_ROW and not large):
        return None
    blocks = -(-rows // max(1, RUN * THREADS // n))
    return _own_rows(call, blocks * THREADS, rows * n * (n.bit_length() + RUN))


def _own_order_statistic(call, arguments, large):
    _, rows, n, *_ = arguments
    if n > _LONG_ROW and not large:
        return None
    if n <= SHORT_ROW:
        return _own_rows(call, rows * n, rows * n * n)
    return _own_rows(call, rows * THREADS, rows * (n + THREADS) * (64 + n.bit_length()))


def _own_sparse_product(call, arguments, large):
    *_, rows, width, _ = arguments
    return _own_rows(call, rows * width, rows * width)


def _own_rows(call, threads, work):
    """Return the kernel of a function of the language, which takes what it takes on a processor."""
    return OwnKernel(call.attrs["symbol"], call.attrs["arguments"], threads, work)


_OWN = {
    "searchsorted": _own_searchsorted,
    "sparse_product": _own_sparse_product,
    "argsort": _own_argsort,
    "order_statistic": _own_order_statistic,
    "cholesky": _own_cholesky,
    "trsm": _own_trsm,
    "solve": _own_solve,
    "inv": _own_inv,
    "slogdet": _own_determinants,
    "det": _own_determinants,
}


def library_of(call):
    """Return ``(function, buffers, attributes)`` of a call that CuPy carries out.

    Raises
    ------
    CompileError
        If it has no form on a GPU.
    """
    product = _product_of(call)
    if product is not None:
        return LIBRARY["gemm"], *product
    symbol = call.attrs.get("symbol", "")
    found = LIBRARY.get(symbol.removeprefix("pt_").rpartition("_")[0])
    if found is None:
        name = call.node.name if call.node is not None else call.name
        raise CompileError(
            f"op {name}",
            expected="an op that has a form on the GPU",
            got="one that is compiled for the CPU only",
            fix="the function runs eagerly instead",
            at=call.node.place if call.node is not None else "",
        )
    numbers = [x for x in call.attrs["arguments"] if isinstance(x, int)]
    return found, call.buffers, {"numbers": numbers, "node": call.node}


def _gemm(xp, arrays, at):
    a, b, c = arrays
    m, n, k, batch = (at[name] for name in ("m", "n", "k", "batch"))
    sides = []
    for x, shape, offset, ld, turned, step in zip(
        (a, b), ((m, k), (k, n)), at["offsets"], at["ld"], at["transposed"], at["steps"],
        strict=True,
    ):  # fmt: skip
        rows, columns = shape[::-1] if turned else shape
        steps = (step * x.itemsize, ld * x.itemsize, x.itemsize)
        view = xp.lib.stride_tricks.as_strided(x[offset:], (batch, rows, columns), steps)
        sides.append(view.swapaxes(1, 2) if turned else view)
    xp.matmul(*sides, out=c[: batch * m * n].reshape(batch, m, n))


def _matrices(x, batch, rows, columns):
    """Return the matrices that lie in `x` by columns."""
    return x[: batch * rows * columns].reshape(batch, columns, rows).swapaxes(-1, -2)


def _run(at, *arrays, **changed):
    """Run the op that the call stands for, as eager execution does."""
    node = at["node"]
    return node.op.run(*arrays, **{**node.attrs, **changed})


def _of_matrices(names, given, made):
    """Return the call that runs an op on matrices.

    `names` are those of the numbers, the last one that of the batch; `given` and `made` say of the
    op's operands and results which array has them and what their dims are (k: the smaller of m, n).
    """

    def run(xp, arrays, at):
        size = dict(zip(names, at["numbers"]))
        size["k"] = min(size.get("m", 0), size["n"])

        def found(i, dims=""):
            shape = [size["b"], *(size[d] for d in dims)]
            if len(dims) == 2:
                return _matrices(arrays[i], *shape)
            return arrays[i][: math.prod(shape)].reshape(shape)

        results = _run(at, *(found(*place) for place in given))
        for place, result in zip(made, results if type(results) is tuple else (results,)):
            found(*place)[...] = result

    return run


def _argsort(xp, arrays, at):
    x, out = arrays[:2]
    rows, n, _ = at["numbers"]
    out[: rows * n] = _run(at, x.reshape(rows, n), dim=1).ravel()


def _order_statistic(xp, arrays, at):
    x, out = arrays[:2]
    rows, n, _ = at["numbers"]
    out[:rows] = _run(at, x.reshape(rows, n), dims=(1,)).ravel()


LIBRARY = {
    "gemm": _gemm,
    "solve": _of_matrices("nmb", [(0, "nn"), (1, "nm")], [(1, "nm")]),
    "inv": _of_matrices("nb", [(0, "nn")], [(1, "nn")]),
    "slogdet": _of_matrices("nb", [(0, "nn")], [(1,), (2,)]),
    "det": _of_matrices("nb", [(0, "nn")], [(1,)]),
    "eigh": _of_matrices("nb", [(0, "nn")], [(1, "n"), (0, "nn")]),
    "svd": _of_matrices("mnb", [(0, "mn")], [(1, "mk"), (2, "k"), (3, "kn")]),
    "qr": _of_matrices("mnb", [(0, "mn")], [(1, "mk"), (2, "kn")]),
    "argsort": _argsort,
    "order_statistic": _order_statistic,
}
