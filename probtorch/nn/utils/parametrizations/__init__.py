"""Parametrizations to register: weights that are orthogonal, normed, symmetric, of low rank.

`norms` and `orthogonal` have PyTorch's, with their names in a `state_dict`. `manifolds` has others,
whose originals are the free coordinates and nothing else: those of symmetric, positive definite and
orthonormal matrices are bijections with a log-determinant, so that such a weight can carry a prior;
see `nn.utils.parametrize.log_abs_det_jacobian`.
"""

from probtorch.nn.utils.parametrizations.manifolds import (
    LowRankWeight,
    PositiveDefiniteWeight,
    StiefelWeight,
    SymmetricWeight,
    low_rank,
    positive_definite,
    stiefel,
    symmetric,
)
from probtorch.nn.utils.parametrizations.norms import spectral_norm, weight_norm
from probtorch.nn.utils.parametrizations.orthogonal import orthogonal

__all__ = [
    "LowRankWeight",
    "PositiveDefiniteWeight",
    "StiefelWeight",
    "SymmetricWeight",
    "low_rank",
    "orthogonal",
    "positive_definite",
    "spectral_norm",
    "stiefel",
    "symmetric",
    "weight_norm",
]
