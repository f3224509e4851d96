"""Rules for ops that are derivatives of distribution functions in their shape parameters.

Such an op has an order, runs in float64 on the host (quadrature, ops/incomplete.py), and knows its
own partial derivatives as far as there are any. Used by incomplete_gamma.py and incomplete_beta.py.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast, to_float
from probtorch.core.dtype import promote
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.told import is_number
from probtorch.errors import NotDifferentiableError
from probtorch.ops.families import unbroadcast
from probtorch.ops.special.declaration import tensor_like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probtorch.core.op import Attrs
    from probtorch.core.tensor_base import TensorBase


__all__ = ["on_host", "rules_from_parts", "shape_operands"]


def shape_operands(op: str, *operands: TensorBase | float) -> tuple[TensorBase, ...]:
    """Return tensors of one float dtype whose shapes broadcast; Python numbers take the dtype."""
    tensors = [
        to_float(as_tensor(x, op))
        for x in operands
        if not (isinstance(x, (int, float)) or is_number(x))
    ]
    like = cast(tensors[0], promote([x.array for x in tensors])) if tensors else as_tensor(0.0)
    tensors = [
        cast(to_float(as_tensor(tensor_like(x, like), op)), like.array.dtype) for x in operands
    ]
    broadcast_shapes(*(x.array.shape for x in tensors), op=op)
    return tuple(tensors)


def on_host(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Run a float64 NumPy routine on arrays of any float dtype and backend."""

    @functools.wraps(fn)
    def run(*arrays: np.ndarray, **attrs: object) -> np.ndarray:
        device, dtype = device_of(arrays[0]), arrays[0].dtype
        result = fn(*(to_host(a).astype(np.float64, copy=False) for a in arrays), **attrs)
        return to_device(np.asarray(result).astype(dtype, copy=False), device)

    return run


def rules_from_parts(
    parts_of: Callable[..., tuple[TensorBase | None, ...]], name: str
) -> tuple[Callable[..., list[TensorBase | None]], Callable[..., TensorBase]]:
    """Build vjp and jvp from a function that returns the partial derivatives (None: too high)."""

    def vjp(
        g: TensorBase,
        out: TensorBase,
        inputs: Sequence[TensorBase],
        attrs: Attrs,
        needs: Sequence[bool],
    ) -> list[TensorBase | None]:
        parts = parts_of(out, inputs, attrs["order"])
        grads: list[TensorBase | None] = []
        for x, part, need in zip(inputs, parts, needs, strict=True):
            if not need:
                grads.append(None)
                continue
            if part is None:
                raise _beyond(name)
            grads.append(unbroadcast(g * part, x.array.shape))
        return grads

    def jvp(
        tangents: Sequence[TensorBase | None],
        out: TensorBase,
        inputs: Sequence[TensorBase],
        attrs: Attrs,
    ) -> TensorBase:
        parts = parts_of(out, inputs, attrs["order"])
        terms = []
        for t, part in zip(tangents, parts, strict=True):
            if t is None:
                continue
            if part is None:
                raise _beyond(name)
            terms.append(t * part)
        return functools.reduce(operator.add, terms)

    return vjp, jvp


def _beyond(name: str) -> NotDifferentiableError:
    return NotDifferentiableError(
        name,
        expected="at most two derivatives in the shape parameters",
        got="a third",
        fix="detach() the shape parameters before the last derivative",
    )
