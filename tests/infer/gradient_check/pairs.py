"""Models with guides and objectives of which the gradient is whole: `PAIRS`, by name."""

import numpy as np

import probtorch.distributions as dist
from probtorch import exp, plate, sample, tensor
from probtorch.effects import module, param, subsample
from probtorch.estimators import MeasureValued, ScoreFunction
from probtorch.infer import (
    AutoDelta,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from probtorch.nn import BatchNorm1d, Dropout, Linear, ReLU, Sequential, Tanh
from tests.infer.gradient_check.whole_models import normal, seen


def pair_of_neural():
    net = Sequential(Linear(1, 8), ReLU(), Dropout(0.5), Linear(8, 1))

    def model(x, y):
        seen(module("net", net)(x[:, None].float())[:, 0])

    return model, lambda x, y: None


def pair_of_normalised():
    net = Sequential(Linear(1, 8), BatchNorm1d(8), Tanh(), Linear(8, 1))

    def model(x, y):
        seen(module("net", net)(x[:, None].float())[:, 0])

    return model, lambda x, y: None


def pair_of_gamma():
    def model(x, y):
        seen(sample("g", dist.Gamma(2.0, 1.0)) * x)

    def guide(x, y):
        a = param("a", tensor(2.0), constraint=dist.constraints.positive)
        sample("g", dist.Gamma(a, 1.5))

    return model, guide


def pair_of_dirichlet():
    def model(x, y):
        p = sample("p", dist.Dirichlet(tensor(np.ones(3))))
        seen(p[0] * x + p[1])

    def guide(x, y):
        a = param("a", tensor([1.0, 2.0, 3.0]), constraint=dist.constraints.positive)
        sample("p", dist.Dirichlet(a))

    return model, guide


def pair_of_labels():
    def model(x, y):
        z = sample("z", dist.Bernoulli(0.4))
        seen(z * x)

    def guide(x, y):
        sample("z", dist.Bernoulli(logits=param("logit", tensor(0.2))))

    return model, guide


def pair_of_subsamples():
    def model(x, y):
        b = normal("b")
        with plate("rows", 20, subsample_size=5):
            rows = subsample(y, event_dim=0)
            sample("y", dist.Normal(b * subsample(x, event_dim=0), 0.5), obs=rows)

    return model, AutoNormal(model)


def pair_of_prints():
    def model(x, y):
        b = normal("b")
        print("b is", b.item(), float(b.exp()))
        seen(b * x)

    return model, AutoNormal(model)


def pair_of_amortised():
    net = Linear(20, 2)

    def model(x, y):
        seen(normal("b") * x)

    def guide(x, y):
        loc, scale = module("encoder", net)(y.float())
        sample("b", dist.Normal(loc, exp(scale)))

    return model, guide


def auto(guide, **options):
    def pair():
        def model(x, y):
            b = sample("b", dist.Normal(tensor(np.zeros(2)), 1.0).to_event(1))
            seen(b[0] * x + b[1], sample("s", dist.HalfNormal(1.0)) + 0.1)

        return model, guide(model, **options)

    return pair


def pair_of_numbers():
    def model(x, y):
        seen(normal("b") * x + normal("a"), sample("s", dist.HalfNormal(1.0)) + 0.1)

    return model, AutoMultivariateNormal(model)


def discrete(use, estimator=None):
    """A discrete site with a value that Python may read: no gradient passes through it."""

    def pair():
        def model(x, y):
            seen(use(sample("z", dist.Bernoulli(0.4))) * x + normal("b"))

        def guide(x, y):
            infer = {} if estimator is None else {"estimator": estimator}
            sample("z", dist.Bernoulli(logits=param("logit", tensor(0.2))), infer=infer)
            sample("b", dist.Normal(param("loc", tensor(0.1)), 0.3))

        return model, guide

    return pair


def pair_of_read_draws():
    """A continuous site with the score function may be read, too."""

    def model(x, y):
        seen(float(normal("b")) * x)

    def guide(x, y):
        sample(
            "b", dist.Normal(param("loc", tensor(0.1)), 0.3), infer={"estimator": ScoreFunction()}
        )

    return model, guide


PAIRS = {
    "discrete, item": (discrete(lambda z: z.item()), Trace_ELBO()),
    "discrete, float": (discrete(lambda z: float(z) * 2.0 + 1.0), TraceGraph_ELBO()),
    "discrete, index of a list": (discrete(lambda z: [1.0, 2.0][int(z)]), Trace_ELBO()),
    "discrete, branch": (discrete(lambda z: 2.0 if z else 1.0), Trace_ELBO()),
    "discrete, array": (discrete(lambda z: z.numpy() * 2.0), Trace_ELBO()),
    "discrete, measure valued": (discrete(lambda z: z.item(), MeasureValued()), Trace_ELBO()),
    "score function, float": (pair_of_read_draws, Trace_ELBO()),
    "network with dropout": (pair_of_neural, Trace_ELBO()),
    "batch normalisation": (pair_of_normalised, Trace_ELBO()),
    "gamma guide": (pair_of_gamma, Trace_ELBO()),
    "dirichlet guide": (pair_of_dirichlet, Trace_ELBO()),
    "score function": (pair_of_labels, Trace_ELBO()),
    "score function with baselines": (pair_of_labels, TraceGraph_ELBO()),
    "enumeration": (pair_of_labels, TraceEnum_ELBO()),
    "subsamples": (pair_of_subsamples, Trace_ELBO()),
    "prints": (pair_of_prints, Trace_ELBO()),
    "amortised": (pair_of_amortised, TraceMeanField_ELBO()),
    "AutoNormal": (auto(AutoNormal), TraceMeanField_ELBO()),
    "AutoDelta": (auto(AutoDelta), Trace_ELBO()),
    "particles": (pair_of_numbers, Trace_ELBO(4, vectorize_particles=True)),
    "low rank": (auto(AutoLowRankMultivariateNormal, rank=1), Trace_ELBO(2)),
    "flow": (auto(AutoIAFNormal), Trace_ELBO()),
    "Renyi": (auto(AutoNormal), RenyiELBO(0.5, 3)),
    "a loss of one's own": (auto(AutoNormal), lambda m, g, *a: Trace_ELBO()(m, g)(*a)),
}
