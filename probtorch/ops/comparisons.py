"""Elementwise ops: comparisons, predicates, logic, and bits of integers. None has a derivative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DTypeError
from probtorch.ops.families import Binary, Unary, elementwise


def _comparison(
    name: str, ufunc: np.ufunc, formula: Callable[..., object], doc: str, complex: bool = False
) -> Binary:
    return elementwise(
        name,
        formula=formula,
        partials=(None, None),
        domain=("real", "real"),
        eager=ufunc,
        reference=ufunc,
        result="bool",
        complex=complex,
        doc=doc,
    )


eq: Binary = _comparison("eq", np.equal, lambda s, x, y: x == y, "x == y, elementwise.", True)

ne: Binary = _comparison("ne", np.not_equal, lambda s, x, y: x != y, "x != y, elementwise.", True)

lt: Binary = _comparison("lt", np.less, lambda s, x, y: x < y, "x < y, elementwise.")

le: Binary = _comparison("le", np.less_equal, lambda s, x, y: x <= y, "x <= y, elementwise.")

gt: Binary = _comparison("gt", np.greater, lambda s, x, y: x > y, "x > y, elementwise.")

ge: Binary = _comparison("ge", np.greater_equal, lambda s, x, y: x >= y, "x >= y, elementwise.")


def equal_to(input: TensorBase, other: object) -> TensorBase:
    """``input == other``, elementwise; False where `other` is None, a text or another object."""
    try:
        return eq(input, other)  # type: ignore[arg-type]
    except DTypeError:
        if _has_elements(other):
            raise
        return NotImplemented


def different_from(input: TensorBase, other: object) -> TensorBase:
    """``input != other``, elementwise; True where `other` is None, a text or another object."""
    try:
        return ne(input, other)  # type: ignore[arg-type]
    except DTypeError:
        if _has_elements(other):
            raise
        return NotImplemented


def _has_elements(other: object) -> bool:
    if isinstance(other, (list, tuple, np.ndarray, np.generic, TensorBase)):
        return True
    return any(hasattr(other, name) for name in ("__array__", "__cuda_array_interface__"))


def _predicate(
    name: str, ufunc: np.ufunc, formula: Callable[..., object], doc: str, domain: str = "real"
) -> Unary:
    return elementwise(
        name,
        formula=formula,
        partials=(None,),
        domain=(domain,),
        eager=ufunc,
        reference=ufunc,
        result="bool",
        # Sign bits aside, what is asked of one real number has an answer for two.
        complex=name != "signbit",
        doc=doc,
    )


def _connective(name: str, ufunc: np.ufunc, formula: Callable[..., object], doc: str) -> Binary:
    return elementwise(
        name,
        formula=formula,
        partials=(None, None),
        domain=("boolean", "boolean"),
        eager=ufunc,
        reference=ufunc,
        result="bool",
        complex=True,
        doc=doc,
    )


isnan: Unary = _predicate("isnan", np.isnan, lambda s, x: s.isnan(x), "Whether x is nan.")

isinf: Unary = _predicate(
    "isinf", np.isinf, lambda s, x: s.isinf(x), "Whether x is plus or minus infinity."
)

isfinite: Unary = _predicate(
    "isfinite",
    np.isfinite,
    lambda s, x: s.logical_not(s.logical_or(s.isnan(x), s.isinf(x))),
    "Whether x is finite.",
)

signbit: Unary = _predicate(
    "signbit",
    np.signbit,
    lambda s, x: s.copysign(1.0, x) < 0.0,
    "Whether the sign bit is set.",
)

logical_not: Unary = _predicate(
    "logical_not", np.logical_not, lambda s, x: s.logical_not(x), "not x.", "boolean"
)

logical_and: Binary = _connective(
    "logical_and", np.logical_and, lambda s, x, y: s.logical_and(x, y), "x and y."
)

logical_or: Binary = _connective(
    "logical_or", np.logical_or, lambda s, x, y: s.logical_or(x, y), "x or y."
)

logical_xor: Binary = _connective(
    "logical_xor",
    np.logical_xor,
    lambda s, x, y: s.logical_and(s.logical_or(x, y), s.logical_not(s.logical_and(x, y))),
    "Exactly one of x and y.",
)


def _bits(name: str, ufunc: np.ufunc, formula: Callable[..., object], doc: str) -> Binary:
    return elementwise(
        name,
        formula=formula,
        partials=(None, None),
        domain=("integer", "integer"),
        eager=ufunc,
        reference=ufunc,
        doc=doc,
        extra={"integers_only": True},
    )


bitwise_and: Binary = _bits(
    "bitwise_and", np.bitwise_and, lambda s, x, y: x & y, "Bitwise and of integers or booleans."
)

bitwise_or: Binary = _bits(
    "bitwise_or", np.bitwise_or, lambda s, x, y: x | y, "Bitwise or of integers or booleans."
)

bitwise_xor: Binary = _bits(
    "bitwise_xor",
    np.bitwise_xor,
    lambda s, x, y: x ^ y,
    "Bitwise exclusive or of integers or booleans.",
)

shift_left: Binary = _bits(
    "shift_left", np.left_shift, lambda s, x, y: x << y, "x shifted left by y bits."
)

shift_right: Binary = _bits(
    "shift_right",
    np.right_shift,
    lambda s, x, y: x >> y,
    "x shifted right by y bits, keeping its sign.",
)


def bitwise_not(input: TensorLike) -> TensorBase:
    """Bitwise complement of integers; logical not of booleans."""
    input = as_tensor(input, "bitwise_not")
    return logical_not(input) if input.array.dtype == dtypes.bool_ else bitwise_xor(input, -1)
