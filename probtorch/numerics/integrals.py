"""`integral`: the integral of a function over an interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from probtorch.autograd.closures import stand_in
from probtorch.autograd.modes import no_grad
from probtorch.autograd.vmap import vmap
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.told import rerun
from probtorch.core.typed import DType, TensorLike
from probtorch.errors import ArgumentError, DomainError
from probtorch.numerics.implicit import closed_over_by
from probtorch.numerics.quadrature import (
    BLOCK,
    REACH,
    Integration,
    Interval,
    Quadrature,
    Rule,
    above,
    below,
    between,
    line,
)
from probtorch.ops.arithmetic import where
from probtorch.ops.movement import expand
from probtorch.tensor import Tensor

__all__ = ["integral"]

DEFAULT_RTOL = {True: 1e-8, False: 1e-4}  # by whether values are of double precision


@explained("integral", meant={"f": "func", "a": "low", "b": "high"})
def integral(
    func: Callable[..., Tensor],
    low: TensorLike,
    high: TensorLike,
    *params: TensorLike,
    rtol: float | None = None,
    atol: float = 0.0,
    max_levels: int = 8,
    return_error: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Integrate ``func(x, *params)`` over x from `low` to `high`.

    Parameters
    ----------
    func : callable
        From x, of double precision and the shape that `low` and `high` broadcast to, and the
        parameters to a tensor. It may close over tensors, and is called on many x at once, through
        `vmap`.
    low, high : Tensor or number
        ``-inf`` and ``inf`` are given as numbers; elements of tensors are finite. With `high` below
        `low` the integral changes its sign.
    *params
        Passed on to `func`.
    rtol, atol : float
        The estimated error is at most ``atol + rtol * (the integral of the absolute value)``.
        `rtol` is 1e-8, and 1e-4 where `func` returns single precision for an x of double.
    max_levels : int
        How often the distance of nodes may be halved, from 16 nodes on: 8 makes 4096 of them.
    return_error : bool
        Return the estimate of the error as well.

    Returns
    -------
    Tensor, or pair of them
        The integral, of the shape of what `func` returns. The error, if asked for: the change by
        the last level, which is more than what is wrong, mostly by far.

    Raises
    ------
    ArgumentError
        If a tolerance is none.
    DomainError
        If the integral does not settle, or the function is not finite somewhere. In compiled code
        and under `vmap` the result is nan instead, which makes the point of a density infeasible.

    Notes
    -----
    Differentiable, to all orders, in finite bounds, in the parameters and in what `func` closes
    over. The function is not called at the bounds, and may be singular there. Near a bound other
    than 0, nodes are no closer to it than a rounding, which costs a singularity there half the
    digits: let it lie at 0. Jumps and kinks inside are slow: add up integrals between them. A peak
    that is narrow compared with the interval, or far from 0 on an infinite one, may fall between
    the first 64 nodes: integrate where it is, or over ``(x - centre) / width``.

    References
    ----------
    Takahasi and Mori (1974), "Double exponential formulas for numerical integration"; Stan's
    ``integrate_1d``.

    Examples
    --------
    >>> from math import inf
    >>> from probtorch import tensor
    >>> from probtorch.numerics import integral
    >>> rate = tensor(2.0, requires_grad=True)
    >>> area = integral(lambda x: (-rate * x).exp(), 0.0, inf)
    >>> area.backward()
    >>> area.detach(), rate.grad
    (tensor(0.5000), tensor(-0.2500))
    """
    interval, ends, flipped = _interval(low, high)
    shape = np.broadcast_shapes(*(x.array.shape for x in ends))

    def f(x: Tensor) -> Tensor:
        return as_tensor(func(x, *params), "integral")

    def tried(dtype: DType) -> Tensor:
        with no_grad():
            start = [expand(x.detach().to(dtype), shape) for x in ends]
            return f(interval(*start, start[0].new_zeros(()))[0])

    # Nodes are double, so that values are where the function leaves it to them; the result has the
    # precision of bounds and parameters.
    dtype, values = ends[0].array.dtype, tried(dtypes.float64)
    dtype = np.promote_types(dtype, tried(dtype).array.dtype)
    if dtype.kind != "f" or values.array.dtype.kind not in "fiub":
        raise ArgumentError(
            "integral",
            expected="a function to real numbers",
            got=f"dtype {values.array.dtype}",
            fix="integrate real and imaginary parts",
        )
    exact = values.array.dtype == dtypes.float64 or values.array.dtype.kind != "f"
    tolerances = _tolerances(rtol, atol, max_levels, DEFAULT_RTOL[exact])
    ends = [
        expand(x if x.array.dtype == dtypes.float64 else cast(x, dtypes.float64), shape)
        for x in ends
    ]
    at = [stand_in(x) for x in ends]
    zero = wrap(np.zeros((), np.int64))
    rule = Rule(f, interval, math.asinh(REACH[exact] / math.pi), values.array.shape)
    closed_over = closed_over_by("integral", lambda: rule.block(*at, zero, zero + 1), at)
    task = Integration(rule, *tolerances, closed_over)
    wanted = [*ends, *closed_over]
    active = recorder()
    forward = active is not None and active.pushes_tangents
    if grad_enabled() and (forward or any(x.requires_grad for x in wanted)):
        value, error, settled, _ = Quadrature.apply(task, *wanted)
    else:
        with no_grad(), np.errstate(all="ignore"):
            value, error, settled, _ = task.run(*ends)
    if not rerun() and not settled.array.all():
        raise _unsettled(rule, ends, value, error, max_levels)
    value = where(settled, -value if flipped else value, float("nan"))
    value, error = (x if x.array.dtype == dtype else cast(x, dtype) for x in (value, error))
    return (value, error) if return_error else value


def _tolerances(
    rtol: float | None, atol: float, max_levels: int, default: float
) -> tuple[float, float, int]:
    chosen = default if rtol is None else rtol
    if not (chosen > 0.0 and atol >= 0.0 and max_levels >= 2):
        raise ArgumentError(
            "integral(rtol, atol, max_levels)",
            expected="rtol above 0, atol of 0 or more, and two levels or more",
            got=f"rtol={rtol}, atol={atol}, max_levels={max_levels}",
            fix="leave them out for the defaults",
        )
    return float(chosen), float(atol), int(max_levels)


def _interval(low: TensorLike, high: TensorLike) -> tuple[Interval, list[Tensor], bool]:
    """Return the map from t, its finite ends, and whether the interval runs backwards."""
    infinite = [_infinite(x) for x in (low, high)]
    ends = [
        _floating(as_tensor(0.0 if sign else x, "integral"))
        for x, sign in zip((low, high), infinite, strict=True)
    ]
    dtype = np.promote_types(*(x.array.dtype for x in ends))
    ends = [x if x.array.dtype == dtype else cast(x, dtype) for x in ends]
    if infinite == [0, 0]:
        return between, ends, False
    if infinite[0] == infinite[1]:
        raise DomainError(
            "integral",
            expected="an interval",
            got=f"from {low} to {high}",
            fix="write integral(func, -inf, inf) for the whole line",
        )
    if 0 not in infinite:
        return line, ends[:1], infinite[0] > 0
    finite = ends[1] if infinite[0] else ends[0]
    return (above if max(infinite) > 0 else below), [finite], infinite[0] > 0 or infinite[1] < 0


def _infinite(x: TensorLike) -> int:
    """The sign of a number that is infinite, else 0."""
    if isinstance(x, (int, float, np.floating, np.integer)) and math.isinf(x):
        return 1 if x > 0 else -1
    return 0


def _floating(x: Tensor) -> Tensor:
    return x if x.array.dtype.kind == "f" else cast(x, dtypes.default_dtype())


def _unsettled(
    rule: Rule, ends: Sequence[Tensor], value: Tensor, error: Tensor, max_levels: int
) -> DomainError:
    """Return the error for an integral that is none, or not yet."""
    with no_grad(), np.errstate(all="ignore"):
        one = wrap(np.ones((), np.int64))
        for block, size in ((0, 1), (1, 2), (2, 4), (3, 4)):
            x, _ = rule.nodes([e.detach() for e in ends], one * block, one * size)
            found = np.isfinite(vmap(rule.f)(x).numpy()).reshape(BLOCK, -1).all(-1)
            if not found.all():
                where_ = x.numpy()[int(np.argmin(found))].flat[0]
                return DomainError(
                    "integral",
                    expected="finite values between the bounds",
                    got=f"a value that is not at x = {where_:.6g}",
                    fix="write the integrand so that it is 0 where it vanishes (by logarithms: "
                    "exp(log f)), or move the bounds",
                )
    worst = int(np.argmax(error.numpy()))
    return DomainError(
        "integral",
        expected=f"an integral that settles within {max_levels} halvings of the spacing",
        got=f"{value.numpy().flat[worst]:.6g}, still moving by {error.numpy().flat[worst]:.2g}",
        fix="add up integrals between jumps and peaks, raise rtol, or set max_levels=12; it may "
        "also diverge",
    )


explain_calls(globals())
