"""Calls of a lowered program on a GPU: kernels of our own, and what CuPy does.

`kernel_of` gives a device function for Cholesky factors and triangular solves, made in place by a
block per matrix, and for products that are not large: such kernels can be part of a captured graph
and report failures as others do. `LIBRARY` has what goes through CuPy (cuBLAS, cuSOLVER): functions
of the array module and of flat arrays, which the executor runs between two captured graphs, because
CuPy refuses to capture these libraries. A call that is in neither makes the function run eagerly,
with a reason that names it.
"""

from probtorch.compiler.render.cuda_own import OwnKernel
from probtorch.compiler.render.cuda_phases import THREADS
from probtorch.compiler.render.cuda_sorting import sorting_kernel
from probtorch.errors import CompileError

__all__ = ["LIBRARY", "kernel_of", "library_of"]

# Multiplications of a product up to which our own kernel does it: cuBLAS is faster at the product,
# but starting it takes longer, and it cannot be part of a captured graph.
_OWN_PRODUCT = 2**23


def kernel_of(call, *, large=False):
    """Return the `OwnKernel` of a call; None if a library should do it.

    `large` for one that must be ours if any is, however large: library calls have no place in it.
    """
    if call.name == "gemm":
        return _own_product(call, large)
    if call.name != "routine":
        return None
    symbol, arguments = call.attrs["symbol"], call.attrs["arguments"]
    if symbol in ("pt_cholesky_d", "pt_cholesky_s"):
        a, n, batch = arguments
        checked = bool(call.attrs["fails"])
        passed = [a, n, batch, checked, "(i64 *)M"]
        return OwnKernel("pt_cholesky", passed, batch * THREADS, batch * n**3 // 3)
    if symbol in ("pt_trsm_d", "pt_trsm_s"):
        a, b, n, m, upper, unit, batch, apart = arguments
        passed = [a, b, n, m, bool(upper), bool(unit), batch, apart]
        return OwnKernel("pt_trsm", passed, batch * m, batch * m * n * n)
    return sorting_kernel(call, large=large)


def _own_product(call, large):
    at, (a, b, c) = call.attrs, call.buffers
    m, n, k = at["m"], at["n"], at["k"]
    if m * n * k > _OWN_PRODUCT and not large:
        return None
    steps = []
    for ld, turned in zip(at["ld"], at["transposed"], strict=True):
        steps += [1, ld] if turned else [ld, 1]
    first, second = at["offsets"]
    passed = [(a, first), (b, second), c, m, n, k, *steps, "shared"]
    return OwnKernel("pt_gemm", passed, -(-m // 16) * -(-n // 16) * THREADS, m * n * k)


def library_of(call):
    """Return ``(function, buffers, attributes)`` of a call that CuPy carries out.

    Raises
    ------
    CompileError
        If it has no form on a GPU.
    """
    if call.name == "gemm":
        return LIBRARY["gemm"], call.buffers, call.attrs
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
    sides = []
    shapes = ((at["m"], at["k"]), (at["k"], at["n"]))
    for x, shape, offset, ld, turned in zip(
        (a, b), shapes, at["offsets"], at["ld"], at["transposed"], strict=True
    ):
        rows, columns = shape[::-1] if turned else shape
        steps = (ld * x.dtype.itemsize, x.dtype.itemsize)
        view = xp.lib.stride_tricks.as_strided(x[offset:], (rows, columns), steps)
        sides.append(view.T if turned else view)
    xp.matmul(*sides, out=c.reshape(at["m"], at["n"]))


def _matrices(x, batch, rows, columns):
    """Return the matrices that lie in `x` by columns."""
    return x[: batch * rows * columns].reshape(batch, columns, rows).swapaxes(-1, -2)


def _run(at, *arrays, **changed):
    """Run the op that the call stands for, as eager execution does."""
    node = at["node"]
    return node.op.run(*arrays, **{**node.attrs, **changed})


def _solve(xp, arrays, at):
    a, b, _ = arrays
    n, m, batch = at["numbers"]
    right = _matrices(b, batch, n, m)
    right[...] = _run(at, _matrices(a, batch, n, n), right)


def _inv(xp, arrays, at):
    a, out, _ = arrays
    n, batch = at["numbers"]
    _matrices(out, batch, n, n)[...] = _run(at, _matrices(a, batch, n, n))


def _slogdet(xp, arrays, at):
    a, signs, logs, _ = arrays
    n, batch = at["numbers"]
    signs[:batch], logs[:batch] = _run(at, _matrices(a, batch, n, n))


def _det(xp, arrays, at):
    a, out, *_ = arrays
    n, batch = at["numbers"]
    out[:batch] = _run(at, _matrices(a, batch, n, n))


def _eigh(xp, arrays, at):
    a, values, *_ = arrays
    n, batch = at["numbers"][:2]
    w, v = _run(at, _matrices(a, batch, n, n))
    values[: batch * n] = w.ravel()
    _matrices(a, batch, n, n)[...] = v


def _svd(xp, arrays, at):
    a, *out = arrays[:4]
    m, n, batch = at["numbers"][:3]
    k = min(m, n)
    u, s, vh = _run(at, _matrices(a, batch, m, n))
    _matrices(out[0], batch, m, k)[...] = u
    out[1][: batch * k] = s.ravel()
    _matrices(out[2], batch, k, n)[...] = vh


def _qr(xp, arrays, at):
    a, q, r = arrays[:3]
    m, n, batch = at["numbers"][:3]
    k = min(m, n)
    found = _run(at, _matrices(a, batch, m, n))
    _matrices(q, batch, m, k)[...] = found[0]
    _matrices(r, batch, k, n)[...] = found[1]


def _argsort(xp, arrays, at):
    x, out = arrays[:2]
    rows, n, _ = at["numbers"]
    out[: rows * n] = _run(at, x.reshape(rows, n), dim=1).ravel()


def _order_statistic(xp, arrays, at):
    x, out = arrays[:2]
    rows, n, _ = at["numbers"]
    out[:rows] = _run(at, x.reshape(rows, n), dims=(1,)).ravel()


def _searchsorted(xp, arrays, at):
    sequence, values, out = arrays
    shapes = [v.shape for v in at["node"].inputs]
    found = _run(at, sequence.reshape(shapes[0]), values.reshape(shapes[1]))
    out[: found.size] = found.ravel()


LIBRARY = {
    "gemm": _gemm,
    "solve": _solve,
    "inv": _inv,
    "slogdet": _slogdet,
    "det": _det,
    "eigh": _eigh,
    "svd": _svd,
    "qr": _qr,
    "argsort": _argsort,
    "order_statistic": _order_statistic,
    "searchsorted": _searchsorted,
}
