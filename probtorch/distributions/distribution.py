"""`Distribution`: everything that distributions have in common.

A distribution states its parameters as fields (fields.py) and its mathematics in underscored
methods: `_log_prob(x)`, `_rsample(rng, shape)` or `_sample(rng, shape)`, `_mean()`, `_cdf(x)` and
so on. All else is made once: construction in fields.py, levels and moments in described.py, and
here the shapes, `expand`, `to_event`, `mask`, draws and densities with their checks. normal.py is
the example to imitate.

Three rules shape this file.

- `expand` changes `batch_shape` and nothing else. Parameters keep the shape they were given in;
  densities and draws broadcast. A scalar prior in a plate of a thousand stays a scalar in the
  compiled program.
- Validation looks at values, so it rests while a recorder is active. Then, and wherever it is
  switched off, a density is -inf with gradient 0 outside the support: `_density` puts an interior
  point in place of values outside, so that formulas may assume a value inside or on the boundary.
- Python numbers as parameters are float64 tensors without dims: exact in a float64 density, weak in
  a float32 one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.making import as_tensor
from probtorch.core.refusals import real_only
from probtorch.core.rng import Generator, generator_for
from probtorch.core.shape import Size, broadcast_shapes
from probtorch.core.signatures import also_called, explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.described import Described
from probtorch.distributions.fields import INSTANCE_STATE, Values, WithFields, setting
from probtorch.distributions.formulas import (
    at_most,
    known_true,
    sum_rightmost,
    with_event_dims,
)
from probtorch.distributions.source import Source
from probtorch.distributions.spelled import Spelled, told_of_classes
from probtorch.distributions.validation import check_value, enable_validation
from probtorch.errors import ArgumentError, NotDifferentiableError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import expand
from probtorch.tensor import Tensor

__all__ = [
    "Distribution",
    "ExpandedDistribution",
    "Independent",
    "MaskedDistribution",
]


class Distribution(WithFields, Described, Spelled):
    """A probability distribution over tensors.

    Parameters
    ----------
    *args, **kwargs
        The fields of the class, in order or by name: tensors, arrays, nested lists or numbers,
        broadcast against each other.
    validate_args : bool, optional
        Whether to check parameters now and values in `log_prob`. Without it the global setting
        holds (`enable_validation`, on unless changed). Compiled code makes the same checks.

    Raises
    ------
    DomainError
        If a parameter is outside its constraint.
    ShapeError
        If the parameters do not broadcast.
    ArgumentError
        If arguments are missing, unknown or in conflict.
    """

    has_enumerate_support = False

    if TYPE_CHECKING:
        validate_args: bool | None = setting(default=None, kw_only=True)

        @property
        def support(self) -> Constraint: ...
        def _enumerate_support(self) -> Tensor: ...
    else:
        support = constraints.dependent()

    # Whether the formula of `_log_prob` and its derivatives are finite for every real number, so
    # that outside the support its value can simply be discarded.
    _total = False
    # Whether values of integer dtype stay integers in `_log_prob` (categories are indices, counts
    # are numbers).
    _takes_integers = False

    # ------------------------------------------------------------------------------ for subclasses

    def _log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no density")

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        if self._written and type(self).sample is not Distribution.sample:
            return self._as_written("sample", rng, shape)
        return self._rsample(rng, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        if self._written and type(self).rsample is not Distribution.rsample:
            return self._as_written("rsample", rng, shape)
        raise NotImplementedError(f"{type(self).__name__} has no sampler")

    # ------------------------------------------------------------------------------ as in PyTorch

    def _as_written(self, name: str, rng: Source, shape: Shape) -> Tensor:
        """Return draws of a public method that the class overrides; `shape` is the whole shape."""
        before = len(shape) - len(self._batch_shape) - len(self._event_shape)
        return getattr(self, name)(shape[:before], generator=rng.generator)

    # By name the formulas that a class leads to its own public methods (`written.py`): what those
    # find by `super()`.
    _beneath: ClassVar[Mapping[str, Callable[..., Tensor]]] = {}

    def _formula(self, name: str) -> Callable[..., Tensor]:
        beneath = self._beneath.get(name)
        return getattr(self, name) if beneath is None else functools.partial(beneath, self)

    def _extended_shape(self, sample_shape: SizeLike = ()) -> Size:
        """`shape`, by the name that distributions written for PyTorch call."""
        return self.shape(sample_shape)

    def _validate_sample(self, value: Tensor) -> None:
        """Raise DomainError for a value outside the support: PyTorch's name."""
        self._check_value(self._as_value(value))

    def _get_checked_instance(self, cls: type, _instance: Self | None = None) -> Self:
        """Return a new instance to fill, as `expand` of PyTorch's distributions asks for one."""
        made = object.__new__(type(self)) if _instance is None else _instance
        made._written = self._written
        return made

    # ------------------------------------------------------------------------------ facts

    @property
    def batch_shape(self) -> Size:
        """Shape of independent copies with parameters of their own."""
        return Size(self._batch_shape)

    @property
    def event_shape(self) -> Size:
        """Shape of one draw of one copy."""
        return Size(self._event_shape)

    @property
    def event_dim(self) -> int:
        """Number of event dims."""
        return len(self._event_shape)

    @property
    def has_rsample(self) -> bool:
        """Whether `rsample` exists: draws that are differentiable in the parameters."""
        if self._written:
            return type(self).rsample is not Distribution.rsample
        return type(self)._rsample is not Distribution._rsample

    @property
    def is_discrete(self) -> bool:
        """Whether the support is discrete."""
        return self.support.is_discrete

    def shape(self, sample_shape: SizeLike = ()) -> Size:
        """Return the shape of `sample(sample_shape)`."""
        return Size((*_as_shape(sample_shape), *self._batch_shape, *self._event_shape))

    def event_shape_of(self, value_shape: SizeLike) -> Size:
        """Return the event shape of values of shape `value_shape`: of series without a given
        length it depends on those.
        """
        return self.event_shape

    # ------------------------------------------------------------------------------ validation

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Switch the default of `validate_args`; PyTorch's name for `enable_validation`."""
        enable_validation(value)

    def _check_value(self, value: Tensor) -> bool:
        """Refuse values outside the support or misshapen; return what `check_value` does."""
        support = self.support
        if value.array.ndim < support.event_dim:
            raise self._misshapen(value)
        inside = check_value(type(self).__name__, value, support)
        full = self._batch_shape + self._event_shape
        if value.array.shape != full:
            shape, n = value.array.shape, len(self._event_shape)
            if n and shape[len(shape) - n :] != self._event_shape:
                raise self._misshapen(value)
            broadcast_shapes(shape, full, op=f"{type(self).__name__}.log_prob")
        return inside

    def _misshapen(self, value: Tensor) -> ShapeError:
        return ShapeError(
            f"{type(self).__name__}.log_prob",
            expected=f"a value whose last dims are the event shape {tuple(self._event_shape)}",
            got=f"shape {value.array.shape}",
            fix="put the event dims last, for example with movedim",
        )

    # ------------------------------------------------------------------------------ draws

    def sample(self, sample_shape: SizeLike = (), generator: Generator | None = None) -> Tensor:
        """Draw without a gradient.

        Parameters
        ----------
        sample_shape : tuple of int
        generator : Generator, optional
            The default generator if None.

        Returns
        -------
        Tensor, shape ``sample_shape + batch_shape + event_shape``
        """
        before = set_grad_enabled(False)
        try:
            x = self._draw(self._formula("_sample"), sample_shape, generator)
        finally:
            set_grad_enabled(before)
        return x.detach() if x.requires_grad else x

    def rsample(self, sample_shape: SizeLike = (), generator: Generator | None = None) -> Tensor:
        """Draw by a differentiable function of the parameters; otherwise as `sample`.

        Raises
        ------
        NotDifferentiableError
            If the distribution has no such function.
        """
        if not self.has_rsample:
            raise NotDifferentiableError(
                f"{type(self).__name__}.rsample",
                expected="a distribution with pathwise gradients (has_rsample)",
                got=f"{type(self).__name__}, which has none",
                fix="use sample() with a score-function estimator, or enumerate a finite support",
            )
        return self._draw(self._formula("_rsample"), sample_shape, generator)

    def __call__(self, sample_shape: SizeLike = (), generator: Generator | None = None) -> Tensor:
        """Draw, with a gradient where there is one."""
        draw = self.rsample if self.has_rsample else self.sample
        return draw(sample_shape, generator)

    def _draw(
        self,
        method: Callable[[Source, Shape], Tensor],
        sample_shape: SizeLike,
        generator: Generator | None,
    ) -> Tensor:
        dtype = self._dtype or dtypes.default_dtype()
        if generator is not None and not isinstance(generator, Generator):
            raise ArgumentError(
                f"{type(self).__name__}.sample",
                expected="a shape, and a Generator after it",
                got=f"{type(generator).__name__} {generator!r:.40}",
                fix="write sample((3,), Generator(seed)): JAX's keys come first, generators last",
            )
        rng = Source(generator_for(generator), dtype, self._device)
        shape = (*_as_shape(sample_shape), *self._batch_shape, *self._event_shape)
        x = method(rng, shape)
        if x.array.dtype.kind == "f" and x.array.dtype != dtype:
            x = cast(x, dtype)
        return x if x.array.shape == shape else expand(x, shape)

    def sample_and_log_prob(
        self, sample_shape: SizeLike = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a draw (`rsample` where it exists) and its log density.

        Flows compute the density from the draw's pre-image instead of inverting themselves.
        """
        x = self(sample_shape, generator)
        return x, self.log_prob_inside(x)

    def remembering(self) -> Distribution:
        """Return the distribution that a sample statement draws from: this one, or a copy.

        Where a draw's pre-image is hard to find again, as in some flows, it is a copy that knows
        the density of its last draw. The density is that of the very tensor it returned, with the
        gradients of its parameters; gradients with respect to that tensor take a leaf in its place.
        """
        return self

    # ------------------------------------------------------------------------------ densities

    def log_prob(self, value: TensorLike) -> Tensor:
        """Return the log density (log mass) at `value`.

        Parameters
        ----------
        value : Tensor, array or number, shape (..., *event_shape)

        Returns
        -------
        Tensor, shape of the batch dims of `value` broadcast with `batch_shape`

        Raises
        ------
        DomainError
            If validation is on and `value` is outside the support. With validation off the result
            is -inf there, with gradient 0.
        """
        x = self._as_value(value)
        inside = self._validate_args and self._check_value(x)
        return self._answer(self._formula("_density")(x, inside), value)

    def log_prob_inside(self, value: TensorLike) -> Tensor:
        """`log_prob` of a value known to lie in the support: neither checked nor masked.

        For values made by `biject_to(support)` or by `sample`, whose density then has fewer ops.
        """
        return self._answer(self._density(self._as_value(value), True), value)

    def _as_value(self, value: TensorLike) -> Tensor:
        if not isinstance(value, TensorBase):
            exact = type(value) in (float, int, bool)
            value = wrap(np.array(value)) if exact else as_tensor(value, "log_prob")
        kind, dtype = value.array.dtype.kind, self._dtype
        if kind == "c":
            real_only(type(self).__name__, value)
        if kind in "bui" and not self._takes_integers:
            value = cast(value, dtype or dtypes.default_dtype())
        elif kind == "f" and dtype is not None and value.array.dtype.itemsize < dtype.itemsize:
            # What a density has of the value alone is to be as exact as the rest.
            value = cast(value, dtype)
        return value

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        """Log density; unless `value` is promised to be `inside`, -inf outside the support."""
        if self._written and type(self).log_prob is not Distribution.log_prob:
            return self.log_prob(value)
        if inside:
            return self._log_prob(value)
        support = self.support
        if isinstance(getattr(support, "base_constraint", support), constraints.Real):
            return self._log_prob(value)
        holds = support.check(value)
        if known_true(holds):
            return self._log_prob(value)
        if not self._total:
            value = where(with_event_dims(holds, support.event_dim), value, support.interior(value))
        return where(holds, self._log_prob(value), -math.inf)

    def _answer(self, x: Tensor, given: TensorLike | None = None) -> Tensor:
        """Return a result over the batch, no wider than the parameters and the value given."""
        dtype = self._dtype
        if dtype is not None and x.array.dtype is not dtype:
            x = at_most(x, dtype, given)
        return self._to_batch(x)

    def _to_batch(self, x: Tensor) -> Tensor:
        batch = self._batch_shape
        shape = x.array.shape
        if not batch or shape[len(shape) - len(batch) :] == batch:
            return x
        return expand(x, broadcast_shapes(shape, batch, op=f"{type(self).__name__}.log_prob"))

    # ------------------------------------------------------------------------------ shapes

    def expand(self, batch_shape: SizeLike, _instance: Self | None = None) -> Self:
        """Return the distribution with a larger batch shape; the new copies share the parameters.

        Parameters
        ----------
        batch_shape : tuple of int
            A shape that `self.batch_shape` broadcasts to; -1 keeps a size.
        _instance : Distribution, optional
            What classes written for PyTorch have made to be filled, see `_get_checked_instance`.

        Raises
        ------
        ShapeError
            If it does not.
        """
        new = _as_shape(batch_shape)
        old = tuple(self._batch_shape)
        pad = len(new) - len(old)
        if pad >= 0:
            new = tuple(old[i - pad] if s == -1 and i >= pad else s for i, s in enumerate(new))
        if pad < 0 or any(a not in (1, b) for a, b in zip(old, new[pad:])):
            raise ShapeError(
                f"{type(self).__name__}.expand",
                expected=f"a shape that the batch shape {old} broadcasts to",
                got=str(new),
                fix="only dims of size 1 and new leading dims can grow",
            )
        out = object.__new__(type(self)) if _instance is None else _instance
        out.__dict__.update(self.__dict__)
        out._batch_shape = new
        if new != old:
            out._expanded = new
        return out

    def expand_by(self, sample_shape: SizeLike) -> Self:
        """Return the distribution with `sample_shape` put in front of its batch shape."""
        return self.expand((*_as_shape(sample_shape), *self._batch_shape))

    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> Distribution:
        """Return the distribution whose rightmost batch dims (all if None) count as event dims."""
        n = reinterpreted_batch_ndims
        n = len(self._batch_shape) if n is None else n
        return self if n == 0 else Independent(self, n)

    def mask(self, mask: Tensor | np.ndarray | bool) -> Distribution:
        """Return the distribution with log density 0, and gradient 0, where `mask` is False."""
        return self if mask is True else MaskedDistribution(self, mask)


def _draws_have_paths(cls: type[Distribution]) -> bool:
    own = (cls._rsample, Distribution._rsample), (cls.rsample, Distribution.rsample)
    return any(method is not base for method, base in own)


setattr(  # noqa: B010  # mypy knows the property of instances
    Distribution,
    "has_rsample",
    told_of_classes(vars(Distribution)["has_rsample"], _draws_have_paths),
)


# ------------------------------------------------------------------------------ wrappers


def ExpandedDistribution(base_dist: Distribution, batch_shape: SizeLike = ()) -> Distribution:
    """Return ``base_dist.expand(batch_shape)``: NumPyro's and Pyro's name for it.

    No class of its own: every distribution carries a batch shape that may be larger than that of
    its parameters.
    """
    return base_dist.expand(batch_shape)


_Wrapper = TypeVar("_Wrapper", bound="Independent | MaskedDistribution")


def _with_base(wrapper: _Wrapper, base: Distribution) -> _Wrapper:
    """Return a wrapper of one distribution as one of another, of the same shape."""
    if base is wrapper.base_dist:
        return wrapper
    out = object.__new__(type(wrapper))
    out.__dict__.update(wrapper.__dict__, base_dist=base)
    return out


class Independent(Distribution):
    """A distribution whose rightmost batch dims count as event dims, their log densities summed.

    Density ``f(x) = prod(base(x))``.

    Parameters
    ----------
    base_distribution : Distribution
    reinterpreted_batch_ndims : int
        How many batch dims become event dims.
    """

    _mass_on_ends = True

    __static_fields__ = ("reinterpreted_batch_ndims", *INSTANCE_STATE)
    __tree_fields__ = ("base_dist",)

    @also_called(None, base_dist="base_distribution")
    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        n, batch = reinterpreted_batch_ndims, tuple(base_distribution._batch_shape)
        if not 0 <= n <= len(batch):
            raise ShapeError(
                "Independent",
                expected=f"between 0 and {len(batch)} dims of the batch shape {batch}",
                got=f"reinterpreted_batch_ndims={n}",
                fix="expand() the distribution first, or reinterpret fewer dims",
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = n
        base = base_distribution
        self._set_shapes(
            batch[: len(batch) - n],
            (*batch[len(batch) - n :], *base._event_shape),
            dtype=base._dtype,
            device=base._device,
            validate_args=base._validate_args if validate_args is None else validate_args,
        )
        self._takes_integers = base._takes_integers
        self.has_enumerate_support = base.has_enumerate_support and n == 0

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("base_dist", "reinterpreted_batch_ndims")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The base's support, over the event dims."""
        n = self.reinterpreted_batch_ndims
        return constraints.independent(self.base_dist.support, n) if n else self.base_dist.support

    @property
    def has_rsample(self) -> bool:
        """As the base."""
        return self.base_dist.has_rsample

    def remembering(self) -> Distribution:
        return _with_base(self, self.base_dist.remembering())

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.base_dist._rsample(rng, shape)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self.base_dist._sample(rng, shape)

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        base = self.base_dist
        return sum_rightmost(
            base._to_batch(base._density(value, inside)), self.reinterpreted_batch_ndims
        )

    def _cdf(self, value: Tensor) -> Tensor:
        # Of a vector: the probability that no element is above its own.
        return exp(self._log_cdf(value))

    def _log_cdf(self, value: Tensor) -> Tensor:
        base = self.base_dist
        return sum_rightmost(base._to_batch(base.log_cdf(value)), self.reinterpreted_batch_ndims)

    def _entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def _enumerate_support(self) -> Tensor:
        if not self.has_enumerate_support:
            raise NotImplementedError(
                "Independent does not enumerate the product of the supports of its dims"
            )
        return self.base_dist._enumerate_support()

    def _mean(self) -> Tensor:
        return self.base_dist.mean

    def _mode(self) -> Tensor:
        return self.base_dist.mode

    def _variance(self) -> Tensor:
        return self.base_dist.variance

    def _skewness(self) -> Tensor:
        return self.base_dist.skewness

    def _kurtosis(self) -> Tensor:
        return self.base_dist.kurtosis


class MaskedDistribution(Distribution):
    """A distribution with log density 0 where a mask is False, even where the value is nan.

    Density ``f(x) = base(x) if mask else 1``.

    Parameters
    ----------
    base_dist : Distribution
    mask : bool, or Tensor of bool that broadcasts with the batch shape
    """

    _mass_on_ends = True

    __tree_fields__ = ("base_dist", "_mask")

    def __init__(self, base_dist: Distribution, mask: Tensor | np.ndarray | bool) -> None:
        if not isinstance(mask, bool):
            mask = cast(as_tensor(mask, "mask"), dtypes.bool_)
            shape = tuple(base_dist._batch_shape)
            wide = broadcast_shapes(shape, mask.array.shape, op="mask")
            if wide != shape:
                base_dist = base_dist.expand(wide)
        base = self.base_dist = base_dist
        self._mask = mask
        self._set_shapes(
            base._batch_shape,
            base._event_shape,
            dtype=base._dtype,
            device=base._device,
            validate_args=base._validate_args,
        )
        self._takes_integers = base_dist._takes_integers
        self.has_enumerate_support = base_dist.has_enumerate_support

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("base_dist", "_mask")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """The base's support."""
        return self.base_dist.support

    @property
    def has_rsample(self) -> bool:
        """As the base."""
        return self.base_dist.has_rsample

    def log_prob(self, value: TensorLike) -> Tensor:
        """Return the base's log density where the mask is True, else 0 with gradient 0."""
        return self._masked(value, self.base_dist.log_prob)

    def log_prob_inside(self, value: TensorLike) -> Tensor:
        """`log_prob` of a value known to lie in the support wherever the mask is True."""
        return self._masked(value, self.base_dist.log_prob_inside)

    def _masked(self, value: TensorLike, density: Callable[[Tensor], Tensor]) -> Tensor:
        value, mask, support = self._as_value(value), self._mask, self.base_dist.support
        if mask is False:
            n = value.array.ndim - len(self._event_shape)
            shape = broadcast_shapes(value.array.shape[:n], self._batch_shape, op="mask")
            zero = wrap(np.zeros((), self._dtype or dtypes.default_dtype()))
            return expand(zero, shape)
        if mask is True:
            return self._to_batch(density(value))
        value = where(with_event_dims(mask, support.event_dim), value, support.interior(value))
        return self._to_batch(where(mask, density(value), 0.0))

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        return self._masked(
            value, self.base_dist.log_prob_inside if inside else self.base_dist.log_prob
        )

    def remembering(self) -> Distribution:
        return _with_base(self, self.base_dist.remembering())

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self.base_dist._rsample(rng, shape)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self.base_dist._sample(rng, shape)

    def _enumerate_support(self) -> Tensor:
        return self.base_dist._enumerate_support()

    def _mean(self) -> Tensor:
        return self.base_dist.mean

    def _mode(self) -> Tensor:
        return self.base_dist.mode

    def _variance(self) -> Tensor:
        return self.base_dist.variance


def _as_shape(shape: SizeLike) -> Shape:
    return (shape,) if isinstance(shape, int) else tuple(shape)


explain_calls(globals(), methods={"Distribution": "sample rsample expand"})
