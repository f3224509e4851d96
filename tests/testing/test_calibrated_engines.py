"""`sbc` of all that samples: right engines pass, and a wrong one of each family does not.

Wrong ones are engines of ours with one thing spoilt, in a way that their kind may well be.
"""

import functools
import os

import numpy as np
import pytest

import probtorch
from probtorch import plate, sample
from probtorch.diagnostics import Draws
from probtorch.distributions import Beta, Binomial, Poisson
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.infer import (
    HMC,
    MCMC,
    NUTS,
    SMC,
    SVI,
    AutoMultivariateNormal,
    AutoNormal,
    ChEESHMC,
    FullConditional,
    Gibbs,
    Importance,
    LaplaceApproximation,
    Pathfinder,
    RandomWalk,
    init_to_sample,
    init_to_uniform,
)
from probtorch.optim import Adam
from probtorch.testing import sbc
from tests.testing.broken_kernels import shrinking
from tests.testing.calibrated_models import MODELS, NORMAL, X, line

# Chance of a false alarm of one test, were the seed not fixed.
NEVER = 1e-6
SHORT = {"num_samples": 31, "warmup_steps": 60, "progress_bar": False, "level": NEVER}
FEW = X[-4:] + 0.5


def counted(y=None):
    """How many were there, and how likely is each to be seen: a latent count without bound."""
    n = sample("n", Poisson(4.0))
    p = sample("p", Beta(2.0, 2.0))
    with plate("look", 6):
        sample("y", Binomial(n, p), obs=y)


def exact(args, data, seed, *, scale=1.0, count=31):
    """Draws of the posterior of `line`, by linear algebra."""
    rng = np.random.default_rng([seed.initial_seed(), seed.stream])
    rows = np.stack([np.ones(4), args[0].numpy()], 1)
    precision = rows.T @ rows / 0.49 + np.diag([1.0, 0.25])
    mean = np.linalg.solve(precision, rows.T @ data["y"] / 0.49)
    spread = np.linalg.cholesky(np.linalg.inv(precision))
    ab = mean + scale * rng.normal(size=(count, 2)) @ spread.T
    return {"a": ab[:, 0], "b": ab[:, 1]}


class Unweighted(Importance):
    """Forgets the weights."""

    def run(self, *args, **kwargs):
        found = super().run(*args, **kwargs)
        found.log_weights[:] = -np.log(found.num_samples)
        return found


class Cool(SMC):
    """Takes a sixth of the likelihood for all of it."""

    def run(self, *args, **kwargs):
        power = probtorch.handlers.scale(self.kernel.model, 1 / 6)
        return SMC(RandomWalk(power), self.num_particles, num_threads=1).run(*args, **kwargs)


class Narrow(Pathfinder):
    """Stops on the way up."""

    def __init__(self, model):
        super().__init__(model, num_paths=1, max_gradients=2, resample=False)


def gibbs(model, update="metropolis"):
    return Gibbs(model, {"n": update}, init_strategy=init_to_sample)


def forgetful(model):
    """Draws the count from its prior, wherever the data leave it possible."""

    def update(rng_key, gibbs_sites, hmc_sites):
        return {"n": Poisson(4.0).sample(generator=rng_key)}

    return gibbs(model, FullConditional(update))


def quick(kind, **settings):
    return lambda m: kind(m, init_strategy=init_to_uniform, **settings)


def fitted(guide):
    return lambda m: SVI(m, guide(m), Adam, lr=0.05)


particles = functools.partial(SMC, num_particles=62, num_threads=1)
climbs = functools.partial(LaplaceApproximation, num_starts=1)
# By name: model, its arguments, the right engine, a wrong one, replications, settings.
ENGINES = {
    "Gibbs": (counted, (), gibbs, forgetful, 50, {"thinning": 4}),
    "SMC": (
        line,
        (FEW,),
        lambda m: particles(RandomWalk(m)),
        lambda m: Cool(RandomWalk(m)),
        40,
        {},
    ),
    "Importance": (line, (FEW,), lambda m: Importance(m, num_samples=4000), Unweighted, 60, {}),
    "Laplace": (line, (FEW,), climbs, lambda m: climbs(m, hessian_structure="diag"), 100, {}),
    "Pathfinder": (line, (FEW,), lambda m: Pathfinder(m, num_paths=1), Narrow, 60, {}),
    "SVI": (
        line,
        (FEW,),
        fitted(AutoMultivariateNormal),
        fitted(AutoNormal),
        50,
        {"num_steps": 250},
    ),
    "ChEES": (
        line,
        (FEW,),
        quick(ChEESHMC),
        quick(shrinking(ChEESHMC), step_size=0.3, adapt_step_size=False),
        40,
        {"thinning": 2},
    ),
}


@pytest.mark.parametrize("name", ENGINES)
def test_right_engine_is_calibrated_and_a_wrong_one_is_not(name):
    model, args, right, wrong, replications, settings = ENGINES[name]
    for engine in (right, wrong):
        result = sbc(model, engine, replications, args=args, **SHORT | settings)
        assert not result.failed, result
        assert result.calibrated == (engine is right), result
        assert result.num_draws == 31


# ------------------------------------------------------------------------------ functions of users


def test_function_that_returns_exact_draws_is_calibrated_and_narrow_ones_are_not():
    for scale in (1.0, 0.4):
        function = functools.partial(exact, scale=scale, count=200)
        result = sbc(line, replications=80, posterior=function, args=(FEW,), **SHORT)
        assert result.calibrated == (scale == 1.0), result
        assert set(result.thinning) == {6}


def test_chains_of_a_function_are_thinned_and_told_of_where_they_are_too_short():
    """An autoregressive chain with a memory of 20 draws, of 31 x 60 draws and of 31 alone."""

    def chain(args, data, seed, length):
        values = exact(args, data, seed, count=length)
        rho = 0.95
        for x in values.values():
            mean = x.mean()
            noise = (x - mean) * np.sqrt(1 - rho**2)
            for t in range(1, length):
                x[t] = mean + rho * (x[t - 1] - mean) + noise[t]
        return Draws({name: x[None] for name, x in values.items()})

    for length in (31 * 60, 31):
        function = functools.partial(chain, length=length)
        result = sbc(line, replications=40, posterior=function, args=(FEW,), **SHORT)
        assert set(result.thinning) == {length // 31}
        short = (result.ess < 0.8 * 31).mean()
        assert short < 0.2 if length > 31 else short > 0.9
    assert "fewer effective draws than draws" in repr(result)


def test_function_gets_arguments_data_and_a_stream_of_its_own():
    seen = []

    def looking(args, data, seed):
        seen.append((args, data, seed.get_state(), probtorch.rand(()).item()))
        return {"p": np.linspace(0.1, 0.9, 40), "n": np.full(40, 7)}

    result = sbc(counted, replications=6, posterior=looking, **SHORT)
    assert "n" in result.ranks and result.ranks["n"].shape == (6,)
    args, data, *_ = seen[0]
    assert args == () and set(data) == {"y"} and data["y"].shape == (6,)
    assert len({state for _, _, state, _ in seen}) == len({drawn for *_, drawn in seen}) == 6
    first, seen[:] = [s[3] for s in seen], []
    sbc(counted, replications=6, posterior=looking, **SHORT)
    assert [s[3] for s in seen] == first


def test_engine_with_its_own_chains_is_taken_as_it_is():
    make = lambda m: MCMC(quick(NUTS)(m), 62, 60, num_chains=2)
    result = sbc(line, make, 12, args=(FEW,), **SHORT)
    assert set(result.thinning) == {4} and result.num_draws == 31
    assert "with MCMC" in repr(result)


@pytest.mark.parametrize(
    "found, error, message",
    [
        (3, ArgumentError, "a dict of arrays"),
        ({"a": np.zeros(31)}, ModelError, "return draws of 'b', too"),
        ({"a": np.zeros(31), "b": np.zeros((31, 2))}, ShapeError, "at site 'b'"),
        ({"a": np.zeros(30), "b": np.zeros(31)}, ShapeError, "as many draws"),
        ({"a": np.zeros(8), "b": np.zeros(8)}, ArgumentError, "at least num_samples=31"),
        ({"a": np.full(31, np.nan), "b": np.zeros(31)}, InferenceError, "finite values"),
    ],
)
def test_draws_that_are_none_are_refused(found, error, message):
    with pytest.raises(error, match=message):
        sbc(line, replications=4, posterior=lambda *_: found, args=(FEW,), **SHORT)


def test_posterior_that_is_no_function_is_refused():
    with pytest.raises(ArgumentError, match="a function of the model's arguments"):
        sbc(line, posterior=3, args=(FEW,))


# --------------------------------------------------------------------------------- for a long time

EVERYWHERE = {
    "NUTS": NUTS,
    "HMC": HMC,
    "ChEES": ChEESHMC,
    "Gibbs": functools.partial(Gibbs, init_strategy=init_to_sample),
    "SMC": lambda m: SMC(NUTS(m), 128, num_threads=1),
}
REPLICATIONS = int(os.environ.get("PROBTORCH_SBC_REPLICATIONS", "1000"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", [*EVERYWHERE, "Laplace"])
def test_engine_is_calibrated_in_a_thousand_replications(engine, name):
    if engine == "Laplace" and name not in NORMAL:
        pytest.skip("exact for normal posteriors alone")
    model, args = MODELS[name]
    make = EVERYWHERE.get(engine, LaplaceApproximation)
    result = sbc(model, make, REPLICATIONS, args=args, level=1e-5, seed=4, progress_bar=False)
    print(result)
    assert result.calibrated, result
    assert not result.failed
