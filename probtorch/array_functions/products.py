"""Products of arrays, and NumPy's linear algebra."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    ours,
    tensor_of,
    whole,
)
from probtorch.array_functions.reductions import reduced
from probtorch.ops import (
    arithmetic,
    cholesky_factors,
    contraction,
    determinants,
    diagonals,
    linalg,
    movement,
    products,
    pseudoinverses,
    reduction,
    spectral,
)

__all__ = ["PRODUCTS"]


def _dot(a, b, out=None):
    absent({"out": out})
    a, b = tensor_of(a), tensor_of(b)
    if not a.array.ndim or not b.array.ndim:
        return arithmetic.mul(a, b)
    if b.array.ndim == 1:
        return contraction.matmul(a, b)
    if a.array.ndim <= 2 and b.array.ndim == 2:
        return contraction.matmul(a, b)
    return contraction.tensordot(a, b, ([a.array.ndim - 1], [b.array.ndim - 2]))


def _trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    absent({"dtype": dtype, "out": out})
    return reduction.sum(diagonals.diagonal(tensor_of(a), offset, axis1, axis2), -1)


def _norm(x, ord=None, axis=None, keepdims=False):
    x = tensor_of(x)
    if ord is not None or not (axis is None or isinstance(axis, int)):
        raise UnknownArgument("ord")
    if axis is None:
        axis = tuple(range(x.array.ndim))
    return arithmetic.sqrt(reduced(reduction.sum, arithmetic.square(x), axis, keepdims))


def _tensordot(a, b, axes=2):
    return contraction.tensordot(tensor_of(a), tensor_of(b), axes)


def _einsum(subscripts, *operands, **kwargs):
    absent({k: v for k, v in kwargs.items() if k != "optimize"})
    if not isinstance(subscripts, str):
        raise UnknownArgument("subscripts")
    return contraction.einsum(subscripts, *map(tensor_of, operands))


def _cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    a, b = tensor_of(a), tensor_of(b)
    if axis is None and not axisa == axisb == axisc == -1:
        raise UnknownArgument("axisa")
    if a.array.shape[-1] != 3 or b.array.shape[-1] != 3:
        raise UnknownArgument("b")
    return products.cross(a, b, -1 if axis is None else axis)


def _vecdot(x1, x2, /, *, axis=-1):
    return products.vecdot(tensor_of(x1), tensor_of(x2), dim=axis)


def _matrix_power(a, n):
    return linalg.matrix_power(tensor_of(a), whole(n, "n"))


def _svd(a, full_matrices=True, compute_uv=True, hermitian=False):
    if not compute_uv:
        return spectral.svdvals(tensor_of(a))
    a = tensor_of(a)
    if full_matrices and a.array.shape[-1] != a.array.shape[-2]:
        raise UnknownArgument("full_matrices")
    return spectral.svd(a, False)


def _pinv(a, rcond=None, hermitian=False, *, rtol=None):
    absent({"rcond": rcond, "rtol": rtol})
    return pseudoinverses.pinv(tensor_of(a), hermitian=hermitian)


def _lstsq(a, b, rcond=None):
    absent({"rcond": rcond})
    a, b = tensor_of(a), tensor_of(b)
    if b.array.ndim == 1:
        return tuple(
            x[..., 0] if i == 0 else x for i, x in enumerate(products.lstsq(a, b[:, None]))
        )
    return tuple(products.lstsq(a, b))


def _vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    return _norm(x, None if ord == 2 else ord, axis, keepdims)


PRODUCTS = {
    np.dot: _dot,
    np.inner: ours(contraction.inner),
    np.outer: lambda a, b, out=None: contraction.outer(flat(a), flat(b)),
    np.vdot: lambda a, b: contraction.dot(flat(a), flat(b)),
    np.tensordot: _tensordot,
    np.einsum: _einsum,
    np.kron: ours(products.kron),
    np.cross: _cross,
    np.trace: _trace,
    np.linalg.norm: _norm,
    np.linalg.cholesky: ours(cholesky_factors.cholesky, 1),
    np.linalg.inv: ours(linalg.inv, 1),
    np.linalg.pinv: _pinv,
    np.linalg.solve: ours(linalg.solve),
    np.linalg.lstsq: _lstsq,
    np.linalg.det: ours(determinants.det, 1),
    np.linalg.slogdet: lambda a: determinants.slogdet(tensor_of(a)),
    np.linalg.eigh: lambda a, UPLO="L": spectral.eigh(tensor_of(a), UPLO),
    np.linalg.eigvalsh: lambda a, UPLO="L": spectral.eigvalsh(tensor_of(a), UPLO),
    np.linalg.svd: _svd,
    np.linalg.matrix_power: _matrix_power,
    np.linalg.multi_dot: lambda arrays, *, out=None: products.multi_dot(
        [tensor_of(x) for x in arrays]
    ),
}
# Names of newer releases.
for _name, _entry in {
    "cross": lambda x1, x2, /, *, axis=-1: _cross(x1, x2, axis=axis),
    "diagonal": lambda x, /, *, offset=0: diagonals.diagonal(tensor_of(x), offset, -2, -1),
    "matmul": lambda x1, x2, /: contraction.matmul(tensor_of(x1), tensor_of(x2)),
    "matrix_transpose": lambda x, /: movement.swapaxes(tensor_of(x), -1, -2),
    "outer": lambda x1, x2, /: contraction.outer(tensor_of(x1), tensor_of(x2)),
    "svdvals": lambda x, /: spectral.svdvals(tensor_of(x)),
    "tensordot": lambda x1, x2, /, *, axes=2: _tensordot(x1, x2, axes),
    "trace": lambda x, /, *, offset=0, dtype=None: _trace(x, offset, -2, -1, dtype),
    "vecdot": _vecdot,
    "vector_norm": _vector_norm,
}.items():
    if hasattr(np.linalg, _name):
        PRODUCTS[getattr(np.linalg, _name)] = _entry
