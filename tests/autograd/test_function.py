"""`Function`: derivatives written by hand, in both modes, and the mistakes one can make there."""

import gc
import weakref

import numpy as np
import pytest

import probtorch
from probtorch.autograd import Function, once_differentiable
from probtorch.errors import ArgumentError, AutogradError, NotDifferentiableError, ShapeError
from probtorch.func import grad, jvp
from probtorch.testing import assert_close
from tests.derivatives import gradcheck, gradgradcheck


def leaf(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64, requires_grad=True)


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3.0 * x * x

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 3.0 * x * x


class Exponential(Function):
    """Saves its own output."""

    @staticmethod
    def forward(ctx, x):
        y = probtorch.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class ScaledPair(Function):
    """Two outputs, a number among the arguments, and an output without a gradient."""

    @staticmethod
    def forward(ctx, x, scale, y):
        ctx.scale = scale
        largest = probtorch.argmax(x)
        ctx.mark_non_differentiable(largest)
        return x * scale, y * scale, largest

    @staticmethod
    def backward(ctx, gx, gy, _):
        return gx * ctx.scale, None, gy * ctx.scale


class NewStyle(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


def test_first_and_second_derivative_agree_with_differences():
    for function in (Cube, Exponential):
        assert gradcheck(function.apply, leaf(0.5, -1.2))
        assert gradgradcheck(function.apply, leaf(0.5, -1.2))


def test_setup_context_style():
    assert gradcheck(NewStyle.apply, (leaf(0.5, 2.0), leaf(3.0, 4.0)))


def test_the_rule_is_used_and_not_the_tape():
    class Lying(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            return g * 100.0

    x = leaf(1.0)
    Lying.apply(x).sum().backward()
    assert_close(x.grad, [100.0])


def test_several_outputs_and_plain_arguments():
    x, y = leaf(1.0, 2.0), leaf(3.0)
    a, b, largest = ScaledPair.apply(x, 10.0, y)
    assert not largest.requires_grad and largest.item() == 1
    (a.sum() * b.sum()).backward()
    assert_close(x.grad, [300.0, 300.0])
    assert_close(y.grad, [300.0])


def test_output_that_took_no_part_arrives_as_zeros():
    x, y = leaf(1.0, 2.0), leaf(3.0)
    a, _, _ = ScaledPair.apply(x, 10.0, y)
    a.sum().backward()
    assert_close(x.grad, [10.0, 10.0])
    assert_close(y.grad, [0.0])


def test_output_that_took_no_part_arrives_as_none_on_request():
    seen = []

    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1.0, x * 2.0

        @staticmethod
        def backward(ctx, g, h):
            seen.append(h)
            return g

    x = leaf(1.0)
    Two.apply(x)[0].sum().backward()
    assert seen == [None]
    assert_close(x.grad, [1.0])


def test_needs_input_grad_tells_what_is_wanted():
    seen = []

    class Product(Function):
        @staticmethod
        def forward(ctx, x, y, z):
            seen.append(ctx.needs_input_grad)
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g, None, None

    Product.apply(leaf(1.0), probtorch.ones(1), 3.0)
    with probtorch.no_grad():
        Product.apply(leaf(1.0), probtorch.ones(1), 3.0)
    assert seen == [(True, False, False), (False, False, False)]


def test_returned_argument_gets_a_place_of_its_own():
    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 7.0

    x = leaf(2.0)
    y = Identity.apply(x)
    assert y is not x and x.is_leaf
    y.sum().backward()
    assert_close(x.grad, [7.0])


def test_forward_mode_uses_the_jvp_method():
    x, t = probtorch.tensor([2.0]), probtorch.tensor([1.0])
    value, tangent = jvp(Cube.apply, (x,), (t,))
    assert_close(value, [8.0])
    assert_close(tangent, [12.0])


def test_forward_mode_without_a_jvp_method_takes_two_reverse_passes():
    x, t = probtorch.tensor([2.0]), probtorch.tensor([3.0])
    value, tangent = jvp(lambda x: Exponential.apply(x) * x, (x,), (t,))
    assert_close(value, [2 * np.exp(2.0)], rtol=1e-6)
    assert_close(tangent, [3 * 3 * np.exp(2.0)], rtol=1e-6)


def test_works_under_nested_transforms():
    d3 = grad(grad(grad(lambda x: Cube.apply(x) * x)))
    assert_close(d3(probtorch.tensor(2.0)), 48.0)


def test_saved_tensor_changed_in_place_is_noticed():
    x = leaf(1.0)
    h = x * 1.0
    y = Cube.apply(h)
    h.add_(1.0)
    with pytest.raises(AutogradError, match="Cube"):
        y.sum().backward()


def test_saved_output_does_not_keep_itself_alive():
    x = leaf(1.0)
    gc.disable()
    try:
        y = Exponential.apply(x)
        watch = weakref.ref(y)
        del y
        assert watch() is None
    finally:
        gc.enable()


def test_once_differentiable_refuses_a_second_derivative():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return probtorch.from_numpy(x.detach().numpy() ** 2)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * probtorch.from_numpy(2 * x.detach().numpy())

    x = leaf(3.0)
    Square.apply(x).sum().backward()
    assert_close(x.grad, [6.0])
    (g,) = probtorch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
    assert_close(g, [6.0])
    with pytest.raises(NotDifferentiableError, match="once_differentiable"):
        g.sum().backward()


def test_gradient_that_broadcasts_is_summed_and_another_shape_refused():
    def with_gradient_of(shape):
        class Broken(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1.0

            @staticmethod
            def backward(ctx, g):
                return probtorch.ones(shape).double()

        x = leaf(1.0)
        Broken.apply(x).sum().backward()
        return x.grad

    assert_close(with_gradient_of((3, 1)), [3.0])
    x = leaf(1.0, 2.0)

    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return probtorch.ones(3)

    with pytest.raises(ShapeError, match=r"Wrong.backward\n  expected: a gradient of shape \(2,\)"):
        Wrong.apply(x).sum().backward()


def test_wrong_number_of_gradients_is_refused():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(ArgumentError, match="2 results, one per argument of forward"):
        Wrong.apply(leaf(1.0), leaf(2.0)).sum().backward()


def test_forward_must_return_a_tensor():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return 3.0

    with pytest.raises(ArgumentError, match=r"Wrong.forward\n  expected: a tensor"):
        Wrong.apply(leaf(1.0))


# ------------------------------------------------------------------------------------ marked dirty


class AddOne(Function):
    """Adds 1 in place; the gradient passes."""

    @staticmethod
    def forward(ctx, x):
        x.add_(1.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Exp(Function):
    """The exponential in place, whose gradient reads the result."""

    @staticmethod
    def forward(ctx, x):
        x.copy_(x.exp())
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


def test_a_tensor_that_is_marked_dirty_is_the_result():
    w = probtorch.tensor([0.5, -1.0], dtype=probtorch.float64, requires_grad=True)
    x = w * 2.0
    before = x * 3.0
    y = Exp.apply(x)
    assert y is x
    after = x * x
    (before.sum() + after.sum()).backward()
    expected = 6.0 + 4.0 * (4.0 * w).exp()
    assert_close(w.grad, expected.detach())


def test_dirty_tensors_chain_and_are_compiled():
    def fn(x):
        y = Exp.apply(AddOne.apply(AddOne.apply(x * 3.0)))
        return (y * y).sum()

    compiled = probtorch.compile(probtorch.func.value_and_grad(fn))
    for k in range(3):
        x = probtorch.tensor([0.1 * k, -0.5], dtype=probtorch.float64)
        squares = (6.0 * x + 4.0).exp()
        slope, value = compiled(x)[::-1]
        assert_close(value, squares.sum())
        assert_close(slope, 6.0 * squares)
    x = probtorch.tensor([1.0])
    assert AddOne.apply(x) is x and x.item() == 2.0


def test_what_was_saved_is_checked_after_later_changes_of_a_dirty_tensor():
    w = probtorch.tensor([0.5], requires_grad=True)
    y = Exp.apply(w * 1.0)
    y.mul_(2.0)
    with pytest.raises(AutogradError, match="modified in place"):
        y.sum().backward()


def test_what_cannot_be_dirty_says_so():
    class Forgotten(AddOne):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2.0

    w = probtorch.tensor([0.5, 1.0], requires_grad=True)
    with pytest.raises(ArgumentError, match="not returned"):
        Forgotten.apply(w * 1.0)
    with pytest.raises(AutogradError, match="leaf"):
        AddOne.apply(w)
    with pytest.raises(AutogradError, match="view"):
        AddOne.apply((w * 1.0)[0:1])


def test_a_call_of_an_instance_names_apply():
    with pytest.raises(ArgumentError, match=r"Cube.apply\(x\)"):
        Cube()(leaf(1.0))
