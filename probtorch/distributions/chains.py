"""Markov chains of states that are seen."""

from __future__ import annotations

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.series import whole_steps
from probtorch.distributions.source import Source
from probtorch.errors import ShapeError
from probtorch.ops.exponentials import log
from probtorch.ops.indexing import vindex
from probtorch.ops.movement import cat, expand, movedim, unsqueeze
from probtorch.ops.reduction import argmax
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["DiscreteMarkovChain"]


class DiscreteMarkovChain(Distribution):
    """States 0, ..., n - 1 in time, each drawn given the one before.

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
