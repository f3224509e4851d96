"""Helpers of `pyro.util` that scripts call by their names."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from probtorch.core.dispatch import recorder
from probtorch.core.rng import set_rng_seed
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.validation import enable_validation
from probtorch.ops.comparisons import isinf, isnan
from probtorch.tensor import Tensor

__all__ = [
    "enable_validation",
    "ignore_experimental_warning",
    "ignore_jit_warnings",
    "optional",
    "set_rng_seed",
    "torch_isinf",
    "torch_isnan",
    "warn_if_inf",
    "warn_if_nan",
]

Value = TypeVar("Value", Tensor, float)


def ignore_jit_warnings(filter: Iterable[object] | None = None) -> AbstractContextManager[None]:
    """Do nothing: for blocks of which PyTorch's tracer warns, where a recording here does not."""
    return contextlib.nullcontext()


def ignore_experimental_warning() -> AbstractContextManager[None]:
    """Do nothing: nothing here warns of being an experiment."""
    return contextlib.nullcontext()


def optional(
    context_manager: AbstractContextManager[object], condition: bool
) -> AbstractContextManager[object]:
    """Return a context manager, or one that does nothing if the condition is False."""
    return context_manager if condition else contextlib.nullcontext()


def torch_isnan(x: Tensor | float) -> Tensor | bool:
    """Whether a number is nan, or any element of a tensor."""
    return isnan(x).any() if isinstance(x, TensorBase) else math.isnan(x)


def torch_isinf(x: Tensor | float) -> Tensor | bool:
    """Whether a number is infinite, or any element of a tensor."""
    return isinf(x).any() if isinstance(x, TensorBase) else math.isinf(x)


def warn_if_nan(value: Value, msg: str = "") -> Value:
    """Warn if a tensor or its gradient has a nan, or a number is one; returns the value.

    Parameters
    ----------
    value : Tensor or number
    msg : str
        Said in the warning.

    Notes
    -----
    Code that is recorded to be compiled does not warn; `set_detect_anomaly` says where a nan of a
    backward pass comes from.
    """
    return _warned(value, msg, (("NaN", lambda x: x != x),))


def warn_if_inf(
    value: Value, msg: str = "", allow_posinf: bool = False, allow_neginf: bool = False
) -> Value:
    """Warn if a tensor or its gradient is infinite somewhere, or a number is; returns the value.

    Parameters
    ----------
    value : Tensor or number
    msg : str
        Said in the warning.
    allow_posinf, allow_neginf : bool
        Of which infinity not to warn.
    """
    kinds = []
    if not allow_posinf:
        kinds.append(("+inf", lambda x: x == math.inf))
    if not allow_neginf:
        kinds.append(("-inf", lambda x: x == -math.inf))
    return _warned(value, msg, tuple(kinds))


# What is said, and what finds it.
Kind = tuple[str, Callable[..., object]]


def _warned(value: Value, msg: str, kinds: tuple[Kind, ...]) -> Value:
    if recorder() is not None:
        return value
    # Who called the public function.
    frame = sys._getframe(2)
    file, line = frame.f_code.co_filename, frame.f_lineno

    def look(x: Tensor | float, msg: str) -> None:
        for name, finds in kinds:
            found = finds(x)
            if bool(found.any() if isinstance(found, TensorBase) else found):
                said = f"Encountered {name}{': ' + msg if msg else '.'}"
                warnings.warn_explicit(said, UserWarning, file, line)

    look(value, msg)
    if isinstance(value, TensorBase) and value.requires_grad:
        value.register_hook(lambda g: look(g, f"backward {msg}".rstrip()))
    return value
