"""Targets of partly observed data: coordinates, densities and draws of what is missing alone."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.effects import plate, sample
from probtorch.infer import (
    HMC,
    MCMC,
    NUTS,
    SMC,
    SVI,
    AutoMultivariateNormal,
    EllipticalSlice,
    Gibbs,
    IndependentMH,
    Predictive,
    Target,
)
from probtorch.infer.slots import SitesChangedError
from probtorch.ops.arithmetic import where
from probtorch.ops.indexing import index_put
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import posterior_sbc

N, HOLES = 12, [3, 7, 10]
RNG = np.random.default_rng(3)
X = RNG.normal(0.5, 1.0, N)
Y = 1.0 + 2.0 * X + 0.5 * RNG.normal(size=N)
KNOWN = np.ones(N, bool)
KNOWN[HOLES] = False
DATA = np.where(KNOWN, X, 0.0)


def parameters():
    return [
        sample("mu", dist.Normal(0.0, 1.0)),
        sample("slope", dist.Normal(0.0, 2.0)),
        sample("scale", dist.HalfNormal(1.0)),
    ]


def regression(x, y, known):
    mu, slope, scale = parameters()
    with plate("row", len(y)):
        x = sample("x", dist.Normal(mu, 1.0), obs=x, obs_mask=known)
        sample("y", dist.Normal(1.0 + slope * x, scale), obs=y)


def apart(x, y, known):
    """The same with a plate of the holes alone."""
    mu, slope, scale = parameters()
    holes = np.flatnonzero(~known)
    with plate("hole", len(holes)):
        missing = sample("missing", dist.Normal(mu, 1.0))
    with plate("seen", int(known.sum())):
        sample("x", dist.Normal(mu, 1.0), obs=x[known])
    with plate("row", len(y)):
        x = index_put(tensor(x), (tensor(holes),), missing)
        sample("y", dist.Normal(1.0 + slope * x, scale), obs=y)


def bounded(x, y, known):
    """Of a support that depends on another site."""
    mu, slope, scale = parameters()
    with plate("row", len(y)):
        x = sample("x", dist.Uniform(mu - 9.0, 9.0 + 0.1 * mu), obs=x, obs_mask=known)
        sample("y", dist.Normal(1.0 + slope * x, scale), obs=y)


def bounded_apart(x, y, known):
    mu, slope, scale = parameters()
    holes = np.flatnonzero(~known)
    with plate("hole", len(holes)):
        missing = sample("missing", dist.Uniform(mu - 9.0, 9.0 + 0.1 * mu))
    with plate("seen", int(known.sum())):
        sample("x", dist.Uniform(mu - 9.0, 9.0 + 0.1 * mu), obs=x[known])
    with plate("row", len(y)):
        x = index_put(tensor(x), (tensor(holes),), missing)
        sample("y", dist.Normal(1.0 + slope * x, scale), obs=y)


@pytest.mark.parametrize(("whole", "parts"), [(regression, apart), (bounded, bounded_apart)])
def test_density_and_gradient_are_those_of_a_plate_of_the_holes(whole, parts):
    one = Target.from_model(whole, DATA, Y, KNOWN)
    other = Target.from_model(parts, DATA, Y, KNOWN)
    assert one.dim == other.dim == 3 + len(HOLES)
    for q in RNG.normal(size=(4, one.dim)):
        value, gradient = one.value_and_grad(q)
        expected, wanted = other.value_and_grad(q)
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-10)
        eager = one.logdensity(wrap(q))
        assert float(eager.array) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("model", [regression, bounded])
def test_values_have_the_full_shape_with_the_data_and_lead_back(model):
    target = Target.from_model(model, DATA, Y, KNOWN)
    q = RNG.normal(size=target.dim)
    with no_grad():
        values = {n: x.array for n, x in target.constrain(wrap(q)).items()}
    assert values["x_unobserved"].shape == (N,)
    np.testing.assert_array_equal(values["x_unobserved"][KNOWN], DATA[KNOWN])
    latent = {name: values[name] for name in target.slots}
    np.testing.assert_allclose(target.unconstrain(latent), q, atol=1e-9)
    # What is said of elements with data makes no difference.
    latent["x_unobserved"] = np.where(KNOWN, 0.25, latent["x_unobserved"])
    np.testing.assert_allclose(target.unconstrain(latent), q, atol=1e-9)


def test_events_are_missing_as_wholes_and_on_a_simplex():
    known = np.array([True, False, True, False])
    shares = RNG.dirichlet(np.ones(3), 4)

    def model(shares):
        with plate("row", 4):
            sample("share", dist.Dirichlet([1.0, 2.0, 3.0]), obs=shares, obs_mask=known)

    target = Target.from_model(model, shares)
    assert target.dim == 4
    q = RNG.normal(size=4)
    with no_grad():
        value = target.constrain(wrap(q))["share"].array
    np.testing.assert_array_equal(value[known], shares[known])
    np.testing.assert_allclose(value.sum(-1), 1.0)

    def alone():
        with plate("row", 2):
            sample("share", dist.Dirichlet([1.0, 2.0, 3.0]))

    expected = Target.from_model(alone).value_and_grad(q)[0]
    expected += sum(stats.dirichlet.logpdf(row, [1.0, 2.0, 3.0]) for row in shares[known])
    assert target.value_and_grad(q)[0] == pytest.approx(expected, rel=1e-12)


def test_nan_where_data_are_missing_reaches_no_gradient():
    target = Target.from_model(regression, np.where(KNOWN, X, math.nan), Y, KNOWN)
    expected = Target.from_model(regression, DATA, Y, KNOWN)
    q = RNG.normal(size=target.dim)
    value, gradient = target.value_and_grad(q)
    assert value == expected.value_and_grad(q)[0]
    np.testing.assert_array_equal(gradient, expected.value_and_grad(q)[1])


@pytest.mark.parametrize("missing", ["all", "none"])
def test_masks_without_data_and_without_holes(missing):
    known = np.full(N, missing == "none")
    target = Target.from_model(normals, DATA, Y, known)
    assert target.dim == 1 + (0 if missing == "none" else N)
    mcmc = MCMC(NUTS(normals), num_samples=400, warmup_steps=300, seed=0, progress_bar=False)
    draws = mcmc.run(DATA, Y, known)
    assert len(draws.summary().rows) == target.dim + (0 if missing == "none" else N)
    assert draws["x_unobserved"].shape == (1, 400, N)


def test_another_mask_is_another_target_also_of_compiled_densities():
    mcmc = MCMC(NUTS(regression), num_samples=400, warmup_steps=300, seed=0, progress_bar=False)
    for holes in ([3, 7, 10], [0, 1, 2], [5]):
        known = np.ones(N, bool)
        known[holes] = False
        draws = mcmc.run(DATA, Y, tensor(known))["x_unobserved"]
        varies = np.ptp(draws, axis=(0, 1)) > 0.0
        np.testing.assert_array_equal(varies, ~known)


def test_a_mask_that_depends_on_a_site_leaves_the_site_whole():
    def model(y):
        limit = sample("limit", dist.Normal(0.0, 1.0))
        with plate("row", len(y)):
            sample("y", dist.Normal(0.0, 1.0), obs=y, obs_mask=tensor(y) > limit)

    assert Target.from_model(model, X).dim == 1 + N


def test_a_mask_that_turns_out_to_depend_on_a_site_is_an_error():
    def model(y):
        limit = sample("limit", dist.Normal(0.0, 1.0))
        with plate("row", len(y)):
            there = where(limit > 40.0, tensor(~KNOWN), tensor(KNOWN))
            sample("y", dist.Normal(0.0, 1.0), obs=y, obs_mask=there)

    target = Target.from_model(model, X)
    q = np.zeros(target.dim)
    assert np.isfinite(target.value_and_grad(q)[0])
    q[0] = 50.0
    with pytest.raises(SitesChangedError, match=r"(?s)'y_unobserved'.*obs_mask.*depend on no"):
        target.value_and_grad(q)


def test_a_discrete_site_may_choose_the_mask():
    def model(y):
        which = sample("which", dist.Bernoulli(0.5))
        with plate("row", len(y)):
            there = where(which > 0.5, tensor(~KNOWN), tensor(KNOWN))
            sample("y", dist.Normal(0.0, 1.0), obs=y, obs_mask=there)

    target = Target.from_model(model, X)
    assert target.dim == N
    assert np.isfinite(target.value_and_grad(np.zeros(N))[0])


def run(kernel, **settings):
    given = {"num_samples": 1000, "warmup_steps": 500, "num_chains": 2, "progress_bar": False}
    return MCMC(kernel, seed=5, **(given | settings)).run(DATA, Y, KNOWN)


def oracle():
    """Posterior means by an importance sample of the parameters, holes integrated out by hand."""
    rng = np.random.default_rng(0)
    n = 400_000
    mu, slope = rng.normal(0.2, 0.6, n), rng.normal(2.0, 0.4, n)
    scale = np.abs(rng.standard_t(5, n)) * 0.5
    log = stats.norm.logpdf(mu) + stats.norm.logpdf(slope, 0, 2) + stats.halfnorm.logpdf(scale)
    log -= stats.norm.logpdf(mu, 0.2, 0.6) + stats.norm.logpdf(slope, 2.0, 0.4)
    log -= stats.t.logpdf(scale / 0.5, 5)
    for x, y, known in zip(DATA, Y, KNOWN, strict=True):
        if known:
            log += stats.norm.logpdf(x, mu) + stats.norm.logpdf(y, 1.0 + slope * x, scale)
        else:
            log += stats.norm.logpdf(y, 1.0 + slope * mu, np.sqrt(scale**2 + slope**2))
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    means = {"mu": mu @ weight, "slope": slope @ weight, "scale": scale @ weight}
    for i in HOLES:
        # The hole given the others is normal: prior N(mu, 1), datum y = 1 + slope x + noise.
        precision = 1.0 + slope**2 / scale**2
        mean = (mu + slope * (Y[i] - 1.0) / scale**2) / precision
        means[i] = mean @ weight
    return means


@pytest.mark.parametrize("kernel", [NUTS, HMC])
def test_samplers_find_the_posterior(kernel):
    agrees(run(kernel(regression)))


def test_particles_from_the_prior_find_the_posterior():
    agrees(
        SMC(NUTS(regression), num_particles=2000, seed=3, progress_bar=False).run(DATA, Y, KNOWN)
    )


def agrees(draws):
    exact = oracle()
    for name in ("mu", "slope", "scale", *HOLES):
        x = draws["x_unobserved"][..., name] if name in HOLES else draws[name]
        # Effective sizes are above 300: five standard errors.
        assert abs(x.mean() - exact[name]) < 5.0 * x.std() / math.sqrt(300), name


def normals(x, y, known):
    mu = sample("mu", dist.Normal(0.0, 1.0))
    with plate("row", len(y)):
        x = sample("x", dist.Normal(mu, 1.0), obs=x, obs_mask=known)
        sample("y", dist.Normal(x, 0.5), obs=y)


def exact_normals():
    """Mean and covariance of mu and the holes, by conditioning one joint normal."""
    n, cov = len(Y), np.zeros((1 + 2 * N, 1 + 2 * N))
    load = np.zeros((1 + 2 * n, 1 + 2 * n))
    load[:, 0] = 1.0
    load[1 : n + 1, 1 : n + 1] = load[n + 1 :, 1 : n + 1] = np.eye(n)
    load[n + 1 :, n + 1 :] = 0.5 * np.eye(n)
    cov = load @ load.T
    seen = np.r_[1 + np.flatnonzero(KNOWN), np.arange(n + 1, 2 * n + 1)]
    wanted = np.r_[0, 1 + np.array(HOLES)]
    data = np.r_[DATA[KNOWN], Y]
    gain = np.linalg.solve(cov[np.ix_(seen, seen)], cov[np.ix_(seen, wanted)]).T
    return gain @ data, cov[np.ix_(wanted, wanted)] - gain @ cov[np.ix_(seen, wanted)]


@pytest.mark.parametrize(
    "made",
    [
        EllipticalSlice,
        IndependentMH,
        lambda model: Gibbs(
            Target.from_model(model, DATA, Y, KNOWN),
            blocks={"x_unobserved": EllipticalSlice},
        ),
    ],
    ids=["whole prior", "laplace", "given the others"],
)
def test_kernels_with_a_law_of_their_own_find_the_posterior(made):
    mean, cov = exact_normals()
    draws = run(made(normals), num_samples=4000)
    found = np.concatenate([draws["mu"][..., None], draws["x_unobserved"][..., HOLES]], axis=-1)
    # At least 100 effective draws: five standard errors.
    sd = np.sqrt(np.diag(cov))
    np.testing.assert_array_less(np.abs(found.mean(axis=(0, 1)) - mean), 0.5 * sd)
    np.testing.assert_allclose(found.std(axis=(0, 1)), sd, rtol=0.4)


def test_guides_have_whole_sites_and_their_draws_are_judged_by_their_density():
    svi = SVI(normals, AutoMultivariateNormal(normals), Adam({"lr": 0.01}), seed=0)
    result = svi.run(6000, DATA, Y, KNOWN, progress_bar=False)
    draws = result.draws(1000)
    assert draws["x_unobserved"].shape == (1, 1000, N)
    assert draws.positions.shape == (1, 1000, 1 + N)
    mean, _ = exact_normals()
    found = draws["x_unobserved"][0][:, HOLES].mean(axis=0)
    np.testing.assert_allclose(found, mean[1:], atol=0.25)
    # As a proposal it brings its coordinates along.
    proposed = run(IndependentMH(normals, proposal=result), num_samples=4000)
    assert proposed.positions.shape[-1] == 1 + N


def test_draws_predict_are_stored_and_read_again(tmp_path):
    mcmc = MCMC(NUTS(normals), num_samples=400, warmup_steps=300, seed=0, progress_bar=False)
    draws = mcmc.run(DATA, Y, KNOWN, checkpoint=tmp_path / "chain")
    assert draws.positions.shape[-1] == 1 + len(HOLES)
    again = mcmc.run(DATA, Y, KNOWN, checkpoint=tmp_path / "chain")
    np.testing.assert_array_equal(again["x_unobserved"], draws["x_unobserved"])
    copy = pickle.loads(pickle.dumps(draws))
    np.testing.assert_array_equal(copy["x_unobserved"], draws["x_unobserved"])
    samples = {name: draws[name][0] for name in ("mu", "x_unobserved")}
    found = Predictive(normals, samples)(DATA, Y, KNOWN)
    np.testing.assert_array_equal(found["x"][:, HOLES], samples["x_unobserved"][:, HOLES])
    assert draws.predict(seed=0)["y"].shape == (1, 400, N)


def test_summaries_name_the_holes():
    mcmc = MCMC(NUTS(normals), num_samples=400, warmup_steps=300, seed=0, progress_bar=False)
    draws = mcmc.run(DATA, Y, KNOWN)
    rows = [f"{name}[{i}]" for name in ("x_unobserved", "x") for i in HOLES]
    assert list(draws.summary().rows) == ["mu", *rows]
    np.testing.assert_allclose(
        draws.summary()["x"]["mean"], draws["x"][..., HOLES].mean(axis=(0, 1))
    )


def test_replications_of_whole_sites_agree_with_draws_of_holes():
    mcmc = MCMC(NUTS(normals), num_samples=500, warmup_steps=300, seed=0, progress_bar=False)
    draws = mcmc.run(DATA, Y, KNOWN)
    assert posterior_sbc(draws, replications=40, seed=1, progress_bar=False).calibrated
