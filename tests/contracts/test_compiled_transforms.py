"""Native code of every transform and of every divergence gives what the eager functions give.

Compiling is what costs, so several are compiled as one function: values, log-determinants, inverses
and slopes of a group of transforms; all rules of one left operand, with the parameters of both
operands as inputs, and in the default run one rule of each. The lists come from the registries, so
that none is left out.
"""

import warnings

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.rng import manual_seed
from probtorch.core.tree import flatten, unflatten
from probtorch.distributions import kl_divergence, kl_rules
from probtorch.distributions.transforms import ExpTransform
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.contracts.test_every_transform import CASES, arguments
from tests.distributions.test_flows import CONDITIONAL, stirred
from tests.distributions.test_kl import PAIRS, entry_of

# Their inverses are searches, or their values integrals of differential equations.
COSTLY = {"BlockAutoregressive", "ContinuousFlow", "NeuralAutoregressive", "Polynomial"}
# Complex numbers are computed eagerly; a compiled function says so.
COMPLEX = ("ComplexTransform", "FourierCoefficients")
# Of flows with a context.
SEARCHED = ("maf", "spline autoregressive", "neural", "polynomial", "block", "sylvester")
SIZE = 12


def costly(case):
    return type(case.transform).__name__ in COSTLY


def through_complex(case):
    return any(name in repr(case.transform) for name in COMPLEX)


def groups(items, size=SIZE):
    return [items[i : i + size] for i in range(0, len(items), size)]


CHEAP = groups([c for c in CASES if not costly(c) and not through_complex(c)])


def natively(fn, args):
    """Return what the compiled function gives in its second call, which is a replay."""
    native = compile(fn)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", CompileWarning)
        native(*args)
        moved = native(*args)
    assert native.reason is None
    return moved


def of_transform(case, x, whole=True):
    """Value, log-determinant and the slope of both, and back again."""
    x = x.detach().requires_grad_()
    y, ladj = case.transform.call_and_ladj(x)
    (slope,) = grad(y.sin().sum() + ladj.sum(), [x])
    out = [y.detach(), ladj.detach(), slope]
    if whole:
        again, minus = case.transform.inv.call_and_ladj(y.detach())
        out += [again, minus]
    return out


@pytest.mark.parametrize("group", CHEAP, ids=lambda g: f"{g[0].id} and {len(g) - 1} more")
def test_native_transforms_are_the_eager_ones(group):
    assert_native(group)


def test_what_goes_through_complex_numbers_says_that_it_runs_eagerly():
    found = [c for c in CASES if through_complex(c)]
    assert len(found) == 3
    for case in found:
        native = compile(lambda x, case=case: of_transform(case, x))
        with pytest.warns(CompileWarning, match="complex numbers, which are computed eagerly"):
            native(arguments(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if costly(c)], ids=lambda c: c.id)
def test_native_flows_that_search_are_the_eager_ones(case):
    assert_native([case])


@pytest.mark.parametrize(
    "names",
    [
        [n for n in CONDITIONAL if n not in SEARCHED],
        *(pytest.param([n], marks=pytest.mark.slow, id=n) for n in SEARCHED),
    ],
    ids=lambda g: f"{g[0]} and {len(g) - 1} more",
)
def test_native_flows_with_a_context_are_the_eager_ones(names):
    manual_seed(2)
    flows = [stirred(CONDITIONAL[n](3, 2)) for n in names]
    rng = np.random.default_rng(0)
    context, x = tensor(rng.standard_normal((4, 2))), tensor(rng.standard_normal((4, 3)))

    def fn(context, x):
        found = []
        for flow in flows:
            c = context.detach().requires_grad_()
            transform = flow.condition(c)
            y, ladj = transform.call_and_ladj(x)
            back = transform.inv(y.detach())
            (slope,) = grad(y.sin().sum() + ladj.sum() + back.cos().sum(), [c])
            found.append([y.detach(), ladj.detach(), back.detach(), slope])
        return found

    got, expected = natively(fn, (context, x)), fn(context, x)
    for name, one, other in zip(names, got, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert_close(a, b, rtol=1e-9, atol=1e-10, msg=name)


def assert_native(group):
    def fn(*xs):
        return [of_transform(case, x) for case, x in zip(group, xs, strict=True)]

    xs = [arguments(case, (3,)) for case in group]
    got, expected = natively(fn, xs), fn(*xs)
    for case, one, other in zip(group, got, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-10, msg=case.id)


# ------------------------------------------------------------------------------ divergences


def made_of(cls, seed):
    return entry_of(cls).make(seed=seed, validate_args=False)[0]


def t(*values):
    return tensor(np.array(values, dtype=float))


EYE, EYE3, TRIL = tensor(np.eye(2)), np.eye(3), tensor(np.array([[1.0, 0.0], [0.3, 0.5]]))
ONE = tensor(np.ones((1, 1)))
RING = tensor(np.array([[0.0, 1, 1], [1, 0, 1], [1, 1, 0]]))
COUNTS = dist.Poisson(t(2.0)), dist.Poisson(t(1.5))
# Pairs for which drawn parameters make no two operands: they share some, or are made of others.
BY_HAND = {
    "SphericalUniform": lambda s: dist.SphericalUniform(3),
    "PowerSpherical": lambda s: dist.PowerSpherical(t(0.6, 0.0, 0.8), t(1.0 + s)[0]),
    "VonMisesFisher": lambda s: dist.VonMisesFisher(t(0.6, 0.0, 0.8), t(1.0 + s)[0]),
    "VonMises3D": lambda s: dist.VonMises3D(t(0.6, 0.1 * s, 0.8)),
    "NegativeBinomial": lambda s: dist.NegativeBinomial(t(2.5), t(0.2 + 0.1 * s)),
    "HurdleDistribution": lambda s: dist.HurdleDistribution(COUNTS[s - 1], gate=t(0.2 * s)),
    "ZeroInflatedDistribution": lambda s: dist.ZeroInflatedDistribution(
        COUNTS[s - 1], gate=t(0.2 * s)
    ),
    "MatrixNormal": lambda s: dist.MatrixNormal(s * EYE, TRIL, TRIL * s),
    "CAR": lambda s: dist.CAR(t(0.0, 1.0, s), t(0.2 * s)[0], t(1.0)[0], RING),
    "MultivariateNormal": lambda s: dist.MultivariateNormal(
        t(0.0, 1.0, s), scale_tril=tensor(np.eye(3) * s)
    ),
    "Independent": lambda s: dist.Normal(t(0.0, 1.0, s), t(s)).to_event(1),
    "CirculantNormal": lambda s: dist.CirculantNormal(t(0, 1, s), covariance_rfft=t(1.0 * s, 0.5)),
    "KroneckerNormal": lambda s: dist.KroneckerNormal(t(0.0, 1.0, s), [ONE, tensor(EYE3 * s)]),
    "SkewLogistic": lambda s: dist.SkewLogistic(t(0.3), t(2.0), t(0.5 * s)),
    "ExtendedGeneralizedPareto": lambda s: dist.ExtendedGeneralizedPareto(
        t(0.3), t(2.0), t(-0.2), t(0.8 * s)
    ),
    "JohnsonSU": lambda s: dist.JohnsonSU(t(0.4 * s), t(1.5 + 0.2 * s), t(0.3), t(2.0)),
    "GammaGamma": lambda s: dist.GammaGamma(t(1.4 * s), t(3.0 + s), t(2.0)),
    "Levy": lambda s: dist.Levy(t(0.3), t(1.4 * s)),
    "DiscreteUniform": lambda s: dist.DiscreteUniform(t(0.0), t(2.0 * s)),
    "DiscreteMarkovChain": lambda s: dist.DiscreteMarkovChain(
        tensor(np.array([[0.2, 0.8], [0.3 * s, 1 - 0.3 * s]])), t(0.4, 0.6), 3
    ),
    "ZeroOneInflatedBeta": lambda s: dist.ZeroOneInflatedBeta(t(2.0), t(3.0), t(0.2 * s), t(0.3)),
    "PolyaGamma": lambda s: dist.PolyaGamma(t(2.0), t(0.5 * s)),
    "GeneralizedNormal": lambda s: dist.GeneralizedNormal(t(0.3), t(1.0 * s), t(1.5)),
    "Delta": lambda s: dist.Delta(t(1.0)),
    "TransformedDistribution": lambda s: dist.TransformedDistribution(
        dist.Normal(t(0.0), t(1.0 * s)), ExpTransform()
    ),
    "MaskedDistribution": lambda s: dist.Normal(t(0.0, 1.0), t(s)).mask(
        tensor(np.array([True, False]))
    ),
}


# A base without instances, whose rule test_written.py has.
BASES = {dist.ExponentialFamily}
# Both operands drawn, those of one left class together; of each some in the default run.
DRAWN = {}
for _first, _second in PAIRS:
    if _first.__name__ not in BY_HAND or _first is not _second:
        DRAWN.setdefault(_first, []).append(_second)
STATED = [
    (p, q)
    for p, q in kl_rules._RULES
    if q not in DRAWN.get(p, ()) and not (p in BASES or q in BASES)
]


def assert_native_divergences(pairs):
    """The leaves of all operands are the inputs of one function; values and slopes are results."""
    trees = [flatten(d) for pair in pairs for d in pair]
    leaves = [[v.detach() for v in found] for found, _ in trees]
    inputs = [[k for k, v in enumerate(found) if v.dtype.kind == "f"] for found in leaves]

    def fn(given):
        out, ends = [], []
        for (_, structure), found, kept in zip(trees, given, inputs, strict=True):
            found = [v.detach().requires_grad_() if k in kept else v for k, v in enumerate(found)]
            ends.append((unflatten(structure, found), [found[k] for k in kept]))
        for (p, a), (q, b) in zip(ends[::2], ends[1::2], strict=True):
            value = kl_divergence(p, q)
            out.append(value.detach())
            if value.requires_grad:
                out += grad(value.sum(), [*a, *b], materialize_grads=True)
        return out

    copies = lambda: [[v.detach() for v in found] for found in leaves]
    with np.errstate(all="ignore"):
        got, expected = natively(fn, [copies()]), fn(copies())
    assert len(got) >= len(pairs)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-11)


def of_one(first, seconds):
    p, others = made_of(first, 1), [made_of(q, 2) for q in seconds]
    return [(p, q) for q in others if q.event_shape == p.event_shape]


@pytest.mark.parametrize("group", groups(list(DRAWN)), ids=lambda g: f"{g[0].__name__} and more")
def test_native_divergences_are_the_eager_ones(group):
    assert_native_divergences([pair for first in group for pair in of_one(first, DRAWN[first][:1])])


@pytest.mark.slow
@pytest.mark.parametrize("first", list(DRAWN), ids=lambda c: c.__name__)
def test_all_native_divergences_are_the_eager_ones(first):
    assert_native_divergences(of_one(first, DRAWN[first]))


@pytest.mark.slow
@pytest.mark.parametrize("group", groups(STATED), ids=lambda g: f"{g[0][0].__name__} and more")
def test_native_divergences_of_what_is_made_of_others_are_the_eager_ones(group):
    name = lambda cls: "Delta" if cls is dist.Distribution else cls.__name__
    assert_native_divergences([(BY_HAND[name(p)](1), BY_HAND[name(q)](2)) for p, q in group])
