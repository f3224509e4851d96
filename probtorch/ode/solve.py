"""The loops: steps of fixed size as a scan, steps of adaptive size as a `while_loop`.

The adaptive loop keeps every try (its time, size and state before it, and what was chosen), which
is what the discrete adjoint walks back along. A step never passes an output time, so outputs are
states of the solution itself and not interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.dispatch import wrap
from probtorch.core.typed import Shape
from probtorch.ode.methods import Method, Slope
from probtorch.ops.arithmetic import maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isfinite, logical_and
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = [
    "Attempt",
    "FlatProblem",
    "SolutionPath",
    "Tolerances",
    "adaptive",
    "attempt",
    "direction_of",
    "first_step",
    "fixed",
]

# Hairer, Norsett and Wanner (1993), sec. II.4: a little below the best step, within these factors.
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0


@dataclass(frozen=True)
class Tolerances:
    """What an adaptive solver holds to.

    Attributes
    ----------
    rtol, atol : float
        The estimated error of a step is at most ``atol + rtol * abs(y)``, in the mean square.
    first_step : float or None
        None: chosen by the size of the solution and of its slope.
    max_num_steps : int
        Steps tried, and kept.
    """

    rtol: float
    atol: float
    first_step: float | None
    max_num_steps: int


@dataclass
class FlatProblem:
    """An initial-value problem on flat vectors.

    Attributes
    ----------
    f : callable
        From a time and a vector to a vector.
    y : Tensor, shape (n,)
    times : Tensor, shape (k,)
    method : Method
    tolerances : Tolerances
    """

    f: Slope
    y: Tensor
    times: Tensor
    method: Method
    tolerances: Tolerances


@dataclass(frozen=True)
class SolutionPath:
    """What an adaptive solver did.

    Attributes
    ----------
    outputs : Tensor, shape (times, n)
        The solution at all output times; nan where it was not reached.
    times, sizes, proposed : Tensor, shape (max_num_steps,)
        Where tries began, how long they were, and how long they were to be.
    states : Tensor, shape (max_num_steps, n)
        The solution there.
    targets : Tensor of int64, shape (max_num_steps,)
        The next output time of each.
    choices : Tensor of bool, shape (max_num_steps, 4)
        What was chosen in each: see `Attempt`.
    tries : Tensor of int64, shape ()
        Their number, rejected ones included.
    reached : Tensor of int64, shape ()
        Output times reached, the first one included.
    crossed : Tensor of bool, shape ()
        Whether what was watched turned negative or zero, in the last accepted step.
    """

    outputs: Tensor
    times: Tensor
    sizes: Tensor
    proposed: Tensor
    states: Tensor
    targets: Tensor
    choices: Tensor
    tries: Tensor
    reached: Tensor
    crossed: Tensor


@dataclass(frozen=True)
class Attempt:
    """One try of an adaptive solver: what follows from a time, a state and a size.

    Attributes
    ----------
    t, y, h : Tensor
        Where the next try begins, and how long it is to be.
    after : Tensor, shape (n,)
        The state at the end of this one.
    used : Tensor, shape ()
        How long it was.
    ends, well, accepted, rested : Tensor of bool, shape ()
        Whether it ended at the output time; whether its error is a number; whether it counts; and
        whether the size stays what it was, as an output time had cut the step short.
    """

    t: Tensor
    y: Tensor
    h: Tensor
    after: Tensor
    used: Tensor
    ends: Tensor
    well: Tensor
    accepted: Tensor
    rested: Tensor


def attempt(
    method: Method,
    f: Slope,
    t: Tensor,
    y: Tensor,
    h: Tensor,
    target: Tensor,
    direction: Tensor,
    tolerances: Tolerances,
    choices: Tensor | Sequence[Tensor] | None = None,
) -> Attempt:
    """Try a step, and choose the size of the next one.

    Parameters
    ----------
    method : Method
    f : callable
    t, y, h, target, direction
        Time, state, proposed size, next output time; 1 or -1.
    tolerances : Tolerances
    choices : sequence of four bool tensors, optional
        ``ends, well, accepted, rested`` of another run of the same try, which differentiates it.

    Returns
    -------
    Attempt
    """
    left = target - t
    ends = h * direction >= left * direction * (1.0 - 1e-12) if choices is None else choices[0]
    used = where(ends, left, h)
    after, error = method.step(f, t, y, used)
    assert error is not None  # an adaptive method
    scale = tolerances.atol + tolerances.rtol * maximum(y.abs(), after.abs())
    # The bound keeps the root's slope finite where there is no error.
    ratio = sqrt(maximum(mean((error / scale) ** 2), 1e-20)).to(t.array.dtype)
    # A step that left the domain of f (nan) is much too long.
    well = isfinite(ratio) if choices is None else choices[1]
    accepted = logical_and(well, ratio <= 1.0) if choices is None else choices[2]
    factor = SAFETY * where(well, ratio, 1.0) ** (-1.0 / method.order)
    factor = minimum(maximum(factor, SHRINK), where(accepted, GROW, 1.0))
    factor = where(well, factor, SHRINK)
    proposal = used * factor
    # A step cut short by an output time says little about the next one.
    rested = (
        logical_and(logical_and(ends, accepted), ~(proposal * direction >= h * direction))
        if choices is None
        else choices[3]
    )
    return Attempt(
        where(accepted, where(ends, target, t + used), t),
        where(accepted, after, y),
        where(rested, h, proposal),
        after,
        used,
        ends,
        well,
        accepted,
        rested,
    )


def fixed(method: Method, f: Slope, y: Tensor, times: Tensor, step_size: float | None) -> Tensor:
    """Solve with steps of one size (the last before an output time may be shorter).

    Parameters
    ----------
    method : Method
    f : callable
        From a time and a vector to a vector.
    y : Tensor, shape (n,)
    times : Tensor, shape (k,)
    step_size : float or None
        None: one step from output time to output time.

    Returns
    -------
    Tensor, shape (k, n)
    """
    lengths = times[1:] - times[:-1]
    if step_size is None:
        counts = [1] * (times.array.shape[0] - 1)
    else:
        spans = [abs(float(x)) for x in lengths]
        counts = [max(1, math.ceil(s / step_size * (1.0 - 1e-12))) for s in spans]
    which = np.repeat(np.arange(len(counts)), counts)
    part = np.concatenate([np.arange(n) for n in counts]) if counts else np.zeros(0)
    sizes = lengths[wrap(which)] / wrap(np.array(counts, times.array.dtype)[which])
    begins = times[wrap(which)] + sizes * wrap(part.astype(times.array.dtype))

    def step(y: Tensor, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        t, h = at
        after, _ = method.step(f, t, y, h)
        return after, after

    _, states = scan(step, y, (begins, sizes))
    last = wrap(np.cumsum(counts) - 1)
    return cat([reshape(y, (1, -1)), states[last]], 0)


def adaptive(
    method: Method,
    f: Slope,
    y: Tensor,
    times: Tensor,
    tolerances: Tolerances,
    watch: Slope | None = None,
) -> SolutionPath:
    """Solve with steps whose estimated error is within the tolerances.

    Parameters
    ----------
    method : Method
    f, y, times
        See `fixed`.
    tolerances : Tolerances
    watch : callable, optional
        From a time and a vector to a 0-d tensor; the loop ends when it is not positive any more.

    Returns
    -------
    Path
    """
    k, n, m = times.array.shape[0], y.array.shape[0], tolerances.max_num_steps
    direction = direction_of(times)
    first = first_step(method, f, y, times, tolerances)
    outputs = index_put(_full((k, n), math.nan, y), (_int(0),), y)

    def more(s: dict[str, Tensor]) -> Tensor:
        moving = s["t"] + s["h"] != s["t"]
        going = logical_and(s["reached"] < k, s["tries"] < m)
        going = logical_and(going, ~s["crossed"])
        return logical_and(going, logical_and(moving, isfinite(s["h"])))

    def body(s: dict[str, Tensor]) -> dict[str, Tensor]:
        t, y, h, reached = s["t"], s["y"], s["h"], s["reached"]
        tried = attempt(method, f, t, y, h, times[reached], direction, tolerances)
        now, after, accepted = tried.t, tried.after, tried.accepted
        done = logical_and(tried.ends, accepted)
        at = (s["tries"],)
        choices = stack([tried.ends, tried.well, accepted, tried.rested])
        crossed = s["crossed"]
        if watch is not None:
            crossed = logical_and(accepted, watch(now, after) <= 0.0)
        return {
            "t": now,
            "y": tried.y,
            "crossed": crossed,
            "h": tried.h,
            "reached": reached + done.to(reached.array.dtype),
            "tries": s["tries"] + 1,
            "outputs": index_put(
                s["outputs"], (reached,), where(done, after, s["outputs"][reached])
            ),
            "times": index_put(s["times"], at, t),
            "sizes": index_put(s["sizes"], at, tried.used),
            "proposed": index_put(s["proposed"], at, h),
            "states": index_put(s["states"], at, y),
            "targets": index_put(s["targets"], at, reached),
            "choices": index_put(s["choices"], at, choices),
        }

    start = {
        "t": times[0],
        "y": y,
        "crossed": wrap(np.array(False)),
        "h": first,
        "reached": _int(1),
        "tries": _int(0),
        "outputs": outputs,
        "times": _full((m,), 0.0, times),
        "sizes": _full((m,), 0.0, times),
        "proposed": _full((m,), 0.0, times),
        "states": _full((m, n), 0.0, y),
        "targets": wrap(np.zeros(m, np.int64)),
        "choices": wrap(np.zeros((m, 4), bool)),
    }
    end = while_loop(more, body, start)
    return SolutionPath(**{field.name: end[field.name] for field in fields(SolutionPath)})


def direction_of(times: Tensor) -> Tensor:
    """Return 1 where time runs forwards, else -1, in the dtype of `times`."""
    return where(times[-1] >= times[0], 1.0, -1.0).to(times.array.dtype)


def first_step(
    method: Method, f: Slope, y: Tensor, times: Tensor, tolerances: Tolerances
) -> Tensor:
    """A first step by the sizes of solution and slope, as in Hairer et al. (1993), sec. II.4."""
    direction = direction_of(times)
    span = (times[-1] - times[0]).abs()
    if tolerances.first_step is not None:
        return minimum(span, tolerances.first_step) * direction
    scale = tolerances.atol + tolerances.rtol * y.abs()
    size = sqrt(maximum(mean((y / scale) ** 2), 1e-20))
    slope = sqrt(maximum(mean((f(times[0], y) / scale) ** 2), 1e-20))
    small = (size < 1e-5) | (slope < 1e-5)
    guess = where(small, 1e-6, 0.01 * size / where(small, 1.0, slope)).to(times.array.dtype)
    return minimum(guess, span) * direction


def _int(n: int) -> Tensor:
    return wrap(np.array(n))


def _full(shape: Shape, value: float, like: Tensor) -> Tensor:
    return like.new_full(shape, value)
