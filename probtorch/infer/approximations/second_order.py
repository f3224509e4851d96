"""Second derivatives of a target's log density, by a compiled loop over points and directions.

A row of the Hessian is the derivative of the gradient along a coordinate, forward over reverse,
exact to rounding; for a few rows it is not worth compiling. `hessian_diagonal` never holds a
matrix, so that it serves where there is no room for dim squared numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from probtorch.autograd.forward import jvp
from probtorch.autograd.jacobians import hessian
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.transforms import grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.infer.mapping import FEW, DrawMap
from probtorch.infer.potential import Target
from probtorch.ops.arithmetic import where

__all__ = ["Hessians", "hessian_diagonal", "hessian_row"]


class Hessians:
    """The second derivatives of a target's log density; compiled once for all calls.

    Parameters
    ----------
    target : Target
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._rows = DrawMap(functools.partial(_row, target))

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return symmetric matrices (points, dim, dim) at points (points, dim)."""
        dim = self.target.dim
        # Of a target whose data may be exchanged rows are compiled once, for all data.
        compiled = getattr(self.target, "hessian_rows", None)
        if compiled is None and points.size < FEW:
            # One reverse pass for each row, after a single run of the density.
            with enable_grad():
                matrices = [hessian(self.target.logdensity)(wrap(q.copy())) for q in points]
            return np.stack([to_host(h.array) for h in matrices])
        inputs = {
            "q": np.repeat(points, dim, axis=0),
            "i": np.tile(np.arange(dim), len(points)),
        }
        found = (compiled or self._rows)(inputs)["row"].reshape(len(points), dim, dim)
        return 0.5 * (found + found.transpose(0, 2, 1))


def hessian_diagonal(target: Target, point: np.ndarray) -> np.ndarray:
    """Return the second derivative along each coordinate at a point, shape (dim,)."""
    along = DrawMap(functools.partial(_element, target, wrap(np.array(point))))
    return along({"i": np.arange(target.dim)})["element"]


def _row(target: Target, inputs: dict[str, TensorBase]) -> dict[str, TensorBase]:
    return {"row": hessian_row(target.logdensity, inputs["q"], inputs["i"])}


def hessian_row(
    fn: Callable[[TensorBase], TensorBase], q: TensorBase, number: TensorBase
) -> TensorBase:
    """Return a row of the second derivatives of a function of a vector, shape (dim,)."""
    return jvp(grad(fn), (q,), (_direction(q.array.shape[0], number),))[1]


def _element(
    target: Target, point: TensorBase, inputs: dict[str, TensorBase]
) -> dict[str, TensorBase]:
    direction = _direction(target.dim, inputs["i"])
    row = jvp(grad(target.logdensity), (point,), (direction,))[1]
    return {"element": (row * direction).sum()}


def _direction(dim: int, number: TensorBase) -> TensorBase:
    return where(wrap(np.arange(dim)) == number, 1.0, 0.0).double()
