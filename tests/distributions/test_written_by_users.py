"""Distributions as people write them for Pyro: in models, compiled, in plates, cut off."""

import math

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch import compile
from probtorch.core.rng import Generator
from probtorch.distributions import (
    Distribution,
    Normal,
    TruncatedDistribution,
    constraints,
    utils,
)
from probtorch.effects import param, plate, sample
from probtorch.infer import MCMC, NUTS, SVI, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close


class Huber(Distribution):
    """Normal in the middle, exponential outside of `bend`: attributes, and branches in Python."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = False

    def __init__(self, loc, scale, bend=1.5, kind="two-sided", validate_args=None):
        self.loc, self.scale = probtorch.broadcast_tensors(loc, scale)
        self.bend = bend
        self.kind = kind
        batch_shape = self.loc.shape
        super().__init__(batch_shape, probtorch.Size(), validate_args=validate_args)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        k = self.bend
        if self.kind == "lower":
            z = probtorch.minimum(z, z * 0 + k)
        elif self.kind != "two-sided":
            raise ValueError(self.kind)
        inner = -0.5 * z**2
        outer = -k * z.abs() + 0.5 * k**2
        size = math.sqrt(2 * math.pi) * math.erf(k / math.sqrt(2)) + 2 / k * math.exp(-0.5 * k**2)
        return probtorch.where(z.abs() < k, inner, outer) - self.scale.log() - math.log(size)

    def sample(self, sample_shape=()):
        with probtorch.no_grad():
            return probtorch.normal(
                self.loc.expand(self._extended_shape(sample_shape)),
                self.scale.expand(self._extended_shape(sample_shape)),
            )


class Mixed(Distribution):
    """Counts of a table of probabilities that it stores, without rsample."""

    arg_constraints = {"weights": constraints.simplex}
    has_enumerate_support = False

    def __init__(self, weights, offset):
        self.weights = weights
        self.offset = tensor(float(offset)).double()
        super().__init__(weights.shape[:-1], validate_args=False)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self):
        return constraints.nonnegative_integer

    def sample(self, sample_shape=()):
        index = probtorch.multinomial(self.weights, math.prod(sample_shape) or 1, replacement=True)
        return index.reshape(sample_shape).double() + self.offset

    def log_prob(self, value):
        return self.weights.log()[(value - self.offset).long()]


class Lomax(Distribution):
    """With cdf and icdf, so that it can be cut off."""

    arg_constraints = {"scale": constraints.positive, "shape_": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, scale, shape_, validate_args=None):
        self.scale, self.shape_ = probtorch.broadcast_tensors(scale, shape_)
        super().__init__(self.scale.shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(Lomax, _instance)
        batch_shape = probtorch.Size(batch_shape)
        new.scale = self.scale.expand(batch_shape)
        new.shape_ = self.shape_.expand(batch_shape)
        super(Lomax, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(self, sample_shape=()):
        shape = self._extended_shape(sample_shape)
        u = probtorch.rand(shape, dtype=self.scale.dtype, device=self.scale.device)
        return self.icdf(u)

    def log_prob(self, value):
        ratio = (value / self.scale).log1p()
        return self.shape_.log() - self.scale.log() - (self.shape_ + 1) * ratio

    def cdf(self, value):
        return 1 - (1 + value / self.scale) ** -self.shape_

    def icdf(self, value):
        return self.scale * ((1 - value) ** (-1 / self.shape_) - 1)


SCALE, SHAPE = tensor([0.5, 1.0, 4.0]).double(), tensor([2.0, 3.0, 5.0]).double()
REFERENCE = stats.lomax(SHAPE.numpy(), scale=SCALE.numpy())


def test_a_class_with_branches_is_a_distribution_like_any_other():
    loc, scale = tensor([0.0, 1.0]).double(), tensor([1.0, 2.0]).double()
    d = Huber(loc, scale)
    grid = np.linspace(-60, 60, 60_001)
    mass = d.log_prob(tensor(grid[:, None])).exp().numpy().sum(0) * (grid[1] - grid[0])
    assert_close(mass, np.ones(2), rtol=1e-6)
    native = compile(lambda m, s, x, kind: Huber(m, s, kind=kind).log_prob(x))
    x = tensor([0.3, -4.0]).double()
    for kind in ("two-sided", "lower", "two-sided"):
        for _ in range(2):
            assert_close(native(loc, scale, x, kind), Huber(loc, scale, kind=kind).log_prob(x))
    assert native.reason is None
    wide = d.expand((3, 2))
    assert wide.log_prob(x).shape == (3, 2) and wide.sample((5,)).shape == (5, 3, 2)
    assert_close(wide.to_event(1).log_prob(x), d.log_prob(x).sum().expand(3))
    assert d.sample((4,), Generator(1)).shape == (4, 2)


def regression(x, y):
    slope = sample("slope", Normal(0.0, 10.0))
    with plate("rows", len(y)):
        sample("y", Huber(slope * x, tensor(0.5).double()), obs=y)


def test_nuts_with_a_likelihood_of_the_users_is_not_moved_by_outliers():
    r = np.random.default_rng(0)
    x = r.normal(size=80)
    y = 2.0 * x + 0.5 * r.normal(size=80)
    y[:4] += 40.0
    mcmc = MCMC(NUTS(regression), num_samples=200, warmup_steps=200, seed=2, progress_bar=False)
    mcmc.run(tensor(x), tensor(y))
    # The posterior's sd is about 0.5 / sqrt(80) = 0.06; least squares is off by 1 and more.
    assert abs(mcmc.summary()["slope"]["mean"] - 2.0) < 0.3


def test_svi_takes_a_guide_without_rsample_by_its_score():
    target = np.array([0.1, 0.2, 0.7])

    def model():
        z = sample("z", Mixed(tensor(np.full(3, 1 / 3)), 2))
        probtorch.effects.factor("f", tensor(np.log(3 * target))[(z - 2).long()])

    def guide():
        weights = param("w", tensor(np.full(3, 1 / 3)), constraint=constraints.simplex)
        sample("z", Mixed(weights, 2))

    probtorch.manual_seed(0)
    svi = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO(num_particles=5))
    for _ in range(80):
        svi.step()
    found = probtorch.effects.get_param_store()["w"].detach().numpy()
    # The loss is a divergence of 0 at the target; five draws a step leave the weights somewhat off.
    assert np.abs(found - target).max() < 0.15


def test_one_with_a_cdf_is_cut_off_expanded_and_put_in_a_plate():
    d = Lomax(SCALE, SHAPE)
    x = d.sample((2000,), Generator(3))
    levels = REFERENCE.cdf(x.numpy())
    assert min(stats.kstest(levels[:, i], "uniform").pvalue for i in range(3)) > 1e-6
    cut = TruncatedDistribution(d, low=0.2, high=3.0)
    inside = tensor([0.3, 1.0, 2.9]).double()
    mass = REFERENCE.cdf(3.0) - REFERENCE.cdf(0.2)
    assert_close(cut.log_prob(inside), REFERENCE.logpdf(inside.numpy()) - np.log(mass))
    draws = cut.sample((500,), Generator(4)).numpy()
    assert draws.min() >= 0.2 and draws.max() <= 3.0
    native = compile(lambda s, a: TruncatedDistribution(Lomax(s, a), 0.2, 3.0).log_prob(inside))
    for _ in range(2):
        assert_close(native(SCALE, SHAPE), cut.log_prob(inside))
    wide = d.expand((4, 3))
    assert type(wide) is Lomax and wide.scale.shape == (4, 3)
    assert_close(wide.log_prob(inside), np.tile(d.log_prob(inside).numpy(), (4, 1)))

    def model(y):
        shape = sample("shape", Lomax(tensor(10.0).double(), tensor(3.0).double()))
        with plate("rows", len(y)):
            sample("y", Lomax(tensor(1.0).double(), shape), obs=y)

    y = stats.lomax(4.0).rvs(300, random_state=1)
    mcmc = MCMC(NUTS(model), num_samples=200, warmup_steps=200, seed=3, progress_bar=False)
    mcmc.run(tensor(y))
    # Conjugate but for the prior: 300 / sum(log(1 + y)), with a sd of about 4 / sqrt(300).
    assert abs(mcmc.summary()["shape"]["mean"] - 300 / np.log1p(y).sum()) < 0.35


def test_helpers_that_pytorch_has_for_users_distributions_are_here():
    class Rate(dist.TorchDistribution):
        arg_constraints = {"probs": constraints.unit_interval}
        support = constraints.boolean

        def __init__(self, probs, weight, validate_args=None):
            self.probs, self.weight = utils.broadcast_all(probs, weight)
            super().__init__(self.probs.shape, validate_args=validate_args)

        @utils.lazy_property
        def logits(self):
            """Log odds."""
            return utils.probs_to_logits(self.probs, is_binary=True)

        def log_prob(self, value):
            return self.weight * dist.Bernoulli(logits=self.logits).log_prob(value)

    d = Rate(tensor([0.2, 0.7]), 2)
    assert d.batch_shape == (2,)
    assert_close(d.log_prob(tensor([1.0, 0.0])), 2.0 * np.log(np.float32([0.2, 0.3])))
    assert d.logits is d.logits and Rate.logits.__doc__ == "Log odds."
    assert_close(utils.logits_to_probs(d.logits, True), d.probs)
    weights = tensor([0.5, 0.25, 0.25])
    assert_close(utils.logits_to_probs(utils.probs_to_logits(weights)), weights)
    assert 0.0 < utils.clamp_probs(tensor([0.0, 1.0])).numpy()[0] < 1e-6


class Tilted(Normal):
    """A built-in distribution with all public methods overridden, each by way of `super()`."""

    def log_prob(self, value):
        return super().log_prob(value) - 7.0

    def rsample(self, sample_shape=()):
        return super().rsample(sample_shape) + 100.0

    def sample(self, sample_shape=()):
        return super().sample(sample_shape) + 300.0


class Further(Tilted):
    """A class after such a class."""

    def log_prob(self, value):
        return super().log_prob(value) - 1.0

    def sample(self, sample_shape=()):
        return super().sample(sample_shape) + 1000.0


class ByTable(Normal):
    """Draws that are looked up; nothing else is overridden."""

    def rsample(self, sample_shape=()):
        return self.loc + self.scale * probtorch.full(self._extended_shape(sample_shape), 2.0)


class TiltedLogNormal(dist.TransformedDistribution):
    """The same of a distribution that is made of others."""

    def __init__(self, loc, scale, validate_args=None):
        base = Normal(loc, scale)
        super().__init__(base, [dist.transforms.ExpTransform()], validate_args=validate_args)

    def log_prob(self, value):
        return super().log_prob(value) - 7.0


WRAPPED = {
    "itself": lambda d: d,
    "to_event": lambda d: d.to_event(1),
    "masked": lambda d: d.mask(probtorch.tensor([True, True, True])),
    "expanded": lambda d: d.expand((2, 3)),
    "moved": lambda d: dist.TransformedDistribution(d, [dist.transforms.AffineTransform(0.0, 1.0)]),
    "mixed": lambda d: dist.MixtureSameFamily(dist.Categorical(probtorch.ones(3)), d),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_what_a_class_overrides_of_a_built_in_one_counts_inside_of_others(wrap):
    loc = probtorch.zeros(3).double()
    plain = Normal(loc, 1.0)
    x = wrap(plain).sample()
    for cls, minus, sampled, drawn in (
        (Tilted, 7.0, 400.0, 100.0),  # a draw of the base is one of `rsample`, without its gradient
        (Further, 8.0, 1400.0, 100.0),
        (ByTable, 0.0, 2.0, 2.0),
    ):
        own = wrap(cls(loc, 1.0))
        each = own.event_shape.numel()
        for density in ("log_prob", "log_prob_inside"):
            expected = getattr(wrap(plain), density)(x) - minus * each
            assert_close(getattr(own, density)(x), expected)
        assert (probtorch.abs(own.sample((5,)) - sampled) < 8.0).all()
        # A mixture moves draws without a path along its distribution function.
        if own.has_rsample and not isinstance(own, dist.MixtureSameFamily):
            assert (probtorch.abs(own.rsample((5,)) - drawn) < 8.0).all()


def test_what_a_class_overrides_counts_at_sites_and_in_objectives():
    def model(d):
        with plate("row", 3):
            sample("z", d)
        sample("v", d.to_event(1))

    trace = probtorch.poutine.trace(model).get_trace(Tilted(tensor([0.0, 0.0, 0.0]), 1.0))
    z, v = trace["z"].value, trace["v"].value
    assert (z > 90.0).all() and (v > 90.0).all()
    reference = Normal(0.0, 1.0).log_prob(z).sum() + Normal(0.0, 1.0).log_prob(v).sum()
    assert_close(trace.log_prob_sum(), reference - 42.0)
    loc = tensor([0.3, 0.4]).double()
    value, density = TiltedLogNormal(loc, 1.0).sample_and_log_prob()
    assert_close(density, dist.LogNormal(loc, 1.0).log_prob(value) - 7.0)


def test_a_guide_with_draws_of_its_own_moves_by_these():
    """Draws at loc + 2 scale: the objective is a function, and its slopes are known."""
    model = lambda: sample("z", Normal(probtorch.zeros(2), 1.0).to_event(1))

    def guide():
        loc = param("loc", tensor(np.array([0.5, -0.2])))
        sample("z", ByTable(loc, 1.0).to_event(1))

    loss = Trace_ELBO().differentiable_loss(model, guide)
    z = np.array([2.5, 1.8])
    terms = stats.norm(0.0, 1.0).logpdf(z) - stats.norm(z - 2.0, 1.0).logpdf(z)
    assert_close(loss, tensor(-terms.sum()))
