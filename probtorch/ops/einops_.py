"""The package einops on our tensors: ``einops.rearrange(x, "b c h w -> b (c h w)")``.

einops asks the subclasses of its `AbstractBackend` which of them knows a tensor. Ours is made as
soon as einops is imported, before probtorch or after it, and einops is not imported for it: a
finder at the front of `sys.meta_path` waits for the one module where backends live.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import contraction, extremes, movement, pieces, reduction, repeating

__all__ = ["make_backend"]

_BACKENDS = "einops._backends"
_OF_SEVERAL = {
    "sum": reduction.sum,
    "mean": reduction.mean,
    "min": extremes.amin,
    "max": extremes.amax,
}
_OF_ONE = {"any": reduction.any, "all": reduction.all, "prod": reduction.prod}


def make_backend(module: ModuleType) -> type:
    """Return the class with which einops computes on tensors; that it is there is enough."""

    class ProbtorchBackend(module.AbstractBackend):  # type: ignore[name-defined]
        framework_name = "probtorch"

        def is_appropriate_type(self, tensor: object) -> bool:
            return isinstance(tensor, TensorBase)

        def from_numpy(self, x: np.ndarray) -> TensorBase:
            return wrap(x)

        def to_numpy(self, x: TensorBase) -> np.ndarray:
            return x.numpy(force=True)

        def arange(self, start: int, stop: int) -> TensorBase:
            return wrap(np.arange(start, stop))

        def shape(self, x: TensorBase) -> tuple[int, ...]:
            return tuple(x.array.shape)

        def reshape(self, x: TensorBase, shape: Sequence[int]) -> TensorBase:
            return movement.reshape(x, tuple(shape))

        def transpose(self, x: TensorBase, axes: Sequence[int]) -> TensorBase:
            return movement.permute(x, tuple(axes))

        def reduce(self, x: TensorBase, operation: str, axes: Sequence[int]) -> TensorBase:
            if operation in _OF_SEVERAL:
                return _OF_SEVERAL[operation](x, tuple(axes))
            for dim in sorted(axes, reverse=True):
                x = _OF_ONE[operation](x, dim)
            return x

        def stack_on_zeroth_dimension(self, tensors: Sequence[TensorBase]) -> TensorBase:
            return pieces.stack(list(tensors))

        def add_axis(self, x: TensorBase, new_position: int) -> TensorBase:
            return movement.unsqueeze(x, new_position)

        def add_axes(self, x: TensorBase, n_axes: int, pos2len: dict[int, int]) -> TensorBase:
            sizes = [-1] * n_axes
            for position, size in pos2len.items():
                x = self.add_axis(x, position)
                sizes[position] = size
            return movement.expand(x, sizes)

        def tile(self, x: TensorBase, repeats: Sequence[int]) -> TensorBase:
            return repeating.tile(x, tuple(repeats))

        def concat(self, tensors: Sequence[TensorBase], axis: int) -> TensorBase:
            return pieces.cat(list(tensors), axis)

        def is_float_type(self, x: TensorBase) -> bool:
            return x.array.dtype.kind == "f"

        def einsum(self, pattern: str, *x: TensorBase) -> TensorBase:
            return contraction.einsum(pattern, *x)

    return ProbtorchBackend


# einops finds a class only as long as somebody has it.
_made: list[type] = []


def _register(module: ModuleType) -> None:
    if not _made and hasattr(module, "AbstractBackend"):
        _made.append(make_backend(module))


class _Waiting(MetaPathFinder):
    """Lets the other finders find einops' backends, and adds ours when they are imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _BACKENDS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module
                spec.loader.exec_module = functools.partial(_run, run)  # type: ignore[method-assign]
                return spec
        return None


def _run(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    _register(module)


if _BACKENDS in sys.modules:
    _register(sys.modules[_BACKENDS])
else:
    sys.meta_path.insert(0, _Waiting())
