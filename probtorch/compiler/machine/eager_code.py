"""Native code that eager operations call, by name: draws, and ufuncs for rows.

A ufunc is there from the first call on, or not at all in this process, so that the bits of results
do not change in the middle of a program. What is in the disk cache is linked in a millisecond, with
nothing of the compiler imported that writes code; what is not is compiled then, once per machine.
Without a cache, with compiling switched off or impossible, or on machines whose objects only LLVM
can link (it takes 0.1 s to load), there is none, and NumPy serves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from probtorch.compiler.machine.sequences import SEQUENCES, bits_at, sequence_at
from probtorch.compiler.native import cache, elf, host
from probtorch.compiler.native.sources import sources
from probtorch.compiler.native.ufuncs import ROWS, ufunc
from probtorch.core import doors
from probtorch.errors import CompileError

__all__ = ["native_function"]

# Linked code, which must live as long as the process.
_linked: list[object] = []


@doors.native_code.fill
@functools.cache
def native_function(name: str) -> Callable[..., np.ndarray] | None:
    """Return the function of a name: of draws as `eager_draws` has them, "rows NAME d" for one on
    rows of doubles ("f" of floats), "linked NAME" for draws whose code lies in the cache.
    """
    kind, *rest = name.split()
    if kind == "rows":
        return _row_ufunc(*rest)
    if kind == "linked":
        return _linked_draws(*rest)
    from probtorch.compiler.machine.eager_draws import native_draws

    return native_draws(name)


def _linked_draws(name: str) -> Callable[..., np.ndarray] | None:
    if not elf.is_usable() or cache.directory() is None:
        return None
    if name == "bits":
        loaded = _from_cache("integers")
        return None if loaded is None else bits_at(loaded.addresses["pt_philox_bits"])
    if name not in SEQUENCES:
        return None
    loaded = _from_cache(SEQUENCES[name])
    return None if loaded is None else sequence_at(loaded.addresses[SEQUENCES[name]])


def _row_ufunc(name: str, p: str) -> np.ufunc | None:
    if not elf.is_usable() or cache.directory() is None:
        return None
    (module,) = (m for m, functions in ROWS.items() if name in functions)
    try:
        loop = _address(f"rows {module} {p}", f"pt_rows_{name}_{p}")
    except (CompileError, ImportError, OSError):
        return None
    signature, types = ROWS[module][name]
    return ufunc(name, signature, types.replace("r", p), loop)


def _address(module: str, symbol: str) -> int:
    """Where a function of a module of render/runtime is."""
    loaded = _from_cache(module)
    return _compiled(symbol) if loaded is None else loaded.addresses[symbol]


@functools.cache
def _from_cache(module: str) -> host.LoadedObject | None:
    here = sources()
    # The name that the engine gives it.
    entry = None if here is None else cache.load(cache.key_by(cache.runtime_key(module, here)))
    if entry is None:
        return None
    called = _addresses(entry.meta["calls"])
    if called is None:
        return None
    loaded = host.load_object(entry.data, entry.meta["defines"], called)
    _linked.append(loaded)
    return loaded


def _addresses(called: list[str]) -> dict[str, int] | None:
    """Return where functions of the vector runtime are; None unless all lie in the cache."""
    if not called:
        return {}
    from probtorch.compiler.render import mathlib

    if not all(mathlib.defines(name) and mathlib.lies_in_cache(name) for name in called):
        return None
    return {name: mathlib.address(name) for name in called}


def _compiled(symbol: str) -> int:
    from probtorch.compiler.machine import engine

    return engine.runtime_address(symbol)
