"""vmap over distributions, networks and models: what per-example gradients and particles need."""

import numpy as np
import pytest

import probtorch as pt
import probtorch.distributions as dist
from probtorch import nn
from probtorch.func import grad, vmap
from probtorch.nn.utils import functional_call
from probtorch.testing.compare import assert_close

RNG = np.random.default_rng(0)


def loop(fn, *args):
    return pt.stack([fn(*(a[i] for a in args)) for i in range(args[0].shape[0])])


def spd(n, d):
    a = RNG.standard_normal((n, d, d))
    return a @ np.swapaxes(a, 1, 2) + d * np.eye(d)


DENSITIES = {
    "normal": (lambda m, s, x: dist.Normal(m, s.exp()).log_prob(x).sum(), [(3,), (), (3,)]),
    "student": (lambda v, x: dist.StudentT(v.exp(), 0.0, 1.0).log_prob(x).sum(), [(), (4,)]),
    "gamma": (lambda a, x: dist.Gamma(a.exp(), 2.0).log_prob(x.exp()).sum(), [(2,), (2,)]),
    "beta": (lambda a, x: dist.Beta(a.exp(), 2.0).log_prob(x.sigmoid()).sum(), [(2,), (2,)]),
    "dirichlet": (
        lambda a, x: dist.Dirichlet(a.exp()).log_prob(x.softmax(-1)).sum(),
        [(3,), (3,)],
    ),
    "mixture": (
        lambda w, m, x: dist.MixtureSameFamily(
            dist.Categorical(logits=w), dist.Normal(m, 1.0)
        ).log_prob(x),
        [(3,), (3,), ()],
    ),
    "lowered": (
        lambda m, x: dist.TransformedDistribution(
            dist.Normal(m, 1.0), [dist.transforms.ExpTransform()]
        ).log_prob(x.exp()).sum(),
        [(2,), (2,)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DENSITIES)
def test_density_and_its_gradients_for_each_slice(name):
    fn, shapes = DENSITIES[name]
    args = [pt.tensor(RNG.standard_normal((4, *s))) for s in shapes]
    assert_close(vmap(fn)(*args), loop(fn, *args), rtol=1e-11)
    every = tuple(range(len(args)))
    for k, found in enumerate(vmap(grad(fn, every))(*args)):
        assert_close(
            found, loop(lambda *a, k=k: grad(fn, every)(*a)[k], *args), rtol=1e-9, atol=1e-11
        )


def test_covariance_matrices_of_each_slice():
    cov, x = pt.tensor(spd(4, 3)), pt.tensor(RNG.standard_normal((4, 3)))

    def fn(c, x):
        return dist.MultivariateNormal(pt.zeros(3).double(), c).log_prob(x)

    assert_close(vmap(fn)(cov, x), loop(fn, cov, x))
    assert_close(vmap(grad(fn))(cov, x), loop(grad(fn), cov, x), rtol=1e-10)
    assert_close(vmap(fn, (None, 0))(cov[0], x), loop(lambda x: fn(cov[0], x), x))


def test_picks_by_an_index_of_each_slice():
    logits = pt.tensor(RNG.standard_normal((5, 3)))
    k = pt.tensor([0, 2, 1, 1, 0])
    fn = lambda w, k: dist.Categorical(logits=w).log_prob(k)
    assert_close(vmap(fn)(logits, k), loop(fn, logits, k))
    assert_close(vmap(grad(fn))(logits, k), loop(grad(fn), logits, k))


def test_gradients_per_example_of_a_network():
    pt.manual_seed(0)
    weights = [pt.randn(8, 4).double(), pt.randn(8).double(), pt.randn(3, 8).double()]
    x, label = pt.randn(6, 4).double(), pt.tensor([0, 1, 2, 0, 1, 2])

    def loss(w, x, label):
        hidden = pt.tanh(nn.functional.linear(x, w[0], w[1]))
        return nn.functional.cross_entropy(hidden @ w[2].T, label)

    found = vmap(grad(loss), (None, 0, 0))(weights, x, label)
    for i, g in enumerate(found):
        assert_close(g, loop(lambda x, y, i=i: grad(loss)(weights, x, y)[i], x, label))


def test_gradients_per_example_of_a_module():
    pt.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).double()
    weights = {name: p.detach() for name, p in net.named_parameters()}
    x, label = pt.randn(6, 4).double(), pt.tensor([0, 1, 2, 0, 1, 2])

    def loss(w, x, label):
        found = functional_call(net, w, (x[None],))
        return nn.functional.cross_entropy(found, label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, label)
    for name, g in found.items():
        expected = loop(lambda x, y, name=name: grad(loss)(weights, x, y)[name], x, label)
        assert_close(g, expected, rtol=1e-9, atol=1e-12)


def test_convolutions_and_pools_of_each_slice():
    x = pt.tensor(RNG.standard_normal((3, 2, 2, 6, 6)))
    w = pt.tensor(RNG.standard_normal((4, 2, 3, 3)))

    def fn(w, x):
        y = nn.functional.conv2d(x, w, padding=1)
        return nn.functional.max_pool2d(pt.relu(y), 2).sum() + nn.functional.avg_pool2d(y, 3).prod()

    assert_close(vmap(fn, (None, 0))(w, x), loop(lambda x: fn(w, x), x), rtol=1e-10)
    found = vmap(grad(fn), (None, 0))(w, x)
    assert_close(found, loop(lambda x: grad(fn)(w, x), x), rtol=1e-9, atol=1e-10)


def test_log_density_of_a_model_at_many_points():
    from probtorch.infer import Target

    y = pt.tensor([1.0, 2.0, 0.5])

    def model():
        mu = pt.sample("mu", dist.Normal(0.0, 2.0))
        s = pt.sample("s", dist.HalfNormal(1.0))
        with pt.plate("n", 3):
            pt.sample("y", dist.Normal(mu, s), obs=y)

    target = Target.from_model(model)
    q = pt.tensor(RNG.standard_normal((7, target.dim)))
    assert_close(vmap(target.logdensity)(q), loop(target.logdensity, q))
    values, gradients = target.value_and_grad_many(q.numpy().repeat(3, 0))
    assert_close(vmap(grad(target.logdensity))(q), gradients[::3], rtol=1e-9)
    assert_close(vmap(target.logdensity)(q), values[::3], rtol=1e-11)


def test_reparameterised_draws_keep_their_gradient():
    loc = pt.tensor(RNG.standard_normal(500))

    def fn(m):
        return dist.Normal(m, 1.0).rsample() ** 2

    pt.manual_seed(1)
    out, slope = (vmap(f, randomness="different")(loc) for f in (fn, grad(fn)))
    assert out.shape == slope.shape == (500,)
    # d(m + z)^2 = 2 (m + z): mean 2 m, sd 2; 4.5 sigma.
    assert abs(float((slope - 2 * loc).mean())) < 4.5 * 2 / np.sqrt(500)
    assert len(set((slope / 2 - loc).tolist())) == 500


def test_implicit_gradients_of_gamma_draws_for_each_slice():
    a = pt.full((400,), 3.0).double()
    pt.manual_seed(2)
    slope = vmap(grad(lambda a: dist.Gamma(a, 1.0).rsample()), randomness="different")(a)
    # d E[x] / d a = 1; the slopes' sd is below 0.5 at a = 3.
    assert abs(float(slope.mean()) - 1.0) < 4.5 * 0.5 / np.sqrt(400)
    assert len(set(slope.tolist())) == 400
