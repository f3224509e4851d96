"""Distributions given by draws: weighted values, and a proposal of which some are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, SizeLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given, Values, as_parameter, as_size
from probtorch.distributions.formulas import with_event_dims
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import log_softmax, logsumexp
from probtorch.ops.exponentials import exp
from probtorch.ops.extremes import argmax
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.sorting import argsort
from probtorch.tensor import Tensor

__all__ = ["Empirical", "Rejector"]


class Empirical(Distribution):
    """The distribution of given values, each with its weight.

    Probability ``p(x) = sum(w[i] if samples[i] == x else 0 for i in range(len(w)))`` with ``w =
    exp(log_weights) / sum(exp(log_weights))``.

    Parameters
    ----------
    samples : Tensor, shape (..., n, *event)
        The values, numbers or whole numbers.
    log_weights : Tensor, shape (..., n)
        Logs of their weights, which need not be normalised. Its shape says which dims of `samples`
        are those of the event.

    Notes
    -----
    Equal values count together: the mass of a value is the sum of their weights, and a value that
    is none of them has none. The signature is Pyro's; moments of whole numbers are allowed.
    """

    _mass_on_ends = True

    __tree_fields__ = ("samples", "log_weights")
    __static_fields__ = ("_expanded", "_validate_args", "_weak")
    has_enumerate_support = True

    def __init__(
        self, samples: Given, log_weights: Given, *, validate_args: bool | None = None
    ) -> None:
        self.samples = as_parameter(samples, "samples", as_is=True)[0]
        self.log_weights = as_parameter(log_weights, "log_weights")[0]
        shape, weights = self.samples.array.shape, self.log_weights.array.shape
        if not weights or shape[: len(weights)] != weights or not weights[-1]:
            raise ShapeError(
                "Empirical",
                expected="log_weights of shape (..., n), the first dims of samples",
                got=f"samples of shape {shape}, log_weights {weights}",
                fix="give each value one weight",
            )
        is_float = self.samples.array.dtype.kind == "f"
        dtype = self.samples.array.dtype if is_float else self.log_weights.array.dtype
        event = shape[len(weights) :]
        self._set_shapes(weights[:-1], event, dtype=dtype, validate_args=validate_args)
        self._takes_integers = not is_float

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("samples", "log_weights")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """All arrays of the event's shape; what is no sample has a density of 0."""
        return constraints.independent(constraints.real, len(self._event_shape))

    @property
    def sample_size(self) -> int:
        """Number of values."""
        return self.log_weights.array.shape[-1]

    def get_samples_and_weights(self) -> tuple[Tensor, Tensor]:
        """Return the values and the logs of their weights, as given."""
        return self.samples, self.log_weights

    def _log_shares(self) -> Tensor:
        return log_softmax(self.log_weights, -1)

    def _shares(self) -> Tensor:
        """Weights that sum to 1, with the dims of the samples."""
        w = exp(self._log_shares())
        return reshape(w, (*w.array.shape, *(1,) * len(self._event_shape)))

    def _numbers(self) -> Tensor:
        whole = self._takes_integers
        return cast(self.samples, self.log_weights.array.dtype) if whole else self.samples

    def _log_prob(self, x: Tensor) -> Tensor:
        n = len(self._event_shape)
        same = eq(unsqueeze(x, -1 - n), self.samples)
        if n:
            same = every(same, tuple(range(-n, 0)))
        return logsumexp(where(same, self._log_shares(), -math.inf), -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        n = len(self._event_shape)
        batch = shape[: len(shape) - n]
        index = rng.categorical(exp(self._log_shares()), batch)
        index = expand(reshape(index, (*batch, *(1,) * (n + 1))), (*batch, 1, *shape[len(batch) :]))
        wide = expand(self.samples, (*batch, self.sample_size, *shape[len(batch) :]))
        return reshape(gather(wide, len(batch), index), shape)

    def _enumerate_support(self) -> Tensor:
        if self._batch_shape:
            raise ArgumentError(
                "Empirical.enumerate_support",
                expected="one set of values, without a batch",
                got=f"batch shape {tuple(self._batch_shape)}",
                fix="enumerate one batch element at a time",
            )
        return self.samples

    def _averaged(self, values: Tensor) -> Tensor:
        return total(self._shares() * values, len(self.log_weights.array.shape) - 1)

    def _apart(self) -> Tensor:
        return self._numbers() - unsqueeze(self._mean(), len(self.log_weights.array.shape) - 1)

    def _mean(self) -> Tensor:
        return self._averaged(self._numbers())

    def _variance(self) -> Tensor:
        return self._averaged(self._apart() ** 2)

    def _skewness(self) -> Tensor:
        return self._averaged(self._apart() ** 3) / self._variance() ** 1.5

    def _kurtosis(self) -> Tensor:
        return self._averaged(self._apart() ** 4) / self._variance() ** 2 - 3.0

    def _log_masses(self) -> Tensor:
        """The log mass of each sample, with all samples equal to it."""
        k = len(self.log_weights.array.shape) - 1
        return movedim(self._log_prob(movedim(self.samples, k, 0)), 0, -1)

    def _mode(self) -> Tensor:
        n, k = len(self._event_shape), len(self.log_weights.array.shape) - 1
        index = argmax(self._log_masses(), -1)
        index = reshape(index, (*index.array.shape, *(1,) * (n + 1)))
        shape = self.samples.array.shape
        best = gather(self.samples, k, expand(index, (*shape[:k], 1, *shape[k + 1 :])))
        return reshape(best, (*shape[:k], *shape[k + 1 :]))

    def _entropy(self) -> Tensor:
        w = self._log_shares()
        some = w > -math.inf
        return -total(where(some, exp(w) * where(some, self._log_masses(), 0.0), 0.0), -1)

    def _cdf(self, x: Tensor) -> Tensor:
        below = self.samples <= unsqueeze(x, -1)
        return total(where(below, exp(self._log_shares()), 0.0), -1)

    def _icdf(self, p: Tensor) -> Tensor:
        order = argsort(self.samples, -1)
        levels = cumsum(gather(exp(self._log_shares()), -1, order), -1)
        place = total(cast(levels < unsqueeze(p, -1), int64), -1, True)
        batch = place.array.shape[:-1]
        row = expand(gather(self.samples, -1, order), (*batch, self.sample_size))
        last = place * 0 + (self.sample_size - 1)
        return gather(row, -1, where(place < self.sample_size, place, last))[..., 0]


class Rejector(Distribution):
    """Draws of a proposal, each kept with a probability of its own.

    Density ``f(x) = base(x) * exp(log_prob_accept(x) - log_scale)``.

    Parameters
    ----------
    propose : Distribution
        Of the draws.
    log_prob_accept : callable
        From draws, shape (..., *event), to the logs of the probabilities to keep them.
    log_scale : Tensor or number
        Log of the probability that a draw is kept.
    batch_shape, event_shape : tuple of int, optional
        By default those of `propose`.

    Notes
    -----
    Draws are made until all are kept, and have no pathwise gradient: how often they were refused
    depends on the parameters. In compiled code that loop runs in Python.
    """

    __tree_fields__ = ("propose", "log_scale")
    __static_fields__ = ("log_prob_accept", "_expanded", "_validate_args", "_weak")

    def __init__(
        self,
        propose: Distribution,
        log_prob_accept: Callable[[Tensor], Tensor],
        log_scale: Given,
        *,
        batch_shape: SizeLike | None = None,
        event_shape: SizeLike | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.propose, self.log_prob_accept = propose, log_prob_accept
        self.log_scale = as_parameter(log_scale, "log_scale")[0]
        batch = tuple(propose._batch_shape) if batch_shape is None else as_size(batch_shape)
        event = tuple(propose._event_shape) if event_shape is None else as_size(event_shape)
        self._set_shapes(
            broadcast_shapes(batch, self.log_scale.array.shape, op="Rejector"),
            event,
            dtype=propose._dtype,
            device=propose._device,
            validate_args=validate_args,
        )
        self._takes_integers = propose._takes_integers

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(values["propose"], values["log_prob_accept"], values["log_scale"])

    def _tree_names(self) -> tuple[str, ...]:
        return ("propose", "log_scale")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """That of the proposal."""
        return self.propose.support

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        proposed = self.propose._to_batch(self.propose._density(value, inside))
        return proposed + self.log_prob_accept(value) - self.log_scale

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        n = len(self._event_shape)
        batch = shape[: len(shape) - n]
        x, kept = self._proposed(rng, shape, batch)
        while not bool(kept.all()):
            y, good = self._proposed(rng, shape, batch)
            x = where(with_event_dims(kept, n), x, y)
            kept = kept | good
        return x

    def _proposed(self, rng: Source, shape: Shape, batch: Shape) -> tuple[Tensor, Tensor]:
        """Draw, and say which of the draws are kept."""
        x = expand(self.propose._sample(rng, shape), shape)
        return x, rng.uniform(batch) < exp(self.log_prob_accept(x))


explain_calls(globals())
