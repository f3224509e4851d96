"""SciPy's routines called from native code give what SciPy gives in Python."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from probtorch.compiler.machine.engine import compile_module
from probtorch.compiler.native import library
from probtorch.errors import CompileError

SPECIAL = [name for name in library.names() if name.removeprefix("pt_") in library.SPECIAL]


def test_everything_named_is_available_in_this_scipy():
    assert all(library.require(library.names()).values())


def test_everything_named_is_called_by_something():
    """BLAS and LAPACK by name in the renderer; special functions are the rows of the intrinsics."""
    folder = Path(library.__file__).parents[1] / "render"
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    called = set(re.findall(r'(?:f"pt_\{p\}|_of\(a, ")([a-z]+)"', text))
    special = {f"pt_{name}" for name in library.SPECIAL}
    assert {name[4:] for name in library.names() if name not in special} == called


def test_importing_the_library_does_not_import_scipy():
    code = "import sys, probtorch.compiler.native.library; print('scipy.special' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False", out.stderr


# Inside the domain of every function of so many arguments.
ARGUMENTS = {1: (0.3,), 2: (2.0, 0.7), 3: (1.5, 2.5, 0.3)}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_function_from_native_code_is_scipys(name):
    theirs = name.removeprefix("pt_")
    arity = library.SPECIAL[theirs]
    declared = library.declaration(name)
    # What Cython adds behind the doubles must be 0.
    extra = [", i32 0"] if "i32" in declared else []
    taken = ", ".join(f"double %x{i}" for i in range(arity))
    module = compile_module(
        f"{declared}\ndefine double @f({taken}) {{\n"
        f"  %y = call double @{name}({taken}{''.join(extra)})\n  ret double %y\n}}\n"
    )
    native = ctypes.CFUNCTYPE(*[ctypes.c_double] * (arity + 1))(module.address("f"))
    arguments = ARGUMENTS[arity]
    expected = getattr(special, theirs)(*arguments)
    assert np.isfinite(expected)
    assert native(*arguments) == pytest.approx(expected, rel=1e-15)


def integer(value):
    kind = ctypes.c_int64 if library.integer_type() == "i64" else ctypes.c_int32
    return ctypes.byref(kind(value))


def call(name, *arguments):
    """Call a BLAS or LAPACK routine by address, with every argument by pointer."""
    address = library.require([name])[name]
    scalar = ctypes.c_double if name.startswith("pt_d") else ctypes.c_float
    pointers = []
    for a in arguments:
        if isinstance(a, str):
            pointers.append(ctypes.c_char_p(a.encode()))
        elif isinstance(a, np.ndarray):
            pointers.append(ctypes.c_void_p(a.ctypes.data))
        elif isinstance(a, float):
            pointers.append(ctypes.byref(scalar(a)))
        else:
            pointers.append(integer(a))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(address)
    function(*[ctypes.cast(p, ctypes.c_void_p) for p in pointers])


@pytest.mark.parametrize("letter", ["d", "s"])
def test_matrix_product_through_gemm(letter):
    dtype, rtol = (np.float64, 1e-14) if letter == "d" else (np.float32, 1e-5)
    rng = np.random.default_rng(0)
    a = np.asfortranarray(rng.normal(size=(3, 4)), dtype=dtype)
    b = np.asfortranarray(rng.normal(size=(4, 5)), dtype=dtype)
    c = np.zeros((3, 5), dtype=dtype, order="F")
    call(f"pt_{letter}gemm", "N", "N", 3, 5, 4, 1.0, a, 3, b, 4, 0.0, c, 3)
    np.testing.assert_allclose(c, a @ b, rtol=rtol)


@pytest.mark.parametrize("letter", ["d", "s"])
def test_cholesky_through_potrf_reports_failure_in_info(letter):
    dtype = np.float64 if letter == "d" else np.float32
    info = np.zeros(1, dtype=np.int64)
    matrix = np.array([[4.0, 2.0], [2.0, 3.0]], dtype=dtype, order="F")
    factor = matrix.copy(order="F")
    call(f"pt_{letter}potrf", "L", 2, factor, 2, info)
    assert info[0] == 0
    lower = np.tril(factor)
    np.testing.assert_allclose(lower @ lower.T, matrix, rtol=1e-6)
    indefinite = np.array([[1.0, 2.0], [2.0, 1.0]], dtype=dtype, order="F")
    call(f"pt_{letter}potrf", "L", 2, indefinite, 2, info)
    assert info[0] == 2


def test_an_unknown_routine_is_refused_with_a_cure():
    assert not library.knows("pt_dnothing")
    with pytest.raises(CompileError, match=r"(?s)pt_dnothing.*expected.*got.*fix"):
        library.require(["pt_dnothing"])
