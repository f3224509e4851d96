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
from probtorch.ops.pieces import stack
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


def real(input: TensorLike) -> TensorBase:
    """Return the real part, a view; of real numbers the tensor itself."""
    input = as_tensor(input, "real")
    return apply(_PART, (input,)) if _is_complex(input) else input


def imag(input: TensorLike) -> TensorBase:
    """Return the imaginary part, a view.

    Raises
    ------
    DTypeError
        If the numbers are real.
    """
    input = as_tensor(input, "imag")
    if not _is_complex(input):
        raise _not_complex("imag", input)
    return apply(_IMAGINARY, (input,))


def view_as_real(input: TensorLike) -> TensorBase:
    """Return real and imaginary parts in one more dim at the end, of size 2; a view.

    Raises
    ------
    DTypeError
        If the numbers are real.
    """
    input = as_tensor(input, "view_as_real")
    if not _is_complex(input):
        raise _not_complex("view_as_real", input)
    return apply(_PAIRS, (input,))


def view_as_complex(input: TensorLike) -> TensorBase:
    """Return complex numbers of real and imaginary parts that lie in the last dim, of size 2.

    A view, or a copy where the pairs do not lie side by side in memory.

    Raises
    ------
    DTypeError
        If the dtype is not float32 or float64.
    ShapeError
        If the last dim is not of size 2.
    """
    input = as_tensor(input, "view_as_complex")
    if input.array.dtype not in _COMPLEX:
        raise DTypeError(
            "view_as_complex",
            expected="float32 or float64",
            got=str(input.array.dtype),
            fix="cast with .float() or .double() first",
        )
    if not input.array.ndim or input.array.shape[-1] != 2:
        raise ShapeError(
            "view_as_complex",
            expected="a last dim of size 2, real and imaginary part",
            got=f"shape {input.array.shape}",
            fix="probtorch.complex(re, im) takes them as two tensors",
        )
    return apply(_NUMBERS, (input,))


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


def conj(input: TensorLike) -> TensorBase:
    """Return the complex conjugate, in new memory; of real numbers the tensor itself."""
    input = as_tensor(input, "conj")
    return conj_physical(input) if _is_complex(input) else input


def resolve_conj(input: TensorLike) -> TensorBase:
    """Return the tensor: conjugates are computed at once."""
    return as_tensor(input, "resolve_conj")


def resolve_neg(input: TensorLike) -> TensorBase:
    """Return the tensor: negatives are computed at once."""
    return as_tensor(input, "resolve_neg")


def is_conj(input: TensorLike) -> bool:
    """Return whether a conjugate is still to be computed: never."""
    as_tensor(input, "is_conj")
    return False


def is_neg(x: TensorLike) -> bool:
    """Return whether a negative is still to be computed: never."""
    as_tensor(x, "is_neg")
    return False


# ----------------------------------------------------------------------------------- sizes, angles


@takes_out
def angle(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return the angle of complex numbers in radians, with derivative 0 at 0.

    Of real numbers it is 0 or, below 0, pi.
    """
    input = as_tensor(input, "angle")
    if _is_complex(input):
        return atan2(imag(input), real(input))
    input = to_float(input)
    flat = input * 0.0 if input.requires_grad else _zeros(input)
    return where(isnan(input), input, where(lt(input, 0.0), flat + math.pi, flat))


@takes_out
def sgn(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return z / |z|, and 0 where z is 0; of real numbers the sign: -1, 0 or 1."""
    input = as_tensor(input, "sgn")
    if not _is_complex(input):
        return sign(input)
    size = abs(input)
    flat = eq(size, 0.0)
    return where(flat, 0.0, input / where(flat, 1.0, size))


def isreal(input: TensorLike) -> TensorBase:
    """Return where the imaginary part is 0: everywhere in real numbers."""
    input = as_tensor(input, "isreal")
    if _is_complex(input):
        return eq(imag(input), 0.0)
    return wrap(namespace(input.array).ones(input.array.shape, dtypes.bool_))


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
