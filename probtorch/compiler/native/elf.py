"""A linker for the object code that we compile, small enough to start at once: x86-64 Linux.

LLVM has one, but importing it takes 30 ms, more than all else that a process does to use code from
the disk cache. What LLVM writes for us is simple: the large code model, in which every address in
the code is a 64-bit word that stands in the relocation table (R_X86_64_64), sections to copy, and
no more. Memory is filled first, and made read-only or executable after (never writable and
executable at once). Whatever is not known here (other machines, relocations, sections) is left to
LLVM: `link` then returns None.

System V ABI, AMD64 supplement, chapter 4; `elf(5)`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Linked", "is_usable", "link", "process_symbol"]

# 64 bits, least significant byte first, version 1.
_IDENT = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
# Kinds of sections: bytes, symbols, names, relocations with addends, zeros.
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS = 1, 2, 3, 4, 8
_UNWIND = 0x70000001  # not used: native code raises nothing
_WRITE, _ALLOC, _EXECUTE, _THREAD_LOCAL = 1, 2, 4, 0x400
_ABSOLUTE_64 = 1

# From the start of a file: what it is, machine, place and size of the table of sections, their
# number.
_HEADER = struct.Struct("<16xHH20xQ10xHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
# Name, kind and binding, section, value.
_SYMBOL = struct.Struct("<IBxHQ8x")
_RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


class _Section(NamedTuple):
    """A row of the table of sections."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


@dataclass(frozen=True)
class Linked:
    """Addresses of functions, good for as long as this record lives."""

    addresses: Mapping[str, int]
    memory: _Memory


class _Unknown(Exception):
    """Something that is left to LLVM."""


def is_usable() -> bool:
    """Whether this is a machine whose objects `link` can read."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


def link(data: bytes, exports: Iterable[str], symbols: Mapping[str, int]) -> Linked | None:
    """Make object code callable.

    Parameters
    ----------
    data : bytes
        A relocatable object of LLVM's. It will run: never one of unknown origin.
    exports : iterable of str
        Functions whose addresses are wanted.
    symbols : mapping of str to int
        Addresses of what the object calls; what is missing is looked up in the process.

    Returns
    -------
    Linked, or None
        None where something in it is not known here or cannot be found.
    """
    if not is_usable():
        return None
    try:
        return _link(data, list(exports), symbols)
    except (_Unknown, OSError, ValueError, IndexError, OverflowError, struct.error):
        return None


def process_symbol(name: str) -> int | None:
    """Return the address of a C symbol of this process, or None."""
    try:
        return ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
    except AttributeError:
        return None


@functools.cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _link(data: bytes, exports: list[str], symbols: Mapping[str, int]) -> Linked:
    what, machine, begin, size, count = _HEADER.unpack_from(data)
    if not data.startswith(_IDENT) or (what, machine, size) != (_RELOCATABLE, _X86_64, 64):
        raise _Unknown
    sections = [_Section(*_SECTION.unpack_from(data, begin + i * size)) for i in range(count)]
    known = (0, _PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS, _UNWIND)
    if any(s.kind not in known or s.flags & _THREAD_LOCAL for s in sections):
        raise _Unknown
    memory, starts = _loaded(data, sections)
    (table,) = (s for s in sections if s.kind == _SYMTAB)
    # They are few: NumPy's calls would take longer.
    entries = list(_SYMBOL.iter_unpack(data[table.offset : table.offset + table.size]))
    names = _Names(data, sections[table.link])
    addresses = _addresses(entries, names, starts, symbols)
    for section in sections:
        if section.kind == _RELA and starts[section.info]:
            _relocate(data, section, memory, starts[section.info], addresses)
    found = _exported(exports, entries, names, addresses)
    memory.protect()
    return Linked(found, memory)


class _Memory:
    """Pages of our own, in three stretches: code, constants, variables."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = [-(-n // mmap.PAGESIZE) * mmap.PAGESIZE for n in sizes]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.pages = mmap.mmap(-1, max(sum(self.sizes), mmap.PAGESIZE), flags)
        self.bytes = np.frombuffer(self.pages, np.uint8)
        self.address = self.bytes.__array_interface__["data"][0]

    def protect(self) -> None:
        """Take away the right to write to code and constants."""
        start = self.address
        rights = mmap.PROT_READ | mmap.PROT_EXEC, mmap.PROT_READ
        for size, right in zip(self.sizes, rights, strict=False):
            arguments = ctypes.c_void_p(start), ctypes.c_size_t(size), right
            if size and _process().mprotect(*arguments):
                raise OSError(ctypes.get_errno(), "mprotect")
            start += size


def _stretch(section: _Section) -> int:
    """Where a section belongs: 0 code, 1 constants, 2 variables."""
    if section.flags & _EXECUTE:
        if section.flags & _WRITE:
            raise _Unknown
        return 0
    return 2 if section.flags & _WRITE else 1


def _loaded(data: bytes, sections: list[_Section]) -> tuple[_Memory, list[int]]:
    """Copy what is to be in memory; returns that, and the address of each section (0: nowhere)."""
    sizes = [0, 0, 0]
    places: list[tuple[int, int] | None] = []
    for section in sections:
        if not section.flags & _ALLOC or section.kind == _UNWIND:
            places.append(None)
            continue
        if section.align > mmap.PAGESIZE:
            raise _Unknown
        k, align = _stretch(section), max(section.align, 1)
        begin = -(-sizes[k] // align) * align
        sizes[k] = begin + section.size
        places.append((k, begin))
    memory = _Memory(sizes)
    bases = [0, memory.sizes[0], memory.sizes[0] + memory.sizes[1]]
    starts = []
    for section, place in zip(sections, places, strict=True):
        if place is None:
            starts.append(0)
            continue
        at = bases[place[0]] + place[1]
        starts.append(memory.address + at)
        if section.kind != _NOBITS:
            size = section.size
            content = np.frombuffer(data, np.uint8, size, section.offset)
            memory.bytes[at : at + size] = content
    return memory, starts


class _Names:
    """A table of names, each ended by a zero byte."""

    def __init__(self, data: bytes, section: _Section) -> None:
        begin = section.offset
        self.text = data[begin : begin + section.size]

    def __getitem__(self, at: int) -> str:
        return self.text[at : self.text.index(b"\0", at)].decode()


def _addresses(
    entries: list[tuple[int, ...]], names: _Names, starts: list[int], symbols: Mapping[str, int]
) -> np.ndarray:
    """The address of each symbol, 0 for those that are none of the memory's."""
    addresses = []
    for name, _, section, value in entries:
        # Numbers beyond the sections stand for symbols that have none.
        base = starts[section] if section < len(starts) else 0
        found: int | None = base + value if base else 0
        if section == 0 and name:
            called = names[name]
            found = symbols.get(called) or process_symbol(called)
        if found is None:
            raise _Unknown
        addresses.append(found)
    return np.array(addresses, np.uint64)


def _relocate(
    data: bytes, section: _Section, memory: _Memory, start: int, addresses: np.ndarray
) -> None:
    """Write addresses into the code."""
    count = section.size // _RELOCATION.itemsize
    table = np.frombuffer(data, _RELOCATION, count, section.offset)
    targets = addresses[table["symbol"]]
    if (table["kind"] != _ABSOLUTE_64).any() or not targets.all():
        raise _Unknown
    words = (targets + table["addend"].view(np.uint64)).view(np.uint8).reshape(-1, 8)
    at = table["offset"].astype(np.int64) + (start - memory.address)
    memory.bytes[at[:, None] + np.arange(8)] = words


def _exported(
    exports: list[str], entries: list[tuple[int, ...]], names: _Names, addresses: np.ndarray
) -> dict[str, int]:
    known = {
        names[name]: int(address)
        for (name, info, section, _), address in zip(entries, addresses, strict=True)
        if info >> 4 and section
    }
    if not known.keys() >= set(exports):
        raise _Unknown
    return {name: known[name] for name in exports}
