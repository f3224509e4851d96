"""A compiled function that seeds a generator, or makes one, draws what it draws eagerly."""

import warnings

import numpy as np
import pytest

import probtorch
from probtorch import Generator
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.config import configure
from probtorch.core.rng import default_generator
from probtorch.distributions import Normal
from probtorch.effects.handlers import seed, trace
from probtorch.effects.primitives import sample
from probtorch.errors import InferenceError
from probtorch.infer import SVI, AutoNormal, Target, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close

OWN = Generator(11)


def seeds(x):
    probtorch.manual_seed(5)
    return x + probtorch.rand(2)


def seeds_between(x):
    first = probtorch.rand(2)
    OWN.manual_seed(7)
    second = probtorch.rand(2, generator=OWN)
    probtorch.manual_seed(3)
    third = probtorch.randn(2) + probtorch.rand(2)
    OWN.manual_seed(7)
    return x + first + 10.0 * second + 100.0 * third + 1000.0 * probtorch.rand(2, generator=OWN)


def seeds_at_the_end(x):
    y = x + probtorch.rand(2)
    probtorch.manual_seed(9)
    return y


def makes(x):
    rng = Generator(3)
    return x + probtorch.rand(2, generator=rng) + probtorch.randn(2, generator=rng)


def seeds_by_a_number(x):
    probtorch.manual_seed(int(x[0]))
    return x + probtorch.rand(2)


def makes_children(x):
    (rng,) = OWN.spawn(1)
    return x + probtorch.rand(2, generator=rng)


def goes_back(x):
    state = default_generator.get_state()
    y = x + probtorch.rand(2)
    default_generator.set_state(state)
    return y + 10.0 * probtorch.rand(2)


def under_a_seed_handler(x):
    with seed(rng_seed=4):
        return x + sample("a", Normal(x, 1.0)) + probtorch.rand(2)


def under_a_seeded_model(x):
    return trace(seed(lambda: sample("a", Normal(x, 1.0)), 6)).get_trace()["a"].value + x


def looks_at_the_seed(x):
    return x + probtorch.initial_seed() % 97 + probtorch.rand(2)


def looks_at_a_counter(x):
    y = x + probtorch.rand(2, generator=OWN)
    return y + OWN.counter + OWN.stream + len(repr(OWN)) + probtorch.get_rng_state()[2]


def looks_at_its_own(x):
    rng = Generator(3)
    return x + probtorch.rand(2, generator=rng) + rng.initial_seed() + rng.counter


NATIVE = (seeds, seeds_between, seeds_at_the_end, makes, seeds_by_a_number, looks_at_its_own)
OTHERS = (
    *(makes_children, goes_back, under_a_seed_handler, under_a_seeded_model),
    *(looks_at_the_seed, looks_at_a_counter),
)


@pytest.mark.parametrize("fn", [*NATIVE, *OTHERS], ids=lambda fn: fn.__name__)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_draws_and_states_are_the_eager_ones(fn):
    native = compile(fn)
    found = []
    for run in (fn, native):
        OWN.set_state((11, 0, 0))
        rows = []
        for k, i in enumerate((1.0, 1.0, 2.0, 1.0, 2.0)):
            probtorch.manual_seed(k // 3)
            rows.append(run(tensor([i, 0.0])).numpy())
            rows.append(np.array([*default_generator.get_state(), *OWN.get_state()]))
        found.append(rows)
    for expected, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert native.reason is None or fn in OTHERS


def made_inside():
    return Generator(4).initial_seed()


def seeded_inside():
    return OWN.manual_seed(9).initial_seed()


@pytest.mark.parametrize(
    ("asked", "eager"),
    [
        (probtorch.initial_seed, True),
        (lambda: default_generator.get_state().seed, True),
        (OWN.initial_seed, True),
        (seeded_inside, True),
        (made_inside, False),
    ],
)
def test_a_density_that_looks_at_a_generator_is_that_of_now(asked, eager):
    def model():
        sample("z", Normal(float(asked() % 7), 1.0))

    target = Target.from_model(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", CompileWarning)
        for number in (1, 2, 5, 10):
            probtorch.manual_seed(number)
            OWN.manual_seed(number)
            found = target.value_and_grad(np.array([0.3]))[0]
            loc = asked() % 7
            assert_close(found, -0.5 * (0.3 - loc) ** 2 - 0.5 * np.log(2.0 * np.pi))
    assert len(told) == (1 if eager else 0)


def noisy(x, y):
    mu = sample("mu", Normal(0.0, 1.0))
    noise = probtorch.randn(3, generator=OWN) * x + probtorch.rand(())
    sample("y", Normal(mu + noise, 1.0).to_event(1), obs=y)


@pytest.mark.parametrize("run", [False, True])
def test_steps_of_svi_draw_from_a_generator_of_the_users_as_eager_ones(run):
    x, y, found = tensor(0.5), tensor([1.0, 2.0, 3.0]), []
    for compiled in (False, True):
        OWN.set_state((11, 0, 0))
        probtorch.manual_seed(1)
        with configure(jit=compiled):
            svi = SVI(noisy, AutoNormal(noisy), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
            # One that fails is taken again, by Python.
            steps = [x, x, x, tensor(np.inf), x, x]
            losses = svi.run(40, x, y).losses if run else []
            for given in steps:
                try:
                    losses = [*losses, float(svi.step(given, y))]
                except InferenceError:
                    losses = [*losses, -1.0]
        found.append([*losses, *default_generator.get_state(), *OWN.get_state()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
