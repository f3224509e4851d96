"""From IR text to callable code: results, faults, caching, lifetimes and threads."""

import ctypes
import gc
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from probtorch.compiler.machine import engine
from probtorch.compiler.machine.engine import compile_module
from probtorch.compiler.native import host, library
from probtorch.compiler.native.host import InternalCompilerError
from probtorch.compiler.render import mathlib
from probtorch.errors import CompileError

UNARY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path / "cache"))


def unary_ir(body, *, name="f", declared=""):
    return f"{declared}\ndefine double @{name}(double %x) {{\n{body}\n  ret double %y\n}}\n"


PLUS_ONE = unary_ir("  %y = fadd double %x, 1.0")


def test_a_compiled_function_computes():
    module = compile_module(PLUS_ONE)
    assert UNARY(module.address("f"))(2.5) == 3.5
    assert module.names == ("f",)
    assert module.object_bytes


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_computes_the_same(level):
    ir = unary_ir(
        "  %e = call double @pt_exp_f64(double %x)\n  %y = fmul double %e, %e",
        declared=mathlib.declarations(["pt_exp_f64"]),
    )
    module = compile_module(ir, level=level, slp=level == 3)
    assert UNARY(module.address("f"))(0.75) == math.exp(0.75) ** 2


def test_runtime_library_and_c_library_functions_are_found_by_their_declarations():
    declared = "\n".join(
        [
            mathlib.declarations(["pt_log1p_f64"]),
            library.declaration("pt_gammaln"),
            "declare double @cos(double)",
        ]
    )
    ir = unary_ir(
        "  %a = call double @pt_log1p_f64(double %x)\n"
        "  %b = call double @pt_gammaln(double %x, i32 0)\n"
        "  %c = call double @cos(double %x)\n"
        "  %ab = fadd double %a, %b\n"
        "  %y = fadd double %ab, %c",
        declared=declared,
    )
    cold, warm = compile_module(ir), compile_module(ir)
    assert (cold.from_cache, warm.from_cache) == (False, True)
    expected = math.log1p(3.7) + math.lgamma(3.7) + math.cos(3.7)
    for module in (cold, warm):
        assert UNARY(module.address("f"))(3.7) == pytest.approx(expected, rel=1e-14)


def test_the_second_time_the_code_comes_from_the_cache_and_is_the_same():
    cold, warm = compile_module(PLUS_ONE), compile_module(PLUS_ONE)
    assert (cold.from_cache, warm.from_cache) == (False, True)
    assert warm.object_bytes == cold.object_bytes
    assert UNARY(warm.address("f"))(1.0) == 2.0


def test_level_and_text_name_the_entry():
    compile_module(PLUS_ONE)
    assert not compile_module(PLUS_ONE, level=1).from_cache
    assert not compile_module(PLUS_ONE, slp=True).from_cache
    assert not compile_module(PLUS_ONE.replace("1.0", "2.0")).from_cache


def test_with_a_key_the_text_is_rendered_only_when_needed():
    rendered = []

    def render():
        rendered.append(1)
        return PLUS_ONE

    first, second = compile_module(render, key="graph 7"), compile_module(render, key="graph 7")
    assert len(rendered) == 1
    assert UNARY(first.address("f"))(1.0) == UNARY(second.address("f"))(1.0) == 2.0


def test_a_function_without_a_key_is_refused():
    with pytest.raises(InternalCompilerError, match=r"(?s)expected.*key.*fix"):
        compile_module(lambda: PLUS_ONE)


def test_a_parse_error_shows_the_lines_around_the_fault():
    with pytest.raises(InternalCompilerError) as caught:
        compile_module(unary_ir("  %a = fadd double %x, 1.0\n  %y = fad double %a, %a"))
    message = str(caught.value)
    assert ">     4    %y = fad double %a, %a" in message
    assert "3    %a = fadd double %x, 1.0" in message


def test_a_verifier_error_shows_the_instruction_too():
    body = "  br label %b\nb:\n  %y = fadd double %x, %z\n  br label %c\nc:\n"
    body += "  %z = fadd double %x, 1.0"
    with pytest.raises(InternalCompilerError, match=r"(?s)dominate.*>     8    %z = fadd"):
        compile_module(unary_ir(body))


def test_an_internal_error_is_not_one_that_callers_fall_back_on():
    assert not issubclass(InternalCompilerError, CompileError)


@pytest.mark.parametrize("name", ["pt_nothing", "no_such_c_function"])
def test_an_unknown_function_is_refused_before_it_is_linked(name):
    ir = unary_ir(
        f"  %y = call double @{name}(double %x)", declared=f"declare double @{name}(double)"
    )
    with pytest.raises(InternalCompilerError, match=rf"(?s){name}.*expected.*got.*fix"):
        compile_module(ir)


def test_an_unknown_address_is_refused_with_the_known_ones():
    with pytest.raises(InternalCompilerError, match=r"(?s)no function 'g'.*one of f"):
        compile_module(PLUS_ONE).address("g")


def test_internal_functions_are_not_exported():
    ir = "define internal double @h(double %x) noinline {\n  ret double %x\n}\n" + unary_ir(
        "  %y = call double @h(double %x)"
    )
    assert compile_module(ir).names == ("f",)


def test_modules_can_call_each_other_by_address_and_keep_each_other_alive():
    inner = compile_module(PLUS_ONE)
    ir = unary_ir(
        "  %a = call double @inner(double %x)\n  %y = fmul double %a, 10.0",
        declared="declare double @inner(double)",
    )
    outer = compile_module(ir, symbols={"inner": inner.address("f")}, keep=[inner])
    del inner
    gc.collect()
    assert UNARY(outer.address("f"))(1.0) == 20.0


def test_two_modules_may_define_the_same_name():
    one, ten = compile_module(PLUS_ONE), compile_module(PLUS_ONE.replace("1.0", "10.0"))
    assert UNARY(one.address("f"))(0.0) == 1.0
    assert UNARY(ten.address("f"))(0.0) == 10.0


def test_a_giant_straight_line_function_compiles_and_is_right():
    count = engine.LARGE_FUNCTION + 100
    lines = ["  %v0 = fadd double %x, 0.0"]
    lines += [f"  %v{i} = fadd double %v{i - 1}, {float(i)}" for i in range(1, count)]
    lines.append(f"  %y = fadd double %v{count - 1}, 0.0")
    module = compile_module(unary_ir("\n".join(lines)))
    assert UNARY(module.address("f"))(0.5) == 0.5 + count * (count - 1) / 2


def test_threads_compile_at_the_same_time():
    results = {}

    def work(k):
        module = compile_module(PLUS_ONE.replace("1.0", f"{k}.0"))
        results[k] = UNARY(module.address("f"))(0.5), module

    threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {k: value for k, (value, _) in results.items()} == {k: k + 0.5 for k in range(12)}


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks Linux for the memory")
def test_compiling_leaves_no_memory_behind():
    def resident():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def compile_many(start):
        for k in range(start, start + 150):
            host.emit_object(PLUS_ONE.replace("1.0", f"{k}.5"))

    compile_many(0)
    before = resident()
    compile_many(1000)
    # A pipeline of passes takes 55 kB: 8 MB where each one stays.
    assert resident() - before < 2**21


def test_importing_the_engine_imports_neither_llvm_nor_scipy():
    code = (
        "import sys, probtorch.compiler.machine.engine\n"
        "print([m for m in ('llvmlite.binding', 'scipy.special') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stderr
