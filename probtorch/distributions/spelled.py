"""What PyTorch, Pyro and NumPyro call the methods of every distribution, beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.shape import Size
from probtorch.core.typed import SizeLike
from probtorch.errors import UnknownNameError
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.distributions.fields import Parameter, Values

__all__ = ["Spelled", "told_of_classes"]


class told_of_classes(property):
    """A property that a class can be asked for, too, as it can in PyTorch.

    Parameters
    ----------
    of_instance : property
    of_class : callable
        From the class to what it says.
    """

    def __init__(self, of_instance: property, of_class: Callable[[Any], object]) -> None:
        super().__init__(of_instance.fget, doc=of_instance.__doc__)
        self.of_class = of_class

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.of_class(owner) if instance is None else super().__get__(instance, owner)


class _Shaped(Protocol):
    """A distribution, of which this module may know no more."""

    _alternatives: ClassVar[tuple[str, ...]]
    _fields: ClassVar[dict[str, Parameter]]
    _batch_shape: Size

    def _given(self, name: str) -> bool: ...
    def sample(self, sample_shape: SizeLike = (), generator: Generator | None = None) -> Tensor: ...
    def expand_by(self, sample_shape: SizeLike) -> Distribution: ...
    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> Distribution: ...


# What other libraries' distributions have, and what to write.
_METHODS = {
    "conjugate_update": "probtorch.distributions.products.conjugate_update(d, other)",
    "get_args": "d.arg_constraints has the names, getattr(d, name) the values",
    "has_rsample_": "infer={'estimator': 'score'} in the sample statement",
    "isf": "d.icdf(1 - p)",
    "log_survival_function": "d.log_survival(x)",
    "logcdf": "d.log_cdf(x)",
    "logp": "d.log_prob(x)",
    "logpdf": "d.log_prob(x)",
    "logpmf": "d.log_prob(x)",
    "logsf": "d.log_survival(x)",
    "pdf": "d.log_prob(x).exp()",
    "pmf": "d.log_prob(x).exp()",
    "ppf": "d.icdf(p)",
    "prob": "d.log_prob(x).exp()",
    "quantile": "d.icdf(p)",
    "random": "d.sample(shape)",
    "rv": "transforms and arithmetic of draws, or TransformedDistribution",
    "rvs": "d.sample(shape)",
    "score_parts": "infer={'estimator': ...} in the sample statement; see probtorch.estimators",
    "sf": "d.survival(x)",
    "std": "d.stddev",
    "survival_function": "d.survival(x)",
    "var": "d.variance",
}


class Spelled:
    """Methods under other libraries' names, and parameters under theirs."""

    _also: ClassVar[Mapping[str, str | None]]

    if not TYPE_CHECKING:
        # A checker knows what there is.
        def __getattr__(self, name: str) -> object:
            meant = None if name.startswith("_") else type(self)._also.get(name)
            if meant is not None:
                return getattr(self, meant)
            if name not in _METHODS or hasattr(type(self), name):
                above = getattr(super(), "__getattr__", None)
                if above is not None:  # a class may be a module, too, whose tensors are found there
                    return above(name)
                # Again, for the words of whoever refused it.
                return object.__getattribute__(self, name)
            raise UnknownNameError(
                f"{type(self).__name__!r} object has no attribute {name!r}",
                expected="a method or parameter of the distribution d",
                got=repr(name),
                fix=f"write {_METHODS[name]}",
            )

    @classmethod
    def infer_shapes(cls, **arg_shapes: SizeLike) -> tuple[Size, Size]:
        """Return batch shape and event shape of a distribution from the shapes of its arguments.

        Parameters
        ----------
        **arg_shapes : tuple of int
            By the names of tensors that the class takes; settings such as sizes as they are.
        """
        arguments: Values = {
            name: np.broadcast_to(0.5, shape) if isinstance(shape, tuple | list) else shape
            for name, shape in arg_shapes.items()
        }
        made = cls(**arguments, validate_args=False)  # type: ignore[call-arg]  # of every subclass
        return made.batch_shape, made.event_shape  # type: ignore[attr-defined]  # of every subclass

    @property
    def param_shape(self: _Shaped) -> Size:
        """Shape of the alternative that was given, such as `probs`, over the whole batch."""
        given = next((n for n in self._alternatives if self._given(n)), None)
        if given is None:
            raise AttributeError(f"{type(self).__name__!r} has no attribute 'param_shape'")
        constraint = self._fields[given].constraint
        dims = 0 if constraint is None else constraint.event_dim
        shape = self.__dict__[given].array.shape
        return Size((*self._batch_shape, *shape[len(shape) - dims :]))

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
