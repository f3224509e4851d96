"""How an op is carried out on many slices at once: `batched`, by the dims that the op declares.

A rule is given the op's inputs, of which some carry a batch dim in front, and answers with one call
of the same op on the whole batch, or a few; what it returns has the batch dim in front. Rules
are written in Tensor ops, so batched programs have gradients, can be recorded, and batched again.
`vmap.py` uses them while a function runs, the compiler's `batching.py` on a recorded graph.

What an op does along its core dims (`Op.core`) it does alike along all others, so the batch is one
of these. A rule by name, under ``@rule("name")``, is for what that does not say: ops whose
attributes speak of every dim (movement, indexing), and products and solves that are faster as one
of larger matrices. An op with neither is carried out slice by slice: right, only slow. `slow_ops`
lists them. tests/autograd/test_batching.py sweeps every registered op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY, Attrs, Op, Output
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import expand, movedim, permute, reshape
from probtorch.ops.pieces import stack

__all__ = ["align", "batched", "slow_ops", "spread"]

# Of an op, its inputs, their flags, its attributes and the number of slices.
Rule: TypeAlias = Callable[..., Output]

_RULES: dict[str, Rule] = {}


def batched(
    op: Op, inputs: Sequence[TensorBase | float], flags: Sequence[bool], attrs: Attrs, size: int
) -> Output:
    """Carry out `op` on `size` slices at once.

    Parameters
    ----------
    op : Op
    inputs : sequence of Tensor and numbers
        As a slice's, but with the batch as dim 0 where the flag is set.
    flags : sequence of bool
        Which inputs carry the batch; at least one.
    attrs : dict
        Those of one slice.
    size : int
        Number of slices.

    Returns
    -------
    Tensor or tuple of Tensor
        With the batch as dim 0.
    """
    return _rule_of(op)(op, list(inputs), list(flags), attrs, size)


def _rule_of(op: Op) -> Rule:
    found = _RULES.get(op.name)
    if found is not None:
        return found
    if op.family == "elementwise":
        return _elementwise
    if "sampler" in op.extra:
        return _sampler
    if op.core is None:
        return _one_by_one
    return _looped if "->" in op.core else _along


def slow_ops() -> list[str]:
    """Return the names of the registered ops that have no rule."""
    return sorted(op.name for op in REGISTRY.values() if _rule_of(op) is _one_by_one)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the ops of these names."""

    def add(fn: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, fn))
        return fn

    return add


def align(x: TensorBase | float, flag: bool, rank: int) -> TensorBase | float:
    """Return `x` with dims of size 1 such that its slices have `rank` dims; others broadcast."""
    if not flag or not isinstance(x, TensorBase):
        return x
    shape = x.array.shape
    missing = rank + 1 - len(shape)
    return reshape(x, (shape[0], *(1,) * missing, *shape[1:])) if missing else x


def spread(x: TensorBase, flag: bool, size: int) -> TensorBase:
    """Return `x` with a batch dim: the same for all slices if it had none."""
    return x if flag else expand(x, (size, *x.array.shape))


def _slice_shape(x: TensorBase | float, flag: bool) -> tuple[int, ...]:
    shape = x.array.shape if isinstance(x, TensorBase) else ()
    return shape[1:] if flag else shape


def _ranks(inputs: Sequence[TensorBase | float], flags: list[bool]) -> list[int]:
    return [len(_slice_shape(x, f)) for x, f in zip(inputs, flags, strict=True)]


def _aligned(
    inputs: Sequence[TensorBase | float], flags: list[bool]
) -> tuple[TensorBase | float, ...]:
    rank = max(_ranks(inputs, flags))
    return tuple(align(x, f, rank) for x, f in zip(inputs, flags, strict=True))


def _one_shape(inputs: list[TensorBase], flags: list[bool], size: int) -> tuple[TensorBase, ...]:
    """Return inputs that broadcast within a slice as tensors of one shape."""
    shapes = (_slice_shape(x, f) for x, f in zip(inputs, flags, strict=True))
    shape = (size, *broadcast_shapes(*shapes, op="vmap"))
    return tuple(expand(x, shape) for x in _aligned(inputs, flags))


def _one_by_one(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> Output:
    """Carry out an op slice by slice."""
    rows = [
        apply(op, tuple(getitem(x, i) if f else x for x, f in zip(inputs, flags)), attrs)
        for i in range(size)
    ]
    if op.num_outputs == 1:
        return stack(rows)
    return tuple(stack(list(column)) for column in zip(*rows, strict=True))


# ------------------------------------------------------------------------------ by what is declared


def _elementwise(
    op: Op, inputs: list[TensorBase | float], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return apply(op, _aligned(inputs, flags), attrs)


def _looped(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    """Ops on their last dims, all others being a loop that the inputs have in common."""
    shapes = [_slice_shape(x, f) for x, f in zip(inputs, flags, strict=True)]
    firsts = [len(s) - r for s, r in zip(shapes, op.core_ranks(attrs), strict=True)]
    loop = broadcast_shapes(*(s[:k] for s, k in zip(shapes, firsts, strict=True)), op=op.name)
    whole = [
        expand(align(x, f, len(loop) + len(s) - k), (size, *loop, *s[k:]))
        for x, f, s, k in zip(inputs, flags, shapes, firsts, strict=True)
    ]
    return apply(op, tuple(whole), attrs)


def _along(op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int) -> Output:
    """Ops along the dims that an attribute names, of inputs that are equal in rank."""
    whole = (spread(x, f, size) for x, f in zip(inputs, flags, strict=True))
    return apply(op, tuple(whole), _shifted(attrs))


def _shifted(attrs: Attrs) -> dict[str, object]:
    """Return attributes whose `dim` or `dims` count from the front, for one dim more there."""
    out = dict(attrs)
    if "dim" in out:
        out["dim"] = out["dim"] + 1 if out["dim"] >= 0 else out["dim"]
    if "dims" in out:
        out["dims"] = tuple(d + 1 if d >= 0 else d for d in out["dims"])
    return out


def _sampler(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> Output:
    """Draws, one per element of parameters and counters; seed and stream are for all of them."""
    *given, seed, stream, counters = inputs
    if flags[-3] or flags[-2]:
        return _one_by_one(op, inputs, flags, attrs, size)
    *given, counters = _one_shape([*given, counters], [*flags[:-3], flags[-1]], size)
    return apply(op, (*given, seed, stream, counters), attrs)


# ----------------------------------------------------------------------------------------- movement


@rule("reshape")
def _reshape(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return apply(op, tuple(inputs), {"shape": (size, *attrs["shape"])})


@rule("permute")
def _permute(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return apply(op, tuple(inputs), {"dims": (0, *(d + 1 for d in attrs["dims"]))})


@rule("expand")
def _expand(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    shape = attrs["shape"]
    return apply(op, (align(inputs[0], True, len(shape)),), {"shape": (size, *shape)})


@rule("room")
def _room(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return apply(op, tuple(inputs), {**attrs, "shape": (size, *attrs["shape"])})


@rule("slice", "unslice")
def _slice(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    more = {"shape": (size, *attrs["shape"])} if "shape" in attrs else {}
    return apply(op, tuple(inputs), {"spec": ((0, 1, size), *attrs["spec"]), **more})


@rule("slice_put")
def _slice_put(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    x, v = inputs
    x = spread(x, flags[0], size)
    aligned = align(v, flags[1], x.array.ndim - 1)
    return apply(op, (x, aligned), {"spec": ((0, 1, size), *attrs["spec"])})


@rule("argmax", "argmin")
def _extreme(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> Output:
    """Positions along one dim, or in the slice as a whole."""
    shape = inputs[0].array.shape[1:]
    if len(attrs["dims"]) != len(shape):
        return _along(op, inputs, flags, attrs, size)
    flat = reshape(inputs[0], (size, math.prod(shape)))
    found = apply(op, (flat,), {"dims": (1,), "keepdim": False})
    return reshape(found, (size, *(1,) * len(shape))) if attrs["keepdim"] else found


@rule("strided")
def _strided(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return apply(op, tuple(inputs), attrs)  # on the last dim, whatever there is before it


@rule("windows")
def _windows(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return movedim(apply(op, tuple(inputs), attrs), len(attrs["sizes"]), 0)


@rule("overlap_add")
def _overlap_add(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    return apply(op, (movedim(inputs[0], 0, len(attrs["sizes"])),), attrs)


@rule("searchsorted")
def _searchsorted(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    sequence, values = inputs
    rank = len(_slice_shape(sequence, flags[0]))
    if rank == 1 and not flags[0]:
        return apply(op, (sequence, values), attrs)
    sequence, values = (spread(x, f, size) for x, f in zip(inputs, flags, strict=True))
    if rank == 1:
        shape = values.array.shape
        values = reshape(values, (size, math.prod(shape[1:])))
        return reshape(apply(op, (sequence, values), attrs), shape)
    rank = max(rank, values.array.ndim - 1)
    return apply(op, (align(sequence, True, rank), align(values, True, rank)), attrs)


# ---------------------------------------------------------------------------------- matrix products


@rule("sparse_product")
def _sparse_product(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    """Slices of what one matrix is multiplied with are further columns."""
    if any(flags[:6]):
        slices = [[x[i] if f else x for x, f in zip(inputs, flags)] for i in range(size)]
        return stack([apply(op, tuple(given), attrs) for given in slices], 0)
    n, k = inputs[6].array.shape[1:]
    columns = reshape(permute(inputs[6], (1, 0, 2)), (n, size * k))
    found = apply(op, (*inputs[:6], columns), attrs)
    return permute(reshape(found, (found.array.shape[0], size, k)), (1, 0, 2))


@rule("matmul")
def _matmul(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    """One product of matrices where one side is the same for all slices, else a batch of them."""
    (x, y), (left, right) = inputs, flags
    m, n = _slice_shape(x, left), _slice_shape(y, right)
    if len(m) == 2 and len(n) == 2 and left != right and size:
        if left:
            whole = apply(op, (reshape(x, (size * m[0], m[1])), y), attrs)
            return reshape(whole, (size, m[0], n[1]))
        flipped = permute(y, (0, 2, 1))
        whole = apply(op, (reshape(flipped, (size * n[1], n[0])), permute(x, (1, 0))), attrs)
        return permute(reshape(whole, (size, n[1], m[0])), (0, 2, 1))
    return apply(op, _aligned(inputs, flags), attrs)


@rule("solve", "solve_triangular")
def _solve(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    """A matrix that is the same for all slices is solved with all their columns at once."""
    (a, b), (left, right) = inputs, flags
    m, n = _slice_shape(a, left), _slice_shape(b, right)
    if not left and len(m) == 2 and len(n) == 2:
        columns = reshape(permute(b, (1, 0, 2)), (n[0], size * n[1]))
        return permute(reshape(apply(op, (a, columns), attrs), (n[0], size, n[1])), (1, 0, 2))
    return _looped(op, inputs, flags, attrs, size)


# ----------------------------------------------------------------------------------------- indexing
#
# In a slice, `take` puts the dims of the indices where the first indexed dim was, or in front if
# the indexed dims do not lie side by side. Where indices differ between slices, the batch
# becomes one more indexed dim, and the indexed dims are moved to the front first.


class _Places:
    """Where the dims of a slice with `rank` dims go when it is indexed along `dims`."""

    def __init__(
        self,
        rank: int,
        dims: tuple[int, ...],
        index: list[TensorBase],
        flags: list[bool],
        size: int,
    ) -> None:
        self.rank, self.dims, self.size = rank, dims, size
        self.vary = any(flags)
        shapes = [_slice_shape(i, f) for i, f in zip(index, flags, strict=True)]
        self.shape = broadcast_shapes(*shapes, op="vmap")
        self.adjacent = list(dims) == list(range(dims[0], dims[0] + len(dims)))
        self.rest = [d for d in range(rank) if d not in dims]
        k = len(self.shape)
        self.index = [align(i, f, k) for i, f in zip(index, flags, strict=True)]
        if self.vary:
            rows = wrap(np.arange(size).reshape(size, *(1,) * k))
            self.index.insert(0, rows)
        # How the dims of a slice's result lie: `before` dims, those of the indices, the others.
        self.before = dims[0] if self.adjacent else 0

    @property
    def attrs(self) -> tuple[int, ...]:
        """Indexed dims of the whole, in the order that `inward` gives them."""
        if self.vary:
            return tuple(range(len(self.dims) + 1))
        return tuple(d + 1 for d in self.dims)

    def order(self) -> tuple[int, ...]:
        """Order of the whole's dims: batch, indexed, others."""
        return (0, *(d + 1 for d in self.dims), *(d + 1 for d in self.rest))

    def inward(self, x: TensorBase) -> TensorBase:
        """Return the whole as it is indexed."""
        return permute(x, self.order()) if self.vary else x

    def outward(self, x: TensorBase) -> TensorBase:
        """Undo `inward`."""
        return permute(x, tuple(np.argsort(self.order()).tolist())) if self.vary else x

    def result_order(self) -> tuple[int, ...]:
        """Order of the dims of slices' results (batch in front) in that of the whole's result."""
        k, n = len(self.shape), len(self.shape) + len(self.rest)
        at = list(range(self.before + 1, self.before + 1 + k))
        others = [d for d in range(1, n + 1) if d not in at]
        if self.vary:
            return (0, *at, *others)
        return (0, *range(1, n + 1)) if self.adjacent else (*at, 0, *others)

    def result_inward(self, g: TensorBase) -> TensorBase:
        """Return slices' results as the whole's."""
        return permute(g, self.result_order())

    def result_outward(self, y: TensorBase) -> TensorBase:
        """Undo `result_inward`."""
        return permute(y, tuple(np.argsort(self.result_order()).tolist()))

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a slice's result, for a slice of `shape`."""
        rest = [shape[d] for d in self.rest]
        return (*rest[: self.before], *self.shape, *rest[self.before :])


@rule("take")
def _take(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    x, *index = inputs
    rank = len(_slice_shape(x, flags[0]))
    places = _Places(rank, attrs["dims"], index, flags[1:], size)
    whole = places.inward(spread(x, flags[0], size))
    out = apply(op, (whole, *places.index), {"dims": places.attrs})
    return places.result_outward(out)


@rule("untake")
def _untake(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    g, *index = inputs
    shape = attrs["shape"]
    places = _Places(len(shape), attrs["dims"], index, flags[1:], size)
    g = places.result_inward(spread(g, flags[0], size))
    whole = (size, *shape)
    if places.vary:
        whole = tuple(whole[d] for d in places.order())
    out = apply(op, (g, *places.index), {"dims": places.attrs, "shape": whole})
    return places.outward(out)


@rule("put")
def _put(
    op: Op, inputs: list[TensorBase], flags: list[bool], attrs: Attrs, size: int
) -> TensorBase:
    x, v, *index = inputs
    shape = _slice_shape(x, flags[0])
    places = _Places(len(shape), attrs["dims"], index, flags[2:], size)
    target = places.result_shape(shape)
    v = expand(align(v, flags[1], len(target)), (size, *target))
    operands = places.inward(spread(x, flags[0], size)), places.result_inward(v)
    out = apply(op, (*operands, *places.index), {**attrs, "dims": places.attrs})
    return places.outward(out)
