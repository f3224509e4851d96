"""The tape read backwards: what is accumulated where, what is kept and freed, what is refused."""

import gc
import weakref

import numpy as np
import pytest

import probtorch
from probtorch.autograd import backward, grad
from probtorch.core.dispatch import apply
from probtorch.core.op import Op
from probtorch.errors import ArgumentError, AutogradError, ShapeError
from probtorch.testing import assert_close


def leaf(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64, requires_grad=True)


def test_gradient_of_a_product_is_the_other_factor():
    x, y = leaf(2.0, 3.0), leaf(5.0, 7.0)
    (x * y).sum().backward()
    assert_close(x.grad, [5.0, 7.0])
    assert_close(y.grad, [2.0, 3.0])


def test_gradients_add_up_over_calls():
    x = leaf(2.0)
    for _ in range(3):
        (x * x).sum().backward()
    assert_close(x.grad, [12.0])


def test_tensor_used_twice_gets_both_contributions():
    x = leaf(3.0)
    y = x * 2.0
    (y * y + y).sum().backward()
    assert_close(x.grad, [2 * (2 * 6.0 + 1)])


def test_chain_of_100_000_nodes_differentiates():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y * 1.0
    y.sum().backward()
    assert_close(x.grad, [1.0])


def test_long_chain_is_freed_without_recursion():
    y = leaf(1.0)
    first = weakref.ref(y)
    for _ in range(100_000):
        y = y + 1.0
    assert first() is not None
    del y
    assert first() is None


def test_second_pass_over_a_freed_graph_names_the_op():
    x = leaf(2.0)
    y = x * x
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(AutogradError, match="graph of mul was already freed") as caught:
        y.sum().backward()
    assert "retain_graph=True" in str(caught.value)
    assert_close(x.grad, [8.0])


def test_backward_frees_what_it_does_not_keep():
    x = leaf(2.0)
    hidden = x * 3.0
    watch = weakref.ref(hidden)
    y = (hidden * hidden).sum()
    del hidden
    y.backward()
    gc.collect()
    assert watch() is None


def test_backward_needs_a_scalar_or_a_gradient():
    y = leaf(1.0, 2.0) * 2.0
    with pytest.raises(AutogradError, match=r"got:      shape \(2,\)") as caught:
        y.backward()
    assert ".sum() or .mean()" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


def test_backward_takes_a_gradient_per_element():
    x = leaf(1.0, 2.0)
    (x * x).backward(probtorch.tensor([1.0, 10.0], dtype=probtorch.float64))
    assert_close(x.grad, [2.0, 40.0])
    x.grad = None
    (x * x).backward(np.array([1.0, 10.0]))
    assert_close(x.grad, [2.0, 40.0])


def test_gradient_of_the_wrong_shape_is_refused():
    with pytest.raises(ShapeError, match=r"expected: a gradient of shape \(2,\)"):
        (leaf(1.0, 2.0) * 2.0).backward(probtorch.ones(3))


def test_output_without_requires_grad_is_refused():
    with pytest.raises(AutogradError, match="does not require grad") as caught:
        probtorch.ones(3).sum().backward()
    assert "requires_grad=True" in str(caught.value)


def test_grad_returns_without_touching_the_leaves():
    x, y = leaf(2.0), leaf(3.0)
    gx, gy = grad((x * y).sum(), [x, y])
    assert_close(gx, [3.0])
    assert_close(gy, [2.0])
    assert x.grad is None and y.grad is None


def test_grad_with_respect_to_a_value_on_the_way():
    x = leaf(2.0)
    h = x * 3.0
    (g,) = grad((h * h).sum(), h)
    assert_close(g, [12.0])


def test_grad_visits_only_the_nodes_between_output_and_input():
    x = leaf(2.0)
    h = x.exp()
    visited = []
    h.register_hook(lambda g: visited.append(g))
    w = leaf(3.0)
    grad((h * w).sum(), w)
    assert visited == []
    # The part of the graph that was not visited is still whole.
    h.sum().backward()
    assert_close(x.grad, [np.exp(2.0)])


def test_unused_input_raises_or_gives_none_or_zeros():
    x, y = leaf(1.0), leaf(1.0, 2.0)
    out = (x * x).sum()
    with pytest.raises(AutogradError, match="input 1 is not part of the graph"):
        grad(out, [x, y], retain_graph=True)
    assert grad(out, [x, y], retain_graph=True, allow_unused=True)[1] is None
    assert_close(grad(out, [x, y], materialize_grads=True)[1], [0.0, 0.0])


def test_input_that_does_not_require_grad_is_refused():
    x = leaf(1.0)
    with pytest.raises(AutogradError, match="input 0 does not require grad"):
        grad(x.sum(), probtorch.ones(1))


def test_empty_inputs_are_refused():
    with pytest.raises(ArgumentError, match="inputs is empty"):
        backward(leaf(1.0).sum(), inputs=[])


def test_backward_into_chosen_inputs_leaves_the_others():
    x, y = leaf(2.0), leaf(3.0)
    h = x * y
    (h * h).sum().backward(inputs=[x, h])
    assert_close(x.grad, [2 * 6.0 * 3.0])
    assert_close(h.grad, [12.0])
    assert y.grad is None


def test_several_outputs_are_summed():
    x = leaf(2.0)
    backward([x.sum() * 2.0, (x * x).sum()])
    assert_close(x.grad, [6.0])
    (g,) = grad([x * 2.0, x * x], x, [probtorch.ones(1).double(), None])
    assert_close(g, [6.0])


def test_number_of_gradients_must_match_the_outputs():
    x = leaf(2.0)
    with pytest.raises(ArgumentError, match="gradients do not match the outputs"):
        grad([x.sum(), x.sum()], x, [None])


def test_output_may_be_its_own_input():
    x = leaf(2.0)
    assert_close(grad(x.sum() * 0.0 + x[0], x)[0], [1.0])
    y = x[0]
    assert_close(grad(y, y)[0], 1.0)
    assert_close(grad(x, x, np.array([4.0]))[0], [4.0])


def test_create_graph_makes_the_gradient_differentiable():
    x = leaf(2.0)
    (g,) = grad((x * x * x).sum(), x, create_graph=True)
    (gg,) = grad(g.sum(), x, create_graph=True)
    (ggg,) = grad(gg.sum(), x)
    assert_close(g, [12.0])
    assert_close(gg, [12.0])
    assert_close(ggg, [6.0])
    assert not ggg.requires_grad


def test_second_derivative_through_backward_and_grad_attributes():
    x = leaf(2.0)
    (x * x * x).sum().backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.sum().backward()
    assert_close(x.grad, [12.0])


def test_gradient_has_the_dtype_and_shape_of_its_leaf():
    x = probtorch.tensor([1.0, 2.0], requires_grad=True)
    y = probtorch.tensor([[1.0], [2.0]], dtype=probtorch.float64, requires_grad=True)
    (x * y).sum().backward()
    assert x.grad.dtype == np.float32 and x.grad.shape == (2,)
    assert y.grad.dtype == np.float64 and y.grad.shape == (2, 1)


def test_leaves_do_not_share_the_memory_of_their_gradients():
    x, y = leaf(1.0), leaf(2.0)
    (x + y).sum().backward()
    x.grad.zero_()
    assert_close(y.grad, [1.0])


# ---------------------------------------------------------------------------------- several outputs


def _halves_vjp(g, out, inputs, attrs, needs):
    left, right = g
    (x,) = inputs
    n = x.shape[0] // 2
    zeros = probtorch.zeros(n, dtype=x.dtype)
    return (probtorch.cat([zeros if left is None else left, zeros if right is None else right]),)


HALVES = Op(
    "halves",
    "structured",
    lambda x: (x[: len(x) // 2].copy(), x[len(x) // 2 :].copy()),
    _halves_vjp,
    num_outputs=2,
    saves=(),
)


def test_op_with_two_outputs_collects_both_cotangents():
    x = leaf(1.0, 2.0, 3.0, 4.0)
    left, right = apply(HALVES, (x,))
    (left * right).sum().backward()
    assert_close(x.grad, [3.0, 4.0, 1.0, 2.0])


def test_output_that_took_no_part_has_no_cotangent():
    x = leaf(1.0, 2.0)
    left, right = apply(HALVES, (x,))
    (right * 5.0).sum().backward()
    assert_close(x.grad, [0.0, 5.0])
    assert left.grad_fn is right.grad_fn


def test_output_used_twice_adds_its_cotangents():
    x = leaf(1.0, 2.0)
    left, _ = apply(HALVES, (x,))
    (left * left + left).sum().backward()
    assert_close(x.grad, [3.0, 0.0])


def test_grad_with_respect_to_one_of_two_outputs():
    left, right = apply(HALVES, (leaf(1.0, 2.0),))
    loss = (left * 3.0 + right * 4.0).sum()
    assert_close(grad(loss, right)[0], [4.0])


def test_hook_on_one_of_two_outputs_changes_only_its_cotangent():
    x = leaf(1.0, 2.0)
    left, right = apply(HALVES, (x,))
    left.register_hook(lambda g: g * 10.0)
    (left + right).sum().backward()
    assert_close(x.grad, [10.0, 1.0])


def test_in_place_change_of_one_output_keeps_the_index():
    x = leaf(1.0, 2.0)
    left, right = apply(HALVES, (x,))
    before = right * 2.0
    right.mul_(3.0)
    (before + right).sum().backward()
    assert_close(x.grad, [0.0, 5.0])
    assert left.requires_grad


# -------------------------------------------------------------------------------------------- hooks


def test_hook_sees_and_may_replace_the_gradient():
    x = leaf(2.0)
    seen = []
    h = x * 3.0
    h.register_hook(lambda g: seen.append(g.item()))
    h.register_hook(lambda g: g * 10.0)
    (h * 2.0).sum().backward()
    assert seen == [2.0]
    assert_close(x.grad, [60.0])


def test_hook_on_a_leaf_runs_once_with_the_whole_gradient():
    x = leaf(2.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 3.0 + x * 4.0).sum().backward()
    assert seen == [7.0]
    x.register_hook(lambda g: g * 2.0)
    assert_close(grad((x * 5.0).sum(), x)[0], [10.0])


def test_removed_hook_is_silent():
    x = leaf(2.0)
    handle = x.register_hook(lambda g: g * 0.0)
    handle.remove()
    handle.remove()
    x.sum().backward()
    assert_close(x.grad, [1.0])


def test_hook_needs_a_gradient():
    with pytest.raises(AutogradError, match="register_hook"):
        probtorch.ones(1).register_hook(print)


def test_retain_grad_fills_a_value_on_the_way_once():
    x = leaf(2.0)
    h = x * 3.0
    h.retain_grad()
    h.retain_grad()
    assert h.retains_grad and not x.retains_grad
    (h * h).sum().backward()
    assert_close(h.grad, [12.0])
    assert_close(x.grad, [36.0])
    x.retain_grad()


def test_error_in_a_hook_leaves_the_grad_mode_as_it_was():
    x = leaf(2.0)
    h = x * 2.0

    def fail(g):
        raise KeyError("on purpose")

    h.register_hook(fail)
    with pytest.raises(KeyError, match="on purpose"):
        h.sum().backward()
    assert probtorch.is_grad_enabled()


def test_hooks_after_accumulation_see_the_leaf_with_its_gradient():
    x, y, seen = leaf(1.0, 2.0), leaf(3.0), []
    handle = x.register_post_accumulate_grad_hook(lambda t: seen.append((t is x, t.grad.tolist())))
    ((x * x).sum() * y).sum().backward()
    ((x * x).sum() * y).sum().backward()
    assert seen == [(True, [6.0, 12.0]), (True, [12.0, 24.0])]
    grad((x * x).sum(), x)  # leaves every .grad as it is
    handle.remove()
    (x * x).sum().backward()
    assert len(seen) == 2
    for wrong in (x.detach(), x * 2.0):
        with pytest.raises(AutogradError, match="a leaf that requires grad"):
            wrong.register_post_accumulate_grad_hook(print)


def test_an_optimizer_may_step_in_the_backward_pass():
    def train(in_backward):
        w = [leaf(0.5, -1.0), leaf(2.0)]
        steps = {p: probtorch.optim.Adam([p], lr=0.1) for p in w}

        def step(p):
            steps[p].step()
            p.grad = None

        if in_backward:
            for p in w:
                p.register_post_accumulate_grad_hook(step)
        for _ in range(5):
            ((w[0] * w[1]).exp().sum() + w[1].square()).sum().backward()
            if not in_backward:
                for p in w:
                    step(p)
        return w

    for one, other in zip(train(True), train(False), strict=True):
        assert_close(one, other, rtol=1e-12)


def test_a_hook_after_accumulation_makes_a_compiled_function_eager():
    seen = []

    def fn(x):
        w = (x * 1.0).detach().requires_grad_()
        w.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
        (w * w).sum().backward()
        return w.grad * 1.0

    compiled = probtorch.compile(fn)
    with pytest.warns(probtorch.compiler.paths.CompileWarning, match="a hook"):
        assert_close(compiled(probtorch.tensor([0.0])), [0.0])
    for i in range(1, 4):
        assert_close(compiled(probtorch.tensor([float(i)])), [2.0 * i])
    assert seen == [[0.0], [2.0], [4.0], [6.0]]
