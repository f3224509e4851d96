"""Riemannian HMC: the metric, the integrator, what becomes of steps that fail, and a funnel."""

import warnings

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.core.dispatch import wrap
from probtorch.diagnostics.checks import diagnose
from probtorch.diagnostics.convergence import ess_mean
from probtorch.diagnostics.findings import ConvergenceWarning, InferenceWarning
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import MCMC, NUTS, RMHMC, SMC, Gibbs, ReplicaExchange, Target
from probtorch.infer.mcmc.kernels.curved_space import (
    CurvedPoint,
    CurvedSpace,
    curved,
    generalised_leapfrog,
)
from probtorch.infer.mcmc.kernels.softabs import softabs
from tests.infer.mcmc.targets import eager, funnel_logdensity, number

ALPHA = 3.0
FUNNEL = Target.from_density(funnel_logdensity, 3)
SCALE = np.array([2.0, 1.0, 0.5])
SPACE = CurvedSpace(eager(FUNNEL.curved_density.value_and_grad), wrap(SCALE), number(10.0))


def symmetric(values, seed=0):
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))
    return q @ np.diag(values) @ q.T


# --------------------------------------------------------------------------------------- the metric

SPECTRA = {
    "far apart": [-4.0, 0.7, 9.0],
    "near zero": [-1e-9, 0.013, 0.02],
    "equal": [2.0, 2.0, -2.0],
    "nearly equal": [1.0, 1.0 + 1e-6, 1.0 + 3e-5],
    "steep": [-1e8, 1e-8, 1e3],
}


@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)
def test_metric_is_the_hessian_with_softened_eigenvalues(values):
    hessian, p = symmetric(values), np.array([0.3, -1.0, 0.8])
    metric = softabs(wrap(hessian), number(ALPHA))
    softened = [v / np.tanh(ALPHA * v) for v in values]
    expected = symmetric(softened)
    np.testing.assert_allclose(
        metric.velocity(wrap(p)).array, np.linalg.solve(expected, p), rtol=1e-7
    )
    half = 0.5 * np.log(softened).sum()
    assert metric.half_log_determinant().array == pytest.approx(half, rel=1e-9)
    quadratic = 0.5 * p @ np.linalg.solve(expected, p)
    assert metric.kinetic_energy(wrap(p)).array == pytest.approx(quadratic, rel=1e-7)
    # Columns are the symmetric root, which does not depend on the signs of eigenvectors.
    root = np.stack([metric.momentum(wrap(e)).array for e in np.eye(3)], axis=1)
    np.testing.assert_allclose(root, root.T, rtol=1e-9, atol=1e-9 * np.abs(root).max())
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-7, atol=1e-9 * max(softened))


@pytest.mark.parametrize("values", list(SPECTRA.values())[:4], ids=list(SPECTRA)[:4])
def test_pull_is_the_derivative_of_the_energy_in_the_hessian(values):
    hessian, p = symmetric(values), wrap(np.array([0.3, -1.0, 0.8]))
    change = symmetric([1.0, -0.4, 0.2], seed=1)

    def energy(h):
        metric = softabs(wrap(h), number(ALPHA))
        return float((metric.half_log_determinant() + metric.kinetic_energy(p)).array)

    pull = softabs(wrap(hessian), number(ALPHA)).pull(p).array
    h = 1e-5
    slope = (energy(hessian + h * change) - energy(hessian - h * change)) / (2.0 * h)
    assert (pull * change).sum() == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_hessian_that_is_not_finite_is_told():
    for bad in (np.nan, np.inf, 1e200):
        assert not softabs(wrap(np.full((2, 2), bad)), number(1.0)).finite.array


# ----------------------------------------------------------------------------------- the integrator


def point_at(q, p):
    logdensity, grad, hessian = curved(SPACE.density, wrap(q))
    metric = SPACE.metric(hessian)
    return CurvedPoint(wrap(q), wrap(p), logdensity, grad, hessian, metric, wrap(np.zeros(len(q))))


Q, P = np.array([0.8, -0.9, 1.3]), np.array([0.4, -0.5, 0.9])


def step(q, p, size, tolerance=1e-13):
    end, solved, _ = generalised_leapfrog(SPACE, point_at(q, p), number(size), tolerance, 200)
    assert solved.array
    return end


def test_force_is_minus_the_derivative_of_the_energy():
    h = 1e-5
    slope = [
        (point_at(Q + h * e, P).energy().array - point_at(Q - h * e, P).energy().array) / (2 * h)
        for e in np.eye(3)
    ]
    force = SPACE.force(point_at(Q, P), wrap(P)).array
    np.testing.assert_allclose(force, -SCALE * slope, rtol=1e-7)


def test_step_is_reversible():
    end = step(Q, P, 0.1)
    assert np.abs(end.position.array - Q).max() > 0.05
    back = step(end.position.array, -end.momentum.array, 0.1)
    np.testing.assert_allclose(back.position.array, Q, atol=1e-11)
    np.testing.assert_allclose(-back.momentum.array, P, atol=1e-11)


def test_step_keeps_volume():
    def moved(x):
        end = step(x[:3], x[3:], 0.1)
        return np.concatenate([end.position.array, end.momentum.array])

    h, start = 1e-4, np.concatenate([Q, P])
    columns = [(moved(start + h * e) - moved(start - h * e)) / (2 * h) for e in np.eye(6)]
    assert np.linalg.det(np.stack(columns, axis=1)) == pytest.approx(1.0, abs=1e-6)


def test_energy_error_is_of_second_order():
    def error(steps):
        x = point_at(Q, P)
        for _ in range(steps):
            x, *_ = generalised_leapfrog(SPACE, x, number(0.4 / steps), 1e-13, 200)
        return float(x.energy().array - point_at(Q, P).energy().array)

    assert error(8) / error(16) == pytest.approx(4.0, rel=0.1)


# ----------------------------------------------------------------------------------------- in a run


def sampled(kernel, draws, warmup=300, *, init_params=None, **settings):
    mcmc = MCMC(
        kernel, draws, warmup, **{"num_chains": 4, "seed": 1, "progress_bar": False, **settings}
    )
    mcmc.diagnose = False
    return mcmc.run(init_params=init_params)


def test_equations_that_are_not_solved_are_rejected_and_counted():
    kernel = RMHMC(FUNNEL, step_size=0.3, adapt_step_size=False, max_iterations=1)
    draws = sampled(kernel, 20, 0, num_chains=1)
    assert draws.sample_stats["unsolved"].all() and not draws.sample_stats["diverging"].any()
    assert (draws.sample_stats["acceptance_rate"] == 0.0).all()
    assert (np.diff(draws.positions, axis=1) == 0.0).all()


def test_a_lost_energy_diverges_and_is_not_called_unsolved():
    """A wall that the equations of a step do not see: solved, and far too high."""

    def wall(q):
        return -0.5 * (q * q).sum() - 1e8 * (q[0] > 0.5).double()

    kernel = RMHMC(Target.from_density(wall, 2), step_size=0.3, adapt_step_size=False)
    stats = sampled(kernel, 50, 0, num_chains=1, init_params=np.zeros(2)).sample_stats
    assert 0.1 < stats["diverging"].mean() < 1.0
    assert not stats["unsolved"].any()


def test_unsolved_proposals_are_warned_of_where_they_are_frequent_only():
    few = RMHMC(FUNNEL, alpha=10.0, max_iterations=8, step_size=0.1, adapt_step_size=False)
    found = [f for f in diagnose(sampled(few, 200, 0, seed=2)) if f.kind == "unsolved"]
    assert len(found) == 1 and found[0].category is InferenceWarning
    assert "of 800 draws" in found[0].got
    assert all(cure in found[0].fix for cure in ("step_size", "max_iterations", "alpha"))
    usual = sampled(RMHMC(FUNNEL, alpha=10.0), 200, 200)
    assert 0.0 < usual.sample_stats["unsolved"].mean() < 0.25
    assert not {"unsolved", "divergence"} & {f.kind for f in diagnose(usual)}


def test_draws_do_not_depend_on_threads():
    one, two = (sampled(RMHMC(FUNNEL), 30, 40, num_threads=n) for n in (1, 2))
    assert one.positions.tobytes() == two.positions.tobytes()


def test_a_model_with_sites_of_many_kinds_is_sampled():
    """A conjugate model of a scale and a mean: the posterior of the scale is known."""
    y = np.array([0.3, -0.2, 1.1, 0.7, 0.4])

    def model(y):
        precision = probtorch.sample("precision", dist.Gamma(3.0, 2.0))
        with probtorch.plate("rows", 5):
            probtorch.sample("y", dist.Normal(0.0, precision**-0.5), obs=y)

    kernel = RMHMC(model, target_accept_prob=0.99)
    mcmc = MCMC(kernel, 500, 200, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run(probtorch.tensor(y)).posterior["precision"]
    exact = stats.gamma(3.0 + 2.5, scale=1.0 / (2.0 + 0.5 * (y @ y)))
    uniform = exact.cdf(draws)
    # Standard errors of a mean of uniform numbers; 5 of them by chance in 2e6.
    assert abs(uniform.mean() - 0.5) < 5.0 * np.sqrt(1.0 / 12.0 / ess_mean(uniform))


def shares(draws, level):
    """How far the share of v below a quantile is off, and its standard error."""
    below = (draws.positions[..., 0] < stats.norm.ppf(level, scale=3.0)).astype(float)
    error = below.mean() - level
    return error, np.sqrt(level * (1.0 - level) / max(float(ess_mean(below)), 1.0))


@pytest.mark.slow
def test_funnel_is_recovered_where_nuts_is_biased():
    """Neal's funnel in five dimensions, its neck: five shares off by 4 standard errors in 3000."""
    target = Target.from_density(funnel_logdensity, 5)
    curved_draws = sampled(RMHMC(target, alpha=100.0, target_accept_prob=0.8), 1500)
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        error, noise = shares(curved_draws, level)
        assert abs(error) < 4.0 * noise and noise < 0.03
    # With as many draws NUTS has not been in the neck, or stands still at its edge and says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert shares(sampled(NUTS(target), 1500), 0.05)[0] < -0.02


@pytest.mark.parametrize(
    ("make", "error", "parts"),
    [
        (lambda: RMHMC(FUNNEL, metric="dense"), ArgumentError, ["'diag'", "curvature"]),
        (lambda: RMHMC(FUNNEL, max_iterations=0), ArgumentError, ["at least 1", "0"]),
        (lambda: RMHMC(FUNNEL, tolerance=1.0), ArgumentError, ["0.01", "1.0"]),
        (lambda: RMHMC(FUNNEL, find_heuristic_step_size=True), ArgumentError, ["leave it out"]),
        (lambda: ReplicaExchange(RMHMC(FUNNEL)), ArgumentError, ["HMC(model)", "RMHMC"]),
        (lambda: SMC(RMHMC(FUNNEL)), ArgumentError, ["RMHMC", "NUTS"]),
        (lambda: Gibbs(FUNNEL, kernel=RMHMC), ArgumentError, ["gradient", "RMHMC"]),
        (
            lambda: sampled(RMHMC(Target.from_density(lambda q: -(q * q).sum(), 31)), 1),
            InferenceError,
            ["at most 30", "31", "max_dim=31", "NUTS"],
        ),
    ],
)
def test_mistakes_are_explained(make, error, parts):
    with pytest.raises(error) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)
