"""The double exponential rule, and its gradient.

With ``x = x(t)`` chosen so that the integrand dies away doubly exponentially in t, the trapezoidal
rule converges exponentially, whatever the integrand does at the ends (Takahasi and Mori 1974).
Nodes come in blocks of 16. A level halves the distance of nodes, so it adds as many blocks as there
were; the loop ends with the level at which the sum has settled.

The gradient differentiates the rule that was used: it goes over the same blocks once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.autograd.closures import cut_off, stand_in
from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.autograd.vmap import vmap
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.typed import Shape
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import another, reshape
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import cosh, sinh
from probtorch.tensor import Tensor

__all__ = [
    "BLOCK",
    "REACH",
    "Interval",
    "Quadrature",
    "Rule",
    "Integration",
    "above",
    "below",
    "between",
    "line",
]

BLOCK = 16
# By whether values are of double precision. The rule is cut where pi sinh(t) reaches this: nodes
# come as close to an end as 1e-120 of the interval, and go as far out as 1e60, of which a density
# may still take the fifth power (1e-37 and 1e18 in single precision).
REACH = {True: 276.0, False: 85.0}
# Levels before the first comparison: two coarse sums may agree by chance.
FIRST_COMPARED = 4

# Block, blocks at the end of the level, sum, sum of absolute values, the estimate of the level
# before, the error, and whether it goes on.
State: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


# --------------------------------------------------------------------------------------- intervals

# From the ends and t to x, dx/dt, and whether x lies strictly inside.
Interval: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor]]


def between(low: Tensor, high: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A finite interval. Nodes are counted from the nearer end: those close to 0 are exact."""
    reach = math.pi * sinh(absolute(t))
    near = 1.0 / (1.0 + exp(reach))  # how far from the nearer end
    width = high - low
    x = where(t < 0.0, low + width * near, high - width * near)
    inside = (x != low) & (x != high)
    x = where(inside, x, 0.5 * (low + high))
    return x, width * (math.pi * cosh(t) * near * (1.0 - near)), inside


def above(low: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An interval from a bound to infinity: x is as far from it as t says."""
    distance = exp(0.5 * math.pi * sinh(t))
    x = low + distance
    return x, 0.5 * math.pi * cosh(t) * distance, x != low


def below(high: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An interval from minus infinity to a bound."""
    distance = exp(0.5 * math.pi * sinh(t))
    x = high - distance
    return x, 0.5 * math.pi * cosh(t) * distance, x != high


def line(centre: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The whole line."""
    reach = 0.5 * math.pi * sinh(t)
    x = centre + sinh(reach)
    return x, 0.5 * math.pi * cosh(t) * cosh(reach), isfinite(x)


# -------------------------------------------------------------------------------------------- rule


@dataclass(frozen=True)
class Rule:
    """The integrand, and where its nodes lie.

    Attributes
    ----------
    f : callable
    interval : callable
    reach : float
        Nodes have t between -reach and reach.
    shape : tuple of int
        Of the integral.
    """

    f: Callable[[Tensor], Tensor]
    interval: Interval
    reach: float
    shape: Shape

    @property
    def spacing(self) -> float:
        """Distance in t of the nodes of the first level."""
        return 2.0 * self.reach / BLOCK

    def nodes(self, ends: Sequence[Tensor], block: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and weights of one block, shape (BLOCK, ...); `size` blocks end its level."""
        half = (size // 2).to(dtypes.float64)
        index = wrap(np.arange(BLOCK, dtype=dtypes.float64))
        first = (block == 0).to(dtypes.float64)
        # The nodes of a level lie in the middle between those before.
        place = (block.to(dtypes.float64) - half) * BLOCK + index + 0.5 * (1.0 - first)
        t = place * (self.spacing / (half + first)) - self.reach
        t = reshape(t, (BLOCK, *(1 for _ in ends[0].array.shape)))
        x, slope, inside = self.interval(*ends, t)
        return x, where(inside, slope, 0.0)

    def block(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of one block, of values and of their absolute values.

        Parameters
        ----------
        *given
            The ends, the block and the number of blocks at the end of its level.
        """
        *ends, block, size = given
        x, weights = self.nodes(ends, block, size)
        # A draw is refused where the integrand is watched, with a reason of its own.
        values = vmap(self.f, randomness="different")(x)
        shape = values.array.shape
        narrow = (BLOCK, *(1,) * (len(shape) - weights.array.ndim), *weights.array.shape[1:])
        terms = values * reshape(weights, narrow)
        terms = terms if terms.array.dtype == dtypes.float64 else cast(terms, dtypes.float64)
        return total(terms, 0), total(absolute(terms), 0)


@dataclass(frozen=True)
class Integration:
    """A rule, how exact it has to be, and what the integrand closes over that needs a gradient."""

    rule: Rule
    rtol: float
    atol: float
    max_levels: int
    closed_over: Sequence[Tensor]

    def run(self, *ends: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the integral, its error, whether it has settled, and the number of blocks."""
        rule = self.rule

        def under_way(state: State) -> Tensor:
            return state[6]

        def turn(state: State) -> State:
            block, size, value, magnitude, last, error, _ = state
            more, more_magnitude = rule.block(*ends, block, size)
            value, magnitude = value + more, magnitude + more_magnitude
            full = block + 1 == size
            spacing = rule.spacing / size.to(dtypes.float64)
            error = where(full, absolute(value * spacing - last), error)
            settled = every(error <= self.atol + self.rtol * magnitude * spacing)
            ended = full & (
                (settled & (size >= FIRST_COMPARED))
                | (size >= 2**self.max_levels)
                | ~every(isfinite(value))
            )
            last = where(full, value * spacing, last)
            # The last level keeps its size: with it the spacing is known.
            return (
                block + 1,
                where(full & ~ended, size * 2, size),
                value,
                magnitude,
                last,
                error,
                ~ended,
            )

        nothing = wrap(np.zeros(rule.shape, dtypes.float64)) + total(ends[0].detach()) * 0.0
        block = wrap(np.zeros((), np.int64))
        state = (block, block + 1, nothing, nothing, nothing, nothing, block == 0)
        _, size, _, magnitude, value, error, _ = while_loop(under_way, turn, state)
        bound = self.atol + self.rtol * magnitude * (rule.spacing / size.to(dtypes.float64))
        return value, error, isfinite(value) & (error <= bound), size


class Quadrature(Function):
    """``apply(task, *ends, *closed_over)`` returns what `Integration.run` does."""

    @staticmethod
    def forward(ctx: FunctionCtx, task: Integration, *items: Tensor) -> tuple[Tensor, ...]:
        """Integrate."""
        ends = items[: len(items) - len(task.closed_over)]
        with np.errstate(all="ignore"):
            found = task.run(*ends)
        ctx.task, ctx.ends = task, ends
        ctx.save_for_backward(found[3])
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pull the gradient through the nodes that were used, block by block."""
        task, rule = ctx.task, ctx.task.rule
        (count,) = ctx.saved_tensors
        again = grad_enabled()
        g = g * (rule.spacing / count.to(dtypes.float64))
        one = wrap(np.ones((), np.int64))
        if again:
            ends = [another(x) for x in ctx.ends]
            sources = [*ends, *task.closed_over]
            with cut_off(sources):
                value, _ = rule.block(*ends, one * 0, one)
                size = 2
                for block in range(1, int(count)):
                    value = value + rule.block(*ends, one * block, one * size)[0]
                    size = 2 * size if block + 1 == size else size
                wanted = [x for x in sources if x.requires_grad]
                pulled = iter(grad(value, wanted, g, create_graph=True, allow_unused=True))
                return None, *(next(pulled) if x.requires_grad else None for x in sources)
        sources = [*(x.detach() for x in ctx.ends), *task.closed_over]

        def more(state: tuple[Tensor, Tensor, list[Tensor]]) -> Tensor:
            return state[0] < count

        def body(
            state: tuple[Tensor, Tensor, list[Tensor]],
        ) -> tuple[Tensor, Tensor, list[Tensor]]:
            block, size, gs = state
            ends = [stand_in(x) for x in ctx.ends]
            with enable_grad(), cut_off(task.closed_over):
                part, _ = rule.block(*ends, block, size)
                own = [*ends, *task.closed_over]
                taped = part.requires_grad
                pulled = grad(part, own, g, allow_unused=True) if taped else [None] * len(own)
            sums = [a if b is None else a + b for a, b in zip(gs, pulled, strict=True)]
            return block + 1, where(block + 1 == size, size * 2, size), sums

        zeros = [x.new_zeros(x.array.shape) for x in sources]
        slopes = while_loop(more, body, (one * 0, one, zeros))[2]
        return None, *slopes
