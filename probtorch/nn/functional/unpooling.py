"""Back from pooled sizes, and pooling over windows drawn at random.

`max_unpoolNd` puts largest elements back where `max_poolNd` found them; `fractional_max_poolNd`
[graham2014]_ takes maxima over windows whose places are random, so that sizes shrink by any factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, overload

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.nn.functional.pooling import INPUT, named
from probtorch.ops.arithmetic import floor
from probtorch.ops.extremes import argmax
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.padding import beside
from probtorch.ops.pieces import cat
from probtorch.ops.sampling import rand
from probtorch.ops.scattering import scatter
from probtorch.ops.take_put import take
from probtorch.ops.windows import number_per_dim
from probtorch.tensor import Tensor

__all__ = [
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]

_UNPOOL = """Put the elements of pooled {what} back where they came from, among zeros.

    Parameters
    ----------
    input : Tensor
        What `max_pool{n}d` returned.
    indices : integer Tensor, of the input's shape
        The positions it returned with ``return_indices=True``; where two elements have the same
        position, one of them is written.
    kernel_size, stride, padding : {number}
        Of the pooling; `stride` is the kernel size if None.
    output_size : tuple of int, optional
        Shape of the output, or its spatial sizes: pooling maps several sizes to one.

    Raises
    ------
    ShapeError
        If indices and input differ in shape, or `output_size` is not one that pools to the input.
    TensorIndexError
        If a position is not in the output.
    """
_FRACTIONAL = """Return the largest element of windows of {what} that are drawn at random.

    Parameters
    ----------
    input : Tensor
    kernel_size : {number}
    output_size : {number}, optional
    output_ratio : float in (0, 1), or one per dim, optional
        The output's sizes as shares of the input's; give either this or `output_size`.
    return_indices : bool
        Return (values, flat positions in the input) instead.
    _random_samples : Tensor, shape (N, C, {n}), optional
        Uniform draws that the places of the windows follow from; drawn from the default generator
        if None.

    Raises
    ------
    ArgumentError
        Unless one of `output_size` and `output_ratio` is given, in its range.
    ShapeError
        If the windows do not fit into the input.
    """
Ratios: TypeAlias = float | Sequence[float]


class _Unpool(Protocol):
    def __call__(
        self,
        input: TensorLike,
        indices: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        output_size: Sequence[int] | None = None,
    ) -> Tensor: ...


class _WithIndices(Protocol):
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        output_size: SizeLike | None = None,
        output_ratio: Ratios | None = None,
        return_indices: bool = False,
        _random_samples: TensorLike | None = None,
    ) -> tuple[Tensor, Tensor]: ...


class _Fractional(Protocol):
    @overload
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        output_size: SizeLike | None = None,
        output_ratio: Ratios | None = None,
        return_indices: Literal[False] = False,
        _random_samples: TensorLike | None = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        output_size: SizeLike | None = None,
        output_ratio: Ratios | None = None,
        *,
        return_indices: Literal[True],
        _random_samples: TensorLike | None = None,
    ) -> tuple[Tensor, Tensor]: ...


def _input(op: str, n: int, input: TensorLike) -> Tensor:
    x = as_tensor(input, op)
    if x.array.ndim not in (n + 1, n + 2):
        raise ShapeError(
            op,
            expected=f"an input of {INPUT[n][0]}",
            got=f"shape {x.array.shape}",
            fix="add a channel dim with unsqueeze",
        )
    return x


# ------------------------------------------------------------------------------------------- unpool


def _max_unpool(n: int) -> _Unpool:
    name = f"max_unpool{n}d"

    def call(
        input: TensorLike,
        indices: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        output_size: Sequence[int] | None = None,
    ) -> Tensor:
        x, where = _input(name, n, input), as_tensor(indices, name)
        if where.array.shape != x.array.shape:
            raise ShapeError(
                name,
                expected=f"indices of the input's shape {x.array.shape}",
                got=str(where.array.shape),
                fix="pass what max_pool returned with return_indices=True",
            )
        if where.array.dtype.kind not in "iu":
            raise DTypeError(
                name,
                expected="integer indices",
                got=str(where.array.dtype),
                fix="pass what max_pool returned with return_indices=True",
            )
        sizes = number_per_dim(name, "kernel_size", kernel_size, n)
        steps = number_per_dim(name, "stride", sizes if stride in (None, ()) else stride, n)
        border = number_per_dim(name, "padding", padding, n, least=0)
        lead, spatial = x.array.shape[:-n], x.array.shape[-n:]
        usual = tuple(
            (m - 1) * s + k - 2 * p
            for m, s, k, p in zip(spatial, steps, sizes, border, strict=True)
        )
        out = usual if output_size is None else _unpooled_size(name, usual, steps, output_size)
        if min(out) < 1:
            raise ShapeError(
                name,
                expected="sizes of at least 1",
                got=f"{out}, for spatial sizes {spatial} and padding {border}",
                fix="padding is that of the pooling, at most half the kernel size",
            )
        count, places = math.prod(spatial), math.prod(out)
        zeros = beside(x, np.zeros((*lead, places), x.array.dtype))
        flat = reshape(x, (*lead, count)), reshape(where, (*lead, count))
        return reshape(scatter(zeros, -1, flat[1], flat[0]), (*lead, *out))

    return named(call, name, _UNPOOL, n)


def _unpooled_size(
    name: str, usual: Shape, stride: Shape, output_size: Sequence[int]
) -> tuple[int, ...]:
    n = len(usual)
    try:
        given = tuple(int(m) for m in output_size)[-n:]
    except (TypeError, ValueError):
        given = ()
    if len(given) != n or any(abs(g - u) >= s for g, u, s in zip(given, usual, stride)):
        ranges = ", ".join(f"{u - s + 1} to {u + s - 1}" for u, s in zip(usual, stride))
        raise ShapeError(
            name,
            expected=f"output_size with spatial sizes {ranges}",
            got=str(output_size),
            fix="pass the size of what was pooled",
        )
    return given


# --------------------------------------------------------------------------------------- fractional


def _fractional(
    name: str,
    n: int,
    input: TensorLike,
    kernel_size: SizeLike,
    output_size: SizeLike | None,
    output_ratio: Ratios | None,
    samples: TensorLike | None,
) -> tuple[Tensor, Tensor]:
    x = _input(name, n, input)
    batched = x.array.ndim == n + 2
    x = x if batched else unsqueeze(x, 0)
    if x.array.dtype.kind == "b":
        raise DTypeError(name, expected="numbers", got="bool", fix="convert them with .float()")
    shape = x.array.shape
    spatial, sizes = shape[-n:], number_per_dim(name, "kernel_size", kernel_size, n)
    out = _fractional_size(name, spatial, output_size, output_ratio)
    if any(o + k - 1 > m for o, k, m in zip(out, sizes, spatial, strict=True)):
        raise ShapeError(
            name,
            expected=f"an input whose windows of size {sizes} have places for {out} of them",
            got=f"spatial sizes {spatial}",
            fix="output_size + kernel_size - 1 is at most the input's size",
        )
    real = x.array.dtype if x.array.dtype.kind == "f" else np.dtype(np.float32)
    if samples is None:
        drawn = rand((*shape[:2], n), dtype=real, device=x.device)
    else:
        drawn = cast(as_tensor(samples, name), real)
        if drawn.array.shape != (*shape[:2], n):
            raise ShapeError(
                name,
                expected=f"_random_samples of shape {(*shape[:2], n)}",
                got=str(drawn.array.shape),
                fix="one uniform draw per sample, channel and dim",
            )
    # Index tensors of shape (N, C, *out, *kernel); the first draw is for the last dim of images.
    index, flat = [], None
    for d in range(n):
        u = drawn[:, :, n - 1 - d if n == 2 else d]
        start = _starts(x, u, spatial[d], out[d], sizes[d])
        at = unsqueeze(start, -1) + beside(x, np.arange(sizes[d]))
        one = [1] * (2 * n)
        one[d], one[n + d] = out[d], sizes[d]
        at = reshape(at, (*shape[:2], *one))
        index.append(at)
        flat = at if flat is None else flat * spatial[d] + at
    assert flat is not None
    grid = [
        beside(x, np.arange(m).reshape([-1 if i == d else 1 for i in range(2 * n + 2)]))
        for d, m in enumerate(shape[:2])
    ]
    window = math.prod(sizes)
    seen = take(x, tuple(range(n + 2)), [*grid, *index])
    seen = reshape(seen, (*shape[:2], *out, window))
    flat = reshape(expand(flat, (*shape[:2], *out, *sizes)), (*shape[:2], *out, window))
    best = argmax(seen, -1, keepdim=True)
    values = reshape(gather(seen, -1, best), (*shape[:2], *out))
    places = reshape(gather(flat, -1, best), (*shape[:2], *out))
    if batched:
        return values, places
    return reshape(values, values.array.shape[1:]), reshape(places, places.array.shape[1:])


def _starts(x: Tensor, u: Tensor, size: int, count: int, kernel: int) -> Tensor:
    """Return where the windows begin: steps of a fractional size, rounded down after a shift."""
    last = beside(x, np.full((*u.array.shape, 1), size - kernel, np.int64))
    if count == 1:
        return last
    step = float(u.array.dtype.type(size - kernel) / u.array.dtype.type(count - 1))
    u = unsqueeze(u, -1)
    i = beside(x, np.arange(count - 1).astype(u.array.dtype))
    start = cast(floor((i + u) * step), int64) - cast(floor(u * step), int64)
    return cat([start, last], -1)


def _fractional_size(
    name: str, spatial: Shape, output_size: SizeLike | None, output_ratio: Ratios | None
) -> tuple[int, ...]:
    n = len(spatial)
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError(
            name,
            expected="either output_size or output_ratio",
            got="neither" if output_size is None else "both",
            fix="pass output_size=(...) or output_ratio=0.5",
        )
    if output_ratio is None:
        return number_per_dim(name, "output_size", output_size, n)
    ratios: Sequence[float]
    if isinstance(output_ratio, Sequence) and not isinstance(output_ratio, str):
        ratios = output_ratio
    else:
        ratios = (output_ratio,) * n
    fits = len(ratios) == n and all(isinstance(r, (int, float)) and 0 < r < 1 for r in ratios)
    if not fits or any(m * r < 1 for m, r in zip(spatial, ratios, strict=True)):
        raise ArgumentError(
            name,
            expected=f"output_ratio in (0, 1), or {n} of them, that leave sizes of at least 1",
            got=f"output_ratio={output_ratio!r} for spatial sizes {spatial}",
            fix="use output_size=",
        )
    return tuple(int(m * r) for m, r in zip(spatial, ratios, strict=True))


def _fractional_with_indices(n: int) -> _WithIndices:
    name = f"fractional_max_pool{n}d_with_indices"

    def call(
        input: TensorLike,
        kernel_size: SizeLike,
        output_size: SizeLike | None = None,
        output_ratio: Ratios | None = None,
        return_indices: bool = False,
        _random_samples: TensorLike | None = None,
    ) -> tuple[Tensor, Tensor]:
        return _fractional(
            f"fractional_max_pool{n}d",
            n,
            input,
            kernel_size,
            output_size,
            output_ratio,
            _random_samples,
        )

    doc = f"Return values and positions of `fractional_max_pool{n}d`, with the same arguments."
    return named(call, name, doc, n)


def _fractional_max_pool(n: int) -> _Fractional:
    name = f"fractional_max_pool{n}d"

    def call(
        input: TensorLike,
        kernel_size: SizeLike,
        output_size: SizeLike | None = None,
        output_ratio: Ratios | None = None,
        return_indices: bool = False,
        _random_samples: TensorLike | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        found = _fractional(name, n, input, kernel_size, output_size, output_ratio, _random_samples)
        return found if return_indices else found[0]

    return named(call, name, _FRACTIONAL, n)


max_unpool1d, max_unpool2d, max_unpool3d = (_max_unpool(n) for n in (1, 2, 3))
fractional_max_pool2d, fractional_max_pool3d = (_fractional_max_pool(n) for n in (2, 3))
fractional_max_pool2d_with_indices, fractional_max_pool3d_with_indices = (
    _fractional_with_indices(n) for n in (2, 3)
)
