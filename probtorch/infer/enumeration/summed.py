"""Finite discrete sites of a target: summed out of its density, drawn afterwards.

A sampler moves continuous values only. Where a model has finite discrete latent sites too,
`marginal_density` sums them out of the joint density, exactly, as `TraceEnum_ELBO` does; all is
Tensor ops, so the density is compiled like any other. `OneValue` gives such sites one of their
values where a run is for its shapes or for what does not depend on them. Sites that are enumerated
sequentially (choices.py) make several runs of one density, whose sum is taken last.

Read effects/enumeration.py and factors.py first; potential.py is the user.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.enumerable import can_enumerate
from probtorch.effects.enumeration import DeeperPlates, Enumeration, enumerate_sites
from probtorch.effects.handlers import trace
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.choices import ONE_BY_ONE, Choices, ModelBranch
from probtorch.infer.enumeration.decode import decode_many
from probtorch.infer.enumeration.enumerated_check import GiveValues, check_against_one
from probtorch.infer.enumeration.factors import (
    axes_of,
    compute_densities,
    factor_of,
    marginal_terms,
    unscaled,
)
from probtorch.infer.enumeration.sum_product import Axes, Eliminated, Factor
from probtorch.infer.mapping import DrawMap
from probtorch.ops.arithmetic import where
from probtorch.ops.categories import categorical
from probtorch.ops.exponential_sums import logsumexp, softmax
from probtorch.ops.movement import expand, permute, reshape
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import sum as total

__all__ = [
    "OneValue",
    "Sums",
    "ValueGiver",
    "is_summed",
    "leftmost_plate",
    "marginal_density",
    "marginal_likelihoods",
    "own_shape",
]


# Tables of discrete sites that are held at once, over many draws.
TABLE_BYTES = 2**26


class ValueGiver(Handler):
    """Base of handlers that give continuous latent sites their values at a point."""

    def total(self) -> TensorBase:
        """Return the log-determinants of the way to the values, 0 where they are as they are."""
        return wrap(np.zeros(()))


H = TypeVar("H", bound=ValueGiver)


def is_summed(site: Site) -> bool:
    """Whether a site is latent, still without a value, and has a finite support."""
    return not site.observed and site.value is None and can_enumerate(site)


class OneValue(Handler):
    """Give finite discrete latent sites the value at one position of their support, in all rows.

    Parameters
    ----------
    position : int
        The last value is taken where there are fewer.
    chosen : callable
        Whether a site is one of them.

    Attributes
    ----------
    sizes : dict of str to int
        How many values each of the sites has.
    """

    def __init__(self, position: int = 0, chosen: Callable[[Site], bool] = is_summed) -> None:
        super().__init__()
        self.position, self.chosen = position, chosen
        self.sizes: dict[str, int] = {}

    def on_sample(self, site: Site) -> None:
        """Give the value."""
        if not self.chosen(site):
            return
        values = site.fn.enumerate_support(expand=False)
        size, event = values.shape[0], tuple(site.fn.event_shape)
        value = reshape(values, (size, *event))[min(self.position, size - 1)]
        batch = tuple(site.fn.batch_shape)
        site.value = expand(reshape(value, (*(1,) * len(batch), *event)), (*batch, *event))
        site.inside = True
        self.sizes[site.name] = size


class Sums(Generic[H]):
    """The discrete sites of one model, summed out at a point or drawn at many.

    Parameters
    ----------
    run : callable
        ``run(*handlers)`` runs the model under handlers, outermost first.
    evaluation : callable
        From a point to a handler that gives the continuous sites their values.
    first_dim : int, negative
        The rightmost dim that no plate takes.
    chosen : callable
        Whether a site is one of them.
    branches : sequence of ModelBranch
        Paths through the model, if it has sites that are enumerated sequentially: a run each.
    """

    def __init__(
        self,
        run: Callable[..., object],
        evaluation: Callable[[TensorBase], H],
        first_dim: int,
        chosen: Callable[[Site], bool] = is_summed,
        branches: Sequence[ModelBranch] = (),
    ) -> None:
        self._run, self._evaluation, self._first_dim = run, evaluation, first_dim
        self._chosen, self.branches = chosen, tuple(branches)
        self._along = [self._of_branch(branch) for branch in self.branches]
        self._how = functools.partial(_parallel, chosen)
        self._log_joint_map = DrawMap(self._log_joint_one)
        self._mappable = True
        self._table_bytes: int | None = None  # of the tables at one point, where it is known
        # By temperature.
        self._table_maps = (
            DrawMap(functools.partial(self._numbered_one, 0)),
            DrawMap(functools.partial(self._numbered_one, 1)),
        )

    def of_run(self, run: Callable[..., object]) -> Sums[H]:
        """Return the same of another run of the model, with other data."""
        return Sums(run, self._evaluation, self._first_dim, self._chosen, self.branches)

    def _of_branch(self, branch: ModelBranch) -> Sums[H]:
        """The sums of the other discrete sites along one path."""
        run = functools.partial(self._run_along, branch)
        return Sums(run, self._evaluation, self._first_dim, self._chosen)

    def _run_along(self, branch: ModelBranch, *handlers: Handler) -> object:
        choices = branch.handler()
        found = self._run(*handlers, choices)
        if (tuple(choices.names), tuple(choices.sizes)) != (branch.names, branch.sizes):
            raise _other_branch(branch, choices)
        return found

    def log_density(self, q: TensorBase) -> TensorBase:
        """Return the log density at a point, discrete sites summed out, a 0-d float64 tensor.

        It has the terms of the evaluation: log-determinants.
        """
        if self.branches:
            return logsumexp(stack([sums.log_density(q) for sums in self._along]), 0)
        evaluation, found, enumeration = self.run(q)
        return evaluation.total() + marginal_density(found, enumeration)

    def _log_joint_one(self, inputs: dict[str, TensorBase]) -> dict[str, TensorBase]:
        return {"log_joint": self.log_joint_at(inputs["q"])}

    def _numbered_one(
        self, temperature: int, inputs: dict[str, TensorBase]
    ) -> dict[str, TensorBase]:
        return self._numbered(inputs["q"], temperature)

    def run(self, q: TensorBase) -> tuple[H, Trace, Enumeration]:
        """Run at a point with all values of the discrete sites: evaluation, trace, variables.

        Of a model with branches it is a run along the first one.
        """
        if self.branches:
            return self._along[0].run(q)
        while True:
            enumeration = Enumeration(self._first_dim)
            enumeration.marks.cure = ONE_BY_ONE
            handler = enumerate_sites(None, enumeration, self._how)
            tracer, evaluation = trace(), self._evaluation(q)
            try:
                with enumeration.watch():
                    self._run(tracer, evaluation, handler)
                    compute_densities(tracer.trace)
                return evaluation, tracer.trace, enumeration
            except DeeperPlates:
                self._first_dim -= 1

    def check(self, q: TensorBase) -> None:
        """Sum once, and compare with a run at single values; see enumerated_check.py."""
        for sums in self._along:
            sums.check(q)
        if self.branches:
            return
        _, found, enumeration = self.run(q)
        tables: list[Eliminated] = []
        marginal_density(found, enumeration, tables)
        self._table_bytes = _size(tables)

        def again(handlers: list[GiveValues]) -> tuple[Trace, ...]:
            tracer = trace()
            self._run(tracer, *handlers)
            return (tracer.trace,)

        check_against_one((found,), enumeration, again)

    def log_joint(self, draws: np.ndarray) -> np.ndarray:
        """Return the log joint density of data and constrained values at points (..., dim)."""
        return self._log_joint_map({"q": draws}, draws.ndim - 1)["log_joint"]

    def log_joint_at(self, q: TensorBase) -> TensorBase:
        """Return what `log_joint` does, at one point, as a 0-d tensor."""
        if self.branches:
            return logsumexp(stack([sums.log_joint_at(q) for sums in self._along]), 0)
        _, found, enumeration = self.run(q)
        return marginal_density(found, enumeration)

    def _branch_weights_one(
        self, temperature: int, inputs: dict[str, TensorBase]
    ) -> dict[str, TensorBase]:
        """The log density of each path at a point: of all other values, or of the best ones."""
        found = []
        for sums in self._along:
            evaluation, trace_, enumeration = sums.run(inputs["q"])
            best = marginal_density(trace_, enumeration, maximum=temperature == 0)
            found.append(evaluation.total() + best)
        return {"branches": stack(found)}

    def _branched_values(
        self, flat: np.ndarray, temperature: int, generator: Generator | None
    ) -> dict[str, np.ndarray]:
        """Values at points (n, dim): of the path first, then of the rest along it.

        Sites that are not on the path of a row are 0 there: see `on_all_paths`.
        """
        weigh = DrawMap(functools.partial(self._branch_weights_one, temperature))
        weights = weigh({"q": flat}, 1)["branches"]
        if temperature:
            chosen = categorical(softmax(wrap(weights), -1), generator=generator).array
        else:
            chosen = weights.argmax(1)
        parts: dict[str, np.ndarray] = {}
        for i, (branch, sums) in enumerate(zip(self.branches, self._along)):
            rows = np.flatnonzero(chosen == i)
            if not len(rows):
                continue
            found = sums.values_at(flat[rows], temperature, generator)
            for name, value in branch.values.items():
                found[name] = np.broadcast_to(value, (len(rows), *value.shape))
            for name, x in found.items():
                whole = parts.setdefault(name, np.zeros((len(flat), *x.shape[1:]), x.dtype))
                whole[rows] = x
        return parts

    def on_all_paths(self, name: str) -> bool:
        """Return whether each branch of the model comes to a site, so that it has a value in all
        rows of `values_at`; in those of other branches it has 0 there, which stands for nothing.
        """
        return all(name in branch.met for branch in self.branches)

    def values_at(
        self, draws: np.ndarray, temperature: int, generator: Generator | None
    ) -> dict[str, np.ndarray]:
        """Return values of the discrete sites at points; see `ModelTarget.discrete_at`.

        Those of a branch are among them; see `on_all_paths`.
        """
        flat, lead = draws.reshape(-1, draws.shape[-1]), draws.shape[:-1]
        if not len(flat):
            return {}
        if self.branches:
            found = self._branched_values(flat, temperature, generator)
            return {name: x.reshape(*lead, *x.shape[1:]) for name, x in found.items()}
        if self._table_bytes is None:
            self._table_bytes = _size(self._solved(wrap(flat[0]), temperature).tables)
        block = max(2, TABLE_BYTES // max(self._table_bytes, 1))
        parts: dict[str, list[np.ndarray]] = {}
        for start in range(0, len(flat), block):
            rows = flat[start : start + block]
            # One set of tables would be no dim: the last row then comes twice.
            padded = rows if len(rows) > 1 else np.repeat(rows, 2, axis=0)
            solved, arrays = self._solved_at(padded, temperature)
            if not solved.tables:
                break
            filled = [replace(table, table=arrays[str(i)]) for i, table in enumerate(solved.tables)]
            variables = solved.enumeration.variables
            chosen = decode_many(filled, variables, solved.axes, temperature, generator)
            for v, variable in variables.items():
                values = to_host(variable.values.array)[chosen[v]]
                shape = solved.trace[variable.name].plate_shape + tuple(variable.fn.event_shape)
                part = values.reshape(len(padded), *shape)[: len(rows)]
                parts.setdefault(variable.name, []).append(part)
        done = {name: np.concatenate(x) for name, x in parts.items()}
        return {name: x.reshape(*lead, *x.shape[1:]) for name, x in done.items()}

    def _solved_at(self, points: np.ndarray, temperature: int) -> tuple[Any, dict[str, np.ndarray]]:
        """The discrete sites summed out at the first point, and the tables at all by their number.

        The points are one more dim of each op, by `vmap`: to compile the tables of a long chain
        takes longer than to work them out for all draws. A model that `vmap` refuses, because
        Python branches on its values, is run by a `DrawMap`.
        """
        if self._mappable:
            first = None

            def solve(q: TensorBase) -> dict[str, TensorBase]:
                nonlocal first
                first = self._solved(q, temperature)
                return first.numbered()

            before = set_grad_enabled(False)
            try:
                found = vmap(solve)(wrap(points))
                return first, {number: to_host(table.array) for number, table in found.items()}
            except Exception:
                # Whatever it is, single runs will say it better, or bear it.
                self._mappable = False
            finally:
                set_grad_enabled(before)
        first = self._solved(wrap(points[0]), temperature)
        return first, self._table_maps[temperature]({"q": points}, 1)

    def _solved(self, q: TensorBase, temperature: int) -> _Solved:
        _, found, enumeration = self.run(q)
        return _Solved(found, enumeration, *_tables(found, enumeration, temperature))

    def _numbered(self, q: TensorBase, temperature: int) -> dict[str, TensorBase]:
        """The tables at a point, by their number."""
        return self._solved(q, temperature).numbered()


@dataclass(frozen=True, eq=False, slots=True)
class _Solved:
    """A run with all values of the discrete sites, and the tables in which they are summed out."""

    trace: Trace
    enumeration: Enumeration
    axes: Axes
    tables: list[Eliminated]

    def numbered(self) -> dict[str, TensorBase]:
        """Return the tables by their number."""
        return {str(i): table.table for i, table in enumerate(self.tables)}


def _size(tables: list[Eliminated]) -> int:
    """Bytes of tables at one point."""
    return 8 * sum(math.prod(table.table.array.shape) for table in tables)


def _parallel(chosen: Callable[[Site], bool], site: Site) -> str | None:
    return "parallel" if chosen(site) else None


def _tables(
    found: Trace, enumeration: Enumeration, temperature: int
) -> tuple[Axes, list[Eliminated]]:
    """The axes, and the tables in which the discrete sites are summed out."""
    tables: list[Eliminated] = []
    axes = axes_of(enumeration, found)
    marginal_terms(
        found,
        set(enumeration.variables),
        axes,
        scaled=False,
        maximum=temperature == 0,
        tables=tables,
    )
    return axes, tables


def leftmost_plate(trace: Trace) -> int:
    """Return the leftmost dim that a plate takes, 0 if there is none."""
    frames = (frame for site in trace.nodes.values() for frame in site.plates)
    return min((frame.dim for frame in frames if frame.dim is not None), default=0)


def own_shape(site: Site) -> tuple[int, ...]:
    """Return the shape of a value of a site, without the dims of variables it depends on."""
    batch, free = tuple(site.fn.batch_shape), site.free_dim
    if free is not None and len(batch) >= -free:
        batch = batch[len(batch) + free + 1 :]
        while batch and len(batch) > len(site.plate_shape) and batch[0] == 1:
            batch = batch[1:]
    return batch + tuple(site.fn.event_shape)


def marginal_density(
    trace: Trace,
    enumeration: Enumeration,
    tables: list[Eliminated] | None = None,
    *,
    maximum: bool = False,
) -> TensorBase:
    """Return the log density of a trace with all variables summed out, a 0-d float64 tensor.

    `tables` is extended by the tables that were summed. With `maximum` it is that at the most
    probable values.
    """
    axes = axes_of(enumeration, trace)
    found: Any = 0.0
    variables = set(enumeration.variables)
    for term in marginal_terms(trace, variables, axes, maximum=maximum, tables=tables):
        if term.factor is None:
            found = found + term.sites[0].compute_log_prob_sum()
        else:
            found = found + total(term.factor.value)
    for site in trace.nodes.values():
        if "choice" in site.notes and site.mask is not None and site.mask is not True:
            found = found - _of_hidden(site)
    return cast(found, float64)


def _of_hidden(site: Site) -> TensorBase | float:
    """The logarithm of how many values a site has that takes one per run, where a mask hides it:
    there the mean over its runs is taken, so that it adds nothing.
    """
    size = math.log(site.infer["_enum_total"])
    if site.mask is False:
        return size
    assert isinstance(site.mask, TensorBase)  # or nothing is hidden
    return where(some(site.mask), 0.0, size)


def marginal_likelihoods(trace: Trace, enumeration: Enumeration) -> dict[str, TensorBase]:
    """Return the log densities of observed sites by name, row by row, variables summed out.

    Unscaled. A site has one per row if the rows are independent once the variables are summed out,
    and no other data are summed with it; other sites are left out.
    """
    axes = axes_of(enumeration, trace)
    found = {}
    for term in marginal_terms(trace, set(enumeration.variables), axes, scaled=False):
        data = [site for site in term.sites if site.observed and site.kind == "sample"]
        rest = [s for s in term.sites if not s.observed and "variable" not in s.notes]
        if len(data) != 1 or rest or len(term.sites) > len(data) + _variables(term.sites):
            continue
        site, factor = data[0], term.factor
        if factor is None:
            found[site.name] = unscaled(site)
        elif factor.plates == factor_of(site, unscaled(site), axes).plates:
            found[site.name] = _laid_out(factor, site)
    return found


def _other_branch(branch: ModelBranch, choices: Choices) -> InferenceError:
    def told(names: Sequence[str], sizes: Sequence[int]) -> str:
        each = (f"{name!r} ({size} values)" for name, size in zip(names, sizes))
        return ", ".join(each) or "none"

    return InferenceError(
        "the sites that are enumerated sequentially",
        expected=f"{told(branch.names, branch.sizes)}, as at the first point, of the first data",
        got=told(choices.names, choices.sizes),
        fix="let statements follow from values of discrete sites, and no others; sites that come "
        "and go with continuous values are for ParticleGibbs(model)",
    )


def _variables(sites: tuple[Site, ...]) -> int:
    return sum("variable" in site.notes for site in sites)


def _laid_out(factor: Factor, site: Site) -> TensorBase:
    """A factor without variables, with the plates of a site at their dims."""
    dims: dict[int | str, int] = {f.name: f.dim for f in site.plates if f.dim is not None}
    order = sorted(factor.axes, key=dims.__getitem__)
    value = factor.value
    if tuple(order) != factor.axes:
        value = permute(value, tuple(factor.axes.index(plate) for plate in order))
    return reshape(value, site.plate_shape)
