"""Worlds of what is not there at first, of what is put in the place of a library's, and of what
Python does behind a name that is everybody's; see worlds.py.
"""

import operator
import sys
import types
import warnings

import numpy as np
import pytest

import probtorch
from probtorch import nn, tensor
from probtorch.distributions import Normal
from tests.compiler.worlds import at, world

__all__ = []


@world
def names_that_are_not_there_at_first():
    module, space = types.ModuleType("settings_of_a_test"), globals()
    space.pop("LATER", None)

    def fn(x):
        try:
            x = x * LATER
        except NameError:
            x = x + 1.0
        try:
            x = x * module.scale
        except AttributeError:
            x = x - 1.0
        return x * getattr(module, "factor", 3.0) + hasattr(module, "flag")

    changes = {
        2: lambda: setattr(module, "factor", 5.0),
        3: lambda: setattr(module, "flag", None),
        4: lambda: setattr(module, "scale", 2.0),
        5: lambda: space.update(LATER=4.0),
        6: lambda: delattr(module, "factor"),
        7: lambda: space.pop("LATER"),
    }
    return fn, lambda i: at(i, changes)


@world
def modules_that_answer_for_themselves():
    module = types.ModuleType("answers_of_a_test")
    exec("K = 2.0\ndef __getattr__(name):\n    return 10.0 * K", module.__dict__)  # noqa: S102
    changes = {
        2: lambda: setattr(module, "K", 3.0),
        4: lambda: setattr(module, "unknown", 1.0),
        6: lambda: delattr(module, "unknown"),
    }
    return lambda x: x * module.unknown, lambda i: at(i, changes)


@world
def methods_of_tensors_that_are_replaced():
    own, kind = probtorch.Tensor.sum, probtorch.Tensor
    changes = {
        0: lambda: setattr(kind, "sum", own),
        3: lambda: setattr(kind, "sum", lambda x, *dim: own(x, *dim) * 2.0),
        6: lambda: setattr(kind, "sum", own),
    }
    return lambda x: x.sum() + x, lambda i: at(i, changes)


@world
def methods_that_are_lent_to_tensors():
    by, more, kind = [2.0], [1.0], probtorch.Tensor
    kind._of_a_test = lambda x: x * by[0]
    kind._shown_of_a_test = property(lambda x: x + more[0])
    changes = {3: lambda: operator.setitem(by, 0, 5.0), 6: lambda: operator.setitem(more, 0, 9.0)}
    return lambda x: x._of_a_test() + x._shown_of_a_test, lambda i: at(i, changes)


@world
def what_classes_of_the_library_do_inside():
    net, density, forward = nn.Linear(3, 3), Normal._log_prob, nn.Linear.forward
    with probtorch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(0.1)
    net.requires_grad_(False)

    def put(kind, name, value):
        # Releases without versions of dicts look at what code names.
        if sys.version_info < (3, 13):
            setattr(kind, name, value)

    changes = {
        2: lambda: put(nn.Linear, "forward", lambda self, x: x * 7.0),
        4: lambda: put(Normal, "_log_prob", lambda self, x: x * 0.0 + 3.0),
        5: lambda: put(nn.Linear, "forward", forward),
        7: lambda: put(Normal, "_log_prob", density),
    }
    return lambda x: net(x) + Normal(0.0, 1.0).log_prob(x), lambda i: at(i, changes)


@world
def methods_that_are_lent_to_series():
    pandas = pytest.importorskip("pandas")

    class Own:
        by = 2.0

        def __init__(self, series):
            self.series = series

        def total(self):
            return float(self.series.sum()) * Own.by

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is there in the second run
        pandas.api.extensions.register_series_accessor("of_a_test")(Own)
    series = pandas.Series([1.0, 2.0])
    changes = {3: lambda: setattr(Own, "by", 5.0), 6: lambda: series.__setitem__(0, -4.0)}
    return lambda x: x * series.of_a_test.total(), lambda i: at(i, changes)


@world
def warnings_that_are_errors():
    def fn(x):
        try:
            warnings.warn("heard", UserWarning, stacklevel=1)
        except UserWarning:
            return x * 3.0
        return x * 2.0

    def put(name):
        warnings.simplefilter(name, UserWarning)

    changes = {0: lambda: put("ignore"), 3: lambda: put("error"), 6: lambda: put("ignore")}
    return fn, lambda i: at(i, changes)


@world
def functions_of_numpy_that_are_pythons():
    by = [2.0]
    each = np.frompyfunc(lambda k: k * by[0], 1, 1)
    values = np.arange(3.0)
    changes = {3: lambda: operator.setitem(by, 0, 5.0), 6: lambda: operator.setitem(values, 0, 9.0)}
    return lambda x: x * float(each(values).sum()), lambda i: at(i, changes)


@world
def iterators_of_numpy():
    each, places = np.ndenumerate(np.arange(999.0)), np.ndindex(999, 2)
    flat, ahead = np.arange(999.0).flat, np.nditer(np.arange(999.0))

    def fn(x):
        return x * next(each)[1] + next(places)[0] + next(flat) + float(next(ahead))

    return fn, lambda i: None


@world
def frames_of_callers():
    outside = types.SimpleNamespace(k=2.0)

    def seen_from_below():
        return sys._getframe(1).f_locals["inside"]

    def fn(x):
        inside = outside.k
        frame = sys._getframe()
        while frame.f_back is not None and "of_this_world" not in frame.f_locals:
            frame = frame.f_back
        return x * seen_from_below() + frame.f_locals.get("of_this_world", inside)

    return fn, lambda i: at(i, {3: lambda: setattr(outside, "k", 5.0)})


@world
def tables_by_what_numbers_say():
    table = {tensor(1.0).item(): 2.0, (1, 2): 3.0}
    changes = {
        2: lambda: table.update({1.0: 5.0}),
        4: lambda: table.pop((1, 2)),
        6: lambda: table.update({True: -1.0}),
    }
    return lambda x: x * table[1] + table.get((1, 2), 0.5), lambda i: at(i, changes)


@world
def code_that_is_run_in_a_dict_without_a_name():
    space = {"K": 2.0}
    source = """
def times(x):
    return x * K

class Own:
    k = 3.0

    def plus(self, x):
        return x + self.k
"""
    exec(source, space)  # noqa: S102 - as people write it
    alone = types.FunctionType((lambda x: x - K).__code__, {"K": 1.0})  # noqa: F821
    times, own = space["times"], space["Own"]()
    changes = {
        2: lambda: space.update(K=5.0),
        4: lambda: setattr(space["Own"], "k", -1.0),
        5: lambda: alone.__globals__.update(K=4.0),
        7: lambda: setattr(own, "k", 9.0),
    }
    return lambda x: times(x) + own.plus(x) + alone(x), lambda i: at(i, changes)
