"""Where Python values hide: each place is changed after compiling, and the change is seen."""

import argparse
import array
import collections
import contextvars
import enum
import functools
import itertools
import math
import sys
import threading
import types
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.autograd.modes import no_grad
from probtorch.autograd.tape import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.distributions import Normal
from probtorch.effects.handlers import condition, seed, trace
from probtorch.errors import AutogradError
from probtorch.tensor import tensor

number = 2.0


def set_number(value):
    globals()["number"] = value


class Base:
    inherited = 2.0


class Twice:
    factor = 2.0


class Thrice:
    factor = 3.0


class Heir(Twice):
    pass


class Kind(enum.StrEnum):
    A = "a"


class Meta(type):
    @property
    def of_the_class(cls):
        return number


class Thing(Base, metaclass=Meta):
    """Everything in it reads a global."""

    @property
    def value(self):
        return number

    @functools.cached_property
    def kept(self):
        return number

    @staticmethod
    def alone():
        return number

    @classmethod
    def shared(cls):
        return number

    def __getitem__(self, i):
        return number

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return number


class Slotted:
    __slots__ = ("__hidden",)

    def __init__(self, value):
        self.set(value)

    def get(self):
        return self.__hidden

    def set(self, value):
        self.__hidden = value


class ListWithMore(list):
    factor = 2.0


class DictWithMore(dict):
    factor = 2.0


def module(name, **attributes):
    found = types.ModuleType(name)
    vars(found).update(attributes)
    return found


def with_attribute(x):
    return x * with_attribute.factor


with_attribute.factor = 2.0


def imported_inside(x):
    import settings_of_a_user

    return x * settings_of_a_user.factor


def imported_name(x):
    from settings_of_a_user import factor

    return x * factor


@functools.cache
def cached():
    return number


def by_default(x, factor=2.0, *, offset=0.0):
    return x * factor + offset


def places():
    """``(name, function, change)``."""
    thing = Thing()
    yield "property", lambda x: x * thing.value, lambda: set_number(3.0)
    yield "static method", lambda x: x * Thing.alone(), lambda: set_number(3.0)
    yield "class method", lambda x: x * Thing.shared(), lambda: set_number(3.0)
    yield "item method", lambda x: x * thing[0], lambda: set_number(3.0)
    yield "any attribute", lambda x: x * thing.anything, lambda: set_number(3.0)
    yield "metaclass", lambda x: x * Thing.of_the_class, lambda: set_number(3.0)
    yield "base class", lambda x: x * Thing.inherited, lambda: setattr(Base, "inherited", 3.0)
    yield (
        "hidden base attribute",
        lambda x: x * Thing.inherited,
        lambda: setattr(Thing, "inherited", 3.0),
    )
    yield (
        "cached property",
        lambda x: x * thing.kept,
        lambda: (set_number(3.0), vars(thing).pop("kept", None)),
    )
    yield "cache", lambda x: x * cached(), lambda: (set_number(3.0), cached.cache_clear())
    yield "built-in name", lambda x: x * abs(-2.0), lambda: globals().update(abs=lambda v: 3.0)
    yield "function attribute", with_attribute, lambda: setattr(with_attribute, "factor", 3.0)
    yield (
        "defaults",
        lambda x: by_default(x),
        lambda: setattr(by_default, "__defaults__", (3.0,)),
    )
    yield (
        "keyword defaults",
        lambda x: by_default(x),
        lambda: by_default.__kwdefaults__.update(offset=1.0),
    )
    for make in (types.SimpleNamespace, argparse.Namespace):
        space = make(factor=2.0)
        yield (
            make.__name__,
            lambda x, space=space: x * space.factor,
            lambda space=space: setattr(space, "factor", 3.0),
        )
    own = threading.local()
    own.factor = 2.0
    yield "thread", lambda x: x * own.factor, lambda: setattr(own, "factor", 3.0)
    variable = contextvars.ContextVar("variable", default=2.0)
    yield "context variable", lambda x: x * variable.get(), lambda: variable.set(3.0)
    numbers = {1.0, 2.0}
    yield "set", lambda x: x * sum(numbers), lambda: (numbers.remove(1.0), numbers.add(5.0))
    queue = collections.deque([2.0, 4.0], maxlen=2)
    yield "deque", lambda x: x * queue[0], lambda: queue.append(3.0)
    order = collections.OrderedDict(a=2.0, b=3.0)
    yield "order", lambda x: x * next(iter(order.values())), lambda: order.move_to_end("a")
    attributes = Thing()
    attributes.factor = 2.0
    yield (
        "__dict__",
        lambda x: x * attributes.factor,
        lambda: setattr(attributes, "__dict__", {"factor": 3.0}),
    )
    classed = Twice()
    yield "__class__", lambda x: x * classed.factor, lambda: setattr(classed, "__class__", Thrice)
    yield "__bases__", lambda x: x * Heir().factor, lambda: setattr(Heir, "__bases__", (Thrice,))
    key = Thing()
    key.factor = 2.0
    keyed = {key: None}
    yield (
        "key of a dict",
        lambda x: x * next(iter(keyed)).factor,
        lambda: setattr(key, "factor", 3.0),
    )
    kinds = {"kind": "a"}
    yield (
        "a text of another type",
        lambda x: x * (2.0 if type(kinds["kind"]) is str else 3.0),
        lambda: kinds.update(kind=Kind.A),
    )
    imaginary = {"z": complex(0.0, 0.0)}
    yield (
        "sign of a complex zero",
        lambda x: x * (2.0 + math.copysign(1.0, imaginary["z"].imag)),
        lambda: imaginary.update(z=complex(0.0, -0.0)),
    )
    table = {"a": 2.0}
    view, read_only = table.values(), types.MappingProxyType(table)
    yield "view", lambda x: x * next(iter(view)), lambda: table.update(a=3.0)
    yield "read-only dict", lambda x: x * read_only["a"], lambda: table.update(a=4.0)
    user, chain = collections.UserDict(a=2.0), collections.ChainMap({}, {"a": 2.0})
    yield "UserDict", lambda x: x * user["a"], lambda: user.update(a=3.0)
    yield "ChainMap", lambda x: x * chain["a"], lambda: chain.update(a=3.0)
    small, typed = bytearray([2]), array.array("d", [2.0])
    yield "bytearray", lambda x: x * small[0], lambda: small.__setitem__(0, 3)
    yield "array", lambda x: x * typed[0], lambda: typed.__setitem__(0, 3.0)
    objects = np.array([2.0], dtype=object)
    yield "object array", lambda x: x * objects[0], lambda: objects.__setitem__(0, 3.0)
    long, wide = [2.0] * 600, dict.fromkeys(range(600), 2.0)
    yield "long list", lambda x: x * long[5], lambda: long.__setitem__(5, 3.0)
    yield "long dict", lambda x: x * wide[5], lambda: wide.__setitem__(5, 3.0)
    slotted = Slotted(2.0)
    yield "private slot", lambda x: x * slotted.get(), lambda: slotted.set(3.0)
    more, also = ListWithMore(), DictWithMore()
    yield "list subclass", lambda x: x * more.factor, lambda: setattr(more, "factor", 3.0)
    yield "dict subclass", lambda x: x * also.factor, lambda: setattr(also, "factor", 3.0)
    outer = module("outer", inner=module("inner", factor=2.0))
    yield (
        "module of a module",
        lambda x: x * outer.inner.factor,
        lambda: setattr(outer.inner, "factor", 3.0),
    )
    here = sys.modules["settings_of_a_user"] = module("settings_of_a_user", factor=2.0)
    yield "import inside", imported_inside, lambda: setattr(here, "factor", 3.0)
    yield "name imported inside", imported_name, lambda: setattr(here, "factor", 4.0)


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    set_number(2.0)
    globals().pop("abs", None)
    cached.cache_clear()
    Thing.__dict__.get("inherited") and delattr(Thing, "inherited")
    Base.inherited = 2.0
    by_default.__defaults__, by_default.__kwdefaults__["offset"] = (2.0,), 0.0
    sys.modules.pop("settings_of_a_user", None)


@pytest.mark.parametrize("place", list(places()), ids=lambda p: p[0])
def test_a_change_of_a_python_value_is_seen_wherever_it_is(place):
    _, fn, change = place
    sys.modules["settings_of_a_user"] = module("settings_of_a_user", factor=2.0)
    if "import" in place[0]:
        change = functools.partial(setattr, sys.modules["settings_of_a_user"], "factor", 3.0)
    x = tensor([1.0, 2.0])
    compiled = compile(fn)
    before = fn(x).tolist()
    assert [compiled(x).tolist() for _ in range(3)] == [before] * 3
    assert len(compiled.paths) == 1  # it is not that it ran eagerly
    change()
    after = fn(x).tolist()
    assert after != before
    assert [compiled(x).tolist() for _ in range(2)] == [after] * 2


@pytest.mark.parametrize("make", [lambda: itertools.count(1), lambda: (i for i in range(1, 9))])
def test_a_function_that_takes_from_an_iterator_runs_eagerly(make):
    numbers = make()
    compiled = compile(lambda x: x * float(next(numbers)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [compiled(tensor(1.0)).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]


# ----------------------------------------------------------------------- gradients through a call


def test_a_function_that_counts_its_calls_counts_each_once_under_a_gradient():
    calls = types.SimpleNamespace(number=0)

    def fn(x):
        calls.number += 1
        return (x * float(calls.number)).sum()

    compiled = compile(fn)
    found = []

    def train():
        x = tensor([1.0, 2.0], requires_grad=True)
        out = compiled(x)
        out.backward()
        found.append((out.item(), x.grad.tolist()[0], calls.number))

    train(), train()
    with pytest.warns(CompileWarning, match="every call changes number"):
        train()
    train(), train()
    assert found == [(3.0 * i, i, i) for i in range(1, 6)]


def test_what_a_call_closes_over_may_not_change_in_place_before_its_backward_pass():
    weight, data = tensor([1.0, 2.0], requires_grad=True), tensor([1.0, 1.0])
    compiled = compile(lambda x: (x * weight * weight * data).sum())
    for changed in (weight, data) * 2:
        x = tensor([1.0, 2.0], requires_grad=True)
        out = compiled(x)
        with no_grad():
            changed.mul_(2.0)
        with pytest.raises(AutogradError, match="in place"):
            out.backward()


def test_a_python_value_that_changes_before_the_backward_pass_gives_no_wrong_gradient():
    other = types.SimpleNamespace(factor=1.0, steps=0)

    def fn(x):
        assert other.steps >= 0
        return (x * x * number * other.factor).sum()

    compiled = compile(fn)
    set_number(2.0)
    for _ in range(3):
        x = tensor([3.0], requires_grad=True)
        compiled(x).backward()
        assert x.grad.item() == 12.0
    x = tensor([3.0], requires_grad=True)
    out = compiled(x)
    other.steps = 1  # another value, the same function
    out.backward()
    assert x.grad.item() == 12.0
    compiled(x), compiled(x)
    out = compiled(x)
    set_number(5.0)
    with pytest.raises(AutogradError, match="number"):
        out.backward()


def test_an_argument_that_the_function_closes_over_too_has_its_whole_gradient():
    weight = tensor([1.0, 2.0], requires_grad=True)
    compiled = compile(lambda x: (x * weight).sum())
    for _ in range(3):
        weight.grad = None
        compiled(weight).backward()
        assert weight.grad.tolist() == [2.0, 4.0]


# ------------------------------------------------------------------------------- model statements


def with_a_draw(x):
    return x + probtorch.sample("z", Normal(0.0, 1.0))


def test_handlers_see_the_statements_of_a_compiled_function():
    compiled = compile(with_a_draw)
    x = tensor([1.0, 2.0])
    for _ in range(3):
        compiled(x)
    assert len(compiled.paths) == 1
    assert condition(compiled, {"z": tensor(5.0)})(x).tolist() == [6.0, 7.0]
    assert "z" in trace(compiled).get_trace(x).nodes
    with seed(rng_seed=3):
        expected = with_a_draw(x).tolist()
    for _ in range(2):
        with seed(rng_seed=3):
            assert compiled(x).tolist() == expected


def test_a_function_compiled_under_a_handler_forgets_it():
    compiled = compile(with_a_draw)
    x = tensor([1.0, 2.0])
    given = condition(compiled, {"z": tensor(5.0)})
    assert [given(x).tolist() for _ in range(3)] == [[6.0, 7.0]] * 3
    assert len({compiled(x).tolist()[0] for _ in range(4)}) == 4


@pytest.mark.parametrize("taped", [False, True])
def test_a_parameter_made_anew_is_read_anew(taped):
    probtorch.clear_param_store()
    compiled = compile(lambda x: x * probtorch.param("k", tensor(2.0)))
    x = tensor([1.0, 2.0])
    with probtorch.set_grad_enabled(taped):
        for value in (2.0, 3.0, 4.0):
            probtorch.clear_param_store()
            probtorch.param("k", tensor(value))
            for _ in range(3):
                assert compiled(x).tolist() == [value, 2 * value]
    probtorch.clear_param_store()


def test_second_derivatives_where_a_function_closes_over_its_argument():
    weight = tensor([2.0], requires_grad=True)
    compiled = compile(lambda x: (x * weight * weight).sum())
    for _ in range(3):
        (g,) = grad(compiled(weight), [weight], create_graph=True)
        (second,) = grad(g.sum(), [weight])
        assert (g.item(), second.item()) == (12.0, 12.0)


@pytest.mark.parametrize("wants_grad", [False, True])
def test_the_id_of_an_argument_is_that_of_the_callers_own(wants_grad):
    class Thing:
        def __hash__(self):
            return id(self)

        def __eq__(self, other):
            return self is other

    def run(wrap):
        numbers, kept, one = {}, [tensor([1.0, 2.0]) for _ in range(3)], {Thing(): 2.0}

        def fn(v):
            return v * numbers.setdefault(id(v), len(numbers) + 1.0) + sum(one.values())

        called = wrap(fn)
        return [
            called(kept[i % 3].requires_grad_(wants_grad)).tolist() for i in (0, 1, 0, 2, 2, 1, 0)
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        assert run(compile) == run(lambda f: f)
