"""Trees of plain data as lists that JSON can hold, and back.

The header of a container says what was saved:

- ``nodes``: a list of nodes, the root last. A node is a number, a text, true, false or null, or a
  list ``[kind, ...]`` with one of the kinds below. Where a kind holds other nodes it has their
  numbers, all smaller than its own: whatever is in the tree twice is written once and is the same
  object after loading, and nothing can hold itself.
- ``views`` and ``blobs``: the arrays (`blobs.py`).
- ``library``: the release of probtorch that wrote it.

Kinds: ``list tuple size generator_state`` (nodes), ``dict ordered_dict`` (keys and values in turn),
``state_dict`` (names and versions of classes, `state_versions.py`, and keys and values), ``int``
(hexadecimal), ``float`` (its eight bytes, for nan and infinities), ``complex``, ``bytes``,
``dtype``; ``set``; on a view ``array``, ``scalar`` (a NumPy number), ``tensor parameter buffer``
(with the device, and whether a gradient is wanted or the buffer is persistent); ``named`` (a class
or function, by its module and name) and ``object`` (module and name of its class, which of its
tensors are parametrized, and names and values of its attributes in turn), see `objects.py`.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TypeAlias

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.config import VERSION
from probtorch.core.dispatch import wrap
from probtorch.core.leaf_types import LEAF_TYPES, leaf_type_of
from probtorch.core.rng import GeneratorState
from probtorch.core.shape import Size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import DType, StateDict, Tree
from probtorch.errors import DTypeError, FileError
from probtorch.ops.named import Eigh, Qr, Slogdet, Svd, ValuesIndices
from probtorch.serialization.blobs import Arrays, View, is_dtype, is_storable, view_of
from probtorch.serialization.header import Header
from probtorch.serialization.limits import (
    COSTS,
    MAX_KEY,
    ReadingBudget,
    entries_of,
    refuse_collisions,
)
from probtorch.serialization.objects import (
    NotAllowedError,
    address_of,
    filled,
    is_saved_whole,
    resolved,
)
from probtorch.serialization.state_versions import versions_of, with_versions
from probtorch.tensor import Tensor

__all__ = ["Place", "decode", "encode"]

# What JSON holds of one value; the lists are kinds, with numbers of other nodes.
Node: TypeAlias = str | float | list[object] | None
# Puts the array of a tensor on the device that it was on, or another.
Place: TypeAlias = Callable[[np.ndarray, str], np.ndarray]

_SEQUENCES: dict[type, str] = {
    list: "list",
    set: "set",
    tuple: "tuple",
    **dict.fromkeys((Eigh, Qr, Slogdet, Svd, ValuesIndices), "tuple"),
    Size: "size",
    GeneratorState: "generator_state",
}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered_dict"}
_CONTAINERS = {**_SEQUENCES, **_MAPPINGS}
# Compared by value and type, and so written once however often they occur.
_REPEATED = (str, int, bool, type(None))
_KEYS = (*_REPEATED, float, complex, bytes, tuple, Size, np.generic)
_LARGEST = 2**63


# ------------------------------------------------------------------------------------ to a header


def encode(tree: Tree) -> tuple[Header, Iterator[memoryview | bytes]]:
    """Return the header of a container for `tree`, and an iterator over its blobs.

    Raises
    ------
    DTypeError
        If there is something in it that is no plain data, or that holds itself; names its place.
    """
    writer = _Writer()
    writer.write(tree)
    views, sizes, blobs = writer.arrays.layout()
    header = {
        "library": VERSION,
        "nodes": writer.nodes,
        "views": views,
        "blobs": sizes,
    }
    return header, blobs


class _Open:
    """A container whose children are being written."""

    def __init__(self, value: Tree) -> None:
        self.value, self.kind = value, _CONTAINERS.get(type(value), "object")
        self.head: list[object] = []
        self.children: list[object]
        if self.kind == "object":
            items = vars(value).items()
            self.children = [x for name, held in items if name != "_hooks" for x in (name, held)]
        elif type(value) in _MAPPINGS:
            self.children = [x for item in value.items() for x in item]
        elif type(value) is set:
            # In an order that is the same in every run, where there is one.
            self.children = sorted(value, key=lambda x: (type(x).__name__, repr(x)))
        else:
            self.children = list(value)
        self.numbers: list[int] = []

    def place(self) -> str:
        """Say where the child that is next stands, as an index."""
        i = len(self.numbers)
        if self.kind == "object":
            return f".{self.children[i - i % 2]}"
        if type(self.value) in _MAPPINGS:
            return f"[{self.children[i - i % 2]!r:.60}]"
        return f"[{i}]"


class _Writer:
    """Nodes of a tree, made without recursion: trees may be deep."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrays = Arrays()
        self._open: list[_Open] = []
        # Numbers of the nodes of what may occur again; None while a container is open.
        self._known: dict[object, int | None] = {}

    def write(self, tree: Tree) -> None:
        number = self._visit(tree)
        while self._open:
            top = self._open[-1]
            if number is not None:
                top.numbers.append(number)
            if len(top.numbers) < len(top.children):
                value = top.children[len(top.numbers)]
                if type(top.value) in _MAPPINGS and len(top.numbers) % 2 == 0:
                    self._check_key(value)
                number = self._visit(value)
            else:
                number = self._put([top.kind, *top.head, top.numbers])
                self._known[id(top.value)] = number
                self._open.pop()

    def _visit(self, value: Tree) -> int | None:
        """The number of a value's node; None for a container, whose children come first."""
        kind = type(value)
        key = (kind, value) if kind in _REPEATED else id(value)
        if key in self._known:
            number = self._known[key]
            if number is None:
                raise self._refusal("a container that holds itself", "break the cycle")
            return number
        if kind in _CONTAINERS or is_saved_whole(value):
            head = versions_of(value) if kind in _CONTAINERS else self._head(value)
            self._known[key] = None
            self._open.append(_Open(value))
            self._open[-1].head = head
            if head and kind is OrderedDict:
                self._open[-1].kind = "state_dict"
            return None
        number = self._put(self._leaf(value))
        # Objects made on the way, as the keys of a dict may be, can leave their id to others.
        if kind in _REPEATED or isinstance(value, (TensorBase, np.ndarray)):
            self._known[key] = number
        return number

    def _head(self, value: Tree) -> list[object]:
        """The address of an object's class, and which of its tensors are parametrized."""
        kind = type(value)
        names = list(getattr(kind, "_parametrized", ()))
        plain = getattr(kind, "_plain", kind)
        address = address_of(plain)
        if address is None:
            raise self._refusal(
                f"a {_full_name(plain)}", "define the class at the top level of a module"
            )
        if getattr(value, "_hooks", None) is not None and any(value._hooks.tables.values()):
            raise self._refusal(f"a {_full_name(kind)} with hooks", "remove the hooks before")
        return [*address, names]

    def _put(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _leaf(self, value: Tree) -> Node:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_LARGEST <= value < _LARGEST else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", _hex(value)]
        if kind is complex:
            return ["complex", _hex(value.real), _hex(value.imag)]
        if kind is bytes:
            return ["bytes", self._array(np.frombuffer(value, np.uint8))]
        if isinstance(value, TensorBase):
            return self._tensor(value)
        if isinstance(value, np.generic):
            return ["scalar", self._array(np.asarray(value))]
        if kind is np.ndarray or kind is np.memmap:
            return ["array", self._array(value)]
        if isinstance(value, np.dtype) and is_storable(value):
            return ["dtype", value.newbyteorder("<").str]
        if isinstance(value, (FunctionType, type)) and self._in_object():
            address = address_of(value)
            if address is None:
                raise self._refusal(
                    f"the function {value.__qualname__}", "define it at the top level of a module"
                )
            return ["named", *address]
        raise self._refusal(f"a {_full_name(kind)}", _advice(value))

    def _in_object(self) -> bool:
        """Whether this is part of a module: nothing else refers to code."""
        return any(o.kind == "object" for o in self._open)

    def _tensor(self, value: Tensor) -> Node:
        read("save", value)
        kind, note = "tensor", bool(value.requires_grad)
        if type(value) is not Tensor:
            found = leaf_type_of(value)
            if found is None:
                name = f"{type(value).__module__}.{type(value).__name__}"
                raise self._refusal(f"a {name}", "detach() it, which gives a plain tensor")
            kind, note = found.kind, found.note(value)
        return [kind, self._array(value.array), device_of(value.array), note]

    def _array(self, array: np.ndarray) -> int:
        if not is_storable(array.dtype):
            raise self._refusal(
                f"an array of dtype {array.dtype}",
                "convert it to numbers, text of a fixed length or dates",
            )
        return self.arrays.add(array)

    def _check_key(self, key: object) -> None:
        if not isinstance(key, _KEYS):
            raise self._refusal(
                f"a key of type {type(key).__name__}", "use texts, numbers or tuples as keys"
            )
        if entries_of(key) > MAX_KEY:
            raise self._refusal(
                f"a key of more than {MAX_KEY} entries", "use texts or numbers as keys"
            )

    def _refusal(self, got: str, fix: str) -> DTypeError:
        place = "".join(o.place() for o in self._open)
        if self._in_object():
            fix = f"{fix}; or save the module's state_dict()"
        return DTypeError(
            f"save: {f'object{place}' if place else 'the object'}",
            expected="dicts, lists, tuples, numbers, texts, None, tensors and arrays",
            got=got,
            fix=fix,
        )


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: object) -> str:
    if hasattr(value, "state_dict"):
        return "save its state_dict()"
    if hasattr(value, "get_state"):
        return "save its get_state()"
    if hasattr(value, "save"):
        return "use its own save()"
    return "take out of it what is plain data: code and objects are not saved"


def _hex(number: float) -> str:
    return struct.pack("<d", number).hex()


# ---------------------------------------------------------------------------------- from a header


def decode(
    header: Header,
    blobs: list[np.ndarray],
    name: str,
    place: Place,
    weights_only: bool = True,
) -> Tree:
    """Return the tree that a header and its blobs describe.

    Parameters
    ----------
    header, blobs
        As `container.read` returned them.
    name : str
        Of the file, for messages.
    place : callable
        ``place(array, device)`` puts the array of a tensor where it belongs.
    weights_only : bool
        Whether classes and functions must be known, see `objects.py`.

    Raises
    ------
    FileError
        If they describe nothing.
    """
    try:
        reader = _Reader(blobs, header["views"], ReadingBudget(header, blobs), not weights_only)
        for node in header["nodes"]:
            reader.add(node)
        tree = reader.values[-1]
    except NotAllowedError as error:
        short = str(error).rpartition(".")[2]
        raise FileError(
            f"loading {name}",
            expected="modules of classes and functions that are known to do no harm",
            got=str(error),
            fix=f"write with probtorch.serialization.safe_globals([{short}]): around it, or pass "
            "weights_only=False if you trust the file",
        ) from error
    except (LookupError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise FileError(
            f"loading {name}",
            expected="a file as probtorch.save writes it",
            got=f"one that was made otherwise ({error})",
            fix="do not trust it",
        ) from error
    placed: dict[tuple[int, str], np.ndarray] = {}
    for tensor, number, device in reader.tensors:
        key = number, device
        if key not in placed:
            placed[key] = place(tensor.array, device)
        tensor.array = placed[key]
    return tree


class _Reader:
    """Values of nodes, in order."""

    def __init__(
        self, blobs: list[np.ndarray], views: Sequence[View], budget: ReadingBudget, trusted: bool
    ) -> None:
        self.trusted = trusted
        self._names: dict[tuple[object, object], Callable[..., object]] = {}
        self.values: list[Tree] = []
        # How much a node holds if it is written out, 1 unless it is a tuple; not counted further
        # than it matters.
        self._sizes = array("H")
        self._spend = budget.spend
        # Tensors, still on the host, with the numbers of their views and the devices they were on.
        self.tensors: list[tuple[Tensor, int, str]] = []
        self._blobs, self._views = blobs, views

    def add(self, node: object) -> None:
        """Make the value of the next node; those before it are known."""
        if isinstance(node, dict):
            raise ValueError("a dict among the nodes")
        if not isinstance(node, list):
            value, size = node, 1
            self._spend(8 + (len(node) if isinstance(node, str) else 24))
        else:
            kind, *rest = node
            if kind == "tensor" or kind in LEAF_TYPES:
                self._spend(COSTS["tensor"])
                value, size = self._tensor(kind, *rest), 1
            else:
                read_node = _READERS[kind]
                self._spend(COSTS[kind])
                value, size = read_node(self, *rest), 1
            if isinstance(value, tuple):
                size += sum(self._sizes[n] for n in rest[0])
        self.values.append(value)
        self._sizes.append(min(size, MAX_KEY + 1))

    def _children(self, numbers: Sequence[int]) -> list[Tree]:
        known = len(self.values)
        self._spend(8 * len(numbers))
        if not all(type(n) is int and 0 <= n < known for n in numbers):
            raise ValueError("a node that holds a later one")
        return [self.values[n] for n in numbers]

    def _mapping(
        self, make: Callable[..., dict[object, object]], numbers: Sequence[int]
    ) -> dict[object, object]:
        children = self._children(numbers)
        if any(self._sizes[n] > MAX_KEY for n in numbers[::2]):
            raise ValueError("a key of tuples within tuples within tuples")
        self._spend(100 * len(children))
        refuse_collisions(children[::2])
        found = make(zip(children[::2], children[1::2], strict=True))
        if len(found) != len(children) // 2:
            raise ValueError("a dict with a key twice")
        return found

    def _state(self, versions: Sequence[object], numbers: Sequence[int]) -> StateDict:
        self._spend(100 * len(versions))
        return with_versions(self._mapping(OrderedDict, numbers), versions)

    def _set(self, numbers: Sequence[int]) -> set[object]:
        return set(self._mapping(dict, [n for number in numbers for n in (number, number)]))

    def _named(self, path: object, name: object) -> Callable[..., object]:
        if (path, name) not in self._names:
            self._names[path, name] = resolved(path, name, self.trusted)
        return self._names[path, name]

    def _object(self, path: object, name: object, names: object, numbers: Sequence[int]) -> object:
        # Keys are texts, whose hashes nobody can choose.
        children = self._children(numbers)
        self._spend(16 * len(children))
        if not all(type(key) is str for key in children[::2]):
            raise ValueError("an attribute whose name is no text")
        state = dict(zip(children[::2], children[1::2], strict=True))
        if len(state) != len(children) // 2:
            raise ValueError("an attribute twice")
        return filled(self._named(path, name), names, state)

    def _array(self, number: object) -> np.ndarray:
        if type(number) is not int or not 0 <= number < len(self._views):
            raise ValueError(f"a view {number!r:.40}")
        return view_of(self._blobs, self._views[number])

    def _bytes(self, number: int) -> bytes:
        found = self._array(number)
        self._spend(found.nbytes)
        return found.tobytes()

    def _scalar(self, number: int) -> object:
        found = self._array(number)
        if found.ndim:
            raise ValueError("a scalar with dims")
        self._spend(found.nbytes)
        return found[()]

    def _tensor(self, kind: str, number: int, device: str, note: object) -> Tensor:
        tensor, found = wrap(self._array(number)), LEAF_TYPES.get(kind)
        wanted = bool(note) and (found is None or found.wants_gradient)
        if wanted and tensor.array.dtype.kind not in "fc":
            raise ValueError(f"a gradient of {tensor.array.dtype}")
        if found is None:
            tensor.requires_grad = wanted
        else:
            tensor = found.make(tensor, bool(note))
        self.tensors.append((tensor, number, str(device)))
        return tensor


def _number(text: str) -> float:
    (found,) = struct.unpack("<d", bytes.fromhex(text))
    return found


def _dtype(name: str) -> DType:
    if not is_dtype(name):
        raise ValueError(f"a dtype {name!r:.40}")
    return np.dtype(name)


_READERS: dict[str, Callable[..., object]] = {
    "list": lambda r, numbers: r._children(numbers),
    "tuple": lambda r, numbers: tuple(r._children(numbers)),
    "size": lambda r, numbers: Size(r._children(numbers)),
    "generator_state": lambda r, numbers: GeneratorState(*r._children(numbers)),
    "dict": lambda r, numbers: r._mapping(dict, numbers),
    "ordered_dict": lambda r, numbers: r._mapping(OrderedDict, numbers),
    "state_dict": lambda r, versions, numbers: r._state(versions, numbers),
    "int": lambda r, text: int(text, 16),
    "float": lambda r, text: _number(text),
    "complex": lambda r, real, imag: complex(_number(real), _number(imag)),
    "bytes": lambda r, view: r._bytes(view),
    "dtype": lambda r, name: _dtype(name),
    "array": lambda r, view: r._array(view),
    "scalar": lambda r, view: r._scalar(view),
    "set": lambda r, numbers: r._set(numbers),
    "named": lambda r, path, name: r._named(path, name),
    "object": lambda r, path, name, names, numbers: r._object(path, name, names, numbers),
}
