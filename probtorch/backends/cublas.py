"""Matrix products by the C interface of cuBLAS, which may be captured in CUDA graphs.

CuPy calls cuBLAS too, but not while a stream is being captured: then it raises. NVIDIA allows it
for products whose scalars lie on the host, if the working space is given beforehand ("CUDA graphs
support" in the manual of cuBLAS). The library is the one that CuPy has loaded. Nothing here touches
CuPy: addresses and streams are numbers.
"""

import ctypes
import sys
import threading
from typing import NamedTuple

import numpy as np

from probtorch.errors import DeviceError

__all__ = ["Cublas", "CublasMatrices", "load"]


class CublasMatrices(NamedTuple):
    """Matrices by rows: the address of the first, the steps in elements from row to row and from
    matrix to matrix, and whether what lies there is the transpose.
    """

    address: int
    row: int
    matrix: int
    transposed: bool


_FUNCTIONS = {
    np.dtype(np.float32): ("cublasSgemm", ctypes.c_float),
    np.dtype(np.float64): ("cublasDgemm", ctypes.c_double),
}
# cuBLAS counts in int.
_MOST = 2**31


def load(major: int) -> ctypes.CDLL:
    """Return the library of CUDA `major`, found by its name; OSError if it cannot be loaded."""
    name = f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}"
    return ctypes.CDLL(name)


class Cublas:
    """cuBLAS on the device that is current when this is made.

    Parameters
    ----------
    library : ctypes.CDLL

    Raises
    ------
    DeviceError
        If cuBLAS cannot be used.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        # Stream and working space belong to the handle: they are set and used in one go.
        self._lock = threading.Lock()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))

    @staticmethod
    def takes(sizes: tuple[int, ...], dtype: np.dtype) -> bool:
        """Whether cuBLAS has a product of these sizes, steps from row to row among them."""
        return dtype in _FUNCTIONS and max(sizes) < _MOST

    def multiply(
        self,
        dtype: np.dtype,
        sizes: tuple[int, int, int, int],
        left: CublasMatrices,
        right: CublasMatrices,
        out: int,
        stream: int,
        space: tuple[int, int],
    ) -> None:
        """Put products of (m, k) and (k, n) matrices into (m, n) ones, all by rows.

        Parameters
        ----------
        sizes : tuple of int
            m, n, k, and how many products.
        out : int
            Address of the results, which follow each other.
        stream : int
        space : tuple of int
            Address and bytes of working space, which nobody else uses until the products are made.
        """
        m, n, k, count = sizes
        name, number = _FUNCTIONS[dtype]
        one, zero = ctypes.byref(number(1)), ctypes.byref(number(0))
        # Matrices lie by columns for cuBLAS: what it sees is the transposed product.
        turns = map(ctypes.c_int, (right.transposed, left.transposed, n, m, k))
        a, b, c = (
            [ctypes.c_void_p(address), ctypes.c_int(row)]
            for address, row in ((right.address, right.row), (left.address, left.row), (out, n))
        )
        with self._lock:
            self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
            room = ctypes.c_void_p(space[0]), ctypes.c_size_t(space[1])
            self._call("cublasSetWorkspace_v2", self._handle, *room)
            if count == 1:
                self._call(f"{name}_v2", self._handle, *turns, one, *a, *b, zero, *c)
                return
            a, b, c = (
                [*x, ctypes.c_longlong(step)]
                for x, step in ((a, right.matrix), (b, left.matrix), (c, m * n))
            )
            self._call(
                f"{name}StridedBatched",
                *(self._handle, *turns, one, *a, *b, zero, *c, ctypes.c_int(count)),
            )

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(
                "a matrix product on a GPU",
                expected="cuBLAS to carry it out",
                got=f"status {status} from {name}",
                fix="compute it on the host: tensor.to('cpu')",
            )
