"""Matrix products by the C interface of cuBLAS, which may be captured in CUDA graphs.

CuPy calls cuBLAS too, but not while a stream is being captured: then it raises. NVIDIA allows it
for products whose scalars lie on the host, if the working space is given beforehand ("CUDA graphs
support" in the manual of cuBLAS). The library is the one that CuPy has loaded. Nothing here touches
CuPy: addresses and streams are numbers.
"""

import ctypes
import sys
import threading
from typing import Any

import numpy as np

from probtorch.errors import DeviceError

__all__ = ["Cublas", "Matrix", "load"]

# An address, the step from row to row in elements, and whether what lies there is the transpose.
Matrix = tuple[int, int, bool]

_FUNCTIONS = {
    np.dtype(np.float32): ("cublasSgemm_v2", ctypes.c_float),
    np.dtype(np.float64): ("cublasDgemm_v2", ctypes.c_double),
}
# cuBLAS counts in int.
_MOST = 2**31


def load(major: int) -> Any:
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

    def __init__(self, library: Any) -> None:
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
        sizes: tuple[int, int, int],
        left: Matrix,
        right: Matrix,
        out: int,
        stream: int,
        space: tuple[int, int],
    ) -> None:
        """Put the product of an (m, k) and a (k, n) matrix into an (m, n) one, all by rows.

        Parameters
        ----------
        sizes : tuple of int
            m, n, k.
        out : int
            Address of the result, whose rows follow each other.
        stream : int
        space : tuple of int
            Address and bytes of working space, which nobody else uses until the product is done.
        """
        m, n, k = sizes
        name, number = _FUNCTIONS[dtype]
        one, zero = number(1), number(0)
        # Matrices lie by columns for cuBLAS: what it sees is the transposed product.
        sides = [(int(turned), address, step) for address, step, turned in (right, left)]
        (turn_b, b, step_b), (turn_a, a, step_a) = sides
        with self._lock:
            self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
            self._call(
                "cublasSetWorkspace_v2",
                self._handle,
                ctypes.c_void_p(space[0]),
                ctypes.c_size_t(space[1]),
            )
            self._call(
                name,
                self._handle,
                *map(ctypes.c_int, (turn_b, turn_a, n, m, k)),
                ctypes.byref(one),
                ctypes.c_void_p(b),
                ctypes.c_int(step_b),
                ctypes.c_void_p(a),
                ctypes.c_int(step_a),
                ctypes.byref(zero),
                ctypes.c_void_p(out),
                ctypes.c_int(n),
            )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(
                "a matrix product on a GPU",
                expected="cuBLAS to carry it out",
                got=f"status {status} from {name}",
                fix="compute it on the host: tensor.to('cpu')",
            )
