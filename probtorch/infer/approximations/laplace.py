"""`LaplaceApproximation`: the normal at the mode of a posterior, with the curvature there.

The mode is found by L-BFGS from several points, on the unconstrained scale, and polished by
Newton's steps; the curvature there is exact. The evidence follows in closed form [mackay1992]_,
and draws come with importance ratios, which say how far to believe both.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.arguments import choice_of, count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, InferenceError, user_frame
from probtorch.infer.approximations.gaussians import LOG_2PI, GaussianDensity
from probtorch.infer.approximations.result import NormalApproximation, target_of
from probtorch.infer.approximations.second_order import Hessians, hessian_diagonal
from probtorch.infer.control import Interrupt
from probtorch.infer.potential import Target
from probtorch.infer.starts.lbfgs_paths import BestPoints, LbfgsPaths, best_of_paths
from probtorch.infer.starts.path_starts import Evaluations, candidates
from probtorch.infer.vi.guide_quality import GuideWarning

__all__ = ["LaplaceApproximation", "LaplaceResult"]

STRUCTURES = ("full", "diag")
# A path ends this far below the top, in nats, by its estimate.
TOLERANCE = 1e-9
# Newton's steps, and the rise still promised, in nats, at which they end: rounding of a log density
# of a million.
NEWTON_STEPS, NEWTON_TOLERANCE = 20, 1e-10
# Of differences of gradients, in standard deviations as L-BFGS sees them.
DIFFERENCE = 1e-4
# How far from the top a mode may be that has no matrix to polish it with, in nats.
FLAT = 1e-3
# Another top is spoken of if its evidence is less than this below, in nats, and it is so far away,
# in squared standard deviations: this, and this per dim.
RIVAL, ELSEWHERE, ELSEWHERE_PER_DIM = 5.0, 25.0, 4.0


class LaplaceApproximation:
    """Laplace's approximation of a posterior.

    Parameters
    ----------
    model : callable or Target
        A model without discrete sites that cannot be summed out, or a density.
    hessian_structure : {"full", "diag"}
        What is kept of the curvature: all, or its diagonal, which makes numbers independent and as
        narrow as they are given the others.
    num_starts : int
        Points that the search for the mode begins at.
    max_gradients : int
        Evaluations that each of these may take.
    radius : float
        They are drawn uniformly between -radius and radius on the unconstrained scale.
    seed : int or Generator, optional
        Where they are drawn from; the default generator if None.

    Raises
    ------
    ArgumentError
        For another structure, or counts below 1.

    Notes
    -----
    The mode is that of the density on the unconstrained scale. A hierarchical model with a scale of
    its own has a pole in place of a mode; a non-centred form of it has none.

    References
    ----------
    [tierney1986]_, [mackay1992]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import LaplaceApproximation
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> result = LaplaceApproximation(model, seed=0).run(probtorch.tensor([1.0, 2.0, 3.0]))
    >>> round(result.mode["mu"].item(), 4), round(result.log_marginal_likelihood, 4)
    (1.5, -5.95)
    """

    def __init__(
        self,
        model: Callable[..., object] | Target,
        hessian_structure: str = "full",
        *,
        num_starts: int = 4,
        max_gradients: int = 2000,
        radius: float = 2.0,
        seed: int | Generator | None = None,
    ) -> None:
        choice_of("LaplaceApproximation", "hessian_structure", hessian_structure, STRUCTURES)
        self.model, self.hessian_structure = model, hessian_structure
        self.num_starts = count_of("LaplaceApproximation", "num_starts", num_starts)
        self.max_gradients = count_of("LaplaceApproximation", "max_gradients", max_gradients)
        if not 0.0 < radius < math.inf:
            raise ArgumentError(
                "LaplaceApproximation(radius=...)",
                expected="a positive number",
                got=repr(radius),
                fix="leave it out for 2",
            )
        self.radius, self.seed = float(radius), seed

    def run(
        self, *args: object, max_seconds: float | None = None, **kwargs: object
    ) -> LaplaceResult:
        """Find the mode, and the curvature there.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        max_seconds : float, optional
            End the search after this time, as Ctrl-C does; it is kept if Newton's steps lead from
            its best point to a mode, and ``attrs["interrupted"]`` is true.

        Returns
        -------
        LaplaceResult

        Raises
        ------
        InferenceError
            If no point with a finite log density was found, or the search ended where the log
            density is not concave or still rises.

        Warns
        -----
        GuideWarning
            If another start led to a mode of comparable evidence.
        """
        interrupt = Interrupt("LaplaceApproximation.run", max_seconds)
        target = target_of("LaplaceApproximation", self.model, args, kwargs)
        with interrupt:
            (found,) = self.run_many([target], [generator_of(self.seed)], interrupt)
        if isinstance(found, Exception):
            if interrupt.heeded:
                raise interrupt.without("the search for the mode") from found
            raise found
        return found

    def run_many(
        self,
        targets: Sequence[Target],
        generators: Sequence[Generator],
        interrupt: Interrupt | None = None,
    ) -> list[LaplaceResult | Exception]:
        """Return what `run` does for each of some targets of one dimension, or its error.

        Parameters
        ----------
        targets : sequence of Target
        generators : sequence of Generator
            Where the starts of each are drawn from.
        interrupt : Interrupt, optional
            Asked whether the search is to end.

        Notes
        -----
        Paths of all of them climb together, so that Python between two steps is there once. A path
        is what it would be alone.
        """
        began = time.perf_counter()
        climbs: list[_Climb | Exception] = []
        for target, generator in zip(targets, generators, strict=True):
            evaluate = Evaluations(target)
            try:
                found = candidates(target, evaluate, self.num_starts, generator, self.radius)
            except Exception as error:
                climbs.append(error)
            else:
                climbs.append(_Climb(target, evaluate, *found))
        begun = [c for c in climbs if isinstance(c, _Climb)]
        together = iter(_bests(begun, self.max_gradients, interrupt)) if begun else iter(())
        results: list[LaplaceResult | Exception] = []
        for climb in climbs:
            if isinstance(climb, Exception):
                results.append(climb)
                continue
            try:
                ended = interrupt is not None and interrupt.heeded
                best = next(together)
                results.append(self._at_best(climb.target, climb.evaluate, best, began, ended))
            except Exception as error:
                results.append(error)
        return results

    def _at_best(
        self,
        target: Target,
        evaluate: Evaluations,
        best: BestPoints,
        began: float,
        ended: bool,
    ) -> LaplaceResult:
        """The normal at the top of the best path."""
        top = int(np.argmax(best.value))
        if self.hessian_structure == "full":
            point, value, precision = _polished(target, evaluate, best, top)
            slope = evaluate(point[None])[1][0]
            gain = math.nan  # at a pole, which is told of
            if np.isfinite(precision).all():
                gain = 0.5 * float(slope @ np.linalg.lstsq(precision, slope, rcond=None)[0])
        else:
            point, value = best.position[top], float(best.value[top])
            precision = -hessian_diagonal(target, point)
            slope = best.gradient[top]
            gain = 0.5 * float(slope @ best.hessian.rows(np.array([top])).apply(slope[None])[0])
        _check_concave(target, precision, gain)
        normal = GaussianDensity.of_precision(point, precision)
        attrs = {
            "hessian_structure": self.hessian_structure, "gradients": evaluate.count,
            "interrupted": ended,
        }  # fmt: skip
        evidence = value + 0.5 * (normal.log_det + target.dim * LOG_2PI)
        _tell_of_rivals(target, best, normal, evidence)
        return LaplaceResult(
            target, time.perf_counter() - began, False, attrs, normal=normal, evidence=evidence
        )

    def __repr__(self) -> str:
        return call_of(self)


@dataclass(frozen=True, eq=False, repr=False)
class LaplaceResult(NormalApproximation):
    """What `LaplaceApproximation.run` returns: a normal on the unconstrained scale.

    Attributes
    ----------
    normal : GaussianDensity
        With the mode as its mean.
    """

    evidence: float = math.nan

    title = "Laplace's approximation"
    cure = "reparameterise the model, try Pathfinder, or sample with NUTS"

    @property
    def mode(self) -> dict[str, TensorBase]:
        """Latent and deterministic sites at the mode, by name."""
        with no_grad():
            return self.target.constrain(wrap(self.normal.mean.copy()))

    @property
    def log_marginal_likelihood(self) -> float:
        """The log evidence in closed form, in nats; `log_evidence` corrects it by draws."""
        return self.evidence


@dataclass(frozen=True)
class _Climb:
    """A target whose paths are to begin."""

    target: Target
    evaluate: Evaluations
    starts: np.ndarray
    values: np.ndarray
    gradients: np.ndarray


def _bests(
    climbs: Sequence[_Climb], max_gradients: int, interrupt: Interrupt | None
) -> list[BestPoints]:
    """Climb from the starts of several targets in step; return the best points of each."""
    ends = np.cumsum([len(c.values) for c in climbs])
    owner = np.repeat(np.arange(len(climbs)), [len(c.values) for c in climbs])

    def evaluate(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        owners = owner[paths.paths]
        edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        found = [
            climbs[owners[a]].evaluate(points[a:b]) for a, b in itertools.pairwise(edges) if b > a
        ]
        return np.concatenate([v for v, _ in found]), np.concatenate([g for _, g in found])

    paths = LbfgsPaths(
        evaluate,
        np.concatenate([c.starts for c in climbs]),
        np.concatenate([c.values for c in climbs]),
        np.concatenate([c.gradients for c in climbs]),
    )
    best = best_of_paths(
        paths,
        lambda paths, rows: paths.value[rows],
        max_gradients=max_gradients,
        tolerance=TOLERANCE,
        patience=math.inf,
        interrupt=interrupt,
    )
    return [best.rows(rows) for rows in np.split(np.arange(len(owner)), ends[:-1])]


def _polished(
    target: Target, evaluate: Evaluations, best: BestPoints, top: int
) -> tuple[np.ndarray, float, np.ndarray]:
    """The mode next to the best point by Newton's steps, the log density and the precision there.

    Steps need no exact curvature, which takes seconds where the density unrolls a long loop: it
    comes from differences of gradients. That at the mode is exact.
    """
    point, value, gradient = best.position[top], float(best.value[top]), best.gradient[top]
    estimate = best.hessian.rows(np.array([top]))
    variances = np.array([estimate.apply(e[None])[0] @ e for e in np.eye(target.dim)])
    scales = np.sqrt(np.where(variances > 0.0, variances, 1.0))  # at a pole they may be anything
    for _ in range(NEWTON_STEPS):
        precision = _rough(evaluate, point, scales)
        if not np.isfinite(precision).all():
            break  # a pole, which is told of
        try:
            normal = GaussianDensity.of_precision(point, precision)
        except np.linalg.LinAlgError:
            break  # no mode, which is told of
        step = normal.covariance @ gradient
        rise = 0.5 * float(gradient @ step)
        if not rise > NEWTON_TOLERANCE:
            if rise >= 0.0:
                point, value = point + step, value + rise
            break
        trials = point + (0.5 ** np.arange(12.0))[:, None] * step
        values, gradients = evaluate(trials)
        chosen = int(np.argmax(values))
        if not values[chosen] > value:
            break  # of what is promised nothing comes: it is rounding, or no mode
        point, value, gradient = trials[chosen], float(values[chosen]), gradients[chosen]
    return point, value, -Hessians(target)(point[None])[0]


def _rough(evaluate: Evaluations, point: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Minus the second derivatives by central differences of the gradient."""
    steps = DIFFERENCE * np.diag(scales)
    _, gradients = evaluate(np.concatenate([point + steps, point - steps]))
    up, down = np.split(gradients, 2)
    with np.errstate(all="ignore"):  # next to a pole they are beyond any number
        rows = (down - up) / (2.0 * DIFFERENCE * scales)[:, None]
        return np.asarray(0.5 * (rows + rows.T))


def _check_concave(target: Target, precision: np.ndarray, gain: float) -> None:
    """Refuse a point that is no mode."""
    least = math.nan
    if np.isfinite(precision).all():
        matrix = precision.ndim == 2
        least = float(np.linalg.eigvalsh(precision)[0] if matrix else precision.min())
    if least > 0.0 and gain < FLAT:
        return
    if math.isnan(least):
        got = "second derivatives that are not finite"
    elif least <= 0.0:
        got = f"a precision whose least {'eigenvalue' if precision.ndim == 2 else 'entry'} is "
        got += f"{least:.3g}"
    else:
        got = f"a log density that still rises, by {gain:.2g} nats or more"
    raise InferenceError(
        f"LaplaceApproximation for {target.name}",
        expected="a mode: a point where the log density is concave and rises no more",
        got=got,
        fix="write hierarchical scales in non-centred form, or sample with NUTS",
    )


def _tell_of_rivals(
    target: Target, best: BestPoints, normal: GaussianDensity, evidence: float
) -> None:
    """Warn of a mode somewhere else that has a share of the posterior."""
    away = best.position - normal.mean
    z = away / normal.root if normal.root.ndim == 1 else np.linalg.solve(normal.root, away.T).T
    far = (z * z).sum(-1) > ELSEWHERE + ELSEWHERE_PER_DIM * target.dim
    rivals = best.value + 0.5 * (best.log_det + target.dim * LOG_2PI)
    heavy = far & (rivals > evidence - RIVAL)
    if not heavy.any():
        return
    difference = float(np.max(rivals[heavy]) - evidence)
    message = (
        f"LaplaceApproximation for {target.name}: the posterior has another mode\n"
        "  expected: searches from all starts that end in one mode\n"
        f"  got:      {int(heavy.sum())} of {len(rivals)} that end elsewhere, where the log "
        f"evidence is {difference:+.1f} nats from here\n"
        "  fix:      use Pathfinder with more num_paths, or sample with NUTS"
    )
    warnings.warn_explicit(message, GuideWarning, *(user_frame() or ("<unknown>", 0)))


explain_calls(globals())
