"""Worlds of ordinary Python, each with a function of tensors and what changes ahead of its calls.

A world is made anew for each way to run it: `WORLDS` has functions that return the function, what
happens ahead of call i, and optionally the argument of call i (`X` else).
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import random
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest

from probtorch import tensor

__all__ = ["WORLDS", "X", "world_of"]

X = tensor([1.0, 2.0, 3.0])
WORLDS = {}


def world(make):
    """Register a world by its name."""
    WORLDS[make.__name__] = make
    return make


def world_of(name):
    """Return a new world: function, change, argument."""
    fn, change, *given = WORLDS[name]()
    return fn, change, given[0] if given else lambda i: X


def at(i, changes):
    """Do what is to happen ahead of call `i`."""
    if i in changes:
        changes[i]()


@world
def dataclasses_that_are_replaced():
    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        table: dict = dataclasses.field(default_factory=lambda: {"a": [1.0, 2.0]})
        later: float = dataclasses.field(init=False)

        def __post_init__(self):
            self.later = self.scale * 10.0

    now = {"config": Config()}

    def fn(x):
        c = now["config"]
        return x * c.scale + c.table["a"][-1] + c.later

    changes = {
        2: lambda: now.update(config=dataclasses.replace(now["config"], scale=3.0)),
        4: lambda: now["config"].table["a"].append(7.0),
        6: lambda: setattr(now["config"], "later", -1.0),
    }
    return fn, lambda i: at(i, changes)


@world
def members_of_enums():
    class Mode(enum.Enum):
        ADD = 1
        TIMES = 2

        def apply(self, x):
            return x + self.value if self is Mode.ADD else x * self.value

    class Flags(enum.Flag):
        ONE = 1
        TWO = 2

    now = [Mode.ADD, Flags.ONE]

    def fn(x):
        y = now[0].apply(x)
        return y + 100.0 if Flags.TWO in now[1] else y

    changes = {
        2: lambda: operator.setitem(now, 0, Mode.TIMES),
        4: lambda: operator.setitem(now, 1, Flags.ONE | Flags.TWO),
        6: lambda: setattr(Mode.TIMES, "_value_", 5),
    }
    return fn, lambda i: at(i, changes)


@world
def partials_and_caches():
    factor = [2.0]

    @functools.lru_cache
    def looked_up(n):
        return n * factor[0]

    def line(x, a, b=1.0):
        return x * a + b

    shifted = functools.partial(line, b=3.0)
    changes = {
        2: lambda: shifted.keywords.update(b=9.0),
        4: lambda: operator.setitem(factor, 0, 5.0),
        5: looked_up.cache_clear,
    }
    return lambda x: shifted(x, looked_up(3)), lambda i: at(i, changes)


@world
def functions_that_dispatch():
    @functools.singledispatch
    def of(v, x):
        return x * 0.0

    of.register(int, lambda v, x: x * v)
    of.register(str, lambda v, x: x + len(v))
    value = [3]
    changes = {
        2: lambda: operator.setitem(value, 0, "abcd"),
        3: lambda: operator.setitem(value, 0, 2.5),
        5: lambda: of.register(float, lambda v, x: x * v * 10.0),
        7: lambda: operator.setitem(value, 0, True),
    }
    return lambda x: of(value[0], x), lambda i: at(i, changes)


@world
def context_managers():
    level, by = [1.0], [2.0]

    @contextlib.contextmanager
    def raised(amount):
        level[0] += amount
        try:
            yield level[0]
        finally:
            level[0] -= amount

    def fn(x):
        with raised(by[0]) as now, contextlib.suppress(ZeroDivisionError):
            y = x * now
            1 / int(by[0] - 3.0)
            y = y + 1000.0
        return y + level[0]

    changes = {
        2: lambda: operator.setitem(by, 0, 3.0),
        4: lambda: operator.setitem(level, 0, 10.0),
    }
    return fn, lambda i: at(i, changes)


@world
def generators():
    weights = [1.0, 2.0, 3.0]

    def each():
        yield from weights

    def fn(x):
        return sum((x * v for v in each() if v > 1.5), x * 0.0)

    changes = {2: lambda: weights.append(4.0), 4: lambda: operator.setitem(weights, 0, 9.0)}
    return fn, lambda i: at(i, changes)


@world
def properties_and_attributes_that_are_asked_for():
    class Base:
        registry: ClassVar = {"w": 2.0}

        def __getattr__(self, name):
            try:
                return type(self).registry[name]
            except KeyError:
                raise AttributeError(name) from None

        @property
        def twice(self):
            return self.w * 2.0

        @functools.cached_property
        def kept(self):
            return self.w * 100.0

    b = Base()
    changes = {
        2: lambda: Base.registry.update(w=3.0),
        4: lambda: setattr(b, "w", 7.0),
        5: lambda: b.__dict__.pop("kept", None),
        6: lambda: setattr(Base, "twice", property(lambda self: -1.0)),
    }
    return lambda x: x * b.twice + b.kept, lambda i: at(i, changes)


@world
def data_frames_that_are_merged():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"g": list("abab"), "v": [1.0, 2.0, 3.0, 4.0]})
    other = pd.DataFrame({"g": ["a", "b"], "w": [10.0, 20.0]})
    frame["c"] = frame.g.astype("category")

    def fn(x):
        both = frame.merge(other, on="g").groupby("g", observed=True)
        means = both.agg({"v": "mean", "w": "first"})
        return x * means.v.sum() + means.w.to_numpy().sum() + float(frame.c.cat.codes.sum())

    def change(i):
        if i == 2:
            frame.loc[0, "v"] = 50.0
        elif i == 4:
            other.loc[1, "w"] = -20.0
        elif i == 6:
            frame["c"] = frame.c.cat.reorder_categories(["b", "a"])

    return fn, change


@world
def labelled_arrays():
    xr = pytest.importorskip("xarray")
    a = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=("r", "c"), coords={"r": ["p", "q"]})
    data = xr.Dataset({"a": a.copy()})

    def change(i):
        if i == 2:
            a.loc[{"r": "q"}] = 10.0
        elif i == 4:
            data["a"] = data.a * 3.0
        elif i == 6:
            a["r"] = ["q", "p"]

    return lambda x: x * float(a.sel(r="q").sum()) + float(data.a.mean()), change


@world
def structured_arrays():
    a = np.zeros(3, dtype=[("p", "f8"), ("q", "i4", (2,))])
    a["p"] = [1.0, 2.0, 3.0]
    records = a.view(np.recarray)
    changes = {
        2: lambda: operator.setitem(a["p"], 1, 9.0),
        4: lambda: operator.setitem(a["q"], (0, 1), 5),
    }
    return lambda x: x * tensor(a["p"]) + int(records.q.sum()), lambda i: at(i, changes)


@world
def errors_that_decide():
    known = {"k": 1.0}

    def fn(x):
        try:
            v = known["z"]
        except KeyError as error:
            v, n = known["k"], len(error.args[0])
        else:
            n = 100
        finally:
            known["last"] = 3.0
        return x * v + n

    changes = {
        2: lambda: known.update(k=2.0),
        4: lambda: known.update(z=5.0),
        6: lambda: known.pop("z"),
    }
    return fn, lambda i: at(i, changes)


@world
def descriptors_slots_and_weak_references():
    class Scaled:
        factor = 1.0

        def __set_name__(self, owner, name):
            self.name = f"_{name}"

        def __get__(self, owner, kind=None):
            return getattr(owner, self.name) * Scaled.factor

        def __set__(self, owner, value):
            setattr(owner, self.name, value)

    class Slotted:
        v = Scaled()
        __slots__ = ("__weakref__", "_v")

    s = Slotted()
    s.v = 2.0
    reference, proxy = weakref.ref(s), weakref.proxy(s)
    changes = {2: lambda: setattr(s, "v", 3.0), 4: lambda: setattr(Scaled, "factor", 10.0)}
    return lambda x: x * reference().v + proxy.v, lambda i: at(i, changes)


@world
def collections_of_all_kinds():
    last, missing = collections.deque([1.0, 2.0], maxlen=3), collections.defaultdict(lambda: 5.0)
    chain, counts = collections.ChainMap({"a": 1.0}, {"b": 2.0}), collections.Counter("aab")

    def fn(x):
        return x * sum(last) + missing["q"] + chain["b"] + counts.most_common(1)[0][1]

    changes = {
        2: lambda: last.append(10.0),
        3: lambda: last.rotate(1),
        5: lambda: missing.update(q=7.0),
        6: lambda: chain.maps[0].update(b=50.0),
        7: lambda: counts.update("bbbb"),
    }
    return fn, lambda i: at(i, changes)


@world
def patterns_that_are_matched():
    @dataclasses.dataclass
    class Point:
        x: float
        y: float

    command, points = [{"op": "scale", "by": 2.0}], [Point(0.0, 1.0)]

    def fn(x):
        match command[0]:
            case {"op": "scale", "by": by}:
                y = x * by
            case {"op": "shift", **rest}:
                y = x + sum(rest.values())
            case [first, *_]:
                y = x - first
            case _:
                y = x * 0.0
        match points[0]:
            case Point(x=0.0, y=v) if v > 0:
                return y + v
            case Point(x=u):
                return y - u

    changes = {
        2: lambda: command[0].update(by=3.0),
        3: lambda: operator.setitem(command, 0, {"op": "shift", "q": 1.0, "r": 2.0}),
        5: lambda: operator.setitem(command, 0, [4.0, 5.0]),
        6: lambda: setattr(points[0], "x", 2.0),
    }
    return fn, lambda i: at(i, changes)


@world
def names_of_outer_functions():
    base = 1.0

    def put(value):
        nonlocal base
        base = value

    def fn(x):
        if (n := len(str(base))) > 3:
            x = x * n
        return x + base

    changes = {2: lambda: put(12.25), 4: lambda: put(-0.0), 6: lambda: put(True)}
    return fn, lambda i: at(i, changes)


@world
def text_of_tensors():
    table = {"1.00": 10.0, "2.00": 20.0}
    changes = {5: lambda: table.update({"2.00": 99.0})}
    return (
        lambda x: x * table.get(f"{x.sum():.2f}", -1.0),
        lambda i: at(i, changes),
        lambda i: tensor([float(i % 3), 0.0, 0.0]),
    )


@world
def order_of_tensors():
    items = [{"w": 3.0}, {"w": 1.0}, {"w": 2.0}]
    orders = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0], [1.0, 1.0, 0.0]]

    def fn(x):
        order = sorted(range(3), key=lambda j: x[j])
        most = max(items, key=operator.itemgetter("w"))
        return x[order[0]] * most["w"] + order[2]

    changes = {4: lambda: items[1].update(w=10.0)}
    return fn, lambda i: at(i, changes), lambda i: tensor(orders[i % 4])


@world
def generators_of_random_numbers():
    rng, own = np.random.default_rng(3), random.Random(5)

    def change(i):
        if i == 0:
            np.random.seed(1)
        elif i == 4:
            rng.bit_generator.advance(5)
            own.seed(9)

    return lambda x: x * float(rng.normal()) + own.random() + float(np.random.rand()), change


@world
def threads_and_what_is_local_to_them():
    local, lock, event = threading.local(), threading.RLock(), threading.Event()
    local.v = 2.0

    def fn(x):
        with lock:
            return x * local.v + (100.0 if event.is_set() else 0.0)

    changes = {2: lambda: setattr(local, "v", 3.0), 4: event.set, 6: event.clear}
    return fn, lambda i: at(i, changes)


@world
def logging_on_the_way():
    logger = logging.getLogger("probtorch.tests.worlds")
    logger.setLevel(logging.INFO)
    heard = []

    class Keeping(logging.Handler):
        def emit(self, record):
            heard.append(record.getMessage())

    logger.handlers, logger.propagate = [Keeping()], False

    def fn(x):
        logger.info("a call of %s", tuple(x.shape))
        return x * 2.0 + len(heard)

    return fn, lambda i: None


@world
def counters_of_calls():
    class Counted:
        calls = 0

    def fn(x):
        Counted.calls += 1
        return x * Counted.calls

    return fn, lambda i: None


@world
def iterators_that_go_on():
    weights, turns, numbers = [1.0, 2.0], itertools.cycle([1.0, 2.0, 3.0]), itertools.count(5)

    def fn(x):
        return x * sum(map(lambda a: a * 2.0, weights)) + next(turns) + next(numbers)  # noqa: C417

    return fn, lambda i: at(i, {4: lambda: weights.append(3.0)})


@world
def classes_of_classes():
    class Meta(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.k = cls.factor
            return made

    class Made(metaclass=Meta):
        factor = 2.0
        below: ClassVar = []

        def __init__(self, v):
            self.v = v

        def __iter__(self):
            return iter([self.v, self.k])

        def __len__(self):
            return len(Made.__subclasses__())

    def fn(x):
        made = Made(3.0)
        p, q = made
        return x * p + q + len(made)

    changes = {
        2: lambda: setattr(Made, "factor", 5.0),
        4: lambda: Made.below.append(type("Below", (Made,), {})),
    }
    return fn, lambda i: at(i, changes)


@world
def objects_with_operators():
    class Odd:
        def __init__(self, v):
            self.v = v

        def __bool__(self):
            return self.v > 2

        def __eq__(self, other):
            return self.v % 2 == other.v % 2

        __hash__ = None

        def __contains__(self, k):
            return k < self.v

        def __format__(self, spec):
            return f"{self.v}{spec}"

        def __matmul__(self, x):
            return x * self.v

    a, b = Odd(1), Odd(3)

    def fn(x):
        y = a @ x
        y = y + 10.0 if a else y
        y = y + 100.0 if a == b else y
        y = y + 1000.0 if 2 in b else y
        return y + len(f"{a:abc}")

    changes = {
        2: lambda: setattr(a, "v", 3),
        4: lambda: setattr(b, "v", 2),
        6: lambda: setattr(a, "v", 12),
    }
    return fn, lambda i: at(i, changes)
