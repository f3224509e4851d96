"""`bracketed_root`: where single equations hold, between bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError
from probtorch.numerics.implicit import Equations, differentiable_root, no_root
from probtorch.numerics.roots import broadcast_unknowns, checked_steps, residuals, starting
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, minimum, sign, where
from probtorch.ops.comparisons import isfinite, isnan
from probtorch.ops.control import while_loop
from probtorch.ops.reduction import any as some
from probtorch.tensor import Tensor

__all__ = ["bracketed_root"]

# Chandrupatla's three points a, b, c (the root lies between the first two), the function there, the
# part of the way from a to b that is tried next, whether it goes on, and the number of turns.
State: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@explained("bracketed_root", meant={"f": "func", "a": "low", "b": "high"})
def bracketed_root(
    func: Callable[..., Tensor],
    low: TensorLike,
    high: TensorLike,
    *params: TensorLike,
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 200,
) -> Tensor:
    """Return the x between `low` and `high` with ``func(x, *params) = 0``, elementwise.

    Parameters
    ----------
    func : callable
        From x and the parameters to residuals; each number of the result depends on its own x
        alone. It may close over tensors.
    low, high : Tensor or number
        Finite bounds, of shapes that broadcast. The signs of the function there have to differ.
        Batch dims that the residuals have beyond those of the bounds are added to them.
    *params
        Passed on to `func`.
    rtol, atol : float
        The root is known to ``atol + rtol * abs(x)``; by default to four roundings.
    max_steps : int
        Evaluations of `func`, at most.

    Returns
    -------
    Tensor
        Of the shape of the residuals. Where the function jumps across zero, the place of the jump.

    Raises
    ------
    DomainError
        If the signs at the bounds are equal, or a value is nan. In compiled code and under `vmap`
        such numbers are nan instead, which makes the point of a density infeasible.

    Notes
    -----
    Differentiable, to all orders, in the parameters and in what `func` closes over, by the implicit
    function theorem; the bounds have no gradient. Inverse quadratic interpolation where that is
    sure to help, else halving.

    References
    ----------
    Chandrupatla (1997), "A new hybrid quadratic/bisection algorithm for finding the zero of a
    nonlinear function without using derivatives"; TFP's ``find_root_chandrupatla``.

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.numerics import bracketed_root
    >>> bracketed_root(lambda x, a: x * x.exp() - a, 0.0, 3.0, tensor([1.0, 2.0]))
    tensor([0.5671, 0.8526])
    """
    lower, upper = starting("bracketed_root", low), starting("bracketed_root", high)

    def f(x: Tensor) -> Tensor:
        return residuals("bracketed_root", func, x, params)

    lower = broadcast_unknowns("bracketed_root", f, lower + upper * 0.0)
    upper = upper + lower * 0.0
    eps = float(np.finfo(lower.array.dtype).eps)
    tolerance = checked_steps("bracketed_root", rtol, 4.0 * eps, atol, max_steps)

    def own(x: Tensor) -> Tensor:
        residual = f(x)
        return residual.to(x.array.dtype)

    def failure(where_: np.ndarray, x: Tensor) -> DomainError:
        ends = [np.asarray(own(e).detach().numpy())[where_].flat[0] for e in (lower, upper)]
        return no_root(
            "bracketed_root",
            where_,
            expected="a function with different signs at low and high, and no nan between",
            got=f"{ends[0]:.4g} and {ends[1]:.4g} at the ends",
            fix="choose bounds on either side of the root"
            if ends[0] * ends[1] > 0.0
            else "raise max_steps, or keep the bounds inside the domain of the function",
        )

    search = _Chandrupatla(lower, upper, tolerance, atol, max_steps)
    equations = Equations("bracketed_root", own, lower, search, single=True)
    return differentiable_root(equations, failure)


@dataclass(frozen=True)
class _Chandrupatla:
    """The search, each number for itself."""

    low: Tensor
    high: Tensor
    rtol: float
    atol: float
    max_steps: int

    def __call__(self, equations: Equations) -> tuple[Tensor, Tensor]:
        """Return where the function changes its sign, and whether it does."""
        f = equations.f

        def under_way(state: State) -> Tensor:
            return some(state[7]) & (state[8] < self.max_steps)

        def turn(state: State) -> State:
            a, b, c, fa, fb, fc, part, going, count = state
            x = a + part * (b - a)
            fx = f(x)
            same = sign(fx) == sign(fa)
            c, fc, b, fb = (
                where(same, a, b),
                where(same, fa, fb),
                where(same, b, a),
                where(same, fb, fa),
            )
            a, fa = x, fx
            best = where(absolute(fa) < absolute(fb), a, b)
            tolerance = self.atol + self.rtol * absolute(best)
            width = absolute(b - a)
            least = 0.5 * tolerance / where(width > 0.0, width, 1.0)
            # Inverse quadratic interpolation, where it is sure to fall between.
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            inside = (phi * phi < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
            quadratic = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * (
                fb / (fc - fb)
            )
            part = where(inside & isfinite(quadratic), quadratic, 0.5)
            part = minimum(maximum(part, least), 1.0 - least)
            done = (width <= tolerance) | (fa == 0.0) | (fb == 0.0) | isnan(fx)
            moved = (a, b, c, fa, fb, fc, part)
            kept = [where(going, new, old) for new, old in zip(moved, state[:7], strict=True)]
            a, b, c, fa, fb, fc, part = kept
            return a, b, c, fa, fb, fc, part, going & ~done, count + 1

        a, b = self.low, self.high
        fa, fb = f(a), f(b)
        crossing = sign(fa) * sign(fb) <= 0.0
        going = crossing & (fa != 0.0) & (fb != 0.0)
        count = as_tensor(np.int64(0), equations.name)
        state = (a, b, a, fa, fb, fa, a * 0.0 + 0.5, going, count)
        a, b, _, fa, fb, _, _, going, _ = while_loop(under_way, turn, state)
        return where(absolute(fa) < absolute(fb), a, b), crossing & ~going & ~isnan(fa)


explain_calls(globals())
