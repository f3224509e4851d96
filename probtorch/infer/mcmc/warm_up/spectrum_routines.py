"""The diagonal and the directions that make draws and gradients alike, of few dimensions.

What `estimates.low_rank` and `forms.LowRank` (infer/mcmc/warm_up) say of a window, for the windows
of many chains in one call: with ten dimensions NumPy's calls would take a hundred times what they
compute. Draws and gradients lie side by side, (2, n, dim), as do their sums. Matrices lie by rows.

With the covariances X of scaled draws and G of scaled gradients, the matrix A with ``A G A = X`` is
found without forming a product of them: of ``G = L L^T`` and ``X = C C^T`` the columns of
``L^T C`` are made orthogonal by rotations (Hestenes 1958), then those of ``L^-T U S^(1/2)``, whose
lengths are the roots of the variances and whose directions are those of A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probtorch.compiler.lang.cells import Array, Cell
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.machine.routines import Routines

if TYPE_CHECKING:
    from collections.abc import Callable

    from probtorch.compiler.lang.nodes import Operand, Value

__all__ = [
    *("ASKED", "DECIDES", "LEAST", "MOST", "SPECTRA", "SPECTRUM", "STAYS", "WAYS", "WEIGHS"),
    *("median", "variances_of", "variances_under", "work_of"),
]

# Variances outside are no variances but overflow.
LEAST, MOST = 1e-20, 1e20
# Bits of the question: whether directions are looked for, whether the halves judge each other, and
# whether the present matrix may be better than what so few draws say.
DECIDES, WAYS, WEIGHS = 1, 2, 4
# What is asked of a window: its chain, where its rows begin, how many they are, how many of the
# last ones the present matrix was not made from, and bits of the question.
ASKED = ("chain", "begin", "count", "fresh", "question")
# The answer where the present matrix stays; else how many directions there are.
STAYS = -1
# Rows are orthogonal if their product is below this share of their lengths: the next sweep would
# square it.
ORTHOGONAL = 1e-7
MOST_SWEEPS = 30


def work_of(n: int, dim: int) -> int:
    """Return how many doubles a fit of `n` draws works with."""
    return 2 * dim * n + 3 * _moments_size(dim) + 3 * dim * dim + 6 * dim


def _moments_size(dim: int) -> int:
    return 2 * dim * dim + 2 * dim


class _Moments:
    """Means (2, dim) and sums of products about them (2, dim, dim), of `count` rows."""

    def __init__(self, w: KernelFunction, place: Array, dim: Value, count: Value) -> None:
        self.mean, self.dim, self.count = place, dim, w.as_float(count)
        self.x, self.g = place.at(dim * 2), place.at(dim * 2 + dim * dim)


class _Fit:
    """Scales and variances (dim,), and directions, rows of (dim, dim)."""

    def __init__(self, place: Array, dim: Value) -> None:
        self.scale, self.variances, self.rows = place, place.at(dim), place.at(dim * 2)


def _moments(
    w: KernelFunction,
    pairs: Array,
    apart: Value,
    dim: Value,
    first: Value,
    stop: Value,
    columns: Array,
    mean: Array,
) -> None:
    """Means and products of the rows from `first` to below `stop`; `columns` is working space.

    Gradients begin `apart` rows after draws.
    """
    products, count = mean.at(dim * 2), stop - first
    each = 1.0 / w.as_float(count)
    with w.loop(0, 2) as side:
        rows, middle = pairs.at((side * apart + first) * dim), mean.at(side * dim)
        with w.loop(0, dim) as i:
            middle[i] = 0.0
        with w.loop(0, count) as r:
            row = rows.at(r * dim)
            with w.loop(0, dim) as i:
                middle[i] = middle[i] + row[i]
        with w.loop(0, dim) as i:
            middle[i] = middle[i] * each
            column = columns.at(i * count)
            with w.loop(0, count) as r:
                column[r] = rows[r * dim + i] - middle[i]
        products_here = products.at(side * dim * dim)
        with w.loop(0, dim) as i, w.loop(0, i + 1) as j:
            found = columns.at(i * count).dot(columns.at(j * count), count)
            products_here[i * dim + j] = found
            products_here[j * dim + i] = found


def _factor(w: KernelFunction, a: Array, dim: Value) -> Value:
    """Turn a matrix into its lower Cholesky factor in place; 1 if it has one."""
    fine = w.variable("i64", 1)
    with w.loop(0, dim) as i:
        row = a.at(i * dim)
        with w.loop(0, i) as j:
            rest = row[j] - row.dot(a.at(j * dim), j)
            row[j] = rest / a[j * dim + j]
        rest = row[i] - row.dot(row, i)
        with w.when(w.logical_not(rest > 0.0)):
            fine.value = 0
        row[i] = w.sqrt(rest)
    return fine.value


def _orthogonal(w: KernelFunction, rows: Array, squares: Array, dim: Value) -> None:
    """Rotate pairs of rows until all are orthogonal; `squares` are their squared lengths then.

    Pairs that follow each other share no row: a processor works on several at a time, of which each
    waits for roots and quotients. All whose numbers add up to the same, modulo an odd number, are
    such pairs.
    """

    def measure() -> None:
        with w.loop(0, dim) as p:
            squares[p] = rows.at(p * dim).dot(rows.at(p * dim), dim)

    turned, sweeps = w.variable("i64", 1), w.variable("i64", 0)
    half = w.quotient(dim, 2)
    around = half * 2 + 1
    with w.repeat_while(lambda: w.logical_and(turned.value > 0, sweeps.value < MOST_SWEEPS)):
        turned.value = 0
        sweeps.value = sweeps.value + 1
        measure()
        with w.loop(0, around) as middle, w.loop(1, half + 1) as apart:
            up, down = middle + apart, middle - apart
            up = w.where(up < around, up, up - around)
            down = w.where(down < 0, down + around, down)
            p, q = w.minimum(up, down), w.maximum(up, down)
            with w.when(q < dim):
                _rotate(w, rows, squares, dim, p, q, turned)
    measure()


def _rotate(
    w: KernelFunction,
    rows: Array,
    squares: Array,
    dim: Value,
    p: Value,
    q: Value,
    turned: Cell,
) -> None:
    """Make two rows orthogonal, unless they are; `turned` is 1 where they were not."""
    one, other = rows.at(p * dim), rows.at(q * dim)
    both, a, b = one.dot(other, dim), squares[p], squares[q]
    with w.when(both * both > ORTHOGONAL * ORTHOGONAL * a * b):
        turned.value = 1
        half = (b - a) / (both * 2.0)
        size = w.abs(half) + w.sqrt(1.0 + half * half)
        t = w.where(half >= 0.0, 1.0 / size, -1.0 / size)
        c = 1.0 / w.sqrt(1.0 + t * t)
        s = c * t
        with w.loop(0, dim) as k:
            x, y = one[k], other[k]
            one[k] = c * x - s * y
            other[k] = s * x + c * y
        squares[p] = a - t * both
        squares[q] = b + t * both


def _scaled(w: KernelFunction, moments: _Moments, variance: Array, to: Array) -> None:
    """Covariances of scaled draws and gradients: X, then G."""
    dim = moments.dim
    other, each = to.at(dim * dim), 1.0 / moments.count
    with w.loop(0, dim) as i, w.loop(0, dim) as j:
        scale = w.sqrt(variance[i] * variance[j])
        to[i * dim + j] = moments.x[i * dim + j] * each / scale
        other[i * dim + j] = moments.g[i * dim + j] * each * scale


def _geometric_mean(
    w: KernelFunction, c: Array, dim: Value, ridge: Value, variances: Array, rows: Array
) -> Value:
    """Find variances and directions, rows, of the matrix A with ``A G A = X``; 1 if there is one.

    `c` has X, then G, which are overwritten.
    """
    low = c.at(dim * dim)
    with w.loop(0, dim) as i:
        for matrix in (c, low):
            matrix[i * dim + i] = matrix[i * dim + i] + ridge
    w.leave_if(w.call("factor", "i64", c, dim) == 0, w.whole(0))
    w.leave_if(w.call("factor", "i64", low, dim) == 0, w.whole(0))
    # Columns of L^T C, as rows.
    with w.loop(0, dim) as j:
        row = rows.at(j * dim)
        with w.loop(0, dim) as k:
            row[k] = 0.0
        with w.loop(j, dim) as i:
            factor, line = c[i * dim + j], low.at(i * dim)
            with w.loop(0, i + 1) as k:
                row[k] = row[k] + factor * line[k]
    w.call("orthogonal", "void", rows, variances, dim)
    # L^-T times each, over the fourth root of its square.
    with w.loop(0, dim) as j:
        row = rows.at(j * dim)
        less = 1.0 / w.sqrt(w.sqrt(variances[j]))
        with w.loop(0, dim) as back:
            i = dim - 1 - back
            line = low.at(i * dim)
            found = row[i] / line[i]
            row[i] = found * less
            with w.loop(0, i) as k:
                row[k] = row[k] - found * line[k]
    w.call("orthogonal", "void", rows, variances, dim)
    total = w.variable("double", 0.0)
    with w.loop(0, dim) as j:
        row, size = rows.at(j * dim), 1.0 / w.sqrt(variances[j])
        total.value = total.value + size
        with w.loop(0, dim) as k:
            row[k] = row[k] * size
        variances[j] = w.maximum(variances[j], LEAST)
        total.value = total.value + variances[j]
    return w.where(w.abs(total.value) < float("inf"), w.whole(1), w.whole(0))


def _spectrum(
    w: KernelFunction,
    place: Array,
    count: Value,
    dim: Value,
    variance: Array,
    ridge: Value,
    found: Array,
    work: Array,
) -> Value:
    """Find `_Fit` of some moments, given the diagonal; 1 if there is one."""
    moments, fit = _Moments(w, place, dim, count), _Fit(found, dim)
    _scaled(w, moments, variance, work)
    fine = w.call("pt_geometric_mean", "i64", work, dim, ridge, fit.variances, fit.rows)
    # What most directions have in common belongs to the scale.
    common = median(w, fit.variances, dim, work)
    each, root = 1.0 / common, w.sqrt(common)
    total = w.variable("double", 0.0)
    with w.loop(0, dim) as i:
        fit.scale[i] = w.sqrt(variance[i]) * root
        fit.variances[i] = fit.variances[i] * each
        total.value = total.value + fit.scale[i] + fit.variances[i]
    return w.where(w.abs(total.value) < float("inf"), fine, w.whole(0))


def median(w: KernelFunction, values: Array, n: Value, room: Array) -> Value:
    """Write the median of some values; `room` is for as many."""
    with w.loop(0, n) as i:
        x, at = values[i], w.variable("i64", i)
        with w.repeat_while(
            # The element before the first is not read: the test goes to the first instead.
            lambda: w.logical_and(at.value > 0, room[w.maximum(at.value - 1, w.whole(0))] > x)
        ):
            room[at.value] = room[at.value - 1]
            at.value = at.value - 1
        room[at.value] = x
    return (room[w.quotient(n, 2)] + room[w.quotient(n - 1, 2)]) * 0.5


def _plain(w: KernelFunction, moments: _Moments, variance: Array) -> Value:
    """The sum of ``x M^-1 x`` and ``g M g`` over rows, for a diagonal M."""
    dim, total = moments.dim, w.variable("double", 0.0)
    with w.loop(0, dim) as i:
        at = i * dim + i
        total.value = total.value + moments.x[at] / variance[i] + moments.g[at] * variance[i]
    return total.value


def _along(w: KernelFunction, products: Array, vector: Array, dim: Value) -> Value:
    total = w.variable("double", 0.0)
    with w.loop(0, dim) as i:
        part = vector[i] * products.at(i * dim).dot(vector, dim)
        total.value = total.value + part
    return total.value


def _excess(
    w: KernelFunction,
    place: Array,
    count: Value,
    dim: Value,
    scale: Array,
    rows: Array,
    variances: Array,
    number: Value,
    cut: Value,
    work: Array,
) -> Value:
    """What directions, none of them within `cut`, add to the misfit of a diagonal, over rows."""
    moments = _Moments(w, place, dim, count)
    of_x, of_g, total = work, work.at(dim), w.variable("double", 0.0)
    with w.loop(0, number) as k:
        v = variances[k]
        with w.when(w.logical_or(v > cut, v * cut < 1.0)):
            row = rows.at(k * dim)
            with w.loop(0, dim) as i:
                of_x[i] = row[i] / scale[i]
                of_g[i] = row[i] * scale[i]
            x, g = _along(w, moments.x, of_x, dim), _along(w, moments.g, of_g, dim)
            total.value = total.value + x * (1.0 / v - 1.0) + g * (v - 1.0)
    return total.value


def variances_of(
    w: KernelFunction,
    x: Array,
    g: Array,
    step: Value | int,
    out: Array,
    dim: Value,
    otherwise: Callable[[Value], Operand],
) -> None:
    """Write ``sqrt(var(x) / var(g))`` of sums of squares; `otherwise` where that is no variance."""
    with w.loop(0, dim) as i:
        ratio = w.sqrt(x[i * step]) / w.sqrt(g[i * step])
        out[i] = ratio
        with w.when(w.logical_not(w.logical_and(ratio >= LEAST, ratio <= MOST))):
            out[i] = otherwise(i)


def variances_under(
    w: KernelFunction, scale: Array, rows: Array, stretch: Array, number: Value, dim: Value
) -> Callable[[Value], Value]:
    """What writes the variance of a coordinate under the present matrix: `scale` squared, with
    `number` directions in which a root of it is 1 plus a stretch.
    """

    def variance(i: Value) -> Value:
        wide = w.variable("double", 1.0)
        with w.loop(0, number) as k:
            root, x = 1.0 + stretch[k], rows[k * dim + i]
            wide.value = wide.value + (root * root - 1.0) * x * x
        return scale[i] * scale[i] * wide.value

    return variance


def _gain(
    w: KernelFunction,
    sample: Array,
    judge: Array,
    of_sample: Value,
    of_judge: Value,
    dim: Value,
    ridge: Value,
    cut: Value,
    room: Array,
) -> Value:
    """What directions from a sample gain on rows that judge, less what they do to the diagonal.

    In nats times two over all dimensions; nan where there is no fit.
    """
    variance, squared = room, room.at(dim)
    place, work = room.at(dim * 2), room.at(dim * 4 + dim * dim)
    early = _Moments(w, sample, dim, of_sample)
    late = _Moments(w, judge, dim, of_judge)
    variances_of(w, early.x, early.g, dim + 1, variance, dim, lambda _: 1.0)
    fine = w.call("spectrum", "i64", sample, of_sample, dim, variance, ridge, place, work)
    w.leave_if(fine == 0, float("nan"))
    fit = _Fit(place, dim)
    with w.loop(0, dim) as i:
        squared[i] = fit.scale[i] * fit.scale[i]
    of_fit = _plain(w, late, squared) + w.call(
        *("excess", "double", judge, of_judge, dim, fit.scale, fit.rows),
        *(fit.variances, dim, cut, work),
    )
    return (_plain(w, late, variance) - of_fit) / late.count


def _together(w: KernelFunction, one: _Moments, other: _Moments, out: _Moments) -> None:
    """Moments of both (Chan et al. 1983)."""
    dim = one.dim
    share = one.count * other.count / (one.count + other.count)
    for side, mine in enumerate((one.x, one.g)):
        theirs, to = (other.x, out.x) if side == 0 else (other.g, out.g)
        here, there = one.mean.at(dim * side), other.mean.at(dim * side)
        with w.loop(0, dim) as i:
            apart = (there[i] - here[i]) * share
            with w.loop(0, dim) as j:
                at = i * dim + j
                to[at] = mine[at] + theirs[at] + apart * (there[j] - here[j])


def _fit(
    w: KernelFunction,
    pairs: Array,
    apart: Value,
    n: Value,
    dim: Value,
    squares: Array,
    now_scale: Array,
    now_rows: Array,
    now_stretch: Array,
    number: Value,
    fresh: Value,
    fewest: Value,
    question: Value,
    least: Value,
    cut: Value,
    ridge: Value,
    noisy: Value,
    rank: Value,
    scale: Array,
    rows: Array,
    stretch: Array,
    work: Array,
) -> Value:
    """One matrix; the arguments are those of `SPECTRA`, of one window."""
    decides, ways, weighs = ((question & bit) != 0 for bit in (DECIDES, WAYS, WEIGHS))
    size = dim * dim * 2 + dim * 2
    early, late, whole = (work.at(size * k) for k in range(3))
    variance, now_variances = work.at(size * 3), work.at(size * 3 + dim)
    room = work.at(size * 3 + dim * 2)
    columns = work.at(size * 3 + dim * dim * 3 + dim * 6)
    with w.loop(0, number) as k:
        root = 1.0 + now_stretch[k]
        now_variances[k] = root * root

    under = variances_under(w, now_scale, now_rows, now_stretch, number, dim)
    variances_of(w, squares, squares.at(dim), 1, variance, dim, under)

    # What the present directions gain over a diagonal, on rows that they were not made from.
    kept = w.variable("double", float("-inf"))
    with w.when(w.logical_and(number > 0, w.logical_or(w.logical_not(decides), weighs))):
        kept.value = float("inf")
        with w.when(fresh >= fewest):
            squared = room.at(dim * 4 + dim * dim)
            w.call("moments", "void", pairs, apart, dim, n - fresh, n, columns, early)
            judge = _Moments(w, early, dim, fresh)
            with w.loop(0, dim) as i:
                squared[i] = now_scale[i] * now_scale[i]
            present = _plain(w, judge, squared) + w.call(
                *("excess", "double", early, fresh, dim, now_scale, now_rows),
                *(now_variances, number, w.value(1.0, "double"), room),
            )
            kept.value = (_plain(w, judge, variance) - present) / judge.count

    stays = w.whole(STAYS)
    with w.loop(0, dim) as i:
        scale[i] = w.sqrt(variance[i])
    w.leave_if(w.logical_not(decides), w.where(kept.value > 0.0, stays, w.whole(0)))
    most = w.variable("double", 0.0)
    with w.loop(0, dim) as i:
        most.value = most.value + squares[i] / variance[i] + squares[dim + i] * variance[i]
    rows_there = w.as_float(n)
    w.leave_if(most.value / rows_there - w.as_float(dim) * 2.0 < least, w.whole(0))

    half = w.quotient(n, 2)
    for first, stop, place in ((w.whole(0), half, early), (half, n, late)):
        w.call("moments", "void", pairs, apart, dim, first, stop, columns, place)
    of_early, of_late = half, n - half

    def gain(r: Value) -> Value:
        both, least_room = (dim, r, cut, room), w.variable("double")
        least_room.value = w.call("gain", "double", early, late, of_early, of_late, *both)
        with w.when(ways):
            turned = w.call("gain", "double", late, early, of_late, of_early, *both)
            least_room.value = (least_room.value + turned) * 0.5
        return least_room.value

    best, chosen = w.variable("double", gain(ridge)), w.variable("double", ridge)
    with w.when(noisy > 0.0):
        with_noise = w.variable("double", gain(noisy))
        with w.when(w.logical_not(with_noise.value <= best.value)):
            best.value = with_noise.value
            chosen.value = noisy
    # No fit: numbers that overflow. A later window will do better.
    w.leave_if(w.logical_not(w.abs(best.value) < float("inf")), stays)
    w.leave_if(w.logical_and(weighs, kept.value > w.maximum(best.value, least)), stays)
    w.leave_if(best.value < least, w.whole(0))
    both = _Moments(w, whole, dim, n)
    _together(w, _Moments(w, early, dim, of_early), _Moments(w, late, dim, of_late), both)
    rest = chosen.value, room, room.at(dim * 2 + dim * dim)
    fine = w.call("spectrum", "i64", whole, n, dim, variance, *rest)
    w.leave_if(fine == 0, stays)
    fit = _Fit(room, dim)
    scale.copy(fit.scale, dim)
    return _clipped(w, fit, dim, cut, rank, rows, stretch)


def _fits(
    w: KernelFunction,
    windows: Value,
    asked: Array,
    pairs: Array,
    room: Value,
    dim: Value,
    squares: Array,
    ridges: Array,
    now_scale: Array,
    now_rows: Array,
    now_stretch: Array,
    now_count: Array,
    places: Value,
    fewest: Value,
    least: Value,
    cut: Value,
    rank: Value,
    scale: Array,
    rows: Array,
    stretch: Array,
    numbers: Array,
    work: Array,
) -> None:
    """See `SPECTRA`."""
    with w.loop(0, windows) as k:
        chain, begin, n, fresh, question = (asked[k * len(ASKED) + i] for i in range(len(ASKED)))
        numbers[k] = w.call(
            *("fit", "i64", pairs.at((chain * 2 * room + begin) * dim), room, n, dim),
            *(squares.at(k * 2 * dim), now_scale.at(chain * dim)),
            *(now_rows.at(chain * places * dim), now_stretch.at(chain * places)),
            *(now_count[chain], fresh, fewest, question, least, cut),
            *(ridges[k * 2], ridges[k * 2 + 1], rank, scale.at(k * dim)),
            *(rows.at(k * places * dim), stretch.at(k * places), work),
        )


def _clipped(
    w: KernelFunction,
    fit: _Fit,
    dim: Value,
    cut: Value,
    rank: Value,
    rows: Array,
    stretch: Array,
) -> Value:
    """Copy the `rank` directions that matter most, none within `cut`; returns how many."""
    count, going = w.variable("i64", 0), w.variable("i1", True)
    with w.repeat_while(lambda: w.logical_and(going.value, count.value < rank)):
        place, most = w.variable("i64", -1), w.variable("double", cut)
        with w.loop(0, dim) as i:
            v = fit.variances[i]
            apart = w.maximum(v, 1.0 / v)
            with w.when(apart > most.value):
                most.value = apart
                place.value = i
        going.value = place.value >= 0
        with w.when(going.value):
            here, to = place.value, rows.at(count.value * dim)
            to.copy(fit.rows.at(here * dim), dim)
            stretch[count.value] = w.sqrt(fit.variances[here]) - 1.0
            # It is not taken again.
            fit.variances[here] = 1.0
            count.value = count.value + 1
    return count.value


_ONE, _TWO, _THREE = "double*", "double* double*", "double* double* double*"
# What finds a matrix of some covariances.
SPECTRUM = {
    "factor": KernelRoutine(_factor, f"{_ONE} i64", "i64"),
    "orthogonal": KernelRoutine(_orthogonal, f"{_TWO} i64", "void"),
    # X and then G, dimensions, the ridge; variances and directions that are found. Returns 1, or 0
    # where there is no such matrix.
    "pt_geometric_mean": KernelRoutine(_geometric_mean, f"{_ONE} i64 double {_TWO}", "i64"),
}
_ROUTINES = SPECTRUM | {
    "moments": KernelRoutine(_moments, f"{_ONE} i64 i64 i64 i64 {_TWO}", "void"),
    "spectrum": KernelRoutine(_spectrum, f"{_ONE} i64 i64 {_ONE} double {_TWO}", "i64"),
    "excess": KernelRoutine(_excess, f"{_ONE} i64 i64 {_THREE} i64 double {_ONE}"),
    "gain": KernelRoutine(_gain, f"{_TWO} i64 i64 i64 double double {_ONE}"),
    "fit": KernelRoutine(
        _fit,
        f"{_ONE} i64 i64 i64 {_ONE} {_THREE} i64 i64 i64 i64 double double double double i64 "
        f"{_THREE} {_ONE}",
        "i64",
    ),
    # How many windows, and what is asked of each (`ASKED`); draws and gradients (chains, 2, room,
    # dim), room, dim; the sums of squares of each window (windows, 2, dim), and its ridge, and
    # another one or 0 (windows, 2); the present scales, directions, stretches of all chains, how
    # many of them are in use, and for how many there is room. How many rows can judge a matrix, the
    # least gain, the factor within which directions are left out, most directions. What is found
    # for each window: scales, directions, stretches, how many, or STAYS; and working space.
    "pt_fit_low_rank": KernelRoutine(
        _fits,
        f"i64 i64* {_ONE} i64 i64 {_TWO} {_THREE} i64* i64 i64 double double i64 {_THREE} i64* "
        f"{_ONE}",
        "void",
    ),
}
SPECTRA = Routines(__file__, _ROUTINES)
