"""`PyroModule`: modules that are models, with attributes that are random sites or parameters.

An attribute may be a `PyroSample` (read, it is a sample statement) or a `PyroParam` (a parameter
with a constraint); ordinary parameters are stated when a call begins. Sites are named as the module
names its attributes: ``"fc.weight"``. ``PyroModule[nn.Linear]`` is `nn.Linear` with these powers.

Within one call of the outermost module an attribute is drawn once, however often it is read; the
values are kept by thread (`_CALL`), not in the module, so a model may run in several threads.
Outside of calls a `PyroParam` reads as its value, and a `PyroSample` as a fresh draw.

Read modules.py first.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Concatenate, ParamSpec, SupportsIndex, TypeVar

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, Shape, TensorLike, Tree
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import transform_to
from probtorch.effects.modules import name_tree, state_weights
from probtorch.effects.params import as_shares
from probtorch.effects.primitives import owned_param, sample_from
from probtorch.effects.priors import Prior, fit_prior
from probtorch.effects.site import as_value
from probtorch.errors import DomainError, DTypeError
from probtorch.nn.containers import ModuleList
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.nn.utils import with_weights
from probtorch.tensor import Tensor, tensor

__all__ = [
    "PyroModule",
    "PyroModuleList",
    "PyroParam",
    "PyroSample",
    "pyro_method",
    "to_pyro_module_",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


_Self = TypeVar("_Self", bound=Module)
P = ParamSpec("P")
R = TypeVar("R")


class _Call(threading.local):
    """What attributes of the running call were drawn as; None outside of calls."""

    drawn: dict[tuple[int, str], Tensor] | None = None


_CALL = _Call()


class _Attribute(abc.ABC):
    """Base of what can be assigned to an attribute of a `PyroModule`, or decorate a method of it.

    As a decorator it is a descriptor: the method says what the attribute is, and is asked when the
    attribute is first read.
    """

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: PyroModule | None, owner: type | None = None) -> Any:
        if obj is None:
            return self
        if self.name not in obj._pyro_params and self.name not in obj._pyro_samples:
            setattr(obj, self.name, self.bound(obj))
        return obj.__getattr__(self.name)

    @abc.abstractmethod
    def bound(self, obj: PyroModule) -> _Attribute:
        """Return what to assign to the attribute of `obj`."""


class PyroParam(_Attribute):
    """A learned attribute of a `PyroModule` with a constraint.

    Parameters
    ----------
    init_value : Tensor, array, number or callable
        Inside the constraint. Left out, it decorates a method that returns it.
    constraint : Constraint, default real
    event_dim : int, optional
        Rightmost dims that belong to no plate; see `param`.

    Notes
    -----
    What is learned is an unconstrained `Parameter` called ``{attribute}_unconstrained``.

    Examples
    --------
    >>> from probtorch.distributions import constraints
    >>> class Noise(PyroModule):
    ...     @PyroParam(constraint=constraints.positive)
    ...     def scale(self):
    ...         return 2.0
    >>> Noise().scale.item()
    2.0
    """

    def __init__(
        self,
        init_value: TensorLike | Callable[..., TensorLike] | None = None,
        constraint: Constraint = constraints.real,
        event_dim: int | None = None,
    ) -> None:
        self.init_value: Any = init_value
        self.constraint, self.event_dim = constraint, event_dim

    def __call__(self, init_value: Callable[..., TensorLike]) -> PyroParam:
        """Decorate a method that returns the initial value."""
        return PyroParam(init_value, self.constraint, self.event_dim)

    def bound(self, obj: PyroModule) -> PyroParam:
        """Return the attribute with the method's value as initial one."""
        return PyroParam(self.init_value(obj), self.constraint, self.event_dim)


class PyroSample(_Attribute):
    """A random attribute of a `PyroModule`.

    Parameters
    ----------
    prior : Distribution or callable
        A callable is given the module and returns the distribution, which may depend on other
        attributes. In the place of a parameter, a prior that broadcasts to its shape will do.

    Examples
    --------
    >>> import probtorch.distributions as dist
    >>> from probtorch import nn
    >>> linear = PyroModule[nn.Linear](3, 1)
    >>> linear.weight = PyroSample(dist.Normal(0.0, 1.0))
    >>> linear.weight.shape
    Size([1, 3])
    """

    def __init__(self, prior: Prior) -> None:
        if not callable(prior) and not hasattr(prior, "log_prob"):
            raise DTypeError(
                "PyroSample",
                expected="a distribution, or a function of the module that returns one",
                got=f"{type(prior).__name__} {prior!r:.60}",
                fix="for example PyroSample(Normal(0., 1.))",
            )
        self.prior: Any = prior
        # Of the parameter whose place it takes.
        self.shape: tuple[int, ...] | None = None

    def bound(self, obj: PyroModule) -> PyroSample:
        """Return the attribute itself: its method takes the module already."""
        return self

    def distribution(self, module: Module, name: str) -> Distribution:
        """Return the prior of attribute `name` of `module`."""
        prior = self.prior if hasattr(self.prior, "log_prob") else self.prior(module)
        if self.shape is not None:
            return fit_prior(prior, self.shape, f"PyroSample {name!r}")
        if not hasattr(prior, "log_prob"):
            raise DTypeError(
                f"PyroSample {name!r}",
                expected="a function that returns a distribution",
                got=f"{type(prior).__name__} {prior!r:.60}",
                fix="for example PyroSample(lambda self: Normal(0., self.scale))",
            )
        return prior


class PyroModule(Module):
    """A module that states its parameters and random attributes when it is called.

    Parameters
    ----------
    name : str
        Put before the names of its sites, with a dot; none by default. Modules below are named by
        their attributes.
    device, dtype : optional
        See `Module`.

    Notes
    -----
    ``PyroModule[nn.Linear](3, 1)`` makes a module of any class. Parameters are sites ``{path of
    attributes}``; those of ordinary modules below are stated too. In a call an attribute is drawn
    once. Methods other than `forward` are made calls by `pyro_method`.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch import nn
    >>> from probtorch.effects.handlers import trace
    >>> class Regression(PyroModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = PyroModule[nn.Linear](2, 1)
    ...         self.linear.weight = PyroSample(dist.Normal(0.0, 1.0))
    ...         self.scale = PyroSample(dist.HalfNormal(1.0))
    ...     def forward(self, x, y=None):
    ...         loc = self.linear(x).squeeze(-1)
    ...         with probtorch.plate("data", len(x)):
    ...             return probtorch.sample("y", dist.Normal(loc, self.scale), obs=y)
    >>> list(trace(Regression()).get_trace(probtorch.zeros(5, 2)).nodes)
    ['linear.bias', 'linear.weight', 'data', 'scale', 'y']
    """

    # Guides with their parameters in float64 say so; see infer/guides.
    precise = False

    def __init__(
        self, name: str = "", *, device: str | None = None, dtype: DTypeLike | None = None
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        _prepare(self, name)

    def __class_getitem__(cls, base: type) -> type:
        return _with_powers(base)

    def __call__(self, *args: object, **kwargs: object) -> Tree:
        with _call_of(self) as me:
            return super(PyroModule, me).__call__(*args, **kwargs)

    # ----------------------------------------------------------------------------- attributes

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name in own.get("_pyro_samples", ()):
            return _drawn(self, name, self._random(name))
        if name in own.get("_pyro_params", ()):
            constraint, event_dim = own["_pyro_params"][name]
            leaf = own["_parameters"][f"{name}_unconstrained"]
            if _CALL.drawn is None or not leaf.requires_grad:
                return transform_to(constraint)(leaf)
            return owned_param(_path(self, name), leaf, constraint, event_dim, _calling_user())
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if isinstance(value, (PyroParam, PyroSample)):
            self._check_ready("a PyroParam or PyroSample")
            if isinstance(value, PyroParam):
                _set_param(self, name, value)
            else:
                _set_sample(self, name, value)
        elif name in own.get("_pyro_params", ()) and not isinstance(value, Parameter):
            _assign(self, name, value)
        else:
            _forget(self, name)
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if not _forget(self, name):
            super().__delattr__(name)

    def _random(self, name: str) -> PyroSample:
        """What a random attribute is drawn from; a kind of module may know of others."""
        sample: PyroSample = self._pyro_samples[name]
        return sample

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a child module under `name`; its sites are called after it."""
        super().register_module(name, module)
        if module is not None:
            name_tree(module, _path(self, name))

    add_module = register_module

    def named_pyro_params(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield ``(dotted name, constrained value)`` of all parameters.

        Parameters
        ----------
        prefix : str
            Put before every name.
        recurse : bool
            Include those of the modules below.
        """
        for path, m in self.named_modules(prefix=prefix) if recurse else [(prefix, self)]:
            constrained = m.__dict__.get("_pyro_params", {})
            for attribute, p in m._parameters.items():
                stem = attribute.removesuffix("_unconstrained")
                if stem in constrained and stem != attribute:
                    attribute, p = stem, transform_to(constrained[stem][0])(p)
                if p is not None:
                    yield f"{path}.{attribute}" if path else attribute, p

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        # A class made by PyroModule[...] is not to be found by its name.
        if "_generated" in type(self).__dict__:
            return _blank, (type(self).__mro__[1],), self.__dict__
        return super().__reduce_ex__(protocol)

    def _child_reprs(self) -> list[tuple[str, str]]:
        samples = [
            (name, f"PyroSample({'...' if s.shape is None else tuple(s.shape)})")
            for name, s in self._pyro_samples.items()
        ]
        return [*super()._child_reprs(), *samples]


def pyro_method(fn: Callable[Concatenate[_Self, P], R]) -> Callable[Concatenate[_Self, P], R]:
    """Decorator: a method of a `PyroModule` that states parameters and draws as `forward` does.

    Parameters
    ----------
    fn : callable
        A method.
    """

    @functools.wraps(fn)
    def method(self: Module, *args: P.args, **kwargs: P.kwargs) -> R:
        with _call_of(self) as me:
            return fn(me, *args, **kwargs)

    return method


def to_pyro_module_(m: Module, recurse: bool = True) -> None:
    """Make a module a `PyroModule`, in place.

    Parameters
    ----------
    m : Module
    recurse : bool
        Convert the modules below, too.
    """
    for part in list(m.modules()) if recurse else [m]:
        if not isinstance(part, PyroModule):
            kind: Any = type(part)
            part.__class__ = _with_powers(kind)
            _prepare(part, "")
    name_tree(m, m.__dict__["_pyro_name"])


# ------------------------------------------------------------------------------------------ classes


@functools.cache
def _with_powers(base: type[Module]) -> type[Module]:
    """The class that is `base` and a `PyroModule`."""
    if not (isinstance(base, type) and issubclass(base, Module)):
        raise DTypeError(
            "PyroModule[...]",
            expected="a subclass of nn.Module",
            got=repr(base),
            fix="for example PyroModule[nn.Linear](3, 1)",
        )
    if issubclass(base, PyroModule):
        return base
    if base is Module:
        return PyroModule
    # The base comes first: its constructor has its own arguments.
    namespace = {"_generated": True, "__doc__": base.__doc__, "__module__": base.__module__}
    return type(f"Pyro{base.__name__}", (base, PyroModule), namespace)


# A `ModuleList` whose modules are named by their place: Pyro's name for PyroModule[ModuleList].
PyroModuleList = _with_powers(ModuleList)


def _prepare(module: Module, name: str) -> None:
    """Give a module what makes it a `PyroModule`."""
    module.__dict__.update(_pyro_name=name, _pyro_params={}, _pyro_samples={})


def _blank(base: object) -> Module:
    """An instance without any attributes, for unpickling and copying."""
    return object.__new__(_with_powers(base))


# -------------------------------------------------------------------------------------------- calls


@contextlib.contextmanager
def _call_of(module: Module) -> Iterator[Any]:
    """Context manager: a call of `module`, or part of the one that runs; gives what to run."""
    if _CALL.drawn is not None:
        yield module
        return
    _CALL.drawn = {}
    try:
        name = module._pyro_name
        name_tree(module, name)
        yield with_weights(module, state_weights(name, module, _calling_user()))
    finally:
        _CALL.drawn = None


def _drawn(module: Module, name: str, attribute: PyroSample) -> Tensor:
    """The value of a random attribute: once per call, or a fresh one outside of calls."""
    if _CALL.drawn is None:
        return attribute.distribution(module, name)()
    key = id(module), name
    if key not in _CALL.drawn:
        full = _path(module, name)
        fn = attribute.distribution(module, full)
        where_from = _calling_user()
        _CALL.drawn[key] = sample_from(full, fn, (), {}, None, None, None, where_from)
    return _CALL.drawn[key]


def _path(module: Module, name: str) -> str:
    start = module._pyro_name
    return f"{start}.{name}" if start else name


def _calling_user() -> tuple[CodeType, int]:
    """Code and instruction of the innermost frame outside of the package."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


# --------------------------------------------------------------------------------------- attributes


def _forget(module: Module, name: str) -> bool:
    """Take a random or constrained attribute away; returns whether there was one."""
    own = module.__dict__
    sampled = own.get("_pyro_samples", {}).pop(name, None)
    constrained = own.get("_pyro_params", {}).pop(name, None)
    if constrained is not None:
        own["_parameters"].pop(f"{name}_unconstrained", None)
    return sampled is not None or constrained is not None


def _clear(module: Module, name: str) -> Shape | None:
    """Take away whatever the attribute was; returns the shape of a parameter."""
    own = module.__dict__
    before = own["_parameters"].get(name)
    if name in own["_pyro_samples"]:
        shape = own["_pyro_samples"][name].shape
    else:
        shape = None if before is None else tuple(before.shape)
    _forget(module, name)
    for table in (own, own["_parameters"], own["_buffers"], own["_modules"], own["_recipes"]):
        table.pop(name, None)
    return shape


def _set_sample(module: Module, name: str, attribute: PyroSample) -> None:
    shape = _clear(module, name)
    placed = PyroSample(attribute.prior)
    placed.shape = shape
    module._pyro_samples[name] = placed


def _set_param(module: Module, name: str, attribute: PyroParam) -> None:
    init = attribute.init_value() if callable(attribute.init_value) else attribute.init_value
    free = _unconstrained(module, name, init, attribute.constraint)
    _clear(module, name)
    module._pyro_params[name] = attribute.constraint, attribute.event_dim
    module._parameters[f"{name}_unconstrained"] = Parameter(free)


def _assign(module: Module, name: str, value: TensorLike) -> None:
    """Give a constrained parameter another value, in place."""
    free = _unconstrained(module, name, value, module._pyro_params[name][0])
    Module._overwrite(module._parameters[f"{name}_unconstrained"], free)


def _unconstrained(module: Module, name: str, value: TensorLike, constraint: Constraint) -> Tensor:
    """The unconstrained numbers of a value, a new tensor; of numbers in the default dtype."""
    if not isinstance(value, TensorBase):
        value = tensor(value) if not hasattr(value, "dtype") else as_value(value, name)
    value = as_shares(value.detach(), constraint)
    if not bool(constraint.check(value).all()):
        raise DomainError(
            f"PyroParam {_path(module, name)!r}",
            expected=f"a value in {constraint}",
            got=f"{value.numpy()!r:.60}",
            fix="start inside it, or state another constraint",
        )
    with no_grad():
        return transform_to(constraint).inv(value).clone()


explain_calls(globals())
