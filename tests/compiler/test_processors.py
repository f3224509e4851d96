"""The compiler on other processors than this one: code for narrower and wider vectors.

What this machine cannot run is compiled for the other processor all the same, and run as code for
this one: then it is the text, written for other vectors, that is tested.
"""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.compiler.native import host
from probtorch.compiler.render import mathlib

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 3600

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="these are kinds of x86-64"
)


def failures(level, *selection):
    """Return what tests say in a process of their own, for a feature set; nothing if they pass."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection],
        cwd=ROOT,
        env={**os.environ, "PROBTORCH_TEST_PROCESSOR": level, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return found.stdout[-5000:] + found.stderr[-2000:] if found.returncode else ""


@pytest.mark.parametrize("level", host.LEVELS)
def test_vectors_of_every_width_compute_the_same(level):
    files = "tests/compiler/test_mathlib.py", "tests/compiler/test_regressions.py"
    some = "vectoriser or lanes or bit_for_bit and (exp or log1p_unit) or lose_no_digits and shape2"
    assert failures(level, *files, "-k", some) == ""


@pytest.mark.slow
@pytest.mark.parametrize("level", host.LEVELS)
def test_the_compiler_passes_its_tests_for_every_feature_set(level):
    ignored = [f"--ignore-glob=*/test_{name}*" for name in ("cuda", "gpu", "processors")]
    assert failures(level, "tests/compiler", *ignored) == ""


@pytest.fixture
def afterwards():
    """The processor is this machine's again after the test."""
    yield
    host._level = None
    host.target.cache_clear()
    host.target_signature.cache_clear()


@pytest.mark.usefixtures("afterwards")
@pytest.mark.parametrize("level", host.LEVELS)
def test_code_for_features_that_are_missing_here_is_compiled_for_both(level, monkeypatch):
    # Whatever this processor is, for the test it has nothing beyond x86-64.
    poor = replace(host._here(), cpu="x86-64", features="", vector_bits=128, has_fma=False)
    monkeypatch.setattr(host, "_here", lambda: poor)
    host.write_for(level)
    assert not host.target().runs_here
    made = []
    machine = host._machine
    monkeypatch.setattr(host, "_machine", lambda n, to: made.append(to.cpu) or machine(n, to))
    data = host.emit_object(mathlib.function_ir("pt_exp_f64"))
    assert made == [level, "x86-64"]
    symbols = mathlib.symbols("pt_exp_f64")
    assert symbols[-1] == f"pt_exp_f64_v{host.LEVELS[level][0] // 64}"
    loaded = host.load_object(data, symbols, {})
    assert set(loaded.addresses) == set(symbols)


@pytest.mark.usefixtures("afterwards")
def test_code_for_another_processor_has_entries_of_its_own_in_the_cache():
    before = host.target_signature()
    found = {before}
    for level in host.LEVELS:
        host.write_for(level)
        found.add(host.target_signature())
    assert len(found) == 1 + len(host.LEVELS)


@pytest.mark.usefixtures("afterwards")
def test_vectors_are_widest_where_many_numbers_go_through_functions(monkeypatch, tmp_path):
    # Whatever this processor is, for the test LLVM is told that it need not halve its vectors.
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PROBTORCH_CACHE", raising=False)
    wide = replace(host._here(), widened=True)
    monkeypatch.setattr(host, "_here", lambda: wide)
    host.target.cache_clear()
    texts, emit = [], host.emit_object
    monkeypatch.setattr(host, "emit_object", lambda ir, **how: texts.append(ir) or emit(ir, **how))
    few, many = (probtorch.linspace(0.0, 1.0, n, dtype=probtorch.float64) for n in (20, 1000))

    cases = {
        "functions, many": (lambda x: x.exp().sum(), many, False),
        "functions, few": (lambda x: x.exp().sum(), few, True),
        "arithmetic": (lambda x: (x * x + 1.0).sum(), many, True),
    }
    for name, (fn, x, halved) in cases.items():
        del texts[:]
        found = probtorch.compile(fn)(x)
        np.testing.assert_allclose(found, fn(x), rtol=1e-14)
        heads = [line for ir in texts for line in ir.split("\n") if "define internal" in line]
        nests = [line for line in heads if "@nest" in line]
        assert [f'"{wide.vector_bits // 2}"' in line for line in nests] == [halved], (name, nests)
        assert halved or "noinline" in nests[0]
