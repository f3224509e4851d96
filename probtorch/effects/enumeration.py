"""Enumeration: a finite discrete site takes all its values at once, along a batch dim of its own.

`enumerate_sites` gives such a site its support as value, at a dim to the left of all plates. What
depends on the value then has that dim too, so the log densities of one run hold the joint density
at every combination of values; infer/enumeration/sum_product.py sums them.

Python sees none of the values: `summed_values.py` refuses to let it.

A dim is a place, not a name: in a Markov chain it is used again as soon as the variable that lived
there is out of sight (markov.py). So the handler says at every site which `SummedVariable` lives at
which dim (``site.notes["dims"]``), by the sites that are in sight of it. Dims are given out here,
never by the user.

Read `markov.py` first. The scheme is Pyro's, of Obermeyer et al. (2019), "Tensor variable
elimination for plated factor graphs".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from probtorch.backends.registry import device_of, to_device
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, Shape
from probtorch.distributions.distribution import Distribution
from probtorch.effects.enumerable import as_annotated
from probtorch.effects.markov import Link, MarkovStep
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Frame, Site
from probtorch.effects.summed_values import Marks, SummedValues
from probtorch.errors import InferenceError
from probtorch.ops.movement import expand, reshape
from probtorch.tensor import Tensor

__all__ = [
    "DeeperPlates",
    "Enumeration",
    "SummedVariable",
    "enumerate_sites",
    "out_of_sight",
]

# NumPy's limit on dims, less a few for events.
MAX_DIMS = 60


@dataclass(frozen=True, eq=False)
class SummedVariable:
    """An enumerated site of one run.

    Attributes
    ----------
    id : int
        In order of appearance.
    name : str
    dim : int
        Its negative batch dim.
    size : int
        Number of values.
    plates : frozenset of str
        Vectorised plates around it.
    frames : tuple of Frame
    fn : Distribution
    values : Tensor, shape (size, *event_shape), or None
        Its support; None when the values are `size` draws.
    location : str
    """

    id: int
    name: str
    dim: int
    size: int
    plates: frozenset[str]
    frames: tuple[Frame, ...]
    fn: Distribution
    values: Tensor | None
    location: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the values are draws, each of weight 1 / size."""
        return self.values is None


@dataclass(eq=False)
class Enumeration:
    """The dims and variables of one run, or of a guide and then its model.

    Parameters
    ----------
    first_dim : int, negative
        The rightmost dim that no plate takes.

    Attributes
    ----------
    variables : dict of int to SummedVariable
    dims : dict of str to dict
        For every site the variables that its value depends on, by dim.
    marks : Marks
        Which tensors depend on the variables.
    """

    first_dim: int = -1
    variables: dict[int, SummedVariable] = field(default_factory=dict)
    dims: dict[str, dict[int, int]] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)

    def watch(self) -> SummedValues:
        """Return the context in which Python is not told values of the variables."""
        return SummedValues(self.marks)

    @property
    def leftmost(self) -> int:
        """The first dim to the left of all variables so far."""
        return min((v.dim for v in self.variables.values()), default=self.first_dim + 1) - 1


class DeeperPlates(Exception):
    """A plate takes a dim that was given to variables; run again with `first_dim` further left."""


class enumerate_sites(Handler):
    """Give finite discrete sites all their values at once.

    Parameters
    ----------
    fn : callable, optional
    enumeration : Enumeration, optional
        Where variables are kept; those in it already, a guide's, keep their dims.
    choose : callable, optional
        ``choose(site) -> "parallel" or None``, asked at latent sites without a value; by default
        what their ``infer["enumerate"]`` says.

    Raises
    ------
    InferenceError
        While running: if a site depends on one that is out of sight of its chain, or there are more
        variables in sight than an array has dims.
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        enumeration: Enumeration | None = None,
        choose: Callable[[Site], str | None] | None = None,
    ) -> None:
        super().__init__(fn)
        self.enumeration = Enumeration() if enumeration is None else enumeration
        self.choose = as_annotated if choose is None else choose
        # Variables in sight everywhere: those outside of all chains, and what a guide left.
        self._everywhere: dict[int, int] = {}
        self._start = self.enumeration.leftmost
        # What each step of a chain has stated: names, by the number of chains around the statement.
        self._stated: dict[MarkovStep, dict[str, int]] = {}
        self._watches: list[SummedValues] = []
        # The chains of the last statement in one, and those in sight there.
        self._links: tuple[Link, ...] = ()
        self._near: tuple[Link, ...] = ()

    def __enter__(self) -> Self:
        self._watches.append(self.enumeration.watch())
        self._watches[-1].__enter__()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._watches.pop().__exit__(*exc)

    def for_one_run(self) -> enumerate_sites:
        """Return a handler with variables of its own."""
        return enumerate_sites(None, Enumeration(self.enumeration.first_dim), self.choose)

    def on_sample(self, site: Site) -> None:
        """Enumerate the site if it is to be, and note which variables its parameters may have."""
        self.on_factor(site)
        if site.observed or site.value is not None or not hasattr(site.fn, "log_prob"):
            return
        if self.choose(site) is not None:
            self._enumerate(site, site.notes["dims"])

    def on_factor(self, site: Site) -> None:
        """Note which variables the factor may depend on, and release their dims from the plates."""
        first = self.enumeration.first_dim
        site.free_dim = first if site.free_dim is None else max(first, site.free_dim)
        for frame in site.plates:
            if frame.dim is not None and frame.dim <= first:
                raise DeeperPlates("more plates than the first run had")
        site.notes["dims"] = self._in_sight()

    def after_sample(self, site: Site) -> None:
        """Note which variables the value depends on; later statements in sight may have them."""
        shape = getattr(site.value, "shape", None)
        if shape is None or not hasattr(site.fn, "event_shape"):
            return
        if site.notes.get("all_values") is site.value and hasattr(site.fn, "log_prob_of_all"):
            site.all_values_at = site.infer["_enumerate_dim"]
        first, held, in_sight = self.enumeration.first_dim, {}, site.notes["dims"]
        given = self.enumeration.dims.get(site.name, {})
        ndim = len(shape) - len(site.fn.event_shape)
        for dim in range(first, -ndim - 1, -1):
            if shape[dim + ndim] > 1:
                variable = given.get(dim, in_sight.get(dim))
                if variable is None:
                    raise out_of_sight(site)
                if in_sight.get(dim, variable) != variable:
                    raise self._ambiguous(site, variable, in_sight[dim])
                held[dim] = variable
        self.enumeration.dims[site.name] = held
        if "variable" in site.notes:
            size = self.enumeration.variables[site.notes["variable"]].size
            self.enumeration.marks.start(site.value, site.name, size)
        elif held:
            # A draw by no recorded operation, such as one of a distribution of the user's.
            names = frozenset(self._name(variable) for variable in held.values())
            self.enumeration.marks.add(site.value, names)
        if held:
            site.notes["dims"] = {**in_sight, **held}
        links = STATE.chains.links
        for link in links:
            self._stated.setdefault(link.steps[-1], {})[site.name] = len(links)
        if not links and held:
            # A new dict: sites before this one hold the old one.
            self._everywhere = {**self._everywhere, **held}

    # ---------------------------------------------------------------------------------- scope

    def _in_sight(self) -> dict[int, int]:
        """Which variable lives at which dim, for a statement here."""
        near = self._reach()
        if not near:
            return self._everywhere
        found = dict(self._everywhere)
        for name in self._names([link.in_sight for link in near]):
            for dim, variable in self.enumeration.dims[name].items():
                if found.setdefault(dim, variable) != variable:
                    raise InferenceError(
                        f"sites {self._name(variable)!r} and {self._name(found[dim])!r}",
                        expected="chains whose steps see each other in a fixed pattern",
                        got="two variables at one place that come into sight together",
                        fix="give markov() a larger history",
                    )
        return found

    def _reach(self) -> tuple[Link, ...]:
        """The chains in sight of a statement: those around it, and some that were left.

        What follows a loop may depend on its last steps: statements after it, until another loop
        begins, and the first step of that.
        """
        links, before = STATE.chains.links, self._links
        if links is before:
            return self._near
        shared = 0
        for link, other in zip(links, before):
            if link.owner is not other.owner or link.steps[-1] is not other.steps[-1]:
                break
            shared += 1
        if shared < len(links):
            self._links = links
            begins = links[shared].position == 0
            self._near = links + before[shared:] if begins else links
        return self._near

    def _names(self, windows: Sequence[Sequence[MarkovStep]]) -> Iterator[str]:
        """Sites stated in these steps, one window per chain, whose own chains are all in sight."""
        if len(windows) == 1:
            for step in windows[0]:
                yield from (n for n, depth in self._stated.get(step, {}).items() if depth == 1)
            return
        count: dict[str, int] = {}
        depth: dict[str, int] = {}
        for window in windows:
            for step in window:
                for name, level in self._stated.get(step, {}).items():
                    count[name] = count.get(name, 0) + 1
                    depth[name] = level
        yield from (name for name, n in count.items() if n == depth[name])

    # ------------------------------------------------------------------------------------ dims

    def _enumerate(self, site: Site, in_sight: Mapping[int, int]) -> None:
        """Give the site its support, or `num_samples` draws, along a dim that is free here."""
        taken = set(in_sight)
        for name in self._names([link.in_use for link in self._near]):
            taken.update(self.enumeration.dims[name])
        dim = self._start
        while dim in taken:
            dim -= 1
        fn, event = site.fn, tuple(site.fn.event_shape)
        if -dim + len(event) > MAX_DIMS:
            raise InferenceError(
                f"site {site.name!r} cannot be enumerated: no dim is left for it",
                expected=f"at most {MAX_DIMS} plates, variables in sight and event dims",
                got=f"{len(taken)} variables in sight",
                fix="write the loop as `for t in markov(range(n))`, if its steps form a chain",
                at=site.location,
            )
        draws = site.infer.get("num_samples")
        if draws is None:
            values = _beside_parameters(fn, fn.enumerate_support(expand=False))
            values, site.value = _support(values, event, dim)
            size = values.array.shape[0]
            if site.infer.get("expand"):
                rows = (1,) * (-dim - 1 - len(site.plate_shape)) + tuple(site.plate_shape)
                site.value = expand(site.value, (size, *rows, *event))
            # What has as many values as another summed site says has too many for most of these.
            fixed = fn.support is getattr(type(fn), "support", None)
            site.inside = fixed or bool(fn.support.check(site.value).array.all())
            site.notes["all_values"] = site.value
        else:
            size, values = draws, None
            batch = tuple(fn.batch_shape)
            batch = (1,) * (-dim - len(batch)) + batch
            place = len(batch) + dim
            site.fn = fn.expand(batch[:place] + (size,) + batch[place + 1 :])
        number = len(self.enumeration.variables)
        self.enumeration.variables[number] = SummedVariable(
            number,
            site.name,
            dim,
            size,
            frozenset(f.name for f in site.plates if f.dim is not None),
            site.plates,
            fn,
            values,
            site.location,
        )
        self.enumeration.dims[site.name] = {dim: number}
        site.infer["_enumerate_dim"] = dim
        site.notes["variable"] = number

    def _name(self, variable: int) -> str:
        return self.enumeration.variables[variable].name

    def _ambiguous(self, site: Site, variable: int, other: int) -> InferenceError:
        return InferenceError(
            f"site {site.name!r} depends on {self._name(variable)!r} where "
            f"{self._name(other)!r} is in sight too",
            expected="the same markov() loops in guide and model",
            got="two variables of the guide at one dim",
            fix="write the model's loop as markov() where the guide's is one",
            at=site.location,
        )


def _beside_parameters(fn: Distribution, values: Tensor) -> Tensor:
    """Values on the device of the distribution's parameters."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    for name in getattr(fn, "_fields", ()):
        parameter = fn.__dict__.get(name)
        if isinstance(parameter, TensorBase) and not isinstance(parameter.array, np.ndarray):
            return wrap(to_device(values.array, device_of(parameter.array)))
    return values


def _support(values: Tensor, event: Shape, dim: int) -> tuple[Tensor, Tensor]:
    """Values of a support, and the same along `dim`.

    The steps of a chain share one tensor, so that a compiler sees what they have in common.
    """
    array = values.array
    if not isinstance(array, np.ndarray):
        values = reshape(values, (array.shape[0], *event))
        return values, reshape(values, (array.shape[0], *(1,) * (-dim - 1), *event))
    return _shared_support(array.tobytes(), array.dtype, (array.shape[0], *event), dim)


@functools.lru_cache(maxsize=256)
def _shared_support(content: bytes, dtype: DType, shape: Shape, dim: int) -> tuple[Tensor, Tensor]:
    # Read-only, as what is made from bytes is.
    array = np.frombuffer(content, dtype).reshape(shape)
    return wrap(array), wrap(array.reshape(shape[0], *(1,) * (-dim - 1), *shape[1:]))


def out_of_sight(site: Site) -> InferenceError:
    """Return the error for a site with a dim where no variable in sight lives."""
    return InferenceError(
        f"site {site.name!r} depends on an enumerated site that is out of its sight",
        expected="dependence on the `history` steps before, of the markov() loop that is running",
        got="a value of an earlier step, or of a loop that another has followed",
        fix="raise history in markov(range(n), history=1) to the number of steps it looks back",
        at=site.location,
    )


# ------------------------------------------------------------------------------- what to enumerate


explain_calls(globals())
