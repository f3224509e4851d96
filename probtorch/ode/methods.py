"""One step of each method: tables of coefficients, and the two forms of step that read them.

A step takes ``(f, t, y, h)`` with y a vector and returns the next y and an estimate of the error
made, None for methods without one. Explicit Runge-Kutta methods differ in their tables alone.
`rodas4` is a Rosenbrock method for stiff systems: each stage solves a linear system with the
Jacobian of f, which comes from the tape.

Coefficients: Dormand and Prince (1980), table 2; Tsitouras (2011); Bogacki and Shampine (1989);
Hairer and Wanner (1996), "Solving ordinary differential equations II", the code RODAS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.autograd.closures import stand_in
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.typed import TensorLike
from probtorch.ops.linalg import solve
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = ["METHODS", "Method", "Slope", "Step"]

# A slope takes a time and a vector; a step takes one, and gives the next y and its error.
Slope: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Step: TypeAlias = Callable[[Slope, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Method:
    """A one-step method.

    Attributes
    ----------
    name : str
    order : int
        Of the solution that is carried on.
    step : callable
        ``step(f, t, y, h) -> (next y, error or None)``.
    adaptive : bool
        Whether it estimates its error.
    """

    name: str
    order: int
    step: Step
    adaptive: bool


def _combination(
    y: Tensor, h: TensorLike, weights: Sequence[float], slopes: Sequence[Tensor]
) -> Tensor:
    """Return ``y + h * sum(weight * slope)``."""
    total = None
    for weight, slope in zip(weights, slopes):
        if weight:
            term = slope * weight
            total = term if total is None else total + term
    return y if total is None else y + h * total


def _explicit(
    name: str,
    order: int,
    c: Sequence[float],
    a: Sequence[Sequence[float]],
    b: Sequence[float],
    embedded: Sequence[float] | None = None,
) -> Method:
    """A Runge-Kutta method; `embedded` are the weights of the comparison solution."""
    errors = None if embedded is None else [x - z for x, z in zip(b, embedded)]

    def step(f: Slope, t: Tensor, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor | None]:
        slopes = [f(t, y)]
        for node, row in zip(c[1:], a):
            slopes.append(f(t + node * h, _combination(y, h, row, slopes)))
        after = _combination(y, h, b, slopes)
        if errors is None:
            return after, None
        return after, _combination(y * 0.0, h, errors, slopes)

    return Method(name, order, step, embedded is not None)


_DOPRI5 = _explicit(
    "dopri5",
    5,
    [0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1],
    [
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0],
    [5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40],
)

_TSIT5 = _explicit(
    "tsit5",
    5,
    [0, 0.161, 0.327, 0.9, 0.9800255409045097, 1, 1],
    [
        [0.161],
        [-0.008480655492356989, 0.335480655492357],
        [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
        [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
        [
            5.86145544294642,
            -12.92096931784711,
            8.159367898576159,
            -0.071584973281401,
            -0.028269050394068383,
        ],
        [
            0.09646076681806523,
            0.01,
            0.4798896504144996,
            1.379008574103742,
            -3.290069515436081,
            2.324710524099774,
        ],
    ],
    [
        0.09646076681806523,
        0.01,
        0.4798896504144996,
        1.379008574103742,
        -3.290069515436081,
        2.324710524099774,
        0,
    ],
    [
        0.09646076681806523 - 0.001780011052226,
        0.01 - 0.000816434459657,
        0.4798896504144996 + 0.007880878010262,
        1.379008574103742 - 0.144711007173263,
        -3.290069515436081 + 0.582357165452555,
        2.324710524099774 - 0.458082105929187,
        1 / 66,
    ],
)

_BOSH3 = _explicit(
    "bosh3",
    3,
    [0, 1 / 2, 3 / 4, 1],
    [[1 / 2], [0, 3 / 4], [2 / 9, 1 / 3, 4 / 9]],
    [2 / 9, 1 / 3, 4 / 9, 0],
    [7 / 24, 1 / 4, 1 / 3, 1 / 8],
)

_RK4 = _explicit(
    "rk4",
    4,
    [0, 1 / 2, 1 / 2, 1],
    [[1 / 2], [0, 1 / 2], [0, 0, 1]],
    [1 / 6, 1 / 3, 1 / 3, 1 / 6],
)
_MIDPOINT = _explicit("midpoint", 2, [0, 1 / 2], [[1 / 2]], [0, 1])
_HEUN = _explicit("heun2", 2, [0, 1], [[1]], [1 / 2, 1 / 2])
_EULER = _explicit("euler", 1, [0], [], [1])


# ------------------------------------------------------------------------------------------- stiff

_GAMMA = 0.25
# Times of the stages, and what the explicit derivative in t counts for in each.
_TIMES = (0.0, 0.386, 0.21, 0.63, 1.0, 1.0)
_DERIVATIVE = (0.25, -0.1043, 0.1035, -0.0362, 0.0, 0.0)
_A = (
    (),
    (1.544,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
)
_C = (
    (),
    (-5.6688,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (
        8.083246795921522,
        -7.981132988064893,
        -31.52159432874371,
        16.31930543123136,
        -6.058818238834054,
    ),
)


def _jacobians(f: Slope, t: Tensor, y: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return df/dy (rows are components of f) and df/dt; on the tape if `slope`, f(t, y), is."""
    taped = grad_enabled() and slope.requires_grad
    # What is on the tape already is what the derivative is of.
    t = t if taped and t.requires_grad else stand_in(t)
    y = y if taped and y.requires_grad else stand_in(y)
    n = y.array.shape[0]
    rows, in_time = [], []
    with enable_grad():
        slope = f(t, y)
        if not slope.requires_grad:
            return y.new_zeros((n, n)), y.new_zeros(n)
        for one in np.eye(n, dtype=y.array.dtype):
            row, time = grad(
                slope,
                [y, t],
                wrap(one),
                retain_graph=True,
                create_graph=taped,
                allow_unused=True,
            )
            rows.append(y.new_zeros(n) if row is None else row)
            in_time.append(t.new_zeros(()) if time is None else time)
    return stack(rows), stack(in_time).to(y.array.dtype)


def _rosenbrock(f: Slope, t: Tensor, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    slope = f(t, y)
    jacobian, in_time = _jacobians(f, t, y, slope)
    n = y.array.shape[0]
    matrix = wrap(np.eye(n, dtype=y.array.dtype)) / (h * _GAMMA) - jacobian
    stages = []
    for i in range(5):
        at = _combination(y, 1.0, _A[i], stages)
        here = f(t + _TIMES[i] * h, at) if i else slope
        right = here + h * _DERIVATIVE[i] * in_time
        if stages:
            right = _combination(right, 1.0 / h, _C[i], stages)
        stages.append(solve(matrix, right))
    at = at + stages[4]
    right = _combination(f(t + h, at), 1.0 / h, _C[5], stages)
    error = solve(matrix, right)
    return at + error, error


_RODAS4 = Method("rodas4", 4, _rosenbrock, True)

METHODS = {m.name: m for m in (_DOPRI5, _TSIT5, _BOSH3, _RODAS4, _RK4, _MIDPOINT, _HEUN, _EULER)}
