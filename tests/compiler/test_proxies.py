"""Objects that say they are another: proxies, doubles of tests, wrappers of functions.

`isinstance` believes them, and their attributes may be those of the object that they stand for,
which may be another one the next time, or gone. What holds such an object runs eagerly and says so.
"""

import contextvars
import functools
import types
import warnings
import weakref
from unittest import mock

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.config import configure
from probtorch.core.sameness import is_value, token
from probtorch.core.tree import flatten, names_of
from probtorch.distributions import HalfNormal, Normal
from probtorch.effects import sample
from probtorch.infer import SVI, AutoNormal, Target
from probtorch.optim import Adam
from probtorch.tensor import Tensor, tensor

KEPT = []  # what nothing but a weak reference would hold


class Thing:
    def __init__(self, k):
        self.k = k


class Proxy:
    """As werkzeug's: it looks for what it stands for at each turn."""

    __slots__ = ("__weakref__", "_find")

    def __init__(self, find):
        object.__setattr__(self, "_find", find)

    @property
    def __class__(self):
        return type(object.__getattribute__(self, "_find")())

    @property
    def __dict__(self):
        return vars(object.__getattribute__(self, "_find")())

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "_find")(), name)

    def __getitem__(self, i):
        return object.__getattribute__(self, "_find")()[i]

    def __call__(self, *args):
        return object.__getattribute__(self, "_find")()(*args)

    def __rmul__(self, x):
        return x * object.__getattribute__(self, "_find")()


class Wrapped(Proxy):
    """As a function that a decorator of wrapt's made: it says it is the function, and does more."""

    def __init__(self, fn, factor):
        super().__init__(lambda: fn)
        Wrapped.factor = factor

    def __call__(self, *args):
        return object.__getattribute__(self, "_find")()(*args) * Wrapped.factor


class Unbound:
    """Of a request, say, outside of one."""

    k = 3.0

    @property
    def __class__(self):
        raise RuntimeError("working outside of a request")


def another_number(make):
    """A proxy of what a context variable holds; read by `read`, changed to what `make` gives."""
    kept = contextvars.ContextVar("kept")
    kept.set(make(2.0))
    return Proxy(kept.get), lambda: kept.set(make(5.0))


def changed(thing, **values):
    return thing, lambda: [setattr(thing, name, value) for name, value in values.items()]


def of_a_thing():
    KEPT.append(Thing(2.0))
    return changed(weakref.proxy(KEPT[-1]), k=5.0)


def gone():
    return weakref.proxy(Thing(2.0)), lambda: None


def wrapped():
    made = Wrapped(lambda x: x + 1.0, 2.0)
    return made, lambda: setattr(Wrapped, "factor", 5.0)


def wrapped_by_wrapt():
    wrapt = pytest.importorskip("wrapt")
    thing = Thing(2.0)

    @wrapt.decorator
    def times(fn, instance, args, kwargs):
        return fn(*args, **kwargs) * thing.k

    return times(lambda x: x + 1.0), lambda: setattr(thing, "k", 5.0)


def by_wrapt():
    return changed(pytest.importorskip("wrapt").ObjectProxy(Thing(2.0)), k=5.0)


def by_werkzeug():
    local = pytest.importorskip("werkzeug.local")
    kept = contextvars.ContextVar("kept")
    kept.set(Thing(2.0))
    return local.LocalProxy(kept), lambda: kept.set(Thing(5.0))


def attribute(x, thing):
    return x * thing.k


def alone(x, thing):
    return x * 2.0


# How each is made, with what changes it; and how it is read.
PROXIES = {
    "object": (lambda: another_number(Thing), attribute),
    "number": (lambda: another_number(float), lambda x, thing: x * thing.real),
    "tensor": (lambda: another_number(lambda k: tensor([k])), lambda x, thing: x * thing),
    "list": (lambda: another_number(lambda k: [k]), lambda x, thing: x * thing[0]),
    "dict": (lambda: another_number(lambda k: {0: k}), lambda x, thing: x * thing[0]),
    "function": (lambda: another_number(lambda k: lambda x: x * k), lambda x, thing: thing(x)),
    "wrapped function": (wrapped, lambda x, thing: thing(x)),
    "wrapt function": (wrapped_by_wrapt, lambda x, thing: thing(x)),
    "wrapt object": (by_wrapt, attribute),
    "werkzeug": (by_werkzeug, attribute),
    "double of a thing": (lambda: changed(mock.Mock(spec=Thing(1.0), k=2.0), k=5.0), attribute),
    "double of a tensor": (
        lambda: changed(mock.MagicMock(spec=Tensor, k=2.0), k=5.0),
        attribute,
    ),
    "weak": (of_a_thing, attribute),
    "gone": (gone, alone),
    "unbound": (lambda: (Unbound(), lambda: None), alone),
}
PLACES = {
    "argument": lambda fn, thing: (fn, (thing,)),
    "argument in a list": lambda fn, thing: (lambda x, things: fn(x, things[0]), ([thing],)),
    "closure": lambda fn, thing: (lambda x: fn(x, thing), ()),
    "attribute": lambda fn, thing: (
        (lambda holder: lambda x: fn(x, holder.thing))(types.SimpleNamespace(thing=thing)),
        (),
    ),
    "item": lambda fn, thing: ((lambda things: lambda x: fn(x, things[0]))([thing]), ()),
    "partial": lambda fn, thing: (functools.partial(lambda thing, x: fn(x, thing), thing), ()),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", PROXIES)
def test_what_stands_for_another_makes_a_function_eager(name, place):
    make, read = PROXIES[name]
    thing, change = make()
    fn, rest = PLACES[place](read, thing)
    native = compile(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for turn in range(6):
            if turn == 3:
                change()
            x = tensor([1.0, 2.0]) + float(turn)
            assert native(x, *rest).tolist() == fn(x, *rest).tolist()
    (warning,) = told
    assert issubclass(warning.category, CompileWarning)
    assert native.reason is not None


@pytest.mark.parametrize("name", PROXIES)
def test_a_model_may_be_given_what_stands_for_another(name):
    make, read = PROXIES[name]
    y = tensor([1.0, 2.0])
    losses, densities = [], []
    for compiled in (False, True):
        thing, change = make()

        def model(thing):
            mu = sample("mu", Normal(0.0, 1.0))
            scale = sample("scale", HalfNormal(1.0))
            sample("y", Normal(read(mu.expand([2]), thing), scale).to_event(1), obs=y)

        with warnings.catch_warnings(), configure(jit=compiled):
            warnings.simplefilter("ignore")
            svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), seed=0)
            found = []
            for turn in range(6):
                if turn == 3:
                    change()
                found.append(svi.step(thing))
            losses.append(found)
            target = Target.from_model(model, thing)
            densities += target.value_and_grad(np.full(target.dim, 0.3))[:1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert densities[0] == pytest.approx(densities[1], rel=1e-6)


@pytest.mark.parametrize("name", PROXIES)
def test_trees_and_tokens_ask_for_the_type_alone(name):
    thing, _ = PROXIES[name][0]()
    found, structure = flatten((thing,))
    assert structure == (tuple, (("leaf",),)) and found[0] is thing
    assert token(thing) == (type(thing), id(thing)) and not is_value(thing)
    assert names_of(thing) == ()
