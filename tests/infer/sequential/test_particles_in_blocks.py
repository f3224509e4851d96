"""Particles that `Gibbs` moves: discrete sites, and a kernel for each block, at temperatures."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.stats

import probtorch
import probtorch.distributions as dist
from probtorch import sample
from probtorch.contrib.bart import bart
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    AIS,
    HMC,
    MALA,
    NUTS,
    SMC,
    DiscreteHMCGibbs,
    EllipticalSlice,
    FullConditional,
    Gibbs,
    MixedHMC,
    NestedSampler,
    RandomWalk,
    Slice,
    SMCWarning,
)
from probtorch.infer.sequential import mutation
from probtorch.infer.sequential.mutation import Mutation
from probtorch.infer.sequential.tempering import TemperedPath
from tests.infer.broken_runs import broken_off_often
from tests.infer.mcmc.test_gibbs import DATA, chain_model, exact_chain
from tests.infer.sequential.test_saved_particles import check_same

# Seeds are fixed; of a sound estimate one in 15,000 is further from the truth than this many
# standard errors.
SIGMAS = 4.0
MANY = {"num_particles": 4000, "progress_bar": False, "num_threads": 2}


KERNELS = {
    "conditional": lambda: Gibbs(chain_model),
    "modified": lambda: Gibbs(chain_model, {("z0", "z2"): "modified", "field": RandomWalk}),
    "metropolis": lambda: DiscreteHMCGibbs(HMC(chain_model, num_steps=3), random_walk=True),
    "along the prior": lambda: Gibbs(chain_model, {"field": EllipticalSlice}),
    "mixed": lambda: MixedHMC(HMC(chain_model, trajectory_length=3.0)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_evidence_and_posterior_of_a_mixed_model_are_those_of_enumeration(name):
    """Means by standard errors of independent draws, doubled for ancestors that are shared."""
    smc = SMC(KERNELS[name](), temperatures=[0.2, 0.6, 1.0], seed=1, **MANY)
    draws = smc.run(probtorch.tensor(DATA))
    log_evidence, means = exact_chain()
    assert abs(draws.log_evidence - log_evidence) < SIGMAS * draws.log_evidence_error
    assert draws.log_evidence_error < 0.05
    x = draws.posterior
    assert all(x[f"z{i}"].dtype == np.int64 for i in range(3))
    shown = np.stack([x["field"], x["field"] ** 2, *(x[f"z{i}"] for i in range(3))])[:, 0]
    off = np.abs(shown.mean(1) - means) / (2.0 * shown.std(1) / np.sqrt(shown.shape[1]))
    assert off.max() < SIGMAS
    assert np.isfinite([x for stage in draws.attrs["tuned"] for x in stage.values()]).all()


def survey(seen):
    number = sample("number", dist.Poisson(40.0))
    with probtorch.plate("visit", len(seen)):
        sample("seen", dist.Binomial(number, 0.3), obs=seen)


def test_evidence_of_counts_without_bound_is_their_sum():
    """By SMC and by annealed importance sampling, whose error is that of its weights."""
    seen = np.array([14.0, 17.0, 11.0])
    n = np.arange(17, 400)
    log_p = scipy.stats.poisson.logpmf(n, 40.0)
    log_p = log_p + scipy.stats.binom.logpmf(seen[:, None], n, 0.3).sum(0)
    exact, mean = np.log(np.exp(log_p).sum()), np.exp(log_p) @ n / np.exp(log_p).sum()
    draws = SMC(Gibbs(survey), seed=2, **MANY).run(probtorch.tensor(seen))
    assert abs(draws.log_evidence - exact) < SIGMAS * draws.log_evidence_error
    number = draws.posterior["number"]
    assert number.dtype == np.int64
    assert abs(number.mean() - mean) < 2.0 * SIGMAS * number.std() / np.sqrt(number.size)
    ais = AIS(Gibbs(survey), seed=2, **MANY | {"num_particles": 1000})
    assert abs(ais.run(probtorch.tensor(seen)).log_evidence - exact) < 0.15


# --------------------------------------------------------------------------- at one temperature

TEMPERATURE = 0.3
Y = np.array([0.3, 1.9, 2.6])


def shifted(y):
    """A mean, with a normal prior; and which of the data are shifted by 2."""
    mean = sample("mean", dist.Normal(0.5, 1.5))
    with probtorch.plate("data", len(y)):
        high = sample("high", dist.Bernoulli(0.4))
        sample("y", dist.Normal(mean + 2.0 * high, 0.7), obs=y)


def exact_draws(temperature, count, rng):
    """Draws at a temperature: a likelihood to a power is one of more noise, but for a constant."""
    kinds = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    noise = 0.49 / temperature
    cov = 2.25 + noise * np.eye(3)
    log_p = scipy.stats.bernoulli.logpmf(kinds, 0.4).sum(1)
    for i, kind in enumerate(kinds):
        law = scipy.stats.multivariate_normal(0.5 + 2.0 * kind, cov)
        log_p[i] += law.logpdf(Y)
    p = np.exp(log_p - log_p.max())
    high = kinds[rng.choice(8, size=count, p=p / p.sum())]
    precision = 1.0 / 2.25 + 3.0 / noise
    centre = (0.5 / 2.25 + (Y - 2.0 * high).sum(1) / noise) / precision
    return np.column_stack([rng.normal(centre, precision**-0.5), high])


BLOCKS = {
    "conjugate, conditional": {"mean": "conjugate", "high": "conditional"},
    "walk, modified": {"mean": RandomWalk, "high": "modified"},
    "ellipse, metropolis": {"high": "metropolis", "mean": EllipticalSlice},
    "slice, conditional": {"mean": Slice},
    "gradient": {"mean": MALA},
}


def moved(blocks, count, temperature):
    """Exact draws at `TEMPERATURE`, moved at another one."""
    kernel = Gibbs(shifted, blocks)
    path = TemperedPath(kernel.target((probtorch.tensor(Y),), {}), None)
    rng = np.random.default_rng(0)
    moves = Mutation(kernel, path, Generator(1), 1)
    # Fitted to others, the kernel stays as it is.
    moves.fit(path.target, exact_draws(TEMPERATURE, 300, rng), temperature)
    starts = exact_draws(TEMPERATURE, count, rng)
    return moves.move(starts, temperature, 3).positions.array[:, -1]


@pytest.mark.parametrize("name", BLOCKS)
def test_moves_leave_the_density_at_a_temperature_as_it_is(name):
    """Fourteen scores of 4000 independent draws: one beyond 5 has a chance of 8e-6."""

    def told(x):
        pairs = [x[:, i] * x[:, j] for i in range(4) for j in range(i, 4)]
        return np.column_stack([x, *pairs])

    exact = told(exact_draws(TEMPERATURE, 400_000, np.random.default_rng(5)))
    mean, sd = exact.mean(0), exact.std(0)
    found = told(moved(BLOCKS[name], 4000, TEMPERATURE))
    assert np.abs((found.mean(0) - mean) / (sd * np.sqrt(1 / 4000 + 1 / 400_000))).max() < 5.0
    # At another temperature they do not.
    other = told(moved(BLOCKS[name], 4000, 1.0))
    assert np.abs((other.mean(0) - mean) / sd * np.sqrt(4000)).max() > 8.0


def test_step_sizes_of_kernels_without_sites_stay_as_they_are(monkeypatch):
    """The block of all that is in no other has none here, and neither do both of counts alone."""
    seen, fit = [], Mutation.fit

    def followed(self, *args):
        fit(self, *args)
        seen.append(self._in_use.step_size.array[:, 0].tolist())

    monkeypatch.setattr(Mutation, "fit", followed)
    settings = {"num_particles": 100, "seed": 1, "progress_bar": False}
    temperatures = [0.1, 0.2, 0.5, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SMCWarning)
        kernel = Gibbs(chain_model, {"field": HMC(chain_model, num_steps=3)})
        SMC(kernel, temperatures=temperatures, **settings).run(probtorch.tensor(DATA))
        SMC(Gibbs(survey), temperatures=temperatures, **settings).run(
            probtorch.tensor([14.0, 17.0])
        )
    fields, counts = np.array(seen[:4]), np.array(seen[4:])
    assert fields.shape == (4, 2) and counts.shape == (4, 1)
    np.testing.assert_allclose(fields[:, 1], 1.0, rtol=1e-12)
    np.testing.assert_allclose(counts[:, 0], 1.0, rtol=1e-12)
    assert len(np.unique(fields[:, 0])) == 4  # which has sites


# ------------------------------------------------------------------------------- runs and refusals


def test_a_run_that_is_broken_off_ends_as_one_that_never_was(tmp_path, monkeypatch):
    """With two threads or one, and pieces of 7 particles between checkpoints."""
    monkeypatch.setattr(mutation.Mutation, "_piece", lambda *_: 7)
    blocks = {"field": EllipticalSlice, "z1": "modified"}
    settings = {"num_particles": 70, "seed": 3, "progress_bar": False, "num_steps": 2}

    def run(threads=1, **options):
        smc = SMC(Gibbs(chain_model, blocks), num_threads=threads, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SMCWarning)
            return smc.run(probtorch.tensor(DATA), **options)

    whole = run()
    check_same(run(threads=2), whole)
    rng = np.random.default_rng(0)
    again = lambda: run(checkpoint=tmp_path, checkpoint_every=0.0)
    found, breaks = broken_off_often(again, lambda: int(rng.integers(1, 5)), monkeypatch)
    assert breaks > 1
    check_same(found, whole)


def test_values_that_all_particles_agree_on_are_no_standstill():
    """Which of two kinds the data tell beyond doubt; the mean forgets where it stood in a step."""

    def model():
        kind = sample("kind", dist.Bernoulli(0.5))
        mean = sample("mean", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(mean + 100.0 * kind, 1.0), obs=probtorch.tensor(100.5))

    kernel = Gibbs(model, {"mean": "conjugate"})
    draws = SMC(kernel, num_particles=500, seed=0, progress_bar=False).run()
    assert (draws["kind"] == 1).all()
    assert max(draws.num_steps) <= 2


def draw(rng_key, gibbs_sites, hmc_sites):
    return {"field": dist.Normal(0.0, 1.0).sample(generator=rng_key)}


def trees():
    x = np.linspace(0.0, 1.0, 20)[:, None]
    f = bart("f", probtorch.tensor(x), y_guide=x[:, 0], trees=2)
    sample("y", dist.Normal(f, 1.0).to_event(1), obs=probtorch.tensor(x[:, 0]))


@pytest.mark.parametrize(
    "run, error, got",
    [
        (
            lambda: SMC(Gibbs(chain_model, {"field": FullConditional(draw)})),
            ArgumentError,
            r"Gibbs with a FullConditional\(draw\), which knows the posterior alone",
        ),
        (
            lambda: NestedSampler(Gibbs(chain_model)).run(probtorch.tensor(DATA)),
            ArgumentError,
            "one that moves the discrete site 'z0'",
        ),
        (
            lambda: SMC(
                Gibbs(chain_model), reference=dist.Normal(0.0, 1.0).expand([4]).to_event(1)
            ).run(probtorch.tensor(DATA)),
            ArgumentError,
            "a reference, and the discrete site 'z0'",
        ),
        (lambda: SMC(Gibbs(trees)).run(), InferenceError, "whose own update knows the posterior"),
    ],
    ids=["function", "nested", "reference", "trees"],
)
def test_what_has_no_moves_at_other_temperatures_is_refused(run, error, got):
    with pytest.raises(error, match=got):
        run()


def test_continuous_models_move_in_blocks_too():
    """`NestedSampler` takes them, as it takes any kernel of continuous sites."""

    def normal(y):
        a = sample("a", dist.Normal(0.0, 2.0))
        b = sample("b", dist.Normal(0.0, 2.0))
        sample("y", dist.Normal(a + b, 1.0), obs=y)

    exact = scipy.stats.norm.logpdf(1.5, 0.0, 3.0)
    kernel = Gibbs(normal, {"a": Slice, "b": NUTS})
    nested = NestedSampler(kernel, num_live_points=300, seed=0, progress_bar=False)
    found = nested.run(probtorch.tensor(1.5))
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error
    draws = SMC(kernel, num_particles=1000, seed=0, progress_bar=False).run(probtorch.tensor(1.5))
    assert abs(draws.log_evidence - exact) < SIGMAS * draws.log_evidence_error
