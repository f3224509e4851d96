"""The tape keeps no large operand that no gradient reads, and gradients are what they were."""

import weakref

import numpy as np
import pytest

import probtorch
from probtorch.autograd.kept_inputs import LARGE, Sparing
from probtorch.autograd.tape import grad

ROWS = LARGE // 8


def chain(x):
    y = x.exp()
    ((y + 1.0 - y.sin()) * (-y)).sum().backward()
    return x.grad


def retained_and_hooked_after_use(x):
    seen = []
    y = x * 2.0
    z = y + 1.0
    y.retain_grad()
    z.register_hook(lambda g: seen.append(g) or g * 3.0)
    (-z).sum().backward()
    return y.grad, seen[0], x.grad


def changes_in_place(x):
    y = x * 2.0
    head = y[: ROWS // 2]
    z = y + 1.0
    head.mul_(3.0)
    y.add_(z)
    (y * y + head.sum()).sum().backward()
    return x.grad


def intermediate_results(x):
    y = x.exp()
    z = y + x
    return grad((z - 2.0).square().sum(), [y, z, x])


def second_derivatives(x):
    y = x.sin() + 1.0
    (first,) = grad((y * y - y).sum(), x, create_graph=True)
    (first + y).sum().backward()
    return x.grad


def nested_transforms(x):
    inner = probtorch.func.grad(lambda a: (a + x * 2.0).square().sum())
    (inner(x.exp()) - x).sum().backward()
    return x.grad


def packed(x):
    with probtorch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), probtorch.tensor):
        return chain(x)


@pytest.mark.parametrize(
    "fn",
    [
        chain,
        retained_and_hooked_after_use,
        changes_in_place,
        intermediate_results,
        second_derivatives,
        nested_transforms,
        packed,
    ],
    ids=lambda fn: fn.__name__,
)
def test_gradients_are_those_of_a_tape_that_keeps_all(fn):
    elements = np.random.default_rng(0).normal(size=ROWS)
    wanted = fn(probtorch.tensor(elements, requires_grad=True))
    with Sparing():
        found = fn(probtorch.tensor(elements, requires_grad=True))
    alone = isinstance(wanted, probtorch.Tensor)
    for a, b in zip((wanted,) if alone else wanted, (found,) if alone else found, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


def test_what_no_gradient_reads_is_let_go_and_what_one_reads_is_kept():
    x = probtorch.tensor(np.ones(ROWS), requires_grad=True)
    with Sparing():
        unread, read = x * 2.0, x * 3.0
        arrays = [weakref.ref(t.array) for t in (unread, read)]
        total = (unread + 1.0).sum() + (read * read).sum()
        del unread, read
        assert arrays[0]() is None and arrays[1]() is not None
    total.backward()
    assert np.array_equal(x.grad.numpy(), np.full(ROWS, 20.0))


def test_hooks_pack_what_a_sparing_tape_keeps():
    sizes = []

    def pack(t):
        sizes.append(t.shape)
        return t

    x = probtorch.tensor(np.ones(ROWS), requires_grad=True)
    with Sparing(), probtorch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        (x * 2.0 + 1.0).exp()
    assert sizes == [(ROWS,)]  # the exponentials, which their derivative reads
