"""What distributions over time have in common: a time dim in front of the event, and their parts.

A series is made of tensors and of other distributions, named in `_parts`, which are the leaves of
its tree. Parameters may have a time dim of their own in front of their event dims, of size 1 where
all steps share them; `Steps` sorts those that a loop over time takes slices of from the others.
Read `walks.py` for series whose values are seen, `hidden_markov.py` for those with hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import DType, Shape
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import INSTANCE_STATE, Given, Values, as_parameter
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import expand, movedim, reshape
from probtorch.tensor import Tensor

__all__ = ["Series", "Steps", "broadcast", "same_dtype", "whole_steps"]


class Series(Distribution):
    """A distribution made of the tensors and distributions named in `_parts`.

    Settings that are no leaves of the tree are named in `_told`.
    """

    _parts: ClassVar[tuple[str, ...]] = ()
    _told: ClassVar[tuple[str, ...]] = ()
    _at: str | None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.__static_fields__ = (*cls._told, *INSTANCE_STATE)

    def _take(self, **parts: Given | Distribution) -> None:
        """Set the parts, tensors made of what is none, and the dtype that they share."""
        self._strong: list[np.ndarray] = []
        for name, part in parts.items():
            if isinstance(part, Distribution):
                self.__dict__[name] = part
                self._note(part)
                continue
            value, weak = as_parameter(part, name)
            self.__dict__[name] = value
            if not weak:
                self._strong.append(value.array)

    def _note(self, part: Distribution) -> None:
        """Let a part take part in the dtype."""
        if part._dtype is not None:
            self._strong.append(np.empty(0, part._dtype))
            self._at = part._device or self.__dict__.get("_at")

    def _shape(self, batch: Shape, event: Shape, validate_args: bool | None) -> None:
        """Set the shapes; called after `_take`."""
        strong = self.__dict__.pop("_strong")
        dtype = dtypes.promote(strong) if strong else None
        on = next((device_of(x) for x in strong if type(x) is not np.ndarray), None)
        place = on or self.__dict__.pop("_at", None)
        self._set_shapes(batch, event, dtype=dtype, device=place, validate_args=validate_args)

    @property
    def __tree_fields__(self) -> tuple[str, ...]:
        return self._parts

    def _tree_names(self) -> tuple[str, ...]:
        return (*self._parts, *self._told)

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(**{n: values[n] for n in (*cls._parts, *cls._told)}, validate_args=False)


class Steps:
    """The parameters of a loop over `count` steps, in the dtype of the loop.

    Parameters
    ----------
    parts : dict from name to (Tensor, int)
        A parameter and the number of its event dims; the dim before those is time.
    count : int
    dtype : DType
    """

    def __init__(
        self, parts: Mapping[str, tuple[Tensor, int]], count: int, dtype: DType, owner: str
    ) -> None:
        self.fixed: dict[str, Tensor] = {}
        self.sliced: dict[str, Tensor] = {}
        self.batch: Shape = ()
        for name, (x, n) in parts.items():
            x = x if x.array.dtype == dtype else cast(x, dtype)
            shape = tuple(x.array.shape)
            cut = len(shape) - n
            if not cut:
                self.fixed[name] = x
                continue
            self.batch = broadcast_shapes(self.batch, shape[: cut - 1], op=owner)
            if shape[cut - 1] == 1:
                self.fixed[name] = reshape(x, (*shape[: cut - 1], *shape[cut:]))
            elif shape[cut - 1] == count:
                self.sliced[name] = movedim(x, cut - 1, 0)
            else:
                raise ShapeError(
                    owner,
                    expected=f"parameters for {count} steps, as many as the value has",
                    got=f"{name} for {shape[cut - 1]}",
                    fix="give values along all steps, or parameters whose time dim is 1",
                )

    def at(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all parameters of one step."""
        return {**self.fixed, **slices}


def broadcast(x: Tensor, batch: Shape, event_dim: int) -> Tensor:
    """Return `x` with the batch shape `batch` in front of its last `event_dim` dims."""
    shape = tuple(x.array.shape)
    full = (*batch, *shape[len(shape) - event_dim :])
    return x if shape == full else expand(x, full)


def whole_steps(owner: str, steps: object, name: str = "steps") -> int:
    """Return a number of steps; raise ArgumentError unless it is a whole number from 1 on."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(
            owner,
            expected=f"{name}, a whole number from 1 on",
            got=repr(steps),
            fix=f"write {owner}(..., {name}=10)",
        )
    return steps


def same_dtype(x: Tensor, like: Tensor) -> Tensor:
    """Return `x` in the dtype of `like`."""
    return x if x.array.dtype == like.array.dtype else cast(x, like.array.dtype)
