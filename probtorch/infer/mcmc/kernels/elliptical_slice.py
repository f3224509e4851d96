"""Elliptical slice sampling: along ellipses of a Gaussian prior, without a step size or gradient.

An update draws a point from the Gaussian, which with the present one spans an ellipse; a level
below the log likelihood; and an angle on the ellipse, from a bracket that shrinks towards the
present point until the log likelihood is above the level.

Any target is a Gaussian times a remainder, so the Gaussian need not be the prior: what is left of
the density when it is divided by the Gaussian takes the likelihood's place.

References
----------
I. Murray, R. P. Adams, D. J. C. MacKay, "Elliptical slice sampling", AISTATS (2010), figure 2.
R. Nishihara, I. Murray, R. P. Adams, "Parallel MCMC with generalized elliptical slice sampling",
JMLR 15 (2014), for Gaussians that are not the prior.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.core.typed import TensorLike
from probtorch.infer.mcmc.kernel import Kernel, setting, statistic
from probtorch.infer.mcmc.kernels.conditional_prior import GaussianGiven
from probtorch.infer.mcmc.kernels.gaussian_prior import (
    Gaussian,
    check_together,
    gaussian_prior,
    given_gaussian,
)
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.ops.arithmetic import where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log
from probtorch.ops.trigonometry import cos, sin

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["EllipticalSlice", "EllipticalSliceInfo"]

# Each shrinking leaves half of the bracket on average: after so many a draw is where it began.
MOST_SHRINKS = 200

# What is carried while a bracket shrinks: tries, its ends, a position with its log density, and
# whether the remainder is above the level there.
_Shrinking: TypeAlias = tuple[
    TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase
]


@record
class EllipticalSliceInfo:
    """The new log density, and how often it was evaluated on the way."""

    lp: TensorBase = statistic("lp")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


class EllipticalSlice(Kernel[PointState]):
    """Elliptical slice sampling [murray2010]_, for models whose latent sites are Gaussian.

    It needs no gradient and has nothing to tune: a warm-up is for moving to the posterior. Made for
    latent functions and random walks whose data say little about each value, in any number of
    dimensions; the more the data say, the shorter its moves are. NumPyro's `ESS` is another method,
    see `ESS`.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    loc : array_like, shape (dim,), or dict of arrays by site, optional
        Mean of the Gaussian, of the unconstrained coordinates. By default that of the model's
        prior, which is found from its gradient; in a block of `Gibbs` that of the block's sites
        given all others, at each step.
    covariance : array_like, shape (dim,) or (dim, dim), optional
        Its covariance, or the diagonal of it. Whatever the Gaussian, draws are of the posterior;
        good ones where it is as wide as the posterior or wider [nishihara2014]_.

    Raises
    ------
    InferenceError
        In a run, if the Gaussian is left out and the model's prior is none.

    References
    ----------
    [murray2010]_, [nishihara2014]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, EllipticalSlice
    >>> def walk(counts):
    ...     level = probtorch.sample("level", dist.GaussianRandomWalk(0.3, 20))
    ...     probtorch.sample("counts", dist.Poisson(level.exp()).to_event(1), obs=counts)
    >>> counts = probtorch.tensor([1.0, 0.0, 2.0, 3.0] * 5)
    >>> mcmc = MCMC(EllipticalSlice(walk), num_samples=8000, num_chains=4, seed=1)
    >>> mcmc.run(counts)
    Draws(4 chains x 8000 draws: level (20))
    """

    info = EllipticalSliceInfo

    loc: TensorLike | Mapping[str, TensorLike] | None = setting(default=None)
    covariance: TensorLike | None = setting(default=None)
    gaussian: Gaussian | GaussianGiven | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_together(self.name, self.loc, self.covariance, "if the model's prior is a Gaussian")

    @property
    def follows_prior(self) -> bool:
        """Whether the Gaussian is the model's prior."""
        return self.covariance is None

    def first_values(
        self, target: Target, state: PointState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the Gaussian that was given, or the model's prior."""
        if self.covariance is None:
            return {"gaussian": gaussian_prior(target, self.name)}
        return {"gaussian": given_gaussian(self.name, self.loc, self.covariance, target)}

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return a Gaussian of the kind that a saved chain has."""
        if self.covariance is None:
            dense = any(x.ndim == 2 for x in leaves)
        else:
            dense = as_tensor(self.covariance).array.ndim == 2
        return {"gaussian": Gaussian.blank(dim, dense=dense)}

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> PointState:
        """Return the state at a position."""
        return PointState(position, self.density(position)[0], as_tensor(counter))

    def step(self, key: Key, state: PointState) -> tuple[PointState, EllipticalSliceInfo]:
        """Return ``(state, info)`` after an update along one ellipse."""
        assert self.gaussian is not None
        ellipse = self.gaussian.ellipse(key, state.counter, state.position)
        here, there, counter = ellipse.here, ellipse.there, ellipse.counter
        # Minus twice the Gaussian's log density there, from three products.
        here2, both, there2 = ellipse.here2, ellipse.both, ellipse.there2

        def remainder(logdensity: TensorBase, c: TensorBase, s: TensorBase) -> TensorBase:
            return logdensity + 0.5 * (c * c * here2 + 2.0 * c * s * both + s * s * there2)

        level = state.logdensity + 0.5 * here2 + log(uniform(key, counter))
        first = (2.0 * math.pi) * uniform(key, counter + 1)

        def shrink(carry: _Shrinking) -> _Shrinking:
            tries, left, right, *_ = carry
            share = uniform(key, counter + 1 + tries)
            angle = where(tries == 0, first, left + (right - left) * share)
            c, s = cos(angle), sin(angle)
            position = ellipse.loc + c * here + s * there
            logdensity = self.density(position)[0]
            left = where(angle < 0.0, angle, left)
            right = where(angle < 0.0, right, angle)
            # The bracket ends at the first angle on one side, a whole turn away on the other.
            left = where(tries == 0, angle - 2.0 * math.pi, left)
            found = remainder(logdensity, c, s) > level
            return tries + 1, left, right, position, logdensity, found

        no = wrap(np.asarray(False))
        start = wrap(np.array(0)), 0.0 * first, first, state.position, state.logdensity, no
        tries, _, _, position, logdensity, found = while_loop(
            lambda c: (c[0] < MOST_SHRINKS) & ~c[5], shrink, start
        )
        new = PointState(
            where(found, position, state.position),
            where(found, logdensity, state.logdensity),
            counter + 1 + tries,
        )
        return new, EllipticalSliceInfo(new.logdensity, tries)
