"""The CPU side of the backend seam, and the errors of its front door."""

import sys

import numpy as np
import pytest
import scipy.special

from probtorch.backends.registry import (
    array_module,
    device_of,
    is_available,
    linalg,
    parse_device,
    special,
    to_device,
    to_host,
    unavailable_reason,
)
from probtorch.errors import DeviceError, DTypeError

rng = np.random.default_rng(20)


@pytest.fixture
def no_cupy(monkeypatch):
    """A process in which CuPy is not installed."""
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("value", [np.ones(2), np.float32(1.0), 1.0, 2, True, 1j], ids=repr)
def test_numpy_owns_arrays_and_numbers(value):
    assert array_module(value) is np
    assert device_of(value) == "cpu"


def test_subclass_of_ndarray_is_numpys():
    assert array_module(np.ma.masked_array([1.0])) is np


def test_host_arrays_are_not_copied():
    x = np.arange(3.0)
    assert to_host(x) is x
    assert to_device(x, "cpu") is x


def test_special_functions_are_scipys():
    assert special(np) is scipy.special


def test_linalg_has_every_numpy_name():
    for name in np.linalg.__all__:
        assert getattr(linalg(np), name) is getattr(np.linalg, name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((), ()), ((4,), (4,)), ((2, 1), (3,)), ((), (5,)), ((0,), ())],
    ids=str,
)
def test_triangular_solve_inverts_the_product(batch_a, batch_b, lower, transpose, dtype):
    a = (rng.normal(size=(*batch_a, 3, 3)) + 3.0 * np.eye(3)).astype(dtype)
    b = rng.normal(size=(*batch_b, 3, 2)).astype(dtype)
    x = linalg(np).solve_triangular(a, b, lower=lower, transpose=transpose)
    triangle = np.tril(a) if lower else np.triu(a)
    product = (np.swapaxes(triangle, -1, -2) if transpose else triangle) @ x
    assert x.dtype == dtype
    np.testing.assert_allclose(
        product, np.broadcast_to(b, product.shape), atol=1e-5 if dtype == np.float32 else 1e-12
    )


def test_triangular_solve_with_unit_diagonal_ignores_the_diagonal():
    a = np.array([[np.nan, 0.0], [2.0, np.nan]])
    x = linalg(np).solve_triangular(a, np.array([[1.0], [5.0]]), lower=True, unit_diagonal=True)
    np.testing.assert_array_equal(x, [[1.0], [3.0]])


def test_triangular_solve_of_no_columns_is_empty():
    assert linalg(np).solve_triangular(np.eye(3), np.ones((3, 0))).shape == (3, 0)


def test_triangular_solve_of_a_singular_matrix_raises():
    with pytest.raises(np.linalg.LinAlgError):
        linalg(np).solve_triangular(np.diag([1.0, 0.0]), np.ones((2, 1)))


def test_object_of_no_backend_is_refused():
    with pytest.raises(DTypeError, match=r"(?s)a NumPy or CuPy array.*list.*numpy\.asarray"):
        array_module([1.0, 2.0])


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:1", "", "cuda:²"])
def test_unknown_device_is_refused(text):
    with pytest.raises(DeviceError, match=r'(?s)expected: "cpu", "cuda".*fix:.*cuda:0'):
        parse_device(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cpu", ("cpu", None)),
        ("cpu:0", ("cpu", 0)),
        ("cuda", ("cuda", None)),
        ("cuda:12", ("cuda", 12)),
    ],
)
def test_device_text_is_split(text, parts):
    assert parse_device(text) == parts


def test_cpu_is_always_available():
    assert is_available("cpu")


def test_without_cupy_the_gpu_is_refused_with_the_reason(no_cupy):
    assert unavailable_reason("cuda") == "CuPy is not installed"
    assert not is_available("cuda:0")
    with pytest.raises(DeviceError, match=r"(?s)cuda:0 to be usable.*not installed.*cuda13"):
        to_device(np.ones(2), "cuda:0")
