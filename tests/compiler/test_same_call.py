"""Calls like the one before go a shorter way; whatever differs from it is still another version."""

import numpy as np
import pytest

from probtorch.autograd.modes import no_grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.dtype import float64
from probtorch.tensor import tensor


def warm(fn, *args):
    """Return `fn` compiled, after calls that were all alike."""
    compiled = compile(fn)
    for _ in range(6):
        compiled(*args)
    return compiled


def described(x, *rest):
    """What Python may ask of the first of its arguments; and a number that depends on it."""
    items = x if isinstance(x, (tuple, list)) else [*x.values()] if isinstance(x, dict) else [x]
    names = float(sum(i * ord(k[0]) for i, k in enumerate(x, 1))) if isinstance(x, dict) else 0.0
    kind = 100.0 * isinstance(x, tuple) + names
    total = sum(t.sum() * (i + 1.0) for i, t in enumerate(items))
    return total + kind + x_of(items[0]) + sum(r * 1000.0 for r in rest)


def x_of(t):
    return 10.0 * t.requires_grad + float(t.array.ndim) + float(t.array.itemsize)


a, b = tensor([1.0, 2.0]), tensor([3.0, 4.0])


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((a,), (tensor([1.0, 2.0], dtype=float64),)),
        ((a,), (tensor([[1.0, 2.0]]),)),
        ((a,), (tensor([1.0, 2.0], requires_grad=True),)),
        (([a, b],), ((a, b),)),
        (([a, b],), ([a],)),
        (({"u": a, "v": b},), ({"v": a, "u": b},)),
        ((a, 2), (a, 2.5)),
        ((a, 1), (a, True)),
        ((a, 2), (a,)),
    ],
    ids=str,
)
def test_other_arguments_after_calls_that_were_alike_are_told_apart(first, then):
    compiled = warm(described, *first)
    for args in (then, first, then):
        assert float(compiled(*args)) == float(described(*args))


def test_the_sign_of_zero_and_one_tensor_twice_are_told_from_what_was_before():
    signed = warm(lambda x, n: x * float(np.copysign(1.0, n)), a, 0.0)
    assert signed(a, -0.0).tolist() == [-1.0, -2.0]
    assert signed(a, 0.0).tolist() == [1.0, 2.0]
    same = warm(lambda x, y: x + (10.0 if x is y else y), a, b)
    assert same(a, a).tolist() == [11.0, 12.0]
    assert same(a, b).tolist() == [4.0, 6.0]


def test_python_values_outside_are_watched_after_calls_that_were_alike():
    class Scale:
        factor = 2.0

    scale = Scale()
    compiled = warm(lambda x: x * scale.factor, a)
    scale.factor = 3.0
    assert compiled(a).tolist() == [3.0, 6.0]
    method = warm(lambda s, x: x * s.factor, scale, a)
    scale.factor = 4.0
    assert method(scale, a).tolist() == [4.0, 8.0]
    other = Scale()
    assert method(other, a).tolist() == [2.0, 4.0]


def test_modes_and_hooks_set_after_calls_that_were_alike_count():
    w = tensor([1.0, 1.0], requires_grad=True)
    compiled = compile(lambda x: (x * w).sum())
    with no_grad():
        for _ in range(6):
            assert not compiled(a).requires_grad
    assert compiled(a).requires_grad
    x = tensor([1.0, 2.0], requires_grad=True)
    compiled(x)
    x.register_hook(lambda g: g * 2.0)
    with pytest.warns(CompileWarning, match="hook"):
        compiled(x).backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_an_argument_that_is_not_contiguous_is_read_as_it_is():
    compiled = warm(lambda x: x * 2.0, tensor(np.zeros((2, 3))))
    turned = tensor(np.arange(6.0).reshape(3, 2)).T
    assert compiled(turned).tolist() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]
