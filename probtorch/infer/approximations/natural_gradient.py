"""`NaturalGradientVI`: a normal that climbs the evidence lower bound by natural gradients.

In the geometry of normals the natural gradient of the bound is a step of Newton's method, averaged
over the approximation: the precision moves towards the mean of minus the Hessian, and the mean by
the covariance times the mean gradient. The correction of [lin2020]_ keeps each precision positive
definite. Draws come in pairs of opposite sign.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from probtorch.core.arguments import choice_of, count_of
from probtorch.core.rng import Generator, generator_of
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.approximations.gaussians import LOG_2PI, GaussianDensity
from probtorch.infer.approximations.result import NormalApproximation, target_of
from probtorch.infer.approximations.second_order import Hessians
from probtorch.infer.control import Interrupt
from probtorch.infer.potential import Target
from probtorch.infer.starts.path_starts import FEWEST_PATHS, climbed, normal_numbers

__all__ = ["NaturalGradientResult", "NaturalGradientVI"]

COVARIANCES = ("full", "diag")
# From this share of the steps on the rate falls to 0, so that noise averages out.
FALLING = 0.5
# The precision to start with: narrow, as draws far out may have no density.
PRECISION = 100.0
# A step that leads to where draws have no density is halved, this often.
HALVINGS = 12


class NaturalGradientVI:
    """Variational inference of a normal by natural gradients, with exact second derivatives.

    Parameters
    ----------
    model : callable or Target
        A model without discrete sites that cannot be summed out, or a density.
    covariance : {"full", "diag"}
        With "diag" second derivatives come from gradients at the draws alone.
    num_steps : int
    lr : float, in (0, 1]
        Rate of the natural gradient: 1 would be Newton's step. It falls to 0 in the second half.
    num_particles : int
        Draws per step, in pairs; an odd number is rounded up.
    radius : float
        The mean begins near a mode, to which short climbs lead from points between -radius and
        radius on the unconstrained scale.
    seed : int or Generator, optional
        Where draws come from; the default generator if None.

    Raises
    ------
    ArgumentError
        For another covariance, counts below 1, or a rate outside of (0, 1].

    References
    ----------
    [khan2018]_, [lin2020]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import NaturalGradientVI
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> result = NaturalGradientVI(model, seed=0).run(probtorch.tensor([1.0, 2.0, 3.0]))
    >>> result.mean.round(3), result.covariance.round(3)
    (array([1.5]), array([[0.25]]))
    """

    def __init__(
        self,
        model: Callable[..., object] | Target,
        covariance: str = "full",
        *,
        num_steps: int = 200,
        lr: float = 0.2,
        num_particles: int = 10,
        radius: float = 2.0,
        seed: int | Generator | None = None,
    ) -> None:
        choice_of("NaturalGradientVI", "covariance", covariance, COVARIANCES)
        self.model, self.covariance, self.seed = model, covariance, seed
        self.num_steps = count_of("NaturalGradientVI", "num_steps", num_steps)
        self.num_particles = count_of("NaturalGradientVI", "num_particles", num_particles)
        if not (0.0 < lr <= 1.0 and 0.0 < radius < math.inf):
            raise ArgumentError(
                "NaturalGradientVI(lr=..., radius=...)",
                expected="a rate in (0, 1] and a positive radius",
                got=f"lr={lr!r}, radius={radius!r}",
                fix="leave them out",
            )
        self.lr, self.radius = float(lr), float(radius)

    def run(
        self, *args: object, max_seconds: float | None = None, **kwargs: object
    ) -> NaturalGradientResult:
        """Take all steps.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        max_seconds : float, optional
            Take no more steps after this time, as after Ctrl-C: the normal of the last one is kept,
            which is noisier than at the end, and ``attrs["interrupted"]`` is true.

        Returns
        -------
        NaturalGradientResult

        Raises
        ------
        InferenceError
            If no point with a finite log density was found, or draws leave where it is finite
            however small the step.
        """
        began = time.perf_counter()
        interrupt = Interrupt("NaturalGradientVI.run", max_seconds)
        target = target_of("NaturalGradientVI", self.model, args, kwargs)
        begun, drawn = generator_of(self.seed).spawn(2)
        best, evaluate = climbed(target, FEWEST_PATHS, begun, self.radius)
        mean = best.position[int(np.argmax(best.top_score))]
        full = self.covariance == "full"
        hessians = Hessians(target) if full else None
        precision = PRECISION * (np.eye(target.dim) if full else np.ones(target.dim))
        normal = GaussianDensity.of_precision(mean, precision)
        half = -(-self.num_particles // 2)
        elbos = np.empty(self.num_steps)
        step = np.zeros(target.dim)
        previous = precision
        with interrupt:
            for k in range(self.num_steps):
                if k and interrupt.asked:
                    elbos = elbos[:k]
                    break
                normals = normal_numbers(drawn, (half, target.dim))
                normals = np.concatenate([normals, -normals])
                for _ in range(HALVINGS):
                    points = normal.mean + _times_root(normal, normals)
                    values, gradients = evaluate(points)
                    if np.isfinite(values).all():
                        break
                    # Back along the last step, half of the way.
                    step, precision = 0.5 * step, 0.5 * (precision + previous)
                    normal = GaussianDensity.of_precision(normal.mean - step, precision)
                else:
                    raise _lost(target, int((~np.isfinite(values)).sum()), len(values))
                elbos[k] = values.mean() + 0.5 * (normal.log_det + target.dim * (1.0 + LOG_2PI))
                if hessians is not None:
                    curvature = -hessians(points).mean(axis=0)
                else:
                    # Bonnet and Price: the mean Hessian from gradients, coordinate by coordinate.
                    curvature = -(gradients * (points - normal.mean)).mean(axis=0) * precision
                rate = self.lr * min(1.0, (1.0 - k / self.num_steps) / (1.0 - FALLING))
                previous, precision = precision, _moved(precision, curvature, rate)
                after = GaussianDensity.of_precision(normal.mean, precision)
                step = rate * _times_covariance(after, gradients.mean(axis=0))
                normal = GaussianDensity(normal.mean + step, after.root)
        attrs = {
            "num_steps": len(elbos), "gradients": evaluate.count, "interrupted": interrupt.heeded,
        }  # fmt: skip
        return NaturalGradientResult(
            target, time.perf_counter() - began, False, attrs, normal=normal, elbos=elbos
        )

    def __repr__(self) -> str:
        return call_of(self)


@dataclass(frozen=True, eq=False, repr=False)
class NaturalGradientResult(NormalApproximation):
    """What `NaturalGradientVI.run` returns: a normal on the unconstrained scale.

    Attributes
    ----------
    normal : GaussianDensity
    elbos : ndarray, shape (steps,)
        Estimates of the bound before each step, in nats.
    """

    elbos: np.ndarray = cast("np.ndarray", None)


def _moved(precision: np.ndarray, curvature: np.ndarray, rate: float) -> np.ndarray:
    """The precision after a step towards the curvature, positive definite whatever that is.

    ``P + r (C - P) + r^2 / 2 (C - P) P^-1 (C - P)`` [lin2020]_ is half of
    ``P + (P + r (C - P)) P^-1 (P + r (C - P))``.
    """
    moved = precision + rate * (curvature - precision)
    if precision.ndim == 1:
        return np.asarray(0.5 * (precision + moved * moved / precision))
    found = 0.5 * (precision + moved @ np.linalg.solve(precision, moved))
    return np.asarray(0.5 * (found + found.T))


def _times_root(normal: GaussianDensity, normals: np.ndarray) -> np.ndarray:
    return normals * normal.root if normal.root.ndim == 1 else normals @ normal.root.T


def _times_covariance(normal: GaussianDensity, vector: np.ndarray) -> np.ndarray:
    root = normal.root
    return root * root * vector if root.ndim == 1 else root @ (root.T @ vector)


def _lost(target: Target, bad: int, of: int) -> InferenceError:
    return InferenceError(
        f"NaturalGradientVI for {target.name}",
        expected="draws with a finite log density and gradient",
        got=f"others at {bad} of {of}",
        fix="give a smaller lr, or look at where the density is finite",
    )


explain_calls(globals())
