"""Markov chains of states that are seen: by a table of probabilities, or by any function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeAlias

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import default_dtype, int64
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import INSTANCE_STATE, Parameter, Values, param, setting
from probtorch.distributions.series import broadcast, whole_steps
from probtorch.distributions.source import Source
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.exponentials import log
from probtorch.ops.extremes import argmax
from probtorch.ops.indexing import vindex
from probtorch.ops.movement import expand, movedim, unsqueeze
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["DiscreteMarkovChain", "MarkovChain"]

# From the number of a step and a state to the distribution of the next state.
Transition: TypeAlias = Callable[[Tensor, Tensor], Distribution]


def _alike(a: object, b: object) -> bool:
    """Whether two constraints, or bounds of theirs, say the same."""
    # The components of a mixture share their support, or its bounds differ anyhow.
    a, b = getattr(a, "each", a), getattr(b, "each", b)
    if isinstance(a, Constraint) and isinstance(b, Constraint):
        mine, others = a._fields(), b._fields()
        same = type(a) is type(b) and mine.keys() == others.keys()
        return same and all(_alike(mine[k], others[k]) for k in mine)
    x, y = (to_host(v.array) if isinstance(v, Tensor) else v for v in (a, b))
    return x is y or bool(np.all(np.asarray(x) == np.asarray(y)))


class DiscreteMarkovChain(Distribution):
    """States 0, ..., n - 1 in time, each drawn given the one before.

    Probability ``p(x) = initial_probs[x[0]] * prod(probs[x[t - 1], x[t]] for t in range(1,
    len(x)))``.

    Parameters
    ----------
    probs : Tensor, shape (..., n, n), rows summing to 1
        Row i holds the probabilities of what follows state i; PyMC's P.
    initial_probs : Tensor, shape (..., n)
        Of the first state.
    steps : int
        Number of states after the first; a draw has shape (steps + 1,).
    """

    probs: Parameter = param(constraints.independent(constraints.simplex, 1))
    initial_probs: Parameter = param(constraints.simplex)
    steps: int = setting()
    _takes_integers = True

    @constraints.dependent_property(event_dim=1, is_discrete=True)
    def support(self) -> Constraint:
        """Vectors of state numbers."""
        n = self.probs.array.shape[-1]
        return constraints.independent(constraints.integer_interval(0, n - 1), 1)

    def _infer_event_shape(self) -> Shape:
        n = self.initial_probs.array.shape[-1]
        if self.probs.array.shape[-2:] != (n, n):
            raise ShapeError(
                "DiscreteMarkovChain",
                expected=f"probs of shape (..., {n}, {n}), as there are {n} initial_probs",
                got=f"shape {tuple(self.probs.array.shape)}",
                fix="give one row of probabilities for each state",
            )
        return (whole_steps("DiscreteMarkovChain", self.steps) + 1,)

    def _log_prob(self, x: Tensor) -> Tensor:
        states = cast(x, int64)
        before, after = states[..., :-1], states[..., 1:]
        # A dim for time in front of those of the tables.
        moves = unsqueeze(log(self.probs), -3)
        first = vindex(log(self.initial_probs), (..., states[..., 0]))
        return first + total(vindex(moves, (..., before, after)), -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        batch, n = shape[:-1], self.initial_probs.array.shape[-1]
        moves = cast(self.probs, rng.dtype)
        # The largest of logits plus Gumbel noise is a draw; noise comes first, the loop is pure.
        noise = -log(rng.exponential((self.steps + 1, *batch, n)))
        place = noise.new_tensor(np.arange(n)).long()

        def step(state: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
            chosen = unsqueeze(unsqueeze(state, -1) == place, -1).to(dtype=moves.dtype)
            new = argmax(log(total(moves * chosen, -2)) + now, -1)
            return new, new

        start = argmax(expand(log(cast(self.initial_probs, rng.dtype)), (*batch, n)) + noise[0], -1)
        path = scan(step, start, noise[1:])[1]
        return cat([unsqueeze(start, -1), movedim(path, 0, -1)], -1)


class MarkovChain(Distribution):
    """States in time, each drawn from a distribution that a function makes of the one before.

    The function is called for each step, for a density as for a draw; compiled, the steps become a
    loop.

    Density ``f(x) = initial_state_prior_dist(x[0]) * prod(transition_dist(x[t], t - 1, x[t - 1])
    for t in range(1, num_steps))``.

    There `transition_dist` is the density that `transition_fn` returns for a step and a state.

    Parameters
    ----------
    initial_state_prior : Distribution
        Of the first state: a number, a category or of any event shape.
    transition_fn : callable
        ``transition_fn(step, state)`` returns the distribution of the next state, with the support
        of the first one. `step` is 0 for the move from the first state to the second, a 0-d tensor
        of integers, so that tables are read by ``table[step]``; `state` has the shape of draws of
        the first state, batch dims in front.
    num_steps : int
        Number of states; a draw has shape ``(num_steps, *event_shape)``.

    Notes
    -----
    The arguments are those of TFP's class, whose function is given all steps at once. Chains of
    which states are not seen are `DiscreteHMM`, `GaussianHMM` and `LinearHMM`.

    Raises
    ------
    ArgumentError
        If what follows the first state has another support (`Uniform(x - 1, x + 1)`), or another
        event shape.

    Examples
    --------
    >>> from probtorch.distributions import MarkovChain, Normal
    >>> walk = MarkovChain(Normal(0.0, 1.0), lambda t, x: Normal(0.9 * x, 0.1), 50)
    >>> walk.event_shape
    Size([50])
    """

    __tree_fields__ = ("initial_state_prior",)
    __static_fields__ = ("transition_fn", "num_steps", *INSTANCE_STATE)

    def __init__(
        self,
        initial_state_prior: Distribution,
        transition_fn: Transition,
        num_steps: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(initial_state_prior, Distribution):
            raise ArgumentError(
                "MarkovChain",
                expected="a distribution as initial_state_prior",
                got=type(initial_state_prior).__name__,
                fix="write MarkovChain(Normal(0.0, 1.0), lambda step, x: Normal(x, 0.1), 10)",
            )
        if isinstance(transition_fn, Distribution) or not callable(transition_fn):
            raise ArgumentError(
                "MarkovChain",
                expected="a function (step, state) -> Distribution as transition_fn",
                got=type(transition_fn).__name__,
                fix="write lambda step, x: Normal(x, 0.1)",
            )
        first = initial_state_prior
        self.initial_state_prior, self.transition_fn = first, transition_fn
        self.num_steps = whole_steps("MarkovChain", num_steps, "num_steps")
        self._takes_integers = first._takes_integers
        event = tuple(first._event_shape)
        # What it is called with tells the shapes and no more; nothing is drawn.
        start = wrap(np.zeros((*first._batch_shape, *event), first._dtype or default_dtype()))
        inside = cast(start * 0.0 + first.support.interior(start), start.array.dtype)
        one = self._next(wrap(np.array(0)), self._as_state(inside)) if num_steps > 1 else first
        self._check_support(one)
        self._moves = one.has_rsample
        self._set_shapes(
            broadcast_shapes(tuple(first._batch_shape), tuple(one._batch_shape), op="MarkovChain"),
            (self.num_steps, *event),
            dtype=first._dtype or one._dtype,
            device=first._device,
            validate_args=first._validate_args if validate_args is None else validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(**values)

    def _tree_names(self) -> tuple[str, ...]:
        return ("initial_state_prior", "transition_fn", "num_steps")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """That of the first state, for each step."""
        return constraints.independent(self.initial_state_prior.support, 1)

    @property
    def has_rsample(self) -> bool:
        """Whether the first state and every next one has."""
        return self.initial_state_prior.has_rsample and self._moves

    def _check_support(self, one: Distribution) -> None:
        """Refuse steps whose states have other bounds than the first."""
        if not _alike(self.initial_state_prior.support, one.support):
            raise ArgumentError(
                "MarkovChain: transition_fn",
                expected=f"a distribution on {self.initial_state_prior.support!r}, as the first "
                "state's",
                got=f"a {type(one).__name__} on {one.support!r}",
                fix="choose both with one support, or write the chain as a loop of sample "
                "statements",
            )

    def _as_state(self, x: Tensor) -> Tensor:
        # Categories are indices of tables.
        return cast(x, int64) if self._takes_integers else x

    def _next(self, step: Tensor, state: Tensor) -> Distribution:
        """Return the distribution of what follows `state`, which the user's function makes."""
        found = self.transition_fn(step, state)
        event = self.initial_state_prior._event_shape
        if not isinstance(found, Distribution) or found._event_shape != event:
            got = type(found).__name__
            if isinstance(found, Distribution):
                got = f"a {got} of event shape {tuple(found._event_shape)}"
            raise ArgumentError(
                "MarkovChain: transition_fn",
                expected=f"a distribution of event shape {tuple(event)}, as the first state's",
                got=got,
                fix="return it, with to_event(n) where dims of a batch are those of a state",
            )
        return found

    def _log_prob(self, x: Tensor) -> Tensor:
        n = len(self._event_shape)
        lead = tuple(x.array.shape)[: len(x.array.shape) - n]
        x = broadcast(x, broadcast_shapes(lead, self._batch_shape, op="MarkovChain"), n)
        states = self._as_state(movedim(x, -n, 0))
        now, found = self.initial_state_prior, None
        for step in range(self.num_steps):
            if step:
                now = self._next(wrap(np.array(step - 1)), states[step - 1])
            # What may follow a state is told by the support, which all steps share.
            term = now._to_batch(now._density(states[step], False))
            found = term if found is None else found + term
        assert found is not None
        return found

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._path(rng, shape, "sample")

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._path(rng, shape, "rsample")

    def _path(self, rng: Source, shape: Shape, how: str) -> Tensor:
        event = self._event_shape[1:]
        lead = shape[: len(shape) - 1 - len(event)]
        states, now = [], self.initial_state_prior
        for step in range(self.num_steps):
            if step:
                now = self._next(wrap(np.array(step - 1)), states[-1])
            states.append(self._as_state(getattr(now.expand(lead), how)((), rng.generator)))
        return stack(states, -1 - len(event))


explain_calls(globals())
