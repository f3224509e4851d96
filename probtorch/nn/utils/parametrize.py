"""Tensors of a module that are functions of others: orthogonal weights, symmetric ones, and so on.

A parametrization is a module that computes a tensor from another of any shape, and perhaps a
`right_inverse` from the tensor back to what gives it. `register_parametrization` moves a parameter
into a `ParametrizationList`, under ``module.parametrizations.NAME.original``, and lets
``module.NAME`` compute. Optimizers, `state_dict` and `to` see the original; the layer, which reads
its weight as before, notices nothing.

A module with parametrized tensors gets a class of its own, derived from the one it had, with a
property for each of these names. Modules with the same ones share it, and it never changes: so
copies and pickles are as free of each other as those of any module. `parametrizations` has the
parametrizations; interface and names in a `state_dict` are PyTorch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, DTypeError, ModelError, ShapeError
from probtorch.nn.containers import ModuleDict, ModuleList
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.tensor import Tensor

__all__ = [
    "ParametrizationList",
    "cached",
    "class_with",
    "is_parametrized",
    "log_abs_det_jacobian",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

M = TypeVar("M", bound=Module)


class _Cache:
    """Tensors computed inside `cached`, by the list that computed them."""

    def __init__(self) -> None:
        self.depth = 0
        self.tensors: dict[ParametrizationList, Tensor] = {}


_CACHE = _Cache()


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Context manager: parametrized tensors are computed once, at their first use.

    For layers that read a weight many times in one forward pass. Leave it before the originals
    change.

    Examples
    --------
    >>> from probtorch import nn
    >>> from probtorch.nn.utils.parametrizations import weight_norm
    >>> layer = weight_norm(nn.Linear(2, 2))
    >>> with cached():
    ...     layer.weight is layer.weight
    True
    """
    _CACHE.depth += 1
    try:
        yield
    finally:
        _CACHE.depth -= 1
        if not _CACHE.depth:
            _CACHE.tensors = {}


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, and what they compute it from.

    Parameters
    ----------
    modules : sequence of Module
        Called in order, the first with `original`, or with `original0`, `original1` and so on if
        its `right_inverse` returned a sequence.
    original : Parameter or Tensor
        The tensor as it was.
    unsafe : bool
        Whether dtype and shape may change.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError
        If there are no parametrizations, or one changes shape or dtype without `unsafe`.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ArgumentError(
                "ParametrizationList requires one or more modules.",
                expected="at least one parametrization",
                got="none",
                fix="pass a list of modules",
            )
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = tuple(original.shape), original.dtype
        with no_grad():
            start: Tensor | Sequence[Tensor] = original
            for module in reversed(list(self)):
                inverse = getattr(module, "right_inverse", None)
                if inverse is not None:
                    # Where it is not known how to go back, the tensor itself is the original.
                    with contextlib.suppress(NotImplementedError):
                        start = inverse(start)
        self.is_tensor = isinstance(start, TensorBase)
        self.ntensors = 1
        if isinstance(start, TensorBase):
            _check_dtype("right_inverse", start, dtype)
            # The same object: an optimizer that has it goes on with it.
            if start is not original:
                original.data = start.detach().clone()
            _register(self, "original", original)
        else:
            self.ntensors = len(_tensors(start))
            for i, part in enumerate(start):
                made = part.detach().clone()
                if isinstance(original, Parameter):
                    made = Parameter(made, original.requires_grad)
                _register(self, f"original{i}", made)
        if not unsafe:
            with no_grad():
                _check_same(self[0], self(), shape, dtype)

    def originals(self) -> tuple[Tensor, ...]:
        """Return what the tensor is computed from."""
        if self.is_tensor:
            return (self.original,)
        return tuple(getattr(self, f"original{i}") for i in range(self.ntensors))

    def forward(self) -> Tensor:
        """Return the tensor."""
        first, *others = self
        value = first(*self.originals())
        for module in others:
            value = module(value)
        return value

    def _value(self) -> Tensor:
        """The tensor, computed once while `cached` is on."""
        if not _CACHE.depth:
            return self()
        if self not in _CACHE.tensors:
            _CACHE.tensors[self] = self()
        return _CACHE.tensors[self]

    @no_grad
    def right_inverse(self, value: Tensor) -> None:
        """Set the originals to what gives `value`; called by ``module.NAME = value``.

        Raises
        ------
        ModelError
            If a parametrization has no `right_inverse`.
        ShapeError, DTypeError
            If the originals would have other shapes or dtypes.
        """
        found: Tensor | Sequence[Tensor] = value
        for module in reversed(list(self)):
            if not hasattr(module, "right_inverse"):
                raise ModelError(
                    f"assigning a tensor parametrized by {type(module).__name__}",
                    expected="parametrizations that implement right_inverse",
                    got=f"{type(module).__name__}, which does not",
                    fix="define right_inverse(self, value), or assign the original",
                )
            found = module.right_inverse(found)
        new = [found] if isinstance(found, TensorBase) else list(_tensors(found))
        for old, part in zip(self.originals(), new, strict=True):
            _check_dtype("right_inverse", part, old.dtype)
            if old.shape != part.shape:
                raise ShapeError(
                    "right_inverse",
                    expected=f"a tensor of shape {tuple(old.shape)}, that of the original",
                    got=str(tuple(part.shape)),
                    fix="assign a tensor of the shape of the one there is",
                )
        for old, part in zip(self.originals(), new):
            old.copy_(part)


def register_parametrization(
    module: M, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> M:
    """Let a tensor of a module be computed by a parametrization from now on.

    Parameters
    ----------
    module : Module
    tensor_name : str
        A parameter or buffer. If it is parametrized already, the new one is applied to what the
        others compute.
    parametrization : Module
        ``parametrization(original)`` returns the tensor. Its ``right_inverse(tensor)``, if there is
        one, says what the original starts with, and makes ``module.NAME = value`` possible; it may
        return a sequence of tensors, which `forward` then takes.
    unsafe : bool
        Whether it may change dtype and shape; then nothing is computed here.

    Returns
    -------
    Module
        `module`, which has changed.

    Raises
    ------
    ArgumentError
        If it has no such tensor.
    ShapeError, DTypeError
        If shape or dtype change without `unsafe`.

    Examples
    --------
    >>> from probtorch import nn
    >>> class Symmetric(nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).mT
    ...     def right_inverse(self, value):
    ...         return value.triu()
    >>> layer = register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    >>> bool((layer.weight == layer.weight.mT).all())
    True
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'parametrizations.weight.original']
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        parts = _parts(module, tensor_name)
        if not unsafe:
            with no_grad():
                before = getattr(module, tensor_name)
                after = parametrization(before)
                _check_same(parametrization, after, tuple(before.shape), before.dtype)
                if hasattr(parametrization, "right_inverse"):
                    back = parametrization.right_inverse(after)
                    _check_same(parametrization, back, tuple(before.shape), before.dtype)
        parts.append(parametrization)
        parts.unsafe |= unsafe
        return module
    table = next(
        (t for t in (module._parameters, module._buffers) if t.get(tensor_name) is not None), None
    )
    if table is None:
        names = [*module._parameters, *module._buffers, *_names(module)]
        raise ArgumentError(
            f"register_parametrization: {tensor_name!r}",
            expected=f"a parameter or buffer of {type(module).__name__}: {', '.join(names)}",
            got=repr(tensor_name),
            fix="name a tensor that the module itself has, not one of its children",
        )
    parts = ParametrizationList([parametrization], table[tensor_name], unsafe)
    # Past __delattr__, which would forget how the parameter is filled after a removal.
    del table[tensor_name]
    _rename(module, (*_names(module), tensor_name))
    if "parametrizations" not in module._modules:
        module.parametrizations = ModuleDict()
    _all(module)[tensor_name] = parts
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has parametrized tensors, or whether `tensor_name` is one."""
    names = _names(module)
    return bool(names) if tensor_name is None else tensor_name in names


def remove_parametrizations(module: M, tensor_name: str, leave_parametrized: bool = True) -> M:
    """Make a parametrized tensor a parameter or buffer again.

    Parameters
    ----------
    module : Module
    tensor_name : str
    leave_parametrized : bool
        Whether it keeps the value that was computed; otherwise it gets the original's.

    Returns
    -------
    Module
        `module`, which has changed.

    Raises
    ------
    ArgumentError
        If it is not parametrized, or its original is several tensors and is asked for.
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(
            f"remove_parametrizations: {tensor_name!r}",
            expected=f"one of {', '.join(_names(module)) or 'no names'}, which are parametrized",
            got=repr(tensor_name),
            fix="ask is_parametrized(module, name) first",
        )
    parts = _parts(module, tensor_name)
    if not parts.is_tensor and not leave_parametrized:
        raise ArgumentError(
            "remove_parametrizations",
            expected="leave_parametrized=True, as the tensor has more than one original",
            got="leave_parametrized=False",
            fix="leave it out",
        )
    with no_grad():
        value = parts().detach()
    original = parts.originals()[0]
    if not parts.is_tensor:
        original = Parameter(value) if original.requires_grad else value
    elif leave_parametrized:
        original.data = value
    del _all(module)[tensor_name]
    _rename(module, tuple(name for name in _names(module) if name != tensor_name))
    if not is_parametrized(module):
        del module._modules["parametrizations"]
    _register(module, tensor_name, original)
    return module


def type_before_parametrizations(module: Module) -> type[Module]:
    """Return the class that a module had before tensors of it were parametrized."""
    return type(module)._plain if is_parametrized(module) else type(module)  # type: ignore[attr-defined]  # such a class has it


def transfer_parametrizations_and_params(
    from_module: Module, to_module: M, tensor_name: str | None = None
) -> M:
    """Give a module the parametrizations and originals of another, which keeps sharing the former.

    Parameters
    ----------
    from_module, to_module : Module
    tensor_name : str, optional
        All that are parametrized if None.

    Returns
    -------
    Module
        `to_module`, which has changed.

    Raises
    ------
    ArgumentError
        If `from_module` has nothing parametrized under the name.
    """
    names = _names(from_module) if tensor_name is None else (tensor_name,)
    for name in names:
        if not is_parametrized(from_module, name):
            raise ArgumentError(
                "transfer_parametrizations_and_params",
                expected=f"one of {', '.join(_names(from_module)) or 'no names'}",
                got=repr(name),
                fix="name a tensor of from_module that is parametrized",
            )
        given = _parts(from_module, name)
        if name not in {**to_module._parameters, **to_module._buffers}:
            with no_grad():
                value = given().detach().clone()
            learned = any(isinstance(t, Parameter) for t in given.originals())
            _register(to_module, name, Parameter(value) if learned else value)
        for parametrization in given:
            register_parametrization(to_module, name, parametrization, unsafe=given.unsafe)
        with no_grad():
            for old, new in zip(_parts(to_module, name).originals(), given.originals()):
                old.data = new.detach().clone()
    return to_module


def log_abs_det_jacobian(module: Module, tensor_name: str) -> Tensor:
    """Return the log-density that a flat density of the original gives to a parametrized tensor.

    A prior with log-density ``log p`` of the tensor is one of the original with
    ``log p(tensor) + log_abs_det_jacobian(module, name)``: add that to a loss or as a factor, and
    infer the original.

    Parameters
    ----------
    module : Module
    tensor_name : str
        Its parametrizations have a method ``log_abs_det_jacobian(x, y)``, as those of
        `nn.utils.parametrizations` that are bijections have. Each says what the measure on its
        values is.

    Returns
    -------
    Tensor, 0-d
        Summed over all matrices of the tensor.

    Raises
    ------
    ArgumentError
        If the tensor is not parametrized.
    ModelError
        If a parametrization is no bijection.

    Examples
    --------
    >>> from probtorch import nn, zeros
    >>> from probtorch.nn.utils.parametrizations import positive_definite
    >>> layer = positive_definite(nn.Linear(1, 1))
    >>> with no_grad():
    ...     _ = layer.parametrizations.weight.original.fill_(0.0)
    >>> log_abs_det_jacobian(layer, "weight").item()  # w = exp(2 x)
    0.6931471824645996
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(
            f"log_abs_det_jacobian: {tensor_name!r}",
            expected=f"one of {', '.join(_names(module)) or 'no names'}, which are parametrized",
            got=repr(tensor_name),
            fix="register a parametrization first",
        )
    parts = _parts(module, tensor_name)
    inputs = parts.originals()
    total: Tensor | None = None
    for part in parts:
        if not hasattr(part, "log_abs_det_jacobian"):
            raise ModelError(
                f"log_abs_det_jacobian of {type(part).__name__}",
                expected="parametrizations that are bijections",
                got=f"{type(part).__name__}, which has no log_abs_det_jacobian(x, y)",
                fix="use symmetric, positive_definite or stiefel for a tensor with a prior",
            )
        value = part(*inputs)
        term = part.log_abs_det_jacobian(*inputs, value)
        total = term if total is None else total + term
        inputs = (value,)
    return cast(Tensor, total)


# ------------------------------------------------------------------------------------- the classes


def _names(module: Module) -> tuple[str, ...]:
    """Names of the parametrized tensors."""
    return getattr(type(module), "_parametrized", ())


def _all(module: Module) -> ModuleDict:
    return cast(ModuleDict, module._modules["parametrizations"])


def _parts(module: Module, name: str) -> ParametrizationList:
    return cast(ParametrizationList, _all(module)[name])


def _rename(module: Module, names: tuple[str, ...]) -> None:
    """Give a module the class in which `names` are computed."""
    plain = type_before_parametrizations(module)
    object.__setattr__(module, "__class__", _class_of(plain, names) if names else plain)


# By the class before and the names of parametrized tensors.
_CLASSES: dict[tuple[type, tuple[str, ...]], type[Module]] = {}


def _class_of(plain: type[Module], names: tuple[str, ...]) -> type[Module]:
    """The class derived from `plain` in which `names` are properties; always the same one."""
    if (plain, names) in _CLASSES:
        return _CLASSES[plain, names]
    body: dict[str, object] = {name: _computed(name) for name in names}
    body |= {"_plain": plain, "_parametrized": names, "__reduce_ex__": _reduced}
    body |= {"__doc__": plain.__doc__, "__module__": plain.__module__}
    made = type(f"Parametrized{plain.__name__}", (plain,), body)
    return _CLASSES.setdefault((plain, names), made)


def class_with(plain: type[Module], names: object, parts: object) -> type[Module]:
    """Return the class for a module that is read from a file, in which `names` are computed.

    Raises
    ------
    ValueError
        If `parts` are no parametrizations of tensors of these names.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("names that are no texts")
    if not isinstance(parts, ModuleDict) or set(names) != set(parts.keys()):
        raise ValueError("parametrized tensors without parametrizations")
    if not all(isinstance(part, ParametrizationList) for part in parts.values()):
        raise ValueError("parametrizations that are none")
    if not all(name.isidentifier() and not hasattr(plain, name) for name in names):
        raise ValueError("a parametrized method")
    return _class_of(plain, tuple(names))


def _computed(name: str) -> property:
    return property(
        lambda module: _parts(module, name)._value(),
        lambda module, value: _parts(module, name).right_inverse(value),
        doc="Computed by its parametrizations.",
    )


def _reduced(module: Module, protocol: int) -> tuple[object, ...]:
    """How copies and pickles are made: the class is made anew from the one before."""
    made = cast("tuple[object, ...]", object.__reduce_ex__(module, max(protocol, 2)))
    return _remade, (type_before_parametrizations(module), _names(module)), made[2]


def _remade(plain: type[Module], names: tuple[str, ...]) -> Module:
    return object.__new__(_class_of(plain, names))


# -------------------------------------------------------------------------------------- the checks


def _register(module: Module, name: str, t: Tensor) -> None:
    if isinstance(t, Parameter):
        module.register_parameter(name, t)
    else:
        module.register_buffer(name, t)


def _tensors(found: object) -> Sequence[Tensor]:
    """What `right_inverse` returned, where that is a sequence."""
    if not isinstance(found, (list, tuple)) or not all(isinstance(t, TensorBase) for t in found):
        raise DTypeError(
            "right_inverse",
            expected="a tensor, or a sequence of tensors",
            got=f"{type(found).__name__} {found!r:.60}",
            fix="return what forward(...) takes",
        )
    return found


def _check_dtype(what: str, t: Tensor, dtype: object) -> None:
    if t.dtype != dtype:
        raise DTypeError(
            f"{what} of a parametrization",
            expected=f"{dtype}, the dtype of the tensor",
            got=str(t.dtype),
            fix="compute in the dtype of what it is given",
        )


def _check_same(parametrization: Module, t: object, shape: tuple[int, ...], dtype: object) -> None:
    name = type(parametrization).__name__
    if not isinstance(t, TensorBase):
        raise DTypeError(
            f"parametrization {name}",
            expected="a tensor",
            got=f"{type(t).__name__} {t!r:.60}",
            fix="return the tensor that the module shall have",
        )
    if tuple(t.shape) != shape:
        raise ShapeError(
            f"parametrization {name}",
            expected=f"shape {shape}, as registering one may not change it",
            got=str(tuple(t.shape)),
            fix="pass unsafe=True if the module can do with another shape",
        )
    _check_dtype(name, t, dtype)


explain_calls(globals())
