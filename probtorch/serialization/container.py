r"""The file format: a header in JSON, arrays as raw bytes, and a checksum over all of it.

::

    0    8 bytes   \x89PROB\r\n\x1a
    8    uint32    version of the format, 1
    12   uint32    0
    16   uint64    length of the header
    24   uint64    length of the file
    32   32 bytes  SHA-256 of bytes 0 to 32 and the header
    64   header    JSON in ASCII (see `tree.py` for what it says)
         blobs     each at the next multiple of 64; zeros between
         digests   32 bytes each: SHA-256 of every blob, then SHA-256 of all digests, the header's
                   first

Numbers are little-endian. The sizes of the blobs are in the header and the blobs fill the file, so
there are no offsets that could overlap or point elsewhere. A reader checks the length of the file,
the header's digest and its sizes before it sets memory aside, and every byte before it returns; so
a file, whoever made it, costs memory in proportion to its length (`tree.py` says how much). Nothing
in it is ever executed.

Read `tree.py` next.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import struct
from collections.abc import Callable, Iterable
from typing import IO

import numpy as np

from probtorch.errors import FileError
from probtorch.serialization.header import Header, parse

__all__ = ["MAGIC", "read", "write"]

# As PNG's: the first byte is no text, and the line ends show a transfer that changed them.
MAGIC = b"\x89PROB\r\n\x1a"
VERSION = 1
ALIGNMENT = 64
DIGEST = hashlib.sha256().digest_size
_START = struct.Struct("<8sIIQQ")
_PREFIX = _START.size + DIGEST

# Three million numbers, or 300 000 tensors. Python objects take more memory than the text they
# come from, so this bounds what a header can cost.
MAX_HEADER = 64 * 2**20
# Lists in a header that are read element by element.
PIECES = frozenset(("nodes", "views"))
# Bytes that are hashed and written at a time, from a copy: another thread may change the arrays.
CHUNK = 2**20

_REWRITE = (
    "write it anew in PyTorch, whose files have been zip archives since 1.6: "
    "torch.save(torch.load(path), path); or safetensors.torch.save_file(state_dict, ...)"
)
# What a file begins with that is something else, and what to do with it.
_FOREIGN: dict[bytes, tuple[str, str]] = {
    b"PK\x03\x04": ("a zip archive that PyTorch did not write", "check the path"),
    b"\x80": ("a pickle, as older versions of PyTorch write them", _REWRITE),
    b"\x93NUMPY": ("an array in NumPy's format", "use numpy.load"),
    b"\x89HDF": ("an HDF5 or netCDF file", "for draws use Draws.load"),
    b"": ("an empty file", "take an earlier checkpoint, or save it again"),
}


# ------------------------------------------------------------------------------------- writing


def write(stream: IO[bytes], header: Header, blobs: Iterable[memoryview | bytes]) -> None:
    """Write one container.

    Parameters
    ----------
    stream : binary file
        Written in one go, never moved back.
    header : dict
        What JSON can hold; ``header["blobs"]`` has the size of each blob in bytes.
    blobs : iterable of buffers
        Asked for one by one, each of its size.

    Raises
    ------
    FileError
        If the header is too long.
    """
    sizes = header["blobs"]
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(text) > MAX_HEADER:
        raise FileError(
            "save",
            expected=f"a structure of at most {MAX_HEADER >> 20} MiB, arrays not counted",
            got=f"{len(text) >> 20} MiB of keys and numbers",
            fix="keep long lists of numbers as arrays",
        )
    end = _PREFIX + len(text)
    for size in sizes:
        end = _aligned(end) + size
    start = _START.pack(MAGIC, VERSION, 0, len(text), end + DIGEST * (len(sizes) + 1))
    digests = [hashlib.sha256(start + text).digest()]
    stream.write(start + digests[0] + text)
    place = _PREFIX + len(text)
    for size, blob in zip(sizes, blobs, strict=True):
        stream.write(bytes(_aligned(place) - place))
        digest, view = hashlib.sha256(), memoryview(blob)
        for first in range(0, size, CHUNK):
            part = bytes(view[first : first + CHUNK])
            digest.update(part)
            stream.write(part)
        digests.append(digest.digest())
        place = _aligned(place) + size
    stream.write(b"".join(digests[1:]) + hashlib.sha256(b"".join(digests)).digest())


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT


# ------------------------------------------------------------------------------------- reading


def read(
    stream: IO[bytes], name: str, *, mapped: bool = False, verify: bool = True
) -> tuple[Header, list[np.ndarray]]:
    """Read one container, checked.

    Parameters
    ----------
    stream : binary file
        At its beginning.
    name : str
        For messages.
    mapped : bool
        Blobs are memory mapped, copy on write: changes stay in this process.
    verify : bool
        Whether to check the digests of the blobs; that of the header is always checked.

    Returns
    -------
    header : dict
        The digest fits; what it says about anything but the blobs is not checked. Its ``nodes`` and
        ``views`` are `Pieces`.
    blobs : list of ndarray, uint8
        Writable.

    Raises
    ------
    FileError
        If the file is something else, of a later version, cut short or altered.
    """
    source = _source(stream, mapped)
    length = source.length
    start = bytes(source.take(0, min(length, _PREFIX)))
    if start[: len(MAGIC)] != MAGIC[: len(start)] or not start:
        raise _foreign(name, start)
    if length < _PREFIX:
        raise _altered(name, f"a file cut short after {length} bytes")
    _, version, _, header_length, file_length = _START.unpack(start[: _START.size])
    if version != VERSION:
        raise FileError(
            f"loading {name}",
            expected=f"version {VERSION} of the format",
            got=f"version {version}",
            fix="load it with the release of probtorch that wrote it, or a later one",
        )
    if file_length != length:
        what = "cut short" if length < file_length else "with something behind its end"
        raise _altered(name, f"a file {what}: {length} bytes of {file_length}")
    if header_length > min(MAX_HEADER, length - _PREFIX):
        raise _altered(name, f"a header of {header_length} bytes")
    text = bytes(source.take(_PREFIX, header_length))
    digests = [hashlib.sha256(start[: _START.size] + text).digest()]
    if digests[0] != start[_START.size :]:
        raise _altered(name, "a header that does not fit its checksum")
    header = _parsed(text, name)
    places, end = _places(header["blobs"], _PREFIX + header_length)
    if end + DIGEST * (len(places) + 1) != length:
        raise _altered(name, "a header whose sizes do not fit the file")
    tail = bytes(source.take(end, length - end))
    digests += [tail[i : i + DIGEST] for i in range(0, len(tail) - DIGEST, DIGEST)]
    if hashlib.sha256(b"".join(digests)).digest() != tail[-DIGEST:]:
        raise _altered(name, "checksums that do not fit each other")
    blobs, before = [], _PREFIX + header_length
    for i, (place, size) in enumerate(places):
        blob = source.array(place, size)
        if any(source.take(before, place - before)):
            raise _altered(name, f"something other than zeros before blob {i}")
        if verify and hashlib.sha256(blob.data).digest() != digests[i + 1]:
            raise _altered(name, f"bytes of blob {i} that do not fit their checksum")
        blobs.append(blob)
        before = place + size
    return header, blobs


def _parsed(text: bytes, name: str) -> Header:
    """The header; all that is known of it so far is that it fits its digest."""
    try:
        header = parse(text, PIECES)
    except (ValueError, RecursionError) as error:
        raise _altered(name, f"a header that is no JSON ({error})") from None
    sizes = header.get("blobs")
    if not isinstance(sizes, list) or not all(type(s) is int and s >= 0 for s in sizes):
        raise _altered(name, "a header without the sizes of its blobs")
    return header


def _places(sizes: Iterable[int], end: int) -> tuple[list[tuple[int, int]], int]:
    """Where each blob begins, with its size; and where the last one ends."""
    places = []
    for size in sizes:
        places.append((_aligned(end), size))
        end = _aligned(end) + size
    return places, end


class _Source:
    """Bytes of a file: its length, pieces of it, and pieces as arrays that may be kept."""

    def __init__(
        self,
        length: int,
        take: Callable[[int, int], bytes],
        array: Callable[[int, int], np.ndarray],
    ) -> None:
        self.length, self.take, self.array = length, take, array


def _source(stream: IO[bytes], mapped: bool) -> _Source:
    if not (hasattr(stream, "readinto") and stream.seekable()):
        return _memory(bytearray(stream.read()))
    first = stream.tell()
    length = stream.seek(0, io.SEEK_END) - first
    if mapped and length:
        return _memory(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))

    def fill(place: int, size: int) -> np.ndarray:
        found = np.empty(size, np.uint8)
        stream.seek(first + place)
        view, done = found.data, 0
        while done < size:
            count = stream.readinto(view[done:])
            if not count:
                raise _altered(getattr(stream, "name", "the file"), "a file that got shorter")
            done += count
        return found

    return _Source(length, lambda place, size: fill(place, size).tobytes(), fill)


def _memory(buffer: bytearray | mmap.mmap) -> _Source:
    array = np.frombuffer(buffer, np.uint8)

    def part(place: int, size: int) -> np.ndarray:
        return array[place : place + size]

    return _Source(len(buffer), lambda place, size: part(place, size).tobytes(), part)


# -------------------------------------------------------------------------------------- errors


def _altered(name: str, what: str) -> FileError:
    return FileError(
        f"loading {name}",
        expected="a file as probtorch.save wrote it",
        got=what,
        fix="copy it again from where it came from, or take an earlier checkpoint",
    )


def _foreign(name: str, start: bytes) -> FileError:
    got, fix = f"one that begins with {start[:8]!r}", "check the path"
    if b".npy" in start:
        got, fix = "NumPy arrays, a .npz archive", "use numpy.load, or Draws.load for draws"
    elif start[8:9] == b"{":
        got, fix = "perhaps a safetensors file", "give it a name that ends in .safetensors"
    else:
        for magic, found in _FOREIGN.items():
            if start.startswith(magic) and (magic or not start):
                got, fix = found
    return FileError(
        f"loading {name}", expected="a file that probtorch.save wrote", got=got, fix=fix
    )
