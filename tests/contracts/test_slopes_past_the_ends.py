"""Past the ends of a support probabilities are 0 or 1, whatever the parameters are.

A bound at infinity is how rows of a table say that they have none. Formulas of cdfs give the right
number there and nan for its slope. At an end itself slopes are numbers, too, and nan is no number
on either side of anything.
"""

import itertools
import math

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.contracts.test_every_distribution import SCALAR, rng
from tests.contracts.test_univariate_facts import ALL, EXCEPTIONS, MADE, each_asked, instance
from tests.contracts.test_univariate_facts import SCALAR as UNIVARIATE
from tests.distributions.cases import BATCH

AT_END = {
    "cdf": (0.0, 1.0),
    "log_cdf": (-math.inf, 0.0),
    "survival": (1.0, 0.0),
    "log_survival": (0.0, -math.inf),
}
WRAPPERS = {"truncated": dist.TruncatedDistribution, "censored": dist.Censored}


def with_leaves(case, seed=0):
    """A distribution of the case and the parameters that it was made of, as leaves."""
    values = case.arguments(seed)
    for name in case.params:
        setattr(values, name, getattr(values, name).detach().requires_grad_())
    leaves = [getattr(values, name) for name in case.params]
    return case.cls(**vars(values), validate_args=False), leaves


@SCALAR
def test_probabilities_past_the_ends_have_no_slope(case):
    for name, ends in AT_END.items():
        for x, expected in zip((-math.inf, math.inf), ends, strict=True):
            d, leaves = with_leaves(case)
            level = getattr(d, name)(tensor(np.full(BATCH, x)))
            assert (level.detach().numpy() == expected).all(), (name, x)
            slopes = grad(level.sum(), leaves, materialize_grads=True, allow_unused=True)
            assert not any(g.numpy().any() for g in slopes), (name, x)


def ends_of(d):
    """Pairs of which end it is and where, for those that are finite."""
    for i, end in enumerate(d.support.ends()):
        at = np.asarray(math.inf if end is None else getattr(end, "array", end), float)
        if np.isfinite(at).all():
            yield i, np.broadcast_to(at, d.batch_shape)


@SCALAR
def test_probabilities_at_the_ends_have_slopes_that_are_numbers(case):
    # Four seeds: a density may be 0 at an end, or a number, or infinite.
    for seed, (name, ends) in itertools.product(range(4), AT_END.items()):
        d, leaves = with_leaves(case, seed)
        for i, end in ends_of(d):
            x = tensor(end.copy(), requires_grad=True)
            level = getattr(d, name)(x)
            if not case.is_discrete:
                assert (level.detach().numpy() == ends[i]).all(), (name, end)
            for g in grad(level.sum(), [*leaves, x], materialize_grads=True, allow_unused=True):
                assert np.isfinite(g.numpy()).all(), (name, end, seed)


# Of those made of others, what is known at nan: masked values are not asked for.
NAMES = [n for n in {**UNIVARIATE, **MADE} if EXCEPTIONS.get(n, ((), ""))[0] is not ALL]


@pytest.mark.parametrize("name", each_asked(NAMES))
def test_levels_and_quantiles_of_nan_are_nan(name):
    d = instance(name)
    d._validate_args = False
    shape = d.batch_shape
    x = d.icdf(tensor(np.full(shape, 0.4))).numpy().astype(float)
    for method, value in (*((m, x) for m in AT_END), ("icdf", np.full(shape, 0.4))):
        rows = np.where(np.arange(len(value)) == 0, math.nan, value)
        found = getattr(d, method)(tensor(rows)).numpy()
        assert math.isnan(found[0]), method
        assert_close(found[1:], getattr(d, method)(tensor(value)).numpy()[1:])


@SCALAR
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_row_with_an_infinite_bound_is_a_row_without_one(case, wrapper):
    d, leaves = with_leaves(case)
    x = d.sample((), rng()).detach()
    low, high = x.numpy() - 1.0, x.numpy() + 1.0
    low[0], high[1] = -math.inf, math.inf
    rows = WRAPPERS[wrapper](d, low, high).log_prob(x)
    below, above = WRAPPERS[wrapper](d, low[1]).log_prob(x), WRAPPERS[wrapper](d, None, high[0])
    alone = [above.log_prob(x)[0], below[1]]
    for i, one in enumerate(alone):
        assert_close(rows[i], one, rtol=1e-12)
        slopes = grad(rows[i], leaves, retain_graph=True, materialize_grads=True)
        expected = grad(one, leaves, retain_graph=True, materialize_grads=True)
        for g, e in zip(slopes, expected, strict=True):
            assert_close(g, e, rtol=1e-9, atol=1e-12)


def test_compiled_rows_with_infinite_bounds_have_slopes():
    t = np.array([1.0, 2.0, 3.0])
    high = np.array([math.inf, 2.0, math.inf])

    def density(k, scale):
        return dist.Censored(dist.Weibull(scale, k), high=high).log_prob(t).sum()

    k, scale = tensor(1.2, requires_grad=True), tensor(2.0, requires_grad=True)
    eager = grad(density(k, scale), (k, scale))
    native = compile(lambda a, b: grad(density(a, b), (a, b)))
    for _ in range(3):
        for g, e in zip(native(k, scale), eager, strict=True):
            assert math.isfinite(e.item())
            assert_close(g, e, rtol=1e-12)
