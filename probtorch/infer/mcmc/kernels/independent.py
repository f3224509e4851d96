"""Independent Metropolis-Hastings: proposals of one fixed distribution, wherever the chain stands.

The proposal is a normal or a multivariate Student t: the Laplace approximation of the posterior,
one that is given, or that with the moments of an approximation which was fitted before. Or it is
any distribution that the user states (proposal_laws.py): a flow, a mixture, one for each site. A
proposal is accepted by the ratio of the importance weights, posterior over proposal, of the new
point and the old.

References
----------
L. Tierney, "Markov chains for exploring posterior distributions", Annals of Statistics 22 (1994),
section 2.3.3. K. L. Mengersen, R. L. Tweedie, "Rates of convergence of the Hastings and Metropolis
algorithms", Annals of Statistics 24 (1996), for tails that have to be as heavy as the posterior's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer.mcmc.kernel import Kernel, setting, statistic
from probtorch.infer.mcmc.kernels.gaussian_prior import (
    Gaussian,
    check_together,
    given_gaussian,
)
from probtorch.infer.mcmc.kernels.proposal_laws import ProposalLaw, Stated, is_stated
from probtorch.infer.mcmc.kernels.random_walk import PointState, accept_probability
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.infer.mcmc.warm_up.modes import mode_of
from probtorch.infer.potential import ModelTarget, Target
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.exponentials import log1p
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.results import SampledDraws

__all__ = ["IndependentMH", "IndependentMHInfo"]

# Draws of an approximation that its mean and covariance are taken from, at least, and for each
# coordinate.
DRAWS, DRAWS_EACH = 4000, 40
# Degrees of freedom of the proposals: tails heavier than those of most posteriors.
DF = 5


_Proposed: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase]


class DrawsMaker(Protocol):
    """A result that makes draws."""

    def draws(self, num_draws: int) -> SampledDraws:
        """Return so many, with their unconstrained positions."""


@record
class IndependentMHInfo:
    """What one proposal came to; `log_weight` is that of the new state, posterior over proposal."""

    accept_prob: TensorBase = statistic("acceptance_rate")
    lp: TensorBase = statistic("lp")
    log_weight: TensorBase = statistic("log_weight")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


class IndependentMH(Kernel[PointState]):
    """Metropolis-Hastings with proposals that do not depend on the state [tierney1994]_.

    One density and no gradient a draw, and draws that are all but independent where the proposal
    is close to the posterior: to correct a Laplace or variational approximation in a few
    dimensions. Where it is not close, a chain sits at points of large weight, and R-hat and
    effective sizes show it.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`.
    proposal : "laplace", draws, a result, a Distribution, or a dict of them by site
        Where proposals come from: the mode of the posterior with the inverse of its curvature; or
        the mean and the covariance of draws of the same model, such as those of a guide,
        ``SVI(...).run(1000)``, of `Pathfinder` or of another chain. A distribution is the proposal
        itself: one of the unconstrained vector, such as a result's ``distribution()``, which is the
        guide, the flow or the mixture of paths as it was fitted; or one for each site on the
        model's own scale, ``{"rate": Gamma(2.0, 1.0), "loc": Normal(0.0, 1.0)}``.
    loc : array_like, shape (dim,), or dict of arrays by site, optional
        Mean of the proposals instead, of the unconstrained coordinates.
    covariance : array_like, shape (dim,) or (dim, dim), optional
        Their covariance, or the diagonal of it.
    df : int or None
        Degrees of freedom of a Student t in its place, which has the tails that a proposal needs:
        the posterior's must not be heavier [mengersen1996]_. None for a normal; in more than ten or
        so dimensions a t with few is itself far from near normal posteriors. Of no effect on a
        distribution.

    Raises
    ------
    ArgumentError
        If one of `loc` and `covariance` is given without the other, or along with a `proposal`.
    ShapeError, InferenceError
        In a run, if they do not fit the target.

    Notes
    -----
    `log_weight` in `sample_stats` is the log of posterior over proposal, up to a constant.

    References
    ----------
    [tierney1994]_, [mengersen1996]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, IndependentMH
    >>> def coin(heads):
    ...     p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    ...     probtorch.sample("heads", dist.Binomial(10, p), obs=heads)
    >>> kernel = IndependentMH(coin)
    >>> mcmc = MCMC(kernel, num_samples=1000, num_chains=4, seed=1, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor(7.0))
    >>> bool(draws.sample_stats["acceptance_rate"].mean() > 0.8)
    True
    >>> kernel = IndependentMH(coin, proposal={"p": dist.Beta(9.0, 5.0)})  # the posterior itself
    >>> mcmc = MCMC(kernel, num_samples=100, num_chains=2, seed=1, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor(7.0))
    >>> bool(draws.sample_stats["acceptance_rate"].min() > 0.999)
    True
    """

    info = IndependentMHInfo

    proposal: object = setting(default="laplace")
    loc: TensorLike | Mapping[str, TensorLike] | None = setting(default=None)
    covariance: TensorLike | None = setting(default=None)
    df: int | None = static(default=DF)
    gaussian: Gaussian | None = dataclasses.field(default=None, init=False)
    # Where a distribution was given.
    law: ProposalLaw | None = dataclasses.field(default=None, init=False, metadata={"static": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_together(self.name, self.loc, self.covariance, "for the Laplace approximation")
        laplace = isinstance(self.proposal, str) and self.proposal == "laplace"
        if is_stated(self.proposal):
            self._set(law=ProposalLaw(cast("Stated", self.proposal), self.name))
        made = any(hasattr(self.proposal, name) for name in ("positions", "draws"))
        known = laplace or made or self.law is not None
        if not known or not (laplace or self.loc is None):
            raise ArgumentError(
                f"{self.name}(proposal=...)",
                expected="'laplace', draws, a result that makes some, as SVI(...).run(1000), a "
                "Distribution or a dict of them by site; or loc and covariance without a proposal",
                got=f"{self.proposal!r:.60}" + ("" if self.loc is None else " and loc"),
                fix="leave it out for the Laplace approximation",
            )
        whole = isinstance(self.df, int) and not isinstance(self.df, bool)
        if self.df is not None and not (whole and self.df >= 1):
            raise ArgumentError(
                f"{self.name}(df=...)",
                expected="an int of at least 1, or None for a normal",
                got=f"{self.df!r:.60}",
                fix=f"leave it out for {DF}",
            )

    def target(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
    ) -> Target:
        """Return the `Target` for the arguments of a run.

        A guide has coordinates of all elements of partly observed sites: so has the target then.
        """
        found = super().target(args, kwargs, init_params)
        holes = any(slot.holes is not None for slot in found.slots.values())
        if not holes or self.model is None or isinstance(self.model, Target):
            return found
        whole = ModelTarget(self.model, tuple(args), dict(kwargs), whole=True)
        return whole if self._size(found, whole) == whole.dim else found

    def _size(self, target: Target, whole: Target) -> int:
        """Number of coordinates that the proposal has."""
        if self.law is not None:
            stated = self.law.stated
            return whole.dim if isinstance(stated, Mapping) else math.prod(stated.event_shape)
        if self.covariance is not None:
            return as_tensor(self.covariance).array.shape[-1]
        return target.dim if isinstance(self.proposal, str) else self._rows(target).shape[-1]

    def on(self, target: Target) -> Self:
        """Return it with the proposals on a target; see `Kernel.on`."""
        return self if self.law is None else replace(self, law=self.law.on(target))

    def first_values(
        self, target: Target, state: PointState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the location and the scale of the proposals.

        Raises
        ------
        ShapeError
            If what was given does not fit the target.
        """
        if self.law is not None:
            return {}
        if self.covariance is not None:
            found = given_gaussian(self.name, self.loc, self.covariance, target)
        elif isinstance(self.proposal, str):
            mode = mode_of(target, state.position.array)
            found = Gaussian.of(mode.position, mode.covariance)
        else:
            found = self._of_draws(target)
        return {"gaussian": found}

    def _rows(self, target: Target) -> np.ndarray:
        """Draws that were given, or that a result makes."""
        found = getattr(self.proposal, "positions", None)
        if found is None or callable(found):
            draws = cast("DrawsMaker", self.proposal).draws(max(DRAWS, DRAWS_EACH * target.dim))
            found = draws.positions
        return np.empty(0) if found is None else np.asarray(found, np.float64)

    def _of_draws(self, target: Target) -> Gaussian:
        """The normal with the moments of these draws."""
        rows = self._rows(target)
        if rows.shape[-1] != target.dim:
            raise ShapeError(
                f"{self.name}(proposal=...)",
                expected=f"draws of the same model, of {target.dim} unconstrained coordinates",
                got=f"{rows.shape[-1]} of them",
                fix="fit the proposal to this model and these data",
            )
        rows = rows.reshape(-1, target.dim)
        return Gaussian.of(rows.mean(axis=0), np.cov(rows.T).reshape(target.dim, target.dim))

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return a Gaussian of the kind that a saved chain has, if it has one."""
        if self.law is not None:
            return {}
        # That of a mode, or of draws, has all covariances.
        given = self.covariance
        dense = given is None or as_tensor(given).array.ndim == 2
        return {"gaussian": Gaussian.blank(dim, dense=dense)}

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        if self.law is not None:
            return {**super().attrs(), "proposal": repr(self.law)}
        return {**super().attrs(), "df": "normal" if self.df is None else self.df}

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> PointState:
        """Return the state at a position."""
        return PointState(position, self.density(position)[0], as_tensor(counter))

    def step(self, key: Key, state: PointState) -> tuple[PointState, IndependentMHInfo]:
        """Return ``(state, info)`` after one proposal."""
        position, before, after, counter = self._proposed(key, state)
        logdensity, _ = self.density(position)
        weight = state.logdensity - before
        new_weight = logdensity - after
        accept_prob = accept_probability(new_weight - weight)
        accepted = uniform(key, counter) < accept_prob
        new = PointState(
            where(accepted, position, state.position),
            where(accepted, logdensity, state.logdensity),
            counter + 1,
        )
        info = IndependentMHInfo(
            accept_prob, new.logdensity, where(accepted, new_weight, weight), wrap(np.array(1))
        )
        return new, info

    def _proposed(self, key: Key, state: PointState) -> _Proposed:
        """A proposal, the proposals' log densities at the state and at it, and the next counter."""
        (dim,), law = state.position.shape, self.law
        if law is not None:
            drawn, counter = law.draw(key, state.counter)
            # Outside of the model's support there is no position, and nothing to be accepted.
            inside = isfinite(total(drawn))
            position = where(inside, drawn, state.position)
            after = where(inside, law.log_prob(position), np.inf)
            return position, law.log_prob(state.position), after, counter
        gaussian = self.gaussian
        assert gaussian is not None
        z, counter = normals(key, state.counter, dim), state.counter + dim
        if self.df is not None:
            # A t is a normal over the root of a mean of so many squares.
            others = normals(key, counter, self.df)
            z, counter = z / sqrt(total(others * others) / self.df), counter + self.df
        away = state.position - gaussian.loc
        square = total(away * gaussian.times_precision(away))
        position = gaussian.loc + gaussian.metric.velocity(z)
        return position, -self._fallen(square, dim), -self._fallen(total(z * z), dim), counter

    def _fallen(self, square: TensorBase, dim: int) -> TensorBase:
        """Minus the proposal's log density at a whitened point, less that at its middle."""
        if self.df is None:
            return 0.5 * square
        return 0.5 * (self.df + dim) * log1p(square / self.df)
