"""`save` and `load`: trees of tensors and plain data to a file and back, bit for bit.

Read `container.py` for the format, `files.py` for how a file is put in place.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from typing import IO, TypeAlias, cast

import numpy as np

from probtorch.backends.registry import to_device, unavailable_reason
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, DeviceError
from probtorch.serialization import container, safetensors_, torch_
from probtorch.serialization.files import reading, replacing
from probtorch.serialization.tree import Place, decode, encode
from probtorch.tensor import Tensor

__all__ = ["MapLocation", "load", "save"]

# Where tensors go: a device, devices by the device they were on, or a function of both.
MapLocation: TypeAlias = str | Mapping[str, str] | Callable[[Tensor, str], object] | None


def save(obj: Tree, f: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write a tree of tensors and plain data to a file.

    Parameters
    ----------
    obj : dict, list, tuple, number, str, None, Tensor, ndarray ...
        What `state_dict` returns, nested as you like: dicts with texts, numbers or tuples as keys,
        lists, tuples, sets, numbers of Python (of any size) and NumPy, texts, bytes, None, dtypes,
        tensors, arrays. Modules, too, whose attributes are such data and functions with a name;
        their classes are saved by name, so loading needs the same code.
    f : str, path-like or binary file
        A path that ends in ``.safetensors`` gives that format (a dict of tensors only; needs the
        extra ``safetensors``).

    Raises
    ------
    DTypeError
        If `obj` has something else in it; the message says where.
    FileError
        If the file cannot be written. The file that was there is then unchanged.

    Notes
    -----
    No pickle: nothing in the file can run. The file appears as a whole or not at all, even if the
    process is killed or the power fails, and has a checksum over all of it. What shares memory or
    is one object shares it after loading; values, dtypes, shapes and the order of dims in memory
    are kept to the bit. A tensor with a history is saved as a leaf. `grad` and hooks are not saved.

    Examples
    --------
    >>> import io
    >>> from probtorch import tensor
    >>> file = io.BytesIO()
    >>> save({"weight": tensor([1.0, 2.0]), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> load(file)
    {'weight': tensor([1., 2.]), 'epoch': 3}
    """
    if hasattr(f, "write"):
        _write(obj, cast(IO[bytes], f))  # as it can be written to
        return
    with replacing(f) as stream:
        if os.fspath(f).endswith(safetensors_.SUFFIX):
            safetensors_.save(obj, stream)
        else:
            _write(obj, stream)


def _write(obj: object, stream: IO[bytes]) -> None:
    header, blobs = encode(obj)
    container.write(stream, header, blobs)


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: MapLocation = None,
    *,
    mmap: bool = False,
    verify: bool = True,
    weights_only: bool = True,
) -> Tree:
    """Read what `save` wrote, or what PyTorch's `torch.save` did.

    Parameters
    ----------
    f : str, path-like or binary file
        A path that ends in ``.safetensors`` is read as such, into a dict of tensors. PyTorch's own
        files are known by their content: plain data in them, such as state dicts, are read.
    map_location : str, dict or callable, optional
        Where tensors go: a device for all; a dict from the device a tensor was on to another; or
        ``map_location(tensor, device)``, which is handed the tensor on the CPU and the device it
        was on, and returns it where it should be, or None for the default. By default each goes
        where it was.
    mmap : bool
        Leave arrays in the file and read them as they are used. Changes stay in memory. The file
        must not be changed in place meanwhile; `save` replaces files and is harmless.
    verify : bool
        False, with `mmap`, skips the checksums of the arrays, which would read them all.
    weights_only : bool
        Whether a module in the file may consist of classes and functions of this package only, and
        of those allowed by `probtorch.serialization.safe_globals`. False imports whatever the file
        names: for files of your own.

    Returns
    -------
    dict, list, Tensor ...
        As it was saved.

    Raises
    ------
    FileError
        If the file is of another kind, cut short or altered, or made by a later release.
    DeviceError
        If a device is not there; `map_location` helps.

    Notes
    -----
    Files may come from anywhere: reading one runs nothing, and takes memory in proportion to its
    length. A module is made without calling its constructor. All that holds for those of PyTorch
    too, although pickles are in them: they are read by opcodes of plain data alone. bfloat16 and
    float8, which NumPy lacks, become float32 there.
    """
    place = _placing(map_location)
    if hasattr(f, "read"):
        name = getattr(f, "name", "the file")
        return _read(cast(IO[bytes], f), name, place, False, verify, weights_only)
    path = os.fspath(f)
    if path.endswith(safetensors_.SUFFIX):
        return {name: wrap(place(x, "cpu")) for name, x in safetensors_.load(path).items()}
    with reading(path) as stream:
        return _read(stream, path, place, mmap, verify, weights_only)


def _read(
    stream: IO[bytes], name: str, place: Place, mapped: bool, verify: bool, weights_only: bool
) -> Tree:
    if not (hasattr(stream, "seekable") and stream.seekable()):
        stream = io.BytesIO(stream.read())
    if torch_.holds(stream):
        return torch_.load(stream, name, place)
    header, blobs = container.read(stream, name, mapped=mapped, verify=verify or not mapped)
    return decode(header, blobs, name, place, weights_only)


def _placing(map_location: MapLocation) -> Place:
    """A function from an array and the device it was on to the array where it should be."""
    if map_location is None:
        return _back
    if isinstance(map_location, Mapping):
        return lambda array, device: _back(array, map_location.get(device, device))
    if callable(map_location):
        return lambda array, device: _asked(map_location, array, device)
    if isinstance(map_location, str):
        return lambda array, device: to_device(array, map_location)
    raise ArgumentError(
        "load(map_location=...)",
        expected="a device, a dict from devices to devices, or a function",
        got=f"{type(map_location).__name__} {map_location!r:.60}",
        fix='write map_location="cpu"',
    )


def _back(array: np.ndarray, device: str) -> np.ndarray:
    """`array` on the device it was on."""
    reason = unavailable_reason(device)
    if reason is not None:
        raise DeviceError(
            f"loading a tensor of {device}",
            expected=f"{device} to be usable here",
            got=reason,
            fix='write load(path, map_location="cpu")',
        )
    return to_device(array, device)


def _asked(
    map_location: Callable[[Tensor, str], object], array: np.ndarray, device: str
) -> np.ndarray:
    answer = map_location(wrap(array), device)
    if answer is None:
        return _back(array, device)
    if not isinstance(answer, TensorBase):
        raise ArgumentError(
            "load(map_location=...)",
            expected="a function that returns the tensor it was given, moved or not, or None",
            got=type(answer).__name__,
            fix='write map_location="cpu"',
        )
    return answer.array


explain_calls(globals())
