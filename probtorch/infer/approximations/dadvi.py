"""`DADVI`: mean-field variational inference with fixed draws, and a covariance by linear response.

With its standard normal draws chosen once, the evidence lower bound is an ordinary function: L-BFGS
finds its top to rounding, without a rate of learning and without a doubt whether it has arrived.
How the means would move if the posterior were tilted is the covariance that the mean-field normal
itself leaves out [giordano2018]_. Both are [giordano2024]_; here the draws come in pairs of
opposite sign and are scaled to a variance of 1, which makes means and deviations of a normal
posterior with independent numbers exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.rng import Generator, generator_of
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.approximations.gaussians import LOG_2PI, GaussianDensity
from probtorch.infer.approximations.result import NormalApproximation, target_of
from probtorch.infer.approximations.second_order import Hessians
from probtorch.infer.control import Interrupt
from probtorch.infer.potential import Target
from probtorch.infer.starts.lbfgs_paths import LbfgsPaths, best_of_paths
from probtorch.infer.starts.path_starts import Evaluations, candidates, normal_numbers

__all__ = ["DADVI", "DADVIResult"]

# Where standard deviations start, on the log scale: narrow, as draws far out may have no density.
LOG_SD = -2.0
# The search ends this far below the top, in nats, by its estimate; it failed this far below.
TOLERANCE, FLAT = 1e-10, 1e-4


class DADVI:
    """Deterministic automatic differentiation variational inference.

    Parameters
    ----------
    model : callable or Target
        A model without discrete sites that cannot be summed out, or a density.
    num_draws : int
        Standard normal draws in the bound, in pairs; an odd number is rounded up.
    linear_response : bool
        Take the covariance from linear response, which asks for second derivatives at all draws.
        Without it the approximation is the mean-field normal, and there is no `sampling_error`.
    max_gradients : int
        Evaluations of the bound that the search may take.
    radius : float
        It begins uniformly between -radius and radius on the unconstrained scale.
    seed : int or Generator, optional
        Where the draws come from; the default generator if None.

    Raises
    ------
    ArgumentError
        For counts below 1, or a radius that is not positive.

    References
    ----------
    [giordano2024]_, [giordano2018]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import DADVI
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> result = DADVI(model, seed=0).run(probtorch.tensor([1.0, 2.0, 3.0]))
    >>> result.mean.round(4), result.covariance.round(4)
    (array([1.5]), array([[0.25]]))
    """

    def __init__(
        self,
        model: Callable[..., object] | Target,
        num_draws: int = 30,
        *,
        linear_response: bool = True,
        max_gradients: int = 2000,
        radius: float = 2.0,
        seed: int | Generator | None = None,
    ) -> None:
        self.model, self.linear_response, self.seed = model, bool(linear_response), seed
        self.num_draws = count_of("DADVI", "num_draws", num_draws)
        self.max_gradients = count_of("DADVI", "max_gradients", max_gradients)
        if not 0.0 < radius < math.inf:
            raise ArgumentError(
                "DADVI(radius=...)",
                expected="a positive number",
                got=repr(radius),
                fix="leave it out for 2",
            )
        self.radius = float(radius)

    def run(self, *args: object, max_seconds: float | None = None, **kwargs: object) -> DADVIResult:
        """Find the top of the bound.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        max_seconds : float, optional
            End the search after this time, as Ctrl-C does; what it has found is kept if it is as
            good as the top, and ``attrs["interrupted"]`` is true.

        Returns
        -------
        DADVIResult

        Raises
        ------
        InferenceError
            If no point with a finite log density was found, or the search did not arrive at a top.
        """
        began = time.perf_counter()
        interrupt = Interrupt("DADVI.run", max_seconds)
        target = target_of("DADVI", self.model, args, kwargs)
        begun, drawn = generator_of(self.seed).spawn(2)
        half = normal_numbers(drawn, (-(-self.num_draws // 2), target.dim))
        half /= np.sqrt((half * half).mean(axis=0))
        evaluate = Evaluations(target)
        bound = _Bound(evaluate, np.concatenate([half, -half]))
        start, _, _ = candidates(target, evaluate, 1, begun, self.radius)
        first = np.concatenate([start, np.full_like(start, LOG_SD)], axis=1)
        with interrupt:
            best = best_of_paths(
                LbfgsPaths(bound, first, *bound(first)),
                lambda paths, rows: paths.value[rows],
                max_gradients=self.max_gradients,
                tolerance=TOLERANCE,
                patience=math.inf,
                interrupt=interrupt,
            )
        slope = best.gradient
        gain = 0.5 * float((slope * best.hessian.apply(slope)).sum())
        arrived = math.isfinite(best.value[0]) and gain < FLAT
        if not arrived and interrupt.heeded:
            raise interrupt.without("the search for the top of the bound")
        if not arrived:
            raise _not_arrived(target, f"a bound of {best.value[0]:.6g} that still rises")
        mean, log_sd = np.split(best.position[0], 2)
        sd = np.exp(log_sd)
        normal, error = GaussianDensity(mean, sd), None
        if self.linear_response:
            inverse = _inverse_curvature(target, bound, mean, sd)
            covariance = inverse[: target.dim, : target.dim]
            normal = GaussianDensity(mean, np.linalg.cholesky(covariance))
            error = _sampling_error(bound, mean, sd, inverse)
        entropy = 0.5 * target.dim * (1.0 + LOG_2PI)
        attrs = {
            "num_draws": 2 * len(half), "gradients": evaluate.count,
            "interrupted": interrupt.heeded,
        }  # fmt: skip
        return DADVIResult(
            target,
            time.perf_counter() - began,
            False,
            attrs,
            normal=normal,
            sd=sd,
            elbo=float(best.value[0]) + entropy,
            sampling_error=error,
        )

    def __repr__(self) -> str:
        return call_of(self)


@dataclass(frozen=True, eq=False, repr=False)
class DADVIResult(NormalApproximation):
    """What `DADVI.run` returns: a normal on the unconstrained scale.

    Attributes
    ----------
    normal : GaussianDensity
        With the covariance of linear response, unless that was switched off.
    sd : ndarray, shape (dim,)
        Standard deviations of the mean-field normal, which are too small where numbers depend on
        each other.
    elbo : float
        The bound at its top, in nats, for the draws that were used.
    sampling_error : ndarray, shape (dim,), or None
        Standard errors of the means, of other draws having been chosen; a little too large, as it
        knows nothing of their scaling. None for fewer than two pairs, or without linear response.
    """

    sd: np.ndarray = cast("np.ndarray", None)
    elbo: float = math.nan
    sampling_error: np.ndarray | None = None

    title = "DADVI's approximation"


class _Bound:
    """The bound, without the constant of the entropy, at rows of means and log deviations."""

    def __init__(self, evaluate: Evaluations, normals: np.ndarray) -> None:
        self.evaluate, self.normals = evaluate, normals

    def each(self, mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log densities and gradients with respect to mean and log deviation, draw by draw."""
        values, slopes = self.evaluate(mean + sd * self.normals)
        return values, np.concatenate([slopes, slopes * sd * self.normals + 1.0], axis=1)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = np.empty(len(points)), np.empty_like(points)
        for i, point in enumerate(points):
            mean, log_sd = np.split(point, 2)
            with np.errstate(over="ignore", invalid="ignore"):
                found, slopes = self.each(mean, np.exp(log_sd))
                values[i], gradients[i] = found.mean() + log_sd.sum(), slopes.mean(axis=0)
        return values, gradients


def _inverse_curvature(
    target: Target, bound: _Bound, mean: np.ndarray, sd: np.ndarray
) -> np.ndarray:
    """The inverse of minus the second derivatives of the bound at its top, (2 dim, 2 dim)."""
    away = sd * bound.normals
    found = Hessians(target)(mean + away)
    _, slopes = bound.each(mean, sd)
    corner = -np.einsum("si,sij,sj->ij", away, found, away) / len(away)
    # The second derivative of sd with respect to its log is sd again.
    corner -= np.diag((slopes[:, target.dim :] - 1.0).mean(axis=0))
    side = -(found * away[:, None, :]).mean(axis=0)
    curvature = np.block([[-found.mean(axis=0), side], [side.T, corner]])
    if not (np.isfinite(curvature).all() and np.linalg.eigvalsh(curvature)[0] > 0.0):
        raise _not_arrived(target, "a bound that is not concave there")
    inverse = np.linalg.inv(curvature)
    return np.asarray(0.5 * (inverse + inverse.T))


def _sampling_error(
    bound: _Bound, mean: np.ndarray, sd: np.ndarray, inverse: np.ndarray
) -> np.ndarray | None:
    """Standard errors of the means: the gradients of pairs of draws, seen through the curvature."""
    _, slopes = bound.each(mean, sd)
    pairs = len(slopes) // 2
    if pairs < 2:
        return None
    steps = (0.5 * (slopes[:pairs] + slopes[pairs:])) @ inverse[:, : mean.size]
    return np.asarray(steps.std(axis=0, ddof=1) / math.sqrt(pairs))


def _not_arrived(target: Target, got: str) -> InferenceError:
    return InferenceError(
        f"DADVI for {target.name}",
        expected="a top of the bound",
        got=got,
        fix="give more max_gradients or num_draws, write hierarchical scales in non-centred form, "
        "or use SVI",
    )


explain_calls(globals())
