"""PyTorch's own files, as `torch.save` writes them: a zip archive of a pickle and of storages.

They are read without PyTorch, and nothing in them is run: `plain_pickle.py` has the opcodes of
plain data, and the tables below say which few functions of PyTorch's a pickle may name, and what
they mean here. State dicts of modules and optimizers are such data. A whole module is not: its
class would have to be imported. Read `_Archive` first.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.shape import Size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import FileError
from probtorch.nn.parameter import Parameter
from probtorch.serialization.plain_pickle import PickleRefusedError
from probtorch.serialization.plain_pickle import read as read_pickle
from probtorch.serialization.tree import Place
from probtorch.tensor import Tensor

__all__ = ["MAGIC", "holds", "load"]

# How a zip archive begins.
MAGIC = b"PK\x03\x04"
_PICKLE = "/data.pkl"
_FIX = (
    "in PyTorch, save plain data: torch.save(model.state_dict(), path), and give the state to a "
    "model that is made here"
)


class _Kind:
    """A dtype of PyTorch's: bytes of an element, and how they become an array of NumPy's."""

    def __init__(self, dtype: str, convert: Callable[[np.ndarray], np.ndarray] | None = None):
        self.dtype, self.convert = np.dtype(dtype), convert


def _bfloat16(bits: np.ndarray) -> np.ndarray:
    """The upper halves of float32 numbers, as these."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _float8_e5m2(bits: np.ndarray) -> np.ndarray:
    """The upper halves of float16 numbers, as float32."""
    return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def _float8_e4m3fn(bits: np.ndarray) -> np.ndarray:
    """Four bits of exponent with bias 7, three of mantissa, no infinities; as float32."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp(1.0 + mantissa / 8.0, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), normal)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)[bits]


_KINDS = {
    "float32": _Kind("<f4"),
    "float64": _Kind("<f8"),
    "float16": _Kind("<f2"),
    "bfloat16": _Kind("<u2", _bfloat16),
    "float8_e5m2": _Kind("u1", _float8_e5m2),
    "float8_e4m3fn": _Kind("u1", _float8_e4m3fn),
    "int64": _Kind("<i8"),
    "int32": _Kind("<i4"),
    "int16": _Kind("<i2"),
    "int8": _Kind("i1"),
    "uint64": _Kind("<u8"),
    "uint32": _Kind("<u4"),
    "uint16": _Kind("<u2"),
    "uint8": _Kind("u1"),
    "bool": _Kind("?"),
    "complex64": _Kind("<c8"),
    "complex128": _Kind("<c16"),
}
_BYTES = _Kind("u1")
# PyTorch's classes of storages with elements, from before storages were bytes.
_STORAGES = {
    "torch FloatStorage": "float32",
    "torch DoubleStorage": "float64",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
    "torch LongStorage": "int64",
    "torch IntStorage": "int32",
    "torch ShortStorage": "int16",
    "torch CharStorage": "int8",
    "torch ByteStorage": "uint8",
    "torch BoolStorage": "bool",
    "torch ComplexFloatStorage": "complex64",
    "torch ComplexDoubleStorage": "complex128",
}
_VALUES: dict[str, object] = {
    **{name: _KINDS[kind] for name, kind in _STORAGES.items()},
    "torch.storage UntypedStorage": _BYTES,
    "torch.storage _UntypedStorage": _BYTES,
    **{f"torch {name}": kind for name, kind in _KINDS.items()},
    # Of a tensor; what kind of tensor is told by the function that makes it.
    "torch Tensor": Tensor,
    "torch.nn.parameter Parameter": Tensor,
    "torch.nn.parameter Buffer": Tensor,
}


def holds(stream: IO[bytes]) -> bool:
    """Whether a stream, which can be moved back, begins as one of PyTorch's files does."""
    first = stream.tell()
    start = stream.read(len(MAGIC))
    stream.seek(first)
    if start != MAGIC:
        return False
    try:
        with zipfile.ZipFile(stream) as archive:
            return any(name.endswith(_PICKLE) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return True  # cut short, perhaps: `load` says so
    finally:
        stream.seek(first)


def load(stream: IO[bytes], name: str, place: Place) -> Tree:
    """Return what `torch.save` wrote.

    Parameters
    ----------
    stream : binary file
        That can be moved back.
    name : str
        Of the file, for messages.
    place : callable
        ``place(array, device)`` puts the array of a tensor where it belongs.

    Raises
    ------
    FileError
        If the file is damaged, or holds more than plain data.

    Notes
    -----
    bfloat16 and float8, which NumPy lacks, become float32 of the same values. Tensors that share a
    storage share memory, on the CPU. Attributes of tensors, hooks, and the `_metadata` of state
    dicts are left out.
    """
    first = stream.tell()
    length = stream.seek(0, io.SEEK_END) - first
    stream.seek(first)
    try:
        with zipfile.ZipFile(stream) as archive:
            found = _Archive(archive, length)
            tree = found.tree()
    except PickleRefusedError as error:
        raise FileError(
            f"loading {name}",
            expected="a PyTorch file of plain data: tensors, numbers, texts, in dicts and lists",
            got=str(error),
            fix=_FIX,
        ) from error
    except (
        zipfile.BadZipFile,
        zlib.error,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        NotImplementedError,
        EOFError,
        AssertionError,
    ) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"loading {name}",
            expected="a file as torch.save writes it",
            got=f"one that is damaged or was made otherwise ({error})"[:300],
            fix="copy it again from where it came from",
        ) from error
    found.put(place)
    return tree


class _Archive:
    """One file: its pickle, its storages by their keys, the tensors that are made of them."""

    def __init__(self, archive: zipfile.ZipFile, length: int) -> None:
        self._archive = archive
        names = archive.namelist()
        pickles = [n for n in names if n.endswith(_PICKLE) and n.count("/") == 1]
        if len(pickles) != 1:
            raise ValueError("no data.pkl, or several")
        self._root = pickles[0].removesuffix("data.pkl")
        if any(n.startswith((f"{self._root}code/", f"{self._root}constants.pkl")) for n in names):
            raise PickleRefusedError("a TorchScript program")
        # Without compression, as PyTorch writes them, nothing can be larger than the file is.
        infos = archive.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ValueError("compressed entries")
        if sum(info.file_size for info in infos) > length:
            raise ValueError("entries that overlap")
        order = f"{self._root}byteorder"
        self._swapped = order in names and archive.read(order) == b"big"
        self._storages: dict[str, np.ndarray] = {}
        self._arrays: dict[tuple[str, int], np.ndarray] = {}
        # Views by all that says which they are, and the tensors of each, still on the host.
        self._views: dict[tuple[object, ...], np.ndarray] = {}
        self._tensors: list[tuple[TensorBase, tuple[object, ...], str]] = []

    def tree(self) -> Tree:
        """What the pickle describes."""
        calls: dict[str, Callable[..., object]] = {
            "torch._utils _rebuild_tensor": self._tensor,
            "torch._utils _rebuild_tensor_v2": self._tensor,
            "torch._utils _rebuild_tensor_v3": self._tensor_of_bytes,
            "torch._utils _rebuild_parameter": self._parameter,
            "torch._utils _rebuild_parameter_with_state": self._parameter,
            "torch._tensor _rebuild_from_type_v2": self._with_attributes,
            "collections OrderedDict": _ordered,
            "torch Size": _size,
            "torch device": _device,
            "_codecs encode": _encoded,
            **{f"{m} set": _set for m in ("__builtin__", "builtins")},
            **{f"{m} frozenset": _frozen for m in ("__builtin__", "builtins")},
            **{f"{m} complex": _complex for m in ("__builtin__", "builtins")},
            **{f"{m} bytes": _bytes for m in ("__builtin__", "builtins")},
        }
        self._calls = calls
        data = self._archive.read(f"{self._root}data.pkl")
        return read_pickle(data, calls, _VALUES, self._storage, _plain)

    def put(self, place: Place) -> None:
        """Put tensors on the devices where they belong; those of one view stay of one memory."""
        placed: dict[tuple[object, ...], np.ndarray] = {}
        for t, where, device in self._tensors:
            if where not in placed:
                placed[where] = place(t.array, device)
            t.array = placed[where]

    # ------------------------------------------------------------------------------- storages

    def _storage(self, identifier: object) -> tuple[str, _Kind, str]:
        """A storage by what the pickle calls it: its key, kind and device."""
        if not isinstance(identifier, tuple) or len(identifier) != 5:
            raise ValueError("a storage without a name")
        what, kind, key, device, count = identifier
        if what != "storage" or not isinstance(kind, _Kind) or type(key) is not str:
            raise PickleRefusedError(f"a storage of an unknown kind, {kind!r:.60}")
        if key not in self._storages:
            name = f"{self._root}data/{key}"
            raw = np.empty(self._archive.getinfo(name).file_size, np.uint8)
            with self._archive.open(name) as entry:
                view, done = raw.data, 0
                while done < len(raw):
                    part = entry.read(len(raw) - done)  # checks the sum at the end
                    view[done : done + len(part)] = part
                    done += len(part)
            self._storages[key] = raw
        if type(count) is not int or self._storages[key].size < count * kind.dtype.itemsize:
            raise ValueError(f"a storage {key!r:.40} that is too short")
        return key, kind, str(device)

    def _elements(self, key: str, kind: _Kind) -> np.ndarray:
        """A storage as an array of a kind; the same for all that ask."""
        if (key, id(kind)) not in self._arrays:
            raw = self._storages[key]
            array = raw[: raw.size - raw.size % kind.dtype.itemsize].view(kind.dtype)
            if self._swapped:
                array = array.byteswap()
            if kind.convert is not None:
                array = kind.convert(array)
            if kind.dtype.kind == "b" and (raw > 1).any():
                raise ValueError("booleans other than 0 and 1")
            self._arrays[key, id(kind)] = array
        return self._arrays[key, id(kind)]

    # -------------------------------------------------------------------------------- tensors

    def _tensor(
        self,
        storage: tuple[str, _Kind, str],
        offset: int,
        size: Sequence[int],
        stride: Sequence[int],
        requires_grad: bool = False,
        hooks: object = None,
        metadata: object = None,
    ) -> TensorBase:
        key, kind, device = storage
        return self._made(key, kind, device, offset, size, stride, requires_grad, metadata)

    def _tensor_of_bytes(
        self,
        storage: tuple[str, _Kind, str],
        offset: int,
        size: Sequence[int],
        stride: Sequence[int],
        requires_grad: bool,
        hooks: object,
        kind: _Kind,
        metadata: object = None,
    ) -> TensorBase:
        key, _, device = storage
        if not isinstance(kind, _Kind):
            raise ValueError("a tensor without a dtype")
        return self._made(key, kind, device, offset, size, stride, requires_grad, metadata)

    def _made(
        self,
        key: str,
        kind: _Kind,
        device: str,
        offset: int,
        size: Sequence[int],
        stride: Sequence[int],
        requires_grad: bool,
        metadata: object,
    ) -> TensorBase:
        elements = self._elements(key, kind)
        size, stride = tuple(size), tuple(stride)
        known = all(type(n) is int and n >= 0 for n in (offset, *size, *stride))
        if not known or len(size) != len(stride) or len(size) > 64:
            raise ValueError("a tensor of impossible sizes")
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if 0 not in size and last >= elements.size:
            raise ValueError("a tensor that is larger than its storage")
        flags = metadata if isinstance(metadata, dict) else {}
        where = (key, id(kind), device, offset, size, stride, *sorted(map(str, flags)))
        if where not in self._views:
            array = np.lib.stride_tricks.as_strided(
                elements[offset if 0 not in size else 0 :],
                size,
                [s * elements.itemsize for s in stride],
            )
            array = np.conj(array) if flags.get("conj") else array
            array = np.negative(array) if flags.get("neg") else array
            self._views[where] = array
        t = wrap(self._views[where])
        self._tensors.append((t, where, device))
        if requires_grad and t.array.dtype.kind in "fc":
            t.requires_grad = True
        return t

    def _parameter(
        self, data: TensorBase, requires_grad: bool, hooks: object, state: object = None
    ) -> TensorBase:
        # Its tensor is the one that the opcodes before have made.
        if not self._tensors or self._tensors[-1][0] is not data:
            raise ValueError("a parameter without a tensor")
        _, where, device = self._tensors.pop()
        array = self._views[where]
        made = Parameter(
            wrap(array), requires_grad=bool(requires_grad) and array.dtype.kind in "fc"
        )
        self._tensors.append((made, where, device))
        return made

    def _with_attributes(
        self, function: object, kind: object, arguments: object, state: object
    ) -> object:
        """A tensor that had attributes in Python, without them."""
        text = getattr(function, "text", "")
        if kind is not Tensor or not text.startswith("torch._utils _rebuild_"):
            raise PickleRefusedError(f"a subclass of Tensor, or a call of {function!r:.60}")
        if not isinstance(arguments, tuple):
            raise ValueError("a call without arguments")
        return self._calls[text](*arguments)


# ----------------------------------------------------------------------------------- other data


def _ordered(items: Sequence[object] = ()) -> OrderedDict[object, object]:
    if items:
        raise ValueError("an ordered dict that is made of something")
    return OrderedDict()


def _size(sizes: object) -> Size:
    if not isinstance(sizes, tuple) or not all(type(n) is int for n in sizes):
        raise ValueError("a size that is none")
    return Size(sizes)


def _device(kind: str, index: int | None = None) -> str:
    if type(kind) is not str:
        raise ValueError("a device without a name")
    return kind if index is None else f"{kind}:{index:d}"


def _encoded(text: str, encoding: str) -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise ValueError(f"bytes in the encoding {encoding!r:.40}")
    return text.encode("latin1")


def _plain_items(items: object) -> list[object]:
    if not isinstance(items, list) or not all(
        x is None or type(x) in (str, bytes, bool, float, int) for x in items
    ):
        raise PickleRefusedError("a set of other things than texts and numbers")
    return items


def _set(items: object = None) -> set[object]:
    return set(_plain_items(items if items is not None else []))


def _frozen(items: object = None) -> frozenset[object]:
    return frozenset(_plain_items(items if items is not None else []))


def _complex(real: float, imag: float) -> complex:
    return complex(float(real), float(imag))


def _bytes(*nothing: object) -> bytes:
    if nothing:
        raise ValueError("bytes that are made of something")
    return b""


def _plain(value: object) -> object:
    """What a value is outside of the file: a dtype of NumPy's, if it is one of PyTorch's."""
    if isinstance(value, _Kind):
        if value.convert is not None:
            raise PickleRefusedError("a dtype that NumPy lacks, outside of a tensor")
        return value.dtype.newbyteorder("=")
    if value is Tensor:
        raise PickleRefusedError("a class, torch.Tensor")
    return value
