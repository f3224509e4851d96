"""What a plate does with its arguments: sizes that go together, dims that are negative."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from probtorch.errors import ArgumentError
from probtorch.tensor import Tensor

__all__ = ["check_alone", "check_shard", "full_size_of", "negative", "subsample_size_of"]


def _count(name: str, value: SupportsIndex, what: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise ArgumentError(
            f"plate {name!r}",
            expected=f"{what} as an integer >= 0",
            got=repr(value),
            fix=f"write plate({value!r}, {name!r}): the name is the first argument"
            if isinstance(value, str) and not isinstance(name, str)
            else f"pass the number of rows, for example {what}=len(data)",
        )
    return count


def full_size_of(
    name: str, size: SupportsIndex | None, coords: Sequence[object] | None, rows: object
) -> int:
    """Return the number of rows there are, from what was given of size, labels and subsample."""
    if size is None:
        if coords is None:
            raise ArgumentError(
                f"plate {name!r}",
                expected="a size",
                got="neither size nor coords" + ("" if rows is None else ", only a subsample"),
                fix=f"write plate({name!r}, len(data))",
            )
        return len(coords)
    size = _count(name, size, "size")
    if coords is not None and len(coords) != size:
        raise ArgumentError(
            f"plate {name!r}",
            expected=f"one label per row, {size} of them",
            got=f"{len(coords)} coords",
            fix="leave size out: coords say it",
        )
    return size


def check_alone(name: str, subsample_size: object, rows: object) -> None:
    """Refuse other ways to choose rows beside a loader."""
    if subsample_size is not None or rows is not None:
        given = "subsample" if subsample_size is None else "subsample_size"
        raise ArgumentError(
            f"plate {name!r}",
            expected="a loader alone: its batch_size says how many rows a step works on",
            got=f"{given} beside it",
            fix=f"leave {given} out",
        )


def check_shard(name: str, subsample_size: object, rows: object) -> None:
    """Refuse other ways to choose rows beside `shard`."""
    if subsample_size is not None or rows is not None:
        given = "subsample" if subsample_size is None else "subsample_size"
        raise ArgumentError(
            f"plate {name!r}",
            expected="shard=True alone, which chooses the rows of each process",
            got=f"{given} beside it",
            fix=f"leave {given} out; for minibatches of each process use a loader with a "
            "DistributedSampler",
        )


def subsample_size_of(
    name: str,
    size: int,
    subsample_size: SupportsIndex | None,
    rows: Tensor | None,
    *,
    whole: bool = False,
) -> int:
    """Return the number of rows in use of `size`, from what was given of count and subsample.

    In a run that takes the `whole` plate there may be fewer rows than its subsamples have: those of
    a prediction.
    """
    if rows is not None:
        given = rows.shape[0]
        if subsample_size is not None and subsample_size != given:
            raise ArgumentError(
                f"plate {name!r}",
                expected=f"as many rows in subsample as subsample_size={subsample_size} says",
                got=f"{given} rows",
                fix="leave subsample_size out: subsample says it",
            )
        subsample_size = given
    if subsample_size is None:
        return size
    subsample_size = _count(name, subsample_size, "subsample_size")
    if subsample_size > size:
        if whole:
            return size
        raise ArgumentError(
            f"plate {name!r}: subsample_size={subsample_size} exceeds size={size}",
            expected=f"a subsample of at most {size} rows",
            got=f"{subsample_size} rows",
            fix="make the subsample smaller, or correct the plate's size",
        )
    return subsample_size


def negative(name: str, dim: int | None) -> int | None:
    """Return `dim`, which counts from the right, or refuse it."""
    if dim is not None and dim >= 0:
        raise ArgumentError(
            f"plate {name!r}",
            expected="a negative dim: batch dims count from the right",
            got=f"dim={dim}",
            fix="leave dim out, or use dim=-1 for the rightmost batch dim",
        )
    return dim
