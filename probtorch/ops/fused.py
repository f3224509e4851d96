"""Products with a sum around them, and steps between tensors: `addmm`, `addcmul`, `lerp` and kin.

Compositions, which the compiler fuses. With ``beta=0`` what is added to is not looked at, so that
nan in it is no part of the result.
"""

from __future__ import annotations

from probtorch.core.casting import cast
from probtorch.core.dtype import float16, float32, promote
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, TensorLike
from probtorch.errors import DTypeError, ShapeError
from probtorch.ops.arithmetic import (
    abs as absolute,
)
from probtorch.ops.arithmetic import (
    where,
)
from probtorch.ops.comparisons import (
    lt,
)
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
]


@takes_out
def addcmul(
    x: TensorLike,
    tensor1: TensorLike,
    tensor2: TensorLike,
    *,
    value: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``x + value * tensor1 * tensor2``."""
    if _halves(x, tensor1, tensor2):
        return cast(addcmul(*_wide(x, tensor1, tensor2), value=value), float16)
    x, product = as_tensor(x, "addcmul"), as_tensor(tensor1, "addcmul") * tensor2
    _fits("addcmul", promote([x.array, product.array]), value=value)
    return x + (product if value == 1 else product * value)


@takes_out
def addcdiv(
    x: TensorLike,
    tensor1: TensorLike,
    tensor2: TensorLike,
    *,
    value: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``x + value * tensor1 / tensor2``.

    Raises
    ------
    DTypeError
        If both are integers: their quotient is none.
    """
    if _halves(x, tensor1, tensor2):
        return cast(addcdiv(*_wide(x, tensor1, tensor2), value=value), float16)
    a, b = as_tensor(tensor1, "addcdiv"), as_tensor(tensor2, "addcdiv")
    if not {"f", "c"} & {a.array.dtype.kind, b.array.dtype.kind}:
        raise DTypeError(
            "addcdiv",
            expected="floating-point tensors to divide",
            got=f"{a.array.dtype} and {b.array.dtype}",
            fix="convert one of them with .float()",
        )
    return as_tensor(x, "addcdiv") + (a if value == 1 else a * value) / b


def _halves(*operands: TensorLike) -> bool:
    """Whether all are tensors in half precision: then the result is rounded once."""
    return all(isinstance(t, TensorBase) and t.array.dtype == float16 for t in operands)


def _wide(*operands: TensorLike) -> list[TensorBase]:
    return [cast(as_tensor(t), float32) for t in operands]


@takes_out
def lerp(
    x: TensorLike, end: TensorLike, weight: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return ``x + weight * (end - x)``: `x` at weight 0, exactly `end` at weight 1."""
    x, end = as_tensor(x, "lerp"), as_tensor(end, "lerp")
    if x.array.dtype != end.array.dtype or x.array.dtype.kind not in "fc":
        raise DTypeError(
            "lerp",
            expected="two tensors of one floating-point dtype",
            got=f"{x.array.dtype} and {end.array.dtype}",
            fix="convert them with .to(dtype)",
        )
    if isinstance(weight, (int, float)):
        first, step = (x, weight) if abs(weight) < 0.5 else (end, weight - 1)
        return first + step * (end - x)
    weight = as_tensor(weight, "lerp")
    small = lt(absolute(weight), 0.5)
    return where(small, x, end) + where(small, weight, weight - 1) * (end - x)


@takes_out
def addmm(
    x: TensorLike,
    mat1: TensorLike,
    mat2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * x + alpha * mat1 @ mat2``; `x` broadcasts to the product."""
    return _with("addmm", x, mm(mat1, mat2), beta, alpha)


@takes_out
def addmv(
    x: TensorLike,
    mat: TensorLike,
    vec: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * x + alpha * mat @ vec``; `x` broadcasts to the product."""
    return _with("addmv", x, mv(mat, vec), beta, alpha)


@takes_out
def addr(
    x: TensorLike,
    vec1: TensorLike,
    vec2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * x + alpha * outer(vec1, vec2)``; `x` broadcasts to the product."""
    return _with("addr", x, outer(vec1, vec2), beta, alpha)


@takes_out
def baddbmm(
    x: TensorLike,
    batch1: TensorLike,
    batch2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * x + alpha * bmm(batch1, batch2)``; `x` broadcasts to the product."""
    return _with("baddbmm", x, bmm(batch1, batch2), beta, alpha)


@takes_out
def addbmm(
    x: TensorLike,
    batch1: TensorLike,
    batch2: TensorLike,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``beta * x + alpha * bmm(batch1, batch2).sum(0)``; `x` broadcasts to the sum."""
    return _with("addbmm", x, _added_up(bmm(batch1, batch2)), beta, alpha)


def _added_up(products: TensorBase) -> TensorBase:
    """Return the sum of matrices, in their dtype."""
    return sum(products, 0, dtype=products.array.dtype)


def _fits(op: str, dtype: DType, **factors: float) -> None:
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
    _fits(op, x.array.dtype, beta=beta, alpha=alpha)
    if x.array.dtype.kind in "iu":
        beta, alpha = int(beta), int(alpha)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return expand(x if beta == 1 else x * beta, shape) + product
