"""Gradients through a compiled function, from outside: `Differentiable`.

A call whose result needs a gradient is one entry on the tape. Forward it is the compiled function
without a tape; backward another compiled function, which runs the first one on the tape and pulls
the gradient through it. So both directions are native, and the forward pass is computed twice.

The first call of a version is Python's own, on the tape, and watched: what the function closes over
belongs to the entry, and so does what other ways through it read, once they are met. What has
changed between a call and its backward pass is an error.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np

from probtorch.autograd.closures import captured, cut_off, is_float
from probtorch.autograd.function import Function
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.compiler.calls.kept import let_stay
from probtorch.compiler.calls.rebuilt import Rebuilt
from probtorch.compiler.calls.ties import Ties
from probtorch.compiler.calls.unfolding import alike, leave_whole, unfold
from probtorch.compiler.calls.varying import as_they_were, others_by_now, values_of
from probtorch.compiler.calls.verified_call import others_at_work
from probtorch.compiler.guards.calls import Calls
from probtorch.compiler.record.placed import PlacedTensor
from probtorch.core.dispatch import TapeNode, grad_enabled, wrap
from probtorch.core.history import hooked, hooks_changed
from probtorch.core.tensor_base import TensorBase, is_tensor
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import AutogradError
from probtorch.ops.movement import another
from probtorch.tensor import retyped

__all__ = ["Differentiable"]


class Differentiable:
    """One version of a compiled function, on the tape.

    Parameters
    ----------
    owner : CompiledFunction
    leaves : list
        Of the arguments; tensors among them vary, all else is part of the version.
    structure
        Of the arguments.
    environment : Environment
        What the function depends on.
    given : (tuple, dict)
        The arguments of the first call.
    numbers, placed : list of (table, key)
        Where there are floats that change between calls, and tensors in whose places others come,
        which the environment leaves out.

    Attributes
    ----------
    first : object
        The result of the first call.
    repeatable : bool
        Whether a gradient may run the function again.
    called : (str, str) or None
        Something not pure that the first call called, and where (`Calls`).
    filled : str or None
        A container among the arguments that the first call changed.
    replaced, read : list of (table, key)
        Where the first call itself put another tensor, of `placed`, and where it did not.
    """

    def __init__(self, owner, leaves, structure, environment, given, numbers, placed):
        self.owner, self.numbers, self.placed = owner, [*numbers, *placed], placed
        before = [t[key] for t, key in placed]
        # What the last forward pass of each thread returned besides tensors.
        self.met = threading.local()
        self.fixed = [None if is_tensor(x) else x for x in leaves]
        self.structure = structure
        # Views, since the function may close over an argument too.
        tensors = [x for x in leaves if is_tensor(x)]
        self.kinds = [(type(x), x.requires_grad, x.grad_fn is None) for x in tensors]
        own = each_once(in_place_of, tensors)
        for s, t in zip(own, tensors, strict=True):
            let_stay(s, t)
        made = Rebuilt(given, structure, self._leaves(own))
        self.environment = environment
        self.others, self.refusals, found = [], [], []
        calls = Calls(environment.suspicious, environment.unread, environment.going)
        try:
            with calls:
                closed_over = captured(
                    lambda: found.append(owner.fn(*made.args, **made.kwargs)),
                    own,
                    branches=True,
                    others=self.others,
                    refusals=self.refusals,
                )
        finally:
            self.filled = made.hand_over()
        # Where the function draws or changes tensors outside, it must not run twice.
        self.repeatable = closed_over is not None
        self.closed_over = closed_over or []
        now = self.in_places()
        stays = [a is b for a, b in zip(before, now, strict=True)]
        self.replaced = [p for p, same in zip(placed, stays, strict=True) if not same]
        self.read = [p for p, same in zip(placed, stays, strict=True) if same]
        there = set(map(id, before))
        self.others = [t for t in self.others if id(t) not in there]
        (self.first,) = found
        results = [x for x in flatten(self.first)[0] if is_tensor(x)]
        Ties(results, lambda t: False).mark(results, owner.tied)
        self.called = calls.found
        self._learned = weakref.WeakSet()
        # Errors name the user's function.
        self._call = cast("type[_Call]", type(f"compiled {owner.name}", (_Call,), {}))
        self._start_pull()

    def _start_pull(self):
        owner = self.owner
        self.pull = type(owner)(
            self._pull,
            roots=owner.roots,
            values=owner.values,
            name=owner.name,
            verify=owner.verify,
        )

    def _learn(self, path):
        """Note what the function closes over on another way through it than the first one."""
        if path in self._learned:
            return
        self._learned.add(path)
        known = {id(t) for t in self.closed_over}
        new = [t for t in path.refs if id(t) not in known and type(t) is not PlacedTensor]
        needed = [t for t in new if t.requires_grad and is_float(t)]
        known |= {id(t) for t in (*self.others, *needed)}
        self.others = [*self.others, *(t for t in new if id(t) not in known)]
        if needed:
            # What was called before, and has yet to go backwards, knows the beginning.
            self.closed_over = [*self.closed_over, *needed]
            self._start_pull()

    def __environment__(self):
        return [self.owner.fn, *self.owner.roots(), *self.fixed]

    def in_places(self):
        """Return what there is now in the places of tensors in whose places others come."""
        return [value for _, _, value in values_of(self.placed)]

    def holds(self):
        """Whether Python values and what the function closes over are what they were."""
        return self.environment.changed() is None

    def __call__(self, tensors, given=None):
        """Return the result for these tensors among the arguments, `given` where they are those."""
        args, kwargs = given or self.arguments(tensors)
        found, path = self.owner.off_tape(args, kwargs)
        if path is None:
            self.repeatable = self.repeatable and not self.owner.acted
            return found
        self._learn(path)
        closed_over = self.closed_over
        if hooks_changed() and any(map(hooked, closed_over)):
            return self.owner.fn(*args, **kwargs)
        out, structure = flatten(found)
        self.met.outs = [x.detach() for x in out if is_tensor(x)]
        ties = path.ties
        self.met.wanted, self.met.own_rules = path.flows, path.own_rules
        if ties.leaves:
            self.met.wanted = [x and i not in ties.leaves for i, x in enumerate(path.flows)]
        # Eagerly it may be made of leaves of the call's own, which nobody sees.
        sources = *tensors, *closed_over
        ends = () if any(t.requires_grad for t in sources) else (wrap(np.zeros(())),)
        for t in ends:
            t.requires_grad = True
        results = self._call.apply(self, len(tensors), *sources, *ends)
        results = results if isinstance(results, tuple) else (results,)
        results = [results[i] for i in path.first_of]
        ties.set_leaves(results)
        if ties.inner:
            refs = [weakref.ref(t) for t in results]
            ties.mark_call(results, lambda: self.owner.tied() or unfold(self, refs))
        walk = iter(results)
        return unflatten(structure, [next(walk) if is_tensor(x) else x for x in out])

    def arguments(self, tensors):
        """Return ``(args, kwargs)`` with these tensors."""
        return unflatten(self.structure, self._leaves(tensors))

    def _leaves(self, tensors):
        walk = iter(tensors)
        return [next(walk) if x is None else x for x in self.fixed]

    def on_tape(self, tensors):
        """Run the function itself; returns the tensors among its results."""
        args, kwargs = self.arguments(tensors)
        return [x for x in flatten(self.owner.fn(*args, **kwargs))[0] if is_tensor(x)]

    def check(self, tensors, before):
        """Refuse to go backwards where Python values are others, if the results `before` tell."""
        name = self.environment.changed()
        if name is None:
            return
        args, kwargs = self.arguments(tensors)
        try:
            with enable_grad():
                now = flatten(self.owner.off_tape(args, kwargs)[0])[0]
        except Exception as error:
            raise self.changed_since(name) from error
        now = [x for x in now if is_tensor(x)]
        if not alike(now, before):
            raise self.changed_since(name)

    def changed_since(self, name):
        """Return the error for something that is not what it was at the call."""
        return AutogradError(
            f"backward through {self.owner.name}, which is compiled",
            expected="Python values that are what they were at the call",
            got=f"a change of {name}",
            fix="change it after backward(), or pass it as an argument",
        )

    def gradients(self, tensors, cotangents, create_graph):
        """Run the function on the tape; returns gradients of tensors and what it closes over."""
        sources = [*tensors, *self.closed_over]
        with enable_grad(), cut_off(sources):
            outs = self.on_tape(tensors)
            pairs = [(o, g) for o, g in zip(outs, cotangents, strict=True) if o.requires_grad]
            wanted = [x for x in sources if x.requires_grad]
            found: Sequence[TensorBase | None] = [None] * len(wanted)
            if pairs:
                ends, given = [o for o, _ in pairs], [g for _, g in pairs]
                found = grad(ends, wanted, given, create_graph=create_graph, allow_unused=True)
            walk = iter(found)
            found = [next(walk) if x.requires_grad else None for x in sources]
            # A tensor given twice has one gradient.
            ids = [id(x) for x in sources]
            return [
                g if ids.index(own) == i else None for i, (own, g) in enumerate(zip(ids, found))
            ]

    def _pull(self, tensors, cotangents, needs):
        # `needs`, which of what is closed over needs a gradient, belongs to the path.
        kinds = {id(t): kind for t, kind in zip(tensors, self.kinds, strict=True)}
        own = each_once(lambda t: leaf_like(t, *kinds[id(t)]), tensors)
        return self.gradients(own, cotangents, False)


def each_once(make, tensors):
    """Return ``make(t)`` of each tensor, the same one for the same one."""
    made = {}
    for t in tensors:
        if id(t) not in made:
            made[id(t)] = make(t)
    return [made[id(t)] for t in tensors]


def in_place_of(x):
    """Return a tensor through which gradients reach `x`."""
    if not x.requires_grad:
        return x
    out = retyped(another(x), type(x))
    # What Python asks about it is answered for the argument.
    out._extra = {**(out._extra or {}), "stands_for": x}
    if hasattr(x, "persistent"):
        out.persistent = x.persistent
    return out


def leaf_like(t, cls, needs, leaf):
    """Return a leaf on the memory of `t`, which answers as an argument of this kind does."""
    out = retyped(t.detach(), cls)
    out.requires_grad = needs
    out._extra = {**(out._extra or {}), "stands_for": _LEAF if leaf else _RESULT}
    return out


# What Python asks of tensors that are leaves or results of operations is asked of these.
_LEAF, _RESULT = wrap(np.zeros(0)), wrap(np.zeros(0))
_RESULT.grad_fn = cast(TapeNode, "the operation that made an argument")


class _Call(Function):
    """One call on the tape."""

    @staticmethod
    def forward(ctx, version, count, *items):
        outs = version.met.outs
        ctx.version, ctx.count, ctx.number = version, count, len(items)
        ctx.numbers, ctx.own_rules = values_of(version.numbers), version.met.own_rules
        there = [x for x in version.in_places() if is_tensor(x)]
        ctx.save_for_backward(*items, *version.others, *there)
        ctx.results = [x.detach() for x in outs]
        flows = zip(outs, version.met.wanted, strict=True)
        ctx.mark_non_differentiable(*(x for x, wanted in flows if not (wanted and is_float(x))))
        return tuple(outs)

    @staticmethod
    def backward(ctx, *cotangents):
        version, tensors = ctx.version, list(ctx.saved_tensors[: ctx.count])
        if not any(t.requires_grad for t in (*tensors, *version.closed_over)):
            return (None,) * (2 + ctx.number)
        others = others_by_now(ctx.numbers)
        if others and others_at_work():  # they would find what was there at the call
            raise version.changed_since(f"{others[0][1]}, while other threads run")
        if others and ctx.own_rules:  # which Python would run with what is there by now
            raise version.changed_since(f"{others[0][1]}, which a rule of its own may read")
        with as_they_were(others) if others else contextlib.nullcontext():
            version.check(tensors, ctx.results)
            if grad_enabled():
                leave_whole(version, ctx._node())
                own = each_once(in_place_of, tensors)
                found = version.gradients(own, cotangents, True)
            else:
                plain = each_once(lambda t: t.detach(), tensors)
                needs = tuple(t.requires_grad for t in version.closed_over)
                found = version.pull(plain, [g.detach() for g in cotangents], needs)
        return (None, None, *found[: ctx.number])
