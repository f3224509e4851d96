"""Hidden Markov models: the base of all, and the one with discrete states.

A model is a hidden state that changes before each step and an observation at each. Time is the
first event dim. Signatures are Pyro's. Densities are one loop over time that sums the states out
(Rabiner 1989), so they are O(T) and their gradient is a loop as well; the continuous states are in
`gaussian_hmm.py`.
"""

from __future__ import annotations

from typing import ClassVar

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.shape import Size, broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.series import Series, Steps, broadcast, whole_steps
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import log
from probtorch.ops.extremes import amax, argmax
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = ["DiscreteHMM", "HiddenMarkovModel"]


class HiddenMarkovModel(Series):
    """What models with a hidden state have in common; see DiscreteHMM and GaussianHMM.

    Where no parameter has a time dim and `duration` is not given, the event shape has 1 in the
    place of time, and densities take values of any length.
    """

    _told: ClassVar[tuple[str, ...]] = ("duration",)
    _may_miss: ClassVar[bool] = False  # whether values that are nan are missing, not wrong
    _duration: int | None

    def _shape_over(
        self, shape: Shape, event: Shape, duration: int | None, validate_args: bool | None
    ) -> None:
        """Set the shapes from that of batch and time."""
        owner = type(self).__name__
        steps = shape[-1]
        if duration is not None:
            whole_steps(owner, duration)
            if steps not in (1, duration):
                raise ShapeError(
                    owner,
                    expected=f"parameters for {duration} steps, the duration",
                    got=f"{steps}",
                    fix="drop duration=, which is needed only where no parameter has a time dim",
                )
            steps = duration
        self._duration = None if steps == 1 and duration is None else steps
        self._shape(shape[:-1], (steps, *event), validate_args)

    @property
    def duration(self) -> int | None:
        """Number of steps, None where values may have any."""
        return self._duration

    def event_shape_of(self, value_shape: SizeLike) -> Size:
        """Return the event shape; without a duration with the steps that the value has."""
        event = tuple(self._event_shape)
        shape = (value_shape,) if isinstance(value_shape, int) else tuple(value_shape)
        if self._duration is None and len(shape) >= len(event):
            return Size((shape[len(shape) - len(event)], *event[1:]))
        return Size(event)

    def _check_value(self, value: Tensor) -> bool:
        event = self._event_shape
        self._event_shape = tuple(self.event_shape_of(value.array.shape))
        try:
            seen = where(eq(value, value), value, 0.0) if self._may_miss else value
            return super()._check_value(seen)
        finally:
            self._event_shape = event

    def _needs_duration(self, what: str) -> None:
        if self._duration is None:
            raise ArgumentError(
                f"{type(self).__name__}.{what}",
                expected="a model that knows its number of steps",
                got="parameters without a time dim",
                fix=f"write {type(self).__name__}(..., duration=10)",
            )

    def _as_sequence(self, value: TensorLike) -> Tensor:
        """Return what a method other than the density is given, checked alike."""
        value = self._as_value(value)
        if self._validate_args:
            self._check_value(value)
        return value


class DiscreteHMM(HiddenMarkovModel):
    """Observations whose distribution depends on a hidden state that changes at each step.

    The first state is drawn, changes once, and then the first value is observed.

    Density ``f(x) = sum(p[z[0]] * prod(P[z[t], z[t + 1]] * observation_dist(x[t])[z[t + 1]] for t
    in range(n)) for z in paths(len(p), n + 1))`` with ``n = len(x)`` and ``p = exp(initial_logits)
    / sum(exp(initial_logits))`` and ``P = rows(exp(transition_logits))``.

    Parameters
    ----------
    initial_logits : Tensor, shape (..., states)
        Of the state before the first step; normalised here.
    transition_logits : Tensor, shape (..., states, states) or (..., steps or 1, states, states)
        From the state of the row to that of the column.
    observation_dist : Distribution, batch shape (..., states) or (..., steps or 1, states)
        One for each state.
    validate_args : bool, optional
    duration : int, optional
        Number of steps, for draws where no parameter has a time dim.

    Raises
    ------
    ShapeError
        If the parameters do not agree in the number of states or steps.

    Notes
    -----
    The signature is Pyro's. Costs O(steps states^2). Draws carry no gradient. A state whose logit
    is -inf is impossible and has no part in value or gradient.
    """

    _parts = ("initial_logits", "transition_logits", "observation_dist")
    initial_logits: Tensor
    transition_logits: Tensor
    observation_dist: Distribution

    def __init__(
        self,
        initial_logits: Given,
        transition_logits: Given,
        observation_dist: Distribution,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        self._take(
            initial_logits=initial_logits,
            transition_logits=transition_logits,
            observation_dist=observation_dist,
        )
        first, moves = tuple(self.initial_logits.array.shape), self.transition_logits.array.shape
        seen = tuple(observation_dist._batch_shape)
        n = first[-1] if first else 0
        if not n or moves[-2:] != (n, n) or seen[-1:] != (n,):
            raise ShapeError(
                "DiscreteHMM",
                expected="shapes (..., n) and (..., n, n) and a batch shape (..., n), n states",
                got=f"{first}, {tuple(moves)} and {seen}",
                fix="give one row of logits and one observation for each state",
            )
        shape = broadcast_shapes((*first[:-1], 1), moves[:-2], seen[:-1], op="DiscreteHMM")
        self.initial_logits = _normalised(self.initial_logits)
        self.transition_logits = _normalised(self.transition_logits)
        self._shape_over(shape, tuple(observation_dist._event_shape), duration, validate_args)
        self._takes_integers = observation_dist._takes_integers

    @constraints.dependent_property(event_dim=1)
    def support(self) -> Constraint:
        """That of the observations, over time."""
        return constraints.independent(self.observation_dist.support, 1)

    def _seen(self, value: Tensor, inside: bool) -> Tensor:
        """Log densities of the values in each state, shape (..., steps, states)."""
        n = len(self._event_shape) - 1
        return self.observation_dist._density(unsqueeze(value, -1 - n), inside)

    def _course(self, seen: Tensor, method: str) -> tuple[Tensor, Steps, Shape]:
        """Return logits of the first state and of the moves, in the dtype of log densities, and
        the batch shape of all.
        """
        count, dtype = seen.array.shape[-2], seen.array.dtype
        moves = Steps({"move": (self.transition_logits, 2)}, count, dtype, "DiscreteHMM")
        first = self.initial_logits
        first = first if first.array.dtype == dtype else cast(first, dtype)
        shapes = (first.array.shape[:-1], moves.batch, seen.array.shape[:-2])
        return first, moves, broadcast_shapes(*shapes, op=f"DiscreteHMM.{method}")

    def _forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return log joint densities of the values so far and the state: at the end, and all."""
        first, moves, batch = self._course(seen, "log_prob")

        def step(state: Tensor, now: tuple[dict[str, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            move = moves.at(now[0])["move"]
            new = logsumexp(unsqueeze(state, -1) + move, -2) + now[1]
            return new, new

        xs = (moves.sliced, movedim(seen, -2, 0))
        return scan(step, broadcast(first, batch, 1), xs)

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        return logsumexp(self._forward(self._seen(value, inside))[0], -1)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._density(value, True)

    def filter(self, value: TensorLike) -> Categorical:
        """Return the distribution of the last state, given all values.

        Parameters
        ----------
        value : Tensor, shape (..., steps, *event)

        Returns
        -------
        Categorical, batch shape of `value` broadcast with that of the model
            Its logits can be the `initial_logits` of a model of what comes after.
        """
        value = self._as_sequence(value)
        return Categorical(logits=self._forward(self._seen(value, self._validate_args))[0])

    def smooth(self, value: TensorLike) -> Categorical:
        """Return the distribution of the state at each step, given all values.

        Parameters
        ----------
        value : Tensor, shape (..., steps, *event)

        Returns
        -------
        Categorical, batch shape (..., steps)
        """
        value = self._as_sequence(value)
        seen = self._seen(value, self._validate_args)
        last, forward = self._forward(seen)
        count = seen.array.shape[-2]
        moves = Steps({"move": (self.transition_logits, 2)}, count, last.array.dtype, "DiscreteHMM")
        after = {name: x[1:] for name, x in moves.sliced.items()}

        def step(state: Tensor, now: tuple[dict[str, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            new = logsumexp(moves.at(now[0])["move"] + unsqueeze(state + now[1], -2), -1)
            new = broadcast(new, tuple(last.array.shape[:-1]), 1)
            return new, new

        none = last * 0.0
        _, rest = scan(step, none, (after, movedim(seen, -2, 0)[1:]), reverse=True)
        backward = cat([rest, unsqueeze(none, 0)], 0)
        return Categorical(logits=movedim(forward + backward, 0, -2))

    def decode(self, value: TensorLike) -> Tensor:
        """Return the most probable states of all steps together, given all values.

        Not the most probable state of each step, which `smooth` tells: those may follow each other
        where no state can. The state before the first step, which nothing is seen of, is summed
        out.

        Parameters
        ----------
        value : Tensor, shape (..., steps, *event)

        Returns
        -------
        Tensor of int64, shape (..., steps)
            Batch shape of `value` broadcast with that of the model; numbers of states.

        References
        ----------
        A. Viterbi, "Error bounds for convolutional codes and an asymptotically optimum decoding
        algorithm", IEEE Transactions on Information Theory 13, 1967.

        Examples
        --------
        >>> import probtorch
        >>> import probtorch.distributions as dist
        >>> stay = probtorch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
        >>> seen = dist.Normal(probtorch.tensor([0.0, 1.0]), 0.6)
        >>> hmm = dist.DiscreteHMM(probtorch.zeros(2), stay, seen)
        >>> hmm.decode([0.1, -0.2, 0.6, 0.1, 1.1, 0.4, 0.9]).tolist()
        [0, 0, 0, 0, 1, 1, 1]
        """
        value = self._as_sequence(value)
        seen = self._seen(value, self._validate_args)
        states = seen.array.shape[-1]
        first, moves, batch = self._course(seen, "decode")
        after = {name: x[1:] for name, x in moves.sliced.items()}
        each = movedim(seen, -2, 0)

        def ahead(state: Tensor, now: tuple[dict[str, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            new = amax(unsqueeze(state, -1) + moves.at(now[0])["move"], -2) + now[1]
            return new, new

        def back(state: Tensor, now: tuple[dict[str, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            move = expand(moves.at(now[0])["move"], (*batch, states, states))
            index = expand(reshape(state, (*batch, 1, 1)), (*batch, states, 1))
            column = reshape(gather(move, len(batch) + 1, index), (*batch, states))
            new = argmax(now[1] + column, -1)
            return new, new

        move = moves.at({name: x[0] for name, x in moves.sliced.items()})["move"]
        start = broadcast(logsumexp(unsqueeze(first, -1) + move, -2) + each[0], batch, 1)
        last, rest = scan(ahead, start, (after, each[1:]))
        best = cat([unsqueeze(start, 0), rest], 0)
        end = argmax(last, -1)
        _, path = scan(back, end, (after, best[:-1]), reverse=True)
        return movedim(cat([path, unsqueeze(end, 0)], 0), 0, -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        self._needs_duration("sample")
        n = len(self._event_shape)
        batch, event = shape[: len(shape) - n], shape[len(shape) - n + 1 :]
        count, states = self._event_shape[0], self.initial_logits.array.shape[-1]
        moves = Steps({"move": (self.transition_logits, 2)}, count, rng.dtype, "DiscreteHMM")
        first = self.initial_logits
        first = first if first.array.dtype == rng.dtype else cast(first, rng.dtype)
        # The largest of logits plus Gumbel noise is a draw; noise comes first, the loop is pure.
        gumbel = -log(rng.exponential((count + 1, *batch, states)))

        def step(state: Tensor, now: tuple[dict[str, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            move = expand(moves.at(now[0])["move"], (*batch, states, states))
            index = expand(reshape(state, (*batch, 1, 1)), (*batch, 1, states))
            row = reshape(gather(move, len(batch), index), (*batch, states))
            new = argmax(row + now[1], -1)
            return new, new

        start = argmax(expand(first, (*batch, states)) + gumbel[0], -1)
        _, path = scan(step, start, (moves.sliced, gumbel[1:]))
        each = self.observation_dist._sample(rng, (*batch, count, states, *event))
        each = expand(each, (*batch, count, states, *event))
        index = reshape(movedim(path, 0, -1), (*batch, count, 1, *(1,) * len(event)))
        index = expand(index, (*batch, count, 1, *event))
        return reshape(gather(each, len(batch) + 1, index), (*batch, count, *event))


def _normalised(logits: Tensor) -> Tensor:
    return logits - logsumexp(logits, -1, True)


explain_calls(globals())
