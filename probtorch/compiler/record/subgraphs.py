"""Loops and branches of a recording: subgraphs, recorded by child recorders.

The body of a loop and both sides of a branch are run on copies of what they are given, for their
ops alone; the run itself goes the one way that eager execution goes. That is a trial, which leaves
nothing behind: it ends ahead of a draw, a change of a tensor outside and all else that a child
refuses, and Python values that changed are put back (`autograd/python_state.py`). Where it ended,
or a gradient goes through what is closed over, a branch is taken with a guard, as `if` is. A loop
is its turns for a gradient; else it is refused, since these may be many. In `abstract` recordings
all run once only for their shapes.
"""

import contextlib
from collections.abc import Callable

from probtorch.autograd.python_state import PythonState
from probtorch.compiler.graph import GraphValue, Node
from probtorch.compiler.record.demands import Demands
from probtorch.compiler.record.long_loops import final_state
from probtorch.compiler.record.recording import Recording, TrialEnded
from probtorch.core.dispatch import grad_enabled, set_recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import user_frame, user_location
from probtorch.ops.control import check_same_state, while_loop

__all__ = ["Subgraphs"]


class Subgraphs(Demands):
    """A recording that takes loops and branches whole; `_record_apart` records another function."""

    records_loops = True
    _record_apart: Callable[..., tuple[Recording, Tree]]

    def _child(self, fn, items, structure, op, taken=False):
        """Record `fn` on copies of `items`; returns (recorder, output tensors, their structure).

        `taken` is whether eager execution would run it on the very same. Unless only shapes count,
        this is a trial: it ends, with TrialEnded, ahead of what a subgraph cannot express.
        """
        child = type(self)(frozen=self.frozen, abstract=self.abstract, parent=self)
        child.is_trial = not self.abstract
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
        except TrialEnded:
            child.ended = True
        finally:
            set_recorder(before)
            self.told += child.told + child.unsupported
            self.unsupported += child.unsupported if self.abstract else []
        flows = not child.ended and self._flows(out)
        if child.ended or (child.is_trial and (child.unsupported or flows)):
            self._end()
        self.prints += child.prints
        return child, out, out_structure

    def _end(self):
        """End a trial, also where the user's code catches the error that does so."""
        self.ended = True
        raise TrialEnded("a trial within, or more than its operations")

    def _try(self, run, *fns):
        """Have functions run for their operations alone, by ``run()``. What they change in Python
        is put back, and ends the trial.

        Returns the error that it ended with, None where it did not; one within another ends both.
        """
        if self.abstract:
            return run()
        around, prints, error = PythonState(*fns), len(self.prints), None
        try:
            run()
        except Exception as e:
            error = e
        finally:
            changed = around.put_back()
        if changed:
            self.told.append(("a change of a Python value in a loop's body", user_location(2)))
            error = TrialEnded("a change of a Python value")
        if error is not None:
            del self.prints[prints:]
            if self.is_trial:
                self.ended = self.ended or isinstance(error, TrialEnded)
                raise error
        return error

    def _refused(self, reasons, cond_fn, body_fn, items, structure):
        """Refuse a loop, which Python takes with nobody listening: its turns may be many."""
        self.unsupported += reasons
        with _unheard():
            return while_loop(cond_fn, body_fn, unflatten(structure, items))

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

    def while_loop(self, cond_fn, body_fn, items, structure):
        """Record `while_loop` as one node; see ops/control.py. NotImplemented where its turns are
        to be those that Python takes.
        """
        told, entered, parts = len(self.told), True, []

        def run():
            nonlocal entered
            parts.append(self._child(cond_fn, items, structure, "while_loop"))
            entered = self.abstract or bool(parts[0][1][0].array)
            parts.append(self._child(body_fn, items, structure, "while_loop"))

        error = self._try(run, cond_fn, body_fn)
        if error is not None:
            if not entered and not isinstance(error, TrialEnded):
                self._untaken("a loop that is not entered, with a body", error)
                return unflatten(structure, [wrap(x.array.copy(order="K")) for x in items])
            reasons = self.told[told:]
            if entered and reasons and not _reaches_tape(cond_fn, body_fn):
                return self._refused(reasons, cond_fn, body_fn, items, structure)
            return NotImplemented
        (test, *_), (body, after, after_structure) = parts
        check_same_state(
            "while_loop",
            [x.array for x in items],
            [x.array for x in after],
            structure == after_structure,
        )
        if self.abstract:
            out = [wrap(x.array) for x in after]
        else:
            with _unheard():
                found, spared = final_state(
                    cond_fn, body_fn, items, structure, (test, body), self._record_apart
                )
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
        """Record `cond` as one node; see ops/control.py. NotImplemented where the branch is to be
        the one way that Python goes.
        """
        branches = {"then": true_fn, "else": false_fn}
        order = list(branches) if bool(pred.array) else list(branches)[::-1]
        done = {}

        def run():
            for key in order:
                body, taken = _spread(branches[key]), key == order[0]
                done[key] = self._child(body, items, structure, "cond", taken=taken)

        error = self._try(run, true_fn, false_fn)
        if error is not None:
            if isinstance(error, TrialEnded) or not done:
                return NotImplemented
            self._untaken("a branch not taken", error)
            _, out, out_structure = done[order[0]]
            return unflatten(out_structure, [wrap(x.array.copy(order="K")) for x in out])
        (yes, yes_out, yes_structure), (no, no_out, no_structure) = done["then"], done["else"]
        check_same_state(
            "cond",
            [x.array for x in yes_out],
            [x.array for x in no_out],
            yes_structure == no_structure,
        )
        out = [wrap(x.array.copy(order="K")) for x in done[order[0]][1]]
        inputs = [self.value_of(pred), *(self.value_of(x) for x in items)]
        self._attach("cond", inputs, (yes, no), out, {"then": yes, "else": no})
        return unflatten(yes_structure, out)


def _spread(fn):
    """Return `fn` as a function of the tuple of its arguments."""
    return lambda arguments: fn(*arguments)


def _reaches_tape(*fns):
    """Whether what functions reach by name may need a gradient."""
    return grad_enabled() and any(t.requires_grad for t in PythonState(*fns).tensors)


@contextlib.contextmanager
def _unheard():
    """Context manager: nobody listens."""
    before = set_recorder(None)
    try:
        yield
    finally:
        set_recorder(before)
