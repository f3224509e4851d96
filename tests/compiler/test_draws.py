"""Draws of every kind inside compiled functions are the eager ones, bit for bit."""

import subprocess
import sys

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.machine.eager_draws import native_draws, native_sampler
from probtorch.config import configure
from probtorch.core import native_code, philox
from probtorch.core.dtype import float32, float64
from probtorch.core.philox import consecutive_bits, consecutive_uniforms, native_draw
from probtorch.core.rng import Generator
from probtorch.errors import DomainError
from probtorch.ops.categories import bernoulli, categorical, multinomial
from probtorch.ops.exact import log as exact_log
from probtorch.ops.exact import normal_quantile, of_uniforms
from probtorch.ops.random_integers import randint, randperm
from probtorch.ops.rejection import SAMPLERS, draw
from probtorch.ops.sampling import rand, randn
from probtorch.ops.variates import binomial, poisson, standard_gamma, standard_log_gamma, von_mises
from probtorch.tensor import tensor

RATES = np.exp(np.linspace(-6.0, 12.0, 60))
WEIGHTS = np.array([[0.0, 0.3, 0.7, 0.0], [1.0, 2.0, 3.0, 4.0]])
DRAWS = {
    "standard_gamma": (lambda x, g: standard_gamma(x, generator=g), RATES),
    "standard_log_gamma": (lambda x, g: standard_log_gamma(x, generator=g), RATES),
    "poisson": (lambda x, g: poisson(x, generator=g), RATES),
    "binomial": (
        lambda x, g: binomial(tensor([3, 40, 900, 10**6]), x, generator=g),
        np.linspace(0.0, 1.0, 40).reshape(10, 4),
    ),
    "von_mises": (lambda x, g: von_mises(x, generator=g), RATES),
    "bernoulli": (lambda x, g: bernoulli(x, generator=g), np.linspace(0.0, 1.0, 30)),
    "categorical": (lambda x, g: categorical(x, (5, 3, 2), generator=g), WEIGHTS),
    "categorical of one row": (lambda x, g: categorical(x, (5, 3), generator=g), WEIGHTS[1]),
    "categorical, broadcast": (lambda x, g: categorical(x, (4, 7), generator=g), WEIGHTS[:1]),
    "multinomial": (lambda x, g: multinomial(x, 2, generator=g), WEIGHTS),
    "multinomial of one row": (lambda x, g: multinomial(x, 3, generator=g), WEIGHTS[1]),
    "multinomial with replacement": (lambda x, g: multinomial(x, 9, True, generator=g), WEIGHTS),
    "randint": (lambda x, g: x[0] + randint(-4, 9, (3, 4), generator=g), RATES),
    "randint over all": (
        lambda x, g: randint(-(2**63), 2**63 - 1, (9,), generator=g) % 1000 + x[0],
        RATES,
    ),
    "randperm": (lambda x, g: x[randperm(60, generator=g)], RATES),
    "randn": (lambda x, g: x[0] * 0.0 + randn(40, generator=g, dtype=x.dtype), RATES),
}


@pytest.mark.parametrize("dtype", [float64, float32])
@pytest.mark.parametrize("name", DRAWS)
def test_compiled_draws_have_the_bits_of_the_eager_ones(name, dtype):
    draw, values = DRAWS[name]
    rng, fresh = Generator(31, stream=7), Generator(31, stream=7)
    native = compile(lambda x: draw(x, rng))
    x = tensor(values, dtype=dtype)
    for _ in range(4):
        got, expected = native(x).numpy(), draw(x, fresh).numpy()
        assert got.dtype == expected.dtype
        if name == "von_mises":  # an arc tangent, rounded by two libraries
            np.testing.assert_array_max_ulp(got, expected, 1)
        else:
            assert got.tobytes() == expected.tobytes()
    assert native.reason is None
    assert rng.get_state() == fresh.get_state()


@pytest.mark.parametrize(
    "draw, bad",
    [
        (lambda x, g: standard_gamma(x, generator=g), -1.0),
        (lambda x, g: poisson(x, generator=g), np.nan),
        (lambda x, g: binomial(7, x, generator=g), 1.5),
        (lambda x, g: bernoulli(x, generator=g), -0.1),
        (lambda x, g: categorical(x, generator=g), np.inf),
        (lambda x, g: multinomial(x, 1, generator=g), -0.5),
        (lambda x, g: von_mises(x, generator=g), 0.0),
    ],
)
def test_a_replay_with_parameters_that_are_refused_raises_as_eager_execution(draw, bad):
    rng = Generator(5)
    native = compile(lambda x: draw(x, rng))
    good = tensor([0.5, 0.25])
    for _ in range(2):
        native(good)
    before = rng.get_state()
    with pytest.raises(DomainError):
        native(tensor([0.5, bad]))
    assert rng.get_state() == before
    native(good)
    assert native.reason is None


def test_gradients_of_compiled_draws_are_the_eager_ones():
    for variate in (standard_gamma, standard_log_gamma, von_mises):
        rngs = Generator(3), Generator(3)

        def slope(a, rng, variate=variate):
            a = a.detach().requires_grad_()
            variate(a, generator=rng).sum().backward()
            return a.grad

        native = compile(lambda a, slope=slope, rngs=rngs: slope(a, rngs[0]))
        a = tensor(np.linspace(0.2, 30.0, 12))
        for _ in range(3):
            expected = slope(a, rngs[1]).numpy()
            np.testing.assert_allclose(native(a).numpy(), expected, rtol=1e-11)
        assert native.reason is None


PARAMETERS = {
    "log_gamma": (np.exp(np.linspace(-30.0, 30.0, 400)),),
    "gamma": (np.exp(np.linspace(-30.0, 30.0, 400)),),
    "poisson": (np.exp(np.linspace(-30.0, 60.0, 400)),),
    "binomial": (
        np.floor(np.exp(np.linspace(0.0, 43.0, 400))),
        np.linspace(0.0, 1.0, 400)[np.random.default_rng(0).permutation(400)],
    ),
    "von_mises": (np.exp(np.linspace(-30.0, 40.0, 400)),),
    "progeny": (
        np.exp(np.linspace(-9.0, 50.0, 400)),
        1.0 - 10.0 ** np.random.default_rng(3).uniform(-9.0, 0.0, 400),
    ),
    "polya_gamma": (
        np.floor(np.linspace(0.0, 4.99, 400)),
        np.random.default_rng(1).uniform(0.0, 6.0, 400),
        np.random.default_rng(2).uniform(0.05, 0.95, 400),
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_native_samplers_have_the_bits_of_the_ones_on_arrays(name):
    counters = np.arange(2**63 - 200, 2**63 + 200, dtype=np.uint64).view(np.int64)
    native = native_sampler(name)(-5, 2**64 - 9, counters, *PARAMETERS[name])
    with configure(jit=False):
        arrays = draw(name, -5, 2**64 - 9, counters, *PARAMETERS[name])
        few = draw(name, -5, 2**64 - 9, counters[:5], *(p[:5] for p in PARAMETERS[name]))
    assert native.tobytes() == arrays.tobytes()
    assert few.tobytes() == arrays[:5].tobytes()
    nothing = [np.broadcast_to(p[0], (3, 0)) for p in PARAMETERS[name]]
    assert native_sampler(name)(-5, 1, 0, *nothing).shape == (3, 0)
    # One number for all, and consecutive counters.
    alike = [np.broadcast_to(p[150], (2, 400)) for p in PARAMETERS[name]]
    listed = native_sampler(name)(-5, 1, np.arange(7, 807), *(p.reshape(-1) for p in alike))
    assert native_sampler(name)(-5, 1, 7, *alike).tobytes() == listed.tobytes()


@pytest.mark.parametrize("name", SAMPLERS)
def test_blocks_of_draws_of_all_parameters_have_the_bits_of_single_ones(name):
    # Long runs of alike parameters, as blocks see them, and some that do not fit in.
    rng = np.random.default_rng(0)
    parameters = [np.tile(np.repeat(p, 90), 2) for p in PARAMETERS[name]]
    shuffled = rng.permutation(parameters[0].size)
    for order in (slice(None), shuffled):
        given = [p[order] for p in parameters]
        counters = np.arange(given[0].size)
        native = native_sampler(name)(3, 1, counters, *given)
        with configure(jit=False):
            np.testing.assert_array_equal(native, draw(name, 3, 1, counters, *given))


@pytest.mark.parametrize("count", [3, 15, 16, 255, 1003])
@pytest.mark.parametrize("first", [0, 2**64 - 7])
def test_native_sequences_are_those_of_arrays(count, first):
    for seed, stream in ((0, 0), (2**64 - 1, 2**63 + 5)):
        with configure(jit=False):
            bits = consecutive_bits(seed, stream, first, count)
            uniforms = consecutive_uniforms(seed, stream, first, count)
        expected = {
            "bits": bits,
            "uniforms": uniforms,
            "normals": of_uniforms(normal_quantile, uniforms),
            "exponentials": of_uniforms(lambda s, u: -exact_log(s, u), uniforms),
        }
        for name, numbers in expected.items():
            got = native_draws(name)(seed, stream, first, count)
            np.testing.assert_array_equal(got, numbers)
            if name != "bits":
                scaled = native_draws(name)(seed, stream, first, count, 0.3, 1.7)
                np.testing.assert_array_equal(scaled, numbers * 0.3 + 1.7)


def test_few_draws_made_ahead_are_those_of_their_counters(monkeypatch):
    monkeypatch.setattr(philox, "_spent", 1e9)
    draws = (
        lambda generator, count: randn(count, generator=generator),
        lambda generator, count: rand(count, generator=generator),
        lambda generator, count: randint(-5, 2**40, (count,), generator=generator),
    )

    def drawn():
        found, rng = [], np.random.default_rng(0)
        # Forwards, back, over the end of what was made, and to another seed and stream.
        for state in ((1, 0, 0), (1, 0, 250), (1, 0, 3), (2, 0, 3), (2, 5, 3), (2, 5, 2**64 - 3)):
            generator = Generator(*state)
            for count in rng.integers(1, 33, 12).tolist():
                found += [draw(generator, count).clone() for draw in draws]
                draws[0](generator, count).mul_(0.0)  # memory that is nobody else's
        return [x.numpy() for x in found]

    native = drawn()
    with configure(jit=False):
        for got, expected in zip(native, drawn(), strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
def test_native_categories_are_those_of_arrays(size, monkeypatch):
    weights = np.random.default_rng(size).random(size)
    weights[1::3] = 0.0
    native = categorical(weights, (1000,), generator=Generator(3, counter=2**64 - 9)).numpy()
    assert weights[native].all()
    with configure(jit=False):
        arrays = categorical(weights, (1000,), generator=Generator(3, counter=2**64 - 9)).numpy()
    np.testing.assert_array_equal(native, arrays)


def test_native_code_is_loaded_when_draws_have_cost_more_than_loading_it(monkeypatch):
    asked = []
    monkeypatch.setattr(native_code, "_find", lambda name: asked.append(name) or len)
    monkeypatch.setattr(philox, "_spent", 0.0)
    monkeypatch.delitem(sys.modules, "llvmlite.binding", raising=False)
    assert native_draw("bits", 1e6) is None and not asked
    assert native_draw("gamma", 1e9) is len and asked == ["gamma"]
    with configure(jit=False):
        assert native_draw("gamma", 1e9) is None


LINKED = """
import sys, probtorch
from probtorch.core import philox
def drawn(draw):
    probtorch.manual_seed(4)
    return draw((40,)).numpy().tobytes()
draws = probtorch.rand, probtorch.randn, lambda shape: probtorch.randint(0, 9, shape)
few = [drawn(draw) for draw in draws]
philox._spent = philox._WORTH_LINKING + 1.0
assert [drawn(draw) for draw in draws] == few
linked = "probtorch.compiler.machine.sequences" in sys.modules
print(linked, "llvmlite.binding" in sys.modules)
"""


def test_code_that_lies_in_the_cache_is_linked_early_without_the_compiler_and_has_the_same_bits():
    for name in ("uniforms", "normals", "bits"):
        native_draws(name)  # compiled by now
    run = subprocess.run([sys.executable, "-c", LINKED], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]


def test_draws_of_a_tensor_can_be_made_in_parts():
    whole = poisson(tensor(RATES), generator=Generator(9)).numpy()
    rng = Generator(9)
    parts = [poisson(tensor(RATES[a:b]), generator=rng).numpy() for a, b in ((0, 7), (7, 60))]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
