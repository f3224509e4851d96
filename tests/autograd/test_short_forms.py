"""What is done on arrays where nobody watches gives the bits of what is done on tensors."""

import math

import numpy as np
import pytest

import probtorch as pt
from probtorch.core.op import REGISTRY
from probtorch.testing.domains import DOMAINS

PLAIN = sorted(name for name, op in REGISTRY.items() if op.plain)


def _bits(tensors):
    return [(t.array.shape, t.array.dtype, t.array.tobytes()) for t in tensors]


def _gradients(op, operands):
    leaves = [pt.tensor(x, requires_grad=True) for x in operands]
    y = op.public(*leaves)
    weights = pt.tensor(np.linspace(0.5, 2.0, y.numel()).reshape(y.shape), dtype=y.dtype)
    (y * weights).sum().backward()
    return [x.grad for x in leaves if x.grad is not None]


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
@pytest.mark.parametrize("shapes", [((), ()), ((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), ())])
@pytest.mark.parametrize("name", PLAIN)
def test_gradients_are_the_same_watched_and_unwatched(name, shapes, dtype):
    op, rng = REGISTRY[name], np.random.default_rng(0)
    operands = [
        np.asarray(DOMAINS[domain].draw(rng, shape)).astype(dtype)
        for domain, shape in zip(op.domain, shapes, strict=False)
    ]
    unwatched = _gradients(op, operands)
    with pt.autograd.detect_anomaly(check_nan=False):
        watched = _gradients(op, operands)
    assert unwatched and _bits(unwatched) == _bits(watched)


def test_arithmetic_has_short_forms():
    assert {"add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "tanh"} <= set(PLAIN)


def test_numbers_beside_tensors_have_no_gradient_and_keep_the_dtype():
    x = pt.tensor([1.0, 2.0], dtype=pt.float32, requires_grad=True)
    ((3 / x - 2) * 0.5).sum().backward()
    assert x.grad.dtype == pt.float32
    assert x.grad.tolist() == [-1.5, -0.375]


def test_a_hook_sees_and_replaces_the_cotangent_of_a_short_form():
    x = pt.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2.0
    y.register_hook(lambda g: g * 10.0)
    (y * 3.0).sum().backward()
    assert x.grad.tolist() == [60.0, 60.0]


def test_an_operand_that_changed_is_refused():
    x, y = pt.ones(2).requires_grad_(), pt.ones(2)
    z = (x * y).sum()
    y.mul_(2.0)
    with pytest.raises(pt.errors.AutogradError, match="modified in place"):
        z.backward()


@pytest.mark.parametrize("fn", ["amax", "amin", "max", "min"])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_an_extreme_of_few_elements_finds_nan_anywhere(fn, place):
    x = pt.arange(8.0)
    x[place] = math.nan
    assert math.isnan(getattr(x, fn)().item())


def test_an_extreme_has_memory_of_its_own():
    x = pt.tensor([1.0, 3.0, 2.0])
    top, kept = x.amax(), x.amax(0, keepdim=True)
    x.zero_()
    assert (top.item(), kept.tolist()) == (3.0, [3.0])


def test_dot_of_one_number_has_infinities_as_products_do():
    assert math.isnan(pt.dot(pt.tensor([0.0]), pt.tensor([math.inf])).item())


def test_mul_in_place_writes_where_views_see_it():
    x = pt.ones(4)
    view = x[1:3]
    assert view.mul_(3.0) is view
    view.mul_(pt.tensor([2.0, 1.0]))
    assert x.tolist() == [1.0, 6.0, 3.0, 1.0]


def test_mul_in_place_by_what_has_a_gradient_is_on_the_tape():
    x, s = pt.ones(2), pt.tensor(3.0, requires_grad=True)
    x.mul_(s)
    x.sum().backward()
    assert s.grad.item() == 2.0
