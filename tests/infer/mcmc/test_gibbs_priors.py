"""`EllipticalSlice` as a block of `Gibbs`, along a prior that other blocks change."""

import functools

import numpy as np
import pytest
import scipy.stats

import probtorch
import probtorch.distributions as dist
from probtorch import sample
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.core.tree import leaves, replace
from probtorch.diagnostics import InferenceWarning
from probtorch.effects.reparams import LocScaleReparam
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    AIES,
    ESS,
    HMC,
    MCLMC,
    MCMC,
    NUTS,
    RMHMC,
    SA,
    ChEESHMC,
    DEMetropolis,
    EllipticalSlice,
    FullConditional,
    Gibbs,
    IndependentMH,
    MixedHMC,
    ReplicaExchange,
    Slice,
    Target,
    init_to_sample,
    init_to_value,
)
from probtorch.infer.mcmc import chain as chain_runs
from probtorch.infer.mcmc.chunk import ChunkPlan, ChunkRunner, Task, run_chunk
from probtorch.infer.mcmc.kernels.conditional_prior import ConditionalPrior, GaussianGiven
from probtorch.infer.mcmc.saved import chain_leaves, chain_of
from probtorch.testing import geweke
from tests.infer.mcmc.targets import handle
from tests.infer.mcmc.test_gibbs import scores

AT = np.linspace(0.0, 3.0, 5)
SQUARES = (AT[:, None] - AT) ** 2
DATA = np.array([0.1, 1.4, -0.2, -1.0, -0.5])


def process(y):
    """A Gaussian process around an unknown mean, with unknown length and scale."""
    length = sample("length", dist.LogNormal(0.0, 0.5))
    scale = sample("scale", dist.LogNormal(0.0, 0.5))
    mean = sample("mean", dist.Normal(0.0, 1.0))
    cov = scale**2 * (probtorch.tensor(-0.5 * SQUARES) / length**2).exp()
    cov = cov + 0.01 * probtorch.eye(len(AT))
    f = sample("f", dist.MultivariateNormal(mean.expand((len(AT),)), covariance_matrix=cov))
    sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)


def exact():
    """Posterior means: logs of length and scale with their squares, the mean, f in two places.

    Given length and scale all else is Gaussian; those are on a grid.
    """
    grid = np.linspace(-2.5, 2.5, 101)
    log_p, values = [], []
    for log_length in grid:
        for log_scale in grid:
            cov = np.exp(2.0 * log_scale - 0.5 * SQUARES / np.exp(2.0 * log_length))
            cov += 0.01 * np.eye(len(AT)) + 1.0  # the mean integrated out
            seen = cov + 0.25 * np.eye(len(AT))
            log_p.append(
                scipy.stats.norm.logpdf([log_length, log_scale], 0.0, 0.5).sum()
                + scipy.stats.multivariate_normal.logpdf(DATA, cov=seen)
            )
            pull = np.linalg.solve(seen, DATA)
            f = cov @ pull
            values.append(
                [log_length, log_scale, log_length**2, log_scale**2, pull.sum(), f[0], f[2]]
            )
    p = np.exp(np.array(log_p) - max(log_p))
    return p @ np.array(values) / p.sum()


def run(kernel, *args, num_samples=8000, **settings):
    mcmc = MCMC(kernel, num_samples, 300, num_chains=2, seed=1, progress_bar=False, **settings)
    mcmc.diagnose = False
    return mcmc.run(*args), mcmc


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gibbs(process, {"f": EllipticalSlice}),
        lambda: Gibbs(process, {("mean", "f"): EllipticalSlice, ("length", "scale"): Slice}),
        lambda: Gibbs(process, {("length", "scale", "mean"): NUTS}, kernel=EllipticalSlice),
    ],
    ids=["alone", "with its mean", "as the rest"],
)
def test_a_process_with_unknown_length_and_scale_has_the_posterior_of_quadrature(make):
    """Seven scores, beyond 4.5 by chance once in 21,000 runs; eager steps are the compiled ones."""
    kernel = make()
    draws, mcmc = run(kernel, probtorch.tensor(DATA))
    x = draws.posterior
    logs = [np.log(x["length"]), np.log(x["scale"])]
    shown = [*logs, *(a**2 for a in logs), x["mean"], x["f"][..., 0], x["f"][..., 2]]
    assert np.abs(scores(shown, exact())).max() < 4.5
    chain = mcmc.last_state[0]
    saved = chain_leaves(chain)
    for a, b in zip(leaves(chain_of(kernel, saved)), leaves(chain), strict=False):
        np.testing.assert_array_equal(a.array, b.array)
    context = mcmc.target.density.context()  # which lives as long as it may be called
    chain = replace(chain, kernel=replace(chain.kernel, density=handle(context)))
    positions, _, info = ChunkRunner(chain).run(3)
    plan = ChunkPlan(*(wrap(np.array(v)) for v in (3, False, False)))
    _, trace = run_chunk(Task(chain, plan), 3)
    np.testing.assert_allclose(trace.positions.array, positions, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(trace.info.n_steps.array[:3], info.n_steps)


def walk(y=None):
    """A random walk whose steps are of an unknown size, and a discrete site that shifts it."""
    size = sample("size", dist.LogNormal(-0.5, 0.4))
    shift = sample("shift", dist.Bernoulli(0.3))
    level = sample("level", dist.GaussianRandomWalk(size, 4))
    sample("y", dist.Poisson((level + shift).exp()).to_event(1), obs=y)


def blocks_of_walk(model):
    return Gibbs(model, {"level": EllipticalSlice}, kernel=Slice, init_strategy=init_to_sample)


GEWEKE = {"warmup_steps": 20, "progress_bar": False, "level": 1e-6}


def test_joint_law_of_parameters_and_data_is_left_as_it_is():
    """60 chains of 20 steps; a false alarm has a chance of 1e-6."""
    result = geweke(walk, blocks_of_walk, 60, 20, **GEWEKE)
    assert {"size", "shift", "level[0]"} <= set(result.zscores)
    assert result.agree, result


def test_an_ellipse_that_counts_the_prior_twice_is_told(monkeypatch):
    right = GaussianGiven.ellipse

    def wrong(self, key, counter, position):
        found, none = right(self, key, counter, position), wrap(np.zeros(()))
        return replace(found, here2=none, both=none, there2=none)

    monkeypatch.setattr(GaussianGiven, "ellipse", wrong)
    result = geweke(walk, blocks_of_walk, 60, 20, **GEWEKE)
    assert not result.agree, result


def test_draws_do_not_depend_on_threads():
    kernel = functools.partial(Gibbs, walk, {"level": EllipticalSlice})
    y = probtorch.tensor([1.0, 0.0, 2.0, 4.0])
    one, two = (run(kernel(), y, num_samples=200, num_threads=n)[0] for n in (1, 2))
    for name, values in one.posterior.items():
        np.testing.assert_array_equal(two[name], values)


class Crash(Exception):
    """What breaks a run off."""


def test_a_run_broken_off_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(chain_runs, "CALL_SECONDS", 0.0)  # a call, and a snapshot, per transition
    y = probtorch.tensor([1.0, 0.0, 2.0, 4.0])

    def run(crash=None, **options):
        def hook(kernel, params, stage, i):
            if i == crash:
                raise Crash

        # A kernel of its own for each: what a new process has.
        kernel = Gibbs(walk, {"level": EllipticalSlice})
        mcmc = MCMC(kernel, 4, 7, num_chains=1, seed=2, hook_fn=hook, progress_bar=False)
        mcmc.diagnose = False
        return mcmc.run(y, **options)

    with configure(jit=False):
        whole = run()
        for crash in (3, 9):
            with pytest.raises(Crash):
                run(crash, checkpoint=tmp_path, checkpoint_every=1e-9)
        parts = run(checkpoint=tmp_path)
    for name, values in whole.posterior.items():
        assert parts[name].tobytes() == values.tobytes(), name


def test_chains_that_go_on_with_other_arguments_have_the_prior_of_these():
    """The model takes the size of the steps as an argument: the walk is as wide as it says."""

    def sized(size):
        sample("shift", dist.Normal(0.0, 1.0))
        sample("level", dist.GaussianRandomWalk(size, 3))
        sample("y", dist.Normal(0.0, 1.0), obs=0.0)

    mcmc = MCMC(Gibbs(sized, {"level": EllipticalSlice}), 4000, 10, seed=1, progress_bar=False)
    mcmc.diagnose = False
    mcmc.run(probtorch.tensor(1.0))
    mcmc.post_warmup_state = mcmc.last_state
    level = mcmc.run(probtorch.tensor(10.0)).posterior["level"]
    # Slices of a flat likelihood take the first point of the ellipse: draws of correlation 1/2.
    np.testing.assert_allclose(level.var((0, 1)), [100.0, 200.0, 300.0], rtol=0.25)


# ------------------------------------------------------------------------------- the prior itself


def several():
    top = sample("top", dist.Normal(1.0, 2.0))
    spread = sample("spread", dist.LogNormal(0.0, 1.0))
    with probtorch.plate("rows", 3):
        row = sample("row", dist.Normal(top, spread))
        with probtorch.handlers.scale(scale=5.0):
            sample("width", dist.LogNormal(row, 0.5))
    sample("after", dist.Normal(row.sum(), 1.0))


def test_the_prior_of_a_block_is_that_given_the_others():
    """Rows and widths given top and spread: mean, density and draws of a normal distribution."""
    target = Target.from_model(several)
    prior = ConditionalPrior.of(target, ("row", "width"), "EllipticalSlice")
    q = np.random.default_rng(0).normal(size=target.dim)
    q[target.slots["top"].start], q[target.slots["spread"].start] = 0.7, np.log(1.3)
    prior.check(q)
    own = np.kron(np.eye(3), np.ones((1, 1)))
    cov = 1.3**2 * np.block([[own, own], [own, own + 0.25 / 1.3**2 * np.eye(3)]])
    law = scipy.stats.multivariate_normal(np.full(6, 0.7), cov)
    mean, top, count = prior.mean(wrap(q))
    assert count == 6
    np.testing.assert_allclose(mean.array, 0.7, rtol=1e-12)
    np.testing.assert_allclose(top.array, law.logpdf(np.full(6, 0.7)), rtol=1e-12)
    x = np.linspace(-1.0, 2.0, 6)
    found = prior.logdensity(wrap(q), wrap(x)).array
    np.testing.assert_allclose(found, law.logpdf(x), rtol=1e-12)
    columns = [prior.drawn(wrap(q), wrap(z))[0].array - mean.array for z in np.eye(6)]
    np.testing.assert_allclose(np.transpose(columns) @ np.array(columns), cov, atol=1e-12)


def others():
    sample("t", dist.StudentT(3.0))
    half = sample("half", dist.HalfNormal(1.0))
    left = sample("left", dist.Normal(0.0, 1.0))
    right = sample("right", dist.Normal(0.0, left.exp()))
    sample("y", dist.Normal(right, half), obs=0.3)


@pytest.mark.parametrize(
    "block, name, got",
    [
        ("t", "t", "StudentT, which draws others than normal numbers"),
        ("half", "half", "draws that are not linear in normal numbers"),
        (("left", "right"), "right", "draws that are not linear in normal numbers"),
    ],
    ids=["another family", "folded", "a product"],
)
def test_a_prior_that_is_no_gaussian_is_refused_by_name(block, name, got):
    with pytest.raises(InferenceError) as caught:
        run(Gibbs(others, {block: EllipticalSlice}), num_samples=10)
    assert f"EllipticalSlice: the prior of {name!r}" in str(caught.value)
    assert f"got:      {got}" in str(caught.value)


def test_a_prior_that_is_a_gaussian_where_chains_begin_alone_is_told_of():
    def model(bent):
        k = sample("k", dist.Normal(0.0, 1.0))
        a = sample("a", dist.Normal(0.0, 1.0))
        b = sample("b", dist.Normal(probtorch.where(k > 0.0, a, a * a) if bent else a, 0.5))
        sample("y", dist.Normal(b, 1.0), obs=0.3)

    start = init_to_value(values={"k": 1.0, "a": 0.3, "b": 0.3})
    kernel = Gibbs(model, {("a", "b"): EllipticalSlice}, init_strategy=start)
    with pytest.warns(InferenceWarning, match=r"(?s)not of the posterior.*prior of 'b'.*linear"):
        run(kernel, True, num_samples=400)
    run(kernel, False, num_samples=400)  # where all warnings are errors


def test_a_mean_at_which_the_model_stops_is_no_gaussian_either():
    def model():
        half = sample("half", dist.HalfNormal(1.0))
        sample("x", dist.Normal(0.0, half))
        sample("y", dist.Normal(0.0, 1.0), obs=0.3)

    with pytest.raises(InferenceError, match="at whose mean the model is not defined"):
        run(Gibbs(model, {("half", "x"): EllipticalSlice}), num_samples=10)


def test_a_density_has_no_prior_but_may_be_given_a_gaussian():
    """Two independent normals, by way of a wider one; four scores each below 4.5."""
    flat = Target.from_density(
        lambda x: -0.5 * (x["a"] ** 2 + ((x["b"] - 1.0) ** 2).sum()),
        example={"a": 0.0, "b": np.zeros(2)},
    )
    with pytest.raises(InferenceError, match="nobody knows what the prior is"):
        run(Gibbs(flat, {"b": EllipticalSlice}), num_samples=10)
    full = [[2.0, 0.5], [0.5, 3.0]]
    for kind, covariance in (
        (EllipticalSlice, np.full(2, 2.0)),
        (EllipticalSlice, full),
        (IndependentMH, np.full(2, 2.0)),
    ):
        given = kind(flat, loc=[0.5, 0.5], covariance=covariance)
        kernel = Gibbs(flat, {"b": given}, kernel=Slice)
        draws, mcmc = run(kernel)
        b = draws.posterior["b"]
        shown = [b[..., 0], b[..., 1], b[..., 0] ** 2, b[..., 1] ** 2]
        assert np.abs(scores(shown, [1.0, 1.0, 2.0, 2.0])).max() < 4.5
        saved = chain_leaves(mcmc.last_state[0])
        for x, y in zip(chain_leaves(chain_of(kernel, saved)), saved, strict=True):
            np.testing.assert_array_equal(x, y)


def hierarchy(y):
    scale = sample("scale", dist.HalfNormal(1.0))
    with probtorch.plate("group", len(y)):
        effect = sample("effect", dist.Normal(0.0, scale))
        sample("y", dist.Normal(effect, 0.7), obs=y)


def given_coin(rng_key, gibbs_sites, hmc_sites):
    return {"coin": dist.Bernoulli(0.3).sample()}


def with_coin(y):
    sample("coin", dist.Bernoulli(0.3))
    hierarchy(y)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gibbs(
            hierarchy,
            {"effect_decentered": EllipticalSlice},
            reparam={"effect": LocScaleReparam(0.0)},
        ),
        lambda: Gibbs(
            with_coin,
            {"coin": FullConditional(given_coin), "effect_decentered": EllipticalSlice},
            reparam={"effect": LocScaleReparam(0.0)},
        ),
    ],
    ids=["a kernel", "a function too"],
)
def test_blocks_of_a_reparameterised_model_have_what_they_need_of_it(make, tmp_path):
    """Against quadrature over the scale; two scores below 4.5."""
    y = np.array([1.0, 2.0, 0.5, 1.0, -1.0])
    at = np.linspace(1e-6, 8.0, 4001)
    density = scipy.stats.norm.pdf(at)
    density *= scipy.stats.norm.pdf(y[:, None], 0.0, np.hypot(at, 0.7)).prod(axis=0)
    density /= density.sum()
    exact = [(density * at).sum(), (density * at**2).sum()]
    draws, _ = run(make(), probtorch.tensor(y))
    scale = draws.posterior["scale"]
    assert np.abs(scores([scale, scale**2], exact)).max() < 4.5

    # A saved chain, which is made again before its model is known, goes on.
    def saved():
        mcmc = MCMC(make(), 50, 300, seed=1, progress_bar=False)
        mcmc.diagnose = False
        return mcmc

    first = saved().run(probtorch.tensor(y), checkpoint=tmp_path)
    again = saved().run(probtorch.tensor(y), checkpoint=tmp_path, until_ess=60.0)
    assert again.num_draws > 50
    np.testing.assert_array_equal(again["scale"][:, :50], first["scale"])


# ------------------------------------------------------------------------------------ other kernels


@pytest.mark.parametrize(
    "make, got",
    [
        *((kind, f"{kind.__name__}, which moves") for kind in (AIES, DEMetropolis, ESS, SA)),
        (ChEESHMC, "ChEESHMC, which moves"),
        (Gibbs, "Gibbs, which has blocks itself"),
        (lambda m: MixedHMC(HMC(m, num_steps=3)), "MixedHMC, which has blocks itself"),
        (RMHMC, "RMHMC, which evaluates more of a model"),
        (MCLMC, "MCLMC, whose steps alone do not"),
        (lambda m: ReplicaExchange(HMC(m, num_steps=3)), "ReplicaExchange, whose steps alone"),
    ],
)
def test_kernels_that_cannot_be_a_block_are_refused_with_the_reason(make, got):
    with pytest.raises(ArgumentError) as caught:
        Gibbs(process, {"f": make})
    assert f"got:      {got}" in str(caught.value)
    assert "fix:      " in str(caught.value)
