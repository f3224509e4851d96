"""From IR text to callable machine code: `compile_module`.

A module is looked up in the disk cache, otherwise optimised and compiled for this processor; then
it is linked against what it calls: our vector runtime (`render/mathlib.py`), the modules of
`render/runtime`, SciPy's BLAS, LAPACK and special functions (`library`), modules compiled before,
the C library. The engine finds these by reading the module's ``declare`` lines, so a caller only
writes declarations. Read `host` for the steps themselves and their settings.

Settings, by measurement (milliseconds, AVX2 at 2.4 GHz, LLVM 22; a loop of 100 operations with 27
calls of exp, and straight-line functions of 3000 and 10 000 operations, a quarter of them exp):

    level    loop 100    straight 3000    straight 10 000
    0          2              56               284
    1         11             113               444
    2         11             124               509
    3         12             125               509

Level 0 does not vectorise. Level 2 is the default; functions of more than `LARGE_FUNCTION` lines
get level 1, which was 13 % faster for them, for code of the same size. Vectorising straight-line
code (``slp``) cost up to 10 % and found nothing to do: off. Instruction selection above "less"
cost 10 % and changed no byte. The runtime's functions are never inlined: that made compiling six
times slower. A cached module is ready in 0.4 ms; each function of the runtime is one.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from probtorch.compiler.native import cache, host, interrupts, library, threads
from probtorch.compiler.native.host import InternalCompilerError
from probtorch.compiler.native.sources import sources
from probtorch.compiler.render import mathlib, runtime
from probtorch.compiler.render.runtime import interrupts as polls
from probtorch.compiler.render.runtime import pool

__all__ = [
    *("LARGE_FUNCTION", "NativeModule", "compile_module", "load_module", "module_by_sources"),
    *("python_function", "runtime_address", "runtime_function"),
]

# IR lines in one function from which on the level is 1 at most.
LARGE_FUNCTION = 4000

_DECLARE = re.compile(r"^declare [^@\n]*@([\w.$]+)\(", re.MULTILINE)
_DEFINE = re.compile(r"^define (?!internal |private )[^@\n]*@([\w.$]+)\(", re.MULTILINE)
_FUNCTION = re.compile(r"^define .*?^}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class NativeModule:
    """Compiled functions, callable for as long as this record, or a copy of it, lives.

    Attributes
    ----------
    object_bytes : bytes
        The relocatable object code.
    from_cache : bool
        Whether it was read from the disk cache.
    name : str
        Of its entry there, for `load_module`.
    """

    object_bytes: bytes
    from_cache: bool
    name: str
    _loaded: host.LoadedObject
    # Addresses taken from other modules are good only while those live.
    _keep: tuple[object, ...] = ()

    def address(self, name: str) -> int:
        """Return the address of a function that the module defines with external linkage.

        Raises
        ------
        InternalCompilerError
            If it defines none of that name.
        """
        addresses = self._loaded.addresses
        if name not in addresses:
            raise InternalCompilerError(
                f"native module: no function {name!r}",
                expected=f"one of {', '.join(sorted(addresses)) or 'nothing: it defines none'}",
                got=name,
                fix="give the function external linkage in the IR",
            )
        return addresses[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that `address` knows."""
        return tuple(sorted(self._loaded.addresses))


def compile_module(
    ir: str | Callable[[], str],
    *,
    key: str | None = None,
    level: int = 2,
    slp: bool = False,
    symbols: Mapping[str, int] | None = None,
    keep: Iterable[object] = (),
) -> NativeModule:
    """Compile a module of IR text, or load it from the disk cache.

    Parameters
    ----------
    ir : str, or a function that returns it
        A function is called only if the cache has no code, and needs a ``key``.
    key : str, optional
        What the text depends on, in any form, in place of the text itself: the same key must mean
        the same text.
    level : int, 0 to 3
        Optimisation level.
    slp : bool
        Vectorise straight-line code too.
    symbols : mapping of str to int, optional
        Addresses of further functions that the module declares.
    keep : iterable, optional
        Objects that must live as long as the module: the modules that ``symbols`` came from.

    Returns
    -------
    NativeModule

    Raises
    ------
    InternalCompilerError
        If LLVM refuses the text (the message shows the lines around the fault) or a declared
        function is unknown.

    Notes
    -----
    Thread-safe. Functions whose names begin with ``pt_`` come from the runtime and the library
    and are made available here, for cached code too. Calls to them through ``ctypes`` release the
    interpreter lock.
    """
    if key is None and not isinstance(ir, str):
        raise InternalCompilerError(
            "compile_module",
            expected="a key beside a function that renders the IR",
            got="key=None",
            fix="pass key=, a digest of what is rendered",
        )
    given = dict(symbols or {})
    with host.lock:
        if key is None:
            name = cache.key_of(str(ir), level, slp)
        else:
            name = cache.key_by(key, level, slp)
        entry = cache.load(name)
        if entry is not None:
            return _linked(name, entry, given, tuple(keep))
        text = ir if isinstance(ir, str) else ir()
        defined = _DEFINE.findall(text)
        called = [c for c in _DECLARE.findall(text) if not c.startswith("llvm.")]
        # Before compiling: an unknown symbol is the likelier fault, and cheap to find.
        addresses = _resolve(called, given)
        data = host.emit_object(text, level=_suitable(level, text), slp=slp)
        cache.store(name, data, {"defines": defined, "calls": called})
        loaded = host.load_object(data, defined, addresses)
    return NativeModule(data, False, name, loaded, tuple(keep))


def load_module(name: str) -> NativeModule | None:
    """Load a module from the disk cache by the name that it has there; None if it is gone."""
    with host.lock:
        entry = cache.load(name)
        return None if entry is None else _linked(name, entry, {}, ())


def _linked(
    name: str, entry: cache.CacheEntry, given: Mapping[str, int], keep: tuple[object, ...]
) -> NativeModule:
    addresses = _resolve(entry.meta["calls"], given)
    loaded = host.load_object(entry.data, entry.meta["defines"], addresses)
    return NativeModule(entry.data, True, name, loaded, keep)


def _suitable(level: int, text: str) -> int:
    """Lower the level for straight-line giants."""
    if text.count("\n") < LARGE_FUNCTION:
        return level
    largest = max((f.count("\n") for f in _FUNCTION.findall(text)), default=0)
    return min(level, 1) if largest >= LARGE_FUNCTION else level


def _resolve(called: Iterable[str], given: Mapping[str, int]) -> dict[str, int]:
    """Find the address of every called function, or say which one nobody has."""
    found = {name: given[name] for name in called if name in given}
    ours = [name for name in called if name.startswith("pt_") and name not in found]
    # Those first that are found without making tables of all that the others have.
    found.update(library.require(name for name in ours if library.knows(name)))
    vectorised = [name for name in ours if name not in found and mathlib.defines(name)]
    found.update((name, mathlib.address(name)) for name in vectorised)
    for name in (name for name in ours if name not in found and runtime.knows(name)):
        found[name] = _runtime_module(runtime.module_of(name)).address(name)
    for name in called:
        if name not in found:
            address = None if name.startswith("pt_") else host.process_symbol(name)
            if address is None:
                raise InternalCompilerError(
                    f"compiler: a call to the unknown function {name!r}",
                    expected="a function of the runtime, the library, this process or symbols=",
                    got=name,
                    fix="mathlib.FUNCTIONS, render/runtime, library.names() list what there is",
                )
            found[name] = address
    return found


# Modules with a side in Python, which is told where their functions are.
_ATTACHED = {pool.MODULE: threads.attach, polls.MODULE: interrupts.attach}


@functools.cache
def _runtime_module(name: str) -> NativeModule:
    """Link a module of render/runtime, once per process; other code keeps its addresses."""
    module = module_by_sources(name, functools.partial(runtime.module_text, name), sources())
    if name in _ATTACHED:
        _ATTACHED[name](module.address)
    return module


def module_by_sources(name: str, text: Callable[[], str], here: str | None) -> NativeModule:
    """Compile a module whose text follows from its name and from `sources`; None if not known."""
    if here is None:
        return compile_module(text())
    # Not even its text is needed where its code is in the cache.
    return compile_module(text, key=cache.runtime_key(name, here))


def runtime_address(symbol: str) -> int:
    """Return the address of a function of render/runtime, good for the life of the process."""
    with host.lock:
        return _runtime_module(runtime.module_of(symbol)).address(symbol)


def runtime_function(symbol: str) -> Callable[..., int]:
    """Return a function of render/runtime for Python; see `python_function`."""
    return python_function(runtime_address(symbol), *runtime.types_of(symbol))


_TYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "double": ctypes.c_double, "void": None}


def python_function(address: int, result: str, types: Iterable[str]) -> Callable[..., int]:
    """Return a function for Python of what lies at an address; it takes addresses and numbers, and
    the interpreter lock is not held while it runs.
    """
    given = [_TYPES[ty] for ty in types]
    return ctypes.CFUNCTYPE(_TYPES[result], *given)(address)  # type: ignore[arg-type]  # none is void
