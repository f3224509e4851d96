"""Tensors filled in place: with elements of another, one number, random ones, or on a diagonal.

Draws are those of sampling.py and its kin, from the default generator unless another is given.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import mark_changed
from probtorch.core.dtype import check_fits, float64
from probtorch.core.in_place import assign, is_plain
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.rng import Generator
from probtorch.core.shape import integer
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.ops import categories, random_integers, sampling
from probtorch.ops.arithmetic import clone, floor
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponentials import exp, log
from probtorch.ops.movement import expand, slice_
from probtorch.ops.random_numbers import array_of, rounded_array
from probtorch.ops.trigonometry import tan

__all__ = [
    "bernoulli_",
    "cauchy_",
    "copy_",
    "exponential_",
    "fill_",
    "fill_diagonal_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
    "zero_",
]


def copy_(self: TensorBase, source: TensorLike, non_blocking: bool = False) -> TensorBase:
    """Overwrite the elements with those of `source`: broadcast, converted, from any device.

    `non_blocking` is accepted for PyTorch's sake: copies between devices are waited for.
    """
    source = as_tensor(source)
    array = source.array
    if (
        array.dtype is self.array.dtype
        and array.shape == self.array.shape
        and type(array) is np.ndarray
        and not source.requires_grad
        and is_plain(self)
    ):
        self.array[...] = array
        mark_changed(self)
        return self
    here = source
    if type(source.array) is not type(self.array):
        here = source.to(device=self.device)
    value = expand(cast(here, self.array.dtype), self.array.shape)
    # A place on the tape belongs to one tensor, so one that `source` holds is not handed on.
    return assign(self, clone(value) if value is source else value, "copy_")


def fill_(self: TensorBase, value: TensorLike) -> TensorBase:
    """Overwrite every element with `value`, a number or a tensor without dims."""
    if not isinstance(value, TensorBase):
        kind = self.array.dtype.kind
        if kind != "f":
            check_fits("fill_", value, self.array.dtype)
        if (type(value) is int or (type(value) is float and kind in "fc")) and is_plain(self):
            try:
                self.array.fill(value)
            except OverflowError:
                pass  # for an error of ours
            else:
                mark_changed(self)
                return self
    value = as_tensor(value, "fill_", self.array.dtype)
    if value.array.ndim:
        raise ShapeError(
            "fill_",
            expected="a number, or a tensor without dims",
            got=f"shape {value.array.shape}",
            fix="use copy_ to overwrite with a tensor",
        )
    return copy_(self, value)


def zero_(self: TensorBase) -> TensorBase:
    """Overwrite every element with 0."""
    if is_plain(self):
        self.array.fill(0)
        mark_changed(self)
        return self
    return fill_(self, 0)


# The greatest number below 1 in single precision.
_BELOW_ONE = np.asarray(1.0 - 2.0**-24)


def _holding(x: TensorBase, array: np.ndarray) -> TensorBase:
    """Return `x`, of which `is_plain` holds, with the elements of an array of its shape."""
    x.array[...] = array
    mark_changed(x)
    return x


def _filled(op: str, x: TensorBase, draws: TensorBase) -> TensorBase:
    if draws.array.shape == x.array.shape and not draws.requires_grad and is_plain(x):
        return _holding(x, draws.array)
    if type(x.array) is not np.ndarray:
        draws = draws.to(device=x.device)
    return assign(x, cast(draws, x.array.dtype), op)


def _of_floats(op: str, x: TensorBase) -> None:
    if x.array.dtype.kind != "f":
        raise DTypeError(
            op,
            expected="a floating-point tensor",
            got=str(x.array.dtype),
            fix="use random_ for integers, or convert it with .float()",
        )


def _number(op: str, name: str, value: object) -> None:
    if not (isinstance(value, (int, float, np.number)) or is_number(value)):
        raise DTypeError(
            op,
            expected=f"{name}: a number",
            got=f"{value!r:.60} of type {type(value).__name__}",
            fix="fill with a tensor of numbers by copy_",
        )


def _positive(op: str, name: str, value: float) -> None:
    _number(op, name, value)
    if not value > 0:
        raise DomainError(op, expected=f"{name} > 0", got=repr(value), fix=f"check {name}")


@in_our_words
def uniform_(
    x: TensorBase, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with draws uniform between two numbers, and return it."""
    if not (type(from_) is float is type(to) and x.array.dtype.char in "fd"):
        _of_floats("uniform_", x)
        _number("uniform_", "from", from_)
        _number("uniform_", "to", to)
    if not from_ <= to:
        raise DomainError(
            "uniform_", expected="from <= to", got=f"{from_} and {to}", fix="exchange them"
        )
    if x.array.dtype.char in "fd" and is_plain(x):
        array = array_of("uniforms", x.array.shape, generator)
        if from_ == 0.0 and to == 1.0:
            if x.array.dtype.char == "f":
                array = np.minimum(array, _BELOW_ONE)  # as `rounded_array`: not rounded to 1
            return _holding(x, array)
        array = rounded_array("uniforms", array, x.array.dtype)
        array *= to - from_
        array += from_
        return _holding(x, array)
    draws = sampling.rand(x.array.shape, generator=generator, dtype=x.array.dtype)
    if not (from_ == 0.0 and to == 1.0):
        draws = draws * (to - from_) + from_
    return _filled("uniform_", x, draws)


@in_our_words
def normal_(
    x: TensorBase, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with normal draws, and return it."""
    if not (type(mean) is float is type(std) and x.array.dtype.char in "fd"):
        _of_floats("normal_", x)
        _number("normal_", "mean", mean)
        _number("normal_", "std", std)
    if not std >= 0:
        raise DomainError("normal_", expected="std >= 0", got=repr(std), fix="check std")
    if x.array.dtype.char in "fd" and is_plain(x):
        array = array_of("normals", x.array.shape, generator)
        if not (mean == 0.0 and std == 1.0):
            array = array.astype(x.array.dtype, copy=False)
            array *= std
            array += mean
        return _holding(x, array)
    draws = sampling.randn(x.array.shape, generator=generator, dtype=x.array.dtype)
    if not (mean == 0.0 and std == 1.0):
        draws = draws * std + mean
    return _filled("normal_", x, draws)


def log_normal_(
    x: TensorBase, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with exponentials of normal draws of this mean and deviation, and return it."""
    _of_floats("log_normal_", x)
    _number("log_normal_", "mean", mean)
    _positive("log_normal_", "std", std)
    draws = sampling.randn(x.array.shape, generator=generator, dtype=x.array.dtype)
    return _filled("log_normal_", x, exp(draws * std + mean))


@in_our_words
def exponential_(
    x: TensorBase, lambd: float = 1.0, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with exponential draws of a rate, and return it."""
    _of_floats("exponential_", x)
    _positive("exponential_", "lambd", lambd)
    if is_plain(x):
        return _holding(x, np.log(array_of("uniforms", x.array.shape, generator)) / -lambd)
    u = sampling.rand(x.array.shape, generator=generator, dtype=float64)
    return _filled("exponential_", x, -log(u) / lambd)


def cauchy_(
    x: TensorBase, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with Cauchy draws of a median and a scale, and return it."""
    _of_floats("cauchy_", x)
    _number("cauchy_", "median", median)
    _positive("cauchy_", "sigma", sigma)
    u = sampling.rand(x.array.shape, generator=generator, dtype=float64)
    return _filled("cauchy_", x, tan((u - 0.5) * math.pi) * sigma + median)


def geometric_(x: TensorBase, p: float, *, generator: Generator | None = None) -> TensorBase:
    """Fill `x` with numbers of trials up to the first success, 1, 2, ..., and return it."""
    _number("geometric_", "p", p)
    if not 0.0 < p < 1.0:
        raise DomainError("geometric_", expected="p in (0, 1)", got=repr(p), fix="check p")
    u = sampling.rand(x.array.shape, generator=generator, dtype=float64)
    return _filled("geometric_", x, floor(log(u) / math.log1p(-p)) + 1.0)


def bernoulli_(
    x: TensorBase, p: TensorLike = 0.5, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with 1 with probability `p` (one number, or a tensor of them), else 0."""
    if type(p) is float and 0.0 <= p <= 1.0 and is_plain(x):
        return _holding(
            x, array_of("uniforms", x.array.shape, generator) < dtypes.default_dtype().type(p)
        )
    odds = as_tensor(p, "bernoulli_")
    odds = cast(odds, float64) if odds.array.dtype.kind != "f" else odds
    draws = categories.bernoulli(expand(odds, x.array.shape), generator=generator)
    return _filled("bernoulli_", x, draws)


def random_(
    x: TensorBase, from_: int = 0, to: int | None = None, *, generator: Generator | None = None
) -> TensorBase:
    """Fill `x` with integers uniform on {from, ..., to - 1}, and return it; `random_(to)` from 0.

    Without bounds they are all that the dtype has from 0 on; of floats those it holds exactly.
    """
    dtype = x.array.dtype
    if to is None:
        if from_:
            from_, to = 0, from_
        elif dtype.kind == "f":
            to = 2 ** (np.finfo(dtype).nmant + 1) + 1
        elif dtype.kind == "b":
            to = 2
        else:
            to = int(np.iinfo(dtype).max)
    if not integer("random_", "from", from_) < integer("random_", "to", to):
        raise ArgumentError(
            "random_", expected="from < to", got=f"{from_} and {to}", fix="to itself is not drawn"
        )
    return _filled(
        "random_", x, random_integers.randint(from_, to, x.array.shape, generator=generator)
    )


def fill_diagonal_(x: TensorBase, fill_value: float, wrap: bool = False) -> TensorBase:
    """Overwrite the elements whose indices are all equal with a number.

    With `wrap`, in a matrix with more rows than columns the diagonal begins anew behind each row
    that it leaves out.

    Raises
    ------
    ShapeError
        If there are fewer than 2 dims, or more than 2 that differ in size.
    """
    shape = x.array.shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(
            "fill_diagonal_",
            expected="a matrix, or more dims of one size",
            got=f"shape {shape}",
            fix="fill what diagonal() returns, a view",
        )
    rows, columns = shape[0], shape[1]
    for start in range(0, rows, columns + 1) if wrap and len(shape) == 2 and columns else (0,):
        part = x
        if start or (wrap and rows > columns and len(shape) == 2):
            count = min(columns, rows - start)
            part = slice_(x, ((start, 1, count), (0, 1, columns)))
        for _ in shape[1:]:
            part = diagonal(part, 0, 0, -1 if part.array.ndim != x.array.ndim else 1)
        part.fill_(fill_value)
    return x
