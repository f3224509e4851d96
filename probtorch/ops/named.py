"""Results with names: tuples of tensors whose parts can also be asked for by PyTorch's names.

They unpack and index as tuples do, and trees (compiled functions, vmap, saved files) take them as
tuples.
"""

from typing import NamedTuple

from probtorch.core.tensor_base import TensorBase

__all__ = [
    "Eig",
    "Eigh",
    "Qr",
    "Slogdet",
    "Svd",
    "ValuesIndices",
]


class ValuesIndices(NamedTuple):
    """Elements along a dim, and where they were."""

    values: TensorBase
    indices: TensorBase


class Slogdet(NamedTuple):
    """Sign of a determinant, and the natural logarithm of its absolute value."""

    sign: TensorBase
    logabsdet: TensorBase


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and the vectors in columns."""

    eigenvalues: TensorBase
    eigenvectors: TensorBase


class Eig(NamedTuple):
    """Complex eigenvalues in no order, and the vectors in columns."""

    eigenvalues: TensorBase
    eigenvectors: TensorBase


class Qr(NamedTuple):
    """Orthonormal columns and an upper triangle."""

    Q: TensorBase
    R: TensorBase


class Svd(NamedTuple):
    """Left vectors in columns, singular values, right vectors in rows."""

    U: TensorBase
    S: TensorBase
    Vh: TensorBase
