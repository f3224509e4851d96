"""Routines that generated code calls by C pointer: BLAS, LAPACK and special functions.

SciPy exports its BLAS, LAPACK and special functions to Cython as capsules: a C pointer and its
signature as text. Native code can call them without the interpreter lock, and they are the very
routines the eager ops use. Our symbol for each is ``pt_`` and its usual name: ``pt_dgemm``,
``pt_dpotrf``, ``pt_gammaln``.

A special function has several capsules (real, complex, integer orders) whose numbering varies
between SciPy versions, so the one we want is picked by its signature, never by number. SciPy is
imported at the first `require`, and only the module that has what is asked for.

Conventions: BLAS and LAPACK take every argument by pointer, matrices column by column, integers
of `integer_type`. Special functions take and return doubles.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType

from probtorch.compiler.native import host
from probtorch.errors import CompileError
from probtorch.ops.scalar import INTRINSICS

__all__ = [
    "SPECIAL",
    "declaration",
    "integer_type",
    "knows",
    "names",
    "require",
]

_BLAS = ("gemm", "trsm")
_LAPACK = ("geqrf", "gesdd", "gesv", "getrf", "orgqr", "potrf", "syevd")

# The special functions that formulas have from SciPy, and their numbers of arguments.
SPECIAL = {
    name: row.arity
    for row in INTRINSICS.values()
    for where, _, name in [row.llvm.partition(".")]
    if where == "scipy"
}
# And those that our vector runtime asks for what it does not do itself.
SPECIAL |= {"gammaln": 1, "psi": 1}

# Not touching our memory, so calls may be merged and moved out of loops.
_PURE = "nocallback nofree nosync nounwind willreturn memory(none)"


@dataclass(frozen=True)
class _Routine:
    """One C function: its address, and its types in IR."""

    address: int
    result: str
    arguments: tuple[str, ...]
    integer: str


def names() -> tuple[str, ...]:
    """Return every symbol this file can name, whether or not the installed SciPy has it."""
    return tuple(sorted(_places()))


def knows(name: str) -> bool:
    """Return whether the symbol is one of `names`; imports nothing."""
    return name in _places()


def require(wanted: Iterable[str]) -> dict[str, int]:
    """Return the address of each symbol.

    Raises
    ------
    CompileError
        If one is unknown or this SciPy lacks it; the caller then runs eagerly.
    """
    return {name: _routine(name).address for name in wanted}


def declaration(name: str) -> str:
    """Return the IR line that declares a symbol, with its attributes.

    BLAS and LAPACK take ``ptr`` throughout. A special function takes doubles and, last, what
    Cython adds to its signature: an ``i32`` that must be 0, as in ``call double
    @pt_gammaln(double %x, i32 0)``.

    Raises
    ------
    CompileError
        As `require`.
    """
    routine = _routine(name)
    attributes = "nounwind" if "ptr" in routine.arguments else _PURE
    return f"declare {routine.result} @{name}({', '.join(routine.arguments)}) {attributes}"


def integer_type() -> str:
    """Return the IR type of BLAS and LAPACK integers: i32, or i64 in an ILP64 build of SciPy."""
    return _routine("pt_dgemm").integer


@functools.cache
def _places() -> dict[str, tuple[str, str, int]]:
    """Our symbol to SciPy's module, its name there, its number of doubles (0: by pointer)."""
    table = {
        f"pt_{letter}{stem}": (f"scipy.linalg.{module}", f"{letter}{stem}", 0)
        for module, stems in (("cython_blas", _BLAS), ("cython_lapack", _LAPACK))
        for stem in stems
        for letter in "ds"
    }
    for name, arity in SPECIAL.items():
        table[f"pt_{name}"] = ("scipy.special.cython_special", name, arity)
    return table


def _routine(name: str) -> _Routine:
    routine = _find(name) if knows(name) else None
    if routine is None:
        raise CompileError(
            f"library routine {name!r}",
            expected="a routine that the installed SciPy exports to native code",
            got="none of that name and signature",
            fix="upgrade scipy, or let the function run eagerly",
        )
    return routine


@functools.cache
def _find(name: str) -> _Routine | None:
    """Look a symbol up in its SciPy module by name and signature."""
    module_name, theirs, arity = _places()[name]
    with host.lock:
        capsules = _module(module_name).__pyx_capi__
    for key, capsule in capsules.items():
        # Cython's fused functions are numbered: __pyx_fuse_1psi, __pyx_fuse_0_1kn.
        if re.sub(r"^__pyx_fuse(_\d+)+", "", key) == theirs:
            routine = _parse(_capsule_name(capsule), capsule, arity)
            if routine is not None:
                return routine
    return None


def _module(name: str) -> ModuleType:
    """Import a module of SciPy's; those of `scipy.linalg` without the package around them, which
    takes 100 ms and more and which they do not need.
    """
    package = name.rpartition(".")[0]
    if name in sys.modules or package in sys.modules or package != "scipy.linalg":
        return importlib.import_module(name)
    (folder,) = importlib.import_module("scipy").__path__
    spec = PathFinder.find_spec(name, [os.path.join(folder, "linalg")])
    if spec is None or spec.loader is None:
        return importlib.import_module(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    # Whoever imports the package finds this one.
    return sys.modules.setdefault(name, module)


def _parse(text: bytes, capsule: object, arity: int) -> _Routine | None:
    """Read a capsule's signature; None if it is not the one we want."""
    declared = text.decode()
    result, _, inner = declared.removesuffix(")").partition(" (")
    arguments = [_c_type(a) for a in inner.split(", ")]
    integer = "i64" if any(a in ("long *", "int64 *") for a in arguments) else "i32"
    if arity == 0:
        if not all(a.endswith("*") for a in arguments):
            return None
        arguments = ["ptr"] * len(arguments)
    else:
        if result != "double" or arguments not in (
            ["double"] * arity,
            ["double"] * arity + ["int"],
        ):
            return None
        arguments = ["i32" if a == "int" else a for a in arguments]
    result = {"double": "double", "float": "float", "void": "void", "int": "i32"}[_c_type(result)]
    return _Routine(_capsule_pointer(capsule, text), result, tuple(arguments), integer)


def _c_type(text: str) -> str:
    """Reduce a type as Cython writes it (with typedef prefix, parameter name) to plain C."""
    text = text.replace("__pyx_skip_dispatch", "").strip()
    text = re.sub(r"__pyx_t_\w*_d\b", "double", text)
    text = re.sub(r"__pyx_t_\w*_s\b", "float", text)
    return re.sub(r"\b(npy_int64|int64_t|long long|blas_int|CBLAS_INT)\b", "int64", text)


_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
