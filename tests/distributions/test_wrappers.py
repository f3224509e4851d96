"""Distributions made of others, point masses and flat ones."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.record.record import record
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.distributions import constraints
from probtorch.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    SigmoidTransform,
    StickBreakingTransform,
    TanhTransform,
)
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close


def t(*values):
    return tensor(np.array(values, dtype=float))


def examples():
    normal = dist.Normal(t(0.0, 1.0), t(1.0, 2.0))
    weights = dist.Categorical(t(0.3, 0.7))
    return [
        normal.to_event(1),
        dist.Poisson(t(2.0, 3.0)).to_event(1),
        normal.mask(tensor([True, False])),
        dist.TransformedDistribution(normal, [ExpTransform(), AffineTransform(1.0, -2.0)]),
        dist.TransformedDistribution(normal, StickBreakingTransform()),
        dist.MixtureSameFamily(weights, normal),
        dist.MixtureSameFamily(weights, dist.Dirichlet(t(1.0, 2.0).expand((2, 2)) + 1.0)),
        dist.MixtureSameFamily(weights, dist.Poisson(t(1.0, 20.0))),
        dist.Delta(t(1.0, 2.0), event_dim=1),
        dist.Delta(t(1.0, 2.0), t(0.5, 0.5)),
    ]


EACH = pytest.mark.parametrize("d", examples(), ids=lambda d: repr(d)[:50])


@EACH
def test_draws_have_the_shape_and_lie_in_the_support(d):
    for shape in [(), (4,), (2, 0)]:
        x = d.sample(shape, Generator(0))
        assert x.shape == shape + d.batch_shape + d.event_shape
        assert d.support.check(x).numpy().all()
    assert d.log_prob(d.sample((5,))).shape == (5, *d.batch_shape)


@EACH
def test_expand_repeats_and_trees_and_pickles_rebuild(d):
    wide = d.expand((3, *d.batch_shape))
    x = d.sample((3,), Generator(1))
    for copy in (
        wide,
        unflatten(flatten(wide)[1], flatten(wide)[0]),
        pickle.loads(pickle.dumps(wide)),
    ):
        assert copy.batch_shape == (3, *d.batch_shape) and copy.event_shape == d.event_shape
        assert_close(copy.log_prob(x), d.log_prob(x))
        assert copy.sample((2,)).shape == (2, 3) + d.batch_shape + d.event_shape


@EACH
def test_densities_are_recorded_without_guards(d):
    x = d.sample((), Generator(1))
    rec, out = record(lambda: d.log_prob(x), [])
    assert rec.graph.guards == [] and rec.unsupported == []
    assert_close(out, d.log_prob(x))


@EACH
def test_sample_and_log_prob_agree_with_log_prob(d):
    x, lp = d.sample_and_log_prob((4,), Generator(2))
    assert_close(lp, d.log_prob(x), rtol=1e-9)


# ------------------------------------------------------------------------------ transformed


def test_a_transformed_normal_is_a_lognormal():
    d = dist.TransformedDistribution(dist.Normal(t(0.3), t(0.8)), ExpTransform())
    e = dist.LogNormal(t(0.3), t(0.8))
    x = t(0.1, 1.0, 4.0)
    assert_close(d.log_prob(x), e.log_prob(x))
    assert_close(d.cdf(t(-1.0, 0.0, 1.0, math.inf)), e.cdf(t(-1.0, 0.0, 1.0, math.inf)))
    assert_close(d.icdf(t(0.2, 0.7)), e.icdf(t(0.2, 0.7)))


def test_a_decreasing_transform_turns_the_cdf_around():
    d = dist.TransformedDistribution(dist.Exponential(t(2.0)), AffineTransform(3.0, -1.5))
    x = t(-1.0, 2.0, 2.9)
    assert_close(d.cdf(x), stats.expon(scale=0.5).sf((3.0 - x.numpy()) / 1.5))
    assert_close(d.icdf(d.cdf(x)), x)
    # The support is that of the last transform; beyond the image of the base's the density is 0.
    assert d.log_prob(t(3.5)).item() == -math.inf


@pytest.mark.parametrize("transform", [SigmoidTransform(), TanhTransform()], ids=repr)
def test_at_a_boundary_that_comes_from_infinity_the_density_is_zero(transform):
    loc, x = t(0.0).requires_grad_(), t(1.0).requires_grad_()
    lp = dist.TransformedDistribution(dist.Normal(loc, 1.0), transform).log_prob(x)
    assert lp.item() == -math.inf
    assert all(g is None or g.item() == 0.0 for g in grad(lp.sum(), [loc, x], allow_unused=True))


def test_the_pre_image_serves_where_the_inverse_has_lost_it():
    d = dist.TransformedDistribution(dist.Normal(tensor(20.0), tensor(1e-3)), TanhTransform())
    y, lp = d.sample_and_log_prob((), Generator(0))
    x = math.log(1e3) - 0.5 * math.log(2 * math.pi)
    # At the mean: log density of the normal less log tanh'(20) = 2 log 2 - 40; a draw is a few
    # units away.
    assert y.item() == 1.0 and abs(lp.item() - (x - 2 * math.log(2) + 40)) < 10


def test_parameters_of_a_transform_enlarge_the_batch():
    d = dist.TransformedDistribution(dist.Normal(0.0, 1.0), AffineTransform(t(1.0, 2.0, 3.0), 2.0))
    assert d.batch_shape == (3,)
    assert_close(d.log_prob(t(1.0, 2.0, 3.0)), np.full(3, stats.norm(0, 2).logpdf(0)))
    x = d.sample((2000,), Generator(0)).numpy()
    # 2000 draws of each: the correlation of independent columns is below 0.12 except in 1e-7 of
    # cases.
    assert np.abs(np.corrcoef(x.T) - np.eye(3)).max() < 0.12


def test_arrays_are_parameters_of_an_affine_transform():
    loc, scale = np.array([1.0, 2.0]), np.array([0.5, -4.0])
    normal = dist.Normal(t(0.0, 0.0), 1.0).to_event(1)
    d = dist.TransformedDistribution(normal, AffineTransform(loc, scale, event_dim=1))
    x = np.array([1.5, 3.0])
    assert_close(d.log_prob(x), stats.norm(loc, abs(scale)).logpdf(x).sum())


def test_vector_transforms_take_batch_dims_of_the_base_as_event():
    d = dist.TransformedDistribution(dist.Normal(t(0.0, 0.0), 1.0), StickBreakingTransform())
    assert d.batch_shape == () and d.event_shape == (3,)
    joint = dist.TransformedDistribution(dist.Normal(t(0.0, 0.0), 1.0).to_event(1), ExpTransform())
    assert joint.event_shape == (2,)
    assert_close(joint.log_prob(t(1.0, 2.0)), dist.LogNormal(0.0, 1.0).log_prob(t(1.0, 2.0)).sum())


def test_pathwise_gradients_flow_through_transforms():
    loc = t(0.2).requires_grad_()
    d = dist.TransformedDistribution(dist.Normal(loc, 0.5), ExpTransform())
    x = d.rsample((), Generator(0))
    assert_close(grad(x, [loc])[0], x.detach())


# ------------------------------------------------------------------------------ masks


def test_a_false_mask_is_zero_whatever_the_value():
    d = dist.Normal(t(0.0, 1.0), 1.0).mask(False)
    assert_close(d.log_prob(t(math.nan, 1.0)), np.zeros(2))
    assert dist.Normal().mask(True).log_prob(0.0).item() == dist.Normal().log_prob(0.0).item()


def test_masked_nan_has_value_and_gradient_zero_with_validation_on():
    x, loc = t(math.nan, 1.0).requires_grad_(), t(0.0).requires_grad_()
    lp = dist.Normal(loc, 1.0).mask(tensor([False, True])).log_prob(x)
    assert_close(lp, [0.0, stats.norm().logpdf(1.0)])
    gx, gl = grad(lp.sum(), [x, loc])
    assert_close(gx, [0.0, -1.0])
    assert_close(gl, [1.0])
    with pytest.raises(DomainError):
        dist.Normal(loc, 1.0).mask(tensor([True, True])).log_prob(x)


def test_a_mask_can_enlarge_the_batch():
    assert dist.Normal(0.0, 1.0).mask(tensor([True, False])).batch_shape == (2,)


def test_events_are_masked_whole():
    d = dist.Dirichlet(t(1.0, 2.0).expand((2, 2))).mask(tensor([True, False]))
    x = t([0.4, 0.6], [math.nan, math.nan])
    assert_close(d.log_prob(x), [stats.dirichlet([1, 2]).logpdf([0.4, 0.6]), 0.0])


# ------------------------------------------------------------------------------ mixtures


def test_a_mixture_density_is_the_weighted_sum():
    w, loc, scale = np.array([0.2, 0.5, 0.3]), np.array([-2.0, 0.0, 3.0]), np.array([0.5, 1.0, 2.0])
    d = dist.MixtureSameFamily(dist.Categorical(tensor(w)), dist.Normal(tensor(loc), tensor(scale)))
    x = np.linspace(-4, 6, 9)
    density = (w * stats.norm(loc, scale).pdf(x[:, None])).sum(-1)
    assert_close(d.log_prob(x), np.log(density))
    assert_close(d.cdf(x), (w * stats.norm(loc, scale).cdf(x[:, None])).sum(-1))
    assert_close(d.mean, (w * loc).sum())
    assert_close(d.variance, (w * (scale**2 + loc**2)).sum() - (w * loc).sum() ** 2)


def test_draws_of_a_mixture_follow_its_cdf():
    # Dvoretzky-Kiefer-Wolfowitz at 1e-7.
    n = 20_000
    d = dist.MixtureSameFamily(
        dist.Categorical(t(0.2, 0.8)), dist.Normal(t(-2.0, 1.0), t(0.3, 1.0))
    )
    x = np.sort(d.sample((n,), Generator(3)).numpy())
    gap = np.abs(d.cdf(x).numpy() - (np.arange(n) + 0.5) / n).max()
    assert gap < math.sqrt(math.log(2 / 1e-7) / (2 * n))


def test_a_component_of_weight_zero_has_no_part():
    w = t(0.5, 0.5, 0.0).requires_grad_()
    loc = t(0.0, 1.0, 2.0).requires_grad_()
    lp = dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(loc, 1.0)).log_prob(t(0.3))
    two = dist.MixtureSameFamily(dist.Categorical(t(0.5, 0.5)), dist.Normal(t(0.0, 1.0), 1.0))
    assert_close(lp, two.log_prob(t(0.3)))
    gw, gl = grad(lp.sum(), [w, loc])
    assert np.isfinite(gw.numpy()).all() and gl.numpy()[2] == 0.0


def test_outside_of_all_components_the_density_is_zero_with_gradient_zero():
    high = t(1.0, 2.0).requires_grad_()
    d = dist.MixtureSameFamily(
        dist.Categorical(t(0.5, 0.5)),
        dist.Uniform(0.0, high, validate_args=False),
        validate_args=False,
    )
    lp = d.log_prob(t(3.0, 1.5))
    assert_close(lp, [-math.inf, math.log(0.25)])
    assert_close(grad(lp.sum(), [high])[0], [0.0, -0.5])
    with pytest.raises(DomainError):
        dist.MixtureSameFamily(
            dist.Categorical(t(0.5, 0.5)), dist.Uniform(0.0, t(1.0, 2.0))
        ).log_prob(3.0)


def test_mixtures_check_what_they_are_made_of():
    with pytest.raises(ArgumentError) as caught:
        dist.MixtureSameFamily(dist.Normal(), dist.Normal())
    assert "Categorical" in caught.value.expected and caught.value.got == "Normal"
    with pytest.raises(ShapeError) as caught:
        dist.MixtureSameFamily(dist.Categorical(t(0.5, 0.5)), dist.Normal(t(0.0, 1.0, 2.0), 1.0))
    assert "last batch dim is 2" in caught.value.expected and "(3,)" in caught.value.got


# ------------------------------------------------------------------------------ points and flat
# ones


def test_a_delta_is_its_point():
    v = t(1.0, 2.0).requires_grad_()
    d = dist.Delta(v, t(0.5), event_dim=1)
    assert d.batch_shape == (1,) and d.event_shape == (2,)
    assert d.rsample((3,)).requires_grad and (d.sample().numpy() == [1.0, 2.0]).all()
    assert_close(d.log_prob(t(1.0, 2.0)), [0.5])
    assert d.log_prob(t(1.0, 2.1)).item() == -math.inf
    assert_close(d.mean, [[1.0, 2.0]])
    assert_close(d.variance, np.zeros((1, 2)))


def test_a_delta_at_an_integer_stays_one():
    d = dist.Delta(tensor(3))
    assert d.sample().dtype == np.int64 and d.log_prob(tensor(3)).item() == 0.0


def test_an_improper_uniform_is_flat_on_its_support_and_zero_elsewhere():
    d = dist.ImproperUniform(constraints.positive, (2,), ())
    assert d.batch_shape == (2,) and d.event_shape == ()
    assert_close(d.log_prob(t(1.0, 5.0)), np.zeros(2))
    off = dist.ImproperUniform(constraints.positive, validate_args=False)
    assert off.log_prob(t(-1.0)).item() == -math.inf
    ordered = dist.ImproperUniform(constraints.ordered_vector, (), (3,))
    assert ordered.log_prob(t(1.0, 2.0, 3.0)).shape == ()
    assert ordered.expand((4,)).log_prob(t(1.0, 2.0, 3.0)).shape == (4,)


def test_moments_and_entropy_of_independent_dims():
    d = dist.Normal(t(0.0, 1.0), t(1.0, 2.0)).to_event(1)
    assert_close(d.mean, [0.0, 1.0])
    assert_close(d.variance, [1.0, 4.0])
    assert_close(d.entropy(), stats.norm([0, 1], [1, 2]).entropy().sum())
    assert_close(d.mode, [0.0, 1.0])
    with pytest.raises(NotImplementedError, match="product"):
        dist.Bernoulli(t(0.2, 0.3)).to_event(1).enumerate_support()


def test_expanded_distribution_is_the_base_in_a_larger_batch_shape():
    wide = dist.ExpandedDistribution(dist.Normal(0.0, 2.0), (3, 2))
    assert wide.batch_shape == (3, 2)
    assert wide.sample().shape == (3, 2)
    assert_close(wide.log_prob(1.0), dist.Normal(0.0, 2.0).log_prob(1.0).expand(3, 2))


@pytest.mark.parametrize("wrapper", [dist.ZeroInflatedDistribution, dist.HurdleDistribution])
@pytest.mark.parametrize("base", [dist.Zipf(3.0), dist.DiscreteUniform(2.0, 5.0)], ids=repr)
def test_zeros_besides_counts_that_begin_above_have_the_mass_of_the_gate(wrapper, base):
    d = wrapper(base, gate=0.3)
    assert d.support.check(tensor([0.0, 3.0])).all()
    masses = d.log_prob(tensor([0.0, 1.0, 3.0])).exp().numpy()
    first = base.log_prob(tensor(1.0)).exp().item() if isinstance(base, dist.Zipf) else 0.0
    third = base.log_prob(tensor(3.0)).exp().item()
    assert masses == pytest.approx([0.3, 0.7 * first, 0.7 * third])
    assert np.isfinite(d.log_prob(d.sample((200,), Generator(0))).numpy()).all()


def test_a_hurdle_refuses_what_may_be_negative():
    for base in (dist.GeneralizedExtremeValue(0.0, 1.0, 0.2), dist.Normal(0.0, 1.0)):
        with pytest.raises(ArgumentError, match="positive numbers"):
            dist.HurdleDistribution(base, gate=0.3)
