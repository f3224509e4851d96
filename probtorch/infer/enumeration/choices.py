"""Sites that are enumerated sequentially: one run of a program for each combination of values.

`Choices` gives such sites one of their values each, by a path of positions; Python may branch on
them, and what a branch does further is its own. `ModelBranch` is a path that a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.effects.enumerable import as_annotated
from probtorch.effects.placing import PARTICLES
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Frame, Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.ops.movement import reshape

__all__ = ["ONE_BY_ONE", "Choices", "ModelBranch", "branches_of"]

# Runs of a model for one value of its density.
MOST_BRANCHES = 1024
# What a message adds where Python asks for a value of a site that has all of them.
ONE_BY_ONE = (
    "; or, outside of plates, give the site infer={'enumerate': 'sequential'}: one run per value"
)


def is_sequential(site: Site) -> bool:
    """Whether a latent site without a value asks for one run for each of its values."""
    return (
        not site.observed
        and site.value is None
        and hasattr(site.fn, "log_prob")
        and as_annotated(site) == "sequential"
    )


class Choices(Handler):
    """Give sites that are enumerated sequentially one of their values each, by a path of choices.

    Sites beyond the end of the path take their first value.

    Parameters
    ----------
    path : tuple of int
        Positions in the supports, in the order in which the run comes to the sites.
    refused : callable
        From a site and the plate around it, which has rows beside each other, to the error to
        raise; without it such a site is left alone.

    Attributes
    ----------
    names, sizes : list
        Of the sites that were given a value: what they are called, and how many values they have.
    """

    def __init__(
        self,
        path: tuple[int, ...],
        refused: Callable[[Site, Frame], InferenceError] | None = None,
    ) -> None:
        super().__init__()
        self.path, self.refused = path, refused
        self.names: list[str] = []
        self.sizes: list[int] = []

    def on_sample(self, site: Site) -> None:
        """Give the value."""
        if not is_sequential(site):
            return
        frame = rows_around(site)
        if frame is not None:
            if self.refused is None:
                return
            raise self.refused(site, frame)
        values = site.fn.enumerate_support(expand=False)
        size, event = values.shape[0], tuple(site.fn.event_shape)
        i = len(self.names)
        self.names.append(site.name)
        self.sizes.append(size)
        chosen = self.path[i] if i < len(self.path) else 0
        values = reshape(values, (size, *event))
        site.value = reshape(values[chosen], (*(1,) * len(site.plate_shape), *event))
        site.inside = True
        site.infer["_enum_total"] = size
        site.notes["choice"] = True

    def whole(self) -> tuple[int, ...]:
        """Return the path that was taken, with the first values at its end."""
        return self.path + (0,) * (len(self.names) - len(self.path))

    def others(self) -> Iterator[tuple[int, ...]]:
        """Yield paths that part from this one at a site that its own path does not reach."""
        for i in range(len(self.path), len(self.names)):
            stem = self.path + (0,) * (i - len(self.path))
            for choice in range(1, self.sizes[i]):
                yield (*stem, choice)


def rows_around(site: Site) -> Frame | None:
    """Return a plate with several rows beside each other that a site is in, or None."""
    for frame in site.plates:
        if frame.dim is not None and frame.size > 1 and frame.name != PARTICLES:
            return frame
    return None


@dataclass(frozen=True, slots=True)
class ModelBranch:
    """A path through a model, as plain values: a target that is saved has it.

    Parameters
    ----------
    path : tuple of int
    values : dict of str to ndarray
        What the sites are given that are enumerated sequentially.
    sizes : tuple of int
        How many values each of them has.
    met : frozenset of str
        All that the run along it came to.
    """

    path: tuple[int, ...]
    values: dict[str, np.ndarray]
    sizes: tuple[int, ...]
    met: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """The sites that are given a value, in the order of the run."""
        return tuple(self.values)

    def handler(self) -> Choices:
        """Return what makes a run take this path."""
        return Choices(self.path)


def branches_of(run: Callable[[Choices], Trace], name: str) -> list[ModelBranch]:
    """Return all paths through a model.

    Parameters
    ----------
    run : callable
        Runs the model under a handler, which has the first word, and returns the trace.
    name : str
        Of the model, for messages.

    Returns
    -------
    list of ModelBranch
        One without names for a model that has no such sites.

    Raises
    ------
    InferenceError
        If there are more than `MOST_BRANCHES`.
    """
    found: list[ModelBranch] = []
    paths: list[tuple[int, ...]] = [()]
    while paths:
        choices = Choices(paths.pop())
        trace = run(choices)
        given = {name: to_host(trace[name].value.array) for name in choices.names}
        path, sizes = choices.whole(), tuple(choices.sizes)
        found.append(ModelBranch(path, given, sizes, frozenset(trace.nodes)))
        paths.extend(choices.others())
        if choices.names:
            _check_scales(trace, choices.names[0])
        if len(found) + len(paths) > MOST_BRANCHES:
            raise InferenceError(
                f"{name}: the sites that are enumerated sequentially",
                expected=f"at most {MOST_BRANCHES} combinations of values, each a run of the model",
                got=f"more, of {len(choices.names)} sites in one run",
                fix='write branches as where() and infer={"enumerate": "parallel"}, in a loop with '
                "markov(); or take ParticleGibbs(model), which draws them",
                at=trace[choices.names[-1]].location,
            )
    return found


def _check_scales(trace: Trace, name: str) -> None:
    """Refuse a scale: a power of the sum of all branches is not the sum of their powers."""
    for site in trace.nodes.values():
        if site.has_density and (type(site.scale) is not float or site.scale != 1.0):
            scale = f"{site.scale:g}" if isinstance(site.scale, float) else "that is a tensor"
            raise InferenceError(
                f"site {name!r} is enumerated sequentially, and {site.name!r} has a scale",
                expected="all rows, and no scale, where each value of a site is a run of the model",
                got=f"a scale {scale}: a sum over the values outside of a subsampling plate cannot "
                "be estimated from some of the rows without bias",
                fix="leave subsample_size and scale() out, or let the guide enumerate the site",
                at=site.location,
            )
