"""The CUDA side of the backend seam: through the fake everywhere, and through CuPy given a GPU.

Oracles are NumPy's and SciPy's own functions on host copies of the same data.
"""

import sys

import numpy as np
import pytest
import scipy.special

from probtorch.backends import cupy_
from probtorch.backends.registry import (
    array_module,
    device_of,
    special,
    to_device,
    to_host,
    unavailable_reason,
)
from probtorch.errors import DeviceError
from tests.backends import fake_cupy

rng = np.random.default_rng(21)
X = rng.normal(size=(2, 3, 4))
Y = rng.normal(size=(2, 3, 4))
SQUARE = rng.normal(size=(2, 3, 3)) + 3.0 * np.eye(3)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def cuda(request, monkeypatch):
    """Put the fake in CuPy's place, or leave the real one; returns a function host -> device."""
    if request.param == "fake":
        fake_cupy.install(monkeypatch)
    return lambda array: to_device(array, "cuda:0")


@pytest.fixture
def copies(monkeypatch):
    return fake_cupy.install(monkeypatch)


def test_array_comes_back_as_it_went(cuda):
    x = cuda(X)
    assert device_of(x) == "cuda:0"
    np.testing.assert_array_equal(to_host(x), X)
    np.testing.assert_array_equal(to_device(x, "cpu"), X)


def test_array_already_on_the_device_is_not_copied(cuda):
    x = cuda(X)
    assert to_device(x, "cuda") is x
    assert to_device(x, "cuda:0") is x


CASES = {
    "exp": lambda xp, x, y, a: xp.exp(x),
    "logaddexp": lambda xp, x, y, a: xp.logaddexp(x, y),
    "matmul": lambda xp, x, y, a: xp.matmul(a, x),
    "cholesky": lambda xp, x, y, a: xp.linalg.cholesky(xp.matmul(a, xp.swapaxes(a, -1, -2))),
}


@pytest.mark.parametrize("name", CASES)
def test_namespace_agrees_with_numpy(cuda, name):
    case = CASES[name]
    x, y, a = cuda(X), cuda(Y), cuda(SQUARE)
    out = case(array_module(x), x, y, a)
    expected = case(np, X, Y, SQUARE)
    assert device_of(out) == "cuda:0"
    np.testing.assert_allclose(to_host(out), expected, rtol=1e-12, atol=1e-14)


def test_special_functions_cupy_has_are_passed_through(cuda):
    x = cuda(np.abs(X))
    out = special(array_module(x)).gammaln(x)
    np.testing.assert_allclose(to_host(out), scipy.special.gammaln(np.abs(X)), rtol=1e-12)


def test_function_cupy_lacks_is_named_in_the_error(copies):
    functions = special(array_module(to_device(X, "cuda")))
    assert not hasattr(functions, "hyp2f1")
    with pytest.raises(
        DeviceError, match=r"(?s)cupyx\.scipy\.special\.hyp2f1.*expected.*NumPy arrays only.*cpu"
    ):
        functions.hyp2f1(1.0, 1.0, 1.0, 0.5)
    xp = array_module(to_device(X, "cuda"))
    with pytest.raises(DeviceError, match=r"(?s)cupy\.vecdot.*expected.*NumPy arrays only.*cpu"):
        xp.vecdot(X, Y)
    with pytest.raises(DeviceError, match=r"(?s)cupy\.linalg\.svdvals.*expected"):
        xp.linalg.svdvals(X)


def test_only_the_two_named_functions_copy_between_devices(copies):
    x = to_device(X, "cuda:0")
    xp = array_module(x)
    y = xp.linalg.norm(xp.exp(x) * 2.0 + x, axis=-1)
    special(xp).log_ndtr(y)
    assert (copies.to_device, copies.to_host) == (1, 0)
    to_host(y)
    assert (copies.to_device, copies.to_host) == (1, 1)


def test_move_between_gpus_makes_a_copy_there(copies):
    x = to_device(X, "cuda:0")
    y = to_device(x, "cuda:1")
    assert device_of(y) == "cuda:1"
    assert y is not x


def test_gpu_number_that_does_not_exist_is_refused(copies):
    with pytest.raises(DeviceError, match=r"(?s)cuda:2 to be usable.*there are 2 CUDA devices"):
        to_device(X, "cuda:2")


def test_cupy_without_a_driver_counts_as_no_gpu(monkeypatch):
    fake_cupy.install(monkeypatch, available=False)
    assert "no CUDA device" in unavailable_reason("cuda")


def test_asking_about_a_host_array_does_not_import_cupy(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert not cupy_.owns(X)
    assert "cupy" not in sys.modules


def test_fake_refuses_what_cupy_refuses(copies):
    x = to_device(X, "cuda:0")
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError):
        x + X
    with pytest.raises(TypeError):
        X + x
