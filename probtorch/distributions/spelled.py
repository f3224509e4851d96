"""What PyTorch, Pyro and NumPyro call the methods of every distribution, beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.shape import Size
from probtorch.core.typed import SizeLike
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["Spelled"]


class _Shaped(Protocol):
    """A distribution, of which this module may know no more."""

    def sample(self, sample_shape: SizeLike = (), generator: Generator | None = None) -> Tensor: ...
    def expand_by(self, sample_shape: SizeLike) -> Distribution: ...
    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> Distribution: ...


class Spelled:
    """Methods under other libraries' names."""

    @classmethod
    def infer_shapes(cls, **arg_shapes: SizeLike) -> tuple[Size, Size]:
        """Return batch shape and event shape of a distribution from the shapes of its arguments.

        Parameters
        ----------
        **arg_shapes : tuple of int
            By the names of tensors that the class takes; settings such as sizes as they are.
        """
        arguments: dict[str, Any] = {
            name: np.broadcast_to(0.5, shape) if isinstance(shape, tuple | list) else shape
            for name, shape in arg_shapes.items()
        }
        made = cls(**arguments, validate_args=False)  # type: ignore[call-arg]  # of every subclass
        return made.batch_shape, made.event_shape  # type: ignore[attr-defined]  # of every subclass

    def sample_n(self: _Shaped, n: int) -> Tensor:
        """Return ``sample((n,))``: PyTorch's older name."""
        return self.sample((n,))

    def independent(self: _Shaped, reinterpreted_batch_ndims: int | None = None) -> Distribution:
        """Return ``to_event(reinterpreted_batch_ndims)``: Pyro's older name."""
        return self.to_event(reinterpreted_batch_ndims)

    def reshape(
        self: _Shaped, sample_shape: SizeLike = (), extra_event_dims: int | None = None
    ) -> Distribution:
        """Return ``expand_by(sample_shape).to_event(extra_event_dims)``: Pyro's older name."""
        wide = self.expand_by(sample_shape)
        return wide if extra_event_dims is None else wide.to_event(extra_event_dims)
