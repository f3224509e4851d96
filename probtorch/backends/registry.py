"""Which module computes with an array, and how arrays move between devices.

A backend is a module with the functions `owns`, `namespace`, `special`, `device_of`, `to_host`
and `unavailable_reason` (and `to_device`, unless it is the host). The table below names the two
there are; nothing else asks which one an array belongs to. Only `to_host` and `to_device` copy
between devices, so a copy is visible where it happens.

Read next: `numpy_.py` (the plain case), then `cupy_.py`.
"""

import warnings
from types import ModuleType
from typing import Any

import numpy as np

from probtorch.backends import cupy_, numpy_
from probtorch.config import settings
from probtorch.errors import DeviceError, DTypeError, users_stacklevel

__all__ = [
    "address",
    "array_module",
    "copy_into",
    "device_of",
    "is_available",
    "parse_device",
    "shares_memory",
    "special",
    "to_device",
    "to_host",
    "unavailable_reason",
    "usable",
]

_INSTEAD = {
    "meta": "leave the module where it is: functional_call computes with the parameters that it is "
    "given and copies nothing",
    "mps": 'use "cpu": of GPUs only those of NVIDIA are used, as "cuda"',
    "xpu": 'use "cpu": of GPUs only those of NVIDIA are used, as "cuda"',
}

_BACKENDS: dict[str, ModuleType] = {"cpu": numpy_, "cuda": cupy_}


def array_module(array: np.ndarray | float) -> Any:
    """Return the module of array functions for `array`, by custom named ``xp``.

    Parameters
    ----------
    array : array or number
        A NumPy array or scalar, a Python number, or a CuPy array.

    Returns
    -------
    xp : module or namespace
        `numpy`, or CuPy's functions; one that CuPy lacks is an error that names it.

    Raises
    ------
    DTypeError
        If no backend owns such an object.

    Examples
    --------
    >>> array_module(np.ones(3)) is np
    True
    """
    # Nearly every call, and the eager path counts nanoseconds.
    if type(array) is np.ndarray:
        return np
    return _owner(array).namespace()


def device_of(array: np.ndarray | float) -> str:
    """Return the device `array` lives on: "cpu", or "cuda:0" and the like."""
    if type(array) is np.ndarray:
        return "cpu"
    return _owner(array).device_of(array)


def is_available(device: str) -> bool:
    """Whether arrays can be put on `device` ("cpu", "cuda", "cuda:1") in this process."""
    return unavailable_reason(device) is None


def unavailable_reason(device: str) -> str | None:
    """Return why `device` cannot be used, in words, or None when it can."""
    kind, index = parse_device(device)
    return _BACKENDS[kind].unavailable_reason(index)


def parse_device(device: str) -> tuple[str, int | None]:
    """Split "cuda:1" into ("cuda", 1); without an index the second part is None.

    Raises
    ------
    DeviceError
        If the text does not name a device.

    Examples
    --------
    >>> parse_device("cuda:1")
    ('cuda', 1)
    >>> parse_device("cpu")
    ('cpu', None)
    """
    kind, colon, index = str(device).partition(":")
    # The CPU is one device, so "cpu:0" is the only index it has.
    # Python refuses to read numbers of thousands of digits.
    numbered = index.isascii() and index.isdigit() and len(index) < 10
    known = kind in _BACKENDS and (not colon or numbered)
    if not known or (kind == "cpu" and colon and int(index) != 0):
        raise DeviceError(
            "device",
            expected='"cpu", "cuda" or "cuda:N"',
            got=f"{device!r:.60}",
            fix=_INSTEAD.get(kind, 'use "cpu", or "cuda:0" for the first GPU'),
        )
    return kind, int(index) if colon else None


def usable(device: str) -> str:
    """Return `device`, or "cpu" for a GPU that cannot be used, where the settings say so.

    Warns, once for each line that asks.
    """
    if not settings.cuda_fallback:
        return device
    kind, index = parse_device(device)
    reason = _BACKENDS[kind].unavailable_reason(index)
    if reason is None:
        return device
    warnings.warn(
        f"{device} cannot be used: {reason}; the CPU is, as cuda_fallback says\n"
        "  fix: write device='cpu' to be without this warning",
        UserWarning,
        stacklevel=users_stacklevel(),
    )
    return "cpu"


def to_host(array: np.ndarray | float) -> np.ndarray:
    """Return `array` as a NumPy array: itself on the CPU, else a copy (which waits for the GPU)."""
    if type(array) is np.ndarray:
        return array
    return _owner(array).to_host(array)


def to_device(array: np.ndarray, device: str) -> np.ndarray:
    """Return `array` on `device`: itself when it is there already, else a copy.

    Parameters
    ----------
    array : array
        NumPy or CuPy.
    device : str
        "cpu", "cuda" (the current GPU) or "cuda:N".

    Raises
    ------
    DeviceError
        If the device does not exist or cannot be used here.
    """
    kind, index = parse_device(device := usable(device))
    reason = _BACKENDS[kind].unavailable_reason(index)
    if reason is not None:
        raise DeviceError(
            "to_device",
            expected=f"{device} to be usable",
            got=reason,
            fix='stay on "cpu", or install the extra cuda12 or cuda13 on a machine with a GPU; '
            "configure(cuda_fallback=True) takes the CPU instead",
        )
    if kind == "cpu":
        return to_host(array)
    _owner(array)
    return _BACKENDS[kind].to_device(array, index)


def address(array: np.ndarray) -> int:
    """Return where in memory the first element of an array is."""
    return int(_owner(array).address(array))


def copy_into(target: np.ndarray, array: np.ndarray) -> None:
    """Give an array the elements of another of its shape, on whatever devices the two are."""
    device = device_of(target)
    if device == "cpu":
        target[...] = to_host(array)
        return
    with cupy_.on_device(device):
        target[...] = to_device(array, device)


def shares_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays may share memory, by their bounds; never on different devices."""
    owner = _owner(a)
    return owner is _owner(b) and bool(owner.namespace().may_share_memory(a, b))


def special(xp: object) -> Any:
    """Return the special functions that go with `xp`: `scipy.special` or CuPy's."""
    return (numpy_ if xp is np else cupy_).special()


def _owner(array: object) -> ModuleType:
    for backend in _BACKENDS.values():
        if backend.owns(array):
            return backend
    raise DTypeError(
        "array_module",
        expected="a NumPy or CuPy array, or a number",
        got=type(array).__name__,
        fix="convert it first, for example with numpy.asarray",
    )
