"""`Parameter` and `Buffer`: tensors that a `Module` registers when they are assigned to it.

A parameter is a leaf that requires grad and that an optimizer updates; a buffer is state that is
saved with the module but not learned, such as a running mean. Both are tensors in every other way.
"""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex, TypeVar

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.leaf_types import register_leaf_type
from probtorch.core.making import as_tensor
from probtorch.core.shape import parse_size
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import DTypeLike, SizeLike, TensorLike
from probtorch.errors import ModelError
from probtorch.factories import empty
from probtorch.tensor import Tensor, tensor

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter"]


_Leaf = TypeVar("_Leaf", bound=Tensor)


def _around(cls: type[_Leaf], data: Tensor) -> _Leaf:
    """Return a new leaf of class `cls` on the memory of the tensor `data`."""
    read(f"a {cls.__name__} made of a tensor", data)
    t = object.__new__(cls)
    t.array = data.array
    t.requires_grad = False
    t._grad = t.grad_fn = t._extra = None
    t._index = 0
    t._version = data._version
    t._base = data._base
    if data._base is None and data.grad_fn is None:
        # The new tensor becomes the owner and `data` a view of it, so that in-place changes of
        # either are dated in one place. Mostly nobody keeps `data`, and then nothing is a view.
        data._base, data._extra = t, {**(data._extra or {}), "root": None}
    elif data._base is None:
        t._base = data
    if t._base is not None:
        t._extra = {"root": None}
    return t


class Parameter(Tensor):
    """A tensor that is learned: assigned to an attribute of a module, it joins its parameters.

    Parameters
    ----------
    data : Tensor, array, number or nested sequence, optional
        Tensors share their memory with the parameter, anything else is copied; empty if None.
    requires_grad : bool
        Whether operations on the parameter are recorded.

    Raises
    ------
    DTypeError
        If a gradient is asked of integers.

    Examples
    --------
    >>> Parameter([1.0, 2.0])
    Parameter containing:
    tensor([1., 2.], requires_grad=True)
    """

    __slots__ = ()

    def __new__(cls, data: TensorLike | None = None, requires_grad: bool = True) -> Self:
        if data is None:
            data = np.empty(0, np.float32)
        data = data if isinstance(data, TensorBase) else tensor(data)
        t = _around(cls, data)
        if requires_grad:
            t.requires_grad_()
        return t

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that belongs to a module's state without being learned.

    Parameters
    ----------
    data : Tensor, array, number or nested sequence
        Tensors share their memory with the buffer, anything else is copied.
    persistent : bool
        Whether the buffer is part of `state_dict`.
    """

    __slots__ = ("persistent",)
    persistent: bool

    def __new__(cls, data: TensorLike, *, persistent: bool = True) -> Self:
        t = _around(cls, as_tensor(data) if isinstance(data, TensorBase) else tensor(data))
        t.persistent = persistent
        return t

    def __deepcopy__(self, memo: dict[int, object]) -> Buffer:
        out = super().__deepcopy__(memo)
        assert isinstance(out, Buffer)  # of the class it copies
        out.persistent = self.persistent
        return out

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        _, (_, array, _) = super().__reduce_ex__(protocol)
        return _rebuild_buffer, (array, self.persistent)


class _Shapeless:
    """What tensors without a shape share: it is known when a lazy module meets its first input."""

    __slots__ = ()

    @property
    def shape(self) -> NoReturn:
        raise ModelError(
            f"shape of an {type(self).__name__}",
            expected="a module that has met an input",
            got="a lazy module that has met none",
            fix="call the module once on an example",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(_Shapeless, Parameter):
    """A parameter of a lazy module, whose shape is not known yet.

    Parameters
    ----------
    requires_grad : bool
    device, dtype
        Of the parameter that it becomes.
    """

    __slots__ = ()

    @explained("UninitializedParameter")
    def __new__(
        cls,
        requires_grad: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> Self:
        return super().__new__(cls, empty(0, device=device, dtype=dtype), requires_grad)

    def materialize(
        self,
        shape: SizeLike,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        """Become a `Parameter` of a shape, with elements of any value."""
        _materialized(self, Parameter, shape, device, dtype)

    def __deepcopy__(self, memo: dict[int, object]) -> UninitializedParameter:
        out = UninitializedParameter(self.requires_grad, self.device, self.dtype)
        memo[id(self)] = out
        return out

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return UninitializedParameter, (self.requires_grad, self.device, self.dtype)


class UninitializedBuffer(_Shapeless, Buffer):
    """A buffer of a lazy module, whose shape is not known yet; arguments as for parameters."""

    __slots__ = ()

    @explained("UninitializedBuffer")
    def __new__(
        cls,
        requires_grad: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        persistent: bool = True,
    ) -> Self:
        out = super().__new__(cls, empty(0, device=device, dtype=dtype), persistent=persistent)
        if requires_grad:
            out.requires_grad_()
        return out

    def materialize(
        self,
        shape: SizeLike,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        """Become a `Buffer` of a shape, with elements of any value."""
        _materialized(self, Buffer, shape, device, dtype)

    def __deepcopy__(self, memo: dict[int, object]) -> UninitializedBuffer:
        settings = (self.requires_grad, self.device, self.dtype, self.persistent)
        out = UninitializedBuffer(*settings)
        memo[id(self)] = out
        return out

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        settings = (self.requires_grad, self.device, self.dtype, self.persistent)
        return UninitializedBuffer, settings


def _materialized(
    t: Tensor, becomes: type, shape: SizeLike, device: str | None, dtype: DTypeLike | None
) -> None:
    made = empty(
        parse_size((shape,)), device=device or t.device, dtype=t.dtype if dtype is None else dtype
    )
    t.array = made.array
    t.__class__ = becomes


register_leaf_type(
    "parameter",
    Parameter,
    note=lambda t: bool(t.requires_grad),
    make=lambda t, note: Parameter(t, requires_grad=note),
    wants_gradient=True,
)
register_leaf_type(
    "buffer",
    Buffer,
    note=lambda t: bool(t.persistent),
    make=lambda t, note: Buffer(t, persistent=note),
    wants_gradient=False,
)
register_leaf_type(
    "uninitialized parameter",
    UninitializedParameter,
    note=lambda t: bool(t.requires_grad),
    make=lambda t, note: UninitializedParameter(note, dtype=t.array.dtype),
    wants_gradient=True,
)
register_leaf_type(
    "uninitialized buffer",
    UninitializedBuffer,
    note=lambda t: bool(t.persistent),
    make=lambda t, note: UninitializedBuffer(dtype=t.array.dtype, persistent=note),
    wants_gradient=False,
)


def _rebuild_buffer(array: np.ndarray, persistent: bool) -> Tensor:
    return Buffer(dtypes.shared(array), persistent=persistent)


explain_calls(globals())
