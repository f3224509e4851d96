"""Ordinary Python around the tensors: what changes between calls is never answered with old values.

Each case has a function and a change; compiled and eager calls in turns must agree throughout, run
by run. Whether the function is compiled or runs eagerly is its own affair, unless a case says so.
"""

import array
import collections
import ctypes
import dataclasses
import datetime
import decimal
import functools
import io
import operator
import os
import queue
import random
import sys
import threading
import time
import types
import warnings
import weakref

import numpy as np
import pytest

import probtorch as pt
from probtorch import nn, optim
from probtorch.autograd.tape import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.distributions import Normal
from probtorch.effects.handlers import condition
from probtorch.effects.primitives import sample
from probtorch.tensor import tensor
from tests.compiler.changing import differences, runs

x = tensor([1.0, 2.0])


# ---------------------------------------------------------------------------------- training steps


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD([p], lr=0.1),
    "momentum": lambda p: optim.SGD([p], lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam([p], lr=0.1),
    "adamw": lambda p: optim.AdamW([p], lr=0.1),
    "rmsprop": lambda p: optim.RMSprop([p], lr=0.1),
    "adagrad": lambda p: optim.Adagrad([p], lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("how", ["nothing", "rate", "schedule"])
def test_a_compiled_training_step_is_the_eager_one(name, how):
    found = []
    for wrap in (lambda f: f, compile):
        w = nn.Parameter(tensor([1.0, 2.0]))
        optimizer = OPTIMIZERS[name](w)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.7) if how == "schedule" else None

        def step(x, w=w, optimizer=optimizer):
            loss = (w * w * x).sum()
            (w.grad,) = grad(loss, [w])
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        call = wrap(step)
        losses = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            for i in range(10):
                losses.append(call(tensor(1.0)).item())
                if how == "rate" and i == 4:
                    optimizer.param_groups[0]["lr"] = 0.02
                if schedule is not None:
                    schedule.step()
        found.append([*losses, *w.tolist()])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


# --------------------------------------------------------------------------------------- arguments


class Holder:
    def __init__(self, k=2.0):
        self.k = k

    def go(self, x):
        return (x * self.k).sum()

    @compile
    def compiled(self, x):
        return (x * self.k).sum()


@dataclasses.dataclass(frozen=True)
class Config:
    k: float
    layers: tuple = ()


@dataclasses.dataclass
class Mutable:
    numbers: list


class Always:
    """Equal to everything."""

    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class WithMore(int):
    factor = 2.0


def test_a_decorated_method_sees_its_object():
    a, b = Holder(), Holder(3.0)
    assert [a.compiled(x).item(), b.compiled(x).item()] == [6.0, 9.0]
    assert [a.compiled(x).item() for _ in range(3)] == [6.0] * 3
    a.k = 5.0
    assert [a.compiled(x).item(), b.compiled(x).item()] == [15.0, 9.0]


ARGUMENTS = {
    "attribute": (Holder, lambda x, h: x * h.k, lambda h, i: setattr(h, "k", float(i))),
    "list in a dataclass": (
        lambda: Mutable([2.0]),
        lambda x, m: x * sum(m.numbers),
        lambda m, i: m.numbers.append(1.0),
    ),
    "frozen with a list": (
        lambda: Config(2.0, ([3.0],)),
        lambda x, c: x * c.layers[0][0],
        lambda c, i: c.layers[0].__setitem__(0, float(i)),
    ),
    "function": (
        lambda: functools.partial(lambda v, k: v * k[0], k=[2.0]),
        lambda x, f: f(x),
        lambda f, i: f.keywords["k"].__setitem__(0, float(i)),
    ),
    "module": (
        lambda: nn.Linear(2, 2),
        lambda x, net: net(x) if net.training else -net(x),
        lambda net, i: net.train(i % 2 == 1),
    ),
    "bound method": (
        lambda: Holder().go,
        lambda x, f: f(x),
        lambda f, i: setattr(f.__self__, "k", float(i)),
    ),
    "equal to all": (
        lambda: Always(2.0),
        lambda x, a: x * a.k,
        lambda a, i: setattr(a, "k", float(i)),
    ),
    "array": (
        lambda: np.arange(2.0),
        lambda x, a: x * a,
        lambda a, i: a.__setitem__(0, float(i)),
    ),
    "generic": (
        lambda: types.SimpleNamespace(k=2.0),
        lambda x, s: x * s.k,
        lambda s, i: setattr(s, "k", float(i)),
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_object_among_the_arguments_is_looked_into(case):
    make, fn, change = ARGUMENTS[case]

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for wrap in (lambda f: f, compile):
            pt.manual_seed(1)
            thing = make()
            call = wrap(fn)
            found = []
            for i in range(4):
                found += [call(x, thing).tolist() for _ in range(3)]
                change(thing, i + 3)
            rows.append(found)
    assert rows[1] == rows[0]


ALIKE = [
    (np.float64(0.0), np.float64(-0.0)),
    (0.0, -0.0),
    (0j, -0j),
    (1, True),
    (1, 1.0),
    (decimal.Decimal("1.0"), decimal.Decimal("1.000")),
    (range(0), range(1, 1)),
    ({1: 2.0}, {1.0: 2.0}),
    ({1: 2.0}, {True: 2.0}),
    (frozenset({1}), frozenset({1.0})),
    (Always(1.0), Always(2.0)),
    (
        datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 1, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    ),
    (WithMore(1), 1),
    ((1, 2), (1, 2.0)),
]


@pytest.mark.parametrize("first, second", ALIKE, ids=lambda v: repr(v)[:40])
def test_arguments_that_are_equal_and_not_the_same_are_told_apart(first, second):
    def text(v):
        return sum(map(ord, f"{type(v)} {v!r}")) + getattr(v, "k", 0.0)

    def fn(x, v):
        return x * text(v)

    call = compile(fn)
    for v in (first, second, first, second, first):
        assert call(x, v).tolist() == fn(x, v).tolist()


# ------------------------------------------------------------------------- objects of our own


def test_a_compiled_function_in_a_compiled_function_sees_what_the_inner_one_reads():
    def make():
        state = {"k": 2.0}
        inner = compile(lambda v: v * state["k"])
        return (lambda: (inner(x) + 1.0).sum()), lambda i: state.update(k=float(i) + 3.0)

    eager, compiled, call = runs(make)
    assert compiled == eager
    assert eager[0] != eager[-1]
    assert call.paths


def test_a_model_under_a_handler_is_seen():
    def make():
        state = {"k": 2.0}

        def model():
            a = sample("a", Normal(0.0, 1.0))
            return a * state["k"]

        fixed = condition(model, data={"a": tensor(3.0)})
        return (lambda: fixed()), lambda i: state.update(k=float(i) + 3.0)

    assert differences(make) == []


def test_a_distribution_that_is_kept_and_changed_is_seen():
    def make():
        prior = Normal(0.0, 1.0)
        held = types.SimpleNamespace(prior=prior)
        return (lambda: held.prior.log_prob(x)), lambda i: setattr(prior, "loc", tensor(float(i)))

    assert differences(make) == []


def test_the_hooks_of_a_module_are_seen():
    def make():
        pt.manual_seed(0)
        net = nn.Linear(2, 2)
        factor = [2.0]
        handles = []

        def change(i):
            if i == 0:
                hook = lambda module, args, out: out * factor[0]
                handles.append(net.register_forward_hook(hook))
            elif i == 1:
                factor[0] = 7.0
            else:
                handles.pop().remove() if handles else None

        return (lambda: net(x).detach()), change

    assert differences(make) == []


def test_a_schedule_that_is_read_is_seen():
    def make():
        w = nn.Parameter(tensor([1.0]))
        optimizer = optim.SGD([w], lr=0.5)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def change(i):
            optimizer.step()
            schedule.step()

        return (lambda: x * schedule.get_last_lr()[0]), change

    assert differences(make) == []


def test_settings_and_parameters_of_scripts_are_seen():
    def make():
        pt.clear_param_store()
        pt.get_param_store()["a"] = tensor(2.0)
        return (lambda: x * pt.get_param_store()["a"].detach()), (
            lambda i: pt.get_param_store().__setitem__("a", tensor(float(i)))
        )

    assert differences(make) == []


# -------------------------------------------------------------------------------- outside state


def clock():
    """Whether it is too late."""
    due = [time.monotonic() + 1e6]
    return (
        lambda: x * (2.0 if time.monotonic() < due[0] else 3.0),
        lambda i: due.__setitem__(0, time.monotonic() + (1e6 if i % 2 else -1e6)),
    )


def environ():
    os.environ["PROBTORCH_TEST"] = "1"
    return (
        lambda: x * float(os.environ["PROBTORCH_TEST"]),
        lambda i: os.environ.__setitem__("PROBTORCH_TEST", str(i)),
    )


def a_file(tmp_path):
    path = tmp_path / "number"
    path.write_text("1")
    return (lambda: x * float(path.read_text())), lambda i: path.write_text(str(i))


def read_on(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("\n".join(map(str, range(50))))
    file = io.StringIO(path.read_text())
    return (lambda: x * float(file.readline())), lambda i: None


def lines(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("\n".join(map(str, range(50))))
    file = io.StringIO(path.read_text())
    return (lambda: x * float(next(file))), lambda i: None


def a_queue():
    q = queue.Queue()
    for i in range(50):
        q.put(float(i))
    return (lambda: x * q.get()), lambda i: None


def generator_made_inside():
    count = iter(range(10**6))
    seeds = [0]
    return (
        lambda: x * np.random.default_rng(seeds[0]).random(),
        lambda i: seeds.__setitem__(0, next(count)),
    )


def random_state():
    rng = np.random.RandomState(0)
    return (lambda: x * rng.rand()), lambda i: None


def python_random():
    rng = random.Random(0)
    return (lambda: x * rng.random()), lambda i: None


def python_random_inside():
    seeds = [1]
    return (
        lambda: x * random.Random(seeds[0]).random(),
        lambda i: seeds.__setitem__(0, i + 5),
    )


def scipy_frozen():
    from scipy import stats

    frozen = stats.norm(0, 1)
    frozen.random_state = np.random.RandomState(3)
    return (lambda: x * float(frozen.rvs())), lambda i: None


def c_types():
    number = ctypes.c_double(2.0)
    return (lambda: x * number.value), lambda i: setattr(number, "value", float(i))


def weak():
    h = Holder()
    ref = weakref.ref(h)
    return (lambda: x * ref().k), lambda i: setattr(h, "k", float(i))


def weak_dict():
    h = Holder()
    table = weakref.WeakValueDictionary(h=h)
    return (lambda: x * table["h"].k), lambda i, h=h: setattr(h, "k", float(i))


def cache():
    state = [2.0]

    @functools.lru_cache
    def cached():
        return state[0]

    def change(i):
        if i % 2:
            state[0] = float(i)
        else:
            cached.cache_clear()

    return (lambda: x * cached()), change


def thread_local():
    local = threading.local()
    return (
        lambda: x * getattr(local, "k", 2.0),
        lambda i: setattr(local, "k", float(i) + 3.0),
    )


def computed_global():
    globals()["made_up_1"] = 2.0
    return (
        lambda: x * globals()["made_up_" + str(1)],
        lambda i: globals().__setitem__("made_up_1", float(i)),
    )


def dict_of_module():
    module = types.ModuleType("of_a_test")
    module.scale = 2.0
    return (
        lambda: x * module.__dict__["sca" + "le"[:2]],
        lambda i: setattr(module, "scale", float(i)),
    )


def attrgetter():
    module = types.ModuleType("of_a_test")
    module.scale = 2.0
    get = operator.attrgetter("scale")
    return (lambda: x * get(module)), lambda i: setattr(module, "scale", float(i))


def subclass_of_float():
    class F(float):
        pass

    f = F(2.0)
    f.more = 2.0
    return (lambda: x * f.more), lambda i: setattr(f, "more", float(i))


def exception():
    error = ValueError(2.0)
    return (lambda: x * error.args[0]), lambda i: setattr(error, "args", (float(i),))


def attribute_dict():
    class AttrDict(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__

    d = AttrDict(k=2.0)
    return (lambda: x * d.k), lambda i: setattr(d, "k", float(i))


def long_list_of_lists():
    long = [[float(i)] for i in range(2000)]
    return (lambda: x * long[1500][0]), lambda i: long[1500].__setitem__(0, float(i))


def long_dict_of_objects():
    long = {i: Holder(float(i)) for i in range(1000)}
    return (lambda: x * long[700].k), lambda i: setattr(long[700], "k", float(i))


def long_array():
    data = np.arange(10_000.0)
    return (lambda: x * data[:2].sum() + float(data[9000])), (
        lambda i: data.__setitem__(9000, float(i))
    )


def array_under_a_view():
    data = np.arange(10_000.0)
    view = data[::2]
    view.flags.writeable = False
    return (lambda: x * view.sum()), lambda i: data.__setitem__(9000, float(i))


def class_attribute_with_dunders():
    class C:
        __scale__ = 2.0

    return (lambda: x * C.__scale__), lambda i: setattr(C, "__scale__", float(i))


def array_module():
    a = array.array("d", [2.0] * 1000)
    return (lambda: x * a[900]), lambda i: a.__setitem__(900, float(i))


def patched_function():
    from probtorch.nn import functional as F

    original = F.relu

    def change(i):
        F.relu = (lambda v: v * 3.0) if i % 2 == 0 else original

    return (lambda: F.relu(x)), change


def constant_of_a_library(request=None):
    def change(i):
        np.pi = 3.0 if i % 2 == 0 else 3.141592653589793

    return (lambda: x * np.pi), change


def default_dict():
    d = collections.defaultdict(list)
    d["a"].append(2.0)
    return (lambda: x * d["a"][-1]), lambda i: d["a"].append(float(i))


OUTSIDE = [
    clock, environ, a_file, read_on, lines, a_queue, generator_made_inside, random_state,
    python_random, python_random_inside, scipy_frozen, c_types, weak, weak_dict, cache,
    thread_local, computed_global, dict_of_module, attrgetter, subclass_of_float, exception,
    attribute_dict, long_list_of_lists, long_dict_of_objects, long_array, array_under_a_view,
    class_attribute_with_dunders, array_module, patched_function, constant_of_a_library,
    default_dict,
]  # fmt: skip


@pytest.mark.parametrize("make", OUTSIDE, ids=lambda f: f.__name__)
def test_state_outside_of_the_function_is_never_frozen(make, tmp_path):
    if "tmp_path" in make.__code__.co_varnames:
        make = functools.partial(make, tmp_path)
    assert differences(make) == []


def test_a_clock_is_named_with_the_line_that_reads_it():
    def fn(v):
        return v * (time.time() * 0.0 + 1.0)

    call = compile(fn)
    with pytest.warns(CompileWarning, match=r"a call of time\.time(.|\n)*test_ordinary_python"):
        call(x)
    assert not call.paths


def test_an_object_that_cannot_be_watched_is_named_by_the_way_to_it():
    class Thing:
        pass

    thing = Thing()
    thing.number = ctypes.c_double(2.0)
    call = compile(lambda v: v * thing.number.value)
    with pytest.warns(CompileWarning, match=r"closure\.thing\.number, a ctypes\.c_double"):
        assert [call(x).tolist() for _ in range(2)] == [[2.0, 4.0]] * 2
    thing.number.value = 3.0
    assert call(x).tolist() == [3.0, 6.0]


# ------------------------------------------------------------------------- data frames and the like


def frame_assigned():
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    return (lambda: x * tensor(df["a"].to_numpy())), lambda i: df.__setitem__("a", [i, 2.0])


def frame_by_loc():
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"a": [1.0, 2.0], "c": ["u", "v"]})
    return (lambda: x * float(df["a"].sum())), lambda i: df.loc.__setitem__((0, "a"), float(i))


def series():
    pd = pytest.importorskip("pandas")
    s = pd.Series([1.0, 2.0])
    return (lambda: x * tensor(s.to_numpy())), lambda i: s.iloc.__setitem__(0, float(i))


def categories():
    pd = pytest.importorskip("pandas")
    s = pd.Series(pd.Categorical(["u", "v", "u"]))
    return (lambda: x * float(s.cat.codes.sum())), lambda i: s.iloc.__setitem__(0, "v")


def data_array():
    xr = pytest.importorskip("xarray")
    a = xr.DataArray([1.0, 2.0], dims="t")
    return (lambda: x * tensor(a.values)), lambda i: a.__setitem__(0, float(i))


def sparse():
    from scipy import sparse

    a = sparse.csr_matrix(np.eye(2))
    return (lambda: x * float(a.data.sum())), lambda i: a.data.__setitem__(0, float(i))


def attribute():
    pd = pytest.importorskip("pandas")
    h = Holder(pd.DataFrame({"a": [1.0, 2.0]}))
    return (lambda: x * float(h.k["a"].iloc[0])), lambda i: h.k.__setitem__("a", [float(i), 1.0])


@pytest.mark.parametrize(
    "make",
    [frame_assigned, frame_by_loc, series, categories, data_array, sparse, attribute],
    ids=lambda f: f.__name__,
)
def test_frames_and_labelled_and_sparse_arrays_are_watched(make):
    assert differences(make) == []


def test_modules_in_sys_modules_are_found_by_name():
    def make():
        sys.modules["of_a_test"] = types.ModuleType("of_a_test")
        sys.modules["of_a_test"].scale = 2.0
        return (
            lambda: x * sys.modules["of_a_test"].scale,
            lambda i: setattr(sys.modules["of_a_test"], "scale", float(i)),
        )

    try:
        assert differences(make) == []
    finally:
        sys.modules.pop("of_a_test", None)
