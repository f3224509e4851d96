"""Ordinary Python whose values change between calls: compiled, in SVI and in densities."""

import random

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import compile, sample, tensor
from probtorch.config import configure
from probtorch.infer import SVI, AutoNormal, Target
from probtorch.optim import Adam
from tests.compiler import everyday_worlds, further_worlds, replaced_worlds  # noqa: F401 - more
from tests.compiler.worlds import WORLDS, world_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning"),
    pytest.mark.filterwarnings("ignore:the objective of"),
]

Y = tensor([1.0, 2.0, 2.5])


def both(run):
    """What a run gives eagerly, and what it gives compiled."""
    found = []
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        found.append(run(compiled))
    return found


@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize("name", WORLDS)
def test_a_compiled_function_goes_with_its_world(name, wants_grad):
    def run(compiled):
        fn, change, argument = world_of(name)
        called, found = compile(fn) if compiled else fn, []
        for i in range(10):
            change(i)
            x = argument(i).clone().requires_grad_(wants_grad)
            out = called(x)
            found.append(out.detach().numpy())
            if wants_grad:
                out.sum().backward()
                found.append(x.grad.numpy())
        return found

    for eager, compiled in zip(*both(run), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-6)


def model_of(fn):
    def model(x, y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        scale = sample("scale", dist.LogNormal(0.0, 0.5))
        mean = (probtorch.as_tensor(fn(x)) * mu / 10.0).expand([3])
        sample("y", dist.Normal(mean, scale).to_event(1), obs=y)

    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_step_of_svi_goes_with_its_world(name):
    def run(compiled):
        fn, change, argument = world_of(name)
        model, found = model_of(fn), []
        with configure(jit=compiled):
            svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), seed=0)
            for i in range(10):
                change(i)
                found.append(float(svi.step(argument(i), Y)))
        return found

    eager, compiled = both(run)
    np.testing.assert_allclose(compiled, eager, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_density_is_that_of_its_world(name):
    def run(compiled):
        fn, change, argument = world_of(name)
        found = []
        with configure(jit=compiled):
            for i in range(8):
                change(i)
                target = Target.from_model(model_of(fn), argument(i), Y)
                for q in (0.3, -0.2, 0.5):
                    value, slope = target.value_and_grad(np.full(target.dim, q))
                    found += [value, *slope]
        return found

    eager, compiled = both(run)
    np.testing.assert_allclose(compiled, eager, rtol=1e-6, atol=1e-9)
