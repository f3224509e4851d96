"""Pathwise gradients of draws whose sampler has none: by the implicit function, or by transport.

A draw at a fixed level of its cdf moves by -dF / density when a parameter moves (Figurnov, Mohamed,
Mnih 2018). Here a draw without a gradient is given one: the value stays, the derivative is added.
It can be taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from probtorch.distributions.distribution import Distribution, Independent
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.ops.arithmetic import where
from probtorch.ops.exponential_sums import log_softmax, logsumexp
from probtorch.ops.exponentials import exp, log
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import ndtr
from probtorch.tensor import Tensor

__all__ = ["at_level", "conditionals", "moved_mixture", "moving"]

# From the elements before, and a value of element i: its cdf and log density given those, for each
# component along the last dim.
Conditional: TypeAlias = Callable[[int, list[Tensor], Tensor], tuple[Tensor, Tensor]]


def moving(x: Tensor) -> Tensor:
    """Return `x` less its own value: 0, with the derivative of `x`."""
    return x - x.detach()


def at_level(x: Tensor, level: Tensor, density: Tensor) -> Tensor:
    """Return `x` with the derivative that keeps its level.

    Parameters
    ----------
    x : Tensor
        Draws, without a gradient.
    level : Tensor
        The cdf at `x` as a function of the parameters.
    density : Tensor
        Its derivative in `x`; where it is 0 the draw does not move.
    """
    known = density.detach()
    some = known > 0.0
    return x - where(some, moving(level) / where(some, known, 1.0), 0.0)


def conditionals(d: Distribution) -> Conditional | None:
    """Return the conditional cdfs of the elements of a continuous distribution, if they are known.

    Parameters
    ----------
    d : Distribution
        With the components as the last batch dim.
    """
    if d.is_discrete:
        return None
    if not d._event_shape:
        return _alone(d) if hasattr(d, "_cdf") else None
    if isinstance(d, MultivariateNormal):
        return _normal(d)
    if isinstance(d, Independent) and d.reinterpreted_batch_ndims == 1:
        base = d.base_dist
        return _independent(base) if not base._event_shape and hasattr(base, "_cdf") else None
    return None


def _alone(d: Distribution) -> Conditional:
    def of(i: int, before: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        x = unsqueeze(x, -1)
        return d.cdf(x), d._to_batch(d._density(x, False))

    return of


def _independent(base: Distribution) -> Conditional:
    n = base._batch_shape[-1]

    def of(i: int, before: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        # The same value for all elements: that of element i is taken.
        wide = expand(unsqueeze(unsqueeze(x, -1), -1), (*x.array.shape, 1, n))
        density = base._to_batch(base._density(wide, False))
        return base.cdf(wide)[..., i], density[..., i]

    return of


def _normal(d: MultivariateNormal) -> Conditional:
    def of(i: int, before: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        L, loc, noise = d.scale_tril, d.loc, list[Tensor]()
        for j, value in enumerate([*before, x]):
            apart = unsqueeze(value, -1) - loc[..., j]
            for k, z in enumerate(noise):
                apart = apart - L[..., j, k] * z
            noise.append(apart / L[..., j, j])
        z = noise[-1]
        return ndtr(z), z * z * -0.5 - (log(L[..., i, i]) + HALF_LOG_2PI)

    return of


def moved_mixture(x: Tensor, log_weights: Tensor, components: Distribution) -> Tensor:
    """Return draws of a mixture with the derivative that keeps their levels.

    Parameters
    ----------
    x : Tensor, shape (..., *event)
        Draws, without a gradient.
    log_weights : Tensor, shape (..., components)
    components : Distribution, batch shape (..., components)
        One that has `conditionals`.
    """
    of = conditionals(components)
    assert of is not None  # who calls this has asked
    alone = not components._event_shape
    columns = [x] if alone else [x[..., i] for i in range(x.array.shape[-1])]
    moved: list[Tensor] = []
    for i, value in enumerate(columns):
        level, log_density = of(i, moved, value)
        log_p = log_softmax(log_weights, -1)
        density = exp(logsumexp(log_p + log_density, -1))
        moved.append(at_level(value, total(exp(log_p) * level, -1), density))
        if i + 1 < len(columns):
            # What is known of the component from the elements so far.
            log_weights = log_weights + of(i, moved[:-1], moved[-1])[1]
    return moved[0] if alone else stack(moved, -1)
