"""Posterior draws by whatever runs: particles, approximations, guides, or a function of the user's.

`RunDrawer` makes an engine for the model given a replication's data and calls its `run`, as a user
would; `FunctionDrawer` calls a function. What comes back is brought to so many points that are
equal in weight and as good as independent: chains are thinned evenly, weighted draws resampled,
particles picked far from each other, and what draws by itself (an approximation, a fitted guide) is
asked for as many as are wanted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator, drawing_as
from probtorch.diagnostics.draws import Draws
from probtorch.effects.handlers import condition
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.infer.calibration.chains import least_ess, thinned
from probtorch.infer.calibration.replications import Drawn, Interrupted
from probtorch.infer.calibration.simulated import Arrays, SimulatedTarget
from probtorch.infer.sequential.smc import SMCDraws
from probtorch.infer.sequential.weighted_draws import WeightedDraws
from probtorch.infer.vi.svi import SVI

__all__ = ["Engine", "FunctionDrawer", "PosteriorFunction", "RunDrawer"]

# ``posterior(args, data, seed)``: draws of the posterior of a model called with `args`, given data.
PosteriorFunction: TypeAlias = Callable[[tuple[object, ...], Arrays, Generator], object]


class Engine(Protocol):
    """What samples a posterior when its `run` is called with the arguments of the model."""

    def run(self, *args: object, **kwargs: object) -> object:
        """Return draws, or what has a method `draws`."""


class RunDrawer:
    """Draws by an engine with a method `run`, made anew for the data of each replication.

    Parameters
    ----------
    target : SimulatedTarget
    make : callable
        From a model to the engine.
    model, args, kwargs
        What it is called with; data are put in their places.
    wanted : int
        Draws of a replication.
    num_steps : int
        Steps of an `SVI`.
    """

    def __init__(
        self,
        target: SimulatedTarget,
        make: Callable[..., Engine | SVI],
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        wanted: int,
        num_steps: int,
    ) -> None:
        self.target, self.make, self.model, self.wanted = target, make, model, wanted
        self.args, self.kwargs, self.num_steps = args, dict(kwargs), num_steps
        self.name = type(make(model)).__name__

    def __call__(self, data: Arrays, stream: Generator) -> Drawn:
        """Run the engine."""
        with drawing_as(*stream.spawn(1)):
            given = {name: wrap(np.array(x)) for name, x in data.items()}
            engine = self.make(condition(self.model, given, strict=False))
            run: Callable[..., object] = engine.run
            if isinstance(engine, SVI):
                run = functools.partial(engine.run, self.num_steps, progress_bar=False)
            elif hasattr(engine, "progress_bar"):
                engine.progress_bar = False
            found = run(*self.args, **self.kwargs)
            return _drawn(found, self.target, self.wanted, stream, self.name)


class FunctionDrawer:
    """Draws by a function of the user's.

    Parameters
    ----------
    target : SimulatedTarget
    function : callable
        ``function(args, data, seed)``; see `PosteriorFunction`.
    args : tuple
        What the model is called with.
    wanted : int
        Draws of a replication.
    further : dict of ndarray, optional
        What it gets besides the data of the replication.
    """

    def __init__(
        self,
        target: SimulatedTarget,
        function: PosteriorFunction,
        args: tuple[object, ...],
        wanted: int,
        further: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.target, self.function, self.args, self.wanted = target, function, args, wanted
        self.further = dict(further)
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, data: Arrays, stream: Generator) -> Drawn:
        """Call the function."""
        with drawing_as(*stream.spawn(1)):
            given = {k: x.copy() for k, x in {**data, **self.further}.items()}
            found = self.function(self.args, given, stream)
            return _drawn(found, self.target, self.wanted, stream, f"{self.name}(...)")


def _drawn(
    found: object, target: SimulatedTarget, wanted: int, stream: Generator, name: str
) -> Drawn:
    """Points that are equal in weight and as good as independent, of what an engine returned."""
    if getattr(found, "interrupted", False):
        raise Interrupted("Ctrl-C")
    ess, what = math.nan, found
    if isinstance(what, WeightedDraws):
        ess = what.ess
        posterior: Mapping[str, object] = what.draws(wanted, seed=stream).posterior
        return Drawn(_points(posterior, target, name, 2)[0], ess, what.num_samples // wanted)
    if not isinstance(what, Draws) and callable(getattr(what, "draws", None)):
        what = what.draws(wanted, seed=stream)  # type: ignore[attr-defined]  # it was just found
        found = None  # independent, by what it says of itself
    if isinstance(what, Draws):
        if what.attrs.get("interrupted"):
            raise Interrupted("Ctrl-C")
        points = _points(what.posterior, target, name, 2)
    elif isinstance(what, Mapping):
        points = _points(what, target, name, 1)[None]
    else:
        raise ArgumentError(
            f"sbc: what {name} returns",
            expected="draws: a dict of arrays (draws, *shape) by site, Draws, WeightedDraws, or a "
            "result with a method draws(num_draws, seed=...)",
            got=type(what).__name__,
            fix="return the draws of all latent sites, as {'mu': array, ...}",
        )
    chains, length = points.shape[:2]
    if chains * length < wanted:
        raise ArgumentError(
            f"sbc: what {name} returns",
            expected=f"at least num_samples={wanted} draws",
            got=f"{chains * length}",
            fix="have it draw more, or lower num_samples",
        )
    divergences = 0
    if found is not None and not isinstance(what, SMCDraws):
        ess = least_ess(points)
    elif found is None:
        ess = float(chains * length)
    if isinstance(what, Draws):
        divergences = int(np.sum(what.sample_stats.get("diverging", 0)))
    # Chain after chain, so that those next to each other are left out; of particles, whose
    # neighbours have an ancestor in common, likewise.
    kept = thinned(points.reshape(1, chains * length, -1), wanted)[0]
    return Drawn(kept, ess, chains * length // wanted, divergences)


def _points(
    values: Mapping[str, object], target: SimulatedTarget, name: str, lead: int
) -> np.ndarray:
    """Unconstrained points (*lead dims, dim) of the latent sites' values."""
    arrays: Arrays = {}
    sizes: tuple[int, ...] | None = None
    for site, slot in target.slots.items():
        if site not in values:
            raise ModelError(
                f"sbc: the draws of {name}",
                expected=f"values of {', '.join(map(repr, target.slots))}",
                got=f"values of {', '.join(map(repr, values)) or 'nothing'}",
                fix=f"return draws of {site!r}, too",
            )
        array = np.asarray(to_host(as_tensor(values[site]).array), np.float64)
        sizes = array.shape[:lead] if sizes is None else sizes
        if array.shape != (*sizes, *slot.shape) or len(sizes) != lead:
            raise ShapeError(
                f"sbc: the draws of {name} at site {site!r}",
                expected=f"shape {(*('chain', 'draw')[-lead:], *slot.shape)}, as many draws of "
                "each site",
                got=f"shape {array.shape}",
                fix="put the draws in front, and the dims of the site behind",
            )
        if not np.isfinite(array).all():
            raise InferenceError(
                f"sbc: the draws of {name} at site {site!r}",
                expected="finite values",
                got=f"{np.count_nonzero(~np.isfinite(array))} of {array.size} that are not",
                fix="look at what it returns for such data",
            )
        arrays[site] = array.reshape(-1, *slot.shape)
    assert sizes is not None  # a target has sites
    return target.points_of(arrays).reshape(*sizes, -1)
