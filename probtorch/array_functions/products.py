"""Products of arrays, and NumPy's linear algebra."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    is_given,
    one_axis,
    ours,
    tensor_of,
    whole,
)
from probtorch.core.casting import cast
from probtorch.core.shape import normalize_dims
from probtorch.errors import ShapeError
from probtorch.ops import (
    arithmetic,
    cholesky_factors,
    complex_numbers,
    contraction,
    determinants,
    diagonals,
    linalg,
    movement,
    norms,
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


def _outer(a, b, out=None):
    absent({"out": out})
    return contraction.outer(flat(a), flat(b))


def _trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    absent({"out": out})
    x = tensor_of(a)
    axes = one_axis(axis1, x, "trace"), one_axis(axis2, x, "trace")
    lines = diagonals.diagonal(x, whole(offset, "offset"), *axes)
    return reduction.sum(lines, -1, dtype=None if dtype is None else np.dtype(dtype))


def _vdot(a, b):
    a, b = flat(a), flat(b)
    return contraction.dot(complex_numbers.conj(a), b)


def _norm(x, ord=None, axis=None, keepdims=False):
    x = tensor_of(x)
    ndim = x.array.ndim
    if axis is None:
        if ord is None:
            return norms.norm(x, 2, None, keepdims)
        axis = tuple(range(ndim))
    axes = tuple(one_axis(i, x, "norm") for i in (axis if isinstance(axis, tuple) else (axis,)))
    words = isinstance(ord, str)
    if ndim == 0 or len(axes) not in (1, 2) or len({*axes}) < len(axes):
        raise UnknownArgument("axis")  # NumPy has the words for it
    if len(axes) == 1:
        if words:
            raise UnknownArgument("ord")
        return norms.norm(x, 2 if ord is None else ord, axes, keepdims)
    if ord not in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        raise UnknownArgument("ord")
    lines = movement.movedim(x, axes, (-2, -1))
    found = norms.matrix_norm(lines, "fro" if ord is None else ord)
    shape = [1 if d in axes else s for d, s in enumerate(x.array.shape)]
    return movement.reshape(found, shape) if keepdims else found


def _tensordot(a, b, axes=2):
    return contraction.tensordot(tensor_of(a), tensor_of(b), axes)


def _as_booleans(found, operands):
    """Booleans of booleans: whether any of the products that are added up is true."""
    kinds = {x.array.dtype.kind for x in operands}
    return cast(found, np.dtype(bool)) if kinds == {"b"} else found


def _einsum(subscripts, *operands, **kwargs):
    absent({k: v for k, v in kwargs.items() if k != "optimize"})
    if not isinstance(subscripts, str):
        raise UnknownArgument("subscripts")
    items = [tensor_of(x) for x in operands]
    return _as_booleans(contraction.einsum(subscripts, *items), items)


def _cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    a, b = tensor_of(a), tensor_of(b)
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    a = movement.movedim(a, one_axis(axisa, a, "cross"), -1)
    b = movement.movedim(b, one_axis(axisb, b, "cross"), -1)
    if a.array.shape[-1:] != (3,) or b.array.shape[-1:] != (3,):
        raise UnknownArgument("b")
    found = products.linalg_cross(a, b)
    return movement.movedim(found, -1, one_axis(axisc, found, "cross"))


def _vecdot(x1, x2, /, *, axis=-1):
    a, b = tensor_of(x1), tensor_of(x2)
    if not a.array.ndim or not b.array.ndim:
        raise UnknownArgument("x1")  # NumPy has the words for it
    # Of each operand the axis is counted by itself.
    a, b = (movement.movedim(x, one_axis(axis, x, "vecdot"), -1) for x in (a, b))
    if a.array.shape[-1] != b.array.shape[-1]:
        raise ShapeError(
            "vecdot",
            expected="vectors of one length",
            got=f"shapes {tuple(a.array.shape)} and {tuple(b.array.shape)}",
            fix="check the axis",
        )
    return _as_booleans(products.vecdot(a, b), (a, b))


def _flat_outer(x1, x2, /):
    a, b = tensor_of(x1), tensor_of(x2)
    if not a.array.ndim == b.array.ndim == 1:
        raise UnknownArgument("x1")  # NumPy has the words for it
    return contraction.outer(a, b)


def _linalg_cross(x1, x2, /, *, axis=-1):
    if axis is None:
        raise UnknownArgument("axis")  # what it means is the release's to say
    return _cross(x1, x2, axis, axis, axis)


def _matrix_power(a, n):
    return linalg.matrix_power(tensor_of(a), whole(n, "n"))


def _of_triangle(a, upper=False):
    """The Hermitian matrix of which NumPy reads one triangle."""
    x = tensor_of(a)
    if x.array.ndim < 2:
        return x  # refused by whoever gets it
    part = diagonals.triu(x, 1) if upper else diagonals.tril(x, -1)
    other = movement.swapaxes(complex_numbers.conj(part), -1, -2)
    middle = diagonals.triu(diagonals.tril(x))
    return part + other + (complex_numbers.real(middle) if x.array.dtype.kind == "c" else middle)


def _cholesky(a, /, *, upper=False):
    return cholesky_factors.cholesky(_of_triangle(a, upper), upper=bool(upper))


def _svd(a, full_matrices=True, compute_uv=True, hermitian=False):
    a = _of_triangle(a) if hermitian else tensor_of(a)
    if not compute_uv:
        return spectral.svdvals(a)
    return spectral.svd(a, full_matrices)


def _only_rounding(rcond):
    """Whether a share leaves away only what rounding made: else the slope would not be right."""
    return rcond is None or (isinstance(rcond, (int, float)) and rcond <= 1e-7)


def _pinv(a, rcond=None, hermitian=False, *, rtol=np._NoValue):
    if is_given(rtol):
        if rcond is not None:
            raise UnknownArgument("rtol")
        rcond = rtol
    elif rtol is None:
        rcond = None
    if not _only_rounding(rcond):
        raise UnknownArgument("rcond")
    x = _of_triangle(a) if hermitian else tensor_of(a)
    share = rcond
    if rcond is None and rtol is np._NoValue:
        # NumPy's share does not grow with the matrix unless rtol=None asks for that.
        share = 1e-15
    return pseudoinverses.pinv(x, hermitian=bool(hermitian), rtol=share)


def _lstsq(a, b, rcond=None):
    a, b = tensor_of(a), tensor_of(b)
    if rcond is not None:
        if not _only_rounding(rcond):
            raise UnknownArgument("rcond")
        least = float(np.finfo(np.result_type(a.array.dtype, np.float32)).eps)
        rcond = least if rcond < 0 else rcond
    if b.array.ndim == 1:
        found = products.lstsq(a, b[:, None], rcond)
        return tuple(x[..., 0] if i == 0 else x for i, x in enumerate(found))
    return tuple(products.lstsq(a, b, rcond))


def _multi_dot(arrays, *, out=None):
    absent({"out": out})
    return products.multi_dot([tensor_of(x) for x in arrays])


def _vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    if isinstance(ord, str):
        raise UnknownArgument("ord")
    x = tensor_of(x)
    dims = normalize_dims(axis, x.array.ndim, "vector_norm")
    if dims or not x.array.ndim:
        return norms.norm(x, ord, dims, keepdims)
    return norms.norm(x[None], ord, 0)


PRODUCTS = {
    np.dot: _dot,
    np.inner: ours(contraction.inner),
    np.outer: _outer,
    np.vdot: _vdot,
    np.tensordot: _tensordot,
    np.einsum: _einsum,
    np.kron: ours(products.kron),
    np.cross: _cross,
    np.trace: _trace,
    np.linalg.norm: _norm,
    np.linalg.cholesky: _cholesky,
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
    np.linalg.multi_dot: _multi_dot,
}
# Names of newer releases.
for _name, _entry in {
    "cross": _linalg_cross,
    "diagonal": lambda x, /, *, offset=0: diagonals.diagonal(tensor_of(x), offset, -2, -1),
    "matmul": lambda x1, x2, /: contraction.matmul(tensor_of(x1), tensor_of(x2)),
    "matrix_transpose": lambda x, /: movement.swapaxes(tensor_of(x), -1, -2),
    "outer": _flat_outer,
    "svdvals": lambda x, /: spectral.svdvals(tensor_of(x)),
    "tensordot": lambda x1, x2, /, *, axes=2: _tensordot(x1, x2, axes),
    "trace": lambda x, /, *, offset=0, dtype=None: _trace(x, offset, -2, -1, dtype),
    "vecdot": _vecdot,
    "vector_norm": _vector_norm,
}.items():
    if hasattr(np.linalg, _name):
        PRODUCTS[getattr(np.linalg, _name)] = _entry
