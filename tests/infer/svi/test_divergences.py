"""`FDivergence` and `CUBO` against quadrature: values, gradients, and what they fit."""

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

import probtorch
from probtorch import distributions as dist
from probtorch.core.rng import Generator
from probtorch.effects import factor, param, sample
from probtorch.effects.handlers import seed
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import CUBO, SVI, AutoNormal, FDivergence, RenyiELBO, Trace_ELBO
from probtorch.infer.objectives.divergences import DIVERGENCES
from probtorch.optim import Adam
from probtorch.tensor import tensor

# A posterior of two bumps, narrower than the guide, whose evidence is e^0.7.
LOG_EVIDENCE = 0.7
LOC, LOG_SCALE = 0.3, 0.1
GRID = np.linspace(-9.0, 9.0, 20001)


def log_p(z):
    return np.logaddexp(stats.norm.logpdf(z, -0.6, 0.5), stats.norm.logpdf(z, 1.0, 0.4)) + np.log(
        0.5
    )


def model():
    weights, means, sds = (
        tensor(x, dtype=probtorch.float64) for x in ([0.5, 0.5], [-0.6, 1.0], [0.5, 0.4])
    )
    sample("z", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, sds)))
    factor("evidence", LOG_EVIDENCE)


def guide():
    loc = param("loc", tensor(LOC, dtype=probtorch.float64))
    log_scale = param("log_scale", tensor(LOG_SCALE, dtype=probtorch.float64))
    sample("z", dist.Normal(loc, log_scale.exp()))


# f(t), as books have it.
F = {
    "reverse_kl": lambda t: -np.log(t),
    "forward_kl": lambda t: t * np.log(t),
    "jeffreys": lambda t: (t - 1.0) * np.log(t),
    "jensen_shannon": lambda t: 0.5 * (t * np.log(t) - (1.0 + t) * np.log((1.0 + t) / 2.0)),
    "hellinger": lambda t: 0.5 * (np.sqrt(t) - 1.0) ** 2,
    "chi2": lambda t: (t - 1.0) ** 2,
    0.5: lambda t: (t**0.5 - 1.0) / (0.5 * -0.5),
    1.5: lambda t: (t**1.5 - 1.0) / (1.5 * 0.5),
    0.25: lambda t: (t**0.25 - 1.0) / (0.25 * -0.75),
}


def by_quadrature(divergence, loc, log_scale):
    log_q = stats.norm.logpdf(GRID, loc, math.exp(log_scale))
    t = np.exp(log_p(GRID) - log_q)
    kept = t > 0.0
    return integrate.simpson(np.where(kept, np.exp(log_q) * F[divergence](np.where(kept, t, 1.0)),
                                      0.0), x=GRID)  # fmt: skip


def cubo_by_quadrature(order, loc, log_scale):
    log_q = stats.norm.logpdf(GRID, loc, math.exp(log_scale))
    powers = order * (log_p(GRID) + LOG_EVIDENCE - log_q) + log_q
    return np.log(integrate.simpson(np.exp(powers), x=GRID)) / order


def batches(objective, count=30):
    """Losses and gradients of several evaluations."""
    found = []
    store = probtorch.get_param_store()
    with seed(rng_seed=Generator(5)):
        for _ in range(count):
            store.clear()
            loss = objective.loss_and_grads(model, guide)
            grads = {name: value.grad.item() for name, value in store.named_parameters()}
            found.append([loss, grads["loc"], grads["log_scale"]])
    store.clear()
    return np.array(found)


def slopes(of):
    """The value and its central differences."""
    h = 1e-4
    return [
        of(LOC, LOG_SCALE),
        (of(LOC + h, LOG_SCALE) - of(LOC - h, LOG_SCALE)) / (2 * h),
        (of(LOC, LOG_SCALE + h) - of(LOC, LOG_SCALE - h)) / (2 * h),
    ]


def assert_agree(found, expected):
    """Three means of 30 batches; one beyond 5 standard errors has a chance of 1e-4.

    The bias of 10,000 particles is below a tenth of a standard error of 30 batches of them.
    """
    errors = found.std(axis=0, ddof=1) / math.sqrt(len(found))
    assert (errors < 0.02 * np.abs(expected).max() + 1e-3).all()
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - expected), 5.0 * errors + 1e-6)


@pytest.mark.parametrize("divergence", F)
def test_values_and_gradients_are_those_of_quadrature(divergence):
    objective = FDivergence(divergence, 10_000, vectorize_particles=True)
    expected = slopes(lambda *at: by_quadrature(divergence, *at))
    assert_agree(batches(objective), expected)


@pytest.mark.parametrize("order", [1.5, 2.0, 3.0])
def test_upper_bound_and_its_gradients_are_those_of_quadrature(order):
    objective = CUBO(order, 10_000, vectorize_particles=True)
    expected = slopes(lambda *at: cubo_by_quadrature(order, *at))
    assert expected[0] > LOG_EVIDENCE
    assert_agree(batches(objective), expected)


def test_every_name_is_compared_with_quadrature():
    assert set(DIVERGENCES) <= set(F)


def test_particles_one_by_one_are_as_those_at_once():
    for many in (FDivergence("chi2", 6), CUBO(2.0, 6)):
        together = type(many)(num_particles=6, vectorize_particles=True, **(
            {"divergence": "chi2"} if isinstance(many, FDivergence) else {}
        ))  # fmt: skip
        draws = []
        for objective in (many, together):
            found = batches(objective, 60)
            draws.append((found.mean(axis=0), found.std(axis=0) / math.sqrt(60)))
        (one, error), (other, more) = draws
        assert (np.abs(one - other) < 5.0 * np.hypot(error, more)).all()


def test_the_upper_bound_is_renyis_of_a_negative_order():
    with seed(rng_seed=Generator(1)):
        found = CUBO(3.0, 7, vectorize_particles=True).loss(model, guide)
    with seed(rng_seed=Generator(1)):
        expected = -RenyiELBO(-2.0, 7, vectorize_particles=True).loss(model, guide)
    probtorch.get_param_store().clear()
    assert found == pytest.approx(expected, rel=1e-12)


def fitted(objective, steps=1500):
    svi = SVI(model, guide, Adam({"lr": 0.02}), objective, seed=0)
    result = svi.run(steps, progress_bar=False)
    tail = [result.params[name].item() for name in ("loc", "log_scale")]
    return np.array(tail), svi


def test_fits_are_where_quadrature_has_the_minimum():
    """KL(p || q) matches mean and variance; chi^2 is wider, KL(q || p) narrower."""
    mean = -0.3 + 0.5
    sd = math.sqrt(0.5 * (0.25 + 0.36) + 0.5 * (0.16 + 1.0) - mean**2)
    scales = {}
    for divergence in ("reverse_kl", "forward_kl", "chi2"):
        best = optimize.minimize(lambda at, d=divergence: by_quadrature(d, *at), [0.0, 0.0]).x
        found, svi = fitted(FDivergence(divergence, 400, vectorize_particles=True))
        # Steps of Adam at this rate wander about the minimum by some hundredths.
        np.testing.assert_allclose(found, best, atol=0.06)
        scales[divergence] = best[1]
        assert "compiled" in svi.explain()
    np.testing.assert_allclose(np.exp(scales["forward_kl"]), sd, rtol=1e-3)
    assert scales["reverse_kl"] < scales["forward_kl"] < scales["chi2"]


def test_both_bounds_enclose_the_evidence():
    found, _ = fitted(CUBO(num_particles=200, vectorize_particles=True))
    assert LOG_EVIDENCE < cubo_by_quadrature(2.0, *found) < LOG_EVIDENCE + 0.15

    def fixed():
        sample("z", dist.Normal(found[0], math.exp(found[1])))

    with seed(rng_seed=0):
        upper = CUBO(num_particles=20_000, vectorize_particles=True).loss(model, fixed)
        lower = -Trace_ELBO(num_particles=20_000, vectorize_particles=True).loss(model, fixed)
    # Both are known to 0.01 or better.
    assert lower < LOG_EVIDENCE - 0.02 and upper > LOG_EVIDENCE + 0.02


def test_parameters_of_the_model_climb_the_evidence():
    def scaled(y):
        width = param("width", tensor(1.0, dtype=probtorch.float64))
        z = sample("z", dist.Normal(0.0, width.exp()))
        sample("y", dist.Normal(z, 0.5), obs=y)

    y = tensor(2.0, dtype=probtorch.float64)
    loss = CUBO(num_particles=100, vectorize_particles=True)
    svi = SVI(scaled, AutoNormal(scaled), Adam({"lr": 0.02}), loss, seed=0)
    result = svi.run(1500, y, progress_bar=False)
    # The variance of y that makes 2 most probable is 4.
    assert math.exp(2 * result.params["width"].item()) + 0.25 == pytest.approx(4.0, rel=0.15)


def test_draws_without_paths_are_refused():
    def coin():
        sample("z", dist.Bernoulli(0.5))

    for objective in (FDivergence("chi2", 2), CUBO(num_particles=2)):
        with pytest.raises(InferenceError, match=r"(?s)pathwise.*ReweightedWakeSleep"):
            objective.loss_and_grads(coin, coin)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FDivergence("total_variation"), "divergence"),
        (lambda: FDivergence(1.0), "forward_kl"),
        (lambda: FDivergence(True), "divergence"),
        (lambda: FDivergence("chi2", 1), "num_particles"),
        (lambda: CUBO(1.0), "order"),
        (lambda: CUBO(2.0, 1), "num_particles"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
