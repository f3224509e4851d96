"""Probability distributions, the sets they live on, and maps between those sets.

Names and signatures are those of `torch.distributions` and Pyro. Read `normal.py` for the form of a
distribution, then `distribution.py` for what its base class makes of it.
"""

from __future__ import annotations

from typing import Any

from probtorch.distributions import constraints, transforms
from probtorch.distributions import divergences as _divergences  # noqa: F401  registers its rules
from probtorch.distributions.bates import Bates
from probtorch.distributions.bernoulli import Bernoulli, Geometric
from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.categorical import Categorical, Multinomial, OneHotCategorical
from probtorch.distributions.chains import DiscreteMarkovChain, MarkovChain
from probtorch.distributions.circulant import CirculantNormal
from probtorch.distributions.coalescent import (
    CoalescentRateLikelihood,
    CoalescentTimes,
    CoalescentTimesWithRate,
)
from probtorch.distributions.conditional import (
    ConditionalDistribution,
    ConditionalTransformedDistribution,
)
from probtorch.distributions.counts import BetaBinomial, Binomial, NegativeBinomial, Poisson
from probtorch.distributions.directional import (
    ProjectedNormal,
    SineBivariateVonMises,
    SineSkewed,
    VonMises3D,
)
from probtorch.distributions.directions import PowerSpherical, SphericalUniform, VonMisesFisher
from probtorch.distributions.distribution import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)
from probtorch.distributions.empirical import Empirical, Rejector
from probtorch.distributions.exponential_family import ExponentialFamily
from probtorch.distributions.extremes import (
    ExtendedGeneralizedPareto,
    GeneralizedExtremeValue,
    GeneralizedPareto,
)
from probtorch.distributions.first_passage import Wiener
from probtorch.distributions.from_gammas import (
    ExpGamma,
    ExpInverseGamma,
    GammaGamma,
    SigmoidBeta,
    SkewStudentT,
)
from probtorch.distributions.further_spellings import (
    BinomialLogit,
    ChiSquared,
    Deterministic,
    DiracDelta,
    ExtGenPareto,
    GenExtreme,
    GenPareto,
    LogPoisson,
    MultivariateNormalDiag,
    MultivariateNormalFullCovariance,
    MultivariateNormalTriL,
    MvNormal,
    MvStudentT,
    NormalMixture,
    SkewDoubleExponential,
)
from probtorch.distributions.gamma import Chi2, Gamma, InverseGamma
from probtorch.distributions.gaussian_hmm import GammaGaussianHMM, GaussianHMM
from probtorch.distributions.gaussian_mrf import GaussianMRF
from probtorch.distributions.glm import (
    BernoulliLogitGLM,
    BinomialLogitGLM,
    CategoricalLogitGLM,
    NegBinomial2LogGLM,
    NormalIdGLM,
    OrderedLogisticGLM,
    PoissonLogGLM,
    bernoulli_logit_glm,
    binomial_logit_glm,
    categorical_logit_glm,
    neg_binomial_2_log_glm,
    normal_id_glm,
    ordered_logistic_glm,
    poisson_log_glm,
)
from probtorch.distributions.graphs import CAR, ICAR
from probtorch.distributions.grouped import GroupedNormalNormal
from probtorch.distributions.heavy_tailed import Cauchy, HalfCauchy, StudentT
from probtorch.distributions.hidden_markov import DiscreteHMM, HiddenMarkovModel
from probtorch.distributions.inflated import (
    FoldedDistribution,
    HurdleDistribution,
    HurdleGamma,
    HurdleLogits,
    HurdleLogNormal,
    HurdleNegativeBinomial2,
    HurdlePoisson,
    HurdleProbs,
    QuantizedDistribution,
    ZeroInflatedBinomial,
    ZeroInflatedDistribution,
    ZeroInflatedLogits,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedNegativeBinomial2,
    ZeroInflatedPoisson,
    ZeroInflatedProbs,
)
from probtorch.distributions.inflated_shares import ZeroOneInflatedBeta
from probtorch.distributions.kl import kl_divergence, register_kl
from probtorch.distributions.lambert import LambertWNormal
from probtorch.distributions.lifetimes import (
    Burr,
    Dagum,
    Frechet,
    Gompertz,
    Levy,
    LogLogistic,
    Maxwell,
    Rayleigh,
)
from probtorch.distributions.linear_hmm import IndependentHMM, LinearHMM
from probtorch.distributions.lkj import LKJ, LKJCholesky
from probtorch.distributions.location_scale import Gumbel, Laplace, Logistic, SoftLaplace
from probtorch.distributions.matchings import OneOneMatching, OneTwoMatching
from probtorch.distributions.missing import missing as _missing
from probtorch.distributions.mixture import MixtureSameFamily
from probtorch.distributions.mixtures import (
    GaussianCopula,
    GaussianCopulaBeta,
    MaskedMixture,
    Mixture,
    MixtureGeneral,
    MixtureOfDiagNormals,
    MixtureOfDiagNormalsSharedCovariance,
)
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.noncentral import NoncentralChi2, NoncentralT, Rice
from probtorch.distributions.normal import HalfNormal, LogNormal, Normal
from probtorch.distributions.ordered import Ordered
from probtorch.distributions.orders import PlackettLuce, StickBreakingWeights
from probtorch.distributions.ordinal import (
    DirichletMultinomial,
    OrderedLogistic,
    OrderedMultinomial,
    OrderedProbit,
    StoppingRatioLogistic,
)
from probtorch.distributions.particular_counts import (
    GeneralizedPoisson,
    HyperGeometric,
    Skellam,
    Zipf,
)
from probtorch.distributions.polya_gamma import PolyaGamma, TruncatedPolyaGamma
from probtorch.distributions.positive import Exponential, Pareto, Weibull
from probtorch.distributions.processes import (
    GaussianProcess,
    GaussianProcessRegressionModel,
    KroneckerNormal,
    StudentTProcess,
)
from probtorch.distributions.quotients import BetaQuotient
from probtorch.distributions.rarer_counts import (
    BetaNegativeBinomial,
    DiscreteUniform,
    DiscreteWeibull,
    YuleSimon,
)
from probtorch.distributions.ratios import Chi, FisherSnedecor, HalfStudentT, InverseGaussian
from probtorch.distributions.relaxed import (
    LogisticNormal,
    OneHotCategoricalStraightThrough,
    RelaxedBernoulliStraightThrough,
    RelaxedOneHotCategorical,
    RelaxedOneHotCategoricalStraightThrough,
)
from probtorch.distributions.scale_mixtures import (
    Horseshoe,
    MultivariateLaplace,
    NormalInverseGaussian,
)
from probtorch.distributions.shares import (
    ContinuousBernoulli,
    DoublyTruncatedPowerLaw,
    Kumaraswamy,
    LogitNormal,
    LogUniform,
    LowerTruncatedPowerLaw,
    RelaxedBernoulli,
    Triangular,
)
from probtorch.distributions.skewed import (
    AsymmetricLaplace,
    AsymmetricLaplaceQuantile,
    ExGaussian,
    GeneralizedNormal,
    JohnsonSU,
    Moyal,
    SinhArcsinh,
    SkewLogistic,
    SkewNormal,
    SoftAsymmetricLaplace,
)
from probtorch.distributions.spellings import (
    PERT,
    AffineBeta,
    BernoulliLogits,
    BernoulliProbs,
    BetaProportion,
    BinomialLogits,
    BinomialProbs,
    CategoricalLogits,
    CategoricalProbs,
    ExponentiallyModifiedGaussian,
    Flat,
    GammaPoisson,
    GeometricLogits,
    GeometricProbs,
    HalfFlat,
    LKJCorrCholesky,
    Lomax,
    MultinomialLogits,
    MultinomialProbs,
    NegativeBinomial2,
    NegativeBinomialLogits,
    NegativeBinomialProbs,
    RelaxedBernoulliLogits,
    ScaledInverseChi2,
    StableWithLogProb,
    Wald,
)
from probtorch.distributions.stable import Stable
from probtorch.distributions.state_space import EulerMaruyama, GaussianStateSpace
from probtorch.distributions.subsets import DeterminantalPointProcess
from probtorch.distributions.tables import FiniteDiscrete, Interpolated, JointCategorical
from probtorch.distributions.tolerant import (
    ExtendedBetaBinomial,
    ExtendedBinomial,
    LogNormalNegativeBinomial,
    NanMaskedMultivariateNormal,
    NanMaskedNormal,
    Unit,
)
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.registry import biject_to, transform_to
from probtorch.distributions.transport import (
    AVFMultivariateNormal,
    GaussianScaleMixture,
    OMTMultivariateNormal,
)
from probtorch.distributions.trees import SpanningTree
from probtorch.distributions.truncated import TruncatedNormal
from probtorch.distributions.truncation import (
    Censored,
    IntervalCensoredDistribution,
    LeftCensoredDistribution,
    LeftTruncatedDistribution,
    RightCensoredDistribution,
    RightTruncatedDistribution,
    Truncated,
    TruncatedCauchy,
    TruncatedDistribution,
    TwoSidedTruncatedDistribution,
)
from probtorch.distributions.two_piece import (
    DoublesidedMaxwell,
    TwoPieceNormal,
    TwoPieceStudentT,
)
from probtorch.distributions.uniform import Delta, ImproperUniform, Uniform
from probtorch.distributions.validation import enable_validation, validation_enabled
from probtorch.distributions.vectors import (
    GaussianRandomWalk,
    LowRankMultivariateNormal,
    MatrixNormal,
    MultivariateStudentT,
    ZeroSumNormal,
)
from probtorch.distributions.von_mises import VonMises
from probtorch.distributions.walks import (
    AR,
    GARCH11,
    MvGaussianRandomWalk,
    MvStudentTRandomWalk,
    RandomWalk,
)
from probtorch.distributions.wishart import (
    InverseWishart,
    InverseWishartCholesky,
    Wishart,
    WishartCholesky,
)

__all__ = [
    "BinomialLogit",
    "ChiSquared",
    "Deterministic",
    "DiracDelta",
    "ExtGenPareto",
    "GenExtreme",
    "GenPareto",
    "LogPoisson",
    "MultivariateNormalDiag",
    "MultivariateNormalFullCovariance",
    "MultivariateNormalTriL",
    "MvNormal",
    "MvStudentT",
    "NormalMixture",
    "SkewDoubleExponential",
    "AVFMultivariateNormal",
    "AffineBeta",
    "AsymmetricLaplace",
    "AsymmetricLaplaceQuantile",
    "Bates",
    "Bernoulli",
    "BernoulliLogitGLM",
    "BernoulliLogits",
    "BernoulliProbs",
    "Beta",
    "BetaBinomial",
    "BetaNegativeBinomial",
    "BetaProportion",
    "BetaQuotient",
    "Binomial",
    "BinomialLogitGLM",
    "BinomialLogits",
    "BinomialProbs",
    "Burr",
    "CAR",
    "Categorical",
    "CategoricalLogitGLM",
    "CategoricalLogits",
    "CategoricalProbs",
    "Cauchy",
    "Censored",
    "Chi",
    "Chi2",
    "CirculantNormal",
    "CoalescentRateLikelihood",
    "CoalescentTimes",
    "CoalescentTimesWithRate",
    "ConditionalDistribution",
    "ConditionalTransformedDistribution",
    "ContinuousBernoulli",
    "Dagum",
    "Delta",
    "DeterminantalPointProcess",
    "Dirichlet",
    "DirichletMultinomial",
    "DiscreteMarkovChain",
    "DiscreteUniform",
    "DiscreteWeibull",
    "Distribution",
    "DoublesidedMaxwell",
    "DoublyTruncatedPowerLaw",
    "Empirical",
    "ExGaussian",
    "ExpGamma",
    "ExpInverseGamma",
    "ExpandedDistribution",
    "Exponential",
    "ExponentialFamily",
    "ExponentiallyModifiedGaussian",
    "ExtendedBetaBinomial",
    "ExtendedBinomial",
    "ExtendedGeneralizedPareto",
    "FiniteDiscrete",
    "FisherSnedecor",
    "Flat",
    "FoldedDistribution",
    "Frechet",
    "Gamma",
    "GammaGamma",
    "GammaPoisson",
    "GaussianCopula",
    "GaussianCopulaBeta",
    "GaussianProcess",
    "GaussianProcessRegressionModel",
    "GaussianRandomWalk",
    "GaussianScaleMixture",
    "GeneralizedExtremeValue",
    "GeneralizedNormal",
    "GeneralizedPareto",
    "GeneralizedPoisson",
    "Geometric",
    "GeometricLogits",
    "GeometricProbs",
    "Gompertz",
    "GroupedNormalNormal",
    "Gumbel",
    "HalfCauchy",
    "HalfFlat",
    "HalfNormal",
    "HalfStudentT",
    "Horseshoe",
    "HurdleDistribution",
    "HurdleGamma",
    "HurdleLogNormal",
    "HurdleLogits",
    "HurdleNegativeBinomial2",
    "HurdlePoisson",
    "HurdleProbs",
    "HyperGeometric",
    "ICAR",
    "ImproperUniform",
    "Independent",
    "Interpolated",
    "IntervalCensoredDistribution",
    "InverseGamma",
    "InverseGaussian",
    "InverseWishart",
    "InverseWishartCholesky",
    "JohnsonSU",
    "JointCategorical",
    "KroneckerNormal",
    "Kumaraswamy",
    "LKJ",
    "LKJCholesky",
    "LKJCorrCholesky",
    "LambertWNormal",
    "Laplace",
    "LeftCensoredDistribution",
    "LeftTruncatedDistribution",
    "Levy",
    "LogLogistic",
    "LogNormal",
    "LogNormalNegativeBinomial",
    "LogUniform",
    "Logistic",
    "LogisticNormal",
    "LogitNormal",
    "Lomax",
    "LowRankMultivariateNormal",
    "LowerTruncatedPowerLaw",
    "MarkovChain",
    "MaskedDistribution",
    "MaskedMixture",
    "MatrixNormal",
    "Maxwell",
    "Mixture",
    "MixtureGeneral",
    "MixtureOfDiagNormals",
    "MixtureOfDiagNormalsSharedCovariance",
    "MixtureSameFamily",
    "Moyal",
    "Multinomial",
    "MultinomialLogits",
    "MultinomialProbs",
    "MultivariateLaplace",
    "MultivariateNormal",
    "MultivariateStudentT",
    "MvGaussianRandomWalk",
    "MvStudentTRandomWalk",
    "NanMaskedMultivariateNormal",
    "NanMaskedNormal",
    "NegBinomial2LogGLM",
    "NegativeBinomial",
    "NegativeBinomial2",
    "NegativeBinomialLogits",
    "NegativeBinomialProbs",
    "NoncentralChi2",
    "NoncentralT",
    "Normal",
    "NormalIdGLM",
    "NormalInverseGaussian",
    "OMTMultivariateNormal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "OneOneMatching",
    "OneTwoMatching",
    "Ordered",
    "OrderedLogistic",
    "OrderedLogisticGLM",
    "OrderedMultinomial",
    "OrderedProbit",
    "PERT",
    "Pareto",
    "PlackettLuce",
    "Poisson",
    "PoissonLogGLM",
    "PolyaGamma",
    "PowerSpherical",
    "ProjectedNormal",
    "QuantizedDistribution",
    "Rayleigh",
    "Rejector",
    "RelaxedBernoulli",
    "RelaxedBernoulliLogits",
    "RelaxedBernoulliStraightThrough",
    "RelaxedOneHotCategorical",
    "RelaxedOneHotCategoricalStraightThrough",
    "Rice",
    "RightCensoredDistribution",
    "RightTruncatedDistribution",
    "ScaledInverseChi2",
    "SigmoidBeta",
    "SineBivariateVonMises",
    "SineSkewed",
    "SinhArcsinh",
    "Skellam",
    "SkewLogistic",
    "SkewNormal",
    "SkewStudentT",
    "SoftAsymmetricLaplace",
    "SoftLaplace",
    "SpanningTree",
    "SphericalUniform",
    "Stable",
    "StableWithLogProb",
    "StickBreakingWeights",
    "StoppingRatioLogistic",
    "StudentT",
    "StudentTProcess",
    "TransformedDistribution",
    "Triangular",
    "Truncated",
    "TruncatedCauchy",
    "TruncatedDistribution",
    "TruncatedNormal",
    "TruncatedPolyaGamma",
    "TwoPieceNormal",
    "TwoPieceStudentT",
    "TwoSidedTruncatedDistribution",
    "Uniform",
    "Unit",
    "VonMises",
    "VonMises3D",
    "VonMisesFisher",
    "Wald",
    "Weibull",
    "Wiener",
    "Wishart",
    "WishartCholesky",
    "YuleSimon",
    "ZeroInflatedBinomial",
    "ZeroInflatedDistribution",
    "ZeroInflatedLogits",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedNegativeBinomial2",
    "ZeroInflatedPoisson",
    "ZeroInflatedProbs",
    "ZeroOneInflatedBeta",
    "ZeroSumNormal",
    "Zipf",
    "bernoulli_logit_glm",
    "biject_to",
    "binomial_logit_glm",
    "categorical_logit_glm",
    "constraints",
    "enable_validation",
    "kl_divergence",
    "neg_binomial_2_log_glm",
    "normal_id_glm",
    "ordered_logistic_glm",
    "poisson_log_glm",
    "register_kl",
    "transform_to",
    "transforms",
    "validation_enabled",
    "AR",
    "GARCH11",
    "EulerMaruyama",
    "GaussianStateSpace",
    "RandomWalk",
    "DiscreteHMM",
    "HiddenMarkovModel",
    "GammaGaussianHMM",
    "GaussianHMM",
    "GaussianMRF",
    "IndependentHMM",
    "LinearHMM",
]


# `torch.distributions` has these, too; their home is `transforms`.
_TRANSFORMS = frozenset(
    "AbsTransform AffineTransform CatTransform ComposeTransform CorrCholeskyTransform "
    "CumulativeDistributionTransform ExpTransform IndependentTransform LowerCholeskyTransform "
    "PositiveDefiniteTransform PowerTransform ReshapeTransform SigmoidTransform SoftmaxTransform "
    "SoftplusTransform StackTransform StickBreakingTransform TanhTransform Transform "
    "identity_transform".split()
)


def __getattr__(name: str) -> Any:
    if name in _TRANSFORMS:
        return getattr(transforms, name)
    # Protocols of Python and of notebooks ask for names with underscores on any module.
    if name.startswith("_"):
        raise AttributeError(f"module 'probtorch.distributions' has no attribute {name!r}")
    raise _missing(name, __all__)
