"""Names for what optimizers take, in annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsFloat, TypeAlias, TypeVar

from probtorch.tensor import Tensor

__all__ = ["Given", "Group", "Options", "Params", "R", "Schedule"]

# A parameter group: the tensors under "params", and options by their names.
Group: TypeAlias = dict[str, Any]

# What is optimized; options instead of it, a function from a parameter's name to them, or a step
# size alone make a `PyroOptim`.
Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Mapping[str, object]]
Options: TypeAlias = Group | Callable[..., Group]
Given: TypeAlias = Params | Options | float

# From the number of steps before, a 0-d float64 tensor, to the size of this one.
Schedule: TypeAlias = Callable[[Tensor], float | Tensor]

# The loss that a closure returns.
R = TypeVar("R", bound=SupportsFloat)
