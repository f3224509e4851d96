"""Gaussian processes with data against dense normals, in NumPy and SciPy."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import probtorch
import probtorch.distributions as dist
from probtorch.contrib import gp
from probtorch.contrib.gp.conditional import conditional
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from probtorch.nn import PyroSample
from probtorch.optim import LBFGS, Adam
from probtorch.testing import assert_close

RNG = np.random.default_rng(0)
N, M, NOISE = 12, 5, 0.04
X = np.sort(RNG.uniform(-2.0, 2.0, N))
Y = np.sin(2.0 * X) + 0.2 * RNG.normal(size=N)
NEW = np.linspace(-2.5, 2.5, M)
VARIANCE, LENGTH = 1.3, 0.7


def k(x, z):
    return VARIANCE * np.exp(-0.5 * ((x[:, None] - z[None, :]) / LENGTH) ** 2)


def rbf():
    double = probtorch.float64
    return gp.kernels.RBF(
        1, probtorch.tensor(VARIANCE, dtype=double), probtorch.tensor(LENGTH, dtype=double)
    )


def double(value):
    return probtorch.tensor(value, dtype=probtorch.float64)


def exact(noise=NOISE):
    """Mean and covariance of the function at new points, by Gauss."""
    K, Ks = k(X, X) + noise * np.eye(N), k(X, NEW)
    inverse = np.linalg.inv(K)
    return Ks.T @ inverse @ Y, k(NEW, NEW) - Ks.T @ inverse @ Ks


def loss(process, **options):
    elbo = Trace_ELBO(**options)
    process.complete_guides()
    return float(elbo.loss(process.model, process.guide))


def regression(**options):
    return gp.models.GPRegression(X, Y, rbf(), noise=double(NOISE), jitter=0.0, **options)


# ------------------------------------------------------------------------------------- regression


def test_regression_has_the_evidence_of_a_dense_normal():
    evidence = scipy.stats.multivariate_normal(np.zeros(N), k(X, X) + NOISE * np.eye(N)).logpdf(Y)
    assert loss(regression()) == pytest.approx(-evidence, rel=1e-10)
    mean = scipy.stats.multivariate_normal(2.0 * X, k(X, X) + NOISE * np.eye(N)).logpdf(Y)
    with_mean = regression(mean_function=lambda x: 2.0 * x)
    assert loss(with_mean) == pytest.approx(-mean, rel=1e-10)


def test_regression_predicts_by_gauss():
    loc, cov = exact()
    found, full = regression()(NEW, full_cov=True)
    np.testing.assert_allclose(found.detach(), loc, atol=1e-10)
    np.testing.assert_allclose(full.detach(), cov, atol=1e-10)
    _, var = regression()(NEW)
    np.testing.assert_allclose(var.detach(), np.diag(cov), atol=1e-10)
    _, noisy = regression()(NEW, full_cov=True, noiseless=False)
    np.testing.assert_allclose(noisy.detach(), cov + NOISE * np.eye(M), atol=1e-10)
    # A mean function of slope 2 is what is left where the data say nothing.
    far = regression(mean_function=lambda x: 2.0 * x)(np.array([100.0]))[0]
    assert far.item() == pytest.approx(200.0)


def test_outputs_beside_each_other_share_the_kernel():
    both = np.stack([Y, Y**2])
    process = gp.models.GPRegression(X, both, rbf(), noise=double(NOISE), jitter=0.0)
    normal = scipy.stats.multivariate_normal(np.zeros(N), k(X, X) + NOISE * np.eye(N))
    assert loss(process) == pytest.approx(-normal.logpdf(both).sum(), rel=1e-10)
    loc, var = process(NEW)
    assert loc.shape == var.shape == (2, M)
    np.testing.assert_allclose(loc[0].detach(), exact()[0], atol=1e-10)
    assert process(NEW, full_cov=True)[1].shape == (2, M, M)


def test_tasks_learn_from_each_other_as_a_dense_normal_says():
    """Task 1 is seen left of 0, task 0 everywhere."""
    task = (np.arange(N) % 2 == 1) & (X < 0.0)
    w, v = np.array([[1.0], [0.8]]), np.array([0.1, 0.2])
    kernel = gp.kernels.Multitask(rbf(), 2, components=double(w), diagonal=double(v))
    points = np.stack([X, task], -1)
    process = gp.models.GPRegression(points, Y, kernel, noise=double(NOISE), jitter=0.0)
    B, i, new = w @ w.T + np.diag(v), task.astype(int), np.stack([NEW, np.ones(M)], -1)
    K = k(X, X) * B[i][:, i] + NOISE * np.eye(N)
    Ks = k(X, NEW) * B[i, 1][:, None]
    loc, cov = process(new, full_cov=True)
    assert_close(loc.detach(), Ks.T @ np.linalg.solve(K, Y), rtol=1e-8)
    assert_close(
        cov.detach(), k(NEW, NEW) * B[1, 1] - Ks.T @ np.linalg.solve(K, Ks), rtol=1e-7, atol=1e-10
    )
    evidence = scipy.stats.multivariate_normal(np.zeros(N), K).logpdf(Y)
    assert -loss(process) == pytest.approx(evidence, rel=1e-9)
    names = {name.removesuffix("_unconstrained") for name, _ in process.named_parameters()}
    assert {"kernel.tasks.components", "kernel.tasks.diagonal"} <= names


DF = 4.5


def student(y=Y, **options):
    options = {"noise": double(NOISE), "jitter": 0.0, "df": double(DF), **options}
    return gp.models.TPRegression(X, y, rbf(), **options)


def conditional_t(y):
    """Location and covariance of the function at new points by the joint t law of all values."""
    _, cov = exact()
    inverse = np.linalg.inv(k(X, X) + NOISE * np.eye(N))
    size = (DF - 2.0 + y @ inverse @ y) / (DF + N - 2.0)
    return k(X, NEW).T @ inverse @ y, size * cov


def test_student_process_has_the_evidence_of_a_dense_student():
    shape = (k(X, X) + NOISE * np.eye(N)) * (DF - 2.0) / DF
    law = scipy.stats.multivariate_t(np.zeros(N), shape, DF)
    assert loss(student()) == pytest.approx(-law.logpdf(Y), rel=1e-10)
    both = np.stack([Y, 3.0 * Y])
    assert loss(student(both)) == pytest.approx(-law.logpdf(both).sum(), rel=1e-10)
    slope = scipy.stats.multivariate_t(2.0 * X, shape, DF).logpdf(Y)
    assert loss(student(mean_function=lambda x: 2.0 * x)) == pytest.approx(-slope, rel=1e-10)


def test_student_process_predicts_by_the_joint_law():
    both = np.stack([Y, 3.0 * Y])
    loc, cov = student(both)(NEW, full_cov=True)
    variances, noisy = (student(both)(NEW, noiseless=n)[1] for n in (True, False))
    for i, y in enumerate(both):
        mean, covariance = conditional_t(y)
        np.testing.assert_allclose(loc[i].detach(), mean, atol=1e-10)
        np.testing.assert_allclose(cov[i].detach(), covariance, atol=1e-10)
        np.testing.assert_allclose(variances[i].detach(), np.diag(covariance), atol=1e-10)
        size = covariance[0, 0] / exact()[1][0, 0]
        np.testing.assert_allclose(
            noisy[i].detach(), np.diag(covariance) + size * NOISE, atol=1e-10
        )


def test_student_process_is_conditional_on_more_data_as_on_all():
    """The density of some values given others is that of both over that of the others."""
    fewer = gp.models.TPRegression(
        X[:-1], Y[:-1], rbf(), noise=double(NOISE), jitter=0.0, df=double(DF)
    )
    loc, var = (x.item() for x in fewer(X[-1:], noiseless=False))
    df = DF + N - 1
    law = scipy.stats.t(df, loc, math.sqrt(var * (df - 2.0) / df))
    assert loss(fewer) - loss(student()) == pytest.approx(law.logpdf(Y[-1]), rel=1e-9)


def test_draws_of_a_student_process_share_one_scale():
    """2000 outputs, alike; moments beyond 4.5 errors of their own once in 50 000 runs."""
    probtorch.manual_seed(0)
    mean, cov = conditional_t(3.0 * Y)
    draw = student(np.tile(3.0 * Y, (2000, 1)), jitter=1e-9).iter_sample()
    drawn = np.concatenate([draw(NEW[:1]).numpy(), draw(NEW[-1:]).numpy()], -1)
    z = (drawn - mean[[0, -1]]) / np.sqrt(np.diag(cov)[[0, -1]])
    assert abs(z.mean(0)).max() < 4.5 / math.sqrt(2000)
    # The kurtosis of t with df + n degrees of freedom: squares have this variance.
    error = math.sqrt((2.0 + 6.0 / (DF + N - 4.0)) / 2000)
    assert abs((z**2).mean(0) - 1.0).max() < 4.5 * error
    # Squares of both are correlated by the scale that they share, beside what points share.
    points = cov[0, -1] ** 2 / (cov[0, 0] * cov[-1, -1])
    shared = 1.0 + 2.0 / (DF + N - 4.0)
    expected = shared * (1.0 + 2.0 * points)
    assert abs(np.mean(z[:, 0] ** 2 * z[:, 1] ** 2) - expected) < 4.5 * math.sqrt(10.0 / 2000)


def test_degrees_of_freedom_are_learned_or_have_a_prior():
    names = {n.removesuffix("_unconstrained") for n, _ in student().named_parameters()}
    assert "df" in names
    random = gp.models.TPRegression(X, Y, rbf(), df=dist.LogNormal(2.0, 0.1))
    assert "df" in probtorch.handlers.trace(random.model).get_trace().nodes
    assert gp.models.TPRegression(X, Y, rbf()).df.item() == pytest.approx(5.0)
    with pytest.raises(DomainError, match=r"'df'.*\n.*greater_than"):
        gp.models.TPRegression(X, Y, rbf(), df=1.5)
    with pytest.raises(DomainError, match=r"df.*\n.*finite.*\n.*inf\b.*\n.*take GPRegression"):
        gp.models.TPRegression(X, Y, rbf(), df=math.inf)


def test_training_finds_the_maximum_of_the_evidence():
    process = gp.models.GPRegression(X, Y, rbf(), noise=double(NOISE))
    gp.util.train(process, LBFGS(process.parameters(), max_iter=50), num_steps=4)
    process.zero_grad()
    Trace_ELBO().differentiable_loss(process.model, process.guide).backward()
    for p in process.parameters():
        assert abs(p.grad.item()) < 1e-4
    by_adam = gp.models.GPRegression(X, Y, rbf(), noise=double(NOISE))
    losses = gp.util.train(by_adam, Adam({"lr": 0.05}), num_steps=400)
    assert losses[-1] == pytest.approx(loss(process), abs=1e-3)


def test_nuts_samples_the_length_scale():
    kernel = gp.kernels.RBF(1, double(VARIANCE))
    kernel.lengthscale = PyroSample(dist.LogNormal(double(0.0), 1.0))
    process = gp.models.GPRegression(X, Y, kernel, noise=double(NOISE), jitter=0.0)
    mcmc = MCMC(NUTS(process.model), 500, num_chains=2, seed=0, progress_bar=False)
    draws = mcmc.run()["kernel.lengthscale"]

    def density(length):
        K = VARIANCE * np.exp(-0.5 * ((X[:, None] - X) / length) ** 2) + NOISE * np.eye(N)
        prior = scipy.stats.lognorm(1.0).pdf(length)
        return prior * scipy.stats.multivariate_normal(np.zeros(N), K).pdf(Y)

    whole = scipy.integrate.quad(density, 0.05, 4.0, limit=200)[0]
    mean = scipy.integrate.quad(lambda s: s * density(s), 0.05, 4.0, limit=200)[0] / whole
    mcse = draws.std() / math.sqrt(200.0)  # at least so many of the 1,000 are effective
    assert abs(draws.mean() - mean) < 4.0 * mcse
    new = probtorch.tensor(NEW)
    found = Predictive(lambda: probtorch.deterministic("f", process(new)[0]), mcmc.get_samples())()
    assert found["f"].shape == (1000, M)
    assert float(found["f"].std(0).max()) > 0.0


def test_draws_at_one_set_of_points_after_the_other_are_of_one_function():
    probtorch.manual_seed(0)
    first = jittered().iter_sample()(NEW)
    # The same points again, in single precision in between: what was drawn there, but for jitter.
    process = gp.models.GPRegression(
        probtorch.tensor(X).float(), probtorch.tensor(Y).float(), gp.kernels.RBF(1), noise=0.04
    )
    again = process.iter_sample()
    a, b = again(NEW[:3].astype(np.float32)), again(NEW.astype(np.float32))
    np.testing.assert_allclose(a, b[:3], atol=0.1)
    assert first.shape == (M,) and first.dtype == probtorch.float64
    # Two draws at a point each have the joint covariance of both.
    _, cov = exact()
    pairs = []
    for _ in range(400):
        draw = jittered().iter_sample()
        pairs.append([draw(NEW[:1]).item(), draw(NEW[1:2]).item()])
    found = np.cov(np.array(pairs).T)
    # A covariance of 400 normal pairs is within 4 standard errors of about s1 s2 / 20.
    scale = np.sqrt(np.outer(np.diag(cov)[:2], np.diag(cov)[:2]))
    assert (abs(found - cov[:2, :2]) < 4.0 * scale * math.sqrt(2.0 / 400)).all()


def jittered():
    return gp.models.GPRegression(X, Y, rbf(), noise=double(NOISE), jitter=1e-8)


# ------------------------------------------------------------------------------------------ sparse

XU = np.linspace(-2.0, 2.0, 6)


def projected():
    return k(X, XU) @ np.linalg.solve(k(XU, XU), k(XU, X))


def sparse(approx, xu=XU):
    return gp.models.SparseGPRegression(
        X, Y, rbf(), xu, noise=double(NOISE), approx=approx, jitter=1e-12
    )


@pytest.mark.parametrize("approx", ["VFE", "DTC", "FITC"])
def test_sparse_regression_has_the_density_of_its_approximation(approx):
    Q = projected()
    own = np.diag(np.diag(k(X, X) - Q)) if approx == "FITC" else np.zeros((N, N))
    density = scipy.stats.multivariate_normal(np.zeros(N), Q + own + NOISE * np.eye(N)).logpdf(Y)
    if approx == "VFE":
        density -= np.trace(k(X, X) - Q) / (2.0 * NOISE)
        assert density < -loss(regression())
    assert loss(sparse(approx)) == pytest.approx(-density, rel=1e-6)


@pytest.mark.parametrize("approx", ["VFE", "DTC", "FITC"])
def test_sparse_regression_predicts_by_its_approximation(approx):
    Q = projected()
    own = np.diag(np.diag(k(X, X) - Q)) if approx == "FITC" else np.zeros((N, N))
    inverse = np.linalg.inv(Q + own + NOISE * np.eye(N))
    Qs = k(X, XU) @ np.linalg.solve(k(XU, XU), k(XU, NEW))
    loc, cov = sparse(approx)(NEW, full_cov=True)
    np.testing.assert_allclose(loc.detach(), Qs.T @ inverse @ Y, atol=1e-5)
    np.testing.assert_allclose(cov.detach(), k(NEW, NEW) - Qs.T @ inverse @ Qs, atol=1e-5)
    _, var = sparse(approx)(NEW, noiseless=False)
    np.testing.assert_allclose(var.detach(), np.diag(cov.detach()) + NOISE, atol=1e-10)


@pytest.mark.parametrize("approx", ["VFE", "DTC", "FITC"])
def test_inducing_points_at_all_points_are_exact(approx):
    assert loss(sparse(approx, X)) == pytest.approx(loss(regression()), rel=1e-5)


# ----------------------------------------------------------------------------------- variational


def posterior_at(points):
    """The exact posterior of the function at some points, under normal noise."""
    K, Ks = k(X, X) + NOISE * np.eye(N), k(X, points)
    inverse = np.linalg.inv(K)
    return Ks.T @ inverse @ Y, k(points, points) - Ks.T @ inverse @ Ks


def set_guide(process, loc, cov, root):
    """Make the guide a given normal of the values, or of the noise that `root` makes them from."""
    inverse = np.linalg.inv(root)
    whitened = inverse @ cov @ inverse.T
    with probtorch.no_grad():
        process.f_loc.copy_(probtorch.tensor(inverse @ loc))
    process.f_scale_tril = probtorch.tensor(
        np.linalg.cholesky(0.5 * (whitened + whitened.T) + 1e-13 * np.eye(len(loc)))
    )


@pytest.mark.parametrize("whiten", [True, False])
def test_variational_process_at_the_exact_posterior_has_the_evidence(whiten):
    likelihood, jitter = gp.likelihoods.Gaussian(double(NOISE)), 1e-4
    process = gp.models.VariationalGP(X, Y, rbf(), likelihood, whiten=whiten, jitter=jitter)
    prior = k(X, X) + jitter * np.eye(N)
    gain = prior @ np.linalg.inv(prior + NOISE * np.eye(N))
    root = np.linalg.cholesky(prior) if whiten else np.eye(N)
    set_guide(process, gain @ Y, prior - gain @ prior, root)
    # Log p(y, f) - log q(f) is the evidence whatever f is drawn.
    probtorch.manual_seed(1)
    normal = scipy.stats.multivariate_normal(np.zeros(N), prior + NOISE * np.eye(N))
    assert loss(process) == pytest.approx(-normal.logpdf(Y), rel=1e-6)
    found, var = process(NEW)
    np.testing.assert_allclose(found.detach(), exact()[0], atol=0.01)
    np.testing.assert_allclose(var.detach(), np.diag(exact()[1]), atol=0.01)


@pytest.mark.parametrize("whiten", [True, False])
def test_sparse_variational_process_reaches_the_bound_of_titsias(whiten):
    likelihood = gp.likelihoods.Gaussian(double(NOISE))
    process = gp.models.VariationalSparseGP(
        X, Y, rbf(), XU, likelihood, whiten=whiten, jitter=1e-10
    )
    # The best normal of the values at XU.
    Kuu, Kuf = k(XU, XU), k(XU, X)
    precision = Kuu + Kuf @ Kuf.T / NOISE
    cov = Kuu @ np.linalg.solve(precision, Kuu)
    loc = Kuu @ np.linalg.solve(precision, Kuf @ Y) / NOISE
    root = np.linalg.cholesky(Kuu + 1e-10 * np.eye(len(XU))) if whiten else np.eye(len(XU))
    set_guide(process, loc, cov, root)
    probtorch.manual_seed(0)
    # The mean over the guide is exact but for log p(u) - log q(u), whose mean many draws give.
    assert mean_loss(process) == pytest.approx(loss(sparse("VFE")), abs=0.1)
    new, _ = process(NEW)
    np.testing.assert_allclose(new.detach(), sparse("VFE")(NEW)[0].detach(), atol=1e-3)


def mean_loss(process, draws=1500):
    """The mean of the loss: of the six terms of log p(u) - log q(u) each has a variance below 2."""
    return np.mean([loss(process) for _ in range(draws)])


def test_minibatches_of_one_shape_are_compiled_once():
    process = gp.models.VariationalSparseGP(
        X[:4], Y[:4], gp.kernels.RBF(1), XU, gp.likelihoods.Gaussian(0.1), num_data=N
    )
    svi = SVI(process.model, process.guide, Adam({"lr": 0.02}))
    probtorch.manual_seed(0)
    for _ in range(100):
        rows = RNG.permutation(N)[:4]
        process.set_data(X[rows], Y[rows])
        svi.step()
    assert "1 compiled path" in str(svi.explain())
    # The likelihood counts as that of all observations: the noise is found, not the prior.
    assert process.likelihood.variance.item() < 0.3


def test_classes_and_counts():
    probtorch.manual_seed(0)
    points = probtorch.tensor(RNG.normal(size=(60, 2)))
    classes = (points[:, 0] > 0).long() + (points[:, 1] > 0).long()
    process = gp.models.VariationalSparseGP(
        points, classes, gp.kernels.Matern52(2), points[:10], gp.likelihoods.MultiClass(3),
        latent_shape=(3,),
    )  # fmt: skip
    gp.util.train(process, Adam({"lr": 0.05}), num_steps=200)
    right = (process(points)[0].argmax(0) == classes).double().mean().item()
    assert right > 0.85
    counts = probtorch.tensor(RNG.poisson(np.exp(np.sin(X) + 1.0)))
    process = gp.models.VariationalGP(X, counts, gp.kernels.RBF(1), gp.likelihoods.Poisson())
    gp.util.train(process, Adam({"lr": 0.05}), num_steps=200)
    found = process(X)[0].detach().numpy()
    assert np.corrcoef(found, np.sin(X) + 1.0)[0, 1] > 0.8
    binary = gp.likelihoods.Binary(response_function=lambda f: dist.Normal(0.0, 1.0).cdf(f))
    assert binary.of(probtorch.tensor([0.0])).probs.item() == pytest.approx(0.5)
    with pytest.raises(ShapeError, match=r"give the process latent_shape=\(3,\)"):
        gp.likelihoods.MultiClass(3).of(probtorch.zeros(2, 5))


def test_gaussian_likelihood_is_the_mean_of_the_log_density():
    likelihood = gp.likelihoods.Gaussian(double(0.5))
    loc, var, y = double([0.3, -1.0]), double([0.2, 0.7]), double([1.0, 0.0])
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    expected = 0.0
    for m, v, o in zip(loc.tolist(), var.tolist(), y.tolist(), strict=True):
        f = m + math.sqrt(v) * nodes
        log_density = scipy.stats.norm(f, math.sqrt(0.5)).logpdf(o)
        expected += (weights @ log_density) / math.sqrt(2.0 * math.pi)
    trace = probtorch.handlers.trace(likelihood).get_trace(loc, var, y)
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-12)


def test_nuts_takes_the_variational_model():
    """Latent values under normal noise: their posterior is known."""
    likelihood = gp.likelihoods.Gaussian(double(NOISE))
    process = gp.models.VariationalGP(X, Y, rbf(), likelihood, whiten=True, jitter=1e-10)
    mcmc = MCMC(NUTS(process.model), 500, num_chains=2, seed=0, progress_bar=False)
    noise = np.asarray(mcmc.run()["f"]).reshape(-1, N)
    f = noise @ np.linalg.cholesky(k(X, X) + 1e-10 * np.eye(N)).T
    loc, cov = posterior_at(X)
    # 300 effective draws at least: within 4.5 standard errors in 12 means.
    assert (abs(f.mean(0) - loc) < 4.5 * np.sqrt(np.diag(cov) / 300)).all()


# ----------------------------------------------------------------------------------- latent points


def test_latent_points_are_found():
    probtorch.manual_seed(0)
    hidden = RNG.normal(size=(40, 1))
    data = np.concatenate([np.sin(hidden), np.cos(hidden), hidden], 1).T
    data = probtorch.tensor(data + 0.05 * RNG.normal(size=data.shape))
    start = probtorch.tensor(hidden + 0.7 * RNG.normal(size=hidden.shape))
    base = gp.models.SparseGPRegression(
        start, data, gp.kernels.RBF(1), probtorch.linspace(-2, 2, 8).unsqueeze(-1), noise=0.1
    )
    lvm = gp.models.GPLVM(base)
    before = np.corrcoef(start[:, 0], hidden[:, 0])[0, 1]
    losses = gp.util.train(lvm, Adam({"lr": 0.03}), num_steps=400)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 50.0
    after = np.corrcoef(lvm.X_loc.detach().numpy()[:, 0], hidden[:, 0])[0, 1]
    assert after > max(before, 0.85)
    loc, var = lvm(probtorch.zeros(2, 1))
    assert loc.shape == var.shape == (3, 2)
    sites = probtorch.handlers.trace(lvm.model).get_trace().nodes
    assert sites["X"]["value"].shape == (40, 1) and sites["y"]["is_observed"]


# ---------------------------------------------------------------------------------- conditionals


def test_conditional_of_a_normal_is_the_mean_of_conditionals():
    """Of values that are normal with a covariance: by the law of total covariance."""
    loc, cov = RNG.normal(size=N), np.cov(RNG.normal(size=(N, 40)))
    A = np.linalg.solve(k(X, X), k(X, NEW)).T
    expected = k(NEW, NEW) - A @ k(X, NEW) + A @ cov @ A.T
    tril = probtorch.tensor(np.linalg.cholesky(cov))
    given = probtorch.tensor(NEW), probtorch.tensor(X), rbf(), probtorch.tensor(loc)
    found, full = conditional(*given, tril, full_cov=True, jitter=0.0)
    np.testing.assert_allclose(found.detach(), A @ loc, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(full.detach(), expected, rtol=1e-5, atol=1e-5)
    _, var = conditional(*given, tril, jitter=0.0)
    np.testing.assert_allclose(var.detach(), np.diag(expected), rtol=1e-5, atol=1e-5)


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="y with 12 observations in its last dim"):
        gp.models.GPRegression(X, Y[:-1], rbf())
    with pytest.raises(ShapeError, match="X of shape"):
        gp.models.GPRegression(np.zeros((2, 2, 2)), None, rbf())
    with pytest.raises(DTypeError, match="X, y and kernel, in this order"):
        gp.models.GPRegression(X, rbf(), Y)
    with pytest.raises(ShapeError, match=r"points as X has them, shape \(m,\)"):
        regression()(NEW[:, None])
    with pytest.raises(ArgumentError, match=r"set_data\(X, y\)"):
        gp.models.GPRegression(X, None, rbf())(NEW)
    with pytest.raises(ArgumentError, match="'VFE', 'FITC' or 'DTC'"):
        gp.models.SparseGPRegression(X, Y, rbf(), XU, approx="PITC")
    with pytest.raises(DTypeError, match="a Likelihood"):
        gp.models.VariationalGP(X, Y, rbf(), dist.Normal(0.0, 1.0))
    with pytest.raises(DTypeError, match=r"a process with points of shape \(n, dims\)"):
        gp.models.GPLVM(regression())
