"""Laws that hold for every distribution, in every parameterisation.

Parameters are drawn through `biject_to`. The entries are in tests/distributions/cases.py; a class
or an alternative without one fails here. Statistical tests have fixed seeds; false alarm rates are
stated where they are made.
"""

import contextlib
import inspect
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.record.record import record
from probtorch.core.dtype import default_dtype, float32, float64
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, names_of, unflatten
from probtorch.distributions import biject_to, constraints
from probtorch.distributions.facts import has_facts
from probtorch.errors import DomainError
from probtorch.tensor import Tensor, tensor
from probtorch.testing import assert_close
from tests.distributions.cases import BATCH, STRUCTURAL
from tests.distributions.cases import CASES as COMMON
from tests.distributions.further_cases import FURTHER, common_or_slow

CASES = COMMON + FURTHER


def each_of(cases):
    """Cases as parameters; those whose densities are long sums run at night."""
    marked = [pytest.param(c, marks=pytest.mark.slow) if c.costly else c for c in cases]
    return pytest.mark.parametrize("case", marked, ids=lambda c: c.id)


EACH = each_of(CASES)
# Laws that compile a program for each case run for the rarer ones at night.
COSTLY = pytest.mark.parametrize("case", common_or_slow(), ids=lambda c: c.id)
SCALAR = each_of([c for c in CASES if c.event_dim == 0])
REPARAMETERISED = each_of([c for c in CASES if c.make()[0].has_rsample])


def rng(seed=0):
    return Generator(1234 + seed)


def draws(d, n=5, seed=0):
    return d.sample((n,), rng(seed))


# ------------------------------------------------------------------------------ completeness


def test_every_class_has_an_entry():
    classes = {
        name
        for name in dist.__all__
        if inspect.isclass(getattr(dist, name))
        and issubclass(getattr(dist, name), dist.Distribution)
    }
    covered = {c.cls.__name__ for c in CASES} | STRUCTURAL | {"Distribution"}
    assert classes - covered == set()


def test_every_alternative_has_an_entry():
    for cls in {c.cls for c in CASES}:
        named = {n for c in CASES if c.cls is cls for n in (*c.params, *c.fixed)}
        assert set(cls._fields) - named == set(), cls.__name__


# ------------------------------------------------------------------------------ densities


@EACH
def test_log_prob_equals_the_reference(case):
    for seed in range(3):
        d, reference = case.make(seed)
        x = draws(d, 9, seed)
        log = reference.logpmf if hasattr(reference, "logpmf") else reference.logpdf
        assert_close(d.log_prob(x), log(x.numpy()), rtol=1e-10, atol=1e-11)


@SCALAR
def test_the_density_sums_or_integrates_to_one(case):
    d, reference = case.make(seed=1)
    if case.is_discrete:
        top = min(int(np.max(reference.ppf(1 - 1e-13))) + 1, 3000)
        x = np.arange(top + 1.0)[:, None] * np.ones(BATCH)
        inside = d.support.check(tensor(x)).numpy()
        mass = np.where(inside, np.exp(d.mask(tensor(inside)).log_prob(x).numpy()), 0.0).sum(0)
        if top == 3000:
            mass = mass + reference.sf(np.full((1, BATCH), 3000.0))[0]
    else:
        # Panels between the reference's quantiles, one at the median (kinks).
        count, order = (70, 24) if case in COMMON else (280, 12)
        levels = 1 / (1 + np.exp(-np.linspace(-23, 23, count + 1)))
        edges = np.stack([reference.ppf(q) for q in levels])
        if case not in COMMON and hasattr(d, "_mode"):
            # At a kink elsewhere, and around a cusp.
            distance = np.geomspace(1e-8, 1e-2, 13)[:, None]
            mode = np.where(np.isfinite(d.mode.numpy()), d.mode.numpy(), edges[count // 2])
            spread = edges[count * 11 // 20] - edges[count * 9 // 20]
            near = [mode - distance * spread, mode[None], mode + distance * spread]
            edges = np.sort(np.clip(np.concatenate([edges, *near]), edges[0], edges[-1]), 0)
        nodes, weights = np.polynomial.legendre.leggauss(order)
        width = 0.5 * np.diff(edges, axis=0)[:, None, :]
        x = (0.5 * (edges[1:] + edges[:-1])[:, None, :] + width * nodes[:, None]).reshape(-1, BATCH)
        density = np.exp(d.log_prob(tensor(x)).numpy()).reshape(-1, order, BATCH)
        # Next to a pole at 1 the quantiles of several levels are one float: no panel, no mass.
        apart = width > 1e-9 * np.abs(edges[1:, None])
        mass = (np.where(apart, density, 0.0) * weights[:, None] * width).sum((0, 1))
        shares = np.diff(reference.cdf(edges), axis=0) if len(edges) != len(levels) else None
        shares = np.diff(levels)[:, None] if shares is None else shares
        lost = (shares * ~apart[:, 0]).sum(0)
        assert (lost < 1e-3).all()
        mass = mass + lost
    # The tails beyond the last edges hold 2e-10.
    assert_close(mass, np.ones(BATCH), rtol=1e-8)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=[] if c in COMMON else pytest.mark.slow)
        for c in CASES
        if c.event_dim and not c.is_discrete and not c.narrow
    ],
    ids=lambda c: c.id,
)
def test_the_density_of_a_vector_integrates_to_one_in_unconstrained_space(case):
    d = case.cls(**vars(case.arguments(seed=1, batch=())))
    transform = biject_to(d.support)
    n = transform.inverse_shape(d.event_shape)[-1]
    # The trapezium rule is exact to rounding for smooth functions that vanish at both ends.
    axis = np.linspace(*{2: (-18, 18, 300), 3: (-14, 14, 72)}[n])
    grid = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), -1).reshape(-1, n)
    y, ladj = transform.call_and_ladj(tensor(grid))
    density = np.exp((d.log_prob_inside(y) + ladj).numpy())
    assert_close(density.sum() * (axis[1] - axis[0]) ** n, 1.0, rtol=1e-5)


@EACH
def test_enumerated_masses_sum_to_one(case):
    d, _ = case.make()
    if not d.has_enumerate_support:
        with pytest.raises(NotImplementedError, match=case.cls.__name__):
            d.enumerate_support()
        return
    values = d.enumerate_support()
    assert values.shape[1:] == d.batch_shape + d.event_shape
    assert_close(d.log_prob(values).exp().sum(0), np.ones(BATCH))
    small = d.enumerate_support(expand=False)
    assert_close(d.log_prob(small), d.log_prob(values))


# ------------------------------------------------------------------------------ draws


@EACH
def test_draws_follow_the_reference(case):
    # Dvoretzky-Kiefer-Wolfowitz: at most 1e-7 false alarms per margin; a cdf off by twice the
    # radius of 0.0092 (0.02 for the rarer ones) is missed as rarely.
    n = 100_000 if case in COMMON else 20_000
    radius = math.sqrt(math.log(2 / 1e-7) / (2 * n))
    d, reference = case.make(seed=2)
    x = draws(d, n, seed=5).numpy()
    margins = reference.marginals(x) if case.event_dim else [(x, reference)]
    for values, expected in margins:
        if case.is_discrete:
            # At the whole numbers and just below them: the same gaps, each found once.
            at = np.arange(min(values.max() + 2.0, 1e4))[:, None] * np.ones(BATCH)
            p = expected.cdf(at)
            share = np.stack(
                [np.searchsorted(np.sort(v), at[:, 0], side="right") for v in values.T], 1
            )
            assert np.abs(p - share / n).max() < radius
        else:
            p = expected.cdf(np.sort(values, axis=0))
            steps = np.arange(n + 1.0)[:, None] / n
            assert max(np.abs(p - steps[1:]).max(), np.abs(p - steps[:-1]).max()) < radius


@EACH
def test_draws_lie_in_the_support_and_have_its_shape(case):
    d, _ = case.make()
    for shape in [(), (4,), (2, 0), (2, 3)]:
        x = d.sample(shape, rng())
        assert x.shape == shape + d.batch_shape + d.event_shape == d.shape(shape)
        assert not x.requires_grad
        assert d.support.check(x).numpy().all()


@EACH
def test_equal_generators_give_equal_draws(case):
    d, _ = case.make()
    assert (draws(d, 3, 1) == draws(d, 3, 1)).numpy().all()
    assert not (draws(d, 30, 1) == draws(d, 30, 2)).numpy().all()


@EACH
def test_draws_have_the_dtype_of_the_parameters(case):
    values = case.arguments()
    narrow = {k: v.float() if isinstance(v, Tensor) else v for k, v in vars(values).items()}
    for d, dtype in [(case.cls(**narrow), float32), (case.cls(**vars(values)), float64)]:
        x = draws(d, 2)
        assert x.dtype == (dtype if x.dtype.kind == "f" else x.dtype)
        assert d.log_prob(x).dtype == dtype


@each_of([c for c in CASES if not c.sizes])
def test_numbers_as_parameters_give_default_dtype_draws_and_exact_densities(case):
    values = case.arguments(batch=())
    numbers = {k: v.item() if isinstance(v, Tensor) else v for k, v in vars(values).items()}
    d, exact = case.cls(**numbers), case.cls(**vars(values))
    assert d.batch_shape == ()
    x = d.sample((), rng())
    assert x.dtype == (default_dtype() if x.dtype.kind == "f" else x.dtype)
    wide = exact.sample((), rng())
    assert_close(d.log_prob(wide), exact.log_prob(wide), rtol=1e-14)


# ------------------------------------------------------------------------------ gradients


def leaves_of(case, seed, shape):
    """Parameters as leaves, repeated over `shape` so that each draw has parameters of its own."""
    values = case.arguments(seed, batch=())
    out = {}
    for name in case.params:
        v = getattr(values, name).numpy()
        out[name] = tensor(np.broadcast_to(v, shape + v.shape).copy(), requires_grad=True)
    return out


@REPARAMETERISED
def test_the_pathwise_gradient_is_that_of_the_quantile_or_agrees_with_the_score(case):
    n = 4000
    leaves = leaves_of(case, 3, (n,))
    d = case.cls(**leaves, **case.fixed, validate_args=False)
    x = d.rsample((), rng(3))
    if case.event_dim == 0 and case.coupled:
        # x = F^-1(u; theta) at fixed u, so dx/dtheta = -(dF/dtheta) / density.
        slopes = grad(x.sum(), list(leaves.values()), retain_graph=True)
        at = x.detach()
        by_theta = grad(d.cdf(at).sum(), list(leaves.values()))
        density = d.log_prob(at).exp().detach()
        for name, slope, rise in zip(leaves, slopes, by_theta, strict=True):
            expected = -(rise / density).numpy()
            keep = density.numpy() > 1e-4 * np.median(density.numpy())
            assert_close(slope.numpy()[keep], expected[keep], rtol=1e-5, atol=1e-7, msg=name)
        return
    # E[f'(x) dx/dtheta] = E[f(x) dlogp/dtheta] for bounded f: the difference has mean 0. A z above
    # 5.2 comes by chance in 2e-7 of all runs.
    weights = np.cos(1.0 + np.arange(int(np.prod(d.event_shape)) or 1)).reshape(d.event_shape)
    around = lambda v: (v + 0.4).sin() if case.circular else v
    f = lambda v: (
        (v * tensor(weights)).sum(tuple(range(-d.event_dim, 0))) if d.event_dim else around(v)
    ).tanh()
    paths = grad(f(x).sum(), list(leaves.values()), retain_graph=True)
    at = x.detach()
    scores = grad(d.log_prob_inside(at).sum(), list(leaves.values()))
    for name, path, score in zip(leaves, paths, scores, strict=True):
        assert name not in case.bounds
        shape = (n,) + (1,) * (score.ndim - 1)
        gap = path.numpy() - score.numpy() * (f(at).numpy()).reshape(shape)
        gap = inside_parameter_space(gap, case, name)
        z = np.abs(gap.mean(0)) / (gap.std(0) / math.sqrt(n) + 1e-300)
        assert np.where(np.abs(gap).max(0) < 1e-12, 0.0, z).max() < 5.2, name


@EACH
def test_the_gradient_of_the_density_is_that_of_finite_differences(case):
    leaves = leaves_of(case, 4, ())
    value = draws(case.cls(**case_values(leaves), **case.fixed), 4, 4)
    fn = lambda *ps: case.cls(
        **dict(zip(leaves, ps)), **case.fixed, validate_args=False
    ).log_prob_inside(value)
    step = 1e-5
    for k, (name, leaf) in enumerate(leaves.items()):
        direction = np.cos(np.arange(leaf.numel()) + 1.0).reshape(leaf.shape)
        direction = inside_parameter_space(direction, case, name)
        (g,) = grad(fn(*leaves.values()).sum(), [leaf])
        others = [v.detach() for v in leaves.values()]
        shifted = []
        for h in (step, -step, 2 * step, -2 * step):
            moved = list(others)
            moved[k] = others[k] + tensor(h * direction)
            shifted.append(float(fn(*moved).sum()))
        numeric = (8 * (shifted[0] - shifted[1]) - (shifted[2] - shifted[3])) / (12 * step)
        assert_close((g.numpy() * direction).sum(), numeric, rtol=1e-6, atol=1e-7, msg=name)


def inside_parameter_space(direction, case, name):
    """The part of a change that keeps a matrix symmetric, or triangular, as the parameter is."""
    constraint = case.cls._fields[name].constraint
    if constraint is constraints.positive_definite:
        return direction + np.swapaxes(direction, -1, -2)
    return np.tril(direction) if constraint is constraints.lower_cholesky else direction


def case_values(leaves):
    return {k: v.detach() for k, v in leaves.items()}


# ------------------------------------------------------------------------------ outside the support


def outside(case, d):
    """Values outside the support of every batch element, as arrays of one draw each."""
    support, event = d.support, tuple(d.event_shape)
    if isinstance(support, constraints.Real) or support is constraints.real_vector:
        return []
    if case.event_dim:
        wrong = np.full((BATCH, *event), 0.37)
        return [wrong, -np.ones((BATCH, *event))]
    values = []
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    bound = lambda b: b.detach().numpy() if isinstance(b, Tensor) else np.full(BATCH, float(b))
    if low is not None:
        values += [bound(low) - 1.0, bound(low) - 1e-3, np.full(BATCH, -1e30)]
    if high is not None:
        values += [bound(high) + 1.0, np.full(BATCH, 1e30)]
    if isinstance(support, constraints.Boolean):
        values += [np.full(BATCH, 2.0), np.full(BATCH, -1.0)]
    if case.is_discrete:
        values.append(np.full(BATCH, 0.5))
    return values


@EACH
def test_outside_the_support_the_density_is_zero_with_gradient_zero(case):
    values = case.arguments()
    leaves = {k: getattr(values, k).detach().requires_grad_() for k in case.params}
    d = case.cls(**leaves, **case.fixed, validate_args=False)
    for bad in outside(case, d):
        x = tensor(bad, requires_grad=True)
        lp = d.log_prob(x)
        assert (lp.numpy(force=True) == -math.inf).all(), bad
        if lp.requires_grad:
            gradients = grad(lp.sum(), [x, *leaves.values()], allow_unused=True)
            assert all((g.numpy() == 0.0).all() for g in gradients if g is not None)


@EACH
def test_outside_the_support_validation_raises_with_the_value(case):
    d, _ = case.make()
    for bad in outside(case, d):
        with pytest.raises(DomainError, match="outside the support") as caught:
            d.log_prob(tensor(bad))
        assert caught.value.subject.startswith(case.cls.__name__)
        assert repr(d.support) in caught.value.expected
        assert caught.value.got and caught.value.fix


@SCALAR
def test_a_parameter_outside_its_constraint_is_named(case):
    values = vars(case.arguments())
    for name in case.params:
        if case.cls._fields[name].constraint in (constraints.real, constraints.real_vector):
            bad = values[name] * math.nan
        else:
            bad = values[name] * 0.0 - 1.0 if name != "high" else values[name] * 0.0 - 50.0
        with pytest.raises(DomainError, match=f"{case.cls.__name__}: parameter {name}") as caught:
            case.cls(**{**values, name: bad})
        assert "bad among" in caught.value.got and caught.value.fix


# ------------------------------------------------------------------------------ shapes


@EACH
def test_expand_repeats_the_distribution(case):
    d, _ = case.make()
    wide = d.expand((2, BATCH))
    x = draws(d, 2)
    assert wide.batch_shape == (2, BATCH) and wide.event_shape == d.event_shape
    assert wide.sample((4,)).shape == (4, 2, BATCH) + d.event_shape
    assert_close(wide.log_prob(x), d.log_prob(x))
    assert_close(wide.log_prob(x[0]), d.log_prob(x[0]).expand((2, BATCH)))
    assert d.expand_by((5,)).batch_shape == (5, BATCH)


@EACH
def test_to_event_sums_and_mask_removes_terms(case):
    d, _ = case.make()
    x = draws(d, 4)
    joint = d.to_event(1)
    assert joint.batch_shape == () and joint.event_shape == (BATCH, *d.event_shape)
    assert_close(joint.log_prob(x), d.log_prob(x).sum(-1))
    assert joint.sample((2,)).shape == (2, BATCH) + d.event_shape
    keep = tensor([True, False, True])
    masked = d.mask(keep)
    assert_close(masked.log_prob(x), np.where(keep.numpy(), d.log_prob(x).numpy(), 0.0))
    if not d.is_discrete:
        x[:, 1] = math.nan
        hurt = tensor(x.numpy(), requires_grad=True)
        lp = masked.log_prob(hurt)
        assert_close(lp, np.where(keep.numpy(), lp.numpy(force=True), 0.0))
        (g,) = grad(lp.sum(), [hurt], allow_unused=True) if lp.requires_grad else (hurt * 0.0,)
        assert g is None or (g.numpy(force=True)[:, 1] == 0.0).all() or not lp.requires_grad


@EACH
def test_broadcasting_equals_a_loop(case):
    d, _ = case.make()
    x = draws(d, 4)
    values = case.arguments()
    for i in range(BATCH):
        one = {
            k: v[i] if isinstance(v, Tensor) and k in case.params else v
            for k, v in vars(values).items()
        }
        assert_close(case.cls(**one).log_prob(x[:, i]), d.log_prob(x)[:, i])


# ------------------------------------------------------------------------------ moments and
# functions


# The mean of a category number, and the linear mean of an angle, are not what the property means.
@each_of([c for c in CASES if c.event_dim == 0 and c.cls not in (dist.Categorical, dist.VonMises)])
def test_moments_equal_the_reference(case):
    d, reference = case.make(seed=6)
    if not hasattr(d, "_mean") and not has_facts(d):
        with pytest.raises(NotImplementedError, match="closed-form mean"):
            _ = d.mean
        return
    for ours, theirs in ((d.mean, reference.mean()), (d.variance, reference.var())):
        finite = np.isfinite(theirs)
        # By quadrature two digits less are asked.
        rtol = 1e-9 if hasattr(d, "_variance") else 1e-7
        assert_close(ours.numpy()[finite], theirs[finite], rtol=rtol, atol=1e-12)
        assert not np.isfinite(ours.numpy()[~finite]).any()
    assert_close(d.stddev, np.sqrt(d.variance.numpy()))


@each_of([c for c in CASES if (c.event_dim or c.is_discrete) and c.cls is not dist.Categorical])
def test_moments_of_vectors_and_counts_are_those_of_many_draws(case):
    # About 100 elements at z < 5.5: a false alarm in 4e-6 of all seeds.
    n = 20_000
    d, _ = case.make(seed=6)
    x = draws(d, n, 6).numpy()
    if not hasattr(d, "_mean") and not has_facts(d):
        with pytest.raises(NotImplementedError, match="closed-form mean"):
            _ = d.mean
        return
    spread = x.std(0)
    assert (np.abs(x.mean(0) - d.mean.numpy()) < 5.5 * spread / math.sqrt(n) + 1e-12).all()
    squares = (x - d.mean.numpy()) ** 2
    wide = 5.5 * squares.std(0) / math.sqrt(n) + 1e-12
    assert (np.abs(squares.mean(0) - d.variance.numpy()) < wide).all()


@SCALAR
def test_skewness_and_kurtosis_equal_the_reference(case):
    d, reference = case.make(seed=6)
    for name, letter in (("skewness", "s"), ("kurtosis", "k")):
        if not hasattr(d, f"_{name}") and not has_facts(d):
            with pytest.raises(NotImplementedError, match=f"closed-form {name}"):
                getattr(d, name)
            continue
        if not hasattr(reference, "stats"):
            continue
        theirs = np.broadcast_to(reference.stats(letter), (BATCH,))
        ours = getattr(d, name).numpy()
        # The integral of a reference ends somewhere, where that of a heavy tail has no end.
        finite = np.isfinite(theirs) & ~(np.isinf(ours) & (np.abs(theirs) > 1e6))
        near = 1e-8 if hasattr(d, f"_{name}") else 1e-6
        assert_close(ours[finite], theirs[finite], rtol=near, atol=near, msg=name)
        assert not np.isfinite(ours[~finite]).any()


@EACH
def test_entropy_equals_the_reference(case):
    d, reference = case.make(seed=7)
    if not hasattr(d, "_entropy") and not d.has_enumerate_support and not has_facts(d):
        with pytest.raises(NotImplementedError, match="closed-form entropy"):
            d.entropy()
        return
    entropy = d.entropy()
    assert entropy.shape == (BATCH,)
    # By quadrature, and smooth to some order only, as for sums of uniform numbers.
    rtol = 1e-9 if hasattr(d, "_entropy") or d.has_enumerate_support else 1e-6
    assert_close(entropy, reference.entropy(), rtol=rtol, atol=1e-12)


@EACH
def test_the_mode_is_a_point_of_highest_density(case):
    d, _ = case.make(seed=8)
    if not hasattr(d, "_mode") and not has_facts(d):
        with pytest.raises(NotImplementedError, match="closed-form mode"):
            _ = d.mode
        return
    mode = d.mode
    assert mode.shape == d.batch_shape + d.event_shape
    there = ~np.isnan(mode.numpy()).reshape(BATCH, -1).any(-1)
    safe = np.where(there.reshape(BATCH, *(1,) * d.event_dim), mode.numpy(), draws(d, 1)[0].numpy())
    top = np.where(there, d.log_prob(tensor(safe)).numpy(), math.inf)
    assert (d.log_prob(draws(d, 200)).numpy() <= top + 1e-9).all()


@SCALAR
def test_the_cdf_equals_the_reference_and_icdf_inverts_it(case):
    d, reference = case.make(seed=9)
    x = draws(d, 20, 9)
    if not hasattr(d, "_cdf"):
        with pytest.raises(NotImplementedError, match=f"{case.cls.__name__} has no cdf"):
            d.cdf(x)
        return
    p = d.cdf(x)
    assert_close(p, reference.cdf(x.numpy()), rtol=1e-9, atol=1e-13)
    for far, limit in ((-math.inf, 0.0), (math.inf, 1.0)):
        assert_close(d.cdf(tensor(np.full(BATCH, far))), np.full(BATCH, limit))
    assert_close(d.icdf(p), x, rtol=1e-8, atol=1e-10)
    assert_close(d.log_cdf(x), np.log(p.numpy()), rtol=1e-9, atol=1e-13)
    above = reference.sf(x.numpy()) if hasattr(reference, "sf") else 1.0 - reference.cdf(x.numpy())
    assert_close(d.survival(x), above, rtol=1e-9, atol=1e-13)
    with np.errstate(divide="ignore"):
        # Where nothing is above a count, 1 - cdf is a rounding.
        some = above > 1e-12
        assert_close(d.log_survival(x).numpy()[some], np.log(above[some]), rtol=1e-8, atol=1e-12)


# ------------------------------------------------------------------------------ as data


@EACH
def test_a_density_is_recorded_without_guards(case):
    values = case.arguments()
    d, _ = case.make()
    x = draws(d, 2)
    leaves = [getattr(values, name) for name in case.params]
    rec, result = record(
        lambda *ps: case.cls(**dict(zip(case.params, ps)), **case.fixed).log_prob(x), leaves
    )
    matrices = [constraints.positive_definite]
    assert rec.graph.guards == []
    if not any(case.cls._fields[n].constraint in matrices for n in case.params):
        assert rec.unsupported == []
    assert_close(result, d.log_prob(x))


@COSTLY
def test_a_compiled_density_equals_the_eager_one(case):
    """Parameters and, where continuous, the value itself are inputs of the program."""
    whole = case.cls(**vars(case.arguments(seed=1, batch=())))
    data = whole.sample((4,), rng())

    def density(q):
        given, at = SimpleNamespace(**case.fixed), 0

        def unconstrained(constraint, event):
            nonlocal at
            transform = biject_to(constraint)
            shape = transform.inverse_shape(event)
            size = math.prod(shape)
            at += size
            return transform.call_and_ladj(q[at - size : at].reshape(shape))

        for name in case.params:
            constraint = case.cls._fields[name].constraint
            if constraints.is_dependent(constraint):
                constraint = constraint.resolve(given)
            drawn = unconstrained(constraint, case.sizes.get(name, ()))[0]
            setattr(given, name, drawn + case.least.get(name, 0.0))
        d = case.cls(**vars(given))
        out = d.log_prob(data).sum() if not case.bounds else q.sum() * 0.0
        if not case.is_discrete:
            x, ladj = unconstrained(d.support, tuple(d.event_shape))
            out = out + d.log_prob(x) + ladj.sum()
        return out

    native = NativeDensity(density, 20)
    rough = np.random.default_rng(0)
    for _ in range(3):
        q = 0.5 * rough.standard_normal(20)
        value, gradient = native.value_and_grad(q)
        expected, slope = native.eager(q)
        assert native.reason is None and len(native.paths) == 1
        assert_close(value, expected, rtol=1e-12)
        assert_close(np.array(gradient), slope, rtol=1e-10, atol=1e-12)


@EACH
def test_distributions_are_trees_and_pickle(case):
    d, _ = case.make()
    x = draws(d, 2)
    wide = d.expand((2, BATCH))
    for copy in (unflatten(flatten(wide)[1], flatten(wide)[0]), pickle.loads(pickle.dumps(wide))):
        assert type(copy) is case.cls and copy.batch_shape == (2, BATCH)
        assert_close(copy.log_prob(x), wide.log_prob(x))
    for used in (d, wide):  # what it keeps for itself is not taken for what a user set
        assert names_of(used) == tuple(used.__tree_fields__)


@EACH
def test_the_signature_and_repr_state_the_fields(case):
    names = list(inspect.signature(case.cls).parameters)
    assert names == [*case.cls._fields, "validate_args"]
    d, _ = case.make()
    assert repr(d).startswith(f"{case.cls.__name__}(")
    tensors = {n for n, field in case.cls._fields.items() if field.constraint is not None}
    assert set(d.arg_constraints) == tensors & set(vars(d))


@EACH
def test_results_are_no_wider_than_the_parameters(case):
    """One parameter is in single precision, the others are numbers: all results are in single."""
    given = vars(case.arguments(batch=()))
    given |= {n: x.to(float32) for n, x in given.items() if is_floating(x)}
    tensors = [n for n in case.params if is_floating(given[n])]
    for name in tensors[:1] + tensors[-1:]:
        numbers = {n: given[n].item() for n in tensors if n != name and given[n].ndim == 0}
        d = case.cls(**given | numbers)
        x = d.sample((2,), rng())
        results = {"draws": lambda d, x=x: x, "density": lambda d, x=x: d.log_prob(x)}
        results |= {"mean": lambda d: d.mean, "entropy": lambda d: d.entropy()}
        if case.event_dim == 0:
            at = x.reshape(-1)[0].item()
            results["density of a number"] = lambda d, at=at: d.log_prob(at)
            results |= {"cdf": lambda d, x=x: d.cdf(x), "variance": lambda d: d.variance}
        for what, result in results.items():
            with contextlib.suppress(NotImplementedError):
                y = result(d)
                assert y.dtype == float32 or not is_floating(y), (name, what)


def is_floating(x):
    return isinstance(x, Tensor) and x.is_floating_point()
