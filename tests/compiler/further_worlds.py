"""More worlds of ordinary Python, see worlds.py: what programs keep in classes, containers, modules
and the objects of libraries.
"""

import abc
import array
import collections
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import fractions
import functools
import heapq
import importlib
import inspect
import itertools
import math
import operator
import os
import queue
import string
import struct
import sys
import types
import typing
import weakref

import numpy as np
import pytest

from probtorch import tensor
from tests.compiler.worlds import at, world

__all__ = []


@world
def records_with_slots():
    @dataclasses.dataclass(slots=True, kw_only=True)
    class Inner:
        scale: float = 2.0
        shift: dataclasses.InitVar[float] = 1.0
        moved: float = dataclasses.field(init=False, default=0.0)

        def __post_init__(self, shift):
            self.moved = self.scale + shift

    @dataclasses.dataclass(frozen=True, slots=True)
    class Outer:
        inner: Inner
        __match_args__ = ("inner",)

    kept = [Outer(Inner())]

    def fn(x):
        match kept[0]:
            case Outer(Inner(scale=s, moved=m)) if s < 3.0:
                return x * s + m
            case Outer(inner):
                return x - inner.moved
        return x

    changes = {
        2: lambda: setattr(kept[0].inner, "moved", 5.0),
        4: lambda: operator.setitem(kept, 0, Outer(Inner(scale=4.0, shift=2.0))),
        6: lambda: setattr(kept[0].inner, "scale", 1.0),
    }
    return fn, lambda i: at(i, changes)


@world
def maps_in_a_chain():
    first, second = {"a": 1.0}, {"a": 2.0, "b": 3.0}
    kept = [collections.ChainMap(first, second)]
    read_only = types.MappingProxyType(second)

    def fn(x):
        found = kept[0]
        return x * found["a"] + found.get("b", 0.0) + len(read_only) + found.maps[0].get("c", 0.5)

    changes = {
        2: lambda: first.pop("a"),
        4: lambda: second.update(c=7.0, b=-1.0),
        6: lambda: operator.setitem(kept, 0, kept[0].new_child({"c": 4.0, "a": 9.0})),
    }
    return fn, lambda i: at(i, changes)


@world
def what_is_made_when_it_is_missed():
    class Missing(dict):
        step = 2.0

        def __missing__(self, key):
            return len(key) * self.step

    made = collections.defaultdict(lambda: 3.0, a=1.0)
    own, counts = Missing(a=4.0), collections.Counter("abca")

    def fn(x):
        return x * made.get("b", 2.0) + own["long"] + counts["a"] + counts["z"] + own["a"]

    changes = {
        2: lambda: made["b"],
        4: lambda: setattr(Missing, "step", 5.0),
        6: lambda: counts.update("aaz"),
        8: lambda: own.update(long=-1.0),
    }
    return fn, lambda i: at(i, changes)


@world
def properties_that_are_kept():
    class Kept:
        factor = 2.0

        @functools.cached_property
        def table(self):
            return [self.factor, self.factor + 1.0]

        @property
        def last(self):
            return self.table[-1]

        @last.setter
        def last(self, value):
            self.table[-1] = value

    own = Kept()

    def fn(x):
        return x * own.table[0] + own.last

    def forget():
        Kept.factor = 7.0
        del own.table

    changes = {
        2: forget,
        4: lambda: setattr(own, "last", -1.0),
        6: lambda: own.table.insert(0, 9.0),
    }
    return fn, lambda i: at(i, changes)


@world
def variables_of_a_context():
    rate = contextvars.ContextVar("rate", default=2.0)
    other = contextvars.copy_context()
    tokens = []

    def fn(x):
        return x * rate.get() + other.run(rate.get) + (rate in contextvars.copy_context())

    changes = {
        2: lambda: tokens.append(rate.set(5.0)),
        4: lambda: other.run(rate.set, 7.0),
        6: lambda: rate.reset(tokens.pop()),
    }
    return fn, lambda i: at(i, changes)


@world
def generators_that_are_sent_to():
    def running():
        total = 1.0
        while True:
            total += yield total

    sums, counted = running(), itertools.count(1.0, 0.5)
    next(sums)
    turns, (one, two) = itertools.cycle([1.0, 2.0, 3.0]), itertools.tee(iter(range(1000)))

    def fn(x):
        return x * sums.send(0.5) + next(counted) + next(turns) + next(one)

    return fn, lambda i: at(
        i, {2: lambda: next(counted), 4: lambda: next(two), 6: lambda: next(one)}
    )


@world
def what_nothing_else_holds():
    class Thing:
        def __init__(self, k):
            self.k = k

    held = [Thing(1.0), Thing(2.0)]
    by_name = weakref.WeakValueDictionary(a=held[0], b=held[1])
    by_thing = weakref.WeakKeyDictionary({held[0]: 3.0})
    all_of_them, gone = weakref.WeakSet(held), []
    weakref.finalize(held[1], gone.append, 1.0)

    def fn(x):
        return (
            x * sum(t.k for t in by_name.values())
            + sum(by_thing.values())
            + len(all_of_them)
            + len(gone)
        )

    changes = {
        2: lambda: setattr(held[0], "k", 5.0),
        4: lambda: held.pop(),
        6: lambda: by_thing.update({held[0]: 9.0}),
    }
    return fn, lambda i: at(i, changes)


@world
def classes_that_know_their_subclasses():
    class Base:
        known: typing.ClassVar[dict] = {}
        scale = 2.0

        def __init_subclass__(cls, label="", **options):
            super().__init_subclass__(**options)
            Base.known[label] = cls

        def __class_getitem__(cls, label):
            return cls.known[label]()

        def apply(self, x):
            return x * self.scale

    class Double(Base, label="double"):
        pass

    def another():
        class Triple(Base, label="double"):
            scale = 3.0

            def apply(self, x):
                return super().apply(x) + 1.0

    changes = {
        2: lambda: setattr(Base, "scale", 4.0),
        4: another,
        6: lambda: setattr(Base, "apply", lambda self, x: x - self.scale),
    }
    return (lambda x: Base["double"].apply(x) + len(Base.known)), lambda i: at(i, changes)


@world
def attributes_that_are_not_there():
    class Fallback:
        def __init__(self):
            self.options = {"rate": 2.0}

        def __getattr__(self, name):
            try:
                return self.options[name]
            except KeyError:
                raise AttributeError(name) from None

    class Wary(Fallback):
        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            return found * 2.0 if name == "twice" else found

    own, wary = Fallback(), Wary()
    wary.twice = 1.0

    def fn(x):
        return (
            x * own.rate
            + getattr(own, "more", 0.25)
            + hasattr(own, "less")
            + wary.twice
            + wary.rate
        )

    changes = {
        2: lambda: own.options.update(more=3.0),
        4: lambda: setattr(own, "less", 1.0),
        6: lambda: (setattr(wary, "twice", 4.0), wary.options.update(rate=-1.0)),
    }
    return fn, lambda i: at(i, changes)


@world
def names_that_are_given_on_the_way():
    numbers, limit = [1.0, 5.0, 2.0], [1.5]

    def fn(x):
        if (n := len(numbers)) > 2 and any((found := k) > limit[0] for k in numbers):
            return x * found + n
        return x - n

    changes = {
        2: lambda: limit.__setitem__(0, 4.0),
        4: lambda: numbers.reverse(),
        6: lambda: numbers.pop(),
    }
    return fn, lambda i: at(i, changes)


@world
def errors_in_groups():
    bad = [[ValueError(2.0), KeyError("a")]]

    def fn(x):
        caught = 0.0
        try:
            if bad[0]:
                raise ExceptionGroup("both", bad[0])
        except* ValueError as group:
            caught += sum(e.args[0] for e in group.exceptions)
        except* LookupError as group:
            caught += 10.0 * len(group.exceptions)
        else:
            caught = -1.0
        finally:
            caught *= 2.0
        return x + caught

    changes = {
        2: lambda: bad[0].append(ValueError(5.0)),
        4: lambda: bad[0].pop(1),
        6: lambda: bad[0].clear(),
    }
    return fn, lambda i: at(i, changes)


@world
def modules_that_are_looked_up():
    name = "probtorch_world_of_a_test"
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].k, sys.modules[name].fn = 2.0, math.floor

    def fn(x):
        module = importlib.import_module(name)
        return x * sys.modules[name].k + module.fn(2.5) + getattr(module, "more", 0.0)

    def another():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].k, sys.modules[name].fn = 7.0, math.ceil

    changes = {
        2: lambda: setattr(sys.modules[name], "k", 3.0),
        4: another,
        6: lambda: setattr(sys.modules[name], "more", 0.5),
    }
    return fn, lambda i: at(i, changes)


@world
def methods_that_are_made_of_others():
    class Kinds:
        def scaled(self, x, by, *, plus=0.0):
            return x * by + plus

        double = functools.partialmethod(scaled, 2.0)
        static = staticmethod(lambda x: x + 1.0)

        @functools.singledispatchmethod
        def kind(self, value):
            return 1.0

        @kind.register
        def _(self, value: int):
            return 10.0

    own, given = Kinds(), [3]

    def fn(x):
        return own.double(x, plus=0.5) + Kinds.static(x) + own.kind(given[0])

    changes = {
        2: lambda: operator.setitem(given, 0, "text"),
        4: lambda: Kinds.kind.register(str, lambda self, value: 100.0),
        6: lambda: setattr(Kinds, "double", functools.partialmethod(Kinds.scaled, 5.0)),
        8: lambda: setattr(Kinds, "static", staticmethod(lambda x: x * 0.0)),
    }
    return fn, lambda i: at(i, changes)


@world
def abstract_classes_and_protocols():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def size(self): ...

    @typing.runtime_checkable
    class Sized(typing.Protocol):
        def size(self): ...

    class Square:
        def size(self):
            return 2.0

    own = [Square()]

    def fn(x):
        if isinstance(own[0], Shape):
            return x * own[0].size()
        return x + (10.0 if isinstance(own[0], Sized) else 100.0) + issubclass(Square, Shape)

    changes = {
        2: lambda: Shape.register(Square),
        4: lambda: setattr(Square, "size", lambda self: 7.0),
        6: lambda: operator.setitem(own, 0, 1.0),
    }
    return fn, lambda i: at(i, changes)


@world
def tuples_with_names():
    class Point(typing.NamedTuple):
        a: float = 1.0
        b: list = [2.0]

        @property
        def total(self):
            return self.a + self.b[0]

    class Named(Point):
        factor = 2.0

        def times(self, x):
            return x * self.factor * self.total

    kept = [Named()]

    def fn(x):
        a, b = kept[0]
        return kept[0].times(x) + a + len(b) + kept[0]._asdict()["a"]

    changes = {
        2: lambda: kept[0].b.append(3.0),
        4: lambda: operator.setitem(kept, 0, kept[0]._replace(a=5.0)),
        6: lambda: setattr(Named, "factor", -1.0),
    }
    return fn, lambda i: at(i, changes)


@world
def bytes_and_views_of_them():
    raw, numbers = bytearray(struct.pack("3d", 1.0, 2.0, 3.0)), array.array("d", [1.0, 2.0])
    view = memoryview(raw).cast("d")

    def fn(x):
        first, *_ = struct.unpack_from("d", raw)
        return x * view[1] + first + numbers[-1] + int.from_bytes(raw[:1], "big")

    changes = {
        2: lambda: operator.setitem(view, 1, 5.0),
        4: lambda: struct.pack_into("d", raw, 0, -2.0),
        6: lambda: operator.setitem(numbers, -1, 9.0),
    }
    return fn, lambda i: at(i, changes)


@world
def categories_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"g": pandas.Categorical(["a", "b", "a"]), "y": [1.0, 2.0, 3.0]})

    def fn(x):
        codes = np.array(frame["g"].cat.codes, np.float64)
        means = frame.groupby("g", observed=True)["y"].mean()
        return x * tensor(codes) + float(means.iloc[0]) + len(frame["g"].cat.categories)

    def put(name, value):
        frame[name] = value

    changes = {
        2: lambda: put("g", frame["g"].cat.add_categories(["c"])),
        4: lambda: put("y", [4.0, 5.0, 6.0]),
        6: lambda: put("g", frame["g"].cat.reorder_categories(["c", "b", "a"])),
    }
    return fn, lambda i: at(i, changes)


@world
def getters_and_callers():
    class Thing:
        a = types.SimpleNamespace(b=2.0)

        def times(self, x, k):
            return x * k

    own = Thing()
    get, call, item = (
        operator.attrgetter("a.b"),
        [operator.methodcaller("times", tensor(1.0), 3.0)],
        [0],
    )
    pick = operator.itemgetter(1, 0)

    def fn(x):
        return x * get(own) + call[0](own) + sum(pick([4.0, 5.0])) + item[0]

    changes = {
        2: lambda: setattr(Thing.a, "b", 3.0),
        4: lambda: operator.setitem(call, 0, operator.methodcaller("times", tensor(2.0), 3.0)),
        6: lambda: setattr(Thing, "times", lambda self, x, k: x - k),
    }
    return fn, lambda i: at(i, changes)


@world
def orders_that_are_the_users():
    sign, heap = [1.0], [3.0, 5.0, 9.0]

    @functools.total_ordering
    class Rank:
        def __init__(self, k):
            self.k = k

        def __lt__(self, other):
            return sign[0] * self.k < sign[0] * other.k

        def __eq__(self, other):
            return self.k == other.k

        __hash__ = None

    ranks = [Rank(2.0), Rank(7.0)]

    def fn(x):
        first = sorted(ranks)[0].k
        by = sorted([4.0, 6.0], key=functools.cmp_to_key(lambda a, b: sign[0] * (a - b)))[0]
        return x * first + by + heap[0] + heapq.nsmallest(1, heap, key=lambda k: -k)[0]

    changes = {
        2: lambda: operator.setitem(sign, 0, -1.0),
        4: lambda: heapq.heappush(heap, 1.0),
        6: lambda: ranks.append(Rank(99.0)),
    }
    return fn, lambda i: at(i, changes)


@world
def text_that_is_made_of_objects():
    class Shown:
        k = 2

        def __format__(self, spec):
            return f"{self.k}{spec}"

        def __str__(self):
            return "a" * self.k

    own, template, words = Shown(), [string.Template("${a}.5")], {"a": "1"}

    def fn(x):
        return x * float(f"{own:.5}") + len(str(own)) + float(template[0].substitute(words))

    changes = {
        2: lambda: setattr(Shown, "k", 3),
        4: lambda: words.update(a="7"),
        6: lambda: operator.setitem(template, 0, string.Template("2${a}")),
    }
    return fn, lambda i: at(i, changes)


@world
def numbers_of_other_kinds():
    parts = [fractions.Fraction(1, 4), decimal.Decimal("0.5"), 2 + 0j]
    context = decimal.getcontext().copy()

    def fn(x):
        divided = float(context.divide(decimal.Decimal(1), decimal.Decimal(3)))
        return x * float(parts[0]) + float(parts[1]) + parts[2].real + divided

    changes = {
        2: lambda: operator.setitem(parts, 0, fractions.Fraction(3, 4)),
        4: lambda: setattr(context, "prec", 2),
        6: lambda: operator.setitem(parts, 2, complex(-1.0, 3.0)),
    }
    return fn, lambda i: at(i, changes)


@world
def the_environment_of_the_process():
    name = "PROBTORCH_WORLD_OF_A_TEST"
    os.environ.pop(name, None)

    def fn(x):
        return x * float(os.environ.get(name, "2")) + (name in os.environ)

    def end():
        os.environ.pop(name)

    changes = {2: lambda: os.environ.update({name: "3"}), 6: end}
    return fn, lambda i: at(i, changes)


@world
def containers_of_the_users():
    class Scaled(collections.UserDict):
        scale = 2.0

        def __getitem__(self, key):
            return super().__getitem__(key) * self.scale

    class Backwards(collections.UserList):
        def __iter__(self):
            return reversed(self.data)

    class Odd(list):
        def __getitem__(self, i):
            return super().__getitem__(i) + 0.5

        def __len__(self):
            return 7

    table, numbers, odd = Scaled(a=1.0), Backwards([1.0, 2.0]), Odd([3.0])

    def fn(x):
        return x * table["a"] + next(iter(numbers)) + odd[0] + len(odd) + ("b" in table)

    changes = {
        2: lambda: setattr(Scaled, "scale", 3.0),
        4: lambda: numbers.append(8.0),
        6: lambda: (odd.__setitem__(0, 9.0), table.update(b=1.0)),
    }
    return fn, lambda i: at(i, changes)


@world
def functions_that_are_taken_apart():
    def inner(x, k=2.0, *, plus=1.0):
        return x * k + plus

    def other(x, k=2.0, *, plus=1.0):
        return x - k - plus

    wrapped = functools.wraps(inner)(lambda *args: inner(*args))

    def fn(x):
        return wrapped(x) + len(inspect.signature(inner).parameters) + wrapped.__wrapped__(x)

    changes = {
        2: lambda: setattr(inner, "__defaults__", (5.0,)),
        4: lambda: setattr(inner, "__kwdefaults__", {"plus": -3.0}),
        6: lambda: setattr(inner, "__code__", other.__code__),
        8: lambda: setattr(wrapped, "__wrapped__", other),
    }
    return fn, lambda i: at(i, changes)


@world
def objects_that_change_their_class():
    class One:
        def times(self, x):
            return x * self.k

    class Two(One):
        def times(self, x):
            return super().times(x) + 1.0

    own = One()
    own.k = 2.0
    made = type("Made", (One,), {"k": 3.0, "times": lambda self, x: x + self.k})()

    def fn(x):
        return own.times(x) + made.times(x) + type(own).__name__.count("w")

    changes = {
        2: lambda: setattr(own, "__class__", Two),
        4: lambda: setattr(type(made), "k", 9.0),
        6: lambda: setattr(Two, "times", lambda self, x: x * 0.0),
    }
    return fn, lambda i: at(i, changes)


@world
def copies_that_are_the_users():
    class Kept:
        def __init__(self, k):
            self.k, self.copies = k, 0

        def __copy__(self):
            return Kept(self.k + 1.0)

        def __deepcopy__(self, memo):
            return Kept(self.k * 10.0)

    own = [Kept(2.0), {"a": [Kept(1.0)]}]

    def fn(x):
        return x * copy.copy(own[0]).k + copy.deepcopy(own[1])["a"][0].k

    changes = {
        2: lambda: setattr(own[0], "k", 4.0),
        4: lambda: own[1]["a"].insert(0, Kept(7.0)),
        6: lambda: setattr(Kept, "__copy__", lambda self: self),
    }
    return fn, lambda i: at(i, changes)


@world
def stacks_of_contexts():
    state = {"depth": 0.0, "by": 1.0}

    @contextlib.contextmanager
    def deeper():
        state["depth"] += state["by"]
        try:
            yield state["depth"]
        finally:
            state["depth"] -= state["by"]

    def fn(x):
        with contextlib.ExitStack() as stack, contextlib.suppress(ZeroDivisionError):
            depths = [stack.enter_context(deeper()) for _ in range(2)]
            stack.callback(state.get, "by")
            return x * depths[1] + 1.0 / state.get("zero", 1.0)
        return x

    changes = {
        2: lambda: state.update(by=3.0),
        4: lambda: state.update(zero=0.0),
        6: lambda: state.update(zero=2.0, depth=5.0),
    }
    return fn, lambda i: at(i, changes)


@world
def functions_that_are_replaced_elsewhere():
    tools = types.ModuleType("tools_of_a_test")
    source = "import math\nK = 2.0\ndef f(x):\n    return x * K + math.floor(K)"
    exec(source, tools.__dict__)  # noqa: S102 - as people write it
    chosen = {"f": tools.f}

    def fn(x):
        return tools.f(x) + chosen["f"](x) + eval("K + 1.0", tools.__dict__)

    def another():
        exec("def f(x):\n    return x - K", tools.__dict__)  # noqa: S102 - as people write it

    changes = {2: lambda: setattr(tools, "K", 3.5), 4: another, 6: lambda: chosen.update(f=tools.f)}
    return fn, lambda i: at(i, changes)


@world
def arrays_with_more_to_them():
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
    record = np.rec.array([(1.0, 2)], dtype=[("a", "f8"), ("n", "i4")])
    grid, by_call = np.arange(6.0).reshape(2, 3), np.vectorize(lambda k: k * record.n[0])

    def fn(x):
        return (
            x * float(masked.sum()) + record.a[0] + float(by_call(grid[:, 1]).sum()) + grid.T[0, 1]
        )

    def mask():
        masked.mask = [True, False, False]

    changes = {
        2: mask,
        4: lambda: record.n.__setitem__(0, 7),
        6: lambda: grid.T.__setitem__((0, 1), 9.0),
    }
    return fn, lambda i: at(i, changes)


@world
def matrices_with_few_elements():
    sparse = pytest.importorskip("scipy.sparse")
    interpolate = pytest.importorskip("scipy.interpolate")
    m = sparse.csr_array(np.diag([1.0, 2.0, 3.0]))
    curve = [interpolate.CubicSpline([0.0, 1.0, 2.0], [0.0, 1.0, 4.0])]

    def fn(x):
        return x * tensor(m.diagonal()) + m.nnz + float(curve[0](1.5))

    changes = {
        2: lambda: m.data.__setitem__(0, 5.0),
        4: lambda: operator.setitem(
            curve, 0, interpolate.CubicSpline([0.0, 1.0, 2.0], [0.0, 2.0, 4.0])
        ),
        6: lambda: curve[0].c.__imul__(2.0),
    }
    return fn, lambda i: at(i, changes)


@world
def looks_that_go_with_what_they_look_at():
    table, places = {"a": 1.0, "b": 2.0}, [slice(0, 2), ...]
    values, keys = table.values(), table.keys()

    def fn(x):
        return (
            x[places[0]].sum() * x + sum(values) + ("c" in keys) + len(table.items() & {("a", 1.0)})
        )

    changes = {
        2: lambda: table.update(c=5.0),
        4: lambda: operator.setitem(places, 0, slice(None, None, 2)),
        6: lambda: table.update(a=3.0),
    }
    return fn, lambda i: at(i, changes)


@world
def queues_and_what_comes_out_of_them():
    waiting = queue.SimpleQueue()
    for k in range(100):
        waiting.put(float(k))
    recent = collections.deque([1.0, 2.0], maxlen=2)

    def fn(x):
        return x * recent[0] + waiting.get()

    return fn, lambda i: at(i, {2: lambda: recent.append(3.0), 6: lambda: waiting.put(5.0)})


@world
def members_that_are_not_there():
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 5

        @classmethod
        def _missing_(cls, value):
            return cls.HIGH if value > 2 else cls.LOW

    now = [0]

    def fn(x):
        level = Level(now[0])
        return x * level + (level > Level.LOW) + len(Level)

    changes = {
        2: lambda: operator.setitem(now, 0, 4),
        4: lambda: operator.setitem(now, 0, True),
        6: lambda: setattr(Level, "_missing_", classmethod(lambda cls, value: cls.HIGH)),
        7: lambda: operator.setitem(now, 0, -3),
    }
    return fn, lambda i: at(i, changes)


@world
def sides_of_an_operator():
    class Unit:
        k = 2.0

        def __rmatmul__(self, other):
            return other * self.k

        def __radd__(self, other):
            return NotImplemented if self.k > 5.0 else other + self.k

        def __index__(self):
            return int(self.k) % 3

        def __bool__(self):
            return self.k < 4.0

    own = Unit()

    def fn(x):
        try:
            y = x + own
        except TypeError:
            y = x * 0.0
        return y + x[own] + (1.0 if own else -1.0)

    changes = {
        2: lambda: setattr(own, "k", 4.0),
        6: lambda: setattr(Unit, "k", 3.0),
        8: lambda: vars(own).clear(),
    }
    return fn, lambda i: at(i, changes)
