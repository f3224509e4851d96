"""What calls write, make once or leave behind where a float of Python's becomes an input."""

import collections
import functools
import gc
import math
import random
import threading
import types
import warnings

import numpy as np
import pytest

import probtorch
from probtorch import compile, tensor
from probtorch.compiler.record.number import Number
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten
from probtorch.optim import SGD
from tests.compiler.varying_places import VALUES, Holder, Slotted, X, the_same


class Shadowed(Slotted):
    """A property of the name of a slot, which nobody can set."""

    other = property(lambda self: self._number)

    def __init__(self):
        self._number = 0.1
        Slotted.other.__set__(self, 0.1)


# What a call writes, which leaves all floats as they are where they are right already.
WRITES = {
    "attribute": lambda h: setattr(h, "number", abs(h.number)),
    "slot": lambda h: setattr(h.slots, "other", h.slots.other * 1),
    "class": lambda h: setattr(h.cls, "shared", h.cls.shared * 1),
    "item": lambda h: h.items.__setitem__(slice(None), [x / sum(h.items) for x in h.items]),
    "order": lambda h: h.items.reverse(),
    "entry": lambda h: h.table.update(number=h.table["number"] * 1),
    "key": lambda h: setattr(h, "table", {"number": h.table["number"], h.number: 1}),
    "tuple": lambda h: setattr(h, "last", (1, (h.number, 1))),
    "set": lambda h: setattr(h, "last", {h.number}),
    "array": lambda h: setattr(h, "last", np.array([h.number], object)),
    "queue": lambda h: setattr(h, "last", collections.deque([h.number], 1)),
    "function": lambda h: setattr(h.kept, "last", h.number),
    "list that is gone": lambda h: (h.aside.append(h.number), h.aside.clear()),
    "shadowed slot": lambda h: h.shadowed.other,
}


def numbers_among(x, seen):
    """The `Number`s among an object and all that it consists of."""
    if id(x) in seen or isinstance(x, types.ModuleType):
        return []
    seen[id(x)] = x
    if type(x) is Number:
        return [x]
    inside = x.tolist() if isinstance(x, np.ndarray) else gc.get_referents(x)
    if isinstance(x, (types.FunctionType, TensorBase)):
        inside = [vars(x)] if hasattr(x, "__dict__") else []
    return [n for y in inside for n in numbers_among(y, seen)]


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_what_a_call_writes_in_place_are_floats(name, late):
    # Late: the floats are inputs already, and no earlier path knows what else there may be.
    h, write = Holder(), WRITES[name]
    h.cls = type("Shared", (), {"shared": 0.1})
    h.slots, h.items, h.table, h.last, h.aside = Slotted(), [0.1, 0.9], {"number": 0.1}, None, []
    h.shadowed, h.kept, h.on = Shadowed(), lambda: None, not late
    h.slots.other = 0.1

    @compile
    def fn(x):
        if h.on:
            write(h)
        if h.on == "fails":
            raise KeyError(h.number)
        return x * (h.number + h.slots.other + h.cls.shared + h.items[0] + h.table["number"])

    for i, value in enumerate(VALUES[:6]):
        h.number = h.slots.other = h.cls.shared = h.table["number"] = value
        h.shadowed._number = value if name == "shadowed slot" else 0.1
        h.items[:] = [value, value if name == "order" else 1 - value]
        if not late or i > 3:
            write(h)  # then it is there already when a call is recorded
        if late and i > 3:
            assert i > 4 or name == "shadowed slot" or fn.inputs
            fn.paths.clear()
            h.on = "fails" if i == 4 else True
        raised = []
        try:
            fn(X)
        except KeyError as error:
            raised += error.args
        assert not numbers_among((h, raised), {}), i


def test_an_error_in_the_call_that_makes_an_input_leaves_the_float():
    holder, wrong = Holder(), []

    def fn(x):
        if wrong:
            raise KeyError("wrong")
        return x * holder.number

    compiled = compile(fn)
    compiled(X)
    holder.number = 0.2
    wrong.append(1)
    with pytest.raises(KeyError):
        compiled(X)
    assert holder.number == 0.2
    wrong.clear()
    for value in VALUES:
        holder.number = value
        assert the_same(compiled(X), fn(X))


def test_a_float_that_is_gone_is_missed_as_by_python():
    holder, rows = Holder(), []

    def fn(x):
        if rows:
            del holder.number
        return x * getattr(holder, "number", 3.0)

    compiled = compile(fn)
    for value in VALUES[:3]:
        holder.number = value
        compiled(X)
    del holder.number
    assert the_same(compiled(X), X * 3.0)
    holder.number = 0.2
    assert the_same(compiled(X), X * 0.2)
    rows.append(1)
    assert the_same(compiled(X), X * 3.0) and not vars(holder)


def test_each_step_of_training_is_made_once_where_a_float_becomes_an_input():
    # Weights, momentum and draws: all that the call which is made twice changes is put back.
    def train(wrap):
        holder = Holder()
        w = tensor(np.ones(6, np.float32)).requires_grad_()
        optimizer = SGD([w], lr=0.1, momentum=0.9)
        generator = probtorch.Generator().manual_seed(3)

        def step():
            optimizer.zero_grad()
            noise = probtorch.randn(6, generator=generator)
            loss = ((w * X + noise) ** 2).sum() + holder.number * w.abs().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(step)
        losses = []
        for i in range(30):
            holder.number = 0.1 + i // 3 / 10
            losses.append(float(step()))
        return losses, w.detach().numpy(), step

    losses, weights, step = train(compile)
    expected, wanted, _ = train(lambda fn: fn)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(weights, wanted, rtol=1e-4, atol=1e-6)
    assert step.reason is None and len(step.paths) < 6


W = probtorch.ones(6, requires_grad=True)
COUNTS, SUM = [], probtorch.zeros(6)
SGD_OF_W = SGD([W], lr=0.1)


def fails(x):
    SUM.add_(x)
    raise KeyError("never compiled")


ONCE = {
    "items": lambda x: x + len(COUNTS) if COUNTS.append(1) is None else x,
    "a tensor": lambda x: SUM.add_(x) * 2,
    "draws": lambda x: x * probtorch.rand(()),
    "draws of Python's": lambda x: x * random.random(),
    "a gradient": lambda x: (W * x).sum().backward() or x,
    "a step": lambda x: (W * x).sum().backward() or SGD_OF_W.step() or x,
    "an error": fails,
}


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("kind", ["entry", "argument"])
@pytest.mark.parametrize("name", ONCE)
def test_what_another_value_leads_to_is_done_once(name, kind):
    # In the call that is made with floats first: no path knows of it yet.
    def run(wrap):
        probtorch.manual_seed(0)
        random.seed(0)
        COUNTS.clear()
        SUM.zero_()
        W.grad = None
        with probtorch.no_grad():
            W.fill_(1.0)
        table = {"number": 0.1}

        def fn(x, given):
            number = given if kind == "argument" else table["number"]
            y = x * number
            return ONCE[name](y) if 0.15 < number < 0.25 else y

        fn, found = wrap(fn), []
        for value in [*VALUES, 0.2, 0.1]:
            table["number"] = value
            try:
                found.append(fn(X, value if kind == "argument" else 0).numpy().copy())
            except KeyError:
                found.append(None)
            grad = None if W.grad is None else W.grad.numpy().copy()
            left = W.detach().numpy().copy(), SUM.numpy().copy(), grad, len(COUNTS)
            found += [left, probtorch.default_generator.get_state(), random.random()]
        return found

    expected, found = run(lambda fn: fn), run(compile)
    for x, y in zip(flatten(found)[0], flatten(expected)[0], strict=True):
        assert x is y is None or np.allclose(x, y, 1e-5, 1e-6)


def test_two_floats_that_change_at_other_times_are_both_inputs():
    holder, table = Holder(), {"b": 1.0}
    fn = lambda x: x * holder.number + table["b"]
    compiled = compile(fn)
    for i in range(40):
        holder.number, table["b"] = 0.1 + i // 4, 0.1 + i // 7
        assert the_same(compiled(X), fn(X))
    assert len(compiled.paths) <= 3


@pytest.mark.parametrize("kind", ["entry", "argument"])
def test_a_float_that_has_to_be_a_constant_leaves_others_inputs(kind):
    table = {"a": 0.1, "b": 0.5}

    def fn(x, a, b):
        return x * a * math.exp(b) if kind == "argument" else x * table["a"] * math.exp(table["b"])

    compiled = compile(fn)
    for i in range(40):
        table["a"], table["b"] = 0.1 + i, 0.5 + i // 20
        given = tuple(table.values()) if kind == "argument" else (0, 0)
        assert the_same(compiled(X, *given), fn(X, *given))
    assert compiled.reason is None and len(compiled.paths) <= 6


def test_a_float_that_calls_change_themselves_is_none():
    holder = Holder()

    def fn(x):
        holder.number *= 0.5
        return x * holder.number

    compiled = compile(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(6):
            before = holder.number
            assert the_same(compiled(X), X * (before * 0.5))
            assert holder.number == before * 0.5
    assert "changes number" in str(told[0].message)


class Steps:
    """A function with a state and a number, compiled."""

    def __init__(self):
        self.total, self.number = tensor(np.zeros(6, np.float32)), 0.1
        self.step = compile(self._step)

    def _step(self):
        self.total.add_(X * self.number)
        return self.total.sum()

    def take(self, steps):
        for i in range(steps):
            self.number = 0.1 + i
            self.step()


def test_a_thread_of_a_progress_bar_does_not_count():
    steps, done = Steps(), threading.Event()
    monitor = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
    bar = monitor(target=done.wait)
    bar.start()
    try:
        steps.take(12)
    finally:
        done.set()
        bar.join()
    assert len(steps.step.paths) == 2 and steps.step.reason is None


def test_other_threads_find_floats():
    holder, done, seen = Holder(), [], set()

    def look():
        while not done:
            seen.add(type(holder.number))

    compiled = compile(lambda x: sum((x * holder.number + i for i in range(300)), x))
    other = threading.Thread(target=look)
    other.start()
    try:
        for value in VALUES[:4]:
            holder.number = value
            compiled(X)
    finally:
        done.append(True)
        other.join()
    assert seen == {float}


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_where_other_threads_run_each_value_is_a_constant():
    steps, done = Steps(), threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        steps.take(12)
    finally:
        done.set()
        other.join()
    assert len(steps.step.paths) > 2
    np.testing.assert_allclose(steps.total.numpy(), X.numpy() * (12 * 0.1 + 66), rtol=1e-4)


def test_what_is_printed_is_printed_once_a_call_that_runs_in_python(capsys):
    holder = Holder()

    def fn(x):
        print("called")
        return x * holder.number

    compiled = compile(fn, verify=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(X)
        holder.number = 0.2
        compiled(X)
    assert capsys.readouterr().out == "called\ncalled\n"


def test_a_cache_that_the_call_fills_which_makes_an_input_ends_older_paths():
    # It then looks as it did when they were recorded, and holds something else.
    holder, factor = Holder(), [2.0]

    @functools.lru_cache
    def looked_up(n):
        return n * factor[0]

    def fn(x):
        return x * looked_up(3) + holder.number

    compiled = compile(fn, verify=False)
    for i in range(10):
        if i == 2:
            holder.number = 0.2
        if i == 4:
            factor[0] = 5.0
        if i == 5:
            looked_up.cache_clear()
        assert the_same(compiled(X), fn(X)), i
