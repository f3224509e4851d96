"""Orthogonal weights, in PyTorch's three maps from a matrix of the same shape.

All maps start from a lower triangle. `matrix_exp` and `cayley` make it skew-symmetric and apply the
exponential, or the rational function that is like it; `householder` takes the columns below the
diagonal for the reflectors of a QR decomposition. With trivialization the result is multiplied by a
fixed matrix, the weight as it was assigned, so that the map is used near 0 where it is best.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import array_module
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import eye, zeros
from probtorch.nn.module import Module
from probtorch.nn.utils.parametrize import register_parametrization
from probtorch.ops.arithmetic import sign
from probtorch.ops.contraction import matmul
from probtorch.ops.linalg import solve, solve_triangular
from probtorch.ops.pieces import cat
from probtorch.ops.products import matrix_exp
from probtorch.tensor import Tensor

__all__ = ["completed", "nearest_orthonormal", "orthogonal"]

M = TypeVar("M", bound=Module)

MAPS = ("matrix_exp", "cayley", "householder")
# How far, in units of the dtype's eps times the number of rows, columns may be from orthonormal.
SLACK = 10.0


class _Orthogonal(Module):
    """From a matrix of any values to one with orthonormal columns, or rows if it is wide."""

    base: Tensor

    def __init__(
        self, shape: tuple[int, ...], orthogonal_map: str, use_trivialization: bool = True
    ) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = shape, orthogonal_map
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def extra_repr(self) -> str:
        return f"orthogonal_map={self.orthogonal_map!r}"

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        q = _reflected(x) if self.orthogonal_map == "householder" else self._rotated(x)
        if self.use_trivialization:
            q = matmul(self.base, q)
        return q.mT if wide else q

    def _rotated(self, x: Tensor) -> Tensor:
        """The first columns of the exponential, or of Cayley's transform, of a skew matrix."""
        n, k = x.shape[-2:]
        x = x.tril()
        if n != k:
            x = cat([x, zeros((*x.shape[:-1], n - k), dtype=x.dtype, device=x.device)], -1)
        a = x - x.mT
        if self.orthogonal_map == "matrix_exp":
            return matrix_exp(a)[..., :k]
        one = eye(n, dtype=a.dtype, device=a.device)
        return solve(one - a * 0.5, (one + a * 0.5)[..., :k])

    @no_grad
    def right_inverse(self, value: Tensor) -> Tensor:
        if tuple(value.shape) != self.shape:
            raise ShapeError(
                "orthogonal",
                expected=f"a matrix or batch of matrices of shape {self.shape}",
                got=str(tuple(value.shape)),
                fix="assign a tensor of the shape of the weight",
            )
        wide = value.shape[-2] < value.shape[-1]
        q = value.mT if wide else value
        if self.use_trivialization:
            self.base = completed(nearest_by_qr(q))
            # The map of this is the identity: no rotation, and no reflection but the sign's.
            start = -eye(*q.shape[-2:], dtype=q.dtype, device=q.device).expand(q.shape)
        elif self.orthogonal_map == "householder":
            start = _reflectors(q)
        else:
            raise NotImplementedError(
                f"with {self.orthogonal_map!r} and use_trivialization=False nothing can be assigned"
            )
        return start.mT.clone() if wide else start.clone()


def _reflected(x: Tensor) -> Tensor:
    """The first columns of the product of the reflections of the columns of `x`.

    With V unit lower triangular, H_1 ... H_k = I - V T V' where the inverse of T is the upper
    triangle of V'V with half its diagonal (Joffrin and Puglisi's form).
    """
    n, k = x.shape[-2:]
    first = eye(n, k, dtype=x.dtype, device=x.device)
    v = x.tril(-1) + first
    gram = matmul(v.mT, v)
    half = gram.triu() - gram.diagonal(dim1=-2, dim2=-1).diag_embed() * 0.5
    q = first - matmul(v, solve_triangular(half, v[..., :k, :].mT, upper=True))
    # Only its signs: they turn columns and are not learned.
    return q * sign(x.diagonal(dim1=-2, dim2=-1).detach())[..., None, :]


def _reflectors(q: Tensor) -> Tensor:
    """What `_reflected` makes `q` of, or the Q of its QR decomposition with a positive diagonal."""
    xp = array_module(q.array)
    raw, tau = xp.linalg.qr(q.array, mode="raw")
    a = xp.swapaxes(raw, -2, -1).copy()
    k = a.shape[-1]
    at = np.arange(k)
    # LAPACK has tau = 0 where it reflects nothing, and `_reflected` reflects.
    signs = xp.where(tau == 0, -1.0, 1.0) * xp.where(a[..., at, at] < 0, -1.0, 1.0)
    a[..., at, at] = signs
    return wrap(a)


def orthogonality(q: Tensor) -> float:
    """The largest error of ``q.mT @ q``, in units of the dtype's eps times the rows."""
    k = q.shape[-1]
    if not q.numel():
        return 0.0
    error = abs(matmul(q.mT, q) - eye(k, dtype=q.dtype, device=q.device)).max().item()
    return error / (float(np.finfo(q.array.dtype).eps) * q.shape[-2])


def nearest_by_qr(q: Tensor) -> Tensor:
    """`q` if its columns are orthonormal, else the Q of its QR decomposition, R's diagonal > 0."""
    if orthogonality(q) < SLACK:
        return q.clone()
    xp = array_module(q.array)
    found, r = xp.linalg.qr(q.array)
    signs = xp.where(xp.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0).astype(q.array.dtype)
    return wrap(found * signs[..., None, :])


def nearest_orthonormal(q: Tensor) -> Tensor:
    """`q` if its columns are orthonormal, else the nearest matrix whose columns are."""
    if orthogonality(q) < SLACK:
        return q.clone()
    xp = array_module(q.array)
    u, _, vh = xp.linalg.svd(q.array, full_matrices=False)
    return wrap(xp.matmul(u, vh))


def completed(q: Tensor) -> Tensor:
    """A square orthogonal matrix whose first columns are those of `q`, which are orthonormal."""
    n, k = q.shape[-2:]
    if n == k:
        return q.clone()
    xp = array_module(q.array)
    whole, _ = xp.linalg.qr(q.array, mode="complete")
    whole[..., :k] = q.array  # the same up to signs
    return wrap(whole)


def orthogonal(
    module: M,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> M:
    """Keep a weight orthogonal: its columns orthonormal, or its rows if it has more columns.

    Parameters
    ----------
    module : Module
    name : str
        A tensor of shape (..., n, k).
    orthogonal_map : {"matrix_exp", "cayley", "householder"}, optional
        "matrix_exp" for square matrices and "householder" for others if None.
    use_trivialization : bool
        Multiply what the map returns by the weight as it was assigned last, kept in the buffer
        "base". Without it only "householder" can be assigned.

    Returns
    -------
    Module
        `module`, which has changed. Its weight is the one it had where that is orthogonal, and
        otherwise the Q of its QR decomposition.

    Raises
    ------
    ArgumentError, ShapeError
        For other maps, and for tensors without two dims.

    Notes
    -----
    The original has the shape of the weight, of which the maps read the lower triangle: elements
    above it do nothing. For a prior use `stiefel`, which has no such elements.

    References
    ----------
    M. Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", NeurIPS 2019.

    Examples
    --------
    >>> from probtorch import eye, nn
    >>> layer = orthogonal(nn.Linear(20, 40))
    >>> q = layer.weight.detach()
    >>> bool((abs(q.mT @ q - eye(20)) < 1e-5).all())
    True
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(
            f"orthogonal: {name!r}",
            expected=f"the name of a parameter or buffer of {type(module).__name__}",
            got=repr(name),
            fix="name a tensor that the module has",
        )
    check_matrices("orthogonal", weight)
    square = weight.shape[-2] == weight.shape[-1]
    chosen = orthogonal_map or ("matrix_exp" if square else "householder")
    if chosen not in MAPS:
        raise ArgumentError(
            "orthogonal: orthogonal_map",
            expected=f"one of {', '.join(MAPS)}",
            got=repr(orthogonal_map),
            fix="leave it out",
        )
    made = _Orthogonal(tuple(weight.shape), chosen, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)


def check_matrices(what: str, weight: Tensor) -> None:
    """Raise unless a tensor holds matrices."""
    if weight.ndim < 2:
        raise ShapeError(
            what,
            expected="a matrix or batch of matrices, of two or more dims",
            got=f"shape {tuple(weight.shape)}",
            fix="choose a weight, not a bias",
        )


explain_calls(globals())
