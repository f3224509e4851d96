"""`Gibbs` and `DiscreteHMCGibbs` against enumeration and closed forms."""

import itertools

import numpy as np
import pytest
import scipy.stats

import probtorch
import probtorch.distributions as dist
from probtorch import sample
from probtorch.core.dispatch import wrap
from probtorch.core.tree import leaves, replace
from probtorch.diagnostics import InferenceWarning, diagnose, ess_mean
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.infer import (
    HMC,
    MCMC,
    NUTS,
    DiscreteHMCGibbs,
    FullConditional,
    Gibbs,
    HMCGibbs,
    MixedHMC,
    RandomWalk,
    Slice,
    Target,
    init_to_median,
    init_to_sample,
    init_to_value,
)
from probtorch.infer.mcmc import chunk
from probtorch.infer.mcmc.chunk import ChunkPlan, ChunkRunner, Task, run_chunk
from probtorch.infer.mcmc.saved import chain_leaves, chain_of
from tests.infer.mcmc.targets import handle

DATA = np.array([0.4, -1.1, 1.9])


def chain_model(y):
    """Three binary sites, each leaning to the one before it, which shift data; and their field."""
    field = probtorch.sample("field", dist.Normal(0.0, 1.0))
    before, shown = 0.5, []
    for i in range(3):
        before = probtorch.sample(f"z{i}", dist.Bernoulli(logits=field + 2.0 * before - 1.0))
        shown.append(before)
    probtorch.sample("y", dist.Normal(2.0 * probtorch.stack(shown), 1.0).to_event(1), obs=y)


def exact_chain():
    """Log evidence, and means of the field, its square and the sites: all values, on a grid."""
    field = np.linspace(-8.0, 8.0, 4001)
    weights, values = [], []
    for z in itertools.product([0.0, 1.0], repeat=3):
        logits = [field + 2.0 * b - 1.0 for b in (0.5, *z[:-1])]
        log_p = scipy.stats.norm.logpdf(field)
        for one, logit in zip(z, logits, strict=True):
            log_p = log_p + scipy.stats.bernoulli.logpmf(one, 1.0 / (1.0 + np.exp(-logit)))
        log_p += scipy.stats.norm.logpdf(DATA, 2.0 * np.array(z)).sum()
        weights.append(np.exp(log_p))
        values.append([field, field**2, *(np.full_like(field, x) for x in z)])
    total = np.sum(weights)
    means = np.einsum("zf,zkf->k", np.array(weights) / total, np.array(values))
    return np.log(total * (field[1] - field[0])), means


def scores(draws, expected):
    """Differences of means from what they should be, in their standard errors."""
    ess = np.array([float(ess_mean(x)) for x in draws])
    sd = np.array([x.std() for x in draws])
    return (np.array([x.mean() for x in draws]) - expected) / (sd / np.sqrt(ess))


def run(kernel, *args, num_samples=3000, warmup_steps=200, seed=1):
    mcmc = MCMC(
        kernel,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=2,
        seed=seed,
        progress_bar=False,
    )
    return mcmc.run(*args), mcmc


def assert_eager_steps_are_the_compiled_ones(mcmc):
    """Three transitions from where the first chain of a run ended."""
    context = mcmc.target.density.context()
    chain = mcmc.last_state[0]
    chain = replace(chain, kernel=replace(chain.kernel, density=handle(context)))
    positions, _, info = ChunkRunner(chain).run(3)
    plan = ChunkPlan(*(wrap(np.array(v)) for v in (3, False, False)))
    _, trace = run_chunk(Task(chain, plan), 3)
    np.testing.assert_allclose(trace.positions.array, positions, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(trace.info.n_steps.array[:3], info.n_steps)


def slowly(kernel):
    return pytest.param(kernel, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "kernel",
    [
        Gibbs(chain_model),
        slowly(Gibbs(chain_model, {("z0", "z2"): "modified", "field": RandomWalk})),
        slowly(DiscreteHMCGibbs(HMC(chain_model, trajectory_length=1.5), random_walk=True)),
        MixedHMC(HMC(chain_model, trajectory_length=3.0), modified=True),
        slowly(
            MixedHMC(
                HMC(chain_model, trajectory_length=3.0), random_walk=True, num_discrete_updates=5
            )
        ),
    ],
    ids=["conditional", "modified", "metropolis", "mixed", "mixed, random walk"],
)
def test_posterior_of_a_mixed_model_is_that_of_enumeration(kernel):
    """Five scores; one beyond 4.5 has a chance of 3e-5."""
    draws, mcmc = run(kernel, probtorch.tensor(DATA))
    assert_eager_steps_are_the_compiled_ones(mcmc)
    x = draws.posterior
    assert all(x[f"z{i}"].dtype == np.int64 for i in range(3))
    shown = [x["field"], x["field"] ** 2, *(x[f"z{i}"].astype(float) for i in range(3))]
    assert np.abs(scores(shown, exact_chain()[1])).max() < 4.5


def survey(seen):
    number = probtorch.sample("number", dist.Poisson(40.0))
    with probtorch.plate("visit", len(seen)):
        probtorch.sample("seen", dist.Binomial(number, 0.3), obs=seen)


def test_counts_without_bound_are_moved_by_metropolis():
    """Against the sum over all counts; two scores, beyond 4.5 by chance once in 70,000 runs."""
    seen = np.array([14.0, 17.0, 11.0])
    draws, mcmc = run(Gibbs(survey), probtorch.tensor(seen), num_samples=5000)
    n = np.arange(17, 400)
    log_p = scipy.stats.poisson.logpmf(n, 40.0) + scipy.stats.binom.logpmf(
        seen[:, None], n, 0.3
    ).sum(0)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    x = draws.posterior["number"]
    assert x.dtype == np.int64
    shown = [x.astype(float), x.astype(float) ** 2]
    assert np.abs(scores(shown, [p @ n, p @ n**2])).max() < 4.5
    at = draws.target.log_joint(draws.positions[0, :2])
    expected = [log_p[int(k) - 17] for k in x[0, :2]]
    np.testing.assert_allclose(at, expected, rtol=1e-10)
    assert draws.predict(seed=0)["seen"].shape == (2, 5000, 3)
    # A chain is plain arrays, which come back as the same chain.
    (chain, _), saved = mcmc.last_state, chain_leaves(mcmc.last_state[0])
    for a, b in zip(leaves(chain_of(mcmc.kernel, saved)), leaves(chain), strict=False):
        np.testing.assert_array_equal(a.array, b.array)


@pytest.mark.slow
def test_annotated_sites_are_summed_out_and_the_others_moved():
    """Four scores against all values on a grid; beyond 4.5 by chance once in 37,000 runs."""

    def model(y):
        loc = sample("loc", dist.Normal(0.0, 1.0))
        number = sample("number", dist.Poisson(3.0))
        kind = sample("kind", dist.Bernoulli(0.3))
        with probtorch.plate("rows", 3):
            late = sample("late", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
            sample("y", dist.Normal(loc + kind + 2.0 * late + 0.5 * number, 1.0), obs=y)

    draws, mcmc = run(Gibbs(model), probtorch.tensor(DATA))
    assert mcmc.target.summed == {"late": 2} and set(draws.posterior) == {"loc", "number", "kind"}
    loc, number, kind = np.meshgrid(np.linspace(-8, 8, 801), np.arange(40), [0, 1], indexing="ij")
    log_p = scipy.stats.norm.logpdf(loc) + scipy.stats.poisson.logpmf(number, 3.0)
    log_p = log_p + scipy.stats.bernoulli.logpmf(kind, 0.3)
    late = []
    for y in DATA:
        mean = loc + kind + 0.5 * number
        no, yes = (p * scipy.stats.norm.pdf(y, mean + m) for p, m in ((0.6, 0.0), (0.4, 2.0)))
        log_p = log_p + np.log(no + yes)
        late.append(yes / (no + yes))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = draws.infer_discrete(seed=0)["late"]
    shown = [*(draws.posterior[n].astype(float) for n in ("loc", "number", "kind")), found[..., 2]]
    exact = [(p * x).sum() for x in (loc, number, kind, late[2])]
    assert np.abs(scores(shown, exact)).max() < 4.5
    assert (
        Gibbs(chain_model).target((probtorch.tensor(DATA),), {}).discrete_at(np.zeros((2, 4))) == {}
    )


def test_values_that_are_no_whole_numbers_come_back_as_they_are():
    def model():
        way = probtorch.sample("way", dist.OneHotCategorical(probtorch.tensor([0.2, 0.5, 0.3])))
        probtorch.sample("y", dist.Normal(way[1], 1.0), obs=probtorch.tensor(1.0))

    draws, _ = run(Gibbs(model), num_samples=4000, warmup_steps=10)
    way = draws.posterior["way"]
    assert way.shape == (2, 4000, 3) and (way.sum(-1) == 1).all()
    p = np.array([0.2, 0.5, 0.3]) * np.exp([-0.5, 0.0, -0.5])
    # Draws are independent; three scores, beyond 4.5 by chance once in 50,000 runs.
    p /= p.sum()
    assert (np.abs(way.mean((0, 1)) - p) < 4.5 * np.sqrt(p * (1 - p) / 8000)).all()


def measured(y):
    """A precision, with a conjugate prior; a mean, without; and which of two offsets holds."""
    precision = sample("precision", dist.Gamma(2.0, 1.0))
    mean = sample("mean", dist.StudentT(3.0))
    offset = sample("offset", dist.Categorical(probtorch.tensor([0.3, 0.7])))
    with probtorch.plate("data", len(y)):
        sample("y", dist.Normal(mean + offset, precision**-0.5), obs=y)


def draw_by_hand(rng_key, gibbs_sites, hmc_sites):
    """The offset given the precision that was there, then the precision given that offset."""
    y, mean = probtorch.tensor(DATA), hmc_sites["mean"]
    errors = [((y - mean - k) ** 2).sum() for k in (0.0, 1.0)]
    logits = probtorch.stack(
        [
            np.log(p) - 0.5 * gibbs_sites["precision"] * e
            for p, e in zip((0.3, 0.7), errors, strict=True)
        ]
    )
    offset = dist.Categorical(logits=logits).sample(generator=rng_key)
    error = probtorch.where(offset == 0, *errors)
    precision = dist.Gamma(2.0 + 1.5, 1.0 + 0.5 * error).sample(generator=rng_key)
    return {"precision": precision, "offset": offset}


def test_a_block_that_a_function_draws_has_the_posterior():
    """Against quadrature over the mean; four scores, beyond 4.5 by chance once in 37,000 runs."""
    kernel = HMCGibbs(NUTS(measured), draw_by_hand, ["precision", "offset"])
    draws, mcmc = run(kernel, probtorch.tensor(DATA))
    mean = np.linspace(-40.0, 40.0, 40001)[:, None]
    error = 1.0 + 0.5 * ((DATA[:, None, None] - mean - np.arange(2.0)) ** 2).sum(0)
    # The precision integrated out: a Gamma with 3.5 and this rate is left.
    log_p = scipy.stats.t.logpdf(mean, 3.0) + np.log([0.3, 0.7]) - 3.5 * np.log(error)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    x = draws.posterior
    assert x["offset"].dtype == np.int64
    shown = [x["mean"], x["precision"], x["offset"].astype(float), x["mean"] ** 2]
    exact = [(p * mean).sum(), (p * 3.5 / error).sum(), p[:, 1].sum(), (p * mean**2).sum()]
    assert np.abs(scores(shown, exact)).max() < 4.5
    # A saved chain has the function again.
    chain = mcmc.last_state[0]
    saved = chain_of(kernel, chain_leaves(chain))
    assert [p.places for p in saved.kernel.parts] == [p.places for p in chain.kernel.parts]
    assert_eager_steps_are_the_compiled_ones(mcmc)


def test_chains_of_a_run_have_one_program_whatever_draws_their_blocks(monkeypatch):
    made, native = [], chunk.NativeProgram
    monkeypatch.setattr(chunk, "NativeProgram", lambda *a, **k: made.append(1) or native(*a, **k))
    blocks = {("precision", "offset"): FullConditional(draw_by_hand)}
    run(Gibbs(measured, blocks), probtorch.tensor(DATA), num_samples=1000)
    assert len(made) == 1


def test_a_function_has_the_arguments_of_the_run_that_goes_on():
    """A support that an argument of the model ends: values behind the old end are inside now."""

    def model(end):
        x = sample("x", dist.Uniform(0.0, end))
        sample("y", dist.Normal(0.0, 1.0), obs=0.0 * x)

    def draw(rng_key, gibbs_sites, hmc_sites):
        return {"x": dist.Uniform(0.0, 4.0).sample(generator=rng_key)}

    mcmc = MCMC(Gibbs(model, {"x": FullConditional(draw)}), 300, 5, seed=1, progress_bar=False)
    mcmc.diagnose = False
    assert mcmc.run(probtorch.tensor(2.0)).posterior["x"].max() < 2.0
    mcmc.post_warmup_state = mcmc.last_state
    draws = mcmc.run(probtorch.tensor(4.0))
    assert draws.posterior["x"].max() > 3.5
    assert not draws.sample_stats["outside_support"].any()


def conjugate(counts, y, with_odd):
    """Each family, conjugate given the others; and a site that is not."""
    rate = sample("rate", dist.Gamma(2.0, 1.0))
    share = sample("share", dist.Beta(2.0, 3.0))
    with probtorch.plate("groups", 2):
        mean = sample("mean", dist.Normal(0.0, 1000.0))
        variance = sample("variance", dist.InverseGamma(3.0, 2.0))
    with probtorch.plate("data", len(counts)):
        sample("counts", dist.Poisson(rate), obs=counts)
        sample("kept", dist.Binomial(10, share), obs=counts)
        with probtorch.plate("column", 2):
            sample("y", dist.Normal(mean[:, None], variance[:, None] ** 0.5), obs=y)
    if with_odd:
        odd = sample("odd", dist.Gamma(2.0, 1.0))
        sample("z", dist.Normal(odd, 4.0), obs=2.0)


@pytest.mark.parametrize(
    "with_odd",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["conjugate", "one that is not"],
)
def test_conjugate_sites_are_drawn_from_their_conditionals(with_odd):
    """Closed forms and quadrature; seven scores, beyond 4.5 by chance once in 21,000 runs."""
    counts = np.array([3.0, 1.0, 4.0])
    y = np.array([[1.0, 2.0, 4.0], [1000.0, 1000.3, 999.5]])
    names = ("rate", "share", "mean", "variance", *(["odd"] if with_odd else []))
    data = probtorch.tensor(counts), probtorch.tensor(y), with_odd
    draws, _ = run(Gibbs(conjugate, {names: "conjugate"}), *data, num_samples=1500)
    x, place = draws.posterior, np.linspace(1e-6, 60.0, 200001)
    p = scipy.stats.gamma.pdf(place, 2.0) * scipy.stats.norm.pdf(place, 2.0, 4.0)
    shown, expected = [x["rate"], x["share"]], [10.0 / 4.0, 10.0 / 35.0]
    if with_odd:
        shown, expected = [*shown, x["odd"]], [*expected, (p @ place) / p.sum()]
    for i in range(2):
        m = y[i].mean() + np.linspace(-60.0, 60.0, 400001)
        rate = 2.0 + 0.5 * ((y[i][:, None] - m) ** 2).sum(0)
        log_p = scipy.stats.norm.logpdf(m, 0.0, 1000.0) - 4.5 * np.log(rate)
        w = np.exp(log_p - log_p.max())
        shown += [x["mean"][..., i], x["variance"][..., i]]
        expected += [w @ m / w.sum(), w @ (rate / 3.5) / w.sum()]
    assert np.abs(scores(shown, expected)).max() < 4.5
    # A site that is not conjugate is corrected, by rejections.
    accepted = draws.sample_stats["acceptance_rate"]
    assert (accepted.min() < 0.99) if with_odd else (accepted.min() > 1.0 - 1e-6)


def test_parts_of_simplexes_and_vectors_are_drawn_from_their_conditionals():
    """Closed forms; eight scores, beyond 4.5 by chance once in 18,000 runs."""
    counts = np.array([[5.0, 1.0, 0.0, 2.0], [0.0, 1.0, 7.0, 0.0]])
    prior = np.array([0.5, 1.0, 2.0, 1.5])
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])

    def model(counts):
        with probtorch.plate("rows", 2):
            parts = sample("parts", dist.Dirichlet(prior))
            sample("counts", dist.Multinomial(8, parts), obs=counts)
        loc = sample("loc", dist.MultivariateNormal(probtorch.zeros(2), cov))
        sample("seen", dist.Normal(loc, 0.5).to_event(1), obs=probtorch.tensor([1.0, -1.0]))

    kernel = Gibbs(model, {("parts", "loc"): "conjugate"})
    draws, _ = run(kernel, probtorch.tensor(counts), num_samples=1500)
    x, expected = draws.posterior, (prior + counts) / (prior.sum() + 8.0)
    exact = np.linalg.solve(np.linalg.inv(cov) + 4.0 * np.eye(2), [4.0, -4.0])
    shown = [x["parts"][..., i, j] for i in range(2) for j in range(3)]
    shown += [x["loc"][..., i] for i in range(2)]
    assert np.abs(scores(shown, [*expected[:, :3].ravel(), *exact])).max() < 4.5
    assert draws.sample_stats["acceptance_rate"].min() > 1.0 - 1e-6


def test_conjugate_updates_are_for_priors_of_a_family():
    with pytest.raises(InferenceError, match="a prior among Normal"):
        run(Gibbs(measured, {"mean": "conjugate"}), probtorch.tensor(DATA), num_samples=10)
    with pytest.raises(InferenceError, match="what updates site 'offset'"):
        run(Gibbs(measured, {"offset": "conjugate"}), probtorch.tensor(DATA), num_samples=10)


def test_what_a_function_returns_has_to_fit():
    y = probtorch.tensor(DATA)
    for found, error, words in (
        ({"mean": 0.0}, ModelError, "new values of 'precision'"),
        ({"precision": np.ones(2)}, ShapeError, r"expected: shape \(\)"),
    ):
        kernel = HMCGibbs(NUTS(measured), lambda found=found, **_: found, ["precision"])
        with pytest.raises(error, match=words):
            run(kernel, y, num_samples=10, warmup_steps=10)
    flat = Target.from_density(lambda x: -0.5 * (x["a"] ** 2), example={"a": 0.0})
    with pytest.raises(InferenceError, match="a model with sample statements"):
        run(Gibbs(flat, {"a": FullConditional(draw_by_hand)}), num_samples=10, warmup_steps=10)


def test_draws_of_a_function_outside_the_support_are_told_as_what_they_are():
    """Of a positive site every other draw is negative: no trajectory diverges."""
    y = probtorch.tensor(DATA)

    def wrong(rng_key, gibbs_sites, hmc_sites):
        return {"precision": dist.Normal(0.0, 1.0).sample(generator=rng_key)}

    kernel = HMCGibbs(NUTS(measured), wrong, ["precision"])
    with pytest.warns(
        InferenceWarning, match=r"(?s)FullConditional draws values without a density"
    ):
        draws, _ = run(kernel, y, num_samples=200)
    outside = draws.sample_stats["outside_support"]
    # Of 400 draws: five standard deviations.
    assert abs(outside.mean() - 0.5) < 0.125
    told = [finding.kind for finding in diagnose(draws)]
    assert "outside_support" in told and "divergence" not in told


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        (init_to_value(values={"z1": 1.0, "field": 0.3}), {"z1": 1, "field": 0.3}),
        (init_to_median(), {"field": 0.0}),
        (init_to_sample(), {}),
    ],
    ids=["value", "median", "sample"],
)
def test_strategies_start_discrete_sites_too(strategy, values):
    target = Gibbs(chain_model).target((probtorch.tensor(DATA),), {})
    (q,) = target.initial(1, probtorch.Generator(0), strategy)
    found = target.constrain(wrap(q))
    assert all(found[f"z{i}"].item() in (0, 1) for i in range(3))
    assert all(abs(found[name].item() - x) < 1.0 for name, x in values.items())
    again = {name: x for name, x in found.items() if name in target.slots}
    np.testing.assert_array_equal(np.round(target.unconstrain(again)[1:]), np.round(q[1:]))


def test_a_saved_chain_may_have_more_kernels_than_coordinates():
    line = Target.from_density(lambda x: -0.5 * x["x"] ** 2, example={"x": 0.0})
    kernel = Gibbs(line, {"x": RandomWalk})
    _, mcmc = run(kernel, num_samples=500, warmup_steps=50)
    saved = chain_leaves(mcmc.last_state[0])
    for a, b in zip(chain_leaves(chain_of(kernel, saved)), saved, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_block_for_continuous_sites_does_not_take_discrete_ones():
    with pytest.raises(InferenceError, match="what updates site 'z0'"):
        run(Gibbs(chain_model, {"z0": NUTS}), probtorch.tensor(DATA))
    with pytest.raises(InferenceError, match="what updates site 'field'"):
        run(Gibbs(chain_model, {"field": "modified"}), probtorch.tensor(DATA))
    with pytest.raises(InferenceError, match="a finite support, whose values"):
        run(Gibbs(survey, {"number": "conditional"}), probtorch.tensor([3.0]))
    with pytest.raises(ModelError, match="no latent site 'z9'"):
        run(Gibbs(chain_model, {"z9": "modified"}), probtorch.tensor(DATA))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gibbs(survey, {"a": NUTS, ("a", "b"): Slice}),
        lambda: Gibbs(survey, {(): NUTS}),
        lambda: Gibbs(survey, {"a": "gibbs"}),
        lambda: Gibbs(survey, [("a", NUTS)]),
        lambda: Gibbs(survey, discrete="gibbs"),
        lambda: Gibbs(survey, kernel="conditional"),
        lambda: DiscreteHMCGibbs(survey),
        lambda: HMCGibbs(survey, draw_by_hand, ["precision"]),
        lambda: HMCGibbs(NUTS(survey), draw_by_hand, []),
        lambda: MixedHMC(NUTS(survey)),
        lambda: MixedHMC(HMC(survey), random_walk=True, modified=True),
        lambda: MixedHMC(HMC(survey), num_discrete_updates=0),
        lambda: DiscreteHMCGibbs(NUTS(survey), random_walk=True, modified=True),
    ],
)
def test_blocks_of_another_form_are_refused(make):
    with pytest.raises(ArgumentError, match="expected:"):
        make()
