"""Gradients by transport, circulant covariances and groups: what the sweep does not ask."""

import numpy as np
import pytest
from scipy import linalg, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.errors import DomainError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

LOC = np.array([0.3, -1.0, 0.8])
TRIL = np.array([[1.2, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.3, 0.5, 1.4]])
G = np.array([0.7, -0.2, 1.1])


def slopes(make, *leaves):
    """Draws, and gradients of their product with G."""
    leaves = [tensor(v, requires_grad=True) for v in leaves]
    x = make(*leaves).rsample((), Generator(2))
    return x.detach().numpy(), [g.numpy() for g in grad((x * tensor(G)).sum(), leaves)]


def test_a_draw_moves_by_the_symmetric_field_of_optimal_transport():
    x, (to_loc, to_tril) = slopes(dist.OMTMultivariateNormal, LOC, TRIL)
    assert_close(to_loc, G)
    for i, j in zip(*np.tril_indices(3), strict=True):
        rise = np.zeros((3, 3))
        rise[i, j] = 1.0
        change = rise @ TRIL.T + TRIL @ rise.T
        field = linalg.solve_continuous_lyapunov(TRIL @ TRIL.T, change)
        assert_close(to_tril[i, j], G @ field @ (x - LOC), rtol=1e-10)


def test_a_control_variate_descends_on_the_squared_gradient():
    control = np.array([[[0.4, -0.3, 0.2]], [[0.2, 0.5, -0.6]]])
    make = lambda tril, c: dist.AVFMultivariateNormal(tensor(LOC), tril, c)
    x, (to_tril, to_control) = slopes(make, TRIL, control)
    plain, (without, _) = slopes(make, TRIL, 0.0 * control)
    noise = np.linalg.solve(TRIL, x - LOC)
    assert_close(x, plain)
    assert_close(without, np.tril(np.outer(G, noise)))
    turn = np.outer(TRIL.T @ G, noise)
    assert_close(to_tril, np.tril(without + (turn - turn.T) * np.outer(*control[:, 0])))
    for at in np.ndindex(2, 1, 3):
        ends = []
        for h in (1e-5, -1e-5):
            moved = control.copy()
            moved[at] += h
            ends.append(0.5 * (slopes(make, TRIL, moved)[1][0] ** 2).sum())
        assert_close(to_control[at], (ends[0] - ends[1]) / 2e-5, rtol=1e-7, atol=1e-9)
    with pytest.raises(ShapeError, match="control_var"):
        dist.AVFMultivariateNormal(LOC, TRIL, control[..., :2])


def test_transported_normals_have_the_divergences_of_plain_ones():
    p, q = dist.OMTMultivariateNormal(LOC, TRIL), dist.MultivariateNormal(LOC + 1.0, np.eye(3))
    plain = dist.MultivariateNormal(LOC, scale_tril=TRIL)
    assert_close(dist.kl_divergence(p, q), dist.kl_divergence(plain, q))
    assert_close(dist.kl_divergence(q, p), dist.kl_divergence(q, plain))
    assert_close(dist.kl_divergence(p, p), 0.0, atol=1e-12)


@pytest.mark.parametrize("n", [2, 5, 6])
def test_a_circulant_normal_is_the_dense_one(n):
    rng = np.random.default_rng(n)
    sizes = rng.uniform(0.5, 2.0, n // 2 + 1)
    row = np.fft.irfft(sizes, n)
    cov = linalg.circulant(row)
    whole = stats.multivariate_normal(np.zeros(n), cov)
    x = rng.normal(size=(4, n))
    for d in (
        dist.CirculantNormal(np.zeros(n), row),
        dist.CirculantNormal(np.zeros(n), covariance_rfft=sizes),
    ):
        assert_close(d.log_prob(x), whole.logpdf(x))
        assert_close(d.entropy(), whole.entropy())
        assert_close(d.covariance_matrix, cov, atol=1e-14)
        assert_close(d.covariance_row, row, atol=1e-14)
        assert_close(d.covariance_rfft, sizes)
        assert_close(d.variance, np.diag(cov))
    many = d.sample((20_000,), Generator(1)).numpy()
    # Each of the entries of the scatter matrix: 5.5 standard errors, 1e-6 false alarms in all.
    error = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / 20_000)
    assert (np.abs(many.T @ many / 20_000 - cov) < 5.5 * error).all()
    with pytest.raises(DomainError, match="covariance_row"):
        dist.CirculantNormal(np.zeros(n), -row)
    with pytest.raises(ShapeError, match="covariance_rfft"):
        dist.CirculantNormal(np.zeros(n), covariance_rfft=np.ones(n + 1))


def test_the_means_of_groups_given_their_values_are_those_of_dense_conditioning():
    groups = np.array([2, 0, 2, 2])
    m, s, o = np.array([0.3, -1.0, 2.0]), np.array([1.0, 0.5, 2.0]), np.array([0.4, 1.0, 2.0, 0.7])
    x = np.array([0.2, -0.4, 1.9, 3.0])
    d = dist.GroupedNormalNormal(m, s, o, groups)
    to = np.eye(3)[groups]
    cov = to @ np.diag(s**2) @ to.T + np.diag(o**2)
    gain = np.diag(s**2) @ to.T @ np.linalg.inv(cov)
    posterior = d.get_posterior(x)
    assert_close(posterior.loc, m + gain @ (x - to @ m))
    assert_close(posterior.variance, np.diag(np.diag(s**2) - gain @ to @ np.diag(s**2)))
    native = compile(lambda s: dist.GroupedNormalNormal(m, s, o, groups).log_prob(x))
    native(tensor(s))
    assert_close(native(tensor(s)), stats.multivariate_normal(to @ m, cov).logpdf(x))
    assert dist.GroupedNormalNormal(m, s, 0.5 * np.ones(1), groups).sample((2,)).shape == (2, 4)
    with pytest.raises(DomainError, match="group_idx"):
        dist.GroupedNormalNormal(m, s, o, groups + 1)
    with pytest.raises(ShapeError, match="obs_scale"):
        dist.GroupedNormalNormal(m, s, o[:3], groups)
