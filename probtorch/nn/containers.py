"""Modules that hold modules or parameters: in a row, in a list, by name."""

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
from probtorch.nn.parameter import Parameter
from probtorch.tensor import Tensor

__all__ = ["Lambda", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


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


def _position(owner: str, index: int, size: int) -> int:
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
        return list(self._modules.values())[_position(type(self).__name__, index, len(self))]

    def __setitem__(self, index: int, module: Module) -> None:
        name = list(self._modules)[_position(type(self).__name__, index, len(self))]
        self._modules[name] = _as_module(type(self).__name__, module)

    def __delitem__(self, index: int) -> None:
        names = list(self._modules)
        if isinstance(index, slice):
            gone = names[index]
        else:
            gone = [names[_position(type(self).__name__, index, len(self))]]
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
        self.add_module(str(len(self)), _as_module(type(self).__name__, module))
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before position `index`, which moves the later ones on."""
        modules = list(self._modules.values())
        modules.insert(operator.index(index), _as_module(type(self).__name__, module))
        self._renumber(modules)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; returns the container."""
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
        return Sequential(OrderedDict(items))

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

    def _from(self, items: Iterable[tuple[str, Module]]) -> ModuleList:
        return ModuleList(module for _, module in items)

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


def _as_parameter(value: Tensor) -> Parameter:
    plain = isinstance(value, TensorBase) and not value.requires_grad
    return Parameter(value) if plain else cast(Parameter, value)  # all else is refused


def _shape_lines(named: Iterable[tuple[str, Tensor]]) -> str:
    return "\n".join(
        f"({name}): {type(p).__name__} of size {'x'.join(map(str, p.shape)) or '()'}, {p.dtype}"
        for name, p in named
    )


class ParameterList(Module):
    """A list of parameters; tensors become parameters.

    Parameters
    ----------
    values : iterable of Tensor, optional
    """

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parameters.values())

    @overload
    def __getitem__(self, index: int) -> Parameter: ...
    @overload
    def __getitem__(self, index: slice) -> ParameterList: ...
    def __getitem__(self, index: int | slice) -> Parameter | ParameterList:
        found = list(self._parameters.values())
        if isinstance(index, slice):
            return ParameterList(found[index])
        return found[_position("ParameterList", index, len(found))]

    def __setitem__(self, index: int, value: Tensor) -> None:
        name = str(_position("ParameterList", index, len(self)))
        self.register_parameter(name, _as_parameter(value))

    def append(self, value: Tensor) -> Self:
        """Add a parameter at the end; returns the list."""
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Add parameters at the end; returns the list."""
        for value in values:
            self.append(value)
        return self

    __iadd__ = extend

    def extra_repr(self) -> str:
        return _shape_lines(self._parameters.items())


class ParameterDict(Module):
    """A dict of parameters, in the order of insertion; tensors become parameters.

    Parameters
    ----------
    parameters : dict or iterable of pairs, optional
    """

    def __init__(
        self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None
    ) -> None:
        super().__init__()
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Tensor:
        return self._parameters[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.register_parameter(key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: object) -> bool:
        return key in self._parameters

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._parameters.keys()

    def values(self) -> ValuesView[Tensor]:
        """Return the parameters."""
        return self._parameters.values()

    def items(self) -> ItemsView[str, Tensor]:
        """Return pairs of name and parameter."""
        return self._parameters.items()

    def get(self, key: str, default: Tensor | None = None) -> Tensor | None:
        """Return the parameter named `key`, or `default`."""
        return self._parameters.get(key, default)

    def pop(self, key: str) -> Tensor:
        """Take out and return the parameter named `key`."""
        return self._parameters.pop(key)

    def update(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Add or replace parameters from a dict or pairs."""
        for key, value in parameters.items() if hasattr(parameters, "items") else parameters:
            self[key] = value

    def popitem(self) -> tuple[str, Tensor]:
        """Take out and return the last pair of name and parameter."""
        return self._parameters.popitem()

    def setdefault(self, key: str, default: Tensor) -> Tensor:
        """Return the parameter named `key`; put `default` there first if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Take out all parameters."""
        self._parameters.clear()

    def copy(self) -> ParameterDict:
        """Return another dict with the same parameters."""
        return ParameterDict(self._parameters)

    def fromkeys(self, keys: Iterable[str], default: Tensor) -> ParameterDict:
        """Return a dict with a parameter under each of some names, all with one value."""
        return ParameterDict((key, default) for key in keys)

    def extra_repr(self) -> str:
        return _shape_lines(self._parameters.items())
