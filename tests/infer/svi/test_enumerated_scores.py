"""Draws left over beside enumerated sites: `TraceEnum_ELBO` against sums over all draws."""

import itertools
from functools import partial

import numpy as np
import pytest
from scipy import stats

from probtorch.distributions import Bernoulli, Categorical, Normal
from probtorch.effects import handlers, param, plate, sample
from probtorch.effects.runtime import Handler
from probtorch.errors import InferenceError
from probtorch.infer import Trace_ELBO, TraceEnum_ELBO, config_enumerate
from probtorch.ops.exponentials import sigmoid
from probtorch.tensor import tensor
from tests.infer.svi.programs import DATA, gradients, normal_guide, normal_model

F8 = np.dtype("f8")
PARALLEL = {"enumerate": "parallel"}


def f8(x):
    return tensor(x, dtype=F8)


def no_guide(*args):
    pass


# ------------------------------------------------------------------------ draws that are left over


class Choices(Handler):
    """Give drawn coins the values of a path of choices; `weight` is its probability."""

    def __init__(self, path):
        super().__init__()
        self.path, self.used, self.weight = path, 0, 1.0

    def on_sample(self, site):
        drawn = "num_samples" in site.infer or not site.infer.get("enumerate")
        if site.observed or site.value is not None or not drawn:
            return
        # The array itself: numpy() is refused where a value is enumerated.
        p = np.broadcast_to(site.fn.probs.array, site.fn.batch_shape)
        path = self.path or (0,) * (self.used + p.size)
        bits = path[self.used : self.used + p.size]
        self.used += p.size
        x = np.array(bits, F8).reshape(p.shape)
        self.weight *= float(np.prod(np.where(x == 1.0, p, 1.0 - p)))
        site.value = tensor(x, dtype=F8)


def expectation(objective, model, guide):
    """Mean loss and gradients over all draws."""
    objective.loss(model, guide)
    gradients()
    value, slopes = 0.0, {}
    probe = Choices(())
    with probe:
        objective.loss(model, guide)
    count = probe.used
    total = 0.0
    for path in itertools.product((0, 1), repeat=count):
        with Choices(path) as choices:
            loss = objective.loss_and_grads(model, guide)
        value += choices.weight * loss
        total += choices.weight
        for name, slope in gradients().items():
            slopes[name] = slopes.get(name, 0.0) + choices.weight * slope
    assert total == pytest.approx(1.0)
    return value, slopes


Y = np.array([0.4, 1.7])


def mixed_model(split=False):
    u = sample("u", Bernoulli(0.35))
    rows = plate("rows", 2)
    with rows:
        z = sample("z", Categorical(f8([[0.3, 0.7], [0.6, 0.4]])[u.long()]))
        if not split:
            w = sample("w", Bernoulli(sigmoid(f8(0.8) * z - u - 0.3)))
            s = sample("s", Bernoulli(sigmoid(w - f8(0.4) * z)))
            sample("y", Normal(f8(0.7) * z - 0.5 * w + s + u, 0.8), obs=f8(Y))
    if split:
        with rows:
            w = sample("w", Bernoulli(sigmoid(f8(0.8) * z - u - 0.3)))
        with rows:
            s = sample("s", Bernoulli(sigmoid(w - f8(0.4) * z)))
            sample("y", Normal(f8(0.7) * z - 0.5 * w + s + u, 0.8), obs=f8(Y))
    sample("v", Normal(2.0 * u, 1.0), obs=0.3)


def mixed_guide(enumerated, split=False):
    """A guide for u, z and w that enumerates some of them; s is summed out in the model."""

    def infer(name):
        return PARALLEL if name in enumerated else {}

    def guide():
        a = param("a", f8([0.2, -0.3]))
        b = param("b", f8([[0.1, 0.4], [-0.3, 0.2]]))
        c = param("c", f8([0.3, -0.6]))
        u = sample("u", Bernoulli(logits=a[0]), infer=infer("u"))
        rows = plate("rows", 2)
        with rows:
            z = sample("z", Categorical(logits=b[u.long()]), infer=infer("z"))
            if not split:
                sample("w", Bernoulli(logits=c[z] + a[1] * u), infer=infer("w"))
        if split:
            with rows:
                sample("w", Bernoulli(logits=c[z] + a[1] * u), infer=infer("w"))

    return guide


@pytest.mark.parametrize("split", [False, True], ids=["one block", "several blocks"])
@pytest.mark.parametrize("enumerated", ["zu", "z"])
def test_scores_of_draws_beside_enumerated_sites_are_unbiased(enumerated, split):
    """Where z is enumerated w is drawn for each of its values; u is a draw for all rows."""
    model = partial(mixed_model, split)
    exact = TraceEnum_ELBO().loss_and_grads(model, mixed_guide("uzw", split))
    slopes = gradients()
    value, found = expectation(TraceEnum_ELBO(), model, mixed_guide(enumerated, split))
    assert value == pytest.approx(exact, rel=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)


@pytest.mark.parametrize("split", [False, True], ids=["one block", "several blocks"])
def test_scores_reach_what_depends_on_all_rows(split):
    """w is drawn per row and per value of u outside; the second block sees the rows together."""

    def guide(infer):
        def run():
            a, b = param("a", f8(0.2)), param("b", f8([0.4, -0.3]))
            u = sample("u", Bernoulli(logits=a), infer=PARALLEL)
            with plate("rows", 2):
                sample("w", Bernoulli(logits=b[u.long()]), infer=infer)

        return run

    def model():
        u = sample("u", Bernoulli(0.35))
        rows = plate("rows", 2)
        with rows:
            w = sample("w", Bernoulli(sigmoid(0.3 - u)))
        both = w.sum(-1, keepdim=True)
        if split:
            with rows:
                sample("y", Normal(both + w, 1.0), obs=f8(Y))
        else:
            sample("y", Normal(both, 1.0), obs=f8([1.2]))

    # With w enumerated its rows could not be added up: the exact bound is a sum over u and rows.
    def exact():
        a, b = param("a", f8(0.2)), param("b", f8([0.4, -0.3]))
        bound = 0.0
        for u in (0, 1):
            log_u = Bernoulli(logits=a).log_prob(f8(u))
            for w in itertools.product((0.0, 1.0), repeat=2):
                w = f8(w)
                log_q = log_u + Bernoulli(logits=b[u]).log_prob(w).sum()
                log_p = Bernoulli(0.35).log_prob(f8(u))
                log_p = log_p + Bernoulli(sigmoid(f8(0.3 - u))).log_prob(w).sum()
                if split:
                    log_p = log_p + Normal(w.sum() + w, 1.0).log_prob(f8(Y)).sum()
                else:
                    log_p = log_p + Normal(w.sum(), 1.0).log_prob(f8(1.2))
                bound = bound + log_q.exp() * (log_p - log_q)
        return -bound

    loss = exact()
    loss.backward()
    slopes = gradients()
    value, found = expectation(TraceEnum_ELBO(), model, guide({}))
    assert value == pytest.approx(loss.item(), rel=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)


def test_several_draws_in_place_of_all_values_are_unbiased():
    def guide():
        a, b = param("a", f8(0.4)), param("b", f8([0.3, -0.8]))
        u = sample("u", Bernoulli(logits=a), infer={**PARALLEL, "num_samples": 3})
        with plate("rows", 2):
            sample("w", Bernoulli(logits=b[0] + b[1] * u), infer=PARALLEL)

    def model():
        u = sample("u", Bernoulli(0.3))
        with plate("rows", 2):
            w = sample("w", Bernoulli(sigmoid(u - 0.2)))
            sample("y", Normal(w - u, 1.0), obs=f8(Y))

    exact = TraceEnum_ELBO().loss_and_grads(model, config_enumerate(guide_without_draws(guide)))
    slopes = gradients()
    value, found = expectation(TraceEnum_ELBO(), model, guide)
    assert value == pytest.approx(exact, rel=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12)


def guide_without_draws(guide):
    """The guide, with all values in place of several draws."""

    class Whole(Handler):
        def on_sample(self, site):
            site.infer.pop("num_samples", None)

    return Whole(guide)


def test_nothing_enumerated_is_the_plain_bound_with_its_gradient():
    found = {}
    for objective in (Trace_ELBO(), TraceEnum_ELBO()):
        with handlers.seed(rng_seed=3):
            loss = objective.loss_and_grads(normal_model, normal_guide, DATA)
        found[type(objective).__name__] = loss, gradients()
    (a, slopes), (b, others) = found.values()
    assert a == b
    for name, slope in slopes.items():
        np.testing.assert_allclose(others[name], slope, rtol=1e-12)


def test_score_terms_without_enumeration_are_those_of_the_plain_bound():
    guide = mixed_guide("")
    found = []

    def model():
        u = sample("u", Bernoulli(0.35))
        with plate("rows", 2):
            z = sample("z", Categorical(f8([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])[u.long()]))
            w = sample("w", Bernoulli(sigmoid(0.8 * z - u - 0.3)))
            sample("y", Normal(0.7 * z - 0.5 * w + u, 0.8), obs=f8(Y))

    for objective in (Trace_ELBO(), TraceEnum_ELBO()):
        with handlers.seed(rng_seed=5):
            loss = objective.loss_and_grads(model, guide)
        found.append((loss, gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-13)
    for name, slope in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], slope, rtol=1e-11, atol=1e-13)


# ----------------------------------------------------------------------- sequential enumeration


def test_one_run_per_value_is_the_sum_over_all_values_at_once():
    def guide(how):
        def run():
            a, b = param("a", f8([0.1, 0.5, -0.4])), param("b", f8([0.2, -0.3, 0.4]))
            z = sample("z", Categorical(logits=a), infer={"enumerate": how})
            u = sample("u", Bernoulli(logits=b[z]), infer=PARALLEL)
            with plate("rows", 2):
                sample("w", Bernoulli(logits=b[0] * u + a[z]), infer=PARALLEL)

        return run

    def model():
        z = sample("z", Categorical(f8([0.3, 0.3, 0.4])))
        u = sample("u", Bernoulli(0.4))
        with plate("rows", 2):
            w = sample("w", Bernoulli(sigmoid(z - 1.0)))
            sample("y", Normal(w + u - 0.3 * z, 1.0), obs=f8(Y))

    found = []
    for how in ("parallel", "sequential"):
        objective = TraceEnum_ELBO()
        found.append((objective.loss_and_grads(model, guide(how)), gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-13)
    for name, slope in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], slope, atol=1e-13)


def test_weight_of_a_chosen_value_may_depend_on_all_values_of_another_site():
    def guide(how):
        def run():
            a, b = param("a", f8(0.3)), param("b", f8([0.2, -0.7]))
            u = sample("u", Bernoulli(logits=a), infer=PARALLEL)
            sample("z", Bernoulli(logits=b[u.long()]), infer={"enumerate": how})

        return run

    def model():
        u = sample("u", Bernoulli(0.4))
        z = sample("z", Bernoulli(sigmoid(u - 1.0)))
        sample("y", Normal(u - 2 * z, 1.0), obs=0.4)

    found = []
    for how in ("parallel", "sequential"):
        found.append((TraceEnum_ELBO().loss_and_grads(model, guide(how)), gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-13)
    for name, slope in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], slope, atol=1e-13)


def test_control_flow_may_follow_a_chosen_value():
    q, p, inner = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2]), (0.3, 0.7)

    def guide():
        z = sample("z", Categorical(f8(q)), infer={"enumerate": "sequential"})
        if int(z) == 1:
            sample("w", Bernoulli(inner[0]), infer=PARALLEL)

    def model():
        z = sample("z", Categorical(f8(p)))
        w = sample("w", Bernoulli(inner[1])) if int(z) == 1 else 0.0
        sample("y", Normal(z + w, 1.0), obs=1.5)

    log = stats.norm(0.0, 1.0).logpdf
    terms = np.log(p / q) + log(1.5 - np.arange(3))
    coins = np.array([0.7, 0.3]) @ (
        np.log(np.array([0.3, 0.7]) / np.array([0.7, 0.3])) + log(np.array([0.5, -0.5]))
    )
    terms[1] = np.log(p[1] / q[1]) + coins
    assert TraceEnum_ELBO().loss(model, guide) == pytest.approx(-(q @ terms), rel=1e-13)


def test_choosing_values_in_a_plate_of_the_guide_is_refused():
    def site():
        return sample("z", Bernoulli(0.3), infer={"enumerate": "sequential"})

    def in_plate():
        with plate("rows", 2):
            site()

    with pytest.raises(InferenceError, match=r"sequentially in plate 'rows'"):
        TraceEnum_ELBO().loss(in_plate, in_plate)
    # In the model alone all its values are summed: their probabilities add up to 1.
    assert TraceEnum_ELBO().loss(site, no_guide) == pytest.approx(0.0, abs=1e-12)
