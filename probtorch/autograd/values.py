"""Tensors as Python and other libraries see them: numbers, lists, arrays, text.

Here values leave the computation: no gradient follows them, and what records the function has to
know. A number becomes a guard of the recording, an array or a text ends it, unless all that happens
to it is that it is printed (core/printing.py). `Tensor` has these functions as methods.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from html import escape
from types import FrameType
from typing import Any, TypeVar, cast

import numpy as np

from probtorch.array_protocols import refuse_array
from probtorch.autograd.methods import meant
from probtorch.backends.registry import to_host
from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.in_place import assign
from probtorch.core.layout import layout, table
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import DTypeLike
from probtorch.errors import AutogradError, DeviceError, DTypeError, ExportError, ShapeError

__all__ = [
    "LookedFor",
    "apply_",
    "array",
    "array_interface",
    "array_struct",
    "buffer",
    "complex_number",
    "cuda_array_interface",
    "dlpack",
    "dlpack_device",
    "formatted",
    "html",
    "index",
    "integer",
    "is_nonzero",
    "item",
    "map_",
    "masked_data",
    "numpy",
    "real",
    "text",
    "tolist",
    "truth",
    "unconstrained",
]

T = TypeVar("T")


def item(t: TensorBase) -> Any:
    """Return the one element as a Python number. While recording this becomes a guard."""
    if t.array.size != 1:
        _not_one(t, "item()")
        raise ShapeError(
            "item",
            expected="a tensor with one element",
            got=f"shape {t.array.shape}",
            fix="use tolist() or index it",
        )
    value = t.array.item()
    return value if recorder() is None else _told("item()", t, value)


def tolist(t: TensorBase) -> Any:
    """Return nested lists of Python numbers."""
    value = to_host(t.array).tolist()
    return value if recorder() is None else _told("tolist()", t, value)


def numpy(t: TensorBase, *, force: bool = False) -> np.ndarray:
    """Return the memory as a NumPy array (shared; a copy with ``force=True`` where needed).

    Raises
    ------
    AutogradError
        If the tensor requires grad and `force` is False.
    """
    if t.requires_grad and not force:
        raise AutogradError(
            "Can't call numpy() on Tensor that requires grad.",
            expected="a tensor without a gradient, or operations that keep it",
            got="requires_grad=True",
            fix="go on with the tensor, np.exp(t) and its kin keep the gradient; to look at "
            "the numbers alone, t.detach().numpy() or t.numpy(force=True)",
        )
    if t.is_cuda and not force:
        raise _on_gpu(t)
    value = to_host(t.array)
    return value if recorder() is None else _told("numpy()", t, value)


def _on_gpu(t: TensorBase) -> DeviceError:
    return DeviceError(
        "numpy()",
        expected="a cpu tensor",
        got=str(t.device),
        fix="use tensor.cpu().numpy()",
    )


def apply_(t: TensorBase, callable: Callable[[float], float]) -> TensorBase:
    """Overwrite each element with what a Python function makes of it, one call for each.

    No gradient follows, and it is slow: operations on whole tensors are the better way.
    """
    return _overwritten("apply_", t, map(callable, to_host(t.array).reshape(-1).tolist()))


def map_(
    t: TensorBase, tensor: TensorBase, callable: Callable[[float, float], float]
) -> TensorBase:
    """Overwrite each element with ``callable(element, element of tensor)``; see `apply_`."""
    other = np.broadcast_to(to_host(tensor.array), t.array.shape)
    read("map_", tensor)
    pairs = (a.reshape(-1).tolist() for a in (to_host(t.array), other))
    return _overwritten("map_", t, map(callable, *pairs))


def _overwritten(op: str, t: TensorBase, made: Iterable[float]) -> TensorBase:
    if t.requires_grad or t.is_cuda:
        raise AutogradError(
            op,
            expected="a tensor in host memory without a gradient",
            got=f"requires_grad={t.requires_grad} on {t.device}",
            fix="write it with operations on tensors, or detach().cpu() it first",
        )
    read(op, t)
    value = np.array(list(made)).reshape(t.array.shape).astype(t.array.dtype)
    return assign(t, wrap(value), op)


def truth(t: TensorBase) -> bool:
    """Whether the one element is not 0."""
    return _number(t, bool, "bool()")


def is_nonzero(t: TensorBase) -> bool:
    """Whether the one element is not 0."""
    if t.array.size != 1:
        raise ShapeError(
            "is_nonzero",
            expected="one element",
            got=f"shape {t.array.shape}",
            fix="use (x != 0).any() or .all()",
        )
    return truth(t)


def integer(t: TensorBase) -> int:
    """Return the one element as an int."""
    return _number(t, int, "int()")


def real(t: TensorBase) -> float:
    """Return the one element as a float."""
    return _number(t, float, "float()")


def complex_number(t: TensorBase) -> complex:
    """Return the one element as a complex number."""
    if t.array.dtype.kind == "c":
        return _number(t, complex, "complex()")
    return complex(_number(t, float, "complex()"))  # what is compared is real, as the tensor is


def index(t: TensorBase) -> int:
    """Return the one element of an integer tensor, as an index of Python's sequences."""
    if t.array.dtype.kind not in "iub":
        raise DTypeError(
            "index",
            expected="an integer tensor",
            got=str(t.array.dtype),
            fix="use .long() or int()",
        )
    return _number(t, int, "index")


def _number(t: TensorBase, convert: Callable[[float], T], what: str) -> T:
    if t.array.size != 1:
        _not_one(t, what)
        raise ShapeError(
            what,
            expected="a tensor with one element",
            got=f"shape {t.array.shape}",
            fix="use any() or all() for truth, index it, or compute with the tensor itself",
        )
    seen = t.array.item()
    try:
        value = convert(seen)
    except TypeError:
        raise DTypeError(
            what,
            expected="a real number",
            got=f"{seen!r} of dtype {t.array.dtype}",
            fix="take complex(x), or x.real, x.imag or x.abs() first",
        ) from None
    except (ValueError, OverflowError):
        # int() of nan or of an infinity: the function may catch that.
        read(what, t, seen)
        raise
    if recorder() is None:
        return value
    return read(what, t, value) if convert is bool else _told(what, t, value)


def _told(what: str, t: TensorBase, value: T) -> T:
    """Tell that Python reads `value` out of `t`, unless all it does with it is to print it;
    returns what it gets.
    """
    active = recorder()
    if active is None:
        return value
    how = active.shown(t)
    if how == "shape" and type(value) is float:
        # A recording for shapes computes with numbers that are nobody's.
        return cast("T", math.nan)  # which T is, then
    return value if how == "value" else active.read(what, t, value)


def _not_one(t: TensorBase, what: str) -> None:
    """Tell whoever listens, who may know better than the error that follows."""
    active = recorder()
    if active is not None:
        active.not_one(what, t)


def array(t: TensorBase, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
    """Return the elements as NumPy asks for them."""
    if _for_sparse_product():
        # SciPy gives up and Python asks the tensor, whose product is differentiable.
        return np.array(None, object)
    if t.requires_grad and grad_enabled():
        raise refuse_array(t)
    if t.is_cuda and not t.requires_grad:
        raise _on_gpu(t)
    return _told("numpy()", t, np.array(to_host(t.array), dtype, copy=copy))


def _for_sparse_product() -> bool:
    """Whether a sparse matrix of SciPy is asking, as the left operand of a product."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "_matmul_dispatch":
        return False
    return frame.f_globals.get("__name__", "").startswith("scipy.sparse")


def buffer(t: TensorBase, flags: int) -> memoryview:
    """Return the memory as Python's buffer protocol shares it, from Python 3.12 on.

    Raises
    ------
    ExportError
        If the tensor requires grad, or is on a GPU.
    """
    if t.requires_grad or _for_sparse_product():
        raise _not_exported()
    if t.is_cuda:
        raise ExportError(
            "memoryview",
            expected="a cpu tensor",
            got=str(t.device),
            fix="use memoryview(tensor.cpu())",
        )
    return _told("memoryview()", t, t.array).data


def dlpack(
    t: TensorBase,
    *,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """Return the memory as a DLPack capsule, shared unless the other library could not use it.

    What others cannot use is copied unless `copy` is False: negative strides, with which PyTorch
    ends the process, and read-only memory where the asker knows no version in which that is said.

    Raises
    ------
    ExportError
        If the tensor requires grad.
    """
    if t.requires_grad:
        raise _not_exported()
    options: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
    given = {k: v for k, v in options.items() if v is not None}
    array = read("__dlpack__()", t, t.array)
    if copy is None and isinstance(array, np.ndarray):
        tells_read_only = max_version is not None and max_version[0] >= 1
        if min(array.strides, default=0) < 0 or not (array.flags.writeable or tells_read_only):
            array = array.copy()
    return array.__dlpack__(stream=stream, **given)


def _not_exported() -> ExportError:
    return ExportError(
        "Can't export tensors that require gradient, use tensor.detach()",
        expected="requires_grad=False",
        got="requires_grad=True",
        fix="call detach() first",
    )


def dlpack_device(t: TensorBase) -> tuple[int, int]:
    """Return the device as DLPack numbers it."""
    return t.array.__dlpack_device__()


class LookedFor:
    """An attribute that other libraries look for, and that only some tensors have.

    A `__getattr__` of the class would do, but where there is one Python reads every attribute the
    long way, the slots too, which takes ten times as long. As with that, an instance's own goes
    first, and the class has none.
    """

    def __init__(self, find: Callable[[TensorBase], object]) -> None:
        self.find, self.__doc__ = find, find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, t: TensorBase | None, owner: type) -> object:
        found = None if t is None else self.find(t)
        if found is None:
            whose = f"type object {owner.__name__!r}" if t is None else f"{owner.__name__!r} object"
            message = f"{whose} has no attribute {self.name!r}"
            raise AttributeError(message, name=self.name, obj=owner if t is None else t)
        return found


def _shared(t: TensorBase) -> np.ndarray | None:
    """Return the array that others may get at without a copy, None if they may not."""
    if t.is_cuda or (t.requires_grad and grad_enabled()) or _for_sparse_product():
        return None
    return _told("numpy()", t, t.array)


@LookedFor
def array_struct(t: TensorBase) -> object:
    """Of NumPy's two ways to memory the one that keeps it."""
    array = _shared(t)
    return None if array is None else array.__array_struct__


@LookedFor
def array_interface(t: TensorBase) -> dict[str, object] | None:
    """The address and layout of the memory; who reads it has to keep what is there."""
    array = _shared(t)
    # Whatever becomes of the tensor.
    return None if array is None else {**array.__array_interface__, "owner": array}


@LookedFor
def cuda_array_interface(t: TensorBase) -> object:
    """The same on a GPU."""
    array: Any = t.array
    return array.__cuda_array_interface__ if t.is_cuda else None


@LookedFor
def unconstrained(t: TensorBase) -> Callable[[], TensorBase] | None:
    """Return the leaf of a `param` statement's value; one without a constraint is it itself."""
    itself = t if t.is_leaf and t.requires_grad else None
    leaf = (t._extra or {}).get("unconstrained", itself)
    return None if leaf is None else lambda: leaf


@LookedFor
def masked_data(t: TensorBase) -> None:
    """What masked arrays look for before they ask for the array."""
    if t.requires_grad and grad_enabled():
        raise refuse_array(t, "a masked array")


def text(t: TensorBase) -> str:
    """Return what is printed: elements, dtype, device, the node that made them."""
    shown = _read(t, to_host(t.array))
    if shown is None:
        return f"tensor(..., shape={t.array.shape}, dtype={t.array.dtype})"
    floats = dtypes.get_default_dtype(), dtypes.default_complex()
    plain = *floats, dtypes.int64, dtypes.bool_
    usual = t.array.dtype in (plain if t.array.size else plain[:1])
    return layout(shown, ([] if usual else [f"dtype={t.array.dtype}"]) + _notes(t))


def _notes(t: TensorBase) -> list[str]:
    """Where a tensor is, and how it stands on the tape."""
    notes = [f"device='{t.device}'"] if t.is_cuda else []
    node = meant(t).grad_fn
    if node is not None:
        notes.append(f"grad_fn=<{node.name()}>")
    elif t.requires_grad:
        notes.append("requires_grad=True")
    return notes


def html(t: TensorBase) -> str:
    """Return what a notebook shows: vectors and matrices as tables, others as text."""
    shown = _read(t, to_host(t.array)) if t.array.ndim in (1, 2) and t.array.size else None
    if shown is None:
        return f"<pre>{escape(text(t))}</pre>"
    notes = [f"shape={tuple(t.array.shape)}", f"dtype={t.array.dtype}", *_notes(t)]
    return f"<div>{table(shown)}<code>{escape(', '.join(notes))}</code></div>"


def formatted(t: TensorBase, spec: str) -> str:
    """Return the text of a number by `spec`, of others the whole text."""
    if t.array.ndim == 0 and spec:
        value = _read(t, to_host(t.array))
        return format(math.nan if value is None else value.item(), spec)
    try:
        return repr(t) if not spec else format(repr(t), spec)
    except ValueError:
        raise DTypeError(
            f"format {spec!r}",
            expected="a tensor of one number",
            got=f"shape {tuple(t.array.shape)}",
            fix="format one element, x[0], or reduce it first; '' shows the whole tensor",
        ) from None


def _read(t: TensorBase, value: np.ndarray) -> np.ndarray | None:
    """Tell that Python reads this tensor's elements as text, unless to print; returns the array of
    what it gets of them, and None where there are no elements to print.
    """
    active = recorder()
    if active is None:
        return value
    how = active.shown(t)
    if not how:
        return active.read("the text of a tensor", t, value)
    return None if how == "shape" else value
