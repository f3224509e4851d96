"""`odeint`: solve an initial-value problem at given times."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from probtorch.autograd.closures import captured, stand_in
from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, recorder
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls, explained, misfit
from probtorch.core.told import rerun
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import DType, TensorLike, Tree
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.ode.adjoint import Continuous, Discrete
from probtorch.ode.methods import METHODS
from probtorch.ode.solve import FlatProblem, Tolerances, adaptive, fixed
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = ["InitialValueProblem", "odeint", "odeint_adjoint", "prepared"]

OPTIONS = ("step_size", "first_step", "max_num_steps")
MAX_STEPS = 4096

State = TypeVar("State")


def _advice(args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """What to write where SciPy takes the parameters of the slope as further arguments."""
    if len(args) > 3 or "args" in kwargs or "theta" in kwargs:
        return (
            "let the slope close over its parameters: odeint(lambda t, y: func(t, y, theta), y0, t)"
        )
    return None


@explained("odeint", meant={"y": "y0", "times": "t", "ts": "t"}, advice=_advice)
def odeint(
    func: Callable[[Tensor, State], State],
    y0: State,
    t: Tensor,
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str = "dopri5",
    options: Mapping[str, float | None] | None = None,
    adjoint: str = "discrete",
) -> State:
    """Solve ``dy/dt = func(t, y)`` from ``y(t[0]) = y0``.

    Parameters
    ----------
    func : callable
        From a 0-d time and a state like `y0` to a state: the slope. It may close over tensors.
    y0 : Tensor, or tree of Tensor
        The state at ``t[0]``.
    t : Tensor, shape (k,)
        Times at which the solution is wanted, increasing or decreasing.
    rtol, atol : float
        The estimated error of each step is at most ``atol + rtol * abs(y)`` (root mean square
        over the state). Not used by methods of fixed step size.
    method : str
        Adaptive: "dopri5" (the default), "tsit5", "bosh3" (for coarse tolerances), "rodas4" (for
        stiff systems). Of fixed step size: "rk4", "midpoint", "heun2", "euler".
    options : dict, optional
        "step_size": of methods of fixed size; without it one step per interval of `t`.
        "first_step" and "max_num_steps" (4096) of adaptive ones.
    adjoint : {"discrete", "continuous"}
        How gradients of adaptive methods are found: exactly for the solution computed, with one
        state kept per step tried; or by solving an equation for them backwards in time, without.
        Methods of fixed size are always differentiated step by step.

    Returns
    -------
    Tensor, or tree of Tensor, shapes (k, ...)
        The solution at all times, the first being `y0`.

    Raises
    ------
    ArgumentError
        If the method or an option is unknown.
    ShapeError
        If `t` is no vector of two or more times, or `func` changes the form of the state.
    DomainError
        If the solver needs more than "max_num_steps" steps, or the solution leaves the numbers. In
        compiled code it is nan from there on instead.

    Notes
    -----
    The signature is torchdiffeq's. Differentiable in `y0`, `t` and what `func` closes over; the
    choice of step sizes is differentiated, too. Steps end at the times in `t`, so many times make
    many steps.

    References
    ----------
    Hairer, Norsett and Wanner (1993), "Solving ordinary differential equations I".

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.ode import odeint
    >>> odeint(lambda t, y: -y, tensor([1.0]), tensor([0.0, 1.0]))[1]
    tensor([0.3679])
    """
    problem = prepared(func, y0, t, rtol, atol, method, options)
    if adjoint not in ("discrete", "continuous"):
        raise ArgumentError(
            "odeint(adjoint=...)",
            expected="'discrete' or 'continuous'",
            got=repr(adjoint),
            fix="leave it out for the discrete one",
        )
    if adjoint == "continuous" and method == "rodas4":
        raise ArgumentError(
            "odeint",
            expected="the discrete adjoint for 'rodas4'",
            got="adjoint='continuous'",
            fix="leave adjoint out; backwards in time a stiff system is unstable",
        )
    return problem.state(problem.solve(Discrete if adjoint == "discrete" else Continuous))


def odeint_adjoint(
    func: Callable[[Tensor, State], State],
    y0: State,
    t: Tensor,
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str = "dopri5",
    options: Mapping[str, float | None] | None = None,
) -> State:
    """Solve as `odeint` does, with the continuous adjoint: torchdiffeq's name for it."""
    return odeint(
        func, y0, t, rtol=rtol, atol=atol, method=method, options=options, adjoint="continuous"
    )


@dataclass
class InitialValueProblem(FlatProblem):
    """A problem on flat vectors, with the form its states had.

    Attributes
    ----------
    step_size : float or None
        Of methods of fixed size.
    pack : callable
        From vectors, shape (..., n), to states like the first one.
    """

    step_size: float | None
    pack: Callable[[Tensor], Tree]

    def state(self, rows: Tensor) -> Tree:
        """Return vectors, shape (..., n), as states like the first one."""
        return self.pack(rows)

    def solve(self, adjoint: type[Discrete] | type[Continuous]) -> Tensor:
        """Return the solution as vectors, shape (k, n)."""
        if not self.method.adaptive:
            return fixed(self.method, self.f, self.y, self.times, self.step_size)
        outputs, reached = self._adaptive(adjoint)
        if not rerun() and int(reached) < self.times.array.shape[0]:
            at = float(self.times[int(reached) - 1])
            raise DomainError(
                f"odeint: no solution beyond t = {at:.6g}",
                expected=f"at most {self.tolerances.max_num_steps} steps, and finite slopes",
                got="more steps, or slopes that are not finite",
                fix='method="rodas4" for a stiff system, coarser tolerances, or '
                'options={"max_num_steps": ...}; or the solution has a pole there',
            )
        return outputs

    def _adaptive(self, adjoint: type[Discrete] | type[Continuous]) -> tuple[Tensor, Tensor]:
        y, t = stand_in(self.y), stand_in(self.times[0])
        closed_over = captured(lambda: self.f(t, y), [y, t]) if grad_enabled() else []
        if closed_over is None:
            raise ArgumentError(
                "odeint",
                expected="a slope in tensor operations",
                got="one that branches in Python on a tensor, draws random numbers or changes "
                "tensors in place",
                fix="write branches with where",
            )
        wanted = (self.y, self.times, *closed_over)
        if grad_enabled() and any(x.requires_grad for x in wanted):
            return adjoint.apply(self, closed_over, self.y, self.times, *closed_over)
        path = adaptive(self.method, self.f, self.y, self.times, self.tolerances)
        return path.outputs, path.reached


def _check_order(times: Tensor) -> None:
    """Refuse times that turn back: an adaptive solver would not get there."""
    with no_grad():
        steps = times[1:] - times[:-1]
        one_way = (steps >= 0.0).all() | (steps <= 0.0).all()
    active = recorder()

    def error() -> DomainError:
        return DomainError(
            "odeint",
            expected="times t that increase, or decrease, from each to the next",
            got=np.array2string(to_host(times.array), threshold=6, precision=4),
            fix="sort them: t, where = unique(t, return_inverse=True), and then solution[where]",
        )

    if active is not None:
        active.demand(one_way, error)
    elif not one_way.array.all():
        raise error()


def _check_slope(func: Callable[..., object]) -> None:
    """Refuse a slope that does not take a time and a state."""
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return
    theirs = getattr(func, "__name__", type(func).__name__)
    error = misfit(f"the slope {theirs}", parameters, (None, None), {})
    if error is not None:
        raise ArgumentError(
            "odeint(func)",
            expected="func(t, y), a function of a time and a state",
            got=error.expected,
            fix="write odeint(lambda t, y: ..., y0, t), closing over what else the slope needs",
        )


def prepared(
    func: Callable[[Tensor, State], State],
    y0: State,
    t: TensorLike,
    rtol: float,
    atol: float,
    method: str,
    options: Mapping[str, float | None] | None,
) -> InitialValueProblem:
    """Check arguments; return the `InitialValueProblem`."""
    options = dict(options or {})
    unknown = [name for name in options if name not in OPTIONS]
    if method not in METHODS or unknown:
        raise ArgumentError(
            "odeint",
            expected=f"a method among {', '.join(METHODS)} and options among {', '.join(OPTIONS)}",
            got=f"method={method!r}" + (f", options {', '.join(unknown)}" if unknown else ""),
            fix='leave method out for "dopri5"; "rodas4" is for stiff systems',
        )
    for name, value in {"rtol": rtol, "atol": atol, **options}.items():
        if value is not None and not value > 0:
            raise ArgumentError(
                f"odeint({name}=...)",
                expected="a number above 0",
                got=repr(value),
                fix="for example rtol=1e-6, atol=1e-8",
            )
    _check_slope(func)
    items, structure = flatten(y0)
    items = [_floating(as_tensor(x, "odeint")) for x in items]
    times = _floating(as_tensor(t, "odeint"))
    if times.array.ndim != 1 or times.array.shape[0] < 2:
        raise ShapeError(
            "odeint",
            expected="t, a vector of two or more times",
            got=f"shape {times.array.shape}",
            fix="the first time is that of y0: write t=tensor([0.0, 1.0, 2.0])",
        )
    if METHODS[method].adaptive:
        _check_order(times)
    shapes = [x.array.shape for x in items]
    sizes = [x.array.size for x in items]
    single = len(items) == 1

    def parts(vector: Tensor) -> State:
        found, at = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            piece = vector if single else vector[..., at : at + size]
            found.append(reshape(piece, (*vector.array.shape[:-1], *shape)))
            at += size
        return unflatten(structure, found)

    def f(t: Tensor, vector: Tensor) -> Tensor:
        slopes, form = flatten(func(t, parts(vector)))
        slopes = [as_tensor(x, "odeint") for x in slopes]
        if form != structure or [x.array.shape for x in slopes] != shapes:
            raise ShapeError(
                "odeint",
                expected=f"a slope of the form of the state: shapes {shapes}",
                got=f"shapes {[x.array.shape for x in slopes]}",
                fix="return stack([...]), one slope for each number of the state"
                if single and len(slopes) > 1
                else "return one slope for each number of the state",
            )
        return _joined(slopes, vector.array.dtype)

    y = _joined(items, None)
    tolerances = Tolerances(
        float(rtol),
        float(atol),
        options.get("first_step"),
        int(options.get("max_num_steps") or MAX_STEPS),
    )
    step_size = options.get("step_size")
    return InitialValueProblem(f, y, times, METHODS[method], tolerances, step_size, parts)


def _joined(items: Sequence[Tensor], dtype: DType | None) -> Tensor:
    flat = [reshape(x, (-1,)) for x in items]
    vector = flat[0] if len(flat) == 1 else cat(flat, 0)
    return vector if dtype is None or vector.array.dtype == dtype else cast(vector, dtype)


def _floating(x: Tensor) -> Tensor:
    return x if x.array.dtype.kind == "f" else cast(x, dtypes.default_dtype())


explain_calls(globals())
