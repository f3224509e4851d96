"""Which tensor one is: compiled code answers as Python does, in whatever way somebody asks."""

import copy
import warnings

import numpy as np
import pytest

from probtorch import compile, nn, tensor
from probtorch.compiler.paths import CompileWarning

KNOWN = tensor(np.array([0.5, 2.0, -1.0]))


def fresh(i):
    return tensor(np.sin(np.arange(3.0) * 1.7 + i * 0.9 + 0.3))


def same_lists(a, b):
    try:
        return [a] == [b]
    except ValueError:  # three numbers are neither true nor false
        return False


def in_a_copy(a, b):
    first, second = copy.deepcopy([a, b])
    first.add_(1.0)
    return second


def buffers_of(a, b):
    net = nn.Module()
    net.register_buffer("a", a)
    net.register_buffer("b", b)
    return len(list(net.buffers()))


# What is another number, or tensor, where both are one tensor.
ASKED = {
    "a list that is compared": lambda a, b: 2.0 if same_lists(a, b) else 3.0,
    "a set": lambda a, b: len({a, b}),
    "a dict": lambda a, b: len({a: 1.0, b: 2.0}),
    "a key": lambda a, b: {b: 2.0}.get(a, 3.0),
    "keys": lambda a, b: len(dict.fromkeys([a, b])),
    "a hash": lambda a, b: 2.0 if hash(a) == hash(b) else 3.0,
    "a copy": in_a_copy,
    "buffers": buffers_of,
}


def agree(play):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        found, expected = play(lambda f: compile(f, verify=False)), play(lambda f: f)
    np.testing.assert_allclose(found, expected)
    assert len(np.unique(np.round(expected, 9), axis=0)) > 2
    return True


@pytest.mark.parametrize("name", ASKED)
def test_a_tensor_put_in_a_place_is_told_from_one_that_is_known(name):
    def play(wrap):
        state = {"h": fresh(0), "known": KNOWN}
        fn = wrap(lambda x: x * ASKED[name](state["h"], state["known"]) + state["h"])
        found = []
        for i in range(16):
            state["h"] = KNOWN if i % 5 == 4 else fresh(i)
            found += [fn(tensor([1.0, 2.0, 3.0])).tolist() for _ in range(2)]
        return found

    assert agree(play)


@pytest.mark.parametrize("name", ASKED)
def test_two_tensors_put_in_places_are_told_from_one_in_both(name):
    def play(wrap):
        state = {"a": fresh(0), "b": fresh(1)}
        fn = wrap(lambda x: x * ASKED[name](state["a"], state["b"]) + state["a"])
        found = []
        for i in range(16):
            state["a"] = fresh(i)
            if i % 3:
                state["b"] = state["a"] if i % 5 == 4 else fresh(i + 50)
            found += [fn(tensor([1.0, 2.0, 3.0])).tolist() for _ in range(2)]
        return found

    assert agree(play)


@pytest.mark.parametrize("place", ["outside", "put"])
@pytest.mark.parametrize("name", [n for n in ASKED if n != "a list that is compared"])
def test_an_argument_is_told_from_a_tensor_outside(name, place):
    def play(wrap):
        state = {"h": KNOWN}
        fn = wrap(lambda x: x * ASKED[name](x, state["h"]) + state["h"])
        found = []
        for i in range(16):
            if place == "put":
                state["h"] = fresh(i + 50)
            x = state["h"] if i % 5 == 4 else fresh(i)
            found += [fn(x).tolist() for _ in range(2)]
        return found

    assert agree(play)


@pytest.mark.parametrize("key", [lambda t: t, hash], ids=["tensors", "hashes"])
@pytest.mark.parametrize("place", ["argument", "put"])
def test_what_a_dict_keeps_for_one_tensor_is_not_answered_for_another(key, place):
    def play(wrap):
        kept, state = {}, {"h": None}
        held = [fresh(i) for i in range(12)]  # none gets the hash of one that is gone

        def double(t):
            if key(t) not in kept:
                kept[key(t)] = t * 2.0
            return kept[key(t)]

        fn = wrap(lambda x: double(x if place == "argument" else state["h"]) + x)
        found = []
        for t in held:
            state["h"] = t
            found += [fn(t if place == "argument" else KNOWN).tolist() for _ in range(3)]
        return found

    assert agree(play)


def test_a_tensor_now_and_then_in_two_places_keeps_no_function_eager():
    state = {"a": fresh(0), "b": fresh(1)}
    compiled = compile(lambda x: x * state["a"] - state["b"])
    x = tensor([1.0, 2.0, 3.0])
    for i in range(20):
        state["a"], state["b"] = fresh(i), fresh(i + 50)
        if i % 6 == 5:
            state["b"] = state["a"]
        np.testing.assert_allclose(compiled(x).numpy(), (x * state["a"] - state["b"]).numpy())
    assert compiled.reason is None
    assert len(list(compiled.paths)) <= 6
