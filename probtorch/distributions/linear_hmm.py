"""Linear state space models with noise of any distribution, and series side by side.

Signatures are Pyro's. Where all noise is normal the density is that of the Kalman filter in
`kalman.py`, which `gaussian_hmm.py` builds upon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution, Independent
from probtorch.distributions.fields import Given
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.hidden_markov import HiddenMarkovModel
from probtorch.distributions.kalman import (
    Filtered,
    LinearGaussian,
    kalman,
)
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.series import Steps, broadcast, same_dtype
from probtorch.distributions.source import Source
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.vectors import LowRankMultivariateNormal
from probtorch.errors import ShapeError
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["NAMES", "IndependentHMM", "LinearHMM", "mean_and_covariance"]

NAMES = (
    "initial_dist",
    "transition_matrix",
    "transition_dist",
    "observation_matrix",
    "observation_dist",
)


class LinearHMM(HiddenMarkovModel):
    """Linear states and observations, with noise of any distribution.

    A state is drawn; then at each step z = z @ transition_matrix + noise of the transition, and
    x = z @ observation_matrix + noise of the observation.

    Density ``f(x) = integral(initial_dist(z[0]) * prod(transition_dist(z[t + 1] - transpose(A) @
    z[t]) * observation_dist(x[t] - transpose(H) @ z[t + 1]) for t in range(n)) for z in states(n +
    1))`` with ``n = len(x)`` and ``A = transition_matrix`` and ``H = observation_matrix``.

    There the integral is over all states; transforms of the values have their Jacobian besides.

    Parameters
    ----------
    initial_dist : Distribution, event shape (h,)
        Of the state before the first step.
    transition_matrix : Tensor, shape (..., h, h) or (..., steps or 1, h, h)
        Rows are old states, columns new ones.
    transition_dist : Distribution, event shape (h,), batch shape (...) or (..., steps or 1)
        A batch shape that is not () ends with time, as Pyro has it; so for the observation.
    observation_matrix : Tensor, shape (..., h, n) or (..., steps or 1, h, n)
    observation_dist : Distribution, event shape (n,)
        Transforms of it are applied to the observation as a whole.
    validate_args : bool, optional
    duration : int, optional
        Number of steps, for draws where no parameter has a time dim.

    Raises
    ------
    ShapeError
        If the parameters do not agree in sizes or steps.

    Notes
    -----
    The signature is Pyro's. There is a density where all noise is normal. Of other noise it has no
    closed form: condition on the scales of a mixture of normals, or sample the states as a site.
    """

    _parts: ClassVar[tuple[str, ...]] = NAMES
    initial_dist: Distribution
    transition_matrix: Tensor
    transition_dist: Distribution
    observation_matrix: Tensor
    observation_dist: Distribution

    def __init__(
        self,
        initial_dist: Distribution,
        transition_matrix: Given,
        transition_dist: Distribution,
        observation_matrix: Given,
        observation_dist: Distribution,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        values: tuple[Given | Distribution, ...] = (
            initial_dist,
            transition_matrix,
            transition_dist,
            observation_matrix,
            observation_dist,
        )
        self._take(**dict(zip(NAMES, values, strict=True)))
        self._arrange(duration, validate_args)

    def _arrange(self, duration: int | None, validate_args: bool | None, batch: Shape = ()) -> None:
        owner, H = type(self).__name__, self.observation_matrix
        F = self.transition_matrix
        h, n = H.array.shape[-2:] if H.array.ndim > 1 else (0, 0)
        events = [getattr(self, name)._event_shape for name in (NAMES[0], NAMES[2], NAMES[4])]
        if F.array.shape[-2:] != (h, h) or [*map(tuple, events)] != [(h,), (h,), (n,)]:
            raise ShapeError(
                owner,
                expected="event shapes (h,), (h,), (n,) and matrices (..., h, h), (..., h, n)",
                got=f"{', '.join(str(tuple(e)) for e in events)} and "
                f"{tuple(F.array.shape)}, {tuple(H.array.shape)}",
                fix="make one row of the observation matrix for each element of the state",
            )
        self.hidden_dim, self.obs_dim = h, n
        shape = broadcast_shapes(
            (*batch, 1),
            (*self.initial_dist._batch_shape, 1),
            F.array.shape[:-2],
            tuple(self.transition_dist._batch_shape),
            H.array.shape[:-2],
            tuple(self.observation_dist._batch_shape),
            op=owner,
        )
        self._shape_over(shape, (n,), duration, validate_args)

    @constraints.dependent_property(event_dim=2, is_discrete=False)
    def support(self) -> Constraint:
        """That of the observations, over time."""
        last = self._transforms()
        if not last:
            return constraints.real_matrix
        inner = self.observation_dist.support
        return constraints.independent(inner, 2 - inner.event_dim)

    @property
    def has_rsample(self) -> bool:
        """Whether all noise has it."""
        return all(getattr(self, n).has_rsample for n in (NAMES[0], NAMES[2], NAMES[4]))

    def _transforms(self) -> tuple[Transform, ...]:
        d = self.observation_dist
        return tuple(d.transforms) if isinstance(d, TransformedDistribution) else ()

    def _noise(self) -> Distribution:
        d = self.observation_dist
        return d.base_dist if isinstance(d, TransformedDistribution) else d

    def _model(self) -> LinearGaussian:
        owner = type(self).__name__
        loc, cov = mean_and_covariance(owner, self.initial_dist)
        c, Q = mean_and_covariance(owner, self.transition_dist)
        d, R = mean_and_covariance(owner, self._noise())
        return LinearGaussian(loc, cov, self.transition_matrix, c, Q, self.observation_matrix, d, R)

    def _log_prob(self, value: Tensor) -> Tensor:
        slope = None
        for transform in reversed(self._transforms()):
            before = transform.inv(value)
            change = transform.log_abs_det_jacobian(before, value)
            n = transform.domain.event_dim
            change = broadcast(change, value.array.shape[: value.array.ndim - n], 0)
            change = sum_rightmost(change, 2 - n)
            slope = change if slope is None else slope + change
            value = before
        density = self._of_seen(kalman(self._model(), value))
        return density if slope is None else density - slope

    def _of_seen(self, found: Filtered) -> Tensor:
        return found.square * -0.5 - (found.half_log_det + found.seen * HALF_LOG_2PI)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, "_sample")

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(rng, shape, "_rsample")

    def _run(self, rng: Source, shape: Shape, how: str) -> Tensor:
        self._needs_duration("sample")
        batch, count, h = shape[:-2], shape[-2], self.hidden_dim

        spread = self._spread(rng, batch)

        def drawn(d: Distribution, shape: Shape) -> Tensor:
            x = expand(getattr(d, how)(rng, shape), shape)
            x = x if x.array.dtype == rng.dtype else cast(x, rng.dtype)
            if spread is None:
                return x
            size = reshape(spread, (*batch, *(1,) * (len(shape) - len(batch))))
            centre = same_dtype(d.mean, x)
            return centre + (x - centre) * size

        return self._states_and_values(
            drawn(self.initial_dist, (*batch, h)),
            drawn(self.transition_dist, (*batch, count, h)),
            drawn(self._noise(), shape),
        )

    def _spread(self, rng: Source, batch: Shape) -> Tensor | None:
        """Draw what all noise is multiplied by, None for nothing."""
        return None

    def _states_and_values(self, z: Tensor, moves: Tensor, noise: Tensor) -> Tensor:
        parts = {"F": (self.transition_matrix, 2)}
        steps = Steps(parts, noise.array.shape[-2], noise.array.dtype, type(self).__name__)

        def step(z: Tensor, now: tuple[dict[str, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            F = steps.at(now[0])["F"]
            new = (unsqueeze(z, -2) @ F)[..., 0, :] + now[1]
            return new, new

        _, path = scan(step, z, (steps.sliced, movedim(moves, -2, 0)))
        H = self.observation_matrix
        H = H if H.array.dtype == noise.array.dtype else cast(H, noise.array.dtype)
        seen = (unsqueeze(movedim(path, 0, -2), -2) @ _with_time(H))[..., 0, :]
        x = seen + noise
        for transform in self._transforms():
            x = transform(x)
        return x


def _with_time(matrix: Tensor) -> Tensor:
    """Return a matrix whose dim before the last two is time."""
    return matrix if matrix.array.ndim > 2 else unsqueeze(matrix, 0)


def mean_and_covariance(owner: str, d: Distribution) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of normal noise; of numbers that are independent a diagonal."""
    if isinstance(d, (MultivariateNormal, LowRankMultivariateNormal)):
        return d.loc, d.covariance_matrix
    if (
        isinstance(d, Independent)
        and d.reinterpreted_batch_ndims == 1
        and isinstance(d.base_dist, Normal)
    ):
        n, base = d._event_shape[0], d.base_dist
        scale = _vector(base.scale, n)
        eye = scale.new_tensor(np.eye(n))
        return _vector(base.loc, n), unsqueeze(scale * scale, -1) * eye
    raise NotImplementedError(
        f"{owner} has a density only where all noise is MultivariateNormal or "
        f"Normal(...).to_event(1); this one has {type(d).__name__}"
    )


def _vector(x: Tensor, n: int) -> Tensor:
    """Return a parameter of n numbers with the dim that they lie in."""
    if x.array.ndim == 0:
        return expand(x, (n,))
    return x if x.array.shape[-1] == n else expand(x, (*x.array.shape[:-1], n))


class IndependentHMM(HiddenMarkovModel):
    """Series side by side: a batch of models of single numbers as one model of vectors.

    Density ``f(x) = prod(base(x))``.

    Parameters
    ----------
    base_dist : HiddenMarkovModel, batch shape (..., n), event shape (steps, 1)

    Raises
    ------
    ShapeError
        If the values of `base_dist` are no single numbers, or it has no batch.
    """

    _parts = ("base_dist",)
    base_dist: HiddenMarkovModel

    def __init__(
        self,
        base_dist: HiddenMarkovModel,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        batch, event = tuple(base_dist._batch_shape), tuple(base_dist._event_shape)
        if not batch or event[1:] != (1,):
            raise ShapeError(
                "IndependentHMM",
                expected="a base_dist of batch shape (..., n) and event shape (steps, 1)",
                got=f"batch shape {batch} and event shape {event}",
                fix="put the series in the last batch dim, each with values of size 1",
            )
        self._take(base_dist=base_dist)
        steps = base_dist.duration if duration is None else duration
        self._shape_over((*batch[:-1], event[0]), (batch[-1],), steps, validate_args)

    @constraints.dependent_property(event_dim=2, is_discrete=False)
    def support(self) -> Constraint:
        """That of the base."""
        return self.base_dist.support

    @property
    def has_rsample(self) -> bool:
        """As the base."""
        return self.base_dist.has_rsample

    def _check_value(self, value: Tensor) -> bool:
        return self.base_dist._check_value(_apart(value))

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        base = self.base_dist
        return total(base._to_batch(base._density(_apart(value), inside)), -1)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._density(value, True)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(self.base_dist._sample, rng, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._run(self.base_dist._rsample, rng, shape)

    def _run(self, draw: Callable[[Source, Shape], Tensor], rng: Source, shape: Shape) -> Tensor:
        full = (*shape[:-2], shape[-1], shape[-2], 1)
        return movedim(expand(draw(rng, full), full)[..., 0], -1, -2)

    def _mean(self) -> Tensor:
        return movedim(self.base_dist.mean[..., 0], -1, -2)

    def _variance(self) -> Tensor:
        return movedim(self.base_dist.variance[..., 0], -1, -2)


def _apart(value: Tensor) -> Tensor:
    """From (..., steps, n) to (..., n, steps, 1)."""
    return unsqueeze(movedim(value, -1, -2), -1)


explain_calls(globals())
