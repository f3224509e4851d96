"""Where chains start: the strategies, and the search for a point that a sampler can start from.

A strategy is asked at each latent site of a run and answers with a value inside the site's support.
Names and signatures are Pyro's; without a site (``init_to_uniform(radius=1.0)``) a strategy returns
itself with its settings bound. `search` tries up to 100 points until log density and gradient are
finite; if there is none, its error (start_errors.py) says at which site it fails, with what value,
and whether by nan or by -inf.

`starting_points` has a point per chain. Strategies that choose the points of all chains together
(path_starts.py, pathfinder.py) are known to it through `joint_strategy`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.philox import bits_to_uniform, consecutive_bits, philox_pairs
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.site import Site, as_value
from probtorch.errors import DomainError, InferenceError, ShapeError
from probtorch.infer.names import unknown_name
from probtorch.infer.starts.start_errors import bad_start

if TYPE_CHECKING:
    from probtorch.infer.potential import Target
    from probtorch.infer.slots import Slot
    from probtorch.infer.starts.lbfgs_paths import InverseHessian

__all__ = [
    "StartingPoints",
    "Strategy",
    "check_value_names",
    "for_one_start",
    "init_to_feasible",
    "init_to_generated",
    "init_to_mean",
    "init_to_median",
    "init_to_sample",
    "init_to_uniform",
    "init_to_value",
    "joint_strategy",
    "search",
    "starting_points",
    "uniform_point",
    "uniform_points",
]

TRIES = 100
# Of these the last go to points further away, by factors of the radius: where data bound a
# parameter, all that is left of its support may lie there.
FURTHER = ((60, 2.0), (75, 4.0), (90, 8.0))

# Answers with the value of a site, inside its support.
Strategy: TypeAlias = Callable[..., TensorLike]


@dataclass(frozen=True)
class StartingPoints:
    """Where chains start, and what finding that took.

    Attributes
    ----------
    positions : ndarray, shape (num_chains, dim)
    gradients : int
        Evaluations of the log density with its gradient, for all chains together.
    covariances : InverseHessian, optional
        What is known of the covariance around each of them, a row per chain.
    """

    positions: np.ndarray
    gradients: int
    covariances: InverseHessian | None = None


# Strategies that are asked once for all chains, and what answers for them.
_JOINT: dict[Strategy, Callable[..., StartingPoints]] = {}


# --------------------------------------------------------------------------------------- strategies


@overload
def init_to_uniform(site: Site, radius: float = 2.0) -> TensorBase: ...
@overload
def init_to_uniform(site: None = None, radius: float = 2.0) -> Strategy: ...
def init_to_uniform(site: Site | None = None, radius: float = 2.0) -> TensorBase | Strategy:
    """Start uniformly between -radius and radius on the unconstrained scale.

    Parameters
    ----------
    site : Site, optional
        Without it, return the strategy with its settings bound.
    radius : float
        0 means the middle, exactly.

    Returns
    -------
    Tensor of the site's shape, or callable
    """
    if site is None:
        return functools.partial(init_to_uniform, radius=radius)
    transform = biject_to(site.fn.support)
    shape = tuple(transform.inverse_shape(_shape_of(site)))
    return transform(wrap(uniform_point(_generator_of(site), shape, radius)))


@overload
def init_to_feasible(site: Site) -> TensorBase: ...
@overload
def init_to_feasible(site: None = None) -> Strategy: ...
def init_to_feasible(site: Site | None = None) -> TensorBase | Strategy:
    """Start at 0 on the unconstrained scale, whatever the distribution's parameters."""
    return init_to_feasible if site is None else init_to_uniform(site, radius=0.0)


@overload
def init_to_sample(site: Site) -> TensorBase: ...
@overload
def init_to_sample(site: None = None) -> Strategy: ...
def init_to_sample(site: Site | None = None) -> TensorBase | Strategy:
    """Start at a draw from the prior; where that has no sampler, by `init_to_uniform`."""
    if site is None:
        return init_to_sample
    try:
        return site.fn.sample(generator=_generator_of(site))
    except NotImplementedError:
        return init_to_uniform(site)


@overload
def init_to_median(
    site: Site, num_samples: int = 15, *, fallback: Strategy = ...
) -> TensorLike: ...
@overload
def init_to_median(
    site: None = None, num_samples: int = 15, *, fallback: Strategy = ...
) -> Strategy: ...
def init_to_median(
    site: Site | None = None, num_samples: int = 15, *, fallback: Strategy = init_to_feasible
) -> TensorLike | Strategy:
    """Start at the median of a few draws from the prior.

    Parameters
    ----------
    site : Site, optional
    num_samples : int
    fallback : callable
        The strategy for distributions that cannot be sampled.

    Notes
    -----
    The median is taken element by element on the unconstrained scale, so that it lies in the
    support, also in a simplex.
    """
    if site is None:
        return functools.partial(init_to_median, num_samples=num_samples, fallback=fallback)
    try:
        draws = site.fn.sample((num_samples,), generator=_generator_of(site))
    except NotImplementedError:
        return fallback(site)
    transform = biject_to(site.fn.support)
    middle = np.median(to_host(transform.inv(draws).array), axis=0)
    return transform(wrap(middle)) if np.isfinite(middle).all() else fallback(site)


@overload
def init_to_mean(site: Site, *, fallback: Strategy = ...) -> TensorLike: ...
@overload
def init_to_mean(site: None = None, *, fallback: Strategy = ...) -> Strategy: ...
def init_to_mean(
    site: Site | None = None, *, fallback: Strategy = init_to_median
) -> TensorLike | Strategy:
    """Start at the prior mean.

    Parameters
    ----------
    site : Site, optional
    fallback : callable
        The strategy for distributions without a (finite) mean.
    """
    if site is None:
        return functools.partial(init_to_mean, fallback=fallback)
    try:
        mean = site.fn.mean
    except NotImplementedError:
        return fallback(site)
    usable = np.isfinite(to_host(mean.array)).all() and bool(site.fn.support.check(mean).all())
    return mean if usable else fallback(site)


@overload
def init_to_value(
    site: Site, values: Mapping[str, TensorLike] | None = None, *, fallback: Strategy = ...
) -> TensorLike: ...
@overload
def init_to_value(
    site: None = None, values: Mapping[str, TensorLike] | None = None, *, fallback: Strategy = ...
) -> Strategy: ...
def init_to_value(
    site: Site | None = None,
    values: Mapping[str, TensorLike] | None = None,
    *,
    fallback: Strategy = init_to_uniform,
) -> TensorLike | Strategy:
    """Start at given (constrained) values, and elsewhere by another strategy.

    Parameters
    ----------
    site : Site, optional
    values : dict of str to array_like
        Of the site's shape, or with one more dim in front: a value for each chain. A number is for
        all elements.
    fallback : callable
        The strategy for sites that `values` does not name.

    Examples
    --------
    Two chains start at scales of 0.5 and 2; where `mu` starts is left to the fallback:

    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import NUTS, Target, init_to_value
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 10.0))
    ...     tau = probtorch.sample("tau", dist.HalfNormal(5.0))
    ...     probtorch.sample("y", dist.Normal(mu, tau).expand([3]).to_event(1), obs=y)
    >>> per_chain = init_to_value(values={"tau": [0.5, 2.0]})
    >>> kernel = NUTS(model, init_strategy=per_chain)
    >>> target = Target.from_model(model, probtorch.tensor([1.0, 2.0, 4.0]))
    >>> points = target.initial(2, strategy=per_chain)
    >>> [round(target.constrain(probtorch.tensor(q))["tau"].item(), 6) for q in points]
    [0.5, 2.0]
    """
    values = values or {}
    if site is None:
        return functools.partial(init_to_value, values=values, fallback=fallback)
    return values[site.name] if site.name in values else fallback(site)


@overload
def init_to_generated(site: Site, generate: Callable[[], Strategy] = ...) -> TensorLike: ...
@overload
def init_to_generated(site: None = None, generate: Callable[[], Strategy] = ...) -> Strategy: ...
def init_to_generated(
    site: Site | None = None, generate: Callable[[], Strategy] = lambda: init_to_uniform
) -> TensorLike | Strategy:
    """Start by a strategy that is made anew for each try, for example with random values.

    Parameters
    ----------
    site : Site, optional
    generate : callable
        Returns a strategy.
    """
    if site is None:
        return functools.partial(init_to_generated, generate=generate)
    return generate()(site)


def _shape_of(site: Site) -> tuple[int, ...]:
    return tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)


def _generator_of(site: Site) -> Generator:
    return default_generator if site.generator is None else site.generator


def uniform_point(generator: Generator, shape: tuple[int, ...], radius: float = 2.0) -> np.ndarray:
    """Return float64 draws from Uniform(-radius, radius)."""
    size = math.prod(shape)
    first = generator.advance(size)
    bits = consecutive_bits(generator.initial_seed(), generator.stream, first, size)
    return (radius * (2.0 * bits_to_uniform(bits) - 1.0)).reshape(shape)


def uniform_points(
    generators: Sequence[Generator], shape: tuple[int, ...], radius: float = 2.0
) -> np.ndarray:
    """Return `uniform_point` of each of several generators, of one seed: (generators, *shape)."""
    if not generators:
        return np.empty((0, *shape))
    size = math.prod(shape)
    counters = np.array([[g.advance(size)] for g in generators], np.uint64) + np.arange(
        size, dtype=np.uint64
    )
    streams = np.array([[g.stream] for g in generators], np.uint64)
    seed = generators[0].initial_seed()
    bits, _ = philox_pairs(seed, np.broadcast_to(streams, counters.shape).ravel(), counters.ravel())
    return (radius * (2.0 * bits_to_uniform(bits) - 1.0)).reshape(len(generators), *shape)


# --------------------------------------------------------------------------------------- the search


def starting_points(
    target: Target, num_chains: int, generator: Generator, strategy: Strategy
) -> StartingPoints:
    """Return a point per chain where the log density and its gradient are finite.

    Parameters
    ----------
    target : Target
    num_chains : int
    generator : Generator
        Each chain has a child of it.
    strategy : callable

    Raises
    ------
    ShapeError
        If `init_to_value` has values for another number of chains.
    InferenceError, DomainError, ModelError
        As `search`.
    """
    function, settings, _ = _opened(strategy)
    part = target.part_that_starts()
    if part is not None and (function in _JOINT or function is init_to_uniform):
        rest, whole, places = part
        positions, gradients = np.tile(whole, (num_chains, 1)), 0
        if len(places):
            found_there = starting_points(rest, num_chains, generator, strategy)
            positions[:, places], gradients = found_there.positions, found_there.gradients
        return StartingPoints(positions, gradients)
    if function in _JOINT:
        return _JOINT[function](target, num_chains, generator, **settings)
    children = generator.spawn(num_chains)
    found = [
        search(target, child, _of_chain(strategy, i, num_chains, target.slots))
        for i, child in enumerate(children)
    ]
    return StartingPoints(np.stack([q for q, *_ in found]), sum(tries for *_, tries in found))


def joint_strategy(function: Strategy, choose: Callable[..., StartingPoints]) -> None:
    """Let a function choose the points of all chains under a strategy's name.

    Parameters
    ----------
    function : callable
        The strategy.
    choose : callable
        ``choose(target, num_chains, generator, **settings)``, with the strategy's settings.
    """
    _JOINT[function] = choose


def search(
    target: Target, generator: Generator, strategy: Strategy
) -> tuple[np.ndarray, float, np.ndarray, int]:
    """Return a point where the log density and its gradient are finite, with these two.

    Parameters
    ----------
    target : Target
    generator : Generator
    strategy : callable

    Returns
    -------
    point : ndarray, shape (dim,)
    log_density : float
    gradient : ndarray, shape (dim,)
    evaluations : int
        How many points were tried.

    Raises
    ------
    InferenceError
        If 100 tries found none; a strategy that gives the same point twice is not asked again.
    DomainError
        If the strategy never gave values inside the supports.
    ModelError
        If `init_to_value` names a site that the model does not have.

    Notes
    -----
    Uniform points come from further and further away after 60 tries in vain, up to eight times the
    radius. After 100 draws of the prior, or medians of them, uniform points are tried.
    """
    check_value_names(strategy, target.slots, target.name)
    strategy, settings, per_try = _opened(strategy)
    previous, tries = None, 0
    # A point that data allow tells more than the last one, which may be far out.
    without_gradient: np.ndarray | None = None
    refused: Exception | None = None
    while tries < TRIES:
        made, chosen = (strategy, settings) if per_try is None else _opened(per_try())[:2]
        if made is init_to_uniform:
            # All sites at once: no run of the model is needed, and no round trip through the
            # support.
            wider = [factor for begin, factor in FURTHER if tries >= begin]
            radius = chosen.get("radius", 2.0) * max(wider, default=1.0)
            q = uniform_point(generator, (target.dim,), radius)
        else:
            try:
                q = target.start(functools.partial(made, **chosen), generator)
            except (DomainError, np.linalg.LinAlgError) as error:
                refused, tries = error, tries + 1
                continue
        if previous is not None and np.array_equal(q, previous):
            break
        tries += 1
        value, gradient = target.value_and_grad(q)
        if math.isfinite(value) and np.isfinite(gradient).all():
            return q, value, gradient, tries
        if math.isfinite(value) and without_gradient is None:
            without_gradient = q
        previous = q
    if (strategy is init_to_sample or strategy is init_to_median) and tries >= TRIES:
        # Draws of a prior hardly come by where data bound a parameter.
        with contextlib.suppress(InferenceError):
            q, value, gradient, more = search(target, generator, init_to_uniform)
            return q, value, gradient, tries + more
    if refused is not None and previous is None:
        raise refused
    times = "1 try" if tries == 1 else f"{tries} tries"
    assert previous is not None  # every try was refused or left its point there
    told = previous if without_gradient is None else without_gradient
    raise bad_start(target, told, f"no starting point for {target.name} in {times}")


def _of_chain(
    strategy: Strategy, chain: int, num_chains: int, slots: Mapping[str, Slot]
) -> Strategy:
    """The strategy of one chain: of `init_to_value` those values that are its own."""
    function, settings, _ = _opened(strategy)
    if function is not init_to_value:
        return strategy
    values = {}
    for name, value in (settings.get("values") or {}).items():
        shape = slots[name].shape if name in slots else None
        given = tuple(as_value(value, name).array.shape)
        values[name] = value
        if shape is None or len(given) != len(shape) + 1:
            continue
        if given[0] != num_chains:
            raise ShapeError(
                f"init_to_value: values for site {name!r}",
                expected=f"shape {shape}, or {(num_chains, *shape)} for {num_chains} chains",
                got=f"shape {given}",
                fix="give a value for each chain, or one for all",
            )
        values[name] = as_value(value, name)[chain]
    return functools.partial(init_to_value, **{**settings, "values": values})


def _opened(
    strategy: Strategy,
) -> tuple[Strategy, dict[str, Any], Callable[[], Strategy] | None]:
    """A strategy as ``(function, settings, maker of a strategy per try or None)``."""
    settings = {}
    while isinstance(strategy, functools.partial):
        settings = {**strategy.keywords, **settings}
        strategy = strategy.func
    maker = settings.get("generate") if strategy is init_to_generated else None
    return strategy, settings, maker


def for_one_start(strategy: Strategy) -> Strategy:
    """Return the strategy of one start: what `init_to_generated` makes is made now, for all sites.

    Parameters
    ----------
    strategy : callable
    """
    generate = _opened(strategy)[2]
    return strategy if generate is None else for_one_start(generate())


def check_value_names(strategy: Strategy, known: Iterable[str], subject: str) -> None:
    """Refuse `init_to_value` for a site that `subject` does not have.

    Parameters
    ----------
    strategy : callable
        A strategy; others have nothing to be checked.
    known : iterable of str
        Names of the latent sites.
    subject : str

    Raises
    ------
    ModelError

    Notes
    -----
    Values for a site and for what a reparameterisation has in its place, ``x`` and ``x_base``, may
    be given together: one of the two is in the model.
    """
    function, settings, _ = _opened(strategy)
    values = (settings.get("values") or {}) if function is init_to_value else {}
    known = list(known)
    there = [name for name in values if name in known]
    for name in values:
        other = any(_reparameterised(x, name) or _reparameterised(name, x) for x in there)
        if name not in known and not other:
            raise unknown_name(f"init_to_value: {subject} has no latent site {name!r}", name, known)


# What reparameterisations call the site in the place of another one.
_IN_PLACE = ("base", "decentered", "gamma", "normal", "split_", "std", "uniform", "unwrapped")


def _reparameterised(name: str, other: str) -> bool:
    """Whether `other` is the name of what stands in the place of the site `name`."""
    begins = (f"{name}_{kind}" for kind in _IN_PLACE)
    return any(other == x or (x[-1] == "_" and other.startswith(x)) for x in begins)


explain_calls(globals())
