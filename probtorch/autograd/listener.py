"""`Listener`: a recorder that only watches.

The dispatcher hands every operation to the active recorder. The compiler's recorder builds a graph;
a listener notes something in passing (forward mode its tangents, anomaly mode the user's lines) and
hands everything on to the recorder that was active before it, so that listeners nest in each other
and inside a compiled function.
"""

from threading import get_ident

from probtorch.core.dispatch import recorder, set_recorder
from probtorch.core.printing import shown_at

__all__ = ["Listener"]


class Listener:
    """Base of recorders that watch; also a context manager that installs itself.

    Subclasses override `record` (and what else they need) and call ``super()`` to pass it on.
    """

    records_loops = False
    # Whether it changes nothing about what is done: what eager code checks is checked under it.
    only_watches = False

    def __init__(self):
        self.outer = None
        self.thread = get_ident()

    def __enter__(self):
        self.outer = recorder()
        set_recorder(self)
        return self

    def __exit__(self, *exc):
        set_recorder(self.outer)

    @property
    def pushes_tangents(self):
        """Whether forward mode is on here or further out."""
        return getattr(self.outer, "pushes_tangents", False)

    def fresh(self, t):
        """Hear of a new tensor with memory of its own."""
        if self.outer is not None:
            self.outer.fresh(t)

    def record(self, op, inputs, attrs, out):
        """Hear of one operation, after it was carried out and put on the tape."""
        if self.outer is not None:
            self.outer.record(op, inputs, attrs, out)

    def custom(self, function, ctx, inputs, outs):
        """Hear of a custom `Function`, whose inner operations were heard of one by one before."""
        if isinstance(self.outer, Listener):
            self.outer.custom(function, ctx, inputs, outs)

    def begins(self, function):
        """Hear that the forward pass of a custom `Function` begins."""
        told = getattr(self.outer, "begins", None)
        if told is not None:
            told(function)

    def ends(self, function):
        """Hear that it ended."""
        told = getattr(self.outer, "ends", None)
        if told is not None:
            told(function)

    def left(self, how, t, value):
        """Hear that Python takes `value` out of `t`; returns what it gets."""
        told = getattr(self.outer, "left", None)
        return value if told is None else told(how, t, value)

    def entered(self, value, t):
        """Hear that Python's `value` became the tensor `t`."""
        told = getattr(self.outer, "entered", None)
        if told is not None:
            told(value, t)

    def named(self, t, name):
        """Hear what messages call the tensor `t`."""
        told = getattr(self.outer, "named", None)
        if told is not None:
            told(t, name)

    def drawn(self, t):
        """Hear that no gradient is meant to pass the draw `t`."""
        told = getattr(self.outer, "drawn", None)
        if told is not None:
            told(t)

    def inplace(self, target, value):
        """Hear that `target` is about to take the elements of `value`."""
        if self.outer is not None:
            self.outer.inplace(target, value)

    def alias(self, source, t):
        """Hear that `t` has the elements of `source` but no gradient (detach)."""
        if self.outer is not None:
            self.outer.alias(source, t)

    def carry(self, source, t):
        """Hear that `t` is another name for `source`, gradient and all."""
        if self.outer is not None:
            getattr(self.outer, "carry", self.outer.alias)(source, t)

    def guard(self, t, value):
        """Hear that Python saw `value` in `t`."""
        if self.outer is not None:
            self.outer.guard(t, value)

    def printed(self, t):
        """Hear that Python reads `t`; returns "value" if only to show it to people, "shape" if its
        elements are not to be shown, "" if it may come back. Of what is shown nothing else is told.
        """
        if self.outer is not None:
            return self.outer.printed(t)
        return "" if shown_at() is None else "value"

    def gradient_kept(self, leaf):
        """Hear that a gradient was added to the `.grad` of `leaf`."""
        if self.outer is not None:
            self.outer.gradient_kept(leaf)

    def not_one(self, t, what):
        """Hear that Python asked for the one element of `t`, which has another number of them."""
        if isinstance(self.outer, Listener):
            self.outer.not_one(t, what)

    def gradient_read(self, t):
        """Hear that Python looks at the `.grad` of `t`."""
        if self.outer is not None:
            self.outer.gradient_read(t)

    def differentiated(self, leaf):
        """Hear that a gradient reached a leaf, before its hooks see it."""
        if self.outer is not None:
            self.outer.differentiated(leaf)

    def place_changed(self, t, what):
        """Hear that Python changes what a tensor is on the tape."""
        if self.outer is not None:
            self.outer.place_changed(t, what)

    def layout_read(self):
        """Hear that Python looks at how elements lie in memory."""
        if self.outer is not None:
            self.outer.layout_read()

    def data_dependent(self, what, t):
        """Hear of a result whose shape depends on the elements of `t`."""
        if self.outer is not None:
            self.outer.data_dependent(what, t)

    def draw(self, what, generator, count):
        """Hear of random draws; None lets the caller make them as it would without a recorder."""
        return None if self.outer is None else self.outer.draw(what, generator, count)

    def is_constant(self, t):
        """Whether the elements of `t` are the same at every replay of what is recorded."""
        return self.outer is None or self.outer.is_constant(t)

    def batched(self, t):
        """Whether `t` differs between the slices of a `vmap` around this."""
        return isinstance(self.outer, Listener) and self.outer.batched(t)

    def holds_somewhere(self, t):
        """Whether a boolean tensor with one element is true in any slice of the vmaps around."""
        if isinstance(self.outer, Listener) and self.outer.batched(t):
            return self.outer.holds_somewhere(t)
        return bool(t)

    def of_one_where(self, test, t):
        """Return `t` of one slice for which a test, which differs between slices, holds."""
        if isinstance(self.outer, Listener) and self.outer.batched(test):
            return self.outer.of_one_where(test, t)
        return t

    def demand(self, inside):
        """Hear of a test that each replay has to repeat; returns whether it holds."""
        return bool(inside._data.all()) if self.outer is None else self.outer.demand(inside)

    def demanded(self, t, constraint):
        """Whether `t` was tested for a constraint before; see `Recorder.demanded`."""
        return self.outer is not None and self.outer.demanded(t, constraint)

    def without_nan(self, t):
        """Whether it is seen to elsewhere that `t` has no nan."""
        return self.outer is not None and self.outer.without_nan(t)

    def failed(self, error):
        """Hear of the error that is raised because a demand failed; returns it."""
        return error if self.outer is None else self.outer.failed(error)

    def refuse(self, reason):
        """Hear of something that a replay could not repeat."""
        if self.outer is not None:
            self.outer.refuse(reason)
