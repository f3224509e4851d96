"""Parts, series, angles and products with a likelihood: the joint law stays what it was."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.gaussian_hmm import GaussianHMM
from probtorch.distributions.heavy_tailed import StudentT
from probtorch.distributions.linear_hmm import IndependentHMM, LinearHMM
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.products import conjugate_update
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.scalar import ExpTransform
from probtorch.distributions.von_mises import VonMises
from probtorch.effects.further_reparams import GumbelSoftmaxReparam, StudentTReparam
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.joint_reparams import (
    CircularReparam,
    ConjugateReparam,
    LinearHMMReparam,
    SplitReparam,
)
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.reparams import LocScaleReparam, reparam
from probtorch.errors import ArgumentError, ModelError
from probtorch.tensor import tensor


def joint(model, fixed):
    tr = trace(substitute(model, fixed, strict=True)).get_trace()
    return tr.log_prob_sum().item(), tr


@pytest.mark.parametrize("unwrapped, angle", [(1.0, 1.0), (4.0, 4.0 - 2 * math.pi)])
def test_an_angle_is_wrapped_and_keeps_its_density(unwrapped, angle):
    changed = reparam(lambda: sample("x", VonMises(0.3, 2.0)), {"x": CircularReparam()})
    total, tr = joint(changed, {"x_unwrapped": tensor(np.array(unwrapped))})
    assert math.isclose(tr["x"].value.item(), angle, rel_tol=1e-12)
    assert math.isclose(total, stats.vonmises(2.0, loc=0.3).logpdf(angle), rel_tol=1e-6)


def test_vectors_of_angles_keep_their_plates():
    def fn():
        with plate("rows", 3):
            return sample("x", VonMises(0.3, np.array([1.0, 2.0])).to_event(1))

    changed = reparam(fn, {"x": CircularReparam()})
    tr = trace(substitute(changed, {"x_unwrapped": np.linspace(-9, 9, 6).reshape(3, 2)}))
    tr = tr.get_trace()
    assert tr["x_factor"].value.shape == (3,) and tr["x"].value.shape == (3, 2)
    assert (np.abs(tr["x"].value.numpy()) <= math.pi).all()


@pytest.mark.parametrize("dim, sections, shape", [(-1, [1, 3], (2, 4)), (-2, [2, 1], (3, 2))])
def test_parts_together_have_the_density_of_the_whole(dim, sections, shape):
    law = Normal(np.linspace(0.0, 1.0, math.prod(shape)).reshape(shape), 1.5).to_event(2)
    changed = reparam(lambda: sample("x", law), {"x": SplitReparam(sections, dim)})
    x = np.random.default_rng(0).standard_normal(shape)
    parts = np.split(x, [sections[0]], dim)
    total, tr = joint(changed, {f"x_split_{i}": tensor(p.copy()) for i, p in enumerate(parts)})
    np.testing.assert_array_equal(tr["x"].value.numpy(), x)
    assert math.isclose(total, law.log_prob(tensor(x)).item(), rel_tol=1e-12)


def log_beta(a):
    return special.gammaln(a).sum(-1) - special.gammaln(a.sum(-1))


@pytest.mark.parametrize(
    "p, q, between",
    [
        (Normal(0.5, 2.0), Normal(-1.0, 0.7), (-np.inf, np.inf)),
        (Beta(2.0, 3.0), Beta(1.5, 4.0), (0.0, 1.0)),
        (Gamma(2.0, 1.5), Gamma(3.0, 0.5), (0.0, np.inf)),
    ],
    ids=["normal", "beta", "gamma"],
)
def test_a_product_of_densities_is_the_new_density_times_what_it_integrates_to(p, q, between):
    product, log_normalizer = conjugate_update(p, q)

    def both(x):
        x = tensor(np.array(x))
        return math.exp((p.log_prob(x) + q.log_prob(x)).item())

    evidence, _ = integrate.quad(both, *between)
    assert math.isclose(math.exp(log_normalizer.item()), evidence, rel_tol=1e-6)
    x = 0.3
    want = both(x) / evidence
    assert math.isclose(math.exp(product.log_prob(tensor(np.array(x))).item()), want, rel_tol=1e-6)


VALUES = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
TRIL = np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-0.3, 0.4, 0.7]])


@pytest.mark.parametrize(
    "p, q",
    [
        (Dirichlet(np.array([2.0, 1.5, 3.0])), Dirichlet(np.array([1.0, 4.0, 2.5]))),
        (
            MultivariateNormal(np.array([0.5, 0.0, 1.0]), scale_tril=TRIL),
            MultivariateNormal(np.array([-1.0, 0.3, 0.0]), precision_matrix=TRIL @ TRIL.T),
        ),
        (Normal(np.zeros(3), 2.0).to_event(1), Normal(np.ones(3), 0.5).to_event(1)),
    ],
    ids=["dirichlet", "vectors", "independent"],
)
def test_products_over_vectors_differ_from_their_factors_by_a_constant(p, q):
    product, log_normalizer = conjugate_update(p, q)
    x = tensor(VALUES)
    both = (p.log_prob(x) + q.log_prob(x)).numpy()
    np.testing.assert_allclose(
        product.log_prob(x).numpy() + log_normalizer.numpy(), both, rtol=1e-9
    )


def test_pairs_without_a_rule_are_named():
    with pytest.raises(NotImplementedError, match="Normal and a Gamma"):
        conjugate_update(Normal(0.0, 1.0), Gamma(1.0, 1.0))


@pytest.mark.parametrize("made", ["given", "called"])
def test_a_conjugate_update_keeps_the_joint_density(made):
    guess = Gamma(4.0, 2.0)

    def fn(count):
        rate = sample("rate", Gamma(2.0, 1.0))
        return rate * count

    guide = guess if made == "given" else lambda count: Gamma(1.0 + count, 2.0)
    changed = reparam(fn, {"rate": ConjugateReparam(guide)})
    run = trace(substitute(changed, {"rate_updated": tensor(np.array(1.7))}, strict=True))
    tr = run.get_trace(3.0)
    want = stats.gamma(2.0).logpdf(1.7)
    assert math.isclose(tr.log_prob_sum().item(), want, rel_tol=1e-6)
    # Posterior of a Poisson rate with 3 counts in 2 units of time: shape 2 + 3, rate 1 + 2.
    assert tr["rate_updated"].fn.concentration.item() == 5.0
    assert tr["rate_updated"].fn.rate.item() == 3.0


def series(observation, initial=None):
    initial = Normal(np.zeros(2), 1.0).to_event(1) if initial is None else initial
    return LinearHMM(
        initial,
        tensor(np.array([[0.9, 0.1], [0.0, 0.8]])),
        Normal(np.zeros(2), 0.3).to_event(1),
        tensor(np.array([[1.0], [0.5]])),
        observation,
        duration=4,
    )


def scales(gamma):
    return 0.5 / np.sqrt(gamma)


@pytest.mark.parametrize("exponential", [False, True])
def test_a_series_with_student_noise_is_normal_given_the_precisions(exponential):
    noise = StudentT(3.0, np.zeros(1), 0.5).to_event(1)
    if exponential:
        noise = TransformedDistribution(noise, ExpTransform())
    y = np.array([[0.4], [1.0], [0.7], [2.0]])
    changed = reparam(
        lambda: sample("y", series(noise), obs=y), {"y": LinearHMMReparam(obs=StudentTReparam())}
    )
    gamma = np.array([[0.5], [1.0], [2.0], [0.7]])
    _, tr = joint(changed, {"y_obs_gamma": tensor(gamma)})
    law = series(Normal(np.zeros((4, 1)), tensor(scales(gamma))).to_event(1))
    seen = np.log(y) if exponential else y
    want = law.log_prob(tensor(seen)).item() - (np.log(y).sum() if exponential else 0.0)
    assert math.isclose(tr["y"].compute_log_prob_sum().item(), want, rel_tol=1e-9)
    assert tr["y_obs_gamma"].compute_log_prob().shape == ()


def test_series_side_by_side_with_student_starts():
    # A batch of three one-dimensional series, each with its own heavy-tailed start.
    start = StudentT(3.0, np.zeros((3, 2)), 1.0).to_event(1)
    side = IndependentHMM(series(Normal(np.zeros(1), 0.5).to_event(1), start))
    y = np.random.default_rng(0).standard_normal((4, 3))
    changed = reparam(
        lambda: sample("y", side, obs=y), {"y": LinearHMMReparam(init=StudentTReparam())}
    )
    gamma = np.random.default_rng(1).gamma(2.0, size=(3, 2))
    _, tr = joint(changed, {"y_init_gamma": tensor(gamma)})
    wide = Normal(np.zeros((3, 2)), tensor(1 / np.sqrt(gamma))).to_event(1)
    law = series(Normal(np.zeros(1), 0.5).to_event(1), wide)
    want = law.log_prob(tensor(y.T[..., None].copy())).sum().item()
    assert isinstance(tr["y"].fn.base_dist, GaussianHMM)
    assert math.isclose(tr["y"].compute_log_prob_sum().item(), want, rel_tol=1e-9)


def unknown_length():
    noise = StudentT(3.0, np.zeros(1), 0.5).to_event(1)
    made = series(noise)
    parts = {name: getattr(made, name) for name in made._parts}
    return LinearHMM(**parts)


@pytest.mark.parametrize(
    "law, change, expected",
    [
        (Normal(0.0, 1.0), CircularReparam(), "angles"),
        (Normal(np.zeros(3), 1.0), SplitReparam([1, 2]), "an event dim -1 of size 3"),
        (Dirichlet(np.ones(3)), SplitReparam([1, 2]), "support"),
        (Normal(0.0, 1.0), LinearHMMReparam(), "a LinearHMM or a IndependentHMM"),
        (
            series(StudentT(3.0, np.zeros(1), 0.5).to_event(1)),
            LinearHMMReparam(obs=LocScaleReparam(0.0, ("df",))),
            "returns a distribution",
        ),
        (unknown_length(), LinearHMMReparam(obs=StudentTReparam()), "duration"),
        (
            series(StudentT(3.0, np.zeros(1), 0.5).to_event(1)),
            LinearHMMReparam(obs=GumbelSoftmaxReparam()),
            "RelaxedOneHotCategorical",
        ),
    ],
)
def test_sites_of_another_kind_are_refused(law, change, expected):
    with pytest.raises(ModelError, match=expected):
        reparam(lambda: sample("x", law), {"x": change})()


def test_an_independent_model_of_something_else_is_refused():
    start = Normal(np.zeros((3, 2)), 1.0).to_event(1)
    side = IndependentHMM(series(Normal(np.zeros(1), 0.5).to_event(1), start))
    side.base_dist = VonMises(0.0, 1.0)
    with pytest.raises(ModelError, match="IndependentHMM of a LinearHMM"):
        reparam(lambda: sample("x", side), {"x": LinearHMMReparam()})()


def test_a_split_counts_its_dim_from_the_end():
    with pytest.raises(ArgumentError, match="counted from the end"):
        SplitReparam([1, 2], 0)
