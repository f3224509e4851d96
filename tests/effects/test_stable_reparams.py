"""Stable numbers from noise have the densities of SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from probtorch.compiler.record.record import record
from probtorch.distributions.directional import ProjectedNormal
from probtorch.distributions.linear_hmm import LinearHMM
from probtorch.distributions.normal import Normal
from probtorch.distributions.stable import Stable
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.scalar import ExpTransform
from probtorch.effects.handlers import seed, substitute, trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.reparam_strategies import AutoReparam, MinimalReparam
from probtorch.effects.reparams import reparam
from probtorch.effects.stable_reparams import (
    LatentStableReparam,
    StableReparam,
    SymmetricStableReparam,
)
from probtorch.errors import ModelError
from probtorch.tensor import tensor

DRAWS = 20_000
X = np.array([-3.0, -0.4, 0.5, 2.0])


def run(law, change, seeded=0, **data):
    def model():
        with plate("rows", DRAWS):
            return sample("x", law, **data)

    return trace(seed(reparam(model, {"x": change}), seeded)).get_trace()


def double(*values):
    return [tensor(np.array(v)) for v in values]


@pytest.mark.parametrize(
    "alpha, skew, coords",
    [(0.7, 0.5, "S"), (1.0, -0.6, "S0"), (1.0001, 1.0, "S0"), (1.7, -1.0, "S")],
)
def test_a_function_of_noise_has_the_distribution_of_draws(alpha, skew, coords):
    law = Stable(*double(alpha, skew, 2.0, 0.3), coords=coords)
    x = run(law, LatentStableReparam())["x"].value
    # A Kolmogorov-Smirnov test of 300 of them; the false alarm rate is 1e-4 for each of 4 cases.
    below = law.cdf(x[:300]).numpy()
    assert stats.kstest(below, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    "change, alpha, skew",
    [
        (SymmetricStableReparam(), 0.8, 0.0),
        (SymmetricStableReparam(), 1.6, 0.0),
        (StableReparam(), 1.6, 0.7),
        (StableReparam(), 1.0, -0.4),
        (StableReparam(), 0.8, 1.0),
        (StableReparam(), 1.3, 0.0),
    ],
)
def test_normal_densities_of_random_scale_average_to_the_stable_one(change, alpha, skew):
    law = Stable(*double(alpha, skew, 2.0, 0.3))
    fn = run(law, change)["x"].fn
    exact = np.exp(law.log_prob(tensor(X)).numpy())
    for x, want in zip(X, exact, strict=True):
        found = np.exp(fn.log_prob(tensor(np.full(DRAWS, x))).numpy())
        if skew == 1.0:
            # The normal is nearly a point: a cell in place of a density.
            edges = [fn.cdf(tensor(np.full(DRAWS, x + s))).numpy() for s in (-0.5, 0.5)]
            found = edges[1] - edges[0]
            sides = law.cdf(tensor(np.array([x - 0.5, x + 0.5]))).numpy()
            want = sides[1] - sides[0]
        # Five standard errors for 24 comparisons.
        assert abs(found.mean() - want) < 5 * found.std() / math.sqrt(DRAWS) + 1e-12


def test_data_stay_at_their_site():
    data = np.linspace(-2.0, 2.0, DRAWS)
    tr = run(Stable(1.5, 0.3), StableReparam(), obs=data)
    noise = ["x_z_uniform", "x_z_exponential", "x_t_uniform", "x_t_exponential"]
    assert list(tr) == ["rows", *noise, "x"]
    assert tr["x"].observed and isinstance(tr["x"].fn, Normal)


def test_the_shift_of_a_skewed_part_has_its_limit_at_a_stability_of_one():
    fixed = {f"x_{part}": tensor(np.array(0.3)) for part in ("z_uniform", "t_uniform")}
    fixed |= {f"x_{part}_exponential": tensor(np.array(1.2)) for part in "zt"}
    found = []
    for alpha in (1.0 - 1e-6, 1.0, 1.0 + 1e-6):
        law = Stable(*double(alpha, 0.4))
        model = reparam(lambda law=law: sample("x", law), {"x": StableReparam()})
        tr = trace(substitute(seed(model, 0), fixed)).get_trace()
        found.append((tr["x"].fn.loc.item(), tr["x"].fn.scale.item()))
    np.testing.assert_allclose(np.mean([found[0], found[2]], 0), found[1], rtol=1e-6)


def test_noise_becomes_a_recorded_function():
    def value(u, w):
        law = Stable(*double(1.5, 0.3, 2.0, 0.3))
        model = reparam(lambda: sample("x", law), {"x": LatentStableReparam()})
        with substitute(data={"x_uniform": u, "x_exponential": w}):
            return model()

    inputs = double(0.4, 1.3)
    rec, again = record(value, inputs)
    assert rec.graph.guards == [] and rec.unsupported == []
    np.testing.assert_allclose(again.numpy(), value(*inputs).numpy())


def test_a_skew_is_not_taken_for_none():
    with pytest.raises(ModelError, match=r"without skew[\s\S]*StableReparam"):
        run(Stable(1.5, 0.3), SymmetricStableReparam())


def walk():
    stable = Stable(np.full(1, 1.5), 0.0).to_event(1)
    one = tensor(np.eye(1))
    start = Normal(np.zeros(1), 1.0).to_event(1)
    return LinearHMM(start, one, stable, one, stable, duration=3)


def several():
    sample("plain", Normal(0.0, 1.0))
    sample("latent", Stable(1.5, 0.2))
    sample("log", TransformedDistribution(Stable(1.5, 0.2), ExpTransform()))
    sample("toward", ProjectedNormal(np.ones(2)))
    sample("skewed", Stable(1.5, 0.2), obs=tensor(0.3))
    sample("even", Stable(1.5, 0.0), obs=tensor(0.3))
    sample("series", walk(), obs=np.zeros((3, 1)))


@pytest.mark.parametrize("strategy", [MinimalReparam(), AutoReparam(0.0)])
def test_strategies_see_to_what_is_costly(strategy):
    names = list(trace(seed(strategy(several), 0)).get_trace())
    expected = ["latent_uniform", "latent_exponential", "latent", "log_base", "log"]
    expected += ["toward_normal", "toward"]
    expected += [f"skewed_{p}_{kind}" for p in "zt" for kind in ("uniform", "exponential")]
    expected += ["skewed", "even_uniform", "even_exponential", "even"]
    expected += [f"series_{p}_{k}" for p in ("trans", "obs") for k in ("uniform", "exponential")]
    plain = ["plain"] if type(strategy) is MinimalReparam else ["plain_decentered", "plain"]
    assert names == [*plain, *expected, "series"]
    assert list(trace(seed(reparam(several, config=strategy), 0)).get_trace()) == names
