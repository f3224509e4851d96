"""Estimators chosen at sites of a guide: exact means, refusals, and what a run remembers.

The proof takes all outcomes: every draw of guide and model is a quantile at a uniform, whose cells
between all jumps are taken in turn, as are the estimators' own draws.
"""

import itertools
import math

import numpy as np
import pytest

import probtorch
from probtorch.config import configure
from probtorch.distributions import Bernoulli, Categorical, Normal
from probtorch.effects import handlers, param, plate, sample
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.estimators import (
    ARM,
    REBAR,
    RELAX,
    DiCE,
    DisARM,
    Enumerate,
    MeasureValued,
    Pathwise,
    ScoreFunction,
    SumAndSample,
    UnorderedSet,
)
from probtorch.infer import (
    SVI,
    RenyiELBO,
    ReweightedWakeSleep,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from probtorch.infer.objectives import site_estimators
from probtorch.ops.exponentials import sigmoid
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.estimators.exhaustive import Exhaustive
from tests.infer.svi.programs import enumerated_bound, gradients, outcomes

DOUBLE = np.dtype("f8")
CLICKS = tensor([1.0, 0.0], dtype=DOUBLE)


def model(y):
    """A coin, then a category that depends on it, then one coin per row that depends on both."""
    a = sample("a", Bernoulli(tensor(0.3, dtype=DOUBLE)))
    weights = tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], dtype=DOUBLE)
    b = sample("b", Categorical(weights[a.long()])).double()
    with plate("rows", len(y)):
        c = sample("c", Bernoulli(sigmoid(0.7 * a - 0.4 * b)))
        sample("y", Bernoulli(sigmoid(1.5 * c - 0.5 + 0.3 * b)), obs=y)


def guide(y):
    """Every draw depends on one before it."""
    a = sample("a", Bernoulli(logits=param("a_logit", tensor(0.4, dtype=DOUBLE))))
    logits = param("b_logits", tensor([[0.1, -0.3, 0.2], [0.5, 0.0, -0.4]], dtype=DOUBLE))
    b = sample("b", Categorical(logits=logits[a.long()])).double()
    c_logit = param("c_logit", tensor([0.2, -0.6], dtype=DOUBLE))
    with plate("rows", len(y)):
        sample("c", Bernoulli(logits=c_logit[: len(y)] + 0.2 * b))


def choosing(guide, **estimators):
    """The guide with estimators at its sites."""
    return handlers.infer_config(
        guide,
        lambda site: {"estimator": estimators[site.name]} if site.name in estimators else {},
    )


class Quantiles(Handler):
    """Draw sites of finite support as quantiles at uniforms that `Exhaustive` chooses.

    A site keeps its uniforms throughout a step, so that reruns draw from the same bits.
    """

    def __init__(self, draws, cuts):
        super().__init__()
        self.draws, self.cuts, self.uniforms = draws, cuts, {}

    def on_sample(self, site):
        if site.value is not None or site.observed:
            return
        values = site.fn.enumerate_support()
        probs = site.fn.log_prob_inside(values).exp().detach().numpy()
        shape = probs.shape[1:]
        if site.name not in self.uniforms:
            edges = np.array([0.0, *sorted(self.cuts[site.name]), 1.0])
            middles, widths = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges)
            u = np.empty(shape)
            for index in np.ndindex(*shape):
                u[index] = middles[self.draws.choose(widths)]
            self.uniforms[site.name] = u
        k = (probs.cumsum(0) < self.uniforms[site.name]).sum(0)
        k = np.minimum(k, len(values) - 1)
        value = np.take_along_axis(values.numpy(), k[None], 0)[0]
        site.value = tensor(value)


def cut_points(guide, y):
    """Where the draws of each site jump, over everything that may have been drawn before it."""
    found = {}
    for values in outcomes(len(y)):
        with _Fixed(values):
            run = handlers.trace(guide).get_trace(y)
        for name, site in run.nodes.items():
            if site.kind == "sample":
                support = site.fn.enumerate_support()
                probs = site.fn.log_prob_inside(support).exp().detach().numpy()
                jumps = probs.cumsum(0)[:-1].reshape(-1)
                found.setdefault(name, set()).update(float(f"{x:.15f}") for x in jumps)
    return found


class _Fixed(Handler):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_sample(self, site):
        if site.value is None and site.name in self.values:
            site.value = tensor(self.values[site.name], dtype=np.dtype("f8"))


def exact_gradient(model, guide, y):
    enumerated_bound(model, guide, y, list(outcomes(len(y)))).backward()
    return gradients()


def mean_gradient(objective, model, guide, y, monkeypatch, breaks=()):
    """Mean and total variance of the gradient over all outcomes of all draws."""
    cuts = cut_points(guide, y)
    found = {}

    def run(draws):
        class Own(site_estimators.SiteDraws):
            def sample(self, q, n):
                return draws.sample(q, n)

            def uniform(self, shape, dtype):
                return draws.uniform(shape, dtype)

        for name in ("sample", "uniform"):
            monkeypatch.setattr(site_estimators.SiteDraws, name, getattr(Own, name))
        with Quantiles(draws, cuts):
            loss = objective.loss_and_grads(model, guide, y)
        return loss, gradients()

    mass, squares = 0.0, 0.0
    for weight, (_, slopes) in Exhaustive(breaks).everything(run):
        mass += weight
        for name, g in slopes.items():
            found[name] = found.get(name, 0.0) + weight * -g
            squares += weight * np.sum(g * g)
    assert abs(mass - 1.0) < 1e-12
    return found, squares - sum(np.sum(g * g) for g in found.values())


def coin_breaks(y):
    """Jumps of the antithetic draws at sites a and c, whatever was drawn before."""
    found = set()
    for values in outcomes(len(y)):
        with _Fixed(values):
            run = handlers.trace(guide).get_trace(y)
        for name in ("a", "c"):
            for p in np.ravel(run[name].fn.probs.detach().numpy()):
                found.update(((1.0 - p) / p, (1.0 - 2.0 * p) / (1.0 - p)))
    return sorted(float(f"{x:.15f}") for x in found)


# Estimators by site, and the number of rows: more outcomes with each.
CHOICES = {
    "score function": ({"a": ScoreFunction(), "b": "score_function"}, 1),
    "constant baselines": ({"a": ScoreFunction(-1.5), "b": DiCE(lambda: tensor(-2.0))}, 1),
    "enumerate": ({"a": "enumerate", "b": "enumerate", "c": "enumerate"}, 2),
    "enumerate one": ({"b": Enumerate()}, 1),
    "sum and sample": ({"b": SumAndSample(1)}, 2),
    "unordered set": ({"b": UnorderedSet(2)}, 1),
    "measure valued": ({"a": MeasureValued(), "b": MeasureValued()}, 1),
    "DisARM": ({"a": DisARM()}, 1),
    "ARM at the rows": ({"c": ARM()}, 1),
    "DisARM and enumerate": ({"c": "disarm", "b": "enumerate"}, 1),
}
QUICK = ("score function", "constant baselines", "enumerate one")


@pytest.mark.parametrize("objective", [Trace_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize(
    "choice", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CHOICES]
)
def test_the_mean_gradient_is_that_of_the_bound(objective, choice, monkeypatch):
    estimators, rows = CHOICES[choice]
    y = CLICKS[:rows]
    expected = exact_gradient(model, guide, y)
    found, variance = mean_gradient(
        objective(), model, choosing(guide, **estimators), y, monkeypatch,
        coin_breaks(y) if "ARM" in choice else (),
    )  # fmt: skip
    for name, slope in expected.items():
        np.testing.assert_allclose(found[name], slope, rtol=0, atol=1e-10, err_msg=name)
    # The choice is heeded: other numbers, of the same mean.
    _, plain = mean_gradient(objective(), model, guide, y, monkeypatch)
    assert (abs(variance - plain) > 1e-3) == (choice != "score function")


# ------------------------------------------------------------------------------ sampled checks


def sampled(objective, guide, count, y=None, model=model, seed=0):
    """Gradients of `count` estimates, as arrays by parameter."""
    y = CLICKS if y is None else y
    found = {}
    with handlers.seed(None, seed):
        for _ in range(count):
            objective.loss_and_grads(model, guide, y)
            for name, g in gradients().items():
                found.setdefault(name, []).append(-g)
    return {name: np.array(gs) for name, gs in found.items()}


def assert_mean(found, expected):
    """Every mean within 5 standard errors: a false alarm in 1e6 per number."""
    for name, exact in expected.items():
        gs = found[name]
        error = gs.std(0) / math.sqrt(len(gs))
        assert (np.abs(gs.mean(0) - exact) <= 5.0 * error + 1e-12).all(), name


def variance(found):
    return sum(g.var(0).sum() for g in found.values())


@pytest.mark.parametrize(
    "estimators",
    [
        pytest.param({"a": REBAR(), "c": REBAR()}, marks=pytest.mark.slow),
        pytest.param(
            {"a": RELAX(lambda z: 0.3 * z), "c": RELAX(lambda z: (0.5 * z).tanh())},
            marks=pytest.mark.slow,
        ),
        {"b": RELAX(lambda z: (z * 0.2).sum(-1))},
        pytest.param({"a": DisARM(), "b": UnorderedSet(2), "c": DisARM()}, marks=pytest.mark.slow),
    ],
    ids=["REBAR", "RELAX", "RELAX of categories", "one of each"],
)
def test_estimators_with_noise_of_their_own_have_the_gradient_of_the_bound_as_mean(estimators):
    expected = exact_gradient(model, guide, CLICKS)
    assert_mean(sampled(Trace_ELBO(), choosing(guide, **estimators), 400), expected)


@pytest.mark.parametrize(
    "vectorised", [pytest.param(False, marks=pytest.mark.slow), True], ids=["in turn", "vectorised"]
)
def test_leave_one_out_compares_the_particles_and_varies_less(vectorised):
    expected = exact_gradient(model, guide, CLICKS)
    loo = ScoreFunction("leave_one_out")
    guided = choosing(guide, a=loo, b=loo, c=loo)
    found = sampled(Trace_ELBO(4, vectorize_particles=vectorised), guided, 250)
    assert_mean(found, expected)
    assert variance(found) < 0.7 * variance(sampled(Trace_ELBO(4), guide, 250))


def event_model(y):
    with plate("rows", len(y)):
        z = sample("z", Bernoulli(tensor([0.3, 0.6], dtype=DOUBLE)).to_event(1))
        sample("y", Normal((z * tensor([1.0, -0.7])).sum(-1), 0.6), obs=y)


def event_guide(y):
    logits = param("logits", tensor([0.3, -0.4], dtype=DOUBLE))
    with plate("rows", len(y)):
        sample("z", Bernoulli(logits=logits).to_event(1))


def event_gradient(y):
    """By the sum over the four values of each row."""
    logits = tensor([0.3, -0.4], dtype=DOUBLE, requires_grad=True)
    q, p = Bernoulli(logits=logits), Bernoulli(tensor([0.3, 0.6], dtype=DOUBLE))
    bound = 0.0
    for row in y:
        for outcome in itertools.product((0.0, 1.0), repeat=2):
            z = tensor(outcome, dtype=DOUBLE)
            log_q = q.log_prob(z).sum()
            like = Normal((z * tensor([1.0, -0.7])).sum(-1), 0.6).log_prob(row)
            bound = bound + log_q.exp() * (like + p.log_prob(z).sum() - log_q)
    bound.backward()
    return {"logits": logits.grad.numpy()}


@pytest.mark.parametrize("estimator", ["disarm", "arm", "unordered_set", "measure_valued"])
@pytest.mark.parametrize("particles", [1, 3])
def test_events_in_plates_have_the_gradient_of_the_bound_as_mean(estimator, particles):
    y = tensor([0.8, -0.3, 0.1], dtype=DOUBLE)
    objective = Trace_ELBO(particles, vectorize_particles=True)
    found = sampled(
        objective, choosing(event_guide, z=estimator), 150, y=y, model=event_model, seed=2
    )
    assert_mean(found, event_gradient(y))


def test_events_in_plates_are_enumerated_row_by_row():
    y = tensor([0.8, -0.3, 0.1], dtype=DOUBLE)
    objective = Trace_ELBO(2, vectorize_particles=True)
    guided = choosing(event_guide, z="enumerate")
    for g in sampled(objective, guided, 3, y=y, model=event_model)["logits"]:
        np.testing.assert_allclose(g, event_gradient(y)["logits"], rtol=1e-12)


@pytest.mark.parametrize(
    "estimator", [ScoreFunction(tensor([-1.0, -2.0])), RELAX(lambda z: (0.5 * z).tanh())]
)
@pytest.mark.parametrize("objective", [Trace_ELBO(), Trace_ELBO(2, vectorize_particles=True)])
def test_rows_bear_baselines_and_control_variates_of_their_own(estimator, objective):
    expected = exact_gradient(model, guide, CLICKS)
    assert_mean(sampled(objective, choosing(guide, c=estimator), 200, seed=4), expected)


def test_a_baseline_with_more_rows_than_the_site_is_refused():
    guided = choosing(guide, a=ScoreFunction(tensor([-1.0, -2.0])))
    with pytest.raises(ShapeError, match="a shape that broadcasts"):
        sampled(Trace_ELBO(), guided, 1)


def test_leave_one_out_with_one_particle_is_refused():
    with pytest.raises(InferenceError, match="at least 2 particles"):
        sampled(Trace_ELBO(), choosing(guide, a=ScoreFunction("leave_one_out")), 1)


def test_a_moving_average_is_kept_and_saved_with_the_objective():
    average = ScoreFunction("moving_average")
    guided, objective = choosing(guide, a=average, b=average, c=average), Trace_ELBO()
    expected = exact_gradient(model, guide, CLICKS)
    found = sampled(objective, guided, 300)
    assert_mean(found, expected)
    assert variance(found) < 0.9 * variance(sampled(Trace_ELBO(), guide, 300))
    state = objective.state_dict()
    assert set(state["memory"]) == {"a", "b", "c"}
    other = Trace_ELBO()
    other.load_state_dict(state)
    first = sampled(objective, guided, 3, seed=5)
    for name, g in sampled(other, guided, 3, seed=5).items():
        np.testing.assert_array_equal(g, first[name])


def test_a_baseline_with_parameters_is_trained_along():
    level = tensor(0.0, dtype=DOUBLE, requires_grad=True)
    guided = choosing(guide, a=ScoreFunction(lambda: level))
    assert_mean(sampled(Trace_ELBO(), guided, 100), exact_gradient(model, guide, CLICKS))
    level.grad = None
    with handlers.seed(None, 0):
        for _ in range(200):
            Trace_ELBO().loss_and_grads(model, guided, CLICKS)
            level.array[()] -= 0.05 * level.grad.item()
            level.grad = None
    # Least squares: near the mean cost, which is the bound.
    bound = enumerated_bound(model, guide, CLICKS, list(outcomes(2))).item()
    assert abs(level.item() - bound) < 0.5


def test_the_control_variate_of_a_site_is_trained_along():
    slope = tensor(0.0, dtype=DOUBLE, requires_grad=True)
    guided = choosing(guide, a=RELAX(lambda z: slope * z))
    with handlers.seed(None, 0):
        Trace_ELBO().loss_and_grads(model, guided, CLICKS)
    assert slope.grad is not None and slope.grad.item() != 0.0


# ------------------------------------------------------------------- draws that have a path


def normal_model():
    x = sample("x", Normal(tensor(0.5, dtype=DOUBLE), 1.0))
    y = sample("y", Normal(x.sin(), 0.7))
    sample("seen", Normal(x + y, 1.0), obs=tensor(1.2, dtype=DOUBLE))


def normal_guide():
    loc = param("loc", tensor(0.2, dtype=DOUBLE))
    scale = param("log_scale", tensor(-0.3, dtype=DOUBLE)).exp()
    x = sample("x", Normal(loc, scale))
    sample("y", Normal(param("slope", tensor(0.4, dtype=DOUBLE)) * x, 0.6))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [ScoreFunction(), MeasureValued()], ids=repr)
def test_a_site_with_a_path_can_do_without_it(estimator):
    run = lambda guided, count: sampled(
        Trace_ELBO(), lambda y: guided(), count, model=lambda y: normal_model()
    )
    plain = run(normal_guide, 3000)
    found = run(choosing(normal_guide, x=estimator), 1500)
    for name, gs in found.items():
        gap = abs(gs.mean() - plain[name].mean())
        error = math.hypot(gs.std() / math.sqrt(1500), plain[name].std() / math.sqrt(3000))
        # A false alarm in 1e6.
        assert gap < 5.0 * error, name
    assert variance(found) != variance(plain)


def test_pathwise_by_name_is_what_happens_anyway():
    run = lambda guided: sampled(
        Trace_ELBO(), lambda y: guided(), 3, model=lambda y: normal_model()
    )
    found = run(choosing(normal_guide, x="pathwise", y=Pathwise()))
    for name, g in run(normal_guide).items():
        np.testing.assert_array_equal(g, found[name])


# ------------------------------------------------------------------------------------ reruns


def test_a_rerun_repeats_all_draws_but_the_one_that_changes():
    seen = []

    def noisy(y):
        before = sample("before", Normal(0.0, 1.0), infer={"is_auxiliary": True})
        a = sample("a", Bernoulli(0.4))
        with plate("rows", 50, subsample_size=3) as rows:
            after = sample("after", Normal(0.0, 1.0), infer={"is_auxiliary": True})
        seen.append((a.item(), before.item(), rows.tolist(), after.tolist(), probtorch.rand(2)))

    def simple(y):
        sample("a", Bernoulli(0.3))

    with handlers.seed(None, 3):
        Trace_ELBO().loss_and_grads(simple, choosing(noisy, a=Enumerate()), CLICKS)
        (first, second) = seen
        state = probtorch.default_generator.get_state()
    assert {first[0], second[0]} == {0.0, 1.0}
    assert first[1:4] == second[1:4]
    np.testing.assert_array_equal(first[4].numpy(), second[4].numpy())
    assert probtorch.default_generator.get_state() == state


def test_a_loss_takes_no_reruns():
    runs = []

    def counted(y):
        runs.append(1)
        return guide(y)

    with handlers.seed(None, 0):
        Trace_ELBO().loss(model, choosing(counted, b="enumerate"), CLICKS)
    assert len(runs) == 1


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "estimators, match",
    [
        ({"b": "disarm"}, "site 'b': DisARM does not apply to Categorical"),
        ({"a": "pathwise"}, "what applies: score_function"),
        ({"b": REBAR()}, "nothing between them"),
        ({"a": "disram"}, "did you mean 'disarm'"),
        ({"a": DisARM}, r"write DisARM\(\)"),
    ],
)
def test_an_estimator_that_does_not_apply_is_refused_at_the_site(estimators, match):
    with pytest.raises(ArgumentError, match=match) as caught:
        sampled(Trace_ELBO(), choosing(guide, **estimators), 1)
    assert "test_site_estimators.py" in caught.value.location


def test_vimco_is_refused_at_a_site():
    with pytest.raises(InferenceError, match="ImportanceWeightedELBO"):
        sampled(Trace_ELBO(), choosing(guide, a="vimco"), 1)


@pytest.mark.parametrize("objective", [RenyiELBO(), TraceMeanField_ELBO(), ReweightedWakeSleep()])
def test_other_objectives_refuse_a_choice_instead_of_passing_over_it(objective):
    with pytest.raises(InferenceError, match="takes estimators per site"):
        sampled(objective, choosing(guide, a=DisARM()), 1)


def test_a_masked_site_is_refused_where_masks_are_not_borne():
    masked = handlers.mask(guide, mask=tensor([True, False]))
    with pytest.raises(InferenceError, match="a masked one"):
        sampled(Trace_ELBO(), choosing(masked, c=DisARM()), 1)


@pytest.mark.parametrize("objective", [Trace_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize(
    "baseline, options",
    [
        ("leave_one_out", {"num_particles": 4, "vectorize_particles": True}),
        ("leave_one_out", {"num_particles": 2}),
        (-1.0, {}),
    ],
    ids=["vectorised particles", "particles in turn", "constant baseline"],
)
def test_baselines_are_part_of_compiled_steps(objective, baseline, options):
    guided = choosing(guide, a=ScoreFunction(baseline), c=ScoreFunction(baseline))
    found = []
    for jit in (True, False):
        with configure(jit=jit):
            svi = SVI(model, guided, Adam({"lr": 0.05}), objective(**options), seed=3)
            for _ in range(5):
                svi.step(CLICKS)
            assert ("compiled path" in svi.explain()) == jit
            found.append(svi.get_params())
    for name, value in found[0].items():
        np.testing.assert_allclose(value.numpy(), found[1][name].numpy(), rtol=0, atol=1e-13)


def test_steps_with_reruns_are_taken_eagerly_and_say_so():
    svi = SVI(model, choosing(guide, a=DisARM()), Adam({"lr": 0.01}), Trace_ELBO(), seed=0)
    losses = [svi.step(CLICKS) for _ in range(4)]
    assert np.isfinite(losses).all()
    assert "DisARM" in svi.explain()


# ------------------------------------------------------------------------- variance, measured


def fitted(**options):
    svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO(**options), seed=1)
    svi.step(CLICKS)
    return svi


def test_gradient_variance_has_a_row_per_estimator_and_moves_nothing():
    svi = fitted()
    before, state = svi.get_params(), svi.state_dict()
    table = svi.gradient_variance(CLICKS, estimators=["score_function", {"b": Enumerate()}])
    assert {row.estimator for row in table} == {
        "as written",
        "score_function",
        "b: Enumerate(max_outcomes=4096)",
    }
    plain, summed = table["score_function"], table["b: Enumerate(max_outcomes=4096)"]
    assert plain.total == table["as written"].total
    assert summed.variances["b_logits"].sum() < plain.variances["b_logits"].sum()
    assert plain.total == pytest.approx(sum(v.sum() for v in plain.variances.values()))
    assert [row.total for row in table] == sorted(row.total for row in table)
    assert all(row.seconds > 0.0 for row in table)
    for name, value in svi.get_params().items():
        np.testing.assert_array_equal(value.numpy(), before[name].numpy())
    assert svi.state_dict()["generator"] == state["generator"]
    lines = repr(table).splitlines()
    assert "a_logit" in lines[1] and "total x ms" in lines[1] and len(lines) == 5


def test_gradient_variance_picks_the_estimators_that_apply():
    names = [row.estimator for row in fitted().gradient_variance(CLICKS, num_samples=2)]
    assert {"as written", "score_function", "disarm", "arm", "enumerate"} <= set(names)
    assert "pathwise" not in names and "gumbel_softmax" not in names
    several = fitted(num_particles=2, vectorize_particles=True)
    names = [row.estimator for row in several.gradient_variance(CLICKS, num_samples=2)]
    assert any("leave_one_out" in name for name in names)


def test_gradient_variance_says_what_is_biased():
    table = fitted().gradient_variance(
        CLICKS, estimators=[{"a": "straight_through"}], num_samples=3
    )
    assert not table["a: straight_through"].unbiased
    assert "a: straight_through (biased)" in repr(table)


@pytest.mark.parametrize(
    "estimators, match",
    [
        (["pathwise"], "Pathwise does not apply"),
        ([{"z": "enumerate"}], "latent sites of the guide: 'a', 'b', 'c'"),
    ],
)
def test_gradient_variance_refuses_what_cannot_be_compared(estimators, match):
    with pytest.raises(ArgumentError, match=match):
        fitted().gradient_variance(CLICKS, estimators=estimators)


def test_gradient_variance_needs_an_objective_that_takes_estimators():
    svi = SVI(model, guide, Adam({"lr": 0.01}), RenyiELBO(), seed=0)
    with pytest.raises(InferenceError, match="takes estimators per site"):
        svi.gradient_variance(CLICKS)
