"""Every distribution draws in a compiled function what it draws eagerly, gradients included."""

import warnings

import numpy as np
import pytest

from probtorch.autograd.tape import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.rng import default_generator
from probtorch.testing.compare import to_array
from tests.distributions.cases import CASES
from tests.distributions.further_cases import FURTHER, common_or_slow

every_case = pytest.mark.parametrize("case", common_or_slow(), ids=lambda case: case.id)


def parameters(case):
    values = case.arguments()
    return values, {name: getattr(values, name) for name in case.params}


def assert_same_draws(fn, arguments, exact):
    """Compare three calls from the same state of the default generator; the first is recorded."""
    native = compile(fn)
    results = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", CompileWarning)
        for run in (fn, native):
            default_generator.set_state((5, 1, 0))
            results.append([run(**arguments) for _ in range(3)])
            results[-1].append([default_generator.counter])
    assert native.reason is None
    for expected, got in zip(*results, strict=True):
        for a, b in zip(expected, got, strict=True):
            a, b = to_array(a), to_array(b)
            # Transforms of draws are rounded by two libraries; a discrete draw is a whole number.
            size = np.max(np.abs(a), initial=0.0)
            np.testing.assert_allclose(
                b, a, rtol=0 if exact else 1e-10, atol=0 if exact else 1e-12 * max(size, 1e-2)
            )


@every_case
def test_compiled_samples_are_the_eager_ones(case):
    values, arguments = parameters(case)
    # A function that is compiled has not to reach the references, with all that they remember.
    cls, known = case.cls, vars(values)

    def draw(**given):
        return (cls(**{**known, **given}).sample((4,)),)

    assert_same_draws(draw, arguments, case.is_discrete)


def differentiable(case):
    arguments = parameters(case)[1].values()
    return bool(arguments) and all(x.array.dtype.kind == "f" for x in arguments)


def differentiable_cases():
    rare = [case for case in FURTHER if differentiable(case)]
    slow = [pytest.param(case, marks=pytest.mark.slow) for case in rare]
    return [*filter(differentiable, CASES), *slow]


@pytest.mark.parametrize("case", differentiable_cases(), ids=lambda case: case.id)
def test_compiled_gradients_through_samples_are_the_eager_ones(case):
    values, arguments = parameters(case)
    cls, known = case.cls, vars(values)

    def slopes(**given):
        leaves = {k: x.detach().requires_grad_() for k, x in given.items()}
        d = cls(**{**known, **leaves})
        x = d.rsample((4,)) if d.has_rsample else d.sample((4,))
        total = d.log_prob(x).sum()
        return tuple(grad(total, list(leaves.values()), materialize_grads=True))

    assert_same_draws(slopes, arguments, False)
