"""Targets of models that look at some of their rows: the density of all, and that of given ones.

A model whose one plate draws subsamples has a density for each choice of rows; scaled, its log
likelihood is an unbiased estimate of that of all rows. `SubsampledTarget` has the density of all,
which finds where to start, and `row_density`, compiled like any other: of a vector that holds the
position and behind it the numbers of the rows. So a kernel draws rows in its own program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.density import NativeDensity
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.infer.parts import BlockSums, PartDensity, RowParts, no_whole_density
from probtorch.infer.potential import ModelTarget
from probtorch.infer.slots import Evaluation

if TYPE_CHECKING:
    from probtorch.effects.trace import Trace

__all__ = ["SubsampledTarget"]

# Rows from which on the density of all is taken in blocks of so many: a model's temporaries for
# more of them do not fit into memory where the data are on the disk.
MANY, BLOCK = 2**20, 2**16


class SubsampledTarget(ModelTarget):
    """The posterior of a model one of whose plates draws subsamples, or none.

    Attributes
    ----------
    plate : str or None
    batch, rows : int
        Rows that the plate draws, and all; 0 without such a plate.

    Raises
    ------
    InferenceError
        If more than one plate draws subsamples, or a latent site is inside of it.
    """

    def __init__(
        self, model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        choice = self._choice = _AllRows()
        with choice:
            super().__init__(model, args, kwargs)
        if len(choice.sizes) > 1:
            raise InferenceError(
                f"{self.name}: plates that draw subsamples",
                expected="one at most",
                got=", ".join(map(repr, choice.sizes)),
                fix="leave out subsample_size in all but the one of the most rows",
            )
        if self.parts and self.parts.stored not in choice.sizes:
            raise no_whole_density(self.name, self.parts)
        self.plate, (self.batch, self.rows) = next(iter(choice.sizes.items()), (None, (0, 0)))
        self._check_sites()

    def _find_parts(self, first: Trace) -> RowParts:
        parts = super()._find_parts(first)
        many = [name for name, (_, rows) in self._choice.sizes.items() if rows > MANY]
        return parts if parts or not many else RowParts(1, (), many[0])

    @cached_property
    def density(self) -> NativeDensity:
        """The log density of all rows and its gradient; of very many, a block at a time."""
        if not self.parts:
            return self._density_of(self.logdensity)
        return NativeDensity.from_python(_OverRows(self), self.dim, name=self.name)

    def _check_sites(self) -> None:
        trace = self.trace_at(wrap(np.zeros(self.dim)))
        if any(f.name == self.plate and not f.vectorized for s in trace.values() for f in s.plates):
            raise InferenceError(
                f"{self.name}: plate {self.plate!r}, which draws subsamples, as a loop",
                expected="a dim of its sites",
                got="one Python statement for each row",
                fix='write with plate("data", size, subsample_size=n) as rows: ... data[rows]',
            )
        for name in (*self.slots, *self.summed):
            if name in trace and any(f.name == self.plate for f in trace[name].plates):
                raise InferenceError(
                    f"{self.name}: latent site {name!r} in plate {self.plate!r}",
                    expected="observed sites only in a plate that draws subsamples",
                    got="a value for each row, of which only some are looked at",
                    fix="leave out subsample_size, or use SVI",
                )

    def logdensity_of_rows(self, q: TensorBase, rows: TensorBase) -> TensorBase:
        """Return the log density at `q` estimated from rows, an int64 Tensor, with repetitions."""
        evaluation = Evaluation(q, self.slots)
        self.run(evaluation, _GivenRows(self.plate, rows))
        return evaluation.total()

    def row_terms(self, q: TensorBase, rows: TensorBase) -> tuple[TensorBase, TensorBase]:
        """Return the log density outside of the plate, and that of each of these rows inside.

        Parameters
        ----------
        q : Tensor, shape (dim,)
        rows : Tensor of int64, shape (n,)

        Returns
        -------
        rest : Tensor, 0-d
        terms : Tensor, shape (n,)
        """
        evaluation = Evaluation(q, self.slots, sites=False)
        parts = _Parts(self.plate, rows.array.shape[0], self.rows)
        self.run(parts, evaluation, _GivenRows(self.plate, rows))
        rest, terms = evaluation.total(), wrap(np.zeros(rows.array.shape[0]))
        for term in parts.outside:
            rest = rest + term
        for term in parts.inside:
            terms = terms + term
        return rest, terms

    @cached_property
    def row_density(self) -> NativeDensity:
        """The density at a vector of `dim` coordinates and `batch` numbers of rows."""
        if not self.batch:
            return self.density

        def of_both(x: TensorBase) -> TensorBase:
            return self.logdensity_of_rows(x[: self.dim], x[self.dim :].long())

        name = f"the log density of {self.batch} rows of {self.name}"
        return NativeDensity(of_both, self.dim + self.batch, name=name)


class _OverRows(BlockSums):
    """The density of all rows, by the numbers of some at a time."""

    def __init__(self, target: SubsampledTarget) -> None:
        super().__init__(target.dim, target.name)
        self.target = target

    def blocks(self) -> Iterator[tuple[int, np.ndarray, PartDensity]]:
        """Yield numbers of consecutive rows."""

        def of_rows(q: TensorBase, rows: TensorBase) -> TensorBase:
            return self.target.logdensity_of_rows(q, rows.long())

        for start in range(0, self.target.rows, BLOCK):
            numbers = np.arange(float(start), float(min(start + BLOCK, self.target.rows)))
            yield len(numbers), numbers, of_rows


class _AllRows(Handler):
    """Let plates that would draw subsamples work on all their rows, and note their sizes.

    Of very many rows they get some: then the density of all is a sum over blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, tuple[int, int]] = {}

    def on_plate(self, site: Site) -> None:
        if site.value is None and "loader" not in site.notes:
            size, full = site.notes["size"], site.notes["full_size"]
            self.sizes[site.name] = size, full
            site.value = wrap(np.arange(full if full <= MANY else BLOCK))


class _Parts(Handler):
    """Collect the log densities inside of a plate, by row, and those outside of it."""

    def __init__(self, plate: str | None, count: int, rows: int) -> None:
        super().__init__()
        self.plate, self.count, self.rows = plate, count, rows
        self.inside: list[TensorBase] = []
        self.outside: list[TensorBase] = []

    def after_sample(self, site: Site) -> None:
        frames = [f for f in site.plates if f.name == self.plate]
        if not frames:
            self.outside.append(site.compute_log_prob_sum())
            return
        # Scaled as the statement says, but for the plate's own part.
        terms = site.compute_log_prob() * (self.count / self.rows)
        dim = frames[0].dim
        assert dim is not None
        by_row = terms.movedim(dim, 0)
        self.inside.append(by_row.reshape(self.count, -1).sum(-1))

    after_factor = after_sample


class _GivenRows(Handler):
    """Let a plate work on these rows."""

    def __init__(self, plate: str | None, rows: TensorBase) -> None:
        super().__init__()
        self.plate, self.rows = plate, rows

    def on_plate(self, site: Site) -> None:
        if site.name == self.plate:
            site.value = self.rows
