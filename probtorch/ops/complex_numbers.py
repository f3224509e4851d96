"""Complex numbers: their parts, conjugates, sizes and angles, and complex forms of other ops.

A backward pass carries conjugated cotangents (autograd/tape.py): with these every op that is
holomorphic, or linear, has the derivative that it has for real numbers, and states nothing. What is
not holomorphic is made here of few ops that are linear in the real sense and state their adjoints
in the pairing Re(g dz): `real`, `imag`, `view_as_real`, `view_as_complex`, and the conjugate. So
``abs(z)`` is the length of (Re z, Im z), with the derivatives of `hypot`.

``complex=`` on an op's declaration says that it takes complex numbers as it stands; forms made of
others are given to their ops at the end of this file. Others refuse them.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, wrap
from probtorch.core.making import as_tensor
from probtorch.core.op import Attrs, Op
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DTypeError, ShapeError
from probtorch.ops.arithmetic import abs, reciprocal, sign, where
from probtorch.ops.comparisons import eq, isnan, lt
from probtorch.ops.exponentials import exp, expm1, log1p, sigmoid
from probtorch.ops.families import Unary, elementwise, linear
from probtorch.ops.movement import stack
from probtorch.ops.trigonometry import atan2, cos, hypot, sin

__all__ = [
    "angle",
    "complex",
    "conj",
    "conj_physical",
    "imag",
    "is_conj",
    "is_neg",
    "isreal",
    "polar",
    "real",
    "resolve_conj",
    "resolve_neg",
    "sgn",
    "view_as_complex",
    "view_as_real",
]

_COMPLEX = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}
_REAL = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}


def _of_complex(op: Op) -> Op:
    """Return `op`, which the tests try on complex numbers alone."""
    op.extra["of_complex"] = True
    return op


def _samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray], Attrs]]:
    def z(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    return [((z(2, 3),), {}), ((z(),), {}), ((z(2, 0),), {})]


def _pairs(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray], Attrs]]:
    return [((rng.standard_normal(shape),), {}) for shape in ((3, 2), (2,), (2, 0, 2))]


# -------------------------------------------------------------------------------------------- parts

conj_physical: Unary = elementwise(
    "conj_physical",
    formula=lambda s, x: x,
    partials=(lambda g: conj_physical(g),),
    domain=("real",),
    # Of booleans NumPy's are small integers.
    eager=lambda x: x.copy() if x.dtype.kind == "b" else np.conjugate(x),
    reference=np.conjugate,
    complex=True,
    doc="Complex conjugate, in new memory.",
)

_PART = _of_complex(
    linear(
        "real",
        "movement",
        run=lambda x: x.real,
        transpose=lambda g, x: cast(g, x.array.dtype),
        core="()->()",
        samples=_samples,
        reference=np.real,
        view=True,
        doc="Real part.",
    )
)
_IMAGINARY = _of_complex(
    linear(
        "imag",
        "movement",
        run=lambda x: x.imag,
        # d Im z = Re(-i dz).
        transpose=lambda g, x: complex(_zeros(g), -g),
        core="()->()",
        samples=_samples,
        reference=np.imag,
        view=True,
        doc="Imaginary part.",
    )
)


def _run_pairs(x: np.ndarray) -> np.ndarray:
    return x[..., None].view(_REAL[x.dtype])


def _run_numbers(x: np.ndarray) -> np.ndarray:
    if x.strides[-1] != x.itemsize:
        x = namespace(x).ascontiguousarray(x)
    return x.view(_COMPLEX[x.dtype])[..., 0]


_PAIRS = _of_complex(
    linear(
        "view_as_real",
        "movement",
        run=_run_pairs,
        transpose=lambda g, x: conj_physical(apply(_NUMBERS, (g,))),
        core="()->(k)",
        samples=_samples,
        reference=lambda x: np.stack([x.real, x.imag], -1),
        view=True,
        doc="Real and imaginary parts along one more dim.",
    )
)
_NUMBERS = _of_complex(
    linear(
        "view_as_complex",
        "movement",
        run=_run_numbers,
        transpose=lambda g, x: apply(_PAIRS, (conj_physical(g),)),
        core="(k)->()",
        samples=_pairs,
        reference=lambda x: x[..., 0] + 1j * x[..., 1],
        view=True,
        doc="Complex numbers of the two elements of the last dim.",
    )
)


def _zeros(x: TensorBase) -> TensorBase:
    return wrap(namespace(x.array).zeros_like(x.array))


def _is_complex(x: TensorBase) -> bool:
    return x.array.dtype.kind == "c"


def _not_complex(op: str, x: TensorBase) -> DTypeError:
    return DTypeError(
        op,
        expected="complex numbers",
        got=str(x.array.dtype),
        fix="real numbers have no imaginary part; probtorch.complex(re, im) makes complex ones",
    )


def real(x: TensorLike) -> TensorBase:
    """Return the real part, a view; of real numbers the tensor itself."""
    x = as_tensor(x, "real")
    return apply(_PART, (x,)) if _is_complex(x) else x


def imag(x: TensorLike) -> TensorBase:
    """Return the imaginary part, a view.

    Raises
    ------
    DTypeError
        If the numbers are real.
    """
    x = as_tensor(x, "imag")
    if not _is_complex(x):
        raise _not_complex("imag", x)
    return apply(_IMAGINARY, (x,))


def view_as_real(x: TensorLike) -> TensorBase:
    """Return real and imaginary parts in one more dim at the end, of size 2; a view.

    Raises
    ------
    DTypeError
        If the numbers are real.
    """
    x = as_tensor(x, "view_as_real")
    if not _is_complex(x):
        raise _not_complex("view_as_real", x)
    return apply(_PAIRS, (x,))


def view_as_complex(x: TensorLike) -> TensorBase:
    """Return complex numbers of real and imaginary parts that lie in the last dim, of size 2.

    A view, or a copy where the pairs do not lie side by side in memory.

    Raises
    ------
    DTypeError
        If the dtype is not float32 or float64.
    ShapeError
        If the last dim is not of size 2.
    """
    x = as_tensor(x, "view_as_complex")
    if x.array.dtype not in _COMPLEX:
        raise DTypeError(
            "view_as_complex",
            expected="float32 or float64",
            got=str(x.array.dtype),
            fix="cast with .float() or .double() first",
        )
    if not x.array.ndim or x.array.shape[-1] != 2:
        raise ShapeError(
            "view_as_complex",
            expected="a last dim of size 2, real and imaginary part",
            got=f"shape {x.array.shape}",
            fix="probtorch.complex(re, im) takes them as two tensors",
        )
    return apply(_NUMBERS, (x,))


@takes_out
def complex(real: TensorLike, imag: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return real + i imag, of tensors of one float dtype that broadcast together.

    Raises
    ------
    DTypeError
        If they are not both float32 or both float64.
    """
    re, im = _two_floats("complex", real, imag)
    re, im = re + _zeros(im), im + _zeros(re)
    return apply(_NUMBERS, (stack((re, im), -1),))


def _two_floats(op: str, x: TensorLike, y: TensorLike) -> tuple[TensorBase, TensorBase]:
    x, y = as_tensor(x, op), as_tensor(y, op)
    if x.array.dtype != y.array.dtype or x.array.dtype not in _COMPLEX:
        raise DTypeError(
            op,
            expected="two tensors of float32, or two of float64",
            got=f"{x.array.dtype} and {y.array.dtype}",
            fix="cast with .float() or .double() first",
        )
    return x, y


@takes_out
def polar(abs: TensorLike, angle: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the complex numbers of a size and an angle in radians, of one float dtype."""
    size, angle = _two_floats("polar", abs, angle)
    return complex(size * cos(angle), size * sin(angle))


# --------------------------------------------------------------------------------------- conjugates


def conj(x: TensorLike) -> TensorBase:
    """Return the complex conjugate, in new memory; of real numbers the tensor itself."""
    x = as_tensor(x, "conj")
    return conj_physical(x) if _is_complex(x) else x


def resolve_conj(x: TensorLike) -> TensorBase:
    """Return the tensor: conjugates are computed at once."""
    return as_tensor(x, "resolve_conj")


def resolve_neg(x: TensorLike) -> TensorBase:
    """Return the tensor: negatives are computed at once."""
    return as_tensor(x, "resolve_neg")


def is_conj(x: TensorLike) -> bool:
    """Return whether a conjugate is still to be computed: never."""
    as_tensor(x, "is_conj")
    return False


def is_neg(x: TensorLike) -> bool:
    """Return whether a negative is still to be computed: never."""
    as_tensor(x, "is_neg")
    return False


# ----------------------------------------------------------------------------------- sizes, angles


@takes_out
def angle(x: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the angle of complex numbers in radians, with derivative 0 at 0.

    Of real numbers it is 0 or, below 0, pi.
    """
    x = as_tensor(x, "angle")
    if _is_complex(x):
        return atan2(imag(x), real(x))
    x = to_float(x)
    flat = x * 0.0 if x.requires_grad else _zeros(x)
    return where(isnan(x), x, where(lt(x, 0.0), flat + math.pi, flat))


@takes_out
def sgn(x: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return z / |z|, and 0 where z is 0; of real numbers the sign: -1, 0 or 1."""
    x = as_tensor(x, "sgn")
    if not _is_complex(x):
        return sign(x)
    size = abs(x)
    flat = eq(size, 0.0)
    return where(flat, 0.0, x / where(flat, 1.0, size))


def isreal(x: TensorLike) -> TensorBase:
    """Return where the imaginary part is 0: everywhere in real numbers."""
    x = as_tensor(x, "isreal")
    if _is_complex(x):
        return eq(imag(x), 0.0)
    return wrap(namespace(x.array).ones(x.array.shape, dtypes.bool_))


# ---------------------------------------------------------------------------- forms of other ops


def _expm1(z: TensorBase) -> TensorBase:
    # exp(x) cos(y) - 1, without the difference of what is close to 1.
    x, y = real(z), imag(z)
    half = sin(y * 0.5)
    return complex(expm1(x) * cos(y) - half * half * 2.0, exp(x) * sin(y))


def _log1p(z: TensorBase) -> TensorBase:
    # log |1 + z| of |1 + z|^2 - 1.
    x, y = real(z), imag(z)
    return complex(log1p(x * (x + 2.0) + y * y) * 0.5, atan2(y, x + 1.0))


FORMS = {
    abs: lambda z: hypot(real(z), imag(z)),
    expm1: _expm1,
    log1p: _log1p,
    sigmoid: lambda z: reciprocal(exp(-z) + 1.0),
}
for _function, _form in FORMS.items():
    _function.op.complex = _form
