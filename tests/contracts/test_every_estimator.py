"""Laws that hold for every gradient estimator of the registry.

That the unbiased ones are unbiased is proved by enumeration in tests/estimators; here it is checked
that none is left out there, and that the others say so and are indeed biased.
"""

import dataclasses
import math
import pickle

import numpy as np
import pytest

from probtorch import func
from probtorch.autograd import grad, no_grad
from probtorch.core.rng import Generator
from probtorch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Exponential,
    Gamma,
    Normal,
    OneHotCategorical,
    Poisson,
    StudentT,
    VonMises,
)
from probtorch.errors import ArgumentError
from probtorch.estimators import ESTIMATORS, RELAX, Pathwise, applicable, expectation
from probtorch.ops.pieces import stack
from probtorch.tensor import tensor
from tests.estimators import test_exact

DOUBLE = np.dtype("f8")


def control(z):
    return (0.4 * z).tanh()


def make(name):
    """The estimator with its default options, and a control variate where it wants one."""
    return RELAX(control) if name == "relax" else ESTIMATORS[name]()


# Those of one expectation; the bound of VIMCO has a function of its own.
NAMES = [name for name in ESTIMATORS if name != "vimco"]
EACH = pytest.mark.parametrize("name", NAMES)


def leaf(values=0.3, dtype=DOUBLE):
    return tensor(np.asarray(values, dtype), requires_grad=True)


def family(name):
    """A distribution that the estimator applies to, as a function of one parameter."""
    if name == "pathwise":
        return lambda t: Normal(t, 1.0)
    return lambda t: Bernoulli(logits=t)


def cost(z):
    return (z - 0.45) ** 2 * 2.0 + (z * 0.7).sin()


# ------------------------------------------------------------------------------------ bias


def test_every_unbiased_estimator_is_among_the_proofs():
    proved = {type(estimator).name for estimator, _ in test_exact.DISCRETE.values()}
    proved |= {"rebar", "relax"}  # by quadrature, in the same file
    proved |= {"pathwise"}  # below
    unbiased = {n for n in NAMES if ESTIMATORS[n].unbiased}
    assert unbiased - proved == set()


def test_the_biased_ones_are_those_known_to_be():
    assert {n for n in ESTIMATORS if not ESTIMATORS[n].unbiased} == {
        "gumbel_softmax",
        "straight_through",
    }


@pytest.mark.parametrize("name", [n for n in NAMES if not ESTIMATORS[n].unbiased])
def test_what_is_declared_biased_is(name):
    theta = leaf(np.full(20_000, 1.2))
    value = expectation(
        Bernoulli(logits=theta), lambda z: z * z * z, estimator=make(name), rng=Generator(1)
    )
    slopes = grad(value.sum(), [theta])[0].numpy()
    p = 1.0 / (1.0 + math.exp(-1.2))
    z = abs(slopes.mean() - p * (1.0 - p)) / (slopes.std() / math.sqrt(20_000) + 1e-300)
    assert z > 20.0


PATHS = {
    "Normal": (lambda a, b: Normal(a, b), (0.3, 0.8)),
    "Gamma": (lambda a, b: Gamma(a, b), (1.7, 1.3)),
    "Beta": (lambda a, b: Beta(a, b), (1.7, 2.3)),
    "StudentT": (lambda a, b: StudentT(a, b, 0.9), (4.5, 0.2)),
    "VonMises": (lambda a, b: VonMises(a, b), (0.4, 1.8)),
    "Exponential": (lambda a, b: Exponential(a * b), (1.3, 0.9)),
    "Dirichlet": (lambda a, b: Dirichlet(stacked(a, b)), (1.3, 2.1)),
}


def stacked(a, b):
    return stack([a, b, a + b], -1)


@pytest.mark.parametrize("name", PATHS)
def test_pathwise_gradients_have_the_mean_of_score_function_ones(name):
    # Implicit ones among them. A z above 5.2 comes by chance in 2e-7 of all runs.
    build, at = PATHS[name]
    n = 40_000
    f = lambda z: (z[..., 0] * 3.0).sin() if name == "Dirichlet" else (z + 0.3).sin()
    found = {}
    for estimator in ("pathwise", "score_function"):
        leaves = [leaf(np.full(n, x)) for x in at]
        value = expectation(build(*leaves), f, estimator=estimator, rng=Generator(5))
        found[estimator] = [g.numpy() for g in grad(value.sum(), leaves)]
    for path, score in zip(found["pathwise"], found["score_function"], strict=True):
        gap = path - score
        assert abs(gap.mean()) / (gap.std() / math.sqrt(n)) < 5.2


# ---------------------------------------------------------------------------------- refusals

# Distributions that an estimator does not apply to, and why.
REFUSED = {
    "pathwise": (Bernoulli(0.3), "discrete"),
    "score_function": None,
    "dice": None,
    "enumerate": (Normal(0.0, 1.0), "not finite"),
    "sum_and_sample": (Poisson(2.0), "not finite"),
    "unordered_set": (Gamma(2.0, 1.0), "not finite"),
    "arm": (Categorical(tensor([0.2, 0.3, 0.5])), "a Categorical with 3"),
    "disarm": (Poisson(2.0), "a Poisson"),
    "rebar": (Poisson(2.0), "can be relaxed"),
    "relax": (Normal(0.0, 1.0), "a Normal"),
    "measure_valued": (Beta(1.0, 2.0), "weak derivative is known"),
    "gumbel_softmax": (Categorical(tensor([0.5, 0.5])), "nothing between them"),
    "straight_through": (Categorical(tensor([0.5, 0.5])), "nothing between them"),
}


@EACH
def test_what_does_not_apply_is_refused_with_the_reason_and_what_would(name):
    entry = REFUSED[name]
    if entry is None:
        # Needs a density alone, which every distribution has.
        assert all(name in applicable(entry[0]) for entry in REFUSED.values() if entry)
        return
    q, reason = entry
    with pytest.raises(ArgumentError, match=f"does not apply to {type(q).__name__}") as caught:
        expectation(q, cost, estimator=make(name))
    message = str(caught.value)
    assert reason in message
    assert "expected:" in message and "got:" in message and "what applies: " in message
    assert name not in applicable(q)


def test_a_mask_is_refused_where_it_is_not_borne():
    q = Bernoulli(tensor([0.3, 0.4])).mask(tensor([True, False]))
    assert set(applicable(q)) == {"score_function", "dice"}
    with pytest.raises(ArgumentError, match="without a mask"):
        expectation(q, cost, estimator="disarm")


def test_what_applies_does():
    # Every name that is offered for a distribution works on it.
    for q in (Bernoulli(0.3), OneHotCategorical(tensor([0.2, 0.8])), Poisson(1.5), Gamma(2.0, 1.0)):
        f = lambda z: z.sum() if z.ndim else z
        for name in applicable(q):
            assert np.isfinite(expectation(q, f, estimator=name, rng=Generator(0)).item())


# ------------------------------------------------------------------------------------ shapes


@EACH
def test_the_estimate_has_the_shape_of_the_cost(name):
    q = family(name)
    run = lambda q, f: expectation(q, f, estimator=make(name), num_samples=2, rng=Generator(0))
    three = leaf([0.3, -0.2, 0.9])
    assert run(q(leaf()), cost).shape == ()
    if name == "relax":
        return  # its control variate has to follow the cost, as the next test does
    assert run(q(three), cost).shape == (3,)
    assert run(q(three), lambda z: cost(z).sum()).shape == ()
    assert run(q(three).to_event(1), lambda z: cost(z).sum()).shape == ()
    wide = leaf(np.zeros((2, 3)))
    assert run(q(wide), lambda z: cost(z).sum(0, keepdim=True)).shape == (1, 3)
    assert run(q(wide), lambda z: cost(z).sum(-1, keepdim=True)).shape == (2, 1)


@EACH
def test_copies_of_an_event_have_draws_of_their_own(name):
    # An expansion outside of `to_event`, as plates and particles make it: as if written inside.
    theta = leaf([0.3, -0.2])
    estimator = RELAX(lambda z: control(z).sum(-1)) if name == "relax" else make(name)
    found = []
    for q in (
        family(name)(theta).to_event(1).expand((4,)),
        family(name)(theta).expand((4, 2)).to_event(1),
    ):
        value = expectation(q, lambda z: cost(z).sum(-1), estimator=estimator, rng=Generator(3))
        assert value.shape == (4,)
        found.append((value.detach().numpy(), grad(value.sum(), [theta])[0].numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-13, atol=1e-15)


@EACH
def test_nothing_at_all_has_an_expectation(name):
    # An empty plate: no rows, or a cost of no elements.
    theta = leaf(np.zeros(0))
    for f, c in ((cost, control), (lambda z: cost(z).sum(), lambda z: control(z).sum())):
        estimator = RELAX(c) if name == "relax" else make(name)
        if name == "unordered_set" and f is not cost:
            continue  # a set of 2 from a single outcome is refused
        value = expectation(family(name)(theta), f, estimator=estimator, rng=Generator(0))
        assert value.shape == f(theta).shape and value.detach().numpy().sum() == 0.0
        if value.requires_grad:
            assert grad(value.sum(), [theta])[0].shape == (0,)


def test_a_control_variate_has_the_shape_of_its_cost():
    q = Bernoulli(logits=leaf([0.3, -0.2, 0.9]))
    for f, c in ((cost, control), (lambda z: cost(z).sum(), lambda z: control(z).sum())):
        value = expectation(q, f, estimator=RELAX(c), rng=Generator(0))
        assert value.shape == f(tensor([1.0, 0.0, 1.0])).shape


@EACH
def test_rows_of_a_cost_are_estimated_as_if_alone(name):
    # The gradient with respect to one row has nothing of the other rows' costs.
    theta = leaf([0.3, -0.2])
    q = family(name)(theta)
    value = expectation(q, cost, estimator=make(name), num_samples=2, rng=Generator(3))
    (slopes,) = grad(value[0], [theta])
    assert slopes[1].item() == 0.0


@EACH
def test_vectorised_costs_give_the_same(name):
    theta = leaf([0.3, -0.2, 0.8])
    q = family(name)
    estimator = RELAX(lambda z: control(z).sum(-1, keepdim=z.ndim > 1))
    if name != "relax":
        estimator = make(name)
    f = lambda z: cost(z).sum(-1)

    def run(vectorized):
        value = expectation(
            q(theta),
            (lambda z: f(z).unsqueeze(-1)) if vectorized else f,
            estimator=estimator,
            num_samples=3,
            rng=Generator(3),
            vectorized=vectorized,
        )
        return value.sum().item(), grad(value.sum(), [theta])[0].numpy()

    found = [run(False), run(True)]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-14)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12, atol=1e-15)


# --------------------------------------------------------------------- the rest of the library


@EACH
def test_the_gradient_under_func_grad_is_that_of_the_tape(name):
    q = family(name)

    def value(t):
        return expectation(q(t), lambda z: cost(z) * t, estimator=make(name), rng=Generator(7))

    theta = leaf()
    (expected,) = grad(value(theta), [theta])
    assert func.grad(value)(tensor(0.3, dtype=DOUBLE)).item() == pytest.approx(
        expected.item(), rel=1e-14
    )


@EACH
def test_the_derivative_in_forward_mode_is_that_of_the_tape(name):
    q = family(name)

    def value(t):
        return expectation(q(t), lambda z: cost(z) * t, estimator=make(name), rng=Generator(7))

    theta = leaf()
    (expected,) = grad(value(theta), [theta])
    _, tangent = func.jvp(value, (tensor(0.3, dtype=DOUBLE),), (tensor(1.0, dtype=DOUBLE),))
    assert tangent.item() == pytest.approx(expected.item(), rel=1e-13)


@EACH
def test_the_same_generator_gives_the_same_estimate(name):
    # Four categories where two outcomes would leave nothing to chance.
    exact = name in ("sum_and_sample", "unordered_set")
    q = Categorical(tensor([0.1, 0.2, 0.3, 0.4])) if exact else family(name)(leaf())
    run = lambda seed: expectation(q, cost, estimator=make(name), rng=Generator(seed)).item()
    assert run(4) == run(4)
    assert (len({run(seed) for seed in range(40)}) > 1) == (name != "enumerate")


@EACH
def test_single_precision_and_no_tape_are_borne(name):
    value = expectation(
        family(name)(leaf(0.3, np.float32)), cost, estimator=make(name), rng=Generator(1)
    )
    assert value.dtype == np.float32
    with no_grad():
        value = expectation(family(name)(leaf()), cost, estimator=make(name), rng=Generator(1))
    assert not value.requires_grad and np.isfinite(value.item())


@EACH
def test_an_estimator_is_a_frozen_record_that_prints_and_pickles(name):
    estimator = make(name)
    assert repr(estimator).startswith(type(estimator).__name__ + "(")
    assert repr(pickle.loads(pickle.dumps(estimator))) == repr(estimator)
    for field in dataclasses.fields(estimator):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(estimator, field.name, None)


def test_the_default_is_a_path_where_there_is_one():
    theta = leaf()
    path = expectation(Normal(theta, 1.0), cost, rng=Generator(1))
    named = expectation(Normal(theta, 1.0), cost, estimator=Pathwise(), rng=Generator(1))
    assert path.item() == named.item()
    assert np.isfinite(expectation(Bernoulli(logits=theta), cost, rng=Generator(1)).item())
