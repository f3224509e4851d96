"""Switches that scripts for PyTorch set in their first lines, and what they mean here.

Results are the same bit for bit at every run and on any number of threads, and products of
matrices have the full precision of their dtype. So `use_deterministic_algorithms` asks for what
there is anyway, and `set_float32_matmul_precision` allows what is not done. Both remember what they
are told.
"""

from __future__ import annotations

from probtorch.backends.registry import parse_device
from probtorch.core.dtype import float32, float64, set_default_dtype
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.errors import ArgumentError, DeviceError

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_default_device",
    "get_float32_matmul_precision",
    "set_default_device",
    "set_default_tensor_type",
    "set_float32_matmul_precision",
    "use_deterministic_algorithms",
]

_PRECISIONS = ("highest", "high", "medium")
_told: dict[str, object] = {"deterministic": False, "precision": "highest"}


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Ask for algorithms that give the same bits at every run: there are no others here."""
    _told["deterministic"] = bool(mode)


def are_deterministic_algorithms_enabled() -> bool:
    """Return what `use_deterministic_algorithms` was told."""
    return bool(_told["deterministic"])


def set_float32_matmul_precision(precision: str) -> None:
    """Say how many digits products of float32 matrices may lose: "highest", "high" or "medium".

    They lose none, whatever is said.

    Raises
    ------
    ArgumentError
        For another word.
    """
    if precision not in _PRECISIONS:
        raise ArgumentError(
            "set_float32_matmul_precision",
            expected=" or ".join(map(repr, _PRECISIONS)),
            got=repr(precision),
            fix="products have the full precision of float32 with any of them",
        )
    _told["precision"] = precision


def get_float32_matmul_precision() -> str:
    """Return what `set_float32_matmul_precision` was told."""
    return str(_told["precision"])


def set_default_device(device: object) -> None:
    """Say on which device tensors are made: the CPU, which it is anyway.

    Raises
    ------
    DeviceError
        For a GPU: tensors are made there with ``device=``.
    """
    if device is not None and parse_device(str(device))[0] != "cpu":
        raise DeviceError(
            "set_default_device",
            expected='"cpu"',
            got=repr(device),
            fix='say where tensors are made: probtorch.ones(3, device="cuda"), net.to("cuda")',
        )


def get_default_device() -> str:
    """Return the device on which tensors are made where nothing is said: "cpu"."""
    return "cpu"


def set_default_tensor_type(t: object) -> None:
    """Make float32 or float64 the default dtype, by the name of a type of tensors.

    Raises
    ------
    ArgumentError
        For another type.
    """
    name = str(getattr(t, "__name__", t)).rpartition(".")[2]
    kinds: dict[str, DType] = {"FloatTensor": float32, "DoubleTensor": float64}
    if name not in kinds or isinstance(t, TensorBase):
        raise ArgumentError(
            "set_default_tensor_type",
            expected="probtorch.FloatTensor or probtorch.DoubleTensor",
            got=repr(t),
            fix="set_default_dtype(probtorch.float32) says the same",
        )
    set_default_dtype(kinds[name])


explain_calls(globals())
