"""Our vector runtime: exp, log, log1p, expm1, tanh, Philox and more, for scalars and vectors.

Why: LLVM does not vectorise a loop that calls libm, and inlining polynomials into every loop
makes compiling six times slower. So a generated loop calls ``pt_exp_f64``, a symbol of this
runtime, whose declaration tells the loop vectoriser that ``pt_exp_f64_v4`` does the same for four
lanes. Each function is compiled when a program first needs it, once per machine, and read from the
disk cache after.

Each function is a routine of the kernel language (`lang/routines/elementary.py`); printed with
width 1 it is the scalar function, with width w the function of ``<w x double>``. It is the same
arithmetic in the same order, so a lane of a vector, a loop's remainder and a single call agree
bit for bit.

Accuracy: at most 1 ulp for every argument tried, subnormal results included, with and without
fused multiply-add. The largest errors met among 8 million or more random arguments each, against
80-bit arithmetic for double and double for float (ulp, double / float):

    exp 0.83 / 0.80   log 0.83 / 0.84   log1p 0.84 / 0.84   expm1 0.83 / 0.71   tanh 0.83 / 0.83
    log1p_unit (log1p on [0, 1]) 0.89 / 0.91

`lang/routines/doubles.py` has sin, cos, pow, erf, erfc, lgamma and digamma, of doubles alone.

Read `host` for how text becomes code.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.llvm import LlvmModule, LlvmPrinter, typed
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.doubles import DOUBLES, power
from probtorch.compiler.lang.routines.elementary import FUNCTIONS
from probtorch.compiler.lang.routines.formats import F64, FORMATS, Format
from probtorch.compiler.lang.routines.philox import philox
from probtorch.compiler.lang.routines.quantile import normal_of_uniform, normal_quantile
from probtorch.compiler.lang.routines.zeta import zeta
from probtorch.compiler.native import cache, host, library
from probtorch.compiler.native.sources import sources

__all__ = [
    *("DOUBLES", "FUNCTIONS", "address", "calls", "declarations", "defines"),
    *("function_ir", "lies_in_cache", "names", "symbols"),
]


# ----------------------------------------------------------------------------------------------
# What a generated module asks for

# Pure and total, so calls may be moved, merged and made earlier than the branch that guards them.
_PURE = "nocallback nofree nosync nounwind speculatable willreturn memory(none)"


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


def defines(symbol: str) -> bool:
    """Return whether a symbol is the runtime's, scalar or vector."""
    return _name_of(symbol) in _functions()


def address(symbol: str) -> int:
    """Return the address of a function of the runtime, good for the life of the process."""
    with host.lock:
        return _linked(_name_of(symbol)).addresses[symbol]


def lies_in_cache(symbol: str) -> bool:
    """Whether a function of the runtime needs no compiling."""
    return cache.load(_key(_name_of(symbol))) is not None


def _name_of(symbol: str) -> str:
    """The scalar symbol of a function."""
    name, _, width = symbol.rpartition("_v")
    return name if width.isdecimal() else symbol


def _key(name: str) -> str:
    return cache.key_of(f"{name} {_fingerprint()}", 2)


@functools.cache
def _linked(name: str) -> host.LoadedObject:
    """Link a function with its variants, cached or compiled; other code keeps its addresses."""
    key = _key(name)
    entry = cache.load(key)
    if entry is None:
        text = function_ir(name)
        meta = {"symbols": symbols(name), "calls": calls(text)}
        entry = cache.CacheEntry(host.emit_object(text), meta)
        cache.store(key, entry.data, entry.meta)
    addresses = library.require(entry.meta["calls"])
    return host.load_object(entry.data, entry.meta["symbols"], addresses)


def calls(ir: str) -> list[str]:
    """Return the routines of the library that a text declares."""
    return sorted(set(filter(library.knows, re.findall(r"^declare .*@(pt_\w+)\(", ir, re.M))))


@functools.cache
def _fingerprint() -> str:
    """Return a text that changes when the runtime does; its IR takes 10 ms to write."""
    return sources() or hashlib.sha256("\n".join(map(function_ir, names())).encode()).hexdigest()


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
    here = host.target()
    scales = here.vector_bits == 512 and here.runs_here  # which only AVX-512 has
    function = _functions()[name]
    module = LlvmModule()
    for symbol, width in zip(symbols(name), (1, *function.widths), strict=True):
        _define(module, symbol, function, LlvmPrinter(width, fused, scales))
    return module.text()


@dataclass(frozen=True)
class _Function:
    """One function of the runtime; arguments and result have the same scalar type."""

    scalar_type: str
    # One letter per argument: v differs from lane to lane, u is the same in all.
    kinds: str
    formula: Callable[..., Value]
    format: Format = F64
    # Whether it has a loop, whose rounds differ from lane to lane.
    loops: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Lanes of the vector variants: the widest vector, and half, which short loops choose."""
        if self.loops:
            return ()
        full = host.target().vector_bits // self.format.bits
        return tuple(w for w in (full // 2, full) if w > 1)


def _for_format(formula: Callable[..., Value], f: Format) -> Callable[..., Value]:
    return lambda w, x: formula(w, f, x)


@functools.cache
def _functions() -> dict[str, _Function]:
    """The contents of the runtime by scalar symbol."""
    table = {
        f"pt_{name}_{f.suffix}": _Function(f.float_type, "v", _for_format(formula, f), f)
        for f in FORMATS
        for name, formula in FUNCTIONS.items()
    }
    for name, routine in DOUBLES.items():
        kinds = "vv" if name == "pow" else "v"
        table[f"pt_{name}_f64"] = _Function("double", kinds, routine)
    quantile = _for_format(normal_quantile, F64)
    table["pt_normal_quantile_f64"] = _Function("double", "v", quantile)
    table["pt_normal_of_uniform"] = _Function("double", "v", normal_of_uniform)
    table["pt_philox"] = _Function("i64", "uuv", philox)
    table["pt_zeta_f64"] = _Function(
        "double", "vv", functools.partial(zeta, power=power), loops=True
    )
    return table


def names() -> list[str]:
    """Return the scalar symbols of the runtime."""
    return list(_functions())


def symbols(name: str) -> list[str]:
    """Return the symbols of a function, scalar and vector, by its scalar one."""
    return [name, *(f"{name}_v{w}" for w in _functions()[name].widths)]


def _prototype(word: str, name: str, function: _Function, width: int) -> str:
    """Write the head of a declaration, attributes included."""
    result = typed(function.scalar_type, width)
    arguments = ", ".join(
        f"{result if kind == 'v' else function.scalar_type} %a{i}"
        for i, kind in enumerate(function.kinds)
    )
    return f"{word} {result} @{name}({arguments}) {_PURE}"


def _define(module: LlvmModule, name: str, function: _Function, printer: LlvmPrinter) -> None:
    """Write one function of the runtime."""
    w = KernelFunction(
        module,
        printer,
        name,
        function.scalar_type,
        [function.scalar_type] * len(function.kinds),
        attributes=_PURE,
        flags="",
        uniform=[i for i, kind in enumerate(function.kinds) if kind == "u"],
    )
    w.default = function.scalar_type
    arguments = [
        printer.splat(w, a) if kind == "u" else a
        for kind, a in zip(function.kinds, w.arguments, strict=True)
    ]
    w.finish(function.formula(w, *arguments))
