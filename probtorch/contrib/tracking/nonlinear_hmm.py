"""State space models whose states and values follow functions, by the extended Kalman filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.autograd.forward import jvp
from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.formulas import known_true
from probtorch.distributions.gaussian_hmm import check_normal
from probtorch.distributions.hidden_markov import HiddenMarkovModel
from probtorch.distributions.kalman import Filtered, updated
from probtorch.distributions.linear_hmm import mean_and_covariance
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.series import Steps, broadcast
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.comparisons import eq
from probtorch.ops.movement import expand, movedim, reshape
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["NonlinearGaussianHMM"]

Map: TypeAlias = Callable[[Tensor], Tensor]


class NonlinearGaussianHMM(HiddenMarkovModel):
    """A state space model with normal noise, whose density is that of the extended Kalman filter.

    A state is drawn; then at each step ``z = transition(z) + noise`` and ``x = observation(z) +
    noise``. Draws are those of the model. The density is approximate: the filter goes on with the
    slopes of both functions at the mean of the state, and takes the state for normal. It is exact
    where both are linear; see `GaussianHMM`. Values that are nan are missing.

    Parameters
    ----------
    initial_dist : MultivariateNormal or Normal(...).to_event(1), event shape (h,)
        Of the state before the first step.
    transition : callable
        From states, shape (..., h), to the states after a step, shape (..., h), without noise.
    transition_dist : as initial_dist, batch shape () or (..., steps or 1)
        Noise of the states.
    observation : callable
        From states to values without noise, shape (..., n).
    observation_dist : as initial_dist, event shape (n,), batch shape () or (..., steps or 1)
        Noise of the values.
    validate_args : bool, optional
    duration : int, optional
        Number of steps, for draws where no noise has a time dim.

    Raises
    ------
    ArgumentError
        If noise is not normal, or the functions are none.
    ShapeError
        If a function returns another shape, or the noise of values or states has another size.

    Notes
    -----
    Slopes are derivatives in forward mode, h of them at once. The functions may use tensors from
    outside, parameters or values of sites, whose gradients the density has. Costs O(steps (h^3 +
    n^3)) beside the functions, of which a step evaluates h + 1: at copies of states, with a dim
    more in front. Functions that are not written for the last dim alone are refused by their shape.

    Whether the approximation will do is told by `infer.ParticleFilter`, which has none.

    References
    ----------
    S. Särkkä, "Bayesian Filtering and Smoothing", Cambridge University Press 2013, algorithm 5.4.

    Examples
    --------
    The angle of a pendulum, of which the sine is seen:

    >>> from probtorch import stack, tensor, zeros
    >>> from probtorch.contrib.tracking import NonlinearGaussianHMM
    >>> from probtorch.distributions import Normal
    >>> def swing(z):
    ...     angle, speed = z[..., 0], z[..., 1]
    ...     return stack([angle + 0.1 * speed, speed - 0.98 * angle.sin()], -1)
    >>> pendulum = NonlinearGaussianHMM(
    ...     Normal(tensor([1.0, 0.0]), 0.1).to_event(1), swing,
    ...     Normal(zeros(2), 0.05).to_event(1), lambda z: z[..., :1].sin(),
    ...     Normal(zeros(1), 0.2).to_event(1), duration=20,
    ... )
    >>> x = pendulum.sample()
    >>> x.shape, pendulum.log_prob(x).shape, pendulum.filter(x).mean.shape
    (Size([20, 1]), Size([]), Size([2]))
    """

    _may_miss = True
    _parts = ("initial_dist", "transition_dist", "observation_dist")
    _told = ("transition", "observation", "duration")
    initial_dist: Distribution
    transition_dist: Distribution
    observation_dist: Distribution

    def __init__(
        self,
        initial_dist: Distribution,
        transition: Map,
        transition_dist: Distribution,
        observation: Map,
        observation_dist: Distribution,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        owner = type(self).__name__
        for d in (initial_dist, transition_dist, observation_dist):
            check_normal(owner, d)
        for name, fn in (("transition", transition), ("observation", observation)):
            if not callable(fn):
                raise ArgumentError(
                    f"{owner}({name}=...)", expected="a function of states, shape (..., h)",
                    got=type(fn).__name__,
                    fix="take GaussianHMM for matrices, or write lambda z: z @ matrix",
                )  # fmt: skip
        self.transition, self.observation = transition, observation
        self._take(
            initial_dist=initial_dist,
            transition_dist=transition_dist,
            observation_dist=observation_dist,
        )
        (h,), (moved,) = initial_dist._event_shape, transition_dist._event_shape
        (n,) = observation_dist._event_shape
        if moved != h:
            raise ShapeError(
                owner, expected=f"noise of states of event shape ({h},), as initial_dist",
                got=f"({moved},)", fix="give each element of the state its noise",
            )  # fmt: skip
        self.hidden_dim, self.obs_dim = h, n
        shape = broadcast_shapes(
            (*initial_dist._batch_shape, 1),
            tuple(transition_dist._batch_shape),
            tuple(observation_dist._batch_shape),
            op=owner,
        )
        self._shape_over(shape, (n,), duration, validate_args)

    @constraints.dependent_property(event_dim=2, is_discrete=False)
    def support(self) -> constraints.Constraint:
        """All numbers."""
        return constraints.real_matrix

    @property
    def has_rsample(self) -> bool:
        """Always: noise is normal."""
        return True

    def filter(self, value: TensorLike) -> MultivariateNormal:
        """Return the normal that the filter has for the last state, given all values.

        Parameters
        ----------
        value : Tensor, shape (..., steps, n), nan where missing

        Returns
        -------
        MultivariateNormal, event shape (h,)
        """
        found = self._filtered(self._as_sequence(value), all_states=False)
        return MultivariateNormal(found.loc, scale_tril=cholesky(found.cov))

    def filter_states(self, value: TensorLike) -> MultivariateNormal:
        """Return the normal for the state of each step, given the values up to its own.

        Parameters
        ----------
        value : Tensor, shape (..., steps, n), nan where missing

        Returns
        -------
        MultivariateNormal, batch shape (..., steps), event shape (h,)
        """
        found = self._filtered(self._as_sequence(value), all_states=True)
        tril = cholesky(movedim(found.cov, 0, -3))
        return MultivariateNormal(movedim(found.loc, 0, -2), scale_tril=tril)

    def _log_prob(self, value: Tensor) -> Tensor:
        found = self._filtered(value, all_states=False)
        return found.square * -0.5 - (found.half_log_det + found.seen * HALF_LOG_2PI)

    def _noise(self) -> dict[str, tuple[Tensor, int]]:
        owner = type(self).__name__
        c, Q = mean_and_covariance(owner, self.transition_dist)
        d, R = mean_and_covariance(owner, self.observation_dist)
        return {"c": (c, 1), "Q": (Q, 2), "d": (d, 1), "R": (R, 2)}

    def _filtered(self, x: Tensor, *, all_states: bool) -> Filtered:
        owner, dtype = type(self).__name__, x.array.dtype
        steps = Steps(self._noise(), x.array.shape[-2], dtype, owner)
        loc, cov = mean_and_covariance(owner, self.initial_dist)
        loc, cov = (a if a.array.dtype == dtype else cast(a, dtype) for a in (loc, cov))
        batch = broadcast_shapes(
            loc.array.shape[:-1], cov.array.shape[:-2], steps.batch, x.array.shape[:-2], op=owner
        )
        seen = eq(x, x)
        whole = known_true(seen)

        def step(
            state: tuple[Tensor, Tensor], now: dict[str, Tensor]
        ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
            (m, P), p = state, steps.at(now)
            m, F = self._with_slope("transition", m, self.hidden_dim)
            m, P = m + p["c"], F.mT @ P @ F + p["Q"]
            ahead, H = self._with_slope("observation", m, self.obs_dim)
            m, P, square, size = updated(m, P, p["x"] - (ahead + p["d"]), H, p["R"], p.get("w"))
            m, P = broadcast(m, batch, 1), broadcast(P, batch, 2)
            told = broadcast(square, batch, 0), broadcast(size, batch, 0)
            return (m, P), (*told, m, P) if all_states else told

        xs = {**steps.sliced, "x": movedim(x if whole else where(seen, x, 0.0), -2, 0)}
        if not whole:
            xs["w"] = movedim(cast(seen, dtype), -2, 0)
        (m, P), found = scan(step, (broadcast(loc, batch, 1), broadcast(cov, batch, 2)), xs)
        if all_states:
            m, P = found[2:]
        number = float(np.prod(x.array.shape[-2:])) if whole else total(cast(seen, dtype), (-2, -1))
        return Filtered(total(found[0], 0), total(found[1], 0), number, m, P)

    def _with_slope(self, name: str, z: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """A function at states, and the matrix of its derivatives, a row for each of theirs."""
        fn: Map = getattr(self, name)
        shape, h = tuple(z.array.shape), self.hidden_dim
        # One more than the state has elements: a function that takes the first dim for these has
        # another shape then.
        copies = (h + 1, *shape)
        along = reshape(z.new_tensor(np.eye(h + 1, h)), (h + 1, *(1,) * (len(shape) - 1), h))
        value, slopes = jvp(fn, (expand(z, copies),), (expand(along, copies),))
        self._check_result(name, value, (h + 1, *shape[:-1], size))
        self._check_rows(name, z)
        return value[h], movedim(slopes[:h], 0, -2)

    def _check_result(self, name: str, value: object, shape: Shape) -> None:
        got = tuple(value.array.shape) if isinstance(value, Tensor) else type(value).__name__
        if got != shape:
            raise ShapeError(
                f"{type(self).__name__}({name}=...)",
                expected=f"a result of shape {shape} for states of shape "
                f"{(*shape[:-1], self.hidden_dim)}",
                got=str(got),
                fix="work on the last dim alone: z[..., 0], stack([...], -1)",
            )

    def _check_rows(self, name: str, z: Tensor) -> None:
        """Refuse ``matrix @ z`` where there are as many states beside one another as each has
        elements: its shape is right, and what it mixes are the states.
        """
        shape, h = tuple(z.array.shape), self.hidden_dim
        if h == 1 or shape[-2:-1] != (h,):
            return
        # What works on the last dim alone takes one state as well, beside others that it knows.
        fn: Map = getattr(self, name)
        try:
            fn(z[..., :1, :])
        except ShapeError as error:
            raise ShapeError(
                f"{type(self).__name__}({name}=...)",
                expected=f"a function of states of shape {(*shape[:-2], 1, h)}, as of {shape}",
                got=str(error).partition("\n")[0],
                fix="work on the last dim alone: z @ matrix.T in place of matrix @ z",
            ) from error

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._rsample(rng, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        self._needs_duration("sample")
        batch, count, h = shape[:-2], shape[-2], self.hidden_dim

        def drawn(d: Distribution, shape: Shape) -> Tensor:
            x = expand(d._rsample(rng, shape), shape)
            return x if x.array.dtype == rng.dtype else cast(x, rng.dtype)

        def step(z: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
            new = self.transition(z)
            self._check_result("transition", new, tuple(z.array.shape))
            self._check_rows("transition", z)
            return new + move, new + move

        moves = movedim(drawn(self.transition_dist, (*batch, count, h)), -2, 0)
        _, path = scan(step, drawn(self.initial_dist, (*batch, h)), moves)
        path = movedim(path, 0, -2)
        seen = self.observation(path)
        self._check_result("observation", seen, shape)
        self._check_rows("observation", path)
        return seen + drawn(self.observation_dist, shape)


explain_calls(globals())
