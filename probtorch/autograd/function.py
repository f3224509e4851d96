"""`Function`: operations with a derivative written by hand.

The forward pass runs off the tape; then one node stands for all of it, whose rule is the class's
`backward`. Forward mode asks for a `jvp` method and otherwise falls back on two reverse passes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import array_module
from probtorch.core.dispatch import TapeNode, grad_enabled, mark_changed, recorder, wrap
from probtorch.core.history import root_of, take_over
from probtorch.core.making import as_tensor
from probtorch.core.op import Attrs, Op
from probtorch.core.saved import changed_since, restore, stale
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import alias, attached
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, AutogradError, NotDifferentiableError, ShapeError
from probtorch.ops.complex_numbers import conj
from probtorch.ops.families import unbroadcast

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


class FunctionCtx:
    """What a `Function` carries from its forward to its backward pass: tensors, and any attribute.

    Attributes
    ----------
    needs_input_grad : tuple of bool
        For each argument of `apply`, whether its gradient is wanted.
    saved_tensors : tuple of Tensor
        What `save_for_backward` was given.
    """

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Any, ...] = ()
        self._fixed: tuple[TensorBase, ...] = ()
        self._dirty: tuple[TensorBase, ...] = ()
        self._materialize = True
        self._node: Any = None  # a weak reference to the node, once there is one

    if TYPE_CHECKING:  # any attribute

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...

    def save_for_backward(self, *tensors: TensorBase) -> None:
        """Keep inputs, outputs or other tensors (or None) for `backward`."""
        self._saved = tensors

    def save_for_forward(self, *tensors: TensorBase) -> None:
        """Keep tensors for `jvp`; they are the same as for `backward`."""
        self._saved = tensors

    def mark_non_differentiable(self, *outputs: TensorBase) -> None:
        """Declare that these outputs have no gradient."""
        self._fixed = outputs

    def mark_dirty(self, *tensors: TensorBase) -> None:
        """Declare that `forward` has changed these arguments in place, and returns them."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether `backward` sees zeros (True) or None for outputs that took no part."""
        self._materialize = bool(value)

    @property
    def saved_tensors(self) -> tuple[TensorBase, ...]:
        """The tensors given to `save_for_backward`.

        Raises
        ------
        AutogradError
            If the memory of one was changed in place since.
        """
        node, out = self._node and self._node(), []
        for i, t in enumerate(self._saved):
            if type(t) is _Output:
                t = restore(node, t.ref, t.data, t.index)
            elif t is not None and node is not None and changed_since(t, node.epoch):
                raise stale(node, f"saved tensor {i}", t)
            out.append(t)
        return tuple(out)


class _Output:
    """A saved output: known by a weak reference, as it holds the node that holds it."""

    def __init__(self, ref: weakref.ref[TensorBase], data: np.ndarray, index: int) -> None:
        self.ref, self.data, self.index = ref, data, index


class Function:
    """Base of operations with a hand-written derivative; subclasses are never instantiated.

    Write two static methods, ``forward(ctx, *args)`` and ``backward(ctx, *gradients)``, and call
    ``apply(*args)``. `backward` returns one gradient (or None) per argument of `forward`. A static
    method ``jvp(ctx, *tangents)`` serves forward mode. As in PyTorch, `forward` may instead take no
    `ctx`, if ``setup_context(ctx, inputs, output)`` is there.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.autograd import Function
    >>> class Cube(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3.0 * x * x
    >>> x = probtorch.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    setup_context = None
    jvp = None

    def __call__(self, *args: object) -> object:
        """Refuse what old scripts do: `forward` and `backward` are static, `apply` calls them."""
        name = type(self).__name__
        raise ArgumentError(
            f"{name}()(...)",
            expected=f"{name}.apply(...), with static methods forward(ctx, ...) and backward",
            got="a call of an instance",
            fix=f"write @staticmethod above both, and call {name}.apply(x)",
        )

    @staticmethod
    def forward(ctx: FunctionCtx, *args: Any) -> Any:
        """Return the result, a tensor or a tuple of tensors and other values."""
        raise NotImplementedError("a Function needs a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        """Return the gradients of the arguments, given those of the outputs."""
        raise NotImplementedError("a Function needs a static method backward(ctx, *gradients)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Carry out the operation.

        Parameters
        ----------
        *args
            Tensors are differentiated; anything else is passed through.

        Returns
        -------
        What `forward` returns.
        """
        taped = grad_enabled()
        ctx = FunctionCtx(tuple(taped and _on_tape(x) for x in args))
        active = recorder()
        if active is None:
            result = cls._forward(ctx, args)
        else:
            active.function_begins(cls)
            try:
                result = cls._forward(ctx, args)
            finally:
                active.function_ends(cls)
        several = isinstance(result, tuple)
        results: list[object] = list(result) if several else [result]
        taped = any(ctx.needs_input_grad)
        dirty = _changed(cls, ctx, results, taped)
        results = [dirty[id(x)] if id(x) in dirty else _not_an_input(x, args) for x in results]
        outs = [x for x in results if isinstance(x, TensorBase)]
        if not outs:
            raise ArgumentError(
                f"{cls.__name__}.forward",
                expected="a tensor, or a tuple with one",
                got=type(result).__name__,
                fix="return probtorch tensors",
            )
        tensors = tuple(x for x in args if isinstance(x, TensorBase))
        if taped:
            _attach(cls, ctx, args, tensors, outs)
            results = _put_back(ctx, dirty, results)
            outs = [x for x in results if isinstance(x, TensorBase)]
        if active is not None:
            active.function_applied(cls, ctx, args, outs)
        return tuple(results) if several else results[0]

    @classmethod
    def _forward(cls, ctx: FunctionCtx, args: tuple[object, ...]) -> Tree:
        with no_grad():
            if cls.setup_context is None:
                return cls.forward(ctx, *args)
            result = cls.forward(*args)
            cls.setup_context(ctx, args, result)
            return result


def _on_tape(x: object) -> TypeGuard[TensorBase]:
    return isinstance(x, TensorBase) and x.requires_grad


def _not_an_input(x: object, args: tuple[object, ...]) -> object:
    """Return `x`, under a new name if it is an argument: a place on the tape has one tensor."""
    if isinstance(x, TensorBase) and any(x is a for a in args):
        same = wrap(x.array)
        same._base = x if x._base is None else x._base
        alias(x, same, taped=False)
        return same
    return x


def _changed(
    cls: type[Function], ctx: FunctionCtx, results: Sequence[object], taped: bool
) -> dict[int, TensorBase]:
    """Return, by the ids of arguments that were changed in place, what stands for their new values
    until these are on the tape.
    """
    ids = {id(x) for x in results if isinstance(x, TensorBase)}
    found = {}
    for t in ctx._dirty:
        if id(t) not in ids:
            raise ArgumentError(
                f"{cls.__name__}.forward",
                expected="tensors that were marked dirty among the results",
                got=f"one of shape {t.array.shape} that is not returned",
                fix="return it",
            )
        found[id(t)] = t
        if not taped:
            continue
        root = root_of(t)
        if (t.requires_grad and t.grad_fn is None) or (root is not None and root.requires_grad):
            raise AutogradError(
                f"{cls.__name__}: in-place change of a leaf or a view",
                expected="a result of an operation, with memory of its own, marked dirty",
                got=f"a {'leaf' if root is None else 'view'} of shape {t.array.shape} that "
                "requires grad",
                fix="give it a clone()",
            )
        found[id(t)] = wrap(t.array)
        alias(t, found[id(t)], taped=False)
    ctx._saved = tuple(found.get(id(t), t) for t in ctx._saved)
    return found


def _put_back(
    ctx: FunctionCtx, dirty: dict[int, TensorBase], results: list[object]
) -> list[object]:
    """Let arguments that were changed in place take over from what stands for them."""
    node = ctx._node()
    for t in ctx._dirty:
        value = dirty[id(t)]
        changed = mark_changed(t)
        take_over(t, value, changed)
        node.tick = changed
        results = [t if x is value else x for x in results]
        for saved in ctx._saved:
            if type(saved) is _Output and saved.ref() is value:
                saved.ref = weakref.ref(t)
    ctx._dirty = ()
    return results


def _attach(
    cls: type[Function],
    ctx: FunctionCtx,
    args: tuple[object, ...],
    tensors: tuple[TensorBase, ...],
    outs: Sequence[TensorBase],
) -> None:
    """Put one node for the whole call on the tape."""
    op = Op(cls.__name__, "custom", cls.forward, _rule(cls), num_outputs=len(outs), saves=())
    ctx._specs = [(o.array.shape, o.array.dtype, array_module(o.array)) for o in outs]
    node = TapeNode(op, tensors, {"ctx": ctx, "args": len(args)})
    ctx._node = weakref.ref(node)  # the node holds the context, not the other way round
    ctx._positions = [i for i, x in enumerate(args) if isinstance(x, TensorBase)]
    fixed = {id(t) for t in ctx._fixed}
    attached()
    for k, o in enumerate(outs):
        if o.array.dtype.kind in "fc" and id(o) not in fixed:
            o.requires_grad, o.grad_fn, o._index = True, node, k
            if o._base is not None:
                # The backward knows the view, and nothing of changes of what it views.
                o._extra = {**(o._extra or {}), "custom": True}
    places = {id(o): k for k, o in enumerate(outs)}
    ctx._saved = tuple(
        _Output(weakref.ref(t), t.array, places[id(t)])
        if id(t) in places and t.grad_fn is node
        else t
        for t in ctx._saved
    )
    ctx._fixed = ()


def _rule(cls: type[Function]) -> Callable[..., list[TensorBase | None]]:
    def vjp(
        g: TensorBase | Sequence[TensorBase | None],
        out: TensorBase | None,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
        needs: Sequence[bool],
    ) -> list[TensorBase | None]:
        ctx = attrs["ctx"]
        gs: list[TensorBase | None] = [g] if isinstance(g, TensorBase) else list(g)
        if ctx._materialize:
            gs = [
                wrap(xp.zeros(shape, dtype)) if g is None else g
                for g, (shape, dtype, xp) in zip(gs, ctx._specs)
            ]
        # A backward is written for gradients, whose conjugates the sweep carries.
        found = cls.backward(ctx, *[g if g is None else conj(g) for g in gs])
        found = found if isinstance(found, (tuple, list)) else (found,)
        # As in PyTorch, None may stand for arguments that were left to their defaults.
        if len(found) < attrs["args"] or any(g is not None for g in found[attrs["args"] :]):
            raise ArgumentError(
                f"{cls.__name__}.backward",
                expected=f"{attrs['args']} results, one per argument of forward",
                got=str(len(found)),
                fix="return None for arguments without a gradient",
            )
        return [
            _fitting(cls, found[i], x, i) if need else None
            for i, x, need in zip(ctx._positions, inputs, needs)
        ]

    return vjp


def _fitting(cls: type[Function], g: TensorBase | None, x: TensorBase, i: int) -> TensorBase | None:
    if g is None:
        return None
    g = conj(as_tensor(g, cls.__name__))
    if g.array.shape == x.array.shape:
        return g
    shape = x.array.shape
    tail = g.array.shape[g.array.ndim - len(shape) :]
    if g.array.ndim < len(shape) or any(s not in (1, t) for s, t in zip(shape, tail)):
        raise ShapeError(
            f"{cls.__name__}.backward",
            expected=f"a gradient of shape {shape} for argument {i}",
            got=str(g.array.shape),
            fix="a gradient has the shape of its argument",
        )
    return unbroadcast(g, shape)


def once_differentiable(backward: Callable[..., Tree]) -> Callable[..., Tree]:
    """Decorate a `backward` that must not be differentiated again: doing so raises.

    Use it where the body leaves the tape, for instance to call NumPy.
    """

    @functools.wraps(backward)
    def wrapped(ctx: FunctionCtx, *gradients: TensorBase | None) -> Tree:
        again = grad_enabled()
        with no_grad():
            found = backward(ctx, *gradients)
        if not again:
            return found
        several = isinstance(found, (tuple, list))
        sources = tuple(t for t in (*ctx._node().inputs, *gradients) if _on_tape(t))
        marked = [_marked(t, sources) for t in (found if several else (found,))]
        return tuple(marked) if several else marked[0]

    return wrapped


def _marked(t: object, sources: tuple[TensorBase, ...]) -> object:
    """Return `t` with a place on the tape where any gradient raises."""
    if not isinstance(t, TensorBase) or not sources:
        return t
    out = wrap(t.array)
    alias(t, out, taped=True)
    out.requires_grad, out.grad_fn = True, TapeNode(_ONCE, sources, {})
    return out


def _refuse(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> NoReturn:
    raise NotDifferentiableError(
        "once_differentiable",
        expected="first derivatives only",
        got="a derivative of a backward marked once_differentiable",
        fix="write the backward in tensor operations and take the mark off",
    )


_ONCE = Op("once_differentiable", "custom", _refuse, _refuse, saves=())


explain_calls(globals())
