"""A path of L-BFGS uphill on a log density, from its start to its end, in one call.

What `LbfgsPaths` and `best_of_paths` (infer/starts/lbfgs_paths.py, where the numbers below come
from) do of many paths at a time with any score, for one path and one score: the log density with
the log volume, less what is still to be climbed. A density of ten coordinates takes a microsecond,
what NumPy does between two evaluations three hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.cells import Array, Cell
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.machine.routines import Routines

if TYPE_CHECKING:
    from probtorch.compiler.lang.nodes import Operand, Value

__all__ = ["CLIMBS", "FOUND", "NUMBERS", "found_size", "work_size"]

# Numbers that a climb is told: see the doc of `best_of_paths` and the constants of its file.
NUMBERS = (
    *("tolerance", "patience", "reluctance", "armijo", "rounding", "shortest", "longest"),
    *("infeasible", "growth", "longest_jump", "least_curvature", "refusals", "calm_steps"),
)
# Numbers that it finds beside position, gradient, diagonal and pairs.
FOUND = ("value", "score", "log_det", "top_score", "pairs")


def found_size(dim: int, history: int) -> int:
    """Return how many doubles a climb finds."""
    return 3 * dim + 2 * history * dim + len(FOUND)


def work_size(dim: int, history: int) -> int:
    """Return how many doubles it works with."""
    return 8 * dim + 4 * history * dim + 14 * history * history + 4 * history


class _Room:
    """Parts of an array of doubles, one after the other."""

    def __init__(self, place: Array) -> None:
        self.place = place

    def take(self, count: Operand) -> Array:
        taken = self.place
        self.place = taken.at(count)
        return taken


def _finite(w: KernelFunction, x: Value) -> Value:
    return w.abs(x) < float("inf")


def _middle(
    w: KernelFunction,
    pairs: Array,
    diagonal: Array,
    newest: Value,
    history: Value,
    dim: Value,
    scaled: Array,
    middle: Array,
    room: Array,
) -> Value:
    """The matrix of the compact form, of the pairs from the oldest on; returns the log determinant
    of the estimate.

    `scaled` has the steps by the roots of the diagonal, then the changes times them.
    """
    count = w.minimum(newest, history)
    both = count * 2
    volume = w.variable("double", 0.0)
    with w.loop(0, dim) as k:
        volume.value = volume.value + w.log(diagonal[k])
    with w.loop(0, count) as i:
        place = w.rest(newest - count + i, history)
        step, change = pairs.at(place * dim), pairs.at((history + place) * dim)
        of_step, of_change = scaled.at(i * dim), scaled.at((count + i) * dim)
        with w.loop(0, dim) as k:
            root = w.sqrt(diagonal[k])
            of_step[k] = step[k] / root
            of_change[k] = change[k] * root
    square = history * history
    parts = _Room(room)
    gram, inverse, inner, product = (
        parts.take(n) for n in (square * 4, square, square, square * 4)
    )
    with w.loop(0, both) as i, w.loop(0, i + 1) as j:
        found = scaled.at(i * dim).dot(scaled.at(j * dim), dim)
        gram[i * both + j] = found
        gram[j * both + i] = found
    # The inverse of R, where s'y of steps no younger than the change are; by columns.
    with w.loop(0, count) as j:
        with w.loop(0, count) as i:
            inverse[i * count + j] = 0.0
        inverse[j * count + j] = 1.0 / gram[j * both + count + j]
        with w.loop(0, j) as back:
            i = j - 1 - back
            rest = w.variable("double", 0.0)
            with w.loop(i + 1, j + 1) as k:
                rest.value = rest.value - gram[i * both + count + k] * inverse[k * count + j]
            inverse[i * count + j] = rest.value / gram[i * both + count + i]
    # (D + Y'Y) R^-1
    with w.loop(0, count) as i, w.loop(0, count) as j:
        total = w.variable("double", gram[i * both + count + i] * inverse[i * count + j])
        with w.loop(0, count) as k:
            total.value = (
                total.value + gram[(count + i) * both + count + k] * inverse[k * count + j]
            )
        inner[i * count + j] = total.value
    with w.loop(0, count) as i, w.loop(0, count) as j:
        total = w.variable("double", 0.0)
        with w.loop(0, count) as k:
            total.value = total.value + inverse[k * count + i] * inner[k * count + j]
        middle[i * both + j] = total.value
        middle[i * both + count + j] = -inverse[j * count + i]
        middle[(count + i) * both + j] = -inverse[i * count + j]
        middle[(count + i) * both + count + j] = 0.0
    with w.loop(0, both) as i, w.loop(0, both) as j:
        total = w.variable("double", w.where(i == j, 1.0, w.value(0.0, "double")))
        with w.loop(0, both) as k:
            total.value = total.value + middle[i * both + k] * gram[k * both + j]
        product[i * both + j] = total.value
    return volume.value + _log_determinant(w, product, both)


def _log_determinant(w: KernelFunction, a: Array, n: Value) -> Value:
    """The logarithm of the size of a determinant, by elimination with pivots."""
    total = w.variable("double", 0.0)
    with w.loop(0, n) as j:
        pivot, most = w.variable("i64", j), w.variable("double", w.abs(a[j * n + j]))
        with w.loop(j + 1, n) as i:
            size = w.abs(a[i * n + j])
            with w.when(size > most.value):
                pivot.value, most.value = i, size
        with w.when(pivot.value != j):
            with w.loop(j, n) as k:
                here, there = a[j * n + k], a[pivot.value * n + k]
                a[j * n + k], a[pivot.value * n + k] = there, here
        total.value = total.value + w.log(most.value)
        with w.loop(j + 1, n) as i:
            share = a[i * n + j] / a[j * n + j]
            with w.loop(j + 1, n) as k:
                a[i * n + k] = a[i * n + k] - share * a[j * n + k]
    return total.value


def _apply(
    w: KernelFunction,
    diagonal: Array,
    scaled: Array,
    middle: Array,
    count: Value,
    dim: Value,
    vector: Array,
    out: Array,
    room: Array,
) -> None:
    """The estimate times a vector."""
    both, along, weights = count * 2, room, room.at(count * 2)
    with w.loop(0, dim) as k:
        out[k] = w.sqrt(diagonal[k]) * vector[k]
    with w.loop(0, both) as i:
        along[i] = scaled.at(i * dim).dot(out, dim)
    with w.loop(0, both) as i:
        weights[i] = middle.at(i * both).dot(along, both)
    with w.loop(0, both) as i:
        weight, row = weights[i], scaled.at(i * dim)
        with w.loop(0, dim) as k:
            out[k] = out[k] + weight * row[k]
    with w.loop(0, dim) as k:
        out[k] = out[k] * w.sqrt(diagonal[k])


def _evaluate(
    w: KernelFunction, density: Value, context: Value, q: Value, grad: Array, dim: Value
) -> Value:
    """The log density and its gradient; -inf where one of them is not finite."""
    value = w.variable("double", w.call(density, "double", q, grad, context))
    nothing = w.variable("double", 0.0)
    with w.loop(0, dim) as k:
        nothing.add(grad[k] - grad[k])  # 0 of a finite number, else nan
    fine = w.logical_and(_finite(w, value.value), nothing.value == 0.0)
    return w.where(fine, value.value, float("-inf"))


def _curved(w: KernelFunction, step: Array, change: Array, diagonal: Array, dim: Value) -> None:
    """Take one more pair into the diagonal of an inverse Hessian (Gilbert and Lemarechal 1989)."""
    a, b, c = (w.variable("double", 0.0) for _ in range(3))
    with w.loop(0, dim) as k:
        s, y, d = step[k], change[k], diagonal[k]
        a.value = a.value + y * y * d
        b.value = b.value + y * s
        c.value = c.value + s * s / d
    ratio = a.value / c.value
    with w.loop(0, dim) as k:
        y, d = change[k], diagonal[k]
        scaled = step[k] / d
        diagonal[k] = b.value / (a.value / d + y * y - ratio * scaled * scaled)


def _climb(
    w: KernelFunction,
    density: Value,
    context: Value,
    start: Array,
    slope: Array,
    first_value: Value,
    dim: Value,
    history: Value,
    most: Value,
    numbers: Array,
    out: Array,
    work: Array,
) -> Value:
    """See `CLIMBS`."""
    told = {name: numbers[i] for i, name in enumerate(NUMBERS)}
    of_pairs = history * dim * 2
    found, room = _Room(out), _Room(work)
    best_q, best_grad, best_diagonal = (found.take(dim) for _ in range(3))
    best_pairs, best = found.take(of_pairs), found.take(len(FOUND))
    q, grad, trial, trial_grad, direction, diagonal, step_, change = (
        room.take(dim) for _ in range(8)
    )
    pairs, scaled = room.take(of_pairs), room.take(of_pairs)
    middle = room.take(history * history * 4)
    rest = room.place

    def cell(x: Operand, ty: str = "double") -> Cell:
        return w.variable(ty, x)

    squared = slope.dot(slope, dim)
    with w.loop(0, dim) as k:
        q[k], grad[k], direction[k], diagonal[k] = start[k], slope[k], slope[k], 1.0
    with w.loop(0, of_pairs) as k:
        pairs[k] = 0.0
    dims = w.as_float(dim)
    spread = w.sqrt(dims)
    value, rate, gain, log_det = cell(first_value), cell(squared), cell(squared * 0.5), cell(0.0)
    length = cell(w.minimum(1.0, spread / w.sqrt(w.maximum(squared, 1e-300))))
    refusals, newest, calm, turns = (cell(0, "i64") for _ in range(4))
    highest = cell(value.value)

    def keep(score: Value) -> None:
        for to, source, n in (
            *((best_q, q, dim), (best_grad, grad, dim), (best_diagonal, diagonal, dim)),
            (best_pairs, pairs, of_pairs),
        ):
            to.copy(source, n)
        best[0], best[1], best[2] = value.value, score, log_det.value
        best[4] = w.as_float(newest.value)

    first = value.value - w.minimum(gain.value, dims)
    keep(first)
    best[3] = first
    going = cell(rate.value > 0.0, "i1")
    with w.repeat_while(lambda: w.logical_and(going.value, turns.value < most)):
        turns.value = turns.value + 1
        with w.loop(0, dim) as k:
            trial[k] = q[k] + length.value * direction[k]
        new = w.call("evaluate", "double", density, context, trial, trial_grad, dim)
        promised = length.value * rate.value
        noise = told["rounding"] * w.abs(value.value)
        moved = w.logical_and(
            new >= value.value + told["armijo"] * promised - noise, _finite(w, new)
        )
        taken, refused = w.branch(moved)
        with taken:
            refusals.value = 0
            with w.loop(0, dim) as k:
                step_[k], change[k] = trial[k] - q[k], grad[k] - trial_grad[k]
                q[k], grad[k] = trial[k], trial_grad[k]
            curvature = step_.dot(change, dim)
            norms = w.sqrt(step_.dot(step_, dim) * change.dot(change, dim))
            bent = curvature > told["least_curvature"] * norms
            rise = new - value.value
            value.value = new
            length.value = w.where(bent, 1.0, told["growth"] * length.value)
            with w.when(bent):
                place = w.rest(newest.value, history)
                pairs.at(place * dim).copy(step_, dim)
                pairs.at((history + place) * dim).copy(change, dim)
                newest.value = newest.value + 1
                w.call("curved", "void", step_, change, diagonal, dim)
                told_of = newest.value, history, dim, scaled, middle, rest
                log_det.value = w.call("middle", "double", pairs, diagonal, *told_of)
            there = w.minimum(newest.value, history)
            matrix = diagonal, scaled, middle, there, dim
            w.call("apply", "void", *matrix, grad, direction, rest)
            rate.value = direction.dot(grad, dim)
            gain.value = rate.value * 0.5
            way = cell(0.0)
            with w.loop(0, dim) as k:
                apart = q[k] - start[k]
                way.add(apart * apart)
            longest = told["longest_jump"] * w.maximum(w.sqrt(way.value), spread)
            size = w.sqrt(direction.dot(direction, dim))
            length.value = w.minimum(length.value, longest / w.maximum(size, 1e-300))
            evidence = value.value + log_det.value * 0.5
            highest.value = w.maximum(highest.value, evidence)
            with w.when(bent):
                score = evidence - w.minimum(gain.value, dims)
                with w.when(score > best[1] + told["reluctance"]):
                    keep(score)
                best[3] = w.maximum(best[3], score)
                still = w.maximum(gain.value, rise) < told["tolerance"]
                calm.value = w.where(still, calm.value + 1, 0)
            going.value = w.logical_not(
                w.logical_or(
                    w.as_float(calm.value) >= told["calm_steps"],
                    evidence < highest.value - told["patience"],
                )
            )
        with refused:
            refusals.value = refusals.value + 1
            # The top of the parabola through both values and the slope here.
            share = promised * 0.5 / (value.value + promised - new)
            share = w.minimum(w.maximum(share, told["shortest"]), told["longest"])
            length.value = length.value * w.where(_finite(w, new), share, told["infeasible"])
        fine = w.logical_and(rate.value > 0.0, _finite(w, log_det.value))
        tries = w.as_float(refusals.value) < told["refusals"]
        going.value = w.logical_and(going.value, w.logical_and(fine, tries))
    return turns.value


_THREE = "double* double* double*"
_ROUTINES = {
    "middle": KernelRoutine(_middle, f"double* double* i64 i64 i64 {_THREE}"),
    "apply": KernelRoutine(_apply, f"{_THREE} i64 i64 {_THREE}", "void"),
    "evaluate": KernelRoutine(_evaluate, "ptr ptr ptr double* i64"),
    "curved": KernelRoutine(_curved, f"{_THREE} i64", "void"),
    # The density and its context; where it begins, the gradient and the density there; dimensions,
    # pairs of the history, most evaluations; `NUMBERS`. What is found: position, gradient,
    # diagonal, pairs (2, history, dim) and `FOUND`; working space. Returns how often it evaluated.
    "pt_climb": KernelRoutine(
        _climb, f"ptr ptr double* double* double i64 i64 i64 {_THREE}", "i64"
    ),
}
CLIMBS = Routines(__file__, _ROUTINES)
