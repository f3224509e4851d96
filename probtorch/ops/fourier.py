"""Discrete Fourier transforms, under the names of torch.fft; short-time ones in spectrograms.py.

Three ops carry out all (fourier_ops.py): along some dims, either way; of real numbers, of whose
spectrum half says the other; and the inverse of that. Sizes are cut or filled up with zeros before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np

from probtorch.backends.registry import to_device
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, to_inexact
from probtorch.core.dispatch import apply, wrap
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.complex_numbers import conj
from probtorch.ops.fourier_ops import IRFFT, OTHER_WAY, RFFT, along_dims
from probtorch.ops.movement import slice_, unslice
from probtorch.ops.repeating import roll

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Sizes: TypeAlias = int | Sequence[int] | None
# From the name, input, sizes, dims and norm, and whether it is an inverse.
Transform: TypeAlias = Callable[[str, TensorLike, Sizes, Dims, str | None, bool], TensorBase]
F = TypeVar("F", bound=Callable[..., TensorBase])


# ---------------------------------------------------------------------------------------------- ops


# ---------------------------------------------------------------------------------------- arguments


def _norm(op: str, norm: str | None) -> str:
    if norm is None:
        return "backward"
    if norm not in OTHER_WAY:
        raise ArgumentError(
            op,
            expected='norm: "backward", "ortho" or "forward"',
            got=repr(norm),
            fix="leave it out: the inverse divides by the number of elements",
        )
    return norm


def _real(op: str, x: TensorLike) -> TensorBase:
    x = as_tensor(x, op)
    if x.array.dtype.kind == "c":
        raise DTypeError(
            op,
            expected="real numbers",
            got=str(x.array.dtype),
            fix=f"use {op.replace('ihfft', 'ifft').replace('rfft', 'fft')}, or take x.real",
        )
    x = to_inexact(x)
    return cast(x, dtypes.float32) if x.array.dtype == dtypes.float16 else x


def _as_complex(op: str, x: TensorLike) -> TensorBase:
    x = as_tensor(x, op)
    if x.array.dtype.kind == "c":
        return x
    x = _real(op, x)
    single = x.array.dtype == dtypes.float32
    return cast(x, dtypes.complex64 if single else dtypes.complex128)


def _places(op: str, x: TensorBase, s: Sizes, dim: Dims) -> tuple[tuple[int, ...], list[int]]:
    """Return the dims, and the size of each: by default all dims, or as many as there are sizes."""
    ndim = x.array.ndim
    given = None if s is None else [s] if isinstance(s, int) else list(s)
    if dim is None:
        if given is not None and len(given) > ndim:
            raise _misfit(op, f"s of {len(given)} sizes for a tensor of {ndim} dims")
        dims = tuple(range(0 if given is None else ndim - len(given), ndim))
    else:
        several = (dim,) if isinstance(dim, int) else tuple(dim)
        dims = tuple(normalize_dim(d, ndim, op) for d in several)
    if len(set(dims)) < len(dims):
        raise _misfit(op, f"dim={dim!r}, in which one occurs twice")
    if given is not None and len(given) != len(dims):
        raise _misfit(op, f"{len(given)} sizes for {len(dims)} dims")
    have = [x.array.shape[d] for d in dims]
    sizes = have if given is None else [h if n == -1 else n for h, n in zip(have, given)]
    return dims, sizes


def _misfit(op: str, got: str) -> ShapeError:
    return ShapeError(
        op, expected="different dims, and a size for each", got=got, fix="name the dims with dim="
    )


def _too_few(op: str, n: int) -> NoReturn:
    raise ShapeError(
        op,
        expected="at least 1 data point along each dim",
        got=str(n),
        fix="check for empty data, or pass n (s), which fills up with zeros",
    )


def _resized(op: str, x: TensorBase, dims: Sequence[int], sizes: Sequence[int]) -> TensorBase:
    """Return `x` cut at these sizes, or filled up with zeros, at the end of the dims."""
    shape = list(x.array.shape)
    for d, n in zip(dims, sizes, strict=True):
        if n < 1:
            _too_few(op, n)
        shape[d] = n
    have = x.array.shape
    if any(n < h for n, h in zip(shape, have, strict=True)):
        x = slice_(x, tuple((0, 1, min(n, h)) for n, h in zip(shape, have, strict=True)))
    if x.array.shape != tuple(shape):
        x = unslice(x, tuple((0, 1, n) for n in x.array.shape), tuple(shape))
    return x


# -------------------------------------------------------------------------------------- transforms


def _both_ways(
    op: str, x: TensorLike, s: Sizes, dim: Dims, norm: str | None, inverse: bool
) -> TensorBase:
    x = _as_complex(op, x)
    dims, sizes = _places(op, x, s, dim)
    return along_dims(_resized(op, x, dims, sizes), dims, inverse, _norm(op, norm))


def _half(
    op: str, x: TensorLike, s: Sizes, dim: Dims, norm: str | None, inverse: bool
) -> TensorBase:
    """The spectrum of real numbers, half of it along the last dim; the inverse way its conjugate,
    with the factor of that way.
    """
    kind = _norm(op, norm)
    x = _real(op, x)
    dims, sizes = _places(op, x, s, dim)
    if not dims:
        raise _misfit(op, "no dim")
    x = _resized(op, x, dims, sizes)
    kind = OTHER_WAY[kind] if inverse else kind
    out = apply(RFFT, (x,), {"dim": dims[-1], "norm": kind})
    out = along_dims(out, dims[:-1], False, kind)
    return conj(out) if inverse else out


def _whole(
    op: str, x: TensorLike, s: Sizes, dim: Dims, norm: str | None, inverse: bool
) -> TensorBase:
    """Real numbers by half their spectrum, or (not inverse) the spectrum of half a signal."""
    kind = _norm(op, norm)
    x = _as_complex(op, x)
    dims, sizes = _places(op, x, s, dim)
    if not dims:
        raise _misfit(op, "no dim")
    last = 2 * (sizes[-1] - 1) if s is None or _last(s) == -1 else sizes[-1]
    if last < 1:
        _too_few(op, last)
    x = _resized(op, x, dims, [*sizes[:-1], last // 2 + 1])
    if not inverse:
        x, kind = conj(x), OTHER_WAY[kind]
    x = along_dims(x, dims[:-1], True, kind)
    return apply(IRFFT, (x,), {"dim": dims[-1], "n": last, "norm": kind})


def _last(s: int | Sequence[int]) -> int:
    return s if isinstance(s, int) else s[-1]


def _named(name: str, doc: str, fn: F) -> F:
    """Return a function of this name, and with `out=`."""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    return takes_out(fn)


class AlongOne(Protocol):
    """A transform along one dim."""

    def __call__(
        self,
        input: TensorLike,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        *,
        out: TensorBase | None = None,
    ) -> TensorBase:
        """Transform `n` elements along `dim`."""
        ...


def _along_one(name: str, transform: Transform, inverse: bool, doc: str) -> AlongOne:
    def along_one(
        input: TensorLike,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        *,
        out: TensorBase | None = None,
    ) -> TensorBase:
        return transform(name, input, n, dim, norm, inverse)

    return _named(name, doc, along_one)


fft: AlongOne = _along_one(
    "fft",
    _both_ways,
    False,
    """Discrete Fourier transform along one dim: sum over j of ``x[j] exp(-2 pi i j k / n)``.

    Parameters
    ----------
    input : Tensor
        Real or complex; float32 gives complex64.
    n : int, optional
        The dim is cut at this size, or filled up with zeros.
    dim : int
    norm : {"backward", "ortho", "forward"}
        What divides the transform: nothing, the root of n, or n; the inverse is divided by the
        rest, so that it is one under the same norm.
    out : Tensor, optional

    Returns
    -------
    Tensor
        Complex, of size `n` along `dim`.

    Raises
    ------
    ShapeError
        If there is no element along `dim`.
    ArgumentError
        If `norm` is none of the three.
    """,
)
ifft: AlongOne = _along_one("ifft", _both_ways, True, "Inverse of `fft`, whose arguments it has.")
rfft: AlongOne = _along_one(
    "rfft",
    _half,
    False,
    "First n // 2 + 1 elements of the `fft` of real numbers; the others are their conjugates.",
)
irfft: AlongOne = _along_one(
    "irfft",
    _whole,
    True,
    "Inverse of `rfft`: real numbers, `n` of them, 2 * (m - 1) of m elements by default.",
)
hfft: AlongOne = _along_one(
    "hfft",
    _whole,
    False,
    "The real `fft` of a Hermitian signal, of which the first half is given; as `irfft`.",
)
ihfft: AlongOne = _along_one(
    "ihfft", _half, True, "Inverse of `hfft`: the first half of the `ifft` of real numbers."
)


class AlongSeveral(Protocol):
    """A transform along several dims."""

    def __call__(
        self,
        input: TensorLike,
        s: Sequence[int] | None = None,
        dim: Dims = None,
        norm: str | None = None,
        *,
        out: TensorBase | None = None,
    ) -> TensorBase:
        """Transform `s` elements along dims."""
        ...


def _along_two(name: str, transform: Transform, inverse: bool) -> AlongSeveral:
    def along_two(
        input: TensorLike,
        s: Sequence[int] | None = None,
        dim: Dims = (-2, -1),
        norm: str | None = None,
        *,
        out: TensorBase | None = None,
    ) -> TensorBase:
        return transform(name, input, s, dim, norm, inverse)

    return _named(name, f"The `{name[:-1]}n` over the last two dims.", along_two)


def _along_all(name: str, transform: Transform, inverse: bool, doc: str) -> AlongSeveral:
    def along_all(
        input: TensorLike,
        s: Sequence[int] | None = None,
        dim: Dims = None,
        norm: str | None = None,
        *,
        out: TensorBase | None = None,
    ) -> TensorBase:
        return transform(name, input, s, dim, norm, inverse)

    return _named(name, doc, along_all)


fft2: AlongSeveral = _along_two("fft2", _both_ways, False)
ifft2: AlongSeveral = _along_two("ifft2", _both_ways, True)
rfft2: AlongSeveral = _along_two("rfft2", _half, False)
irfft2: AlongSeveral = _along_two("irfft2", _whole, True)
hfft2: AlongSeveral = _along_two("hfft2", _whole, False)
ihfft2: AlongSeveral = _along_two("ihfft2", _half, True)

fftn: AlongSeveral = _along_all(
    "fftn",
    _both_ways,
    False,
    """The `fft` along several dims.

    Parameters
    ----------
    input : Tensor
        Real or complex.
    s : sequence of int, optional
        Size for each dim, at which it is cut or to which it is filled up with zeros; -1 leaves one
        as it is.
    dim : int or tuple of int, optional
        By default the last ``len(s)`` dims, or all.
    norm : {"backward", "ortho", "forward"}
        As in `fft`, of the product of the sizes.
    out : Tensor, optional

    Raises
    ------
    ShapeError
        If a dim occurs twice, has no elements, or sizes and dims differ in number.
    """,
)
ifftn: AlongSeveral = _along_all(
    "ifftn", _both_ways, True, "Inverse of `fftn`, whose arguments it has."
)
rfftn: AlongSeveral = _along_all(
    "rfftn",
    _half,
    False,
    "The `fftn` of real numbers, n // 2 + 1 elements along the last of the dims.",
)
irfftn: AlongSeveral = _along_all(
    "irfftn", _whole, True, "Inverse of `rfftn`; the last of the sizes is that of the result."
)
hfftn: AlongSeveral = _along_all(
    "hfftn",
    _whole,
    False,
    "The real `fftn` of a Hermitian signal, half of which is given along the last of the dims.",
)
ihfftn: AlongSeveral = _along_all("ihfftn", _half, True, "Inverse of `hfftn`.")


# ------------------------------------------------------------------------------------- frequencies


def _frequencies(
    op: str,
    of: Callable[[int, float], np.ndarray],
    n: int,
    d: float,
    dtype: DTypeLike | None,
    device: str | None,
    requires_grad: bool,
) -> TensorBase:
    if n < 1:
        _too_few(op, n)
    array = of(n, d).astype(dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype))
    t = wrap(array if device is None else to_device(array, device))
    return t.requires_grad_() if requires_grad else t


def fftfreq(
    n: int,
    d: float = 1.0,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> TensorBase:
    """Return the frequencies of an `fft` of `n` elements at distance `d`: 0, up, then from below.

    The one in the middle, where n is even, is negative.
    """
    return _frequencies("fftfreq", np.fft.fftfreq, n, d, dtype, device, requires_grad)


def rfftfreq(
    n: int,
    d: float = 1.0,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> TensorBase:
    """Return the frequencies of an `rfft` of `n` elements at distance `d`, none negative."""
    return _frequencies("rfftfreq", np.fft.rfftfreq, n, d, dtype, device, requires_grad)


def _shifted(op: str, x: TensorLike, dim: Dims, back: bool) -> TensorBase:
    x = as_tensor(x, op)
    dims, sizes = _places(op, x, None, dim)
    return roll(x, tuple(-(n // 2) if back else n // 2 for n in sizes), dims)


def fftshift(input: TensorLike, dim: Dims = None) -> TensorBase:
    """Move frequency 0 to the middle of the dims, all by default."""
    return _shifted("fftshift", input, dim, False)


def ifftshift(input: TensorLike, dim: Dims = None) -> TensorBase:
    """Inverse of `fftshift`."""
    return _shifted("ifftshift", input, dim, True)
