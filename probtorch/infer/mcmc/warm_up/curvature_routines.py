"""The largest curvature of a log density at some points, by differences of its gradients.

The rounds that curvature.py (infer/mcmc/warm_up) tells of, for all points in one call: a density of
ten coordinates takes a microsecond, a call of it from Python some five.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.machine.routines import Routines

if TYPE_CHECKING:
    from probtorch.compiler.lang.cells import Array
    from probtorch.compiler.lang.nodes import Value

__all__ = ["CURVATURE"]


def _times(
    w: KernelFunction, matrix: Array, full: Value, slope: Array, dim: Value, out: Array
) -> None:
    """A matrix, or a diagonal, times a vector."""
    dense, diagonal = w.branch(full != 0)
    with dense, w.loop(0, dim) as i:
        out[i] = matrix.at(i * dim).dot(slope, dim)
    with diagonal, w.loop(0, dim) as i:
        out[i] = matrix[i] * slope[i]


def _length(
    w: KernelFunction,
    density: Value,
    context: Value,
    dim: Value,
    position: Array,
    matrix: Array,
    full: Value,
    distance: Value,
    rounds: Value,
    slope: Array,
    work: Array,
) -> Value:
    """The size of the largest eigenvalue at one point, from a first `slope`, which is overwritten.

    Nan where a gradient is not finite.
    """
    move, place, ahead = (work.at(dim * k) for k in range(3))
    length, going, at = w.variable("double", 0.0), w.variable("i1", True), w.variable("i64", 0)
    with w.repeat_while(lambda: w.logical_and(going.value, at.value <= rounds)):
        # The length of M u in the metric M^-1, in which the rounds are those of a symmetric matrix.
        w.call("times", "void", matrix, full, slope, dim, move)
        square = slope.dot(move, dim)
        # Of nan neither is so.
        length.value = w.where(
            square > 0.0, w.sqrt(w.abs(square)), w.where(square <= 0.0, 0.0, square)
        )
        fine = w.logical_and(length.value > 0.0, length.value < float("inf"))
        going.value = w.logical_and(fine, at.value < rounds)
        with w.when(going.value):
            each, apart = distance / length.value, 0.5 / distance
            for sign, gradient in ((1.0, ahead), (-1.0, slope)):
                with w.loop(0, dim) as i:
                    place[i] = position[i] + each * sign * move[i]
                w.call(density, "double", place, gradient, context)
            with w.loop(0, dim) as i:
                slope[i] = (slope[i] - ahead[i]) * apart
        at.value = at.value + 1
    return length.value


def _lengths(
    w: KernelFunction,
    density: Value,
    context: Value,
    points: Value,
    dim: Value,
    positions: Array,
    matrices: Array,
    full: Value,
    which: Array,
    distances: Array,
    rounds: Value,
    slopes: Array,
    lengths: Array,
    work: Array,
) -> None:
    """See `CURVATURE`."""
    size = w.where(full != 0, dim * dim, dim)
    with w.loop(0, points) as k:
        lengths[k] = w.call(
            *("length", "double", density, context, dim, positions.at(k * dim)),
            *(matrices.at(which[k] * size), full, distances[k], rounds, slopes.at(k * dim), work),
        )


_ROUTINES = {
    "times": KernelRoutine(_times, "double* i64 double* i64 double*", "void"),
    "length": KernelRoutine(_length, "ptr ptr i64 double* double* i64 double i64 double* double*"),
    # The density and its context; points, dimensions, positions (points, dim); inverse masses,
    # (dim, dim) if `full` is not 0, else (dim,), and which of them each point has; distances to
    # where gradients are taken, rounds, first slopes (points, dim), which are overwritten. What is
    # found, and working space of three vectors.
    "pt_lengths": KernelRoutine(
        _lengths,
        "ptr ptr i64 i64 double* double* i64 i64* double* i64 double* double* double*",
        "void",
    ),
}
CURVATURE = Routines(__file__, _ROUTINES)
