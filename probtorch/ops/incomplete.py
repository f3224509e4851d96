"""Derivatives of the incomplete gamma and beta functions in their shape parameters.

No closed form exists, so they are integrals. In u = log t the gamma density is exp(a u - e^u) /
Gamma(a); with P the lower regularised function and W(u) = x p(x) at x = e^u,

    dP/da = integral over u < log x of (u - psi(a)) W(u) du,

and the same integral over the whole line is 0. So the lighter of the two tails is integrated: on it
the integrand has one sign, nothing cancels, and the result is accurate relative to itself however
small it is. The integrand is entire and the exponent concave; Gauss-Legendre on the range where it
exceeds exp(-40) converges to rounding. The beta function is treated in the same way in v = logit t.
Everything is returned divided by -W, which never underflows: that ratio is the implicit derivative
of a draw (Figurnov, Mohamed, Mnih 2018) and what samplers need.

The public functions are in special/.
"""

import functools

import numpy as np

from probtorch.ops.scalar import numpy_algebra, special_function
from probtorch.ops.stirling import difference_of_digammas

__all__ = ["beta_tail", "gamma_tail"]

digamma = special_function("digamma")
zeta = special_function("zeta")

# Integrands are cut where they are exp(-40) of their value at the start: below 1e-17 of the result.
_CUT = 40.0
# Elements per pass: the work arrays of (elements, nodes) stay near the second-level cache.
_CHUNK = 4096


@functools.cache
def _rule():
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    # An exponential decay over 40 e-folds needs about 24 nodes for 1e-16, Gaussian ones a few more.
    nodes, weights = np.polynomial.legendre.leggauss(48)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _chunked(fn, arrays):
    """Call `fn` on flat float64 chunks of the broadcast arrays; the result has their shape."""
    arrays = np.broadcast_arrays(*arrays)
    shape, dtype = arrays[0].shape, np.result_type(*arrays)
    flat = [np.asarray(a, np.float64).reshape(-1) for a in arrays]
    out = np.empty(flat[0].size)
    with np.errstate(all="ignore"):
        for i in range(0, out.size, _CHUNK):
            out[i : i + _CHUNK] = fn(*(a[i : i + _CHUNK] for a in flat))
    return out.reshape(shape).astype(dtype, copy=False)


# -------------------------------------------------------------------------------------------- gamma


def gamma_tail(a, log_x, order=1):
    """Return ``-(d/da)**order P(a, x) / (x p(x))`` of the gamma distribution with shape `a`.

    Parameters
    ----------
    a, log_x : ndarray
        Broadcast together; `log_x` is the natural logarithm of x, so that x may underflow.
    order : {1, 2}

    Returns
    -------
    ndarray
        For order 1 it is d(log x)/da at constant P: positive everywhere.
    """
    return _chunked(lambda a, y: _gamma_tail(a, y, order), (a, log_x))


def _gamma_tail(a, y, order):
    out = np.full(a.shape, np.nan)
    # The series has terms (-x)^k / k!: at 0.5, sixteen of them reach 1e-18.
    small = (a > 0.0) & (y <= np.log(0.5))
    large = (a > 0.0) & (y > np.log(0.5)) & (y < np.inf)
    out[small] = _gamma_series(a[small], y[small], order)
    out[large] = _gamma_quadrature(a[large], y[large], order)
    out[(a > 0.0) & (y == np.inf)] = 0.0
    return out


def _gamma_series(a, y, order):
    # P = x^a / Gamma(a + 1) * B, with B = sum of (-x)^k / k! * a / (a + k); primes below are d/da.
    x = np.exp(y)
    k = np.arange(1, 17)
    terms = np.cumprod(-x[:, None] / k, axis=1)
    below = a[:, None] + k
    b0 = 1.0 + (terms * (a[:, None] / below)).sum(1)
    b1 = (terms * k / below**2).sum(1)
    slope = y - digamma(a + 1.0)
    if order == 1:
        inner = slope * b0 + b1
    else:
        b2 = -2.0 * (terms * k / below**3).sum(1)
        inner = (slope**2 - zeta(2.0, a + 1.0)) * b0 + 2.0 * slope * b1 + b2
    return -np.exp(x) / a * inner


def _gamma_quadrature(a, y, order):
    x, mean = np.exp(y), digamma(a)
    sign = np.where(y < mean, -1.0, 1.0)
    length = _gamma_length(a, x, sign)
    nodes, weights = _rule()
    s = length[:, None] * nodes
    u = sign[:, None] * s
    weight = (y - mean)[:, None] + u
    if order == 2:
        weight = weight**2 - zeta(2.0, a)[:, None]
    inside = np.exp(a[:, None] * u - x[:, None] * np.expm1(u))
    return sign * length * ((weight * inside) @ weights)


def _gamma_length(a, x, sign):
    """Where the exponent h(s) = a u - x expm1(u), u = sign * s, has fallen to -40."""
    far = np.abs(x - a)
    # Right: expm1(s) >= s + s^2/2. Left, for s <= 1: 1 - exp(-s) <= s - s^2/3; else -h >= max((a -
    # x) s, a s - x).
    right = 2.0 * _CUT / ((x - a) + np.hypot(far, np.sqrt(2.0 * _CUT * x)))
    left = 2.0 * _CUT / (far + np.hypot(far, np.sqrt(4.0 / 3.0 * _CUT * x)))
    left = np.where(left <= 1.0, left, np.minimum(_CUT / far, (_CUT + x) / a))
    s = np.where(sign > 0.0, right, left)
    # h is concave, so each step stays on the far side of the root: stopping early only widens the
    # range a little.
    for _ in range(8):
        u = sign * s
        height = a * u - x * np.expm1(u) + _CUT
        slope = sign * (a - x * np.exp(u))
        s = np.where((height < 0.0) & (slope < 0.0), s - height / slope, s)
    return s


# --------------------------------------------------------------------------------------------- beta


def beta_tail(a, b, logit_x, order=(1, 0)):
    """Return ``-(d/da)**i (d/db)**j I_x(a, b) / (x (1 - x) p(x))`` of the beta distribution.

    Parameters
    ----------
    a, b, logit_x : ndarray
        Broadcast together; `logit_x` is log(x / (1 - x)).
    order : (i, j), one of {(1, 0), (0, 1), (2, 0), (1, 1), (0, 2)}

    Returns
    -------
    ndarray
        For order (1, 0) it is d(logit x)/da at constant I: positive everywhere.
    """
    return _chunked(lambda a, b, v: _beta_tail(a, b, v, order), (a, b, logit_x))


def _softplus(v):
    return np.maximum(v, 0.0) + np.log1p(np.exp(-np.abs(v)))


def _beta_tail(a, b, v, order):
    out = np.full(a.shape, np.nan)
    good = (a > 0.0) & (b > 0.0) & np.isfinite(v)
    out[good] = _beta_quadrature(a[good], b[good], v[good], order)
    return out


def _beta_quadrature(a, b, v, order):
    i, j = order
    mean_left = -difference_of_digammas(numpy_algebra, a, b)
    mean_right = -difference_of_digammas(numpy_algebra, b, a)
    if j == 0:
        to_left = -_softplus(-v) < mean_left
    elif i == 0:
        to_left = -_softplus(v) > mean_right
    else:
        to_left = v < np.log(a / b)
    # The left tail is the right one of the mirrored problem: v -> -v, a <-> b.
    sign = np.where(to_left, -1.0, 1.0)
    rise, fall, start = np.where(to_left, b, a), np.where(to_left, a, b), sign * v
    length = _beta_length(rise, fall, start)
    element, low, width = _panels(start, length)

    nodes, weights = _rule()
    s = low[:, None] + width[:, None] * nodes
    pick = [q[element, None] for q in (a, b, v, sign, rise, fall, start, mean_left, mean_right)]
    a, b, v, sign_s, rise, fall, start, mean_left, mean_right = pick
    inside = np.exp(rise * s - (rise + fall) * _softplus_step(start, s))
    at = v + sign_s * s
    first, second = -_softplus(-at) - mean_left, -_softplus(at) - mean_right
    common = zeta(2.0, a + b)
    weight = {
        (1, 0): lambda: first,
        (0, 1): lambda: second,
        (2, 0): lambda: first**2 - zeta(2.0, a) + common,
        (1, 1): lambda: first * second + common,
        (0, 2): lambda: second**2 - zeta(2.0, b) + common,
    }[order]()
    parts = width * ((weight * inside) @ weights)
    return sign * np.bincount(element, parts, minlength=sign.size)


def _softplus_step(start, s):
    """softplus(start + s) - softplus(start) for s >= 0, without cancellation."""
    # With x = sigmoid(start): log(1 - x + x e^s), from whichever side keeps the argument of log1p
    # above -1/2.
    e = np.exp(-np.abs(start))
    low, high = e / (1.0 + e), 1.0 / (1.0 + e)
    up = np.minimum(s, 700.0)
    return np.where(
        start <= 0.0,
        np.log1p(low * np.expm1(up)) + (s - up),
        s + np.log1p(np.where(start <= 0.0, high, low) * np.expm1(-s)),
    )


def _beta_length(rise, fall, start):
    """Where h(s) = rise s - (rise + fall) softplus_step(start, s) has fallen to -40."""
    total = rise + fall
    # h(s) <= -fall s + total softplus(-start).
    s = (_CUT + total * _softplus(-start)) / fall
    for _ in range(24):
        height = rise * s - total * _softplus_step(start, s) + _CUT
        slope = rise - total / (1.0 + np.exp(-(start + s)))
        s = np.where((height < 0.0) & (slope < 0.0), s - height / slope, s)
    return s


def _panels(start, length):
    """Cut [0, length] where the exponent may bend; returns element, low end, width of each panel.

    softplus bends at v = 0 and is straight to rounding 40 away from it; the density bends within 40
    of the two ends. Panels of at most 16 there are resolved by 48 nodes, as the nearest
    singularities, at v = +-i pi, are far enough.
    """
    steps = np.array([14.0, 28.0, 42.0])
    bends = np.array([-40.0, -24.0, -8.0, 8.0, 24.0, 40.0])
    cuts = np.concatenate(
        [
            np.broadcast_to(steps, (start.size, 3)),
            length[:, None] - steps,
            bends - start[:, None],
        ],
        axis=1,
    )
    cuts = np.sort(np.clip(cuts, 0.0, length[:, None]), axis=1)
    edges = np.concatenate([np.zeros((start.size, 1)), cuts, length[:, None]], axis=1)
    width = np.diff(edges, axis=1)
    element, panel = np.nonzero(width > 0.0)
    return element, edges[element, panel], width[element, panel]
