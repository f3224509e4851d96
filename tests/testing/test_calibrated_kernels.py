"""`sbc` of every kernel, and of engines that make runs or points: right ones pass, wrong ones fail.

A new kernel gets a row in `KERNELS`, `ON_SUBSAMPLES` or `DISCRETE`; a test counts them. Engines of
approximations, particles and guides are in test_calibrated_engines.py.
"""

import functools
import inspect
import os

import numpy as np
import pytest

import probtorch
from probtorch import infer, plate, sample, tensor
from probtorch.distributions import Bernoulli, Beta, Binomial, Categorical, Normal
from probtorch.infer import (
    ABC,
    ABCSMC,
    AIES,
    ESS,
    GHMC,
    GIST,
    HMC,
    HMCECS,
    MALA,
    MALT,
    MCLMC,
    MCMC,
    MEADS,
    NUTS,
    RMHMC,
    SA,
    SGHMC,
    SGLD,
    SGNHT,
    SMMALA,
    SNAPERHMC,
    AdjustedMCLMC,
    BarkerMH,
    ChEESHMC,
    CyclicalSGLD,
    DEMetropolis,
    DynamicHMC,
    EllipticalSlice,
    Gibbs,
    IndependentMH,
    Involution,
    InvolutiveMCMC,
    MixedHMC,
    NestedSampler,
    OrbitalHMC,
    ParticleGibbs,
    RandomWalk,
    ReplicaExchange,
    Slice,
    init_to_uniform,
)
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.testing import sbc
from tests.testing.broken_kernels import shrinking
from tests.testing.calibrated_models import MODELS, X, line, logistic

# Chance of a false alarm of one test, were the seed not fixed.
NEVER = 1e-6
SHORT = {"num_samples": 31, "warmup_steps": 60, "progress_bar": False, "level": NEVER}
FEW = X[-4:] + 0.5
REPLICATIONS = int(os.environ.get("PROBTORCH_SBC_REPLICATIONS", "1000"))


def quick(kind, **settings):
    return functools.partial(kind, init_strategy=init_to_uniform, **settings)


def at_powers(kind):
    """Replicas of the kernel of a class."""
    return lambda m: ReplicaExchange(quick(kind, num_steps=4)(m), inverse_temperatures=(1.0, 0.5))


walkers = functools.partial(quick, walkers=16)
# By name: the class, what makes a kernel of a class for a model, thinning of `sbc`.
KERNELS = {
    "NUTS": (NUTS, quick, None),
    "HMC": (HMC, functools.partial(quick, num_steps=4), None),
    "DynamicHMC": (DynamicHMC, quick, None),
    "RandomWalk": (RandomWalk, quick, 24),
    "MALA": (MALA, quick, 8),
    "BarkerMH": (BarkerMH, quick, 8),
    "GHMC": (GHMC, quick, 8),
    "MCLMC": (MCLMC, quick, None),
    "AdjustedMCLMC": (AdjustedMCLMC, quick, None),
    "MALT": (MALT, quick, None),
    "GIST": (GIST, quick, 2),
    "OrbitalHMC": (OrbitalHMC, quick, 8),
    "SMMALA": (SMMALA, quick, 8),
    "IndependentMH": (IndependentMH, quick, 4),
    "ChEESHMC": (ChEESHMC, quick, 2),
    "SNAPERHMC": (SNAPERHMC, quick, 2),
    "MEADS": (MEADS, functools.partial(walkers, folds=2), 4),
    "RMHMC": (RMHMC, quick, 2),
    "Slice": (Slice, quick, None),
    "EllipticalSlice": (EllipticalSlice, quick, 12),
    "AIES": (AIES, walkers, 8),
    "DEMetropolis": (DEMetropolis, walkers, 8),
    "ESS": (ESS, walkers, 4),
    "SA": (SA, walkers, 16),
    "ReplicaExchange": (HMC, at_powers, 8),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_calibrated_and_one_that_shrinks_is_not(name):
    """Ranks of 40 see that; a right kernel's chance to be called wrong is one in a million."""
    kind, made, thinning = KERNELS[name]
    for right in (True, False):
        make = made(kind if right else shrinking(kind, 0.5))
        result = sbc(logistic, make, 40, args=(X,), thinning=thinning, **SHORT)
        assert not result.failed, result
        assert result.calibrated == right, result


# Elliptical slices take Gaussian priors alone. Proposals of the Laplace approximation miss the
# scale of the non-centred model: at a thinning of 200 ranks are uniform, at 16 chains stand still.
PAIRS = [(name, "logistic") for name in KERNELS]
LOGISTIC_ALONE = {"EllipticalSlice", "IndependentMH"}
PAIRS += [(name, "non-centred") for name in KERNELS if name not in LOGISTIC_ALONE]


@pytest.mark.slow
@pytest.mark.parametrize("name, model", PAIRS)
def test_kernel_is_calibrated_in_a_thousand_replications(name, model):
    kind, made, thinning = KERNELS[name]
    fn, args = MODELS[model]
    settings = {"num_samples": 31, "level": 1e-5, "seed": 5, "progress_bar": False}
    thinning = None if thinning is None or model == "logistic" else 2 * thinning
    result = sbc(fn, made(kind), REPLICATIONS, args=args, thinning=thinning, **settings)
    print(result)
    assert not result.failed
    assert result.calibrated, result


# ---------------------------------------------------------------------------------- on subsamples

ROWS = 60
STEEP = np.random.default_rng(1).normal(size=ROWS)


def slopes(x, y=None, size=None):
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("row", ROWS, subsample_size=size) as rows:
        chosen = None if y is None else y[rows]
        sample("y", Bernoulli(logits=slope * x[rows]), obs=chosen)


# By name: the class, what makes a kernel of a class, draws. Steps short enough for a bias of some
# per cent, which ranks of 60 do not see.
ON_SUBSAMPLES = {
    "HMCECS": (HMC, lambda kind: lambda m: HMCECS(quick(kind, num_steps=4)(m)), 4 * 31),
    "SGLD": (SGLD, lambda kind: kind, 40 * 31),
    # All of a cycle but two steps are draws, at steps that fall from the longest to nothing.
    "CyclicalSGLD": (
        CyclicalSGLD,
        lambda kind: lambda m: kind(m, cycle_length=40, exploration=0.05, temperature=1.0),
        40 * 31,
    ),
    "SGHMC": (SGHMC, lambda kind: kind, 8 * 31),
    "SGNHT": (SGNHT, lambda kind: kind, 8 * 31),
}


@pytest.mark.parametrize("name", ON_SUBSAMPLES)
def test_kernel_on_subsamples_is_calibrated_and_one_that_shrinks_is_not(name):
    kind, made, count = ON_SUBSAMPLES[name]
    for right in (True, False):
        make = made(kind if right else shrinking(kind, 0.5))

        def posterior(args, data, seed, make=make):
            mcmc = MCMC(make(slopes), count, 100, num_chains=1, seed=seed, progress_bar=False)
            mcmc.diagnose = False
            return mcmc.run(args[0], probtorch.tensor(data["y"]), size=20)

        x = probtorch.tensor(STEEP)
        result = sbc(slopes, replications=40, posterior=posterior, args=(x,), **SHORT)
        assert not result.failed, result
        assert result.calibrated == right, result


# ------------------------------------------------------------------------------- discrete and mixed


def kinds(y=None):
    """Which of three kinds, and how much: both are told by few data."""
    k = sample("k", Categorical(tensor([0.5, 0.2, 0.3])))
    loc = sample("loc", Normal(0.0, 1.0))
    with plate("row", 2):
        sample("y", Normal(loc + k, 1.0), obs=y)


def elsewhere(y=None):
    """The same with data of another spread."""
    k = sample("k", Categorical(tensor([0.5, 0.2, 0.3])))
    loc = sample("loc", Normal(0.0, 1.0))
    with plate("row", 2):
        sample("y", Normal(loc + k, 4.0), obs=y)


DISCRETE = {
    "Gibbs": lambda m: Gibbs(m, kernel=quick(NUTS)(m)),
    "MixedHMC": lambda m: MixedHMC(quick(HMC, num_steps=4)(m)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_kernel_of_discrete_sites_is_calibrated_for_the_model_that_made_the_data(name):
    for simulator in (kinds, elsewhere):
        result = sbc(kinds, DISCRETE[name], 40, simulator=simulator, thinning=8, **SHORT)
        assert "k" in result.ranks and not result.failed, result
        assert result.calibrated == (simulator is kinds), result


def test_every_kernel_has_a_row():
    found = {n for n in infer.__all__ if _is_kernel(getattr(infer, n))}
    assert found == {*KERNELS, *ON_SUBSAMPLES, *DISCRETE}


def _is_kernel(thing):
    return inspect.isclass(thing) and issubclass(thing, Kernel)


# ---------------------------------------------------------------------------------- runs and points


def coin(y=None):
    p = sample("p", Beta(2.0, 2.0))
    sample("y", Binomial(20, p), obs=y)


def cool(model):
    """A thirtieth of the log density, as if there were hardly any data."""
    return probtorch.handlers.scale(model, 1 / 30)


def involutive(model):
    return InvolutiveMCMC(model, Involution.drift(0.25, of=["p"]), 31 * 4, 10)


def simulations(kind):
    """Data are counts, which come back as they were: draws are exact."""

    def posterior(args, data, seed):
        model = cool(coin) if kind is None else coin
        if kind is ABCSMC:
            return ABCSMC(coin, 62, epsilon=0.5, seed=seed).run(data)
        return ABC(model, 62, 2500, epsilon=0.5, seed=seed).run(data)

    return posterior


points = functools.partial(NestedSampler, num_live_points=62, num_threads=1)
runs = functools.partial(ParticleGibbs, num_particles=8, num_samples=31 * 2, warmup_steps=5)
# By name: model, arguments, what makes the engine, replications.
ENGINES = {
    "NestedSampler": (line, (FEW,), points, 40),
    "InvolutiveMCMC": (coin, (), involutive, 40),
    "ParticleGibbs": (coin, (), runs, 40),
}


@pytest.mark.parametrize("name", ENGINES)
def test_engine_is_calibrated_and_one_of_another_density_is_not(name):
    model, args, make, replications = ENGINES[name]
    for right in (True, False):
        engine = make if right else lambda m: make(cool(m))
        result = sbc(model, engine, replications, args=args, **SHORT)
        assert not result.failed, result
        assert result.calibrated == right, result


@pytest.mark.parametrize("kind", [ABC, ABCSMC])
def test_simulations_are_calibrated(kind):
    result = sbc(coin, replications=40, posterior=simulations(kind), **SHORT)
    assert not result.failed and result.calibrated, result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NestedSampler", "ParticleGibbs", "InvolutiveMCMC"])
def test_engine_is_calibrated_in_many_replications(name):
    model, args, make, _ = ENGINES[name]
    count = REPLICATIONS if name == "NestedSampler" else REPLICATIONS // 5
    settings = {"num_samples": 31, "level": 1e-5, "seed": 6, "progress_bar": False}
    result = sbc(model, make, count, args=args, **settings)
    print(result)
    assert not result.failed
    assert result.calibrated, result
