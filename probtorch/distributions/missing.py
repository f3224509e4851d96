"""Distributions that other libraries have and this one has not, and how to write them.

`missing` makes the error for a name that `probtorch.distributions` does not have: the close name
that was meant, or an equivalent in terms of what there is. Recipes are Python expressions over
the distribution's parameters (and `y`, where a density is stated by `factor`); tests evaluate them
and compare their densities with SciPy's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from probtorch.core.absent import asked_by_import
from probtorch.core.signatures import closest
from probtorch.errors import UnknownImportError, UnknownNameError

__all__ = ["CONSTRAINTS", "NOTES", "RECIPES", "TRANSFORMS", "missing", "missing_inside"]

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


def missing_inside(
    room: str, name: str, known: list[str], notes: Mapping[str, str]
) -> UnknownNameError | UnknownImportError:
    """Return the error for a name that a room inside does not have; it is raised by the room.

    Parameters
    ----------
    room : str
        Name of the module.
    name : str
    known : list of str
        The names that are there.
    notes : dict of str to str
        What to write, by names of other libraries.

    Returns
    -------
    UnknownNameError, or UnknownImportError where a ``from ... import`` asks
    """
    near = closest(name, known)
    written = notes.get(name)
    fix = f"did you mean {near}?" if near else f"what there is: dir({room})"
    cls = UnknownImportError if asked_by_import(sys._getframe(2)) else UnknownNameError
    return cls(
        f"module {room!r} has no attribute {name!r}",
        expected="a name of this module",
        got=repr(name),
        fix=f"write it as {written}" if written else fix,
    )


def missing(name: str, known: list[str]) -> UnknownNameError | UnknownImportError:
    """Return the error for a distribution that is not there; it is raised by the module.

    Parameters
    ----------
    name : str
    known : sequence of str
        The names that are there.

    Returns
    -------
    UnknownNameError, or UnknownImportError where a ``from ... import`` asks
    """
    close = closest(name, [*known, *RECIPES, *NOTES])
    if name not in RECIPES and name not in NOTES and close in known:
        fix = f"did you mean {close}?"
    else:
        wanted = name if name in RECIPES or name in NOTES else close or name
        written = RECIPES.get(wanted) or NOTES.get(wanted)
        fix = (
            f"write {'it' if wanted == name else wanted} as {written}"
            if written
            else f"state its density: {_FACTOR}; what there is: dir(probtorch.distributions)"
        )
    cls = UnknownImportError if asked_by_import(sys._getframe(2)) else UnknownNameError
    return cls(
        f"module 'probtorch.distributions' has no attribute {name!r}",
        expected="a distribution of this module",
        got=repr(name),
        fix=fix,
    )
