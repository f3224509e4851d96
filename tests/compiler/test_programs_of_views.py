"""Random programs of views and changes in place, with the gradients taken inside, compiled."""

import numpy as np
import pytest

import probtorch
from probtorch.errors import AutogradError
from probtorch.testing import assert_close
from tests.autograd.test_views import X
from tests.autograd.view_programs import Tape, program


def function_of(steps):
    """What a program computes of its input: the loss, its gradient, and all others on the way."""

    def fn(x):
        run = Tape(probtorch, X)
        run.x = run.values["x"] = x
        run.run(steps)
        total = sum(run.kept)
        found = [total, *run.started]
        if total.requires_grad:
            found += probtorch.autograd.grad(total, x, allow_unused=True)
        return [t for t in found if t is not None]

    return fn


def check(seed):
    rng = np.random.default_rng(seed)
    fn = function_of(program(rng, int(rng.integers(4, 22))))
    inputs = [probtorch.tensor(X * k, requires_grad=True) for k in (1.0, 1.3, 0.7)]
    try:
        expected = [fn(x) for x in inputs]
    except AutogradError:
        return  # what is refused is refused in both
    compiled = probtorch.compile(fn)
    for x, wanted in zip(inputs, expected, strict=True):
        for a, b in zip(compiled(x), wanted, strict=True):
            assert a.requires_grad == b.requires_grad
            assert_close(a.detach(), b.detach())
    assert compiled.reason is None


@pytest.mark.parametrize("seed", range(12))
def test_compiled_programs_of_views_are_the_eager_ones(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_compiled_programs_of_views_are_the_eager_ones(part):
    for seed in range(100 + 100 * part, 200 + 100 * part):
        check(seed)
