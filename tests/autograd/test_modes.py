"""Gradient modes: context managers, decorators, and what they leave behind."""

import pytest

import probtorch
from probtorch.autograd import grad, set_grad_enabled


def leaf():
    return probtorch.tensor([1.0], requires_grad=True)


def test_no_grad_keeps_operations_off_the_tape():
    x = leaf()
    with probtorch.no_grad():
        assert not (x * 2).requires_grad
        assert not probtorch.is_grad_enabled()
    assert (x * 2).requires_grad


def test_modes_nest():
    with probtorch.no_grad():
        with probtorch.enable_grad():
            assert probtorch.is_grad_enabled()
        assert not probtorch.is_grad_enabled()
    assert probtorch.is_grad_enabled()


def test_mode_comes_back_after_an_error():
    with pytest.raises(KeyError), probtorch.no_grad():
        raise KeyError("on purpose")
    assert probtorch.is_grad_enabled()


@pytest.mark.parametrize("spelling", [probtorch.no_grad, probtorch.no_grad()], ids=["bare", "call"])
def test_no_grad_decorates_functions(spelling):
    @spelling
    def double(x):
        """Docstring."""
        return x * 2

    assert not double(leaf()).requires_grad
    assert double.__doc__ == "Docstring."


def test_inference_mode_takes_a_flag():
    x = leaf()
    for spelling in (probtorch.inference_mode(), probtorch.inference_mode(True)):
        with spelling:
            assert not (x * 2).requires_grad
    with probtorch.inference_mode(False):
        assert (x * 2).requires_grad
    assert not probtorch.inference_mode(lambda: x * 2)().requires_grad


def test_set_grad_enabled_works_at_once_and_as_a_block():
    with probtorch.set_grad_enabled(False):
        assert not probtorch.is_grad_enabled()
    assert probtorch.is_grad_enabled()
    probtorch.set_grad_enabled(False)
    try:
        assert not probtorch.is_grad_enabled()
    finally:
        probtorch.set_grad_enabled(True)


def test_one_context_manager_may_be_entered_again_and_again():
    mode = probtorch.no_grad()
    with mode, mode:
        assert not probtorch.is_grad_enabled()
    assert probtorch.is_grad_enabled()
    with mode:
        assert not probtorch.is_grad_enabled()


@pytest.mark.parametrize(
    "decorate",
    [
        probtorch.no_grad,
        probtorch.no_grad(),
        probtorch.inference_mode(),
        probtorch.stop_gradient,
        lambda fn: set_grad_enabled(False)(fn),
    ],
)
def test_a_mode_holds_in_the_body_of_a_generator_and_not_for_who_consumes_it(decorate):
    seen = []

    @decorate
    def body(stop):
        """What is drawn."""
        try:
            for k in range(stop):
                seen.append(probtorch.is_grad_enabled())
                try:
                    sent = yield k
                except ValueError:
                    sent = "thrown"
                seen.append((sent, probtorch.is_grad_enabled()))
        finally:
            seen.append(("closed", probtorch.is_grad_enabled()))
        return "end"

    def consume():
        result = yield from body(3)
        seen.append(result)

    assert probtorch.is_grad_enabled() and body.__doc__ == "What is drawn."
    turns = consume()
    assert next(turns) == 0 and probtorch.is_grad_enabled()
    assert turns.send("sent") == 1 and probtorch.is_grad_enabled()
    assert turns.throw(ValueError) == 2 and probtorch.is_grad_enabled()
    assert list(turns) == [] and probtorch.is_grad_enabled()
    assert seen == [
        False,
        ("sent", False),
        False,
        ("thrown", False),
        False,
        (None, False),
        ("closed", False),
        "end",
    ]
    del seen[:]
    unfinished = body(2)
    next(unfinished)
    unfinished.close()
    assert seen == [False, ("closed", False)] and probtorch.is_grad_enabled()


def test_set_grad_enabled_as_a_decorator_leaves_the_setting_alone():
    decorate = set_grad_enabled(False)

    @decorate
    def inside():
        return probtorch.is_grad_enabled()

    assert probtorch.is_grad_enabled()
    assert not inside() and probtorch.is_grad_enabled()


@pytest.mark.parametrize("start", ["grad", "backward"])
def test_the_gradient_of_a_leaf_has_its_dtype(start):
    x = probtorch.ones(3, 3, dtype=probtorch.float64, requires_grad=True)
    vector = probtorch.ones(3, dtype=probtorch.float32)
    if start == "grad":
        (g,) = grad(x.diagonal(), x, vector)
    else:
        x.diagonal().backward(vector)
        g = x.grad
    assert g.dtype == probtorch.float64 and g.diagonal().tolist() == [1.0, 1.0, 1.0]
