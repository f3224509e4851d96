"""``ImportanceWeightedELBO(gradient="vimco")``: its mean is the gradient of the bound, exactly."""

import itertools

import numpy as np
import pytest

from probtorch.distributions import Bernoulli, Categorical
from probtorch.effects import param, sample
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError
from probtorch.estimators import DisARM
from probtorch.infer import ImportanceWeightedELBO
from probtorch.ops.exponentials import sigmoid
from probtorch.tensor import tensor
from tests.infer.svi.programs import gradients, log_joint

DOUBLE = np.dtype("f8")


def model():
    a = sample("a", Bernoulli(tensor(0.3, dtype=DOUBLE)))
    b = sample("b", Categorical(tensor([0.2, 0.5, 0.3], dtype=DOUBLE))).double()
    sample("y", Bernoulli(sigmoid(1.5 * a - 0.6 * b)), obs=tensor(1.0, dtype=DOUBLE))


def guide():
    a = sample("a", Bernoulli(logits=param("a_logit", tensor(0.4, dtype=DOUBLE))))
    logits = param("b_logits", tensor([[0.1, -0.3, 0.2], [0.5, 0.0, -0.4]], dtype=DOUBLE))
    sample("b", Categorical(logits=logits[a.long()]))


OUTCOMES = [
    {"a": a, "b": b} for a, b in itertools.product((0.0, 1.0), (0.0, 1.0, 2.0))
]  # fmt: skip


class Particles(Handler):
    """Give the particles, which run in turn, their values."""

    def __init__(self, outcomes):
        super().__init__()
        self.left, self.now = list(outcomes), None

    def on_sample(self, site):
        if site.value is None:
            if site.name == "a":
                self.now = self.left.pop(0)
            site.value = tensor(self.now[site.name], dtype=DOUBLE)


def mean_and_square(gradient, particles):
    """Mean of value, gradient and squared gradient over all outcomes of all particles."""
    chance = [log_joint(lambda y: guide(), o, None).exp().item() for o in OUTCOMES]
    objective = ImportanceWeightedELBO(particles, gradient)
    value, slopes, squares = 0.0, {}, 0.0
    for picks in itertools.product(range(len(OUTCOMES)), repeat=particles):
        weight = np.prod([chance[k] for k in picks])
        with Particles([OUTCOMES[k] for k in picks]):
            value -= weight * objective.loss_and_grads(model, guide)
        for name, g in gradients().items():
            slopes[name] = slopes.get(name, 0.0) - weight * g
            squares += weight * np.sum(g * g)
    return value, slopes, squares - sum(np.sum(g * g) for g in slopes.values())


def test_the_mean_is_the_gradient_of_the_bound_and_varies_less_than_without_a_baseline():
    value, slopes, variance = mean_and_square("vimco", 2)
    bound = 0.0
    logs = [log_joint(lambda y: guide(), o, None) for o in OUTCOMES]
    weights = [log_joint(lambda y: model(), o, None) - q for o, q in zip(OUTCOMES, logs)]
    for i, j in itertools.product(range(len(OUTCOMES)), repeat=2):
        mean = (weights[i].exp() + weights[j].exp()) / 2.0
        bound = bound + (logs[i] + logs[j]).exp() * mean.log()
    bound.backward()
    assert abs(value - bound.item()) < 1e-12
    for name, g in gradients().items():
        np.testing.assert_allclose(slopes[name], g, rtol=0, atol=1e-12)
    # The plain derivative has the bound of the others as its baseline: of the same order.
    assert 0.5 < variance / mean_and_square("standard", 2)[2] < 2.0


def test_one_particle_is_refused():
    with pytest.raises(ArgumentError, match="at least 2 particles"):
        ImportanceWeightedELBO(1, "vimco")


@pytest.mark.parametrize("gradient", ["vimco", "dreg"])
def test_an_estimator_at_a_site_is_refused(gradient):
    def choosy():
        sample("a", Bernoulli(0.4), infer={"estimator": DisARM()})
        sample("b", Categorical(tensor([0.2, 0.5, 0.3])))

    with pytest.raises(InferenceError, match="takes estimators per site"):
        ImportanceWeightedELBO(2, gradient).loss_and_grads(model, choosy)
