"""Small models and guides whose bounds, gradients and posteriors are known exactly."""

import itertools
import math

import numpy as np
from scipy import stats

from probtorch.distributions import Bernoulli, Categorical, MultivariateNormal, Normal
from probtorch.effects import handlers, param, plate, sample
from probtorch.effects.params import get_param_store
from probtorch.effects.runtime import Handler
from probtorch.ops.exponentials import sigmoid
from probtorch.tensor import tensor

# ------------------------------------------------------------------------- the conjugate normal

DATA = np.array([1.0, 2.5, 0.5, 3.0, 2.0])
PRIOR_SCALE, NOISE = 2.0, 1.5


def normal_model(y):
    mu = sample("mu", Normal(0.0, PRIOR_SCALE))
    with plate("data", len(y)):
        sample("y", Normal(mu, NOISE), obs=y)


def normal_guide(y):
    loc = param("loc", tensor(0.3, dtype=np.dtype("f8")))
    scale = param("log_scale", tensor(-0.5, dtype=np.dtype("f8"))).exp()
    sample("mu", Normal(loc, scale))


def normal_posterior(y=DATA):
    """Mean and standard deviation of mu given the data."""
    precision = 1.0 / PRIOR_SCALE**2 + len(y) / NOISE**2
    return np.sum(y) / NOISE**2 / precision, precision**-0.5


def normal_evidence(y=DATA):
    """Log density of the data."""
    n = len(y)
    cov = NOISE**2 * np.eye(n) + PRIOR_SCALE**2
    return stats.multivariate_normal(np.zeros(n), cov).logpdf(y)


def normal_elbo(loc, log_scale, y=DATA):
    """The bound for the guide Normal(loc, exp(log_scale)), by log Z - KL(q || posterior)."""
    mean, sd = normal_posterior(y)
    ratio = math.exp(log_scale) / sd
    kl = 0.5 * (ratio**2 + ((loc - mean) / sd) ** 2 - 1.0) - math.log(ratio)
    return normal_evidence(y) - kl


def normal_elbo_gradient(loc, log_scale, y=DATA):
    """Its derivatives with respect to loc and log_scale."""
    mean, sd = normal_posterior(y)
    return np.array([-(loc - mean) / sd**2, 1.0 - math.exp(2.0 * log_scale) / sd**2])


# --------------------------------------------------------------------------- discrete programs

CLICKS = np.array([1.0, 0.0, 1.0])


def discrete_model(y):
    """A coin, then a category that depends on it, then one coin per row that depends on both."""
    a = sample("a", Bernoulli(0.3))
    weights = tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], dtype=np.dtype("f8"))
    b = sample("b", Categorical(weights[a.long()]))
    with plate("rows", len(y)):
        c = sample("c", Bernoulli(sigmoid(0.7 * a - 0.4 * b)))
        sample("y", Bernoulli(sigmoid(1.5 * c - 0.5 + 0.3 * b)), obs=y)


def discrete_guide(y):
    """Draws in another order than the model; the rows' coins depend on the category."""
    logits = param("b_logits", tensor([0.1, -0.3, 0.2], dtype=np.dtype("f8")))
    b = sample("b", Categorical(logits=logits))
    a_logit = param("a_logit", tensor([0.4, -0.6], dtype=np.dtype("f8")))
    a = sample("a", Bernoulli(logits=a_logit[0] + a_logit[1] * b))
    c_logit = param("c_logit", tensor([0.2, -0.1, 0.5], dtype=np.dtype("f8")))
    with plate("rows", len(y)):
        sample("c", Bernoulli(logits=c_logit + 0.2 * b - 0.1 * a))


class Force(Handler):
    """Give latent sites chosen values, and otherwise let things be."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_sample(self, site):
        if site.value is None and site.name in self.values:
            site.value = tensor(self.values[site.name], dtype=np.dtype("f8"))


def outcomes(rows=3):
    """All joint values of a, b and c."""
    for a, b in itertools.product((0.0, 1.0), (0.0, 1.0, 2.0)):
        for c in itertools.product((0.0, 1.0), repeat=rows):
            yield {"a": a, "b": b, "c": np.array(c)}


def log_joint(fn, values, y):
    """Log density of a model or guide at given values."""
    with Force(values):
        return handlers.trace(fn).get_trace(y).log_prob_sum()


def enumerated_bound(model, guide, y, values=None):
    """The exact evidence lower bound, differentiable: the sum over all outcomes."""
    total = 0.0
    for value in outcomes() if values is None else values:
        log_q = log_joint(guide, value, y)
        total = total + log_q.exp() * (log_joint(model, value, y) - log_q)
    return total


def gradients():
    """Copies of the gradients in the store, by name; then forget them."""
    found = {}
    for name, leaf in get_param_store().named_parameters():
        found[name] = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy().copy()
        leaf.grad = None
    return found


# -------------------------------------------------------------------------- a correlated normal

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[2.0, 1.2, -0.4], [1.2, 1.5, 0.3], [-0.4, 0.3, 0.8]])


def correlated_model():
    sample("x", MultivariateNormal(tensor(MEAN), covariance_matrix=tensor(COVARIANCE)))


# -------------------------------------------------------------------------------- eight schools

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
