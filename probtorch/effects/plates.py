"""Plates: independent rows as named dims that place themselves.

``with plate("school", 8):`` declares that what is inside happens independently for 8 rows. Every
sample statement inside is expanded to the plate's shape; the plate takes the rightmost negative
batch dim that is free, so nested plates stack up to the left and plates side by side share a dim.
``for i in plate(...)`` runs the rows one by one.

A plate may work on a random subsample of its rows, or on the batches of a loader; the log density
inside is then scaled up, so that it estimates the full one without bias. Which rows those are is up
to who runs the model (minibatches.py). Labels given as ``coords`` travel with the results.

Placement is a scoped setting of the handler stack (`runtime.STATE`). Read `runtime.py` first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from types import CodeType
from typing import SupportsIndex

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike, Tree
from probtorch.distributed.shards import Shard, own_shard
from probtorch.effects.minibatches import rows_there_are
from probtorch.effects.placing import push
from probtorch.effects.plate_arguments import (
    check_alone,
    check_shard,
    full_size_of,
    negative,
    subsample_size_of,
)
from probtorch.effects.plate_rows import all_rows, rows_between
from probtorch.effects.runtime import STATE, perform
from probtorch.effects.site import Frame, Site, as_value, calling_line, line_of
from probtorch.errors import ArgumentError, ModelError, user_frame
from probtorch.tensor import Tensor
from probtorch.utils.data.loader import DataLoader

__all__ = ["EmptyPlateWarning", "plate", "plate_stack"]


class EmptyPlateWarning(UserWarning):
    """A plate without rows: nothing inside it counts."""


# Where it was told of plates without rows: once, not at each evaluation.
_TOLD: dict[str | tuple[str, type[Warning], int], int] = {}


class plate:
    """Independent rows, as a tensor dim or as a loop.

    Parameters
    ----------
    name : str
        Names the dim of every site inside, in traces and in results.
    size : int or DataLoader, optional
        Number of rows; may be left out when `coords` says it. 0 is allowed: the rows contribute
        nothing. A loader in its place is the same as ``loader=``. Where nothing says it, the plate
        takes the rows of the first statement inside, and gives no indices.
    subsample_size : int, optional
        Work on that many rows drawn at random without replacement; log densities inside are scaled
        by ``size / subsample_size``.
    subsample : int Tensor, shape (subsample_size,), optional
        The rows to work on, chosen by the caller.
    dim : int, optional
        Negative batch dim. By default the rightmost free one when the plate is first entered; it is
        kept after that.
    coords : sequence, optional
        One label per row.
    loader : DataLoader, optional
        Work on its batches: on one in each step of an optimisation, the same for guide and model;
        on the whole dataset in sampling and prediction; elsewhere on the next one at each run. The
        size is that of the dataset, unless given.
    shard : bool
        Whether the rows are shared out over the processes of a run: each works on its own part
        (`distributed.local_rows`), and samplers and SVI put the parts together. In a run of one
        process it changes nothing.
    use_cuda, device : optional
        Where the indices are to live.

    Raises
    ------
    ArgumentError
        If sizes, subsample, coords, loader or dim do not go together.
    ModelError
        On entering: if the dim is taken, the plate is already active, or both this plate and one
        around it are shared out over processes.
    ShapeError
        If a batch of the loader has not as many rows as were loaded for it.

    Notes
    -----
    Entered with ``with``, it gives the indices of its rows, an int64 Tensor: use them to index
    data. With a loader it gives the batch, and has the indices as ``indices``. Iterated, it gives
    one Python int per row; sites inside then need a name per row. Rows are chosen when the plate is
    made, so make it in the model; subsamples are drawn from the generator of the `seed` handler
    around it or the default one.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> from probtorch.effects.primitives import sample
    >>> with plate("school", coords=["A", "B", "C"]):
    ...     theta = sample("theta", Normal(0.0, 1.0))
    >>> theta.shape
    Size([3])

    >>> from probtorch.factories import arange
    >>> from probtorch.utils.data import DataLoader, TensorDataset
    >>> loader = DataLoader(TensorDataset(arange(10.0)), batch_size=4)
    >>> data = plate("data", loader)
    >>> with data as (y,):
    ...     y = sample("y", Normal(0.0, 1.0), obs=y)
    >>> y, data.size, data.full_size
    (tensor([0., 1., 2., 3.]), 4, 10)
    """

    def __init__(
        self,
        name: str,
        size: int | DataLoader | None = None,
        subsample_size: int | None = None,
        subsample: TensorLike | None = None,
        dim: int | None = None,
        *,
        coords: Sequence[object] | None = None,
        loader: DataLoader | None = None,
        shard: bool = False,
        use_cuda: bool | None = None,
        device: str | None = None,
    ) -> None:
        if hasattr(size, "dataset"):
            size, loader = None, size
        self.name, self.loader = name, loader
        self.coords = None if coords is None else tuple(coords)
        self.dim = negative(name, dim)
        self._device = "cuda" if use_cuda else device
        self._data = None
        self.size = self.full_size = -1  # not known yet
        self._shard: Shard | None = None
        self._shared = False  # by several processes, and not by one
        self._where: tuple[CodeType | str, int] = calling_line(2)
        given = (size, coords, loader, subsample_size, subsample)
        if not shard and all(value is None for value in given):
            return  # until a statement inside says how many rows there are
        if loader is None:
            self._of_rows(size, subsample_size, subsample, shard)
        else:
            check_alone(name, subsample_size, subsample)
            self._of_batches(loader, size, shard)
        if self.size == 0 and self._shard is None:
            message = f"plate {name!r} has no rows: what is inside contributes nothing"
            file, line = user_frame() or ("<unknown>", 0)
            warnings.warn_explicit(message, EmptyPlateWarning, file, line, registry=_TOLD)

    def __getstate__(self) -> dict[str, object]:
        # Code objects do not travel: what is said of them does.
        return {**self.__dict__, "_where": (line_of(*self._where), 0)}

    def _of_rows(
        self,
        size: SupportsIndex | None,
        subsample_size: SupportsIndex | None,
        subsample: TensorLike | None,
        shard: bool,
    ) -> None:
        """Choose the rows of a plate without a loader."""
        name = self.name
        self.full_size = full_size_of(name, size, self.coords, subsample)
        if shard:
            self._shard = self._own_shard()
        if self._shard is not None:
            check_shard(name, subsample_size, subsample)
            subsample = rows_between(self._shard.start, self._shard.stop)
        if subsample is not None:
            subsample = as_value(subsample, name)
            if subsample.ndim != 1:
                raise ArgumentError(
                    f"plate {name!r}",
                    expected="subsample as a 1-d tensor of row numbers",
                    got=f"shape {tuple(subsample.shape)}",
                    fix="flatten it, or use one plate per dim",
                )
        takes_all = STATE.rows is not None and STATE.rows.whole
        self.size = subsample_size_of(
            name, self.full_size, subsample_size, subsample, whole=takes_all
        )
        site = self._site(subsample, self.size)
        if subsample is None and self.size == self.full_size:
            # The site is announced, but there is nothing to draw and nothing to replace.
            site.value, site.notes["whole"] = all_rows(self.full_size), True
        chosen = perform(site)
        self.size = site.notes["size"] = chosen.shape[0]
        # Who gives other rows need not know of the note: a plate of fewer rows has to name them.
        whole = site.notes.get("whole") and self.size == self.full_size
        self._chosen = None if whole else chosen

    def _own_shard(self) -> Shard | None:
        """The rows of this process, None if it has all."""
        shard = own_shard(self.full_size)
        self._shared = shard.ranks > 1
        if not self._shared:
            return None
        source = STATE.rows
        if source is not None and not source.joins_shards:
            raise ModelError(
                f"plate {self.name!r} is sharded over {shard.ranks} processes",
                expected="inference that puts their parts together",
                got="an SVI that knows nothing of other processes",
                fix="write SVI(..., distributed=True)",
            )
        return shard

    def _of_batches(self, loader: DataLoader, size: int | None, shard: bool) -> None:
        """Take the rows that the loader has for this run."""
        size = rows_there_are(self.name, loader, size)
        self.full_size = full_size_of(self.name, size, self.coords, None)
        site = self._site(None, None)
        site.notes["loader"] = self.loader
        site.notes["shard"] = self._own_shard() if shard else None
        batch = perform(site)
        self._data, self._chosen, self._shard = batch.data, batch.rows, batch.shard
        self.size = site.notes["size"] = batch.size

    def _site(self, value: Tensor | None, size: int | None) -> Site:
        code, instruction = self._where
        return Site(
            "plate",
            self.name,
            value=value,
            plates=STATE.plates.frames,
            code=code,
            instruction=instruction,
            notes={"full_size": self.full_size, "size": size},
        )

    def sized(self, size: int) -> Frame:
        """Return its frame: the plate has no size yet, and has `size` rows from now on."""
        if self.full_size < 0:
            self._of_rows(size, None, None, False)
        return self._frame(self.dim)

    @property
    def indices(self) -> Tensor:
        """Rows in use, an int64 Tensor of shape (subsample_size,)."""
        if self._chosen is None and self.size != self.full_size:
            assert self.loader is not None  # else the rows are known
            raise ModelError(
                f"plate {self.name!r}: indices",
                expected="a dataset whose samples have numbers",
                got=f"a loader of the stream {type(self.loader.dataset).__name__}",
                fix="let the stream yield the numbers with the data",
            )
        rows = all_rows(self.full_size) if self._chosen is None else self._chosen
        return rows if self._device is None else rows.to(device=self._device)

    @property
    def subsample_size(self) -> int:
        """Number of rows in use."""
        return self.size

    def __len__(self) -> int:
        if self.size < 0:
            full_size_of(self.name, None, None, None)  # which says what is missing
        return self.size

    def __enter__(self) -> Tree | None:
        self._check_place()
        now = STATE.plates
        taken = {frame.dim for frame in now.frames} | {plate.dim for plate in now.waiting}
        if self.dim is None:
            self.dim = _free_dim(taken)
        elif self.dim in taken:
            raise self._collision(taken)
        if self.full_size < 0:
            STATE.plates = now._replace(outer=now, waiting=(*now.waiting, self))
            return None
        found = self.indices if self.loader is None else self._data
        push(self._frame(self.dim))
        return found

    def __exit__(self, *exc: object) -> None:
        outer = STATE.plates.outer
        assert outer is not None  # what `_push` found
        STATE.plates = outer

    def __iter__(self) -> Iterator[int]:
        self._check_place()
        if self.full_size < 0:
            full_size_of(self.name, None, None, None)  # which says what is missing
        if self.loader is not None:
            raise ModelError(
                f"plate {self.name!r} with a loader is no loop",
                expected="with plate(...) as batch",
                got="for row in plate(...)",
                fix=f"write `with plate({self.name!r}, loader) as batch:`",
            )
        rows = range(self.full_size) if self._chosen is None else self._chosen.tolist()
        for row in rows:
            outer = STATE.plates
            push(self._frame(None, row))
            try:
                yield row
            finally:
                STATE.plates = outer

    def _frame(self, dim: int | None, index: int | None = None) -> Frame:
        return Frame(
            self.name,
            self.size,
            self.full_size,
            dim,
            index,
            self.coords,
            self._chosen,
            self.loader,
            self._shard,
            self._shared,
        )

    def _check_place(self) -> None:
        """See that the plates around this one let it in."""
        around = STATE.plates.frames
        shared = next((frame for frame in around if frame.shared), None)
        if self._shared and shared is not None:
            # A process has its rows of both, so that most pairs of rows would be nobody's.
            raise ModelError(
                f"plate {self.name!r} with shard=True inside plate {shared.name!r} with shard=True",
                expected="one plate whose rows the processes share, with whole ones around it and "
                "inside",
                got="two, of each of which a process has its own rows alone",
                fix="shard one of them only, the one with more rows, and leave shard=True out of "
                "the other",
            )
        waiting = STATE.plates.waiting
        if self.name in [*(f.name for f in around), *(p.name for p in waiting)]:
            raise ModelError(
                f"plate {self.name!r} is entered inside itself",
                expected="nested plates of different names",
                got=f"two plates named {self.name!r}, one inside the other",
                fix="rename one of them, or leave the inner one out",
            )

    def _collision(self, taken: Collection[int | None]) -> ModelError:
        names = {frame.dim: frame.name for frame in STATE.plates.frames}
        names |= {plate.dim: plate.name for plate in STATE.plates.waiting}
        other = names[self.dim]
        return ModelError(
            f"plates {other!r} and {self.name!r} collide at dim={self.dim}",
            expected="a dim of its own for every active plate",
            got=f"plate {self.name!r} at dim={self.dim}, where {other!r} already is",
            fix=f"give plate {self.name!r} dim={_free_dim(taken)} where it is made",
        )

    def __repr__(self) -> str:
        return f"plate({self.name!r}, {self.full_size}, dim={self.dim})"


@contextlib.contextmanager
def plate_stack(prefix: str, sizes: Sequence[int], rightmost_dim: int = -1) -> Iterator[None]:
    """Enter one plate per size, named ``{prefix}_0``, ``{prefix}_1`` ... from the right.

    Parameters
    ----------
    prefix : str
    sizes : sequence of int
        The batch shape, read from left to right.
    rightmost_dim : int, negative
        Dim of the last size.
    """
    with contextlib.ExitStack() as stack:
        for i, size in enumerate(reversed(sizes)):
            stack.enter_context(plate(f"{prefix}_{i}", size, dim=rightmost_dim - i))
        yield


def _free_dim(taken: Collection[int | None]) -> int:
    """The rightmost negative dim that is not in `taken`."""
    return next(dim for dim in range(-1, -len(taken) - 2, -1) if dim not in taken)


explain_calls(globals())
