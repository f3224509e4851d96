"""What calls programs from native code: many runs with their updates, densities with many paths.

A program is ``int64 run(table)``, see `CallFrame.entry`. What `pt_commit` and `pt_repeat` do says
`machine/repeat.py`, `pt_density` `density.py`, `pt_density_of_data` `data_density.py`, `pt_lanes`
`machine/lanes.py`: they make the tables whose words are numbered here.
"""

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.nodes import Cast

__all__ = [
    *("CALLBACK", "COUNT", "DECLARATIONS", "FIRST_PATH", "LAST", "MODULES", "ROW", "VALUES"),
]

DECLARATIONS = ("declare ptr @memcpy(ptr, ptr, i64)",)
# Of a row of updates: three buffers that take turns, and the word of the table that names the next.
_TARGET, _NEXT, _NOW, _BEFORE, _SIZE, _SLOT = range(6)
ROW = 6
# Of a density's context; from FIRST_PATH on, function and table of each path. VALUES is the context
# for values alone.
CALLBACK, COUNT, LAST, VALUES, FIRST_PATH = range(5)
# Of a context with data: the inner function and its context, the long point, its gradient.
_FUNCTION, _INNER, _POINT, _SLOPE, _BYTES = range(5)


def _place(w, table, k):
    return w.load(table, k, "ptr")


def _commit(w, rows, count):
    with w.loop(0, count) as i:
        row = w.offset(rows, i * ROW, "i64")
        size = w.load(row, _SIZE, "i64")
        w.call("memcpy", "ptr", _place(w, row, _TARGET), _place(w, row, _NEXT), size)
        new, now, before = (w.load(row, k, "i64") for k in (_NEXT, _NOW, _BEFORE))
        w.store(row, _NEXT, before, "i64")
        w.store(row, _NOW, new, "i64")
        # In place (nothing is copied), the run has put there what was there before.
        w.store(row, _BEFORE, w.where(size == 0, new, now), "i64")
        w.store(_place(w, row, _SLOT), 0, before, "i64")


def _repeat(w, run, table, rows, count, draws, numbers, result, size, results, steps):
    done, fits = w.variable("i64", 0), w.variable("i1", 1)
    with w.repeat_while(lambda: w.logical_and(fits.value, done.value < steps)):
        fits.value = w.call(run, "i64", table) == 0
        with w.when(fits.value):
            w.call("pt_commit", "void", rows, count)
            w.call("memcpy", "ptr", w.offset(results, done.value * size, "i8"), result, size)
            with w.loop(0, numbers) as k:
                counter = _place(w, draws, k * 2)
                advanced = w.load(counter, 0, "i64") + w.load(draws, k * 2 + 1, "i64")
                w.store(counter, 0, advanced, "i64")
            done.value = done.value + 1
    return done.value


def _wanted(w, gradient):
    """Whether there is a place for a gradient."""
    return w.put(Cast(gradient, "i64", bits=True)) != 0


def _density(w, q, gradient, context):
    wanted = _wanted(w, gradient)
    context = w.where(wanted, context, _place(w, context, VALUES))
    count, last = w.load(context, COUNT, "i64"), w.load(context, LAST, "i64")
    value, tried, fits = w.variable("double"), w.variable("i64", 0), w.variable("i1", 0)
    with w.repeat_while(lambda: w.logical_and(w.logical_not(fits.value), tried.value < count)):
        at = last + tried.value
        path = w.where(at < count, at, at - count)
        run, table = (_place(w, context, path * 2 + FIRST_PATH + k) for k in (0, 1))
        w.store(table, 0, q, "ptr")
        with w.when(wanted):
            w.store(table, 2, gradient, "ptr")
        fits.value = w.call(run, "i64", table) == 0
        with w.when(fits.value):
            w.store(context, LAST, path, "i64")
            value.value = w.load(_place(w, table, 1), 0, "double")
        tried.value = tried.value + 1
    with w.when(w.logical_not(fits.value)):
        value.value = w.call(_place(w, context, CALLBACK), "double", q, gradient, context)
    return value.value


def _density_of_data(w, q, gradient, context):
    words = _FUNCTION, _INNER, _POINT, _SLOPE
    function, inner, point, slope = (_place(w, context, k) for k in words)
    size, wanted = w.load(context, _BYTES, "i64"), _wanted(w, gradient)
    w.call("memcpy", "ptr", point, q, size)
    value = w.call(function, "double", point, w.where(wanted, slope, gradient), inner)
    with w.when(wanted):
        w.call("memcpy", "ptr", gradient, slope, size)
    return value


def _lanes(w, run, tables, size, chosen, count, statuses):
    with w.loop(0, count) as i:
        statuses[i] = w.call(run, "i64", w.offset(tables, chosen[i] * size, "i8"))


# Each is compiled when it is first asked for: a density needs neither updates nor lanes.
MODULES = {
    "replays": {
        "pt_commit": KernelRoutine(_commit, "ptr i64", "void"),
        # run, table; rows, draws, the result, all results: where, and how many (of the result:
        # bytes)
        "pt_repeat": KernelRoutine(_repeat, "ptr ptr" + " ptr i64" * 4, "i64"),
    },
    "densities": {"pt_density": KernelRoutine(_density, "ptr ptr ptr")},
    "densities of data": {"pt_density_of_data": KernelRoutine(_density_of_data, "ptr ptr ptr")},
    # run; the tables, and bytes of one; which of them, and how many; what each returned
    "lanes": {"pt_lanes": KernelRoutine(_lanes, "ptr ptr i64 i64* i64 i64*", "void")},
}
