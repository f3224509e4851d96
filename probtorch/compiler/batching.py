"""A recorded graph on many points at once: `batch_graph`, and `BatchedDensity` made of it.

`batch_graph` walks through a graph once more, in Tensor ops with a batch dim in front of
whatever depends on an input that has one; the rest is computed once. The rules are those of `vmap`
(autograd/batching.py). The function is not run again, so nothing is asked of it that recording did
not ask. Where a guard was, the result says for each point whether it holds. A native loop whose
test differs between points runs until all are done, and finished points keep their state; of a
branch both sides are computed.

`BatchedDensity` records that walk anew and compiles it: one native call for a block of points.
Several blocks are given to several threads.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from probtorch.autograd.batching import batched, spread
from probtorch.autograd.modes import no_grad
from probtorch.compiler.graph import GraphValue, path_key
from probtorch.compiler.native.interrupts import raise_pending
from probtorch.compiler.native.threads import get_num_threads, occupied
from probtorch.compiler.paths import Compiled, Paths
from probtorch.compiler.record.record import OUTSIDE, record, recording_lock, unheard
from probtorch.compiler.run.prepare import prepare
from probtorch.core.dispatch import apply, wrap
from probtorch.errors import CompileError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isnan, logical_and, signbit
from probtorch.ops.control import cond, while_loop
from probtorch.ops.extremes import argmax
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import any as any_

__all__ = ["BatchedDensity", "batch_graph", "uneven_loop"]

LARGEST_BLOCK = 256
# For fewer points a call for each costs less than the way to native code and back with a block.
FEWEST = 8
# Paths compiled for blocks; points on any other are evaluated one by one.
MAX_PATHS = 8


def batch_graph(graph, flags, size):
    """Return a function that runs a recorded graph on `size` points at once.

    Parameters
    ----------
    graph : Graph
        As recorded, before the passes.
    flags : sequence of bool
        Which inputs have a batch dim in front; the others are the same for all points.
    size : int

    Returns
    -------
    callable
        From the inputs to ``(outputs, fits)``: tensors with a batch dim in front, and a boolean
        tensor of shape (size,), whether all guards hold at that point, None if there are none.
    """

    def run(*inputs):
        walk = _Walk(graph, list(zip(inputs, flags, strict=True)), size)
        outs = [spread(t, flag, size) for t, flag in walk.outputs()]
        return outs, walk.fits

    return run


class _Walk:
    """One walk through a graph; each value is a tensor and whether it has the batch dim."""

    def __init__(self, graph, inputs, size, within=False):
        self.graph, self.size, self.within = graph, size, within
        self.fits = None
        self._made = {v.id: pair for v, pair in zip(graph.inputs, inputs, strict=True)}
        for node in graph.nodes:
            self._node(node)

    def outputs(self):
        """Return the results as pairs."""
        return [self._value(v) for v in self.graph.outputs]

    def _value(self, x):
        if type(x) is not GraphValue:
            return x, False
        found = self._made.get(x.id)
        if found is None:
            found = self._made[x.id] = (x.array if x.kind == "ref" else wrap(x.array)), False
        return found

    def _node(self, node):
        pairs = [self._value(x) for x in node.inputs]
        if node.name == "guard":
            t, flag = pairs[0]
            self._guard(t, flag, node.attrs["value"])
            return
        if node.name == "demand" and node.inputs[0] is node.inputs[1] and not self.within:
            # In a loop or branch it ends the run of the whole block, whose points are then
            # evaluated one by one.
            t, flag = pairs[0]
            holds = reshape(t, (self.size, -1) if flag else (-1,))
            self._guard(every(holds, -1), flag, True)
            return
        if node.name in ("while", "cond"):
            found = (self._loop if node.name == "while" else self._branch)(node, pairs)
        else:
            tensors, flags = zip(*pairs, strict=True)
            flag = any(flags)
            if flag:
                out = batched(node.op, tensors, flags, node.attrs, self.size)
            else:
                out = apply(node.op, tensors, node.attrs)
            found = [(t, flag) for t in (out if type(out) is tuple else (out,))]
        self._made.update((v.id, pair) for v, pair in zip(node.outs, found, strict=True))

    def _guard(self, t, flag, value):
        """Note at which points Python would have seen the same value."""
        t = reshape(t, (self.size,) if flag else ())
        if value != value:
            holds = isnan(t)
        else:
            holds = eq(t, value)
            if type(value) is float and value == 0.0:
                negative = signbit(t)
                holds = logical_and(holds, negative if np.signbit(value) else ~negative)
        holds = spread(holds, flag, self.size)
        self.fits = holds if self.fits is None else logical_and(self.fits, holds)

    def _within(self, graph, inputs):
        return _Walk(graph, inputs, self.size, within=True).outputs()

    def _loop(self, node, pairs):
        test, body = node.attrs["cond"], node.attrs["body"]
        for_test, for_body = node.attrs["counts"]
        count = len(pairs) - for_test - for_body
        state, rest = pairs[:count], pairs[count:]
        for_test, for_body = rest[:for_test], rest[for_test:]
        flags, differs = _loop_flags(node, [f for _, f in pairs])

        def going(tensors):
            return self._within(test, [*zip(tensors, flags), *for_test])[0]

        def more(tensors):
            t, flag = going(tensors)
            return any_(t) if flag else t

        def step(tensors):
            given = tensors
            if differs:
                # Points that are done take the state of one that is not: theirs may be where the
                # body cannot be evaluated, such as past the end of a series.
                mask = reshape(going(tensors)[0], (self.size,))
                other = argmax(where(mask, 1, 0))
                given = [_masked(mask, t, t[other]) for t in tensors]
            pairs = self._within(body, [*zip(given, flags), *for_body])
            after = [spread(t, f, self.size) if to else t for (t, f), to in zip(pairs, flags)]
            if not differs:
                return after
            return [_masked(mask, a, b) for a, b in zip(after, tensors, strict=True)]

        init = [spread(t, f, self.size) if to else t for (t, f), to in zip(state, flags)]
        return list(zip(while_loop(more, step, init), flags, strict=True))

    def _branch(self, node, pairs):
        (pred, differs), rest = pairs[0], pairs[1:]
        for_then, for_else = node.attrs["counts"]
        count = len(rest) - for_then - for_else
        items, captured = rest[:count], rest[count:]
        flags = _flags(node, [f for _, f in pairs])
        sides = (
            (node.attrs["then"], captured[:for_then]),
            (node.attrs["else"], captured[for_then:]),
        )

        def side(number, tensors):
            graph, more = sides[number]
            given = [(t, f) for t, (_, f) in zip(tensors, items, strict=True)]
            found = self._within(graph, [*given, *more])
            return [spread(t, f, self.size) if to else t for (t, f), to in zip(found, flags)]

        tensors = [t for t, _ in items]
        if differs:
            mask = reshape(pred, (self.size,))
            yes, no = side(0, tensors), side(1, tensors)
            out = [_masked(mask, a, b) for a, b in zip(yes, no, strict=True)]
        else:
            out = cond(pred, lambda *xs: side(0, xs), lambda *xs: side(1, xs), *tensors)
        return list(zip(out, flags, strict=True))


def _masked(mask, yes, no):
    """Return `yes` at the points where the mask holds, else `no`."""
    return where(reshape(mask, (*mask.array.shape, *(1,) * (yes.array.ndim - 1))), yes, no)


def _flags(node, flags):
    """Return which outputs of a node depend on the batch, given which inputs do."""
    if node.name == "while":
        return _loop_flags(node, flags)[0]
    if node.name != "cond":
        return [any(flags)] * len(node.outs)
    for_then, for_else = node.attrs["counts"]
    count = len(flags) - 1 - for_then - for_else
    items, captured = flags[1 : 1 + count], flags[1 + count :]
    yes = _graph_flags(node.attrs["then"], [*items, *captured[:for_then]])
    no = _graph_flags(node.attrs["else"], [*items, *captured[for_then:]])
    return [flags[0] or a or b for a, b in zip(yes, no, strict=True)]


def _loop_flags(node, flags):
    """Return which states of a loop depend on the batch in any turn, and whether its test does."""
    for_test, for_body = node.attrs["counts"]
    count = len(flags) - for_test - for_body
    state, rest = list(flags[:count]), flags[count:]
    while True:
        (differs,) = _graph_flags(node.attrs["cond"], [*state, *rest[:for_test]])
        after = _graph_flags(node.attrs["body"], [*state, *rest[for_test:]])
        grown = [a or b or differs for a, b in zip(state, after, strict=True)]
        if grown == state:
            return state, differs
        state = grown


def _followed(graph, known):
    """Yield each node, with which of its inputs depend on the batch; extends what is `known`."""
    for node in graph.nodes:
        given = [known.get(x.id, False) if type(x) is GraphValue else False for x in node.inputs]
        known.update((v.id, f) for v, f in zip(node.outs, _flags(node, given)))
        yield node, given


def _given(graph, flags):
    return {v.id: f for v, f in zip(graph.inputs, flags, strict=True)}


def _graph_flags(graph, flags):
    known = _given(graph, flags)
    for _ in _followed(graph, known):
        pass
    return [known.get(v.id, False) for v in graph.outputs]


def uneven_loop(graph, flags):
    """Return the first loop whose test depends on the batch, None if there is none."""
    for node, given in _followed(graph, _given(graph, flags)):
        below = []
        if node.name == "while":
            for_test, _ = node.attrs["counts"]
            state, differs = _loop_flags(node, given)
            if differs:
                return node
            below = [(node.attrs["body"], [*state, *given[len(state) + for_test :]])]
        elif node.name == "cond":
            # What a branch is given matters little: a loop in it is rare, and no wrong answer.
            below = [
                (side, [True] * len(side.inputs))
                for side in (node.attrs["then"], node.attrs["else"])
            ]
        for inner, inner_flags in below:
            found = uneven_loop(inner, inner_flags)
            if found is not None:
                return found
    return None


# -------------------------------------------------------------------------------------- the density


class BatchedDensity(Compiled):
    """A `NativeDensity` on many points at once: one native call per block of them.

    Parameters
    ----------
    density : NativeDensity

    Attributes
    ----------
    reason : (str, str) or None
        Why points are evaluated one by one, with the user's line, if they are.

    Notes
    -----
    A density with branches on data has a program per path, as it has for single points; a point is
    given to each until one fits, and is evaluated by `density` itself if none does. Points where
    native code gives up (a matrix that is not positive definite) go there too, their block with
    them. A density with a loop that takes as many turns as the point asks for (an adaptive ODE
    solver) is evaluated point by point.
    """

    def __init__(self, density):
        self.density, self.name = density, density.name
        self.paths = Paths(self.name, limit=MAX_PATHS, quiet=True)  # by block size
        self.paths.reason = density.reason
        self._full = set()  # block sizes that get no more paths

    def executables(self):
        """Return what its paths run."""
        return [path.program for path in self.paths]

    def value_and_grad(self, q):
        """Evaluate at the rows of an array.

        Parameters
        ----------
        q : array, shape (points, dim)

        Returns
        -------
        values : ndarray, shape (points,)
        gradients : ndarray, shape (points, dim)
        """
        q = np.ascontiguousarray(q, np.float64)
        if q.ndim != 2 or q.shape[1] != self.density.dim:
            raise ShapeError(
                self.density.name,
                expected=f"points of shape (points, {self.density.dim})",
                got=str(q.shape),
                fix="stack the points along dim 0",
            )
        count = len(q)
        values, gradients = np.empty(count), np.empty(q.shape)
        left, failed = np.arange(count), []
        if count >= FEWEST and self.reason is None and self.density.device is None:
            size = _block_size(count)
            for path in self.paths.of(size):
                left = path.evaluate(q, left, values, gradients, failed)
            while left.size > 1 and self._extend(size, q[left[0]]):
                left = self.paths.of(size)[-1].evaluate(q, left, values, gradients, failed)
        for i in (*left, *failed):
            values[i], gradients[i] = self.density.value_and_grad(q[i])
        return values, gradients

    def _extend(self, size, point):
        """Compile the path that `point` is on for blocks; returns whether it is a new one."""
        paths = self.paths
        if self.reason is not None or paths.are_full(size) or size in self._full:
            return False
        try:
            with recording_lock, unheard():
                rec = self.density.recorded(point)[0]
                key = path_key(rec.graph)
                if rec.unsupported or rec.device() is not None:
                    paths.give_up(*(rec.unsupported or [("it runs on a GPU", "")])[0])
                elif paths.know(key, size):
                    # Rounding decides which path that point is on; it is not worth more runs.
                    self._full.add(size)
                elif (uneven := uneven_loop(rec.graph, (True,))) is not None:
                    # In step with each other all points would wait for the slowest, and each
                    # turn would copy the states of those that are done: 200 times slower for an
                    # ODE solver with steps of its own for each point.
                    what = "a loop that takes as many turns as the point asks for"
                    paths.give_up(what, uneven.place)
                else:
                    paths.add(_BlockPath(rec.graph, size, point), size, key)
                    return True
        except CompileError as e:
            paths.give_up_refused(e)
        except OUTSIDE:
            pass  # outside of where the model can be evaluated
        return False


class _BlockPath:
    """One path of a density, compiled for blocks of points."""

    def __init__(self, graph, size, point):
        self.size = size
        run = batch_graph(graph, (True,), size)
        self.guarded = False

        def whole(q):
            outs, fits = run(q)
            self.guarded = fits is not None
            return [*outs, fits] if self.guarded else outs

        # Only shapes count, so loops need not be run.
        with no_grad(), np.errstate(all="ignore"):
            rec, _ = record(whole, [wrap(np.tile(point, (size, 1)))], abstract=True)
        if rec.unsupported:
            reason, location = rec.unsupported[0]
            raise CompileError(
                "a block of points", expected="native code", got=reason, fix=location
            )
        self.program = prepare(rec.graph)
        self._frames = []

    def evaluate(self, q, rows, values, gradients, failed):
        """Evaluate at some rows of `q`; returns those on another path, and adds to `failed` those
        where native code gave up.
        """
        if not rows.size:
            return rows
        blocks = [rows[i : i + self.size] for i in range(0, len(rows), self.size)]
        workers = min(len(blocks), get_num_threads())
        while len(self._frames) < workers:
            self._frames.append(self.program.bind())

        def work(number):
            with occupied():
                return [
                    self._block(self._frames[number], q, block, values, gradients, failed)
                    for block in blocks[number::workers]
                ]

        if workers == 1:
            left = work(0)
        else:
            with ThreadPoolExecutor(workers) as pool:
                left = [rest for part in pool.map(work, range(workers)) for rest in part]
        return np.sort(np.concatenate(left))

    def _block(self, frame, q, rows, values, gradients, failed):
        count = len(rows)
        # A short block is filled up with its last point.
        points = q[rows] if count == self.size else q[np.resize(rows, self.size)]
        outs = frame.new_outputs()
        if frame.run([points], outs):
            raise_pending()
            failed.extend(rows.tolist())
            return rows[:0]
        values[rows], gradients[rows] = outs[0][:count], outs[1][:count]
        return rows[~outs[2][:count]] if self.guarded else rows[:0]


def _block_size(count):
    """Size of the blocks for so many points: a power of two, for few sizes to be compiled."""
    return min(LARGEST_BLOCK, 1 << (count - 1).bit_length())
