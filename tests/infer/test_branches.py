"""Sites of a model that are enumerated sequentially: branches and loops on discrete values."""

import itertools
import pickle

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import probtorch
import probtorch.distributions as dist
from probtorch.errors import InferenceError
from probtorch.infer import (
    MCMC,
    NUTS,
    SMC,
    SVI,
    AutoNormal,
    Predictive,
    RandomWalk,
    Target,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceTMC_ELBO,
    infer_discrete,
)
from probtorch.infer.mixed import MixedTarget
from probtorch.infer.slots import SitesChangedError
from probtorch.optim import SGD, Adam

ONE_BY_ONE = {"enumerate": "sequential"}
KINDS = [0.5, 0.3, 0.2]
# Of 0 to 3 steps that each go on with probability 0.4.
COUNTS = [0.6, 0.24, 0.096, 0.064]
ROWS = [1.0, 3.0]


def shifted(y):
    """A level, and data that are two higher in one case of three or so."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    if probtorch.sample("high", dist.Bernoulli(0.3), infer=ONE_BY_ONE):
        probtorch.sample("y", dist.Normal(mu + 2.0, 1.0), obs=y)
    else:
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)


def stairs(y):
    """A loop whose length is random, around sites that are summed out at once."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    count = 0
    while count < 3 and probtorch.sample(f"more_{count}", dist.Bernoulli(0.4), infer=ONE_BY_ONE):
        count += 1
    probtorch.deterministic("count", probtorch.tensor(float(count)))
    probtorch.deterministic("twice", 2.0 * mu)
    with probtorch.plate("row", len(y)):
        kind = probtorch.sample("kind", dist.Categorical(probtorch.tensor(KINDS)))
        probtorch.sample("y", dist.Normal(mu + count + kind, 1.0), obs=y)


def log_joints_of_stairs(mu):
    """The log density of each count and pair of kinds, (4, 3, 3)."""
    found = np.empty((4, 3, 3))
    for count, a, b in itertools.product(range(4), range(3), range(3)):
        found[count, a, b] = stats.norm.logpdf(mu) + np.log(COUNTS[count] * KINDS[a] * KINDS[b])
        for kind, y in zip((a, b), ROWS):
            found[count, a, b] += stats.norm.logpdf(y, mu + count + kind, 1.0)
    return found


def evidence_of_shifted(y):
    return np.log([0.7, 0.3]) + stats.norm.logpdf(y, [0.0, 2.0], np.sqrt(2.0))


def test_density_is_the_sum_over_branches():
    target = Target.from_model(shifted, probtorch.tensor(1.5))
    value, slope = target.value_and_grad([0.2])
    each = np.log([0.7, 0.3]) + stats.norm.logpdf(1.5, [0.2, 2.2], 1.0)
    assert abs(value - stats.norm.logpdf(0.2) - logsumexp(each)) < 1e-12
    shares = np.exp(each - logsumexp(each))
    assert abs(slope[0] - (-0.2 + shares @ [1.3, -0.7])) < 1e-12


def test_density_of_a_loop_with_sums_inside():
    target = Target.from_model(stairs, probtorch.tensor(ROWS))
    for mu in (-1.0, 0.2):
        assert abs(target.value_and_grad([mu])[0] - logsumexp(log_joints_of_stairs(mu))) < 1e-12
        assert abs(target.log_joint(np.array([mu])) - logsumexp(log_joints_of_stairs(mu))) < 1e-12


def test_prior_may_have_another_family_in_each_branch():
    def model(y):
        wide = probtorch.sample("wide", dist.Bernoulli(0.3), infer=ONE_BY_ONE)
        scale = probtorch.sample("s", dist.Gamma(2.0, 1.0) if wide else dist.HalfNormal(1.0))
        probtorch.sample("y", dist.Normal(0.0, scale), obs=y)

    value, _ = Target.from_model(model, probtorch.tensor(0.5)).value_and_grad([0.3])
    s = np.exp(0.3)
    prior = 0.3 * stats.gamma(2.0).pdf(s) + 0.7 * stats.halfnorm.pdf(s)
    assert abs(value - np.log(prior * stats.norm.pdf(0.5, 0.0, s)) - 0.3) < 1e-12


def test_samplers_and_evidence():
    y = probtorch.tensor(1.5)
    mcmc = MCMC(NUTS(shifted), 3000, warmup_steps=300, num_chains=2, seed=0, progress_bar=False)
    draws = mcmc.run(y)
    each = evidence_of_shifted(1.5)
    shares = np.exp(each - logsumexp(each))
    # Means of 0.75 and -0.25 in the branches; some 1500 effective draws, standard deviation 0.86.
    assert abs(draws["mu"].mean() - shares @ [0.75, -0.25]) < 0.1
    high = draws.infer_discrete(seed=1)["high"]
    assert high.shape == (2, 3000) and abs(high.mean() - shares[1]) < 0.04
    smc = SMC(RandomWalk(shifted), 1000, seed=0, progress_bar=False).run(y)
    assert abs(smc.log_evidence - logsumexp(each)) < 4.0 * smc.log_evidence_error + 0.01


def test_values_given_the_rest():
    target = Target.from_model(stairs, probtorch.tensor(ROWS))
    log_joint = log_joints_of_stairs(0.2)
    joint = np.exp(log_joint - logsumexp(log_joint))
    generator = probtorch.Generator(3)
    many = target.discrete_at(np.full((40_000, 1), 0.2), 1, generator)
    # more_1 and more_2 are not met in all branches.
    assert sorted(many) == ["kind", "more_0"]
    assert abs(many["more_0"].mean() - joint[1:].sum()) < 0.015
    pairs = np.zeros((2, 3, 3))
    np.add.at(pairs, (many["more_0"].astype(int), *many["kind"].T), 1 / 40_000)
    np.testing.assert_allclose(pairs[0], joint[0], atol=0.015)
    np.testing.assert_allclose(pairs[1], joint[1:].sum(0), atol=0.015)
    best = target.discrete_at(np.full((2, 1), 0.2), 0)
    count, *kinds = np.unravel_index(log_joint.argmax(), log_joint.shape)
    assert (best["more_0"] == (count > 0)).all() and (best["kind"] == kinds).all()


def test_what_follows_from_a_branch_is_no_function_of_the_draws():
    target = Target.from_model(stairs, probtorch.tensor(ROWS))
    assert target.deterministic == ("twice",)
    assert list(target.summed) == ["more_0", "kind"]


def test_infer_discrete_draws_a_branch():
    given = probtorch.handlers.substitute(stairs, {"mu": probtorch.tensor(0.2)})
    y = probtorch.tensor(ROWS)
    log_joint = log_joints_of_stairs(0.2)
    joint = np.exp(log_joint - logsumexp(log_joint))
    probtorch.manual_seed(0)
    counts = np.zeros(4)
    for _ in range(150):
        with probtorch.handlers.trace() as found:
            infer_discrete(given)(y)
        counts[int(found["count"].value)] += 1 / 150
    # Standard errors of at most 0.04.
    np.testing.assert_allclose(counts, joint.sum((1, 2)), atol=0.15)
    with probtorch.handlers.trace() as found:
        infer_discrete(given, temperature=0)(y)
    best = np.unravel_index(log_joint.argmax(), log_joint.shape)
    assert (int(found["count"].value), *found["kind"].value.tolist()) == best


def test_predictive_draws_branches():
    y = probtorch.tensor(1.5)
    samples = {"mu": np.full(20_000, 0.2)}
    found = Predictive(shifted, samples, infer_discrete=True, seed=0)(y)["high"]
    each = np.log([0.7, 0.3]) + stats.norm.logpdf(1.5, [0.2, 2.2], 1.0)
    assert abs(found.numpy().mean() - np.exp(each[1] - logsumexp(each))) < 0.015


def test_predictive_draws_sites_that_only_some_branches_come_to():
    y = probtorch.tensor(ROWS)
    samples = {"mu": np.full(2_000, 0.2)}
    predictive = Predictive(stairs, samples, infer_discrete=True, seed=0, return_sites=["count"])
    counts = predictive(y)["count"].numpy().astype(int)
    log_joint = log_joints_of_stairs(0.2)
    exact = np.exp(log_joint - logsumexp(log_joint)).sum((1, 2))
    # Standard errors of at most 0.011.
    np.testing.assert_allclose(np.bincount(counts, minlength=4) / 2_000, exact, atol=0.04)
    # They have no value in some draws, so they are returned to nobody who does not ask.
    found = Predictive(stairs, samples, infer_discrete=True, seed=0)(y)
    assert "count" in found and not {"more_1", "more_2"} & found.keys()


def test_target_with_branches_is_pickled():
    target = Target.from_model(stairs, probtorch.tensor(ROWS))
    q = probtorch.tensor([0.2], dtype=probtorch.float64)
    again = pickle.loads(pickle.dumps(target))
    assert float(again.logdensity(q)) == float(target.logdensity(q))
    assert again.discrete_at(np.full((3, 1), 0.2))["more_0"].shape == (3,)


@pytest.mark.parametrize("mask", [False, [False], True])
def test_masked_site_adds_nothing(mask):
    def model():
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        if probtorch.sample("high", dist.Bernoulli(0.3), infer=ONE_BY_ONE):
            with probtorch.handlers.mask(mask=probtorch.tensor(mask)):
                kind = dist.Categorical(probtorch.tensor(KINDS))
                mu = mu + 2.0 + 0.0 * probtorch.sample("kind", kind, infer=ONE_BY_ONE)
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=probtorch.tensor(1.5))

    expected = logsumexp(np.log([0.7, 0.3]) + stats.norm.logpdf(1.5, [0.2, 2.2], 1.0))
    expected += stats.norm.logpdf(0.2)
    target = Target.from_model(model)
    q = probtorch.tensor([0.2], dtype=probtorch.float64)
    assert abs(float(target.logdensity(q)) - expected) < 1e-6
    point = dist.Delta(probtorch.tensor(0.2, dtype=probtorch.float64))
    loss = TraceEnum_ELBO().loss(model, lambda: probtorch.sample("mu", point))
    assert abs(loss + expected) < 1e-5


def test_number_of_values_may_not_follow_from_data():
    def model(n):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        k = probtorch.sample("k", dist.Binomial(float(n), 0.5), infer=ONE_BY_ONE)
        probtorch.sample("y", dist.Normal(mu + k, 1.0), obs=probtorch.tensor(2.0))

    target = Target.from_model(model, 2)
    target.args = (5,)
    with pytest.raises(InferenceError, match=r"'k' \(3 values\)[\s\S]*'k' \(6 values\)"):
        target.logdensity(probtorch.tensor([0.1], dtype=probtorch.float64))


def test_bound_sums_branches():
    def guide(y):
        probtorch.sample("mu", dist.Delta(probtorch.tensor(0.2)))

    loss = TraceEnum_ELBO().loss(shifted, guide, probtorch.tensor(1.5))
    each = np.log([0.7, 0.3]) + stats.norm.logpdf(1.5, [0.2, 2.2], 1.0)
    assert abs(loss + stats.norm.logpdf(0.2) + logsumexp(each)) < 1e-6
    loss = TraceEnum_ELBO().loss(stairs, guide, probtorch.tensor(ROWS))
    assert abs(loss + logsumexp(log_joints_of_stairs(0.2))) < 1e-6


def test_guide_is_fitted_and_steps_are_compiled():
    y = probtorch.tensor(1.5)
    guide = AutoNormal(shifted)
    svi = SVI(shifted, guide, Adam({"lr": 0.02}), TraceEnum_ELBO(5), seed=0)
    result = svi.run(1500, y, progress_bar=False)
    # The best normal's bound is 0.01 below.
    assert abs(result.losses[-300:].mean() + logsumexp(evidence_of_shifted(1.5))) < 0.05
    assert "compiled path" in str(svi.explain())


def test_slopes_by_scores_are_unbiased():
    """A guide's draws without paths get the score times the sum of branches."""
    y, rate = 4.0, 2.0

    def model():
        k = probtorch.sample("k", dist.Categorical(probtorch.tensor([0.2, 0.5, 0.3])))
        high = probtorch.sample("high", dist.Bernoulli(0.3), infer=ONE_BY_ONE)
        probtorch.sample(
            "y", dist.Normal(k + (rate if high else 0.0), 1.0), obs=probtorch.tensor(y)
        )

    def guide():
        logits = probtorch.param("logits", probtorch.zeros(3).double())
        probtorch.sample("k", dist.Categorical(logits=logits))

    k = np.arange(3.0)
    log_p = np.log([0.2, 0.5, 0.3]) + np.log(
        0.7 * stats.norm.pdf(y, k) + 0.3 * stats.norm.pdf(y, k + rate)
    )
    q = np.full(3, 1 / 3)
    exact = q * (log_p - np.log(q) - q @ (log_p - np.log(q)))
    svi = SVI(model, guide, SGD({"lr": 1.0}), TraceEnum_ELBO(100), seed=0)
    svi.step()
    found = svi.get_params()["logits"].numpy()
    # Standard errors of about 0.1: costs have a spread of 2, scores of 0.5, 100 draws.
    assert np.abs(exact).max() > 0.5
    np.testing.assert_allclose(found, exact, atol=0.35)


def test_a_target_with_discrete_coordinates_sums_branches():
    target = MixedTarget(shifted, (probtorch.tensor(1.5),), {})
    assert list(target.slots) == ["mu"]
    each = np.log([0.7, 0.3]) + stats.norm.logpdf(1.5, [0.2, 2.2], 1.0)
    assert abs(target.value_and_grad([0.2])[0] - stats.norm.logpdf(0.2) - logsumexp(each)) < 1e-12


def test_annotation_in_a_plate_is_a_sum_at_once():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", len(y)):
            z = probtorch.sample("z", dist.Bernoulli(0.3), infer=ONE_BY_ONE)
            probtorch.sample("y", dist.Normal(mu + z, 1.0), obs=y)

    value, _ = Target.from_model(model, probtorch.tensor(ROWS)).value_and_grad([0.0])
    rows = 0.7 * stats.norm.pdf(ROWS) + 0.3 * stats.norm.pdf(ROWS, 1.0)
    assert abs(value - stats.norm.logpdf(0.0) - np.log(rows).sum()) < 1e-12


def test_other_latents_in_a_branch_are_refused():
    def model(y):
        if probtorch.sample("z", dist.Bernoulli(0.3), infer=ONE_BY_ONE):
            mu = probtorch.sample("a", dist.Normal(1.0, 1.0))
        else:
            mu = probtorch.sample("b", dist.Normal(-1.0, 1.0))
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)

    def guide(y):
        probtorch.sample("b", dist.Normal(0.0, 1.0))

    y = probtorch.tensor(0.5)
    with pytest.raises(SitesChangedError, match="ParticleGibbs"):
        Target.from_model(model, y)
    with pytest.raises(InferenceError, match="drawn along some branches"):
        TraceEnum_ELBO().loss(model, guide, y)
    with pytest.raises(InferenceError, match="drawn along some branches"):
        infer_discrete(model)(y)


@pytest.mark.parametrize("to_event", [False, True])
def test_another_shape_in_a_branch_is_refused_where_it_is_drawn(to_event):
    def model():
        z = probtorch.sample("z", dist.Bernoulli(0.3), infer=ONE_BY_ONE)
        count = 3 if z else 2
        if to_event:
            x = probtorch.sample("x", dist.Normal(0.0, 1.0).expand([count]).to_event(1))
        else:
            with probtorch.plate("part", count):
                x = probtorch.sample("x", dist.Normal(0.0, 1.0))
        weights = probtorch.ones(count)
        probtorch.sample("y", dist.Normal(x @ weights, 1.0), obs=probtorch.tensor(1.0))

    other = r"'x' has another shape along another branch(.|\n)*\(2,\)(.|\n)*got: +shape \(3,\)"
    with pytest.raises(InferenceError, match=other):
        TraceEnum_ELBO().loss(model, AutoNormal(model))


def test_scales_are_refused():
    def model():
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        z = probtorch.sample("z", dist.Bernoulli(0.3), infer=ONE_BY_ONE)
        with probtorch.plate("row", 10, subsample_size=2):
            shift = 1.0 if z else 0.0
            probtorch.sample("y", dist.Normal(mu + shift, 1.0), obs=probtorch.tensor(ROWS))

    with pytest.raises(InferenceError, match=r"'y' has a scale(.|\n)*got: +a scale 5"):
        TraceEnum_ELBO().loss(model, lambda: probtorch.sample("mu", dist.Normal(0.0, 1.0)))


def test_too_many_branches_are_refused():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        for i in range(11):
            if probtorch.sample(f"z_{i}", dist.Bernoulli(0.3), infer=ONE_BY_ONE):
                mu = mu + 1.0
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)

    with pytest.raises(InferenceError, match="at most 1024 combinations"):
        Target.from_model(model, probtorch.tensor(1.0))


def test_what_cannot_have_branches_says_so():
    y = probtorch.tensor(1.5)

    def guide(y):
        probtorch.sample("mu", dist.Normal(0.0, 1.0))

    with pytest.raises(InferenceError, match=r"is enumerated sequentially(.|\n)*TraceEnum_ELBO"):
        TraceTMC_ELBO().loss(shifted, guide, y)
    at_once = (
        r"is enumerated sequentially(.|\n)*3 particles at once\n.*: +leave vectorize_particles"
    )
    with pytest.raises(InferenceError, match=at_once):
        TraceEnum_ELBO(3, vectorize_particles=True).loss(shifted, guide, y)
    with pytest.raises(InferenceError, match=r"infer_discrete\(model\)"):
        TraceEnum_ELBO().compute_marginals(shifted, guide, y)
    with pytest.raises(Exception, match="TraceEnum_ELBO"):
        Trace_ELBO().loss(shifted, guide, y)


def test_python_that_asks_is_told_of_branches():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        if probtorch.sample("z", dist.Bernoulli(0.3)):
            mu = mu + 1.0
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)

    for run in (Target.from_model, lambda model, y: infer_discrete(model)(y)):
        with pytest.raises(InferenceError, match="'enumerate': 'sequential'"):
            run(model, probtorch.tensor(1.0))
