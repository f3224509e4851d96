"""Objectives against closed forms, and against the sum over all outcomes of their randomness."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp

import probtorch
from probtorch.distributions import (
    Bernoulli,
    Normal,
    RelaxedBernoulliStraightThrough,
    RelaxedOneHotCategoricalStraightThrough,
)
from probtorch.effects import factor, handlers, param, plate, sample
from probtorch.effects.params import get_param_store
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.factories import zeros
from probtorch.infer import (
    SVI,
    ImportanceWeightedELBO,
    RenyiELBO,
    ReweightedWakeSleep,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceTailAdaptive_ELBO,
)
from probtorch.optim import SGD
from probtorch.tensor import tensor
from tests.infer.svi.programs import (
    CLICKS,
    DATA,
    Force,
    discrete_guide,
    discrete_model,
    enumerated_bound,
    gradients,
    log_joint,
    normal_elbo,
    normal_elbo_gradient,
    normal_evidence,
    normal_guide,
    normal_model,
    normal_posterior,
    outcomes,
)

LOC, LOG_SCALE = 0.3, -0.5


def quadrature(objective, count=30):
    """Mean value and gradient of an objective over the noise of one draw of mu, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    value, slope = 0.0, np.zeros(2)
    for node, weight in zip(nodes, weights):
        with Noise([node]):
            value += weight * objective.loss_and_grads(normal_model, normal_guide, DATA)
        found = gradients()
        slope += weight * np.array([found["loc"], found["log_scale"]])
    return -value, -slope


class Noise(handlers.trace.__mro__[1]):
    """Draw mu from given standard normal numbers, by the guide's own loc and scale."""

    def __init__(self, noise):
        super().__init__()
        self.noise = list(noise)

    def on_sample(self, site):
        if site.value is None and site.name == "mu":
            site.value = site.fn.loc + site.fn.scale * self.noise.pop(0)


@pytest.mark.parametrize(
    "objective",
    [
        Trace_ELBO(),
        TraceMeanField_ELBO(),
        TraceGraph_ELBO(),
        ImportanceWeightedELBO(1, "stl"),
        ImportanceWeightedELBO(1, "dreg"),
        ImportanceWeightedELBO(1, "standard"),
    ],
    ids=["trace", "mean field", "graph", "stl", "dreg", "standard"],
)
def test_mean_over_the_noise_is_the_bound_and_its_gradient(objective):
    value, slope = quadrature(objective)
    np.testing.assert_allclose(value, normal_elbo(LOC, LOG_SCALE), rtol=1e-12)
    np.testing.assert_allclose(slope, normal_elbo_gradient(LOC, LOG_SCALE), rtol=1e-9)


def importance_weighted(noise):
    """Bound and gradient for given noise, from the definition, by central differences."""
    mean, sd = normal_posterior()

    def bound(loc, log_scale):
        z = loc + math.exp(log_scale) * np.asarray(noise)
        log_q = -0.5 * np.asarray(noise) ** 2 - log_scale - 0.5 * math.log(2.0 * math.pi)
        log_p = normal_evidence() - 0.5 * ((z - mean) / sd) ** 2
        log_p = log_p - math.log(sd) - 0.5 * math.log(2.0 * math.pi)
        return logsumexp(log_p - log_q) - math.log(len(noise))

    h = 1e-5
    slope = [
        (bound(LOC + h, LOG_SCALE) - bound(LOC - h, LOG_SCALE)) / (2.0 * h),
        (bound(LOC, LOG_SCALE + h) - bound(LOC, LOG_SCALE - h)) / (2.0 * h),
    ]
    return bound(LOC, LOG_SCALE), np.array(slope)


def test_importance_weighted_bound_equals_its_definition():
    noise = [0.3, -1.2, 0.8]
    expected, slope = importance_weighted(noise)
    for objective in (RenyiELBO(0.0, 3), ImportanceWeightedELBO(3, "standard")):
        with Noise(noise):
            value = -objective.loss_and_grads(normal_model, normal_guide, DATA)
        found = gradients()
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(
            [-found["loc"], -found["log_scale"]], slope, rtol=1e-6, atol=1e-8
        )


def test_doubly_reparameterised_gradient_has_the_mean_of_the_plain_one():
    nodes, weights = np.polynomial.hermite_e.hermegauss(36)
    weights = weights / weights.sum()
    means = {}
    for gradient in ("standard", "dreg"):
        objective = ImportanceWeightedELBO(2, gradient)
        mean = np.zeros(2)
        for (x, u), (y, v) in itertools.product(zip(nodes, weights), repeat=2):
            with Noise([x, y]):
                objective.loss_and_grads(normal_model, normal_guide, DATA)
            found = gradients()
            mean += u * v * np.array([found["loc"], found["log_scale"]])
        means[gradient] = mean
    np.testing.assert_allclose(means["dreg"], means["standard"], rtol=1e-6)


@pytest.mark.parametrize("gradient", ["dreg", "stl"])
def test_gradients_along_the_draws_vanish_at_the_posterior_for_every_draw(gradient):
    mean, sd = normal_posterior()

    def guide(y):
        loc = param("loc", tensor(mean, dtype=np.dtype("f8")))
        sample("mu", Normal(loc, param("log_scale", tensor(math.log(sd))).exp()))

    slopes = {}
    for kind in (gradient, "standard"):
        with handlers.seed(None, 0):
            ImportanceWeightedELBO(3, kind).loss_and_grads(normal_model, guide, DATA)
        slopes[kind] = max(abs(float(g)) for g in gradients().values())
    # The log scale is kept in float32, which leaves 1e-7 of the weights' slopes.
    assert slopes[gradient] < 1e-5 < 1e-2 < slopes["standard"]


@pytest.mark.parametrize("gradient", ["dreg", "stl"])
def test_paths_through_later_draws_count(gradient):
    """With one particle the two are the plain gradient minus the score, draw by draw."""

    def model():
        a = sample("a", Normal(0.0, 1.0))
        b = sample("b", Normal(a, 1.0))
        sample("y", Normal(a * b, 1.0), obs=tensor(1.5, dtype=np.dtype("f8")))

    def guide():
        p = param("p", tensor([0.4, -0.2, 0.7], dtype=np.dtype("f8")))
        a = sample("a", Normal(p[0], 0.8))
        sample("b", Normal(p[1] + p[2] * a, 0.6))

    def score(run):
        draws = {n: s.value.detach() for n, s in run.items() if s.kind == "sample"}
        with handlers.trace() as seen, handlers.substitute(None, draws):
            guide()
        seen.log_prob_sum().backward()
        return gradients()["p"]

    with handlers.seed(None, 3):
        ImportanceWeightedELBO(1, gradient).loss_and_grads(model, guide)
    cut = gradients()["p"]
    with handlers.seed(None, 3):
        ImportanceWeightedELBO(1, "standard").loss_and_grads(model, guide)
    plain = gradients()["p"]
    with handlers.seed(None, 3):
        run = handlers.trace(guide).get_trace()
    # The loss has +log q, so what is left out of its gradient is the score.
    np.testing.assert_allclose(cut, plain - score(run), rtol=1e-10)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 2.0])
def test_renyi_bound_equals_its_definition(alpha):
    objective = RenyiELBO(alpha, 2)
    with Noise([0.3, -1.2]):
        value = -objective.loss(normal_model, normal_guide, DATA)
    log_w = []
    for noise in (0.3, -1.2):
        with Noise([noise]):
            log_w.append(-Trace_ELBO().loss(normal_model, normal_guide, DATA))
    power = 1.0 - alpha
    expected = (logsumexp(power * np.array(log_w)) - math.log(2.0)) / power
    np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize("beta", [-1.0, -0.5, 0.0])
def test_tail_adaptive_gradient_follows_the_paths_by_the_ranks_of_the_weights(beta):
    noise = np.array([0.3, -1.2, 0.8, 2.1])
    mean, sd = normal_posterior()
    scale = math.exp(LOG_SCALE)
    z = LOC + scale * noise
    log_w = 0.5 * noise**2 - 0.5 * ((z - mean) / sd) ** 2
    gamma = np.array([(log_w >= w).mean() for w in log_w]) ** beta
    along = gamma / gamma.sum() * (noise / scale - (z - mean) / sd**2)
    objective = TraceTailAdaptive_ELBO(4, tail_adaptive_beta=beta)
    with Noise(noise):
        loss = objective.loss_and_grads(normal_model, normal_guide, DATA)
    found = gradients()
    np.testing.assert_allclose(-found["loc"], along.sum(), rtol=1e-9)
    np.testing.assert_allclose(-found["log_scale"], along @ (scale * noise), rtol=1e-9)
    shift = normal_evidence() + LOG_SCALE - math.log(sd)
    np.testing.assert_allclose(-loss, log_w.mean() + shift, rtol=1e-9)
    with Noise(noise):
        np.testing.assert_allclose(objective.loss(normal_model, normal_guide, DATA), loss)


def test_tail_adaptive_objective_wants_paths():
    with pytest.raises(InferenceError, match=r"(?s)TraceTailAdaptive_ELBO: .*pathwise.*Trace_ELBO"):
        TraceTailAdaptive_ELBO(2).loss_and_grads(discrete_model, discrete_guide, CLICKS)


# ------------------------------------------------------------------------ draws without gradients


def expectation(objective, model, guide, y, values=None):
    """Mean of value and gradient over all outcomes of the guide, by their probabilities."""
    value, slopes = 0.0, {}
    for outcome in outcomes() if values is None else values:
        with probtorch.no_grad():
            probability = log_joint(guide, outcome, y).exp().item()
        with Force(outcome):
            value -= probability * objective.loss_and_grads(model, guide, y)
        for name, slope in gradients().items():
            slopes[name] = slopes.get(name, 0.0) - probability * slope
    return value, slopes


def exact(model, guide, y, values=None):
    bound = enumerated_bound(model, guide, y, values)
    bound.backward()
    return bound.item(), gradients()


@pytest.mark.parametrize(
    "objective",
    [Trace_ELBO(), TraceGraph_ELBO(), TraceMeanField_ELBO()],
    ids=["trace", "graph", "mean field"],
)
def test_score_function_gradient_is_unbiased(objective):
    value, slopes = expectation(objective, discrete_model, discrete_guide, CLICKS)
    expected, exact_slopes = exact(discrete_model, discrete_guide, CLICKS)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, exact_slopes[name], rtol=1e-10, atol=1e-12)


def test_scores_without_what_came_before_vary_less():
    """Four independent coins: each score is multiplied by its own terms and those after it."""

    def model(y):
        for i in range(4):
            c = sample(f"c{i}", Bernoulli(0.4))
            sample(f"y{i}", Normal(c, 0.5), obs=y[i])

    def guide(y):
        logits = param("logits", tensor([0.2, -0.1, 0.5, 0.3], dtype=np.dtype("f8")))
        for i in range(4):
            sample(f"c{i}", Bernoulli(logits=logits[i]))

    y = tensor([2.0, -1.0, 1.5, 2.5], dtype=np.dtype("f8"))
    spread = {}
    for objective in (Trace_ELBO(), TraceGraph_ELBO()):
        mean, square = np.zeros(4), np.zeros(4)
        for outcome in itertools.product((0.0, 1.0), repeat=4):
            values = {f"c{i}": c for i, c in enumerate(outcome)}
            with probtorch.no_grad():
                weight = log_joint(guide, values, y).exp().item()
            with Force(values):
                objective.loss_and_grads(model, guide, y)
            slope = gradients()["logits"]
            mean, square = mean + weight * slope, square + weight * slope**2
        spread[type(objective)] = mean, square - mean**2
    np.testing.assert_allclose(spread[TraceGraph_ELBO][0], spread[Trace_ELBO][0], rtol=1e-10)
    assert (spread[TraceGraph_ELBO][1][1:] < spread[Trace_ELBO][1][1:]).all()


def test_a_plate_that_is_entered_again_may_see_all_rows():
    """What was computed from all rows in between depends on each of them."""

    def model(y):
        with plate("rows", len(y)):
            c = sample("c", Bernoulli(0.4))
        mixed = c.sum()
        with plate("rows", len(y)):
            sample("y", Bernoulli(logits=mixed - 1.0), obs=y)

    def guide(y):
        logits = param("c_logit", tensor([0.2, -0.1, 0.5], dtype=np.dtype("f8")))
        with plate("rows", len(y)):
            sample("c", Bernoulli(logits=logits))

    values = [{"c": np.array(c)} for c in itertools.product((0.0, 1.0), repeat=3)]
    for objective in (Trace_ELBO(), TraceGraph_ELBO()):
        value, slopes = expectation(objective, model, guide, CLICKS, values)
        expected, exact_slopes = exact(model, guide, CLICKS, values)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(slopes["c_logit"], exact_slopes["c_logit"], rtol=1e-10)


def test_plates_side_by_side_share_a_dim_but_not_their_rows():
    def model():
        with plate("left", 2):
            a = sample("a", Bernoulli(0.4))
        with plate("right", 2):
            sample("y", Bernoulli(logits=a.sum() - 1.0), obs=tensor([1.0, 0.0]))

    def guide():
        logits = param("a_logit", tensor([0.2, -0.1], dtype=np.dtype("f8")))
        with plate("left", 2):
            sample("a", Bernoulli(logits=logits))

    def run(y):
        return model()

    values = [{"a": np.array(a)} for a in itertools.product((0.0, 1.0), repeat=2)]
    _, slopes = expectation(TraceGraph_ELBO(), run, lambda y: guide(), None, values)
    _, exact_slopes = exact(run, lambda y: guide(), None, values)
    np.testing.assert_allclose(slopes["a_logit"], exact_slopes["a_logit"], rtol=1e-10)


@pytest.mark.parametrize("particles", [2, 3])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 2.0])
def test_renyi_bound_with_discrete_draws_is_unbiased_for_its_own_mean(alpha, particles):
    """The mean over the outcomes of all particles, differentiated."""

    def model(y):
        a = sample("a", Bernoulli(0.3))
        sample("y", Bernoulli(logits=2.0 * a - 1.0), obs=y)

    def guide(y):
        sample("a", Bernoulli(logits=param("logit", tensor(0.4, dtype=np.dtype("f8")))))

    y = tensor(1.0, dtype=np.dtype("f8"))
    objective = RenyiELBO(alpha, particles)
    power = 1.0 - alpha
    total, slope = 0.0, 0.0
    for values in itertools.product((0.0, 1.0), repeat=particles):
        log_q = probtorch.stack([log_joint(guide, {"a": a}, y) for a in values])
        log_w = probtorch.stack([log_joint(model, {"a": a}, y) for a in values]) - log_q
        bound = (probtorch.logsumexp(power * log_w, 0) - math.log(particles)) / power
        weight = log_q.sum().exp()
        total = total + weight * bound
        with Sequence("a", values):
            objective.loss_and_grads(model, guide, y)
        slope -= weight.item() * gradients()["logit"]
    total.backward()
    np.testing.assert_allclose(slope, gradients()["logit"], rtol=1e-10)


class Sequence(Force):
    """Give a site one value after the other, run by run."""

    def __init__(self, name, values):
        super().__init__({})
        self.name, self.left = name, list(values)

    def on_sample(self, site):
        if site.value is None and site.name == self.name:
            site.value = tensor(self.left.pop(0), dtype=np.dtype("f8"))


def test_scores_of_a_subsample_are_scaled_like_the_bound():
    """The mean over all rows that may be drawn is the gradient for all of them."""
    y = np.array([1.0, 0.0, 1.0])

    def model(rows):
        with plate("rows", 3, subsample=rows):
            c = sample("c", Bernoulli(0.3))
            sample("y", Bernoulli(logits=2.0 * c - 1.0), obs=tensor(y[rows]))

    def guide(rows):
        logits = param("logits", tensor([0.4, -0.3, 0.1], dtype=np.dtype("f8")))
        with plate("rows", 3, subsample=rows):
            sample("c", Bernoulli(logits=logits[rows]))

    mean = np.zeros(3)
    for row, c in itertools.product(range(3), (0.0, 1.0)):
        with Force({"c": np.array([c])}):
            TraceGraph_ELBO().loss_and_grads(model, guide, [row])
        slope = gradients()["logits"]
        p = 1.0 / (1.0 + math.exp(-[0.4, -0.3, 0.1][row]))
        mean -= (p if c else 1.0 - p) * slope / 3.0
    values = [{"c": np.array(c)} for c in itertools.product((0.0, 1.0), repeat=3)]
    _, expected = exact(model, guide, [0, 1, 2], values)
    np.testing.assert_allclose(mean, expected["logits"], rtol=1e-10)


def baseline_guide(options):
    def guide(y):
        logit = param("logit", tensor(0.4, dtype=np.dtype("f8")))
        sample("a", Bernoulli(logits=logit), infer={"baseline": options})

    return guide


def baseline_model(y):
    a = sample("a", Bernoulli(0.3))
    sample("y", Normal(3.0 * a, 1.0), obs=y)


@pytest.mark.parametrize(
    "options",
    [
        {"baseline_value": -7.0},
        {"nn_baseline": lambda x: 2.0 * x, "nn_baseline_input": -3.0},
        {"use_decaying_avg_baseline": True, "baseline_beta": 0.5},
    ],
    ids=["value", "network", "average"],
)
def test_a_baseline_changes_no_mean_and_less_variance_comes_of_a_good_one(options):
    y = tensor(2.0, dtype=np.dtype("f8"))
    values = [{"a": 0.0}, {"a": 1.0}]
    _, expected = exact(baseline_model, baseline_guide({}), y, values)
    objective = TraceGraph_ELBO()
    guide = baseline_guide(options)
    if "use_decaying_avg_baseline" in options:
        with Force({"a": 0.0}):
            objective.loss_and_grads(baseline_model, guide, y)
        gradients()
        state = objective.state_dict()
        slope = 0.0
        for value in values:
            # The same average before either outcome.
            objective.load_state_dict(state)
            with probtorch.no_grad():
                weight = log_joint(guide, value, y).exp().item()
            with Force(value):
                objective.loss_and_grads(baseline_model, guide, y)
            slope -= weight * gradients()["logit"]
        assert state["averages"]["a"].item() != 0.0
    else:
        _, slopes = expectation(objective, baseline_model, guide, y, values)
        slope = slopes["logit"]
    np.testing.assert_allclose(slope, expected["logit"], rtol=1e-10)


def test_a_trained_baseline_is_moved_towards_the_cost():
    weight = tensor(0.0, dtype=np.dtype("f8"), requires_grad=True)
    options = {"nn_baseline": lambda x: weight * x, "nn_baseline_input": 1.0}
    y = tensor(2.0, dtype=np.dtype("f8"))
    with Force({"a": 1.0}):
        loss = TraceGraph_ELBO().loss_and_grads(baseline_model, baseline_guide(options), y)
    # d (cost - b)^2 / db at b = 0, where the cost is minus the loss.
    np.testing.assert_allclose(weight.grad.item(), -2.0 * -loss, rtol=1e-12)


def test_an_unknown_baseline_option_is_refused():
    with pytest.raises(ArgumentError, match="baseline of site 'a'"):
        TraceGraph_ELBO().loss(baseline_model, baseline_guide({"beta": 0.5}), tensor(1.0))


# -------------------------------------------------------------------------------- several particles


def with_particles(objective, seed=0):
    with handlers.seed(None, seed):
        loss = objective.loss_and_grads(normal_model, normal_guide, DATA)
    return loss, gradients()


@pytest.mark.parametrize("kind", [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO])
def test_vectorised_particles_are_the_same_particles(kind):
    """One site with one draw each: the generator gives both the same numbers."""
    loss, slopes = with_particles(kind(7))
    together, slopes_together = with_particles(kind(7, vectorize_particles=True))
    np.testing.assert_allclose(together, loss, rtol=1e-10)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slopes_together[name], slope, rtol=1e-9)


@pytest.mark.parametrize("gradient", ["standard", "stl", "dreg"])
def test_vectorised_importance_weights_are_the_same(gradient):
    loss, slopes = with_particles(ImportanceWeightedELBO(7, gradient))
    objective = ImportanceWeightedELBO(7, gradient, vectorize_particles=True)
    together, slopes_together = with_particles(objective)
    np.testing.assert_allclose(together, loss, rtol=1e-10)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slopes_together[name], slope, rtol=1e-9)


def test_vectorised_discrete_draws_are_unbiased():
    """Two particles at once: the mean over all pairs of outcomes."""

    def model(y):
        with plate("rows", 2):
            c = sample("c", Bernoulli(0.3))
            sample("y", Bernoulli(logits=2.0 * c - 1.0), obs=y)

    def guide(y):
        logits = param("logits", tensor([0.4, -0.3], dtype=np.dtype("f8")))
        with plate("rows", 2):
            sample("c", Bernoulli(logits=logits))

    y = tensor([1.0, 0.0], dtype=np.dtype("f8"))
    singles = [np.array(c) for c in itertools.product((0.0, 1.0), repeat=2)]
    _, expected = exact(model, guide, y, [{"c": c} for c in singles])
    for objective in (Trace_ELBO(2, vectorize_particles=True), TraceGraph_ELBO(2, None, True)):
        with handlers.seed(None, 0):
            objective.loss(model, guide, y)
        slope = np.zeros(2)
        for a, b in itertools.product(singles, repeat=2):
            with probtorch.no_grad():
                weight = sum(log_joint(guide, {"c": c}, y) for c in (a, b)).exp().item()
            with Force({"c": np.stack([a, b])}):
                objective.loss_and_grads(model, guide, y)
            slope -= weight * gradients()["logits"]
        np.testing.assert_allclose(slope, expected["logits"], rtol=1e-10)


def test_a_model_that_mixes_particles_is_refused():
    def model():
        x = sample("x", Normal(tensor(np.zeros(3)), 1.0).to_event(1))
        sample("y", Normal(x.sum(), 1.0), obs=tensor(1.0))

    def guide():
        sample("x", Normal(tensor(np.zeros(3)), 1.0).to_event(1))

    with pytest.raises(InferenceError, match="vectorize_particles: 4 particles") as error:
        Trace_ELBO(4, vectorize_particles=True).loss(model, guide)
    assert "site 'y'" in error.value.got and "dim=-1" in error.value.fix


def test_a_model_whose_shapes_break_is_refused():
    def model():
        x = sample("x", Normal(tensor(np.zeros(3)), 1.0).to_event(1))
        design = tensor(np.ones((5, 3)))
        with plate("rows", 5):
            sample("y", Normal(design @ x, 1.0), obs=tensor(np.ones(5)))

    def guide():
        sample("x", Normal(tensor(np.zeros(3)), 1.0).to_event(1))

    with pytest.raises(InferenceError, match="vectorize_particles"):
        Trace_ELBO(4, vectorize_particles=True).loss(model, guide)
    assert math.isfinite(Trace_ELBO(4).loss(model, guide))


def test_a_model_that_crosses_particles_is_refused_before_it_takes_memory():
    sizes = []

    def model():
        x = sample("x", Normal(tensor(np.zeros(2)), 1.0).to_event(1))
        # A dim too many on one side: particles meet particles.
        crossed = x[..., None, :] + x
        sizes.append(crossed.numel())
        with plate("rows", 5):
            sample("y", Normal(crossed.sum(-1), 1.0), obs=tensor(np.ones(5)))

    def guide():
        sample("x", Normal(tensor(np.zeros(2)), 1.0).to_event(1))

    with pytest.raises(InferenceError, match="vectorize_particles: 5000 particles"):
        Trace_ELBO(5000, vectorize_particles=True).loss(model, guide)
    assert max(sizes) <= 3 * 3 * 2


def test_subsampled_rows_are_shared_by_vectorised_particles():
    y = tensor(np.arange(10.0))

    def model():
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("data", 10, subsample_size=3) as rows:
            sample("y", Normal(mu, 1.0), obs=y[rows])

    def guide():
        sample("mu", Normal(param("loc", 0.0), 0.1))

    assert math.isfinite(Trace_ELBO(5, vectorize_particles=True).loss(model, guide))


# ------------------------------------------------------------------------------------- wake-sleep


def test_wake_losses_are_those_of_their_definition():
    objective = ReweightedWakeSleep(2)
    pair = (0.3, 1.1)
    with Sequence("mu", pair):
        value = -objective.loss_and_grads(normal_model, normal_guide, DATA)
    found = gradients()
    log_q = [log_joint(normal_guide, {"mu": z}, DATA) for z in pair]
    log_p = [log_joint(normal_model, {"mu": z}, DATA).item() for z in pair]
    log_w = np.array(log_p) - [q.item() for q in log_q]
    np.testing.assert_allclose(value, logsumexp(log_w) - math.log(2.0), rtol=1e-12)
    weights = np.exp(log_w - logsumexp(log_w))
    (log_q[0] * weights[0] + log_q[1] * weights[1]).backward()
    expected = gradients()
    for name, slope in found.items():
        np.testing.assert_allclose(slope, -expected[name], rtol=1e-10)


def test_sleep_phase_fits_the_guide_to_draws_of_the_model():
    """The gradient is that of the guide's density at the model's draws, given their data."""

    def model(observations=None):
        z = sample("z", Normal(0.0, 1.0))
        obs = None if observations is None else observations["x"]
        sample("x", Normal(z, 0.5), obs=obs)

    def guide(observations=None):
        slope = param("slope", tensor(0.1, dtype=np.dtype("f8")))
        sample("z", Normal(slope * observations["x"], 0.4))

    objective = ReweightedWakeSleep(2, insomnia=0.0, num_sleep_particles=4000)
    with handlers.seed(None, 0):
        objective.loss_and_grads(model, guide, observations={"x": tensor(0.7)})
    # E[(z - s x) x] / 0.16 = (1 - 1.25 s) / 0.16, whose sd over 4000 draws is about 0.12.
    slope = -gradients()["slope"]
    np.testing.assert_allclose(slope, (1.0 - 0.125) / 0.16, atol=0.6)


def test_a_guide_without_observations_cannot_sleep():
    with pytest.raises(InferenceError, match="takes no observations"):
        ReweightedWakeSleep(2, insomnia=0.5).loss(normal_model, normal_guide, DATA)


# ------------------------------------------------------------------------- guide and model disagree


def test_a_site_that_the_guide_lacks_is_an_error_with_its_name():
    def model():
        sample("alpha", Normal(0.0, 1.0))
        sample("beta", Normal(0.0, 1.0))

    def guide():
        sample("alpha", Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="the guide has no site 'beta'") as error:
        Trace_ELBO().loss(model, guide)
    assert "test_objectives.py" in error.value.location
    # Left to the prior it drops out of the bound.
    assert Trace_ELBO(allow_missing=True).loss(model, guide) == 0.0


def test_a_site_that_only_the_guide_has_is_an_error_with_the_closest_name():
    def model():
        sample("weights", Normal(0.0, 1.0))

    def guide():
        sample("weigths", Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="guide site 'weigths'") as error:
        Trace_ELBO().loss(model, guide)
    assert "'weights'" in error.value.fix


def test_a_guide_that_draws_data_is_refused():
    def guide(y):
        sample("mu", Normal(0.0, 1.0))
        with plate("data", len(y)):
            sample("y", Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="observed"):
        Trace_ELBO().loss(normal_model, guide, DATA)


def test_another_shape_is_an_error_with_both_shapes():
    def model():
        with plate("rows", 3):
            sample("x", Normal(0.0, 1.0))

    def guide():
        with plate("rows", 2):
            sample("x", Normal(0.0, 1.0))

    with pytest.raises((ShapeError, ModelError), match=r"'x'.*\(3,\) vs \(2,\)"):
        Trace_ELBO().loss(model, guide)


def test_helper_sites_of_the_guide_count_without_being_in_the_model():
    def guide(y):
        u = sample("u", Normal(0.3, 0.5), infer={"is_auxiliary": True})
        sample("mu", probtorch.distributions.Delta(u))

    with Force({"u": 0.9}):
        loss = Trace_ELBO().loss(normal_model, guide, DATA)
    log_q = -0.5 * (0.6 / 0.5) ** 2 - math.log(0.5) - 0.5 * math.log(2.0 * math.pi)
    log_p = log_joint(normal_model, {"mu": 0.9}, DATA).item()
    np.testing.assert_allclose(loss, log_q - log_p, rtol=1e-12)


def test_draws_without_paths_are_refused_where_paths_are_needed():
    with pytest.raises(InferenceError, match=r"site 'b'.*no pathwise gradient"):
        ImportanceWeightedELBO(2).loss_and_grads(discrete_model, discrete_guide, CLICKS)

    def guide(y):
        sample("mu", Normal(0.0, 1.0))
        factor("f", 1.0)

    with pytest.raises(InferenceError, match="factor"):
        ImportanceWeightedELBO(2).loss_and_grads(normal_model, guide, DATA)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Trace_ELBO(0), "num_particles"),
        (lambda: RenyiELBO(1.0), "alpha"),
        (lambda: RenyiELBO(0.0, 1), "num_particles"),
        (lambda: ImportanceWeightedELBO(2, "path"), "gradient"),
        (lambda: TraceTailAdaptive_ELBO(tail_adaptive_beta=1.0), "tail_adaptive_beta"),
        (lambda: ReweightedWakeSleep(2, insomnia=1.5), "insomnia"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


# ------------------------------------------------------------------------------------ as functions


def test_bound_loss_is_differentiable_and_knows_its_parameters():
    loss_fn = Trace_ELBO(2)(normal_model, normal_guide)
    with Noise([0.1, 0.4]):
        loss = loss_fn(DATA)
    loss.backward()
    assert [name for name, _ in loss_fn.named_parameters()] == ["loc", "log_scale"]
    found = gradients()
    with Noise([0.1, 0.4]):
        expected = Trace_ELBO(2).loss_and_grads(normal_model, normal_guide, DATA)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    for name, slope in gradients().items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-12)


def test_differentiable_loss_of_discrete_draws_has_value_and_gradient():
    outcome = {"a": 1.0, "b": 2.0, "c": np.array([1.0, 0.0, 1.0])}
    with Force(outcome):
        loss = Trace_ELBO().differentiable_loss(discrete_model, discrete_guide, CLICKS)
    loss.backward()
    found = gradients()
    with Force(outcome):
        expected = Trace_ELBO().loss_and_grads(discrete_model, discrete_guide, CLICKS)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    for name, slope in gradients().items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-12)


def test_mean_field_uses_the_closed_form():
    """Prior and guide alone: the loss is the divergence itself, whatever is drawn."""

    def model():
        sample("x", Normal(0.0, 2.0))

    def guide():
        sample("x", Normal(1.0, 0.5))

    expected = 0.5 * (0.0625 + 0.25 - 1.0) - math.log(0.25)
    for seed in range(3):
        with handlers.seed(None, seed):
            loss = TraceMeanField_ELBO().loss(model, guide)
        np.testing.assert_allclose(loss, expected, rtol=1e-12)


def test_mean_field_does_not_integrate_over_what_was_drawn_later():
    """The prior of a depends on b, which the guide draws from a: no closed form applies to a."""

    def model():
        b = sample("b", Normal(0.0, 1.0))
        sample("a", Normal(b, 1.0))

    def guide():
        a = sample("a", Normal(param("loc", tensor(0.5, dtype=np.dtype("f8"))), 0.7))
        sample("b", Normal(a, 0.3))

    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    means = {}
    for objective in (Trace_ELBO(), TraceMeanField_ELBO()):
        total = 0.0
        for (x, u), (y, v) in itertools.product(zip(nodes, weights), repeat=2):
            with Force({"a": 0.5 + 0.7 * x, "b": 0.5 + 0.7 * x + 0.3 * y}):
                total += u * v * objective.loss(model, guide)
        means[type(objective)] = total
    np.testing.assert_allclose(means[TraceMeanField_ELBO], means[Trace_ELBO], rtol=1e-10)


def test_losses_leave_no_parameters_behind_but_those_of_the_store():
    Trace_ELBO().loss(normal_model, normal_guide, DATA)
    assert list(get_param_store()) == ["loc", "log_scale"]


@pytest.mark.parametrize("objective", [Trace_ELBO, TraceEnum_ELBO])
@pytest.mark.parametrize("categories", [None, 3])
def test_rounded_draws_keep_what_they_were_among_particles(objective, categories):
    """A straight-through draw has its density by what was rounded: of each particle, too."""
    shape = () if categories is None else (categories,)
    kind = {
        None: RelaxedBernoulliStraightThrough,
        3: RelaxedOneHotCategoricalStraightThrough,
    }[categories]

    def model(y):
        z = sample("z", kind(tensor(0.5), logits=zeros(shape)))
        sample("y", Normal(z if categories is None else z[..., -1], 1.0), obs=y)

    def guide(y):
        sample("z", kind(tensor(0.5), logits=param("logits", zeros(shape))))

    found = []
    for together in (False, True):
        get_param_store().clear()
        loss = objective(num_particles=3, vectorize_particles=together)
        found.append(SVI(model, guide, SGD({"lr": 0.1}), loss, seed=0).step(tensor(1.5)))
    # The same draws, and at first guide and prior are the same.
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
