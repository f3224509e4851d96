"""What was recorded: the graph, the values of tensors, tests, and what no replay could repeat.

A `Recording` is what its owner, who compiles it, sees of one run. The `Recorder` of record.py fills
it as it hears of the run.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable

from probtorch.backends.registry import device_of, shares_memory
from probtorch.compiler.graph import Graph, GraphValue, Node
from probtorch.compiler.record.followed import FollowedNumbers
from probtorch.compiler.record.placed import PlacedTensor, is_plain
from probtorch.compiler.record.turns import expanded
from probtorch.core.dispatch import set_grad_enabled, set_recorder
from probtorch.core.interpreter import Interpreter
from probtorch.errors import CompileError, user_frame, user_location
from probtorch.ops.view_places import place_in, read_place

__all__ = ["Recording", "TrialEnded"]

# What turns hear of in the place of the recorder.
FOLLOWED = ("applied", "alias", "fresh", "_not_nan")


class TrialEnded(Exception):
    """A body or a branch, run for its operations alone, was about to do more than those."""


class Recording(Interpreter):
    """The graph of one function call, and all that its owner has to know of that; see `record`."""

    _demand_numbers: Callable[..., None]
    is_trial = False  # whether this is of a body or a branch that may be run again

    def __init__(self, *, frozen=True, abstract=False, parent=None):
        self.graph = Graph()
        self.frozen = frozen
        self.abstract = abstract
        self.parent = parent
        self.unsupported = []
        # What trials within were about to do (subgraphs.py), and whether this one was ended.
        self.told, self.ended = [], False
        self.prints = []  # lines of the user's that show values
        self.captures = []
        self.thread = threading.get_ident() if parent is None else parent.thread
        self._values = {}
        self._alive = []  # an identity means nothing once its tensor is gone
        self._watched = {}  # id -> weak reference, of what is let go
        self.large = False  # whether there were such
        # id of an array -> weak reference and value, of arrays that outlive the tensors let go
        self._outlived = {}
        self._inputs = []
        self._made = set()  # ids of the tensors that came into being while this recorded
        self._views = {}  # id of a tensor -> weak references to the views of its memory
        self._stale = set()  # ids of views whose base changed since
        # Ids of values that are tensors or arrays from outside, and those of these tensors of which
        # elements are part of the recording, with what they held; whether there may be such.
        self.outside, self.pinned, self.pins = set(), [], True
        self.updates = {}  # id -> tensor made outside and changed in place
        self.originals = []  # copies of what these held before
        # (generator, count, seed, stream, first counter), the last three tensors
        self.draws = []
        # Number of draws before -> (generator, how, state): those that the function makes or seeds
        self.restarts = {}
        # Tensors made outside, by their ids: those whose .grad is None, and has to be at each
        # replay; those that have one, and what stands for it; those of which it is set here.
        self.ungraded, self.graded, self.regraded = {}, {}, {}
        self._gradients = {}  # what was found in .grad
        self.reached = []  # leaves that a gradient reached, whose hooks count
        self.placed = []  # what stands for tensors in whose places others come
        self.followed = FollowedNumbers()
        self.returned = None  # numbers that the function only returns, where that is asked for
        self.layout = False  # whether Python looked at how elements lie in memory
        self.own_rules = False  # whether code of the user's runs when gradients are taken
        self.asked_who = False  # whether a set or a dict was asked for an argument, or the like
        # Whether a check that fails ends the run: not where only the shapes of results count, nor
        # in a body that is recorded before it is known whether it is carried out.
        self.checks = not abstract and parent is None
        self.spared = 0.0  # seconds of turns of loops that native code took in the place of Python
        self.failures = []  # errors that each replay of this path would raise, too
        # Ids of tensors that would be on the tape if nodes were carried out again with it on, and
        # whether what is on the tape is made of such; whether ops are the recorder's own just now.
        self.cut, self.rejoined, self._own_ops = set(), False, False
        self._demanded = set()  # what has been tested: (id of a value, constraint)
        self._errors = []  # errors that depend on the elements of tensors
        # (value, line): what may not have nan among its elements; turns that say so of theirs.
        self._numbers, self.turns_of_numbers = [], []
        # Turns of a loop that repeat (turns.py): who looks for them, if anybody does; who hears of
        # them just now; and the places of tensors that they made, by ids.
        self.watch = self._following = None
        self.turned = {}

    # --------------------------------------------------------------------------------------- values

    def float_of(self, table, key):
        """Return what stands for a float that replays read anew."""
        return self.followed.float(table, key, self._bind_number)

    def _bind_number(self, t):
        self._bind(t, GraphValue(t.array.shape, t.array.dtype, "ref", array=t))

    def place(self, table, key):
        """Know the tensor in a place as the one that is there at each replay."""
        p = PlacedTensor(table, key)
        v = GraphValue(p.array.shape, p.array.dtype, "ref", array=p)
        self.outside.add(id(v))
        self._bind(p.first, v)
        self.placed.append(p)

    def add_input(self, t, *, owned=False):
        """Make tensor `t` an input of the graph; an `owned` one may be changed in place."""
        v = GraphValue(t.array.shape, t.array.dtype, "input")
        self.graph.inputs.append(v)
        self._inputs.append(t)
        self._bind(t, v)
        if owned:
            self._made.add(id(t))
        return v

    def _bind(self, t, v):
        if self.watch is not None and id(t) in self._values:
            self.watch.forget()  # one tensor stands for several values
        self._values[id(t)] = v
        self._alive.append(t)

    def _let_go(self, t):
        """Know a tensor by its identity for as long as it lives, without keeping it alive.

        A rule of the tape that reads its own result makes it anew, on the array that the tape kept
        (`core/saved.py`): then it is known by the array.
        """
        key, watched, outlived = id(t), self._watched, self._outlived
        values, others = self._values, (self._views, watched)
        stale, made = self._stale, (self._made, self._stale, self.cut)
        array_key = id(t.array)
        array = weakref.ref(t.array, lambda _: outlived.pop(array_key, None))

        def gone(_):
            v = values.pop(key, None)
            if v is not None and key not in stale and array() is not None:
                outlived[array_key] = array, v
            for by_id in others:
                by_id.pop(key, None)
            for ids in made:
                ids.discard(key)

        watched[key] = weakref.ref(t, gone)

    def _made_anew(self, t):
        """Return the value of a tensor that was let go and is back on its array, else None."""
        array, v = self._outlived.get(id(t.array), (None, None))
        if v is None or array() is not t.array:
            return None
        self._values[id(t)] = v
        self._made.add(id(t))
        self._let_go(t)
        return v

    def known(self, t):
        """Return the value of `t` if this recorder or a parent has one, else None."""
        if self._following is not None:
            self.leave_turns()
        if id(t) in self._stale:
            self._read_again(t)
        v = self._values.get(id(t))
        if v is None and self._outlived:
            v = self._made_anew(t)
        if v is None and id(t) in self.turned:
            turns, *place = self.turned[id(t)]
            v = self._values[id(t)] = turns.value(*place)
        if v is None and self.parent is not None:
            outer = self.parent.known(t)
            if outer is not None:
                v = self._capture(t, outer)
        return v

    def _read_again(self, t):
        """Give `t`, a view of a tensor that changed, the elements that this has now."""
        self._stale.discard(id(t))
        with self._alone():
            now = read_place(t._base, place_in(t.array, t._base.array, "view"))
        self._bind(t, self.value_of(now))
        self._note_view(t)

    def _note_view(self, t):
        self._views.setdefault(id(t._base), []).append(weakref.ref(t))

    @contextlib.contextmanager
    def _alone(self):
        """Record what is done inside here, off the tape, and not where loops or listeners are."""
        before, taped = set_recorder(self), set_grad_enabled(False)
        outer, self._own_ops = self._own_ops, True
        try:
            yield
        finally:
            self._own_ops = outer
            set_recorder(before)
            set_grad_enabled(taped)

    def _capture(self, t, outer):
        v = outer
        if outer.kind not in ("const", "ref"):
            v = GraphValue(outer.shape, outer.dtype, "input")
            self.captures.append((outer, v))
        self._bind(t, v)
        return v

    def _made_here(self, t):
        if self._following is not None:
            self.leave_turns()
        return id(t) in self._made or (self.parent is not None and self.parent._made_here(t))

    def value_of(self, t):
        """Return the value of any tensor; one not computed here is a constant or a reference."""
        v = self.known(t)
        if v is None:
            if self.frozen or self._made_here(t):
                v = GraphValue(t.array.shape, t.array.dtype, "const", array=t.array)
            else:
                v = GraphValue(t.array.shape, t.array.dtype, "ref", array=t)
                self.outside.add(id(v))
            self._bind(t, v)
        return v

    # ------------------------------------------------------------------------ turns that repeat

    def follow_turns(self, following):
        """Let somebody else hear of operations until `leave_turns`."""
        self._following = following
        following.begin()

    def leave_turns(self):
        """Hear of operations again: something else happened than that turns went on."""
        following, self._following = self._following, None
        if following is not None:
            for name in FOLLOWED:
                del self.__dict__[name]  # that of the object, not of its class
            following.end()

    def stop(self):
        """Follow no turns any more, whatever has come of the recording."""
        self.watch = self._following = None
        for name in FOLLOWED:
            self.__dict__.pop(name, None)

    def keep(self, t, place=None):
        """Note a tensor that turns made and somebody holds; `place` says where, of a constant it is
        None.
        """
        if id(t) in self._values:
            return
        self._made.add(id(t))
        self._alive.append(t)
        if place is not None:
            self.turned[id(t)] = place
            if t._base is not None:
                self._note_view(t)

    def expand(self):
        """Make nodes of all turns that were followed, and follow none from now on."""
        self.leave_turns()
        self.watch = None
        self.graph.nodes = expanded(self.graph).nodes

    def _is_input(self, t):
        return any(x is t for x in self._inputs)

    def _replays_effects(self):
        """Whether a replay can draw random numbers and write to tensors made outside."""
        return not (self.frozen or self.abstract or self.parent is not None)

    # -------------------------------------------------------------------------- what its owner asks

    @property
    def given(self):
        """The tensors that were inputs."""
        return self._inputs

    def met(self):
        """Return the tensors that were not computed here and may be others at each replay."""
        outer = {id(v) for pair in self.captures for v in pair}
        return [
            t
            for t in self._alive
            if (v := self._values.get(id(t))) is not None and (v.kind == "ref" or id(v) in outer)
        ]

    def settle(self, root=None):
        """Demand what was only noted so far; `root` is the log density, a 0-d tensor, of one."""
        self.leave_turns()
        self._demand_numbers(root)

    def forward(self, result):
        """Return a graph of what was recorded so far, with `result` as its output."""
        self.leave_turns()
        graph = Graph()
        graph.inputs, graph.nodes = self.graph.inputs, list(self.graph.nodes)
        graph.outputs, graph.guards = [self.value_of(result)], list(self.graph.guards)
        return graph

    def references(self):
        """Return the tensors outside of the arguments that a replay reads anew."""
        return [v.array for v in self._values.values() if v.kind == "ref"]

    def updated(self):
        """Return the tensors outside that a replay writes to, as references name them."""
        names = {id(g): self.graded[key] for key, g in self._gradients.items()}
        return [names.get(id(t), t) for t in self.updates.values()]

    def more_than_read(self):
        """Return the places of those tensors of which the function has done, or asked, more than
        what any other of their form would answer, as ``(table, key)``.
        """
        touched = {*self.updates, *self.ungraded, *self.graded, *self.regraded}
        return [
            (p.table, p.key)
            for p in self.placed
            if self.layout
            or p.now is not p.first
            or not is_plain(p.first)
            or not touched.isdisjoint((id(p.first), id(p.first._base)))
        ]

    def gradients_met(self):
        """Return the gradients that were there when they were first looked at."""
        return list(self._gradients.values())

    def device(self):
        """Return the device of the first tensor met that is not on the host, None without one."""
        for v in self._values.values():
            array = v.array.array if v.kind == "ref" else v.array
            if array is not None and device_of(array) != "cpu":
                return device_of(array)
        return None

    # ------------------------------------------------------------------------------ what it refuses

    def refuse(self, reason):
        """Note something that a replay could not repeat; a trial ends ahead of it."""
        self.unsupported.append((reason, user_location(2)))
        if self.is_trial and threading.get_ident() == self.thread:
            raise TrialEnded(reason)

    def caught(self):
        """Refuse a recording that has come to its end after an error that is no guard."""
        for error in self._errors:
            if self.is_due_to_guard(error):
                continue
            what = f"{type(error).__name__} was raised and caught, which depends on values"
            place = getattr(error, "location", None) or user_location(2)
            self.unsupported.append((what, place))

    def is_due_to_guard(self, error):
        """Whether what led to this very error would do so at each replay."""
        while error is not None and not any(e is error for e in self.failures):
            error = error.__cause__
        return error is not None

    def effects_left(self):
        """Make the gradients that are left with tensors made outside outputs of the graph, and what
        acts are told.
        """
        for leaf in list(self.regraded.values()):
            g = leaf._grad
            if g is not None and g is self._gradients.get(id(leaf)):
                del self.regraded[id(leaf)]  # it was put back
            elif g is not None and g.requires_grad:
                self.refuse("a gradient that is on the tape itself, left in a .grad (create_graph)")
            elif g is not None and not self._made_here(g):
                self.refuse("a tensor made outside that is put into a .grad")
            elif g is not None:
                self.graph.outputs.append(self.value_of(g))
        for reason in self.followed.obstacles():
            self.refuse(reason)
        self.graph.outputs += self.followed.outputs()

    def shared_updates(self):
        """Refuse a recording that changes memory which it also reads under another name."""
        others = self._inputs + self.references()
        for t in self.updated():
            if any(o is not t and shares_memory(o.array, t.array) for o in others):
                self.refuse("an in-place change of memory that an argument or other tensor shares")
                return

    # -------------------------------------------------------------------------------------- guards

    def _guard(self, t, value):
        v = self.value_of(t)
        if v.static:
            return
        what = "a Python branch or number taken from a tensor inside a loop body, branch or sampler"
        if self.abstract:
            raise CompileError(
                what,
                expected="while_loop, cond or where",
                got=f"bool(), int(), float() or item() of a tensor of shape {v.shape}",
                fix="write the branch with probtorch.cond or probtorch.where",
            )
        if self.parent is not None:
            self.refuse(what)
            return
        attrs = {"value": value, "index": len(self.graph.guards)}
        node = Node(None, "guard", (v,), attrs, (), user_frame(2))
        self.graph.guards.append((v, value, node))
        self.graph.nodes.append(node)
