"""Distributions written in PyTorch's form work as they are: batched, compiled, in SVI and NUTS."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import compile
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.distributions import (
    Distribution,
    ExponentialFamily,
    Gamma,
    Normal,
    constraints,
    kl_divergence,
)
from probtorch.effects import param, plate, sample
from probtorch.errors import DomainError
from probtorch.func import vmap
from probtorch.infer import MCMC, NUTS, SVI, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close


class Rayleigh(Distribution):
    """As PyTorch's documentation would have it."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, scale, validate_args=None):
        self.scale = scale
        super().__init__(scale.shape, probtorch.Size([]), validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(Rayleigh, _instance)
        new.scale = self.scale.expand(batch_shape)
        super(Rayleigh, new).__init__(batch_shape, validate_args=False)
        return new

    @property
    def mean(self):
        return self.scale * math.sqrt(math.pi / 2)

    def rsample(self, sample_shape=()):
        u = probtorch.rand(self._extended_shape(sample_shape), dtype=self.scale.dtype)
        return self.scale * (-2.0 * u.log()).sqrt()

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        z = value / self.scale
        return z.log() - 0.5 * z * z - self.scale.log()


class Plain(Distribution):
    """Without expand, and with sample alone."""

    arg_constraints = {}
    support = constraints.nonnegative_integer

    def __init__(self, rate):
        self.rate = rate
        super().__init__(batch_shape=rate.shape)

    def sample(self, sample_shape=()):
        return probtorch.poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value):
        return value * self.rate.log() - self.rate - (value + 1.0).lgamma()


SCALE = np.array([0.5, 1.0, 2.0])
X = np.array([0.4, 1.3, 2.2])


def test_its_density_and_draws_are_its_own():
    d, ref = Rayleigh(tensor(SCALE)), stats.rayleigh(scale=SCALE)
    assert (d.batch_shape, d.event_shape) == ((3,), ())
    assert_close(d.log_prob(tensor(X)), ref.logpdf(X))
    assert_close(d.mean, ref.mean())
    x = d.sample((500,), Generator(1)).numpy()
    assert x.shape == (500, 3)
    assert (
        min(stats.kstest(x[:, i], stats.rayleigh(scale=s).cdf).pvalue for i, s in enumerate(SCALE))
        > 1e-6
    )
    assert (d.sample((4,), Generator(2)) == d.sample((4,), Generator(2))).numpy().all()
    with pytest.raises(DomainError, match="parameter scale"):
        Rayleigh(tensor([-1.0]))
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(tensor(-X))


@pytest.mark.parametrize("make", [Rayleigh, Plain])
def test_wrappers_trees_and_interpreters_take_it(make):
    d = make(tensor(SCALE))
    x = tensor(X if make is Rayleigh else np.array([0.0, 2.0, 5.0]))
    joint = d.to_event(1)
    assert joint.event_shape == (3,) and joint.sample((2,)).shape == (2, 3)
    assert_close(joint.log_prob(x), d.log_prob(x).sum())
    assert_close(d.mask(tensor([True, False, True])).log_prob(x)[1], 0.0)
    wide = d.expand((2, 3))
    assert wide.sample((4,)).shape == (4, 2, 3)
    assert_close(wide.log_prob(x), d.log_prob(x).expand(2, 3))
    for copy in (unflatten(flatten(d)[1], flatten(d)[0]), pickle.loads(pickle.dumps(d))):
        assert type(copy) is make and copy.batch_shape == (3,)
        assert_close(copy.log_prob(x), d.log_prob(x))
    assert_close(vmap(lambda s, v: make(s).log_prob(v))(tensor(SCALE), x), d.log_prob(x))
    native = compile(lambda s, v: make(s).log_prob(v))
    for _ in range(2):
        assert_close(native(tensor(SCALE), x), d.log_prob(x))
    assert native.reason is None


def test_its_draws_are_differentiable_if_it_says_so():
    s = tensor(SCALE, requires_grad=True)
    x = Rayleigh(s).rsample((2,), Generator(3))
    (g,) = probtorch.autograd.grad(x.sum(), [s])
    assert_close(g, x.sum(0).detach().numpy() / SCALE)
    assert Rayleigh(s).has_rsample and not Plain(s).has_rsample


Y = stats.rayleigh(scale=3.0).rvs(200, random_state=1)


def model(y):
    scale = sample("scale", Rayleigh(tensor(np.array(5.0))))
    with plate("row", len(y)):
        sample("y", Rayleigh(scale), obs=y)


def test_nuts_and_svi_run_on_it_compiled():
    exact = math.sqrt((Y**2).mean() / 2)
    mcmc = MCMC(
        NUTS(model), num_samples=300, warmup_steps=300, num_chains=2, seed=1, progress_bar=False
    )
    mcmc.run(tensor(Y))
    assert abs(mcmc.summary()["scale"]["mean"] - exact) < 0.1

    def noisy():
        z = sample("z", Rayleigh(tensor(np.array(5.0))))
        sample("y", Normal(z, 2.0), obs=tensor(np.array(3.0)))

    def guide():
        scale = param("s", tensor(np.array(15.0)), constraint=constraints.positive)
        sample("z", Rayleigh(scale))

    probtorch.manual_seed(0)
    svi = SVI(noisy, guide, Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step() for _ in range(150)]
    assert np.mean(losses[-20:]) < np.mean(losses[:20])


def test_a_class_with_fields_is_as_before():
    assert Normal(0.0, 1.0)._written is False


class NaturalGamma(ExponentialFamily):
    """PyTorch's gamma, as far as its natural parameters."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration, rate):
        self.concentration, self.rate = concentration, rate
        super().__init__(concentration.shape)

    @property
    def _natural_params(self):
        return self.concentration - 1.0, -self.rate

    def _log_normalizer(self, x, y):
        return (x + 1.0).lgamma() + (x + 1.0) * (-y.reciprocal()).log()


class NaturalNormals(ExponentialFamily):
    """Vectors of independent normal numbers of variance 1."""

    arg_constraints = {"loc": constraints.real_vector}
    support = constraints.real_vector

    def __init__(self, loc):
        self.loc = loc
        super().__init__(loc.shape[:-1], loc.shape[-1:])

    @property
    def _natural_params(self):
        return (self.loc,)

    def _log_normalizer(self, x):
        return 0.5 * (x * x).sum(-1)

    @property
    def _mean_carrier_measure(self):
        # Of the log carrier -x^2 / 2 - log(2 pi) / 2 in each dim.
        square = (self.loc * self.loc + 1.0).sum(-1)
        return -0.5 * square - 0.5 * self.loc.shape[-1] * math.log(2 * math.pi)


def test_an_exponential_family_has_its_entropy_and_its_divergences():
    a, b = tensor([0.7, 2.0, 5.0]), tensor([1.0, 0.3, 4.0])
    c, d = tensor([1.7, 1.0, 2.0]), tensor([2.0, 0.4, 3.0])
    p, q = NaturalGamma(a, b), NaturalGamma(c, d)
    assert_close(kl_divergence(p, q), kl_divergence(Gamma(a, b), Gamma(c, d)), rtol=1e-5)
    assert_close(p.entropy(), Gamma(a, b).entropy(), rtol=1e-5)
    assert not kl_divergence(p, q).requires_grad
    u, v = (
        NaturalNormals(tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])),
        NaturalNormals(tensor([0.0] * 3)),
    )
    assert_close(kl_divergence(u, v), [2.5, 1.5])
    assert_close(u.entropy(), [1.5 * math.log(2 * math.pi * math.e)] * 2, rtol=1e-6)
    with pytest.raises(NotImplementedError, match="one exponential family"):
        kl_divergence(p, v)


def test_a_bregman_divergence_has_gradients_and_compiles():
    a, b = tensor([0.7, 2.0]).double(), tensor([1.0, 0.3]).double()

    def slopes(cls):
        def run(a, b):
            a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
            value = kl_divergence(cls(a, b), cls(b, a)) + cls(a, b).entropy()
            return value.detach(), *probtorch.autograd.grad(value.sum(), [a, b])

        return run

    expected = slopes(Gamma)(a, b)
    for fn in (slopes(NaturalGamma), compile(slopes(NaturalGamma))):
        for got, right in zip(fn(a, b), expected, strict=True):
            assert_close(got, right, rtol=1e-10)
