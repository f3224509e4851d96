"""Laws for distributions that are made of others, or of what no constraint draws.

Those whose parameters are drawn have more laws, in test_every_distribution.py. These here have an
instance each, that of their pages (docs/distribution_examples.py).
"""

import importlib.util
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import compile
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.testing import assert_close
from tests.distributions.cases import STRUCTURAL

_path = Path(__file__).parents[2] / "docs" / "distribution_pages.py"
_spec = importlib.util.spec_from_file_location("distribution_pages", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

# Bases of other classes, which have no instances.
BASES = {"ExponentialFamily", "HiddenMarkovModel"}
# Densities without draws.
WITHOUT_DRAWS = {"CAR", "ICAR", "ImproperUniform"}
NAMES = sorted(STRUCTURAL - BASES)
EACH = pytest.mark.parametrize("name", NAMES)
DRAWN = pytest.mark.parametrize("name", [n for n in NAMES if n not in WITHOUT_DRAWS])
_made = {}


def made(name):
    if name not in _made:
        _made[name] = pages.examples(getattr(dist, name))[0]
    return _made[name]


def value_of(name, n=4):
    d = made(name)
    if name in WITHOUT_DRAWS:
        size = (n, *d.batch_shape, *d.event_shape)
        return np.abs(np.random.default_rng(0).standard_normal(size))
    # Of draws that are rounded only the very tensor has a density: here what they are rounded from.
    if name.startswith("Relaxed"):
        d = getattr(dist, name.removesuffix("StraightThrough"))(d.temperature, probs=d.probs)
    return d.sample((n,), Generator(0)).numpy()


def test_every_class_has_an_instance():
    without = {c.__name__ for c in pages.distributions() if not pages.examples(c)}
    assert without == BASES
    assert BASES < STRUCTURAL and set(pages.MADE) <= {c.__name__ for c in pages.distributions()}


@DRAWN
def test_draws_have_the_shape_lie_in_the_support_and_come_again(name):
    d = made(name)
    for shape in [(), (4,), (2, 0), (2, 3)]:
        x = d.sample(shape, Generator(1))
        assert x.shape == shape + d.batch_shape + d.event_shape == d.shape(shape)
        assert not x.requires_grad and d.support.check(x).numpy().all()
    again = [d.sample((6,), Generator(seed)).numpy() for seed in (1, 1, 2)]
    assert np.array_equal(again[0], again[1])
    # One point, and vectors of no numbers.
    assert name in {"Delta", "Unit"} or not np.array_equal(again[0], again[2])


@EACH
def test_a_draw_has_a_density(name):
    d, x = made(name), value_of(name, 50)
    lp = d.log_prob(x)
    assert lp.shape == (50, *d.batch_shape)
    # Draws of the interval are both the exact value, between which there is nothing.
    finite = np.isfinite(lp.numpy(force=True))
    assert finite.all() or name == "IntervalCensoredDistribution"
    assert lp.dtype.kind == "f"


@EACH
def test_expanded_masked_and_joined_it_is_what_it_was(name):
    d, x = made(name), value_of(name)
    lp = d.log_prob(x).numpy(force=True)
    wide = d.expand((2, *d.batch_shape))
    assert wide.batch_shape == (2, *d.batch_shape) and wide.event_shape == d.event_shape
    assert_close(wide.log_prob(x[0]), np.broadcast_to(lp[0], wide.batch_shape))
    if name not in WITHOUT_DRAWS:
        assert wide.sample((3,), Generator(0)).shape == (3, *wide.batch_shape, *d.event_shape)
    both = wide.to_event(1 + len(d.batch_shape))
    assert_close(both.log_prob(np.stack([x[0], x[1]])), lp[:2].sum())
    assert_close(d.mask(False).log_prob(x), np.zeros(lp.shape))
    leaves, structure = flatten(wide)
    twin = unflatten(structure, leaves)
    assert type(twin) is type(wide) and twin.batch_shape == wide.batch_shape
    assert_close(twin.log_prob(x[0]), wide.log_prob(x[0]).detach())


# Functions that these are made of here cannot be pickled.
OF_FUNCTIONS = {"EulerMaruyama", "MarkovChain", "Rejector"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OF_FUNCTIONS])
def test_pickled_it_is_what_it_was(name):
    d, x = made(name), value_of(name)
    twin = pickle.loads(pickle.dumps(d))
    assert repr(twin) == repr(d) and repr(d).startswith(f"{name}(")
    assert_close(twin.log_prob(x), d.log_prob(x).detach())


ALTERNATIVES = [(name, other) for name in NAMES for other in getattr(dist, name)._alternatives]


@pytest.mark.parametrize("name, other", ALTERNATIVES, ids="-".join)
def test_each_alternative_is_the_same_distribution(name, other):
    d, cls = made(name), getattr(dist, name)
    rest = {n: v for n, v in vars(d).items() if n in cls._fields and n not in cls._alternatives}
    twin = cls(**rest, **{other: getattr(d, other)})
    x = value_of(name)
    assert_close(twin.log_prob(x), d.log_prob(x), rtol=1e-5, atol=1e-6)
    assert twin._given(other)


EYE = np.array([[1.0, 0.6], [0.6, 1.0]])
NORMAL = dist.Normal(np.array(0.3), np.array(1.2))
PAIR = dist.Gamma(np.array([2.0, 3.5]), np.array(1.5))
COUNT = dist.Poisson(np.array(3.0))
# Of constructors that are written by hand: the same distribution by each of its ways.
WAYS = {
    "AR": [
        lambda: dist.AR([0.6, 0.2], sigma=0.5, steps=4, init_dist=NORMAL),
        lambda: dist.AR([0.6, 0.2], tau=4.0, steps=4, init_dist=NORMAL),
    ],
    "GaussianCopula": [
        lambda: dist.GaussianCopula(PAIR, EYE),
        lambda: dist.GaussianCopula(PAIR, correlation_cholesky=np.linalg.cholesky(EYE)),
    ],
    "GaussianStateSpace": [
        lambda: dist.GaussianStateSpace(3, 0.5 * EYE, EYE),
        lambda: dist.GaussianStateSpace(3, 0.5 * EYE, precision_matrix=np.linalg.inv(EYE)),
        lambda: dist.GaussianStateSpace(3, 0.5 * EYE, scale_tril=np.linalg.cholesky(EYE)),
    ],
    "HurdleDistribution": [
        lambda: dist.HurdleDistribution(COUNT, gate=0.25),
        lambda: dist.HurdleDistribution(COUNT, gate_logits=-np.log(3.0)),
    ],
    "ZeroInflatedDistribution": [
        lambda: dist.ZeroInflatedDistribution(COUNT, gate=0.25),
        lambda: dist.ZeroInflatedDistribution(COUNT, gate_logits=-np.log(3.0)),
    ],
}


@pytest.mark.parametrize("name", WAYS)
def test_each_way_to_give_parameters_is_the_same_distribution(name):
    first, *others = (make() for make in WAYS[name])
    x = first.sample((5,), Generator(0))
    for other in others:
        assert_close(other.log_prob(x), first.log_prob(x), rtol=1e-6, atol=1e-7)
        assert_close(other.sample((5,), Generator(0)), x, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@EACH
def test_compiled_it_has_the_same_density(name):
    d, x = made(name), value_of(name)
    leaves, structure = flatten(d)
    native = compile(lambda leaves, x: unflatten(structure, leaves).log_prob(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = native(list(leaves), pages.tensor(x))
    assert native.reason is None
    expected = d.log_prob(x).detach()
    # Parameters of some are single precision numbers.
    near = 1e-9 if d._dtype == np.float64 and name != "ZeroOneInflatedBeta" else 3e-6
    assert_close(got, expected, rtol=near, atol=0.01 * near)
