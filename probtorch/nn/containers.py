"""Modules that hold modules: in a row, in a list, by name."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Self, TypeAlias, cast, overload

from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, DTypeError, TensorIndexError
from probtorch.nn.module import Module

__all__ = ["Lambda", "ModuleDict", "ModuleList", "Sequential", "position"]


# What stands among layers: plain functions are wrapped in `Lambda`.
Layer: TypeAlias = Module | Callable[..., object]


class Lambda(Module):
    """A plain function as a module, so that it can stand among layers.

    Parameters
    ----------
    fn : callable
    """

    def __init__(self, fn: Callable[..., Tree]) -> None:
        super().__init__()
        if not callable(fn):
            raise DTypeError(
                "Lambda", expected="a function", got=type(fn).__name__, fix="pass the function"
            )
        self.fn = fn

    def forward(self, *args: Tree, **kwargs: Tree) -> Tree:
        return self.fn(*args, **kwargs)

    def extra_repr(self) -> str:
        return getattr(self.fn, "__qualname__", repr(self.fn))


def _as_module(owner: str, value: object) -> Module:
    if isinstance(value, Module):
        return value
    if callable(value) and not isinstance(value, (type, TensorBase)):
        return Lambda(value)
    if isinstance(value, type):
        fix = f"make one: {value.__name__}(...)"
    else:
        fix = "pass modules, or functions of one tensor"
    raise DTypeError(
        owner,
        expected="a Module or a function",
        got=f"{type(value).__name__} {value!r:.60}",
        fix=fix,
    )


def position(owner: str, index: int, size: int) -> int:
    """Return an index counted from 0."""
    index = operator.index(index)
    if not -size <= index < size:
        raise TensorIndexError(
            owner,
            expected=f"an index in [{-size}, {size - 1}]",
            got=str(index),
            fix=f"it has {size} elements",
        )
    return index % size


class _Numbered(Module):
    """Base of `Sequential` and `ModuleList`: children named "0", "1" and so on."""

    def _checked(self, module: object) -> Module:
        return _as_module(type(self).__name__, module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            return self._from(list(self._modules.items())[index])
        return list(self._modules.values())[position(type(self).__name__, index, len(self))]

    def __setitem__(self, index: int, module: Module) -> None:
        name = list(self._modules)[position(type(self).__name__, index, len(self))]
        self._modules[name] = self._checked(module)

    def __delitem__(self, index: int) -> None:
        names = list(self._modules)
        if isinstance(index, slice):
            gone = names[index]
        else:
            gone = [names[position(type(self).__name__, index, len(self))]]
        numbered = names == [str(i) for i in range(len(names))]
        for name in gone:
            del self._modules[name]
        if numbered:
            self._renumber(list(self._modules.values()))

    def _renumber(self, modules: Iterable[Module]) -> None:
        self._modules.clear()
        self._modules.update((str(i), m) for i, m in enumerate(modules))

    def __contains__(self, module: Module) -> bool:
        return any(m is module for m in self._modules.values())

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns the container."""
        self.add_module(str(len(self)), self._checked(module))
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before position `index`, which moves the later ones on."""
        modules = list(self._modules.values())
        modules.insert(operator.index(index), self._checked(module))
        self._renumber(modules)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; returns the container."""
        if isinstance(modules, Module) and not isinstance(modules, (_Numbered, ModuleDict)):
            raise ArgumentError(
                f"{type(self).__name__}.extend",
                expected="modules in a list",
                got=f"one {type(modules).__name__}",
                fix="append() it, or put it in a list",
            )
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, key: int = -1) -> Module:
        """Take out and return a module, by default the last."""
        module = self[key]
        del self[key]
        return module

    def __add__(self, other: Iterable[Module]) -> _Numbered:
        return self._from([(str(i), m) for i, m in enumerate([*self, *other])])

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)

    def _from(self, items: Iterable[tuple[str, Module]]) -> _Numbered:
        """Return a container of this kind with pairs of name and module."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to make another")


def _repeated(modules: Iterable[Module], times: int) -> list[tuple[str, Module]]:
    """Return names and modules of a row that comes several times, of the very same modules."""
    if not isinstance(times, int) or times < 1:
        raise ArgumentError(
            "Sequential * n",
            expected="a whole number from 1 on",
            got=f"{times!r:.40}",
            fix="say how many times the layers come one after the other",
        )
    return [(str(i), m) for i, m in enumerate(list(modules) * times)]


class Sequential(_Numbered):
    """Modules one after the other: the output of each is the input of the next.

    Parameters
    ----------
    *args : Module or callable, or one OrderedDict from names to them
        Plain functions are wrapped in `Lambda`.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.nn import Linear
    >>> net = Sequential(Linear(2, 3), probtorch.tanh, Linear(3, 1))
    >>> net(probtorch.zeros(4, 2)).shape, list(net.state_dict())
    (Size([4, 1]), ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, *args: Layer | Mapping[str, Layer]) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            self._fill(args[0].items())
        else:
            if len(args) == 1 and isinstance(args[0], (list, tuple)):
                raise ArgumentError(
                    "Sequential",
                    expected="modules as separate arguments, or an OrderedDict",
                    got=f"a {type(args[0]).__name__}",
                    fix="put a star before it: Sequential(*layers)",
                )
            self._fill((str(i), m) for i, m in enumerate(args))

    def _fill(self, items: Iterable[tuple[str, object]]) -> None:
        for name, module in items:
            self.add_module(name, _as_module("Sequential", module))

    def _from(self, items: Iterable[tuple[str, Module]]) -> Sequential:
        # A subclass that is made of layers is so again, with its own `forward`.
        usual = type(self).__init__ is Sequential.__init__
        return (type(self) if usual else Sequential)(OrderedDict(items))

    def __mul__(self, times: int) -> Sequential:
        return self._from(_repeated(self._modules.values(), times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        for name, module in _repeated(list(self._modules.values()), times)[len(self) :]:
            self.add_module(name, module)
        return self

    def forward(self, input: Tree) -> Tree:
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules, which `forward` of the module that holds it uses as it likes.

    Parameters
    ----------
    modules : iterable of Module, optional
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _checked(self, module: object) -> Module:
        # None holds the place of a module that is not there.
        return cast(Module, None) if module is None else super()._checked(module)

    def _from(self, items: Iterable[tuple[str, Module]]) -> ModuleList:
        usual = type(self).__init__ is ModuleList.__init__
        return (type(self) if usual else ModuleList)(module for _, module in items)

    def _child_reprs(self) -> list[tuple[str, str]]:
        """Return one line for each run of equal children."""
        out = []
        for text, run in itertools.groupby(enumerate(map(repr, self)), lambda pair: pair[1]):
            first, *rest = [str(i) for i, _ in run]
            if rest:
                out.append((f"{first}-{rest[-1]}", f"{1 + len(rest)} x {text}"))
            else:
                out.append((first, text))
        return out


class ModuleDict(Module):
    """A dict of modules, in the order of insertion.

    Parameters
    ----------
    modules : dict or iterable of pairs, optional
    """

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, _as_module("ModuleDict", module))

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Take out everything."""
        self._modules.clear()

    def pop(self, key: str) -> Module:
        """Take out and return the module named `key`."""
        return self._modules.pop(key)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._modules.keys()

    def values(self) -> ValuesView[Module]:
        """Return the modules."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Module]:
        """Return pairs of name and module."""
        return self._modules.items()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules from a dict or pairs."""
        for key, module in modules.items() if hasattr(modules, "items") else modules:
            self[key] = module
