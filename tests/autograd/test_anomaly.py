"""Anomaly mode names the operation and the line that made a nan."""

import inspect
import re

import pytest

import probtorch
import probtorch.distributions
from probtorch.autograd import Function, detect_anomaly, set_detect_anomaly
from probtorch.core.dispatch import recorder
from probtorch.errors import AutogradError


def leaf(*values):
    return probtorch.tensor(list(values), requires_grad=True)


def nan_at_zero(x):
    y = probtorch.sqrt(x * 0.0)  # the culprit
    return (y * x * 0.0).sum()


def line_of(text):
    lines, start = inspect.getsourcelines(nan_at_zero)
    return start + next(i for i, line in enumerate(lines) if text in line)


def test_names_the_forward_operation_and_its_line():
    with (
        detect_anomaly(),
        pytest.raises(AutogradError, match="sqrt: the gradient of input 0") as caught,
    ):
        nan_at_zero(leaf(1.0, 2.0)).backward()
    message = str(caught.value)
    assert re.search(rf"{re.escape(__file__)}:{line_of('the culprit')}$", message)
    assert "first at index (0,) of shape (2,)" in message


def test_off_it_says_nothing():
    x = leaf(1.0)
    nan_at_zero(x).backward()
    assert probtorch.isnan(x.grad).all()


def test_is_undone_after_an_error():
    with pytest.raises(KeyError), detect_anomaly():
        raise KeyError("on purpose")
    assert recorder() is None
    nan_at_zero(leaf(1.0)).backward()


def test_check_nan_false_only_notes_lines():
    x = leaf(1.0)
    with detect_anomaly(check_nan=False):
        nan_at_zero(x).backward()
    assert probtorch.isnan(x.grad).all()


def test_names_a_custom_function():
    class Broken(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    with detect_anomaly(), pytest.raises(AutogradError, match="Broken: the gradient of input 0"):
        Broken.apply(leaf(1.0)).sum().backward()


def test_can_be_switched_on_without_a_block():
    set_detect_anomaly(True)
    try:
        with pytest.raises(AutogradError, match="sqrt"):
            nan_at_zero(leaf(1.0)).backward()
    finally:
        set_detect_anomaly(False)
    nan_at_zero(leaf(1.0)).backward()
    with set_detect_anomaly(True), pytest.raises(AutogradError, match="sqrt"):
        nan_at_zero(leaf(1.0)).backward()
    nan_at_zero(leaf(1.0)).backward()


def test_loops_and_branches_run_as_they_do_without_it():
    with detect_anomaly():
        out = probtorch.while_loop(lambda x: x < 100.0, lambda x: x * 2.0, probtorch.tensor(1.0))
    assert out.item() == 128.0


def test_works_together_with_forward_mode():
    x, t = probtorch.tensor([1.0]), probtorch.tensor([1.0])
    with detect_anomaly():
        _, tangent = probtorch.func.jvp(lambda x: x * x, (x,), (t,))
    assert tangent.item() == 2.0


def test_draws_and_densities_are_what_they_are_without_it():
    def density():
        probtorch.manual_seed(3)
        x = probtorch.rand(4)
        return x, probtorch.distributions.Uniform(0.0, 1.0).mask(x > 0.5).log_prob(x)

    plain = density()
    with detect_anomaly():
        watched = density()
    for a, b in zip(plain, watched, strict=True):
        assert a.tolist() == b.tolist()
