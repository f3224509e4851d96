"""Log densities in parts: rows that other processes have, rows that lie on the disk.

Inside a plate over rows a log density is a sum, so it can be taken in parts. The model is written
as if its plate had all rows; it is run on one part at a time, and what is outside of the plate is
there in every part. A plate scales what is inside by the number of parts (`Frame.scale`), so the
density of all rows is a mean of those of the parts: over the processes (`AcrossRanks`), and with
the shares of rows as weights over the blocks of a dataset on the disk (`OverBlocks`).

Each part is compiled as any density is; the mean is taken in Python, which the native program of a
sampler calls back for once per gradient. Processes run the same chains with the same seeds: they
stay together because a mean has the same bits on all of them. Every sum carries a checksum of the
position, so that ranks which drift apart are told of at once.
"""

from __future__ import annotations

import abc
import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from probtorch.compiler.data_density import DataDensity
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.record.record import OUTSIDE
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.core.typed import DType, Shape, Tree
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributed.communicator import DistributedError
from probtorch.distributed.group import communicator
from probtorch.effects.row_blocks import RowBlocks
from probtorch.effects.site import Site
from probtorch.errors import DTypeError, InferenceError, ShapeError, user_frame
from probtorch.ops.movement import reshape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from probtorch.compiler.data_density import _Context
    from probtorch.effects.trace import Trace

__all__ = [
    "WHOLE",
    "AcrossRanks",
    "BlockSums",
    "OverBlocks",
    "PartDensity",
    "RowParts",
    "exceeds_float64",
    "no_whole_density",
    "parts_of",
    "whole_deterministic",
]


# Of a point and of what a block consists of.
PartDensity: TypeAlias = Callable[[TensorBase, TensorBase], TensorBase]


class RowParts:
    """Which plates of a model work on a part of their rows at a time.

    Attributes
    ----------
    ranks : int
        Processes that share the rows of a plate; 1 if there are no others.
    sharded : tuple of str
        Plates whose rows they share.
    stored : str or None
        The plate whose rows lie on the disk.
    """

    def __init__(self, ranks: int, sharded: tuple[str, ...], stored: str | None) -> None:
        self.ranks, self.sharded, self.stored = ranks, sharded, stored

    def __bool__(self) -> bool:
        return self.ranks > 1 or self.stored is not None

    def inside(self, site: Site) -> bool:
        """Whether a site is in a plate that works on a part of its rows."""
        return any(f.name == self.stored or f.name in self.sharded for f in site.plates)


# Of a density that knows all its rows.
WHOLE = RowParts(1, (), None)


def parts_of(
    first: Trace, rows: RowBlocks, latent: Iterable[str], summed: Iterable[str]
) -> RowParts:
    """Return the parts that a run of a model shows.

    Parameters
    ----------
    first : Trace
    rows : RowBlocks
        Where its plates got their rows from.
    latent, summed : iterable of str
        The sites that are sampled, and those that are summed out.

    Raises
    ------
    InferenceError
        If a latent site is inside of such a plate, or a summed one outside of all.
    """
    frames = [frame for site in first.values() for frame in site.plates]
    sharded = {frame.name: frame.shard for frame in frames if frame.shard is not None}
    ranks = max((shard.ranks for shard in sharded.values()), default=1)
    parts = RowParts(ranks, tuple(sharded), rows.plate)
    if not parts:
        return parts
    for name in latent:
        if parts.inside(first[name]):
            raise _local_site(first[name], parts)
    for name in summed:
        if name in first and not parts.inside(first[name]):
            raise InferenceError(
                f"discrete site {name!r}, which is summed out, beside a plate in parts",
                expected="discrete sites inside of the plate, one for each row",
                got="one for all rows: its sum does not come apart into sums over the parts",
                fix="draw it along with the others, Gibbs(model), on one machine and in memory; or "
                "write a mixture over rows",
                at=first[name].location,
            )
    return parts


def _local_site(site: Site, parts: RowParts) -> InferenceError:
    where = (
        f"which {parts.ranks} processes share" if parts.ranks > 1 else "whose rows are on the disk"
    )
    return InferenceError(
        f"latent site {site.name!r} in a plate {where}",
        expected="latent sites outside of the plate: every process and every block knows them all",
        got="a value for each row, of which only some are at hand",
        fix="integrate it out (a Normal effect with Normal noise is a Normal; a discrete site is "
        "summed out), or keep the plate whole, in memory and without shard=True",
        at=site.location,
    )


def whole_deterministic(first: Trace, parts: RowParts) -> tuple[str, ...]:
    """Return the names of the deterministic sites that a run computes for all rows.

    Those in a plate in parts are left out, with a warning: a run has the values of some rows.
    """
    sites = [site for site in first.values() if site.kind == "deterministic"]
    left = [repr(site.name) for site in sites if parts.inside(site)]
    if left:
        whose = (
            f"shared by {parts.ranks} processes" if parts.ranks > 1 else "taken a block at a time"
        )
        message = (
            f"not recorded: deterministic {', '.join(left)}, in a plate whose rows are {whose}. "
            "Compute the values of the rows that you want from the draws, or let Predictive run "
            "the model, written with those rows in memory, at the draws."
        )
        file, line = user_frame() or ("<unknown>", 0)
        warnings.warn_explicit(message, InferenceWarning, file, line)
    return tuple(site.name for site in sites if not parts.inside(site))


def no_whole_density(name: str, parts: RowParts) -> InferenceError:
    """Return the error for who wants a density in parts as one function of tensors."""
    what = "shares rows between processes" if parts.ranks > 1 else "reads rows from the disk"
    return InferenceError(
        f"the log density of {name} as one function of tensors",
        expected="data in the memory of this process",
        got=f"a model that {what}",
        fix="use a kernel that asks for values and gradients: NUTS, HMC, MALA, MCLMC, slices; or "
        "SVI with minibatches",
    )


class AcrossRanks:
    """Log density and gradient of all rows, from those of each process's own.

    Parameters
    ----------
    own : NativeDensity
        Of the rows of this process.

    Notes
    -----
    One `all_reduce` of ``dim + 4`` numbers per evaluation. All processes have to make the same
    evaluations. A process in which one fails tells the others, which fail too.
    """

    def __init__(self, own: NativeDensity) -> None:
        self.own = own

    def __call__(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Return ``(log density, gradient)`` at an array, the same bits on all ranks."""
        ranks = communicator()
        sent = np.zeros(len(q) + 4)
        mark = float(zlib.crc32(np.ascontiguousarray(q).tobytes()))
        failure: BaseException | None = None
        try:
            value, slope = self.own.value_and_grad(q)
            sent[0], sent[4:] = value, slope
        except OUTSIDE:
            sent[0] = -math.inf
        except BaseException as error:
            failure = error
        if failure is not None:
            sent[2], sent[3] = 1.0, ranks.rank
        sent[1] = mark
        total = ranks.all_reduce(sent)
        if failure is not None:
            raise failure
        if total[2]:
            who = f"rank {total[3]:.0f}" if total[2] == 1.0 else f"{total[2]:.0f} ranks"
            raise ranks.lost(who, "failed", got=f"an error on {who}, which printed it")
        if total[1] != ranks.size * mark:
            raise DistributedError(
                f"rank {ranks.rank} of {ranks.size}: the chains have drifted apart",
                expected="the same position on all ranks at each evaluation",
                got="others elsewhere",
                fix="give all ranks the same seed, starting points and checkpoint folder (on a "
                "file system that they share)",
            )
        if total[0] == -math.inf:
            return -math.inf, np.zeros(len(q))
        return float(total[0]) / ranks.size, total[4:] / ranks.size


class BlockSums(abc.ABC):
    """Log density and gradient of all rows of a plate, a block of them at a time.

    Parameters
    ----------
    dim : int
    name : str

    Notes
    -----
    What a block consists of is an input of the compiled density, not a constant of it: it is
    compiled once for all blocks of a size. Memory is that of a few blocks.
    """

    def __init__(self, dim: int, name: str) -> None:
        self.dim, self.name = dim, name
        self._contexts: dict[int, _Context] = {}

    @abc.abstractmethod
    def blocks(self) -> Iterator[tuple[int, np.ndarray, PartDensity]]:
        """Yield of each block the number of its rows, what it consists of, and its density."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_contexts": {}}  # addresses of this process

    def __call__(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Return ``(log density, gradient)`` at an array."""
        values: list[float] = []
        slope, seen = np.zeros(self.dim), 0
        for count, data, density in self.blocks():
            context = self._contexts.get(count)
            if context is None:
                name = f"the log density of {count} rows of {self.name}"
                made = DataDensity(density, self.dim, data, name=name)
                context = self._contexts[count] = made.context()
            context.set_data(data)
            # Comparisons with eager code are made on first blocks, when they are due.
            value, part = context.native(q) if values else context.value_and_grad(q)
            if value == -math.inf:
                return -math.inf, np.zeros(self.dim)
            # Sums first: an empty part is what there is outside of the plate.
            values.append(value * (count or 1))
            slope += part * (count or 1)
            seen += count
        return math.fsum(values) / (seen or 1), slope / (seen or 1)


class OverBlocks(BlockSums):
    """Of a dataset on the disk; see `BlockSums`.

    Parameters
    ----------
    part : callable
        The log density on the block that is lent, of a Tensor of shape (dim,).
    dim : int
    name : str
    rows : RowBlocks
    """

    def __init__(
        self, part: Callable[[TensorBase], TensorBase], dim: int, name: str, rows: RowBlocks
    ) -> None:
        super().__init__(dim, name)
        self.part, self.rows = part, rows

    def blocks(self) -> Iterator[tuple[int, np.ndarray, PartDensity]]:
        """Yield the blocks as they are read."""
        for rows in self.rows.blocks():
            packed, form = _packed(self.rows.load(rows)[0], rows)
            yield len(rows), packed, self._density(form, len(rows))

    def _density(self, form: _Form, count: int) -> PartDensity:
        def of_block(q: TensorBase, data: TensorBase) -> TensorBase:
            tree, first = _unpacked(data, form, count)
            with self.rows.lending(tree, wrap(np.arange(count)) + first):
                return self.part(q)

        return of_block


class _Form(NamedTuple):
    """How the data of a block are put together: shapes behind the rows, dtypes, and the tree."""

    tails: list[Shape]
    dtypes: list[DType]
    structure: Structure


def _packed(data: Tree, rows: range) -> tuple[np.ndarray, _Form]:
    """The number of the first row and all numbers of a block, as one vector, and its form."""
    found, structure = flatten(data)
    for x in found:
        array = getattr(x, "array", None)
        if array is None or array.shape[:1] != (len(rows),) or array.dtype.kind not in "fiub":
            raise ShapeError(
                f"a block of {len(rows)} rows",
                expected="tensors of numbers with one row for each",
                got=f"{type(x).__name__} {getattr(array, 'shape', '')}",
                fix="let the dataset give tensors, and its loader keep every row",
            )
    arrays = [x.array for x in found]
    if any(map(exceeds_float64, arrays)):
        raise DTypeError(
            f"rows {rows.start} to {rows.stop}",
            expected="integers up to 2**53, which float64 has exactly",
            got="larger ones",
            fix="number categories from 0; leave identifiers out of the dataset",
        )
    form = _Form([a.shape[1:] for a in arrays], [a.dtype for a in arrays], structure)
    return np.concatenate([[float(rows.start)], *(a.reshape(-1) for a in arrays)]), form


def exceeds_float64(array: np.ndarray) -> bool:
    """Return whether an array holds integers that float64 would round."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return False
    return max(abs(int(array.min())), abs(int(array.max()))) > 2**53


def _unpacked(data: TensorBase, form: _Form, count: int) -> tuple[Tree, TensorBase]:
    """The data of a block from the vector, and the number of its first row."""
    at, made = 1, []
    for tail, dtype in zip(form.tails, form.dtypes, strict=True):
        size = count * math.prod(tail)
        part = reshape(data[at : at + size], (count, *tail))
        made.append(part if dtype == part.array.dtype else cast(part, dtype))
        at += size
    return unflatten(form.structure, made), cast(data[0], int64)
