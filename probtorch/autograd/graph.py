"""What operations keep for their gradients, in the hands of the user: saved-tensor hooks, nodes.

`saved_tensors_hooks` is a `Listener`: after each operation it hands what the node keeps to the
user's function, and puts a stand-in in its place, a tensor whose elements come back when the
backward pass asks for them. So nothing is paid for it where it is not used. Names are those of
torch.autograd.graph.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from probtorch.autograd.kept_inputs import kept_inputs
from probtorch.autograd.listener import Listener
from probtorch.autograd.methods import register_hook
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import TapeNode, mark_changed, wrap
from probtorch.core.history import place_at
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.errors import ArgumentError, AutogradError

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op, Operand, Output

__all__ = [
    "GradientEdge",
    "Node",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]

Node = TapeNode


class _Refusal(threading.local):
    """Why saved-tensor hooks are refused in this thread, if they are."""

    message: str | None = None

    def __environment__(self) -> list[object]:
        """Nothing in it is a function's own (see compiler/guards/entering.py)."""
        return []


_REFUSED = _Refusal()


class _Later:
    """An array that comes back when it is asked for."""

    apart = True  # from the memory of what was packed, see `restore` in core/saved.py

    def __init__(
        self, like: np.ndarray, packed: object, unpack: Callable[[object], TensorBase]
    ) -> None:
        self.shape, self.dtype = like.shape, like.dtype
        self._packed, self._unpack = packed, unpack
        self._found: np.ndarray | None = None

    def array(self) -> np.ndarray:
        """Return the elements; what was unpacked is kept until the node is freed."""
        if self._found is None:
            found = as_tensor(self._unpack(self._packed), "unpack_hook").array
            if found.shape != self.shape or found.dtype != self.dtype:
                raise ArgumentError(
                    "unpack_hook",
                    expected=f"what was packed, of shape {self.shape} and dtype {self.dtype}",
                    got=f"shape {found.shape} and dtype {found.dtype}",
                    fix="let unpack_hook undo what pack_hook does",
                )
            self._found = found
        return self._found

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return to_host(self.array())


@functools.cache
def _stand_in_class() -> type[TensorBase]:
    plain = type(wrap(np.zeros(())))

    class _StandIn(plain):  # type: ignore[misc, valid-type]  # the class of tensors, made above
        """A tensor on the tape whose elements come back when they are read."""

        __slots__ = ("_later",)

        @property
        def array(self) -> np.ndarray:
            return self._later.array()

    return _StandIn


def _stand_in(t: TensorBase, node: TapeNode, later: _Later) -> TensorBase:
    out: TensorBase = object.__new__(_stand_in_class())
    out._grad = out._base = out._extra = None
    out._version = 0
    out.grad_fn, out._index, out.requires_grad = place_at(t, node.epoch)
    out._later = later  # type: ignore[attr-defined]  # the slot of the class above
    return out


class _Gone:
    """What a reference to nothing refers to."""


_NOTHING = weakref.ref(_Gone())


class saved_tensors_hooks(Listener):
    """Context manager: hand what operations keep for their gradients to a function, and ask another
    for it in the backward pass.

    Parameters
    ----------
    pack_hook : callable
        ``pack_hook(tensor)`` is called with each tensor that is kept, and returns anything.
    unpack_hook : callable
        ``unpack_hook(packed)`` returns the tensor again, of the same elements.

    Notes
    -----
    Leaves that require a gradient are not packed: they are in memory anyway. What shares memory
    with the tensor that is packed keeps it in place, so that changes in place are noticed. Inside a
    compiled function, which decides itself what is kept, hooks make it run eagerly.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.tensor([1.0, 2.0], requires_grad=True)
    >>> with probtorch.autograd.graph.saved_tensors_hooks(
    ...     lambda t: t.numpy(force=True).astype("float16"),
    ...     lambda a: probtorch.tensor(a.astype("float32")),
    ... ):
    ...     y = (x * 3.0).square().sum()
    >>> y.backward()
    >>> x.grad
    tensor([18., 36.])
    """

    def __init__(
        self,
        pack_hook: Callable[[TensorBase], object],
        unpack_hook: Callable[[object], TensorBase],
    ) -> None:
        super().__init__()
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook
        self._busy = False

    def __enter__(self) -> saved_tensors_hooks:
        if _REFUSED.message is not None:
            raise AutogradError(
                "saved_tensors_hooks",
                expected="a place where they are not disabled",
                got=_REFUSED.message,
                fix="leave the block of disable_saved_tensors_hooks first",
            )
        read("saved_tensors_hooks")
        super().__enter__()
        return self

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Pack what the operation keeps."""
        super().applied(op, inputs, attrs, out)
        if self._busy:
            return
        made = out if isinstance(out, tuple) else (out,)
        node = next((t.grad_fn for t in made if t.grad_fn is not None), None)
        if node is None or node.op is not op or _others(node, inputs):
            return
        self._busy = True
        try:
            self._pack_inputs(node)
            if op.reads_output:
                self._pack_outputs(node, made)
        finally:
            self._busy = False

    def _packed(self, t: TensorBase) -> _Later | None:
        plain = t.detach()
        packed = self.pack_hook(plain)
        held = packed.array if isinstance(packed, TensorBase) else packed
        if isinstance(held, np.ndarray) and isinstance(t.array, np.ndarray):
            if np.may_share_memory(held, t.array):
                return None
        elif packed is plain:
            return None
        return _Later(t.array, packed, self.unpack_hook)

    def _pack_inputs(self, node: TapeNode) -> None:
        inputs = list(node.inputs)
        known: dict[int, TensorBase] = {}
        for i in kept_inputs(node):
            t = inputs[i]
            if not isinstance(t, TensorBase) or (t.grad_fn is None and t.requires_grad):
                continue
            if id(t) not in known:
                later = self._packed(t)
                known[id(t)] = t if later is None else _stand_in(t, node, later)
            inputs[i] = known[id(t)]
        node.inputs = tuple(inputs)

    def _pack_outputs(self, node: TapeNode, made: Sequence[TensorBase]) -> None:
        packed = [self._packed(t) for t in made]
        if type(node.out) is tuple:
            node.out = tuple(
                ref if p is None else _NOTHING for ref, p in zip(node.out, packed, strict=True)
            )
            node.saved = tuple(
                a if p is None else p for a, p in zip(node.saved, packed, strict=True)
            )
        elif packed[0] is not None:
            node.out, node.saved = _NOTHING, packed[0]


def _others(node: TapeNode, inputs: tuple[Operand, ...]) -> bool:
    """Whether a node keeps other operands than those of a call, of those that a gradient reads."""
    if len(node.inputs) != len(inputs):
        return True
    return any(node.inputs[i] is not inputs[i] for i in kept_inputs(node))


class save_on_cpu(saved_tensors_hooks):
    """Context manager: keep what gradients need in host memory, and fetch it for the backward pass.

    Parameters
    ----------
    pin_memory : bool
        Accepted for PyTorch's sake.
    device_type : str
        Of tensors on this kind of device; others stay where they are.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(t: TensorBase) -> object:
            there = str(t.device)
            return (there, t.to(device="cpu")) if there.startswith(device_type) else t

        def unpack(packed: object) -> TensorBase:
            there, t = packed if isinstance(packed, tuple) else (None, packed)
            return t if there is None else t.to(device=there)

        super().__init__(pack, unpack)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Refuse saved-tensor hooks inside the block, with this message."""
    before, _REFUSED.message = _REFUSED.message, error_message
    try:
        yield
    finally:
        _REFUSED.message = before


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor arrives: a node, and which of its outputs the tensor is."""

    node: TapeNode
    output_nr: int


def get_gradient_edge(tensor: TensorBase) -> GradientEdge:
    """Return where the gradient of a tensor arrives.

    Raises
    ------
    AutogradError
        If the tensor is no result of an operation that was recorded.
    """
    node, index, _ = place_at(tensor, float("inf"))
    if node is None:
        raise AutogradError(
            "get_gradient_edge",
            expected="the result of an operation on the tape",
            got="a leaf" if tensor.requires_grad else "a tensor without a gradient",
            fix="ask for the edge of what was computed from it",
        )
    return GradientEdge(node, index)


def increment_version(tensor: TensorBase | Sequence[TensorBase]) -> None:
    """Say that the memory of tensors was changed by other means, so that gradients know."""
    mark_changed(*((tensor,) if isinstance(tensor, TensorBase) else tensor))


class _Several:
    """Removes several hooks."""

    def __init__(self, handles: Sequence[object]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()  # type: ignore[attr-defined]  # handles of hooks


def register_multi_grad_hook(
    tensors: Sequence[TensorBase],
    fn: Callable[..., None],
    *,
    mode: str = "all",
) -> _Several:
    """Call a function when the gradients of several tensors are there.

    Parameters
    ----------
    tensors : sequence of Tensor
    fn : callable
        ``fn(gradients)``, in the order of the tensors, once all of them have one in a backward
        pass; with mode "any" ``fn(gradient)``, when the first of them has.
    mode : {"all", "any"}

    Returns
    -------
    handle
        Its ``remove()`` takes the hook off again.

    Notes
    -----
    A pass is over when each tensor had its gradient; a tensor that a pass does not reach has to be
    left out.
    """
    if mode not in ("all", "any"):
        raise ArgumentError(
            "register_multi_grad_hook",
            expected='mode "all" or "any"',
            got=repr(mode),
            fix="use one of these",
        )
    found: list[TensorBase | None] = [None] * len(tensors)

    def hook(i: int, g: TensorBase) -> None:
        first = all(t is None for t in found)
        found[i] = g
        if mode == "any" and first:
            fn(g)
        if all(t is not None for t in found):
            gradients = list(found)
            found[:] = [None] * len(tensors)
            if mode == "all":
                fn(gradients)

    return _Several([register_hook(t, functools.partial(hook, i)) for i, t in enumerate(tensors)])


explain_calls(globals())
