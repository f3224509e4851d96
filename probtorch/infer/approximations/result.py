"""`Approximation`: what the algorithms of this room return, and how far to believe it.

An approximation q has a density and can be drawn from. Draws come with the ratios p / q of the
posterior to it, up to the evidence: their tail says whether q can stand for the posterior
(vi/guide_quality.py), their smoothed weights repair what they can, and their mean is the evidence.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.psis import MIN_DRAWS
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.approximations.gaussians import GaussianDensity
from probtorch.infer.model_calls import check_model
from probtorch.infer.potential import Target
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.weights import ancestors, log_mean, uniforms
from probtorch.infer.starts.path_starts import Evaluations
from probtorch.infer.vi.guide_quality import judge, quality_of
from probtorch.infer.vi.with_ratios import WithRatios

__all__ = ["Approximation", "NormalApproximation", "free_values", "target_of"]

NUM_DRAWS = 1000
# Draws that are made for each one that is kept by its weight, and the fewest of them.
POOL, SMALLEST_POOL = 4, 1000


@dataclass(frozen=True, eq=False, repr=False)
class Approximation(WithRatios):
    """An approximation of a posterior by something with a density.

    Attributes
    ----------
    target : Target
        What is approximated.
    seconds : float
        How long that took.
    resample : bool
        Whether `draws` are resampled by their importance weights unless told.
    attrs : dict
        Facts of the run, which go with the draws.
    """

    target: Target
    seconds: float = 0.0
    resample: bool = False
    attrs: Mapping[str, object] = field(default_factory=dict)
    _made: dict[object, SampledDraws] = field(default_factory=dict)

    # How the warning calls it, and what it advises.
    title = "the approximation"
    cure = "reparameterise the model, or sample with NUTS"

    @abc.abstractmethod
    def sample(self, num_draws: int, generator: Generator) -> np.ndarray:
        """Return independent draws on the unconstrained scale, shape (num_draws, dim)."""

    @abc.abstractmethod
    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return the approximation's log density at unconstrained points.

        Parameters
        ----------
        points : ndarray, shape (points, dim)

        Returns
        -------
        ndarray, shape (points,)
            Natural log, normalised.
        """

    def sampled(self, num_draws: int, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return draws as `sample` does, with their log densities, shape (num_draws,)."""
        points = self.sample(num_draws, generator)
        return points, self.log_prob(points)

    def distribution(self) -> Distribution:
        """Return the approximation as a `Distribution` of the unconstrained vector.

        For what takes one: ``IndependentMH(model, proposal=result.distribution())`` proposes from
        it, and ``SMC(kernel, reference=result.distribution())`` begins there.

        Raises
        ------
        InferenceError
            If it is none of those that there are.
        """
        raise InferenceError(
            f"{type(self).__name__}.distribution()",
            expected="a normal, or a mixture of some",
            got="something that can only be drawn from and evaluated",
            fix="use sample and log_prob, or give the result itself, whose moments are taken",
        )

    def draws(
        self,
        num_draws: int = NUM_DRAWS,
        *,
        seed: int | Generator = 0,
        resample: bool | None = None,
    ) -> SampledDraws:
        """Return draws as one chain.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator
            Where they are drawn from; an int gives the same draws every time.
        resample : bool, optional
            False for draws of the approximation as it is. True for draws by their smoothed
            importance weights, of four times as many; a draw is repeated only where its weight is
            more than one draw's share. By default what the algorithm was told.

        Returns
        -------
        SampledDraws
            `sample_stats` has ``lp`` (log joint density with the log-determinants of the change of
            variables) and, unless resampled, ``log_weight`` (smoothed and normalised).
            ``attrs["pareto_k"]`` is the shape of the tail of the ratios.

        Raises
        ------
        InferenceError
            If no draw has a finite log density.

        Warns
        -----
        GuideWarning
            If `pareto_k` is above what so many draws can bear; or if the approximation is too
            narrow, and the draws are not resampled.
        """
        count = count_of(type(self).__name__ + ".draws", "num_draws", num_draws)
        resampled = self.resample if resample is None else bool(resample)
        key = (count, seed, resampled)
        if isinstance(seed, Generator) or key not in self._made:
            made = self._draw(count, generator_of(seed), resampled)
            judge(made, self.title, self.cure)
            if isinstance(seed, Generator):
                return made
            self._made[key] = made
        return self._made[key]

    def log_evidence(
        self, num_draws: int = NUM_DRAWS, *, seed: int | Generator = 0
    ) -> tuple[float, float]:
        """Estimate the log marginal likelihood by importance sampling.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator

        Returns
        -------
        value : float
            In nats; the log of an unbiased estimate.
        error : float
            Its standard error, to be believed where `pareto_k` is below 0.5.

        Notes
        -----
        For a hand-written density, or improper priors, it is the log of the normalising constant.
        """
        count = count_of(type(self).__name__ + ".log_evidence", "num_draws", num_draws, 2)
        _, _, ratios = self._ratios(count, generator_of(seed))
        return log_mean(ratios)

    # ------------------------------------------------------------------------------------- drawing

    def _ratios(
        self, count: int, generator: Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws, their log joint densities and log importance ratios."""
        points, log_prob = self.sampled(count, generator)
        values, _ = Evaluations(self.target)(points)
        if not np.isfinite(values).any():
            raise InferenceError(
                f"{type(self).__name__} of {self.target.name}",
                expected="draws with a finite log density",
                got=f"none of {count}",
                fix=self.cure,
            )
        return points, values, values - log_prob

    def _draw(self, count: int, generator: Generator, resampled: bool) -> SampledDraws:
        points, stats, found = self.positions(count, generator, resampled)
        attrs = {
            "inference_library": "probtorch",
            "inference_method": type(self).__name__.removesuffix("Result"),
            "sampling_time": self.seconds,
            "resampled": resampled,
            **self.attrs,
            **found,
        }
        return make_draws(
            self.target, points[None], {name: x[None] for name, x in stats.items()}, attrs
        )

    def positions(
        self, count: int, generator: Generator, resampled: bool
    ) -> tuple[np.ndarray, dict[str, np.ndarray], Mapping[str, object]]:
        """Return draws on the unconstrained scale, (count, dim), their statistics and the verdict.

        What `draws` is made of, which says what they are; the verdict has ``pareto_k``.
        """
        pool = max(POOL * count, SMALLEST_POOL) if resampled else count
        points, values, ratios = self._ratios(pool, generator)
        quality = quality_of(ratios, free_values(self.target, points))
        stats = {"lp": values}
        if resampled and quality.log_weight is not None:
            chosen = ancestors(np.exp(quality.log_weight), count, generator)
            # In random order: they come sorted.
            chosen = chosen[np.argsort(uniforms(generator, count), kind="stable")]
            points, stats = points[chosen], {"lp": values[chosen]}
        elif quality.log_weight is not None:
            stats["log_weight"] = quality.log_weight
        return points, stats, quality.attrs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target.name}, dim {self.target.dim})"


@dataclass(frozen=True, eq=False, repr=False)
class NormalApproximation(Approximation):
    """An approximation that is a normal on the unconstrained scale.

    Attributes
    ----------
    normal : GaussianDensity
    """

    normal: GaussianDensity = cast("GaussianDensity", None)  # which the run gives

    @property
    def mean(self) -> np.ndarray:
        """On the unconstrained scale, shape (dim,)."""
        return self.normal.mean

    @property
    def covariance(self) -> np.ndarray:
        """On the unconstrained scale, shape (dim, dim)."""
        return self.normal.covariance

    def distribution(self) -> MultivariateNormal:
        """Return the normal; see `Approximation.distribution`."""
        return MultivariateNormal(wrap(self.mean), wrap(self.covariance))

    def sample(self, num_draws: int, generator: Generator) -> np.ndarray:
        """Return draws of the normal; see `Approximation.sample`."""
        return self.normal.sample(num_draws, generator)

    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return log densities of the normal; see `Approximation.log_prob`."""
        return self.normal.log_prob(points)


def free_values(target: Target, points: np.ndarray) -> dict[str, np.ndarray]:
    """Return unconstrained values by site, each (points, *free shape)."""
    return {
        name: points[:, slot.start : slot.stop].reshape(len(points), *slot.free_shape)
        for name, slot in target.slots.items()
    }


def target_of(
    owner: str,
    model: Callable[..., object] | Target,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Target:
    """Return the density to approximate: of a model on its arguments, or the given one."""
    if isinstance(model, Target):
        if args or kwargs:
            raise ArgumentError(
                f"{owner}.run",
                expected="no arguments: a Target has its data already",
                got=f"{len(args) + len(kwargs)} arguments",
                fix=f"give the model in place of the Target, or write {owner}(target).run()",
            )
        return model
    check_model(model, owner)
    return Target.from_model(model, *args, **kwargs)


assert MIN_DRAWS <= SMALLEST_POOL  # a pool always has weights

explain_calls(globals())
