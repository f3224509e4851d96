"""Facts of a model that decide how to fit it: what a few runs of it show.

`look_at` runs the model and notes latent numbers, finite and unbounded discrete sites, subsamples
and parameters; `gradient_seconds` times its compiled density. planning.py makes a plan of them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.enumerable import can_enumerate
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.potential import Target
from probtorch.infer.starts.initialization import init_to_uniform, uniform_point
from probtorch.infer.starts.path_starts import Evaluations

if TYPE_CHECKING:
    from probtorch.distributions import MixtureSameFamily
    from probtorch.infer.plans.modes import Modes

__all__ = ["Facts", "gradient_seconds", "listed", "look_at"]

# Methods of distributions of which one draws.
_DRAWING = ("_sample", "_rsample", "sample", "rsample")
# Runs until one stays where the model is defined.
FIRST_RUNS = 5
# Runs of a model that are compared, and the seconds from which on a run is too long for so many.
MORE_RUNS, LONG = 20, 0.2
# Gradients that are timed.
TIMED = 5


@dataclass(frozen=True)
class Facts:
    """What one run of a model shows.

    Attributes
    ----------
    name : str
    numbers : int
        Unconstrained numbers of the continuous latent sites.
    continuous : tuple of str
        The latent sites they belong to.
    finite : dict of str to int
        Discrete latent sites that can be enumerated, and how many values each has.
    unbounded : tuple of str
        Discrete latent sites that cannot.
    observed : tuple of str
        Of the first run in which something is.
    data : int
        Numbers that are observed there.
    subsampled : tuple of str
        Plates that work on some of their rows.
    params : tuple of str
        Parameters that are learnt, not inferred.
    seconds : float
        That the fastest run took, eagerly; nan if it was not timed.
    changing : tuple of str
        Sites that some runs have and others have not.
    local : tuple of str
        Plates on subsamples that have continuous latent sites.
    found : Modes or None
        Separate modes that climbs of the density end in; None if nobody looked.
    rows : int
        Of the largest plate on subsamples; 0 if there is none.
    """

    name: str
    numbers: int
    continuous: tuple[str, ...]
    finite: Mapping[str, int]
    unbounded: tuple[str, ...]
    observed: tuple[str, ...]
    data: int
    subsampled: tuple[str, ...]
    params: tuple[str, ...]
    seconds: float = math.nan
    changing: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    found: Modes | None = field(default=None, repr=False, compare=False)
    rows: int = 0

    @property
    def modes(self) -> int:
        """How many separate modes were found; 0 if nobody looked."""
        return 0 if self.found is None else len(self.found)

    @property
    def wall(self) -> float:
        """How deep the density falls between them, in nats."""
        return 0.0 if self.found is None else self.found.wall

    @property
    def reference(self) -> MixtureSameFamily:
        """Normals at the modes, in equal parts, of the unconstrained vector: a start for `SMC`.

        Raises
        ------
        InferenceError
            If nobody looked for modes.
        """
        if self.found is None:
            raise InferenceError(
                "modes of a posterior", expected="a plan that looked for them", got="none",
                fix="call fit without method=, engine=, guide= and init_strategy=",
            )  # fmt: skip
        return self.found.reference

    def __str__(self) -> str:
        parts = [f"{self.numbers} continuous numbers" if self.numbers != 1 else "1 number"]
        if self.finite:
            parts.append(f"discrete {listed(self.finite)} (finite)")
        if self.unbounded:
            parts.append(f"discrete {listed(self.unbounded)} (without a bound)")
        if self.params:
            parts.append(f"parameters {listed(self.params)}")
        parts.append(f"{self.data} observed" if self.observed else "nothing observed")
        if self.subsampled:
            parts.append(f"subsamples of {listed(self.subsampled)}")
        if self.modes > 1:
            parts.append(f"{self.modes} modes")
        if self.changing:
            parts.append(f"{listed(self.changing)} not in every run")
        return ", ".join(parts)


def look_at(
    model: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Facts:
    """Run a model a few times, its latent sites drawn, and note what decides how to fit it.

    Raises
    ------
    InferenceError
        If it has no latent sites.
    """
    began = time.perf_counter()
    found = _drawn(model, args, kwargs)
    seconds, numbers, data = time.perf_counter() - began, 0, 0
    finite, continuous, unbounded = {}, [], []
    local: set[str] = set()
    for name in found.stochastic_nodes:
        site = found[name]
        if can_enumerate(site):
            finite[name] = int(site.fn.enumerate_support(expand=False).shape[0])
        elif site.fn.is_discrete:
            unbounded.append(name)
        else:
            continuous.append(name)
            shape = tuple(biject_to(site.fn.support).inverse_shape(tuple(site.value.shape)))
            numbers += math.prod(shape)
            local |= {f.name for f in site.plates if f.subsampled}
    sizes = {f.name: f.full_size for s in found.nodes.values() for f in s.plates if f.subsampled}
    params = tuple(n for n, s in found.nodes.items() if s.kind == "param")
    name = getattr(model, "__name__", type(model).__name__)
    if not (continuous or finite or unbounded):
        raise InferenceError(
            f"fit: {name} has nothing to infer",
            expected="at least one sample statement without obs",
            got=f"observed sites {listed(found.observation_nodes) or '(none)'}"
            + (f" and parameters {listed(params)}" if params else ""),
            fix="leave the value of what is to be inferred out: sample('x', distribution)"
            if not params
            else "parameters alone are learnt by maximum likelihood: "
            "SVI(model, lambda *args: None, Adam({'lr': 0.01}), Trace_ELBO()).run(1000, ...)",
        )
    runs = [found]
    for number in range(1, MORE_RUNS if seconds < LONG else 2):
        with contextlib.suppress(*OUTSIDE):  # runs that the model does not bear tell nothing
            began = time.perf_counter()
            runs.append(_drawn(model, args, kwargs, number * FIRST_RUNS))
            # The first one has met what nobody had used before.
            seconds = min(seconds, time.perf_counter() - began)
    seeing = next((run for run in runs if run.observation_nodes), found)
    for name_of_data in seeing.observation_nodes:
        value = seeing[name_of_data].value
        data += value.array.size if isinstance(value, TensorBase) else int(np.size(value))
    return Facts(
        name, numbers, tuple(continuous), finite, tuple(unbounded),
        tuple(seeing.observation_nodes), data, tuple(sorted(sizes)), params, seconds,
        _changing(runs), tuple(sorted(local)), rows=max(sizes.values(), default=0),
    )  # fmt: skip


def _changing(runs: list[Trace]) -> tuple[str, ...]:
    """Sites that some runs have and others have not."""
    kinds = [set(run.stochastic_nodes) for run in runs]
    everywhere = set.intersection(*kinds)
    return tuple(sorted(set.union(*kinds) - everywhere))


def _drawn(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    first: int = 0,
) -> Trace:
    """The trace of a run; a few are tried, as draws of a wide prior may be where a model raises."""
    failure: Exception | None = None
    for stream in range(first, first + FIRST_RUNS):
        try:
            given = substitute(substitute_fn=_start)
            with no_grad(), trace() as found, seed_handler(None, Generator(0, stream)), given:
                model(*args, **kwargs)
            return found
        except OUTSIDE as error:
            failure = failure or error
    assert failure is not None  # there was at least one run
    raise failure


def _start(site: Site) -> TensorLike | None:
    """Value of a site whose prior cannot be drawn from, as an improper one; None for others."""
    fn = site.fn
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    if site.kind != "sample" or site.observed or not isinstance(fn, Distribution):
        return None
    if any(getattr(type(fn), n) is not getattr(Distribution, n) for n in _DRAWING):
        return None
    return init_to_uniform(site)


def gradient_seconds(target: Target) -> float:
    """Return the time that a density and its gradient take, compiled; nan where it has none."""
    evaluate = Evaluations(target)
    points = np.stack([uniform_point(Generator(0, i), (target.dim,)) for i in range(TIMED)])
    found, _ = evaluate(points[:1])
    times = []
    for i in range(TIMED):
        began = time.perf_counter()
        found, _ = evaluate(points[i : i + 1])
        if np.isfinite(found).all():
            times.append(time.perf_counter() - began)
    return min(times, default=math.nan)


def listed(names: object) -> str:
    """Return names in quotes, the first three of them."""
    found = list(names)  # type: ignore[call-overload]  # any iterable of names
    shown = ", ".join(map(repr, found[:3]))
    return shown + (f" and {len(found) - 3} more" if len(found) > 3 else "")


explain_calls(globals())
