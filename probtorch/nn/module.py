"""`Module`: the base of every layer and model; a tree of parameters, buffers and other modules.

PyTorch's outside, with one addition: `self.parameter(name, shape, init=...)` states a parameter
once, and `reset_parameters`, device and dtype follow from it. Attributes that are parameters,
buffers or modules are kept in three dicts, in the order of their assignment, from which everything
else is read: `parameters`, `state_dict`, `to`, `repr`.

Read `linear.py` for the simplest layers, `stateful.py` for saving and loading, `hooks.py` for
hooks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import mark_changed
from probtorch.core.late import difflib
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, DTypeLike
from probtorch.errors import ArgumentError, DTypeError
from probtorch.factories import empty
from probtorch.nn.arguments import check_keywords, destination
from probtorch.nn.compiled import compiled_module
from probtorch.nn.hooks import Hook, Hooks, RemovableHandle
from probtorch.nn.parameter import Buffer, Parameter
from probtorch.nn.stateful import Stateful
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.compiler.compiled_function import CompiledFunction

__all__ = ["Module"]


class _SharedName:
    """A method whose name PyTorch leaves free: a tensor registered under it comes first."""

    def __init__(self, fn: Callable[..., object]) -> None:
        self.fn = fn
        self.__doc__ = fn.__doc__

    def __get__(self, module: object, owner: type | None = None) -> Any:
        if module is None:
            return self.fn
        name = self.fn.__name__
        for table in ("_parameters", "_buffers", "_modules"):
            if name in module.__dict__.get(table, ()):
                return module.__dict__[table][name]
        return MethodType(self.fn, module)


def _is_without_value(found: object, module: Module, name: str) -> bool:
    """Whether a class has a descriptor that gives this module nothing: it is in nobody's way.

    Neither properties nor a `__getattr__` are asked: they may look for what is just being set.
    """
    if isinstance(found, property) or not hasattr(type(found), "__get__"):
        return False
    try:
        object.__getattribute__(module, name)
    except AttributeError:
        return True
    return False


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class _HasForward(Protocol[P, R]):
    """What a call of a module looks at."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class Module(Stateful):
    """Base of all layers and models: write `__init__`, which assigns the parts, and `forward`.

    Parameters
    ----------
    device : str, optional
        Where `self.parameter` and `self.buffer` put what they make.
    dtype : dtype, optional
        Floating dtype of what they make; the default one if None.

    Attributes
    ----------
    training : bool
        Switched by `train` and `eval`; dropout and batch normalisation look at it.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.nn import init
    >>> class Scale(Module):
    ...     def __init__(self, features):
    ...         super().__init__()
    ...         self.parameter("weight", (features,), init=init.constant(2.0))
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> Scale(3)(probtorch.ones(3))
    tensor([2., 2., 2.], grad_fn=<MulBackward0>)
    """

    training = True
    _hooks: Hooks | None = None
    _saved_whole = True  # by `save`, as its class and its attributes

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        check_keywords(cls, kwargs)
        return super().__new__(cls)

    def __init__(self, *, device: str | None = None, dtype: DTypeLike | None = None) -> None:
        # Written past __setattr__, which looks at these very dicts.
        self.__dict__.update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _non_persistent=set(),
            _recipes={},
            _device=device,
            _dtype=None if dtype is None else dtypes.as_dtype(dtype),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; every subclass that is called defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    if TYPE_CHECKING:
        # Calling a module is calling its `forward`, which every class gives its own signature.
        def __call__(self: _HasForward[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def __call__(self, *args, **kwargs):
            if self._hooks is None:
                return self.forward(*args, **kwargs)
            return self._hooks.call(self, args, kwargs)

    def __compiled__(self, make: Callable[[Module], CompiledFunction]) -> Module:
        """Return what `probtorch.compile` makes of a module."""
        return compiled_module(self, make)

    def compile(self, **options: object) -> None:
        """Compile the calls of this module from now on, where `probtorch.compile` returns another.

        Parameters
        ----------
        **options
            Those of `probtorch.compile`.
        """
        self._check_ready("compile")
        if self._hooks is None:
            self._hooks = Hooks()
        self._hooks.compile(self, options)

    # ----------------------------------------------------------------------------------- attributes

    @_SharedName
    def parameter(
        self,
        name: str,
        shape: Sequence[int] | None,
        *,
        init: Callable[[Tensor], object],
        dtype: DTypeLike | None = None,
        requires_grad: bool = True,
    ) -> Tensor | None:
        """Make and register a parameter, and remember how it starts for `reset_parameters`.

        Parameters
        ----------
        name : str
        shape : tuple of int or None
            None registers the name without a parameter, as for ``bias=False``.
        init : callable
            Fills a tensor, such as ``init.fan_in()``; see `probtorch.nn.init`.
        dtype : dtype, optional
            That of the module if None.
        requires_grad : bool

        Returns
        -------
        Parameter or None
        """
        if shape is None:
            self.register_parameter(name, None)
            return None
        made = Parameter(self._empty(shape, dtype), requires_grad)
        init(made)
        self.register_parameter(name, made)
        self._recipes[name] = init
        return made

    @_SharedName
    def buffer(
        self,
        name: str,
        shape: Sequence[int] | None,
        *,
        init: Callable[[Tensor], object],
        dtype: DTypeLike | None = None,
        persistent: bool = True,
    ) -> Tensor | None:
        """Make and register a buffer; arguments as for `parameter`."""
        if shape is None:
            self.register_buffer(name, None, persistent)
            return None
        made = self._empty(shape, dtype)
        init(made)
        self.register_buffer(name, made, persistent)
        self._recipes[name] = init
        return made

    def _empty(self, shape: Sequence[int], dtype: DTypeLike | None) -> Tensor:
        self._check_ready(f"a parameter of {type(self).__name__}")
        return empty(tuple(shape), dtype=dtype or self._dtype, device=self._device)

    def reset_parameters(self) -> None:
        """Give what `parameter` and `buffer` made new initial values, in order; children excepted.

        With the same seed they are those of a new module.
        """
        for name, fill in self._recipes.items():
            found = self._parameters.get(name, self._buffers.get(name))
            if found is not None:
                fill(found)

    def _check_ready(self, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"cannot assign {what} before Module.__init__() call: "
                f"start {type(self).__name__}.__init__ with super().__init__()"
            )

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under `name`, or None to hold the place of one."""
        self._check_ready("parameters")
        self._check_name("register_parameter", name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise DTypeError(
                f"register_parameter({name!r})",
                expected="a Parameter or None",
                got=type(param).__name__,
                fix="wrap it: nn.Parameter(tensor)",
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not learned, such as a running mean.

        Parameters
        ----------
        name : str
        tensor : Tensor or None
            None holds the place of one; it is not saved.
        persistent : bool
            Whether it is part of `state_dict`.
        """
        self._check_ready("buffers")
        self._check_name("register_buffer", name, self._buffers)
        if not (tensor is None or isinstance(tensor, TensorBase)):
            raise DTypeError(
                f"register_buffer({name!r})",
                expected="a Tensor or None",
                got=type(tensor).__name__,
                fix="wrap it: probtorch.tensor(value)",
            )
        self._buffers[name] = tensor
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a child module under `name`; the same as `add_module`."""
        self._check_ready("modules")
        self._check_name("add_module", name, self._modules)
        if module is not None and not isinstance(module, Module):
            raise DTypeError(
                f"add_module({name!r})",
                expected="a Module or None",
                got=f"{type(module).__name__} {module!r:.40}",
                fix="wrap a plain function in nn.Lambda, or call it in forward",
            )
        self._modules[name] = module

    add_module = register_module

    def _check_name(self, op: str, name: object, table: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise ArgumentError(
                op,
                expected="a name that is a non-empty string without dots",
                got=repr(name),
                fix="dots separate the names of nested modules: register it on the child",
            )
        found = inspect.getattr_static(type(self), name, None)
        taken = found is not None and not isinstance(found, _SharedName)
        taken = taken and not _is_without_value(found, self, name)
        others = (self._parameters, self._buffers, self._modules)
        taken = taken or any(name in other for other in others if other is not table)
        if name not in table and (taken or name in self.__dict__):
            raise ArgumentError(
                op,
                expected="a name that is still free",
                got=f"attribute {name!r} already exists",
                fix="choose another name",
            )

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if "_parameters" in own:
            for table in ("_parameters", "_buffers", "_modules"):
                if name in own[table]:
                    return own[table][name]
            shown = [n for n in dir(self) if n[0] != "_"] if name[:1] != "_" else ()
            near = difflib.get_close_matches(name, shown, n=1)
            hint = f". Did you mean: {near[0]!r}?" if near else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}: its __init__ has not "
            "called super().__init__() yet"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        kind = _kind(value)
        if kind is not None:
            self._check_ready(_PLURALS[kind])
            for table in ("_parameters", "_buffers", "_modules"):
                if table != kind:
                    own[table].pop(name, None)
            own.pop(name, None)
            if kind == "_parameters":
                self.register_parameter(name, value)
            elif kind == "_modules":
                self.register_module(name, value)
            else:
                self.register_buffer(name, value, value.persistent)
            return
        for table in ("_parameters", "_buffers", "_modules"):
            if name in own.get(table, ()):
                if value is not None and not (
                    table == "_buffers" and isinstance(value, TensorBase)
                ):
                    raise _wrong_kind(self, name, table, value)
                own[table][name] = value
                return
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(table, ()):
                del self.__dict__[table][name]
                self._non_persistent.discard(name)
                self._recipes.pop(name, None)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        own = self.__dict__
        tables = (own.get(t, ()) for t in ("_parameters", "_buffers", "_modules"))
        return sorted({*super().__dir__(), *(name for table in tables for name in table)})

    # ------------------------------------------------------------------------------------- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield ``(name, module)`` of the direct children, each module once."""
        seen = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """Yield the direct children."""
        for _, child in self.named_children():
            yield child

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield ``(name, module)`` of this module (name "") and all below it, depth first."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, inner, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def _named(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        found = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        seen = set()
        for start, module in found if recurse else [(prefix, self)]:
            for name, t in getattr(module, table).items():
                if t is None or (remove_duplicate and id(t) in seen):
                    continue
                seen.add(id(t))
                yield f"{start}.{name}" if start else name, t

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(dotted name, parameter)``; a shared parameter comes once, under its first name.

        Parameters
        ----------
        prefix : str
            Put before every name.
        recurse : bool
            Include those of the modules below.
        remove_duplicate : bool
        """
        yield from self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, for an optimizer."""
        for _, p in self.named_parameters(recurse=recurse):
            yield p

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield ``(dotted name, buffer)``; see `named_parameters`."""
        yield from self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers."""
        for _, b in self.named_buffers(recurse=recurse):
            yield b

    def get_submodule(self, target: str) -> Module:
        """Return the module with the dotted name `target` ("" is this module)."""
        module = self
        for i, name in enumerate(target.split(".") if target else ()):
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(
                    f"{type(module).__name__} has no module {name!r} (step {i + 1} of {target!r}); "
                    f"it has {', '.join(module._modules) or 'none'}"
                )
            module = found
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put another module in the place of the one with the dotted name `target`.

        With `strict` there must be one; without, the name may be new.
        """
        start, _, name = target.rpartition(".")
        owner = self.get_submodule(start)
        if not name or (strict and owner._modules.get(name) is None):
            raise AttributeError(
                f"{type(owner).__name__} has no module {name!r}; it has "
                f"{', '.join(owner._modules) or 'none'}"
            )
        owner.add_module(name, module)

    def _get(self, table: str, target: str) -> Any:
        start, _, name = target.rpartition(".")
        found = getattr(self.get_submodule(start), table)
        if name not in found:
            what = _SINGULARS[table]
            raise AttributeError(
                f"{type(self).__name__} has no {what} {target!r}; {start or 'it'} has "
                f"{', '.join(found) or 'none'}"
            )
        return found[name]

    def get_parameter(self, target: str) -> Tensor:
        """Return the parameter with the dotted name `target`."""
        return self._get("_parameters", target)

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer with the dotted name `target`."""
        return self._get("_buffers", target)

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call ``fn(module)`` on every module below and then on this one; returns it."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ----------------------------------------------------------------------------- modes, gradients

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below, or evaluation mode; returns the module."""
        if not isinstance(mode, bool):
            raise ArgumentError(
                "train", expected="a boolean", got=repr(mode), fix="use train() and eval()"
            )
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode, ``train(False)``; returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Switch the gradients of all parameters on, or off to freeze them; returns the module."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to 0."""
        for p in self.parameters():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad = p.grad.detach() * 0.0

    # --------------------------------------------------------------------------- dtypes and devices

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the memory of parameters, their gradients and buffers; identities stay.

        All that converts or moves a module comes here, for each module of the tree: a subclass
        that holds more tensors overrides it.
        """
        if recurse:
            for child in self.children():
                child._apply(fn)
        for table in (self._parameters, self._buffers):
            for t in table.values():
                if t is not None:
                    _replace_memory(t, fn(t.detach()))
                    if t.grad is not None:
                        t.grad = fn(t.grad.detach())
        return self

    def to(self, *args: DTypeLike | Tensor | bool | None, **kwargs: Any) -> Self:
        """Convert parameters and buffers in place; returns the module.

        Called as ``to(device)``, ``to(dtype)``, ``to(device, dtype)`` or ``to(tensor)``. A dtype
        converts floating tensors only, and must be floating itself.
        """
        return self._converted(*destination(*args, **kwargs))

    def _converted(self, device: str | None, dtype: DType | None) -> Self:
        # What `cpu()`, `double()` and so on do, which a `to` that a subclass writes may call.
        def convert(t: Tensor) -> Tensor:
            to_dtype = dtype if dtype is not None and t.is_floating_point() else None
            return t.to(dtype=to_dtype, device=device)

        for module in self.modules():
            module._device = device or module._device
            module._dtype = dtype or module._dtype
        return self._apply(convert)

    def to_empty(self, *, device: str | None, recurse: bool = True) -> Self:
        """Put parameters and buffers on a device without their values; returns the module."""

        def convert(t: Tensor) -> Tensor:
            return empty(t.shape, dtype=t.dtype, device=t.device if device is None else device)

        for module in self.modules() if recurse else [self]:
            for table in (module._parameters, module._buffers):
                for t in table.values():
                    if t is not None:
                        _replace_memory(t, convert(t.detach()))
        return self

    def float(self) -> Self:
        """Convert floating parameters and buffers to float32."""
        return self._converted(None, dtypes.float32)

    def double(self) -> Self:
        """Convert floating parameters and buffers to float64."""
        return self._converted(None, dtypes.float64)

    def half(self) -> Self:
        """Convert floating parameters and buffers to float16."""
        return self._converted(None, dtypes.float16)

    def type(self, dst_type: DTypeLike) -> Self:
        """Convert floating parameters and buffers to a dtype."""
        return self._converted(*destination(dtype=dst_type))

    def cpu(self) -> Self:
        """Move parameters and buffers to host memory."""
        return self._converted(*destination("cpu"))

    def cuda(self, device: str | None = None) -> Self:
        """Move parameters and buffers to a GPU, the one in use unless `device` says which."""
        if isinstance(device, int):
            device = f"cuda:{device}"
        return self._converted(*destination("cuda" if device is None else device))

    # ---------------------------------------------------------------------------------------- hooks

    def _add_hook(self, kind: str, hook: Hook, **options: bool) -> RemovableHandle:
        self._check_ready("hooks")
        if self._hooks is None:
            self._hooks = Hooks()
        return self._hooks.add(kind, hook, **options)

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before `forward`; what it returns replaces the arguments.

        Parameters
        ----------
        hook : callable
        prepend : bool
            Call it before the hooks there are.
        with_kwargs : bool
            Call ``hook(module, args, kwargs)``, which returns None or both.

        Returns
        -------
        RemovableHandle
        """
        return self._add_hook("forward_pre", hook, prepend=prepend, with_kwargs=with_kwargs)

    def register_forward_hook(
        self,
        hook: Hook,
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after `forward`; a result replaces the output.

        `always_call` calls it even if `forward` or another hook raises; the other arguments are
        those of `register_forward_pre_hook`.
        """
        return self._add_hook(
            "forward", hook, prepend=prepend, with_kwargs=with_kwargs, always_call=always_call
        )

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` before the backward pass of the module.

        A tuple returned replaces the cotangents of the outputs.
        """
        return self._add_hook("backward_pre", hook, prepend=prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the module's gradients are computed.

        `grad_input` has one entry per positional tensor argument (None where there is no
        gradient); a tuple returned replaces them.
        """
        return self._add_hook("backward", hook, prepend=prepend)

    # ------------------------------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """Return the settings to show in `repr`, on one line."""
        return ""

    def _child_reprs(self) -> list[tuple[str, str]]:
        """Return pairs of label and text, one per line of `repr`."""
        return [(name, repr(child)) for name, child in self._modules.items()]

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [f"({name}): {_indented(text)}" for name, text in self._child_reprs()]
        head = extra.split("\n") if extra else []
        if not lines and len(head) < 2:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join([*head, *lines]) + "\n)"


_PLURALS = {"_parameters": "parameters", "_buffers": "buffers", "_modules": "modules"}
_SINGULARS = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}


def _kind(value: object) -> str | None:
    if isinstance(value, Parameter):
        return "_parameters"
    if isinstance(value, Module):
        return "_modules"
    return "_buffers" if isinstance(value, Buffer) else None


def _wrong_kind(module: Module, name: str, table: str, value: object) -> DTypeError:
    what = _SINGULARS[table]
    wanted = {"_parameters": "Parameter", "_buffers": "Tensor", "_modules": "Module"}[table]
    return DTypeError(
        f"cannot assign {type(value).__name__!r} as {what} {name!r} ({wanted} or None expected)",
        expected=f"a {wanted} or None for {type(module).__name__}.{name}",
        got=type(value).__name__,
        fix="wrap it in nn.Parameter, or delete the attribute first"
        if table == "_parameters"
        else "delete the attribute first to use its name for something else",
    )


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _replace_memory(t: Tensor, new: Tensor) -> None:
    """Let `t` have the elements of `new`, its views excepted: they keep the old memory."""
    if new.array is not t.array:
        t.array = new.array
        t._base = None
        mark_changed(t)
