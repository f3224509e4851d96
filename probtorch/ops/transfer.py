"""Copies on other devices, and `to`, which converts the dtype too."""

from __future__ import annotations

from typing import Any

import numpy as np

from probtorch.backends.registry import device_of, parse_device, to_device, usable
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply
from probtorch.core.memory_format import memory_format as MemoryFormat
from probtorch.core.op import Op, register
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike

__all__ = ["elsewhere", "to"]

_TO_DEVICE = register(
    Op(
        "to_device",
        "transfer",
        to_device,
        lambda g, out, inputs, attrs, needs: (g.to(device=device_of(inputs[0].array)),),
        lambda tangents, out, inputs, attrs: tangents[0].to(device=attrs["device"]),
        saves=(),
        core="()->()",
        samples=lambda rng: [((rng.standard_normal((2, 3)),), {"device": "cpu"})],
        reference=lambda x, device: x,
        doc="A copy on another device.",
    )
)


def to(
    t: TensorBase,
    *args: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    copy: bool = False,
    non_blocking: bool = False,
    memory_format: MemoryFormat | None = None,
) -> TensorBase:
    """Return the tensor with another dtype, on another device, or like another tensor.

    `non_blocking` and `memory_format` are taken for PyTorch's sake: a copy to a GPU never waits,
    and elements lie as they do.
    """
    for a in args:
        if isinstance(a, TensorBase):
            dtype, device = a.array.dtype, device_of(a.array)
        elif a is None or isinstance(a, bool):
            continue
        elif (
            isinstance(a, np.dtype)
            or any(a is kind for kind in (float, int, bool, complex))
            or (isinstance(a, type) and issubclass(a, np.generic))
        ):
            dtype = a
        else:
            device = a
    out = t
    if device is not None and elsewhere(t.array, device):
        out = apply(_TO_DEVICE, (t,), {"device": str(device)})
    if dtype is not None:
        out = cast(out, dtypes.as_dtype(dtype))
    return out.clone() if copy and out is t else out


def elsewhere(array: np.ndarray, device: str) -> bool:
    """Whether `array` is not on `device`; "cuda" means the GPU in use."""
    kind, index = parse_device(usable(device))
    here_kind, here_index = parse_device(device_of(array))
    return kind != here_kind or index not in (None, here_index)
