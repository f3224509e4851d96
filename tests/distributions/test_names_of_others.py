"""Names that PyTorch, Pyro, NumPyro, PyMC, Stan and TFP give to what this room has.

What PyTorch, Pyro and NumPyro have must be there under their names: distributions, constraints,
transforms, divergences between pairs, reparameterisations. What the others have beyond these is
there too, or the error for its name says what to write.
"""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import effects, infer
from probtorch.core.rng import Generator
from probtorch.distributions import constraints, transforms
from probtorch.distributions.kl_rules import _RULES
from probtorch.distributions.missing import NOTES, RECIPES
from probtorch.errors import ArgumentError, ShapeError, UnknownNameError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

TORCH = """
Bernoulli Beta Binomial Categorical Cauchy Chi2 ContinuousBernoulli Dirichlet Exponential
FisherSnedecor Gamma GeneralizedPareto Geometric Gumbel HalfCauchy HalfNormal Independent
InverseGamma Kumaraswamy LKJCholesky Laplace LogNormal LogisticNormal LowRankMultivariateNormal
MixtureSameFamily Multinomial MultivariateNormal NegativeBinomial Normal OneHotCategorical
OneHotCategoricalStraightThrough Pareto Poisson RelaxedBernoulli RelaxedOneHotCategorical StudentT
TransformedDistribution Uniform VonMises Weibull Wishart
""".split()
PYRO = """
AffineBeta AsymmetricLaplace AVFMultivariateNormal BetaBinomial CoalescentRateLikelihood
CoalescentTimes CoalescentTimesWithRate Delta DirichletMultinomial DiscreteHMM Empirical
ExtendedBetaBinomial ExtendedBinomial FoldedDistribution GammaGaussianHMM GammaPoisson GaussianHMM
GaussianMRF GaussianScaleMixture GroupedNormalNormal ImproperUniform IndependentHMM LKJ
LKJCorrCholesky LinearHMM LogNormalNegativeBinomial Logistic MaskedMixture MixtureOfDiagNormals
MixtureOfDiagNormalsSharedCovariance MultivariateStudentT NanMaskedMultivariateNormal
NanMaskedNormal OMTMultivariateNormal OneOneMatching OneTwoMatching OrderedLogistic
ProjectedNormal Rejector RelaxedBernoulliStraightThrough RelaxedOneHotCategoricalStraightThrough
SineBivariateVonMises SineSkewed SkewLogistic SoftAsymmetricLaplace SoftLaplace SpanningTree
Stable StableWithLogProb TruncatedPolyaGamma Unit VonMises3D ZeroInflatedDistribution
ZeroInflatedNegativeBinomial ZeroInflatedPoisson
""".split()
NUMPYRO = """
AsymmetricLaplaceQuantile BernoulliLogits BernoulliProbs BetaNegativeBinomial BetaProportion
BinomialLogits BinomialProbs CAR CategoricalLogits CategoricalProbs CirculantNormal Dagum
DiscreteUniform DoublyTruncatedPowerLaw EulerMaruyama GaussianCopula GaussianCopulaBeta
GaussianRandomWalk GaussianStateSpace GeometricLogits GeometricProbs Gompertz HurdleDistribution
HurdleGamma HurdleLogits HurdleLogNormal HurdleNegativeBinomial2 HurdlePoisson HurdleProbs
IntervalCensoredDistribution InverseWishart InverseWishartCholesky LeftCensoredDistribution
LeftTruncatedDistribution Levy LogUniform LowerTruncatedPowerLaw MatrixNormal Mixture
MixtureGeneral MultinomialLogits MultinomialProbs NegativeBinomial2 NegativeBinomialLogits
NegativeBinomialProbs RelaxedBernoulliLogits RightCensoredDistribution RightTruncatedDistribution
TruncatedCauchy TruncatedDistribution TruncatedNormal TwoSidedTruncatedDistribution
WishartCholesky ZeroInflatedLogits ZeroInflatedNegativeBinomial2 ZeroInflatedProbs ZeroSumNormal
""".split()
PYMC = """
AR GARCH11 ICAR KroneckerNormal MvGaussianRandomWalk MvStudentTRandomWalk RandomWalk
DiscreteWeibull ExGaussian Flat HalfFlat HalfStudentT HyperGeometric Interpolated LogitNormal
Moyal OrderedMultinomial OrderedProbit PolyaGamma Rice Simulator SkewNormal SkewStudentT
StickBreakingWeights Triangular Wald WishartBartlett ZeroInflatedBinomial ZeroOneInflatedBeta Chi
Maxwell GenExtreme GenPareto ExtGenPareto GeneralizedPoisson Skellam DiscreteMarkovChain
JointCategorical R2D2M2CP
""".split()
STAN = """
bernoulli_logit_glm binomial_logit_glm categorical_logit_glm ordered_logistic_glm
neg_binomial_2_log_glm poisson_log_glm normal_id_glm multi_gp multi_normal_prec gaussian_dlm_obs
wiener yule_simon skew_double_exponential frechet loglogistic pareto_type_2 rayleigh
scaled_inv_chi_square discrete_range
""".split()
TFP = """
Bates BetaQuotient DeterminantalPointProcess DoublesidedMaxwell ExpGamma
ExponentiallyModifiedGaussian FiniteDiscrete GammaGamma GaussianProcess StudentTProcess
GeneralizedNormal GEV Horseshoe JohnsonSU LambertW LinearGaussianStateSpaceModel MarkovChain
NoncentralChi2 NormalInverseGaussian PERT PixelCNN PlackettLuce PowerSpherical VonMisesFisher
SphericalUniform QuantizedDistribution SigmoidBeta SinhArcsinh Skellam StoppingRatioLogistic
TwoPieceNormal TwoPieceStudentT VariationalGaussianProcess Zipf
""".split()
CONSTRAINTS = """
boolean cat corr_cholesky dependent dependent_property greater_than greater_than_eq
half_open_interval independent integer_interval interval is_dependent less_than lower_cholesky
lower_triangular multinomial nonnegative nonnegative_integer one_hot positive positive_definite
positive_integer positive_semidefinite real real_vector simplex square stack symmetric
unit_interval corr_matrix integer ordered_vector positive_ordered_vector softplus_lower_cholesky
softplus_positive sphere unit_lower_cholesky circular complex integer_greater_than l1_ball
positive_definite_circulant_vector real_matrix scaled_unit_lower_cholesky zero_sum
""".split()
TRANSFORMS = """
Abs Affine Cat Compose CorrCholesky CumulativeDistribution Exp Independent LowerCholesky
PositiveDefinite Power Reshape Sigmoid Softmax Softplus Stack StickBreaking Tanh ELU LeakyReLU
LowerCholeskyAffine Cholesky CorrLCholesky CorrMatrixCholesky DiscreteCosine Haar Normalize Ordered
PositivePower SimplexToOrdered SoftplusLowerCholesky UnitLowerCholesky Complex L1Ball
PackRealFastFourierCoefficients Permute RealFastFourier RecursiveLinear ScaledUnitLowerCholesky
ZeroSum AffineAutoregressive AffineCoupling BatchNorm BlockAutoregressive GeneralizedChannelPermute
Householder MatrixExponential NeuralAutoregressive Planar Polynomial Radial Spline
SplineAutoregressive SplineCoupling Sylvester ConditionalAffineAutoregressive
ConditionalAffineCoupling ConditionalGeneralizedChannelPermute ConditionalHouseholder
ConditionalMatrixExponential ConditionalNeuralAutoregressive ConditionalPlanar ConditionalRadial
ConditionalSpline ConditionalSplineAutoregressive SinhArcsinh LambertWTail FillTriangular
CholeskyToInvCholesky
""".split()
REPARAMETERISATIONS = """
Auto Minimal Conjugate DiscreteCosine GumbelSoftmax Haar LatentStable LinearHMM LocScale NeuTra
ProjectedNormal Split Stable Structured StudentT SymmetricStable Transform UnitJacobian Circular
Explicit
""".split()
# For each of PyTorch's distributions those from which it knows the divergence.
DIVERGENCES = """
Bernoulli: Bernoulli Poisson
Beta: Beta ContinuousBernoulli Exponential Gamma Normal Pareto Uniform
Binomial: Binomial
Categorical: Categorical
Cauchy: Cauchy
ContinuousBernoulli: ContinuousBernoulli Exponential Normal Pareto Uniform
Dirichlet: Dirichlet
Exponential: Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto Uniform
Gamma: Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto Uniform
Geometric: Geometric
Gumbel: Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto Uniform
HalfNormal: HalfNormal
Independent: Independent
Laplace: Beta ContinuousBernoulli Exponential Gamma Laplace Normal Pareto Uniform
LowRankMultivariateNormal: LowRankMultivariateNormal MultivariateNormal
MultivariateNormal: LowRankMultivariateNormal MultivariateNormal
Normal: Beta ContinuousBernoulli Exponential Gamma Gumbel Laplace Normal Pareto Uniform
OneHotCategorical: OneHotCategorical
Pareto: Beta ContinuousBernoulli Exponential Gamma Normal Pareto Uniform
Poisson: Bernoulli Binomial Poisson
TransformedDistribution: TransformedDistribution
Uniform: Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto Uniform
"""


def test_the_distributions_of_pytorch_pyro_and_numpyro_are_there():
    assert [n for n in TORCH + PYRO + NUMPYRO if not hasattr(dist, n)] == []
    assert len(set(TORCH + PYRO + NUMPYRO)) >= 150


def test_constraints_transforms_and_reparameterisations_are_there():
    assert [n for n in CONSTRAINTS if not hasattr(constraints, n)] == []
    known = {n.removesuffix("Transform") for n in dir(transforms)}
    assert [n for n in TRANSFORMS if n not in known] == []
    assert hasattr(transforms, "identity_transform") and hasattr(transforms, "iterated")
    both = {*dir(effects), *dir(infer)}
    assert [n for n in REPARAMETERISATIONS if f"{n}Reparam" not in both] == []


def test_divergences_of_pytorch_are_there():
    pairs = [
        (p, q)
        for line in DIVERGENCES.strip().splitlines()
        for p, _, others in [line.partition(": ")]
        for q in others.split()
    ]
    assert len(pairs) == 86
    assert dist.kl_divergence  # whose room has the rules
    classes = [(getattr(dist, p), getattr(dist, q)) for p, q in pairs]
    known = lambda p, q: any(issubclass(p, a) and issubclass(q, b) for a, b in _RULES)
    assert [pair for pair in classes if not known(*pair)] == []


def test_names_of_arguments_are_those_of_others_too():
    eye, zero, one = np.eye(2), np.zeros(2), np.array(1.0)
    pairs = [
        (dist.LKJCholesky(3, 2.0), dist.LKJCholesky(dimension=3, concentration=2.0)),
        (dist.LKJ(3, 2.0), dist.LKJ(dimension=3, concentration=2.0, sample_method="onion")),
        (dist.Wishart(3.0, eye), dist.Wishart(concentration=3.0, scale_matrix=eye)),
        (
            dist.Wishart(3.0, precision_matrix=eye),
            dist.Wishart(concentration=3.0, rate_matrix=eye),
        ),
        (
            dist.InverseWishart(3.0, eye),
            dist.InverseWishart(concentration=3.0, scale_matrix=eye),
        ),
        (dist.Poisson(2.0), dist.Poisson(2.0, is_sparse=True)),
        (dist.Multinomial(3, zero + 0.5), dist.Multinomial(3, zero + 0.5, total_count_max=3)),
        (
            dist.DirichletMultinomial(zero + 0.5, 3),
            dist.DirichletMultinomial(zero + 0.5, 3, is_sparse=True, total_count_max=3),
        ),
        (dist.ZeroSumNormal(1.0, (3,)), dist.ZeroSumNormal(1.0, event_shape=(3,))),
        (dist.Gumbel(0.0, 1.0), dist.Gumbel()),
        (dist.LogNormal(0.0, 1.0), dist.LogNormal()),
        (dist.MultivariateNormal(zero, eye), dist.MultivariateNormal(covariance_matrix=eye)),
        (
            dist.MultivariateNormal(zero + 2.0, scale_tril=eye),
            dist.MultivariateNormal(2.0, scale_tril=eye),
        ),
        (
            dist.MultivariateStudentT(3.0, zero + 1.0, eye),
            dist.MultivariateStudentT(3.0, one, eye),
        ),
        (dist.MaskedDistribution(dist.Normal(), True), dist.Normal()),
        (
            dist.Truncated(dist.Gamma(2.0, 3.0), 0.5, 4.0),
            dist.TruncatedGamma(2.0, 3.0, low=0.5, high=4.0),
        ),
        (dist.Zipf(2.5), dist.Zeta(2.5)),
        (dist.ScaledInverseChi2(3.0, 2.0), dist.ScaledInvChi2(3.0, 2.0)),
    ]
    for ours, theirs in pairs:
        x = ours.sample((3,), Generator(0))
        assert_close(theirs.log_prob(x), ours.log_prob(x))
        assert theirs.event_shape == ours.event_shape
    assert dist.MaskedDistribution(base_dist=dist.Normal(), mask=False).log_prob(0.0) == 0.0
    narrow = dist.MultivariateNormal(2.0, np.eye(2, dtype=np.float32))
    assert narrow.loc.dtype == narrow.sample().dtype == np.float32
    with pytest.raises(ArgumentError, match="one by position and one by name"):
        dist.LKJCholesky(3, dimension=3)
    with pytest.raises(ShapeError, match="at least 1 dims"):
        dist.MultivariateNormal(tensor(0.0), covariance_matrix=tensor(1.0))


# By name of an argument: whose it is, and why it is not taken.
KEYWORDS_NOT_TAKEN = {
    "normalization bound": (
        """transforms.matrix_exponential transforms.MatrixExponential
        transforms.conditional_matrix_exponential transforms.ConditionalMatrixExponential""",
        "the matrix is what the parameters say; exponentials have no terms that have to be few",
    ),
    "batch_shape": ("TruncatedPolyaGamma", "NumPyro's; the signature is Pyro's, a prototype"),
    "total_count_max": ("MultinomialLogits MultinomialProbs", "no sizes depend on it"),
    "experimental_allow_batch": (
        "reparam.DiscreteCosineReparam reparam.HaarReparam reparam.UnitJacobianReparam",
        "batch dims stay independent; to_event makes event dims of them",
    ),
    "support_fn": ("reparam.SplitReparam", "the supports of the parts are read from the site's"),
    "params": ("reparam.NeuTraReparam", "a guide has its own parameters"),
}


def keywords_of_others():
    """By name what PyTorch, Pyro and NumPyro call the arguments of what is here, too.

    The list was made by inspect.signature from torch 2.13, Pyro 1.9 and NumPyro 0.22.
    """
    rows = Path(__file__).with_name("keywords_of_others.txt").read_text().splitlines()
    return {name: words.split() for name, _, words in (row.partition(": ") for row in rows)}


def found(name):
    place, _, last = name.rpartition(".")
    rooms = {"": [dist], "transforms": [transforms], "reparam": [effects, infer]}[place]
    return next(getattr(room, last) for room in rooms if hasattr(room, last))


def taken_keywords(fn):
    if inspect.isclass(fn) and isinstance(getattr(fn, "_fields", None), dict) and fn._fields:
        return {*fn._fields, *fn._also, "validate_args"}
    called = fn.__init__ if inspect.isclass(fn) else fn
    given = inspect.signature(called).parameters.values()
    free = {"*"} if any(p.kind is p.VAR_KEYWORD for p in given) else set()
    return {p.name for p in given} | set(getattr(called, "also", {})) | free


def test_keywords_are_those_of_others_too():
    excused = {
        (where, word)
        for words, (places, _) in KEYWORDS_NOT_TAKEN.items()
        for word in words.split()
        for where in places.split()
    }
    rows = keywords_of_others()
    assert len(rows) >= 250
    refused = set()
    for name, words in rows.items():
        taken = taken_keywords(found(name))
        if "*" not in taken:
            refused |= {(name, w) for w in words if w not in taken and w != "validate_args"}
    assert refused == excused


def test_other_keywords_mean_the_same():
    weights, parts = dist.Categorical(np.ones(2)), dist.Normal(np.array([0.0, 3.0]), 1.0)
    mixed = dist.MixtureSameFamily(mixing_distribution=weights, component_distribution=parts)
    assert_close(mixed.log_prob(0.5), dist.MixtureSameFamily(weights, parts).log_prob(0.5))
    both = dist.Independent(base_dist=parts, reinterpreted_batch_ndims=1)
    assert_close(both.log_prob(np.zeros(2)), parts.log_prob(np.zeros(2)).sum())
    with pytest.raises(ArgumentError, match="which are the same"):
        dist.MixtureSameFamily(
            mixing_distribution=weights, mixture_distribution=weights, component_distribution=parts
        )
    with pytest.raises(ArgumentError, match="by position and by name"):
        dist.MixtureSameFamily(weights, parts, mixing_distribution=weights)
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
    x = dist.InverseWishart(5.0, matrix).sample((3,), Generator(0))
    by_rate = dist.InverseWishart(concentration=5.0, rate_matrix=np.linalg.inv(matrix))
    assert_close(by_rate.log_prob(x), dist.InverseWishart(5.0, matrix).log_prob(x), rtol=1e-10)
    assert_close(by_rate.scale_matrix, matrix, rtol=1e-10)
    reshaped = transforms.ReshapeTransform(forward_shape=(4,), inverse_shape=(2, 2))
    assert reshaped(tensor(np.ones((3, 2, 2)))).shape == (3, 4)
    assert transforms.MatrixExponential(2, iterations=8)(tensor([1.0, 2.0])).shape == (2,)
    assert transforms.IdentityTransform() is transforms.identity_transform
    assert isinstance(transforms.elu(), transforms.ELUTransform)
    assert isinstance(transforms.leaky_relu(), transforms.LeakyReLUTransform)
    sets = [
        (constraints.interval(0.0, 1.0), [0.5, 1.5, 3.0], [False, True, False]),
        (constraints.greater_than(0.0), [0.5, 1.5], [False, True]),
        (constraints.less_than(0.0), [-0.5, 0.5, 1.5], [False, True, False]),
    ]
    for domain, at, inside in sets:
        to = transforms.ExpTransform(domain=domain).codomain
        assert to.check(tensor(np.array(at))).tolist() == inside
    ordered = transforms.ExpTransform(domain=constraints.ordered_vector)
    assert ordered.codomain is constraints.positive_ordered_vector


def test_names_of_methods_are_those_of_others_too():
    d = dist.Normal(np.zeros((3, 1)), np.ones(4))
    assert d.sample_n(2).shape == (2, 3, 4)
    assert d.independent(1).event_shape == (4,)
    assert d.reshape((5,), 1).batch_shape == (5, 3)
    assert dist.Normal.infer_shapes(loc=(), scale=(3, 1)) == ((3, 1), ())
    assert dist.Dirichlet.infer_shapes(concentration=(2, 3)) == ((2,), (3,))
    shapes = dist.MultivariateNormal.infer_shapes(loc=(5,), scale_tril=(2, 5, 5))
    assert shapes == ((2,), (5,))
    assert dist.LKJCholesky.infer_shapes(dim=3, concentration=(2,)) == ((2,), (3, 3))
    flow = transforms.ExpTransform()
    assert flow.event_dim == 0 and flow.clear_cache() is None
    assert dist.TransformedDistribution(d, flow).clear_cache() is None
    assert dist.TorchDistribution is dist.Distribution


def test_parameters_have_the_names_of_others_too_and_methods_are_told():
    w = dist.Wishart(4.0, 2.0 * np.eye(2))
    assert w.concentration is w.df and w.scale_matrix is w.covariance_matrix
    assert_close(w.rate_matrix, 0.5 * np.eye(2))
    assert dist.LKJ(3, 2.0).dimension == 3
    d = dist.Normal()
    for name, told in (
        ("logpdf", "log_prob"),
        ("ppf", "icdf"),
        ("rvs", "sample"),
        ("std", "stddev"),
    ):
        with pytest.raises(UnknownNameError, match=f"no attribute '{name}'") as caught:
            getattr(d, name)
        assert f"d.{told}" in caught.value.fix and not hasattr(d, name)
        assert hasattr(dist.Distribution, told)
    with pytest.raises(AttributeError, match="param_shape"):
        _ = d.param_shape
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = d.nothing
    key = np.array([0, 1], np.uint32)
    for args in ((key, (3,)), ((), key)):
        for method in (d.sample, d.rsample):
            with pytest.raises(ArgumentError, match="Generator") as caught:
                method(*args)
            assert "JAX" in caught.value.fix


def test_classes_can_be_asked_what_distributions_are_asked():
    assert dist.Normal.has_rsample is True and dist.Bernoulli.has_rsample is False
    assert dist.Normal(0.0, 1.0).has_rsample and not dist.Bernoulli(0.5).has_rsample
    positive = constraints.positive
    assert dist.Gamma.arg_constraints == {"concentration": positive, "rate": positive}
    assert set(dist.Bernoulli.arg_constraints) == {"probs", "logits"}
    assert set(dist.Bernoulli(0.5).arg_constraints) == {"probs"}
    assert dist.Categorical(np.ones((2, 3))).expand((4, 2)).param_shape == (4, 2, 3)
    assert dist.Bernoulli(logits=np.zeros(5)).param_shape == (5,)
    assert not hasattr(dist.Normal(), "param_shape")


def test_matrices_of_normal_and_t_vectors_are_inverse_to_each_other():
    rng = np.random.default_rng(0)
    tril = np.tril(rng.standard_normal((2, 3, 3)), -1) + 2.0 * np.eye(3)
    loc, factor = np.zeros(3), rng.standard_normal((2, 3, 2))
    for d in (
        dist.MultivariateStudentT(5.0, loc, tril),
        dist.OMTMultivariateNormal(loc, tril[0]),
        dist.AVFMultivariateNormal(loc, tril[0], rng.standard_normal((2, 1, 3))),
        dist.LowRankMultivariateNormal(loc, factor, np.array([0.5, 1.0, 2.0])),
    ):
        product = d.covariance_matrix @ d.precision_matrix
        assert_close(product, np.broadcast_to(np.eye(3), product.shape), atol=1e-12)


def test_scales_of_asymmetric_laplace_distributions_have_names():
    d = dist.AsymmetricLaplace(0.0, 2.0, 0.5)
    assert (d.left_scale.item(), d.right_scale.item()) == (1.0, 4.0)
    d = dist.SoftAsymmetricLaplace(0.0, 2.0, 0.5, 3.0)
    assert [v.item() for v in (d.left_scale, d.right_scale, d.soft_scale)] == [1.0, 4.0, 6.0]


# Names for which something of another name is the same, and what is left out; the reasons are in
# docs/reference/differences.md.
OTHERWISE = {
    "PyMC": {"Simulator", "WishartBartlett"},
    "Stan": {"multi_gp", "multi_normal_prec", "gaussian_dlm_obs"},
    "TFP": {"LinearGaussianStateSpaceModel"},
}
LEFT_OUT = {
    "PyMC": set(),
    "Stan": set(),
    "TFP": {"LambertW", "PixelCNN", "VariationalGaussianProcess"},
}
STAN_CONSTRAINTS = """
zero_sum zero_sum row_stochastic_matrix column_stochastic_matrix offset_multiplier positive_definite
sphere
""".split()


def reachable(name):
    """Whether a name is there, or the error for it names what is."""
    if hasattr(dist, name) or hasattr(effects, name):
        return True
    with pytest.raises(UnknownNameError) as caught:
        getattr(dist, name)
    told = re.search(r"(?:did you mean|write it as) (\w+)", caught.value.fix)
    return told is not None and hasattr(dist, told[1])


def test_the_list_of_differences_counts_what_is_there():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "differences.md").read_text()
    rows = re.findall(r"^\| (.*)\((\d+)\) \| *(\d*) *\| *(\d*) *\| *(\d*) *\|$", page, re.M)
    told = {row[0].strip(): [int(n or 0) for n in row[1:]] for row in rows}
    union = {*TORCH, *PYRO, *NUMPYRO}
    count = sum(hasattr(dist, n) for n in union)
    assert told["distributions of PyTorch, Pyro and NumPyro"] == [len(union), count, 0, 0]
    for (library, row), names in zip(
        [
            ("PyMC", "of PyMC and its extras besides"),
            ("Stan", "of Stan besides"),
            ("TFP", "of TFP besides"),
        ],
        [PYMC, STAN, [n for n in TFP if n not in PYMC]],
        strict=True,
    ):
        otherwise, out = OTHERWISE[library], LEFT_OUT[library]
        here = [n for n in names if n not in otherwise | out]
        assert all(map(reachable, here))
        assert told[row] == [len(names), len(here), len(otherwise), len(out)], library
    # Stan's sums to zero count once, and one of its seven has the same name here.
    others = {*STAN_CONSTRAINTS} - {"offset_multiplier"}
    assert all(hasattr(constraints, n) for n in STAN_CONSTRAINTS)
    here = sum(hasattr(constraints, n) for n in CONSTRAINTS) + 1
    row = told["constraints of PyTorch, Pyro, NumPyro and Stan"]
    assert row == [here + len(others), here, len(others), 0]


# Of PyTorch 18 and the identity, of Pyro 19 flows, 10 with a context and 12 others, of NumPyro 11,
# of TFP 13: each name once, where it comes first, as it is written there. PyTorch's and Pyro's
# others lack their ending.
TRANSFORM_ROWS = {
    "PyTorch": """
        Abs Affine Cat Compose CorrCholesky CumulativeDistribution Exp Independent LowerCholesky
        PositiveDefinite Power Reshape Sigmoid Softmax Softplus Stack StickBreaking Tanh
        identity""",
    "Pyro": """
        AffineAutoregressive AffineCoupling BatchNorm BlockAutoregressive GeneralizedChannelPermute
        Householder MatrixExponential NeuralAutoregressive Permute Planar Polynomial Radial Spline
        SplineAutoregressive SplineCoupling Sylvester LowerCholeskyAffine ELU LeakyReLU
        ConditionalAffineAutoregressive ConditionalAffineCoupling
        ConditionalGeneralizedChannelPermute ConditionalHouseholder ConditionalMatrixExponential
        ConditionalNeuralAutoregressive ConditionalPlanar ConditionalRadial ConditionalSpline
        ConditionalSplineAutoregressive Cholesky CorrLCholesky CorrMatrixCholesky DiscreteCosine
        Haar Normalize Ordered PositivePower SimplexToOrdered SoftplusLowerCholesky
        UnitLowerCholesky iterated""",
    "NumPyro": """
        Complex L1Ball PackRealFastFourierCoefficients PermuteTransform RealFastFourier
        RecursiveLinear ScaledUnitLowerCholesky Unpack ZeroSum IAF BNAF""",
    "TFP": """
        FFJORD Glow RealNVP MaskedAutoregressiveFlow RationalQuadraticSpline SinhArcsinh
        LambertWTail Restructure JointMap CDF FillTriangular CholeskyToInvCholesky ScaleMatvecLU""",
}
# By a name of others what is the same here.
TRANSFORMS_OTHERWISE = {
    "BNAF": "block_autoregressive",
    "CDF": "CumulativeDistributionTransform",
    "FFJORD": "continuous_flow",
    "Glow": "generalized_channel_permute",
    "IAF": "affine_autoregressive",
    "MaskedAutoregressiveFlow": "affine_autoregressive",
    "RationalQuadraticSpline": "spline",
    "RealNVP": "affine_coupling",
}
TRANSFORMS_LEFT_OUT = {"JointMap", "Restructure", "ScaleMatvecLU", "Unpack"}


def test_the_list_of_differences_counts_transforms():
    sizes = {library: len(names.split()) for library, names in TRANSFORM_ROWS.items()}
    assert sizes == {"PyTorch": 19, "Pyro": 41, "NumPyro": 11, "TFP": 13}
    names = [n for row in TRANSFORM_ROWS.values() for n in row.split()]
    assert len(set(names)) == len(names)
    known = {n.removesuffix(ending) for n in dir(transforms) for ending in ("", "Transform")}
    known |= {"identity"} if hasattr(transforms, "identity_transform") else set()
    left = {n for n in names if n not in known}
    assert left == set(TRANSFORMS_OTHERWISE) | TRANSFORMS_LEFT_OUT
    assert all(hasattr(transforms, n) for n in TRANSFORMS_OTHERWISE.values())
    page = (Path(__file__).parents[2] / "docs" / "reference" / "differences.md").read_text()
    for other, ours in TRANSFORMS_OTHERWISE.items():
        assert other.lower() in page.lower() and ours in page, other
    assert all(f"`{n}`" in page for n in TRANSFORMS_LEFT_OUT)
    row = re.search(
        r"^\| transforms and flows .*?\((\d+)\) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M
    )
    expected = [len(names), len(names) - len(left), len(TRANSFORMS_OTHERWISE)]
    assert [int(n) for n in row.groups()] == [*expected, len(TRANSFORMS_LEFT_OUT)]


@pytest.mark.parametrize(
    "room, name, told",
    [
        (transforms, "RealNVP", "affine_coupling"),
        (transforms, "UnpackTransform", "trees"),
        (transforms, "InverseAutoregressiveTransform", "affine_autoregressive(input_dim)"),
        # A masked flow takes one pass for a density, the other one for a draw.
        (transforms, "MaskedAutoregressiveFlow", "affine_autoregressive(input_dim).inv"),
        (transforms, "ExpTransfrom", "did you mean ExpTransform"),
        (constraints, "unit_vector", "sphere"),
        (constraints, "cov_matrix", "positive_definite"),
        (constraints, "positve", "did you mean positive"),
    ],
)
def test_unknown_transforms_and_constraints_are_told(room, name, told):
    with pytest.raises(UnknownNameError, match="has no attribute") as caught:
        getattr(room, name)
    assert told in caught.value.fix
    with pytest.raises(ImportError):
        exec(f"from {room.__name__} import {name}")  # noqa: S102  # a name that is not there


@pytest.mark.parametrize("name", PYMC + STAN + TFP)
def test_what_others_have_is_there_or_told(name):
    if hasattr(effects, name) or hasattr(dist, name):
        return
    with pytest.raises(UnknownNameError) as caught:
        getattr(dist, name)
    meant = caught.value.fix.partition("did you mean ")[2].partition("?")[0]
    assert name in RECIPES or name in NOTES or hasattr(dist, meant)
