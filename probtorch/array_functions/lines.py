"""Functions of a line of values: interpolation, integrals, slopes, polynomials, spectra."""

import operator

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    of_one_dtype,
    one_axis,
    one_of,
    plain_arrays,
    tensor_of,
)
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import (
    arithmetic,
    comparisons,
    complex_numbers,
    exponentials,
    fourier,
    movement,
    pieces,
    products,
    scans,
    searching,
    statistics,
)

__all__ = ["LINES"]


def _interp(x, xp, fp, left=None, right=None, period=None):
    absent({"period": period})
    x, xp, fp = (tensor_of(i) for i in (x, xp, fp))
    if xp.array.ndim > 1 or fp.array.ndim > 1:
        raise UnknownArgument("fp")  # NumPy has the words for it
    xp, fp = flat(xp), flat(fp)
    n = xp.array.shape[0]
    if n < 2 or fp.array.shape != (n,) or tensor_of(x).array.dtype.kind == "c":
        raise UnknownArgument("xp")
    if fp.array.dtype.kind == "c":
        # Each part on its own, as one of them may be infinite.
        lines = [
            _interp(x, xp, *(y if y is None else part(tensor_of(y)) for y in (fp, left, right)))
            for part in (complex_numbers.real, complex_numbers.imag)
        ]
        return complex_numbers.complex(*lines)
    fp = fp if fp.array.dtype.kind == "f" else cast(fp, np.dtype(np.float64))
    at = searching.searchsorted(xp.detach(), x.detach(), right=True)
    at = arithmetic.clamp(at, 1, n - 1)
    x0, x1, y0, y1 = xp[at - 1], xp[at], fp[at - 1], fp[at]
    # No clamp, since the last place may be nan: nothing lies beyond it then.
    inside = arithmetic.where(x >= xp[-1], xp[-1], arithmetic.where(x < xp[0], xp[0], x))
    rise = (y1 - y0) / arithmetic.where(x1 == x0, 1.0, x1 - x0)
    # Beside an infinite value a line is exact at its knots, then what it is from the left, and from
    # the right where that is no number.
    at_knot = (inside == x0) & ~comparisons.isfinite(rise)
    left_y = y0 + (inside - x0) * arithmetic.where(at_knot, 0.0, rise)
    lost = comparisons.isnan(left_y)
    right_y = y1 + (inside - x1) * arithmetic.where(lost, rise, 0.0)
    y = arithmetic.where(lost, right_y, left_y)
    y = arithmetic.where(comparisons.isnan(y) & (y0 == y1) & (x == x), y0, y)
    y = arithmetic.where(x >= xp[-1], fp[-1], y)
    y = arithmetic.where(x < xp[0], fp[0] if left is None else tensor_of(left), y)
    return arithmetic.where(x > xp[-1], fp[-1] if right is None else tensor_of(right), y)


def _convolve(a, v, mode="full"):
    a, v = tensor_of(a), tensor_of(v)
    one_of("mode", mode, "full", "same", "valid")
    if max(a.array.ndim, v.array.ndim) > 1 or not a.array.size or not v.array.size:
        raise UnknownArgument("a")  # NumPy has the words for it
    if a.array.dtype.kind == v.array.dtype.kind == "b":
        raise UnknownArgument("a")
    a, v = of_one_dtype([flat(a), flat(v)])
    n, m = a.array.shape[0], v.array.shape[0]
    if n < m:
        a, v, n, m = v, a, m, n
    # Each value of the shorter line moves the longer one: the sum of as many lines.
    shifted = [
        np.concatenate([np.zeros(i, bool), np.ones(n, bool), np.zeros(m - 1 - i, bool)])
        for i in range(m)
    ]
    place = np.stack([np.clip(np.arange(n + m - 1) - i, 0, n - 1) for i in range(m)])
    # Zeros on both sides where there is none: 0 times an infinite value is no 0.
    there = wrap(np.stack(shifted))
    rows = arithmetic.where(there, a[wrap(place)], 0)
    full = (arithmetic.where(there, v[:, None], 0) * rows).sum(0)
    if mode == "full":
        return full
    if mode == "same":
        start = (m - 1) // 2
        return full[start : start + n]
    return full[m - 1 : n]


def _trapezoid(y, x=None, dx=1.0, axis=-1):
    y = tensor_of(y)
    dim = one_axis(axis, y, "trapezoid")
    if y.array.dtype.kind == "b":
        raise UnknownArgument("y")
    if x is None:
        return scans.trapezoid(y, dim=dim) * dx
    at = tensor_of(x)
    if at.array.dtype.kind == "b":
        raise UnknownArgument("x")
    return scans.trapezoid(y, at, dim=dim)


def _gradient(f, *varargs, axis=None, edge_order=1):
    f = tensor_of(f)
    if f.array.dtype.kind == "b" or edge_order not in (1, 2):
        raise UnknownArgument("f")
    axes = range(f.array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    dims = [one_axis(i, f, "gradient") for i in axes]
    if len({*dims}) < len(dims) or not f.array.ndim:
        raise UnknownArgument("axis")  # NumPy has the words for it
    given = [v if isinstance(v, (int, float)) else tensor_of(v) for v in varargs]
    if not given or (len(given) == 1 and np.ndim(plain_arrays(given[0], force=True)) == 0):
        given = (given or [1.0]) * len(dims)
    if len(given) != len(dims):
        raise UnknownArgument("varargs")
    found = tuple(
        statistics.gradient(f, spacing=[h], dim=d, edge_order=edge_order)[0]
        for h, d in zip(given, dims, strict=True)
    )
    return found[0] if len(found) == 1 else found


def _polyval(p, x):
    p, x = of_one_dtype([tensor_of(p), tensor_of(x)])
    if p.array.dtype.kind == "b" or not p.array.size:
        raise UnknownArgument("p")
    out = x * 0
    for c in pieces.unbind(p, 0):
        out = out * x + c
    return out


def _vander(x, N=None, increasing=False):
    return products.vander(tensor_of(x), N, increasing)


def _steps_between(ary, to_end=None, to_begin=None):
    x = flat(ary)
    if x.array.dtype.kind == "b":
        raise UnknownArgument("ary")  # NumPy has the words for it
    parts = [scans.diff(x)]
    for given, place in ((to_begin, 0), (to_end, len(parts) + 1)):
        if given is not None:
            end = flat(given)
            if not np.can_cast(end.array.dtype, x.array.dtype, "same_kind"):
                raise UnknownArgument("to_end")
            parts.insert(place, cast(end, x.array.dtype))
    return pieces.cat(parts, 0) if len(parts) > 1 else parts[0]


def _bound(x):
    """An end of a line: numbers of Python have no say about its dtype."""
    return x if isinstance(x, (int, float, complex)) else tensor_of(x)


def _linspace(
    start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, *, device=None
):
    n = operator.index(num)
    if n < 0 or device not in (None, "cpu"):
        raise UnknownArgument("num")  # NumPy has the words for it
    steps = n - 1 if endpoint else n
    start, stop = _bound(start), _bound(stop)
    both = [x for x in (start, stop) if isinstance(x, TensorBase)]
    ndim = max(x.array.ndim for x in both)
    numbers = [x for x in (start, stop) if not isinstance(x, TensorBase)]
    kind = np.result_type(*(x.array.dtype for x in both), *numbers)
    kind = np.dtype(np.float64) if kind.kind in "biu" else kind
    place = cast(wrap(np.arange(n).reshape((-1,) + (1,) * ndim)), kind)
    start, stop = (cast(x, kind) if isinstance(x, TensorBase) else x for x in (start, stop))
    # In NumPy's order, which an integer dtype shows; the last one is the stop itself.
    found = start + place * ((stop - start) / max(steps, 1))
    if endpoint and n > 1:
        found = arithmetic.where(wrap(place.array == steps), stop, found)
    if dtype is not None:
        dtype = np.dtype(dtype)
        found = cast(arithmetic.floor(found) if dtype.kind in "iu" else found, dtype)
    if axis:
        found = movement.movedim(found, 0, one_axis(axis, found, "linspace"))
    if not retstep:
        return found
    return found, (stop - start) / steps if steps > 0 else wrap(np.array(np.nan))


def _logspace(start, stop, num=50, endpoint=True, base=10.0, dtype=None, axis=0):
    if np.ndim(plain_arrays(base, force=True)):
        raise UnknownArgument("base")
    exponents = _linspace(start, stop, num, endpoint, axis=axis)
    found = exponentials.pow(_bound(base), exponents)
    return found if dtype is None else cast(found, np.dtype(dtype))


def _spectrum(fn):
    def handler(a, n=None, axis=-1, norm=None, out=None):
        absent({"out": out})
        x = tensor_of(a)
        one_of("norm", norm, None, "backward", "ortho", "forward")
        if not x.array.ndim or (n is not None and operator.index(n) < 1):
            raise UnknownArgument("n")  # NumPy has the words for it
        return fn(x, None if n is None else operator.index(n), one_axis(axis, x, "fft"), norm)

    return handler


LINES = {
    np.interp: _interp,
    np.convolve: _convolve,
    np.gradient: _gradient,
    np.polyval: _polyval,
    np.vander: _vander,
    np.ediff1d: _steps_between,
    np.linspace: _linspace,
    np.logspace: _logspace,
    np.fft.fft: _spectrum(fourier.fft),
    np.fft.ifft: _spectrum(fourier.ifft),
    np.fft.rfft: _spectrum(fourier.rfft),
    np.fft.irfft: _spectrum(fourier.irfft),
}
# Of either name, as releases of NumPy have it.
for _name in ("trapezoid", "trapz"):
    if hasattr(np, _name):
        LINES[getattr(np, _name)] = _trapezoid
