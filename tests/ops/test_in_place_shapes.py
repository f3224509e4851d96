"""Tensors that take another shape: their memory and views stay what they are."""

import numpy as np
import pytest

import probtorch as torch
from probtorch.errors import AutogradError, ShapeError

CHANGES = {
    "t_": (lambda x: x.t_(), lambda a: a.T),
    "transpose_": (lambda x: x.transpose_(0, 1), lambda a: a.T),
    "swapaxes_": (lambda x: x.swapaxes_(0, 1), lambda a: a.T),
    "swapdims_": (lambda x: x.swapdims_(0, 1), lambda a: a.T),
    "unsqueeze_": (lambda x: x.unsqueeze_(1), lambda a: a[:, None]),
    "squeeze_": (lambda x: x.unsqueeze_(0).squeeze_(), lambda a: a),
    "as_strided_": (lambda x: x.as_strided_((2,), (3,)), lambda a: a[:, 0]),
    "resize_": (lambda x: x.resize_(3, 2), lambda a: a.reshape(3, 2)),
    "resize_as_": (lambda x: x.resize_as_(torch.zeros(4)), lambda a: a.ravel()[:4]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_tensor_itself_takes_the_shape_and_shares_with_its_views(name):
    change, expected = CHANGES[name]
    x = torch.arange(6.0).reshape(2, 3)
    row = x[0]
    assert change(x) is x
    before = np.arange(6.0, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(x.numpy(), expected(before))
    row.fill_(9.0)
    before[0] = 9.0
    np.testing.assert_array_equal(x.numpy(), expected(before))


@pytest.mark.parametrize("name", CHANGES)
def test_tensors_on_the_tape_are_refused(name):
    change, _ = CHANGES[name]
    leaf = torch.ones(2, 3, requires_grad=True)
    for x in (leaf, leaf * 2.0, (leaf * 2.0)[:, :]):
        with pytest.raises(AutogradError, match=r"x = x\."):
            change(x)


def test_gradients_that_look_at_the_old_shape_are_refused():
    w, c = torch.ones(3, requires_grad=True), torch.ones(2)
    y = torch.cat([w, c])
    c.unsqueeze_(0)
    with pytest.raises(AutogradError, match="the shape of input 1 unchanged"):
        y.sum().backward()


def test_views_of_what_was_turned_follow_changes_on_the_tape():
    x, w = torch.zeros(2, 3), torch.ones(2, requires_grad=True)
    x.t_()
    row = x[1]
    x.mul_(0.0).add_(w)
    (row * torch.tensor([2.0, 3.0])).sum().backward()
    assert w.grad.tolist() == [2.0, 3.0]


def test_resized_tensors_keep_their_first_elements():
    x = torch.arange(4.0)
    x.resize_(2, 3)
    assert x[0].tolist() == [0.0, 1.0, 2.0] and x[1, 0] == 3.0
    with pytest.raises(ShapeError, match="at most 3 elements"):
        x[0].resize_(4)


def test_set_shares_memory():
    x, y = torch.zeros(3), torch.arange(4.0)
    x.set_(y)
    y[0] = 7.0
    assert x.tolist() == [7.0, 1.0, 2.0, 3.0]


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_compiled_functions_that_do_it_run_eagerly_and_right():
    def turned(x):
        y = x * 2.0
        y.t_()
        return y.sum(0)

    compiled = torch.compile(turned)
    for n in (2, 3):
        x = torch.arange(2.0 * n).reshape(2, n)
        assert compiled(x).tolist() == turned(x).tolist()
