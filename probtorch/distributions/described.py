"""`Described`: what a distribution says of itself besides draws and densities.

Levels (cdf and its kin), entropy, a finite support, moments. A class states the underscored method
where there is a closed form; what it states none of is found by a search (quantiles.py), by a
finite sum, or by quadrature (facts.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import cast as as_type

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, Shape, TensorLike
from probtorch.distributions.ends import log_of_rest, of_probability, with_ends
from probtorch.distributions.facts import FACTS, has_facts
from probtorch.distributions.far_tails import log_of_tail
from probtorch.distributions.formulas import at_most, grown
from probtorch.distributions.quantiles import quantile
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.constraints import Constraint
    from probtorch.distributions.distribution import Distribution

__all__ = ["Described"]


class Described:
    """The half of `Distribution` that answers questions."""

    # Whether there may be mass on an end of the support, as of what is inflated or made of others.
    _mass_on_ends = False
    # Whether levels have no slope at a lower, an upper end that counts to the support, where the
    # density may be infinite.
    _flat_ends = False, False

    if TYPE_CHECKING:
        _batch_shape: Shape
        _event_shape: Shape
        _dtype: DType | None
        has_enumerate_support: bool

        @property
        def support(self) -> Constraint: ...
        @property
        def is_discrete(self) -> bool: ...
        def log_prob_inside(self, value: TensorLike) -> Tensor: ...
        def _as_value(self, value: TensorLike) -> Tensor: ...
        def _answer(self, x: Tensor, given: TensorLike | None = None) -> Tensor: ...
        def _log_cdf(self, value: Tensor) -> Tensor: ...
        def _survival(self, value: Tensor) -> Tensor: ...
        def _log_survival(self, value: Tensor) -> Tensor: ...

    def cdf(self, value: TensorLike) -> Tensor:
        """Return the probability of a draw at or below `value`."""
        return self._level(lambda x: self._ask("_cdf", "cdf", x), value, 0.0, 1.0)

    def icdf(self, value: TensorLike) -> Tensor:
        """Return the quantile: the least x with ``cdf(x) >= value``, for value in [0, 1].

        In closed form where there is one, else by a search on the cdf whose gradient is that of the
        implicit function.
        """
        p = value if isinstance(value, TensorBase) else as_tensor(value, "icdf")
        searched = not hasattr(self, "_icdf") and hasattr(self, "_cdf") and not self._event_shape
        if searched:
            p = p if self._dtype is None or p.array.dtype.kind == "f" else cast(p, self._dtype)
            return self._answer(quantile(as_type("Distribution", self), p), value)
        if self._event_shape:
            return self._answer(self._ask("_icdf", "icdf", p), value)
        return self._answer(of_probability(lambda q: self._ask("_icdf", "icdf", q), p), value)

    def log_cdf(self, value: TensorLike) -> Tensor:
        """Return the log of the probability of a draw at or below `value`."""

        def level(x: Tensor) -> Tensor:
            if hasattr(self, "_log_cdf"):
                return self._log_cdf(x)
            return log_of_tail(as_type("Distribution", self), self._ask("_cdf", "cdf", x), x, False)

        return self._level(level, value, -math.inf, 0.0)

    def survival(self, value: TensorLike) -> Tensor:
        """Return the probability of a draw above `value`: 1 - cdf, exact where that is small."""

        def level(x: Tensor) -> Tensor:
            if hasattr(self, "_survival"):
                return self._survival(x)
            if hasattr(self, "_log_survival"):
                return exp(self._log_survival(x))
            return 1.0 - self._ask("_cdf", "cdf", x)

        return self._level(level, value, 1.0, 0.0)

    def log_survival(self, value: TensorLike) -> Tensor:
        """Return the log of the probability of a draw above `value`."""

        def level(x: Tensor) -> Tensor:
            if hasattr(self, "_log_survival"):
                return self._log_survival(x)
            if hasattr(self, "_survival"):
                return log_of_tail(as_type("Distribution", self), self._survival(x), x, True)
            return log_of_rest(self._ask("_cdf", "cdf", x))

        return self._level(level, value, 0.0, -math.inf)

    def _level(
        self,
        level: Callable[[Tensor], Tensor],
        value: TensorLike,
        below: float,
        above: float,
    ) -> Tensor:
        x = self._as_value(value)
        if self._event_shape:
            return self._answer(level(x), value)
        support, flat = self.support, (False, False)
        if not (self._mass_on_ends or self.is_discrete):
            # At an end of the support levels have the slope of the density; a logarithm that is
            # -inf there, or the level beside an end that does not count to it, has none.
            ends, open_ends, infinite = self._flat_ends, support.open_ends, -math.inf
            flat = (
                ends[0] or open_ends[0] or below == infinite,
                ends[1] or open_ends[1] or above == infinite,
            )
        return self._answer(with_ends(level, x, support, below, above, flat=flat), value)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, shape `batch_shape`: a closed form or a finite sum."""
        if self.has_enumerate_support and not hasattr(self, "_entropy"):
            log_p = self.log_prob_inside(self.enumerate_support())
            never = log_p == -math.inf
            log_p = where(never, 0.0, log_p)
            return self._answer(-total(where(never, 0.0, exp(log_p) * log_p), 0))
        return self._answer(self._fact("_entropy", "entropy"))

    def perplexity(self) -> Tensor:
        """Return exp(entropy)."""
        return exp(self.entropy())

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values of a finite support along a new first dim.

        Parameters
        ----------
        expand : bool
            Whether to repeat them over the batch; otherwise the batch dims have size 1.

        Returns
        -------
        Tensor, shape ``(cardinality, *batch_shape, *event_shape)``
        """
        values = self._ask("_enumerate_support", "finite support")
        if self._dtype is not None:
            values = at_most(values, self._dtype)
        n, event = values.array.shape[0], self._event_shape
        values = reshape(values, (n, *(1,) * len(self._batch_shape), *event))
        return grown(values, (n, *self._batch_shape, *event)) if expand else values

    # ------------------------------------------------------------------------------ moments

    @property
    def mean(self) -> Tensor:
        """Mean, shape ``batch_shape + event_shape``."""
        return self._moment("_mean", "mean")

    @property
    def mode(self) -> Tensor:
        """A point of highest density, shape ``batch_shape + event_shape``."""
        return self._moment("_mode", "mode")

    @property
    def variance(self) -> Tensor:
        """Variance of each element, shape ``batch_shape + event_shape``."""
        return self._moment("_variance", "variance")

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of each element."""
        return sqrt(self.variance)

    @property
    def skewness(self) -> Tensor:
        """Third central moment over the cube of the standard deviation."""
        return self._moment("_skewness", "skewness")

    @property
    def kurtosis(self) -> Tensor:
        """Fourth central moment over the squared variance, less 3: 0 for a normal."""
        return self._moment("_kurtosis", "kurtosis")

    def _moment(self, method: str, what: str) -> Tensor:
        x = self._fact(method, what)
        if self._dtype is not None:
            x = at_most(x, self._dtype)
        if self._dtype is not None or x.array.dtype.kind != "f":
            return grown(x, self._batch_shape + self._event_shape)
        return cast(grown(x, self._batch_shape + self._event_shape), dtypes.default_dtype())

    def _fact(self, method: str, what: str) -> Tensor:
        """Return what the class states, or what facts.py finds by quadrature."""
        this = as_type("Distribution", self)
        if not hasattr(self, method) and has_facts(this):
            return FACTS[method](this)
        return self._ask(method, f"closed-form {what}")

    def _ask(self, method: str, what: str, *args: Tensor) -> Tensor:
        found = getattr(self, method, None)
        if found is None:
            raise NotImplementedError(f"{type(self).__name__} has no {what}")
        return found(*args)
