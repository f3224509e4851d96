"""Every function that takes `out=` writes there what it returns without it."""

import inspect
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, DTypeError, ProbtorchError
from tests.contracts.further_calls import RECIPES, draw_call

ROOMS = {"": probtorch, "linalg": probtorch.linalg, "special": probtorch.special}


def public(name):
    room, _, last = name.rpartition(".")
    return getattr(ROOMS[room], last) if room in ROOMS else None


def takes(fn):
    return fn is not None and "out" in inspect.signature(fn).parameters


RANDOM = {"rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "empty"}
NAMES = sorted({n for n in RECIPES if takes(public(n))} - RANDOM)


def answered(name):
    """Return the first random call that is answered, as a function of its options, and the answer.

    The arguments are made anew for each call.
    """
    for seed in range(40):
        call = draw_call(name, seed)

        def run(call=call, **options):
            args, given, _ = call.arguments(probtorch)
            return public(name)(*args, **given, **options)

        try:
            found = run()
        except (ProbtorchError, TypeError):
            continue
        return run, found
    raise AssertionError(f"no call of {name} was answered")


def fresh(t, shape):
    return probtorch.empty(shape, dtype=t.dtype)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def test_most_functions_take_out():
    assert len(NAMES) > 230


@pytest.mark.parametrize("name", NAMES)
def test_out_holds_what_is_returned(name):
    run, expected = answered(name)
    several = isinstance(expected, tuple)
    for resized in (False, True):
        flat = [
            fresh(t, 0 if resized else t.shape)
            for t in (expected if several else (expected,))
            if isinstance(t, probtorch.Tensor)
        ]
        if several and len(flat) < len(expected):
            return  # a number among the results
        memory = [t.data_ptr() for t in flat]
        got = run(out=tuple(flat) if several else flat[0])
        for t, there, value, place in zip(
            got if several else (got,), flat, expected if several else (expected,), memory
        ):
            assert t is there
            np.testing.assert_array_equal(there.array, value.array)
            assert resized or there.data_ptr() == place
        assert type(got) is type(expected)


def test_another_shape_is_resized_with_a_warning():
    out = probtorch.ones(4)
    with pytest.warns(UserWarning, match=r"sum\(out=...\): a tensor of shape \(4,\)"):
        probtorch.sum(probtorch.ones(2, 3), 0, out=out)
    assert out.tolist() == [2.0, 2.0, 2.0]


def test_misfits_are_refused():
    x = probtorch.ones(3)
    with pytest.raises(DTypeError, match="can hold float32"):
        probtorch.sum(x, out=probtorch.empty((), dtype=probtorch.int64))
    with pytest.raises(ArgumentError, match="a tuple of 2 tensors"):
        probtorch.sort(x, out=x)
    with pytest.raises(ArgumentError, match="expected: tensors"):
        probtorch.sort(x, out=(x, None))


def test_gradients_flow_through_what_was_written():
    x = probtorch.ones(2, 3, requires_grad=True)
    out = probtorch.empty(3)
    probtorch.sum(x * 2.0, 0, out=out)
    out.sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2


def test_out_may_be_an_operand():
    x = probtorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    probtorch.matmul(x, x, out=x)
    assert x.tolist() == [[7.0, 10.0], [15.0, 22.0]]
