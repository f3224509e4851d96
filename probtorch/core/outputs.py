"""`out=`: results written into tensors that the caller has.

Elementwise ops take it at their doors (operands.py). Every other public function gets it from the
decorator here: it computes, and what comes out is copied, on the tape too, into what was given.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TypeVar

from probtorch.backends.registry import array_module
from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import mark_changed, recorder
from probtorch.core.misuse import RAW, misused
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, DTypeError, users_stacklevel

__all__ = ["resized", "takes_out"]

F = TypeVar("F", bound=Callable[..., object])


def takes_out(fn: F) -> F:
    """Let a function write into the tensor, or the tuple of tensors, given as ``out=``.

    The function names `out` in its signature, for those who read it, and never sees one.
    """

    @functools.wraps(fn)
    def call(*args: object, **options: object) -> object:
        out = options.pop("out", None) if "out" in options else None
        try:
            made = fn(*args, **options)
        except RAW as error:
            found = misused(fn.__name__, fn, args, options, error)
            if found is None:
                raise
            raise found from error
        return made if out is None else _filled(fn.__name__, made, out)

    return call  # type: ignore[return-value]  # the same arguments and results


def _filled(op: str, made: object, out: object) -> object:
    """Write results into tensors, and return these in the place of the results."""
    if isinstance(made, TensorBase) and isinstance(out, TensorBase):
        return _written(op, made, out)
    if isinstance(made, tuple) and isinstance(out, (tuple, list)) and len(out) == len(made):
        there = [
            _written(op, a, b) if isinstance(a, TensorBase) else a
            for a, b in zip(made, out, strict=True)
        ]
        return type(made)(*there) if hasattr(made, "_fields") else tuple(there)
    count = len(made) if isinstance(made, tuple) else 1
    raise ArgumentError(
        f"{op}(out=...)",
        expected="a tensor" if count == 1 else f"a tuple of {count} tensors, one for each result",
        got=f"{type(out).__name__}" + (f" of {len(out)}" if isinstance(out, (tuple, list)) else ""),
        fix="pass tensors that the results fit into, or leave out= out",
    )


def _written(op: str, value: TensorBase, out: object) -> TensorBase:
    if not isinstance(out, TensorBase):
        raise ArgumentError(
            f"{op}(out=...)",
            expected="tensors",
            got=type(out).__name__,
            fix="make one with probtorch.empty",
        )
    if dtypes.category(value.array.dtype) > dtypes.category(out.array.dtype):
        raise DTypeError(
            f"{op}(out=...)",
            expected=f"a tensor that can hold {value.array.dtype}",
            got=str(out.array.dtype),
            fix="pass one of the dtype of the result",
        )
    resized(op, value, out)
    return out.copy_(value)


def resized(op: str, value: TensorBase, out: TensorBase) -> None:
    """Give `out` the shape of `value`: new memory, with a warning, if no other tensor depends on it
    and nothing is recorded. Else it keeps its shape, into which the value may broadcast.
    """
    alone = out._base is None and out.grad_fn is None and not out.requires_grad
    if out.array.shape == value.array.shape or not alone or recorder() is not None:
        return
    if out.array.size:
        warnings.warn(
            f"{op}(out=...): a tensor of shape {out.array.shape} is resized to "
            f"{value.array.shape}\n  fix: pass one of this shape, or an empty one",
            UserWarning,
            stacklevel=users_stacklevel(),
        )
    out.array = array_module(out.array).empty(value.array.shape, out.array.dtype)
    mark_changed(out)
