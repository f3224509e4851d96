"""Rows of plates: which ones a run works on, and how data are cut down to them.

Read plates.py first, then minibatches.py, which says how rows are drawn.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Mapping

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.rng import default_generator
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike, Tree
from probtorch.effects.minibatches import draw_rows, next_minibatch
from probtorch.effects.runtime import STATE, default_for, generator_in_force
from probtorch.effects.site import Frame, Site, as_value
from probtorch.errors import CapacityError, ShapeError
from probtorch.tensor import Tensor

__all__ = ["all_rows", "give_rows", "rows_between", "subsample", "take_rows"]


def subsample(data: TensorLike, event_dim: int) -> Tensor:
    """Return the rows of `data` that the subsampling plates around the call work on.

    Parameters
    ----------
    data : Tensor or array, shape (..., *batch, *event)
        Full data, or rows already taken, which are returned unchanged.
    event_dim : int
        Number of rightmost dims that belong to no plate.

    Returns
    -------
    rows : Tensor
        Differentiable in `data`.

    Raises
    ------
    ShapeError
        If a batch dim has neither the plate's size, nor the subsample's, nor 1.
    """
    return take_rows(as_value(data, "subsample"), event_dim, STATE.plates.frames, "subsample")


def take_rows(value: Tensor, event_dim: int, frames: tuple[Frame, ...], subject: str) -> Tensor:
    """Return the rows of `value` that `frames` work on; `subject` names it in errors."""
    for frame in frames:
        if frame.dim is None or not frame.subsampled:
            continue
        dim = frame.dim - event_dim
        if -dim > value.ndim:
            continue
        size = value.shape[dim]
        if size == frame.full_size and frame.indices is None:
            raise ShapeError(
                subject,
                expected=f"rows with numbers in plate {frame.name!r}",
                got="a loader of a stream, of whose rows nobody knows which they are",
                fix="let the stream yield these data too",
            )
        if size == frame.full_size:
            assert frame.indices is not None  # looked at above
            value = value.index_select(dim, frame.indices)
        elif size not in (1, frame.size):
            raise ShapeError(
                subject,
                expected=f"{frame.full_size} rows at dim {dim} for plate {frame.name!r} "
                f"(or its subsample's {frame.size}, or 1)",
                got=f"shape {tuple(value.shape)}",
                fix=f"check event_dim={event_dim} and the plate's size",
            )
    return value


def give_rows(site: Site, run: Mapping[str, Site]) -> None:
    """Give a plate that has no rows of its own those that it had in another run."""
    if site.name in run and (site.value is None or "whole" in site.notes):
        other = run[site.name]
        site.value = other.value
        if "whole" not in other.notes:
            site.notes.pop("whole", None)


@default_for("plate")
def _draw_rows(site: Site) -> Tree:
    """Rows of a loader, or without replacement from the generator in force; see minibatches.py."""
    source, loader = STATE.rows, site.notes.get("loader")
    if loader is not None:
        take = next_minibatch if source is None else source.minibatch
        return take(site.name, loader, site.notes["shard"])
    if source is not None and source.whole:
        site.notes["whole"] = True
        return all_rows(site.notes["full_size"])
    generator = site.generator or generator_in_force() or default_generator
    return draw_rows(site.notes["full_size"], site.notes["size"], generator)


# Rows from which on their numbers, 8 MB, are kept only as long as somebody has them.
MANY = 1_000_000
_HELD: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def all_rows(size: int) -> Tensor:
    """Return the numbers of all rows."""
    if size < MANY:
        return _few_rows(size)
    rows = _HELD.get(size)
    if rows is None:
        _HELD[size] = rows = _numbers(size)
    return rows


# A model asks for the same few index tensors at every run, and they take longer to build than the
# rest of the plate.
@functools.lru_cache(maxsize=32)
def _few_rows(size: int) -> Tensor:
    return _numbers(size)


def _numbers(size: int) -> Tensor:
    # Asked first: some systems promise memory that is not there, and kill whoever uses it.
    if 8 * size > _memory():
        raise too_many_rows(size)
    try:
        rows = np.arange(size)
    except MemoryError as error:
        raise too_many_rows(size) from error
    rows.setflags(write=False)
    return wrap(rows)


@functools.lru_cache(maxsize=32)
def rows_between(start: int, stop: int) -> Tensor:
    """Return the numbers of some rows that follow each other."""
    rows = np.arange(start, stop)
    rows.setflags(write=False)
    return wrap(rows)


@functools.cache
def _memory() -> int:
    """Bytes of memory that the machine has, or a number beyond all."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def too_many_rows(size: float) -> CapacityError:
    return CapacityError(
        f"a plate of {size:.3g} rows",
        expected=f"rows whose numbers fit into memory ({_memory() / 2**30:.3g} GiB here)",
        got=f"{size} rows, {8 * size / 2**30:.3g} GiB for their numbers alone",
        fix="give the number of rows of the data, or work on some rows at a time: "
        "plate(name, size, subsample_size=1000)",
    )


explain_calls(globals())
