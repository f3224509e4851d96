"""Distributions that other libraries have and this one has not, and how to write them.

`DISTRIBUTIONS`, `TRANSFORMS` and `CONSTRAINTS` are the tables of these rooms, as in `core.absent`.
Recipes are Python expressions over the distribution's parameters (and `y`, where a density is
stated by `factor`); tests evaluate them and compare their densities with SciPy's.
"""

from __future__ import annotations

__all__ = ["CONSTRAINTS", "DISTRIBUTIONS", "NOTES", "RECIPES", "TRANSFORMS"]

# Expressions; names in them are of probtorch, probtorch.distributions and its transforms.
RECIPES = {
    "LogitUniform": "TransformedDistribution(Uniform(0.0, 1.0), SigmoidTransform().inv)",
    "OrderedLogit": "OrderedLogistic(eta, cutpoints)",
    "Reciprocal": "LogUniform(low, high)",
}

# What takes more than an expression.
_MODEL = "a model: a function with x = sample('x', ...) statements, which condition and infer take"
_FACTOR = "factor('y', log_density), with the log density as a tensor expression"
NOTES = {
    "ComposeTransformModule": "transforms.ComposeTransform, whose parts may be modules",
    "ConditionalTransform": "a function of the context that returns a transform",
    "ConditionalTransformModule": "a function of the context that returns a transform",
    "TransformModule": "a class derived from transforms.Transform and nn.Module",
    "BetaPrime": "GammaGamma(concentration1, concentration0), with its scale as mixing_rate",
    "ParetoTypeII": "Lomax(concentration, scale, loc)",
    "pareto_type_2": "Lomax(concentration, scale, loc)",
    "SplitNormal": "TwoPieceNormal(loc, scale, asymmetry)",
    "FlatPos": "HalfFlat()",
    "GeneralizedExtremeValueMin": "the negative of a GeneralizedExtremeValue",
    "Glow": "transforms.generalized_channel_permute and transforms.affine_coupling, composed",
    "FFJORD": "transforms.continuous_flow",
    "IAF": "transforms.affine_autoregressive",
    "BNAF": "transforms.block_autoregressive",
    "MaskedAutoregressiveFlow": "transforms.affine_autoregressive(input_dim).inv",
    "RealNVP": "transforms.affine_coupling",
    "RationalQuadraticSpline": "transforms.spline",
    "JointDistributionCoroutine": _MODEL,
    "JointDistributionNamed": _MODEL,
    "JointDistributionSequential": _MODEL,
    "JointDistribution": _MODEL,
    "LambertW": "LambertWNormal(loc, scale, tailweight); of other bases a "
    "TransformedDistribution with transforms.LambertWTailTransform",
    "LinearGaussianStateSpaceModel": "GaussianHMM, with matrices for each step or one for all",
    "PixelCNN": "a network of probtorch.nn whose output are the logits of a Categorical",
    "ScaleMatvecLU": "transforms.generalized_channel_permute",
    "Simulator": "a function, given to probtorch.infer.ABCSMC",
    "VariationalGaussianProcess": "a model with MultivariateNormal values at inducing points, "
    "and a guide for them",
    "R2D2": "effects.R2D2M2CP, which makes the coefficients of a regression",
    "WishartBartlett": "WishartCholesky(df, scale_matrix), whose draws are by Bartlett's factors",
    "multi_gp": "MatrixNormal, or a MultivariateNormal for each row",
    "multi_normal_prec": "MultivariateNormal(loc, precision_matrix=precision)",
    "gaussian_dlm_obs": "GaussianHMM(...).log_prob(y)",
    "discrete_range": "DiscreteUniform(low, high)",
    "LKJCorr": "LKJ(dim, concentration)",
    "LKJCholeskyCov": "scales[..., None] * L with L ~ LKJCholesky(dim, concentration)",
}

DISTRIBUTIONS = {name: f"write it as {written}" for name, written in (RECIPES | NOTES).items()}
DISTRIBUTIONS[""] = f"state its density: {_FACTOR}; what there is: dir(probtorch.distributions)"

# Of the rooms inside: what other libraries call transforms and constraints.
TRANSFORMS = {
    "BlockNeuralAutoregressiveTransform": "block_autoregressive(input_dim)",
    "InverseAutoregressiveTransform": "affine_autoregressive(input_dim)",
    "MaskedAutoregressiveFlow": "affine_autoregressive(input_dim).inv",
    "IAF": "affine_autoregressive(input_dim)",
    "BNAF": "block_autoregressive(input_dim)",
    "RealNVP": "affine_coupling(input_dim)",
    "RationalQuadraticSpline": "spline(input_dim)",
    "FFJORD": "continuous_flow(input_dim)",
    "Glow": "generalized_channel_permute and affine_coupling, composed",
    "ScaleMatvecLU": "generalized_channel_permute(channels)",
    "NormalCDF": "CumulativeDistributionTransform(Normal(0.0, 1.0))",
    "UnpackTransform": "a function: models, kernels and guides take trees of tensors as they are",
    "Restructure": "a function: models, kernels and guides take trees of tensors as they are",
    "JointMap": "a transform for each site: kernels and guides take trees of sites as they are",
}
CONSTRAINTS = {
    "sum_to_zero": "zero_sum(event_dim)",
    "sum_to_zero_vector": "zero_sum(1)",
    "sum_to_zero_matrix": "zero_sum(2)",
    "cov_matrix": "positive_definite",
    "covariance_matrix": "positive_definite",
    "unit_vector": "sphere",
    "stochastic_row_matrix": "row_stochastic_matrix",
    "stochastic_column_matrix": "column_stochastic_matrix",
    "offset": "offset_multiplier(offset, multiplier)",
    "multiplier": "offset_multiplier(offset, multiplier)",
    "corr_cholesky_constraint": "corr_cholesky",
    "MixtureSameFamilyConstraint": "the support of the mixture: mixture.support",
}
