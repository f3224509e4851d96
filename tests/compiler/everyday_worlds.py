"""Worlds of ordinary Python, see worlds.py: what programs keep between steps of a training loop."""

import functools
import operator

import numpy as np

from probtorch import tensor
from tests.compiler.worlds import at, world

__all__ = []


@world
def caches_that_are_filled_anew_from_elsewhere():
    data = [np.array([1.0, 2.0, 3.0])]

    @functools.cache
    def column(n):
        return float(data[0][n])

    @functools.lru_cache(maxsize=2)
    def pair(n):
        return tensor(data[0][n:])

    def refill(numbers):
        # As often as before, and from data that are back in their place afterwards.
        before, data[0] = data[0], np.array(numbers)
        for cached in (column, pair):
            runs = cached.cache_info().misses
            cached.cache_clear()
            for n in range(runs):
                cached(1 + n)
        data[0] = before

    changes = {3: lambda: refill([4.0, 5.0, 6.0]), 6: lambda: refill([7.0, 8.0, 9.0])}
    return lambda x: x * column(1) + pair(1).sum(), lambda i: at(i, changes)


@world
def results_in_caches_that_are_changed():
    @functools.cache
    def row(n):
        return [float(n), 2.0]

    @functools.lru_cache
    def rows(n):
        return {"row": np.arange(3.0) + n}

    changes = {
        3: lambda: operator.setitem(row(3), 0, 7.0),
        5: lambda: operator.setitem(rows(1)["row"], 0, 5.0),
        7: lambda: row(3).append(1.0),
    }
    return lambda x: x * row(3)[0] + rows(1)["row"][0] + len(row(3)), lambda i: at(i, changes)


@world
def draws_that_a_cache_keeps():
    rng = np.random.default_rng(0)

    @functools.lru_cache
    def noise(n):
        return rng.normal(size=n)

    noise(3)

    def change(i):
        if i % 4 == 2:
            noise.cache_clear()
        if i % 4 == 0:
            noise.cache_clear()
            noise(3)

    return lambda x: x + tensor(noise(3)).to(x.dtype), change


@world
def caches_that_drop_what_was_used_first():
    count = [0.0]

    @functools.lru_cache(maxsize=2)
    def numbered(n):
        count[0] += 1.0
        return count[0] * n

    changes = {3: lambda: (numbered(8), numbered(9)), 6: lambda: numbered(1)}
    return lambda x: x * numbered(3), lambda i: at(i, changes)


@world
def partials_that_are_set_anew():
    line = functools.partial(lambda a, x, b=1.0: a * x + b, 2.0)
    kept = {"line": line}
    changes = {
        2: lambda: line.keywords.update(b=3.0),
        4: lambda: line.__setstate__((line.func, (5.0,), {"b": 1.0}, {})),
        7: lambda: line.__setstate__((lambda x: x * 0.5, (), {}, {})),
    }
    return lambda x: kept["line"](x), lambda i: at(i, changes)


@world
def attributes_of_cached_functions():
    @functools.lru_cache
    def whole(n):
        return float(n)

    @functools.cache
    def scaled(n):
        return float(n)

    whole.scale, scaled.shift = 1.0, [2.0]
    changes = {
        3: lambda: setattr(whole, "scale", 5.0),
        5: lambda: operator.setitem(scaled.shift, 0, 7.0),
        7: lambda: setattr(whole, "scale", "text"),
    }
    return lambda x: x * whole(3) * len(str(whole.scale)) + scaled.shift[0], lambda i: at(
        i, changes
    )


@world
def caches_with_dicts_and_many_entries():
    @functools.lru_cache(maxsize=700)
    def table(n):
        return {"n": float(n)}

    @functools.lru_cache(maxsize=1)
    def last(n):
        return [float(n), len(count)]

    count = []
    for n in range(700):
        table(n)

    def change(i):
        if i == 3:
            table(2)["n"] = 9.0
        if i == 5:  # the same place has another result
            count.append(i)
            last(4)
        if i == 7:
            table(701)

    return lambda x: x * table(2)["n"] + table(5)["n"] + last(3)[1], change


@world
def caches_that_are_asked_how_often_they_were_used():
    @functools.lru_cache
    def looked_up(n):
        return n * 2.0

    # Every call adds to the number of hits.
    def fn(x):
        return x * looked_up(3) + looked_up.cache_info().hits

    return fn, lambda i: at(i, {6: looked_up.cache_clear})


@world
def containers_whose_classes_are_equal_to_all_others():
    class Same(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return 0

    class Table(dict, metaclass=Same):
        pass

    class Row(list, metaclass=Same):
        pass

    table, row = Table(a=1.0), Row([1.0])
    changes = {
        3: lambda: operator.setitem(table, "a", 4.0),
        5: lambda: operator.setitem(row, 0, 5.0),
    }
    return lambda x: x * table["a"] + row[0], lambda i: at(i, changes)
