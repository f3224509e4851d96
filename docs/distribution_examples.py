"""Instances of the distributions whose fields alone do not say how to make one.

By name of the class a function that makes some, in double precision: what their pages plot, and
what the laws for all distributions are tried on. A class that is neither here nor made from its
fields fails a test.
"""

import numpy as np

import probtorch.distributions as dist
from probtorch import tensor
from probtorch.distributions import constraints, transforms

EYE = np.eye(2)
TRIL = np.array([[1.0, 0.0], [0.3, 0.5]])
TURN = np.array([[0.6, -0.3], [0.2, 0.5]])


def t(x):
    return tensor(np.asarray(x, float))


def normal(loc=0.0, scale=1.0):
    return dist.Normal(t(loc), t(scale))


def vector(n=2, scale=1.0):
    return dist.MultivariateNormal(t(np.zeros(n)), scale_tril=t(scale * np.eye(n)))


def gamma():
    return dist.Gamma(t(2.0), t(1.0))


def poisson():
    return dist.Poisson(t(3.0))


def linear_parts():
    return vector(2), t(TURN), vector(2, 0.5), t([[1.0], [0.5]]), vector(1, 0.3)


def accept(x):
    """Log probability of keeping a proposal: a half-normal shape."""
    return -0.5 * x * x


MADE = {
    "AR": lambda: dist.AR(t([0.6, 0.2]), t(0.5), init_dist=normal(), steps=6),
    "AVFMultivariateNormal": lambda: dist.AVFMultivariateNormal(
        t(np.zeros(2)), t(TRIL), t(np.full((2, 1, 2), 0.3))
    ),
    "CAR": lambda: dist.CAR(
        t(np.zeros(3)), t(0.3), t(1.5), t([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    ),
    "Censored": lambda: dist.Censored(normal(), t(-1.0), t(1.5)),
    "Delta": lambda: dist.Delta(t(1.0), t(0.0)),
    "DiscreteHMM": lambda: dist.DiscreteHMM(
        t([0.0, 0.5]), t([[1.0, 0.0], [0.0, 1.0]]), normal([0.0, 3.0]), duration=4
    ),
    "Empirical": lambda: dist.Empirical(t([-1.0, 0.0, 2.0]), t([0.0, 1.0, 0.5])),
    "EulerMaruyama": lambda: dist.EulerMaruyama(
        t([0.0, 0.1, 0.3, 0.6]), lambda y, t: (-0.5 * y, 0.3), normal()
    ),
    "FoldedDistribution": lambda: dist.FoldedDistribution(normal(0.7)),
    "GammaGaussianHMM": lambda: dist.GammaGaussianHMM(
        dist.Gamma(t(2.0), t(2.0)), *linear_parts(), duration=3
    ),
    "GaussianCopula": lambda: dist.GaussianCopula(
        dist.Gamma(t([2.0, 3.5]), t(1.5)), t([[1.0, 0.6], [0.6, 1.0]])
    ),
    "GaussianHMM": lambda: dist.GaussianHMM(*linear_parts(), duration=4),
    "GaussianMRF": lambda: dist.GaussianMRF(vector(1), vector(2), vector(2, 0.7), duration=3),
    "GaussianStateSpace": lambda: dist.GaussianStateSpace(
        4, t(TURN), scale_tril=t(TRIL), initial_value=t([1.0, -1.0])
    ),
    "GroupedNormalNormal": lambda: dist.GroupedNormalNormal(
        t([0.0, 1.0]), t([1.0, 0.5]), t(np.full(4, 0.4)), tensor(np.array([0, 0, 1, 1]))
    ),
    "HurdleDistribution": lambda: dist.HurdleDistribution(poisson(), gate=t(0.3)),
    "ICAR": lambda: dist.ICAR(t([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), t(1.0), 0.1),
    "ImproperUniform": lambda: dist.ImproperUniform(constraints.positive, (), ()),
    "Independent": lambda: dist.Independent(normal([0.0, 1.0], [1.0, 2.0]), 1),
    "IndependentHMM": lambda: dist.IndependentHMM(
        dist.GaussianHMM(
            vector(1), t([[[0.9]], [[0.5]]])[:, None], vector(1), t([[1.0]]), vector(1), duration=3
        )
    ),
    "IntervalCensoredDistribution": lambda: dist.IntervalCensoredDistribution(normal()),
    "JointCategorical": lambda: dist.JointCategorical(t([[0.1, 0.2, 0.1], [0.3, 0.2, 0.1]])),
    "KroneckerNormal": lambda: dist.KroneckerNormal(t(np.zeros(4)), [t(TRIL), t(EYE)]),
    "LeftCensoredDistribution": lambda: dist.LeftCensoredDistribution(normal()),
    "LinearHMM": lambda: dist.LinearHMM(*linear_parts(), duration=4),
    "LogNormalNegativeBinomial": lambda: dist.LogNormalNegativeBinomial(
        t(2.0), t(-0.7), t(1.0), num_quad_points=40
    ),
    "MarkovChain": lambda: dist.MarkovChain(normal(), lambda _, x: dist.Normal(0.8 * x, 0.5), 5),
    "MaskedDistribution": lambda: dist.MaskedDistribution(normal(), True),
    "MaskedMixture": lambda: dist.MaskedMixture(tensor(np.array(True)), normal(), normal(3.0)),
    "MixtureGeneral": lambda: dist.MixtureGeneral(
        dist.Categorical(t([0.3, 0.7])),
        [normal(), dist.StudentT(t(3.0), t(4.0), t(0.7))],
        support=constraints.real,
    ),
    "MixtureSameFamily": lambda: dist.MixtureSameFamily(
        dist.Categorical(t([0.3, 0.7])), normal([0.0, 4.0], [1.0, 0.7])
    ),
    "OneTwoMatching": lambda: dist.OneTwoMatching(t([[0.3, -0.2], [0.0, 0.5], [1.0, 0.1], [0, 0]])),
    "Ordered": lambda: dist.Ordered(gamma(), 3),
    "QuantizedDistribution": lambda: dist.QuantizedDistribution(normal(2.0, 1.5), 0, 6),
    "RandomWalk": lambda: dist.RandomWalk(dist.StudentT(t(4.0), t(0.0), t(0.3)), normal(), 6),
    "Rejector": lambda: dist.Rejector(normal(), accept, t(-0.5 * np.log(2.0))),
    "RightCensoredDistribution": lambda: dist.RightCensoredDistribution(normal()),
    "SineSkewed": lambda: dist.SineSkewed(
        dist.VonMises(t([0.0, 0.5]), t([2.0, 1.0])).to_event(1), t([0.3, -0.4])
    ),
    "TransformedDistribution": lambda: dist.TransformedDistribution(
        normal(0.0, 0.6), transforms.ExpTransform()
    ),
    "TruncatedDistribution": lambda: dist.TruncatedDistribution(gamma(), t(0.5), t(4.0)),
    "ZeroInflatedDistribution": lambda: dist.ZeroInflatedDistribution(poisson(), gate=t(0.3)),
}
