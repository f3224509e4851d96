"""Draws: same bits on every road, goodness of fit, edges that must never be drawn, gradients.

Statistical tests have fixed seeds, so they pass or fail for good. Each goodness-of-fit assertion
rejects a right sampler with probability 1e-6 over seeds (about forty are made), and 100 000 draws
find a distribution function that is off by 0.012 with probability above 1 - 1e-6.
"""

import math

import numpy as np
import pytest
import scipy.stats

from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.record.record import record
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float16, float32, float64, int64
from probtorch.core.philox import bits_to_uniform as uniform_of_bits
from probtorch.core.philox import philox_bits
from probtorch.core.rng import Generator, default_generator
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.factories import ones
from probtorch.nn import functional, init
from probtorch.ops.categories import bernoulli, categorical, multinomial
from probtorch.ops.random_integers import randint, randperm
from probtorch.ops.random_numbers import bits_to_uniform, normal_of_uniform, philox
from probtorch.ops.sampling import exponential, normal, rand, rand_like, randn, randn_like, uniform
from probtorch.ops.variates import binomial, poisson, standard_gamma, standard_log_gamma, von_mises
from probtorch.tensor import tensor
from tests.backends import fake_cupy

COUNT = 100_000
FALSE_ALARM = 1e-6


def assert_continuous_fit(draws, cdf):
    p = scipy.stats.kstest(np.asarray(draws, np.float64).ravel(), cdf).pvalue
    assert p > FALSE_ALARM, f"Kolmogorov-Smirnov p = {p:.1e}"


def assert_discrete_fit(draws, distribution):
    """Chi-square over the values expected at least 20 times; the rest is one cell."""
    draws = np.asarray(draws, np.int64)
    values = np.arange(draws.min(), draws.max() + 1)
    expected = draws.size * distribution.pmf(values)
    values, expected = values[expected >= 20], expected[expected >= 20]
    observed = np.array([(draws == v).sum() for v in values])
    rest = draws.size - expected.sum()
    if rest > 1e-6 * draws.size:
        observed = np.append(observed, draws.size - observed.sum())
        expected = np.append(expected, rest)
    p = scipy.stats.chisquare(observed, expected * (draws.size / expected.sum())).pvalue
    assert observed.sum() == draws.size and p > FALSE_ALARM, f"chi-square p = {p:.1e}"


# --------------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("count", [1, 5, 40])
def test_draws_of_a_generator_are_those_of_the_ops_on_its_counters(count):
    rng = Generator(12, stream=3, counter=7)
    counters = wrap(np.arange(7, 7 + count))
    u = bits_to_uniform(philox(12, 3, counters))
    np.testing.assert_array_equal(rand(count, generator=rng, dtype=float64).numpy(), u.numpy())
    rng = Generator(12, stream=3, counter=7)
    np.testing.assert_array_equal(
        randn(count, generator=rng, dtype=float64).numpy(), normal_of_uniform(u).numpy()
    )
    assert rng.counter == 7 + count


def test_philox_takes_keys_as_tensors_and_several_at_once():
    seeds = tensor([1, -2])
    got = philox(seeds, 5, tensor([[10], [20], [30]])).numpy()
    for i, c in enumerate((10, 20, 30)):
        for j, s in enumerate((1, -2)):
            assert int(got[i, j]) % 2**64 == philox_bits(s, 5, c)


def test_equal_seeds_draw_equal_numbers_whatever_the_split():
    whole = rand(10, generator=Generator(4)).numpy()
    rng = Generator(4)
    parts = np.concatenate([rand(3, generator=rng).numpy(), rand(7, generator=rng).numpy()])
    np.testing.assert_array_equal(whole, parts)


def test_draws_come_from_the_default_generator_and_never_from_numpys_state():
    before, numpy_before = default_generator.counter, np.random.get_state()[1].copy()
    for draw in (rand(3), randn(2), standard_gamma(tensor(2.0)), poisson(tensor([3.0, 4.0]))):
        assert np.isfinite(draw.numpy()).all()
    assert default_generator.counter == before + 3 + 2 + 1 + 2
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)


def test_saved_state_resumes_rejection_samplers_exactly():
    rng = Generator(9)
    state = rng.get_state()
    shape = tensor(np.linspace(0.1, 9.0, 50))
    first = standard_gamma(shape, generator=rng).numpy()
    rng.set_state(state)
    np.testing.assert_array_equal(standard_gamma(shape, generator=rng).numpy(), first)
    assert not np.array_equal(standard_gamma(shape, generator=rng).numpy(), first)


@pytest.mark.parametrize(
    "draw",
    [lambda: rand(2), lambda: randperm(3), lambda: standard_gamma(tensor(2.0)),
     lambda: poisson(tensor(2.0)), lambda: categorical(tensor([1.0, 2.0]))],
    ids=["rand", "randperm", "standard_gamma", "poisson", "categorical"],
)  # fmt: skip
def test_a_frozen_recording_is_told_that_a_draw_cannot_be_replayed(draw):
    recording, _ = record(lambda x: x + draw(), [tensor(1.0)])
    reasons = [reason for reason, _ in recording.unsupported]
    assert len(reasons) == 1 and "a draw from a Generator" in reasons[0]


def test_a_compiled_function_makes_the_draws_of_the_eager_one():
    rng = Generator(21)
    draw = compile(lambda x: x + randn(4, generator=rng))
    rows = [draw(tensor(0.0)).tolist() for _ in range(4)]
    assert draw.reason is None
    assert rows == randn(4, 4, generator=Generator(21)).tolist()


ON_A_DEVICE = {
    "bernoulli": lambda x, g: bernoulli(x, generator=g),
    "categorical": lambda x, g: categorical(x, (4, 2), generator=g),
    "multinomial": lambda x, g: multinomial(x, 2, generator=g),
    "multinomial with replacement": lambda x, g: multinomial(x, 5, True, generator=g),
    "standard_gamma": lambda x, g: standard_gamma(x, generator=g),
    "poisson": lambda x, g: poisson(x, generator=g),
    "binomial": lambda x, g: binomial(3, x, generator=g),
    "von_mises": lambda x, g: von_mises(x, generator=g),
    "randint": lambda x, g: randint(0, 9, (4,), generator=g, device="cuda"),
    "randperm": lambda x, g: randperm(9, generator=g, device="cuda"),
}


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_draws_on_a_device_are_those_of_the_host(name, recorded, monkeypatch):
    fake_cupy.install(monkeypatch)
    draw, values = ON_A_DEVICE[name], [[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]
    expected = draw(tensor(values), Generator(3))
    x = tensor(values).to("cuda")
    if recorded:
        recording, got = record(lambda x: draw(x, Generator(3)), [x], frozen=False)
        assert not recording.unsupported
    else:
        got = draw(x, Generator(3))
    assert got.is_cuda
    np.testing.assert_array_equal(got.cpu().numpy(), expected.cpu().numpy())


def test_compiled_draws_from_counters_are_the_eager_ones():
    def draw(counter):
        uniform = bits_to_uniform(philox(3, 1, counter))
        return uniform, normal_of_uniform(uniform)

    counters = wrap(np.arange(100))
    uniform, normal = (x.numpy() for x in draw(counters))
    fast = compile(draw)
    for _ in range(3):
        got = fast(counters)
        np.testing.assert_array_equal(got[0].numpy(), uniform)
        np.testing.assert_array_equal(got[1].numpy(), normal)


# ---------------------------------------------------------------------------------- uniform, normal


@pytest.mark.parametrize("dtype", [float32, float64])
def test_uniforms_and_normals_fit_their_distributions(dtype):
    rng = Generator(1)
    assert_continuous_fit(rand(COUNT, generator=rng, dtype=dtype).numpy(), "uniform")
    assert_continuous_fit(randn(COUNT, generator=rng, dtype=dtype).numpy(), "norm")


@pytest.mark.parametrize("dtype", [float16, float32, float64])
def test_uniforms_stay_inside_the_open_interval_at_the_extreme_bits(dtype, monkeypatch):
    words = np.array([0, 2**64 - 1], np.uint64)
    uniforms = uniform_of_bits(words)
    monkeypatch.setattr("probtorch.ops.random_numbers.consecutive_uniforms", lambda *_: uniforms)
    monkeypatch.setattr("probtorch.ops.random_numbers.native_numbers", lambda *_: None)
    u = rand(2, dtype=dtype)
    assert u.dtype == dtype and 0.0 < u[0].item() and u[1].item() < 1.0
    assert np.isfinite(randn(2, dtype=dtype).numpy()).all()


def test_sizes_dtypes_and_requires_grad_follow_pytorch():
    assert rand(2, 3).shape == rand((2, 3)).shape == (2, 3) and rand().shape == ()
    assert randn(2, 0).shape == (2, 0) and randn(2).dtype == float32
    x = tensor([[1.0, 2.0]], dtype=float64)
    assert rand_like(x).dtype == float64 and randn_like(x, dtype=float32).dtype == float32
    assert randn(3, requires_grad=True).requires_grad
    with pytest.raises(DTypeError, match=r"expected: a floating dtype(.*\n)+.*fix: +use randint"):
        rand(3, dtype=int64)


def test_location_and_scale_draws_are_differentiable_and_fit():
    mean, std = tensor(2.0, requires_grad=True), tensor(3.0, requires_grad=True)
    x = normal(mean, std, (COUNT,), generator=Generator(2))
    assert_continuous_fit(x.detach().numpy(), scipy.stats.norm(2.0, 3.0).cdf)
    g_mean, g_std = grad(x.sum(), [mean, std])
    z = (x.detach().numpy().astype(np.float64) - 2.0) / 3.0
    assert g_mean.item() == COUNT and g_std.item() == pytest.approx(z.sum(), abs=0.05)
    low = tensor([-1.0, 0.0], requires_grad=True)
    y = uniform(low, 1.0, (COUNT, 2), generator=Generator(3))
    assert_continuous_fit(y[:, 0].detach().numpy(), scipy.stats.uniform(-1.0, 2.0).cdf)
    assert y.requires_grad
    e = exponential(2.0, (COUNT,), generator=Generator(4))
    assert e.dtype == float32
    assert_continuous_fit(e.numpy(), scipy.stats.expon(scale=0.5).cdf)


def test_a_size_that_drops_dims_of_the_parameters_is_refused():
    with pytest.raises(ShapeError, match="broadcast"):
        normal(tensor([0.0, 1.0]), 1.0, (3,))
    with pytest.raises(ShapeError, match="broadcast to"):
        normal(tensor([0.0, 1.0]), 1.0, (1,))


# ----------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("low, high", [(0, 7), (-3, 5), (10, 13)])
def test_randint_is_uniform_on_its_half_open_range(low, high):
    draws = randint(low, high, (COUNT,), generator=Generator(5))
    assert draws.dtype == int64
    assert_discrete_fit(draws.numpy(), scipy.stats.randint(low, high))


def test_randint_covers_ranges_up_to_2_to_the_64():
    low, high = -(2**63), 2**63
    draws = randint(low, high - 1, (COUNT,), generator=Generator(6)).numpy()
    assert_continuous_fit(draws / 2.0**64 + 0.5, "uniform")


def test_randint_refuses_empty_ranges_and_missing_sizes():
    with pytest.raises(ArgumentError, match=r"expected: low < high(.*\n)+.*fix:"):
        randint(3, 3, (2,))
    with pytest.raises(ArgumentError, match="randint"):
        randint(3)


def test_randperm_gives_every_permutation_equally_often():
    rng = Generator(7)
    words = np.stack([randperm(4, generator=rng).numpy() for _ in range(6000)])
    assert (np.sort(words, 1) == np.arange(4)).all()
    _, counts = np.unique(words, axis=0, return_counts=True)
    assert len(counts) == 24 and scipy.stats.chisquare(counts).pvalue > FALSE_ALARM
    assert randperm(0).shape == (0,)


def test_bernoulli_is_exact_at_0_and_1():
    p = tensor(np.repeat([[0.0, 0.3, 1.0]], COUNT, 0))
    draws = bernoulli(p, generator=Generator(8)).numpy()
    assert draws.dtype == float64
    assert (draws[:, 0] == 0).all() and (draws[:, 2] == 1).all()
    assert_discrete_fit(draws[:, 1], scipy.stats.bernoulli(0.3))


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_bernoulli_refuses_what_is_no_probability_and_says_where(bad):
    with pytest.raises(
        DomainError, match=r"expected: probabilities(.*\n)+.*index \(1,\)(.*\n)+.*fix:"
    ):
        bernoulli(tensor([0.5, bad]))


# --------------------------------------------------------------------------------------- categories


def test_categorical_fits_each_row_and_never_draws_weight_0():
    weights = np.array([[0.0, 1.0, 0.0, 3.0, 0.0], [5.0, 0.0, 4.0, 0.0, 1.0]])
    draws = categorical(tensor(weights), (COUNT, 2), generator=Generator(10)).numpy()
    for row in range(2):
        counts = np.bincount(draws[:, row], minlength=5)
        used = weights[row] > 0
        assert (counts[~used] == 0).all()
        expected = COUNT * weights[row][used] / weights[row].sum()
        assert scipy.stats.chisquare(counts[used], expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("word", [0, 2**64 - 1], ids=["least", "greatest"])
def test_the_extreme_bits_draw_the_first_and_last_positive_weight(word, monkeypatch):
    monkeypatch.setattr(
        "probtorch.ops.random_numbers.consecutive_uniforms",
        lambda seed, stream, first, count: uniform_of_bits(np.full(count, word, np.uint64)),
    )
    for native in ("categories.native_draw", "random_numbers.native_numbers"):
        monkeypatch.setattr(f"probtorch.ops.{native}", lambda *_: None)
    # A total that rounds: the greatest uniform times it must stay below the last step.
    weights = tensor([0.0, 0.1, 0.2, 0.3, 0.0], dtype=float64)
    assert categorical(weights).item() == (1 if word == 0 else 3)


def test_categorical_works_beyond_2_to_the_24_categories():
    n = 2**24 + 3
    weights = np.zeros(n, np.float32)
    weights[n - 1] = 1.0
    assert categorical(tensor(weights)).item() == n - 1


def test_multinomial_without_replacement_draws_in_proportion_to_what_is_left():
    weights = np.array([1.0, 2.0, 3.0])
    rng = Generator(11)
    rows = tensor(np.repeat(weights[None], 50_000, 0))
    draws = multinomial(rows, 2, generator=rng).numpy()
    pairs = draws[:, 0] * 3 + draws[:, 1]
    counts, expected = [], []
    for i in range(3):
        for j in range(3):
            if i != j:
                counts.append((pairs == 3 * i + j).sum())
                expected.append(50_000 * weights[i] / 6.0 * weights[j] / (6.0 - weights[i]))
    assert sum(counts) == 50_000
    assert scipy.stats.chisquare(counts, expected).pvalue > FALSE_ALARM


def test_multinomial_shapes_and_replacement_follow_pytorch():
    weights = tensor([0.0, 2.0, 0.0, 1.0])
    assert multinomial(weights, 2).shape == (2,)
    assert set(multinomial(weights, 50, True).tolist()) <= {1, 3}
    assert multinomial(tensor([[1.0, 1.0]] * 3), 4, True).shape == (3, 4)
    with pytest.raises(
        ArgumentError, match=r"expected: at most 2 samples(.*\n)+.*replacement=True"
    ):
        multinomial(weights, 3)


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]], ids=str
)
def test_weights_that_define_no_distribution_are_refused(weights):
    with pytest.raises(DomainError, match=r"expected: (.*\n)+.*got:(.*\n)+.*fix:"):
        categorical(tensor(weights))
    with pytest.raises(ShapeError, match="categories along the last dim"):
        categorical(tensor(1.0))


# -------------------------------------------------------------------------------------------- gamma


@pytest.mark.parametrize("a", [0.02, 0.5, 1.0, 3.0, 1e4])
def test_gamma_draws_fit(a):
    draws = standard_gamma(tensor(np.full(COUNT, a)), generator=Generator(13))
    assert_continuous_fit(draws.numpy(), scipy.stats.gamma(a).cdf)


def test_log_gamma_draws_do_not_underflow_for_tiny_shapes():
    a = 1e-3
    y = standard_log_gamma(tensor(np.full(COUNT, a)), generator=Generator(14)).numpy()
    assert np.isfinite(y).all() and (y < -1000).mean() > 0.3

    def cdf(log_x):
        # P(a, x) = x^a / Gamma(a + 1) to within x, below the smallest float.
        series = np.exp(a * log_x - scipy.special.gammaln(a + 1.0))
        return np.where(log_x < -100.0, series, scipy.stats.gamma(a).cdf(np.exp(log_x)))

    assert_continuous_fit(y, cdf)


@pytest.mark.parametrize("a", [1e-3, 0.3, 2.0, 50.0, 1e6])
def test_implicit_gradient_of_gamma_draws_is_that_of_the_quantile(a):
    shape = tensor(np.full(200, a), requires_grad=True)
    y = standard_log_gamma(shape, generator=Generator(15))
    (g,) = grad(y.sum(), [shape])
    assert np.isfinite(g.numpy()).all() and (g.numpy() > 0).all()
    # E[d log x / da] = d E[log x] / da = trigamma(a); 5 standard errors of 200 draws.
    values = g.numpy()
    error = 5.0 * values.std() / math.sqrt(values.size)
    assert values.mean() == pytest.approx(scipy.special.polygamma(1, a), abs=error)


def test_gamma_gradients_agree_with_differences_of_scipys_quantiles():
    a = np.array([0.4, 1.0, 5.0, 80.0])
    shape = tensor(a, requires_grad=True)
    x = standard_gamma(shape, generator=Generator(16))
    p = scipy.special.gammainc(a, x.detach().numpy())
    h = 1e-3 * a
    q = [scipy.special.gammaincinv(a + k * h, p) for k in (-2, -1, 1, 2)]
    expected = (q[0] - 8 * q[1] + 8 * q[2] - q[3]) / (12 * h)
    np.testing.assert_allclose(grad(x.sum(), [shape])[0].numpy(), expected, rtol=1e-7)


def test_a_gamma_draw_that_underflowed_has_gradient_0_not_nan():
    shape = tensor(np.full(50, 1e-4), requires_grad=True)
    x = standard_gamma(shape, generator=Generator(17))
    assert (x.detach().numpy() == 0.0).any()
    assert np.isfinite(grad(x.sum(), [shape])[0].numpy()).all()


@pytest.mark.parametrize("draw", [standard_gamma, standard_log_gamma])
def test_gamma_refuses_shapes_that_are_not_positive(draw):
    with pytest.raises(DomainError, match=r"expected: a finite concentration > 0(.*\n)+.*fix:"):
        draw(tensor([1.0, 0.0]))


# ------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("rate", [0.3, 8.0, 500.0])
def test_poisson_draws_fit_in_the_dtype_of_the_rate(rate):
    draws = poisson(tensor(np.full(COUNT, rate)), generator=Generator(18))
    assert draws.dtype == float64
    assert_discrete_fit(draws.numpy(), scipy.stats.poisson(rate))
    assert poisson(tensor(rate)).dtype == float32


def test_poisson_holds_at_rate_0_and_at_rates_beyond_int64():
    draws = poisson(tensor(np.array([0.0, 1e20, 1e300])), generator=Generator(19)).numpy()
    assert draws[0] == 0.0
    np.testing.assert_allclose(draws[1:] / [1e20, 1e300], 1.0, rtol=1e-9)
    with pytest.raises(DomainError, match="a finite rate >= 0"):
        poisson(tensor(-1.0))


@pytest.mark.parametrize("n, p", [(1, 0.4), (20, 0.1), (1000, 0.7)])
def test_binomial_draws_fit_and_broadcast(n, p):
    draws = binomial(n, tensor(np.full(COUNT, p)), generator=Generator(20))
    assert_discrete_fit(draws.numpy(), scipy.stats.binom(n, p))
    assert binomial(tensor([[3], [4]]), tensor([0.2, 0.5, 0.9])).shape == (2, 3)


def test_binomial_is_exact_at_its_edges_and_refuses_broken_counts():
    assert binomial(tensor([5.0, 5.0, 0.0]), tensor([0.0, 1.0, 0.5])).tolist() == [0.0, 5.0, 0.0]
    with pytest.raises(DomainError, match="whole counts"):
        binomial(2.5, tensor(0.5))
    with pytest.raises(DomainError, match="probabilities"):
        binomial(2, tensor(1.5))


@pytest.mark.parametrize(
    "call",
    [
        lambda: normal(0.0, -1.0),
        lambda: normal(ones(3), -ones(3)),
        lambda: normal(0.0, ones(2) * math.nan),
        lambda: exponential(0.0),
        lambda: exponential(-ones(2)),
        lambda: functional.gumbel_softmax(ones(3), tau=0.0),
        lambda: init.normal_(ones(3), 0.0, -1.0),
        lambda: init.uniform_(ones(3), 2.0, 1.0),
        lambda: init.trunc_normal_(ones(3), 0.0, 0.0),
    ],
)
def test_what_is_no_size_is_refused(call):
    with pytest.raises(DomainError) as caught:
        call()
    assert caught.value.expected and caught.value.got and caught.value.fix


def test_a_compiled_draw_asks_for_sizes_at_each_call():
    native = compile(lambda s: normal(0.0, s))
    native(ones(3)), native(ones(3))
    with pytest.raises(DomainError, match="normal: std"):
        native(-ones(3))
