"""Contractions: matrix products in all their spellings, and einsum.

One primitive, `matmul` on matrices and batches of them; vectors are reshaped, einsum is planned by
opt_einsum and carried out with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from typing import cast as typed

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, around, unseen, unwatched, wrap
from probtorch.core.dtype import promote_types
from probtorch.core.late import opt_einsum
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.reflected import by_right_operand
from probtorch.core.shape import broadcast_shapes, normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ShapeError
from probtorch.ops.accumulate import add_up
from probtorch.ops.complex_numbers import conj
from probtorch.ops.diagonals import diagonal
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.letters import lettered, plan_of
from probtorch.ops.movement import expand, permute, reshape, unsqueeze
from probtorch.ops.reduction import sum
from probtorch.ops.sparse import SparseMatrix, is_sparse, sparse_product

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "affine",
    "bmm",
    "dot",
    "einsum",
    "inner",
    "matmul",
    "mm",
    "mv",
    "outer",
    "tensordot",
    "vdot",
]


def _t(x: TensorBase) -> TensorBase:
    n = x.array.ndim
    return permute(x, (*range(n - 2), n - 1, n - 2))


def _run_matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # What `@` does with two matrices, without its looking for batches of them. Sums of one term are
    # not left to it: NumPy makes 0 of 0 times inf or nan there.
    plain = x.ndim == y.ndim == 2 and x.dtype.kind == "f" and x.shape[1] > 1
    return x.dot(y) if plain else x @ y


def _matmul_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    x, y = inputs
    if g.array.ndim == x.array.ndim == y.array.ndim == 2 and unwatched(g, x, y):
        return (
            around(_run_matmul(g.array, y.array.T)) if needs[0] else None,
            around(_run_matmul(x.array.T, g.array)) if needs[1] else None,
        )
    gx = unbroadcast(apply(_MATMUL, (g, _t(y))), x.array.shape) if needs[0] else None
    gy = unbroadcast(apply(_MATMUL, (_t(x), g)), y.array.shape) if needs[1] else None
    return gx, gy


def _matmul_jvp(
    tangents: list[TensorBase | None],
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
) -> TensorBase:
    (tx, ty), (x, y) = tangents, inputs
    parts = [apply(_MATMUL, (tx, y))] if tx is not None else []
    parts += [apply(_MATMUL, (x, ty))] if ty is not None else []
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray, ...], Attrs]]:
    def a(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    return [
        ((a(2, 3), a(3, 4)), {}),
        ((a(5, 1, 2, 3), a(4, 3, 2)), {}),
        ((a(2, 0), a(0, 3)), {}),
        ((a(7, 5), a(5, 1)), {}),
    ]


_MATMUL = structured(
    "matmul",
    "contraction",
    run=_run_matmul,
    vjp=_matmul_vjp,
    jvp=_matmul_jvp,
    saves="x y",
    core="(m,n),(n,p)->(m,p)",
    samples=_samples,
    reference=lambda x, y: np.einsum("...ij,...jk->...ik", x, y),
    complex=True,
    doc="Product of matrices, batched over leading dims.",
)


def _by_sparse(x: TensorBase, matrix: SparseMatrix) -> TensorBase:
    turned = matrix.transpose()
    return sparse_product(turned, x) if x.array.ndim < 2 else _t(sparse_product(turned, _t(x)))


@takes_out
def matmul(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Matrix product: vectors are rows or columns as needed, leading dims broadcast.

    Raises
    ------
    ShapeError
        If the inner sizes differ or an operand is 0-d.
    """
    if not isinstance(input, TensorBase) and is_sparse(input):
        return sparse_product(input, other)
    if not isinstance(other, TensorBase):
        if is_sparse(other):
            return _by_sparse(as_tensor(input, "matmul"), other)
        answer = by_right_operand("matmul", input, other)
        if answer is not NotImplemented:
            return typed(TensorBase, answer)
    input, other = as_tensor(input, "matmul"), as_tensor(other, "matmul")
    a, b = input.array.shape, other.array.shape
    if not a or not b:
        raise ShapeError(
            "matmul",
            expected="tensors with at least 1 dim",
            got=f"{a} @ {b}",
            fix="use * for scalars",
        )
    if a[-1] != (b[-2] if len(b) > 1 else b[0]):
        hint = (
            "did you mean x @ y.T?"
            if len(b) > 1 and a[-1] == b[-1]
            else "check which dim should be summed over"
        )
        raise ShapeError(
            "matmul",
            expected="x.shape[-1] == y.shape[-2] (the inner sizes)",
            got=f"{a} @ {b}: inner sizes {a[-1]} and {b[-2] if len(b) > 1 else b[0]}",
            fix=hint,
        )
    dtype = input.array.dtype
    if other.array.dtype is not dtype:
        dtype = promote_types(dtype, other.array.dtype)
        input, other = cast(input, dtype), cast(other, dtype)
    if len(a) > 1 and len(b) > 1:
        if len(a) > 2 or len(b) > 2:
            broadcast_shapes(a[:-2], b[:-2], op="matmul (batch dims)")
        return apply(_MATMUL, (input, other))
    if unseen(input, other):
        return wrap(input.array @ other.array)
    if len(a) == 1:
        input = reshape(input, (1, *a))
    if len(b) == 1:
        other = reshape(other, (*b, 1))
    out = apply(_MATMUL, (input, other))
    shape = list(out.array.shape)
    if len(b) == 1:
        del shape[-1]
    if len(a) == 1:
        del shape[-1 if len(b) == 1 else -2]
    return reshape(out, shape)


def _run_affine(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    if x.ndim == weight.ndim == 2:
        y = _run_matmul(x, weight.T)
        y += bias
        return y
    return x @ weight.swapaxes(-1, -2) + bias[..., None, :]


def _affine_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    x, weight, bias = inputs
    if g.array.ndim == x.array.ndim == weight.array.ndim == 2 and unwatched(g, x, weight):
        return (
            around(_run_matmul(g.array, weight.array)) if needs[0] else None,
            around(_run_matmul(g.array.T, x.array)) if needs[1] else None,
            around(add_up(g.array, (0,), False)) if needs[2] else None,
        )
    return (
        unbroadcast(apply(_MATMUL, (g, weight)), x.array.shape) if needs[0] else None,
        unbroadcast(apply(_MATMUL, (_t(g), x)), weight.array.shape) if needs[1] else None,
        unbroadcast(sum(g, -2), bias.array.shape) if needs[2] else None,
    )


def _decomposed_affine(x: TensorBase, weight: TensorBase, bias: TensorBase) -> TensorBase:
    return apply(_MATMUL, (x, _t(weight))) + unsqueeze(bias, -2)


def _affine_jvp(
    tangents: list[TensorBase | None],
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase, TensorBase],
    attrs: Attrs,
) -> TensorBase:
    (tx, tw, tb), (x, weight, _) = tangents, inputs
    parts = [apply(_MATMUL, (tx, _t(weight)))] if tx is not None else []
    parts += [apply(_MATMUL, (x, _t(tw)))] if tw is not None else []
    parts += [expand(unsqueeze(tb, -2), out.array.shape)] if tb is not None else []
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


_AFFINE = structured(
    "affine",
    "contraction",
    run=_run_affine,
    vjp=_affine_vjp,
    jvp=_affine_jvp,
    saves="x weight",
    core="(n,i),(o,i),(o)->(n,o)",
    samples=lambda rng: [
        (tuple(rng.standard_normal(s) for s in ((3, 2), (4, 2), (4,))), {}),
        (tuple(rng.standard_normal(s) for s in ((2, 3, 2), (2, 4, 2), (2, 4))), {}),
    ],
    reference=lambda x, weight, bias: (
        np.einsum("...ni,...oi->...no", x, weight) + bias[..., None, :]
    ),
    doc="x @ weight.T + bias, for rows x.",
    extra={"decompose": _decomposed_affine},
)


def affine(x: TensorBase, weight: TensorBase, bias: TensorBase) -> TensorBase:
    """Return ``x @ weight.T + bias`` of rows as one operation; the shapes (n, i), (o, i) and (o,)
    and the dtypes are known to fit.
    """
    return apply(_AFFINE, (x, weight, bias))


def _exact(name: str, ndims: tuple[int, int], x: TensorLike, y: TensorLike) -> TensorBase:
    x, y = as_tensor(x, name), as_tensor(y, name)
    if (x.array.ndim, y.array.ndim) != ndims:
        raise ShapeError(
            name,
            expected=f"tensors with {ndims[0]} and {ndims[1]} dims",
            got=f"{x.array.shape} and {y.array.shape}",
            fix="use matmul, which takes any number of dims",
        )
    return matmul(x, y)


@takes_out
def mm(input: TensorLike, mat2: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Product of two matrices."""
    return _exact("mm", (2, 2), input, mat2)


@takes_out
def bmm(input: TensorLike, mat2: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Product of two batches of matrices with one batch dim."""
    return _exact("bmm", (3, 3), input, mat2)


@takes_out
def mv(input: TensorLike, vec: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Product of a matrix and a vector."""
    return _exact("mv", (2, 1), input, vec)


@takes_out
def dot(input: TensorLike, tensor: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Sum of the products of two vectors."""
    if isinstance(input, TensorBase) and isinstance(tensor, TensorBase):
        x, y = input.array, tensor.array
        if (
            x.ndim == 1
            and x.shape == y.shape
            and x.dtype is y.dtype
            and x.dtype.char in "fd"
            and x.size > 1
            and unwatched(input, tensor)
        ):
            return around(x.dot(y))
    return _exact("dot", (1, 1), input, tensor)


@takes_out
def vdot(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Sum of the products of two vectors, the first one conjugated."""
    return _exact("vdot", (1, 1), conj(input), other)


@takes_out
def inner(input: TensorLike, other: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Sum of products over the last dims; the plain product where one is 0-d."""
    input, other = as_tensor(input, "inner"), as_tensor(other, "inner")
    if not input.array.ndim or not other.array.ndim:
        return input * other
    if input.array.shape[-1] != other.array.shape[-1]:
        raise ShapeError(
            "inner",
            expected="last dims of one size",
            got=f"shapes {input.array.shape} and {other.array.shape}",
            fix="expand the shorter one",
        )
    return tensordot(input, other, ((-1,), (-1,)))


@takes_out
def outer(input: TensorLike, vec2: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """All products of two vectors, shape (n, m)."""
    input, vec2 = as_tensor(input, "outer"), as_tensor(vec2, "outer")
    return reshape(input, (-1, 1)) * reshape(vec2, (1, -1))


def _paired(dims: int | Sequence[int | Sequence[int]], n: int, m: int) -> tuple[list[int], ...]:
    """Return the dims that a product of tensors of `n` and `m` dims sums over, for each."""
    if isinstance(dims, int) and 0 <= dims <= min(n, m):
        return list(range(n - dims, n)), list(range(dims))
    pair = [[p] if isinstance(p, int) else p for p in (() if isinstance(dims, int) else dims)]
    if len(pair) != 2 or len(pair[0]) != len(pair[1]) or (pair[0] and not (n and m)):
        raise ShapeError(
            "tensordot",
            expected=f"dims: a number up to {min(n, m)}, or two lists of one length",
            got=f"{dims!r} for tensors of {n} and {m} dims",
            fix="say which dims are summed over",
        )
    return tuple([normalize_dim(d, k, "tensordot") for d in p] for p, k in zip(pair, (n, m)))


@takes_out
def tensordot(
    a: TensorLike,
    b: TensorLike,
    dims: int | Sequence[int | Sequence[int]] = 2,
    *,
    axes: int | Sequence[int | Sequence[int]] | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Sum of products over the last `dims` of `a` and the first of `b`, or over two lists of dims.

    `axes` is NumPy's name of `dims`, by which `opt_einsum.contract` gives them.
    """
    dims = dims if axes is None else axes
    a, b = as_tensor(a, "tensordot"), as_tensor(b, "tensordot")
    n, m = a.array.ndim, b.array.ndim
    left, right = _paired(dims, n, m)
    letters = [opt_einsum.get_symbol(i) for i in range(n + m)]
    ours, theirs = letters[:n], letters[n:]
    for i, j in zip(left, right, strict=True):
        theirs[j] = ours[i]
    rest = [c for i, c in enumerate(ours) if i not in left] + [
        c for j, c in enumerate(theirs) if j not in right
    ]
    return einsum(f"{''.join(ours)},{''.join(theirs)}->{''.join(rest)}", a, b)


def einsum(equation: str | TensorLike, *operands: Any) -> TensorBase:
    """Einstein summation; the order of contraction is planned by opt_einsum.

    Parameters
    ----------
    equation : str
        For example "ij,jk->ik"; ellipsis and repeated indices are allowed.
    *operands : Tensor
        In another form each is followed by the numbers of its dims, and there is no equation:
        ``einsum(x, [0, 1], y, [1, 2], [0, 2])``; the last list is of the result.
    """
    if not isinstance(equation, str):
        equation, operands = lettered((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        (operands,) = operands
    tensors = [as_tensor(t, "einsum") for t in operands]
    try:
        inputs, output, plan = plan_of(equation, *[t.array.shape for t in tensors])
    except ValueError as e:
        raise ShapeError(
            "einsum",
            expected="an equation that fits the operands",
            got=f"{equation!r} with shapes {', '.join(str(t.array.shape) for t in tensors)}: {e}",
            fix="one letter per dim of each operand; equal letters have equal sizes",
        ) from None
    terms = list(zip(inputs, tensors, strict=True))
    for step in plan:
        chosen = [terms.pop(i) for i in sorted(step, reverse=True)]
        later = set(output).union(*(t for t, _ in terms)) if terms else set(output)
        while len(chosen) > 1:
            a, b = chosen.pop(), chosen.pop()
            keep = later.union(*(t for t, _ in chosen)) if chosen else later
            chosen.append(_pair(a, b, keep))
        letters, x = _take_diagonals(*chosen[0])
        letters, x = _sum_out(letters, x, later)
        terms.append((letters, x))
    letters, x = _take_diagonals(*terms[0])
    letters, x = _sum_out(letters, x, set(output))
    return permute(x, tuple(letters.index(c) for c in output))


def _take_diagonals(letters: str, x: TensorBase) -> tuple[str, TensorBase]:
    """Merge repeated letters of one operand by taking diagonals."""
    if len(set(letters)) == len(letters):
        return letters, x
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            i = letters.index(c)
            j = letters.index(c, i + 1)
            x = diagonal(x, 0, i, j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return letters, x


def _sum_out(letters: str, x: TensorBase, keep: set[str]) -> tuple[str, TensorBase]:
    dims = tuple(i for i, c in enumerate(letters) if c not in keep)
    return ("".join(c for c in letters if c in keep), sum(x, dims)) if dims else (letters, x)


def _laid(x: TensorBase, letters: str, order: list[str], size: dict[str, int]) -> TensorBase:
    """Return `x` with dims of 1 as large as they are elsewhere, and its letters in an order."""
    shape = tuple([size[c] for c in letters])
    if shape != x.array.shape:
        x = expand(x, shape)
    return x if list(letters) == order else permute(x, tuple(letters.index(c) for c in order))


def _pair(
    left: tuple[str, TensorBase], right: tuple[str, TensorBase], keep: set[str]
) -> tuple[str, TensorBase]:
    """Contract two operands into one whose letters are those in `keep`, by one batched matmul."""
    a, x = _take_diagonals(*left)
    b, y = _take_diagonals(*right)
    a, x = _sum_out(a, x, keep | set(b))
    b, y = _sum_out(b, y, keep | set(a))
    batch = [c for c in a if c in b and c in keep]
    inner_ = [c for c in a if c in b and c not in keep]
    rows = [c for c in a if c not in b]
    cols = [c for c in b if c not in a]
    size = {**dict(zip(b, y.array.shape, strict=True)), **dict(zip(a, x.array.shape, strict=True))}
    for c in batch + inner_:  # a size of 1 broadcasts, as in NumPy
        size[c] = max(x.array.shape[a.index(c)], y.array.shape[b.index(c)])
    x = _laid(x, a, batch + rows + inner_, size)
    y = _laid(y, b, batch + inner_ + cols, size)

    def count(letters: list[str]) -> int:
        return math.prod([size[c] for c in letters])

    shape = [size[c] for c in batch]
    if not inner_:
        x = reshape(x, (*shape, *[size[c] for c in rows], *[1] * len(cols)))
        y = reshape(y, (*shape, *[1] * len(rows), *[size[c] for c in cols]))
        return "".join(batch + rows + cols), x * y
    dtype = promote_types(x.array.dtype, y.array.dtype)
    x = reshape(cast(x, dtype), (*shape, count(rows), count(inner_)))
    y = reshape(cast(y, dtype), (*shape, count(inner_), count(cols)))
    out = apply(_MATMUL, (x, y))
    return "".join(batch + rows + cols), reshape(out, [size[c] for c in batch + rows + cols])
