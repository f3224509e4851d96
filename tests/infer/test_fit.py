"""`fit`: what is planned for which model, and that what is run is right and judged."""

import itertools
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from probtorch.core.rng import Generator
from probtorch.diagnostics import ConvergenceWarning, InferenceWarning, loo
from probtorch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    ImproperUniform,
    Normal,
    Poisson,
    constraints,
)
from probtorch.effects import deterministic, factor, param, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import (
    HMC,
    NUTS,
    SMC,
    SVGD,
    SVI,
    AutoNormal,
    Fitted,
    Importance,
    Involution,
    InvolutiveMCMC,
    LaplaceApproximation,
    ParticleGibbs,
    Pathfinder,
    RandomWalk,
    RBFSteinKernel,
    SMCWarning,
    Target,
    fit,
    init_to_value,
)
from probtorch.infer.control import Interrupt
from probtorch.infer.mcmc.kernels.replica_exchange import DEFAULT_POWERS
from probtorch.infer.plans.facts import Facts, look_at
from probtorch.infer.plans.judged import JUDGES
from probtorch.infer.plans.modes import Modes, separate_modes
from probtorch.infer.plans.planning import planned, powers_for
from probtorch.infer.plans.time_given import TimeGiven
from probtorch.ops.exponentials import logaddexp
from probtorch.optim import Adam
from probtorch.tensor import tensor

Y = np.array([0.5, 1.5, 1.0, 2.5, 0.0, 1.2])
SETTINGS = {"num_samples": 10, "num_chains": 2, "warmup_steps": 10, "threads": 2}


def level(y):
    mu = sample("mu", Normal(0.0, 2.0))
    with plate("row", len(y)):
        sample("y", Normal(mu, 1.0), obs=y)


def closed_form(y, scale=1.0):
    precision = len(y) / scale**2 + 0.25
    return y.sum() / scale**2 / precision, precision**-0.5


def alarm(heard):
    burglar = sample("burglar", Bernoulli(0.1))
    earthquake = sample("earthquake", Bernoulli(0.2))
    deterministic("both", burglar * earthquake)
    sample("heard", Bernoulli(0.05 + 0.5 * burglar + 0.4 * earthquake), obs=heard)


def mixture(y):
    mu = sample("mu", Normal(0.0, 2.0))
    with plate("row", len(y)):
        z = sample("z", Categorical(tensor([0.5, 0.5])))
        sample("y", Normal(mu + z, 1.0), obs=y)


def subsampled(y):
    mu = sample("mu", Normal(0.0, 2.0))
    with plate("row", len(y), subsample_size=3) as rows:
        sample("y", Normal(mu, 1.0), obs=y[rows])


def learnt(y):
    scale = param("test_fit_scale", tensor(1.0), constraint=constraints.positive)
    mu = sample("mu", Normal(0.0, 2.0))
    with plate("row", len(y)):
        sample("y", Normal(mu, scale), obs=y)


def counted(y):
    k = sample("k", Poisson(3.0))
    sample("y", Normal(k, 1.0), obs=y)


def plan_of(model, *args, gradient=1e-6, budget=None, method=None, guide=None):
    facts = look_at(model, args, {})
    return planned(facts, gradient, method=method, budget=budget, guide=guide, **SETTINGS)


# ------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("model", "method", "word"),
    [
        (level, "nuts", "1 number, 6 observed"),
        (mixture, "nuts", "'z' summed out"),
        (counted, "gibbs", "'k' have no last value"),
        (subsampled, "hmcecs", "'row' works on subsamples of 6 rows"),
        (learnt, "svi", "'test_fit_scale' are parameters"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_plan_follows_from_the_model(model, method, word):
    plan = plan_of(model, tensor(Y))
    assert plan.method == method and word in str(plan)
    assert len(str(plan).splitlines()) == 3


def test_a_table_needs_no_sampler():
    assert plan_of(alarm, 1.0).method == "exact"


def test_time_decides_between_nuts_and_pathfinder():
    for budget, gradient, method in ((10.0, 1e-3, "nuts"), (10.0, 1.0, "pathfinder")):
        plan = plan_of(level, tensor(Y), gradient=gradient, budget=budget)
        assert plan.method == method
    assert "more than the 10 s of the time budget" in str(plan)
    assert plan_of(level, tensor(Y), gradient=100.0).method == "pathfinder"
    assert plan_of(level, tensor(Y), gradient=math.nan).method == "nuts"


def test_each_decision_is_explained_and_can_be_overridden():
    text = plan_of(mixture, tensor(Y)).explain()
    assert text.count("because") == text.count("instead") == 3
    assert plan_of(level, tensor(Y), method="svi").guide == "AutoMultivariateNormal"
    assert plan_of(level, tensor(Y), guide=AutoNormal(level)).guide == "AutoNormal"
    many = Facts("wide", 500, ("w",), {}, (), ("y",), 9, (), ())
    wide = planned(many, 1e-6, method="svi", budget=None, **SETTINGS)
    assert wide.guide == "AutoNormal" and "250000" in wide.explain()


def test_a_guide_of_what_no_subsample_draws_has_all_covariances():
    def rows(y):
        mu = sample("mu", Normal(0.0, 2.0))
        with plate("row", len(y), subsample_size=3) as rows:
            sample("y", Normal(sample("z", Normal(mu, 1.0)), 1.0), obs=y[rows])

    plan = plan_of(subsampled, tensor(Y), method="svi")
    assert plan.guide == "AutoMultivariateNormal"
    plan = plan_of(rows, tensor(Y))
    assert plan.guide == "AutoNormal" and "AutoSemiDAIS" in plan.explain()


def test_modes_and_time_decide_for_replica_exchange():
    modes = Modes(np.array([[0.0, 0.0], [9.0, 9.0]]), np.stack([np.eye(2)] * 2), 40.0)
    facts = Facts("two", 2, ("x",), {}, (), ("y",), 9, (), (), found=modes)
    plan = planned(facts, 1e-6, method=None, budget=None, **SETTINGS)
    assert plan.method == "replica_exchange" and "2 modes" in str(plan)
    assert "init_strategy" in plan.explain()
    plan = planned(facts, 1e-3, method=None, budget=0.3, **SETTINGS)
    assert plan.method == "pathfinder" and "replica exchange would take" in str(plan)


def test_many_numbers_and_little_time_are_for_dadvi():
    many = Facts("wide", 300, ("w",), {}, (), ("y",), 9, (), ())
    settings = {**SETTINGS, "num_samples": 1000, "warmup_steps": 1000}
    for budget, method, choice in (
        (1000.0, "nuts", "2 chains"),
        (50.0, "dadvi", "by linear response"),
        (20.0, "dadvi", "of independent numbers"),
        (1.0, "pathfinder", "Pathfinder"),
    ):
        plan = planned(many, 1e-3, method=None, budget=budget, **settings)
        assert plan.method == method and choice in str(plan)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ArgumentError, match=r"(?s)continuous latent sites.*without a bound"):
        plan_of(counted, 3.0, method="svi")
    with pytest.raises(ArgumentError, match=r"(?s)discrete latent sites, and plates"):
        plan_of(level, tensor(Y), method="gibbs")
    with pytest.raises(InferenceError, match=r"(?s)nothing to infer.*without obs.*'y'"):
        fit(lambda y: sample("y", Normal(0.0, 1.0), obs=y), 1.0)
    with pytest.raises(ArgumentError, match=r"(?s)exact, nuts, .*hmcecs, dadvi, pathfinder.*'hmc'"):
        plan_of(level, tensor(Y), method="hmc")
    with pytest.raises(ArgumentError, match=r"(?s)finite discrete latent sites only"):
        plan_of(level, tensor(Y), method="exact")
    with pytest.raises(ArgumentError, match=r"(?s)plates that work on all rows"):
        plan_of(subsampled, tensor(Y), method="nuts")
    with pytest.raises(ArgumentError, match=r"(?s)one plate that works on subsamples"):
        plan_of(level, tensor(Y), method="hmcecs")
    with pytest.raises(ArgumentError, match=r"(?s)engine=.*no method.*method='nuts'"):
        fit(level, tensor(Y), engine=NUTS, method="nuts")
    with pytest.raises(ArgumentError, match=r"(?s)engine=.*makes a kernel.*str 'hmc'"):
        fit(level, tensor(Y), engine="hmc")
    with pytest.raises(ArgumentError, match=r"(?s)method='nuts'.*no guide"):
        plan_of(level, tensor(Y), method="nuts", guide=AutoNormal(level))
    with pytest.raises(ArgumentError, match=r"(?s)seconds.*positive"):
        fit(level, tensor(Y), seconds=-1.0)
    with pytest.raises(ArgumentError, match=r"(?s)num_chains.*at least 1"):
        fit(level, tensor(Y), num_chains=0)


# -------------------------------------------------------------------------------------------- runs


def test_nuts_draws_the_posterior_and_says_so(capsys):
    found = fit(level, tensor(Y), num_samples=500, num_chains=2, warmup_steps=200, seed=0)
    mean, sd = closed_form(Y)
    # 1000 draws worth at least 250: five standard errors.
    assert abs(found["mu"].mean() - mean) < 5 * sd / np.sqrt(250)
    assert found["mu"].std() == pytest.approx(sd, rel=0.2)
    assert found.trusted and found.plan.method == "nuts"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "level: 1 number, 6 observed"
    assert said[1].startswith("plan: NUTS, 2 chains x (200 warm-up + 500)")
    assert said[2].startswith("why: ") and said[-1] == f"verdict: {found.verdict}"
    assert found.explain().endswith(f"verdict: {found.verdict}")
    assert loo(found).pointwise.shape == (6,)
    again = pickle.loads(pickle.dumps(found))
    assert isinstance(again, Fitted) and again.engine is None
    assert again.explain() == found.explain()


def test_exact_draws_are_those_of_the_table():
    found = fit(alarm, 1.0, num_samples=1000, num_chains=4, seed=0, verbose=False)
    table = {
        (b, e): (0.1 if b else 0.9) * (0.2 if e else 0.8) * (0.05 + 0.5 * b + 0.4 * e)
        for b, e in itertools.product((0, 1), repeat=2)
    }
    total = sum(table.values())
    for (b, e), p in table.items():
        share = ((found["burglar"] == b) & (found["earthquake"] == e)).mean()
        # 4 shares of 4000 independent draws, 5 standard errors each: false alarm rate 2e-6.
        assert abs(share - p / total) < 5 * np.sqrt(p / total * (1 - p / total) / 4000)
    np.testing.assert_array_equal(found["both"], found["burglar"] * found["earthquake"])
    assert found.trusted and found.verdict.startswith("exact: 4000")


def unlabelled(y):
    mu = sample("mu", Normal(0.0, 5.0).expand([2]).to_event(1))
    with plate("row", len(y)):
        z = sample("z", Categorical(tensor([0.5, 0.5])))
        sample("y", Normal(mu[0] + (mu[1] - mu[0]) * z, 1.0), obs=y)


def squared(y):
    sample("y", Normal(sample("a", Normal(0.0, 2.0)) ** 2, 0.3).expand([5]).to_event(1), obs=y)


def test_replicas_go_as_low_as_a_wall_is_deep():
    """From -2 to 2 the log density falls by 450 nats: at a power of 0.02 that is a wall yet."""
    found = fit(squared, tensor([4.0, 4.1, 3.9, 4.2, 4.0]), seed=0, verbose=False)
    assert found.plan.method == "replica_exchange" and found.trusted, found.verdict
    assert found.plan.facts.wall == pytest.approx(450.0, rel=0.05)
    assert len(powers_for(found.plan.facts.wall)) == 11
    assert abs((found["a"] > 0.0).mean() - 0.5) < 0.1


@pytest.mark.parametrize("wall", [0.0, 6.0, 100.0])
def test_replicas_are_the_usual_ones_below_most_walls(wall):
    np.testing.assert_allclose(powers_for(wall), DEFAULT_POWERS)


def test_components_without_labels_change_places_in_every_chain():
    """Each of two orders has half of the posterior, of which the shares are known to 0.03."""
    y = np.concatenate([np.linspace(-4.0, 0.0, 15), np.linspace(1.0, 5.0, 15)])
    found = fit(unlabelled, tensor(y), seed=0, verbose=False)
    assert found.plan.method == "replica_exchange" and found.trusted, found.verdict
    above = found["mu"][..., 0] > found["mu"][..., 1]
    assert found["mu"].shape == (4, 1000, 2)
    assert (above.any(1) & ~above.all(1)).all() and abs(above.mean() - 0.5) < 0.1
    start = init_to_value(values={"mu": np.array([-2.0, 3.0])})
    one = fit(unlabelled, tensor(y), seed=0, verbose=False, init_strategy=start, num_samples=200)
    assert one.plan.method == "nuts" and not (one["mu"][..., 0] > one["mu"][..., 1]).any()


def two(q):
    """A normal of 0.7 at -4 and another of 0.3 at 4, in two dimensions."""
    low, high = (-0.5 * ((q - at) ** 2).sum() for at in (-4.0, 4.0))
    return logaddexp(low + math.log(0.7), high + math.log(0.3))


DENSITIES = {
    "two modes": (two, 2, 2),
    "normal": (lambda q: -0.5 * (q * q).sum(), 10, 1),
    "banana": (lambda q: -0.5 * q[0] ** 2 - 2.0 * (q[1] - q[0] ** 2) ** 2, 2, 1),
    "ring": (lambda q: -0.5 * (((q * q).sum().sqrt() - 4.0) / 0.2) ** 2, 2, 1),
    "funnel": (lambda q: -(q[0] ** 2) / 18 - 0.5 * q[1] ** 2 * (-q[0]).exp() - 0.5 * q[0], 2, 1),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_modes_are_told_from_ridges(name):
    density, dim, modes = DENSITIES[name]
    target = Target.from_density(density, dim)
    assert {len(separate_modes(target, Generator(seed))) for seed in range(5)} == {modes}


def test_counts_are_drawn_from_their_posterior():
    found = fit(
        counted, 3.2, num_samples=1500, num_chains=2, warmup_steps=50, seed=0, verbose=False
    )
    k = np.arange(30)
    weight = np.exp(stats.poisson.logpmf(k, 3.0) + stats.norm.logpdf(3.2, k, 1.0))
    mean = (k * weight).sum() / weight.sum()
    # 3000 draws worth at least 300: five standard errors of a spread below 1.
    assert abs(found["k"].mean() - mean) < 5 / np.sqrt(300)
    assert found.plan.method == "gibbs" and found.trusted


def test_a_sum_that_is_intractable_is_sampled_instead():
    """All rows of a plate meet in one observation."""

    def tied(y):
        level = sample("level", Normal(0.0, 1.0))
        with plate("row", 6):
            z = sample("z", Bernoulli(0.5))
        sample("y", Normal(level + z.sum(-1), 1.0), obs=y)

    with pytest.warns(ConvergenceWarning, match="too short"):
        found = fit(tied, 3.0, num_samples=50, num_chains=2, warmup_steps=20, seed=0, verbose=False)
    assert found.plan.method == "gibbs" and "cannot be summed out" in found.explain()
    assert found["z"].shape == (2, 50, 6)


def test_pathfinder_draws_a_normal_posterior():
    found = fit(level, tensor(Y), method="pathfinder", seed=0, verbose=False)
    mean, sd = closed_form(Y)
    assert abs(found["mu"].mean() - mean) < 5 * sd / np.sqrt(1000)
    assert found.trusted and found.plan.decisions[0].because == "it was asked for"


@pytest.mark.parametrize("model", [subsampled, learnt])
def test_svi_draws_what_it_has_learnt(model):
    found = fit(model, tensor(Y), method="svi", seed=0, num_samples=250, verbose=False)
    result = found.engine
    scale = float(result.params["test_fit_scale"]) if model is learnt else 1.0
    mean, sd = closed_form(Y, scale)
    # Stochastic optimisation at a fixed learning rate: a third of a standard deviation.
    assert abs(found["mu"].mean() - mean) < sd / 3
    assert found["mu"].std() == pytest.approx(sd, rel=0.35)
    # Of subsamples nobody knows whether the guide is right: it says so.
    assert found.trusted == (model is learnt)


def row_wise(x, y, size, local=None):
    slope = sample("slope", Normal(0.0, 1.0).expand([2]).to_event(1))
    with plate("row", len(y), subsample_size=size) as rows:
        logits = x[rows] @ slope
        if local is not None:
            logits = logits + local(rows)
        sample("y", Bernoulli(logits=logits), obs=y[rows])


def rows_of(count):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    return tensor(x), tensor((rng.uniform(size=count) < 1.0 / (1.0 + np.exp(-x[:, 0]))) * 1.0)


def test_few_numbers_of_many_rows_are_drawn_on_subsamples(capsys):
    x, y = rows_of(2000)
    settings = {"num_samples": 400, "warmup_steps": 300, "seed": 0}
    found = fit(row_wise, x, y, 100, **settings)
    assert found.plan.method == "hmcecs" and found.trusted, found.verdict
    assert "of 2000 rows" in capsys.readouterr().out and "of degree 2" in str(found.plan)
    exact = fit(row_wise, x, y, None, **settings, verbose=False)
    assert exact.plan.method == "nuts"
    sd = exact["slope"].std((0, 1))
    # 1600 draws each, worth 400 at least: means are off by 0.07, an sd by 0.05; five of these.
    assert (np.abs(found["slope"].mean((0, 1)) - exact["slope"].mean((0, 1))) < 0.35 * sd).all()
    np.testing.assert_allclose(found["slope"].std((0, 1)), sd, rtol=0.25)


def test_rows_whose_density_is_not_known_one_by_one_are_for_svi(capsys):
    """Two plates at once: what `look_at` cannot see, HMCECS says, and a guide takes over."""
    x, y = rows_of(200)

    def model(x, y):
        slope = sample("slope", Normal(0.0, 1.0).expand([2]).to_event(1))
        for rows in plate("row", 200, subsample_size=4):
            sample(f"y_{int(rows)}", Bernoulli(logits=x[rows] @ slope), obs=y[rows])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probtorch.infer.plans.planned.look_at", lambda *a: Facts(
            "model", 2, ("slope",), {}, (), ("y",), 4, ("row",), (), 0.01, rows=200,
        ))  # fmt: skip
        patch.setattr("probtorch.infer.plans.carried_out.MAX_STEPS", 20)
        with warnings.catch_warnings(action="ignore"):
            found = fit(model, x, y, seed=0, num_samples=100)
    assert found.plan.method == "svi" and not found.trusted
    assert "no density by rows" in capsys.readouterr().out


def test_poor_stand_ins_for_rows_are_told_of():
    with warnings.catch_warnings(action="ignore"):
        found = fit(level, tensor(Y), num_samples=50, warmup_steps=50, seed=0, verbose=False)
    draws = replace(found, sample_stats={"rows_acceptance_rate": np.full((4, 50), 0.2)})
    said, trusted = JUDGES["hmcecs"](draws, found.plan.facts)
    assert not trusted and said.startswith("proposed rows are accepted in 20%")


def test_wide_models_in_a_hurry_get_means_and_spreads_by_dadvi(monkeypatch):
    """Eighty effects, of which Pathfinder's spreads are off by a third and more."""
    y = np.random.default_rng(0).normal(size=80)

    def wide(y):
        top = sample("top", Normal(0.0, 1.0))
        with plate("row", 80):
            sample("y", Normal(sample("z", Normal(top, 1.0)), 0.5), obs=y)

    monkeypatch.setattr("probtorch.infer.plans.planned.gradient_seconds", lambda target: 1e-3)
    found = fit(wide, tensor(y), seconds=30.0, seed=0, verbose=False)
    assert found.plan.method == "dadvi" and "by linear response" in str(found.plan)
    # top given y: precision 1 + 80 / 1.25.
    precision = 1.0 + 80 / 1.25
    assert found["top"].std() == pytest.approx(precision**-0.5, rel=0.1)
    assert abs(found["top"].mean() - y.sum() / 1.25 / precision) < 0.1 * precision**-0.5


def test_any_other_engine_can_be_given():
    mean, sd = closed_form(Y)
    engines = {
        "HMC": lambda m: HMC(m, trajectory_length=2.0, jitter=0.2),
        "SMC": lambda m: SMC(RandomWalk(m), 400, seed=0),
        "SVI": lambda m: SVI(m, AutoNormal(m), Adam, lr=0.05),
        "SVGD": lambda m: SVGD(m, RBFSteinKernel(), Adam, num_particles=50, lr=0.1),
        "LaplaceApproximation": LaplaceApproximation,
        "Importance": lambda m: Importance(m, num_samples=4000),
        "InvolutiveMCMC": lambda m: InvolutiveMCMC(
            m, Involution.drift(1.0, of=["mu"]), 800, 100, num_chains=4
        ),
    }
    for name, engine in engines.items():
        settings = {"num_samples": 200, "warmup_steps": 100, "seed": 0, "verbose": False}
        found = fit(level, tensor(Y), engine=engine, **settings)
        assert found.plan.method == "given" and f"plan: {name}" in str(found.plan)
        assert "it was given" in found.explain() and found.verdict
        # Worth 60 draws at least: five standard errors.
        assert abs(found["mu"].mean() - mean) < 5 * sd / np.sqrt(60), name
        assert found.trusted, (name, found.verdict)
        assert found.predict(seed=0)["y"].shape == (*found["mu"].shape, 6), name
        again = fit(level, tensor(Y), engine=engine, **settings)
        assert np.array_equal(again["mu"], found["mu"]), name


def test_warnings_of_a_given_engine_are_its_verdict():
    engine = lambda m: SMC(RandomWalk(m), 100, num_steps=1, seed=0, progress_bar=False)
    far = tensor(np.full(6, 30.0))
    with pytest.warns(SMCWarning):
        found = fit(level, far, engine=engine, seed=0, verbose=False)
    assert not found.trusted and "SMC" in found.verdict


def test_what_no_engine_returns_is_refused():
    class Nothing:
        def run(self, y):
            return 3

    with pytest.raises(ArgumentError, match=r"(?s)what Nothing.run returns.*got: +int"):
        fit(level, tensor(Y), engine=lambda m: Nothing(), verbose=False)


def test_chains_start_where_they_are_told():
    told = init_to_value(values={"mu": 40.0})

    def far(y):
        """Two places, far apart: chains stay where they start."""
        mu = sample("mu", Normal(0.0, 100.0))
        factor("hills", logaddexp(-0.5 * mu**2, -0.5 * (mu - 40.0) ** 2))

    found = fit(far, 0.0, init_strategy=told, num_samples=600, warmup_steps=100, num_chains=2,
                seed=0, verbose=False)  # fmt: skip
    assert abs(found["mu"].mean() - 40.0) < 1.0


def test_chains_without_a_draw_in_time_make_way_for_pathfinder(capsys):
    plan = plan_of(level, tensor(Y), budget=1e-3, gradient=1e-9)
    assert plan.method == "nuts"

    def slow(y):
        mu = sample("mu", Normal(0.0, 2.0))
        float(np.linalg.norm(np.ones((200, 200)) @ np.ones((200, 200))))
        with plate("row", len(y)):
            sample("y", Normal(mu, 1.0), obs=y)

    with pytest.MonkeyPatch.context() as patch:
        # The guess is as wrong as it may be: a gradient is thought to cost nothing.
        patch.setattr("probtorch.infer.plans.planned.gradient_seconds", lambda target: 1e-12)
        # Looking at the model took no time.
        patch.setattr(
            "probtorch.infer.plans.planned.TimeGiven", lambda s: TimeGiven(s, lambda: 0.0)
        )
        found = fit(slow, tensor(Y), seconds=1e-3, warmup_steps=10_000_000, seed=0)
        with pytest.raises(InferenceError, match=r"(?s)fit\(seconds=...\).*time for the warm-up"):
            fit(slow, tensor(Y), seconds=1e-3, warmup_steps=10_000_000, method="nuts",
                seed=0, verbose=False)  # fmt: skip
    assert found.plan.method == "pathfinder"
    assert "still in its warm-up after" in capsys.readouterr().out
    mean, _ = closed_form(Y)
    assert abs(found["mu"].mean() - mean) < 0.1


@pytest.mark.slow
def test_a_guide_keeps_to_its_time(monkeypatch):
    """Steps end before the time is up, and a wide model gets fewer draws."""
    monkeypatch.setattr("probtorch.infer.plans.carried_out.MAX_STEPS", 10**7)

    def wide(y):
        scale = param("test_fit_wide", tensor(1.0), constraint=constraints.positive)
        with plate("row", 20_000):
            x = sample("x", Normal(0.0, scale))
        sample("y", Normal(x.sum(), 100.0), obs=y)

    with pytest.warns(InferenceWarning):
        found = fit(wide, tensor(3.0), seconds=4.0, seed=0, verbose=False)
    assert found["x"].shape[-1] == 20_000 and 100 <= found.num_draws <= 200
    assert not found.trusted and "give a guide=" in found.verdict


def test_many_tied_sites_are_drawn_by_gibbs_at_once():
    def tied(y):
        level = sample("level", Normal(0.0, 1.0))
        z = [sample(f"z{i}", Bernoulli(0.5)) for i in range(30)]
        sample("y", Normal(level + sum(z), 1.0), obs=y)

    facts = look_at(tied, (tensor(15.0),), {})
    with pytest.raises(InferenceError, match="sites meet in one sum") as refused:
        Target.from_model(tied, tensor(15.0))
    reason = str(refused.value).splitlines()[0]
    plan = planned(facts, math.nan, method=None, budget=None, intractable=reason, **SETTINGS)
    assert plan.method == "gibbs" and "sites meet in one sum" in plan.explain()


def test_programs_whose_sites_come_and_go_are_for_particles(capsys):
    def model(y):
        loc = sample("loc", Normal(0.0, 2.0)) if sample("moved", Bernoulli(0.5)).item() else 0.0
        sample("y", Normal(loc, 1.0), obs=y)

    found = fit(model, tensor(2.0), num_samples=1500, num_chains=1, seed=0)
    assert found.plan.method == "particles" and "'loc' not in every run" in capsys.readouterr().out
    densities = 0.5 * np.exp([-2.0, -0.4]) / np.sqrt([1.0, 5.0])
    share = densities[1] / densities.sum()
    assert abs(found["moved"].mean() - share) < 4.5 * np.sqrt(share * (1.0 - share) / 400.0)
    with pytest.raises(ArgumentError, match="the same sites in every run"):
        fit(model, tensor(2.0), method="nuts")
    loc = [[float(run.get("loc", 0.0)) for run in chain] for chain in found.values]
    density = found.log_likelihood()["y"]
    np.testing.assert_allclose(density, stats.norm.logpdf(2.0, loc, 1.0), rtol=1e-5)


def test_finite_sites_that_python_looks_at_are_for_particles_too():
    def sprinkler():
        rain = sample("rain", Bernoulli(0.2))
        on = sample("sprinkler", Bernoulli(0.01 if rain else 0.4))
        wet = {(1, 1): 0.99, (1, 0): 0.8, (0, 1): 0.9, (0, 0): 0.0}[int(rain), int(on)]
        sample("wet", Bernoulli(wet), obs=tensor(1.0))

    found = fit(sprinkler, num_samples=1500, num_chains=1, seed=0, verbose=False)
    assert found.plan.method == "particles" and "enumerated" in found.explain()
    assert abs(found["rain"].mean() - 0.3577) < 4.5 * np.sqrt(0.23 / 400.0)


def test_branches_on_continuous_sites_are_seen_whatever_some_runs_run_into():
    def branch(y):
        a = sample("a", Normal(0.0, 1.0))
        b = sample("up", Normal(5.0, 1.0)) if a > 0 else sample("down", Normal(-5.0, 1.0))
        sample("y", Normal(b, 1.0), obs=y)

    facts = look_at(branch, (tensor(4.5),), {})
    assert facts.changing == ("down", "up")
    plan = planned(facts, 1e-6, method=None, budget=None, **SETTINGS)
    assert plan.method == "particles"

    def often_impossible(y):
        k, s = sample("k", Poisson(3.0)), sample("s", Normal(0.0, 1.0))
        sample("y", Normal(k, s - 0.3), obs=y)

    assert look_at(often_impossible, (tensor(1.0),), {}).changing == ()


def test_particle_gibbs_takes_over_where_no_draw_of_the_prior_agrees():
    def signals(seen):
        for i, y in enumerate(seen):
            on = sample(f"on{i}", Bernoulli(0.5))
            if on.item():
                sample(f"level{i}", Normal(0.0, 1.0))
            sample(f"y{i}", Bernoulli(probs=on * 1.0), obs=tensor(y))

    seen = [1.0, 0.0] * 6
    found = fit(signals, seen, num_samples=8, seed=0, verbose=False)
    assert found.plan.method == "particles"
    for i, y in enumerate(seen):
        assert (found[f"on{i}"] == y).all()
    # Each run by itself, and what it predicts: the data again, as nothing else can be drawn.
    assert all(("level0" in run, "level1" in run) == (True, False) for run in found.values[0])
    assert found.expectation(lambda run: "level0" in run) == 1.0
    again = found.predict(seed=1)
    assert all(
        (again[f"y{i}"] == y).all() and again["y0"].shape == (1, 8) for i, y in enumerate(seen)
    )
    with (
        pytest.raises(ArgumentError, match="a site to draw"),
        pytest.warns(InferenceWarning, match="samples of 'on2', .*are not used"),
    ):
        found.predict(seen[:2], seed=1)  # all data are given again
    kept = pickle.loads(pickle.dumps(found))
    assert kept.expectation(lambda run: "level1" in run) == 0.0
    with pytest.raises(InferenceError, match="draws read from a file"):
        kept.predict()


def test_a_mean_over_runs_needs_the_runs_which_a_file_has_not(tmp_path):
    def steps():
        up = sample("up", Bernoulli(0.5))
        if up.item():
            sample("by", Normal(1.0, 0.1))
        sample("y", Normal(up, 1.0), obs=tensor(1.0))

    found = fit(steps, num_samples=500, num_chains=2, seed=0, verbose=False)
    drawn = ParticleGibbs(steps, num_samples=5, seed=0, progress_bar=False).run()
    path = str(tmp_path / "draws.npz")
    for draws in (found, drawn):
        assert draws.attrs["sites_of_some_runs"] == "by"
        assert draws.expectation(lambda run: run.get("by", 0.0)) > 0.1
        draws.save(path)
        with pytest.raises(InferenceError, match=r"(?s)from a file, without by.*pickle"):
            type(draws).load(path).expectation(lambda run: run.get("by", 0.0))


def test_particle_gibbs_makes_chains_and_has_draws_whatever_the_time(monkeypatch):
    monkeypatch.setattr("probtorch.infer.plans.carried_out.FEWEST_SWEEPS", 20)

    def steps(seen):
        level = 0.0
        for i, y in enumerate(seen):
            if sample(f"up{i}", Bernoulli(0.5)).item():
                level = level + sample(f"by{i}", Normal(1.0, 1.0))
            sample(f"y{i}", Normal(level, 0.02), obs=tensor(y))

    seen = [0.0, 1.2, 1.2, 3.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        found = fit(steps, seen, num_samples=40, num_chains=2, seed=0, verbose=False)
        hasty = fit(steps, seen, seconds=1e-3, seed=0, verbose=False)
    assert found["up0"].shape == (2, 20) and len(found.values[1]) == 20
    # Without a step in between there is none; with one there is a step, whatever the draw.
    assert found["up3"].mean() == 1.0 and found["up1"].mean() == 1.0
    assert hasty.num_draws >= 1 and hasty.attrs["interrupted"]


def test_a_branch_that_turns_up_late_leads_to_particles_after_all():
    def rare(y):
        on, mu = sample("on", Bernoulli(0.001)), sample("mu", Normal(0.0, 1.0))
        loc = sample("loc", Normal(3.0, 1.0)) if on.item() else mu
        sample("y", Normal(loc, 1.0), obs=y)

    def far(y):
        a = sample("a", Normal(0.0, 1.0))
        loc = sample("loc", Normal(5.0, 1.0)) if a > 3.9 else a
        sample("y", Normal(loc, 0.5), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        found = fit(rare, tensor(3.0), num_samples=100, num_chains=1, seed=0, verbose=False)
        other = fit(far, tensor(9.0), num_samples=100, num_chains=1, seed=0, verbose=False)
    for one, name in ((found, "loc"), (other, "loc")):
        assert one.plan.method == "particles" and f"'{name}'" in one.explain()
    with pytest.raises(ModelError, match="'loc' was not there when inference began"):
        fit(far, tensor(9.0), method="nuts", num_samples=10, seed=0, verbose=False)


def test_exact_draws_predict():
    found = fit(alarm, 1.0, num_samples=500, num_chains=1, seed=0, verbose=False)
    again = found.predict(seed=0)["heard"]
    np.testing.assert_array_equal(found.replications(0)["heard"], again)
    expected = (0.05 + 0.5 * found["burglar"] + 0.4 * found["earthquake"]).mean()
    # 500 zeros and ones, 4.5 standard errors: false alarm rate 1e-5.
    assert again.shape == (1, 500) and abs(again.mean() - expected) < 4.5 * 0.5 / np.sqrt(500)
    assert set(found.predict(None, seed=0)) == {"heard", "both"}
    rate = 0.05 + 0.5 * found["burglar"] + 0.4 * found["earthquake"]
    np.testing.assert_allclose(found.log_likelihood()["heard"], np.log(rate), rtol=1e-5)
    groups = found.extended(log_likelihood=True, posterior_predictive=True, prior=40, seed=0).groups
    np.testing.assert_array_equal(
        groups["log_likelihood"]["heard"], found.log_likelihood()["heard"]
    )
    assert groups["posterior_predictive"]["heard"].shape == (1, 500)
    assert {x.shape for x in groups["prior"].values()} == {(1, 40)}
    assert set(groups["prior"]) == {"burglar", "earthquake", "both"}
    assert set(groups["prior_predictive"]) == {"heard"}
    assert "log_likelihood" in found.extended().groups  # as of any engine
    with pytest.raises(ArgumentError, match=r"infer.log_likelihood\(model, draws"):
        pickle.loads(pickle.dumps(found)).log_likelihood()


def test_a_budget_too_small_is_named_as_it_was_given(monkeypatch):
    def run(self, max_seconds):
        raise Interrupt("Pathfinder.run", max_seconds).without("a normal with a finite ELBO")

    monkeypatch.setattr(Pathfinder, "run", run)
    with pytest.raises(
        InferenceError, match=r"(?s)^fit\(seconds=...\).*a normal.*seconds=0.5"
    ) as e:
        fit(level, tensor(Y), method="pathfinder", seconds=0.5, verbose=False)
    assert "Pathfinder" not in str(e.value) and "max_seconds" not in str(e.value)


def test_priors_that_cannot_be_drawn_from_are_no_obstacle():
    y = np.array([1.0, 2.0, 3.0, 5.0])

    class Squared(Distribution):
        """A density alone, as users write them."""

        support = constraints.positive

        def log_prob(self, value):
            return -0.5 * value**2

    def model(y):
        mu = sample("mu", ImproperUniform(constraints.real, (), ()))
        scale = sample("scale", Squared())
        with plate("rows", len(y)):
            sample("y", Normal(mu, scale), obs=y)

    fitted = fit(model, y, seed=0, num_samples=500, num_chains=2, warmup_steps=300, verbose=False)
    assert fitted.summary()["mu"]["mean"] == pytest.approx(2.75, abs=0.4)
