"""Newton's method on many variables of a few numbers each, as Pyro has it.

`newton_step` is one step, which can be differentiated. Implicit differentiation comes with it: at a
solution, one step from it that is on the tape has the derivatives that the solution has, however
many steps led there off the tape.

References
----------
Y. Yuan, "A review of trust region algorithms for optimization", ICIAM 99 (2000). B. Christianson,
"Reverse accumulation and attractive fixed points", Optimization Methods and Software 3 (1994).
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.autograd.tape import grad
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import clamp, sqrt
from probtorch.ops.linalg import inv
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.spectral import eigvalsh
from probtorch.tensor import Tensor

__all__ = ["newton_step"]

# The least curvature that is believed, and the least that is added within a trust region.
FLATTEST = 1e-8


def newton_step(
    loss: Tensor, x: Tensor, trust_radius: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return the variables after a step of Newton's method, and the inverse of their curvature.

    Parameters
    ----------
    loss : Tensor, 0-d
        Computed from `x`, twice differentiable; each row of `x` enters it on its own, so that no
        curvature is between rows.
    x : Tensor, shape (..., dim)
        It requires a gradient. One that is not detached from the steps before takes them all along.
    trust_radius : float, positive, optional
        How far a row may go. The curvature of rows that would go farther, or along which the loss
        bends downwards, is raised by a multiple of the identity.

    Returns
    -------
    x_new : Tensor, shape (..., dim)
    cov : Tensor, shape (..., dim, dim)
        The inverse second derivatives, as raised: with a loss that is minus a log density, and
        `x_new` at its mode, those of the Laplace approximation.

    Raises
    ------
    ShapeError
        If the loss is no number, or `x` has no dim.
    ArgumentError
        If the radius is not positive.

    Notes
    -----
    It costs ``dim + 1`` backward passes, for all rows at once. Both results are on the tape.

    Examples
    --------
    >>> from probtorch import tensor
    >>> x = tensor([[3.0, -1.0]], requires_grad=True)
    >>> loss = ((x - 1.0) ** 2).sum() + x[0, 0] * x[0, 1]
    >>> x_new, cov = newton_step(loss, x)
    >>> x_new.detach(), cov.detach()
    (tensor([[0.6667, 0.6667]]), tensor([[[ 0.6667, -0.3333],
             [-0.3333,  0.6667]]]))
    """
    if loss.array.shape != () or not x.array.ndim:
        raise ShapeError(
            "newton_step",
            expected="a loss of shape (), and x of shape (..., dim)",
            got=f"{tuple(loss.array.shape)} and {tuple(x.array.shape)}",
            fix="sum the losses of all rows, and give x a dim of its numbers",
        )
    if trust_radius is not None and not 0.0 < trust_radius < math.inf:
        raise ArgumentError(
            "newton_step(trust_radius=...)",
            expected="a positive number, or None",
            got=repr(trust_radius),
            fix="leave it out for steps of any length",
        )
    dim = x.array.shape[-1]
    (slope,) = _slopes(loss, x)
    rows = [_slopes(total(slope[..., i]), x)[0] for i in range(dim)]
    curvature = stack(rows, -1)
    if dim == 1:
        # The whole of the trust region's answer, in closed form.
        cov = 1.0 / clamp(curvature, min=FLATTEST)
        step = -slope * cov[..., 0]
        if trust_radius is not None:
            step = clamp(step, min=-trust_radius, max=trust_radius)
        return x.detach() + step, cov
    if trust_radius is not None:
        least = eigvalsh(curvature)[..., :1]
        norm = sqrt(total(slope * slope, -1, keepdim=True))
        raised = clamp(norm / trust_radius - least, min=FLATTEST)
        identity = wrap(np.eye(dim, dtype=curvature.array.dtype))
        curvature = curvature + reshape(raised, (*raised.shape, 1)) * identity
    cov = inv(curvature)
    step = -total(cov * reshape(slope, (*slope.shape[:-1], 1, dim)), -1)
    return x.detach() + step, cov


def _slopes(of: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return grad(of, [x], create_graph=True)


explain_calls(globals())
