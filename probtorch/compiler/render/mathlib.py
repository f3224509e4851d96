"""Our vector runtime: exp, log, log1p, expm1, tanh, Philox and more, for scalars and vectors.

Why: LLVM does not vectorise a loop that calls libm, and inlining polynomials into every loop
makes compiling six times slower. So a generated loop calls ``pt_exp_f64``, a symbol of this
runtime, whose declaration tells the loop vectoriser that ``pt_exp_f64_v4`` does the same for four
lanes. Each function is compiled when a program first needs it, once per machine, and read from the
disk cache after.

Each function below is a formula over `Value`, an IR register with operators; run with width 1 it
writes the scalar function, with width w the function of ``<w x double>``. It is the same
arithmetic in the same order, so a lane of a vector, a loop's remainder and a single call agree
bit for bit. There are no branches: corners are patched with selects at the end.

Accuracy: at most 1 ulp for every argument tried, subnormal results included, with and without
fused multiply-add. The largest errors met among 8 million or more random arguments each, against
80-bit arithmetic for double and double for float (ulp, double / float):

    exp 0.83 / 0.80   log 0.83 / 0.84   log1p 0.84 / 0.84   expm1 0.83 / 0.71   tanh 0.83 / 0.83
    log1p_unit (log1p on [0, 1]) 0.89 / 0.91

Argument reduction follows Cody and Waite (1980), compensated sums Dekker (1971); `formats` has the
polynomials, `registers` the operators. Read `host` for how text becomes code; `core/rng.py` for
the NumPy twin of Philox.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from probtorch.compiler import cache, host
from probtorch.compiler.render import formats, quantile, registers, zeta
from probtorch.compiler.render.formats import F64, FORMATS, Format
from probtorch.compiler.render.registers import LaneWriter, Value, typed
from probtorch.core.rng import INCREMENTS, MULTIPLIERS, ROUNDS

__all__ = [
    *("FUNCTIONS", "address", "declarations", "defines"),
    *("function_ir", "lanes", "names", "philox_ir", "symbols"),
]


# ----------------------------------------------------------------------------------------------
# Formulas: exactly what is computed


def _exp(w: LaneWriter, x: Value) -> Value:
    """exp(x) = 2**n exp(r), with x = n ln 2 + r and |r| <= ln(2) / 2."""
    f = w.format
    x = w.clamp(x, f.underflow, f.overflow)
    n, r, _ = _reduce(w, x)
    # 1 + r in two parts: rounded once more it would cost a quarter ulp.
    high = 1.0 + r
    low = (1.0 - high) + r
    return _scale(w, high + w.fma(r * r, w.polynomial(r, f.exp_tail), low), n)


def _expm1(w: LaneWriter, x: Value) -> Value:
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


def _log(w: LaneWriter, x: Value) -> Value:
    """log(x) = k ln 2 + log(1 + f), with x = 2**k (1 + f) and 1 + f in [sqrt(1/2), sqrt(2))."""
    f = w.format
    subnormal = x < f.smallest_normal
    shift = float(f.mantissa + 2)
    k, m = _split(w, w.select(subnormal, x * 2.0**shift, x))
    k = w.select(subnormal, k - shift, k)
    result = _log_of_split(w, k, m - 1.0, 0.0)
    return _log_corners(w, x, zero=x.equals(0.0), below=x < 0.0, result=result)


def _log1p(w: LaneWriter, x: Value) -> Value:
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


def _log1p_unit(w: LaneWriter, x: Value) -> Value:
    """log1p(x) for x in [0, 1], at half the cost: k ln 2 + log(1 + f) with f in (-1/4, 1/2]."""
    upper = x > 0.5
    f = w.select(upper, (x - 1.0) * 0.5, x)  # exact
    k = w.select(upper, 1.0, 0.0)
    return _log_of_split(w, k, f, 0.0, w.format.log1p_unit_tail)


def _tanh(w: LaneWriter, x: Value) -> Value:
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


def _normal_quantile(w: LaneWriter, p: Value) -> Value:
    return quantile.normal_quantile(w, _log, p)


FUNCTIONS: dict[str, Callable[[LaneWriter, Value], Value]] = {
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "log1p_unit": _log1p_unit,
    "expm1": _expm1,
    "tanh": _tanh,
}


def _reduce(w: LaneWriter, x: Value) -> tuple[Value, Value, Value]:
    """Return n, r and what rounding r lost, with x = n ln 2 + r + lost and |r| <= ln(2) / 2."""
    f = w.format
    n = w.round(x * (1.0 / math.log(2.0)))
    exact = w.fma(n, -f.ln2_high, x)
    r = w.fma(n, -f.ln2_low, exact)
    return n, r, w.fma(n, -f.ln2_low, exact - r)


def _scale(w: LaneWriter, y: Value, n: Value) -> Value:
    """Return y 2**n by two factors: only the second can overflow or lose bits."""
    f = w.format
    # In integers, which leaves the units for floats free; the low bits of n + magic are n.
    whole = w.to_bits(n + f.magic) - w.bits_of(f.magic)
    half = whole.half()
    first, second = (w.from_bits((part + f.bias) << f.mantissa) for part in (half, whole - half))
    return (y * first) * second


def _split(w: LaneWriter, x: Value) -> tuple[Value, Value]:
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
    w: LaneWriter,
    k: Value,
    f: Value,
    correction: Value | float,
    tail_of: tuple[float, ...] | None = None,
) -> Value:
    """Return k ln 2 + log(1 + f) + correction.

    log(1 + f) is 2 atanh(s), s = f / (2 + f), arranged so that f itself keeps all its bits.
    """
    half_square = (f * f) * 0.5
    s = f / (2.0 + f)
    z = s * s
    tail = z * w.polynomial(z, tail_of or w.format.log_tail)
    low = w.fma(k, w.format.ln2_low, correction)
    return k * w.format.ln2_high - ((half_square - w.fma(s, half_square + tail, low)) - f)


def _log_corners(w: LaneWriter, x: Value, zero: Value, below: Value, result: Value) -> Value:
    """-inf at the pole, nan below it, and inf and nan as they came."""
    result = w.select(zero, -math.inf, result)
    result = w.select(below, math.nan, result)
    return w.select(x.not_below(math.inf), x, result)


def _philox(w: LaneWriter, seed: Value, stream: Value, counter: Value) -> Value:
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


def defines(symbol: str) -> bool:
    """Return whether a symbol is the runtime's, scalar or vector."""
    return _name_of(symbol) in _functions()


def address(symbol: str) -> int:
    """Return the address of a function of the runtime, good for the life of the process."""
    with host.lock:
        return _linked(_name_of(symbol)).addresses[symbol]


def _name_of(symbol: str) -> str:
    """The scalar symbol of a function."""
    return re.sub(r"_v\d+$", "", symbol)


@functools.cache
def _linked(name: str) -> host.LoadedObject:
    """Link a function with its variants, cached or compiled; other code keeps its addresses."""
    key = cache.key_of(f"{name} {_fingerprint()}", 2)
    entry = cache.load(key)
    if entry is None:
        entry = cache.Entry(host.emit_object(function_ir(name)), {"symbols": symbols(name)})
        cache.store(key, entry.data, entry.meta)
    return host.load_object(entry.data, entry.meta["symbols"], {})


@functools.cache
def _fingerprint() -> str:
    """Return a text that changes when the runtime does; its IR takes 10 ms to write."""
    parts = [repr((MULTIPLIERS, INCREMENTS, ROUNDS))]
    files = (__file__, *(module.__file__ for module in (formats, quantile, registers, zeta)))
    try:
        parts += [Path(str(file)).read_text(encoding="utf-8") for file in files]
    except OSError:  # imported from an archive
        return "\n".join(map(function_ir, names()))
    return "\n".join(parts)


def function_ir(name: str, *, fused: bool | None = None) -> str:
    """Return the text of a function and its vector variants.

    Parameters
    ----------
    name : str
        Its scalar symbol.
    fused : bool, optional
        Use fused multiply-add; by default if the processor has it.
    """
    if fused is None:
        fused = host.target().has_fma
    function = _functions()[name]
    if function.formula is None:
        return zeta.zeta_ir(_PURE)
    variants = [_define(f"{name}_v{w}", function, w, fused) for w in function.widths]
    return "\n".join([_define(name, function, 1, fused), *variants])


@dataclass(frozen=True)
class _Function:
    """One function of the runtime; arguments and result have the same scalar type."""

    scalar_type: str
    # One letter per argument: v differs from lane to lane, u is the same in all.
    kinds: str
    format: Format = F64
    # None: written elsewhere, as scalar text only.
    formula: Callable[..., Value] | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """Lanes of the vector variants: the widest vector, and half, which short loops choose."""
        if self.formula is None:
            return ()
        full = host.target().vector_bits // self.format.bits
        return tuple(w for w in (full // 2, full) if w > 1)


@functools.cache
def _functions() -> dict[str, _Function]:
    """The contents of the runtime by scalar symbol."""
    table = {
        f"pt_{name}_{f.suffix}": _Function(f.float_type, "v", f, formula)
        for f in FORMATS
        for name, formula in FUNCTIONS.items()
    }
    table["pt_normal_quantile_f64"] = _Function("double", "v", F64, _normal_quantile)
    table["pt_philox"] = _Function("i64", "uuv", F64, _philox)
    table["pt_zeta_f64"] = _Function("double", "vv")
    return table


def names() -> list[str]:
    """Return the scalar symbols of the runtime."""
    return list(_functions())


def symbols(name: str) -> list[str]:
    """Return the symbols of a function, scalar and vector, by its scalar one."""
    return [name, *(f"{name}_v{w}" for w in _functions()[name].widths)]


def _prototype(word: str, name: str, function: _Function, width: int) -> str:
    """Write the head of a declaration or definition, attributes included."""
    result = typed(function.scalar_type, width)
    arguments = ", ".join(
        f"{result if kind == 'v' else function.scalar_type} %a{i}"
        for i, kind in enumerate(function.kinds)
    )
    return f"{word} {result} @{name}({arguments}) {_PURE}"


def _define(name: str, function: _Function, width: int, fused: bool, word: str = "define") -> str:
    """Write one function of the runtime."""
    w = LaneWriter(function.format, width, fused)
    arguments = [
        w.argument(i, function.scalar_type, uniform=kind == "u")
        for i, kind in enumerate(function.kinds)
    ]
    assert function.formula is not None
    result = function.formula(w, *arguments)
    body = "\n".join(f"  {line}" for line in w.lines)
    head = _prototype(word, name, function, width)
    return f"{head} {{\n{body}\n  ret {result.type} {result.name}\n}}\n"
