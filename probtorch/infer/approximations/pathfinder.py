"""`Pathfinder`: normals along L-BFGS paths, the best of each path, and draws by importance weights.

The machinery is that of starts/pathfinder.py: at each point of a path stands the normal that a
Newton step says the posterior would be, and the one with the highest ELBO is the path's. Here they
are the result: one path is the single Pathfinder; with several the approximation is the mixture of
their normals in equal parts, and draws of it are resampled by smoothed weights.

[zhang2022]_ weights a draw by the density of its own path. Then a mode that more paths have found
counts for more; with the density of the mixture [veach1995]_ every mode counts by its mass.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.mixture import MixtureSameFamily
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.approximations.gaussians import GaussianPaths
from probtorch.infer.approximations.result import Approximation, target_of
from probtorch.infer.control import Interrupt
from probtorch.infer.potential import Target
from probtorch.infer.starts.lbfgs_paths import HISTORY, LbfgsPaths, best_of_paths
from probtorch.infer.starts.path_starts import Evaluations, candidates
from probtorch.infer.starts.pathfinder import TOLERANCE, path_elbo

__all__ = ["Pathfinder", "PathfinderResult"]


class Pathfinder:
    """Pathfinder: variational inference along quasi-Newton paths.

    Quasi-Newton paths climb from dispersed points; of the normals along each the one with the
    highest ELBO is kept. It takes some hundred evaluations of the density, and is worth that for a
    first look, for starting points and as a proposal; its verdict says whether it may stand for the
    posterior.

    Parameters
    ----------
    model : callable or Target
        A model without discrete sites that cannot be summed out, or a density.
    num_paths : int
        1 for the single Pathfinder.
    num_elbo_draws : int
        At each point of a path, for the ELBO.
    max_gradients : int
        Evaluations that a path may take, without those of draws.
    history : int
        Steps of a path that a covariance is made of: it has a diagonal and twice as many
        directions.
    radius : float
        Paths begin uniformly between -radius and radius on the unconstrained scale.
    resample : bool
        Whether draws are resampled by their smoothed importance weights, unless `draws` is told.
    seed : int or Generator, optional
        Where paths begin, and draws for the ELBO; the default generator if None.

    Raises
    ------
    ArgumentError
        For counts below 1, or a radius that is not positive.

    References
    ----------
    [zhang2022]_; [veach1995]_ for the weights, [vehtari2024]_ for their smoothing.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Pathfinder
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> result = Pathfinder(model, seed=0).run(probtorch.tensor([1.0, 2.0, 3.0]))
    >>> bool(abs(result.samples["mu"].mean() - 1.5) < 0.1), result.pareto_k < 0.7
    (True, True)
    """

    def __init__(
        self,
        model: Callable[..., object] | Target,
        num_paths: int = 4,
        *,
        num_elbo_draws: int = 10,
        max_gradients: int = 1000,
        history: int = HISTORY,
        radius: float = 2.0,
        resample: bool = True,
        seed: int | Generator | None = None,
    ) -> None:
        self.model = model
        self.num_paths = count_of("Pathfinder", "num_paths", num_paths)
        self.num_elbo_draws = count_of("Pathfinder", "num_elbo_draws", num_elbo_draws)
        self.max_gradients = count_of("Pathfinder", "max_gradients", max_gradients)
        self.history = count_of("Pathfinder", "history", history)
        if not 0.0 < radius < math.inf:
            raise ArgumentError(
                "Pathfinder(radius=...)",
                expected="a positive number",
                got=repr(radius),
                fix="leave it out for 2",
            )
        self.radius, self.resample, self.seed = float(radius), bool(resample), seed

    def run(
        self, *args: object, max_seconds: float | None = None, **kwargs: object
    ) -> PathfinderResult:
        """Follow the paths.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        max_seconds : float, optional
            End the paths after this time, as Ctrl-C does: of each the best normal so far is kept,
            and ``attrs["interrupted"]`` is true.

        Returns
        -------
        PathfinderResult

        Raises
        ------
        InferenceError
            If no point with a finite log density and gradient was found, or no normal with a finite
            ELBO on any path.
        """
        began = time.perf_counter()
        interrupt = Interrupt("Pathfinder.run", max_seconds)
        target = target_of("Pathfinder", self.model, args, kwargs)
        begun, drawn = generator_of(self.seed).spawn(2)
        evaluate = Evaluations(target)
        starts, values, gradients = candidates(target, evaluate, self.num_paths, begun, self.radius)
        with interrupt:
            best = best_of_paths(
                LbfgsPaths(evaluate, starts, values, gradients, self.history),
                functools.partial(path_elbo, evaluate, drawn, self.num_elbo_draws),
                max_gradients=self.max_gradients,
                tolerance=TOLERANCE,
                patience=math.inf,
                interrupt=interrupt,
            )
        good = np.flatnonzero(np.isfinite(best.score))
        if not good.size and interrupt.heeded:
            raise interrupt.without("a normal with a finite ELBO")
        if not good.size:
            raise InferenceError(
                f"Pathfinder for {target.name}",
                expected="a normal on one of the paths all of whose draws have a density",
                got=f"none on {len(starts)} paths",
                fix="give more num_paths, or look at where the density is finite",
            )
        hessian = best.hessian.rows(good)
        means = best.position[good] + hessian.apply(best.gradient[good])
        attrs = {
            "num_paths": len(good), "gradients": evaluate.count, "interrupted": interrupt.heeded,
        }  # fmt: skip
        return PathfinderResult(
            target,
            time.perf_counter() - began,
            self.resample,
            attrs,
            mixture=GaussianPaths(means, hessian),
            elbos=best.score[good],
        )

    def __repr__(self) -> str:
        return call_of(self)


@dataclass(frozen=True, eq=False, repr=False)
class PathfinderResult(Approximation):
    """What `Pathfinder.run` returns: the mixture of the paths' normals.

    Attributes
    ----------
    elbos : ndarray, shape (paths,)
        Of the normals, in nats, each estimated by a few draws and the highest of its path.

    Notes
    -----
    Paths without a normal of finite ELBO are left out.
    """

    mixture: GaussianPaths = cast("GaussianPaths", None)  # which the run gives
    elbos: np.ndarray = cast("np.ndarray", None)

    title = "Pathfinder's approximation"
    cure = "give more num_paths, reparameterise the model, or sample with NUTS"

    @property
    def means(self) -> np.ndarray:
        """Of the normals, shape (paths, dim), unconstrained."""
        return self.mixture.means

    @property
    def covariances(self) -> np.ndarray:
        """Of the normals, shape (paths, dim, dim), unconstrained."""
        paths, dim = self.means.shape
        columns = [self.mixture.hessian.apply(np.tile(e, (paths, 1))) for e in np.eye(dim)]
        return np.stack(columns, -1)

    @property
    def gradients(self) -> int:
        """Evaluations of the log density with its gradient."""
        return int(cast("int", self.attrs["gradients"]))

    def distribution(self) -> Distribution:
        """Return the mixture of the paths' normals; see `Approximation.distribution`."""
        normals = MultivariateNormal(wrap(self.means), wrap(self.covariances))
        return MixtureSameFamily(Categorical(wrap(np.ones(len(self.means)))), normals)

    def sample(self, num_draws: int, generator: Generator) -> np.ndarray:
        """Return draws of the mixture; see `Approximation.sample`."""
        return self.mixture.sample(num_draws, generator)

    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return log densities of the mixture; see `Approximation.log_prob`."""
        return self.mixture.log_prob(points)


explain_calls(globals())
