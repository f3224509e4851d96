"""Calls of a lowered program on a GPU: kernels of our own, and what CuPy does.

`kernel_of` gives a device function for Cholesky factors and triangular solves, made in place by a
block per matrix, and for products that are not large: such kernels can be part of a captured graph
and report failures as others do. `LIBRARY` has what goes through CuPy (cuBLAS, cuSOLVER): functions
of the array module and of flat arrays, which the executor runs between two captured graphs, because
CuPy refuses to capture these libraries. A call that is in neither makes the function run eagerly,
with a reason that names it.
"""

from probtorch.compiler.render.cuda_phases import THREADS
from probtorch.errors import CompileError

__all__ = ["LIBRARY", "MATRICES", "kernel_of", "library_of"]

# Multiplications of a product up to which our own kernel does it: cuBLAS is faster at the product,
# but starting it takes longer, and it cannot be part of a captured graph.
_OWN_PRODUCT = 2**23

# Device functions for matrices by rows.
MATRICES = r"""
// Lower factors in place; what is not positive definite becomes nan, and fails if `check`.
template <class T>
static __device__ void pt_cholesky(T *all, i64 n, i64 batch, bool check, i64 *status) {
  for (i64 m = blockIdx.x; m < batch; m += gridDim.x) {
    T *a = all + m * n * n;
    bool bad = false;
    for (i64 k = 0; k < n; ++k) {
      const T pivot = a[k * n + k];
      __syncthreads();
      if (!(pivot > 0)) { bad = true; break; }
      const T root = sqrt(pivot);
      for (i64 i = k + threadIdx.x; i < n; i += blockDim.x)
        a[i * n + k] = i == k ? root : a[i * n + k] / root;
      __syncthreads();
      const i64 rest = n - k - 1;
      for (i64 t = threadIdx.x; t < rest * rest; t += blockDim.x) {
        const i64 i = k + 1 + t / rest, j = k + 1 + t % rest;
        if (j <= i) a[i * n + j] -= a[i * n + k] * a[j * n + k];
      }
      __syncthreads();
    }
    for (i64 t = threadIdx.x; t < n * n; t += blockDim.x)
      if (bad || t % n > t / n) a[t] = bad ? pt_nan<T>() : (T)0;
    if (bad && check && threadIdx.x == 0) pt_fail(status, -1);
    __syncthreads();
  }
}
// C = A B in tiles of 16 x 16, a thread per element; steps along the rows and columns of A and B.
template <class T>
static __device__ void pt_gemm(const T *a, const T *b, T *c, i64 m, i64 n, i64 k, i64 ai, i64 ak,
                               i64 bk, i64 bj, void *shared) {
  T *left = (T *)shared, *right = left + 256;
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const i64 across = (n + 15) / 16, tiles = (m + 15) / 16 * across;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 row = tile / across * 16 + i, column = tile % across * 16 + j;
    T total = 0;
    for (i64 first = 0; first < k; first += 16) {
      left[threadIdx.x] = row < m && first + j < k ? a[row * ai + (first + j) * ak] : (T)0;
      right[threadIdx.x] = column < n && first + i < k ? b[(first + i) * bk + column * bj] : (T)0;
      __syncthreads();
      for (int q = 0; q < 16; ++q) total += left[16 * i + q] * right[16 * q + j];
      __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = total;
  }
}
// A x = b in place of b, a column of b for each thread; `apart` is the distance of the matrices.
template <class T>
static __device__ void pt_trsm(const T *a, T *b, i64 n, i64 m, bool upper, bool unit, i64 batch,
                               i64 apart) {
  for (i64 t = blockIdx.x * blockDim.x + threadIdx.x; t < batch * m; t += gridDim.x * blockDim.x) {
    const T *l = a + t / m * apart;
    T *x = b + t / m * n * m + t % m;
    for (i64 r = 0; r < n; ++r) {
      const i64 i = upper ? n - 1 - r : r, first = upper ? i + 1 : 0, last = upper ? n : i;
      T rest = x[i * m];
      for (i64 k = first; k < last; ++k) rest -= l[i * n + k] * x[k * m];
      x[i * m] = unit ? rest : rest / l[i * n + i];
    }
  }
}
"""


def kernel_of(call):
    """Return ``(function, its arguments, threads)`` of a call that is a kernel of ours, or None.

    Arguments are buffers, pairs of buffer and offset, numbers, and names of the kernel's variables.
    """
    if call.name == "gemm":
        return _own_product(call)
    if call.name != "routine":
        return None
    symbol, arguments = call.attrs["symbol"], call.attrs["arguments"]
    if symbol in ("pt_cholesky_d", "pt_cholesky_s"):
        a, n, batch = arguments
        checked = bool(call.attrs["fails"])
        return "pt_cholesky", [a, n, batch, checked, "(i64 *)M"], batch * THREADS
    if symbol in ("pt_trsm_d", "pt_trsm_s"):
        a, b, n, m, upper, unit, batch, apart = arguments
        return "pt_trsm", [a, b, n, m, bool(upper), bool(unit), batch, apart], batch * m
    return None


def _own_product(call):
    at, (a, b, c) = call.attrs, call.buffers
    m, n, k = at["m"], at["n"], at["k"]
    if m * n * k > _OWN_PRODUCT:
        return None
    steps = []
    for ld, turned in zip(at["ld"], at["transposed"], strict=True):
        steps += [1, ld] if turned else [ld, 1]
    first, second = at["offsets"]
    arguments = [(a, first), (b, second), c, m, n, k, *steps, "shared"]
    return "pt_gemm", arguments, -(-m // 16) * -(-n // 16) * THREADS


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
