"""What leaves the tape: values that Python takes out of a computation that is being differentiated.

A `Watch` listens to one run. It knows which tensors depend on what is differentiated (they are on
the tape, or were computed off it from such), and notes

- escapes: `float`, `int`, `item`, `tolist`, `numpy` and array conversions of such tensors, with
  the site they depend on and the user's line. Outside of `no_grad` and `stop_gradient`, a number or
  array that comes back into an operation with a gradient is refused there and then: floats are
  recognised by identity, arrays by the memory they came from. What Python computed from them first
  cannot be recognised, which is why the gradient is compared with differences too
  (infer/gradient_check.py);
- cuts: results off the tape, which somebody meant (`detach`, `no_grad`, comparisons, rounding);
- turns: truths and whole numbers that the user's code takes out, by which it goes one way or
  another (infer/vi/jumps.py asks whether the result jumps there).

A second run `like` the first holds all cuts at the values they had in the first, in their order. So
differences of two runs see what the tape sees: a tensor that was detached on purpose is a constant
in both. Draws with implicit gradients follow their derivative, since the numbers that a rejection
sampler makes of the same bits do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.autograd.kept_inputs import LARGE, let_go
from probtorch.autograd.listener import Listener
from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import InferenceError, is_ours, user_location

if TYPE_CHECKING:
    from probtorch.autograd.function import Function, FunctionCtx
    from probtorch.core.op import Attrs, Op, Operand, Output

__all__ = [
    "Choice",
    "Escape",
    "NotAlike",
    "Watch",
    "check_alike",
    "cure",
    "forget",
    "hold",
    "random_values",
    "restore",
]

# Escapes whose site is looked for, and tensors looked at for one.
MAX_ESCAPES, MAX_WALK = 64, 20_000
MAX_TURNS = 1000


class NotAlike(Exception):
    """A run took another path than the first: a branch, or a cut of another shape."""


@dataclass(frozen=True)
class Escape:
    """A value that left the tape.

    Attributes
    ----------
    how : str
        ``float()``, ``item()``, ``numpy()`` ...
    sites : tuple of str
        What it depends on, as "site 'b'".
    place : str
        The user's "file:line".
    """

    how: str
    sites: tuple[str, ...]
    place: str

    def __str__(self) -> str:
        of = ", ".join(self.sites) or "the point"
        return f"{self.how} of {of} at {self.place}" if self.place else f"{self.how} of {of}"


@dataclass(frozen=True)
class Choice:
    """A truth or a whole number that the user's code took out, and where.

    Attributes
    ----------
    what : Escape
    value : bool or int
    """

    what: Escape
    value: bool | int

    def __str__(self) -> str:
        return f"{self.what} is {self.value}"


def cure(sites: Sequence[str] = ()) -> str:
    """What to do about a value that left the tape."""
    what = sites[0].partition(" ")[2] if sites else "the value"
    return (
        f"compute with the tensor of {what} itself (stack or tensor([...]) for lists, zeros and "
        "item assignment for arrays, where for branches); if it is meant to count as a constant, "
        "take it inside `with probtorch.stop_gradient():`"
    )


class Watch(Listener):
    """Listens to one run; see the module.

    Parameters
    ----------
    like : Watch, optional
        The first run, whose cuts this one holds.

    Attributes
    ----------
    escapes : list of Escape
    cuts : int
        Floating results off the tape.
    narrow : bool
        Whether anything was computed in less than double precision.
    turns : list of Choice
    approximate : bool
        Whether a `Function` took part whose gradient is not quite that of its result.
    """

    # Eager code that looks at values to see whether all is well would be noted as an escape.
    reruns = True

    def __init__(self, like: Watch | None = None) -> None:
        super().__init__()
        self.like = like
        self.escapes, self.cuts = [], 0
        self.turns: list[Choice] = []
        self.narrow = self.approximate = False
        self._names: dict[int, tuple[TensorBase, str]] = {}
        self._off: dict[
            int, tuple[TensorBase, tuple[TensorBase, ...]]
        ] = {}  # tainted, off the tape: its inputs
        self._held: list[tuple[Any, ...]] = []  # (kind, shape, dtype, array, input arrays)
        self._floats: dict[int, tuple[float, Escape]] = {}
        self._arrays: dict[int, tuple[object, Escape]] = {}
        self._back: dict[int, tuple[TensorBase, Escape]] = {}
        self._live: dict[int, np.ndarray] = {}  # of what is held: the array of this run
        self._drawn: dict[int, TensorBase] = {}  # draws that no gradient is meant to pass
        self._made: set[int] = set()
        self._before: dict[
            int, tuple[TensorBase, np.ndarray]
        ] = {}  # tensors from outside that were changed
        self._inside = 0  # of forward passes of Functions
        self._large = False  # whether there are many rows, of which the tape keeps what it must

    def named(self, t: TensorBase, name: str) -> None:
        """Learn that the tensor `t` is what messages call `name`."""
        super().named(t, name)
        self._names[id(t)] = (t, name)

    # ------------------------------------------------------------------------------- what it hears

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Hear of one operation: hold it if it is a cut, refuse what came back."""
        super().applied(op, inputs, attrs, out)
        # Heard at every operation, and so written out.
        if isinstance(out, tuple):
            outs, taped = out, any(o.requires_grad for o in out)
            self._made.update(map(id, out))
        else:
            outs, taped = (out,), out.requires_grad
            self._made.add(id(out))
        if self._inside:
            return
        first = outs[0].array
        if self._large or first.nbytes >= LARGE:
            self._large = True
            let_go(op, out)
        dtype = first.dtype
        if dtype.kind in "fc" and op.vjp is not None and grad_enabled():
            if self._floats or self._back:
                self._refuse_return(inputs)
            if dtype.itemsize < 8 and self._depends_on_any(inputs):
                self.narrow = True
        if outs[0].requires_grad and op.extra.get("implicit"):
            self._follow(op, inputs, attrs, outs[0])
        elif not taped and self._depends_on_any(inputs):
            live = self._alive(op, inputs, attrs, outs)
            for o, array in zip(outs, live, strict=True):
                self._cut(op.name, inputs, o, array)

    def fresh(self, t: TensorBase) -> None:
        """Hear of a new tensor."""
        super().fresh(t)
        self._made.add(id(t))

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Hear of a detached tensor or a copy."""
        super().alias(source, t, taped)
        if taped:
            return
        self._made.add(id(t))
        if not self._inside and not t.requires_grad and self._depends(source):
            self._cut("detach", (source,), t, self._live.get(id(source), t.array))

    def place_changed(self, t: TensorBase, what: str) -> None:
        """Hear of `detach_`, which is meant as `detach` is."""
        super().place_changed(t, what)
        if what == "detach_()" and not self._inside and t.grad_fn is not None:
            self._cut("detach", t.grad_fn.inputs or (), t, self._live.get(id(t), t.array))

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """Hear of an in-place change, off the tape or on it."""
        super().in_place(target, value)
        base = target if target._base is None else target._base
        if id(base) not in self._made and id(base) not in self._before:
            self._before[id(base)] = (base, base.array.copy())
        if self._inside:
            return
        if id(value) in self._back:
            self._back[id(target)] = (target, self._back[id(value)][1])
        if not value.requires_grad and self._depends(value):
            self._off[id(target)] = (target, (value,))

    def function_begins(self, function: type) -> None:
        """Hear that the forward pass of a `Function` begins: what it does is its own affair."""
        super().function_begins(function)
        self._inside += 1

    def function_ends(self, function: type) -> None:
        """Hear that it ended, well or not."""
        super().function_ends(function)
        self._inside -= 1

    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Sequence[object],
        outs: Sequence[TensorBase],
    ) -> None:
        """Hear of a `Function`; one of the user's may have what gradient it likes: it is a cut."""
        super().function_applied(function, ctx, inputs, outs)
        if self._inside or not self._depends_on_any(inputs):
            return
        ours = function.__module__.partition(".")[0] == "probtorch"
        self.approximate |= getattr(function, "approximate", False)
        for o in outs:
            if not ours:
                o.requires_grad, o.grad_fn = False, None
            if not o.requires_grad:
                self._cut(function.__name__, inputs, o)

    def read(self, what: str, t: TensorBase | None, value: Any) -> Any:
        """Hear that Python reads `value` out of `t`; returns what Python is to get."""
        value = super().read(what, t, value)
        if t is None or value is None or self._inside or not self._depends(t):
            return value
        if type(value) in (bool, int) and len(self.turns) < MAX_TURNS and not is_ours(_taker()):
            self.turns.append(Choice(Escape(what, self._sites_of(t), user_location()), value))
        # A branch gives it no number to compute with.
        if what == "bool()":
            return value
        if not grad_enabled():
            # Meant: no_grad or stop_gradient.
            return self._hold_value(what, value)
        if id(t) in self._live:
            value = _like(value, self._live[id(t)])
        escape = self._note(what, t)
        if escape is not None and not is_ours(_taker()):
            self._know(value, escape)
        return value

    def entered(self, value: object, t: TensorBase) -> None:
        """Hear that Python's `value` became the tensor `t`."""
        super().entered(value, t)
        if self._inside or not (self._floats or self._arrays):
            return
        found: tuple[object, Escape] | None = None
        if type(value) is float:
            found = self._floats.get(id(value))
        elif isinstance(value, np.ndarray):
            found = self._arrays.get(id(_owner(value)))
        if found is not None:
            self._back[id(t)] = (t, found[1])

    # -------------------------------------------------------------------------------------- details

    def _note(self, how: str, t: TensorBase) -> Escape | None:
        """Note that `t` left; returns the `Escape`, None if it depends on nothing with a name."""
        sites: tuple[str, ...] = ()
        if len(self.escapes) < MAX_ESCAPES:
            sites = self._sites_of(t)
            if not sites and self._names:
                return None  # it depends on something else that requires grad
        escape = Escape(how, sites, user_location(3))
        if not (self.escapes and self.escapes[-1].place == escape.place):
            self.escapes.append(escape)
        return escape

    def _depends(self, t: TensorBase) -> bool:
        return t.requires_grad or id(t) in self._off

    def _depends_on_any(self, inputs: Sequence[object]) -> bool:
        off = self._off
        for x in inputs:
            if isinstance(x, TensorBase) and (x.requires_grad or id(x) in off):
                return True
        return False

    def _alive(
        self,
        op: Op,
        inputs: Sequence[object],
        attrs: Attrs,
        outs: tuple[TensorBase, ...],
    ) -> list[np.ndarray]:
        """What the outputs would be had their inputs not been held."""
        if self.like is None or not any(id(x) in self._live for x in inputs):
            return [o.array for o in outs]
        arrays = [
            self._live.get(id(x), x.array) if isinstance(x, TensorBase) else x for x in inputs
        ]
        found = op.run(*arrays, **attrs)
        return [np.asarray(x) for x in (found if type(found) is tuple else (found,))]

    def _cut(
        self,
        kind: str,
        inputs: Sequence[object],
        t: TensorBase,
        live: np.ndarray | None = None,
    ) -> None:
        """Note a result off the tape; hold it at its value in the first run.

        What Python takes out of it later is not held, unless the cut is one of `no_grad`.
        """
        if self.like is not None and live is not None and grad_enabled():
            self._live[id(t)] = live
        self._off[id(t)] = (t, tuple(x for x in inputs if isinstance(x, TensorBase)))
        self.cuts += t.array.dtype.kind in "fc"
        t.array = self._hold(kind, t.array)

    def _hold(self, kind: str, array: np.ndarray, inputs: tuple[object, ...] = ()) -> np.ndarray:
        entry = (kind, array.shape, array.dtype)
        if self.like is None:
            self._held.append((*entry, array.copy(), inputs))
            return array
        if len(self._held) >= len(self.like._held):
            raise NotAlike("more is held than in the first run")
        first = self.like._held[len(self._held)]
        if first[:3] != entry:
            raise NotAlike("something else is held than in the first run")
        self._held.append(first)
        return first[3].copy()

    def _hold_value(self, how: str, value: np.ndarray) -> np.ndarray:
        self.cuts += 1
        if isinstance(value, np.ndarray):
            return self._hold(how, value)
        boxed = np.empty((), object)
        boxed[()] = value
        return self._hold(how, boxed)[()]

    def _follow(self, op: Op, inputs: Sequence[object], attrs: Attrs, out: TensorBase) -> None:
        """Let a draw follow its implicit derivative from where it was in the first run."""
        self.cuts += 1
        arrays = tuple(x.array.copy() if isinstance(x, TensorBase) else x for x in inputs)
        array = self._hold(op.name, out.array, arrays)
        if self.like is None:
            return
        before = self.like._held[len(self._held) - 1][4]
        base = wrap(array)
        given = [wrap(b) if isinstance(x, TensorBase) else x for b, x in zip(before, inputs)]
        moved = [
            wrap(x.array - b) if isinstance(x, TensorBase) and b.dtype.kind in "fc" else None
            for b, x in zip(before, inputs, strict=True)
        ]
        assert op.jvp is not None  # what is implicit is a tangent's rule
        self._inside += 1
        try:
            change = op.jvp(moved, base, given, attrs)
            assert isinstance(change, TensorBase)
            out.array = array + change.array
        finally:
            self._inside -= 1

    def _know(self, value: object, escape: Escape) -> None:
        """Remember what left, to recognise it."""
        if type(value) is float:
            self._floats[id(value)] = (value, escape)
        elif isinstance(value, np.ndarray):
            if value.dtype.kind in "fc":
                self._arrays[id(_owner(value))] = (_owner(value), escape)
        elif isinstance(value, list):
            for item in value:
                self._know(item, escape)

    def _refuse_return(self, inputs: Sequence[object]) -> None:
        for x in inputs:
            found: tuple[object, Escape] | None
            if isinstance(x, TensorBase):
                found = self._back.get(id(x))
            else:
                found = self._floats.get(id(x)) if type(x) is float else None
            if found is not None:
                raise _came_back(found[1])

    def _sites_of(self, t: TensorBase) -> tuple[str, ...]:
        """Names of what `t` depends on, nearest first."""
        found, seen, front = [], set(), [t]
        while front and len(seen) < MAX_WALK:
            after = []
            for x in front:
                if id(x) in seen:
                    continue
                seen.add(id(x))
                if id(x) in self._names:
                    name = self._names[id(x)][1]
                    if name not in found:
                        found.append(name)
                    continue
                if x.grad_fn is not None:
                    after += [y for y in x.grad_fn.inputs if isinstance(y, TensorBase)]
                elif id(x) in self._off:
                    after += self._off[id(x)][1]
            front = after
        return tuple(found)


def hold(watch: Watch, t: TensorBase) -> None:
    """Let a watch know that no gradient is meant to pass the draw `t`: it is held, and may leave.

    Estimators of the score function follow it by the density of the draw.
    """
    watch._drawn[id(t)] = t  # so that no other tensor gets its place
    watch._off.pop(id(t), None)


def random_values(watch: Watch) -> list[tuple[str, np.ndarray]]:
    """What a run drew: tensors with a name, and those that no gradient is meant to pass."""
    named = [(name, t.array) for t, name in watch._names.values()]
    return [*named, *(("", t.array) for t in watch._drawn.values())]


def forget(watch: Watch) -> None:
    """Let go of the tensors of a run that is over, of which nobody will ask for names."""
    watch._off.clear()
    watch._names.clear()


def check_alike(watch: Watch) -> None:
    """Raise NotAlike unless a run followed the first one to its end."""
    if watch.like is not None and len(watch._held) != len(watch.like._held):
        raise NotAlike("less is held than in the first run")


def restore(watch: Watch) -> None:
    """Put back what a run changed in place of tensors made outside, such as buffers."""
    for t, array in watch._before.values():
        t.array[...] = array


def _like(value: object, array: np.ndarray) -> object:
    """The elements of `array` in the form of `value`."""
    if isinstance(value, np.ndarray):
        return array.astype(value.dtype)
    if isinstance(value, (int, float)):
        return type(value)(array.item())
    return array.tolist() if isinstance(value, list) else array.__dlpack__()


def _owner(array: np.ndarray) -> np.ndarray:
    """The array at the bottom of a chain of views."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _taker() -> str:
    """The file of the code that took a value out of a tensor."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_PASSED):
        frame = frame.f_back
    return frame.f_code.co_filename


_PASSED = (
    os.path.join("probtorch", "tensor.py"),
    os.path.join("probtorch", "ops", "construction.py"),
    os.path.join("probtorch", "autograd", "values.py"),
    os.path.join("probtorch", "array_protocols.py"),
    *(
        os.path.join("probtorch", "core", name)
        for name in ("dispatch.py", "interpreter.py", "making.py", "operands.py", "told.py")
    ),
)


def _came_back(escape: Escape) -> InferenceError:
    sites = ", ".join(escape.sites) or "the point"
    return InferenceError(
        f"the gradient for {sites} is cut: a value that left the computation comes back into it",
        expected="the tensor itself, which keeps the gradient",
        got=f"{escape}, used again in the line below",
        fix=cure(escape.sites),
    )
