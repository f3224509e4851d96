"""Recording: run a function once, and get the `Graph` of everything it did.

The dispatcher hands every op to the active `Recorder`. Values are known by tensor identity. A
tensor that no op made is a constant if it came into being during the recording, or if the recording
is frozen (as densities are); else it is a reference, read anew at each replay. `bool()`, `item()`
and their kin leave guards. What a recording cannot express (shapes that depend on data, in-place
changes that others can see) is noted in `unsupported`, with the user's line: the result of the run
is still right, but the caller must go on eagerly.

An in-place change gives the tensor a new value; what was recorded before keeps the old one. A
change of a view is one of the tensor that owns the memory, and its other views are read from that
anew when they are read again. Tensors made outside may be changed where a replay can write to them
(`updates`); random draws there take their counters anew at each replay (`draws`).

Loops and branches are taken whole, see subgraphs.py. In `abstract` recordings (samplers: programs
whose shapes do not depend on values) guards are refused.

What is known of tensors while it goes on, and what the owner asks afterwards, is in recording.py.
"""

import contextlib
import gc
import itertools
import math
import os
import sys
import threading
import types

import numpy as np

from probtorch.autograd.kept_inputs import LARGE, let_go
from probtorch.autograd.modes import enable_grad
from probtorch.compiler.graph import GraphValue, Node, constants
from probtorch.compiler.record.gradients import LeftGradient
from probtorch.compiler.record.subgraphs import Subgraphs
from probtorch.compiler.record.turns import ALIAS
from probtorch.compiler.record.watching import TurnsWatch
from probtorch.core.dispatch import EMPTY, apply, grad_enabled, set_grad_enabled, set_recorder, wrap
from probtorch.core.history import hooked
from probtorch.core.interpreter import NUMBERS
from probtorch.core.making import as_tensor
from probtorch.core.printing import shown_at
from probtorch.core.rng import state_of
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten
from probtorch.errors import DomainError, is_ours, user_frame
from probtorch.ops.comparisons import isnan, logical_and, logical_not
from probtorch.ops.reduction import any as some
from probtorch.ops.view_places import place_in, written

# Operations that are looked through for what a mask is made of.
MOST_PINNED = 100

__all__ = [
    "OUTSIDE",
    "Recorder",
    "keeping_all",
    "rarely_searched",
    "record",
    "recording_lock",
    "unheard",
]

# What evaluating a density may raise at a point where the model is not defined: the density is 0
# there, its logarithm -inf.
OUTSIDE = (
    DomainError,
    np.linalg.LinAlgError,
    FloatingPointError,
    ZeroDivisionError,
    OverflowError,
)

# Ops that raise an error where their result has no elements, or fill it with nan if not told to
# check.
UNCHECKED = ("cholesky", "inv")

# Held while a function is recorded, and by whoever evaluates eagerly on behalf of native code.
recording_lock = threading.RLock()


@contextlib.contextmanager
def unheard():
    """Context manager: the tape is on, and nobody else listens."""
    before = set_recorder(None)
    try:
        with enable_grad():
            yield
    finally:
        set_recorder(before)


@contextlib.contextmanager
def keeping_all():
    """Context manager: nobody looks for garbage.

    A recording keeps all that it makes; looking for garbage in it took a third of the time, and
    more of what goes through its nodes afterwards. At the end all that there is counts as old, or
    the next object would have everything looked through at once.
    """
    _rest.begin(_NEVER)
    try:
        yield
    finally:
        if _rest.end(_NEVER) and gc.isenabled() and not _frozen_by_others():
            _look_through_what_grew()
            gc.freeze()
            gc.unfreeze()


# How many recordings are made, and how many blocks of memory Python takes beyond those after the
# last look at all objects (a tenth, and so many), before the next. A look takes some 60 ms where
# there are half a million.
_RECORDINGS, _SHARE, _BLOCKS = 20, 0.1, 50_000
_recordings, _blocks = 0, 0


def _look_through_what_grew():
    """Look for garbage among all objects once many recordings have left some.

    Python counts for that what its own searches have passed on, and forgets the count where all
    objects are made old: in a process that records and compiles again and again it never looked.
    """
    global _recordings, _blocks
    _recordings += 1
    now = sys.getallocatedblocks()
    if _recordings == 1:
        _blocks = now
    elif _recordings > _RECORDINGS and now > _blocks * (1.0 + _SHARE) + _BLOCKS:
        gc.collect()
        _recordings = 0
    else:
        _blocks = min(now, _blocks)


@contextlib.contextmanager
def rarely_searched():
    """Context manager: a run in Python whose tape goes with it at its end is hardly ever searched
    for garbage, which takes a sixth of an eager step.
    """
    _rest.begin(_RARELY)
    try:
        yield
    finally:
        _rest.end(_RARELY)


class _Rest:
    """Times with less search for garbage, which may overlap: of several threads, or one in another.

    The collector stays enabled, since that is the user's to see; it is its threshold that is higher
    meanwhile.
    """

    def __init__(self):
        self._asked = []
        self._before: tuple[int, ...] = ()
        self._set: tuple[int, ...] | None = None
        self._lock = threading.Lock()

    def begin(self, objects):
        """Search only where so many new objects are there, until `end`."""
        with self._lock:
            if not self._asked:
                self._before = self._set = gc.get_threshold()
            self._asked.append(objects)
            self._apply()

    def end(self, objects):
        """Take that back; returns whether nobody else wants it."""
        with self._lock:
            if objects in self._asked:  # or all was forgotten since, by a fork in between
                self._asked.remove(objects)
            self._apply()
            return not self._asked

    def forget(self):
        """In a forked child: of those that asked no thread is left to take it back."""
        self._lock = threading.Lock()  # some other thread of the parent may have had it
        if self._asked and gc.get_threshold() == self._set:
            gc.set_threshold(*self._before)
        self._asked, self._set = [], None

    def _apply(self):
        """Set the threshold, unless the user has set one meanwhile."""
        if gc.get_threshold() == self._set:
            first, *rest = self._before
            wanted = max(self._asked, default=first)
            self._set = (max(first, wanted) if first else 0, *rest)
            gc.set_threshold(*self._set)


# New objects ahead of a search: more than there is memory for, and those of some long steps.
_NEVER, _RARELY = 2**31 - 1, 50_000
_rest = _Rest()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rest.forget)

_frozen: list[bool] = []  # filled once something was found


def _frozen_by_others() -> bool:
    """Whether objects are frozen that are to stay so: counting them takes a look at each, which is
    done once.
    """
    if not _frozen and gc.get_freeze_count():
        _frozen.append(True)
    return bool(_frozen)


class Recorder(Subgraphs):
    """Hears of one function call, and notes it in the `Recording` that it is."""

    reruns = True

    def fresh(self, t):
        """Hear of a new tensor with memory of its own: a factory's, or an unrecorded result."""
        if threading.get_ident() == self.thread:
            self._made.add(id(t))
            if t.array.nbytes < LARGE:
                self._alive.append(t)
            else:
                self._let_go(t)

    def applied(self, op, inputs, attrs, out):
        """Append one op; an op with a decomposition is recorded as its parts."""
        if threading.get_ident() != self.thread:
            return
        if op.extra.get("decompose") is not None:
            if self.watch is not None:
                self.watch.events.append((op, (), attrs, (), None))
            self._record_parts(op, inputs, attrs, out)
            return
        node = self._append_node(op, inputs, attrs, out, user_frame(2))
        if self.large:
            let_go(op, out)
        watch = self.watch
        if watch is not None:
            events = watch.events
            events.append((op, inputs, attrs, out, node))
            if len(events) >= watch.due:
                following = watch.look()
                if following is not None:
                    self.follow_turns(following)

    def _record_parts(self, op, inputs, attrs, out):
        """Record what an op is made of."""
        parts = op.extra["decompose"](*inputs, **attrs)
        for part, t in zip(parts, out) if type(out) is tuple else ((parts, out),):
            self.alias(part, t, False)

    def _append_node(self, op, inputs, attrs, out, location, values_out=None):
        """Append the node of one op, with the values that its results have by now, if any; returns
        it, None where the result is a constant.
        """
        # The hot path of recording: long Python loops come through here a million times.
        known, stale = self._values, self._stale
        values, static = [], True
        for x in inputs:
            if isinstance(x, TensorBase):
                v = known.get(id(x))
                if v is None or (stale and id(x) in stale):
                    v = self.value_of(x)
                static = static and v.static
                values.append(v)
            else:
                values.append(x)
        outs = out if type(out) is tuple else (out,)
        node = None
        if static:
            new = constants(outs)
        else:
            new = values_out or [GraphValue(o.array.shape, o.array.dtype, "node") for o in outs]
            node = Node(op, op.name, tuple(values), attrs, tuple(new), location)
            self.graph.nodes.append(node)
            if self.frozen and not self._own_ops and (self.cut or not grad_enabled()):
                self._follow_cuts(op, inputs, outs)
        for v, o in zip(new, outs):
            key = id(o)
            known[key] = v
            self._made.add(key)
            # Large results are only kept as long as somebody else does: of many rows all that a
            # density computes would be several times the data.
            if v.array is o.array or v.dtype.itemsize * math.prod(v.shape) < LARGE:
                self._alive.append(o)
            else:
                self._let_go(o)
                self.large = True
                self.watch = None  # which would keep it
            if o._base is not None:
                self._note_view(o)
        return node

    def _follow_cuts(self, op, inputs, outs):
        """Note results that would be on the tape if the op were carried out again with it on, and
        whether one of them has a part in what is on the tape.
        """
        # Of each operation of a backward pass, so without a generator for each question.
        cut, taped, meets, wanted = self.cut, False, False, False
        for o in outs:
            taped = taped or o.requires_grad
        for x in inputs:
            if isinstance(x, TensorBase):
                wanted = wanted or x.requires_grad
                meets = meets or id(x) in cut
        if taped:
            self.rejoined = self.rejoined or meets
        elif op.vjp is not None and (wanted or meets):
            cut.update([id(o) for o in outs if o.array.dtype.kind in "fc"])

    def op_failed(self, op, inputs, attrs, error):
        """Note that an operation raised `error`; of some, that they do so is a guard."""
        if threading.get_ident() != self.thread:
            return
        if all(self.value_of(x).static for x in inputs if isinstance(x, TensorBase)):
            self.failures.append(error)
            return
        if isinstance(error, (*OUTSIDE, LookupError)) and not any(e is error for e in self._errors):
            self._errors.append(error)
        if op.name in UNCHECKED and attrs.get("check") and self.parent is None and self.checks:
            before = set_grad_enabled(False)
            try:
                out = apply(op, inputs, {**attrs, "check": False})
                # One with nan among its elements is another matter, for eager execution.
                failed, given = (some(isnan(x), (-2, -1)) for x in (out, inputs[0]))
                failed = logical_and(failed, logical_not(given))
                if failed.array.any():
                    self._guard(some(failed), True)
                    self._failed(error)
            finally:
                set_grad_enabled(before)

    def raised(self, error):
        """Note an error that depends on the elements of tensors.

        Where the recording comes to its end all the same, it went another way because of it.
        """
        if threading.get_ident() == self.thread:
            self._errors.append(error)

    def alias(self, source, t, taped):
        """Let `t` stand for the value of `source` (detach, decompositions)."""
        if threading.get_ident() != self.thread:
            return
        if not t.requires_grad and (source.requires_grad or id(source) in self.cut):
            self.cut.add(id(t))
        elif t.requires_grad and id(source) in self.cut:
            self.rejoined = True
        if self.watch is not None:
            self.watch.events.append((ALIAS, (source,), EMPTY, t, None))
        self._bind(t, self.value_of(source))
        self._made.add(id(t))
        if t._base is not None:
            self._note_view(t)

    def in_place(self, target, value):
        """Note that `target` takes the value of `value`; called before its memory changes."""
        if threading.get_ident() != self.thread:
            return
        self._follow_cut_into(target, value)
        owner = target._base
        if owner is not None:
            self._follow_cut_into(owner, value)
            place = place_in(target.array, owner.array, "in-place change")
            with self._alone():
                self.in_place(owner, written(owner, value, place))
            self._stale.discard(id(target))
            self._bind(target, self.value_of(value))
            self._note_view(target)
            return
        old = self.known(target)
        if id(target) not in self._made:
            if any(t is target for t in self._inputs):
                self.refuse("an in-place change of an argument")
            elif self._replays_effects():
                if id(target) not in self.updates:
                    self.updates[id(target)] = target
                    self.originals.append(target.array.copy(order="K"))
            else:
                self.refuse("an in-place change of a tensor made outside the density or loop")
        # What was recorded keeps the old elements; views read after the change would see new ones.
        views = [t for ref in self._views.pop(id(target), []) if (t := ref()) is not None]
        for v in (old, *(self._values.get(id(t)) for t in views)):
            if v is not None and v.static:
                v.array = v.array.copy(order="K")
        self._stale.update(map(id, views))
        self._bind(target, self.value_of(value))

    def _follow_cut_into(self, target, value):
        """Note what a change in place brings to a tensor from off the tape."""
        off = id(value) in self.cut or (value.requires_grad and not grad_enabled())
        if off and (target.requires_grad and grad_enabled()):
            self.rejoined = True
        elif off:
            self.cut.add(id(target))

    def read(self, what, t, value):
        """Note a number as a guard; a replay does nothing else that Python does by itself."""
        if t is None:
            self.refuse(what)
        elif isinstance(value, NUMBERS):
            if self.returned is not None and not self.value_of(t).static:
                taken = self.returned.take(what, t, value)
                if taken is not None:
                    return taken
            self._guard(t, value)
        elif not self.value_of(t).static and not (value is None and self._pin(self.value_of(t))):
            self.refuse(f"{what}, whose result depends on the values of a tensor")
        return value

    def _pin(self, v):
        """Take for a constant what is made of tensors and arrays from outside alone, as a mask is:
        their elements are watched. Returns whether it is so.
        """
        if not (self.pins and self._replays_effects()):
            return False
        found, todo, seen = [], [v], set()
        while todo:
            x = todo.pop()
            if not isinstance(x, GraphValue) or x.static or id(x) in seen:
                continue
            seen.add(id(x))
            if x.kind == "node" and len(seen) <= MOST_PINNED:
                todo += x.node.inputs
            elif id(x) in self.outside and self._stays(x.array):
                found.append(x.array)
            else:
                return False
        for t in found:
            if not any(t is known for known, _ in self.pinned):
                self.pinned.append((t, t.array.copy()))
        return True

    def _stays(self, t):
        """Whether a tensor from outside may be expected to be the same at the next call."""
        return not t.requires_grad and id(t) not in self.updates and type(t.array) is np.ndarray

    def shown(self, t):
        """Note that a line of the user's only shows `t`, which replays leave out; "" if it does
        more with it. Where only shapes count there are no elements to show: "shape".
        """
        place = shown_at()
        if place is None:
            return ""
        self.prints.append(place)
        return "shape" if self.abstract and not self.value_of(t).static else "value"

    def layout_read(self):
        """Note that Python looks at how elements lie in memory."""
        self.layout = True
        if self.parent is not None:
            self.parent.layout_read()

    def who_asked(self, t):
        """Note that a set or a dict is asked for a tensor that another call has another one of."""
        self.asked_who |= self._is_input(t) or any(t is p.first for p in self.placed)
        if self.parent is not None:
            self.parent.who_asked(t)

    def drawn(self, what, generator, count):
        """Reserve `count` draws for this run and for each replay.

        Returns
        -------
        tuple of Tensor, or None
            Seed, stream and first counter, 0-d int64, which a replay sets anew; None where draws
            cannot be repeated, after refusing.
        """
        if threading.get_ident() != self.thread or not self._replays_effects():
            self.refuse(f"{what}: a draw from a Generator")
            return None
        first = generator.advance(count)
        began = (i for i, set_ in self.restarts.items() if any(g is generator for g, *_ in set_))
        begin = max(began, default=0)
        for i, (known, total, *words, start) in enumerate(self.draws):
            if i < begin:
                continue
            here = *state_of(generator)[:2], first
            if known is generator and here == (*map(_unsigned, words), _unsigned(start) + total):
                # It goes on where that draw ended: one reservation serves both, which also lets
                # the turns of a loop differ in a constant alone.
                self.draws[i] = (generator, total + count, *words, start)
                return (*words, start + wrap(np.array(total)))
        numbers = []
        for word in (*state_of(generator)[:2], first):
            t = wrap(np.array(word, np.uint64).view(np.int64))
            self._bind_number(t)
            numbers.append(t)
        self.draws.append((generator, count, *numbers))
        return tuple(numbers)

    def restarted(self, generator, how):
        """Note that a generator was made, seeded, set, looked at, or has spawned others."""
        if threading.get_ident() != self.thread or self.abstract:
            return  # such a one refuses all draws
        if how == "looked at" and (not _looked_at_by_users() or self._was_made(generator)):
            return  # what it makes is where it is now at each replay, too
        if self.frozen and how != "made" and not _looked_at_by_users():
            return  # which refuses all draws as well
        if (how == "made" or (how == "seeded" and not self.frozen)) and self.parent is None:
            now = generator, how, state_of(generator)
            self.restarts.setdefault(len(self.draws), []).append(now)
        elif how != "made":
            self.refuse(f"a Generator that is {how}")

    def _was_made(self, generator):
        """Whether a generator was made while this is recorded."""
        made = itertools.chain.from_iterable(self.restarts.values())
        return any(g is generator and how == "made" for g, how, _ in made)

    def gradient_kept(self, leaf):
        """Note that the `.grad` of `leaf` is set, where callers will find it."""
        if threading.get_ident() != self.thread or self._made_here(leaf):
            return
        if self._replays_effects() and not self._is_input(leaf):
            self.regraded[id(leaf)] = leaf
        else:
            self.refuse("a gradient accumulated in the .grad of an argument, or from a loop's body")

    def gradient_read(self, t):
        """Note that Python looks at the `.grad` of `t`: what it is now, it is at each replay."""
        if threading.get_ident() != self.thread or self._made_here(t):
            return
        if id(t) in self.regraded or id(t) in self.graded:
            return
        if not self._replays_effects() or self._is_input(t):
            self.refuse("a read of the .grad of an argument, or of a tensor outside a loop's body")
        elif t._grad is None:
            self.ungraded[id(t)] = t
        elif t._grad._base is not None or t._grad.requires_grad or self.known(t._grad) is not None:
            self.refuse("a read of a .grad that is a view, on the tape or known by another name")
        else:
            g, self._gradients[id(t)] = LeftGradient(t), t._grad
            self.graded[id(t)] = g
            self._bind(t._grad, GraphValue(g.array.shape, g.array.dtype, "ref", array=g))

    def number(self, table, key):
        """Stand in for a number, or the numbers in a tuple, which a replay reads anew."""
        if self.parent is not None:
            return self.parent.number(table, key)
        if threading.get_ident() != self.thread or not self._replays_effects():
            return table[key]
        return self.followed.number(table, key, self._bind_number)

    def numbers_shown(self):
        """Note that Python looks at numbers that would be read anew."""
        self.followed.shown = True

    def act(self, method, owner, args, kwargs):
        """Note a call that each replay makes, too, and make it unheard."""
        if threading.get_ident() != self.thread:
            return method(owner, *args, **kwargs)
        if not self._replays_effects():
            self.refuse(f"{type(owner).__name__}.{method.__name__}() in a loop's body or a sampler")
        return self.followed.act(method, owner, args, kwargs, self.value_of, self.refuse)

    def differentiated(self, leaf):
        """Note that a gradient reached a leaf, before its hooks see it."""
        if threading.get_ident() == self.thread and not self._made_here(leaf):
            if hooked(leaf):
                self.refuse("a gradient hook of a tensor made outside")
            if self.parent is None and not self._is_input(leaf):
                self.reached.append(leaf)

    def place_changed(self, t, what):
        """Note that Python changes what `t` is on the tape."""
        if what == "detach_()" and any(t is g for g in self._gradients.values()):
            return  # off the tape, as it is at each replay
        if threading.get_ident() != self.thread:
            return
        if what == "register_hook()":
            self.own_rules = True
            self.rejoined = True  # what the hook makes of a gradient is not in the nodes
        if what == "detach_()" and t.requires_grad:
            self.cut.add(id(t))
        if what == "register_post_accumulate_grad_hook()":
            self.refuse("a hook that runs when a gradient is there")
        if not self._made_here(t):
            self.refuse(f"{what} of an argument or of a tensor made outside")

    def attached(self):
        """Note operations before what they made is on the tape by another rule than theirs."""
        if threading.get_ident() == self.thread:
            self.own_rules = True
            self.leave_turns()

    def _record_apart(self, fn, inputs, **options):
        """Record another function, see `record`."""
        return record(fn, inputs, **options)


def _looked_at_by_users():
    """Whether it is not a part of the house that looks at a generator, and draws from it."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _OF_GENERATORS:
        frame = frame.f_back
    return frame is None or not is_ours(frame.f_code.co_filename)


_OF_GENERATORS = {"probtorch.core.rng", "probtorch.core.signatures", "probtorch.random"}


def _unsigned(t):
    return int(t.array.view(np.uint64))


def record(fn, inputs, *, frozen=True, abstract=False, recorder=None, turns=False):
    """Run ``fn(*inputs)`` with a recorder; returns ``(recorder, result)``, the graph's outputs
    being the result's leaves.

    Parameters
    ----------
    fn : callable
    inputs : sequence of Tensor
        Become the inputs of the graph.
    frozen : bool
        Whether other tensors are constants (True) or read anew at each replay.
    abstract : bool
        Whether only shapes matter (samplers); then loops run once and guards are refused, and
        inputs may be changed in place.
    recorder : Recorder, optional
        A new one, where `fn` itself asks what was recorded so far.
    turns : bool
        Whether the graph may have nodes "turns", which only rolling.py understands; see turns.py.

    Notes
    -----
    One recording at a time, process-wide: models may share tensors and parameters. What other
    threads do meanwhile is not recorded.
    """
    with recording_lock, keeping_all():
        rec = Recorder(frozen=frozen, abstract=abstract) if recorder is None else recorder
        rec.watch = TurnsWatch(rec) if turns else None
        for t in inputs:
            rec.add_input(t, owned=abstract)
        before = set_recorder(rec)
        try:
            result = fn(*inputs)
            out = [as_tensor(x) for x in flatten(result)[0]]
            rec.settle()
            rec.caught()
            rec.graph.outputs = [rec.value_of(t) for t in out]
            rec.effects_left()
        finally:
            set_recorder(before)
            rec.stop()
        return rec, result
