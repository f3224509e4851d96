"""Twelve models with all that densities are made of, small enough to be run a thousand times.

Each has few data, so that its posterior is neither the prior nor a Gaussian. `MODELS` maps a name
to the model and its arguments; data are left out.
"""

import numpy as np

from probtorch import cat, diff, markov, ones, plate, sample, sigmoid, stack, tensor, zeros
from probtorch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Dirichlet,
    Gamma,
    HalfNormal,
    LKJCholesky,
    LogNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    Uniform,
)
from probtorch.distributions.transforms import OrderedTransform

X = tensor(np.linspace(-1.5, 1.5, 12))


def centred(groups, y=None):
    """The means of groups around a common one, with a spread that stays away from 0."""
    mu = sample("mu", Normal(0.0, 1.0))
    tau = sample("tau", LogNormal(0.0, 0.4))
    with plate("group", groups):
        theta = sample("theta", Normal(mu, tau))
        sample("y", Normal(theta, 0.5), obs=y)


def non_centred(groups, y=None):
    """Eight schools in small: the spread may be 0."""
    mu = sample("mu", Normal(0.0, 1.0))
    tau = sample("tau", HalfNormal(1.0))
    with plate("group", groups):
        z = sample("z", Normal(0.0, 1.0))
        sample("y", Normal(mu + tau * z, 1.0), obs=y)


def logistic(x, y=None):
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(0.0, 2.0))
    with plate("row", len(x)):
        sample("y", Bernoulli(logits=a + b * x), obs=y)


def beta_binomial(groups, y=None):
    mean = sample("mean", Beta(2.0, 2.0))
    size = sample("size", Gamma(4.0, 0.5))
    with plate("group", groups):
        p = sample("p", Beta(mean * size, (1.0 - mean) * size))
        sample("y", Binomial(8, p), obs=y)


def correlation(rows, y=None):
    scale = sample("scale", LogNormal(zeros(3), 0.5).to_event(1))
    factor = sample("factor", LKJCholesky(3, 1.5))
    covariance = MultivariateNormal(zeros(3), scale_tril=scale[:, None] * factor)
    with plate("row", rows):
        sample("y", covariance, obs=y)


def ordered_and_simplex(rows, y=None, kind=None):
    """Ratings with ordered cut points, and kinds with a simplex of shares."""
    base = Normal(tensor([-1.0, 0.0, 1.0]), 1.0).to_event(1)
    cuts = sample("cuts", TransformedDistribution(base, OrderedTransform()))
    share = sample("share", Dirichlet(tensor([1.0, 2.0, 3.0])))
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("row", rows):
        kind = sample("kind", Categorical(share), obs=kind)
        below = sigmoid(cuts - slope * kind[..., None])
        edges = cat([zeros(below.shape[:-1] + (1,)), below, ones(below.shape[:-1] + (1,))], -1)
        sample("y", Categorical(probs=diff(edges)), obs=y)


def mixture(rows, y=None):
    """Two components, told apart by their order; which row is of which is summed out."""
    share = sample("share", Beta(2.0, 2.0))
    low = sample("low", Normal(-1.0, 1.0))
    gap = sample("gap", Gamma(3.0, 1.0))
    with plate("row", rows):
        z = sample("z", Bernoulli(share))
        sample("y", Normal(low + gap * z, 0.7), obs=y)


def branch(y=None):
    """The noise depends on the sign of a latent number, by a Python branch."""
    jump = sample("jump", Normal(0.0, 1.0))
    drift = sample("drift", Normal(0.0, 1.0))
    noise = 0.5 if jump > 0 else 1.0
    sample("y", Normal(jump + drift, noise), obs=y)


def dependent_support(rows, y=None):
    """The support of one site ends at the value of another."""
    top = sample("top", Gamma(3.0, 1.0))
    part = sample("part", Uniform(0.0, top))
    with plate("row", rows):
        sample("y", Normal(part, 0.5 + 0.2 * top), obs=y)


def hidden_markov(steps, y=None):
    """Two states whose path is summed out; a site per step."""
    stay = [sample("stay_0", Beta(4.0, 2.0)), sample("stay_1", Beta(4.0, 2.0))]
    high = stack([1.0 - stay[0], stay[1]])
    loc = sample("loc", Normal(0.0, 1.0))
    gap = sample("gap", LogNormal(0.5, 0.5))
    state = 0
    for t in markov(range(steps)):
        state = sample(f"state_{t}", Bernoulli(high[state])).long()
        sample(f"y_{t}", Normal(loc + gap * state, 0.7), obs=None if y is None else y[t])


def line(x, y=None):
    """Its posterior is normal, and correlated: what is no more than a normal is right here."""
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(0.0, 2.0))
    with plate("row", len(x)):
        sample("y", Normal(a + b * x, 0.7), obs=y)


def walk(steps, y=None):
    """A random walk that is seen with noise: normal, too, with a site per step."""
    z = 0.0
    for t in range(steps):
        z = sample(f"z_{t}", Normal(z, 0.6))
        sample(f"y_{t}", Normal(z, 0.5), obs=None if y is None else y[t])


MODELS = {
    "centred": (centred, (4,)),
    "non-centred": (non_centred, (5,)),
    "logistic": (logistic, (X,)),
    "beta-binomial": (beta_binomial, (4,)),
    "correlation": (correlation, (6,)),
    "ordered and simplex": (ordered_and_simplex, (10,)),
    "mixture": (mixture, (10,)),
    "branch": (branch, ()),
    "dependent support": (dependent_support, (3,)),
    "hidden Markov": (hidden_markov, (6,)),
    "line": (line, (X[:4] + 1.0,)),
    "walk": (walk, (4,)),
}
# Those whose posteriors are normal.
NORMAL = ("line", "walk")
