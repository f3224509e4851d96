"""`NativeDensity`: a log density and its gradient as a C function, with eager Python behind it.

    double density(const double *q, double *grad, void *context)

Without a place for the gradient (null) it is the value alone, of paths of their own: `values` is
the same density without a backward pass, compiled when it is first asked for.

`context` is one thread's table of paths. A path is what one recorded run was compiled to, guarded
by what Python saw. The C function tries the paths, the last one that fitted first; when none fits
it calls back: that point is evaluated eagerly, which is also a recording, and the new path joins
the table. So a branch on data in a model is never frozen. What cannot be compiled at all is
evaluated by the same callback every time, after one warning that names the user's line.

Paths that have no C function, those of data on a GPU, are tried in the callback: point and gradient
cross to the GPU and back, which is worth it where the data are many.
"""

import contextlib
import math
import time

import numpy as np

from probtorch.autograd.kept_inputs import sparing
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.backends.registry import device_of, is_available, to_device
from probtorch.compiler.batching import BatchedDensity
from probtorch.compiler.density_context import DensityContext
from probtorch.compiler.graph import path_key
from probtorch.compiler.paths import (
    SWITCHED_OFF,
    TOO_MANY_NUMBERS,
    Compiled,
    Paths,
    tell_of_prints,
)
from probtorch.compiler.record import rolling
from probtorch.compiler.record.record import (
    OUTSIDE,
    Recorder,
    keeping_all,
    record,
    recording_lock,
    unheard,
)
from probtorch.compiler.record.turns import length
from probtorch.compiler.render.runtime.replays import COUNT
from probtorch.compiler.rounding import OtherRounding, moved
from probtorch.compiler.run.prepare import prepare
from probtorch.compiler.verify import (
    ComparisonCosts,
    ReplayError,
    coarsest,
    difference,
    unshown,
)
from probtorch.config import settings
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.making import as_tensor
from probtorch.errors import ArgumentError, CompileError, DeviceError

__all__ = ["DensityContext", "NativeDensity"]

# Paths from which on a density is said to have many: each takes about as long to compile as the
# first, and a branch on a latent value in a loop has one for each turn.
MANY_PATHS = 16
_FICKLE = (
    "it gives another value each time at the same point: it draws from a generator that is not "
    "probtorch's, reads on in a file, or counts"
)
_FROM_PYTHON = "a Python function was given", ""


class NativeDensity(Compiled):
    """A log density on R^dim and its gradient, compiled path by path.

    Parameters
    ----------
    fn : callable
        From a float64 Tensor of shape (dim,) to a 0-d Tensor, the log density up to a constant.
    dim : int
    name : str
        Used in messages.
    check : optional
        Has ``due()``, and if that holds is told of an evaluation: ``before(density, q)`` and, when
        there is compiled code, ``after(density, q)``; what it raises, the evaluation raises. In
        between, ``differs(value)`` says whether the recording gave another value.

    Attributes
    ----------
    of_values : NativeDensity or None
        None of a density of values alone, whose gradients are None.

    Notes
    -----
    Tensors that `fn` finds outside its argument are constants of the compiled code. If they are on
    a GPU, `fn` is given points there, and is evaluated there; chains on threads take turns.
    """

    def __init__(self, fn, dim, *, name="the log density", check=None):
        self.fn, self.dim, self.name, self.check = fn, dim, name, check
        self.paths = Paths(name)
        # Of the shortest floats that it computes with; and whether results have many elements.
        self._size, self._large = 8, False
        self.device = None  # where `fn` is evaluated, if not on the host
        self.evaluations = 0
        self.seconds = 0.0
        self.costs = ComparisonCosts()
        self._own = self._many = None  # a context of its own, and the density of many points
        self._loops = None  # of the run at hand: the function with its Python loops rolled
        self._rolls = True  # whether Python's loops are rolled: turn by turn where that failed
        self._python = None
        self._whole = None  # of a density of values alone: the one with the gradient
        self.of_values = None
        if not settings.jit:
            self.paths.reason = SWITCHED_OFF

    @classmethod
    def from_python(cls, value_and_grad, dim, *, name="the log density"):
        """Wrap ``value_and_grad(q) -> (float, array)`` on NumPy arrays; every evaluation calls back
        into Python.
        """
        self = cls(None, dim, name=name)
        self._python, self.paths.reason = value_and_grad, _FROM_PYTHON
        return self

    def _told(self):
        """Whether the density with the gradient is eager, and has said why."""
        return self._whole is not None and self._whole.reason is not None

    def _values(self):
        """The density of values alone, for all contexts."""
        if self.of_values is None:
            self.of_values = NativeDensity(self.fn, self.dim, name=self.name)
            self.of_values.paths.quiet = True  # why it is eager is told by this one
            self.of_values._whole = self
            if self._python is not None:
                self.of_values._python, self.of_values.paths.reason = self._python, _FROM_PYTHON
        return self.of_values

    def __getstate__(self):
        # Compiled code is addresses: it is made anew where it is wanted.
        return self.fn, self.dim, self.name, self.check, self._python

    def __setstate__(self, state):
        fn, dim, name, check, python = state
        NativeDensity.__init__(self, fn, dim, name=name, check=check)
        if python is not None:
            self._python, self.paths.reason = python, _FROM_PYTHON

    def context(self):
        """Return a `DensityContext`, one thread's memory; keep it alive while it may be called."""
        return DensityContext(self)

    def value_and_grad(self, q):
        """Return ``(log density, gradient)`` at an array q, natively where a path fits."""
        if self._own is None:
            self._own = self.context()
        return self._own.value_and_grad(q)

    def value_and_grad_many(self, q):
        """Return ``(log densities, gradients)`` at the rows of an array, a native call per block.

        It compiles the density once more, for blocks of up to 256 points, which takes a few times
        as long as for one; see `BatchedDensity`.
        """
        if self._many is None:
            self._many = BatchedDensity(self)
        return self._many.value_and_grad(q)

    # ------------------------------------------------------------------------- evaluation in Python

    def eager(self, q):
        """Evaluate at an array, without compiling; returns ``(float, array)``."""
        if self._python is not None:
            value, g = self._python(q)
            return float(value), None if self._whole is not None else np.asarray(g, np.float64)
        began = time.thread_time()
        try:
            with enable_grad(), np.errstate(all="ignore"), sparing(self._large):
                value, *g = self._placed(lambda: self._evaluate(wrap(q)))
        finally:
            self.costs.eager = time.thread_time() - began
        return float(value.array), g[0].array if g else None

    def _placed(self, evaluate):
        """Call ``evaluate()``, again with points on the GPU if the density needs them there."""
        try:
            return evaluate()
        except DeviceError:
            if self.device is not None or not is_available("cuda"):
                raise
            self.device = device_of(to_device(np.zeros(1), "cuda"))
            return evaluate()

    def _record(self, point):
        """Record the function and its gradient at a 1-d tensor; returns `record`'s result."""
        rec = Recorder()
        return record(lambda q: self._evaluate(q, rec), [point], recorder=rec, turns=self._rolls)

    def _evaluate(self, q, rec=None):
        """Return value and gradient at a 1-d tensor, of which `rec` is the recording, if any; of a
        density of values a tuple with the value.
        """
        q.requires_grad = self._whole is None
        try:
            value = as_tensor(self.fn(q if self.device is None else q.to(self.device)), self.name)
        except OUTSIDE as error:
            if rec is None or not rec.is_due_to_guard(error):
                raise
            # Every point that comes to this line is outside, too: a path as any other.
            value = wrap(np.array(-math.inf))
        if value.array.shape != ():
            raise ArgumentError(
                self.name,
                expected="a 0-d tensor",
                got=f"shape {value.array.shape}",
                fix="sum the terms of the log density",
            )
        value = cast(value, float64)
        if rec is not None:
            rec.settle(value)
        long = rec is not None and length(rec.graph) >= rolling.MIN_NODES
        worth_it = value.requires_grad or self._whole is not None or (rec and rec.graph.guards)
        # Loops carry out the nodes again, on the tape.
        same = rec is not None and (not rec.rejoined or self._whole is not None)
        if long and self._rolls and worth_it and same:
            # Before the backward pass, which would be as long again.
            with contextlib.suppress(Exception):  # what cannot be rolled stays as it is
                self._loops = rolling.rolled(rec.forward(value))
            if self._loops is not None:
                return value.detach(), wrap(np.full(self.dim, math.nan))
        if rec is not None:
            rec.expand()
        return self._with_gradient(value, q)

    def _with_gradient(self, value, q):
        if self._whole is not None:
            return (value.detach(),)
        if not value.requires_grad:
            return value, wrap(np.zeros(self.dim))
        (g,) = grad(value, q, materialize_grads=True)
        return value.detach(), g

    def recorded(self, q):
        """Evaluate eagerly while recording, with Python's loops over time rolled.

        Returns
        -------
        rec : Recorder
            Its graph gives value and gradient.
        value, g : Tensor
            `g` is None of values alone.
        rolled : bool
            Whether there are loops in the graph; then `g` is nan.
        """
        point = wrap(np.array(q))
        self._loops = None
        with np.errstate(all="ignore"):
            rec, (value, *found) = self._placed(lambda: self._record(point))
            self._large |= rec.large
            g = found[0] if found else None
            loops, self._loops = self._loops, None
            if loops is not None:
                again = self._rolled(rec, loops, q)
                if again is None:
                    self._rolls = False
                    return self.recorded(q)
                rec = again
        return rec, value, g, loops is not None

    def _extend(self, q):
        """Evaluate eagerly while recording, and compile the path if it is new; returns ``(float,
        array)``.
        """
        start, known, began = time.perf_counter(), len(self.paths), time.thread_time()
        rec, value, g, rolled = self.recorded(q)
        self.costs.eager = time.thread_time() - began
        fickle = self.check is not None and self.check.differs(float(value.array))
        number = self.paths.restless_number(rec.graph.guards)
        if rec.unsupported:
            self.paths.give_up(*rec.unsupported[0])
        elif fickle:
            self.paths.give_up(_FICKLE)
        elif number is not None:
            self.paths.give_up(TOO_MANY_NUMBERS, number.place)
        elif self.paths.are_full():
            if value.array == -math.inf:
                return -math.inf, np.zeros(self.dim)
            self.paths.give_up_full(rec.graph)
        elif not self.paths.know(key := path_key(rec.graph)):
            try:
                self._compile(rec, key, q)
                tell_of_prints(self.name, rec.prints)
                self._tell_of_paths(rec.graph)
            except CompileError as e:
                if rolled:
                    self._rolls = False
                    return self._extend(q)
                self.paths.give_up_refused(e)
        self.seconds += time.perf_counter() - start
        if rolled and len(self.paths) == known:
            return self.eager(np.array(q))  # there is no gradient yet
        return float(value.array), None if g is None else np.array(g.array, np.float64)

    def _tell_of_paths(self, graph):
        """Warn once where so many points took a way of their own that it is a matter of time."""
        if len(self.paths) != MANY_PATHS or self._whole is not None or not graph.guards:
            return
        self.paths.warn_of_many(graph.guards[-1][2].place, self.seconds)

    def _rolled(self, rec, loops, q):
        """Record a function with loops, gradient and all; returns the recorder, None where the
        loops cannot be had, which is no error of the user's.
        """

        def evaluate(point):
            point.requires_grad = self._whole is None
            return self._with_gradient(loops(point)[0], point)

        # Without guards only shapes count, and the loops need not be run.
        abstract = not rec.graph.guards
        try:
            again, _ = self._placed(
                lambda: record(evaluate, [wrap(np.array(q))], abstract=abstract)
            )
        except Exception:
            return None
        if again.unsupported and not rec.unsupported:
            return None
        again.unsupported = rec.unsupported
        return again

    def _compile(self, rec, key, q):
        """Compile a path for the device that it was recorded on, at the point `q`."""
        size = coarsest(rec.graph)
        results = ["cpu"] * (2 if self._whole is None else 1)
        program = prepare(rec.graph, [self.device or rec.device()], results)
        program.keep([np.array(q)])
        self._size = min(self._size, size)
        self.paths.add(program, guards=key)

    def verify(self, q, context):
        """Compare the native answer at an array with Python's; see `verify`.

        Raises
        ------
        ReplayError
            If they differ. All further points are evaluated in Python.
        """
        self._verify(q, context)
        if context.of_values is not None:
            context.of_values.density._verify(q, context.of_values)

    def _verify(self, q, context):
        if not settings.verify or not context.table[COUNT] or self._python is not None:
            return
        before = self.evaluations
        value, g = context.native(q)

        def again(seed):
            with unshown(), OtherRounding(seed):
                return [x for _, x in _named(*self._rejecting(moved(q, seed, self._size)))]

        with recording_lock, unheard():
            if self.evaluations != before:
                return  # it was Python's
            eager = self._rejecting(np.array(q))
            if not (math.isfinite(value) or math.isfinite(eager[0])):
                return
            what = difference(_named(value, g), _named(*eager), again, self._size)
            if what is None:
                return
            self.paths.give_up_wrong(what)
            context.forget()
        raise ReplayError(self.name, f"{what}, at {q}", "the first evaluation")

    def _rejecting(self, q):
        """Evaluate in Python; -inf where the model cannot be evaluated."""
        try:
            return self.eager(q)
        except OUTSIDE:
            return -math.inf, np.zeros(self.dim)

    def evaluate(self, q, context):
        """Evaluate where no path of the context fitted; None if it has one for `q` by now."""
        # The program that called may be recording itself, or run with gradients switched off.
        with recording_lock, unheard():
            self.evaluations += 1
            check = self.check
            if check is None or not check.due():
                return self._evaluated(q, context)
            with keeping_all():
                check.before(self, np.array(q))
                out = self._evaluated(q, context)
            check.after(self, np.array(q))
            return out

    def _evaluated(self, q, context):
        """Evaluate where the device is, eagerly or natively; see `evaluate`."""
        known = len(self.paths)
        if context.bound < known:
            context.bind()
            return context.called(q)
        found = context.called(q)
        if found is not None:
            return found
        if self.reason is not None or self._told():
            return self.eager(np.array(q))
        out = self._extend(q)
        context.bind()
        # A new path answers natively: results must not depend on who met it first.
        return out if len(self.paths) == known else context.called(q)

    def forget(self):
        """Drop what was compiled, so that the next evaluation is like the first."""
        self.paths.clear()
        self._own = None
        if self.of_values is not None:
            self.of_values.forget()


def _named(value, g):
    found = [("the log density", np.asarray(value, np.float64))]
    return found if g is None else [*found, ("its gradient", np.asarray(g))]
