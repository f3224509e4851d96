"""Places where a program keeps a number, changed between calls: compiled calls see each change.

Beside test_ordinary_python.py, which says what is meant; here are the less usual places, one line
each. A case returns a function and what changes the place at turn `i`; calls that are compiled and
calls that are not have to agree throughout.
"""

import abc
import builtins
import configparser
import contextvars
import datetime
import decimal
import enum
import functools
import itertools
import json
import multiprocessing
import os
import random
import secrets
import sys
import threading
import time
import types
import uuid
import warnings

import numpy as np
import pytest

import probtorch as pt
import probtorch.distributions as dist
from probtorch import nn, optim, tensor
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.rng import Generator
from probtorch.distributions.transforms import AffineTransform
from tests.compiler.changing import differences

x = tensor([1.0, 2.0])
CASES = {}


class Holder:
    def __init__(self, k=2.0):
        self.k = k


def case(name):
    def register(make):
        CASES[name] = make
        return make

    return register


def item(name, make, read, key=0):
    """Register a container of which ``make()`` makes one, and one item changes."""
    CASES[name] = lambda tmp_path: (
        lambda place: ((lambda: x * read(place)), lambda i: place.__setitem__(key, float(i)))
    )(make())


def attribute(name, make, read=lambda place: place.k, of=lambda place: place, key="k"):
    """Register an object of which ``make()`` makes one, and one attribute changes."""
    CASES[name] = lambda tmp_path: (
        lambda place: ((lambda: x * read(place)), lambda i: setattr(of(place), key, float(i)))
    )(make())


class Text(str):
    k = 2.0


class Slots:
    __slots__ = ("k",)

    def __init__(self):
        self.k = 2.0


class Guarded:
    _k = 2.0

    @property
    def k(self):
        return self._k


class Member(enum.IntEnum):
    A = 1


class Named(enum.Enum):
    A = 1


def member(kind):
    kind.A.k = 2.0
    return kind.A


def of_metaclass():
    meta = type("Meta", (type,), {"k": 2.0})
    return meta("Thing", (), {})


def module_of_a_test():
    module = sys.modules["of_a_test"] = types.ModuleType("of_a_test")
    module.k = 2.0
    return module


def a_frame(**columns):
    return pytest.importorskip("pandas").DataFrame(columns)


attribute("attribute of a text", lambda: Text("a"))
attribute("member of an enumeration of integers", lambda: member(Member))
attribute("member of an enumeration", lambda: member(Named))
attribute("slot", Slots)
attribute("property", Guarded, key="_k")
attribute("metaclass", of_metaclass, of=type)
attribute("partial of a method", lambda: functools.partial(Holder.__getattribute__, Holder(), "k"),
          read=lambda f: f(), of=lambda f: f.args[0])  # fmt: skip
attribute("module, by a computed name", module_of_a_test,
          read=lambda m: getattr(m, "".join(["", "k"])))  # fmt: skip
attribute("module in sys.modules", module_of_a_test, read=lambda m: sys.modules["of_a_test"].k)
attribute("process-wide number", lambda: multiprocessing.Value("d", 2.0),
          read=lambda v: v.value, key="value")  # fmt: skip
item("process-wide array", lambda: multiprocessing.Array("d", [2.0, 1.0]), lambda a: a[0])
item("mapping proxy", lambda: {0: 2.0}, lambda d: types.MappingProxyType(d)[0])
item("view of a dict", lambda: {0: 2.0}, lambda d: sum(d.values()))
item("long list in a tuple", lambda: [2.0] * 2000, lambda a: (a,)[0][1500], key=1500)
item("array of records", lambda: np.zeros(3, [("k", float)])["k"], lambda a: float(a[1]), key=1)
item("masked array", lambda: np.ma.array([1.0, 2.0, 3.0]), lambda a: float(a.sum()))
item("attributes of a frame", lambda: a_frame(a=[1.0]).attrs, lambda d: d.get(0, 2.0))
item("list in a frame", lambda: a_frame(a=[[1.0], [2.0]])["a"].iloc[0], lambda a: a[0])


@case("import inside")
def _(tmp_path):
    module = module_of_a_test()

    def fn():
        import of_a_test

        return x * of_a_test.k

    return fn, lambda i: setattr(module, "k", float(i))


@case("module that is replaced")
def _(tmp_path):
    module_of_a_test()
    return (
        lambda: x * sys.modules["of_a_test"].k,
        lambda i: setattr(module_of_a_test(), "k", float(i)),
    )


@case("text that is evaluated")
def _(tmp_path):
    globals()["evaluated"] = 2.0
    return (
        lambda: x * eval("evaluated"),
        lambda i: globals().__setitem__("evaluated", float(i)),
    )


@case("name that is built in")
def _(tmp_path):
    builtins.built_in_by_a_test = 2.0
    return (
        lambda: x * built_in_by_a_test,  # noqa: F821 - by setattr
        lambda i: setattr(builtins, "built_in_by_a_test", float(i)),
    )


@case("configuration")
def _(tmp_path):
    found = configparser.ConfigParser()
    found["a"] = {"k": "2"}
    return (lambda: x * found.getfloat("a", "k")), lambda i: found["a"].__setitem__("k", str(i))


@case("precision of decimal numbers")
def _(tmp_path):
    def change(i):
        decimal.getcontext().prec = 3 + i

    change(25)
    one, other = decimal.Decimal(1), 3
    return (lambda: x.double() * float(one / other)), change


@case("errors of NumPy")
def _(tmp_path):
    def fn():
        try:
            return x * float(np.float64(1.0) / np.float64(0.0) > 1.0)
        except FloatingPointError:
            return x * 7.0

    np.seterr(divide="ignore")
    return fn, lambda i: np.seterr(divide="raise" if i % 2 else "ignore")


@case("name of a thread")
def _(tmp_path):
    thread = threading.current_thread()
    thread.name = "a"
    return (
        lambda: x * len(threading.current_thread().name),
        lambda i: setattr(thread, "name", "a" * (i + 2)),
    )


@case("registered class")
def _(tmp_path):
    class Base(abc.ABC):  # noqa: B024 - only classes count as its own
        pass

    thing = Holder()
    kind = type(thing)
    return (
        lambda: x * (2.0 if isinstance(thing, Base) else 3.0),
        lambda i: Base.register(kind) if i == 1 else None,
    )


@case("class of an object")
def _(tmp_path):
    one, two = type("One", (), {"k": 2.0}), type("Two", (), {"k": 3.0})
    thing = one()
    return (lambda: x * thing.k), lambda i: setattr(thing, "__class__", two if i % 2 else one)


@case("code of a function")
def _(tmp_path):
    def inner():
        return 2.0

    other = (lambda: 3.0).__code__
    return (lambda: x * inner()), lambda i: setattr(inner, "__code__", other)


@case("defaults of a function")
def _(tmp_path):
    def inner(k=2.0):
        return k

    return (lambda: x * inner()), lambda i: setattr(inner, "__defaults__", (float(i),))


@case("dispatch by type")
def _(tmp_path):
    @functools.singledispatch
    def inner(v):
        return 2.0

    thing = Holder()
    return (
        lambda: x * inner(thing),
        lambda i: inner.register(Holder, lambda v, k=float(i): k),
    )


@case("property that is kept")
def _(tmp_path):
    class Thing:
        k = 2.0

        @functools.cached_property
        def twice(self):
            return self.k * 2.0

    thing = Thing()

    def change(i):
        thing.k = float(i)
        thing.__dict__.pop("twice", None)

    return (lambda: x * thing.twice), change


@case("counter")
def _(tmp_path):
    count = itertools.count(1)
    return (lambda: x * next(count)), lambda i: None


@case("generator")
def _(tmp_path):
    count = (k for k in range(1, 1000))
    return (lambda: x * next(count)), lambda i: None


@case("sign of zero")
def _(tmp_path):
    place = [0.0]
    return (
        lambda: x * float(np.copysign(1.0, place[0])),
        lambda i: place.__setitem__(0, -0.0 if i % 2 else 0.0),
    )


@case("type of a number")
def _(tmp_path):
    place = [1.0]
    return (
        lambda: x * (2.0 if type(place[0]) is int else 3.0),
        lambda i: place.__setitem__(0, 1 if i % 2 else 1.0),
    )


@case("context variable")
def _(tmp_path):
    variable = contextvars.ContextVar("of_a_test", default=2.0)
    return (lambda: x * variable.get()), lambda i: variable.set(float(i))


@case("working directory")
def _(tmp_path):
    places = [tmp_path / "a", tmp_path / "bbb"]
    for place in places:
        place.mkdir()
    os.chdir(places[0])
    return (lambda: x * len(os.getcwd())), lambda i: os.chdir(places[i % 2])


@case("file that is there or not")
def _(tmp_path):
    path = tmp_path / "mark"
    return (
        lambda: x * (2.0 if path.exists() else 3.0),
        lambda i: path.write_text("a") if i % 2 else path.unlink(missing_ok=True),
    )


@case("file that is opened")
def _(tmp_path):
    path = tmp_path / "number"
    path.write_text("2")

    def fn():
        with open(path) as file:
            return x * float(json.load(file))

    return fn, lambda i: path.write_text(str(i))


@case("array in a file")
def _(tmp_path):
    path = tmp_path / "number.npy"
    np.save(path, np.array([2.0]))
    return (lambda: x * float(np.load(path)[0])), lambda i: np.save(path, np.array([float(i)]))


@case("frame in a file")
def _(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "frame.csv"
    path.write_text("a\n2\n")
    return (
        lambda: x * float(pandas.read_csv(path)["a"].iloc[0]),
        lambda i: path.write_text(f"a\n{i}\n"),
    )


@case("array of a file in memory")
def _(tmp_path):
    a = np.memmap(tmp_path / "array", float, "w+", shape=(1000,))
    return (lambda: x * float(a[900])), lambda i: a.__setitem__(900, float(i))


@case("seed that is read")
def _(tmp_path):
    generator = Generator(3)
    return (lambda: x * float(generator.initial_seed())), lambda i: generator.manual_seed(i)


@case("default dtype")
def _(tmp_path):
    return (
        lambda: x * tensor([1.0 / 3.0, 1.0]),
        lambda i: pt.set_default_dtype(pt.float64 if i % 2 else pt.float32),
    )


@case("labels of a series")
def _(tmp_path):
    series = pytest.importorskip("pandas").Series([1.0, 2.0], index=["a", "b"])
    return (
        lambda: x * series["a"],
        lambda i: setattr(series, "index", ["b", "a"] if i % 2 else ["a", "b"]),
    )


@case("groups of a frame")
def _(tmp_path):
    frame = a_frame(a=np.arange(4.0), g=["u", "v"] * 2)
    return (
        lambda: x * tensor(frame.groupby("g")["a"].sum().to_numpy()),
        lambda i: frame.loc.__setitem__((0, "a"), float(i)),
    )


@case("long frame")
def _(tmp_path):
    frame = a_frame(a=np.arange(1e5), g=["u", "v"] * 50_000)
    return (
        lambda: x * float(frame["a"].to_numpy()[-1]),
        lambda i: frame.loc.__setitem__((99_999, "a"), float(i)),
    )


@case("data set")
def _(tmp_path):
    found = pytest.importorskip("xarray").Dataset({"a": ("t", [1.0, 2.0])})
    return (
        lambda: x * tensor(found["a"].values),
        lambda i: found["a"].values.__setitem__(0, float(i)),
    )


@pytest.mark.parametrize("form", ["coo_matrix", "lil_matrix", "dok_matrix", "csc_array"])
def test_sparse_matrices_of_all_forms_are_watched(form, tmp_path):
    def make(_):
        a = getattr(pytest.importorskip("scipy.sparse"), form)(np.eye(2))
        if form == "coo_matrix":
            return (lambda: x * float(a.sum())), lambda i: a.data.__setitem__(0, float(i))
        return (lambda: x * float(a.sum())), lambda i: a.__setitem__((0, 0), float(i))

    assert differences(in_folders(make, tmp_path)) == []


@case("layer that is replaced")
def _(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2))
    return (lambda: net(x)), lambda i: net.__setitem__(0, nn.Linear(2, 2))


@case("parameter that is replaced")
def _(tmp_path):
    net = nn.Linear(2, 2)
    return (
        lambda: net(x),
        lambda i: setattr(net, "weight", nn.Parameter(net.weight.detach() * 2.0)),
    )


@case("buffer that is replaced")
def _(tmp_path):
    net = nn.BatchNorm1d(2).eval()
    return (
        lambda: net(x[None]),
        lambda i: setattr(net, "running_mean", net.running_mean + 1.0),
    )


@case("transform")
def _(tmp_path):
    transform = AffineTransform(1.0, 2.0)
    return (lambda: transform(x)), lambda i: setattr(transform, "loc", float(i))


@case("list of distributions")
def _(tmp_path):
    found = [dist.Normal(0.0, 1.0)]
    return (
        lambda: found[0].log_prob(x),
        lambda i: found.__setitem__(0, dist.Normal(float(i), 1.0)),
    )


@pytest.fixture(autouse=True)
def _put_back(monkeypatch):
    """What these cases change belongs to the process."""
    name, precision = threading.current_thread().name, decimal.getcontext().prec
    directory, dtype, errors = os.getcwd(), pt.get_default_dtype(), np.geterr()
    yield
    threading.current_thread().name = name
    decimal.getcontext().prec = precision
    os.chdir(directory)
    pt.set_default_dtype(dtype)
    np.seterr(**errors)
    sys.modules.pop("of_a_test", None)
    vars(builtins).pop("built_in_by_a_test", None)


def in_folders(make, tmp_path):
    """Give each run a folder of its own, and the process as it was at first."""
    folders = iter((tmp_path / "0", tmp_path / "1"))  # as long as each other

    def begin():
        threading.current_thread().name = "a"
        pt.set_default_dtype(pt.float32)
        folder = next(folders)
        folder.mkdir()
        return make(folder)

    return begin


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_wherever_the_number_is(name, tmp_path):
    assert differences(in_folders(CASES[name], tmp_path)) == []


SYSTEM = random.SystemRandom()
RANDOM = {
    "a generator without a seed": lambda: np.random.default_rng().random(),
    "a generator of the other kind": lambda: np.random.RandomState().rand(),
    "Python's": lambda: random.Random().random(),
    "the system's": lambda: SYSTEM.random(),
    "bytes of the system's": lambda: int.from_bytes(os.urandom(4), "big"),
    "secrets": lambda: secrets.randbelow(10**9),
    "identifiers": lambda: uuid.uuid4().int % 10**9,
    "NumPy's": lambda: np.random.rand(),
    "nanoseconds": lambda: time.time_ns() % 10**9,
    "microseconds": lambda: datetime.datetime.now().microsecond,
    "SciPy's": lambda: float(pytest.importorskip("scipy.stats").norm.rvs()),
}


@pytest.mark.parametrize("name", RANDOM)
def test_what_differs_at_each_call_is_never_frozen(name):
    take = RANDOM[name]
    call = compile(lambda: x.double() * take())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        assert len({str(call().numpy()) for _ in range(4)}) == 4


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "AdamW"])
def test_a_compiled_step_of_an_optimizer_is_its_step(name):
    rows = []
    for wrap in (lambda fn: fn, compile):
        w = nn.Parameter(tensor([1.0, 2.0]))
        optimizer = getattr(optim, name)([w], lr=0.1)
        step = wrap(optimizer.step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            for _ in range(5):
                w.grad = tensor([1.0, 3.0]) * w.detach()
                step()
        rows.append(w.tolist())
    # A learning rate that may change is a tensor in compiled code: sums that cancel differ.
    assert rows[1] == pytest.approx(rows[0], rel=1e-6)
