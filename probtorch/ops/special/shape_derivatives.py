"""Rules for ops that are derivatives of distribution functions in their shape parameters.

Such an op has an order, runs in float64 on the host (quadrature, ops/incomplete.py), and knows its
own partial derivatives as far as there are any. Used by incomplete_gamma.py and incomplete_beta.py.
"""

import functools

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast, to_float
from probtorch.core.dtype import promote
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.errors import NotDifferentiableError
from probtorch.ops.families import unbroadcast
from probtorch.ops.special.declaration import tensor_like

__all__ = ["on_host", "rules_from_parts", "shape_operands"]


def shape_operands(op, *operands):
    """Return tensors of one float dtype whose shapes broadcast; Python numbers take the dtype."""
    tensors = [to_float(as_tensor(x, op)) for x in operands if not isinstance(x, (int, float))]
    like = cast(tensors[0], promote([x.array for x in tensors])) if tensors else as_tensor(0.0)
    tensors = [
        cast(to_float(as_tensor(tensor_like(x, like), op)), like.array.dtype) for x in operands
    ]
    broadcast_shapes(*(x.array.shape for x in tensors), op=op)
    return tuple(tensors)


def on_host(fn):
    """Run a float64 NumPy routine on arrays of any float dtype and backend."""

    @functools.wraps(fn)
    def run(*arrays, **attrs):
        device, dtype = device_of(arrays[0]), arrays[0].dtype
        result = fn(*(to_host(a).astype(np.float64, copy=False) for a in arrays), **attrs)
        return to_device(np.asarray(result).astype(dtype, copy=False), device)

    return run


def rules_from_parts(parts_of, name):
    """Build vjp and jvp from a function that returns the partial derivatives (None: too high)."""

    def vjp(g, out, inputs, attrs, needs):
        parts = parts_of(out, inputs, attrs["order"])
        grads = []
        for x, part, need in zip(inputs, parts, needs, strict=True):
            if need and part is None:
                raise _beyond(name)
            grads.append(unbroadcast(g * part, x.array.shape) if need else None)
        return grads

    def jvp(tangents, out, inputs, attrs):
        parts = parts_of(out, inputs, attrs["order"])
        total = None
        for t, part in zip(tangents, parts, strict=True):
            if t is None:
                continue
            if part is None:
                raise _beyond(name)
            total = t * part if total is None else total + t * part
        return total

    return vjp, jvp


def _beyond(name):
    return NotDifferentiableError(
        name,
        expected="at most two derivatives in the shape parameters",
        got="a third",
        fix="detach() the shape parameters before the last derivative",
    )
