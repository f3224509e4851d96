"""What Python tells of the state that it is in, of functions and classes, and of tensors of a
user's class: compiled calls answer as eager ones do, with verification off.
"""

import copy
import copyreg
import functools
import gc
import inspect
import operator
import os
import sys
import tempfile
import time
import traceback
import types
import typing
import warnings
import weakref
from os import listdir
from pathlib import Path
from sys import exc_info as what_is_raised
from time import perf_counter_ns as clock

import numpy as np
import pytest
from scipy import special

import probtorch
from probtorch import tensor
from tests.compiler.python_around import plain

CASES = {}
# Only compiled calls may answer in another way.
ALWAYS_THE_SAME = "thresholds_of_the_collector", "a_clock_by_its_own_name"


def case(fn):
    """Register a generator of results of a function that it gives to its argument."""
    CASES[fn.__name__] = fn
    return fn


def x():
    return tensor([1.0, 2.0, 3.0])


def raising(f):
    """Call in a handler of an error."""
    try:
        raise KeyError("key")
    except KeyError:
        return f(x())


@case
def the_error_at_hand(wrap):
    f = wrap(lambda x: x * (2.0 if sys.exc_info()[0] else 1.0))
    yield from (f(x()), f(x()), raising(f), f(x()))


@case
def the_error_at_hand_by_another_name(wrap):
    f = wrap(lambda x: x * (2.0 if what_is_raised()[0] else 1.0))
    yield from (f(x()), f(x()), raising(f))


@case
def a_function_written_in_c_by_its_own_name(wrap):
    with tempfile.TemporaryDirectory() as folder:
        f = wrap(lambda x: x * (1 + len(listdir(folder))))
        yield from (f(x()), f(x()))
        (Path(folder) / "file").touch()
        yield f(x())


@case
def a_clock_by_its_own_name(wrap):
    f = wrap(lambda x: x * float(clock() % 10**6))
    times = [float(f(x())[0]) for _ in range(4)]
    yield tensor([len(set(times)) > 1, True, False])


def in_a_folder(f, folder):
    yield from (f(x()), f(x()))
    (Path(folder) / "file").touch()
    yield f(x())


@case
def a_function_written_in_c_that_others_call(wrap):
    with tempfile.TemporaryDirectory() as folder:
        yield from in_a_folder(wrap(lambda x: x * (1 + len(*map(listdir, [folder])))), folder)
    with tempfile.TemporaryDirectory() as folder:
        yield from in_a_folder(wrap(lambda x: x * (1 + len(*map(os.listdir, [folder])))), folder)
    with tempfile.TemporaryDirectory() as folder:
        look = functools.partial(os.listdir, folder)
        yield from in_a_folder(wrap(lambda x: x * (1 + len(look()))), folder)
    with tempfile.TemporaryDirectory() as folder:
        f = wrap(lambda x: x * (1 + len(operator.call(os.listdir, folder))))
        yield from in_a_folder(f, folder)


@case
def what_special_functions_do_about_errors(wrap):
    def fn(x):
        try:
            return x * float(special.gamma(np.array([-1.0]))[0] > 1.0)
        except special.SpecialFunctionError:
            return x * 50.0

    f = wrap(fn)
    yield from (f(x()), f(x()))
    with special.errstate(all="raise"):
        yield f(x())


@case
def whether_an_object_waits_for_its_end(wrap):
    class Thing:
        pass

    thing = Thing()
    end = weakref.finalize(thing, int)
    f = wrap(lambda x: x * (2.0 if end.alive else 1.0))
    yield from (f(x()), f(x()))
    end.detach()
    yield f(x())


@case
def the_error_at_hand_as_text(wrap):
    f = wrap(lambda x: x * len(traceback.format_exc().splitlines()[-1]))
    yield from (f(x()), f(x()), raising(f))


@case
def settings_of_the_interpreter(wrap):
    before = sys.getswitchinterval()
    f = wrap(lambda x: x * sys.getswitchinterval())
    yield from (f(x()), f(x()))
    sys.setswitchinterval(0.02)
    try:
        yield f(x())
    finally:
        sys.setswitchinterval(before)


@case
def thresholds_of_the_collector(wrap):
    f = wrap(lambda x: x * gc.get_threshold()[0])
    yield from (f(x()), f(x()))


@case
def weak_references_to_an_object(wrap):
    class Thing:
        pass

    thing = Thing()
    f = wrap(lambda x: x * (1 + weakref.getweakrefcount(thing)))
    yield from (f(x()), f(x()))
    kept = weakref.ref(thing, print)
    yield f(x())
    del kept


@case
def how_classes_are_copied(wrap):
    class Thing:
        k = 1.0

    class Other:
        k = 9.0

    thing = Thing()
    f = wrap(lambda x: x * copy.copy(thing).k)
    yield from (f(x()), f(x()))
    copyreg.pickle(Thing, lambda thing: (Other, ()))
    try:
        yield f(x())
    finally:
        del copyreg.dispatch_table[Thing]


@case
def an_array_that_is_locked(wrap):
    a = np.arange(3.0)
    f = wrap(lambda x: x * (2.0 if a.flags.writeable else 1.0))
    yield from (f(x()), f(x()))
    a.flags.writeable = False
    yield f(x())


@case
def an_array_that_is_opened_again(wrap):
    a = np.arange(3.0)
    a.flags.writeable = False
    view = a[1:]
    f = wrap(lambda x: x * view[0])
    yield from (f(x()), f(x()))
    a.flags.writeable = True
    a[1] = 9.0
    yield f(x())
    a[1] = 4.0
    a.flags.writeable = False
    yield f(x())


@case
def annotations_and_names_of_a_function(wrap):
    def told(k: 1.0):
        """Short."""

    f = wrap(
        lambda x: (
            x * told.__annotations__["k"] + len(told.__doc__) + 10 * len(told.__name__)
            + 100 * len(told.__qualname__)
        )
    )  # fmt: skip
    yield from (f(x()), f(x()))
    told.__annotations__["k"] = 3.0
    yield f(x())
    told.__doc__ = "Somewhat longer."
    yield f(x())
    told.__name__ = "another"
    yield f(x())
    told.__qualname__ = "another.one"
    yield f(x())


@case
def annotations_asked_for_by_others(wrap):
    def told(k: int):
        pass

    f = wrap(lambda x: x * len(typing.get_type_hints(told)))
    yield from (f(x()), f(x()))
    told.__annotations__["j"] = int
    yield f(x())


@case
def signatures(wrap):
    def told(k, j: int):
        pass

    f = wrap(lambda x: x * (1.0 + (inspect.signature(told).parameters["k"].annotation is float)))
    yield from (f(x()), f(x()))
    told.__annotations__["k"] = float
    yield f(x())


@case
def names_of_a_class(wrap):
    class Thing:
        """Short."""

    thing = Thing()
    f = wrap(lambda x: x * len(type(thing).__name__) + len(Thing.__doc__))
    yield from (f(x()), f(x()))
    Thing.__name__ = "Something"
    yield f(x())
    Thing.__doc__ = "Somewhat longer."
    yield f(x())


@case
def a_module_of_a_users_class(wrap):
    class Lazy(types.ModuleType):
        @property
        def k(self):
            return 2.0 * self.of

    module = Lazy("lazy_of_a_test")
    module.of = 1.0
    f = wrap(lambda x: x * module.k)
    yield from (f(x()), f(x()))
    module.of = 4.0
    yield f(x())


class Named(probtorch.Tensor):
    """A tensor with attributes."""

    def times(self):
        return self * 2.0


def named():
    return x().as_subclass(Named)


@case
def a_tensor_with_attributes(wrap):
    t = named()
    t.k, t.options = 2.0, {"j": [1.0]}
    f = wrap(lambda x: x * t * t.k + t.options["j"][0])
    yield from (f(x()), f(x()))
    t.k = 3.0
    yield f(x())
    t.options["j"][0] = 5.0
    yield f(x())


@case
def a_method_of_a_users_tensor(wrap):
    t, before = named(), Named.times
    f = wrap(lambda x: x + t.times())
    yield from (f(x()), f(x()))
    Named.times = lambda self: self * 5.0
    try:
        yield f(x())
    finally:
        Named.times = before


@case
def an_argument_with_attributes(wrap):
    t, other = named(), named()
    t.k, other.k = 2.0, 8.0
    f = wrap(lambda t: t * t.k + 1.0)
    yield from (f(t), f(t))
    t.k = 3.0
    yield from (f(t), f(other))


@case
def an_argument_that_is_given_an_attribute(wrap):
    t = named()
    f = wrap(lambda t: t * getattr(t, "k", 1.0))
    yield from (f(t), f(t), f(t))
    t.k = 3.0
    yield f(t)


def test_impure_functions_that_are_only_called_are_no_reason_to_stay_eager():
    def fn(x):
        if x.shape[0] > 3:
            print(time.time(), clock(), os.getpid(), *map(len, ["a"]))
        return x * 2.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = probtorch.compile(fn)
        f(x())
        f(x())
    assert f.paths.reason is None
    assert len(f.paths) == 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_compiled_calls_answer_as_eager_ones(name):
    eager = [plain(y) for y in CASES[name](lambda f: f)]
    compiled = [plain(y) for y in CASES[name](lambda f: probtorch.compile(f, verify=False))]
    assert len({y.tobytes() for y in eager}) > 1 or name in ALWAYS_THE_SAME
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)
