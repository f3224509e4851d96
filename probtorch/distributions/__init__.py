"""Probability distributions, the sets they live on, and maps between those sets.

Names and signatures are those of `torch.distributions` and Pyro. Read `normal.py` for the form of a
distribution, then `distribution.py` for what its base class makes of it.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names
from probtorch.distributions.missing import DISTRIBUTIONS as _ELSEWHERE

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.distributions import (
        constraints as constraints,
        transforms as transforms,
    )
    from probtorch.distributions.bates import (
        Bates as Bates,
    )
    from probtorch.distributions.bernoulli import (
        Bernoulli as Bernoulli,
        Geometric as Geometric,
    )
    from probtorch.distributions.beta import (
        Beta as Beta,
        Dirichlet as Dirichlet,
    )
    from probtorch.distributions.categorical import (
        Categorical as Categorical,
        Multinomial as Multinomial,
        OneHotCategorical as OneHotCategorical,
    )
    from probtorch.distributions.chains import (
        DiscreteMarkovChain as DiscreteMarkovChain,
        MarkovChain as MarkovChain,
    )
    from probtorch.distributions.circulant import (
        CirculantNormal as CirculantNormal,
    )
    from probtorch.distributions.coalescent import (
        CoalescentRateLikelihood as CoalescentRateLikelihood,
        CoalescentTimes as CoalescentTimes,
        CoalescentTimesWithRate as CoalescentTimesWithRate,
    )
    from probtorch.distributions.conditional import (
        ConditionalDistribution as ConditionalDistribution,
        ConditionalTransformedDistribution as ConditionalTransformedDistribution,
    )
    from probtorch.distributions.counts import (
        BetaBinomial as BetaBinomial,
        Binomial as Binomial,
        NegativeBinomial as NegativeBinomial,
        Poisson as Poisson,
    )
    from probtorch.distributions.directional import (
        ProjectedNormal as ProjectedNormal,
        SineBivariateVonMises as SineBivariateVonMises,
        SineSkewed as SineSkewed,
        VonMises3D as VonMises3D,
    )
    from probtorch.distributions.directions import (
        PowerSpherical as PowerSpherical,
        SphericalUniform as SphericalUniform,
        VonMisesFisher as VonMisesFisher,
    )
    from probtorch.distributions.distribution import (
        Distribution as Distribution,
        ExpandedDistribution as ExpandedDistribution,
        Independent as Independent,
        MaskedDistribution as MaskedDistribution,
    )
    from probtorch.distributions.divergences import (
        kl_divergence as kl_divergence,
        register_kl as register_kl,
    )
    from probtorch.distributions.empirical import (
        Empirical as Empirical,
        Rejector as Rejector,
    )
    from probtorch.distributions.exponential_family import (
        ExponentialFamily as ExponentialFamily,
    )
    from probtorch.distributions.extremes import (
        ExtendedGeneralizedPareto as ExtendedGeneralizedPareto,
        GeneralizedExtremeValue as GeneralizedExtremeValue,
        GeneralizedPareto as GeneralizedPareto,
    )
    from probtorch.distributions.first_passage import (
        Wiener as Wiener,
    )
    from probtorch.distributions.from_gammas import (
        ExpGamma as ExpGamma,
        ExpInverseGamma as ExpInverseGamma,
        GammaGamma as GammaGamma,
        SigmoidBeta as SigmoidBeta,
        SkewStudentT as SkewStudentT,
    )
    from probtorch.distributions.further_spellings import (
        BinomialLogit as BinomialLogit,
        ChiSquared as ChiSquared,
        Deterministic as Deterministic,
        DiracDelta as DiracDelta,
        ExtGenPareto as ExtGenPareto,
        GenExtreme as GenExtreme,
        GenPareto as GenPareto,
        LogPoisson as LogPoisson,
        MultivariateNormalDiag as MultivariateNormalDiag,
        MultivariateNormalFullCovariance as MultivariateNormalFullCovariance,
        MultivariateNormalTriL as MultivariateNormalTriL,
        MvNormal as MvNormal,
        MvStudentT as MvStudentT,
        NormalMixture as NormalMixture,
        ScaledInvChi2 as ScaledInvChi2,
        SkewDoubleExponential as SkewDoubleExponential,
        Zeta as Zeta,
    )
    from probtorch.distributions.gamma import (
        Chi2 as Chi2,
        Gamma as Gamma,
        InverseGamma as InverseGamma,
    )
    from probtorch.distributions.gaussian_hmm import (
        GammaGaussianHMM as GammaGaussianHMM,
        GaussianHMM as GaussianHMM,
    )
    from probtorch.distributions.gaussian_mrf import (
        GaussianMRF as GaussianMRF,
    )
    from probtorch.distributions.glm import (
        BernoulliLogitGLM as BernoulliLogitGLM,
        BinomialLogitGLM as BinomialLogitGLM,
        CategoricalLogitGLM as CategoricalLogitGLM,
        NegBinomial2LogGLM as NegBinomial2LogGLM,
        NormalIdGLM as NormalIdGLM,
        OrderedLogisticGLM as OrderedLogisticGLM,
        PoissonLogGLM as PoissonLogGLM,
        bernoulli_logit_glm as bernoulli_logit_glm,
        binomial_logit_glm as binomial_logit_glm,
        categorical_logit_glm as categorical_logit_glm,
        neg_binomial_2_log_glm as neg_binomial_2_log_glm,
        normal_id_glm as normal_id_glm,
        ordered_logistic_glm as ordered_logistic_glm,
        poisson_log_glm as poisson_log_glm,
    )
    from probtorch.distributions.graphs import (
        CAR as CAR,
        ICAR as ICAR,
    )
    from probtorch.distributions.grouped import (
        GroupedNormalNormal as GroupedNormalNormal,
    )
    from probtorch.distributions.heavy_tailed import (
        Cauchy as Cauchy,
        HalfCauchy as HalfCauchy,
        StudentT as StudentT,
    )
    from probtorch.distributions.hidden_markov import (
        DiscreteHMM as DiscreteHMM,
        HiddenMarkovModel as HiddenMarkovModel,
    )
    from probtorch.distributions.inflated import (
        HurdleDistribution as HurdleDistribution,
        ZeroInflatedDistribution as ZeroInflatedDistribution,
    )
    from probtorch.distributions.inflated_families import (
        HurdleGamma as HurdleGamma,
        HurdleLogits as HurdleLogits,
        HurdleLogNormal as HurdleLogNormal,
        HurdleNegativeBinomial2 as HurdleNegativeBinomial2,
        HurdlePoisson as HurdlePoisson,
        HurdleProbs as HurdleProbs,
        ZeroInflatedBinomial as ZeroInflatedBinomial,
        ZeroInflatedLogits as ZeroInflatedLogits,
        ZeroInflatedNegativeBinomial as ZeroInflatedNegativeBinomial,
        ZeroInflatedNegativeBinomial2 as ZeroInflatedNegativeBinomial2,
        ZeroInflatedPoisson as ZeroInflatedPoisson,
        ZeroInflatedProbs as ZeroInflatedProbs,
    )
    from probtorch.distributions.quantized import (
        FoldedDistribution as FoldedDistribution,
        QuantizedDistribution as QuantizedDistribution,
    )
    from probtorch.distributions.inflated_shares import (
        ZeroOneInflatedBeta as ZeroOneInflatedBeta,
    )
    from probtorch.distributions.lambert import (
        LambertWNormal as LambertWNormal,
    )
    from probtorch.distributions.lifetimes import (
        Burr as Burr,
        Dagum as Dagum,
        Frechet as Frechet,
        Gompertz as Gompertz,
        Levy as Levy,
        LogLogistic as LogLogistic,
        Maxwell as Maxwell,
        Rayleigh as Rayleigh,
    )
    from probtorch.distributions.linear_hmm import (
        IndependentHMM as IndependentHMM,
        LinearHMM as LinearHMM,
    )
    from probtorch.distributions.lkj import (
        LKJ as LKJ,
        LKJCholesky as LKJCholesky,
    )
    from probtorch.distributions.location_scale import (
        Gumbel as Gumbel,
        Laplace as Laplace,
        Logistic as Logistic,
        SoftLaplace as SoftLaplace,
    )
    from probtorch.distributions.matchings import (
        OneOneMatching as OneOneMatching,
        OneTwoMatching as OneTwoMatching,
    )
    from probtorch.distributions.mixture import (
        MixtureSameFamily as MixtureSameFamily,
    )
    from probtorch.distributions.mixtures import (
        GaussianCopula as GaussianCopula,
        GaussianCopulaBeta as GaussianCopulaBeta,
        MaskedMixture as MaskedMixture,
        Mixture as Mixture,
        MixtureGeneral as MixtureGeneral,
        MixtureOfDiagNormals as MixtureOfDiagNormals,
        MixtureOfDiagNormalsSharedCovariance as MixtureOfDiagNormalsSharedCovariance,
    )
    from probtorch.distributions.multivariate_normal import (
        MultivariateNormal as MultivariateNormal,
    )
    from probtorch.distributions.noncentral import (
        NoncentralChi2 as NoncentralChi2,
        NoncentralT as NoncentralT,
        Rice as Rice,
    )
    from probtorch.distributions.normal import (
        HalfNormal as HalfNormal,
        LogNormal as LogNormal,
        Normal as Normal,
    )
    from probtorch.distributions.ordered import (
        Ordered as Ordered,
    )
    from probtorch.distributions.orders import (
        PlackettLuce as PlackettLuce,
        StickBreakingWeights as StickBreakingWeights,
    )
    from probtorch.distributions.ordinal import (
        DirichletMultinomial as DirichletMultinomial,
        OrderedLogistic as OrderedLogistic,
        OrderedMultinomial as OrderedMultinomial,
        OrderedProbit as OrderedProbit,
        StoppingRatioLogistic as StoppingRatioLogistic,
    )
    from probtorch.distributions.particular_counts import (
        GeneralizedPoisson as GeneralizedPoisson,
        HyperGeometric as HyperGeometric,
        Skellam as Skellam,
        Zipf as Zipf,
    )
    from probtorch.distributions.polya_gamma import (
        PolyaGamma as PolyaGamma,
        TruncatedPolyaGamma as TruncatedPolyaGamma,
    )
    from probtorch.distributions.positive import (
        Exponential as Exponential,
        Pareto as Pareto,
        Weibull as Weibull,
    )
    from probtorch.distributions.processes import (
        GaussianProcess as GaussianProcess,
        GaussianProcessRegressionModel as GaussianProcessRegressionModel,
        KroneckerNormal as KroneckerNormal,
        StudentTProcess as StudentTProcess,
    )
    from probtorch.distributions.quotients import (
        BetaQuotient as BetaQuotient,
    )
    from probtorch.distributions.rarer_counts import (
        BetaNegativeBinomial as BetaNegativeBinomial,
        DiscreteUniform as DiscreteUniform,
        DiscreteWeibull as DiscreteWeibull,
        YuleSimon as YuleSimon,
    )
    from probtorch.distributions.ratios import (
        Chi as Chi,
        FisherSnedecor as FisherSnedecor,
        HalfStudentT as HalfStudentT,
        InverseGaussian as InverseGaussian,
    )
    from probtorch.distributions.relaxed import (
        LogisticNormal as LogisticNormal,
        OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
        RelaxedBernoulliStraightThrough as RelaxedBernoulliStraightThrough,
        RelaxedOneHotCategorical as RelaxedOneHotCategorical,
        RelaxedOneHotCategoricalStraightThrough as RelaxedOneHotCategoricalStraightThrough,
    )
    from probtorch.distributions.scale_mixtures import (
        Horseshoe as Horseshoe,
        MultivariateLaplace as MultivariateLaplace,
        NormalInverseGaussian as NormalInverseGaussian,
    )
    from probtorch.distributions.shares import (
        ContinuousBernoulli as ContinuousBernoulli,
        Kumaraswamy as Kumaraswamy,
        LogitNormal as LogitNormal,
        RelaxedBernoulli as RelaxedBernoulli,
        Triangular as Triangular,
    )
    from probtorch.distributions.power_laws import (
        DoublyTruncatedPowerLaw as DoublyTruncatedPowerLaw,
        LogUniform as LogUniform,
        LowerTruncatedPowerLaw as LowerTruncatedPowerLaw,
    )
    from probtorch.distributions.blurred import (
        ExGaussian as ExGaussian,
        SoftAsymmetricLaplace as SoftAsymmetricLaplace,
    )
    from probtorch.distributions.skewed import (
        AsymmetricLaplace as AsymmetricLaplace,
        AsymmetricLaplaceQuantile as AsymmetricLaplaceQuantile,
        GeneralizedNormal as GeneralizedNormal,
        JohnsonSU as JohnsonSU,
        Moyal as Moyal,
        SinhArcsinh as SinhArcsinh,
        SkewLogistic as SkewLogistic,
        SkewNormal as SkewNormal,
    )
    from probtorch.distributions.spellings import (
        PERT as PERT,
        AffineBeta as AffineBeta,
        BernoulliLogits as BernoulliLogits,
        BernoulliProbs as BernoulliProbs,
        BetaProportion as BetaProportion,
        BinomialLogits as BinomialLogits,
        BinomialProbs as BinomialProbs,
        CategoricalLogits as CategoricalLogits,
        CategoricalProbs as CategoricalProbs,
        ExponentiallyModifiedGaussian as ExponentiallyModifiedGaussian,
        Flat as Flat,
        GammaPoisson as GammaPoisson,
        GeometricLogits as GeometricLogits,
        GeometricProbs as GeometricProbs,
        HalfFlat as HalfFlat,
        LKJCorrCholesky as LKJCorrCholesky,
        Lomax as Lomax,
        MultinomialLogits as MultinomialLogits,
        MultinomialProbs as MultinomialProbs,
        NegativeBinomial2 as NegativeBinomial2,
        NegativeBinomialLogits as NegativeBinomialLogits,
        NegativeBinomialProbs as NegativeBinomialProbs,
        RelaxedBernoulliLogits as RelaxedBernoulliLogits,
        ScaledInverseChi2 as ScaledInverseChi2,
        StableWithLogProb as StableWithLogProb,
        Wald as Wald,
    )
    from probtorch.distributions.stable import (
        Stable as Stable,
    )
    from probtorch.distributions.state_space import (
        EulerMaruyama as EulerMaruyama,
        GaussianStateSpace as GaussianStateSpace,
    )
    from probtorch.distributions.subsets import (
        DeterminantalPointProcess as DeterminantalPointProcess,
    )
    from probtorch.distributions.tables import (
        FiniteDiscrete as FiniteDiscrete,
        Interpolated as Interpolated,
        JointCategorical as JointCategorical,
    )
    from probtorch.distributions.tolerant import (
        ExtendedBetaBinomial as ExtendedBetaBinomial,
        ExtendedBinomial as ExtendedBinomial,
        LogNormalNegativeBinomial as LogNormalNegativeBinomial,
        NanMaskedMultivariateNormal as NanMaskedMultivariateNormal,
        NanMaskedNormal as NanMaskedNormal,
        Unit as Unit,
    )
    from probtorch.distributions.transformed import (
        TransformedDistribution as TransformedDistribution,
    )
    from probtorch.distributions.transforms import (
        AbsTransform as AbsTransform,
        AffineTransform as AffineTransform,
        CatTransform as CatTransform,
        ComposeTransform as ComposeTransform,
        CorrCholeskyTransform as CorrCholeskyTransform,
        CumulativeDistributionTransform as CumulativeDistributionTransform,
        ExpTransform as ExpTransform,
        IndependentTransform as IndependentTransform,
        LowerCholeskyTransform as LowerCholeskyTransform,
        PositiveDefiniteTransform as PositiveDefiniteTransform,
        PowerTransform as PowerTransform,
        ReshapeTransform as ReshapeTransform,
        SigmoidTransform as SigmoidTransform,
        SoftmaxTransform as SoftmaxTransform,
        SoftplusTransform as SoftplusTransform,
        StackTransform as StackTransform,
        StickBreakingTransform as StickBreakingTransform,
        TanhTransform as TanhTransform,
        Transform as Transform,
        identity_transform as identity_transform,
    )
    from probtorch.distributions.transforms.registry import (
        biject_to as biject_to,
        transform_to as transform_to,
    )
    from probtorch.distributions.transport import (
        AVFMultivariateNormal as AVFMultivariateNormal,
        GaussianScaleMixture as GaussianScaleMixture,
        OMTMultivariateNormal as OMTMultivariateNormal,
    )
    from probtorch.distributions.trees import (
        SpanningTree as SpanningTree,
    )
    from probtorch.distributions.truncated import (
        TruncatedNormal as TruncatedNormal,
    )
    from probtorch.distributions.truncation import (
        LeftTruncatedDistribution as LeftTruncatedDistribution,
        LeftTruncatedGamma as LeftTruncatedGamma,
        RightTruncatedDistribution as RightTruncatedDistribution,
        RightTruncatedGamma as RightTruncatedGamma,
        Truncated as Truncated,
        TruncatedCauchy as TruncatedCauchy,
        TruncatedDistribution as TruncatedDistribution,
        TruncatedGamma as TruncatedGamma,
        TwoSidedTruncatedDistribution as TwoSidedTruncatedDistribution,
        TwoSidedTruncatedGamma as TwoSidedTruncatedGamma,
    )
    from probtorch.distributions.censoring import (
        Censored as Censored,
        IntervalCensoredDistribution as IntervalCensoredDistribution,
        LeftCensoredDistribution as LeftCensoredDistribution,
        RightCensoredDistribution as RightCensoredDistribution,
    )
    from probtorch.distributions.two_piece import (
        DoublesidedMaxwell as DoublesidedMaxwell,
        TwoPieceNormal as TwoPieceNormal,
        TwoPieceStudentT as TwoPieceStudentT,
    )
    from probtorch.distributions.uniform import (
        Delta as Delta,
        ImproperUniform as ImproperUniform,
        Uniform as Uniform,
    )
    from probtorch.distributions.validation import (
        enable_validation as enable_validation,
        is_validation_enabled as is_validation_enabled,
        validation_enabled as validation_enabled,
    )
    from probtorch.distributions.vectors import (
        GaussianRandomWalk as GaussianRandomWalk,
        LowRankMultivariateNormal as LowRankMultivariateNormal,
        MatrixNormal as MatrixNormal,
        MultivariateStudentT as MultivariateStudentT,
        ZeroSumNormal as ZeroSumNormal,
    )
    from probtorch.distributions.von_mises import (
        VonMises as VonMises,
    )
    from probtorch.distributions.walks import (
        AR as AR,
        GARCH11 as GARCH11,
        MvGaussianRandomWalk as MvGaussianRandomWalk,
        MvStudentTRandomWalk as MvStudentTRandomWalk,
        RandomWalk as RandomWalk,
    )
    from probtorch.distributions.wishart import (
        InverseWishart as InverseWishart,
        InverseWishartCholesky as InverseWishartCholesky,
        Wishart as Wishart,
        WishartCholesky as WishartCholesky,
    )
else:
    _HOMES = {
        "bates": "Bates",
        "bernoulli": "Bernoulli Geometric",
        "beta": "Beta Dirichlet",
        "blurred": "ExGaussian SoftAsymmetricLaplace",
        "categorical": "Categorical Multinomial OneHotCategorical",
        "chains": "DiscreteMarkovChain MarkovChain",
        "circulant": "CirculantNormal",
        "coalescent": "CoalescentRateLikelihood CoalescentTimes CoalescentTimesWithRate",
        "conditional": "ConditionalDistribution ConditionalTransformedDistribution",
        "constraints": "",
        "counts": "BetaBinomial Binomial NegativeBinomial Poisson",
        "directional": "ProjectedNormal SineBivariateVonMises SineSkewed VonMises3D",
        "directions": "PowerSpherical SphericalUniform VonMisesFisher",
        "distribution": "Distribution ExpandedDistribution Independent MaskedDistribution",
        "divergences": "kl_divergence register_kl",
        "empirical": "Empirical Rejector",
        "exponential_family": "ExponentialFamily",
        "extremes": "ExtendedGeneralizedPareto GeneralizedExtremeValue GeneralizedPareto",
        "first_passage": "Wiener",
        "from_gammas": "ExpGamma ExpInverseGamma GammaGamma SigmoidBeta SkewStudentT",
        "further_spellings": (
            "BinomialLogit ChiSquared Deterministic DiracDelta ExtGenPareto GenExtreme GenPareto "
            "LogPoisson MultivariateNormalDiag MultivariateNormalFullCovariance "
            "MultivariateNormalTriL MvNormal MvStudentT NormalMixture ScaledInvChi2 "
            "SkewDoubleExponential Zeta"
        ),
        "gamma": "Chi2 Gamma InverseGamma",
        "gaussian_hmm": "GammaGaussianHMM GaussianHMM",
        "gaussian_mrf": "GaussianMRF",
        "glm": (
            "BernoulliLogitGLM BinomialLogitGLM CategoricalLogitGLM NegBinomial2LogGLM "
            "NormalIdGLM OrderedLogisticGLM PoissonLogGLM bernoulli_logit_glm "
            "binomial_logit_glm categorical_logit_glm neg_binomial_2_log_glm normal_id_glm "
            "ordered_logistic_glm poisson_log_glm"
        ),
        "graphs": "CAR ICAR",
        "grouped": "GroupedNormalNormal",
        "heavy_tailed": "Cauchy HalfCauchy StudentT",
        "hidden_markov": "DiscreteHMM HiddenMarkovModel",
        "inflated": "HurdleDistribution ZeroInflatedDistribution",
        "inflated_families": (
            "HurdleGamma HurdleLogits HurdleLogNormal HurdleNegativeBinomial2 HurdlePoisson "
            "HurdleProbs ZeroInflatedBinomial ZeroInflatedLogits ZeroInflatedNegativeBinomial "
            "ZeroInflatedNegativeBinomial2 ZeroInflatedPoisson ZeroInflatedProbs"
        ),
        "quantized": "FoldedDistribution QuantizedDistribution",
        "inflated_shares": "ZeroOneInflatedBeta",
        "lambert": "LambertWNormal",
        "lifetimes": "Burr Dagum Frechet Gompertz Levy LogLogistic Maxwell Rayleigh",
        "linear_hmm": "IndependentHMM LinearHMM",
        "lkj": "LKJ LKJCholesky",
        "location_scale": "Gumbel Laplace Logistic SoftLaplace",
        "matchings": "OneOneMatching OneTwoMatching",
        "mixture": "MixtureSameFamily",
        "mixtures": (
            "GaussianCopula GaussianCopulaBeta MaskedMixture Mixture MixtureGeneral "
            "MixtureOfDiagNormals MixtureOfDiagNormalsSharedCovariance"
        ),
        "multivariate_normal": "MultivariateNormal",
        "noncentral": "NoncentralChi2 NoncentralT Rice",
        "normal": "HalfNormal LogNormal Normal",
        "ordered": "Ordered",
        "orders": "PlackettLuce StickBreakingWeights",
        "ordinal": (
            "DirichletMultinomial OrderedLogistic OrderedMultinomial OrderedProbit "
            "StoppingRatioLogistic"
        ),
        "particular_counts": "GeneralizedPoisson HyperGeometric Skellam Zipf",
        "polya_gamma": "PolyaGamma TruncatedPolyaGamma",
        "positive": "Exponential Pareto Weibull",
        "processes": (
            "GaussianProcess GaussianProcessRegressionModel KroneckerNormal StudentTProcess"
        ),
        "quotients": "BetaQuotient",
        "rarer_counts": "BetaNegativeBinomial DiscreteUniform DiscreteWeibull YuleSimon",
        "ratios": "Chi FisherSnedecor HalfStudentT InverseGaussian",
        "relaxed": (
            "LogisticNormal OneHotCategoricalStraightThrough RelaxedBernoulliStraightThrough "
            "RelaxedOneHotCategorical RelaxedOneHotCategoricalStraightThrough"
        ),
        "scale_mixtures": "Horseshoe MultivariateLaplace NormalInverseGaussian",
        "power_laws": "DoublyTruncatedPowerLaw LogUniform LowerTruncatedPowerLaw",
        "shares": ("ContinuousBernoulli Kumaraswamy LogitNormal RelaxedBernoulli Triangular"),
        "skewed": (
            "AsymmetricLaplace AsymmetricLaplaceQuantile GeneralizedNormal JohnsonSU Moyal "
            "SinhArcsinh SkewLogistic SkewNormal"
        ),
        "spellings": (
            "PERT AffineBeta BernoulliLogits BernoulliProbs BetaProportion BinomialLogits "
            "BinomialProbs CategoricalLogits CategoricalProbs ExponentiallyModifiedGaussian "
            "Flat GammaPoisson GeometricLogits GeometricProbs HalfFlat LKJCorrCholesky Lomax "
            "MultinomialLogits MultinomialProbs NegativeBinomial2 NegativeBinomialLogits "
            "NegativeBinomialProbs RelaxedBernoulliLogits ScaledInverseChi2 StableWithLogProb "
            "Wald"
        ),
        "stable": "Stable",
        "state_space": "EulerMaruyama GaussianStateSpace",
        "subsets": "DeterminantalPointProcess",
        "tables": "FiniteDiscrete Interpolated JointCategorical",
        "tolerant": (
            "ExtendedBetaBinomial ExtendedBinomial LogNormalNegativeBinomial "
            "NanMaskedMultivariateNormal NanMaskedNormal Unit"
        ),
        "transformed": "TransformedDistribution",
        "transforms": "",
        "transforms.registry": "biject_to transform_to",
        "transport": "AVFMultivariateNormal GaussianScaleMixture OMTMultivariateNormal",
        "trees": "SpanningTree",
        "truncated": "TruncatedNormal",
        "censoring": (
            "Censored IntervalCensoredDistribution LeftCensoredDistribution "
            "RightCensoredDistribution"
        ),
        "truncation": (
            "LeftTruncatedDistribution LeftTruncatedGamma RightTruncatedDistribution "
            "RightTruncatedGamma Truncated TruncatedCauchy TruncatedDistribution TruncatedGamma "
            "TwoSidedTruncatedDistribution TwoSidedTruncatedGamma"
        ),
        "two_piece": "DoublesidedMaxwell TwoPieceNormal TwoPieceStudentT",
        "uniform": "Delta ImproperUniform Uniform",
        "validation": "enable_validation is_validation_enabled validation_enabled",
        "vectors": (
            "GaussianRandomWalk LowRankMultivariateNormal MatrixNormal MultivariateStudentT "
            "ZeroSumNormal"
        ),
        "von_mises": "VonMises",
        "walks": "AR GARCH11 MvGaussianRandomWalk MvStudentTRandomWalk RandomWalk",
        "wishart": "InverseWishart InverseWishartCholesky Wishart WishartCholesky",
    }
    # Second names of classes; and what `torch.distributions` has, too, whose home is `transforms`.
    _BESIDE = {
        "further_spellings": "Copula Folded GEV Hurdle Quantized TorchDistribution ZeroInflated",
        "transforms": (
            "AbsTransform AffineTransform CatTransform ComposeTransform CorrCholeskyTransform "
            "CumulativeDistributionTransform ExpTransform IndependentTransform "
            "LowerCholeskyTransform PositiveDefiniteTransform PowerTransform ReshapeTransform "
            "SigmoidTransform SoftmaxTransform SoftplusTransform StackTransform "
            "StickBreakingTransform TanhTransform Transform identity_transform"
        ),
    }
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES, beside=_BESIDE, instead=_ELSEWHERE)
    # As there, a star brings the transforms, too.
    __all__ += _BESIDE["transforms"].split()
