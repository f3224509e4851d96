"""Loops and branches of a recording: subgraphs, recorded by child recorders.

The body of a loop and both sides of a branch are run on copies of what they are given, for their
ops alone; the run itself goes the one way that eager execution goes. In `abstract` recordings they
run once only for their shapes.
"""

from collections.abc import Callable

from probtorch.compiler.graph import GraphValue, Node
from probtorch.compiler.record.demands import Demands
from probtorch.compiler.record.long_loops import final_state
from probtorch.compiler.record.recording import Recording
from probtorch.core.dispatch import grad_enabled, set_recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import user_frame
from probtorch.ops.control import check_same_state

__all__ = ["Subgraphs"]


class Subgraphs(Demands):
    """A recording that takes loops and branches whole; `_record_apart` records another function."""

    records_loops = True
    _record_apart: Callable[..., tuple[Recording, Tree]]

    def _child(self, fn, items, structure, op, taken=False):
        """Record `fn` on copies of `items`; returns (recorder, output tensors, their structure).

        `taken` is whether eager execution would run it on the very same.
        """
        child = type(self)(frozen=self.frozen, abstract=self.abstract, parent=self)
        child.checks = taken and self.checks
        # Copies, since a body may change its state in place, and is run here for its ops alone.
        stand_ins = [wrap(x.array.copy(order="K")) for x in items]
        for t in stand_ins:
            child.add_input(t, owned=True)
        before = set_recorder(child)
        try:
            out, out_structure = flatten(fn(unflatten(structure, stand_ins)))
            out = [as_tensor(x, op) for x in out]
            child.settle()
            child.caught()
            child.graph.outputs = [child.value_of(x) for x in out]
        finally:
            set_recorder(before)
            self.unsupported += child.unsupported
            self.prints += child.prints
        return child, out, out_structure

    def _spare(self, seconds):
        """Note what Python's turns of a loop would have taken, for the owner of the recording."""
        self.spared += seconds
        if self.parent is not None:
            self.parent._spare(seconds)

    def _untaken(self, what, error):
        self.refuse(f"{what} that would raise {type(error).__name__}")

    def _attach(self, name, own_inputs, children, out, attrs):
        captured = [outer for child in children for outer, _ in child.captures]
        values = tuple(GraphValue(o.array.shape, o.array.dtype, "node") for o in out)
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

    def _flows(self, results):
        """Whether results are on the tape, on which a node of a loop or a branch is not; where no
        value is known, nothing else can be there in its place.
        """
        flows = grad_enabled() and any(x.requires_grad for x in results)
        if flows and self.abstract:
            self.refuse("a gradient through what a loop or a branch within a loop closes over")
            return False
        return flows

    def _forgets(self, told):
        """Forget what children told of: Python goes the one way that it goes."""
        unsupported, prints = told
        del self.unsupported[unsupported:], self.prints[prints:]
        return NotImplemented

    def while_loop(self, cond_fn, body_fn, items, structure):
        """Record `while_loop` as one node; see ops/control.py. NotImplemented where a gradient has
        to go through what the body closes over.
        """
        told = len(self.unsupported), len(self.prints)
        test, flag, _ = self._child(cond_fn, items, structure, "while_loop")
        entered = self.abstract or bool(flag[0].array)
        try:
            body, after, after_structure = self._child(body_fn, items, structure, "while_loop")
        except Exception as error:
            if entered:
                raise
            self._untaken("a loop that is not entered, with a body", error)
            return unflatten(structure, [wrap(x.array.copy(order="K")) for x in items])
        check_same_state(
            "while_loop",
            [x.array for x in items],
            [x.array for x in after],
            structure == after_structure,
        )
        if self._flows(after):
            return self._forgets(told)
        if self.abstract:
            out = [wrap(x.array) for x in after]
        else:
            parts, anew = (test, body), self._record_apart
            before = set_recorder(None)
            try:
                found, spared = final_state(cond_fn, body_fn, items, structure, parts, anew)
            finally:
                set_recorder(before)
            self._spare(spared)
            out = [wrap(x.array.copy(order="K")) for x in found]
        self._attach(
            "while",
            [self.value_of(x) for x in items],
            (test, body),
            out,
            {"cond": test, "body": body},
        )
        return unflatten(structure, out)

    def cond(self, pred, true_fn, false_fn, items, structure):
        """Record `cond` as one node; see ops/control.py. NotImplemented where a gradient has to go
        through what a branch closes over.
        """
        told = len(self.unsupported), len(self.prints)
        branches = {"then": true_fn, "else": false_fn}
        order = list(branches) if bool(pred.array) else list(branches)[::-1]
        done = {}
        for key in order:
            try:
                body = _spread(branches[key])
                done[key] = self._child(body, items, structure, "cond", taken=key == order[0])
            except Exception as error:
                if self.abstract or not done:
                    raise
                _, out, out_structure = done[order[0]]
                if self._flows(out):
                    return self._forgets(told)
                self._untaken("a branch not taken", error)
                return unflatten(out_structure, [wrap(x.array.copy(order="K")) for x in out])
        (yes, yes_out, yes_structure), (no, no_out, no_structure) = done["then"], done["else"]
        check_same_state(
            "cond",
            [x.array for x in yes_out],
            [x.array for x in no_out],
            yes_structure == no_structure,
        )
        if self._flows((*yes_out, *no_out)):
            return self._forgets(told)
        out = [wrap(x.array.copy(order="K")) for x in done[order[0]][1]]
        inputs = [self.value_of(pred), *(self.value_of(x) for x in items)]
        self._attach("cond", inputs, (yes, no), out, {"then": yes, "else": no})
        return unflatten(yes_structure, out)


def _spread(fn):
    """Return `fn` as a function of the tuple of its arguments."""
    return lambda arguments: fn(*arguments)
