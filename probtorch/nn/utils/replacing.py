"""Modules run with other tensors in the place of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import TypeAlias

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = ["with_parameters", "with_weights"]


# By the id of a parameter, the parameter and what stands for it.
Weights: TypeAlias = Mapping[int, tuple[Tensor, Tensor]]


def with_parameters(module: Module, values: Mapping[str, Tensor]) -> Module:
    """Return a module like this one with other tensors in the place of parameters.

    Unlike `functional_call` it changes nothing, not even for a while: what is returned is another
    tree of modules, which shares all else with the old one, buffers included.

    Parameters
    ----------
    module : Module
    values : dict of str to Tensor
        By the names of ``named_parameters()``; a parameter that is used in several places is
        replaced in all of them.

    Returns
    -------
    Module
        Gradients of what it computes flow to `values`.

    Raises
    ------
    ArgumentError
        If a name is unknown.
    """
    named = dict(module.named_parameters())
    for name in values:
        if name not in named:
            raise ArgumentError(
                "with_parameters",
                expected=f"names of parameters of {type(module).__name__}",
                got=repr(name),
                fix="use the names of named_parameters()",
            )
    weights = {id(named[name]): (named[name], value) for name, value in values.items()}
    return _Copy(module, weights).copy(module)


def with_weights(module: Module, weights: Weights) -> Module:
    """Return `module` with other tensors for parameters, itself if there are none; changes nothing.

    Parameters
    ----------
    module : Module
    weights : dict
        By the id of a parameter, a pair of the parameter and what stands for it.

    Returns
    -------
    Module
        A tree of new modules with the attributes of the old ones. Buffers, hooks and all that is no
        module are shared; lists, tuples, dicts and bound methods that refer to modules of the tree
        refer to the new ones.
    """
    return _Copy(module, weights).copy(module) if weights else module


class _Copy:
    """Makes one copy of a tree of modules."""

    def __init__(self, net: Module, weights: Weights) -> None:
        self.weights = weights
        self.made: dict[int, Module] = {}
        self.tree = {id(m) for m in net.modules()}

    def copy(self, m: Module) -> Module:
        """The copy of one module."""
        if id(m) in self.made:
            return self.made[id(m)]
        out = self.made[id(m)] = object.__new__(type(m))
        own = out.__dict__
        own.update(m.__dict__)
        own["_parameters"] = {name: self.tensor(p) for name, p in m._parameters.items()}
        own["_modules"] = {
            name: None if child is None else self.copy(child) for name, child in m._modules.items()
        }
        for name, value in m.__dict__.items():
            if name not in _SHARED:
                own[name] = self.attribute(value)
        return out

    def tensor(self, p: Tensor) -> Tensor:
        """The weight that stands for a parameter, itself if none does."""
        found = self.weights.get(id(p))
        return p if found is None else found[1]

    def attribute(self, value: Tree) -> Tree:
        """An attribute, referring to copies where it refers to modules."""
        if id(value) in self.tree:
            return self.copy(value)
        if isinstance(value, TensorBase):
            return self.tensor(value)
        kind = type(value)
        if kind is MethodType and id(value.__self__) in self.tree:
            return MethodType(value.__func__, self.copy(value.__self__))
        if kind is list or kind is tuple:
            items = [self.attribute(x) for x in value]
            return kind(items) if any(a is not b for a, b in zip(items, value)) else value
        if kind is dict:
            named = {k: self.attribute(x) for k, x in value.items()}
            return named if any(named[k] is not x for k, x in value.items()) else value
        return value


# What a copy takes over as it is; the first two it has already.
_SHARED = frozenset(
    ("_parameters", "_modules", "_buffers", "_hooks", "_recipes", "_non_persistent")
)


explain_calls(globals())
