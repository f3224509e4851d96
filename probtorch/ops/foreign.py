"""Ops that are native functions by address.

`native_density` is how a sampler written in tensor ops calls a model: the sampler's program is
compiled once per dimension and takes the density's address as data.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.core.dispatch import apply
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.families import structured

if TYPE_CHECKING:
    from probtorch.core.op import Attrs


__all__ = ["native_density"]

_DENSITY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _run(q: np.ndarray, function: np.ndarray, context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q = np.ascontiguousarray(q)
    grad = np.empty_like(q)
    value = _DENSITY(int(function))(q.ctypes.data, grad.ctypes.data, int(context))
    return np.asarray(value), grad


@_DENSITY
def _standard_normal(q: int, grad: int, dim: int) -> float:
    """Write -q to `grad` and return -q.q/2, for `dim` numbers at the addresses `q` and `grad`."""
    x = np.ctypeslib.as_array((ctypes.c_double * dim).from_address(q))
    if grad:
        np.ctypeslib.as_array((ctypes.c_double * dim).from_address(grad))[...] = -x
    return -0.5 * float(x @ x)


def _samples(rng: np.random.Generator) -> list[tuple[tuple[Any, ...], Attrs]]:
    address = ctypes.cast(_standard_normal, ctypes.c_void_p).value
    return [((rng.standard_normal(3), np.array(address), np.array(3)), {})]


_NATIVE_DENSITY = structured(
    "native_density",
    "control",
    run=_run,
    num_outputs=2,
    samples=_samples,
    reference=lambda q, function, context: (-0.5 * np.sum(q * q), -q),
    extra={"float64_only": True},
    doc="Log density and gradient at q of a C function, by its address.",
)


def native_density(
    q: TensorBase, function: TensorBase, context: TensorBase
) -> tuple[TensorBase, TensorBase]:
    """Return ``(log density, gradient)`` of a native density.

    Parameters
    ----------
    q : Tensor, shape (d,), float64
    function, context : Tensor, 0-d int64, or int
        Addresses of the C function and of what it is given.

    Notes
    -----
    Not differentiable: the gradient is a result. The addresses must be valid; nothing can check
    them. A compiled program that does not read the gradient calls the function with a null pointer
    in its place, which asks for the value alone.
    """
    return apply(_NATIVE_DENSITY, (q, as_tensor(function), as_tensor(context)))
