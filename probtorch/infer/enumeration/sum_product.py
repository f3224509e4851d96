"""Sums of products in log space, with plates: tensor variable elimination.

A `Factor` is a log density with named axes: numbers stand for variables, strings for plates.
`eliminate` sums variables out of a product of factors, where a plate is a product over its rows:

    log sum over z of prod over rows i of sum over w_i of f(z, w_i) ...

From the innermost plates outwards: the factors of one set of plates are joined where they share a
variable of just these plates, those variables are summed out one by one, and what remains is
multiplied over the rows of the plates that nothing in it belongs to any more (Obermeyer et al.
2019, "Tensor variable elimination for plated factor graphs", algorithm 1). Where that is impossible
the sum has a term for each combination of values in all rows, and is refused.

Variables go in the order of the size of the table that their sum needs, smallest first: a chain of
T steps takes T tables of K^2 entries. All is Tensor ops, so a sum has a gradient and can be
compiled. -inf is a log density like others; `logsumexp` gives it the gradient 0.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from probtorch.core.tensor_base import TensorBase
from probtorch.effects.enumeration import SummedVariable
from probtorch.effects.summed_values import refuse_combinations
from probtorch.errors import InferenceError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.extremes import amax
from probtorch.ops.movement import permute, reshape
from probtorch.ops.reduction import sum as total

__all__ = [
    "Axes",
    "Axis",
    "Eliminated",
    "Factor",
    "add",
    "aligned",
    "connected",
    "eliminate",
    "expect",
    "sum_plates",
]

Axis: TypeAlias = int | str
# Of one kind, or of both.
A = TypeVar("A", bound=Axis)
# The site that a factor comes from, or the origins of what it was made of.
Origin: TypeAlias = "str | tuple[Origin, ...]"


class Axes:
    """All axes of one problem: their order and sizes, and what the variables are.

    Factors keep their axes in this order, so that two of them meet after a reshape.

    Parameters
    ----------
    variables : iterable of SummedVariable
        Enumerated sites (effects/enumeration.py).
    plates : mapping from str to int
        Sizes of the plates, from left to right.
    """

    def __init__(self, variables: Iterable[SummedVariable], plates: Mapping[str, int]) -> None:
        # Later variables further left, as the dims of a run are: few factors need a permutation.
        variables = sorted(variables, key=lambda v: -v.id)
        self.size: dict[Axis, int] = {v.id: v.size for v in variables}
        self.size.update(plates)
        self.rank = {axis: i for i, axis in enumerate(self.size)}
        # A plate of one row is none: nothing has to be the same for all of its rows.
        self.plates: dict[Axis, frozenset[str]] = {v.id: self.of_rows(v.plates) for v in variables}
        self.names: dict[Axis, str] = {v.id: v.name for v in variables}

    def of_rows(self, plates: Iterable[str]) -> frozenset[str]:
        """Return the plates that have more rows than one, or none at all."""
        return frozenset(plate for plate in plates if self.size[plate] != 1)

    def ordered(self, axes: Iterable[A]) -> tuple[A, ...]:
        """Return axes from left to right."""
        return tuple(sorted(axes, key=self.rank.__getitem__))

    def packed(
        self, value: TensorBase, names: Sequence[Axis | None]
    ) -> tuple[TensorBase, tuple[Axis, ...]]:
        """Return a tensor without the dims that have no name, and its axes in order."""
        kept = tuple(name for name in names if name is not None)
        if len(kept) != len(names):
            shape = value.array.shape
            value = reshape(value, tuple(n for n, name in zip(shape, names) if name is not None))
        axes = self.ordered(kept)
        if axes != kept:
            value = permute(value, tuple(kept.index(axis) for axis in axes))
        return value, axes

    def volume(self, axes: Iterable[Axis]) -> int:
        """Return the number of entries of a table with these axes."""
        return math.prod(self.size[axis] for axis in axes)


@dataclass(frozen=True, eq=False, slots=True)
class Factor:
    """A log density with named axes.

    Attributes
    ----------
    value : Tensor
    axes : tuple
        Names of its dims, in the problem's order.
    plates : frozenset of str
        The plates around it, whether or not `value` has a dim for each.
    origin : str or tuple
        The site it comes from, or the origins of what it was made of; see `sites`.
    """

    value: TensorBase
    axes: tuple[Axis, ...]
    plates: frozenset[str]
    origin: Origin = ()

    @property
    def sites(self) -> list[str]:
        """Names of the sites it comes from."""
        found: list[str] = []
        waiting: list[Origin] = [self.origin]
        while waiting:
            origin = waiting.pop()
            if isinstance(origin, str):
                found.append(origin)
            else:
                waiting.extend(reversed(origin))
        return found


def aligned(value: TensorBase, axes: tuple[Axis, ...], onto: tuple[Axis, ...]) -> TensorBase:
    """Return `value` so that its dims broadcast with those of a tensor with axes `onto`."""
    if not axes or axes == onto:
        return value
    # Missing dims on the left come by broadcasting.
    lead = onto.index(axes[0])
    if onto[lead:] == axes:
        return value
    own, sizes = set(axes), iter(value.array.shape)
    return reshape(value, tuple(next(sizes) if a in own else 1 for a in onto[lead:]))


def add(factors: Sequence[Factor], axes: Axes) -> Factor:
    """Return the product of factors: the sum of their values."""
    if len(factors) == 1:
        return factors[0]
    onto = axes.ordered({axis for factor in factors for axis in factor.axes})
    # Small tables first, so that the large one is made once.
    factors = sorted(factors, key=lambda factor: len(factor.axes))
    value = aligned(factors[0].value, factors[0].axes, onto)
    for factor in factors[1:]:
        value = value + aligned(factor.value, factor.axes, onto)
    plates = factors[0].plates.union(*(factor.plates for factor in factors[1:]))
    return Factor(value, onto, plates, tuple(factor.origin for factor in factors))


def sum_plates(factor: Factor, plates: Iterable[str], axes: Axes) -> Factor:
    """Return the product of a factor over the rows of `plates`."""
    gone = frozenset(plates)
    value = factor.value
    dims = tuple(i for i, axis in enumerate(factor.axes) if axis in gone)
    if dims:
        value = total(value, dims)
    # A factor that is the same for all rows has no dim for them.
    for plate in sorted(gone.difference(factor.axes)):
        value = value * float(axes.size[plate])
    kept = tuple(axis for axis in factor.axes if axis not in gone)
    return Factor(value, kept, factor.plates - gone, factor.origin)


@dataclass(frozen=True, eq=False, slots=True)
class Eliminated:
    """A variable that was summed out, and the table it was summed in.

    Attributes
    ----------
    variable : int
    table : Tensor
        Log density of the variable given the other axes, not normalised.
    axes : tuple
    """

    variable: int
    table: TensorBase
    axes: tuple[Axis, ...]


def eliminate(
    factors: Iterable[Factor],
    variables: Collection[int],
    axes: Axes,
    *,
    maximum: bool = False,
    tables: list[Eliminated] | None = None,
) -> list[Factor]:
    """Sum variables out of a product of factors.

    Parameters
    ----------
    factors : iterable of Factor
        Each with at least one of the variables.
    variables : set of int
        What to sum out.
    axes : Axes
        Other variables may be among the axes of the factors; they are kept.
    maximum : bool
        Take the maximum in place of the sum.
    tables : list, optional
        Is extended by the tables that were summed, in order; see `Eliminated`.

    Returns
    -------
    list of Factor
        One for each group of connected factors, without any of the variables. Plates that all of a
        group share are kept.

    Raises
    ------
    InferenceError
        If the sum has as many terms as there are combinations of values in all rows of a plate, or
        of many sites; see `refuse_combinations`.
    """
    waiting: dict[frozenset[str], list[Factor]] = {}
    for factor in factors:
        waiting.setdefault(factor.plates, []).append(factor)
    done = []
    while waiting:
        leaf = max(waiting, key=lambda plates: (len(plates), sorted(plates)))
        local = {v for v in variables if axes.plates[v] == leaf}
        for group in connected(waiting.pop(leaf), local):
            factor = _summed(group, local, axes, maximum, tables)
            rest = [axis for axis in factor.axes if axis in variables]
            if not rest:
                done.append(factor)
                continue
            up = frozenset().union(*(axes.plates[v] for v in rest))
            if up == leaf:
                raise _intractable(factor, rest, axes)
            for axis in factor.axes:
                kept = isinstance(axis, int) and axis not in variables
                if kept and not axes.plates[axis] <= up:
                    raise _rows_of_guide(axis, rest, axes)
            waiting.setdefault(up, []).append(sum_plates(factor, leaf - up, axes))
    return done


def connected(factors: Sequence[Factor], variables: Iterable[Axis]) -> list[list[Factor]]:
    """Return the factors in groups, two in one where a path of shared `variables` joins them."""
    variables = set(variables)
    parent = list(range(len(factors)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    first: dict[Axis, int] = {}
    for i, factor in enumerate(factors):
        for axis in factor.axes:
            if axis in variables:
                parent[root(i)] = root(first.setdefault(axis, i))
    groups: dict[int, list[Factor]] = {}
    for i, factor in enumerate(factors):
        groups.setdefault(root(i), []).append(factor)
    return list(groups.values())


def _summed(
    factors: list[Factor],
    variables: set[int],
    axes: Axes,
    maximum: bool,
    tables: list[Eliminated] | None,
) -> Factor:
    """Sum `variables` out of factors that they connect, the one with the smallest table first."""
    live = dict(enumerate(factors))
    for fresh, (v, held) in enumerate(_order(factors, variables, axes), len(factors)):
        joint = add([live.pop(i) for i in held], axes)
        dim = joint.axes.index(v)
        if tables is not None:
            tables.append(Eliminated(int(v), joint.value, joint.axes))
        value = amax(joint.value, dim) if maximum else logsumexp(joint.value, dim)
        rest = joint.axes[:dim] + joint.axes[dim + 1 :]
        live[fresh] = Factor(value, rest, joint.plates, joint.origin)
    return add(list(live.values()), axes)


def _order(
    factors: Sequence[Factor], variables: set[int], axes: Axes
) -> list[tuple[Axis, list[int]]]:
    """The variables as they are summed out, each with the numbers of the factors that have it; the
    sums are numbered on from the factors.

    Of axes alone, before anything is summed: a table that would be too large is refused here.
    """
    holders: dict[Axis, dict[int, frozenset[Axis]]] = {}
    for i, factor in enumerate(factors):
        for axis in factor.axes:
            if axis in variables:
                holders.setdefault(axis, {})[i] = frozenset(factor.axes)
    size = {v: axes.volume(_table(held)) for v, held in holders.items()}
    queue = [(n, v) for v, n in size.items()]
    heapq.heapify(queue)
    order: list[tuple[Axis, list[int]]] = []
    while queue:
        n, v = heapq.heappop(queue)
        if v not in holders or size[v] != n:
            continue
        held = holders.pop(v)
        table, fresh = _table(held), len(factors) + len(order)
        refuse_combinations({axes.names[a]: axes.size[a] for a in table if isinstance(a, int)})
        order.append((v, list(held)))
        rest = table - {v}
        changed = [axis for axis in rest if axis in holders]
        for axis in changed:
            for i in held:
                holders[axis].pop(i, None)
            holders[axis][fresh] = rest
        for axis in changed:
            size[axis] = axes.volume(_table(holders[axis]))
            heapq.heappush(queue, (size[axis], axis))
    return order


def _table(held: Mapping[int, frozenset[Axis]]) -> frozenset[Axis]:
    """The axes of the product of factors."""
    return frozenset().union(*held.values())


def expect(factor: Factor, axis: int, weights: Factor, axes: Axes) -> Factor:
    """Return the mean of a factor over a variable.

    Parameters
    ----------
    factor : Factor
        What to average, as it is; not as a logarithm.
    axis : int
    weights : Factor
        Probabilities of the variable's values, given the other axes. A value of probability 0 does
        not count, whatever the factor is there.
    axes : Axes
    """
    onto = axes.ordered({*factor.axes, *weights.axes})
    w = aligned(weights.value, weights.axes, onto)
    x = aligned(factor.value, factor.axes, onto)
    dim = onto.index(axis)
    value = total(w * where(eq(w, 0.0), 0.0, x), dim - len(onto))
    return Factor(value, onto[:dim] + onto[dim + 1 :], factor.plates, factor.origin)


# ------------------------------------------------------------------------------------------- errors


def _intractable(factor: Factor, rest: Iterable[Axis], axes: Axes) -> InferenceError:
    sites = ", ".join(sorted(repr(axes.names[v]) for v in rest))
    plates = ", ".join(map(repr, sorted(factor.plates)))
    return InferenceError(
        f"intractable: the sum over sites {sites} does not factorise over the rows of plates "
        f"{plates}",
        expected="plates that are nested where enumerated sites of both meet",
        got=f"{', '.join(map(repr, dict.fromkeys(factor.sites)))} in plates {plates}, which ties "
        "every row of one plate to every row of the other",
        fix="observe or draw one of the sites, or write one of the plates as a loop: "
        "for i in plate(...)",
    )


def _rows_of_guide(axis: Axis, rest: Sequence[Axis], axes: Axes) -> InferenceError:
    inner = ", ".join(sorted(repr(axes.names[v]) for v in rest))
    outer = repr(axes.names[axis])
    up = frozenset().union(*(axes.plates[v] for v in rest))
    plates = ", ".join(map(repr, sorted(axes.plates[axis] - up)))
    return InferenceError(
        f"intractable: {inner}, summed out in the model, depends on all rows of {outer}, "
        "enumerated in the guide",
        expected="sites of the model that see one row of what the guide enumerates",
        got=f"plate(s) {plates} around {outer} and not around {inner}",
        fix=f"put both in the guide or both in the model, or draw {outer} without enumerating it",
    )
