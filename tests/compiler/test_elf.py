"""Our own linker: the same results as LLVM's, memory rights, and what it leaves to LLVM."""

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.compiler.machine import engine
from probtorch.compiler.native import elf, host
from probtorch.compiler.render import runtime
from probtorch.diagnostics.halves_routines import HALVES
from probtorch.infer.mcmc.warm_up.spectrum_routines import SPECTRA
from probtorch.infer.mcmc.warm_up.wide_routines import WIDE
from probtorch.infer.mcmc.warm_up.window_routines import WINDOWS
from probtorch.infer.starts.climb_routines import CLIMBS

pytestmark = pytest.mark.skipif(not elf.is_usable(), reason="elsewhere LLVM links")

_UNARY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
_CONSTANTS = """
@table = internal constant [4 x double] [double 1.0, double 2.5, double -4.0, double 8.0], align 64
@counter = internal global i64 40
@zeros = internal global [3 x i64] zeroinitializer
declare double @cbrt(double)
declare double @ours(double)

define double @f(double %x) {
  %n = load i64, ptr @counter
  %next = add i64 %n, 1
  store i64 %next, ptr @counter
  %z.p = getelementptr i64, ptr @zeros, i64 2
  %z = load i64, ptr %z.p
  %z.next = add i64 %z, 10
  store i64 %z.next, ptr %z.p
  %i = and i64 %n, 3
  %p = getelementptr double, ptr @table, i64 %i
  %c = load double, ptr %p
  %zf = sitofp i64 %z to double
  %r = call double @inner(double %x)
  %s = fadd double %r, %c
  %t = fadd double %s, %zf
  ret double %t
}
define internal double @inner(double %x) noinline {
  %a = call double @cbrt(double %x)
  %b = call double @ours(double %a)
  ret double %b
}
define double @g(double %x) {
  %a = call double @f(double %x)
  ret double %a
}
"""


@_UNARY
def thousandfold(x):
    return 1000.0 * x


OURS = {"ours": ctypes.cast(thousandfold, ctypes.c_void_p).value}


@pytest.fixture(scope="module")
def data():
    """Object code with constants, variables, zeros, and calls inside and outside."""
    return host.emit_object(_CONSTANTS)


def section_at(data, index):
    offset = struct.unpack_from("<Q", data, 40)[0] + 64 * index
    return offset, struct.unpack_from("<IIQQQQIIQQ", data, offset)


def count_of_sections(data):
    return struct.unpack_from("<H", data, 60)[0]


def test_code_constants_variables_and_calls_are_put_together(data):
    linked = elf.link(data, ["f", "g"], OURS)
    f, g = (_UNARY(linked.addresses[name]) for name in "fg")
    # 8 -> 2 by the C library, 1000 times by ours; table[40 & 3], and what the calls before left.
    assert [f(8.0), g(8.0), f(8.0), f(1.0)] == [2001.0, 2012.5, 2016.0, 1038.0]


def test_each_link_has_variables_of_its_own(data):
    first, second = (elf.link(data, ["f"], OURS) for _ in range(2))
    assert _UNARY(first.addresses["f"])(8.0) == _UNARY(second.addresses["f"])(8.0) == 2001.0


def test_no_memory_is_writable_and_executable(data):
    linked = elf.link(data, ["f"], OURS)
    address = linked.addresses["f"]
    rights = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, right, *_ = line.split()
        begin, end = (int(x, 16) for x in span.split("-"))
        rights[begin, end] = right
    (code,) = [right for (begin, end), right in rights.items() if begin <= address < end]
    assert code == "r-xp"
    start = linked.memory.address
    stretch = [
        r for (b, e), r in rights.items() if b < start + sum(linked.memory.sizes) and e > start
    ]
    assert {"r-xp", "r--p"} <= set(stretch)
    assert not any("w" in right and "x" in right for right in stretch)


def test_code_survives_a_fork(data):
    linked = elf.link(data, ["f"], OURS)
    child = os.fork()
    if child == 0:
        os._exit(0 if _UNARY(linked.addresses["f"])(8.0) == 2001.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _UNARY(linked.addresses["f"])(8.0) == 2001.0


def programs():
    x = probtorch.tensor(np.linspace(0.1, 3.0, 300).reshape(20, 15))
    spd = x.T @ x + 15.0 * probtorch.eye(15, dtype=x.dtype)

    def f(x, spd):
        factor = probtorch.linalg.cholesky(spd)
        return factor, x.exp().log1p().sum(0), x.lgamma(), x.sort(1)[0], x.tanh().cumsum(1)

    compiled = probtorch.compile(f)
    compiled(x, spd)
    out = compiled(x, spd)
    assert compiled.last is not None
    return b"".join(t.numpy().tobytes() for t in out)


def test_programs_give_the_same_bits_as_when_llvm_links_them(monkeypatch):
    ours = programs()
    monkeypatch.setattr(elf, "is_usable", lambda: False)
    assert programs() == ours


def test_every_module_of_the_runtime_is_linked():
    for name in runtime._modules():
        module = engine._runtime_module(name)
        assert isinstance(module._loaded.tracker, elf._Memory), name


@pytest.mark.parametrize(
    "own", [CLIMBS, HALVES, SPECTRA, WIDE, WINDOWS], ids=lambda own: own.file[-24:]
)
def test_routines_of_other_rooms_are_linked(own):
    assert isinstance(own.module._loaded.tracker, elf._Memory)


# ----------------------------------------------------------------------------- what is left to LLVM


def changed(data, at, form, value):
    content = bytearray(data)
    struct.pack_into(form, content, at, value)
    return bytes(content)


@pytest.mark.parametrize(
    "at, form, value",
    [(4, "<B", 1), (5, "<B", 2), (16, "<H", 3), (18, "<H", 183), (58, "<H", 40)],
    ids=["32 bits", "byte order", "a library", "ARM", "size of a section"],
)
def test_other_files_are_left_to_llvm(data, at, form, value):
    assert elf.link(changed(data, at, form, value), ["f"], OURS) is None


@pytest.mark.parametrize("kept", [0, 10, 63, 64, 300])
def test_a_truncated_object_is_left_to_llvm(data, kept):
    assert elf.link(data[:kept], ["f"], OURS) is None


def test_an_unknown_kind_of_section_is_left_to_llvm(data):
    offset, _ = section_at(data, 1)
    assert elf.link(changed(data, offset + 4, "<I", 17), ["f"], OURS) is None


@pytest.mark.parametrize("flag", [0x400, 0x1], ids=["thread-local", "writable code"])
def test_sections_of_an_unknown_sort_are_left_to_llvm(data, flag):
    for i in range(count_of_sections(data)):
        offset, (_, _, flags, *_) = section_at(data, i)
        if flags & 4 and section_at(data, i)[1][5]:
            assert elf.link(changed(data, offset + 8, "<Q", flags | flag), ["f"], OURS) is None
            return
    pytest.fail("no code")


def test_an_unknown_relocation_is_left_to_llvm(data):
    for i in range(count_of_sections(data)):
        _, (_, kind, _, _, begin, _, _, info, _, _) = section_at(data, i)
        if kind == 4 and section_at(data, info)[1][2] & 4:
            assert elf.link(changed(data, begin + 8, "<I", 2), ["f"], OURS) is None
            return
    pytest.fail("no relocations")


def test_an_unknown_symbol_is_left_to_llvm(data):
    assert elf.link(data, ["f"], {}) is None
    assert elf.link(data, ["f", "h"], OURS) is None
    with pytest.raises(host.InternalCompilerError):
        host.load_object(data, ["f"], {})


def test_where_memory_cannot_become_code_llvm_is_asked(data, monkeypatch):
    class Refusing:
        mprotect = staticmethod(lambda *arguments: -1)
        cbrt = ctypes.CDLL(None).cbrt

    monkeypatch.setattr(elf, "_process", Refusing)
    assert elf.link(data, ["f"], OURS) is None


def test_symbols_of_the_process():
    assert elf.process_symbol("memcpy")
    assert elf.process_symbol("no_such_function_anywhere") is None


# --------------------------------------------------------------------------------- the processor


def test_the_processor_is_known_without_llvm():
    assert host._processor().count("|") == 5
    assert "avx2" in host._processor() or host.target().vector_bits == 128
    assert host._llvmlite()


@pytest.mark.parametrize("text", ["", "processor : 0\n", "vendor_id : x\n\n", "\xff"])
def test_a_processor_that_linux_does_not_describe_is_described_by_llvm(text, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_bytes(text.encode("latin-1"))
    known = open
    monkeypatch.setattr(
        "builtins.open",
        lambda name, *a, **k: known(file if "cpuinfo" in str(name) else name, *a, **k),
    )
    assert host._processor() == ""
    assert "LLVM" in host.target_signature.__wrapped__()


def test_the_names_of_processors_tell_them_apart(tmp_path, monkeypatch):
    known, found = open, set()
    fields = ["vendor_id", "cpu family", "model", "model name", "stepping", "flags"]
    for changed_field in [None, *fields]:
        lines = [f"{name}\t: {'other' if name == changed_field else 'one'}" for name in fields]
        for clock in ("1000", "2000"):
            file = tmp_path / "cpuinfo"
            file.write_text("\n".join([*lines, f"cpu MHz : {clock}", "", "processor : 1"]))
            with monkeypatch.context() as patch:
                patch.setattr("builtins.open", lambda name, *a, f=file, **k: known(f, *a, **k))
                found.add(host._processor())
    assert "" not in found
    assert len(found) == 7


# ----------------------------------------------------------------------------------- the libraries


def test_blas_is_found_without_the_package_around_it():
    code = (
        "import sys\n"
        "from probtorch.compiler.native import library\n"
        "a = library.require(['pt_dgemm', 'pt_dpotrf'])\n"
        "before = 'scipy.linalg' in sys.modules\n"
        "import scipy.linalg, scipy.linalg.cython_blas as theirs, numpy as np\n"
        "from scipy.linalg import cython_lapack\n"
        "same = theirs is sys.modules['scipy.linalg.cython_blas']\n"
        "x = scipy.linalg.cholesky(np.eye(3) * 4.0)\n"
        "library._find.cache_clear()\n"
        "print(before, same, a == library.require(['pt_dgemm', 'pt_dpotrf']), x[0, 0])\n"
    )
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert out.stdout.split() == ["False", "True", "True", "2.0"], out.stderr
