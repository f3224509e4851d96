"""Modules that hold parameters in a list or by name, and other values beside them.

Tensors become parameters. A number, a text or None is kept as it is, at its place in the order, but
is no part of the state; a module is one of the children.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Self, TypeAlias, overload

from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.nn.containers import position
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter

__all__ = ["ParameterDict", "ParameterList"]

# A parameter, or whatever else was put there.
Value: TypeAlias = Tree
# By names: a dict of either kind, or pairs.
Named: TypeAlias = "Mapping[str, object] | ParameterDict | Iterable[tuple[str, object]]"


class _Keyed(Module):
    """Base of both: attributes under names that are keys, in the order of insertion."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}

    def _put(self, key: str, value: Value) -> None:
        self._check_name(type(self).__name__, key, self._parameters)
        is_tensor = isinstance(value, TensorBase)
        if key in self._keys and not (is_tensor and key in self._parameters):
            super().__delattr__(key)
        if is_tensor:
            plain = not isinstance(value, Parameter) and not value.requires_grad
            # What has a gradient from elsewhere is refused there.
            self.register_parameter(key, Parameter(value) if plain else value)
        else:
            setattr(self, key, value)
        self._keys[key] = None

    def _check_name(self, op: str, name: object, table: str) -> None:
        # What is a key may be replaced by whatever it is.
        if name not in self.__dict__.get("_keys", ()):
            super()._check_name(op, name, table)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._keys.pop(name, None)

    def __len__(self) -> int:
        return len(self._keys)

    def _values(self) -> list[Value]:
        return [getattr(self, key) for key in self._keys]

    def extra_repr(self) -> str:
        lines = []
        for name, value in zip(self._keys, self._values()):
            if isinstance(value, TensorBase):
                size = "x".join(map(str, value.shape)) or "()"
                lines.append(f"({name}): {type(value).__name__} of size {size}, {value.dtype}")
            elif not isinstance(value, Module):
                lines.append(f"({name}): {value!r:.60}")
        return "\n".join(lines)


class ParameterList(_Keyed):
    """A list of parameters; tensors become parameters, other values stay what they are.

    Parameters
    ----------
    values : iterable, optional
    """

    def __init__(self, values: Iterable[object] | None = None) -> None:
        super().__init__()
        if values is not None:
            self.extend(values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values())

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Value:
        if isinstance(index, slice):
            usual = type(self).__init__ is ParameterList.__init__
            return (type(self) if usual else ParameterList)(self._values()[index])
        return getattr(self, str(position("ParameterList", index, len(self))))

    def __setitem__(self, index: int, value: object) -> None:
        self._put(str(position("ParameterList", index, len(self))), value)

    def append(self, value: object) -> Self:
        """Add a value at the end; returns the list."""
        self._put(str(len(self)), value)
        return self

    def extend(self, values: Iterable[object]) -> Self:
        """Add values at the end; returns the list."""
        if isinstance(values, TensorBase) or not isinstance(values, Iterable):
            raise ArgumentError(
                "ParameterList.extend",
                expected="parameters in a list",
                got=f"one {type(values).__name__}",
                fix="append() it, or put it in a list",
            )
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend


class ParameterDict(_Keyed):
    """A dict of parameters, in the order of insertion; tensors become parameters.

    Parameters
    ----------
    parameters : dict or iterable of pairs, optional
    """

    def __init__(self, parameters: Named | None = None) -> None:
        super().__init__()
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: object) -> None:
        self._put(key, value)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __or__(self, other: Named) -> ParameterDict:
        return self.copy().__ior__(other)

    def __ror__(self, other: Named) -> ParameterDict:
        return ParameterDict(other).__ior__(self)

    def __ior__(self, other: Named) -> Self:
        self.update(other)
        return self

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return dict(self._keys).keys()

    def values(self) -> Iterable[Value]:
        """Return the parameters and other values."""
        return dict(self.items()).values()

    def items(self) -> Iterable[tuple[str, Value]]:
        """Return pairs of name and value."""
        return dict(zip(self._keys, self._values())).items()

    def get(self, key: str, default: Value = None) -> Value:
        """Return the value named `key`, or `default`."""
        return self[key] if key in self._keys else default

    def pop(self, key: str) -> Value:
        """Take out and return the value named `key`."""
        value = self[key]
        delattr(self, key)
        return value

    def update(self, parameters: Named) -> None:
        """Add or replace values from a dict or pairs."""
        pairs = parameters.items() if hasattr(parameters, "items") else parameters
        for key, value in list(pairs):
            self[key] = value

    def popitem(self) -> tuple[str, Value]:
        """Take out and return the last pair of name and value."""
        if not self._keys:
            raise KeyError("popitem(): the dict is empty")
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Value = None) -> Value:
        """Return the value named `key`; put `default` there first if there is none."""
        if key not in self._keys:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Take out everything."""
        for key in list(self._keys):
            delattr(self, key)

    def copy(self) -> ParameterDict:
        """Return another dict with the same parameters."""
        return ParameterDict(self.items())

    def fromkeys(self, keys: Iterable[str], default: object = None) -> ParameterDict:
        """Return a dict with a value under each of some names, all the same."""
        return ParameterDict((key, default) for key in keys)
