"""`scan` in models: a loop over time whose steps have sample statements.

A step runs many times, and a model has each name once. So a site of a step is one site of the
model, whose value has the steps along its first dim: handlers are asked for the values of all steps
before the loop runs, and the loop takes a slice of them at each step, draws what is missing, and
puts out the log densities (`_Run`). What handlers see of it is a `ScannedSite`, a distribution over
all steps together. So the latent chain of a state-space model is a vector for samplers and guides,
and its density a loop in compiled code (autograd/scan.py).

Read runtime.py and autograd/scan.py first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self, TypeAlias, cast

from probtorch.autograd.modes import no_grad
from probtorch.autograd.scan import scan as loop
from probtorch.core.casting import cast as cast_to
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Shape, TensorLike, Tree
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.source import Source
from probtorch.effects.runtime import (
    STATE,
    Handler,
    Placement,
    generator_in_force,
    perform,
    perform_together,
)
from probtorch.effects.scan_steps import TRIED, StepFinder, as_wide, form_of, only, whole_data
from probtorch.effects.site import Frame, Site
from probtorch.errors import ModelError, ShapeError
from probtorch.ops.movement import expand
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["scan"]

Step: TypeAlias = Callable[[Tree, Tree], tuple[Tree, Tree]]
# By the names of sites.
Values: TypeAlias = "dict[str, Tensor]"


def scan(
    f: Step, init: Tree, xs: Tree = None, length: int | None = None, reverse: bool = False
) -> tuple[Tree, Tree]:
    """Run ``carry, y = f(carry, x)`` over the slices of `xs` along dim 0; stack what it puts out.

    In a model `f` may have sample statements. Each is one site, whose value has a row for each step
    along its first dim: the states of a state-space model are ``(length, ...)`` in draws and
    guides.

    Parameters
    ----------
    f : callable
        From the carried state and one slice to the next state (same structure, shapes and dtypes)
        and a tree of outputs, or None for no outputs. Pure: when recorded it is not called once per
        step.
    init : tree of tensors and numbers
        The state before the first step.
    xs : tree of Tensor, shapes (length, ...), or None
        What the steps take one slice each of; data, too: ``sample(..., obs=x)``.
    length : int, optional
        Number of steps; needed without `xs`.
    reverse : bool
        From the last slice to the first. Outputs keep the place of their slice.

    Returns
    -------
    carry : tree of Tensor
        The state after the last step.
    ys : tree of Tensor, shapes (length, ...)
        The outputs of all steps.

    Raises
    ------
    ArgumentError
        If the number of steps is not known.
    ShapeError
        If slices disagree in number, or a step changes the form of the state; if a value for a site
        has not a row for each step.
    ModelError
        If steps have other sites, shapes or supports than the first one; if data are no slices of
        `xs`; if a discrete site without pathwise gradient is in a plate around the loop.

    Notes
    -----
    The signature is JAX's. Differentiable in `init`, `xs` and everything `f` closes over. A handler
    around the loop sees a site once, with all steps; one inside of `f` holds at each step, and so
    does `reparam` around the loop.

    Examples
    --------
    >>> from probtorch import scan, tensor
    >>> total, sums = scan(lambda s, x: (s + x, s + x), 0.0, tensor([1.0, 2.0, 3.0]))
    >>> sums
    tensor([1., 3., 6.])

    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> def walk(y):
    ...     def step(before, seen):
    ...         here = probtorch.sample("state", dist.Normal(before, 1.0))
    ...         probtorch.sample("y", dist.Normal(here, 0.5), obs=seen)
    ...         return here, None
    ...     scan(step, probtorch.tensor(0.0), y)
    >>> trace = probtorch.handlers.trace(walk).get_trace(tensor([0.3, 1.2, 0.8]))
    >>> trace.nodes["state"].value.shape, trace.nodes["y"].value
    (Size([3]), tensor([0.3000, 1.2000, 0.8000]))
    """
    if not STATE.handlers:
        return loop(f, init, xs, length, reverse)
    slices = [as_tensor(x, "scan") for x in flatten(xs)[0]]
    count = len(slices[0].array) if slices and slices[0].array.ndim else length
    performed = STATE.performed
    if not count:
        return loop(f, init, xs, length, reverse)
    entered = [h.for_a_step() for h in STATE.handlers if h.enters_steps]
    run = _Run(_under(entered, f), init, xs, count, bool(reverse), STATE.plates)
    run.discover()
    if STATE.performed == performed:
        return loop(f, init, xs, length, reverse)
    return run.performed()


def _under(entered: list[Handler], f: Step) -> Step:
    """The step with handlers around it, those of the model that hold at each step."""
    if not entered:
        return f

    def step(carry: Tree, x: Tree) -> tuple[Tree, Tree]:
        with ExitStack() as stack:
            for handler in entered:
                stack.enter_context(handler)
            return f(carry, x)

    return step


class ScannedSite(Distribution):
    """A site of a step of `scan`, all steps together.

    Parameters
    ----------
    run : _Run
    name : str
    frames : bool
        Whether steps are a batch dim, and not part of the event.
    """

    __tree_fields__ = ()

    def __init__(self, run: _Run, name: str, frames: bool) -> None:
        self._run, self._name, self._frames = run, name, frames
        step = run.sites[name].fn
        self.base_dist = step
        batch, event = tuple(step.batch_shape), tuple(step.event_shape)
        whole = (run.count, *batch)
        self.reinterpreted_batch_ndims = 0 if frames else len(whole)
        self._set_shapes(
            whole if frames else (),
            event if frames else (*whole, *event),
            dtype=step._dtype,
            device=step._device,
            validate_args=step._validate_args,
        )
        self._takes_integers = step._takes_integers

    @classmethod
    def _from_tree(cls, values: Mapping[str, object]) -> Self:
        raise AssertionError("has no leaves")

    @constraints.dependent_property
    def support(self) -> Constraint:
        """That of a step, with the steps as event dims unless they are a batch dim."""
        support = self.base_dist.support
        extra = self.reinterpreted_batch_ndims
        return constraints.independent(support, extra) if extra else support

    @property
    def has_rsample(self) -> bool:
        """As that of a step."""
        return bool(self.base_dist.has_rsample)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._rsample(rng, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        lead = shape[: len(shape) - len(self._batch_shape) - len(self._event_shape)]
        own = shape[len(lead) :]
        rows = [self._run.drawn(self._name, rng.generator) for _ in range(math.prod(lead))]
        return expand(stack(rows).reshape((*lead, *own)), shape)

    def log_prob(self, value: TensorLike) -> Tensor:
        """Return the log density of all steps, given what other sites are."""
        return self._density_at(value)

    def log_prob_inside(self, value: TensorLike) -> Tensor:
        """`log_prob`."""
        return self._density_at(value)

    def _density_at(self, value: TensorLike) -> Tensor:
        terms = self._run.terms_at(self._name, as_tensor(value, self._name))
        return terms if self._frames else total(terms)


@dataclass(eq=False)
class _Run:
    """One call of `scan` in a model.

    Parameters
    ----------
    f, init, xs, count, reverse
        The call; `count` is the number of steps.
    plates : Placement
        Around it.

    Attributes
    ----------
    sites : dict of str to Site
        What the first step states, by name: samples, factors and deterministic values.
    params : dict of str to Tensor
        Parameters, which are the same at each step.
    outer : dict of str to Site
        The sites of the model.
    """

    f: Step
    init: Tree
    xs: Tree
    count: int
    reverse: bool
    plates: Placement
    sites: dict[str, Site] = field(default_factory=dict)
    params: Values = field(default_factory=dict)
    outer: dict[str, Site] = field(default_factory=dict)
    _data: Values = field(default_factory=dict)
    _terms: Values = field(default_factory=dict)
    _computed: Values = field(default_factory=dict)
    _inside: frozenset[str] = frozenset()

    # --------------------------------------------------------------------------- what is there

    def discover(self) -> None:
        """Learn the sites of a step from the first two; nothing is drawn."""
        items, structure = flatten(self.xs)
        tensors = [as_tensor(x, "scan") for x in items]
        order = range(self.count)[:: -1 if self.reverse else 1]
        carried, form = flatten(self.init)
        first = [as_tensor(x, "scan") for x in carried]
        carry = unflatten(form, first)
        for point, t in zip(TRIED, order, strict=False):
            slices = [x[t] for x in tensors]
            finder = StepFinder(self.params, point, STATE.handlers)
            with no_grad(), only(finder, self.plates):
                carry, _ = self.f(carry, unflatten(structure, slices))
            if point == TRIED[0]:
                self.sites = finder.sites
                self.init = unflatten(form, as_wide(first, flatten(carry)[0]))
            self._compare(finder.sites)
            for name, site in finder.sites.items():
                if site.kind == "sample" and site.observed and name not in self._data:
                    self._data[name] = whole_data(site, slices, tensors)

    def _compare(self, found: Mapping[str, Site]) -> None:
        """Refuse steps that differ in what the sites of the model are made of."""
        for name in {**self.sites, **found}:
            first, now = self.sites.get(name), found.get(name)
            if first is None or now is None or form_of(first) != form_of(now):
                there = first or now
                assert there is not None
                raise ModelError(
                    f"site {name!r} in a step of scan",
                    expected="the same sites with the same shapes and supports at each step",
                    got="a site that is not at each step"
                    if first is None or now is None
                    else f"{form_of(first)}, then {form_of(now)}",
                    fix="choose between values with where(); sample on a fixed support, and shift "
                    "or scale the value",
                    at=there.location or None,
                )

    # ------------------------------------------------------------------------------ what it does

    def performed(self) -> tuple[Tree, Tree]:
        """State the sites of the model, run the loop, and return its result."""
        plates = self.plates
        for name, site in self.sites.items():
            if site.kind != "sample":
                continue
            frames = site.observed or bool(plates.frames)
            if bool(plates.frames) and not site.observed and not site.fn.has_rsample:
                raise ModelError(
                    f"site {name!r} in a step of scan",
                    expected="a site with pathwise gradients in a plate around the loop",
                    got=f"{type(site.fn).__name__}, which has none",
                    fix="put the plate inside of the step",
                    at=site.location or None,
                )
            around, shape = site.plates, site.plate_shape
            fn = ScannedSite(self, name, frames)
            if frames:
                time = Frame(
                    f"{name}_steps", self.count, self.count, -1 - len(fn.base_dist.batch_shape)
                )
                around = (time, *around)
                shape = tuple(fn.batch_shape)
            else:
                around, shape = (), ()
            self.outer[name] = Site(
                "sample",
                name,
                fn,
                (),
                {},
                self._data.get(name),
                site.observed,
                None,
                plates.scale,
                dict(site.infer),
                around,
                shape,
                code=site.code,
                instruction=site.instruction,
                notes={k: v for k, v in site.notes.items() if k == "no_data"} | {"steps": True},
            )
        result: list[tuple[Tree, Tree]] = []

        def complete() -> None:
            carry, ys, values, computed = self._looped(self._given(), generator_in_force())
            for name, site in self.outer.items():
                if site.value is None:
                    site.value, site.inside = values[name], True
            self._computed = computed
            result.append((carry, ys))

        perform_together(list(self.outer.values()), complete)
        for name, value in self._computed.items():
            inner = self.sites[name]
            whole = total(value) if inner.kind == "factor" else value
            perform(
                Site(
                    inner.kind,
                    name,
                    value=whole,
                    observed=inner.observed,
                    event_dim=None if inner.kind == "factor" else whole.array.ndim,
                    scale=plates.scale,
                    code=inner.code,
                    instruction=inner.instruction,
                )
            )
        return result[0]

    def _given(self) -> Values:
        """The values that sites have so far."""
        given = {}
        for name, site in self.outer.items():
            if site.kind != "sample":
                raise ModelError(
                    f"site {name!r} in a step of scan",
                    expected="handlers around the loop that leave it random, or give it values",
                    got="one that makes it deterministic, such as do or NeuTraReparam",
                    fix="put the handler inside of the step, or leave the site out of it",
                    at=site.location or None,
                )
            if site.value is not None:
                value = self._checked(site, as_tensor(site.value, name))
                narrow = site.fn._dtype
                if name not in self._data and narrow is not None and value.array.dtype.kind == "f":
                    # In the precision of the model, which the carried state has, too.
                    value = cast_to(value, narrow)
                given[name] = value
        self._inside = frozenset(n for n in given if self.outer[n].inside)
        return given

    def _checked(self, site: Site, value: Tensor) -> Tensor:
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        if value.array.shape != shape:
            raise ShapeError(
                f"value of site {site.name!r} in scan",
                expected=f"shape {shape}, with a row for each step",
                got=f"shape {value.array.shape}",
                fix="give the values of all steps, those of one particle at a time",
                at=site.location or None,
            )
        return value

    def _looped(
        self, given: Values, generator: Generator | None
    ) -> tuple[Tree, Tree, Values, Values]:
        """Run the loop with some values given; returns its results, what it drew and computed."""

        def step(carry: Tree, item: Tree) -> tuple[Tree, Tree]:
            x, values = cast("tuple[Tree, Values]", item)
            inside = _Inside(self, values, generator)
            # Of the place of the loop: its backward pass runs steps again, elsewhere.
            with only(inside, self.plates):
                after, y = self.f(carry, x)
            return after, (y, inside.drawn, inside.terms, inside.computed)

        carry, out = loop(step, self.init, (self.xs, given), self.count, self.reverse)
        ys, drawn, terms, computed = cast("tuple[Tree, Values, Values, Values]", out)
        self._terms = terms
        return carry, ys, drawn, computed

    # ------------------------------------------------------------------------- what sites ask for

    def terms_at(self, name: str, value: Tensor) -> Tensor:
        """Return the log densities of one site, one per step and batch element."""
        if name in self._terms and self.outer[name].value is value:
            return self._terms[name]
        before = self._terms
        try:
            given = self._given() | {name: self._checked(self.outer[name], value)}
            self._looped(given, generator_in_force())
            return self._terms[name]
        finally:
            self._terms = before

    def drawn(self, name: str, generator: Generator | None) -> Tensor:
        """Return a draw of one site, given what sites have values."""
        before = self._terms
        given = {n: x for n, x in self._given().items() if n != name}
        try:
            return self._looped(given, generator)[2][name]
        finally:
            self._terms = before


class _Inside(Handler):
    """Give the sites of a step their values, and collect what they come to."""

    def __init__(self, run: _Run, given: Values, generator: Generator | None) -> None:
        super().__init__()
        self.run, self.given, self.generator = run, given, generator
        self.drawn: Values = {}
        self.terms: Values = {}
        self.computed: Values = {}

    def on_sample(self, site: Site) -> None:
        if site.name in self.given:
            site.value = self.given[site.name]
            site.inside = site.name in self.run._inside
        elif not self.run.outer[site.name].observed:
            site.value, site.observed = None, False

    def after_sample(self, site: Site) -> None:
        if site.name not in self.given:
            self.drawn[site.name] = site.value
        scale = self.run.plates.scale
        term = site.compute_log_prob()
        self.terms[site.name] = term if scale == 1.0 else term / scale

    def on_param(self, site: Site) -> None:
        site.value = self.run.params[site.name]

    def after_factor(self, site: Site) -> None:
        self.computed[site.name] = site.compute_log_prob_sum()

    def after_deterministic(self, site: Site) -> None:
        self.computed[site.name] = site.value


explain_calls(globals())
