"""Our vector runtime: exp, log, log1p, expm1, tanh, Philox and more, for scalars and vectors.

Why: LLVM does not vectorise a loop that calls libm, and inlining polynomials into every loop
makes compiling six times slower. So a generated loop calls ``pt_exp_f64``, a symbol of this
runtime, whose declaration tells the loop vectoriser that ``pt_exp_f64_v4`` does the same for four
lanes. The runtime is compiled once per machine and read from the disk cache after.

Each function below is a formula over `_Value`, an IR register with operators; run with width 1 it
writes the scalar function, with width w the function of ``<w x double>``. It is the same
arithmetic in the same order, so a lane of a vector, a loop's remainder and a single call agree
bit for bit. There are no branches: corners are patched with selects at the end.

Accuracy: at most 1 ulp for every argument tried, subnormal results included, with and without
fused multiply-add. The largest errors met among 8 million or more random arguments each, against
80-bit arithmetic for double and double for float (ulp, double / float):

    exp 0.83 / 0.80   log 0.83 / 0.84   log1p 0.84 / 0.84   expm1 0.83 / 0.71   tanh 0.83 / 0.83
    log1p_unit (log1p on [0, 1]) 0.89 / 0.91

The polynomials are minimax fits by Remez exchange in 200-bit arithmetic, coefficients then
rounded to the format; the fitted function and interval stand beside each table. Argument
reduction follows Cody and Waite (1980), compensated sums Dekker (1971). Read `host` for how text
becomes code; `core/rng.py` for the NumPy twin of Philox.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probtorch.compiler import cache, host
from probtorch.compiler.render import quantile, zeta
from probtorch.core.rng import INCREMENTS, MULTIPLIERS, ROUNDS

__all__ = ["FUNCTIONS", "declarations", "ensure_loaded", "lanes", "philox_ir", "runtime_ir"]


@dataclass(frozen=True)
class _Format:
    """What a formula must know about a floating-point format."""

    suffix: str
    float_type: str
    int_type: str
    bits: int
    mantissa: int
    bias: int
    # 1.5 * 2**mantissa: adding it rounds to an integer, which then stands in the low bits.
    magic: float
    # ln 2 in two parts; the first has so many trailing zeros that its product with any exponent is
    # exact.
    ln2_high: float
    ln2_low: float
    # Beyond these, exp is inf and 0, and expm1 is -1.
    overflow: float
    underflow: float
    expm1_saturation: float
    tanh_saturation: float
    # Below this magnitude f(x) rounds to x for log1p, expm1 and tanh.
    negligible: float
    smallest_normal: float
    # (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, relative to exp(r).
    exp_tail: tuple[float, ...]
    # (exp(r) - 1 - r - r**2 / 2) / r**3 there, relative to r.
    expm1_tail: tuple[float, ...]
    # (2 atanh(s) - 2 s) / s**3 as a polynomial in s**2, |s| <= (sqrt(2) - 1) / (sqrt(2) + 1).
    log_tail: tuple[float, ...]
    # The same for |s| <= 1/5.
    log1p_unit_tail: tuple[float, ...]
    # (tanh(x) - x) / x**3 as a polynomial in x**2, |x| <= 0.55.
    tanh_tail: tuple[float, ...]


F64 = _Format(
    suffix="f64",
    float_type="double",
    int_type="i64",
    bits=64,
    mantissa=52,
    bias=1023,
    magic=1.5 * 2.0**52,
    ln2_high=float.fromhex("0x1.62e42fefa3800p-1"),
    ln2_low=float.fromhex("0x1.ef35793c76730p-45"),
    overflow=710.0,
    underflow=-746.0,
    expm1_saturation=-40.0,
    tanh_saturation=20.0,
    negligible=2.0**-54,
    smallest_normal=2.0**-1022,
    exp_tail=(
        0.5000000000000011,
        0.16666666666666413,
        0.04166666666653063,
        0.008333333333494054,
        0.0013888888943521382,
        0.0001984126950716221,
        2.4801493200274483e-05,
        2.755758604503228e-06,
        2.763021530255157e-07,
        2.5000120324260045e-08,
    ),
    expm1_tail=(
        0.16666666666666677,
        0.04166666666666669,
        0.008333333333321745,
        0.0013888888888870282,
        0.00019841269885873517,
        2.4801587355842642e-05,
        2.755724443850642e-06,
        2.755724579938349e-07,
        2.5108963264700163e-08,
        2.0923694651213117e-09,
    ),
    log_tail=(
        0.6666666666666731,
        0.3999999999943622,
        0.2857142873833535,
        0.2222219893829019,
        0.18183547268484523,
        0.15314449255593873,
        0.1479226224627905,
    ),
    log1p_unit_tail=(
        0.666666666666666,
        0.400000000000559,
        0.2857142855601502,
        0.2222222427548372,
        0.18181667124721493,
        0.15391071406775825,
        0.13174276987909503,
        0.1383847514890804,
    ),
    tanh_tail=(
        -0.333333333333333,
        0.1333333333332689,
        -0.05396825396390498,
        0.021869488389721248,
        -0.008863232661349463,
        0.0035920926072859558,
        -0.0014555464067148324,
        0.0005884585939892934,
        -0.00023341625194369764,
        8.336462658389253e-05,
        -1.9523579548353118e-05,
    ),
)

F32 = _Format(
    suffix="f32",
    float_type="float",
    int_type="i32",
    bits=32,
    mantissa=23,
    bias=127,
    magic=1.5 * 2.0**23,
    ln2_high=float.fromhex("0x1.62e4p-1"),
    ln2_low=float.fromhex("0x1.7f7d1cp-20"),
    overflow=89.0,
    underflow=-104.0,
    expm1_saturation=-18.0,
    tanh_saturation=10.0,
    negligible=2.0**-25,
    smallest_normal=2.0**-126,
    exp_tail=(
        0.4999999347263959,
        0.16666520706077845,
        0.041668383141142865,
        0.00836870996214131,
        0.001381483263589319,
    ),
    expm1_tail=(
        0.1666666677219849,
        0.04166648207470848,
        0.008333282185986291,
        0.0013933307728459363,
        0.0001990967486507705,
    ),
    log_tail=(
        0.6666666566441577,
        0.40000331919869014,
        0.2853747880557772,
        0.23579393027881104,
    ),
    log1p_unit_tail=(
        0.6666666269302368,
        0.4000086188316345,
        0.28507134318351746,
        0.24098454415798187,
    ),
    tanh_tail=(
        -0.33333318085116515,
        0.1333260265740265,
        -0.05385393711389641,
        0.021078019735149042,
        -0.006282774307636661,
    ),
)

_FORMATS = (F64, F32)


# ----------------------------------------------------------------------------------------------
# Formulas: exactly what is computed


def _exp(w: _Writer, x: _Value) -> _Value:
    """exp(x) = 2**n exp(r), with x = n ln 2 + r and |r| <= ln(2) / 2."""
    f = w.format
    x = w.clamp(x, f.underflow, f.overflow)
    n, r, _ = _reduce(w, x)
    # 1 + r in two parts: rounded once more it would cost a quarter ulp.
    high = 1.0 + r
    low = (1.0 - high) + r
    return _scale(w, high + w.fma(r * r, w.polynomial(r, f.exp_tail), low), n)


def _expm1(w: _Writer, x: _Value) -> _Value:
    """expm1(x) = 2**n ((1 - 2**-n) + r + r**2 / 2 + r**3 q(r)).

    The first three are added exactly. They must be: at n = -1 and n = 1 the sum is small, and
    errors of r**2 / 2 alone would pass 1 ulp.
    """
    f = w.format
    clamped = w.clamp(x, f.expm1_saturation, f.overflow)
    n, r, r_low = _reduce(w, clamped)
    # 2**-64 is as good as anything smaller, and 2**-1024 has no exponent field.
    back = w.power_of_two(-w.select(n > 64.0, 64.0, n))
    y = 1.0 - back
    y_low = (1.0 - y) - back
    # r with half its bits has an exact square.
    grid = f.magic * 2.0 ** -((f.mantissa + 1) // 2)
    half = (r + grid) - grid
    square = (half * half) * 0.5
    square_low = ((r - half) * (r + half)) * 0.5
    cubic = ((r * r) * r) * w.polynomial(r, f.expm1_tail)
    # Fast two-sums: |y| >= 1/2 > |r| unless n = 0, where y = 0; and |y + r| > 0.15 > r**2 / 2
    # unless n = 0.
    s = y + r
    s_low = (y - s) + r
    t = s + square
    t_low = (s - t) + square
    result = _scale(w, t + (cubic + (square_low + ((t_low + s_low) + (r_low + y_low)))), n)
    return w.select(abs(x) < f.negligible, x, result)


def _log(w: _Writer, x: _Value) -> _Value:
    """log(x) = k ln 2 + log(1 + f), with x = 2**k (1 + f) and 1 + f in [sqrt(1/2), sqrt(2))."""
    f = w.format
    subnormal = x < f.smallest_normal
    shift = float(f.mantissa + 2)
    k, m = _split(w, w.select(subnormal, x * 2.0**shift, x))
    k = w.select(subnormal, k - shift, k)
    result = _log_of_split(w, k, m - 1.0, 0.0)
    return _log_corners(w, x, zero=x.equals(0.0), below=x < 0.0, result=result)


def _log1p(w: _Writer, x: _Value) -> _Value:
    """log1p(x) = log(u) + (what rounding 1 + x to u lost) / u."""
    u = 1.0 + x
    part = u - 1.0
    lost = (1.0 - (u - part)) + (x - part)
    k, m = _split(w, u)
    near = k.equals(0.0)
    # With k = 0 nothing need be rounded: f is x itself.
    result = _log_of_split(w, k, w.select(near, x, m - 1.0), w.select(near, 0.0, lost / u))
    result = w.select(abs(x) < w.format.negligible, x, result)
    return _log_corners(w, x, zero=x.equals(-1.0), below=x < -1.0, result=result)


def _log1p_unit(w: _Writer, x: _Value) -> _Value:
    """log1p(x) for x in [0, 1], at half the cost: k ln 2 + log(1 + f) with f in (-1/4, 1/2]."""
    upper = x > 0.5
    f = w.select(upper, (x - 1.0) * 0.5, x)  # exact
    k = w.select(upper, 1.0, 0.0)
    return _log_of_split(w, k, f, 0.0, w.format.log1p_unit_tail)


def _tanh(w: _Writer, x: _Value) -> _Value:
    """An odd polynomial below 0.55, above it 1 - 2 / (exp(2 |x|) + 1) with exp in two parts."""
    f = w.format
    a = abs(x)
    square = x * x
    small = w.fma(x, square * w.polynomial(square, f.tanh_tail), x)

    n, r, r_low = _reduce(w, w.clamp(a, 0.0, f.tanh_saturation) * 2.0)
    tail = w.fma(r * r, w.polynomial(r, f.exp_tail), r_low)
    y = r + tail
    y_low = (r - y) + tail
    high = 1.0 + y
    low = ((1.0 - high) + y) + y_low
    p = w.power_of_two(n)
    e = high * p
    d = e + 1.0
    d_low = ((e - d) + 1.0) + low * p
    q = 2.0 / d
    t = 1.0 - q
    # 2 / (d + d_low) is q - q**2 d_low / 2 to first order.
    t_low = ((1.0 - t) - q) + (q * q) * (d_low * 0.5)
    return w.copysign(w.select(a < 0.55, small, t + t_low), x)


def _normal_quantile(w: _Writer, p: _Value) -> _Value:
    return quantile.normal_quantile(w, _log, p)


FUNCTIONS: dict[str, Callable[[_Writer, _Value], _Value]] = {
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "log1p_unit": _log1p_unit,
    "expm1": _expm1,
    "tanh": _tanh,
}


def _reduce(w: _Writer, x: _Value) -> tuple[_Value, _Value, _Value]:
    """Return n, r and what rounding r lost, with x = n ln 2 + r + lost and |r| <= ln(2) / 2."""
    f = w.format
    n = w.round(x * (1.0 / math.log(2.0)))
    exact = w.fma(n, -f.ln2_high, x)
    r = w.fma(n, -f.ln2_low, exact)
    return n, r, w.fma(n, -f.ln2_low, exact - r)


def _scale(w: _Writer, y: _Value, n: _Value) -> _Value:
    """Return y 2**n by two factors: only the second can overflow or lose bits."""
    f = w.format
    # In integers, which leaves the units for floats free; the low bits of n + magic are n.
    whole = w.to_bits(n + f.magic) - w.bits_of(f.magic)
    half = whole.half()
    first, second = (w.from_bits((part + f.bias) << f.mantissa) for part in (half, whole - half))
    return (y * first) * second


def _split(w: _Writer, x: _Value) -> tuple[_Value, _Value]:
    """Return k and m with x = 2**k m and m in [sqrt(1/2), sqrt(2)), for positive normal x."""
    f = w.format
    root = w.bits_of(math.sqrt(0.5))
    # Moved up by 1 - sqrt(1/2), in steps of the last place, the exponent field itself is k + bias.
    moved = w.to_bits(x) + (w.bits_of(1.0) - root)
    field = moved >> f.mantissa
    m = w.from_bits((moved & ((1 << f.mantissa) - 1)) + root)
    # An integer below 2**mantissa, put into the low bits of 2**mantissa, becomes a float without a
    # conversion.
    k = w.from_bits(field | w.bits_of(2.0**f.mantissa)) - (2.0**f.mantissa + f.bias)
    return k, m


def _log_of_split(
    w: _Writer,
    k: _Value,
    f: _Value,
    correction: _Value | float,
    tail_of: tuple[float, ...] | None = None,
) -> _Value:
    """Return k ln 2 + log(1 + f) + correction.

    log(1 + f) is 2 atanh(s), s = f / (2 + f), arranged so that f itself keeps all its bits.
    """
    half_square = (f * f) * 0.5
    s = f / (2.0 + f)
    z = s * s
    tail = z * w.polynomial(z, tail_of or w.format.log_tail)
    low = w.fma(k, w.format.ln2_low, correction)
    return k * w.format.ln2_high - ((half_square - w.fma(s, half_square + tail, low)) - f)


def _log_corners(w: _Writer, x: _Value, zero: _Value, below: _Value, result: _Value) -> _Value:
    """-inf at the pole, nan below it, and inf and nan as they came."""
    result = w.select(zero, -math.inf, result)
    result = w.select(below, math.nan, result)
    return w.select(x.not_below(math.inf), x, result)


def _philox(w: _Writer, seed: _Value, stream: _Value, counter: _Value) -> _Value:
    """Philox4x32-10 on 32-bit words held in 64-bit lanes, whose products are then exact."""
    low = 0xFFFFFFFF
    k0, k1 = seed & low, seed >> 32
    c0, c1, c2, c3 = counter & low, counter >> 32, stream & low, stream >> 32
    for i in range(ROUNDS):
        if i > 0:
            k0, k1 = (k0 + INCREMENTS[0]) & low, (k1 + INCREMENTS[1]) & low
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & low, (p0 >> 32) ^ c3 ^ k1, p0 & low
    return c0 | (c1 << 32)


# ----------------------------------------------------------------------------------------------
# What a generated module asks for

# Pure and total, so calls may be moved, merged and made earlier than the branch that guards them.
_PURE = "nocallback nofree nosync nounwind speculatable willreturn memory(none)"


def lanes(dtype: str) -> int:
    """Return the lanes of a host vector of "float64", "float32", "int64" or "int32"."""
    sizes = {"float64": 64, "int64": 64, "float32": 32, "int32": 32}
    return host.target().vector_bits // sizes[str(dtype)]


def declarations(names: Iterable[str]) -> str:
    """Return the IR that a module needs in order to call runtime functions.

    Parameters
    ----------
    names : iterable of str
        Scalar symbols: ``pt_exp_f64``, ``pt_tanh_f32``, ..., ``pt_philox``, ``pt_zeta_f64``.

    Returns
    -------
    str
        Declarations of the scalar functions, with the attribute that maps them to their vector
        variants, declarations of these, and ``@llvm.compiler.used``, which keeps the variants
        until the loop vectoriser has run. A module may hold that variable once: call this once
        per module, with all names.

    Raises
    ------
    KeyError
        If a name is none of ours.
    """
    table = _functions()
    lines, variants = [], []
    for name in sorted(set(names)):
        function = table[name]
        mapped = []
        for w in function.widths:
            variant = f"{name}_v{w}"
            lines.append(_prototype("declare", variant, function, w))
            mapped.append(f"_ZGV_LLVM_N{w}{function.kinds}_{name}({variant})")
            variants.append(f"ptr @{variant}")
        mapping = f' "vector-function-abi-variant"="{",".join(mapped)}"' if mapped else ""
        lines.append(_prototype("declare", name, function, 1) + mapping)
    if variants:
        used = f"[{len(variants)} x ptr] [{', '.join(variants)}]"
        lines.append(f'@llvm.compiler.used = appending global {used}, section "llvm.metadata"')
    return "\n".join(lines) + "\n"


def philox_ir() -> str:
    """Return a definition of ``pt_philox`` with internal linkage, to be inlined in a module."""
    return _define("pt_philox", _functions()["pt_philox"], 1, False, "define internal")


@functools.cache
def ensure_loaded() -> Mapping[str, int]:
    """Load the runtime, cached or compiled, and return the address of each of its symbols.

    The work is done once per process.
    """
    with host.lock:
        key = cache.key_of(_fingerprint(), 2)
        entry = cache.load(key)
        if entry is None:
            entry = cache.Entry(host.emit_object(runtime_ir()), {"symbols": symbols()})
            cache.store(key, entry.data, entry.meta)
        loaded = host.load_object(entry.data, entry.meta["symbols"], {})
        # The runtime is never unloaded: other code has its addresses.
        _loaded.append(loaded)
        return loaded.addresses


_loaded: list[host.LoadedObject] = []


def _fingerprint() -> str:
    """Return a text that changes when the runtime does; its whole IR takes 10 ms to write."""
    parts = [repr((MULTIPLIERS, INCREMENTS, ROUNDS))]
    try:
        parts += [
            Path(file).read_text(encoding="utf-8")
            for file in (__file__, quantile.__file__, zeta.__file__)
        ]
    except OSError:  # imported from an archive
        return runtime_ir()
    return "\n".join(parts)


def runtime_ir(*, fused: bool | None = None) -> str:
    """Return the text of the whole runtime.

    Parameters
    ----------
    fused : bool, optional
        Use fused multiply-add; by default if the processor has it.
    """
    if fused is None:
        fused = host.target().has_fma
    text = [zeta.zeta_ir(_PURE)]
    for name, function in _functions().items():
        if function.formula is not None:
            text.append(_define(name, function, 1, fused))
            text += [_define(f"{name}_v{w}", function, w, fused) for w in function.widths]
    return "\n".join(text)


@dataclass(frozen=True)
class _Function:
    """One function of the runtime; arguments and result have the same scalar type."""

    scalar_type: str
    # One letter per argument: v differs from lane to lane, u is the same in all.
    kinds: str
    format: _Format = F64
    # None: written elsewhere, as scalar text only.
    formula: Callable[..., _Value] | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """Lanes of the vector variants: the widest vector, and half, which short loops choose."""
        if self.formula is None:
            return ()
        full = host.target().vector_bits // self.format.bits
        return tuple(w for w in (full // 2, full) if w > 1)


def _functions() -> dict[str, _Function]:
    """The contents of the runtime by scalar symbol."""
    table = {
        f"pt_{name}_{f.suffix}": _Function(f.float_type, "v", f, formula)
        for f in _FORMATS
        for name, formula in FUNCTIONS.items()
    }
    table["pt_normal_quantile_f64"] = _Function("double", "v", F64, _normal_quantile)
    table["pt_philox"] = _Function("i64", "uuv", F64, _philox)
    table["pt_zeta_f64"] = _Function("double", "vv")
    return table


def symbols() -> list[str]:
    """Return all symbols of the runtime, scalar and vector."""
    return [
        symbol
        for name, function in _functions().items()
        for symbol in (name, *(f"{name}_v{w}" for w in function.widths))
    ]


def _typed(scalar_type: str, width: int) -> str:
    return scalar_type if width == 1 else f"<{width} x {scalar_type}>"


def _prototype(word: str, name: str, function: _Function, width: int) -> str:
    """Write the head of a declaration or definition, attributes included."""
    result = _typed(function.scalar_type, width)
    arguments = ", ".join(
        f"{result if kind == 'v' else function.scalar_type} %a{i}"
        for i, kind in enumerate(function.kinds)
    )
    return f"{word} {result} @{name}({arguments}) {_PURE}"


def _define(name: str, function: _Function, width: int, fused: bool, word: str = "define") -> str:
    """Write one function of the runtime."""
    w = _Writer(function.format, width, fused)
    arguments = [
        w.argument(i, function.scalar_type, uniform=kind == "u")
        for i, kind in enumerate(function.kinds)
    ]
    assert function.formula is not None
    result = function.formula(w, *arguments)
    body = "\n".join(f"  {line}" for line in w.lines)
    head = _prototype(word, name, function, width)
    return f"{head} {{\n{body}\n  ret {result.type} {result.name}\n}}\n"


# ----------------------------------------------------------------------------------------------
# IR registers with operators


class _Value:
    """An IR register or constant; operators write the instruction and return its register."""

    __slots__ = ("is_float", "name", "writer")

    def __init__(self, writer: _Writer, name: str, is_float: bool) -> None:
        self.writer, self.name, self.is_float = writer, name, is_float

    @property
    def type(self) -> str:
        f = self.writer.format
        return _typed(f.float_type if self.is_float else f.int_type, self.writer.width)

    def _binary(self, op: str, other: _Value | float, swap: bool = False) -> _Value:
        right = self.writer.value(other, self.is_float)
        a, b = (right, self) if swap else (self, right)
        prefix = "f" if self.is_float and op in ("add", "sub", "mul", "div") else ""
        return self.writer.emit(f"{prefix}{op} {self.type} {a.name}, {b.name}", self.is_float)

    def _compare(self, predicate: str, other: float) -> _Value:
        right = self.writer.value(other, True)
        return self.writer.emit(f"fcmp {predicate} {self.type} {self.name}, {right.name}", True)

    def __add__(self, other: _Value | float) -> _Value:
        return self._binary("add", other)

    def __sub__(self, other: _Value | float) -> _Value:
        return self._binary("sub", other)

    def __mul__(self, other: _Value | float) -> _Value:
        return self._binary("mul", other)

    def __truediv__(self, other: _Value) -> _Value:
        return self._binary("div", other)

    def __radd__(self, other: float) -> _Value:
        return self._binary("add", other, swap=True)

    def __rsub__(self, other: float) -> _Value:
        return self._binary("sub", other, swap=True)

    def __rtruediv__(self, other: float) -> _Value:
        return self._binary("div", other, swap=True)

    def __neg__(self) -> _Value:
        return self.writer.emit(f"fneg {self.type} {self.name}", True)

    def __abs__(self) -> _Value:
        return self.writer.intrinsic("fabs", self)

    def __and__(self, other: int) -> _Value:
        return self._binary("and", other)

    def __or__(self, other: _Value | int) -> _Value:
        return self._binary("or", other)

    def __xor__(self, other: _Value) -> _Value:
        return self._binary("xor", other)

    def __rshift__(self, count: int) -> _Value:
        return self._binary("lshr", count)

    def __lshift__(self, count: int) -> _Value:
        return self._binary("shl", count)

    def half(self) -> _Value:
        """The integer over 2, rounded down."""
        return self._binary("ashr", 1)

    def __lt__(self, other: float) -> _Value:
        return self._compare("olt", other)

    def __gt__(self, other: float) -> _Value:
        return self._compare("ogt", other)

    def equals(self, other: float) -> _Value:
        return self._compare("oeq", other)

    def not_below(self, other: float) -> _Value:
        """True where the value is at least ``other``, and for nan."""
        return self._compare("uge", other)


class _Writer:
    """The body of one function, for one format and width."""

    def __init__(self, f: _Format, width: int, fused: bool) -> None:
        self.format, self.width, self.fused = f, width, fused
        self.lines: list[str] = []

    def emit(self, instruction: str, is_float: bool) -> _Value:
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return _Value(self, name, is_float)

    def argument(self, index: int, scalar_type: str, *, uniform: bool) -> _Value:
        """The argument as a value of the function's width; a uniform one is copied to all lanes."""
        is_float = scalar_type == self.format.float_type
        value = _Value(self, f"%a{index}", is_float)
        if not uniform or self.width == 1:
            return value
        one = f"insertelement {value.type} poison, {scalar_type} {value.name}, i32 0"
        first = self.emit(one, is_float)
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.emit(
            f"shufflevector {value.type} {first.name}, {value.type} poison, {zeros}", is_float
        )

    def value(self, x: _Value | float, is_float: bool) -> _Value:
        """A value as it is, a Python number as a constant in all lanes."""
        if isinstance(x, _Value):
            return x
        if is_float:
            scalar_type, text = self.format.float_type, _float_text(x, self.format)
        else:
            scalar_type, text = self.format.int_type, str(int(x))
        if self.width > 1:
            text = f"<{', '.join([f'{scalar_type} {text}'] * self.width)}>"
        return _Value(self, text, is_float)

    def intrinsic(self, name: str, *arguments: _Value) -> _Value:
        scalar = f".v{self.width}" if self.width > 1 else "."
        scalar = f"{scalar}{self.format.suffix}"
        typed = ", ".join(f"{a.type} {a.name}" for a in arguments)
        return self.emit(f"call {arguments[0].type} @llvm.{name}{scalar}({typed})", True)

    def fma(self, a: _Value, b: _Value | float, c: _Value | float) -> _Value:
        """Return a b + c, rounded once where the processor can, and twice elsewhere."""
        b, c = self.value(b, True), self.value(c, True)
        return self.intrinsic("fma", a, b, c) if self.fused else a * b + c

    def polynomial(self, x: _Value, coefficients: Sequence[_Value | float]) -> _Value:
        """Evaluate by Estrin's scheme, for latency, but the last step by Horner, for accuracy."""
        first, *terms = [self.value(c, True) for c in coefficients]
        power = x
        while len(terms) > 1:
            pairs = [self.fma(power, b, a) for a, b in zip(terms[::2], terms[1::2])]
            terms = pairs + terms[len(terms) & ~1 :]
            power = power * power if len(terms) > 1 else power
        return self.fma(x, terms[0], first)

    def select(self, condition: _Value, a: _Value | float, b: _Value | float) -> _Value:
        a, b = self.value(a, True), self.value(b, True)
        flag = _typed("i1", self.width)
        return self.emit(
            f"select {flag} {condition.name}, {a.type} {a.name}, {b.type} {b.name}", True
        )

    def clamp(self, x: _Value, low: float, high: float) -> _Value:
        """Limit to [low, high]; nan stays nan because it compares false."""
        x = self.select(x < low, low, x)
        return self.select(x > high, high, x)

    def copysign(self, x: _Value, sign: _Value) -> _Value:
        return self.intrinsic("copysign", x, sign)

    def round(self, x: _Value) -> _Value:
        """Round to the nearest integer, |x| < 2**(mantissa - 2)."""
        return (x + self.format.magic) - self.format.magic

    def power_of_two(self, n: _Value) -> _Value:
        """Return 2**n for an integer-valued n in the range of normal exponents."""
        f = self.format
        # The low bits of n + magic are n; the shift drops all others.
        return self.from_bits((self.to_bits(n + f.magic) + f.bias) << f.mantissa)

    def to_bits(self, x: _Value) -> _Value:
        integer = _Value(self, "", False).type
        return self.emit(f"bitcast {x.type} {x.name} to {integer}", False)

    def from_bits(self, x: _Value) -> _Value:
        real = _Value(self, "", True).type
        return self.emit(f"bitcast {x.type} {x.name} to {real}", True)

    def bits_of(self, x: float) -> int:
        """The integer whose bits are the float's, in this format."""
        pack = ("<d", "<q") if self.format.bits == 64 else ("<f", "<i")
        return struct.unpack(pack[1], struct.pack(pack[0], x))[0]


def _float_text(x: float, f: _Format) -> str:
    """An exact IR literal: the bits of a double, also for float, whose value it then is."""
    if f.bits == 32 and math.isfinite(x):
        x = struct.unpack("<f", struct.pack("<f", x))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
