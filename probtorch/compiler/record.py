"""Recording: run a function once, and get the `Graph` of everything it did.

The dispatcher hands every op to the active `Recorder`. Values are known by tensor identity; a
tensor never seen before is a constant (frozen recordings, as densities are) or a reference that
is read anew at each replay. `bool()`, `item()` and their kin leave guards. What a recording
cannot express (shapes that depend on data, in-place changes of aliased memory) is noted in
`unsupported`, with the user's line: the result of the run is still right, but the caller must go
on eagerly.

Loops and branches are recorded as subgraphs by child recorders. In `abstract` recordings
(samplers: programs whose shapes do not depend on values) the bodies run once only for their
shapes, and guards are refused.
"""

import numpy as np

from probtorch.compiler.graph import Graph, Node, Value
from probtorch.core.dispatch import as_tensor, set_recorder, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import CompileError, user_frame, user_location
from probtorch.ops.control import check_same_state

__all__ = ["Recorder", "record"]


class Recorder:
    """Collects the nodes of one function call; see the module docstring."""

    def __init__(self, *, frozen=True, abstract=False, parent=None):
        self.graph = Graph()
        self.frozen = frozen
        self.abstract = abstract
        self.parent = parent
        self.unsupported = []
        self.captures = []
        self._values = {}
        self._alive = []
        self._viewed = set()

    # --------------------------------------------------------------------------------------- values

    def add_input(self, t):
        """Make tensor `t` an input of the graph."""
        v = Value(t._data.shape, t._data.dtype, "input")
        self.graph.inputs.append(v)
        self._bind(t, v)
        return v

    def _bind(self, t, v):
        self._values[id(t)] = v
        self._alive.append(t)

    def known(self, t):
        """Return the value of `t` if this recorder or a parent has one that is not a plain
        constant, else None.
        """
        v = self._values.get(id(t))
        if v is None and self.parent is not None:
            outer = self.parent.known(t)
            if outer is not None:
                v = self._capture(t, outer)
        return v

    def _capture(self, t, outer):
        if outer.static:
            v = Value(outer.shape, outer.dtype, "const", array=t._data)
        else:
            v = Value(outer.shape, outer.dtype, "input")
            self.captures.append((outer, v))
        self._bind(t, v)
        return v

    def value_of(self, t):
        """Return the value of any tensor, as a constant or reference if it was not computed here."""
        v = self.known(t)
        if v is None:
            if self.frozen:
                v = Value(t._data.shape, t._data.dtype, "const", array=t._data)
            else:
                v = Value(t._data.shape, t._data.dtype, "ref", array=t)
            self._bind(t, v)
        return v

    # --------------------------------------------------------------------- called by the dispatcher

    def record(self, op, inputs, attrs, out):
        """Append one op; an op with a decomposition is recorded as its parts."""
        decompose = op.extra.get("decompose")
        if decompose is not None:
            parts = decompose(*inputs, **attrs)
            self.alias(parts, out)
            return
        values = tuple(self.value_of(x) if isinstance(x, TensorBase) else x for x in inputs)
        outs = out if type(out) is tuple else (out,)
        fresh = tuple(Value(o._data.shape, o._data.dtype, "node") for o in outs)
        if all(type(v) is not Value or v.static for v in values):
            for v, o in zip(fresh, outs, strict=True):
                v.kind, v.static, v.array = "const", True, o._data
        else:
            self.graph.nodes.append(Node(op, op.name, values, attrs, fresh, user_frame(2)))
            if "view" in op.extra:
                self._viewed.add(id(inputs[0]))
        for v, o in zip(fresh, outs, strict=True):
            self._bind(o, v)

    def alias(self, source, t):
        """Let `t` stand for the value of `source` (detach, decompositions)."""
        self._bind(t, self.value_of(source))
        self._viewed.add(id(source))

    def inplace(self, target, value):
        """Note that `target` takes the value of `value`; called before its memory changes."""
        old = self.known(target)
        if target._base is not None or id(target) in self._viewed:
            self.refuse("an in-place change of memory that another tensor views")
        elif old is None:
            self.refuse("an in-place change of a tensor made outside the compiled function")
        if old is not None and old.static:
            old.array = np.array(old.array)
        self._bind(target, self.value_of(value))

    def guard(self, t, value):
        """Note that Python saw `value` in tensor `t`."""
        v = self.value_of(t)
        if v.static:
            return
        if self.abstract or self.parent is not None:
            raise CompileError(
                "a Python branch or number taken from a tensor inside a loop body, branch or sampler",
                expected="while_loop, cond or where",
                got=f"bool(), int(), float() or item() of a tensor of shape {v.shape}",
                fix="write the branch with probtorch.cond or probtorch.where",
            )
        node = Node(
            None,
            "guard",
            (v,),
            {"value": value, "index": len(self.graph.guards)},
            (),
            user_frame(2),
        )
        self.graph.guards.append((v, value, node))
        self.graph.nodes.append(node)

    def data_dependent(self, what, t):
        """Note a use of `t` that leaves the tape (its array, a shape that depends on it)."""
        if not self.value_of(t).static:
            self.refuse(f"{what}, whose result depends on the values of a tensor")

    def refuse(self, reason):
        """Note something that a replay could not repeat."""
        self.unsupported.append((reason, user_location(2)))

    # --------------------------------------------------------------------------- loops and branches

    def _child(self, fn, items, structure, op):
        """Record `fn` on fresh stand-ins for `items`; returns (recorder, output tensors, their
        structure).
        """
        child = Recorder(frozen=self.frozen, abstract=self.abstract, parent=self)
        stand_ins = [wrap(x._data) for x in items]
        for t in stand_ins:
            child.add_input(t)
        before = set_recorder(child)
        try:
            out, out_structure = flatten(fn(unflatten(structure, stand_ins)))
            out = [as_tensor(x, op) for x in out]
            child.graph.outputs = [child.value_of(x) for x in out]
        finally:
            set_recorder(before)
        self.unsupported += child.unsupported
        return child, out, out_structure

    def _attach(self, name, own_inputs, children, out, attrs):
        captured = [outer for child in children for outer, _ in child.captures]
        values = tuple(Value(o._data.shape, o._data.dtype, "node") for o in out)
        graphs = {}
        for key, child in attrs.items():
            child.graph.inputs += [inner for _, inner in child.captures]
            graphs[key] = child.graph
        graphs["counts"] = tuple(len(child.captures) for child in children)
        self.graph.nodes.append(
            Node(None, name, tuple(own_inputs) + tuple(captured), graphs, values, user_frame(3))
        )
        for t, v in zip(out, values, strict=True):
            self._bind(t, v)

    def while_loop(self, cond_fn, body_fn, items, structure):
        """Record `while_loop` as one node; see ops/control.py."""
        test, _, _ = self._child(cond_fn, items, structure, "while_loop")
        body, after, after_structure = self._child(body_fn, items, structure, "while_loop")
        check_same_state(
            "while_loop",
            [x._data for x in items],
            [x._data for x in after],
            structure == after_structure,
        )
        if self.abstract:
            out = [wrap(x._data) for x in after]
        else:
            out = self._eagerly_loop(cond_fn, body_fn, items, structure)
        self._attach(
            "while",
            [self.value_of(x) for x in items],
            (test, body),
            out,
            {"cond": test, "body": body},
        )
        return unflatten(structure, out)

    def _eagerly_loop(self, cond_fn, body_fn, items, structure):
        before = set_recorder(None)
        try:
            state = unflatten(structure, [wrap(x._data) for x in items])
            while bool(cond_fn(state)):
                state = body_fn(state)
            return [wrap(as_tensor(x)._data) for x in flatten(state)[0]]
        finally:
            set_recorder(before)

    def cond(self, pred, true_fn, false_fn, items, structure):
        """Record `cond` as one node; see ops/control.py."""
        yes, yes_out, yes_structure = self._child(lambda xs: true_fn(*xs), items, structure, "cond")
        no, no_out, no_structure = self._child(lambda xs: false_fn(*xs), items, structure, "cond")
        check_same_state(
            "cond",
            [x._data for x in yes_out],
            [x._data for x in no_out],
            yes_structure == no_structure,
        )
        chosen = yes_out if self.abstract or bool(pred._data) else no_out
        out = [wrap(x._data) for x in chosen]
        inputs = [self.value_of(pred), *(self.value_of(x) for x in items)]
        self._attach("cond", inputs, (yes, no), out, {"then": yes, "else": no})
        return unflatten(yes_structure, out)


def record(fn, inputs, *, frozen=True, abstract=False):
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
        Whether only shapes matter (samplers); then loops run once and guards are refused.
    """
    rec = Recorder(frozen=frozen, abstract=abstract)
    for t in inputs:
        rec.add_input(t)
    before = set_recorder(rec)
    try:
        result = fn(*inputs)
        out = [as_tensor(x) for x in flatten(result)[0]]
        rec.graph.outputs = [rec.value_of(t) for t in out]
    finally:
        set_recorder(before)
    return rec, result
