"""L-BFGS: quasi-Newton steps from the last few changes of parameters and gradient.

All parameters are one vector x. The inverse Hessian is never formed: its product with the gradient
comes from the two-loop recursion over the kept changes (Nocedal and Wright 2006, algorithm 7.4).
The step length is `lr`, or what a line search for the strong Wolfe conditions finds (algorithms
3.5 and 3.6, with the cubic interpolation of (3.59)). Details that the book leaves open follow
M. Schmidt's minFunc, as PyTorch's do, so the same problem takes the same steps: when a pair is
skipped, how far a bracket may grow, when a bracket counts as stuck.

References
----------
J. Nocedal, S. J. Wright, "Numerical optimization", 2nd edition, Springer 2006.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsFloat, overload

from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.backends.registry import array_module
from probtorch.core.dispatch import wrap
from probtorch.core.in_place import assign
from probtorch.core.told import read
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError
from probtorch.ops import arithmetic
from probtorch.ops.contraction import dot
from probtorch.ops.extremes import amax
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total
from probtorch.optim.optimizer import Optimizer, check_option
from probtorch.optim.typed import Given, R
from probtorch.tensor import Tensor

__all__ = ["LBFGS"]

# Sufficient decrease and curvature [nocedal2006, sec. 3.1, the values for quasi-Newton methods].
C1, C2 = 1e-4, 0.9
MAX_SEARCH = 25
# A pair with y.s below this says nothing about curvature; minFunc's value.
MIN_CURVATURE = 1e-10


class LBFGS(Optimizer):
    """Limited-memory BFGS on all parameters at once.

    Parameters
    ----------
    params : iterable of Tensor or of (name, Tensor)
        One group only.
    lr : float
        Step length, or the first one tried by the line search.
    max_iter : int
        Iterations in one call of `step`.
    max_eval : int, optional
        Evaluations of the closure in one call of `step`; ``max_iter * 5 // 4`` if None.
    tolerance_grad : float
        Stop when no element of the gradient is larger.
    tolerance_change : float
        Stop when the loss, or every parameter, changes less.
    history_size : int
        Changes kept; each costs two vectors of the size of all parameters.
    line_search_fn : {None, "strong_wolfe"}

    Notes
    -----
    Stops also when the direction is no descent any more. The steps depend on values all along, so
    this optimizer runs eagerly; its closure may be compiled.

    Examples
    --------
    >>> from probtorch import tensor
    >>> x = tensor([3.0, -1.0], requires_grad=True)
    >>> optimizer = LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((x - 1.0) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item()
    8.0
    >>> x
    tensor([1., 1.], requires_grad=True)
    """

    def __init__(
        self,
        params: Given,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_option("learning rate", lr, float(lr) > 0.0, "> 0")
        if line_search_fn not in (None, "strong_wolfe"):
            raise ArgumentError(
                "line_search_fn",
                expected="None or 'strong_wolfe'",
                got=repr(line_search_fn),
                fix="use 'strong_wolfe' unless the loss is noisy",
            )
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ArgumentError(
                "LBFGS doesn't support per-parameter options (parameter groups)",
                expected="one group",
                got=f"{len(self.param_groups)}",
                fix="pass all parameters in one list",
            )

    # The numbers in it change with every step, so they are no part of what a compiled closure
    # depends on: one that reads them all the same is told to run eagerly.

    @property
    def state(self) -> defaultdict[Tensor, StateDict]:
        """From the first parameter to what is remembered of earlier steps."""
        read("LBFGS.state, which changes with every step")
        return self._state

    @state.setter
    def state(self, state: defaultdict[Tensor, StateDict]) -> None:
        self._state = state

    def __setstate__(self, state: StateDict) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    # ------------------------------------------------------------------- the parameters as a vector

    def _gradient(self) -> Tensor:
        """Return the gradients as one vector, zeros where there is none."""
        parts = []
        for p in self._params:
            if p.grad is None:
                parts.append(wrap(array_module(p.array).zeros(p.array.size, p.array.dtype)))
            else:
                parts.append(reshape(p.grad, (-1,)))
        return cat(parts, 0)

    def _positions(self) -> list[Tensor]:
        return [arithmetic.clone(p) for p in self._params]

    def _go(self, starts: Sequence[Tensor], direction: Tensor, t: float) -> None:
        """Put the parameters to ``starts + t * direction``."""
        first = 0
        for p, start in zip(self._params, starts):
            size = p.array.size
            part = reshape(direction[first : first + size], p.array.shape)
            assign(p, start + part * t, "step")
            first += size

    # ----------------------------------------------------------------------------------------- step

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], R]) -> R: ...
    @no_grad
    def step(self, closure: Callable[[], R] | None = None) -> R | None:
        """Run up to `max_iter` iterations.

        Parameters
        ----------
        closure : callable
            Clears the gradients, computes the loss, calls backward() and returns the loss.

        Returns
        -------
        loss
            What `closure` returned first, before any move.

        Raises
        ------
        ArgumentError
            Without a closure.
        """
        if closure is None:
            raise ArgumentError(
                "LBFGS.step",
                expected="a closure that computes the loss anew, as each step needs several losses",
                got="None",
                fix="def closure(): optimizer.zero_grad(); loss = ...; loss.backward(); "
                "return loss",
            )
        # Said ahead of all the numbers that it reads and notes, of which none is the reason.
        read("LBFGS.step, which branches on losses and keeps Python numbers")
        group = self.param_groups[0]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first_loss = self._loss(closure)
        loss = float(first_loss)
        evaluations = 1
        state["func_evals"] += 1
        gradient = self._gradient()
        # Where the gradient is 0 there is no direction, whatever the tolerance.
        tolerance = max(group["tolerance_grad"], 0.0)
        if _largest(gradient) <= tolerance:
            return first_loss
        lr = float(group["lr"])
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, gradient, group["history_size"])
            state["prev_flat_grad"], state["prev_loss"] = gradient, loss
            # Without any knowledge of curvature yet, a first step of length at most lr in the
            # 1-norm; later the natural length of a Newton step.
            t = min(1.0, 1.0 / _size(gradient)) * lr if state["n_iter"] == 1 else lr
            slope = dot(gradient, direction).item()
            state["d"], state["t"] = direction, t
            if not slope <= -group["tolerance_change"]:
                break
            used = 0
            starts = self._positions()
            if group["line_search_fn"] == "strong_wolfe":
                start = _Point(0.0, loss, gradient, slope)
                found, used = self._search(
                    closure, starts, direction, t, start, group["tolerance_change"]
                )
                t, loss, gradient = found.t, found.loss, found.gradient
                self._go(starts, direction, t)
            else:
                self._go(starts, direction, t)
                if iteration != group["max_iter"]:
                    loss = float(self._loss(closure))
                    gradient = self._gradient()
                    used = 1
            state["t"] = t
            evaluations += used
            state["func_evals"] += used
            if (
                evaluations >= group["max_eval"]
                or _largest(gradient) <= tolerance
                or _largest(direction) * t <= group["tolerance_change"]
                or abs(loss - state["prev_loss"]) < group["tolerance_change"]
            ):
                break
        return first_loss

    def _direction(self, state: StateDict, gradient: Tensor, history_size: int) -> Tensor:
        """Return minus the product of the approximate inverse Hessian with the gradient."""
        if state["n_iter"] == 1:
            state["old_dirs"], state["old_stps"], state["H_diag"] = [], [], 1.0
            return -gradient
        # Changes of gradient (y) and position (s); PyTorch's names for them in the state.
        changes, moves = state["old_dirs"], state["old_stps"]
        y = gradient - state["prev_flat_grad"]
        s = state["d"] * state["t"]
        curvature = dot(y, s).item()
        if curvature > MIN_CURVATURE:
            if len(changes) == history_size:
                del changes[0], moves[0]
            changes.append(y)
            moves.append(s)
            state["H_diag"] = curvature / dot(y, y).item()
        q = -gradient
        weights = []
        for y, s in zip(reversed(changes), reversed(moves)):
            rho = 1.0 / dot(y, s).item()
            a = dot(s, q).item() * rho
            weights.append((a, rho))
            q = q - y * a
        r = q * state["H_diag"]
        for y, s, (a, rho) in zip(changes, moves, reversed(weights)):
            r = r + s * (a - dot(y, r).item() * rho)
        return r

    # ---------------------------------------------------------------------------------- line search

    def _search(
        self,
        closure: Callable[[], SupportsFloat],
        starts: Sequence[Tensor],
        direction: Tensor,
        t: float,
        start: _Point,
        tolerance: float,
    ) -> tuple[_Point, int]:
        """Find a step that satisfies the strong Wolfe conditions.

        Returns
        -------
        point : _Point
            Where the conditions hold, or the best point of the bracket.
        evaluations : int
        """

        def at(t: float) -> _Point:
            self._go(starts, direction, t)
            with enable_grad():
                loss = float(closure())
            gradient = self._gradient()
            return _Point(t, loss, gradient, dot(gradient, direction).item())

        def too_high(point: _Point) -> bool:
            return point.loss > start.loss + C1 * point.t * start.slope

        def flat(point: _Point) -> bool:
            return abs(point.slope) <= -C2 * start.slope

        new, before, used = at(t), start, 1
        while used <= MAX_SEARCH:
            if too_high(new) or (used > 2 and new.loss >= before.loss):
                break
            if flat(new):
                return new, used
            if new.slope >= 0:
                break
            least, most = new.t + 0.01 * (new.t - before.t), 10.0 * new.t
            t = _minimum_of_cubic(before, new, least, most)
            before, new = new, at(t)
            used += 1
        else:
            before = start
        low, high = sorted((before, new), key=lambda point: point.loss)
        scale, stuck = _largest(direction), False
        while used <= MAX_SEARCH and abs(high.t - low.t) * scale >= tolerance:
            left, right = sorted((low.t, high.t))
            t = _minimum_of_cubic(low, high, left, right)
            margin = 0.1 * (right - left)
            close = min(right - t, t - left) < margin
            if close and (stuck or t >= right or t <= left):
                # Twice near an end: step away from it, so that the bracket shrinks by a tenth.
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                close = False
            stuck = close
            new = at(t)
            used += 1
            if too_high(new) or new.loss >= low.loss:
                low, high = sorted((low, new), key=lambda point: point.loss)
            else:
                if flat(new):
                    return new, used
                if new.slope * (high.t - low.t) >= 0:
                    high = low
                low = new
        return low, used


class _Point(NamedTuple):
    """A point on the line: how far out, and what was found there."""

    t: float
    loss: float
    gradient: Tensor
    slope: float


def _minimum_of_cubic(a: _Point, b: _Point, low: float, high: float) -> float:
    """Return the minimum within [low, high] of the cubic with the losses and slopes of two points.

    [nocedal2006, (3.59)]; the middle if the cubic has no minimum.
    """
    if a.t > b.t:
        a, b = b, a
    d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0.0:
        return (low + high) / 2.0
    d2 = math.sqrt(square)
    t = b.t - (b.t - a.t) * (b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2)
    return min(max(t, low), high)


def _largest(x: Tensor) -> float:
    return amax(arithmetic.abs(x)).item()


def _size(x: Tensor) -> float:
    """Return the 1-norm of `x`."""
    return total(arithmetic.abs(x)).item()
