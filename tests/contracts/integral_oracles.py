"""Twins in mpmath of densities that are integrals or long sums, for parameters of any size.

An integral is a trapezium sum over the real line, halved until two of them agree to 1e-29: for
integrands that are analytic in a strip that is exact, whatever its width. Nothing here is shared
with the forms that the distributions have: contours, series and special functions are others.
"""

import mpmath
from mpmath import mpf

__all__ = ["beta_quotient", "discrete_weibull", "noncentral_chi2", "polya_gamma", "stable"]

log, log1p, exp, lgamma, sqrt = (
    mpmath.log,
    mpmath.log1p,
    mpmath.exp,
    mpmath.loggamma,
    mpmath.sqrt,
)
# Nats below its peak at which an integrand is left out, and the agreement of two sums.
DEPTH, AGREED = 80, mpf(10) ** -29


def log_trapezium(of, low, high, count=64, tails=(None, None)):
    """Log of the integral of exp(of(t)) over the line, to 1e-29.

    Outside of `low` and `high` it is 0, or falls at the rates in `tails`.
    """
    sizes = [of(low + (high - low) * k / count) for k in range(count + 1)]
    top = max(mpmath.re(s) for s in sizes)
    ends = [exp(sizes[at] - top) for at in (0, -1)]
    total, before = sum(exp(s - top) for s in sizes), None
    for _ in range(14):
        step = (high - low) / count
        beyond = [e / mpmath.expm1(r * step) for e, r in zip(ends, tails, strict=True) if r]
        value = mpmath.re((total + sum(beyond)) * step)
        if before is not None and abs(value - before) <= AGREED * abs(value):
            return top + log(value)
        total += sum(exp(of(low + step * (k + mpf(1) / 2)) - top) for k in range(count))
        before, count = value, 2 * count
    raise ArithmeticError("a sum that does not converge")


def peak(slope, low, high, digits=55):
    """Root of a falling function between two numbers, by bisection."""
    while high - low > mpf(10) ** -digits * max(abs(high), abs(low)):
        middle = (low + high) / 2
        if slope(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def reach(of, start, sign, width):
    """Distance from `start` to where a function has fallen by DEPTH, by doubling and halving."""
    here, far = of(start), width
    fallen = lambda d: here - of(start + sign * d) > DEPTH
    while not fallen(far):
        far *= 2
    near = far
    while fallen(near / 2):
        near /= 2
    return near


# ------------------------------------------------------------------------------ Bessel functions


def _debye(count):
    """Polynomials u_k(p) / p^k in p^2 of the uniform expansion (DLMF 10.41.10), as coefficients."""
    # u as a dictionary of powers of p.
    u, out = {0: mpf(1)}, [[mpf(1)]]
    for k in range(1, count):
        new = {}
        for n, c in u.items():
            # p^2 (1 - p^2) u' / 2, and the integral of (1 - 5 p^2) u / 8.
            for power, value in (
                (n + 1, c * n / 2),
                (n + 3, -c * n / 2),
                (n + 1, c / 8 / (n + 1)),
                (n + 3, -5 * c / 8 / (n + 3)),
            ):
                new[power] = new.get(power, mpf(0)) + value
        u = new
        out.append([u.get(k + 2 * i, mpf(0)) for i in range(k + 1)])
    return out


with mpmath.workdps(60):
    DEBYE = _debye(26)


def log_i(order, z):
    """Log of I_order(z), for an order above -1: its series, or the expansion for large of both."""
    size = order * order + z * z
    if order >= 0 and size > mpf(300) ** 2:
        root = sqrt(size)
        share = (order / root) ** 2
        terms = (
            sum(c * share**i for i, c in enumerate(row)) / root**k for k, row in enumerate(DEBYE)
        )
        grown = root - (order * mpmath.asinh(order / z) if order else 0)
        return grown - log(2 * mpmath.pi * root) / 2 + log(sum(terms))
    if size > mpf(300) ** 2:
        # I_v = I_(v + 2) + 2 (v + 1) / z I_(v + 1)
        one, two = log_i(order + 1, z), log_i(order + 2, z)
        return two + log1p(2 * (order + 1) / z * exp(one - two))
    quarter, term, total, k = z * z / 4, mpf(1), mpf(1), 0
    while term > mpf(10) ** -110 * total:
        k += 1
        term *= quarter / (k * (k + order))
        total += term
    return order * log(z / 2) - lgamma(order + 1) + log(total)


def noncentral_chi2(df, nc, x):
    order = df / 2 - 1
    return -(x + nc) / 2 + order / 2 * log(x / nc) + log_i(order, sqrt(nc * x)) - log(2)


# ------------------------------------------------------------------------------ counts


def discrete_weibull(q, b, k):
    here, rate = (mpf(k) ** b if k else mpf(0)), -log(q)
    step = rate * ((k + 1) ** b - here)
    rest = log(-mpmath.expm1(-step)) if step < 1000 else mpf(0)
    return rest - rate * here


# ------------------------------------------------------------------------------ ratios of betas


def beta_quotient(a, b, c, d, x):
    """The integral over the log odds of the denominator, from the definition."""
    if x > 1:
        return beta_quotient(c, d, a, b, 1 / x) - 2 * log(x)
    both = a + c
    whole = lgamma(a) + lgamma(b) - lgamma(a + b) + lgamma(c) + lgamma(d) - lgamma(c + d)
    if x == 1:  # there it is a beta function, or infinite
        rest = b + d - 1
        return lgamma(both) + lgamma(rest) - lgamma(both + rest) - whole if rest > 0 else mpf("inf")

    def of(t):
        # y = sigmoid(t), 1 - y and 1 - x y
        y, rest = 1 / (1 + exp(-t)), 1 / (1 + exp(t))
        return both * log(y) + d * log(rest) + (b - 1) * log((1 - x) * y + rest)

    def slope(t):
        y, rest = 1 / (1 + exp(-t)), 1 / (1 + exp(t))
        return both * rest - d * y - (b - 1) * x * y * rest / ((1 - x) * y + rest)

    # Outside of these it is exponential to 1e-60.
    far = 140 + log(1 + both + b + d)
    low, high = -far, far - log(1 - x)
    if b >= 1:
        top = peak(slope, low, high)
        first = _edge(of, top, low)
        last = _edge(of, top, high)
    else:
        # The bump of 1 - x y is as wide as 1, what is narrow is where it would be without it.
        width = sqrt(1 / both + 1 / d)
        places = [low + (high - low) * k / 1000 for k in range(1000)] + [high]
        places += [log(both / d) + width * k for k in range(-20, 21)]
        places = sorted(t for t in places if low <= t <= high)
        sizes = [of(t) for t in places]
        kept = [k for k, s in enumerate(sizes) if s > max(sizes) - DEPTH]
        first, last = places[max(kept[0] - 1, 0)], places[min(kept[-1] + 1, len(places) - 1)]
    tails = (both if first == low else None, d if last == high else None)
    return log_trapezium(of, first, last, tails=tails) + (a - 1) * log(x) - whole


def _edge(of, top, end):
    """Where a function has fallen by DEPTH from its top, or the end before."""
    if of(top) - of(end) <= DEPTH:
        return end
    near, far = top, end
    while True:
        middle = (near + far) / 2
        fall = of(top) - of(middle)
        if fall > 2 * DEPTH:
            far = middle
        elif fall > DEPTH:
            return middle
        else:
            near = middle


# ------------------------------------------------------------------------------ Polya-gamma


def polya_gamma(h, z, x):
    """Its alternating series where that converges at once, or the inverted Laplace transform."""
    tilt = h * (abs(z) / 2 + log1p(exp(-abs(z))) - log(2)) - z * z * x / 2
    if (1 + h) / (2 * x) > log(2 + h) + 1:
        first, ratio, total, n = -h * h / (8 * x), mpf(1), mpf(1), 0
        term = mpf(1)
        while abs(term) > mpf(10) ** -60:
            n += 1
            ratio *= -(n - 1 + h) / n
            term = ratio * (2 * n + h) / h * exp(-n * (n + h) / (2 * x))
            total += term
        # The 2^-h of the tilt is that of its cosh: 2^(h - 1) of the series, and 2^h more.
        size = (h - 1) * log(2) + log(h) - log(2 * mpmath.pi * x**3) / 2
        return tilt + size + first + log(total)
    edge = mpmath.pi**2 / 4

    def log_cosh(w):
        u = sqrt(w * w - edge)
        return u + log1p(exp(-2 * u)) - log(2)

    # With s = 2 w^2 - pi^2 / 2 the transform is cosh(u)^-h; its saddle point in w.
    def slope(w):
        u = sqrt(mpmath.mpc(w * w - edge))
        return -mpmath.re(4 * x * w - h * w * mpmath.tanh(u) / u)

    start = peak(slope, mpf(10) ** -120, (1 + h / x) * 10)
    start = max(start, 1 / sqrt(x))
    less = h <= 1

    def of(v):
        w = mpmath.mpc(start, v)
        grown = -h * log_cosh(w)
        # What is subtracted has the integral 0.
        grown = log(mpmath.expm1(grown)) if less else grown
        return grown + 2 * x * w * w - mpmath.pi**2 * x / 2 + log(w)

    last = reach(lambda v: mpmath.re(of(v)), mpf(0), 1, 1 / sqrt(x))
    # The half line below is the conjugate: twice the real part; ds = 4 i w dv.
    return tilt + log_trapezium(of, -last, last) + log(4) - log(2 * mpmath.pi)


# ------------------------------------------------------------------------------ stable


def stable(alpha, skew, scale, loc, x):
    """The integral of Nolan (1997), theorem 1, over the log of the ratio of both ends of angles."""
    z = (x - loc) / scale
    # Nothing in it cancels by more than what one rounding of a double leaves.
    with mpmath.workdps(90):
        return _stable(alpha if alpha != 1 else 1 - mpf(10) ** -40, skew, z) - log(scale)


def _stable(alpha, skew, x):
    turn = mpmath.tan(mpmath.pi * alpha / 2) if alpha < 2 else mpf(0)
    zeta = -skew * turn
    if x < zeta:
        return _stable(alpha, -skew, -x)
    gap, start = x - zeta, mpmath.atan(skew * turn) / alpha
    length = mpmath.pi / 2 + start
    if not gap:  # Nolan's (1997) theorem 1b; the integral begins beyond all numbers
        return (
            lgamma(1 + 1 / alpha)
            + log(mpmath.cos(start) / mpmath.pi)
            - log1p(zeta**2) / (2 * alpha)
        )

    def log_u(y):
        p, q = length / (1 + exp(-y)), length / (1 + exp(y))
        inner = alpha * p if p < q else least + alpha * q
        ratio = alpha / (alpha - 1) * log(gap * mpmath.sin(q) / mpmath.sin(inner))
        return constant + ratio + log(mpmath.sin(least + (alpha - 1) * q) / mpmath.sin(q))

    # Of something that grows or falls as a double exponential.
    bounded = lambda u: exp(min(u, mpf(2000)))

    def of(y):
        u = log_u(y)
        return u - bounded(u) - 2 * log1p(exp(-abs(y))) - abs(y)

    def slope(y):
        u, step = log_u(y), mpf(10) ** -40
        return (1 - bounded(u)) * (log_u(y + step) - u) / step - mpmath.tanh(y / 2)

    constant = log(mpmath.cos(alpha * start)) / (alpha - 1)
    # cos(alpha start + (alpha - 1) angle), for the angle pi / 2 - q.
    least = (2 - alpha) * mpmath.pi / 2 - alpha * start
    far = mpf(3000)
    top = peak(slope, -far, far, 20)
    integral = log_trapezium(of, _edge(of, top, -far), _edge(of, top, far))
    return log(alpha * length / (mpmath.pi * abs(alpha - 1) * gap)) + integral
