"""Kernels with one mistake, each of which the invariance of a Gaussian has to show.

A mistake is one term of the acceptance, or one number of the move, that is left out.
"""

import numpy as np
import pytest
from scipy import stats

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import replace
from probtorch.infer import GIST, MALT, SMMALA, IndependentMH, OrbitalHMC, Target
from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
from probtorch.infer.mcmc.kernels import gist, malt, orbital, softabs
from probtorch.infer.mcmc.kernels.gaussian_prior import Gaussian
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, key_of
from tests.contracts import test_every_kernel as laws

METRIC = {"metric": DiagonalMetric.from_inverse_mass([2.0, 1.0, 0.5])}
WIDE = {"gaussian": Gaussian.of(np.array([0.3, 0.0, -0.2]), np.array([3.0, 1.5, 0.8]))}


def no_weights(monkeypatch):
    monkeypatch.setattr(IndependentMH, "_fallen", lambda self, square, dim: 0.0 * square)


def normal_weights(monkeypatch):
    monkeypatch.setattr(IndependentMH, "_fallen", lambda self, square, dim: 0.5 * square)


def no_length_ratio(monkeypatch):
    monkeypatch.setattr(gist, "log", lambda x: 0.0 * x)


def heated(monkeypatch):
    monkeypatch.setattr(malt, "expm1", lambda x: 2.0 * x)


def no_determinant(monkeypatch):
    monkeypatch.setattr(softabs.SoftAbs, "half_log_determinant", lambda self: wrap(np.zeros(())))


def all_alike(monkeypatch):
    """Points of an orbit are drawn whatever their densities."""
    monkeypatch.setattr(orbital, "energy_drop", lambda start, energy: 0.0 * start)


# name: kernel, its settings, what is in use, the mistake or None, transitions
VARIANTS = {
    "independent": (IndependentMH, {}, WIDE, None, 4),
    "independent, without weights": (IndependentMH, {}, WIDE, no_weights, 4),
    "independent, weights of a normal for a t": (IndependentMH, {}, WIDE, normal_weights, 4),
    "gist": (GIST, {"step_size": 0.9}, METRIC, None, 8),
    "gist, without the lengths": (GIST, {"step_size": 0.9}, METRIC, no_length_ratio, 8),
    "malt": (MALT, {"step_size": 0.9, "friction": 1.0}, METRIC, None, 8),
    "orbital": (OrbitalHMC, {"step_size": 1.2, "num_points": 4}, METRIC, None, 8),
    "orbital, all alike": (
        OrbitalHMC,
        {"step_size": 1.2, "num_points": 4},
        METRIC,
        all_alike,
        8,
    ),
    "malt, heated": (MALT, {"step_size": 0.9, "friction": 1.0}, METRIC, heated, 8),
}


def largest_score(monkeypatch, kind, settings, in_use, transitions, covariance):
    """Of 5000 exact draws, moved so often, as `test_kernel_leaves_a_gaussian_invariant` has it."""
    # A class of its own: programs are kept by class.
    fresh = type(kind.__name__, (kind,), {})
    row = fresh(laws.TARGET, **settings), in_use
    monkeypatch.setitem(laws.KERNELS, "variant", row)
    starts = np.random.default_rng(0).multivariate_normal(np.zeros(3), covariance, 5000)
    ends = laws.moved("variant", covariance, starts, transitions)
    return np.abs(laws.scores(ends, covariance)).max()


@pytest.mark.parametrize("name", VARIANTS)
def test_invariance_shows_a_mistake_and_nothing_else(name, monkeypatch):
    kind, settings, in_use, mistake, transitions = VARIANTS[name]
    if mistake is not None:
        mistake(monkeypatch)
    found = largest_score(monkeypatch, kind, settings, in_use, transitions, laws.COVARIANCE)
    assert (found < 5.0) == (mistake is None), found


SHAPE = 3.0
SKEWED = Target.from_density(lambda q: (SHAPE * q - q.exp()).sum(), 2)


@pytest.mark.parametrize("mistake", [None, no_determinant], ids=["right", "without determinant"])
def test_a_metric_that_changes_leaves_logarithms_of_gamma_draws_as_they_are(mistake, monkeypatch):
    """Twice mean and variance of 4000 exact draws: a score above 5 has a chance of 2e-6.

    A Gaussian's curvature is the same everywhere, so there the determinant does not count.
    """
    if mistake is not None:
        mistake(monkeypatch)
    fresh = type("SMMALA", (SMMALA,), {})
    kernel = fresh(SKEWED, step_size=1.0, alpha=10.0)
    starts = np.log(np.random.default_rng(0).gamma(SHAPE, size=(4000, 2)))
    context = kernel.native(SKEWED).context()
    unit = DiagonalMetric.from_inverse_mass([1.0, 1.0])
    in_use = kernel.in_use(laws.handle(context), metric=unit)
    key = key_of(Generator(1))
    runner = ChunkRunner(Chain(in_use, in_use.init(wrap(starts[0])), key, kernel.warmup.tuner))
    fresh_chain, ends = runner.chain, []
    for i, q in enumerate(starts):
        there = Key(key.seed, wrap(np.array(i)))
        runner.chain = replace(fresh_chain, state=in_use.init(wrap(q)), key=there)
        ends.append(runner.run(4)[0][-1].copy())
    x = np.array(ends)
    mean, variance, excess = stats.loggamma(SHAPE).stats("mvk")
    errors = np.sqrt(variance / len(x)), variance * np.sqrt((excess + 2.0) / len(x))
    found = [(x.mean(axis=0) - mean) / errors[0], (x.var(axis=0) - variance) / errors[1]]
    assert (np.abs(found).max() < 5.0) == (mistake is None), found
