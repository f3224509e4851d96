"""Helpers around parameters: clipping gradients, one vector for all, modules with other values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import TypeAlias, cast

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.factories import zeros
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import clamp
from probtorch.ops.movement import cat, reshape, stack
from probtorch.ops.norms import norm
from probtorch.tensor import Tensor

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "functional_call",
    "parameters_to_vector",
    "vector_to_parameters",
    "with_parameters",
    "with_weights",
]


# Several parameters, or one.
Parameters: TypeAlias = Tensor | Iterable[Tensor]
# By the id of a parameter, the parameter and what stands for it.
Weights: TypeAlias = Mapping[int, tuple[Tensor, Tensor]]


def _with_gradients(parameters: Parameters) -> list[Tensor]:
    if isinstance(parameters, TensorBase):
        parameters = [parameters]
    return [p.grad for p in parameters if p.grad is not None]


@no_grad
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Their `.grad` is changed in place.
    max_norm : float
    norm_type : float
        Which p-norm, of all gradients as one vector; inf is allowed.
    error_if_nonfinite : bool
        Raise if the norm is nan or infinite, instead of spreading that.
    foreach : bool, optional
        Accepted for PyTorch's sake.

    Returns
    -------
    Tensor, 0-d
        The norm before.

    Raises
    ------
    InferenceError
        If asked for, and the norm is not finite.
    """
    grads = _with_gradients(parameters)
    if not grads:
        return zeros(())
    total = norm(stack([norm(g, norm_type) for g in grads]), norm_type)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise InferenceError(
            "clip_grad_norm_",
            expected="gradients with a finite norm",
            got=f"a norm of {float(total)}",
            fix="look for the first parameter with a nan, or pass error_if_nonfinite=False",
        )
    # 1e-6 as in PyTorch, against division by 0.
    factor = clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for g in grads:
        g.mul_(factor)
    return total


@no_grad
def clip_grad_value_(
    parameters: Parameters, clip_value: float, foreach: bool | None = None
) -> None:
    """Limit each element of all gradients to [-clip_value, clip_value], in place."""
    for g in _with_gradients(parameters):
        g.copy_(clamp(g, -float(clip_value), float(clip_value)))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all parameters as one vector; gradients flow back through it."""
    flat = [reshape(p, -1) for p in parameters]
    if not flat:
        raise ArgumentError(
            "parameters_to_vector", expected="at least one parameter", got="none", fix="check them"
        )
    return cat(flat)


@no_grad
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the pieces of a vector into the parameters, in order.

    Raises
    ------
    ShapeError
        If the vector has not as many elements as they have together.
    """
    parameters = list(parameters)
    count = sum(p.numel() for p in parameters)
    if tuple(vec.shape) != (count,):
        raise ShapeError(
            "vector_to_parameters",
            expected=f"a vector of {count} elements",
            got=str(vec.shape),
            fix="use parameters_to_vector on the same parameters",
        )
    at = 0
    for p in parameters:
        p.copy_(reshape(vec[at : at + p.numel()], p.shape))
        at += p.numel()


@contextlib.contextmanager
def _replaced(module: Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Put tensors in the place of parameters and buffers, by dotted name, for a while."""
    before = []
    try:
        for name, value in values.items():
            start, _, attribute = name.rpartition(".")
            owner = module.get_submodule(start)
            tables = (owner._parameters, owner._buffers)
            table = next((t for t in tables if attribute in t), None)
            if table is None:
                raise ArgumentError(
                    "functional_call",
                    expected=f"names of parameters and buffers of {type(module).__name__}",
                    got=repr(name),
                    fix="use the names of named_parameters()",
                )
            before.append((table, attribute, table[attribute]))
            table[attribute] = value
        yield
    finally:
        for table, attribute, value in reversed(before):
            table[attribute] = value


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Tensor | tuple[Tensor, ...] = (),
    kwargs: Mapping[str, object] | None = None,
) -> Tree:
    """Call a module with other tensors in the place of its parameters and buffers.

    Parameters
    ----------
    module : Module
    parameter_and_buffer_dicts : dict or sequence of dict
        From dotted names to tensors; gradients flow to them. What is not named stays.
    args : tuple, or one tensor
    kwargs : dict, optional

    Returns
    -------
    What the module returns.

    Raises
    ------
    ArgumentError
        If a name is unknown.
    """
    given = parameter_and_buffer_dicts
    if hasattr(given, "items"):
        values = cast(Mapping[str, Tensor], given)
    else:
        values = {name: t for part in given for name, t in part.items()}
    args = args if isinstance(args, tuple) else (args,)
    with _replaced(module, values):
        return module(*args, **(kwargs or {}))


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
