"""The runtime's larger functions: sorting, products, factorisations, integrals, draws, threads.

They are written in the kernel language, in modules that are compiled once per machine and read from
the disk cache after. A generated program calls them by symbol, so an op that uses one adds a call
to its text and nothing to the time of compiling it. Each module is linked when the first program
asks for one of its functions (`engine`).

Functions of numbers alone may be merged and moved by LLVM; the others work on arrays.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.routines.incomplete import INCOMPLETE
from probtorch.compiler.lang.routines.sorting import SORTING
from probtorch.compiler.lang.routines.sparse import SPARSE
from probtorch.compiler.render import mathlib
from probtorch.compiler.render.runtime import (
    draws,
    interrupts,
    matrices,
    pool,
    products,
    replays,
    rows,
)
from probtorch.compiler.render.writer import LibraryModule
from probtorch.ops.rejection import SAMPLERS

__all__ = [
    *("declaration", "knows", "module_of", "module_text", "of_routines", "text_of", "types_of"),
]

_PURE = "nounwind willreturn memory(none)"


@dataclass(frozen=True)
class RuntimeModule:
    """One compiled module: its symbols, their result and parameter types, and its writer.

    There are a hundred modules and more, of which a process asks for the types of a few.
    """

    symbols: tuple[str, ...]
    signatures: Callable[[], dict[str, tuple[str, list[str]]]]
    write: Callable[[LibraryModule], object]

    @property
    def functions(self) -> dict[str, tuple[str, list[str]]]:
        """Types by symbol."""
        return self.signatures()


def of_routines(routines: Mapping[str, KernelRoutine], lines: Iterable[str] = ()) -> RuntimeModule:
    """Return a module of functions, of which those that do not begin with "pt_" are its own."""

    def write(text: LibraryModule) -> None:
        for line in lines:
            text.declare(line)
        for name, routine in routines.items():
            routine.write(text, name, linkage="" if name.startswith("pt_") else "internal")

    symbols = tuple(name for name in routines if name.startswith("pt_"))
    return RuntimeModule(
        symbols, lambda: {s: (routines[s].result, routines[s].types) for s in symbols}, write
    )


def _written(
    functions: dict[str, tuple[str, list[str]]], write: Callable[[LibraryModule], object]
) -> RuntimeModule:
    return RuntimeModule(tuple(functions), lambda: functions, write)


def _alone():
    alone = SORTING | SPARSE | INCOMPLETE | matrices.ROUTINES
    return {name: of_routines({name: routine}) for name, routine in alone.items()}


def _products():
    out = {}
    for p in "ds":
        write = functools.partial(products.write, p=p)
        out[f"product {p}"] = _written(products.signature(p), write)
    return out


def _rows():
    out = {}
    for name, p in itertools.product(rows.names(), "df"):
        write = functools.partial(rows.write, name=name, p=p)
        types = functools.partial(rows.signature, name, p)
        out[f"rows {name} {p}"] = RuntimeModule(rows.symbols(name, p), types, write)
    return out


def _draws():
    out = {}
    for name in SAMPLERS:
        write = functools.partial(draws.write, name=name)
        out[f"draws {name}"] = _written(draws.signatures(name), write)
    out["integers"] = of_routines(draws.INTEGERS)
    for name in draws.NUMBERS:
        write = functools.partial(draws.write_numbers, name=name)
        out[name] = _written({name: draws.NUMBER_TYPES}, write)
    return out


def _of_processes():
    return {kin.MODULE: of_routines(kin.ROUTINES, kin.DECLARATIONS) for kin in (pool, interrupts)}


def _replays():
    return {
        name: of_routines(routines, replays.DECLARATIONS)
        for name, routines in replays.MODULES.items()
    }


# What a density asks for first is found without making the others.
_KIN = _replays, _of_processes, _draws, _products, _alone, _rows


@functools.cache
def _modules_of(kin):
    """Return the modules of one kin by their names, and the names by symbol."""
    modules = _KIN[kin]()
    return modules, {symbol: name for name, m in modules.items() for symbol in m.symbols}


def _modules():
    return {name: m for kin in range(len(_KIN)) for name, m in _modules_of(kin)[0].items()}


@functools.cache
def _place(symbol):
    """Return the module that defines a symbol, and its name; None for both if there is none."""
    for kin in range(len(_KIN)):
        modules, names = _modules_of(kin)
        if symbol in names:
            return modules[names[symbol]], names[symbol]
    return None, None


def knows(symbol):
    """Return whether a module of this package defines the symbol."""
    return _place(symbol)[0] is not None


def module_of(symbol):
    """Return the name of the module that defines a symbol."""
    name = _place(symbol)[1]
    if name is None:
        raise KeyError(symbol)
    return name


def types_of(symbol):
    """Return the IR types of a function: of its result, and of its parameters."""
    module = _place(symbol)[0]
    if module is None:
        raise KeyError(symbol)
    return module.functions[symbol]


def declaration(symbol):
    """Return the IR line that declares a function."""
    result, types = types_of(symbol)
    attributes = "nounwind" if "ptr" in types else _PURE
    return f"declare {result} @{symbol}({', '.join(types)}) {attributes}"


def module_text(name):
    """Return the IR of a module by its name."""
    return text_of(_modules()[name])


def text_of(module: RuntimeModule) -> str:
    """Return the IR of a module."""
    text = LibraryModule()
    module.write(text)
    head = mathlib.declarations(sorted(text.runtime)) if text.runtime else ""
    return text.text(head)
