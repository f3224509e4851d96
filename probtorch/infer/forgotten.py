"""What a run has forgotten: its data, or a prior.

Both are found before the first draw, and in the first step of SVI. Without data the draws are those
of the prior, which is rarely meant where a site says ``obs=None`` or arguments hold arrays that no
site observes. Without a prior (an improper one that no data reach) there is no distribution to draw
from: the log density is the same, or a straight line, however far a number goes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.rng import Generator
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions.uniform import ImproperUniform
from probtorch.effects.handlers import seed
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError, user_frame
from probtorch.infer.starts.initialization import uniform_point

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.infer.potential import Target


__all__ = [
    "Statements",
    "no_latent_sites",
    "observes_elsewhere",
    "refuse_flat",
    "warn_of_no_data",
    "without_data",
]

# Points at which all slopes are compared, and how far a suspected number is then moved.
NEAR_POINTS, NEAR = 2, 0.1
FAR = (-1e6, -1e3, -30.0, 30.0, 1e3, 1e6)
NAMED = 3
# Runs in which data are looked for, which a branch may hide: one that half of them take is missed
# by one run in a thousand.
OTHER_RUNS = 10


def without_data(sites: Iterable[Site]) -> tuple[str, ...] | None:
    """Return what a run of a model without data was waiting for, None if it has data.

    Parameters
    ----------
    sites : iterable of Site

    Returns
    -------
    tuple of str, or None
        Names and places of the sites with ``obs=None``, if no site is observed and there is no
        factor.
    """
    sites = list(sites)
    # Data that were taken away on purpose, by `uncondition`, were not forgotten.
    if any((s.observed and s.kind in ("sample", "factor")) or "obs" in s.notes for s in sites):
        return None
    return tuple(f"{site.name!r} ({site.location})" for site in sites if site.notes.get("no_data"))


def observes_elsewhere(run: Callable[..., object]) -> bool:
    """Tell whether a model whose first run observed nothing does so where other values are drawn.

    Parameters
    ----------
    run : callable
        Runs the model under the handlers that it is given.
    """
    for i in range(OTHER_RUNS):
        said = Statements()
        try:
            run(seed(rng_seed=i), said)
        except Exception:
            continue  # this is for the sake of a message alone
        if said.sites and said.without_data() is None:
            return True
    return False


class Statements(Handler):
    """Notes the sample statements and factors of all runs inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[tuple[str, bool], Site] = {}

    def after_sample(self, site: Site) -> None:
        """Note a sample statement; guide and model may both have one of a name."""
        self.sites[site.name, site.observed] = site

    def after_factor(self, site: Site) -> None:
        """Note a factor."""
        self.sites[site.name, True] = site

    def without_data(self) -> tuple[str, ...] | None:
        """Return `without_data` of what ran; None too where no statement was heard of."""
        return without_data(self.sites.values()) if self.sites else None

    def improper(self) -> bool:
        """Whether a latent site has a prior that does not integrate to 1."""
        return any(
            not site.observed and isinstance(_inmost(site.fn), ImproperUniform)
            for site in self.sites.values()
        )


def _inmost(fn: Distribution) -> Distribution:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def warn_of_no_data(
    waiting: tuple[str, ...] | None, arguments: Iterable[str] = (), optimised: bool = False
) -> None:
    """Warn of a run that draws from the prior and was probably meant to have data.

    Parameters
    ----------
    waiting : tuple of str, or None
        What `without_data` returned.
    arguments : iterable of str
        Names of the model's arguments that hold arrays.
    optimised : bool
        Whether it is a guide that runs, not a sampler.

    Warns
    -----
    InferenceWarning
        If nothing is observed and a site has ``obs=None``, or there are such arguments.
    """
    if waiting is None:
        return
    given = list(arguments)
    if waiting:
        got = f"obs=None at {_listed(waiting)}"
        fix = "pass the data to run(), where the model takes them"
    elif given:
        got = f"arrays in {_listed(given)}, which no sample statement has as obs="
        fix = f"write sample('y', ..., obs={given[-1]})"
    else:
        return
    meaning = "the guide is moved to the prior" if optimised else "the draws are those of the prior"
    message = (
        f"nothing in the model is observed: {meaning}\n"
        "  expected: a sample statement with data, or a factor\n"
        f"  got:      {got}\n"
        f"  fix:      {fix}; if the prior is meant, Predictive(model, num_samples=1000) draws from "
        "it exactly"
    )
    warnings.warn_explicit(message, InferenceWarning, *(user_frame() or ("<unknown>", 0)))


def refuse_flat(target: Target, start: np.ndarray) -> None:
    """Refuse a density that does not fall off in some direction.

    Parameters
    ----------
    target : Target
    start : ndarray, shape (dim,)
        Where a chain starts: density and gradient are finite there.

    Raises
    ------
    InferenceError
        Naming the sites.

    Notes
    -----
    A number is refused if the log density is a straight line in it, to the last bit of the slope
    at three points near by, and then for steps of up to a million alone, both ways.
    """
    generator = Generator(0)
    moves = [uniform_point(generator, (target.dim,), NEAR) for _ in range(NEAR_POINTS)]
    points = [start, *(start + move for move in moves)]
    found = [target.value_and_grad(q) for q in points]
    slopes = np.stack([gradient for _, gradient in found])
    if not np.isfinite(slopes).all():
        return  # at an edge; what is flat has none
    same = (slopes == slopes[0]).all(axis=0)
    for slot in target.slots.values():
        if slot.is_structure:
            same[slot.start : slot.stop] = False  # its prior is no part of the density
    suspects = np.flatnonzero(same).tolist()
    (value, _), q = found[0], points[0]
    flat = [i for i in suspects if _is_line(target, q, value, i, slopes[0, i])]
    if flat:
        raise _improper(target, flat, slopes[0])


def _is_line(target: Target, q: np.ndarray, value: float, i: int, slope: float) -> bool:
    """Whether the log density goes on for ever as it does at `q`, in direction `i`."""
    for step in FAR:
        moved = q.copy()
        moved[i] += step
        there, gradient = target.value_and_grad(moved)
        expected = value + slope * step
        if not (math.isfinite(there) and gradient[i] == slope):
            return False
        if abs(there - expected) > 1e-6 * (1.0 + abs(value) + abs(slope * step)):
            return False
    return True


def _improper(target: Target, flat: Sequence[int], slopes: np.ndarray) -> InferenceError:
    slots = [s for s in target.slots.values() if any(s.start <= i < s.stop for i in flat)]
    names = _listed([repr(slot.name) for slot in slots])
    one = len(slots) == 1
    constant = not slopes[flat].any()
    return InferenceError(
        f"the posterior of {names} is no distribution",
        expected="a prior that falls off, or data that say something about "
        + ("it" if one else "each of them"),
        got="a log density that "
        + ("is the same" if constant else "goes on in a straight line on the unconstrained scale")
        + f" however far {'it goes' if one else 'they go'}",
        fix="give it a proper prior, such as Normal(0, 10), or check that the data reach it",
        at=slots[0].location or None,
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def no_latent_sites(name: str, first: Trace, summed: dict[str, int]) -> InferenceError:
    """Return the error for a model in which nothing is to be inferred by a sampler."""
    observed = ", ".join(map(repr, first.observation_nodes))
    if summed:
        return InferenceError(
            f"{name} has no continuous latent sites",
            expected="at least one continuous latent site",
            got=f"finite discrete sites {', '.join(map(repr, summed))} only",
            fix="infer_discrete(model) draws them from their posterior, without a sampler; "
            "Gibbs(model) moves them where their sum has too many terms",
        )
    return InferenceError(
        f"{name} has no latent sites",
        expected="at least one sample statement without obs",
        got=f"observed sites {observed}" if observed else "no sample statements",
        fix="leave the value of what is to be inferred out: sample('x', distribution)",
    )
