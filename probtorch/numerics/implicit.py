"""Roots and their derivatives, by the implicit function theorem.

Where ``f(x, theta) = 0``, a change of theta moves the root by ``-J^-1 df/dtheta``, J being df/dx.
So whatever search found the root, its derivative needs f there and nothing of the search
(Christianson 1994, "Reverse accumulation and attractive fixed points"; Blondel et al. 2022,
"Efficient and modular implicit differentiation").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from probtorch.autograd.closures import captured, cut_off, stand_in
from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import apply, grad_enabled, recorder, wrap
from probtorch.core.told import rerun
from probtorch.core.typed import Shape
from probtorch.errors import ArgumentError, DomainError, ProbtorchError
from probtorch.ops.arithmetic import where
from probtorch.ops.linalg import INV
from probtorch.ops.movement import another, expand, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = ["Equations", "closed_over_by", "differentiable_root", "inverse_of", "jacobian"]


class Search(Protocol):
    """What finds a root: from a system that stays as it is to it, and where it is one."""

    def __call__(self, equations: Equations) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Equations:
    """What has to become zero, and how to find where it does.

    Attributes
    ----------
    name : str
        Of the public function.
    f : callable
        From x to residuals of its shape.
    like : Tensor
        Of the shape and dtype of x.
    search : callable
        From these equations to the root and, by row, whether it is one.
    single : bool
        Whether each number of x has an equation of its own; otherwise each row of its last dim has
        a system.
    closed_over : sequence of Tensor
        What `f` closes over that needs a gradient.
    """

    name: str
    f: Callable[[Tensor], Tensor]
    like: Tensor
    search: Search
    single: bool
    closed_over: Sequence[Tensor] = ()


def closed_over_by(name: str, fn: Callable[[], object], own: Sequence[Tensor]) -> list[Tensor]:
    """Return what a function closes over that needs a gradient, or in forward mode a tangent.

    Raises
    ------
    ArgumentError
        If it draws random numbers or changes tensors, or branches in Python where it is compiled.
    """
    if not grad_enabled():
        return []
    active = recorder()
    others: list[Tensor] = []
    found = captured(fn, list(own), branches=active is None, others=others)
    if found is None:
        raise ArgumentError(
            name,
            expected="a function in tensor operations",
            got="one that draws random numbers, changes tensors in place or, in compiled code, "
            "branches in Python on a tensor",
            fix="write branches with where, and draw before the call",
        )
    # Forward mode then finds a function without a rule for tangents, and takes two reverse passes.
    return found + others if active is not None and active.pushes_tangents else found


def differentiable_root(
    equations: Equations, failure: Callable[[np.ndarray, Tensor], ProbtorchError]
) -> Tensor:
    """Search for the root and put it on the tape.

    Parameters
    ----------
    equations : Equations
    failure : callable
        From where there is no root, and what the search ended with, to the error to raise.

    Returns
    -------
    Tensor
        In compiled code and under `vmap`, nan in rows without a root.
    """
    at = stand_in(equations.like)
    found = closed_over_by(equations.name, lambda: equations.f(at), [at])
    equations = Equations(
        equations.name, equations.f, equations.like, equations.search, equations.single, found
    )
    if found and grad_enabled():
        x, solved = _Implicit.apply(equations, *found)
    else:
        with no_grad(), np.errstate(all="ignore"):
            x, solved = equations.search(equations)
    if not rerun() and not solved.array.all():
        raise failure(~np.asarray(solved.numpy()), x.detach())
    return where(solved if equations.single else unsqueeze(solved, -1), x, float("nan"))


class _Implicit(Function):
    """``apply(equations, *closed_over)`` returns the root, and where it is one."""

    @staticmethod
    def forward(ctx: FunctionCtx, equations: Equations, *items: Tensor) -> tuple[Tensor, Tensor]:
        """Search."""
        with np.errstate(all="ignore"):
            x, solved = equations.search(equations)
        ctx.equations = equations
        ctx.save_for_backward(x, solved)
        ctx.mark_non_differentiable(solved)
        return x, solved

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pull the gradient through the equations at the root."""
        equations = ctx.equations
        x, solved = ctx.saved_tensors
        sources = equations.closed_over
        again = grad_enabled()
        # On the tape the root is a tensor of its own, whose place is that of the result: so
        # derivatives of this gradient come by here again.
        x = another(x) if again else stand_in(x)
        with enable_grad(), cut_off([x, *sources]):
            x.requires_grad_()
            residual = equations.f(x)
            slopes = jacobian(residual, x, equations.single, again)
            pull = _solved(slopes, g, solved, equations.single)
            found = grad(
                residual,
                list(sources),
                -pull if again else -pull.detach(),
                create_graph=again,
                allow_unused=True,
            )
        return None, *found


def _solved(slopes: Tensor, g: Tensor, solved: Tensor, single: bool) -> Tensor:
    """Return ``J^-T g``; 0 in rows without a root, whose value is nan anyway."""
    if single:
        return where(solved, g, 0.0) / where(solved, slopes, 1.0)
    one = wrap(np.eye(slopes.array.shape[-1], dtype=slopes.array.dtype))
    matrix = where(unsqueeze(unsqueeze(solved, -1), -1), slopes, one)
    right = where(unsqueeze(solved, -1), g, 0.0)
    return (unsqueeze(right, -2) @ inverse_of(matrix))[..., 0, :]


def jacobian(residual: Tensor, x: Tensor, single: bool, again: bool = False) -> Tensor:
    """Return the slopes of residuals that are on the tape.

    Parameters
    ----------
    residual, x : Tensor, shape (..., n)
    single : bool
        Whether each number depends on its own x alone.
    again : bool
        Put the slopes on the tape as well.

    Returns
    -------
    Tensor, shape (..., n, n), or (..., n) if `single`
        Rows are equations.
    """
    if not residual.requires_grad:
        own: Shape = x.array.shape
        return x.new_zeros(own if single else (*own, own[-1]))

    def pulled(cotangent: Tensor) -> Tensor:
        (row,) = grad(
            residual, [x], cotangent, retain_graph=True, create_graph=again, allow_unused=True
        )
        return x.new_zeros(x.array.shape) if row is None else row

    if single:
        return pulled(residual.new_ones(residual.array.shape))
    units = np.eye(residual.array.shape[-1], dtype=residual.array.dtype)
    return stack([pulled(expand(wrap(one), residual.array.shape)) for one in units], -2)


def inverse_of(matrix: Tensor) -> Tensor:
    """Return the inverse, nan where there is none."""
    return apply(INV, (matrix,), {"check": False})


def no_root(name: str, where_: np.ndarray, got: str, fix: str, expected: str) -> DomainError:
    """Return the error for rows without a root."""
    count, rows = int(where_.sum()), where_.size
    place = "" if where_.ndim == 0 else f" in {count} of {rows} rows, first at "
    if where_.ndim:
        first = tuple(int(i) for i in np.argwhere(where_)[0])
        place += str(first if len(first) > 1 else first[0])
    return DomainError(f"{name}: no root{place}", expected=expected, got=got, fix=fix)
