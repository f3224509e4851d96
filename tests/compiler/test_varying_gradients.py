"""Gradients taken outside of functions that read floats of Python's which change between calls."""

import math
import threading
import warnings

import numpy as np
import pytest

import probtorch
from probtorch import compile, tensor
from probtorch.compiler.paths import CompileWarning
from probtorch.core.tree import flatten
from probtorch.errors import AutogradError
from probtorch.testing import assert_close
from tests.compiler.varying_places import VALUES, Holder, Slotted, X, attribute, the_same

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
