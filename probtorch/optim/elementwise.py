"""`ElementwiseOptimizer`: one formula per optimizer, run on many parameters at once.

SGD, Adam and their kin treat every element of every parameter alike, so a subclass states only what
happens to one element: `rule`, written with operators and a few functions of `s`. The formula then
has two readers.

- The loop form runs it on each parameter in Tensor ops. It is what a recorder sees, so a compiled
  training step contains the update, and it is what `differentiable=True` differentiates.
- The flat form, used whenever nobody records and nothing is in half precision, runs it on plain
  arrays: small parameters are gathered into one flat buffer, moved by a handful of array calls and
  copied back; large ones are walked in blocks that stay in cache. The same array functions on the
  same elements: the same numbers, bit for bit.

Parameters and state keep memory of their own. Views of one big buffer would save the copies, but
would silently cut off everyone who holds the memory a parameter had before (docs/internals/
decisions/nn.md has the measurement).

Numbers that depend on the step count (bias corrections) come from a 0-d float64 tensor, so that a
recording sees them change; so do other numbers that go from step to step (`carried`). Parameters
that have always moved together share those tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar, cast, overload

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core.dispatch import mark_changed, recorder, set_grad_enabled, wrap
from probtorch.core.in_place import assign
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import numbers_shown
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops import arithmetic
from probtorch.ops.native_rows import native_elements
from probtorch.optim.batches import BLOCK, ParameterBatch, layout
from probtorch.optim.optimizer import Optimizer, rate_from
from probtorch.optim.typed import Given, Group, R
from probtorch.tensor import Tensor

__all__ = ["ElementwiseOptimizer"]

# Sets of parameters with a prepared layout: the whole group, and a few for models that train one
# part at a time.
MAX_LAYOUTS = 4

_HALF = np.dtype(np.float16)
_NUMBERS = frozenset((int, float))
# What a formula computes with: arrays in the flat form, tensors in the loop form.
V = TypeVar("V", np.ndarray, Tensor)


class ElementwiseOptimizer(Optimizer):
    """Base of optimizers whose update treats all elements alike.

    A subclass defines `slots`, `rule` and, if numbers of the formula depend on the step count,
    `scalars` and `uses_step`; if one step's numbers depend on those of the step before, `carried`
    and `carry`.
    """

    def __init__(self, params: Given, defaults: Group) -> None:
        if defaults.get("fused") and defaults.get("foreach"):
            raise ArgumentError(
                "`fused` and `foreach` cannot be `True` together.",
                expected="at most one of them",
                got="both",
                fix="leave both out: the fused form is used wherever it applies",
            )
        if defaults.get("fused") and defaults.get("differentiable"):
            raise ArgumentError(
                "`fused` does not support `differentiable`",
                expected="at most one of them",
                got="both",
                fix="drop fused=True",
            )
        self._layouts: dict[
            tuple[int, ...], tuple[list[int], list[ParameterBatch] | None, list[list[np.ndarray]]]
        ] = {}
        super().__init__(params, defaults)
        lr = self.defaults["lr"]
        check = lr.array.item() if isinstance(lr, TensorBase) else lr
        if isinstance(check, (str, bytes)) or not check >= 0.0:
            raise ArgumentError(
                f"Invalid learning rate: {check}",
                expected="lr >= 0, or a 0-d tensor of such a number",
                got=repr(lr),
                fix="to climb, pass maximize=True",
            )

    # ----------------------------------------------------------------------- what a subclass states

    def native_step(
        self, group: Group, numbers: tuple[float, ...]
    ) -> tuple[str, tuple[float, ...]]:
        """Return the native code that is `rule` under these options, and its numbers; "" for none.

        It is one of compiler/render/runtime/rows.py.
        """
        return "", ()

    def slots(self, group: Group) -> Mapping[str, float | Tensor]:
        """Return the names of the state tensors of a parameter and their initial values."""
        return {}

    def uses_step(self, group: Group) -> bool:
        """Whether the formula needs the step count."""
        return True

    def carried(self, group: Group) -> Mapping[str, float | Tensor]:
        """Return the names of numbers that go along with the step count, and their initial values.

        They are part of the state of each parameter, as 0-d float64 tensors.
        """
        return {}

    def scalars(
        self, group: Group, step: Tensor | None, *carried: Tensor
    ) -> tuple[float | Tensor, ...]:
        """Return the numbers that the formula needs, given the step count (1 at the first step).

        Parameters
        ----------
        group : dict
            Options.
        step : Tensor, 0-d float64, or None
            Compute with it in tensor operations, without branches.
        *carried : Tensor, 0-d float64
            As the step before has left them, in the order of `carried`.
        """
        return (group["lr"],)

    def carry(self, group: Group, step: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        """Return what to carry to the next step; arguments as for `scalars`."""
        return ()

    def rule(
        self, s: ModuleType, group: Group, numbers: tuple[V | float, ...], p: V, g: V, *slots: V
    ) -> tuple[V, ...]:
        """Return ``(new_p, *new_slots)``, all new, none of the arguments changed.

        Parameters
        ----------
        s : module
            Offers sqrt, maximum, minimum and abs for what `p` is.
        group : dict
            Options.
        numbers : tuple
            What `scalars` returned.
        p, g : array or Tensor
            Parameter and gradient (of the loss to be made small).
        *slots : array or Tensor
            State, in the order of `slots`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define rule()")

    # ---------------------------------------------------------------------------------------- steps

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], R]) -> R: ...
    def step(self, closure: Callable[[], R] | None = None) -> R | None:
        """Move the parameters once, along their gradients.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss and its gradients anew; called with the tape on.

        Returns
        -------
        loss
            What `closure` returned, or None.
        """
        loss = self._loss(closure)
        for group in self.param_groups:
            params = self._moving(group)
            if params:
                self._update(group, params, [self.state[p] for p in params])
        return loss

    @staticmethod
    def step_together(optimizers: Iterable[Any]) -> None:
        """Step several optimizers, those of one kind and with equal options in one go."""
        numbers_shown()
        alike: dict[tuple[object, ...], list[tuple[ElementwiseOptimizer, Group]]] = {}
        for optimizer in optimizers:
            kind = type(optimizer)
            for group in optimizer.param_groups:
                chosen = [
                    (k, id(v) if isinstance(v, TensorBase) else repr(v))
                    for k, v in group.items()
                    if k not in ("params", "param_names")
                ]
                key = (kind, id(optimizer.schedule), *chosen)
                alike.setdefault(key, []).append((optimizer, group))
        for members in alike.values():
            first, options = members[0]
            params, states = [], []
            for optimizer, group in members:
                some = optimizer._moving(group)
                params += some
                states += [optimizer.state[p] for p in some]
            if params:
                first._update(options, params, states)

    def init_state(self) -> None:
        """Create the state of every parameter now instead of at its first step.

        Call it before recording or compiling a step: what comes into being inside a recording
        would be a constant of it.
        """
        for group in self.param_groups:
            params = group["params"]
            self._fill_in(group, params, [self.state[p] for p in params])

    def _fill_in(self, group: Group, params: Sequence[Tensor], states: Sequence[StateDict]) -> None:
        counts: StateDict = {}
        for p, state in zip(params, states):
            if state:
                continue
            if self._counts_steps(group):
                if not counts:
                    carried = self.carried(group)
                    starts = zip(("step", *carried), _plain((0.0, *carried.values())))
                    counts.update({name: wrap(np.array(x, np.float64)) for name, x in starts})
                state.update(counts)
            state.update(self._fresh_slots(group, p))

    def _counts_steps(self, group: Group) -> bool:
        """Whether steps are counted."""
        return self.schedule is not None or self.uses_step(group)

    def _at(self, group: Group, step: Tensor | None) -> Group:
        """The options at a step, with the size that the schedule gives it."""
        if self.schedule is None or step is None:
            return group
        factor = rate_from("optimizer(step_size=schedule)", self.schedule(step - 1))
        return {**group, "lr": factor * group["lr"]}

    def _slots_of(self, group: Group, p: Tensor) -> Iterable[str]:
        """The names of the state tensors of one parameter."""
        return self.slots(group)

    def _fresh_slots(self, group: Group, p: Tensor) -> StateDict:
        """The state tensors of a parameter before its first step."""
        xp, slots = array_module(p.array), self.slots(group)
        return {
            name: wrap(xp.full(p.array.shape, value, p.array.dtype))
            for name, value in zip(slots, _plain(tuple(slots.values())))
        }

    def _counts_of(self, group: Group, state: StateDict) -> list[Tensor]:
        """The step count of a parameter and what goes along with it."""
        return [state[name] for name in ("step", *self.carried(group))]

    def _moving(self, group: Group) -> list[Tensor]:
        """Return the parameters with gradients; others get a step count of their own."""
        params = [p for p in group["params"] if p.grad is not None]
        if len(params) < len(group["params"]):
            counts = {id(s["step"]) for s in map(self.state.get, params) if s and "step" in s}
            for p in group["params"]:
                state = self.state.get(p) if p.grad is None else None
                if state and "step" in state and id(state["step"]) in counts:
                    for name in ("step", *self.carried(group)):
                        state[name] = wrap(state[name].array.copy())
        return params

    def _update(self, group: Group, params: Sequence[Tensor], states: Sequence[StateDict]) -> None:
        """Move `params`, which have gradients; `states` are theirs."""
        self._fill_in(group, params, states)
        group = self._read(group) if recorder() is not None else group
        differentiable = bool(group.get("differentiable"))
        before = set_grad_enabled(differentiable)
        try:
            if differentiable:
                self._differentiably(group, params, states)
                return
            recorded = recorder() is not None
            for numbers, members in self._cohorts(group, states, recorded):
                some = params if members is None else [params[i] for i in members]
                theirs = states if members is None else [states[i] for i in members]
                loop = recorded or (group.get("foreach") is False and not group.get("fused"))
                if loop or not self._flat(group, cast(tuple[float, ...], numbers), some, theirs):
                    self._loop(group, numbers, some, theirs)
        finally:
            set_grad_enabled(before)

    def _cohorts(
        self, group: Group, states: Sequence[StateDict], recorded: bool
    ) -> Iterator[tuple[tuple[float | Tensor, ...], list[int] | None]]:
        """Advance step counts; yield ``(numbers, members)`` per distinct count, None for all."""
        if not self._counts_steps(group):
            numbers = self.scalars(group, None)
            yield (numbers if recorded else _plain(numbers)), None
            return
        counts = {id(state["step"]): self._counts_of(group, state) for state in states}
        for step, *_ in counts.values():
            assign(step, step + 1, "step")
        if len(counts) == 1:
            ((step, *carried),) = counts.values()
            numbers = self._numbers(group, step, carried)
            yield (numbers if recorded else _plain(numbers)), None
            return
        members: dict[int, list[int]] = {}
        for i, state in enumerate(states):
            members.setdefault(id(state["step"]), []).append(i)
        if recorded:
            for key, (step, *carried) in counts.items():
                yield self._numbers(group, step, carried), members[key]
            return
        # Counts loaded from a file, or of optimizers stepped together, are equal without being one.
        equal: dict[tuple[float, ...], list[int]] = {}
        known: dict[tuple[float, ...], tuple[float, ...]] = {}
        for key, (step, *carried) in counts.items():
            value = tuple(t.array.item() for t in (step, *carried))
            if value not in known or carried:
                known[value] = _plain(self._numbers(group, step, carried))
            equal.setdefault(value, []).extend(members[key])
        for value, some in equal.items():
            yield known[value], None if len(equal) == 1 else sorted(some)

    def _numbers(
        self, group: Group, step: Tensor, carried: Sequence[Tensor]
    ) -> tuple[float | Tensor, ...]:
        """The numbers of this step; what is carried goes on to the next."""
        group = self._at(group, step)
        numbers = self.scalars(group, step, *carried)
        for target, value in zip(carried, self.carry(group, step, *carried)):
            assign(target, value, "step")
        return numbers

    # ------------------------------------------------------------------------------------ loop form

    def _new_values(
        self, group: Group, numbers: tuple[float | Tensor, ...], p: Tensor, state: StateDict
    ) -> tuple[Tensor, ...]:
        assert p.grad is not None  # as of all that `_moving` returns
        g = -p.grad if group.get("maximize") else p.grad
        slots = [state[name] for name in self._slots_of(group, p)]
        return self.rule(arithmetic, group, numbers, p, g, *slots)

    def _loop(
        self,
        group: Group,
        numbers: tuple[float | Tensor, ...],
        params: Sequence[Tensor],
        states: Sequence[StateDict],
    ) -> None:
        for p, state in zip(params, states):
            new_p, *new_slots = self._new_values(group, numbers, p, state)
            assign(p, new_p, "step")
            for name, value in zip(self._slots_of(group, p), new_slots):
                assign(state[name], value, "step")

    def _differentiably(
        self, group: Group, params: Sequence[Tensor], states: Sequence[StateDict]
    ) -> None:
        for p, state in zip(params, states):
            carried: list[Tensor] = []
            if "step" in state:
                state["step"] = state["step"] + 1
                carried = self._counts_of(group, state)[1:]
            now = self._at(group, state.get("step"))
            numbers = self.scalars(now, state.get("step"), *carried)
            if carried:
                state.update(zip(self.carried(now), self.carry(now, state["step"], *carried)))
            new_p, *new_slots = self._new_values(group, numbers, p, state)
            # New tensors, as gradients of earlier steps may still need the old elements.
            state.update(zip(self._slots_of(group, p), new_slots))
            assign(p, new_p, "step")

    # ------------------------------------------------------------------------------------ flat form

    def _flat(
        self,
        group: Group,
        numbers: tuple[float, ...],
        params: Sequence[Tensor],
        states: Sequence[StateDict],
    ) -> bool:
        """Move `params` through flat arrays; returns False where only the loop form is right."""
        names = tuple(self.slots(group))
        columns = [[p.array for p in params]]
        if any(a.dtype is _HALF for a in columns[0]):
            # Tensors compute products with numbers in single precision, arrays round the number.
            return False
        columns += [[state[name].array for state in states] for name in names]
        batches = self._prepared(params, columns)
        if batches is None:
            return False
        gradients = [g.array for g in (p.grad for p in params) if g is not None]
        for a, g in zip(columns[0], gradients):
            if a.shape != g.shape or a.dtype is not g.dtype or type(a) is not type(g):
                if a.shape != g.shape:
                    raise ShapeError(
                        f"step of {type(self).__name__}",
                        expected=f"a gradient of shape {a.shape}, that of its parameter",
                        got=str(g.shape),
                        fix="assign .grad a tensor of the parameter's shape",
                    )
                return False
        # Infinities and nan pass through quietly here, as they do in tensor ops.
        with np.errstate(all="ignore"):
            for batch in batches:
                self._move(group, numbers, batch, gradients)
        for p in params:
            mark_changed(p)
        return True

    def _prepared(
        self, params: Sequence[Tensor], columns: list[list[np.ndarray]]
    ) -> list[ParameterBatch] | None:
        """Return the batches for these parameters, from the step before if memory is the same."""
        who = tuple(map(id, params))
        memory = [id(a) for column in columns for a in column]
        known = self._layouts.get(who)
        if known is not None and known[0] == memory:
            return known[1]
        if known is None and len(self._layouts) == MAX_LAYOUTS:
            self._layouts.pop(next(iter(self._layouts)))
        batches = layout(columns)
        # The arrays are kept with the layout, so that their ids stay theirs.
        self._layouts[who] = memory, batches, columns
        return batches

    def _move(
        self,
        group: Group,
        numbers: tuple[float, ...],
        batch: ParameterBatch,
        gradients: Sequence[np.ndarray],
    ) -> None:
        """Carry out the update of one batch."""
        xp, work = batch.module, batch.work
        if work is None:
            flat = [column[0].reshape(-1) for column in batch.columns]
            gradient = gradients[batch.members[0]].reshape(-1)
            size = gradient.size
            if xp is np and self._moved_natively(group, numbers, flat, gradient):
                return
            # A GPU has no cache to stay in, and each call costs a launch.
            block = BLOCK // gradient.itemsize if xp is np else size
            for first in range(0, size, block):
                part = slice(first, first + block)
                p, *slots = (column[part] for column in flat)
                g = -gradient[part] if group.get("maximize") else gradient[part]
                new = self.rule(xp, group, numbers, p, g, *slots)
                for whole, value in zip(flat, new):
                    whole[part] = value
            return
        p, *slots = work
        for buffer, column in zip(work, batch.columns):
            xp.concatenate(column, axis=None, out=buffer)
        g = xp.concatenate([gradients[i] for i in batch.members], axis=None)
        if group.get("maximize"):
            g = -g
        new = self.rule(xp, group, numbers, p, g, *slots)
        for buffer, value, column, views in zip(work, new, batch.columns, batch.views):
            buffer[...] = value
            for target, view in zip(column, views):
                target[...] = view

    def _moved_natively(
        self,
        group: Group,
        numbers: tuple[float, ...],
        flat: list[np.ndarray],
        gradient: np.ndarray,
    ) -> bool:
        """Carry the update out in one pass of native code, if there is some: the same bits."""
        if not _is_native(type(self)):
            return False
        name, factors = self.native_step(group, numbers)
        if not name or group.get("maximize") or not all(type(x) in _NUMBERS for x in factors):
            return False
        step = native_elements(name, gradient)
        if step is None:
            return False
        make = gradient.dtype.type
        step(*flat, gradient, *[make(x) for x in factors], out=tuple(flat))
        return True

    # ------------------------------------------------------------------------------ saving, loading

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over options and state that `state_dict` returned; training then goes on exactly.

        The tensors are copied, floating ones to dtype and device of their parameter.

        Raises
        ------
        ArgumentError
            If the groups do not match those of this optimizer.
        """
        super().load_state_dict(state_dict)
        self._layouts = {}
        for group in self.param_groups:
            shared: dict[tuple[float, ...], StateDict] = {}
            for p in group["params"]:
                state = self.state.get(p)
                if state and "step" in state:
                    # PyTorch's files have numbers there, or tensors of any dtype.
                    counts = {
                        name: float(x.array if isinstance(x, TensorBase) else x)
                        for name, x in state.items()
                        if name == "step" or name in self.carried(group)
                    }
                    made = {name: wrap(np.array(value)) for name, value in counts.items()}
                    state.update(shared.setdefault(tuple(counts.values()), made))

    def __setstate__(self, state: StateDict) -> None:
        self.__dict__.update(state)
        self._layouts = {}


def _is_native(kind: type) -> bool:
    """Whether the class that states the rule of an optimizer also states native code of it."""
    return next("native_step" in vars(c) for c in kind.__mro__ if "rule" in vars(c))


def _plain(numbers: tuple[float | Tensor, ...]) -> tuple[float, ...]:
    """Return 0-d tensors among `numbers` as Python numbers."""
    return tuple(x.array.item() if isinstance(x, TensorBase) else x for x in numbers)
