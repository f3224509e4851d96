"""`NestedSampler`: the evidence of a model from the inside of its likelihood's level sets.

Live points are drawn from the prior. The least likely ones are left behind again and again, and in
their places come draws of the prior above their likelihood, so that what is left of the prior
shrinks by a known share each time, and the evidence is an integral over one dimension. The rounds
are in nested_course.py, the law they draw from in likelihood_levels.py, volumes and errors in
shrinkage.py; a kernel moves the points as it does those of `SMC` (mutation.py).

References
----------
J. Skilling, "Nested sampling for general Bayesian computation", Bayesian Analysis 1 (2006). W. J.
Handley, M. P. Hobson, A. N. Lasenby, "PolyChord: next-generation nested sampling", MNRAS 453
(2015), for slice sampling within the level. E. Higson, W. Handley, M. Hobson, A. Lasenby, "Sampling
errors in nested sampling parameter estimation", Bayesian Analysis 13 (2018), for the error.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.mcmc.kernel import Kernel, checked
from probtorch.infer.mcmc.kernels.slice import Slice
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.likelihood_levels import ConstrainedPath
from probtorch.infer.sequential.moved_particles import MovedParticles, ParticleRun
from probtorch.infer.sequential.nested_course import NestedCourse, uniform_p_value
from probtorch.infer.sequential.shrinkage import (
    evidence_error,
    information,
    log_sum,
    log_widths,
    mean_log_volumes,
)
from probtorch.infer.sequential.weighted_draws import WeightedDraws
from probtorch.infer.sequential.weights import ancestors, effective_size, uniforms

if TYPE_CHECKING:
    from probtorch.infer.potential import Target

__all__ = ["NestedDraws", "NestedSampler"]

# Transitions of a copied point by a kernel without a step size, which makes an update for each
# dimension: PolyChord's five. By another one: so many, and one for each dimension, as dynesty's.
SWEEPS, WALKS = 5, 20


@dataclass(frozen=True, eq=False, repr=False)
class NestedDraws(SampledDraws):
    """Draws of the posterior, equal in weight, as one chain; and what nested sampling told.

    Parameters
    ----------
    weighted : WeightedDraws or None
        All points with their weights. Not kept by `save`.

    Notes
    -----
    The rest is in `attrs`, so it is saved with the draws.
    """

    weighted: WeightedDraws | None = None

    @property
    def log_evidence(self) -> float:
        """Estimate of the log marginal likelihood."""
        return float(self.attrs["log_evidence"])

    @property
    def log_evidence_error(self) -> float:
        """Its standard error, from what is not known of the volumes."""
        return float(self.attrs["log_evidence_error"])

    @property
    def information(self) -> float:
        """Kullback-Leibler divergence of the posterior from the prior, in nats."""
        return float(self.attrs["information"])


class NestedSampler(MovedParticles[NestedCourse]):
    """Nested sampling: the evidence with its error, and draws of the posterior [skilling2006]_.

    It needs no gradient, finds several modes, and is not stopped by likelihoods whose powers have a
    sudden change somewhere (a phase transition), which temperatures step over: it goes by the
    order of likelihoods alone. For up to some twenty parameters; with more, `SMC` with a gradient
    kernel is cheaper.

    Parameters
    ----------
    model : callable, Target or Kernel
        A kernel moves the points, as of `SMC`: `Slice`, the default, or ``RandomWalk(model)``.
    num_live_points : int
        The error of the log evidence is about ``sqrt(information / num_live_points)``. A mode is
        found if some of them are near it at the start.
    dlogz : float
        End where all that is left could raise the log evidence by less than this.
    num_steps : int, optional
        Transitions by which a copied point becomes a new one; by default 5 by `Slice`, each of
        which has an update for every dimension, and 20 and one for every dimension by others.
    num_delete : int, optional
        Points that are replaced at a time, at most half of the live ones; an eighth by default. It
        hardly changes the result.
    num_samples : int, optional
        Draws of the posterior in the result; as many as the weighted points are worth by default.
    reference : Distribution, optional
        In place of the prior, a distribution of the unconstrained vector; needed for a density that
        is no model.
    num_threads : int, optional
        As many as there are processors. The draws do not depend on it.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.
    progress_bar : bool
        Whether to show how far it is.

    Raises
    ------
    ArgumentError
        If a setting is out of its range, or the kernel moves ensembles or needs a chain of its own.

    References
    ----------
    [skilling2006]_, [handley2015]_ for slice sampling, [higson2018]_ for the error,
    [fowlie2020]_ for the test of the ranks.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import NestedSampler
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> draws = NestedSampler(coin, num_live_points=200, seed=0, progress_bar=False).run(y)
    >>> bool(abs(draws.log_evidence - np.log(1 / 20)) < 4 * draws.log_evidence_error)
    True
    >>> bool(abs(draws.weighted.expectation("p") - 4 / 6) < 0.05)
    True
    """

    _name = "NestedSampler"

    @explained(
        "NestedSampler", meant={"num_particles": "num_live_points", "nlive": "num_live_points"}
    )
    def __init__(
        self,
        model: Callable[..., object] | Target | Kernel,
        num_live_points: int = 500,
        *,
        dlogz: float = 0.01,
        num_steps: int | None = None,
        num_delete: int | None = None,
        num_samples: int | None = None,
        reference: Distribution | None = None,
        num_threads: int | None = None,
        seed: int | Generator | None = None,
        progress_bar: bool = True,
    ) -> None:
        kernel = model if isinstance(model, Kernel) else Slice(model)
        super().__init__(kernel, reference, num_threads, seed, progress_bar)
        count = checked_count("NestedSampler", "num_live_points", num_live_points, 4)
        self.num_live_points = count
        self.dlogz = checked("NestedSampler", "dlogz", dlogz, 0.0, math.inf)
        self.num_steps = num_steps
        if num_steps is not None:
            self.num_steps = checked_count("NestedSampler", "num_steps", num_steps)
        self.num_delete = max(1, count // 8)
        if num_delete is not None:
            self.num_delete = checked_count("NestedSampler", "num_delete", num_delete)
        if self.num_delete > count // 2:
            raise ArgumentError(
                "NestedSampler(num_delete=...)",
                expected=f"at most {count // 2}, half of the live points: the others are copied",
                got=repr(num_delete),
                fix="leave it out for an eighth",
            )
        self.num_samples = num_samples
        if num_samples is not None:
            self.num_samples = checked_count("NestedSampler", "num_samples", num_samples)

    def __repr__(self) -> str:
        return f"NestedSampler({self.kernel!r}, num_live_points={self.num_live_points})"

    def run(
        self,
        *args: object,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> NestedDraws:
        """Go from the prior inwards, given the arguments of the model.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        checkpoint : path or Checkpoint, optional
            A folder in which the points are saved between rounds, for a run that is killed: the
            same call goes on from there, and its draws are those of a run without a break.
        checkpoint_every : float, optional
            Seconds between two checkpoints; 5 by default.
        max_seconds : float, optional
            End the run after this time, as Ctrl-C does.

        Returns
        -------
        NestedDraws
            `sample_stats` has ``lp`` and ``log_likelihood``; `weighted` has all points. After
            Ctrl-C the live points stand for all that is left, and ``attrs["interrupted"]`` is true.

        Raises
        ------
        InferenceError
            If hardly a draw of the prior can have made the data, or the log likelihood is nan or
            infinite.
        ArgumentError
            If the folder has a run with other settings, another model or other data.

        Warns
        -----
        NestedSamplingWarning
            If new points stay near those they are copies of, or do not come in evenly among the
            others.
        """
        run, course, interrupted = self._run(
            args, kwargs, checkpoint, checkpoint_every, max_seconds, streams=5
        )
        return self._result(run, course, interrupted)

    def _so_far(self, run: ParticleRun, course: NestedCourse) -> NestedDraws | None:
        if not len(course.counts):
            return None
        # What is buried and drawn for a look is not buried and drawn in the run.
        streams = [Generator(*stream.get_state()) for stream in run.streams]
        return self._result(dataclasses.replace(run, streams=streams), copy.copy(course), True)

    def _result(self, run: ParticleRun, course: NestedCourse, interrupted: bool) -> NestedDraws:
        """Weights of all points, draws by them, and what is told; the live points are buried."""
        left = course.remaining()
        course.bury_all()
        facts = {**run.kernel.attrs(), "inference_method": "NestedSampler", "dlogz": left}
        facts |= {"sampling_time": run.saved.seconds, "interrupted": interrupted}
        facts |= {"num_steps": course.num_steps}
        target, (_, _, simulations, resampling) = run.target, run.streams
        likelihood, counts = course.dead_likelihood, course.counts
        log_weights = likelihood + log_widths(mean_log_volumes(counts))
        within = log_sum(log_weights)
        if not math.isfinite(within):
            raise InferenceError(
                f"NestedSampler on {target.name}: the evidence",
                expected="a finite number",
                got=str(within),
                fix="look for a density that is not finite",
            )
        log_weights = log_weights - within
        volumes_error = evidence_error(likelihood, counts, simulations)
        ess = effective_size(log_weights)
        evidence = within + course.log_share
        error = math.hypot(volumes_error, course.error_of_share)
        facts |= {
            "inference_library": "probtorch",
            "log_evidence": evidence,
            "log_evidence_error": error,
            "information": information(likelihood, log_weights, within) - course.log_share,
            "weighted_ess": ess,
            "num_live_points": self.num_live_points,
            "num_points": len(counts),
            "evaluations": course.mutation.evaluations,
            "insertion_p_value": uniform_p_value(course.ranks) if len(course.ranks) else 1.0,
        }
        samples = {n: x[0] for n, x in target.constrain_many(course.dead_positions[None]).items()}
        weighted = WeightedDraws(
            samples,
            log_weights + evidence + math.log(len(counts)),
            log_weights,
            math.nan,
            evidence,
            error,
            dims=target.dims,
            coords=target.coords,
            attrs={"model_name": target.name, **facts},
            target=target,
            positions=course.dead_positions,
        )
        count = self.num_samples or max(1, round(ess))
        weights = np.exp(log_weights)
        rows = ancestors(weights / weights.sum(), count, resampling, "stratified")
        # They come in the order of their likelihoods, which draws of a chain have not.
        rows = rows[np.argsort(uniforms(resampling, count), kind="stable")]
        stats = {
            "lp": (course.dead_prior + likelihood)[rows][None],
            "log_likelihood": likelihood[rows][None],
        }
        draws = make_draws(
            target, course.dead_positions[rows][None], stats, facts,
            posterior={name: x[rows][None] for name, x in samples.items()},
        )  # fmt: skip
        return NestedDraws(**vars(draws), weighted=weighted)

    def _path(self, target: Target) -> ConstrainedPath:
        return ConstrainedPath(target, self.reference)

    def _course(self, run: ParticleRun) -> NestedCourse:
        sweeps = run.kernel.warmup.tuner is None
        return NestedCourse(
            self, run, self.num_steps or (SWEEPS if sweeps else WALKS + run.target.dim)
        )

    def _own_settings(self) -> dict[str, object]:
        return {
            "num_live_points": self.num_live_points,
            "dlogz": self.dlogz,
            "num_steps": self.num_steps,
            "num_delete": self.num_delete,
        }


explain_calls(globals())
