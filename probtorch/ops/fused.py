"""Products with a sum around them, and steps between tensors: `addmm`, `addcmul`, `lerp` and kin.

Compositions, which the compiler fuses. With ``beta=0`` what is added to is not looked at, so that
nan in it is no part of the result.
"""

from __future__ import annotations

from probtorch.core.casting import cast
from probtorch.core.dispatch import unheard
from probtorch.core.dtype import float16, float32, promote
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number
from probtorch.core.typed import DType, TensorLike
from probtorch.errors import DTypeError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import lt
from probtorch.ops.contraction import bmm, mm, mv, outer
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum

__all__ = [
    "addbmm",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "lerp",
    "whole_factors",
]


@takes_out
def addcmul(
    input: TensorLike,
    tensor1: TensorLike,
    tensor2: TensorLike,
    *,
    value: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``input + value * tensor1 * tensor2``."""
    if _halves(input, tensor1, tensor2):
        return cast(addcmul(*_wide(input, tensor1, tensor2), value=value), float16)
    input, product = as_tensor(input, "addcmul"), as_tensor(tensor1, "addcmul") * tensor2
    whole_factors("addcmul", promote([input.array, product.array]), value=value)
    return input + (product if value == 1 else product * value)


@takes_out
def addcdiv(
    input: TensorLike,
    tensor1: TensorLike,
    tensor2: TensorLike,
    *,
    value: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``input + value * tensor1 / tensor2``.

    Raises
    ------
    DTypeError
        If both are integers: their quotient is none.
    """
    if _halves(input, tensor1, tensor2):
        return cast(addcdiv(*_wide(input, tensor1, tensor2), value=value), float16)
    a, b = as_tensor(tensor1, "addcdiv"), as_tensor(tensor2, "addcdiv")
    if not {"f", "c"} & {a.array.dtype.kind, b.array.dtype.kind}:
        raise DTypeError(
            "addcdiv",
            expected="floating-point tensors to divide",
            got=f"{a.array.dtype} and {b.array.dtype}",
            fix="convert one of them with .float()",
        )
    return as_tensor(input, "addcdiv") + (a if value == 1 else a * value) / b


def _halves(*operands: TensorLike) -> bool:
    """Whether all are tensors in half precision: then the result is rounded once."""
    return all(isinstance(t, TensorBase) and t.array.dtype == float16 for t in operands)


def _wide(*operands: TensorLike) -> list[TensorBase]:
    return [cast(as_tensor(t), float32) for t in operands]


@takes_out
def lerp(
    input: TensorLike, end: TensorLike, weight: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return ``input + weight * (end - input)``: `input` at weight 0, exactly `end` at weight 1."""
    input, end = as_tensor(input, "lerp"), as_tensor(end, "lerp")
    if input.array.dtype != end.array.dtype or input.array.dtype.kind not in "fc":
        raise DTypeError(
            "lerp",
            expected="two tensors of one floating-point dtype",
            got=f"{input.array.dtype} and {end.array.dtype}",
            fix="convert them with .to(dtype)",
        )
    if isinstance(weight, (int, float)) or is_number(weight):
        first, step = (input, weight) if abs(weight) < 0.5 else (end, weight - 1)
        return first + step * (end - input)
    weight = as_tensor(weight, "lerp")
    small = lt(absolute(weight), 0.5)
    return where(small, input, end) + where(small, weight, weight - 1) * (end - input)


@takes_out
def addmm(
    input: TensorLike,
    mat1: TensorLike,
    mat2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * input + alpha * mat1 @ mat2``; `input` broadcasts to the product."""
    return _with("addmm", input, mm(mat1, mat2), beta, alpha)


@takes_out
def addmv(
    input: TensorLike,
    mat: TensorLike,
    vec: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * input + alpha * mat @ vec``; `input` broadcasts to the product."""
    return _with("addmv", input, mv(mat, vec), beta, alpha)


@takes_out
def addr(
    input: TensorLike,
    vec1: TensorLike,
    vec2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * input + alpha * outer(vec1, vec2)``; `input` broadcasts to the product."""
    return _with("addr", input, outer(vec1, vec2), beta, alpha)


@takes_out
def baddbmm(
    input: TensorLike,
    batch1: TensorLike,
    batch2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * input + alpha * bmm(batch1, batch2)``; `input` broadcasts to the product."""
    return _with("baddbmm", input, bmm(batch1, batch2), beta, alpha)


@takes_out
def addbmm(
    input: TensorLike,
    batch1: TensorLike,
    batch2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * input + alpha * bmm(batch1, batch2).sum(0)``; `input` broadcasts to it."""
    return _with("addbmm", input, _added_up(bmm(batch1, batch2)), beta, alpha)


def _added_up(products: TensorBase) -> TensorBase:
    """Return the sum of matrices, in their dtype."""
    return sum(products, 0, dtype=products.array.dtype)


def whole_factors(op: str, dtype: DType, **factors: float) -> None:
    """Refuse fractions as factors of integers."""
    if dtype.kind not in "fc" and any(n != int(n) for n in factors.values()):
        raise DTypeError(
            op,
            expected=f"whole numbers for {' and '.join(factors)}, as the tensors are integers",
            got=", ".join(f"{name}={n}" for name, n in factors.items()),
            fix="convert the tensors with .float()",
        )


def _with(op: str, x: TensorLike, product: TensorBase, beta: float, alpha: float) -> TensorBase:
    x = as_tensor(x, op)
    shape = product.array.shape
    if broadcast_shapes(x.array.shape, shape, op=op) != shape:
        raise ShapeError(
            op,
            expected=f"a tensor that broadcasts to the product, shape {shape}",
            got=str(x.array.shape),
            fix="check the order of the arguments: what is added to comes first",
        )
    if x.array.dtype != product.array.dtype:
        raise DTypeError(
            op,
            expected=f"a tensor of the product's dtype, {product.array.dtype}",
            got=str(x.array.dtype),
            fix=f"convert it with .to({product.array.dtype})",
        )
    whole_factors(op, x.array.dtype, beta=beta, alpha=alpha)
    if x.array.dtype.kind in "iu":
        beta, alpha = int(beta), int(alpha)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    if unheard():  # who listens sees it broadcast
        return (x if beta == 1 else x * beta) + product
    return expand(x if beta == 1 else x * beta, shape) + product
