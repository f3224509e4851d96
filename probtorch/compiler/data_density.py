"""`DataDensity`: a log density of a point and of data, compiled once for all data of a shape.

`NativeDensity` makes constants of the tensors that it finds, which is right for one data set and a
thousand draws. For a thousand data sets (simulation-based calibration) the data are coordinates of
a longer vector, ``(q, data)``, in which the density is compiled, and a small C function between the
sampler and it puts the two parts together:

    double density_of_data(const double *q, double *grad, void *context)

`context` holds the data, so exchanging them is copying numbers. What Python does with them is
guarded as everything else: a branch on data is a path.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.density import NativeDensity
from probtorch.compiler.machine import engine
from probtorch.compiler.nests.loops import address
from probtorch.compiler.paths import Compiled
from probtorch.core.tensor_base import TensorBase

if TYPE_CHECKING:
    from probtorch.infer.gradient_check import DensityCheck

__all__ = ["DataDensity", "DataLanes"]

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class DataDensity(Compiled):
    """A log density on R^dim that also depends on numbers which may be exchanged.

    Parameters
    ----------
    fn : callable
        ``fn(q, data)``, both float64 Tensors, the latter without gradient; returns a 0-d Tensor.
    dim : int
    data : ndarray, shape (size,)
        The first data.
    name, check
        As for `NativeDensity`; the check sees the long vector.

    Notes
    -----
    To samplers it is like a `NativeDensity` of `dim` coordinates. A context keeps the data that it
    was made with, until its own `set_data` is called.
    """

    device: str | None = None  # evaluated on the host

    def __init__(
        self,
        fn: Callable[[TensorBase, TensorBase], TensorBase],
        dim: int,
        data: np.ndarray,
        *,
        name: str,
        check: DensityCheck | None = None,
    ) -> None:
        self.dim, self.name = dim, name
        self._made_of = fn, check
        self.data = np.array(data, np.float64)

        def joined(point):
            return fn(point[:dim], point[dim:].detach())

        self.joined = NativeDensity(joined, dim + self.data.size, name=name, check=check)
        self.paths, self.costs = self.joined.paths, self.joined.costs
        self._own: _Context | None = None

    def set_data(self, data: np.ndarray) -> None:
        """Use other data from now on: for contexts yet to be made, and for evaluations here."""
        self.data = np.array(data, np.float64)
        if self._own is not None:
            self._own.set_data(self.data)

    def __getstate__(self):
        # Compiled code is addresses: it is made anew where it is wanted.
        return self._made_of, self.dim, self.data, self.name

    def __setstate__(self, state):
        (fn, check), dim, data, name = state
        DataDensity.__init__(self, fn, dim, data, name=name, check=check)

    def with_data(self, data: np.ndarray) -> DataDensity:
        """Return the same density, compiled once for both, with other data."""
        made = DataDensity.__new__(DataDensity)
        made.__dict__.update(self.__dict__, data=np.array(data, np.float64), _own=None)
        return made

    def lanes(self, data: np.ndarray) -> DataLanes:
        """Return one thread's memory for many data, shape (lanes, size)."""
        return DataLanes(self, data)

    def context(self) -> _Context:
        """Return one thread's memory, with the data at hand; see `NativeDensity.context`."""
        return _Context(self)

    def value_and_grad(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Return ``(log density, gradient)`` at an array q."""
        if self._own is None:
            self._own = self.context()
        return self._own.value_and_grad(q)

    def value_and_grad_many(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(log densities, gradients)`` at the rows of an array."""
        data = np.broadcast_to(self.data, (len(q), self.data.size))
        values, slopes = self.joined.value_and_grad_many(np.concatenate([q, data], axis=1))
        return values, slopes[:, : self.dim]

    def eager(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Evaluate at an array in Python."""
        value, slope = self.joined.eager(np.concatenate([q, self.data]))
        return value, slope[: self.dim]

    def verify(self, q: np.ndarray, context: _Context) -> None:
        """Compare the native answer with Python's; see `NativeDensity.verify`."""
        self.joined.verify(context.joined_point(q), context.inner)


class _Context:
    """One thread's memory; `function` and `address` are what native code calls and passes."""

    def __init__(self, density):
        self.density, self.inner = density, density.joined.context()
        self._point = np.concatenate([np.zeros(density.dim), density.data])
        self._slope = np.zeros_like(self._point)
        self._grad = np.zeros(density.dim)
        inner, places = self.inner, (address(self._point), address(self._slope))
        words = inner.function, inner.address, *places, 8 * density.dim
        self._table = np.array(words, np.uintp)
        self.function = engine.runtime_address("pt_density_of_data")
        self.address, self._entry = address(self._table), _ENTRY(self.function)
        self.raise_error = inner.raise_error

    def set_data(self, data):
        """Exchange the data."""
        self._point[self.density.dim :] = data

    def joined_point(self, q):
        """Return the long vector at an array q."""
        return np.concatenate([q, self._point[self.density.dim :]])

    def value_and_grad(self, q):
        """Return ``(log density, gradient)`` at an array."""
        value, slope = self.inner.value_and_grad(self.joined_point(q))
        return value, slope[: self.density.dim]

    def native(self, q):
        """Return ``(log density, gradient)`` at an array, unverified, as a sampler gets them."""
        point = np.array(q, np.float64)
        value = self._entry(address(point), address(self._grad), self.address)
        self.raise_error()
        return value, self._grad.copy()


class DataLanes:
    """One thread's memory for many data: a context for each, and the paths that they share.

    Parameters
    ----------
    density : DataDensity
    data : ndarray, shape (lanes, size)

    Attributes
    ----------
    function : int
        What native code calls, with one of
    contexts : int64 ndarray, shape (lanes,)
    """

    def __init__(self, density: DataDensity, data: np.ndarray) -> None:
        self.density, self._inner = density, density.joined.context()
        count, self._dim = len(data), density.dim
        self._points = np.concatenate([np.zeros((count, self._dim)), data], axis=1)
        self._slope = np.zeros(self._points.shape[1])
        self._tables = np.empty((count, 5), np.uintp)
        points = address(self._points) + np.arange(count) * self._points.strides[0]
        words = self._inner.function, self._inner.address, points, address(self._slope)
        for k, word in enumerate((*words, 8 * self._dim)):
            self._tables[:, k] = word
        self.function = engine.runtime_address("pt_density_of_data")
        self.contexts = address(self._tables) + np.arange(count) * self._tables.strides[0]
        self.raise_error = self._inner.raise_error

    def value_and_grad(self, lane: int, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Return ``(log density, gradient)`` at an array, given the data of a lane."""
        self._points[lane, : self._dim] = q
        value, slope = self._inner.native(self._points[lane])
        return value, slope[: self._dim]

    def verify(self, lane: int, q: np.ndarray) -> None:
        """Compare the native answer with Python's; see `NativeDensity.verify`."""
        self._points[lane, : self._dim] = q
        self.density.joined.verify(self._points[lane], self._inner)
