"""Switches, flags and formats that scripts for PyTorch set, and names that are not here."""

import pytest

import probtorch as torch
from probtorch.errors import ArgumentError, DeviceError


def test_switches_are_taken_and_remembered():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert torch.get_float32_matmul_precision() == "high"
        with pytest.raises(ArgumentError, match="highest"):
            torch.set_float32_matmul_precision("low")
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_float32_matmul_precision(before)
        torch.use_deterministic_algorithms(False)
    torch.set_default_device("cpu")
    assert str(torch.get_default_device()) == "cpu"
    with pytest.raises(DeviceError, match="device="):
        torch.set_default_device("cuda")


def test_a_type_of_tensors_sets_the_default_dtype():
    try:
        torch.set_default_tensor_type(torch.DoubleTensor)
        assert torch.ones(1).dtype == torch.float64
        torch.set_default_tensor_type("torch.FloatTensor")
        assert torch.ones(1).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(ArgumentError, match="FloatTensor"):
        torch.set_default_tensor_type(torch.LongTensor)


def test_libraries_that_are_not_used_say_so():
    assert not torch.backends.mps.is_available() and not torch.backends.mkl.is_available()
    torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_names_that_are_not_here_say_what_is():
    with pytest.raises(AttributeError, match="use float32"):
        _ = torch.bfloat16
    with pytest.raises(AttributeError, match="compile"):
        _ = torch.jit
