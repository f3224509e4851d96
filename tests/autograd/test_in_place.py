"""In-place changes: gradients right before and after them, errors where a value is gone.

The oracle is finite differences of the same program (`gradcheck`), which knows nothing of tapes.
"""

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from probtorch.testing import assert_close
from tests.derivatives import gradcheck


def leaf(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64, requires_grad=True)


def middle(x):
    """A value on the way: in-place changes of leaves are refused."""
    return x * 1.0


def changed_after_use(x):
    h = middle(x)
    y = h * 2.0
    h.add_(1.0)
    return y + h * h


def multiplied_by_a_number(x):
    return middle(x).mul_(3.0)


def multiplied_by_itself(x):
    h = middle(x)
    h.mul_(h)
    return h


def multiplied_by_another(x):
    h = middle(x)
    h.mul_(x.sin())
    return h * h


def exponential_in_place(x):
    h = middle(x).exp_()
    return h * h


def filled_buffer(x):
    out = probtorch.zeros(3, dtype=probtorch.float64)
    out[0] = x[1] * 2.0
    out[1:] = x[:2] * x[1:]
    return out * x


def scattered(x):
    h = middle(x)
    h[[2, 0]] = h[[0, 1]] * x[0]
    return h * x


def part_added_to(x):
    h = middle(x)
    h[0] += x[2]
    h[1:] *= x[:2]
    return h * h


def view_changed(x):
    h = middle(x)
    view = h[1:]
    view.mul_(x[0])
    return h * h, view * 2.0


def view_of_a_view_changed(x):
    h = probtorch.stack([x, x * 2.0])
    view = h.transpose(0, 1)[1:]
    view[:, 1].exp_()
    return h * h


def reversed_view_changed(x):
    h = middle(x)
    probtorch.flip(h, 0)[:2].mul_(x[:2])
    return h * x


def masked_assignment(x):
    h = middle(x)
    h[h > 1.5] = x[0] * 3.0
    return h * h


def mixed_index_assignment(x):
    h = probtorch.stack([x, x * 2.0, x * 3.0])
    h[[0, 2], 1:] = x[:2] * x[2]
    h[1, [0, 2]] = x[1]
    h[None, ..., 0] = x[2]
    return h * x


def copied(x):
    h, c = middle(x), x.exp()
    h.copy_(c)
    c2 = c * 2.0
    return h * h + c2


def copied_then_source_changed(x):
    h, c = middle(x), x * 2.0
    h.copy_(c)
    c.mul_(5.0)
    return h * c


def filled(x):
    h = middle(x)
    before = h * 3.0
    h.fill_(2.0)
    h.add_(x)
    return before * h


def written_to_out(x):
    h = middle(x)
    probtorch.exp(x, out=h)
    return h * x


def augmented_arithmetic(x):
    h = middle(x)
    h += x
    h -= 2.0
    h *= x
    h /= 4.0
    h **= 2
    return h


PROGRAMS = [
    changed_after_use,
    multiplied_by_a_number,
    multiplied_by_itself,
    multiplied_by_another,
    exponential_in_place,
    filled_buffer,
    scattered,
    part_added_to,
    view_changed,
    view_of_a_view_changed,
    reversed_view_changed,
    masked_assignment,
    mixed_index_assignment,
    copied,
    copied_then_source_changed,
    filled,
    written_to_out,
    augmented_arithmetic,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_gradient_through_an_in_place_change_agrees_with_differences(program):
    assert gradcheck(program, leaf(1.1, 2.3, 0.7))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_value_is_the_same_off_the_tape(program):
    x = leaf(1.1, 2.3, 0.7)
    taped = program(x)
    with probtorch.no_grad():
        plain = program(x)
    taped, plain = (out if isinstance(out, tuple) else (out,) for out in (taped, plain))
    for a, b in zip(taped, plain, strict=True):
        assert_close(a, b, rtol=0, atol=0)


def test_gradient_right_before_and_after_a_change():
    x = leaf(3.0)
    h = x * 2.0
    y = h * 5.0
    h.mul_(7.0)
    z = h * 1.0
    assert_close(probtorch.autograd.grad(y.sum(), x, retain_graph=True)[0], [10.0])
    assert_close(probtorch.autograd.grad(z.sum(), x)[0], [14.0])


@pytest.mark.parametrize(
    "use, op",
    [
        (lambda h: h.exp(), "exp"),
        (lambda h: h * h, "mul"),
        (lambda h: h.sum() * h, "mul"),
        (lambda h: probtorch.logsumexp(h, 0), "logsumexp"),
        (lambda h: h @ h, "matmul"),
    ],
    ids=["output", "input", "one input", "reduction", "matmul"],
)
def test_value_that_is_needed_but_gone_raises_with_the_name_of_the_op(use, op):
    x = leaf(1.0, 2.0)
    h = middle(x)
    out = use(h)
    with probtorch.no_grad():
        (out if op in ("exp", "logsumexp") else h).add_(1.0)
    with pytest.raises(AutogradError, match=f"{op}: a tensor needed for its gradient") as caught:
        out.sum().backward()
    message = str(caught.value)
    assert "unchanged since the forward pass" in message
    assert "fix:" in message
    assert x.grad is None


def test_change_of_a_value_that_no_gradient_needs_is_harmless():
    x = leaf(1.0, 2.0)
    h = middle(x)
    y = h * 2.0 + h
    h.add_(1.0)
    y.sum().backward()
    assert_close(x.grad, [3.0, 3.0])


def test_change_through_a_view_counts_for_the_base():
    x = leaf(1.0, 2.0)
    h = middle(x)
    y = h * h
    with probtorch.no_grad():
        h[0].zero_()
    with pytest.raises(AutogradError, match="mul"):
        y.sum().backward()


def test_change_through_detached_memory_is_noticed():
    x = leaf(1.0, 2.0)
    y = x * x
    x.detach().add_(1.0)
    with pytest.raises(AutogradError, match="mul"):
        y.sum().backward()


def test_assignment_without_the_tape_is_noticed():
    x = leaf(1.0, 2.0)
    y = x * x
    with probtorch.no_grad():
        x[0] = 9.0
    with pytest.raises(AutogradError, match="mul"):
        y.sum().backward()


def test_new_data_are_noticed():
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    x.data = probtorch.tensor([5.0, 6.0], dtype=probtorch.float64)
    with pytest.raises(AutogradError, match="mul"):
        y.backward()
    (x * x).sum().backward()
    assert_close(x.grad, [10.0, 12.0])


def test_new_data_share_memory_and_versions_with_their_source():
    x, source = leaf(1.0), probtorch.tensor([4.0], dtype=probtorch.float64)
    x.data = source
    y = x * x
    source.add_(1.0)
    assert_close(x, [5.0])
    with pytest.raises(AutogradError, match="mul"):
        y.sum().backward()


def test_leaf_that_requires_grad_refuses():
    x = leaf(1.0, 2.0)
    for change in (lambda: x.add_(1.0), lambda: x.__setitem__(0, 1.0), lambda: x[0].zero_()):
        with pytest.raises(AutogradError, match="leaf") as caught:
            change()
        assert "no_grad()" in str(caught.value)
    with probtorch.no_grad():
        x.add_(1.0)
    assert_close(x, [2.0, 3.0])


def test_copy_made_by_reshape_is_not_taken_for_a_view():
    x = probtorch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    h = (x * 1.0).T.reshape(4)
    h.add_(1.0)
    h.sum().backward()
    assert_close(x.grad, np.ones((2, 2), np.float32))


def test_result_must_fit_into_the_tensor():
    with pytest.raises(ShapeError, match=r"a result of shape \(2,\)"):
        probtorch.ones(2).add_(probtorch.ones(3, 2))
    with pytest.raises(DTypeError, match="a result of dtype int64"):
        probtorch.tensor([1, 2]).add_(0.5)


def test_read_only_memory_refuses():
    frozen = np.ones(3)
    frozen.setflags(write=False)
    x = probtorch.from_numpy(frozen)
    for change in (lambda: x.add_(1.0), lambda: x.__setitem__(0, 2.0)):
        with pytest.raises(ArgumentError, match="read-only"):
            change()
    assert frozen.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ArgumentError, match="read-only"):
        probtorch.ones(1).expand(3).add_(1.0)


def test_in_place_form_returns_the_tensor_itself():
    x = probtorch.ones(2)
    assert x.add_(1.0) is x
    y = x
    y += 1.0
    assert y is x
    assert x.tolist() == [3.0, 3.0]


def test_in_place_change_shows_in_every_view():
    x = probtorch.zeros(2, 3)
    row, column = x[0], x[:, 1]
    x.T[1] = 5.0
    assert row.tolist() == [0.0, 5.0, 0.0]
    assert column.tolist() == [5.0, 5.0]
    row.fill_(1.0)
    assert x.tolist() == [[1.0, 1.0, 1.0], [0.0, 5.0, 0.0]]


@pytest.mark.parametrize("view", [False, True])
def test_a_result_that_changed_off_the_tape_and_is_gone_raises(view):
    def loss(x):
        y = x.exp()
        total = (y * 1.0).sum()
        with probtorch.no_grad():
            (y[:1] if view else y).add_(1.0)
        return total

    with pytest.raises(AutogradError, match="modified in place"):
        loss(leaf(1.0, 2.0)).backward()


def test_what_hooks_packed_is_not_stale_when_the_result_changed():
    x = leaf(1.0, 2.0)
    with probtorch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = x.exp()
        total = (y * 1.0).sum()
    with probtorch.no_grad():
        y.add_(1.0)
    del y
    total.backward()
    assert_close(x.grad, x.detach().exp())
