"""`scan` with sample statements: as a loop over sites, in densities, draws and posteriors."""

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch import handlers, plate, sample, scan
from probtorch.diagnostics import ess_mean
from probtorch.effects.reparams import LocScaleReparam
from probtorch.errors import ModelError, ShapeError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    Gibbs,
    NeuTraReparam,
    Target,
    Trace_ELBO,
    choose_reparam,
)
from probtorch.infer.guides import AutoMultivariateNormal
from probtorch.optim import Adam
from probtorch.testing.compare import assert_close

RNG = np.random.default_rng(0)
STEPS = 4
Y = RNG.normal(size=STEPS)
MANY = RNG.normal(size=(STEPS, 3))


def in_a_loop(step, init, xs, reverse):
    """The same as `scan`, each step with names of its own."""
    rows, carry = [None] * STEPS, init
    for t in reversed(range(STEPS)) if reverse else range(STEPS):
        carry, rows[t] = step(carry, xs[t], f"_{t}")
    return carry, probtorch.stack(rows)


def walk(before, y, at=""):
    here = sample(f"x{at}", dist.Normal(0.9 * before, 0.7))
    sample(f"y{at}", dist.Normal(here, 0.5), obs=y)
    return here, here


def two_states(before, y, at=""):
    level = sample(f"x{at}", dist.Gamma(2.0 + before**2, 1.5))
    with handlers.scale(scale=0.5):
        noise = sample(f"z{at}", dist.Normal(level, 1.0))
    probtorch.factor(f"f{at}", -0.1 * noise**2)
    drift = probtorch.param("drift", 0.3)
    sample(f"y{at}", dist.StudentT(3.0, drift * noise + before, 1.0), obs=y)
    return level - noise, noise


def rows_inside(before, y, at=""):
    with plate(f"rows{at}", 3):
        here = sample(f"x{at}", dist.LogNormal(0.1 * before, 1.0))
        sample(f"y{at}", dist.Normal(here, 0.5), obs=y)
    return here, here


def vectors(before, y, at=""):
    here = sample(f"x{at}", dist.Dirichlet(1.0 + before))
    sample(f"y{at}", dist.Normal(here, 0.5).to_event(1), obs=y)
    return here, here


CASES = {
    "walk": (walk, 0.3, Y, False, False),
    "backwards": (walk, 0.3, Y, True, False),
    "two states": (two_states, 0.1, Y, False, False),
    "plate inside": (rows_inside, [0.1, 0.2, 0.3], MANY, False, False),
    "plate around": (walk, [0.1, 0.2, 0.3], MANY, False, True),
    "vectors": (vectors, [0.1, 0.2, 0.7], MANY, False, False),
}

SLOWER = {"vectors", "plate inside", "backwards"}


def twins(name):
    step, init, xs, reverse, around = CASES[name]

    def model(run):
        rate = sample("rate", dist.HalfNormal(1.0))

        def body(carry, y, at=""):
            return step(rate * carry, y, at)

        def whole():
            _, path = run(body, probtorch.tensor(init), probtorch.tensor(xs), reverse=reverse)
            sample("end", dist.Normal(path.sum(), 1.0), obs=0.5)

        if not around:
            return whole()
        with plate("around", 3):
            rate = probtorch.ones(3) * rate
            _, path = run(body, probtorch.tensor(init), probtorch.tensor(xs), reverse=reverse)
        sample("end", dist.Normal(path.sum(), 1.0), obs=0.5)

    return (
        Target.from_model(lambda: model(scan)),
        Target.from_model(lambda: model(in_a_loop)),
    )


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOWER else n for n in CASES]
)
def test_density_and_gradient_are_those_of_a_loop_over_sites(name):
    scanned, looped = twins(name)
    assert scanned.dim == looped.dim
    q = RNG.normal(size=scanned.dim)
    # The loop has all sites of a step together, the scan all steps of a site.
    order = {}
    for slot in looped.slots.values():
        site, _, t = slot.name.partition("_")
        order[site, int(t or 0)] = np.arange(slot.start, slot.stop)
    there = np.concatenate(
        [
            order[slot.name, t]
            for slot in scanned.slots.values()
            for t in range(STEPS if (slot.name, 1) in order else 1)
        ]
    )
    value, gradient = scanned.value_and_grad(q[there])
    expected, slope = looped.value_and_grad(q)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope[there], rtol=1e-9, atol=1e-12)
    assert scanned.density.reason is None


def local_level(y):
    def step(before, seen):
        here = sample("state", dist.Normal(before, 0.8))
        sample("y", dist.Normal(here, 0.5), obs=seen)
        return here, 2.0 * here

    _, twice = scan(step, probtorch.tensor(0.0), y)
    probtorch.deterministic("twice", twice)


def exact_local_level():
    """Mean and covariance of the states, and the log evidence, by the normal distribution."""
    t = np.arange(1, STEPS + 1)
    prior = 0.64 * np.minimum(t[:, None], t)
    data = prior + 0.25 * np.eye(STEPS)
    gain = prior @ np.linalg.inv(data)
    log_z = -0.5 * (Y @ np.linalg.solve(data, Y) + np.linalg.slogdet(2 * np.pi * data)[1])
    return gain @ Y, prior - gain @ prior, log_z


@pytest.mark.slow
def test_nuts_finds_the_states_of_a_state_space_model():
    """Four means and variances; one score of eight beyond 4.5 has a chance of 5e-5."""
    mcmc = MCMC(NUTS(local_level), num_samples=1000, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run(probtorch.tensor(Y))
    x, (mean, covariance, _) = draws.posterior["state"], exact_local_level()
    np.testing.assert_array_equal(draws.posterior["twice"], 2.0 * x)
    assert draws.target.log_likelihood(draws.positions)["y"].shape == (2, 1000, STEPS)
    for t in range(STEPS):
        for values, expected in (
            (x[..., t], mean[t]),
            ((x[..., t] - mean[t]) ** 2, covariance[t, t]),
        ):
            error = values.std() / np.sqrt(float(ess_mean(values)))
            assert abs(values.mean() - expected) < 4.5 * error
    assert draws.predict(seed=0)["y"].shape == (2, 1000, STEPS)


def test_the_bound_of_the_exact_guide_is_the_evidence():
    mean, covariance, log_evidence = exact_local_level()

    def guide(y):
        exact = dist.MultivariateNormal(probtorch.tensor(mean), probtorch.tensor(covariance))
        sample("state", exact)

    loss = Trace_ELBO(num_particles=3).loss(local_level, guide, probtorch.tensor(Y))
    # Each draw's bound is the evidence; the carried state is in single precision.
    np.testing.assert_allclose(loss, -log_evidence, rtol=1e-5)


@pytest.mark.slow
def test_guides_have_the_scanned_sites():
    guide = AutoMultivariateNormal(local_level)
    y = probtorch.tensor(Y)
    svi = SVI(local_level, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    losses = svi.run(300, y, progress_bar=False).losses
    assert guide.median(y)["state"].shape == (STEPS,)
    assert np.mean(losses[-50:]) + exact_local_level()[2] < 0.5


def test_draws_follow_what_is_given():
    free = handlers.uncondition(local_level)
    conditioned = handlers.condition(free, data={"state": np.full(STEPS, 5.0)})
    found = handlers.trace(conditioned).get_trace(probtorch.tensor(Y))
    assert np.abs(found.nodes["y"].value.numpy() - 5.0).max() < 3.0
    prior = np.array(
        [
            handlers.trace(handlers.seed(handlers.uncondition(local_level), i))
            .get_trace(probtorch.tensor(Y))
            .nodes["state"]
            .value.numpy()
            for i in range(60)
        ]
    )
    # The last state has variance 0.64 * 4; its estimate has a relative error of 18 %.
    assert abs(prior[:, -1].var() / 2.56 - 1.0) < 0.8
    assert np.corrcoef(prior[:, 2], prior[:, 3])[0, 1] > 0.6


def switching(y):
    def step(before, seen):
        here = sample("regime", dist.Bernoulli(0.2 + 0.6 * before))
        sample("y", dist.Normal(2.0 * here, 1.0), obs=seen)
        return here, None

    scan(step, probtorch.tensor(0.5, dtype=probtorch.float64), y)


@pytest.mark.slow
def test_discrete_states_are_moved_by_gibbs():
    """Against the sum over 16 paths; four scores, beyond 4.5 by chance once in 37,000 runs."""
    paths = np.array(np.meshgrid(*[[0.0, 1.0]] * STEPS)).reshape(STEPS, -1).T
    before = np.concatenate([np.full((16, 1), 0.5), paths[:, :-1]], axis=1)
    p = 0.2 + 0.6 * before
    y = np.array([1.5, 1.2, 0.2, 1.1])
    weights = np.prod(np.where(paths == 1.0, p, 1.0 - p), 1) * np.exp(
        -0.5 * ((y - 2.0 * paths) ** 2).sum(1)
    )
    expected = weights @ paths / weights.sum()
    mcmc = MCMC(
        Gibbs(switching),
        num_samples=4000,
        warmup_steps=20,
        num_chains=2,
        seed=1,
        progress_bar=False,
    )
    x = mcmc.run(probtorch.tensor(y)).posterior["regime"]
    for t in range(STEPS):
        error = x[..., t].std() / np.sqrt(float(ess_mean(x[..., t].astype(float))))
        assert abs(x[..., t].mean() - expected[t]) < 4.5 * error


def test_what_no_loop_can_be_is_refused():
    y = probtorch.tensor(Y)

    def made(before, seen):
        sample("y", dist.Normal(before, 1.0), obs=seen * 2.0)
        return before, None

    def moving(before, seen):
        here = sample("x", dist.Uniform(0.0, 1.0 + before))
        return here, None

    def twice(before, seen):
        sample("x", dist.Normal(0.0, 1.0))
        sample("x", dist.Normal(0.0, 1.0))
        return before, None

    def states(before, seen):
        return sample("x", dist.Bernoulli(0.3)), None

    for step, words in (
        (made, "a slice of xs"),
        (moving, "the same shapes and supports"),
        (twice, "a name of its own"),
    ):
        with pytest.raises(ModelError, match=words):
            handlers.trace(lambda step=step: scan(step, probtorch.tensor(0.5), y)).get_trace()

    def around():
        with plate("rows", 3):
            scan(states, probtorch.zeros(3), probtorch.tensor(MANY))

    with pytest.raises(ModelError, match="pathwise gradients in a plate"):
        handlers.trace(around).get_trace()
    with pytest.raises(ShapeError, match="a row for each step"):
        handlers.trace(
            handlers.substitute(local_level, data={"state": np.zeros((2, STEPS))})
        ).get_trace(y)


def wandering(y):
    scale = sample("scale", dist.HalfNormal(1.0))

    def step(before, seen):
        here = sample("x", dist.Normal(before, scale))
        sample("y", dist.Normal(here, 1.0), obs=seen)
        return here, None

    scan(step, probtorch.tensor(0.0, dtype=probtorch.float64), y)


def test_a_reparameterisation_around_the_loop_holds_at_each_step():
    apart = handlers.reparam(wandering, config={"x": LocScaleReparam(0.0)})
    target = Target.from_model(apart, Y)
    assert list(target.slots) == ["scale", "x_decentered"]
    z, scale = RNG.normal(size=STEPS), 0.7
    path = np.cumsum(scale * z)
    wanted = (
        stats.halfnorm.logpdf(scale)
        + np.log(scale)
        + stats.norm.logpdf(z).sum()
        + stats.norm.logpdf(Y, path).sum()
    )
    assert_close(target.value_and_grad(np.array([np.log(scale), *z]))[0], wanted)
    trace = handlers.trace(apart).get_trace(Y)
    found = np.cumsum(float(trace["scale"].value) * trace["x_decentered"].value.numpy())
    assert_close(trace["x"].value, found)


def test_the_form_of_states_in_a_loop_is_chosen_by_the_data():
    known, unknown = (choose_reparam(wandering, Y * k) for k in (1000.0, 0.01))
    assert (known.forms, unknown.forms) == ({"x": "centred"}, {"x": "non-centred"})


def test_a_handler_that_takes_a_site_of_a_step_out_of_the_model_is_refused():
    with pytest.raises(ModelError, match="inside of the step"):
        handlers.do(wandering, data={"x": Y})(Y)
    guide = AutoMultivariateNormal(wandering)
    guide(Y)
    with pytest.raises(ModelError, match="site 'x' in a step of scan"):
        NeuTraReparam(guide).reparam(wandering)(Y)
