"""Starts in the typical set: short climbs from dispersed points, and a step back from the top.

Chains that start at random spend their warm-up on the way, and one in ten of them may stay in a
false mode on the way. So more points than chains are drawn as Stan draws them, uniformly on the
unconstrained scale, and each climbs by L-BFGS (lbfgs_paths.py). The top is not where a chain
belongs: in d dimensions the typical set lies d/2 nats below it, and the mode of a hierarchical
model is a pole, infinitely high and without volume. Therefore:

- the point kept of a path is the one with the highest log density plus half of the log determinant
  of the inverse Hessian there, which is its volume (Laplace's approximation of the evidence), less
  the rise that is still expected (a point on a slope stands for no volume around it);
- a path whose point has less evidence than the best one's, by far more than these estimates are
  wrong, is in a false mode, or did not get far, and is dropped; a mode of comparable evidence is
  kept, so that chains in different modes can say so;
- a chain starts at a draw from the Gaussian at its point, as far out as its log density is about as
  far below the point as it should be.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.starts.initialization import (
    TRIES,
    StartingPoints,
    Strategy,
    init_to_uniform,
    joint_strategy,
    search,
    uniform_point,
    uniform_points,
)
from probtorch.infer.starts.lbfgs_paths import BestPoints
from probtorch.infer.starts.native_climbs import climb

if TYPE_CHECKING:
    from probtorch.infer.potential import Target

__all__ = [
    *("Evaluations", "candidates", "climbed", "init_to_typical_set", "kept_paths"),
    *("normal_numbers", "refuse_site"),
]

# Paths per chain, and the fewest of all: a mode that catches one path in ten catches all of four
# once in 10,000 runs. More spare paths than so many would hardly be asked for.
PATHS_PER_CHAIN, FEWEST_PATHS, MOST_SPARE_PATHS = 2, 4, 64
# From so many dims on there is one path per chain: a path's memory is that of 50 points or so.
MANY_DIMS = 20_000
MAX_GRADIENTS = 35
# A path ends when, by its estimate, the top is no further up than this, in nats, and this per dim.
TOLERANCE, TOLERANCE_PER_DIM = 0.05, 0.005
# And when the evidence is this much below its highest, in nats: it climbs a pole.
PATIENCE, PATIENCE_PER_DIM = 10.0, 1.0
# A later point of a path has to be better by so much, in nats per dim and at most: on the way down
# a funnel the evidence is the same but for errors, and a chain moves better in the wide part.
RELUCTANCE_PER_DIM, RELUCTANCE = 0.5, 3.0
# A path is dropped if its evidence is further below the best: nats, nats per dim, and the share of
# the difference of the volumes that is not believed.
MARGIN, MARGIN_PER_DIM, DOUBTED = 10.0, 0.1, 0.5
# A path ends elsewhere if it is so far from the others, in squared standard deviations: this, and
# this per dim.
ELSEWHERE, ELSEWHERE_PER_DIM = 25.0, 4.0
# Paths that spare ones are compared with at a time.
TOGETHER = 16
# How much lower than it should be the log density of a start may be: nats, share of the depth.
SLACK, SLACK_SHARE = 2.0, 0.25
# Draws looked at for that, each closer to the point than the one before.
NEARER = 8


@overload
def init_to_typical_set(
    site: Site,
    radius: float = 2.0,
    *,
    num_paths: int | None = None,
    max_gradients: int = MAX_GRADIENTS,
) -> NoReturn: ...
@overload
def init_to_typical_set(
    site: None = None,
    radius: float = 2.0,
    *,
    num_paths: int | None = None,
    max_gradients: int = MAX_GRADIENTS,
) -> Strategy: ...
def init_to_typical_set(
    site: Site | None = None,
    radius: float = 2.0,
    *,
    num_paths: int | None = None,
    max_gradients: int = MAX_GRADIENTS,
) -> Strategy:
    """Start near the typical set, which short climbs from dispersed points find.

    It is what `NUTS` and `HMC` do by default. More points than chains are drawn uniformly on the
    unconstrained scale, and each climbs by L-BFGS. Chains start below the tops, where the draws
    are, each from a path of its own; paths that end in a mode far below the others are dropped.

    Parameters
    ----------
    site : Site, optional
        Not given by users: the strategy chooses for all sites and chains at once.
    radius : float
        Paths begin uniformly between -radius and radius.
    num_paths : int, optional
        Two per chain, at least four, and at most 64 more than chains, by default; one per chain
        from 20,000 dims on.
    max_gradients : int
        Evaluations of the density that a path may take.

    Returns
    -------
    callable

    Raises
    ------
    InferenceError
        If no point with a finite log density and gradient was found, as by `init_to_uniform`.

    Notes
    -----
    Where a chain starts depends on the seed and its number only, but for two cases. The last one
    takes a spare path that ends far from all others. And a chain whose own path is dropped starts
    around the point of a path that no chain has, or draws another point around one that has.

    References
    ----------
    [liu1989]_ for L-BFGS; the estimates are those of Pathfinder [zhang2022]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Target, init_to_typical_set
    >>> def far():
    ...     probtorch.sample("x", dist.Normal(1000.0, 0.1).expand([5]).to_event(1))
    >>> q = Target.from_model(far).initial(4, probtorch.Generator(0), init_to_typical_set)
    >>> bool((abs(q - 1000.0) < 0.5).all()), bool((q.std(0) > 0.0).all())
    (True, True)
    """
    if site is None:
        return functools.partial(
            init_to_typical_set, radius=radius, num_paths=num_paths, max_gradients=max_gradients
        )
    raise refuse_site("init_to_typical_set", site)


def refuse_site(strategy: str, site: Site) -> InferenceError:
    """Return the error for asking a strategy for all sites about one."""
    return InferenceError(
        f"{strategy} for site {site.name!r}",
        expected="a strategy that is asked site by site",
        got=f"{strategy}, which chooses the starts of all chains at once",
        fix=f"NUTS(model, init_strategy={strategy}) takes it; guides, and init_to_value as its "
        "fallback, take init_to_median or init_to_uniform",
        at=site.location,
    )


class Evaluations:
    """The log density and its gradient at the rows of an array, counted.

    Parameters
    ----------
    target : Target

    Attributes
    ----------
    context : DensityContext
        Of this thread.
    count : int
    raised : int
        Paths of climbs on which the model raised.
    """

    def __init__(self, target: Target) -> None:
        self.context = target.density.context()
        self.count = self.raised = 0

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values (rows,) and gradients (rows, dim).

        Values are -inf where they or gradients are not finite, and where the model raises: a long
        step may lead to where no chain ever comes.
        """
        evaluate = self.context.native
        values, gradients = np.empty(len(points)), np.empty_like(points)
        for i, q in enumerate(points):
            try:
                values[i], gradients[i] = evaluate(q)
            except Exception:
                values[i] = -np.inf
        self.count += len(points)
        bad = ~(np.isfinite(values) & np.isfinite(gradients).all(-1))
        values[bad], gradients[bad] = -np.inf, 0.0
        return values, gradients


def candidates(
    target: Target, evaluate: Evaluations, count: int, generator: Generator, radius: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return up to `count` points with finite densities and gradients.

    Parameters
    ----------
    target : Target
    evaluate : Evaluations
        Of the target.
    count : int
    generator : Generator
        Each point is drawn from a child of it.
    radius : float

    Returns
    -------
    points, values, gradients : ndarray

    Raises
    ------
    InferenceError
        If there is no first one.
    """
    strategy = functools.partial(init_to_uniform, radius=radius)
    first, *others = generator.spawn(count)
    # The first one by a call that is compared with Python's result now and then.
    q, value, gradient, tries = search(target, first, strategy)
    evaluate.count += tries
    points = np.empty((len(others), target.dim))
    values, gradients = np.full(len(others), -np.inf), np.empty_like(points)
    still = np.arange(len(others))
    for _ in range(TRIES):
        points[still] = uniform_points([others[i] for i in still], (target.dim,), radius)
        values[still], gradients[still] = evaluate(points[still])
        still = still[~(values[still] > -np.inf)]
        if not still.size:
            break
    fine = values > -np.inf
    return (
        np.concatenate([q[None], points[fine]]),
        np.append(value, values[fine]),
        np.concatenate([gradient[None], gradients[fine]]),
    )


def normal_numbers(generator: Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return standard normal numbers, by Box and Muller's transform."""
    return _box_muller(uniform_point(generator, (2, *shape), np.pi))


def _box_muller(uniforms: np.ndarray) -> np.ndarray:
    """Normal numbers of (2, ...) that are uniform between -pi and pi."""
    angle, share = uniforms
    return np.sqrt(-2.0 * np.log(0.5 - share / (2.0 * np.pi))) * np.cos(angle)


def _typical_points(
    target: Target,
    num_chains: int,
    generator: Generator,
    *,
    radius: float = 2.0,
    num_paths: int | None = None,
    max_gradients: int = MAX_GRADIENTS,
) -> StartingPoints:
    if num_paths is None:
        per_chain = 1 if target.dim >= MANY_DIMS else PATHS_PER_CHAIN
        num_paths = max(FEWEST_PATHS, min(per_chain * num_chains, num_chains + MOST_SPARE_PATHS))
    elif num_paths < 1:
        raise ArgumentError(
            "init_to_typical_set(num_paths=...)",
            expected="a number of at least 1",
            got=repr(num_paths),
            fix="leave it out for two per chain",
        )
    begun, drawn = generator.spawn(2)
    best, evaluate = climbed(target, num_paths, begun, radius, max_gradients)
    # Once for all of them: some rows are asked for again and again.
    best.hessian.decomposition()
    chosen = chosen_paths(best.top_score, best.log_det, target.dim, num_chains)
    chosen = _spread(best, chosen, target.dim)
    uniforms = uniform_points(drawn.spawn(num_chains), (2, target.dim), np.pi)
    normals = _box_muller(np.ascontiguousarray(uniforms.swapaxes(0, 1)))
    positions = _around(evaluate, best, chosen, normals)
    return StartingPoints(positions, evaluate.count, best.hessian.rows(chosen))


def climbed(
    target: Target,
    num_paths: int,
    generator: Generator,
    radius: float = 2.0,
    max_gradients: int = MAX_GRADIENTS,
) -> tuple[BestPoints, Evaluations]:
    """Return the points of paths from dispersed starts, and what evaluated the density there."""
    evaluate = Evaluations(target)
    starts = candidates(target, evaluate, num_paths, generator, radius)
    return climbed_from(*starts, evaluate, max_gradients), evaluate


def climbed_from(
    starts: np.ndarray,
    values: np.ndarray,
    gradients: np.ndarray,
    evaluate: Evaluations,
    max_gradients: int = MAX_GRADIENTS,
) -> BestPoints:
    """Return the points of paths from such starts, with log densities and gradients there."""
    dim = starts.shape[1]
    best, more, raised = climb(
        evaluate.context,
        *(starts, values, gradients),
        max_gradients=max_gradients - 1,
        tolerance=TOLERANCE + TOLERANCE_PER_DIM * dim,
        patience=PATIENCE + PATIENCE_PER_DIM * dim,
        reluctance=min(RELUCTANCE, RELUCTANCE_PER_DIM * dim),
    )
    evaluate.count += more
    evaluate.raised += raised
    return best


def kept_paths(evidence: np.ndarray, log_det: np.ndarray, dim: int) -> np.ndarray:
    """Return whether each path ends in a place that may have a share of the posterior.

    Parameters
    ----------
    evidence, log_det, dim
        As for `chosen_paths`.
    """
    top = int(np.argmax(evidence))
    volumes = 0.5 * np.abs(log_det - log_det[top])
    margin = MARGIN + MARGIN_PER_DIM * dim + DOUBTED * volumes
    return evidence >= evidence[top] - margin


def chosen_paths(
    evidence: np.ndarray, log_det: np.ndarray, dim: int, num_chains: int
) -> np.ndarray:
    """Return the number of the path that each chain starts from.

    Parameters
    ----------
    evidence, log_det : ndarray, shape (paths,)
        Log density plus log volume, up to a constant, and twice the log volume.
    dim : int
    num_chains : int

    Returns
    -------
    ndarray of int, shape (num_chains,)
        The chain's own path, unless that one is dropped; then one that no chain has, as long as
        there is one.
    """
    kept = kept_paths(evidence, log_det, dim)
    spare = [i for i in range(len(evidence)) if kept[i] and i >= num_chains]
    good = [i for i in range(len(evidence)) if kept[i]]
    chosen = []
    for chain in range(num_chains):
        own = chain < len(evidence) and kept[chain]
        if own:
            chosen.append(chain)
        elif spare:
            chosen.append(spare.pop(0))
        else:
            chosen.append(good[chain % len(good)])
    return np.array(chosen)


def _spread(best: BestPoints, chosen: np.ndarray, dim: int) -> np.ndarray:
    """Give the last chain the kept path that is furthest from all others, if it is elsewhere.

    Chains that happen to start in one of two modes would agree, and nobody would speak of the
    other, though a spare path has seen it.
    """
    kept = kept_paths(best.value + 0.5 * best.log_det, best.log_det, dim)
    spare = np.setdiff1d(np.flatnonzero(kept), chosen)
    others = chosen[:-1]
    if not spare.size or not others.size:
        return chosen
    root, directions, variances = best.hessian.rows(others).decomposition()
    nearest = np.full(len(spare), np.inf)
    for first in range(0, len(others), TOGETHER):
        few = slice(first, first + TOGETHER)
        between = (best.position[spare][:, None] - best.position[others[few]]) / root[few]
        along = np.einsum("skd,kvd->skv", between, directions[few])
        squared = (between**2).sum(-1) + (along**2 * (1.0 / variances[few] - 1.0)).sum(-1)
        nearest = np.minimum(nearest, squared.min(axis=1))
        # The others are near one of those looked at.
        apart = ~(nearest < ELSEWHERE + ELSEWHERE_PER_DIM * dim)
        spare, nearest = spare[apart], nearest[apart]
        if not spare.size:
            return chosen
    return np.append(others, spare[np.argmax(nearest)])


def _around(
    evaluate: Evaluations, best: BestPoints, chosen: np.ndarray, normals: np.ndarray
) -> np.ndarray:
    """Draws from the Gaussians at the chosen points, shortened to lie about as deep as they should.

    The depth that should be is half of the squared distance in the Gaussian's own metric. Where the
    estimate of a direction is too wide the density falls faster, and the draw is moved towards the
    point along a parabola through both.
    """
    centre, value = best.position[chosen], best.value[chosen]
    hessian = best.hessian.rows(chosen)
    offset = hessian.times_root(normals[:, None])[:, 0]
    depth = 0.5 * (normals * normals).sum(-1)
    share = np.ones(len(chosen))
    positions, open_ = centre.copy(), np.arange(len(chosen))
    for _ in range(NEARER):
        points = centre[open_] + share[open_, None] * offset[open_]
        found, _ = evaluate(points)
        fall = value[open_] - found
        good = fall <= depth[open_] * (1.0 + SLACK_SHARE) + SLACK
        positions[open_[good]] = points[good]
        with np.errstate(invalid="ignore"):
            nearer = np.sqrt(depth[open_] / np.maximum(fall, 1e-300))
        share[open_] *= np.clip(np.where(np.isfinite(nearer), nearer, 0.0), 0.1, 0.7)
        open_ = open_[~good]
        if not open_.size:
            break
    return positions


explain_calls(globals())
# By the name that users have, which the line above has made.
joint_strategy(init_to_typical_set, _typical_points)
