"""Compiled functions that draw random numbers and write to tensors made outside."""

import numpy as np
import pytest

from probtorch.autograd import grad, no_grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.rng import Generator
from probtorch.nn.functional import dropout
from probtorch.ops.sampling import exponential, normal, rand, randn, uniform
from probtorch.tensor import tensor


def draws(rng, dtype):
    return (
        rand(3, generator=rng, dtype=dtype),
        randn(2, 2, generator=rng, dtype=dtype),
        uniform(tensor([-1.0, 0.0]), 2.0, generator=rng),
        normal(1.0, 3.0, (5,), generator=rng, dtype=dtype),
        exponential(2.0, (4,), generator=rng, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_compiled_draws_equal_eager_ones_call_by_call(dtype):
    mine, theirs = Generator(5, stream=2), Generator(5, stream=2)
    compiled = compile(lambda x: tuple(x + d for d in draws(mine, dtype)))
    for _ in range(3):
        got = compiled(tensor(0.0))
        # Logarithms and fused products may differ in the last place.
        for a, b in zip(got, draws(theirs, dtype), strict=True):
            assert a.dtype == b.dtype
            rtol = 4e-7 if a.dtype == np.float32 else 1e-15
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol)
    assert compiled.reason is None
    assert mine.get_state() == theirs.get_state()


def test_reseeding_a_generator_reaches_compiled_code():
    rng = Generator(1)
    compiled = compile(lambda x: x + rand(3, generator=rng))
    first = compiled(tensor(0.0)).tolist()
    assert compiled(tensor(0.0)).tolist() != first
    rng.manual_seed(1)
    assert compiled(tensor(0.0)).tolist() == first


def test_a_failed_guard_gives_the_draws_back():
    mine, theirs = Generator(7), Generator(7)

    def step(x, rng):
        u = rand(2, generator=rng)
        return u + 1.0 if x > 0 else u - 1.0

    compiled = compile(lambda x: step(x, mine))
    for x in (1.0, -1.0, 1.0, -1.0, -1.0):
        assert compiled(tensor(x)).tolist() == step(tensor(x), theirs).tolist()
    assert mine.get_state() == theirs.get_state()


def descend(weight, momentum, x, y, rng):
    residual = x @ weight - y + 0.1 * randn(20, generator=rng, dtype=np.float64)
    loss = (residual * residual).mean()
    (g,) = grad(loss, weight)
    with no_grad():
        momentum.mul_(0.9).add_(g)
        weight.sub_(momentum * 0.05)
    return loss.detach()


def test_a_training_step_with_state_outside_equals_the_eager_one():
    numbers = np.random.default_rng(0)
    x, y = tensor(numbers.standard_normal((20, 3))), tensor(numbers.standard_normal(20))

    def run(wrapped):
        weight, momentum = tensor(np.ones(3), requires_grad=True), tensor(np.zeros(3))
        rng = Generator(3)
        step = wrapped(lambda x, y: descend(weight, momentum, x, y, rng))
        losses = [step(x, y).item() for _ in range(50)]
        return step, losses, weight.detach().numpy(), momentum.numpy()

    _, *eager = run(lambda fn: fn)
    step, *compiled = run(compile)
    assert step.reason is None
    for a, b in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_a_write_from_compiled_code_is_seen_by_the_tape():
    state = tensor(np.ones(2))
    bump = compile(lambda x: state.add_(x).sum().detach())
    bump(tensor(np.ones(2)))
    w = tensor(np.ones(2), requires_grad=True)
    product = (w * state).sum()
    bump(tensor(np.ones(2)))
    with pytest.raises(RuntimeError, match="modified in place"):
        product.backward()


def test_a_write_to_memory_read_under_another_name_runs_eagerly():
    base = tensor(np.zeros(4))
    part = base[:2]

    def shift(x):
        base.add_(x)
        return part * 1.0

    shifted = compile(shift)
    with pytest.warns(CompileWarning):
        first = shifted(tensor(np.ones(4))).tolist()
    assert first == [1.0, 1.0]
    assert shifted(tensor(np.ones(4))).tolist() == [2.0, 2.0]


def test_draws_for_a_named_device_are_made_anew():
    compiled = compile(lambda x: x + rand(3, device="cpu") + dropout(x, 0.5))
    x = tensor([1.0, 1.0, 1.0])
    assert len({tuple(compiled(x).tolist()) for _ in range(5)}) == 5
