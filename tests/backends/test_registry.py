"""The CPU side of the backend seam, and the errors of its front door."""

import sys

import numpy as np
import pytest
import scipy.special

from probtorch.backends.registry import (
    array_module,
    device_of,
    is_available,
    parse_device,
    special,
    to_device,
    to_host,
    unavailable_reason,
)
from probtorch.errors import DeviceError, DTypeError


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
