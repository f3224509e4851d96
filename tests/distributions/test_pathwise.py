"""Draws of mixtures move with their parameters as quantiles do, or as the score says."""

import math

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.rng import Generator
from probtorch.effects import param, sample
from probtorch.func import grad as slope_of
from probtorch.infer import SVI, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close

LOC, SCALE, LOGITS = (
    np.array([-1.0, 0.5, 3.0]),
    np.array([0.5, 1.5, 0.7]),
    np.array([0.2, 1.0, -0.3]),
)


def same_family(loc, scale, logits):
    return dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Normal(loc, scale))


def different_families(loc, scale, logits):
    parts = [dist.Normal(loc[..., 0], scale[..., 0]), dist.Gumbel(loc[..., 1], scale[..., 1])]
    parts.append(dist.StudentT(4.0, loc[..., 2], scale[..., 2]))
    return dist.MixtureGeneral(dist.Categorical(logits=logits), parts)


def truncated(loc, scale, logits):
    d = dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Logistic(loc, scale))
    return dist.Truncated(d, -0.5, 2.0)


@pytest.mark.parametrize("make", [same_family, different_families, truncated])
def test_a_draw_of_a_mixture_moves_as_its_quantile_does(make):
    n = 40
    given = [np.broadcast_to(v, (n, 3)).copy() for v in (LOC, SCALE, LOGITS)]
    leaves = [tensor(v, requires_grad=True) for v in given]
    d = make(*leaves)
    assert d.has_rsample
    x = d.rsample((), Generator(1))
    slopes = grad(x.sum(), leaves)
    level = make(*map(tensor, given)).cdf(x.detach())
    for k, slope in enumerate(slopes):
        for j in range(3):
            ends = []
            for h in (1e-5, -1e-5):
                moved = [v.copy() for v in given]
                moved[k][:, j] += h
                ends.append(make(*map(tensor, moved)).icdf(level).numpy())
            assert_close(slope[:, j], (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=2e-6)


def diagonal(loc, scale, logits):
    return dist.MixtureOfDiagNormals(loc, scale, logits)


def correlated(loc, scale, logits):
    tril = scale[..., None] * tensor(np.array([[1.0, 0.0], [0.7, 0.5]]))
    return dist.MixtureSameFamily(
        dist.Categorical(logits=logits), dist.MultivariateNormal(loc, scale_tril=tril)
    )


@pytest.mark.parametrize("make", [diagonal, correlated])
def test_vectors_of_a_mixture_move_as_the_score_says(make):
    # E[f'(x) dx] = E[f(x) dlog p]: z below 5.2 in all but 2e-7 of runs.
    n = 4000
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=(3, 2)), np.exp(0.3 * rng.normal(size=(3, 2)))
    leaves = [
        tensor(np.broadcast_to(v, (n, *v.shape)).copy(), requires_grad=True)
        for v in (loc, scale, LOGITS)
    ]
    d = make(*leaves)
    x = d.rsample((), Generator(3))
    weights = tensor(np.array([0.8, -1.1]))
    f = lambda v: (v @ weights + 0.3 * v[..., 0] * v[..., 1]).tanh()
    paths = grad(f(x).sum(), leaves, retain_graph=True)
    at = x.detach()
    scores = grad(d.log_prob_inside(at).sum(), leaves)
    for path, score in zip(paths, scores, strict=True):
        gap = path.numpy() - score.numpy() * f(at).numpy().reshape(n, *(1,) * (score.ndim - 1))
        z = np.abs(gap.mean(0)) / (gap.std(0) / math.sqrt(n))
        assert z.max() < 5.2


def test_mixtures_draw_the_same_with_and_without_gradients_and_compiled():
    d = same_family(tensor(LOC), tensor(SCALE), tensor(LOGITS))
    x = d.rsample((50,), Generator(4))
    assert_close(d.sample((50,), Generator(4)), x.detach(), rtol=0, atol=0)
    before = set_grad_enabled(False)
    try:
        assert_close(d.rsample((50,), Generator(4)), x.detach(), rtol=0, atol=0)
    finally:
        set_grad_enabled(before)

    def fn(loc):
        draws = same_family(loc, tensor(SCALE), tensor(LOGITS)).rsample((9,), Generator(4))
        return draws.sin().sum()

    native = compile(slope_of(fn))
    native(tensor(LOC))
    assert_close(native(tensor(LOC)), slope_of(fn)(tensor(LOC)), rtol=1e-10)
    discrete = dist.MixtureSameFamily(dist.Categorical(logits=LOGITS), dist.Poisson(SCALE))
    assert not discrete.has_rsample
    simplex = dist.MixtureSameFamily(
        dist.Categorical(logits=LOGITS), dist.Dirichlet(np.ones((3, 2)))
    )
    assert not simplex.has_rsample


@pytest.mark.slow
def test_a_mixture_is_a_guide():
    target = dist.Normal(1.5, 0.8)

    def model():
        sample("x", target)

    def guide():
        loc = param("loc", tensor([-1.0, 1.0]))
        log_scale = param("log_scale", tensor([0.0, 0.0]))
        weights = dist.Categorical(logits=param("logits", tensor([0.0, 0.0])))
        sample("x", dist.MixtureSameFamily(weights, dist.Normal(loc, log_scale.exp())))

    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO(num_particles=20))
    losses = [svi.step() for _ in range(300)]
    # The divergence goes to 0, with path gradients in little noise.
    assert abs(np.mean(losses[-50:])) < 0.02
