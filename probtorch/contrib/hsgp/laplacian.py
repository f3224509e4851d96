"""Eigenvalues and eigenfunctions of the Laplacian in a box, where values are 0 at the walls.

In the box ``[-ell_1, ell_1] x ... x [-ell_D, ell_D]`` they are products of sines, numbered by an
index from 1 to m in each dim. On a circle they are sines and cosines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import prod
from probtorch.ops.trigonometry import cos, sin
from probtorch.tensor import Tensor, tensor

__all__ = ["eigenfunctions", "eigenfunctions_periodic", "eigenindices", "sqrt_eigenvalues"]


def eigenindices(m: int | Sequence[int], dim: int) -> np.ndarray:
    """Return the indices of all eigenfunctions, shape (dim, m**dim), those of the last dim fastest.

    Parameters
    ----------
    m : int or sequence of int, positive
        How many in each dim.
    dim : int
    """
    sizes = [int(m)] * dim if isinstance(m, int | np.integer) else [int(n) for n in m]
    if len(sizes) != dim or min(sizes) < 1:
        raise ArgumentError(
            "hsgp",
            expected=f"m a positive int, or one for each of {dim} dims",
            got=repr(m),
            fix="m is the number of basis functions of a dim",
        )
    grids = np.meshgrid(*(np.arange(1, n + 1) for n in sizes), indexing="ij")
    return np.stack([g.ravel() for g in grids])


def sqrt_eigenvalues(
    ell: float | Sequence[float] | Tensor, m: int | Sequence[int], dim: int
) -> Tensor:
    """Return the roots of the eigenvalues by dim: angular frequencies, shape (dim, m**dim).

    Parameters
    ----------
    ell : number, or Tensor, shape (dim,), positive
        Half of the sides of the box.
    m : int or sequence of int
    dim : int
    """
    half = unsqueeze(_sides(ell, dim), 1)
    return half.new_tensor(eigenindices(m, dim) * (math.pi / 2.0)) / half


def eigenfunctions(
    x: TensorLike, ell: float | Sequence[float] | Tensor, m: int | Sequence[int]
) -> Tensor:
    """Return the eigenfunctions at points, shape (n, m**dim), normal to each other in the box.

    Parameters
    ----------
    x : Tensor or array, shape (n, dim) or (n,)
        Points of the box; outside of it functions go on as sines.
    ell : number, or Tensor, shape (dim,), positive
        Half of the sides of the box.
    m : int or sequence of int
        How many in each dim.
    """
    points = as_value(x, "x")
    if points.array.ndim == 1:
        points = unsqueeze(points, 1)
    if points.array.ndim != 2:
        raise ShapeError(
            "hsgp",
            expected="x of shape (points, dims), or (points,)",
            got=f"shape {tuple(points.array.shape)}",
            fix="points are rows",
        )
    dim = points.array.shape[1]
    half = _sides(ell, dim)
    w = sqrt_eigenvalues(half, m, dim)
    waves = sin(unsqueeze(points + half, 2) * w) / unsqueeze(half.sqrt(), 1)
    return prod(waves, 1)


def eigenfunctions_periodic(x: TensorLike, w0: TensorLike, m: int) -> tuple[Tensor, Tensor]:
    """Return ``cos(j w0 x)`` and ``sin(j w0 x)`` for j from 0 to m - 1, both of shape (n, m).

    Parameters
    ----------
    x : Tensor or array, shape (n,) or (n, 1)
    w0 : Tensor or number, positive
        Angular frequency, 2 pi by the period.
    m : int
    """
    points = as_value(x, "x").reshape(-1)
    j = points.new_tensor(np.arange(float(m)))
    phase = unsqueeze(points * w0, 1) * j
    return cos(phase), sin(phase)


def _sides(ell: float | Sequence[float] | Tensor, dim: int) -> Tensor:
    half = as_value(ell, "ell") if isinstance(ell, Tensor) else tensor(np.asarray(ell, float))
    if half.array.shape not in ((), (dim,)):
        raise ShapeError(
            "hsgp",
            expected=f"ell a number, or one for each of {dim} dims",
            got=f"shape {tuple(half.array.shape)}",
            fix="ell is half of the box in each dim, x centred: 1.5 times the largest |x| or so",
        )
    return half.expand((dim,))


explain_calls(globals())
