"""How the results of a call hang together on the tape: `Ties`.

A call of a compiled function is one entry on the tape, which knows how its results depend on what
went in, and not how one depends on another. Eagerly all of that is on the tape: a leaf that the
call makes and returns is a leaf, and whoever returns ``(features, loss)`` can ask for the gradient
of the loss in the features. Who asks that makes the function eager. The first results, which are
Python's own, know the answer; calls whose results are later ones are unfolded (unfolding.py).
"""

from probtorch.compiler.record.gradients import is_spent
from probtorch.core.history import edge
from probtorch.core.tensor_base import TensorBase

__all__ = ["Ties"]


class Ties:
    """What the tape of a recorded call says of its results.

    Parameters
    ----------
    results : list of Tensor
        While they are on the tape of the recorded call.
    made_here : callable
        Whether a tensor was made in the call.

    Attributes
    ----------
    leaves : set of int
        Which of them are leaves that want a gradient, made in the call.
    inner : set of int
        Of which of them another one is made.
    kept : bool
        Whether one of them keeps its gradient.
    """

    def __init__(self, results, made_here):
        own = {id(t): i for i, t in enumerate(results) if t.requires_grad}
        ends = (i for i in own.values() if results[i].grad_fn is None)
        self.leaves = {i for i in ends if made_here(results[i])}
        self.kept = any("retained" in (results[i]._extra or ()) for i in own.values())
        self.inner = set()
        seen, todo = set(), [results[i].grad_fn for i in own.values()]
        todo = todo if len(own) > 1 else []
        while todo:
            node = todo.pop()
            if node is None or node in seen or node.inputs is None:
                continue
            seen.add(node)
            for t in node.inputs:
                if not isinstance(t, TensorBase):
                    continue
                before, index, _ = edge(t, node)
                if id(t) in own and before is t.grad_fn and index == t._index:
                    self.inner.add(own[id(t)])
                todo.append(before)

    def flow(self, results):
        """Whether gradients are to go through one of them: it is no leaf by itself, and its graph
        is still there.
        """
        return any(
            t.requires_grad and i not in self.leaves and not is_spent(t)
            for i, t in enumerate(results)
        )

    def obstacle(self):
        """Why no replay can leave such results; None where one can."""
        if self.leaves & self.inner:
            return "a leaf of the tape that it makes, returned with what is made of it"
        return "retain_grad() of a result" if self.kept else None

    def set_leaves(self, results):
        """Let results be the leaves that eager ones are."""
        for i in self.leaves:
            results[i].requires_grad = True

    def mark(self, results, asked):
        """Let `asked` be called where somebody asks a result of Python's own for its gradient, of
        which others are made.
        """
        for i in self.inner:
            t = results[i]
            if t.grad_fn is not None:
                t._extra = {**(t._extra or {}), "asked": asked}

    def mark_call(self, results, asked):
        """As `mark`, of the results of a call that is one entry on the tape: that refuses, unless
        `asked` says that the tape knows all of the gradient by now.
        """
        for i in self.inner:
            t = results[i]
            if t.grad_fn is not None:
                t.grad_fn.attrs.setdefault("inner", {})[t._index] = asked
