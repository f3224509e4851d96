"""`Batch`: who listens while `vmap` runs a function on the first slice, and carries the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from probtorch.autograd.batching import batched, spread
from probtorch.autograd.listener import Listener
from probtorch.backends.registry import array_module, to_host
from probtorch.core.dispatch import grad_enabled, set_recorder, wrap
from probtorch.core.interpreter import NUMBERS
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, AutogradError, DomainError
from probtorch.ops.arithmetic import where
from probtorch.ops.extremes import argmax
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import any as any_

if TYPE_CHECKING:
    from probtorch.autograd.function import Function, FunctionCtx
    from probtorch.core.op import Attrs, Op, Operand
    from probtorch.core.rng import Generator

__all__ = ["RANDOMNESS", "Batch", "first_slice", "whole_batch"]

T = TypeVar("T")
RANDOMNESS = ("error", "different", "same")
# A draw that is the same for all slices: what was asked of which generator, and what came.
_CommonDraw: TypeAlias = tuple[tuple["Generator", int], tuple[TensorBase, TensorBase, TensorBase]]


class Batch(Listener):
    """A listener that carries out every operation on all slices; see vmap.py."""

    reruns = True

    def __init__(self, size: int, randomness: str, common: Sequence[_CommonDraw] = ()) -> None:
        super().__init__()
        self.size, self.randomness = size, randomness
        # The draws that all slices share: those that earlier chunks made come first.
        self.common, self.repeated = list(common), 0
        self._wholes = {}
        self._views = {}
        self._stale = set()
        self._arguments = set()
        self._made = {}  # what came into being while the function ran

    # -------------------------------------------------------------------------------------- wholes

    def _argument(self, whole: TensorBase) -> TensorBase:
        """Return the first slice of a batch, to be given to the function."""
        shape = whole.array.shape[1:]
        # A copy, as nothing may be written to the batch through it.
        xp = array_module(whole.array)
        data = whole.array[0].copy() if self.size else xp.zeros(shape, whole.array.dtype)
        t = wrap(data)
        t.requires_grad = whole.requires_grad and grad_enabled()
        self._set(t, whole)
        self._arguments.add(id(t))
        return t

    def _set(self, t: TensorBase, whole: TensorBase) -> None:
        """Note that the slices of `whole` are what `t` is the first one of."""
        # The entry keeps the tensor alive, so that no other one gets its id.
        self._wholes[id(t)] = (t, whole)

    def _whole(self, t: TensorBase) -> TensorBase | None:
        """Return the batch that `t` is the first slice of, None if it is the same for all."""
        if id(t) in self._stale:
            raise _refusal(
                "a view taken before its base changed in place, and read after it",
                "take the view again after the change",
            )
        entry = self._wholes.get(id(t))
        if entry is None:
            return None
        return entry[1]

    def _full(self, t: TensorBase) -> TensorBase:
        """Return the batch of `t`; copies of it if it is the same for all slices."""
        whole = self._whole(t)
        return spread(t, False, self.size) if whole is None else whole

    def batched(self, t: TensorBase) -> bool:
        """Whether `t` differs between slices, here or in a vmap further out."""
        return self._whole(t) is not None or super().batched(t)

    def holds_somewhere(self, t: TensorBase) -> bool:
        """Whether a boolean tensor with one element is true in any slice."""
        whole = self._whole(t)
        if whole is None:
            return super().holds_somewhere(t)
        with _Outside(self):
            return super().holds_somewhere(any_(whole))

    def of_one_where(self, test: TensorBase, t: TensorBase) -> TensorBase:
        """Return `t` of one slice for which `test` holds, off the tape; where it holds nowhere
        within an outer slice, that of another outer slice.
        """
        tests = self._whole(test)
        if tests is None:
            return super().of_one_where(test, t)
        with _Outside(self):
            tests = reshape(tests, (self.size,))
            found = self._full(t).detach()[argmax(where(tests, 1, 0))]
            anywhere = any_(tests)
            if not super().batched(anywhere):
                return found
            return where(anywhere, found, super().of_one_where(anywhere, found))

    def demand(self, inside: TensorBase, error: Callable[[], Exception]) -> None:
        """Demand that a test holds in all slices; no error speaks of one slice."""
        whole = self._whole(inside)
        if whole is None:
            super().demand(inside, error)
            return
        with _Outside(self):
            super().demand(whole, lambda: _one_outside(whole.array))

    def demanded(self, t: TensorBase, constraint: object) -> bool:
        """Whether the batch of `t` was tested before."""
        whole = self._whole(t)
        return super().demanded(t if whole is None else whole, constraint)

    def without_nan(self, t: TensorBase) -> bool:
        """Whether it is seen to elsewhere that the batch of `t` has no nan."""
        whole = self._whole(t)
        return super().without_nan(t if whole is None else whole)

    # ------------------------------------------------------------------- called by the dispatcher

    def op_failed(
        self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, error: BaseException
    ) -> None:
        """Of one slice nobody outside knows the operands, but that something was raised."""
        if any(isinstance(x, TensorBase) and self._whole(x) is not None for x in inputs):
            super().raised(error)
        else:
            super().op_failed(op, inputs, attrs, error)

    def fresh(self, t: TensorBase) -> None:
        """Note a new tensor, which may be changed in place."""
        super().fresh(t)
        self._made[id(t)] = t

    def applied(self, op: Op, inputs: tuple[Any, ...], attrs: Attrs, out: Any) -> None:
        """Carry out one operation on the whole batch, if it depends on it."""
        wholes = [self._whole(x) if isinstance(x, TensorBase) else None for x in inputs]
        flags = [w is not None for w in wholes]
        if not any(flags):
            super().applied(op, inputs, attrs, out)
            for t in out if type(out) is tuple else (out,):
                self._made[id(t)] = t
                self._note_view(t)
            return
        operands = [x if w is None else w for x, w in zip(inputs, wholes, strict=True)]
        if op.name == "demand" and flags[1] and not operands[1].array.all():
            raise _one_outside(operands[1].array)
        with _Outside(self):
            found = batched(op, operands, flags, attrs, self.size)
        outs = out if isinstance(out, tuple) else (out,)
        for t, whole in zip(outs, found if isinstance(found, tuple) else (found,)):
            self._set(t, whole)
            self._note_view(t)

    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Sequence[object],
        outs: Sequence[TensorBase],
    ) -> None:
        """Put a custom function on the tape slice by slice, if somebody asks for a gradient."""
        wholes = [self._whole(x) if isinstance(x, TensorBase) else None for x in inputs]
        if all(w is None for w in wholes):
            super().function_applied(function, ctx, inputs, outs)
            return
        taped = grad_enabled() and any(
            x.requires_grad if w is None else w.requires_grad
            for x, w in zip(inputs, wholes)
            if isinstance(x, TensorBase)
        )
        if not taped and not self.pushes_tangents:
            return  # its operations were carried out one by one
        with _Outside(self):
            rows = []
            for i in range(self.size):
                operands = [x if w is None else w[i] for x, w in zip(inputs, wholes)]
                found = function.apply(*operands)
                found = found if isinstance(found, tuple) else (found,)
                rows.append([x for x in found if isinstance(x, TensorBase)])
            columns = [stack(list(column)) for column in zip(*rows, strict=True)]
        for t, whole in zip(outs, columns):
            self._set(t, whole)

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """Let `target` take the batch of `value`."""
        new, old = self._whole(value), self._whole(target)
        if new is None and old is None:
            super().in_place(target, value)
            return
        if target._base is not None:
            raise _refusal(
                "an in-place change of a view", "write to the tensor itself: x[index] = value"
            )
        if old is None and id(target) not in self._made:
            raise _refusal(
                "an in-place change, different for each slice, of a tensor from outside",
                "use the out-of-place form, and return the result",
            )
        if id(target) in self._arguments:
            raise _refusal(
                "an in-place change of an argument", "clone() the argument first, and return it"
            )
        self._stale.update(id(t) for t in self._views.pop(id(target), ()))
        with _Outside(self):
            self._set(target, self._full(value))

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Let `t` have the batch of `source`, with its gradient or without."""
        whole = self._whole(source)
        if whole is None:
            super().alias(source, t, taped)
            return
        with _Outside(self):
            self._set(t, whole if taped else whole.detach())
        self._note_view(t)

    def _note_view(self, t: TensorBase) -> None:
        if t._base is not None:
            self._views.setdefault(id(t._base), []).append(t)

    # ----------------------------------------------------------------------------- what is refused

    def read(self, what: str, t: TensorBase | None, value: T) -> T:
        """Refuse what differs between slices: branches, numbers, values that leave for Python,
        shapes; and what cannot be repeated for each slice.
        """
        if t is None:
            raise _refusal(what, "move it out of the function")
        if self._whole(t) is None:
            return super().read(what, t, value)
        if isinstance(value, NUMBERS):
            raise _refusal(
                f"bool(), int(), float() or item() of a tensor of shape {t.array.shape}",
                "write the branch with probtorch.where, cond or while_loop",
            )
        raise _refusal(
            f"{what}, whose result depends on the values of a tensor",
            "use operations whose shapes are fixed (where, a sum over a mask, stack)",
        )

    def shown(self, t: TensorBase) -> str:
        """Never of what differs between slices: it has no one value to show."""
        return super().shown(t) if self._whole(t) is None else ""

    def gradient_kept(self, leaf: TensorBase) -> None:
        """Refuse `backward()`, which adds up what belongs to different slices."""
        raise _refusal("backward()", "take the gradient with probtorch.func.grad")

    def is_constant(self, t: TensorBase) -> bool:
        """Whether `t` is the same for all slices and at every replay."""
        return self._whole(t) is None and super().is_constant(t)

    # ------------------------------------------------------------------------------------- draws

    def drawn(
        self, what: str, generator: Generator, count: int
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Reserve draws: of one slice, or of each."""
        if self.randomness == "error":
            raise ArgumentError(
                "vmap",
                expected='randomness="different" or "same" for a function that draws',
                got=f'{what}, a random draw, with randomness="error"',
                fix='pass randomness="different" for independent draws in each slice',
            )
        if self.randomness == "same":
            return self._common_draw(what, generator, count)
        words = super().drawn(what, generator, count * self.size)
        with _Outside(self):
            if words is None:
                words = _reserved(generator, count * self.size)
            seed, stream, first = words
            whole = first + wrap(np.arange(self.size) * count)
            t = wrap(first.array.copy())
        self._set(t, whole)
        return seed, stream, t

    def _common_draw(
        self, what: str, generator: Generator, count: int
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Reserve draws that are the same in all slices, those of other chunks included."""
        if self.repeated < len(self.common):
            key, words = self.common[self.repeated]
            self.repeated += 1
            if key == (generator, count):
                return words
        heard = super().drawn(what, generator, count)
        words = _reserved(generator, count) if heard is None else heard
        self.common.append(((generator, count), words))
        self.repeated = len(self.common)
        return words


def _reserved(generator: Generator, count: int) -> tuple[TensorBase, TensorBase, TensorBase]:
    """Reserve draws that no listener hears of."""
    numbers = (generator.initial_seed(), generator.stream, generator.advance(count))
    seed, stream, first = (wrap(np.array(w, np.uint64).view(np.int64)) for w in numbers)
    return seed, stream, first


def first_slice(batch: Batch, whole: TensorBase) -> TensorBase:
    """Return what the function is given in the place of a whole batch."""
    return batch._argument(whole)


def whole_batch(batch: Batch, t: TensorBase) -> TensorBase:
    """Return the batch of a result; copies of it if it is the same for all slices."""
    return batch._full(t)


class _Outside:
    """Context manager: operations are heard by what listened before a `Batch` did."""

    def __init__(self, batch: Batch) -> None:
        self.outer = batch.outer

    def __enter__(self) -> None:
        self.before = set_recorder(self.outer)

    def __exit__(self, *exc: None) -> None:
        set_recorder(self.before)


def _one_outside(ok: np.ndarray) -> DomainError:
    """Return the error for slices that eager execution would have refused one by one."""
    place = tuple(int(i[0]) for i in np.nonzero(~to_host(ok)))
    return DomainError(
        "vmap",
        expected="parameters and values inside of their domain in every slice",
        got=f"one outside of it, at index {place} of the batch",
        fix="run the function on that slice to see which",
    )


def _refusal(what: str, fix: str) -> AutogradError:
    return AutogradError(
        "vmap", expected="a function that does the same on every slice", got=what, fix=fix
    )
