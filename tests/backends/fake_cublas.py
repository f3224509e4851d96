"""A stand-in for the library of cuBLAS: its C interface over host memory, by NumPy.

It knows what the manual says and no more: matrices by columns, scalars on the host, working space
and a stream that were set before. Products are put on the fake's stream, so that they are captured
when it is.
"""

import ctypes

import numpy as np

from tests.backends.fake_cupy import FakeStream

__all__ = ["FakeCublas"]


class FakeCublas:
    """The functions that `backends/cublas.py` calls; each returns a status, 0 where all is well.

    Parameters
    ----------
    status : int
        What `cublasCreate_v2` returns.
    """

    def __init__(self, status=0):
        self.status = status
        self.products, self.stream, self.space = 0, None, (None, 0)

    def cublasCreate_v2(self, handle):
        handle._obj.value = 0 if self.status else 99
        return self.status

    def cublasSetStream_v2(self, handle, stream):
        assert handle.value == 99
        self.stream = stream.value
        return 0

    def cublasSetWorkspace_v2(self, handle, address, size):
        assert handle.value == 99
        self.space = address.value, size.value
        return 0

    def cublasSgemm_v2(self, *arguments):
        return self._gemm(np.float32, ctypes.c_float, *arguments)

    def cublasDgemm_v2(self, *arguments):
        return self._gemm(np.float64, ctypes.c_double, *arguments)

    def cublasSgemmStridedBatched(self, *arguments):
        return self._batch(np.float32, ctypes.c_float, *arguments)

    def cublasDgemmStridedBatched(self, *arguments):
        return self._batch(np.float64, ctypes.c_double, *arguments)

    def _batch(self, dtype, number, *arguments):
        head, (alpha, a, lda, step_a, b, ldb, step_b), tail = (
            arguments[:6],
            arguments[6:13],
            arguments[13:],
        )
        beta, c, ldc, step_c, count = tail
        for i in range(count.value):
            places = [
                ctypes.c_void_p(x.value + i * step.value * np.dtype(dtype).itemsize)
                for x, step in ((a, step_a), (b, step_b), (c, step_c))
            ]
            rest = alpha, places[0], lda, places[1], ldb, beta, places[2], ldc
            status = self._gemm(dtype, number, *head, *rest)
            if status:
                return status
        return 0

    def _gemm(self, dtype, number, handle, *arguments):
        assert handle.value == 99 and self.stream == FakeStream.ptr and self.space[0]
        turned_a, turned_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments
        assert all(type(x._obj) is number for x in (alpha, beta))
        m, n, k = m.value, n.value, k.value
        sides = [((m, k), turned_a, a, lda), ((k, n), turned_b, b, ldb), ((m, n), None, c, ldc)]
        views = []
        for (rows, columns), turned, address, step in sides:
            turned = turned is not None and turned.value
            stored = (columns, rows) if turned else (rows, columns)
            if step.value < max(1, stored[0]):
                return 7
            view = _by_columns(dtype, address.value, stored, step.value)
            views.append(view.T if turned else view)
        one, zero = alpha._obj.value, beta._obj.value

        def run():
            left, right, out = views
            out[...] = one * (left @ right) + (zero * out if zero else 0)

        self.products += 1
        FakeStream.enqueue(run)
        return 0


def _by_columns(dtype, address, shape, step):
    """Return host memory as a matrix whose columns begin `step` elements apart."""
    rows, columns = shape
    size = (columns - 1) * step + rows
    flat = np.frombuffer(
        (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(address), dtype
    )
    return np.lib.stride_tricks.as_strided(
        flat, shape, (flat.itemsize, step * flat.itemsize), writeable=True
    )
