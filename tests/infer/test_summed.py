"""Targets of models with finite discrete sites: summed out of the density, drawn afterwards."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from probtorch.core.rng import Generator
from probtorch.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    HalfNormal,
    Normal,
    Poisson,
    Uniform,
)
from probtorch.effects import deterministic, factor, handlers, markov, plate, sample, scan
from probtorch.errors import InferenceError, ModelError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoNormal,
    Target,
    Trace_ELBO,
    TraceEnum_ELBO,
    infer_discrete,
    init_to_value,
)
from probtorch.infer.enumeration import summed
from probtorch.ops.exponentials import sigmoid
from probtorch.ops.indexing import Vindex
from probtorch.optim import Adam
from probtorch.tensor import tensor

Y = np.array([-1.9, -2.4, -1.5, 1.8, 1.1, 2.2, 1.6])


def mixture(y):
    weight = sample("weight", Uniform(0.0, 1.0))
    locs = sample("locs", Normal(tensor([-1.0, 1.0]), 2.0).to_event(1))
    scale = sample("scale", HalfNormal(1.0))
    with plate("data", len(y)):
        z = sample("z", Bernoulli(weight))
        deterministic("centre", locs[z.long()])
        sample("y", Normal(locs[z.long()], scale), obs=y)
    deterministic("gap", locs[1] - locs[0])


def mixture_density(y, weight, locs, scale):
    """Log joint density of data and parameters, by SciPy."""
    prior = stats.norm.logpdf(locs, [-1.0, 1.0], 2.0).sum() + stats.halfnorm.logpdf(scale)
    parts = stats.norm.logpdf(y[:, None], locs, scale) + np.log([1.0 - weight, weight])
    return prior, logsumexp(parts, axis=1), parts


POINTS = np.random.default_rng(0).normal(size=(5, 4)) * 0.7


def at(target, q):
    found = target.constrain(tensor(q))
    return [found[n].detach().numpy() for n in ("weight", "locs", "scale")]


def test_density_of_a_mixture_is_its_marginal():
    target = Target.from_model(mixture, tensor(Y))
    assert target.summed == {"z": 2} and list(target.slots) == ["weight", "locs", "scale"]
    h = 1e-5
    for q in POINTS:
        value, slope = target.value_and_grad(q)
        prior, rows, _ = mixture_density(Y, *at(target, q))
        # Weight and scale are transformed one by one: the Jacobian is diagonal.
        steps = [(at(target, q + h * e), at(target, q - h * e)) for e in np.eye(4)[[0, 3]]]
        (up, down), (wide, narrow) = steps
        jacobian = np.log((up[0] - down[0]) / (2 * h)) + np.log((wide[2] - narrow[2]) / (2 * h))
        assert value == pytest.approx(prior + rows.sum() + jacobian, abs=1e-8)
        numeric = [
            (target.value_and_grad(q + h * e)[0] - target.value_and_grad(q - h * e)[0]) / (2 * h)
            for e in np.eye(4)
        ]
        np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=1e-6)
    assert target.density.reason is None, "the density is compiled"


def test_log_joint_and_likelihood_have_the_discrete_sites_summed_out():
    target = Target.from_model(mixture, tensor(Y))
    joint = target.log_joint(POINTS)
    likelihood = target.log_likelihood(POINTS)
    assert set(likelihood) == {"y"}
    for i, q in enumerate(POINTS):
        prior, rows, _ = mixture_density(Y, *at(target, q))
        assert joint[i] == pytest.approx(prior + rows.sum(), rel=1e-12)
        np.testing.assert_allclose(likelihood["y"][i], rows, rtol=1e-12)


def test_deterministic_sites_that_depend_on_discrete_ones_are_left_out():
    target = Target.from_model(mixture, tensor(Y))
    assert target.deterministic == ("gap",)
    assert set(target.constrain_many(POINTS)) == {"weight", "locs", "scale", "gap"}


def test_discrete_sites_are_drawn_from_their_posterior():
    target = Target.from_model(mixture, tensor(Y))
    q = POINTS[1]
    _, _, parts = mixture_density(Y, *at(target, q))
    share = np.exp(parts[:, 1] - logsumexp(parts, axis=1))
    best = target.discrete_at(q, temperature=0)["z"]
    np.testing.assert_array_equal(best, share > 0.5)
    draws = target.discrete_at(np.tile(q, (20, 100, 1)), generator=Generator(0))["z"]
    assert draws.shape == (20, 100, len(Y))
    # Six standard errors: a false alarm once in ten million runs.
    assert np.abs(draws.mean((0, 1)) - share).max() < 6 * np.sqrt(0.25 / 2000)


def test_many_draws_of_discrete_sites_in_nested_plates_and_chains_are_those_one_by_one():
    """The most probable values, which are the same however they are computed."""
    table = tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])

    def model():
        a = sample("a", Normal(0.0, 1.0))
        with plate("rows", 3):
            u = sample("u", Bernoulli(sigmoid(a)))
            x = 0.0 * u
            for t in markov(range(4)):
                x = sample(f"x_{t}", Bernoulli(sigmoid(1.5 * x - a + u)))
                with plate("cells", 2):
                    w = sample(f"w_{t}", Categorical(table[x.long()]))
                    sample(f"y_{t}", Normal(w + x, 1.0), obs=np.full((2, 3), 0.4 * t))

    target = Target.from_model(model)
    draws = np.random.default_rng(1).normal(size=(2, 15, 1))
    found = target.discrete_at(draws, temperature=0)
    assert found["w_2"].shape == (2, 15, 2, 3) and found["u"].shape == (2, 15, 3)
    for at in ((0, 0), (1, 7), (1, 14)):
        best = infer_discrete(handlers.substitute(model, {"a": draws[at][0]}), temperature=0)
        with handlers.trace() as trace:
            best()
        for name, values in found.items():
            np.testing.assert_array_equal(values[at], trace[name].value.numpy())


def hmm(y):
    with plate("state", 2):
        stay = sample("stay", Dirichlet(tensor([2.0, 2.0])))
        locs = sample("locs", Normal(0.0, 3.0))
    x = 0
    for t in markov(range(len(y))):
        x = sample(f"x_{t}", Categorical(Vindex(stay)[x, :]))
        sample(f"y_{t}", Normal(locs[x], 1.0), obs=y[t])


def test_discrete_sites_of_many_draws_take_one_run_of_the_model_for_each_block(monkeypatch):
    runs = []

    def counted(y):
        runs.append(1)
        return mixture(y)

    target = Target.from_model(counted, tensor(Y))
    draws = np.random.default_rng(2).normal(size=(3, 7, target.dim))
    runs.clear()
    whole = target.discrete_at(draws, temperature=0)["z"]
    assert len(runs) == 1
    # Five draws at a time, of which the last has one: 21 in five runs.
    monkeypatch.setattr(summed, "TABLE_BYTES", 5 * 8 * 2 * len(Y))
    runs.clear()
    np.testing.assert_array_equal(target.discrete_at(draws, temperature=0)["z"], whole)
    assert len(runs) == 5
    alone = target.discrete_at(draws[1, 2], temperature=0)["z"]
    np.testing.assert_array_equal(alone, whole[1, 2])


def test_density_of_a_hidden_chain_is_that_of_the_forward_algorithm():
    y = tensor(Y)
    target = Target.from_model(hmm, y)
    assert len(target.summed) == len(Y)
    joint = target.log_joint(POINTS)
    for q, found in zip(POINTS, joint):
        values = {n: x.detach().numpy() for n, x in target.constrain(tensor(q)).items()}
        stay, locs = values["stay"], values["locs"]
        a = np.log(stay[0]) + stats.norm.logpdf(Y[0], locs)
        for value in Y[1:]:
            a = logsumexp(a[:, None] + np.log(stay), axis=0) + stats.norm.logpdf(value, locs)
        prior = stats.norm.logpdf(locs, 0.0, 3.0).sum()
        prior += sum(stats.dirichlet.logpdf(row, [2.0, 2.0]) for row in stay)
        assert found == pytest.approx(prior + logsumexp(a), rel=1e-12)
        # Data of one sum have no density of their own.
        assert target.log_likelihood(q) == {}


def test_a_continuous_site_may_depend_on_a_discrete_one():
    def model():
        z = sample("z", Categorical(tensor([0.3, 0.7])))
        with plate("rows", 3):
            x = sample("x", Normal(tensor([-2.0, 2.0])[z], 1.0))
            sample("y", Normal(x, 0.5), obs=tensor([0.1, 0.4, -0.3]))

    target = Target.from_model(model)
    q = np.array([0.3, -0.2, 1.1])
    x = np.asarray(target.constrain(tensor(q))["x"].numpy())
    y = np.array([0.1, 0.4, -0.3])
    expected = stats.norm.logpdf(y, x, 0.5).sum() + logsumexp(
        np.log([0.3, 0.7]) + [stats.norm.logpdf(x, m, 1.0).sum() for m in (-2.0, 2.0)]
    )
    assert target.value_and_grad(q)[0] == pytest.approx(expected, rel=1e-7)


def test_nuts_finds_the_posterior_of_a_mixture():
    """Against a grid over the two unknowns, discrete sites summed by hand."""

    def model():
        weight = sample("weight", Uniform(0.0, 1.0))
        loc = sample("loc", HalfNormal(3.0))
        with plate("data", len(Y)):
            z = sample("z", Bernoulli(weight))
            sample("y", Normal(loc * (2.0 * z - 1.0), 1.0), obs=tensor(Y))

    mcmc = MCMC(NUTS(model), num_samples=800, warmup_steps=400, num_chains=2, seed=0)
    mcmc.run()
    w, m = np.meshgrid(np.linspace(5e-4, 1 - 5e-4, 400), np.linspace(0.0, 6.0, 500), indexing="ij")
    logs = stats.halfnorm.logpdf(m, scale=3.0)
    for value in Y:
        up, down = stats.norm.logpdf(value, m), stats.norm.logpdf(value, -m)
        logs = logs + np.logaddexp(np.log(w) + up, np.log1p(-w) + down)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    found = mcmc.get_samples()
    assert set(found) == {"weight", "loc"}
    for name, grid in (("loc", m), ("weight", w)):
        x = np.asarray(found[name])
        mean = (p * grid).sum()
        sd = np.sqrt((p * (grid - mean) ** 2).sum())
        # At least 400 effective draws: six standard errors.
        assert abs(x.mean() - mean) < 6 * sd / np.sqrt(400)
        assert abs(x.std() / sd - 1.0) < 0.15
    assert "Summed out: 'z' (2 values)" in str(mcmc.summary())
    draws = mcmc.draws.infer_discrete(seed=1)
    assert draws["z"].shape == (2, 800, len(Y))
    # Each datum is far from one of the two centres.
    np.testing.assert_array_equal(draws["z"].mean((0, 1)) > 0.5, Y > 0.0)


def test_summaries_without_discrete_sites_have_no_such_note():
    mcmc = MCMC(
        NUTS(lambda: sample("x", Normal(0.0, 1.0))), num_samples=200, warmup_steps=100, seed=0
    )
    mcmc.run()
    assert "Summed out" not in str(mcmc.summary())
    assert mcmc.draws.infer_discrete() == {}


def test_a_support_that_moves_with_a_discrete_site_is_refused():
    def model():
        z = sample("z", Bernoulli(0.3))
        sample("x", Uniform(0.0, 1.0 + z))

    with pytest.raises(InferenceError, match=r"support of site 'x' depends on a discrete site"):
        Target.from_model(model).value_and_grad(np.zeros(1))


def test_only_discrete_sites_are_not_for_samplers():
    with pytest.raises(InferenceError, match=r"no continuous latent(.|\n)*infer_discrete\(model\)"):
        Target.from_model(lambda: sample("z", Bernoulli(0.3)))


def test_products_of_supports_and_infinite_ones_are_refused():
    with pytest.raises(InferenceError, match=r"product of supports(.|\n)*use a plate"):
        Target.from_model(lambda: sample("z", Bernoulli(tensor([0.3, 0.4])).to_event(1)))
    with pytest.raises(InferenceError, match=r"is infinite(.|\n)*marginalise"):
        Target.from_model(lambda: sample("n", Poisson(3.0)))

    def switching(y):
        def step(state, seen):
            state = sample("state", Bernoulli(0.1 + 0.8 * state))
            sample("y", Normal(state, 1.0), obs=seen)
            return state, None

        scan(step, tensor(0.0), y)

    with pytest.raises(InferenceError, match=r"states of a scan, each a Bern(.|\n)*markov"):
        Target.from_model(switching, tensor([0.0, 1.0, 0.0]))


def test_intractable_sums_are_refused_at_once():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        p, q = plate("p", 2, dim=-1), plate("q", 3, dim=-2)
        with p:
            a = sample("a", Bernoulli(0.3))
        with q:
            b = sample("b", Bernoulli(sigmoid(x)))
        with p, q:
            sample("y", Normal(a + b, 1.0), obs=np.zeros((3, 2)))

    with pytest.raises(InferenceError, match="intractable"):
        Target.from_model(model)


def test_automatic_guides_leave_discrete_sites_to_the_sum():
    y = np.concatenate([Y, Y + 0.1, Y - 0.1])

    def model():
        loc = sample("loc", Normal(1.0, 1.0))
        with plate("data", len(y)):
            z = sample("z", Bernoulli(0.6))
            sample("y", Normal(loc * (2.0 * z - 1.0), 1.0), obs=tensor(y))

    guide = AutoNormal(model, init_loc_fn=init_to_value(values={"loc": 1.5}))
    svi = SVI(model, guide, Adam({"lr": 0.02}), TraceEnum_ELBO(num_particles=8), seed=0)
    result = svi.run(600, progress_bar=False)
    grid = np.linspace(-1.0, 4.0, 4001)
    logs = stats.norm.logpdf(grid, 1.0, 1.0)
    for value in y:
        up, down = stats.norm.logpdf(value, grid), stats.norm.logpdf(value, -grid)
        logs = logs + np.logaddexp(np.log(0.6) + up, np.log(0.4) + down)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    mean = (p * grid).sum()
    sd = np.sqrt((p * (grid - mean) ** 2).sum())
    draws = result.draws(seed=3)
    assert set(draws.posterior) == {"loc"}
    assert draws.posterior["loc"].mean() == pytest.approx(mean, abs=0.2 * sd)
    assert draws.posterior["loc"].std() == pytest.approx(sd, rel=0.15)
    # Judged by the density without the discrete sites: their draws would say nothing of the guide.
    assert result.pareto_k < 0.5


def test_other_objectives_say_how_to_sum():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(x + sample("z", Bernoulli(0.3)), 1.0), obs=0.5)

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.1}), Trace_ELBO(), seed=0)
    with pytest.raises(ModelError, match=r"no site 'z'(.|\n)*TraceEnum_ELBO"):
        svi.step()


def test_values_of_a_site_beside_event_dims_are_told_how_to_stand():
    y, days = tensor([4.0, 5.0, 1.0, 0.0]), np.arange(4)

    def changing(place):
        rate = sample("rate", HalfNormal(5.0))
        change = sample("change", Categorical(tensor([0.25, 0.25, 0.25, 0.25])))
        later = days >= place(change)
        sample("y", Poisson(rate * (1.0 - 0.9 * later)).to_event(1), obs=y)

    with pytest.raises(
        InferenceError, match=r"'y' has 1 event dim .* write change\[\.\.\., None\]"
    ):
        Target.from_model(changing, lambda z: z)
    target = Target.from_model(changing, lambda z: z[..., None])
    for q in (0.3, 1.2):
        rate = np.exp(q)
        prior = stats.halfnorm(scale=5.0).logpdf(rate) + q
        each = [
            stats.poisson(rate * (1.0 - 0.9 * (days >= place))).logpmf(y.numpy()).sum()
            for place in range(4)
        ]
        expected = prior + logsumexp(each) - np.log(4.0)
        np.testing.assert_allclose(target.value_and_grad(np.array([q]))[0], expected, rtol=1e-9)


def test_a_model_that_means_something_else_for_many_values_is_refused():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        z = sample("z", Bernoulli(0.3))
        with plate("rows", 2):
            w = sample("w", Bernoulli(0.6))
            sample("y", Normal(x + (z + w).mean(), 1.0), obs=tensor([0.1, 0.2]))

    with pytest.raises(InferenceError, match=r"'y' cannot be run for all values"):
        Target.from_model(model)


def tied(count, pairs):
    """Sites that are added up, or that depend on each other in pairs; nobody can sum them out."""

    def model(y):
        mu = sample("mu", Normal(0.0, 1.0))
        z = [sample(f"z{i}", Bernoulli(0.5)) for i in range(count)]
        if pairs:
            for i, j in itertools.combinations(range(count), 2):
                factor(f"f{i},{j}", 0.1 * mu * z[i] * z[j])
        else:
            sample("y", Normal(mu + sum(z), 1.0), obs=y)

    return model


@pytest.mark.parametrize("pairs", [False, True])
def test_more_combinations_than_can_be_summed_are_refused_before_they_are(pairs):
    for count in (24, 40):
        with pytest.raises(InferenceError, match=r"(?s)sites meet.*4,194,304.*Gibbs\(model\)"):
            Target.from_model(tied(count, pairs), tensor(3.0))
    small = Target.from_model(tied(9, pairs), tensor(3.0))
    assert len(small.summed) == 9


def test_a_long_chain_of_ties_is_no_trouble():
    def model(y):
        mu = sample("mu", Normal(0.0, 1.0))
        z = 0.0
        for i in range(40):
            z = sample(f"z{i}", Bernoulli(0.2 + 0.6 * z))
            sample(f"y{i}", Normal(mu + z, 1.0), obs=y[i])

    y = np.linspace(-1.0, 2.0, 40)
    target = Target.from_model(model, tensor(y))
    forward, mu = np.array([1.0, 0.0]), 0.3
    move = np.array([[0.8, 0.2], [0.2, 0.8]])
    for i in range(40):
        forward = (forward @ move) * stats.norm.pdf(y[i], mu + np.arange(2.0), 1.0)
    expected = np.log(forward.sum()) + stats.norm.logpdf(mu)
    assert target.value_and_grad([mu])[0] == pytest.approx(expected, rel=1e-10)
