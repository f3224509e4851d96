"""Routines that a room outside of the compiler has for itself, in the kernel language."""

import os

import numpy as np
import pytest

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.machine.routines import Routines
from probtorch.compiler.native import sources
from probtorch.compiler.native.host import InternalCompilerError
from probtorch.compiler.nests.loops import address


def weigh(w, values, weights, n, out):
    """Weighted values, the largest index of a weight above 1, and -1 if there is none."""
    last = w.variable("i64", -1)
    with w.loop(0, n) as i:
        out[i] = w.call("scaled", "double", values[i], weights[i])
        with w.when(weights[i] > 1):
            last.value = i
    return last.value


def scaled(w, x, weight):
    return x * w.as_float(weight)


def turn(w, n, x, out):
    out.copy(x, n)
    out[0] = x.dot(x, n)


OWN = Routines(
    __file__,
    {
        "scaled": KernelRoutine(scaled, "double i64"),
        "pt_weigh_own": KernelRoutine(weigh, "double* i64* i64 double*", "i64"),
        "pt_turn_own": KernelRoutine(turn, "i64 double* double*", "void"),
    },
)


def test_a_routine_is_called_with_addresses_and_numbers():
    x, weights, out = np.array([1.5, 2.0, -4.0]), np.array([2, 3, 1]), np.empty(3)
    assert OWN.function("pt_weigh_own")(address(x), address(weights), 3, address(out)) == 1
    np.testing.assert_array_equal(out, x * weights)
    assert OWN.function("pt_weigh_own")(address(x), address(weights), 0, address(out)) == -1


def test_arrays_are_copied_and_multiplied():
    x, out = np.array([3.0, 4.0, 12.0]), np.zeros(3)
    assert OWN.function("pt_turn_own")(3, address(x), address(out)) is None
    np.testing.assert_array_equal(out, [169.0, 4.0, 12.0])


def test_a_function_is_made_once():
    assert OWN.function("pt_turn_own") is OWN.function("pt_turn_own")


def test_what_is_for_other_routines_alone_has_no_address():
    with pytest.raises(InternalCompilerError, match="no function 'scaled'"):
        OWN.function("scaled")


def test_code_is_kept_for_as_long_as_file_and_compiler_stay_as_they_are(tmp_path, monkeypatch):
    name = sources.sources_with.__wrapped__
    monkeypatch.setattr(sources, "_LOADED", 2.0**40)
    monkeypatch.setattr(sources, "sources", lambda: "here")
    file = tmp_path / "routines.py"
    file.write_text("x = 1\n")
    before = name(str(file))
    assert before is not None
    assert name(str(file)) == before
    os.utime(file, (1, 1))
    changed = name(str(file))
    assert changed not in (None, before)
    monkeypatch.setattr(sources, "sources", lambda: "there")
    assert name(str(file)) not in (None, before, changed)


def test_a_file_younger_than_the_process_or_none_has_no_name(tmp_path, monkeypatch):
    name = sources.sources_with.__wrapped__
    monkeypatch.setattr(sources, "sources", lambda: "here")
    file = tmp_path / "routines.py"
    assert name(str(file)) is None
    file.write_text("x = 1\n")
    monkeypatch.setattr(sources, "_LOADED", file.stat().st_ctime - 1.0)
    assert name(str(file)) is None
    monkeypatch.setattr(sources, "_LOADED", file.stat().st_ctime + 60.0)
    assert name(str(file)) is not None
