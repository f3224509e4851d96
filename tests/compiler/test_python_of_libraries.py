"""Objects of Python's library, NumPy and pandas around compiled functions: none goes stale, and no
harmless one keeps a function eager.
"""

import abc
import collections
import collections.abc
import datetime
import functools
import logging
import pathlib
import threading
import types
import typing
import uuid
import warnings
import weakref
import zoneinfo

import numpy as np
import pytest

import probtorch as pt
from probtorch import tensor
from probtorch.compiler.guards.environment import Environment
from probtorch.compiler.paths import CompileWarning

pandas = pytest.importorskip("pandas")

x = tensor([1.0, 2.0])


class Holder:
    k = 2.0


class Pair(typing.NamedTuple):
    first: float = 2.0
    second: object = None


def referent():
    """Ends while the function is in use, which must not keep it."""
    kept = [Holder()]
    weak = weakref.ref(kept[0])
    return (lambda: x * (3.0 if weak() is None else 2.0)), lambda i: kept.clear()


def attribute_of_a_referent():
    kept = Holder()
    weak = weakref.ref(kept)
    return (lambda: x * weak().k), lambda i, kept=kept: setattr(kept, "k", float(i))


def method_of_a_referent():
    class Own(Holder):
        __slots__ = ("j",)

        def times(self):
            return self.j

    kept = Own()
    kept.j = 2.0
    weak = weakref.WeakMethod(kept.times)
    return (lambda: x * weak()()), lambda i, kept=kept: setattr(kept, "j", float(i))


def level_of_a_logger():
    log = logging.getLogger("probtorch.of_a_test")
    log.setLevel("INFO")

    def change(i):
        log.setLevel("DEBUG" if i % 2 else "INFO")

    return (lambda: x * (2.0 if log.isEnabledFor(logging.DEBUG) else 3.0)), change


def held_lock():
    lock = threading.Lock()

    def change(i):
        lock.release() if lock.locked() else lock.acquire()

    return (lambda: x * (2.0 if lock.locked() else 3.0)), change


def error_state():
    np.seterr(over="warn")

    def change(i):
        np.seterr(over="ignore" if i % 2 else "warn")

    return (lambda: x * (2.0 if np.geterr()["over"] == "warn" else 3.0)), change


def print_options():
    np.set_printoptions(precision=8)
    return (
        lambda: x * np.get_printoptions()["precision"],
        lambda i: np.set_printoptions(precision=i),
    )


def option_of_pandas():
    pandas.set_option("display.precision", 6)
    return (
        lambda: x * pandas.get_option("display.precision"),
        lambda i: pandas.set_option("display.precision", i),
    )


def module_that_answers():
    module = types.ModuleType("of_a_test")
    module.table = {"k": 2.0}
    table = module.table

    def answer(name):
        return table[name]  # a KeyError, where good manners ask for an AttributeError

    module.__getattr__ = answer
    return (lambda: x * module.k), lambda i: module.table.update(k=float(i))


def attributes_of_a_frame():
    frame = pandas.DataFrame({"a": [1.0]})
    frame.attrs["k"] = 2.0
    return (lambda: x * frame.attrs["k"]), lambda i: frame.attrs.update(k=float(i))


def groups():
    frame = pandas.DataFrame({"g": [0, 0, 1], "a": [1.0, 2.0, 3.0]})
    groups = frame.groupby("g")

    def change(i):
        frame.loc[0, "a"] = float(i)

    return (lambda: x * float(groups["a"].sum().iloc[0])), change


def index_and_kinds_of_a_frame():
    frame = pandas.DataFrame({"a": [1.0, 2.0]})

    def change(i):
        frame.index = [i, i + 1]
        frame["a"] = frame["a"].astype("float64" if i % 2 else "float32")

    return (lambda: x * float(frame.index[0]) + frame["a"].dtype.itemsize), change


def means_of_groups():
    frame = pandas.DataFrame({"g": [0, 0, 1], "a": [1.0, 2.0, 3.0]})

    def change(i):
        frame.loc[2, "g"] = i % 2

    def mean():
        found = frame.groupby("g")["a"].transform("mean")
        return x * float(found.to_numpy().astype(found.dtype)[0])

    return mean, change


def names_of_columns():
    frame = pandas.DataFrame({"a": [1.0], "b": [2.0]})

    def change(i):
        frame.columns = ["b", "a"] if i % 2 else ["a", "b"]

    return (lambda: x * float(frame["a"].iloc[0])), change


def index_of_several_levels():
    index = pandas.MultiIndex.from_product([[0, 1], ["u", "v"]])
    frame = pandas.DataFrame({"a": np.arange(4.0)}, index=index)

    def change(i):
        frame.loc[(0, "v"), "a"] = i

    return (lambda: x * float(frame.loc[(0, "v"), "a"])), change


def categories_renamed():
    place = types.SimpleNamespace(s=pandas.Series(pandas.Categorical(["a", "b", "a"])))

    def change(i):
        place.s = place.s.cat.rename_categories([f"{i}x", f"{i}y"])
        place.s = place.s.cat.reorder_categories(
            [f"{i}y", f"{i}x"] if i % 2 else [f"{i}x", f"{i}y"]
        )

    return (lambda: x * float(place.s.cat.codes.iloc[0] + 1)), change


def list_in_a_named_tuple():
    pair = Pair(2.0, [2.0])
    return (lambda: x * pair.second[0]), lambda i: pair.second.__setitem__(0, float(i))


# Those that are watched: the function stays compiled.
WATCHED = [
    referent, attribute_of_a_referent, method_of_a_referent, level_of_a_logger, module_that_answers,
    attributes_of_a_frame, groups, index_and_kinds_of_a_frame, means_of_groups, names_of_columns,
    index_of_several_levels, categories_renamed,
    list_in_a_named_tuple,
]  # fmt: skip
# Those that are asked by a call.
CALLED = [held_lock, error_state, print_options, option_of_pandas]


@pytest.fixture(autouse=True)
def _put_back():
    errors, options = np.geterr(), np.get_printoptions()
    precision = pandas.get_option("display.precision")
    yield
    np.seterr(**errors)
    np.set_printoptions(**options)
    pandas.set_option("display.precision", precision)


@pytest.mark.parametrize("make", WATCHED + CALLED, ids=lambda make: make.__name__)
def test_what_libraries_keep_is_never_frozen(make):
    rows = []
    for compiled in (False, True):
        fn, change = make()
        call = pt.compile(fn, verify=False) if compiled else fn
        with warnings.catch_warnings():
            if make in CALLED:
                warnings.simplefilter("ignore", CompileWarning)
            found = [call().tolist() for _ in range(3)]
            for i in (1, 2, 3, 4, 5):
                change(i)
                found += [call().tolist() for _ in range(3)]
        rows.append(found)
    assert rows[1] == rows[0]
    assert any(row != rows[0][0] for row in rows[0]), "nothing changes"
    if make in WATCHED:
        assert call.reason is None


def test_an_object_that_only_weak_references_hold_is_not_kept():
    kept = [Holder()]
    table = weakref.WeakValueDictionary(h=kept[0])
    environment = Environment([lambda: table.get("h")])
    kept.clear()
    assert not list(table)
    assert environment.changed() is not None


BERLIN = datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))
PATH, NAME = pathlib.PurePosixPath("/a/b.txt"), uuid.UUID(int=3)
TWO = collections.namedtuple("Two", "a b")(1.0, 2.0)
PERIOD, OFFSET, STAMP = pandas.Period("2020-01"), pandas.offsets.Day(2), pandas.Timestamp("2020")
KINDS = collections.abc.Callable[[int], int], typing.Callable[[int], int], list[int], int | str
HARMLESS = {
    "paths": lambda: x * len(PATH.name) * len(str(PATH.with_suffix(".a") / "b")),
    "paths made inside": lambda: x * len(pathlib.Path("/a/b").parts),
    "moments in a zone": lambda: x * BERLIN.year,
    "identifiers": lambda: x * len(str(NAME)),
    "named tuples": lambda: x * Pair().first * TWO.a * TWO._replace(a=3.0).a * Pair(3.0).first,
    "types with brackets": lambda: x * len([k for k in KINDS if k is not None]),
    "moments of pandas": lambda: x * PERIOD.year * OFFSET.n * STAMP.year,
    "loggers": lambda: logging.getLogger("a").debug("a") or x * 2.0,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_constants_of_libraries_keep_no_function_eager(name):
    fn = pt.compile(HARMLESS[name])
    for _ in range(3):
        assert fn().tolist() == HARMLESS[name]().tolist()
    assert fn.reason is None


def test_an_array_in_a_file_is_watched(tmp_path):
    data = np.memmap(tmp_path / "data", float, "w+", shape=(3,))
    data[:] = 1.0
    fn = pt.compile(lambda: x * float(data.sum()), verify=False)
    for k in (1.0, 1.0, 5.0, 5.0, 2.0):
        data[0] = k
        assert fn().tolist() == [k + 2.0, 2.0 * (k + 2.0)]
    assert fn.reason is None


def test_a_function_that_meets_new_types_in_turn_stays_compiled():
    @functools.singledispatch
    def scale(v):
        return 2.0

    scale.register(int, lambda v: 3.0)
    scale.register(str, lambda v: 4.0)
    place = Holder()
    fn = pt.compile(lambda x: x * scale(place.k))
    for value in (1, "a", None, 2.5, (1,), frozenset(), b"", 1, "a", None):
        place.k = value
        expected = scale.__wrapped__(value) if type(value) not in (int, str) else scale(value)
        assert fn(x).tolist() == (x * expected).tolist()
        scale(type("Another", (), {})())  # met elsewhere
    assert fn.reason is None
    scale.register(str, lambda v: 9.0)
    place.k = "a"
    assert fn(x).tolist() == [9.0, 18.0]


@pytest.mark.parametrize("asks", ["dispatch", "isinstance"])
def test_who_counts_as_an_instance_of_an_abstract_class_of_a_library_is_watched(asks):
    class Own:
        pass

    def scale(v):
        return 2.0

    dispatched = functools.singledispatch(scale)
    dispatched.register(collections.abc.Sequence, lambda v: 3.0)
    asked = lambda v: 3.0 if isinstance(v, collections.abc.Sequence) else 2.0
    own, of = Own(), {"dispatch": dispatched, "isinstance": asked}[asks]
    fn = pt.compile(lambda x: x * of(own))
    for _ in range(3):
        assert fn(x).tolist() == [2.0, 4.0]
    assert len(list(fn.paths)) == 1
    collections.abc.Sequence.register(Own)
    assert fn(x).tolist() == [3.0, 6.0]


def pair(v):
    match v:
        case [first, _]:
            return first
        case {"a": value}:
            return value
    return 2.0


class Abstract(metaclass=type("Meta", (abc.ABCMeta,), {})):
    pass


@typing.runtime_checkable
class Told(typing.Protocol):
    def told(self): ...


REGISTERED = {
    "a metaclass of the user's": (Abstract, lambda v: 3.0 if isinstance(v, Abstract) else 2.0),
    "a protocol": (Told, lambda v: 3.0 if isinstance(v, Told) else 2.0),
    "typing": (
        collections.abc.Sequence,
        lambda v: 3.0 if isinstance(v, typing.Sequence) else 2.0,
    ),
    "case of a sequence": (collections.abc.Sequence, pair),
    "case of a mapping": (collections.abc.Mapping, pair),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_a_class_that_is_registered_counts_from_then_on(name):
    class Own:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            if i not in (0, 1, "a"):
                raise IndexError
            return 3.0

        def get(self, key, default=None):
            return 3.0

    abstract, of = REGISTERED[name]
    own = Own()
    fn = pt.compile(lambda x: x * of(own), verify=False)
    for _ in range(3):
        assert fn(x).tolist() == [2.0, 4.0]
    assert len(list(fn.paths)) == 1
    abstract.register(Own)
    assert fn(x).tolist() == [3.0, 6.0]
