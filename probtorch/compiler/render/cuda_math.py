"""CUDA C that generated kernels call: what C and CUDA have no function for.

`PREAMBLE` stands at the head of every program: extremes in which nan wins, conversions that
saturate, sums and their kin over the threads of a block, a barrier across blocks. The functions in
`FUNCTIONS` are added when a formula needs them: Philox, integer powers, and the special functions
of SciPy that CUDA lacks, for doubles. The text is plain C++, so that it compiles for the host too,
where it is tested against SciPy.

Sources: reflection, recurrence and asymptotic series of digamma (Abramowitz and Stegun 1972, 6.3);
incomplete gamma by its series, Lentz's continued fraction and Temme's expansion (Temme 1979; DLMF
8.12); incomplete beta by its continued fraction (Didonato and Morris 1992, from whom the scaled
forms of x**a (1 - x)**b / B(a, b) come too); Bessel functions by their series (DLMF 10.25, 10.40).
"""

import functools

from probtorch.compiler.render.cuda_draws import PHILOX, PHILOX_PAIR, draw_text
from probtorch.compiler.render.cuda_writer import module_text, writable
from probtorch.compiler.render.zeta import bernoulli_terms

__all__ = ["FUNCTIONS", "PREAMBLE", "knows", "runtime_text"]

PREAMBLE = r"""
typedef long long i64;
typedef unsigned long long u64;
#define I64_MIN (-9223372036854775807LL - 1)
template <class T> static __device__ T pt_inf() {
  return (T)__longlong_as_double(0x7ff0000000000000LL);
}
template <class T> static __device__ T pt_nan() {
  return (T)__longlong_as_double(0x7ff8000000000000LL);
}
template <class T> static __device__ T pt_maximum(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
template <class T> static __device__ T pt_minimum(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}
template <class T> static __device__ T pt_to_integer(double x) {
  const double low = (T)((u64)1 << (8 * sizeof(T) - 1)), high = -(low + 1);
  return x != x ? (T)0 : x >= high ? (T)~(T)low : x <= low ? (T)low : (T)x;
}
struct pt_sum {
  template <class T> __device__ T operator()(T a, T b) const { return (T)(a + b); }
};
template <> __device__ i64 pt_sum::operator()(i64 a, i64 b) const {
  return (i64)((u64)a + (u64)b);
}
template <> __device__ int pt_sum::operator()(int a, int b) const {
  return (int)((unsigned)a + (unsigned)b);
}
struct pt_prod {
  template <class T> __device__ T operator()(T a, T b) const { return (T)(a * b); }
};
template <> __device__ i64 pt_prod::operator()(i64 a, i64 b) const {
  return (i64)((u64)a * (u64)b);
}
template <> __device__ int pt_prod::operator()(int a, int b) const {
  return (int)((unsigned)a * (unsigned)b);
}
struct pt_amax {
  template <class T> __device__ T operator()(T a, T b) const { return pt_maximum(a, b); }
};
struct pt_amin {
  template <class T> __device__ T operator()(T a, T b) const { return pt_minimum(a, b); }
};
// Each thread has a value; all get the combination, always in the same order.
template <class C, class T> static __device__ T pt_block(T v, void *shared) {
  T *s = (T *)shared;
  C combine;
  s[threadIdx.x] = v;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if ((int)threadIdx.x < half) s[threadIdx.x] = combine(s[threadIdx.x], s[threadIdx.x + half]);
    __syncthreads();
  }
  v = s[0];
  __syncthreads();
  return v;
}
// The position of the best value: the first of equal ones, nan before all others.
template <class T> static __device__ bool pt_better(bool largest, T a, i64 ka, T b, i64 kb) {
  if (ka < 0 || kb < 0) return kb < 0 && ka >= 0;
  if (a != a || b != b) return a != a && (b == b || ka < kb);
  return a == b ? ka < kb : largest ? a > b : a < b;
}
template <class T> static __device__ i64 pt_block_best(bool largest, T v, i64 k, void *shared) {
  T *s = (T *)shared;
  i64 *p = (i64 *)(s + blockDim.x);
  s[threadIdx.x] = v;
  p[threadIdx.x] = k;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    const int i = threadIdx.x, j = i + half;
    if (i < half && pt_better(largest, s[j], p[j], s[i], p[i])) { s[i] = s[j]; p[i] = p[j]; }
    __syncthreads();
  }
  k = p[0];
  __syncthreads();
  return k;
}
// The first failure stays: 0 is none, -1 what eager execution would raise, else 1 + a guard.
static __device__ void pt_fail(i64 *status, i64 code) { if (*status == 0) *status = code; }
// A barrier of all blocks of a kernel, which were started together. Behind the status lie how many
// have arrived, and how many barriers everybody has passed.
static __device__ void pt_meet(char *M) {
  unsigned *arrived = (unsigned *)(M + 8);
  volatile unsigned *passed = (volatile unsigned *)(M + 12);
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = *passed;
    __threadfence();
    if (atomicAdd(arrived, 1u) == gridDim.x - 1) {
      *arrived = 0;
      __threadfence();
      *passed = before + 1;
    } else {
      while (*passed == before) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700
        __nanosleep(32);
#endif
      }
    }
    __threadfence();
  }
  __syncthreads();
}
"""

_POWER = r"""
static __device__ i64 pt_power(i64 x, i64 n) {
  u64 base = (u64)x, product = 1;
  for (; n > 0; n >>= 1, base *= base) if (n & 1) product *= base;
  return (i64)product;
}
"""

# log_ndtr loses nothing: erfcx carries the scale of the lower tail.
_LOG_NDTR = r"""
static __device__ double pt_log_ndtr(double x) {
  const double r = 0.70710678118654752440;
  if (x < -1.0) return log(0.5 * erfcx(-x * r)) - 0.5 * x * x;
  return log1p(-0.5 * erfc(x * r));
}
"""

_DIGAMMA = r"""
static __device__ double pt_digamma(double x) {
  if (x == 0.0) return copysign(pt_inf<double>(), -x);
  double y = 0.0;
  if (x < 0.0) {
    const double part = x - rint(x);
    if (part == 0.0 || isinf(x)) return pt_nan<double>();
    y = -3.14159265358979323846 / tan(3.14159265358979323846 * part);
    x = 1.0 - x;
  }
  if (x <= 10.0 && x == floor(x)) {
    for (int i = (int)x - 1; i > 0; --i) y += 1.0 / i;
    return y - 0.57721566490153286061;
  }
  while (x < 10.0) { y -= 1.0 / x; x += 1.0; }
  const double z = 1.0 / (x * x);
  double s = 0.0;
  if (x < 1e17)
    s = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132
        - z * (691.0 / 32760 - z * (1.0 / 12)))))));
  return log(x) - 0.5 / x - s + y;
}
"""

# lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2 for x >= 10, and u - log1p(u).
_STIRLING = r"""
static __device__ double pt_stirling(double x) {
  const double z = 1.0 / (x * x);
  return (1.0 / 12 - z * (1.0 / 360 - z * (1.0 / 1260 - z * (1.0 / 1680 - z * (1.0 / 1188
         - z * (691.0 / 360360 - z * (1.0 / 156))))))) / x;
}
static __device__ double pt_log1p_gap(double u) {
  if (u < -0.4 || u > 0.5) return u - log1p(u);
  const double r = u / (2.0 + u), z = r * r;
  double s = 0.0;
  for (int k = 23; k >= 3; k -= 2) s = s * z + 1.0 / k;
  return r * (u - 2.0 * z * s);
}
"""

_LGAMMA = r"""
static __device__ double pt_lgamma(double x) { return x == -pt_inf<double>() ? x : lgamma(x); }
"""

# SciPy's values at whole numbers below 1: finite where the poles of two gamma functions cancel.
_BETALN = r"""
static __device__ double pt_betaln(double a, double b) {
  const double inf = pt_inf<double>();
  if (a != a || b != b) return a + b;
  if (a <= 0.0 && a == floor(a)) { const double t = a; a = b; b = t; }
  if (b <= 0.0 && b == floor(b)) {
    if (!(a == floor(a) && 1.0 - a - b > 0.0) || fabs(a) > 2147483647.0 || b <= -2147483648.0)
      return inf;
    b = 1.0 - a - b;
    if (a <= 0.0 || b <= 0.0) return inf;
  }
  if (a > b) { const double t = a; a = b; b = t; }
  if (b == inf) return a == inf ? pt_nan<double>() : a > 0.0 ? -inf : inf;
  if (!(a > 0.0) || b < 10.0) return lgamma(a) + lgamma(b) - lgamma(a + b);
  if (a < 10.0)
    return lgamma(a) + pt_stirling(b) - pt_stirling(a + b) - (a + b - 0.5) * log1p(a / b)
           - a * log(b) + a;
  return 0.91893853320467274178 - 0.5 * log(b) + pt_stirling(a) + pt_stirling(b)
         - pt_stirling(a + b) + (a - 0.5) * log(a / (a + b)) - b * log1p(a / b);
}
"""


@functools.cache
def _lgamma1p():
    """lgamma(1 + a) for 0 <= a < 1, by its power series with zeta(k) - 1 instead of zeta(k)."""
    # zeta(k) - 1 by 200 terms and the Euler-Maclaurin formula.
    n, terms = 200, []
    for k in range(2, 60):
        head = sum(i**-k for i in range(n - 1, 1, -1))
        tail = n ** (1 - k) / (k - 1) + 0.5 * n**-k + k * n ** (-k - 1) / 12
        tail -= k * (k + 1) * (k + 2) * n ** (-k - 3) / 720
        terms.append((-1) ** k * (head + tail) / k)
    table = ", ".join(f"{'-' if c < 0 else ''}{abs(c).hex()}" for c in terms)
    return f"""
static __device__ double pt_lgamma1p(double a) {{
  const double terms[{len(terms)}] = {{{table}}};
  double s = 0.0;
  for (int k = {len(terms) - 1}; k >= 0; --k) s = s * a + terms[k];
  return (s * a + 0.42278433509846713939) * a - log1p(a);
}}
"""


# The next term a / (b + ...) of a continued fraction: the factor by which its value changes.
_LENTZ = r"""
static __device__ double pt_lentz(double a, double b, double &c, double &d) {
  d = a * d + b;
  if (fabs(d) < 1e-300) d = 1e-300;
  c = b + a / c;
  if (fabs(c) < 1e-300) c = 1e-300;
  d = 1.0 / d;
  return d * c;
}
"""

_GAMMAINC = r"""
// x**a exp(-x) / Gamma(a + 1)
static __device__ double pt_gamma_term(double a, double x) {
  if (a < 10.0 && x > 1e-25 && x < 500.0) return pow(x, a) * exp(-x) / tgamma(a + 1.0);
  if (a < 10.0) return exp(a * log(x) - x - lgamma(a + 1.0));
  return exp(-a * pt_log1p_gap((x - a) / a) - pt_stirling(a)) / sqrt(6.28318530717958647693 * a);
}
static __device__ double pt_gamma_series(double a, double x) {
  double term = 1.0, sum = 1.0;
  for (double k = a + 1.0; term > sum * 1e-17; k += 1.0) { term *= x / k; sum += term; }
  return pt_gamma_term(a, x) * sum;
}
static __device__ double pt_gamma_fraction(double a, double x) {
  double b = x + 1.0 - a, c = 1e300, d = 1.0 / b, h = d;
  for (int i = 1; i < 100000; ++i) {
    const double an = -i * (i - a);
    b += 2.0;
    const double step = pt_lentz(an, b, c, d);
    h *= step;
    if (fabs(step - 1.0) < 1e-16) break;
  }
  return pt_gamma_term(a, x) * a * h;
}
// Temme's expansion for large a: the upper (+1) or lower (-1) function.
static __device__ double pt_gamma_uniform(double a, double x, double sign) {
  const double mu = (x - a) / a, g = pt_log1p_gap(mu);
  const double eta = copysign(sqrt(2.0 * g), mu);
  const double c0 = -1.0 / 3 + eta * (1.0 / 12 + eta * (-2.0 / 135 + eta * (1.0 / 864
                  + eta * (1.0 / 2835 + eta * (-139.0 / 777600 + eta * (1.0 / 25515
                  + eta * (-571.0 / 261273600)))))));
  const double c1 = -1.0 / 540 + eta * (-1.0 / 288 + eta * (1.0 / 378 + eta * (-77.0 / 77760)));
  const double rest = exp(-a * g) / sqrt(6.28318530717958647693 * a) * (c0 + c1 / a);
  return 0.5 * erfc(sign * eta * sqrt(0.5 * a)) + sign * rest;
}
static __device__ double pt_incomplete_gamma(double a, double x, bool upper) {
  const double inf = pt_inf<double>();
  if (!(a >= 0.0) || !(x >= 0.0) || (a == 0.0 && x == 0.0) || (a == inf && x == inf))
    return pt_nan<double>();
  if (a == 0.0 || x == inf) return upper ? 0.0 : 1.0;
  if (x == 0.0 || a == inf) return upper ? 1.0 : 0.0;
  if (a > 1e5 && fabs(x - a) < 0.1 * a) return pt_gamma_uniform(a, x, upper ? 1.0 : -1.0);
  const bool series = x < 1.1 || x < a;
  if (series && upper && x <= 1.1 && a < 1.0) {
    // 1 - P without cancelling: Gamma(a + 1) P = x**a (1 + a sum) by its alternating series.
    double term = 1.0, sum = 0.0;
    for (int k = 1; k < 60; ++k) { term *= -x / k; sum += term / (a + k); }
    const double power = a * log(x) - pt_lgamma1p(a);
    return -expm1(power) - exp(power) * a * sum;
  }
  const double found = series ? pt_gamma_series(a, x) : pt_gamma_fraction(a, x);
  return series == upper ? 1.0 - found : found;
}
static __device__ double pt_gammainc(double a, double x) {
  return pt_incomplete_gamma(a, x, false);
}
static __device__ double pt_gammaincc(double a, double x) {
  return pt_incomplete_gamma(a, x, true);
}
"""

_BETAINC = r"""
// x**a (1 - x)**b / B(a, b)
static __device__ double pt_beta_term(double a, double b, double x) {
  const double y = 1.0 - x;
  if (a < 10.0 || b < 10.0) return exp(a * log(x) + b * log1p(-x) - pt_betaln(a, b));
  const double lambda = a <= b ? a - (a + b) * x : (a + b) * y - b;
  const double u = pt_log1p_gap(-lambda / a), v = pt_log1p_gap(lambda / b);
  const double correction = pt_stirling(a) + pt_stirling(b) - pt_stirling(a + b);
  return sqrt(a / (a + b) * b / 6.28318530717958647693) * exp(-(a * u + b * v) - correction);
}
static __device__ double pt_beta_fraction(double a, double b, double x) {
  double c = 1.0, d = 1.0 - (a + b) * x / (a + 1.0);
  if (fabs(d) < 1e-300) d = 1e-300;
  d = 1.0 / d;
  double h = d;
  for (int m = 1; m < 100000; ++m) {
    const double even = m / (a + 2.0 * m - 1.0) * ((b - m) / (a + 2.0 * m) * x);
    const double odd = -(a + m) / (a + 2.0 * m) * ((a + b + m) / (a + 2.0 * m + 1.0) * x);
    h *= pt_lentz(even, 1.0, c, d);
    const double step = pt_lentz(odd, 1.0, c, d);
    h *= step;
    if (fabs(step - 1.0) < 1e-16) break;
  }
  return pt_beta_term(a, b, x) * h / a;
}
static __device__ double pt_betainc(double a, double b, double x) {
  const double inf = pt_inf<double>();
  if (!(a >= 0.0) || !(b >= 0.0) || !(x >= 0.0 && x <= 1.0) || (a == 0.0 && b == 0.0)
      || (a == inf && b == inf)) return pt_nan<double>();
  if (x == 0.0 || x == 1.0) return x;
  if (a == 0.0 || b == inf) return 1.0;
  if (b == 0.0 || a == inf) return 0.0;
  if (x <= (a + 1.0) / (a + b + 2.0)) return pt_beta_fraction(a, b, x);
  return 1.0 - pt_beta_fraction(b, a, 1.0 - x);
}
"""

# Power series to 20, where the asymptotic one reaches full precision.
_BESSEL = r"""
static __device__ double pt_bessel_scaled(double x, int order) {
  x = fabs(x);
  if (isinf(x)) return 0.0;
  if (x < 20.0) {
    const double z = 0.25 * x * x;
    double term = order ? 0.5 * x : 1.0, sum = term;
    for (int k = 1; term > sum * 1e-18; ++k) { term *= z / ((double)k * (k + order)); sum += term; }
    return exp(-x) * sum;
  }
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < 40 && fabs(term) > 1e-18; ++k) {
    const double odd = 2.0 * k - 1.0;
    term *= (odd * odd - 4.0 * order) / (8.0 * k * x);
    sum += term;
  }
  return sum / sqrt(6.28318530717958647693 * x);
}
"""
_I0E = r"""
static __device__ double pt_i0e(double x) { return x != x ? x : pt_bessel_scaled(x, 0); }
"""
_I1E = r"""
static __device__ double pt_i1e(double x) {
  return x != x ? x : copysign(pt_bessel_scaled(x, 1), x);
}
"""


@functools.cache
def _zeta():
    """Hurwitz zeta by the Euler-Maclaurin formula; see zeta.py."""
    count = len(bernoulli_terms())
    terms = "\n".join(
        f"  t[{j}] = t[{j - 1}] * ((s + {2 * j - 3}.0) * (s + {2 * j - 2}.0) / (b * b));"
        for j in range(2, count + 1)
    )
    total = "\n".join(
        f"  v += t[{j}] * {c.hex() if c >= 0 else '(-' + (-c).hex() + ')'};"
        for j, c in reversed(list(enumerate(bernoulli_terms(), 1)))
    )
    return f"""
static __device__ double pt_zeta(double s, double q) {{
  const double inf = pt_inf<double>(), nan = pt_nan<double>();
  if (s != s || q != q || s < 1.0) return nan;
  if (s == 1.0 || (q <= 0.0 && floor(q) == q)) return inf;
  if (s == inf) return q < 1.0 ? inf : q == 1.0 ? 1.0 : 0.0;
  if (q == inf) return 0.0;
  if (q < -1e5) return nan;
  double sum = 0.0, b = q;
  while (b < s + 10.0) {{
    const double term = pow(b, -s);
    sum += term;
    b += 1.0;
    if (b > 1.0 && term <= sum * 0x1p-60) break;
  }}
  const double p = pow(b, 1.0 - s);
  if (p == 0.0) return sum;
  double t[{count + 1}], v = 0.0;
  t[1] = s / (b * b);
{terms}
{total}
  return sum + (v + 0.5 / b + 1.0 / (s - 1.0)) * p;
}}
"""


# low + the high word of bits times span.
_INTEGERS = r"""
static __device__ i64 pt_bits_to_integers(i64 bits, i64 low, i64 span) {
  return (i64)(__umul64hi((u64)bits, (u64)span) + (u64)low);
}
"""

_EXCHANGE = r"""
template <class T>
static __device__ void pt_exchange(const unsigned block, const unsigned blocks, T *a, T *b, i64 n) {
  for (i64 i = block * blockDim.x + threadIdx.x; i < n; i += blocks * blockDim.x) {
    const T x = a[i];
    a[i] = b[i];
    b[i] = x;
  }
}
"""

# Name: what it needs first, its text or a function that makes it.
FUNCTIONS = {
    "pt_exchange": ((), _EXCHANGE),
    "pt_bits_to_integers": ((), _INTEGERS),
    "philox pair": ((), PHILOX_PAIR),
    "pt_power": ((), _POWER),
    "pt_philox": ((), PHILOX),
    "pt_log_ndtr": ((), _LOG_NDTR),
    "pt_digamma": ((), _DIGAMMA),
    "pt_zeta": ((), _zeta),
    "stirling": ((), _STIRLING),
    "pt_betaln": (("stirling",), _BETALN),
    "pt_lgamma": ((), _LGAMMA),
    "lgamma1p": ((), _lgamma1p),
    "lentz": ((), _LENTZ),
    "incomplete gamma": (("stirling", "lgamma1p", "lentz"), _GAMMAINC),
    "pt_gammainc": (("incomplete gamma",), ""),
    "pt_gammaincc": (("incomplete gamma",), ""),
    "pt_betainc": (("pt_betaln", "lentz"), _BETAINC),
    "bessel": ((), _BESSEL),
    "pt_i0e": (("bessel",), _I0E),
    "pt_i1e": (("bessel",), _I1E),
}


_DRAW = "pt_draw_"


def knows(name):
    """Return whether there is a function of this name, here or among those written elsewhere."""
    return name in FUNCTIONS or name.startswith(_DRAW) or writable(name)


def runtime_text(names):
    """Return the head of a program that calls the functions of these names."""
    done = {}

    def add(name):
        if name.startswith(_DRAW):
            add("pt_philox")
            add("philox pair")
            done.setdefault(name, draw_text(name.removeprefix(_DRAW)))
            return
        if name not in FUNCTIONS:
            module, text, needs = module_text(name)
            for other in sorted(needs):
                add(other)
            done.setdefault(f"module {module}", text)
            return
        needs, text = FUNCTIONS[name]
        for other in needs:
            add(other)
        done.setdefault(name, text() if callable(text) else text)

    for name in sorted(names):
        add(name)
    return PREAMBLE + "".join(done.values())
