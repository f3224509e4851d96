"""The machine we run on: its processor, and LLVM's way from IR text to callable addresses.

Three steps, each a function: `emit_object` (IR text to optimised object code for this processor),
`load_object` (object code to addresses), and `target_signature` (what the object code depends on,
for the cache). Everything that touches LLVM happens under `lock`: its global context is not made
for several threads at once.

This is the lowest room of the compiler. `engine` adds the cache and finds the symbols that a
module calls; use that one unless you are the vector runtime, which the engine itself needs.

llvmlite is imported at the first use, so importing the package stays cheap; on x86-64 Linux code
from the cache runs without it (`elf`).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
import platform
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from probtorch.compiler.native import elf
from probtorch.compiler.native.pages import took
from probtorch.compiler.native.sources import library_file
from probtorch.errors import ProbtorchError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

__all__ = [
    "LEVELS",
    "InternalCompilerError",
    "LoadedObject",
    "TooLongToCompile",
    "compiling_takes_at_most",
    "emit_object",
    "load_object",
    "lock",
    "process_symbol",
    "target",
    "target_signature",
    "write_for",
]

lock = threading.RLock()

_library_numbers = itertools.count()


class TooLongToCompile(ProbtorchError, RuntimeError):
    """A module would take longer to compile than the caller allows."""


class InternalCompilerError(ProbtorchError, RuntimeError):
    """The compiler wrote IR that LLVM refuses, or calls a symbol that nobody has.

    That is a bug of ours, never the user's. It is no `CompileError` on purpose: falling back to
    eager execution must not hide it.
    """


@dataclass(frozen=True)
class Processor:
    """The processor that code is generated for."""

    triple: str
    cpu: str
    features: str
    has_fma: bool
    vector_bits: int
    llvm_version: tuple[int, ...]
    runs_here: bool = True
    # Whether vectors are as wide as they can be where LLVM would halve them: see `_here`, `halved`.
    widened: bool = False


@dataclass(frozen=True)
class LoadedObject:
    """Addresses of a loaded object's functions, good for as long as this record lives."""

    addresses: Mapping[str, int]
    tracker: object


@functools.cache
def _llvm() -> ModuleType:
    """Import and initialise LLVM once."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


# Sets of features of x86-64 that code can be written for: bits of a vector, fused multiply-add, and
# what LLVM calls a feature that processors with the whole set have.
LEVELS = {
    "x86-64-v2": (128, False, "sse4.2"),
    "x86-64-v3": (256, True, "avx2"),
    "x86-64-v4": (512, True, "avx512vl"),
}
_level: str | None = None


def write_for(level: str) -> None:
    """Write code for one of `LEVELS` from now on, whatever this machine has: for tests.

    Where the processor lacks the features, code is compiled for them all the same, and then again
    for the processor, to be run. To be called before anything is compiled.
    """
    global _level
    _level = level
    target.cache_clear()
    target_signature.cache_clear()


@functools.cache
def target() -> Processor:
    """Return the processor that code is written for: this machine's, unless `write_for` says else.

    Asked once.
    """
    here = _here()
    if _level is None:
        return here
    bits, has_fma, feature = LEVELS[_level]
    return replace(
        here,
        cpu=_level,
        features="",
        vector_bits=bits,
        has_fma=has_fma,
        runs_here=f"+{feature}" in here.features.split(","),
    )


@functools.cache
def _here() -> Processor:
    """What this machine's processor can do."""
    with lock:
        llvm = _llvm()
        features = llvm.get_host_cpu_features()
        triple = llvm.get_process_triple()
        if triple.startswith(("x86_64", "i686", "amd64")):
            wide = 512 if features.get("avx512f") and features.get("avx512vl") else 256
            bits = wide if features.get("avx2") else 128
            has_fma = bool(features.get("fma"))
            # LLVM halves the vectors of Intel's processors, for those up to Ice Lake lower their
            # clock for wide ones. Later ones, which have this feature, do not.
            widened = bool(wide == 512 and features.get("avx512fp16"))
            if widened:
                features["prefer-256-bit"] = False
        else:
            # NEON, VSX and the like are 128 bits wide. Among these only aarch64 and ppc64 are sure
            # to have a fused multiply-add; elsewhere the intrinsic could become a slow library
            # call.
            bits, has_fma = 128, triple.startswith(("aarch64", "arm64", "powerpc64"))
            widened = False
        return Processor(
            triple=triple,
            cpu=llvm.get_host_cpu_name(),
            features=features.flatten(),
            has_fma=has_fma,
            vector_bits=bits,
            llvm_version=tuple(llvm.llvm_version_info),
            widened=widened,
        )


def halved() -> str:
    """Return the attribute of functions whose vectors are as wide as LLVM's choice: half of them
    on the processors where `_here` says that they do not have to be.
    """
    return f' "prefer-vector-width"="{target().vector_bits // 2}"' if target().widened else ""


@functools.cache
def target_signature() -> str:
    """Return a text on which it depends whether object code made elsewhere runs the same here.

    On Linux that is what the kernel says of the processor, and which llvmlite is installed: it is
    known without loading LLVM, which takes longer than all else in a process that compiles nothing.
    """
    known = _processor(), _llvmlite()
    if all(known):
        return "|".join((platform.machine(), *known, *filter(None, [_level])))
    here = target()
    version = ".".join(str(part) for part in here.llvm_version)
    return f"{here.triple}|{here.cpu}|{here.features}|LLVM {version}"


# What /proc/cpuinfo has on the kind of a processor, not on its state or the kernel's view of it:
# on x86, on ARM.
_KINDS = (
    ("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)


def _processor() -> str:
    """The kind and features of this processor, as Linux tells them; "" if unknown."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as stream:
            # The first of perhaps hundreds, whose clocks would all be asked.
            first, end, _ = stream.read(16384).decode().partition("\n\n")
    except (OSError, UnicodeDecodeError):
        return ""
    lines = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    for kind in _KINDS:
        if end and all(fields.get(name) for name in kind):
            return "|".join(fields[name] for name in kind)
    return ""


def _llvmlite() -> str:
    """The version of llvmlite, and the size of its library; "" if unknown."""
    file = library_file("llvmlite")
    if file is None:
        return ""
    folder = Path(file).parent
    try:
        version = (folder / "_version.py").read_text(encoding="utf-8")
        return f"{version}|{(folder / 'binding' / 'libllvmlite.so').stat().st_size}"
    except OSError:
        return ""


def emit_object(ir: str, *, level: int = 2, slp: bool = False) -> bytes:
    """Compile IR text to object code for this processor.

    Parameters
    ----------
    ir : str
        A whole module. Strict floating point unless its instructions carry flags.
    level : int, 0 to 3
        Optimisation level of the pass pipeline; loops are vectorised from 1 on.
    slp : bool
        Also vectorise straight-line code.

    Returns
    -------
    bytes
        A relocatable object file that names the symbols it calls; it holds no addresses, so it
        may be cached.

    Raises
    ------
    InternalCompilerError
        If LLVM cannot parse or verify the text; the message shows the lines around the fault.
    TooLongToCompile
        If it is expected to take longer than `compiling_takes_at_most` allows.
    """
    _check_length(ir)
    with lock:
        here = target()
        if not here.runs_here:
            _compiled(ir, here, level, slp)
            here = _here()
        # Without what LLVM takes to start.
        began = time.perf_counter()
        found = _compiled(ir, here, level, slp)
        took()
        _spent.add(ir, time.perf_counter() - began)
        return found


@dataclass
class _Spent:
    """What this process has compiled so far, from which it is told how long more will take.

    Sums over modules: of characters, of seconds, of their squares and of their products.
    """

    characters: int = 0
    seconds: float = 0.0
    modules: int = 0
    characters_squared: int = 0
    seconds_squared: float = 0.0
    products: float = 0.0

    def expected(self, ir: str) -> float:
        """Return the seconds that a module takes, at least, in all likelihood.

        On the line of least squares, a time for each module and one for each character, less the
        standard error of one more. Modules of one length differ by a factor of 20, and small ones
        say little of a large one: to refuse it in vain costs more than to wait.
        """
        n = self.modules
        by_one_rate = self.seconds * len(ir) / max(self.characters, 1)
        varies = self.characters_squared - self.characters**2 / max(n, 1)
        if n < 3 or varies <= 0.0:
            return by_one_rate
        away = len(ir) - self.characters / n
        together = self.products - self.characters * self.seconds / n
        rate = together / varies
        left = self.seconds_squared - self.seconds**2 / n - rate * together
        error = math.sqrt(max(left, 0.0) / (n - 2) * (1.0 + 1.0 / n + away**2 / varies))
        return min(by_one_rate, max(self.seconds / n + rate * away - error, 0.0))

    def add(self, ir: str, seconds: float) -> None:
        self.modules += 1
        self.characters += len(ir)
        self.seconds += seconds
        self.characters_squared += len(ir) ** 2
        self.seconds_squared += seconds**2
        self.products += len(ir) * seconds


_spent = _Spent()
_limit: contextvars.ContextVar[float] = contextvars.ContextVar("limit", default=math.inf)


@contextlib.contextmanager
def compiling_takes_at_most(seconds: float) -> Iterator[None]:
    """Have modules refused that this thread would compile for longer, each by itself.

    How long that is, at least, is told from what the process has compiled before; the first one is
    not refused.
    """
    token = _limit.set(seconds)
    try:
        yield
    finally:
        _limit.reset(token)


def _check_length(ir: str) -> None:
    limit, expected = _limit.get(), _spent.expected(ir)
    if expected > limit:
        raise TooLongToCompile(
            "compiler", expected=f"a program that takes at most {limit:.3g} s to compile",
            got=f"about {expected:.3g} s",
            fix="allow more time; the next time it is in the cache",
        )  # fmt: skip


def _compiled(ir: str, processor: Processor, level: int, slp: bool) -> bytes:
    llvm = _llvm()
    try:
        module = llvm.parse_assembly(ir)
        module.verify()
    except RuntimeError as error:
        raise InternalCompilerError(
            "compiler",
            expected="generated IR that LLVM accepts",
            got=f"{str(error).strip()}\n{_excerpt(ir, str(error))}",
            fix="please report this as a bug, with the lines above; "
            "PROBTORCH_JIT=0 runs everything eagerly meanwhile",
        ) from None
    machine = _machine(level, processor)
    if level > 0:
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_vectorization = True
        options.slp_vectorization = slp
        options.loop_unrolling = True
        options.loop_interleaving = True
        builder = llvm.create_pass_builder(machine, options)
        pipeline = builder.getModulePassManager()
        pipeline.run(module, builder)
        _free(pipeline)
    return machine.emit_object(module)


def _free(pipeline: llvm.ModulePassManager) -> None:
    """Free a pass pipeline: 50 to 80 kB each.

    llvmlite (0.44 to 0.50) would keep it for ever: its class has two bases with a `_dispose`, and
    the first one's does nothing.
    """
    from llvmlite.binding.newpassmanagers import NewPassManager

    NewPassManager._dispose(pipeline)
    pipeline.detach()  # it is not to be freed again by a llvmlite that does so itself


def load_object(data: bytes, exports: Iterable[str], symbols: Mapping[str, int]) -> LoadedObject:
    """Make object code callable.

    Parameters
    ----------
    data : bytes
        From `emit_object`, on a machine of this signature. Never pass bytes of unknown origin:
        they will run.
    exports : iterable of str
        Functions whose addresses are wanted.
    symbols : mapping of str to int
        Addresses of what the object calls. What is missing here is looked up in the process (the
        C library, libm).

    Raises
    ------
    InternalCompilerError
        If a symbol stays unresolved.
    """
    names = list(exports)
    linked = elf.link(data, names, symbols)
    if linked is not None:
        return LoadedObject(linked.addresses, linked.memory)
    with lock:
        jit = _jit()
        builder = _llvm().JITLibraryBuilder().add_object_img(data).add_current_process()
        for name, address in symbols.items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        try:
            tracker = builder.link(jit, f"probtorch{next(_library_numbers)}")
        except RuntimeError as error:
            raise InternalCompilerError(
                "compiler",
                expected="every called symbol to be known",
                got=str(error),
                fix="use the names in mathlib and library for theirs, and symbols= for others",
            ) from None
        return LoadedObject({name: tracker[name] for name in names}, tracker)


def process_symbol(name: str) -> int | None:
    """Return the address of a C symbol of this process, or None."""
    found = elf.process_symbol(name) if elf.is_usable() else None
    if found is not None:
        return found
    with lock:
        _jit()  # LLVM does not see the process's symbols before it has a linker.
        return _llvm().address_of_symbol(name)


def _machine(level: int, processor: Processor) -> llvm.TargetMachine:
    """Create a target machine; selection above "less" took longer and gave the same code."""
    return (
        _llvm()
        .Target.from_triple(processor.triple)
        .create_target_machine(
            opt=min(level, 1), cpu=processor.cpu, features=processor.features, jit=True
        )
    )


@functools.cache
def _jit() -> llvm.LLJIT:
    """The process-wide linker for object code; each object becomes a library of its own in it."""
    return _llvm().create_lljit_compiler(_machine(1, _here()))


def _excerpt(ir: str, message: str, around: int = 3) -> str:
    """Return the numbered IR lines around what an LLVM message complains about."""
    lines = ir.splitlines()
    where = re.search(r":(\d+):\d+: error", message)
    if where:
        fault = int(where.group(1)) - 1
    else:
        # The verifier quotes instructions, not lines, and spells constants anew: look for the
        # register.
        quoted = re.search(r"(%[\w.]+ =|@[\w.]+\()", message)
        text = quoted.group(1) if quoted else "define"
        fault = next((i for i, line in enumerate(lines) if text in line), 0)
    first = max(0, fault - around)
    return "\n".join(
        f"{'>' if i == fault else ' '} {i + 1:5d}  {lines[i][:200]}"
        for i in range(first, min(len(lines), fault + around + 1))
    )
