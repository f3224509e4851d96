"""Functions of a line of values: interpolation, integrals, slopes, polynomials, spectra."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    plain_arrays,
    tensor_of,
    whole,
)
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.ops import (
    arithmetic,
    exponentials,
    fourier,
    pieces,
    products,
    scans,
    searching,
    statistics,
)

__all__ = ["LINES"]


def _interp(x, xp, fp, left=None, right=None, period=None):
    absent({"period": period})
    x, xp, fp = tensor_of(x), flat(xp), flat(fp)
    n = xp.array.shape[0]
    if n == 1:
        raise UnknownArgument("xp")
    at = searching.searchsorted(xp.detach(), x.detach(), right=True)
    at = arithmetic.clamp(at, 1, n - 1)
    x0, x1, y0, y1 = xp[at - 1], xp[at], fp[at - 1], fp[at]
    inside = arithmetic.clamp(x, xp[0], xp[-1])
    width = arithmetic.where(x1 == x0, 1.0, x1 - x0)
    y = y0 + (inside - x0) * ((y1 - y0) / width)
    y = arithmetic.where(x >= xp[-1], fp[-1], y)
    y = arithmetic.where(x < xp[0], fp[0] if left is None else tensor_of(left), y)
    return arithmetic.where(x > xp[-1], fp[-1] if right is None else tensor_of(right), y)


def _convolve(a, v, mode="full"):
    a, v = flat(a), flat(v)
    n, m = a.array.shape[0], v.array.shape[0]
    if n < m:
        a, v, n, m = v, a, m, n
    # Each value of the shorter line moves the longer one: the sum of as many lines.
    shifted = [
        np.concatenate([np.zeros(i, bool), np.ones(n, bool), np.zeros(m - 1 - i, bool)])
        for i in range(m)
    ]
    place = np.stack([np.clip(np.arange(n + m - 1) - i, 0, n - 1) for i in range(m)])
    rows = arithmetic.where(wrap(np.stack(shifted)), a[wrap(place)], 0.0)
    full = (v[:, None] * rows).sum(0)
    if mode == "full":
        return full
    if mode == "same":
        start = (m - 1) // 2
        return full[start : start + n]
    if mode == "valid":
        return full[m - 1 : n]
    raise UnknownArgument("mode")


def _trapezoid(y, x=None, dx=1.0, axis=-1):
    y = tensor_of(y)
    if x is None:
        return scans.trapezoid(y, dim=axis) * dx
    return scans.trapezoid(y, tensor_of(x), dim=axis)


def _gradient(f, *varargs, axis=None, edge_order=1):
    f = tensor_of(f)
    if len(varargs) > 1 or any(np.ndim(plain_arrays(v)) for v in varargs):
        raise UnknownArgument("varargs")
    spacing = float(varargs[0]) if varargs else 1.0
    found = statistics.gradient(f, spacing=spacing, dim=axis, edge_order=edge_order)
    return found[0] if len(found) == 1 else found


def _polyval(p, x):
    p, x = tensor_of(p), tensor_of(x)
    out = x * 0.0
    for c in pieces.unbind(p, 0):
        out = out * x + c
    return out


def _vander(x, N=None, increasing=False):
    return products.vander(tensor_of(x), N, increasing)


def _steps_between(ary, to_end=None, to_begin=None):
    absent({"to_end": to_end, "to_begin": to_begin})
    return scans.diff(flat(ary))


def _linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, **kwargs):
    absent({**kwargs, "dtype": dtype, "axis": axis or None, "retstep": retstep or None})
    n = whole(num, "num")
    weight = np.arange(n) / max(n - 1 if endpoint else n, 1)
    start, stop = tensor_of(start), tensor_of(stop)
    ndim = max(start.array.ndim, stop.array.ndim)
    kind = np.result_type(start.array.dtype, stop.array.dtype, np.float32)
    w = cast(wrap(weight.reshape((-1,) + (1,) * ndim)), kind)
    return start * (1.0 - w) + stop * w


def _logspace(start, stop, num=50, endpoint=True, base=10.0, dtype=None, axis=0):
    exponents = _linspace(start, stop, num, endpoint, False, dtype, axis)
    return exponentials.pow(tensor_of(base), exponents)


def _spectrum(fn):
    def handler(a, n=None, axis=-1, norm=None, out=None):
        absent({"out": out})
        return fn(tensor_of(a), n, axis, norm)

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
