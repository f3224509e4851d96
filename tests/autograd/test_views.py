"""Gradients through views, whatever changed in place since they were taken."""

import numpy as np
import pytest

import probtorch
from probtorch.errors import AutogradError
from probtorch.testing import assert_close
from tests.autograd.view_programs import ComplexStep, Tape, program


def leaf(*values):
    return probtorch.tensor(values, dtype=probtorch.float64, requires_grad=True)


X = np.linspace(0.3, 1.4, 6)


def gradients(lib, steps):
    """Return loss and gradients, or None where the library refuses."""
    run = Tape(lib, X)
    try:
        run.run(steps)
        return run.gradients()
    except (AutogradError, RuntimeError):
        return None


def close(ours, theirs):
    return all(np.allclose(a, b, 1e-8, 1e-8, equal_nan=True) for a, b in zip(ours, theirs))


def agrees_with_complex_step(seed):
    """Whether a program gives the gradient of what it computes; None if it is refused."""
    rng = np.random.default_rng(seed)
    steps = program(rng, int(rng.integers(4, 22)))
    found = gradients(probtorch, steps)
    if found is None:
        return None
    direction = rng.standard_normal(6)
    oracle = ComplexStep(X, direction)
    oracle.run(steps)
    wanted = oracle.derivatives()
    along = [g @ direction if np.ndim(g) else g for g in found[1]]
    return not np.isfinite(wanted).all() or close(along, wanted)


def agrees_with_torch(seed, off_tape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    steps = program(rng, int(rng.integers(4, 22)), off_tape, shared=False)
    ours, theirs = gradients(probtorch, steps), gradients(torch, steps)
    if ours is None or theirs is None:
        return None
    return close([ours[0], *ours[1]], [theirs[0], *theirs[1]])


def test_random_programs_of_views_have_the_gradients_of_what_they_compute():
    found = [agrees_with_complex_step(seed) for seed in range(300)]
    assert found.count(False) == 0, [i for i, ok in enumerate(found) if ok is False]
    assert found.count(True) > 200  # few are refused


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_of_views_have_the_gradients_of_what_they_compute(part):
    seeds = range(300 + 1000 * part, 1300 + 1000 * part)
    assert [s for s in seeds if agrees_with_complex_step(s) is False] == []


@pytest.mark.parametrize("off_tape", [False, True], ids=["on the tape", "on and off"])
def test_random_programs_of_views_agree_with_torch(off_tape):
    assert [s for s in range(100) if agrees_with_torch(s, off_tape) is False] == []


@pytest.mark.slow
@pytest.mark.parametrize("off_tape", [False, True], ids=["on the tape", "on and off"])
def test_many_random_programs_of_views_agree_with_torch(off_tape):
    assert [s for s in range(100, 5000) if agrees_with_torch(s, off_tape) is False] == []


def test_gradient_starts_from_a_view_taken_before_its_base_changed():
    x = leaf(1.0, 2.0)
    y = x.clone()
    s = y[0]
    y.mul_(10.0)
    s.backward()
    assert_close(x.grad, [10.0, 0.0])


def test_write_through_a_view_taken_before_its_base_changed():
    x = leaf(1.0, 2.0, 3.0)
    y = x.clone()
    s = y[::2]
    y.mul_(2.0)
    s.mul_(3.0)
    y.sum().backward()
    assert_close(x.grad, [6.0, 2.0, 6.0])


def test_view_of_a_view_taken_before_its_base_changed():
    x = leaf(1.0, 2.0, 3.0, 4.0)
    y = x.clone()
    s = y.reshape(2, 2)
    y.mul_(2.0)
    r = s[1]
    s[:, 0].mul_(5.0)
    (r * probtorch.tensor([1.0, 100.0])).sum().backward()
    assert_close(x.grad, [0.0, 0.0, 10.0, 200.0])


def test_view_of_numbers_learns_that_they_depend_on_a_leaf_by_now():
    x = leaf(2.0)
    y = probtorch.zeros(3, dtype=probtorch.float64)
    s = y[1]
    y += x
    assert s.requires_grad
    s.backward()
    assert_close(x.grad, [1.0])


def test_each_use_of_a_view_has_the_gradient_of_its_time():
    x = leaf(1.0, 2.0)
    h = x.clone()
    view = h[:1]
    early = view * 2.0
    h.mul_(3.0)
    late = view * 2.0
    h.mul_(5.0)
    probtorch.cat([early, late, view]).backward(probtorch.tensor([1.0, 10.0, 100.0]))
    assert_close(x.grad, [2.0 + 60.0 + 1500.0, 0.0])


def test_gradient_with_respect_to_a_view_is_of_the_view_as_it_is():
    x = leaf(1.0, 2.0)
    y = x.clone()
    s = y[0]
    y.mul_(10.0)
    (g,) = probtorch.autograd.grad(s * 3.0, s)
    assert_close(g, 3.0)


def test_second_derivatives_go_through_views_that_were_taken_before():
    x = leaf(2.0, 3.0)
    y = x * x
    s = y[1]
    y.mul_(x.detach())
    (g,) = probtorch.autograd.grad(s * s, x, create_graph=True)
    g.sum().backward()
    assert_close(x.grad, [0.0, 12.0 * 9.0 * 9.0])  # s = 3 x**2, s**2 = 9 x**4


def test_view_taken_off_the_tape_cannot_be_changed_on_it():
    y = leaf(1.0, 2.0) * 2.0
    with probtorch.no_grad():
        s = y[0]
    with pytest.raises(AutogradError, match="made off it") as caught:
        s.mul_(2.0)
    assert "detach()" in str(caught.value)


def test_view_from_a_custom_function_cannot_be_changed():
    class First(probtorch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:1]

        @staticmethod
        def backward(ctx, g):
            return probtorch.cat([g * 7.0, g * 0.0])

    y = leaf(1.0, 2.0) * 2.0
    s = First.apply(y)
    with pytest.raises(AutogradError, match="custom Function"):
        s.mul_(2.0)
    y.mul_(2.0)
    with pytest.raises(AutogradError, match="custom Function"):
        s.sum().backward()


def test_memory_shared_with_a_parameter_can_be_written_to_without_its_gradient():
    p, q = leaf(1.0, 2.0), leaf(5.0, 7.0)
    p.data.copy_(q)
    assert_close(p, [5.0, 7.0])
    p.data.mul_(0.9).add_(0.1 * q)
    p.detach().mul_(2.0)
    p.data[0].copy_(q[1])
    assert_close(p, [7.0, 14.0])
    assert p.is_leaf and p.requires_grad and q.grad is None


def test_detached_tensor_that_is_changed_on_the_tape_has_a_gradient_of_its_own():
    y, w = leaf(1.0, 2.0) * 1.0, leaf(3.0, 4.0)
    d = y.detach()
    first = d[0]
    d.mul_(w)
    (g,) = probtorch.autograd.grad(first * 10.0, w)
    assert_close(g, [10.0, 0.0])


def test_what_was_computed_before_detach_in_place_keeps_its_gradient():
    x = leaf(1.0, 2.0)
    y = x * 3.0
    z = y.sum()
    y.detach_()
    z.backward()
    assert_close(x.grad, [3.0, 3.0])
    assert not y.requires_grad


def test_in_place_power_by_its_own_element_is_refused():
    h = leaf(2.0, 3.0).clone()
    h.pow_(h[0])
    with pytest.raises(AutogradError, match="modified in place"):
        h.sum().backward()


def test_view_of_all_off_the_tape_has_no_gradient():
    w = leaf(2.0, 3.0)
    with probtorch.no_grad():
        for old in (w.reshape(-1), w.squeeze(), w[:], w.expand(2), w.permute(0)):
            assert not old.requires_grad


def test_diagonal_can_be_written_to():
    x = leaf(1.0, 2.0)
    m = probtorch.zeros(2, 2, dtype=probtorch.float64)
    m.diagonal().copy_(x)
    m.diagonal().mul_(3.0)
    m.sum().backward()
    assert_close(m.detach(), [[3.0, 0.0], [0.0, 6.0]])
    assert_close(x.grad, [3.0, 3.0])
    with pytest.raises(probtorch.errors.ArgumentError, match="writable"):
        probtorch.zeros(1).expand(3).fill_(2.0)


@pytest.mark.parametrize("base", ["strided", "reversed", "transposed"])
def test_views_of_memory_with_gaps_are_found_in_their_base(base):
    w = leaf(5.0)
    array = np.arange(24.0).reshape(4, 6)
    array = {"strided": array[::2, ::3], "reversed": array[::-1], "transposed": array.T}[base]
    y = probtorch.from_numpy(array)
    before = y.clone()
    s = y[1]
    y.mul_(w)
    s.mul_(w)
    y.sum().backward()
    rest = before.sum() - before[1].sum()
    assert_close(w.grad, [rest.item() + 2 * 5.0 * before[1].sum().item()])


def test_retained_gradient_is_that_of_the_tensor_as_it_is():
    x = leaf(1.0, 2.0)
    a = x * 1.0
    a.retain_grad()
    a.mul_(2.0)
    a.sum().backward()
    assert_close(a.grad, [1.0, 1.0])
    b = leaf(1.0, 2.0) * 1.0
    s = b[0]
    s.retain_grad()
    b.mul_(4.0)
    s.backward()
    assert_close(s.grad, 1.0)


def test_hooks_see_the_tensor_as_it_was_and_retain_grad_comes_last():
    x = leaf(1.0)
    a = x * 1.0
    seen = []
    a.register_hook(lambda g: seen.append(g.item()))
    a.mul_(5.0)
    a.sum().backward()
    assert seen == [5.0]
    b = leaf(1.0) * 1.0
    b.register_hook(lambda g: g * 2.0)
    b.retain_grad()
    b.register_hook(lambda g: g * 2.0)
    b.sum().backward()
    assert_close(b.grad, [4.0])


def test_gradient_of_a_double_leaf_is_double_whatever_starts_it():
    a = leaf(1.0, 2.0, 3.0)
    (g,) = probtorch.autograd.grad(a * 2.0, a, probtorch.ones(3))
    assert g.dtype == probtorch.float64
    (a * 2.0).backward(probtorch.ones(3))
    assert a.grad.dtype == probtorch.float64
