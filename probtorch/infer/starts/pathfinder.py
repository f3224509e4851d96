"""Pathfinder: starts drawn from the best Gaussians along L-BFGS paths.

At each point of a path, with its inverse Hessian H (lbfgs_paths.py), stands the Gaussian that a
Newton step says the posterior would be: mean x + H g, covariance H. A few draws from it give its
ELBO, and the Gaussian with the highest one is the path's. With many paths, draws of all of them are
weighted by target over proposal, the weights are smoothed (diagnostics/psis.py), and starts are
draws by these weights, each another one.

`approximations/pathfinder.py` is the algorithm as a result of its own. The method is
[zhang2022]_: algorithms 1 to 5 there, with draws without replacement at the end.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.psis import MIN_DRAWS, psis
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.starts.initialization import (
    StartingPoints,
    Strategy,
    joint_strategy,
    uniform_point,
)
from probtorch.infer.starts.lbfgs_paths import BestPoints, InverseHessian, LbfgsPaths, best_of_paths
from probtorch.infer.starts.path_starts import (
    FEWEST_PATHS,
    PATHS_PER_CHAIN,
    Evaluations,
    candidates,
    normal_numbers,
    refuse_site,
)

if TYPE_CHECKING:
    from probtorch.infer.potential import Target

__all__ = ["init_to_pathfinder"]

# Draws for an ELBO and of a path for the weights are those of the paper's experiments; it allows
# 1000 iterations, which only paths up a pole would take.
ELBO_DRAWS, NUM_DRAWS, MAX_STEPS = 5, 100, 200
# The paper's tolerance of L-BFGS is relative to the log density; in nats, an error no draw shows.
TOLERANCE = 1e-4


@overload
def init_to_pathfinder(
    site: Site,
    radius: float = 2.0,
    *,
    num_paths: int | None = None,
    num_draws: int = NUM_DRAWS,
    num_elbo_draws: int = ELBO_DRAWS,
    max_gradients: int = MAX_STEPS,
) -> NoReturn: ...
@overload
def init_to_pathfinder(
    site: None = None,
    radius: float = 2.0,
    *,
    num_paths: int | None = None,
    num_draws: int = NUM_DRAWS,
    num_elbo_draws: int = ELBO_DRAWS,
    max_gradients: int = MAX_STEPS,
) -> Strategy: ...
def init_to_pathfinder(
    site: Site | None = None,
    radius: float = 2.0,
    *,
    num_paths: int | None = None,
    num_draws: int = NUM_DRAWS,
    num_elbo_draws: int = ELBO_DRAWS,
    max_gradients: int = MAX_STEPS,
) -> Strategy:
    """Start at draws from Pathfinder's approximation of the posterior.

    Quasi-Newton paths climb from dispersed points; of the Gaussians along each the one with the
    highest ELBO is kept, and starts are drawn from all of them by smoothed importance weights. It
    takes some thousand evaluations of the density, ten times as many as `init_to_typical_set`, and
    is worth that where one Gaussian, or a mixture of them, is close to the posterior.

    Parameters
    ----------
    site : Site, optional
        Not given by users: the strategy chooses for all sites and chains at once.
    radius : float
        Paths begin uniformly between -radius and radius on the unconstrained scale.
    num_paths : int, optional
        Two per chain, and at least four, by default.
    num_draws : int
        Of each path, for the importance weights.
    num_elbo_draws : int
        At each point of a path, for the ELBO.
    max_gradients : int
        Evaluations that a path may take, without those of draws.

    Returns
    -------
    callable

    Raises
    ------
    ArgumentError
        If there are fewer draws than chains, or than the weights need.
    InferenceError
        If no point with a finite log density and gradient was found.

    References
    ----------
    [zhang2022]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import NUTS, Target, init_to_pathfinder
    >>> def model(y):
    ...     rate = probtorch.sample("rate", dist.Gamma(2.0, 1.0))
    ...     probtorch.sample("y", dist.Poisson(rate).expand([3]).to_event(1), obs=y)
    >>> kernel = NUTS(model, init_strategy=init_to_pathfinder)
    >>> target = Target.from_model(model, probtorch.tensor([1.0, 3.0, 2.0]))
    >>> target.initial(4, probtorch.Generator(0), init_to_pathfinder).shape
    (4, 1)
    """
    if site is None:
        return functools.partial(
            init_to_pathfinder,
            radius=radius,
            num_paths=num_paths,
            num_draws=num_draws,
            num_elbo_draws=num_elbo_draws,
            max_gradients=max_gradients,
        )
    raise refuse_site("init_to_pathfinder", site)


def _pathfinder_points(
    target: Target,
    num_chains: int,
    generator: Generator,
    *,
    radius: float = 2.0,
    num_paths: int | None = None,
    num_draws: int = NUM_DRAWS,
    num_elbo_draws: int = ELBO_DRAWS,
    max_gradients: int = MAX_STEPS,
) -> StartingPoints:
    paths = max(FEWEST_PATHS, PATHS_PER_CHAIN * num_chains) if num_paths is None else num_paths
    fewest = max(MIN_DRAWS, num_chains)
    if paths < 1 or paths * num_draws < fewest or num_elbo_draws < 1:
        raise ArgumentError(
            "init_to_pathfinder(num_paths=..., num_draws=..., num_elbo_draws=...)",
            expected=f"a path and an ELBO draw at least, and {fewest} draws of all paths",
            got=f"{paths} paths, {num_draws} draws, {num_elbo_draws} ELBO draws",
            fix="leave them out",
        )
    begun, drawn = generator.spawn(2)
    evaluate = Evaluations(target)
    starts, values, gradients = candidates(target, evaluate, paths, begun, radius)
    best = best_of_paths(
        LbfgsPaths(evaluate, starts, values, gradients),
        functools.partial(path_elbo, evaluate, drawn, num_elbo_draws),
        max_gradients=max_gradients - 1,
        tolerance=TOLERANCE,
        patience=math.inf,
    )
    points, ratios = _weighted(evaluate, best, drawn, num_draws)
    chosen = _resampled(ratios, drawn, num_chains)
    if chosen is None:
        raise InferenceError(
            f"Pathfinder for {target.name}",
            expected=f"{num_chains} draws with a finite log density",
            got=f"{int(np.isfinite(ratios).sum())} of {ratios.size}",
            fix="leave init_strategy out, or give more num_draws",
        )
    covariances = best.hessian.rows(chosen // num_draws)
    return StartingPoints(points[chosen], evaluate.count, covariances)


def gaussian_draws(
    position: np.ndarray, gradient: np.ndarray, hessian: InverseHessian, normals: np.ndarray
) -> np.ndarray:
    """Return draws from N(x + H g, H).

    Parameters
    ----------
    position, gradient : ndarray, shape (rows, dim)
    hessian : InverseHessian
    normals : ndarray, shape (rows, draws, dim)

    Returns
    -------
    ndarray, shape (rows, draws, dim)
    """
    mean = position + hessian.apply(gradient)
    return mean[:, None] + hessian.times_root(normals)


def _log_ratios(
    evaluate: Evaluations,
    position: np.ndarray,
    gradient: np.ndarray,
    hessian: InverseHessian,
    log_det: np.ndarray,
    generator: Generator,
    num_draws: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws from the Gaussians of some rows, and target over proposal there, in nats."""
    rows, dim = position.shape
    normals = normal_numbers(generator, (rows, num_draws, dim))
    points = gaussian_draws(position, gradient, hessian, normals)
    values, _ = evaluate(points.reshape(-1, dim))
    proposal = -0.5 * ((normals**2).sum(-1) + log_det[:, None] + dim * math.log(2.0 * math.pi))
    return points, values.reshape(rows, num_draws) - proposal


def path_elbo(
    evaluate: Evaluations, generator: Generator, num_draws: int, paths: LbfgsPaths, rows: np.ndarray
) -> np.ndarray:
    """Return the ELBO of the Gaussian at the present point of each of some paths, in nats."""
    _, ratios = _log_ratios(
        evaluate,
        paths.position[rows],
        paths.gradient[rows],
        paths.hessian.rows(rows),
        paths.log_det[rows],
        generator,
        num_draws,
    )
    return ratios.mean(-1)


def _weighted(
    evaluate: Evaluations, best: BestPoints, generator: Generator, num_draws: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of all paths, shape (paths * num_draws, dim), and their log ratios."""
    points, ratios = _log_ratios(
        evaluate, best.position, best.gradient, best.hessian, best.log_det, generator, num_draws
    )
    return points.reshape(-1, points.shape[-1]), ratios.reshape(-1)


def _resampled(ratios: np.ndarray, generator: Generator, count: int) -> np.ndarray | None:
    """`count` different draws by their smoothed weights, None where there are not so many."""
    if np.isfinite(ratios).sum() < count:
        return None
    log_weights, _ = psis(ratios)
    # The largest of log weight plus Gumbel noise are draws without replacement.
    uniform = 0.5 + 0.5 * uniform_point(generator, ratios.shape, 1.0)
    with np.errstate(divide="ignore"):
        keys = log_weights - np.log(-np.log1p(-uniform))
    return np.argsort(-keys, kind="stable")[:count]


explain_calls(globals())
# By the name that users have, which the line above has made.
joint_strategy(init_to_pathfinder, _pathfinder_points)
