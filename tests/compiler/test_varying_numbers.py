"""Floats of Python's that change between calls become inputs, and nobody can tell."""

import argparse
import collections
import dataclasses
import functools
import gc
import json
import math
import numbers
import random
import threading
import types
import warnings
from collections.abc import Iterable

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
import probtorch.nn.functional as F
from probtorch import compile, tensor
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.record.number import Number
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten
from probtorch.errors import AutogradError
from probtorch.nn.utils import clip_grad_norm_, clip_grad_value_
from probtorch.optim import SGD
from probtorch.testing import assert_close
from tests.compiler import number_programs

X = tensor(np.linspace(-1.0, 1.0, 6), dtype=probtorch.float32)


class Holder:
    """What a user keeps a number in."""

    def __init__(self):
        self.number = 0.1


def attribute(body):
    holder = Holder()
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "number", v)


def entry(body):
    table = {"number": 0.1}
    return (lambda x: body(x, table["number"])), lambda v: table.update(number=v)


def variable(body):
    number = 0.1

    def change(v):
        nonlocal number
        number = v

    return (lambda x: body(x, number)), change


def global_one(body):
    global NUMBER
    NUMBER = 0.1

    def change(v):
        global NUMBER
        NUMBER = v

    return (lambda x: body(x, NUMBER)), change


class Slotted:
    """Attributes in slots."""

    __slots__ = ("_number", "other")

    def __init__(self):
        self._number, self.other = 0.1, "a"

    number = property(lambda self: self._number)


def slot(body):
    holder = Slotted()
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "_number", v)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """What is set past its own refusal."""

    number: float = 0.1


def frozen_slot(body):
    holder = Frozen()
    return (lambda x: body(x, holder.number)), lambda v: object.__setattr__(holder, "number", v)


def class_attribute(body):
    class Config:
        number, other = 0.1, 2.0

    return (lambda x: body(x, Config().number)), lambda v: setattr(Config, "number", v)


def inherited(body):
    class Config:
        number = 0.1

    class Own(Config):
        other = [1.0]

    return (lambda x: body(x, Own.number) if Own.other else x), (
        lambda v: setattr(Config, "number", v)
    )


def item(body):
    numbers = [1.0, 0.1, "a", None]
    return (lambda x: body(x, numbers[1]) if numbers[2] else x), (
        lambda v: numbers.__setitem__(1, v)
    )


class AttrDict(dict):
    """A dict whose entries are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def attribute_of_a_dict(body):
    holder = AttrDict(number=0.1, other=AttrDict(deep=1))
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "number", v)


def ordered_entry(body):
    table = collections.OrderedDict(other=1.0, number=0.1)
    table.move_to_end("other")
    return (lambda x: body(x, table["number"])), lambda v: table.update(number=v)


def namespace(body):
    holder = argparse.Namespace(number=0.1, name="a")
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "number", v)


PLACES = [
    *(attribute, entry, variable, global_one, slot, frozen_slot, class_attribute, inherited, item),
    *(attribute_of_a_dict, ordered_entry, namespace),
]


# Of which some ask how large the number is.
BRANCHING = ("branch", "larger", "dropout", "softplus")


def clipped(x, clip):
    w = x.clone()
    w.grad = x.clone()
    clip(w)
    return w.grad


# What takes a number for what a tensor of no dims is, too.
ALIKE = {
    "product": lambda x, b: (x * b).sum(),
    "arithmetic": lambda x, b: x * (b * 2 + 1) ** 2 / 3 - b // 0.2 + b % 0.2,
    "branch": lambda x, b: x * b if b > 0.45 else x - b,
    "larger": lambda x, b: x * max(b, 0.22),
    "clamp": lambda x, b: x.clamp(-b, b),
    "power": lambda x, b: x.abs() ** b,
    "alpha": lambda x, b: x.clone().add_(x, alpha=b),
    "where": lambda x, b: probtorch.where(x > b, x, b),
    "numpy": lambda x, b: x * np.sqrt(b) + tensor(np.arange(6) * b),
    "dropout": lambda x, b: F.dropout(x, b, True),
    "softplus": lambda x, b: F.softplus(x, beta=b),
    "clipped norm": lambda x, b: clipped(x, lambda w: clip_grad_norm_([w], b)),
    "clipped values": lambda x, b: clipped(x, lambda w: clip_grad_value_([w], b)),
    "location": lambda x, b: dist.Normal(b, 1.0).log_prob(x),
    "temperature": lambda x, b: F.gumbel_softmax(x, tau=b),
    "variance": lambda x, b: F.gaussian_nll_loss(x, X, b),
    "draws": lambda x, b: dist.RelaxedBernoulli(b, logits=x).sample() * dist.Normal(0, b).sample(),
}


def tried(x, b):
    try:
        return x * b.ndim
    except AttributeError:
        return x * 10 if b < 0.15 else x


def matched(x, b):
    match b:
        case float() if b < 0.15:
            return x * 10
    return x


# What does not: each value is a constant, and Python has the last word.
OTHERWISE = {
    "exponential": lambda x, b: x * math.exp(-b),
    "type": lambda x, b: x * b if isinstance(b, float) else x * 3,
    "format": lambda x, b: x * len(f"{b:g}"),
    "shown": lambda x, b: x * len(repr(dist.Normal(b, 1.0))),
    "lookup": lambda x, b: x * {0.1: 1.0, 0.4: 2.0}.get(b, 5.0),
    "text": lambda x, b: x * len(json.dumps(b)),
    "range": lambda x, b: sum((x * i for i in range(int(10 * min(b, 9)))), X),
    "integers": lambda x, b: probtorch.arange(3) * b,
    "returned": lambda x, b: {"x": x * b, "b": b},
    "array": lambda x, b: x[:3] * tensor(np.full(3, b)),
    "method": lambda x, b: x * b.is_integer() + b.as_integer_ratio()[0] % 7,
}
VALUES = [0.1, 0.2, 0.3, 0.5, 0.4, 1.0, 0.7, 0.25]
# What another path is for.
STRANGE = [-0.0, 2, -0.5, float("nan"), 0.6, 1e300, 0.5]


def the_same(a, b):
    """Whether results are the same, but for rounding."""
    (a, of_a), (b, of_b) = flatten(a), flatten(b)
    if repr(of_a) != repr(of_b) or list(map(type, a)) != list(map(type, b)):
        return False
    return all(
        x.dtype == y.dtype and np.allclose(x.numpy(), y.numpy(), 1e-5, 1e-6, equal_nan=True)
        if isinstance(x, probtorch.Tensor)
        else repr(x) == repr(y)
        for x, y in zip(a, b, strict=True)
    )


def outcome(fn, *args):
    """The result, or the type of the error."""
    probtorch.manual_seed(0)
    try:
        with np.errstate(all="ignore"):
            return fn(*args)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize(
    ("place", "name"),
    [*((attribute, name) for name in ALIKE), *((place, "arithmetic") for place in PLACES[1:])],
)
def test_a_float_that_changes_is_an_input(place, name):
    fn, change = place(ALIKE[name])
    compiled = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for value in VALUES * 2:
            change(value)
            assert the_same(outcome(compiled, X), outcome(fn, X)), value
    assert len(compiled.paths) <= 2 + (name in BRANCHING)


@pytest.mark.parametrize("name", ALIKE)
def test_a_float_among_the_arguments_that_changes_is_an_input(name):
    compiled = compile(ALIKE[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for value in VALUES * 2:
            assert the_same(outcome(compiled, X, value), outcome(ALIKE[name], X, value)), value
    assert len(compiled.paths) <= 2 + (name in BRANCHING)


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize(
    ("place", "name"),
    [
        *((attribute, name) for name in (*ALIKE, *OTHERWISE)),
        *((place, name) for place in PLACES[1:] for name in ("arithmetic", "type", "lookup")),
    ],
)
def test_values_of_any_kind_mean_what_they_mean_to_python(place, name):
    fn, change = place((ALIKE | OTHERWISE)[name])
    compiled = compile(fn)
    for value in [*VALUES[:4], *STRANGE]:
        change(value)
        assert the_same(outcome(compiled, X), outcome(fn, X)), value


# Whether Python tells a float from a tensor shows at some values alone, after it became an input.
LATER = {
    "isinstance": lambda x, b: x * 10 if isinstance(b, float) and b < 0.15 else x,
    "type": lambda x, b: x * 10 if type(b) is float and b < 0.15 else x,
    "class": lambda x, b: x * 10 if b.__class__ is float and b < 0.15 else x,
    "number": lambda x, b: x * 10 if isinstance(b, numbers.Real) and b < 0.15 else x,
    "lookup": lambda x, b: x * {0.1: 10}.get(b, 1),
    "member": lambda x, b: x * 10 if b in {0.1, 0.2} else x,
    "match": matched,
    "tensor": lambda x, b: x * 10 if not isinstance(b, probtorch.Tensor) and b < 0.15 else x,
    "is_tensor": lambda x, b: x * 10 if not probtorch.is_tensor(b) and b < 0.15 else x,
    "array": lambda x, b: x * 10 if not hasattr(b, "shape") and b < 0.15 else x,
    "attribute": lambda x, b: x * 10 if getattr(b, "ndim", None) is None and b < 0.15 else x,
    "float's": lambda x, b: x * 10 if b.hex() == (0.1).hex() and b.real is not None else x,
    "iterable": lambda x, b: x * 10 if not isinstance(b, Iterable) and b < 0.15 else x,
    "bool": lambda x, b: x * 10 if (b < 0.15) is True else x,
    "equal": lambda x, b: x * 10 if (b == 0.1) is True and (b == "no") is False else x,
    "tried": tried,
}
# What is the same for all floats: they are inputs in spite of it.
ALIKE_FOR_ALL = {
    "tensor": lambda x, b: x * (b if isinstance(b, probtorch.Tensor) else tensor(b)),
    "is_tensor": lambda x, b: x * b.exp() if probtorch.is_tensor(b) else x * b,
    "float": lambda x, b: x * b if isinstance(b, (int, float)) else x,
    "real": lambda x, b: x * b if isinstance(b, numbers.Real) else x,
    "array": lambda x, b: x * b if not hasattr(b, "shape") else x,
    "shape": lambda x, b: x * b * len(getattr(b, "shape", (1, 2))),
    "tried": lambda x, b: tried(x, b) + x * b,
    "iterable": lambda x, b: sum((x * v for v in (b if isinstance(b, Iterable) else [b])), x),
}


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("how", ["attribute", "argument"])
@pytest.mark.parametrize("name", LATER)
def test_what_tells_a_float_from_a_tensor_is_heard_wherever_it_matters(name, how):
    fn, change = attribute(LATER[name]) if how == "attribute" else (LATER[name], lambda v: None)
    compiled = compile(fn, verify=False)
    for value in [0.9, 0.8, 0.7, 0.6, 0.1, 0.5, 0.1]:
        change(value)
        args = (X,) if how == "attribute" else (X, value)
        assert the_same(compiled(*args), fn(*args)), value


@pytest.mark.parametrize("how", ["attribute", "argument"])
@pytest.mark.parametrize("name", ALIKE_FOR_ALL)
def test_questions_that_all_floats_answer_alike_leave_inputs(name, how):
    body = ALIKE_FOR_ALL[name]
    fn, change = attribute(body) if how == "attribute" else (body, lambda v: None)
    compiled = compile(fn)
    for value in VALUES * 2:
        change(value)
        args = (X,) if how == "attribute" else (X, value)
        assert the_same(compiled(*args), fn(*args)), value
    assert len(compiled.paths) <= 2 + (name == "tried")


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("name", ["arithmetic", "draws", "type", "format", "lookup", "integers"])
def test_arguments_of_any_kind_mean_what_they_mean_to_python(name):
    fn = (ALIKE | OTHERWISE)[name]
    compiled = compile(fn)
    for value in [*VALUES[:4], *STRANGE]:
        assert the_same(outcome(compiled, X, value), outcome(fn, X, value)), value


LISTS = {
    "a sum of terms": lambda x, w: sum(x * v for v in w),
    "a tensor": lambda x, w: x[:3] * tensor(w),
    "rows": lambda x, w: x[:2] * tensor([w[:2], [0.5, 1]]).sum(0),
    "a sum": lambda x, w: x * sum(w),
    "the largest": lambda x, w: x * max(w),
    "pairs": lambda x, w: sum(a * b for a, b in zip(x, w, strict=False)),
    "unpacked": lambda x, w: (lambda a, b, c: x * a + b - c)(*w),
    "squares": lambda x, w: x * [v**2 for v in w][-3],
}


@pytest.mark.parametrize("name", LISTS)
def test_floats_in_a_list_are_inputs(name):
    weights, body = [0.1, 0.2, 0.3], LISTS[name]
    fn = lambda x: body(x, weights)
    compiled = compile(fn)
    for value in VALUES:
        weights[:] = [value, value * 0.9, 0.3]
        assert the_same(compiled(X), fn(X)), value
        assert list(map(type, weights)) == [float] * 3
    assert compiled.reason is None and len(compiled.paths) <= 3


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_long_lists_and_lists_that_grow_are_what_they_are_at_each_call():
    data, losses = [float(i) for i in range(1, 40)], []
    fn = lambda x: x * tensor(data).sum() + sum(losses)
    compiled = compile(fn)
    for value in VALUES:
        data[:] = [value * v for v in range(1, 40)]
        losses.append(value)
        assert the_same(compiled(X), fn(X)), value


V = tensor(np.linspace(0.5, 1.0, 6), dtype=probtorch.float32, requires_grad=True)
# Of what gradients are taken outside of the compiled function, and whether numbers stay constants.
ON_TAPE = {
    "product": (lambda x, b: (x * V * b).sum(), False),
    "branch": (lambda x, b: (x * V * b).sum() if b < 0.45 else (V**2).sum() + b, False),
    "two results": (lambda x, b: (x * V * b, (x * V).sum() * b), False),
    "exponential": (lambda x, b: (x * V).sum() * math.exp(-b), True),
    "format": (lambda x, b: (x * V).sum() * len(f"{b:g}"), True),
}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("name", ON_TAPE)
def test_gradients_outside_are_those_of_the_number_at_the_call(name, late):
    # Also where it is another one when the gradient is asked for.
    body, constant = ON_TAPE[name]

    def run(wrap):
        fn, change = attribute(body)
        fn, found = wrap(fn), []
        for value in VALUES * 2:
            change(value)
            V.grad = None
            leaves, _ = flatten(fn(X))
            if late:
                change(7.7)
            sum(t.sum() for t in leaves).backward()
            found += [t.detach() for t in leaves] + [V.grad]
        return found, fn

    expected, _ = run(lambda fn: fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found, compiled = run(compile)
    assert the_same(found, expected)
    assert all("has changed ahead of 8 calls" in str(w.message) for w in told)
    assert constant or (not told and len(compiled.paths) <= 3)


# What is in the place of the float by the time that a gradient of the call is asked for.
BY_THEN = {
    "float": 7.0,
    "zero": 0.0,
    "infinity": math.inf,
    "int": 7,
    "bool": True,
    "scalar of NumPy": np.float64(7.0),
    "tensor": tensor(7.0),
    "text": "7",
    "nothing": None,
}


@pytest.mark.parametrize("kind", ["attribute", "slot", "class"])
def test_gradients_are_those_of_the_call_whatever_is_in_the_place_of_the_number(kind):
    place = Holder()
    place.of = {"attribute": Holder(), "slot": Slotted(), "class": type("Shared", (), {})}[kind]
    compiled = compile(lambda x: (x * V * place.of.other).sum())
    for place.of.other in VALUES[:3]:
        compiled(X).backward()
    for later in BY_THEN.values():
        place.of.other, V.grad = 0.5, None
        loss = compiled(X)
        place.of.other = later
        loss.backward()
        assert_close(V.grad, X * 0.5)
        assert place.of.other is later
    place.of.other, V.grad = 0.5, None
    loss = compiled(X)
    del place.of.other
    loss.backward()
    assert_close(V.grad, X * 0.5)
    assert not hasattr(place.of, "other")


def test_a_gradient_where_an_item_is_gone_names_the_change():
    items = [0.3, 0.1]
    compiled = compile(lambda x: (x * V * items[1]).sum())
    for items[1] in VALUES[:3]:
        compiled(X).backward()
    loss = compiled(X)
    items.pop()
    with pytest.raises(AutogradError, match="a change of the number of items"):
        loss.backward()
    assert items == [0.3]


def test_other_threads_find_the_float_of_now_while_a_gradient_is_computed():
    holder, done = Holder(), threading.Event()
    compiled = compile(lambda x: (x * V * holder.number).sum())
    for holder.number in VALUES[:3]:
        compiled(X).backward()
    first, second = compiled(X), compiled(2 * X)
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        V.grad = None
        holder.number = VALUES[2] * 1.0  # another object of the same value
        first.backward()
        assert_close(V.grad, X * VALUES[2])
        holder.number = 7.0
        with pytest.raises(AutogradError, match="a change of number, while other threads run"):
            second.backward()
    finally:
        done.set()
        other.join()


def test_a_function_on_the_tape_that_is_made_anew_at_each_call_says_so():
    holder = Holder()
    compiled = compile(lambda x: (x * V).sum() * holder.count)

    def step(count):
        holder.count, V.grad = count, None
        compiled(X).backward()
        assert_close(V.grad, X * count)

    with pytest.warns(CompileWarning, match="count, which it can reach, has changed ahead of 8"):
        list(map(step, range(12)))


def test_the_user_finds_a_float_where_a_float_was():
    holder = Holder()
    compiled = compile(lambda x: x * holder.number)
    for value in VALUES:
        holder.number = value
        compiled(X)
        assert type(holder.number) is float and holder.number == value


def test_what_is_put_into_an_argument_behind_a_branch_is_put_there_once():
    holder, found = Holder(), []

    def fn(x, seen):
        if holder.number > 0.25:
            seen.append(holder.number)
        return x * holder.number

    compiled = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for holder.number in VALUES:
            compiled(X, found)
    assert found == [v for v in VALUES if v > 0.25] and {*map(type, found)} == {float}


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


@pytest.mark.parametrize("block", range(2))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_random_expressions_of_floats_that_change_are_those_of_python(block):
    found = [number_programs.check(seed) for seed in range(20 * block, 20 * (block + 1))]
    assert [f for f in found if f is not None] == []


@pytest.mark.parametrize(
    "made",
    [
        lambda b: probtorch.full((3,), b),
        lambda b: tensor(b),
        lambda b: tensor([b, b]),
        lambda b: probtorch.as_tensor(b),
        lambda b: probtorch.stack([tensor(b), tensor(0.5)]),
    ],
    ids=["full", "tensor", "list", "as_tensor", "stack"],
)
def test_tensors_made_of_a_number_that_changes_have_the_digits_of_their_dtype(made):
    # Where all comes to double precision again, nobody sees the dtype in between.
    fn, change = attribute(lambda x, b: made(b).double() + x.sum().double() * 0.0)
    native = compile(fn)
    for b in (0.1, 0.2, 0.3, 0.7, 0.9, 0.6):
        change(b)
        assert_close(native(X), fn(X), rtol=1e-15, atol=0.0)
    assert len(native.paths) == 2


M = tensor([True, False, True, True, False, False])
WIDE = X.double()


@pytest.mark.parametrize(
    "body",
    {
        "where": lambda x, b: probtorch.where(M, b, 0.5).double() + x,
        "where, two": lambda x, b: probtorch.where(M, b, b * 3.0).double() + x,
        "where, beside a tensor": lambda x, b: probtorch.where(M, b, x),
        "sqrt": lambda x, b: probtorch.sqrt(b).double() * x,
        "square": lambda x, b: probtorch.square(b).double() * x,
        "add": lambda x, b: probtorch.add(b, b / 3.0).double() + x,
        "out": lambda x, b: probtorch.neg(b, out=probtorch.empty(())).double() + x,
        "as_tensor": lambda x, b: probtorch.as_tensor(b).double() + x,
        "full_like": lambda x, b: probtorch.full_like(x, b),
        "lerp": lambda x, b: probtorch.lerp(x, x * 2.0, b),
        "quantile": lambda x, b: x * probtorch.quantile(x, b),
        "normal_": lambda x, b: probtorch.empty_like(x).normal_(0, b),
        "normal_ of singles": lambda x, b: probtorch.empty(6).normal_(0.0, b).double() + x,
        "uniform_": lambda x, b: probtorch.empty_like(x).uniform_(0, b),
        "exponential_": lambda x, b: probtorch.empty_like(x).exponential_(b),
        "normal": lambda x, b: probtorch.normal(0.0, b, (6,)).double() + x,
        "affine": lambda x, b: dist.AffineTransform(b, b * 2.0).log_abs_det_jacobian(x, x),
        "power": lambda x, b: dist.PowerTransform(b).log_abs_det_jacobian(x + 2.0, x),
        "interval": lambda x, b: dist.transforms.IntervalTransform(0.0, b)(x),
        "gammainc": lambda x, b: probtorch.special.gammainc(b, x + 2.0),
        "normal density": lambda x, b: dist.Normal(b, b).log_prob(x),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_a_float_that_changes_is_rounded_as_often_as_a_constant(body):
    fn, change = attribute(body[1])
    native = compile(fn)
    for b in (0.1, 0.2, 0.3, 0.7, 0.9, 0.6):
        change(b)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompileWarning)
            found = outcome(native, WIDE)
        # The native code may join a product and a sum; nothing is rounded to single precision once
        # more, or once less.
        assert_close(found, outcome(fn, WIDE), rtol=1e-13, atol=1e-14)
    assert len(native.paths) <= 3


class Asking:
    """Methods that ask for types: one that nobody calls, and one whose answer tells nothing yet."""

    def __init__(self):
        self.number = 0.1

    def __repr__(this):
        return f"{type(this).__name__}({type(this.number).__name__})"

    def plain(self, x):
        return x * self.number

    def asking(self, x):
        return x * self.number * (1.0 if type(self.number) is float or self.number < 0.6 else 2.0)


@pytest.mark.parametrize(("name", "paths"), [("plain", 2), ("asking", len(VALUES))])
def test_code_that_asks_for_types_keeps_floats_constant_where_it_runs(name, paths):
    holder = Asking()
    fn = getattr(holder, name)
    native = compile(fn)
    for value in VALUES * 2:
        holder.number = value
        assert the_same(native(X), fn(X)), value
    assert len(native.paths) == paths


def test_a_number_that_a_long_loop_carries_keeps_its_digits():
    def falling(x, number):
        for _ in range(300):
            x, number = x * number + 0.1, number * 0.999
        return x

    fn, change = attribute(falling)
    native = compile(fn)
    for b in (0.1, 0.5, 0.7, 0.9, 0.95):
        change(b)
        # In single precision the number would be off by 1e-6, and the result by several times that.
        assert_close(native(X), fn(X), rtol=1e-6, atol=0.0)
    assert len(native.paths) == 2


def augmented(x, b):
    k = b
    k *= 2.0
    k += 1.0
    k -= b
    k /= 3.0
    return x * k + b


def augmented_in_a_list(x, b):
    numbers = [b, b]
    numbers[0] += 1.0
    return x * numbers[0] + numbers[1]


@pytest.mark.parametrize("body", [augmented, augmented_in_a_list])
def test_an_augmented_assignment_leaves_the_number_that_there_was(body):
    fn, change = attribute(body)
    native = compile(fn)
    for b in VALUES:
        change(b)
        assert_close(native(WIDE), fn(WIDE), rtol=1e-13, atol=1e-14)
    assert len(native.paths) == 2


def test_an_augmented_number_that_is_left_behind_has_all_its_digits():
    holder = Holder()

    def fn(x):
        holder.number += 0.0
        holder.number = abs(holder.number)
        return x * 2.0

    native = compile(fn)
    for b in VALUES:
        holder.number = b
        native(X)
        assert holder.number == b


# The class of a number that a recording for nothing returned, and the digits of one left behind.
@pytest.mark.parametrize("seed", [9600541, 9600111])
def test_random_expressions_that_were_wrong_once_are_those_of_python(seed):
    assert number_programs.check(seed) is None
