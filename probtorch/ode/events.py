"""`odeint_event`: solve until a function of time and state crosses zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.autograd.tape import grad
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike, Tree
from probtorch.errors import ArgumentError, DomainError
from probtorch.ode.adjoint import Discrete
from probtorch.ode.odeint import InitialValueProblem, prepared
from probtorch.ode.solve import adaptive
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = ["odeint_event"]

# Halvings of the step in which the event lies: 2**-60 of it is below rounding.
HALVINGS = 60

State = TypeVar("State")


def odeint_event(
    func: Callable[[Tensor, State], State],
    y0: State,
    t0: TensorLike,
    *,
    event_fn: Callable[[Tensor, State], Tensor],
    t_max: float | None = None,
    reverse_time: bool = False,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str = "dopri5",
    options: Mapping[str, float | None] | None = None,
) -> tuple[Tensor, State]:
    """Solve ``dy/dt = func(t, y)`` from ``y(t0) = y0`` until ``event_fn(t, y)`` changes sign.

    Parameters
    ----------
    func, y0, rtol, atol, method, options
        As for `odeint`; the method has to be an adaptive one.
    t0 : Tensor or number
    event_fn : callable
        From a time and a state to a tensor with one element.
    t_max : float, optional
        Give up there; by default 10 000 units of time from `t0`.
    reverse_time : bool
        Go backwards in time.

    Returns
    -------
    event_t : Tensor, shape ()
        When the event happens.
    solution : Tensor, or tree of Tensor, shapes (2, ...)
        The states at `t0` and at the event.

    Raises
    ------
    DomainError
        If the event does not happen before `t_max`, or is there at the start; if `event_fn` has no
        slope there, as it jumps (a sign, a comparison) or is flat (a cube), and a gradient would
        have to go through that.

    Notes
    -----
    Both results are differentiable (by the implicit function theorem) in `y0` and in what `func`
    and `event_fn` close over. The signature is torchdiffeq's.

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.ode import odeint_event
    >>> t, y = odeint_event(
    ...     lambda t, y: -y, tensor([1.0]), 0.0, event_fn=lambda t, y: y[0] - 0.5
    ... )
    >>> t
    tensor(0.6931)
    """
    t0 = as_tensor(t0, "odeint_event")
    span = 1e4 if t_max is None else abs(float(t_max) - float(t0))
    last = float(t0) - span if reverse_time else float(t0) + span
    with no_grad():
        t0_number = t0.detach().to(np.result_type(t0.array.dtype, np.float32))
        ends = stack([t0_number, t0_number.new_full((), last)])
        problem = prepared(func, y0, ends, rtol, atol, method, options)
        if not problem.method.adaptive:
            raise ArgumentError(
                "odeint_event(method=...)",
                expected="an adaptive method, such as 'dopri5'",
                got=repr(method),
                fix="leave it out",
            )
        event_t = _first_crossing(problem, event_fn)
    times = stack([t0.to(event_t.array.dtype), event_t])
    problem = prepared(func, y0, times, rtol, atol, method, options)
    rows = problem.solve(Discrete)
    y = rows[1]
    # One Newton step that changes nothing but carries the derivative of the time of the event.
    with enable_grad():
        at, where_ = event_t.detach().requires_grad_(), y.detach().requires_grad_()
        value = event_fn(at, problem.state(where_)).reshape(())
        in_time, in_state = None, None
        if value.requires_grad:
            in_time, in_state = grad(value, [at, where_], allow_unused=True)
    slope = problem.f(event_t, y.detach())
    rate = at.new_zeros(()) if in_state is None else (in_state * slope).sum()
    rate = (rate if in_time is None else rate + in_time).detach()
    crossing = event_fn(event_t, problem.state(y)).reshape(())
    if bool(rate == 0.0):  # it jumps from one side of zero to the other, or is flat as it crosses
        if crossing.requires_grad or y.requires_grad:
            raise DomainError(
                "odeint_event",
                expected="an event_fn with a slope in time where it is zero, as gradients go "
                "through that",
                got=f"one without a slope at t = {float(event_t):.6g}: it jumps there, or is flat",
                fix="return the quantity itself, y[0] - 1.0, and not its sign or its cube; or "
                "solve under no_grad()",
            )
        return event_t, problem.state(rows)
    moved = event_t - (crossing - crossing.detach()) / rate
    final = y + slope.detach() * (moved - moved.detach())
    return moved, problem.state(stack([rows[0], final]))


def _first_crossing(
    problem: InitialValueProblem, event_fn: Callable[[Tensor, Tree], Tensor]
) -> Tensor:
    """The time of the first sign change, by halving the step in which it lies."""
    method, f = problem.method, problem.f

    def value(t: Tensor, y: Tensor) -> Tensor:
        return event_fn(t, problem.state(y)).reshape(())

    start = float(value(problem.times[0], problem.y))
    if start == 0.0:
        raise DomainError(
            "odeint_event",
            expected="an event that has not happened yet",
            got=f"event_fn is 0 at t0 = {float(problem.times[0]):.6g}",
            fix="start a little later, or let event_fn look at another quantity",
        )
    path = adaptive(
        method, f, problem.y, problem.times, problem.tolerances, lambda t, y: value(t, y) * start
    )
    if not bool(path.crossed):
        raise DomainError(
            "odeint_event",
            expected=f"a sign change of event_fn before t = {float(problem.times[1]):.6g}",
            got="none",
            fix="raise t_max, or check the sign of event_fn at the start",
        )
    last = int(path.tries) - 1
    t, h, y = path.times[last], path.sizes[last], path.states[last]
    low, high = h * 0.0, h
    for _ in range(HALVINGS):
        middle = (low + high) * 0.5
        state, _ = method.step(f, t, y, middle)
        if float(value(t + middle, state)) * start > 0.0:
            low = middle
        else:
            high = middle
    return t + high


explain_calls(globals())
