"""`probtorch.compile`: any function of tensors, recorded, compiled and replayed, path by path.

A call with arguments of new shapes or dtypes, or one whose Python branches go another way, runs
eagerly and is recorded; the next call of that kind is one native call. Tensors that the function
finds outside its arguments are read anew at each call, and written to where it changes them in
place; random draws advance their generator as eagerly. Where a replay could be wrong (shapes that
depend on values, draws by rejection, gradients through the call) the function runs eagerly.
"""

import contextlib
import functools
import threading

import numpy as np

from probtorch.compiler.density import MAX_PATHS, warn_eager
from probtorch.compiler.executor import Program
from probtorch.compiler.explain import describe
from probtorch.compiler.record import record
from probtorch.config import settings
from probtorch.core.dispatch import grad_enabled, mark_changed, recorder, wrap
from probtorch.core.dtype import promotion_rules
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import CompileError

__all__ = ["CompiledFunction", "compile"]


def compile(fn=None):
    """Return a compiled version of `fn`; also a decorator.

    Parameters
    ----------
    fn : callable
        From trees of tensors (and hashable values, which select a version) to a tree of tensors and
        numbers.

    Returns
    -------
    CompiledFunction
        With `explain()` and `source()`.

    Notes
    -----
    Python side effects such as `print` happen only when a path is first met, and Python values that
    the function finds outside its arguments (globals, attributes) are what they were then. Results
    share no memory with arguments. Calls that need a gradient through the function run eagerly;
    take the gradient inside it (`autograd.grad`, `func.value_and_grad`) to have it compiled too.

    Examples
    --------
    >>> import probtorch
    >>> @probtorch.compile
    ... def f(x):
    ...     return (x * x).sum() if x[0] > 0 else x.exp().sum()
    >>> f(probtorch.tensor([1.0, 2.0]))
    tensor(5.)
    """
    return CompiledFunction(fn) if fn is not None else CompiledFunction


class _Path:
    """One native path: the program, how to rebuild its result, and the outside tensors it reads."""

    def __init__(self, program, rebuild, rec):
        self.program = program
        self.rebuild = rebuild
        self.refs = program.plan.refs
        self.signature = [(t._data.shape, t._data.dtype, t.requires_grad) for t in self.refs]
        self.updates = list(rec.updates.values())
        self.draws = rec.draws
        self.local = threading.local()
        # Draws and updates go through tensors that all threads share.
        self.lock = threading.Lock() if self.updates or self.draws else contextlib.nullcontext()

    def run(self, arrays):
        """Return ``(result,)``, or None where the path does not fit.

        It fits if every guard holds and the outside tensors are what they were: of the same shape
        and dtype, and in need of a gradient only if they were.
        """
        for t, (shape, dtype, wanted) in zip(self.refs, self.signature, strict=True):
            if t._data.shape != shape or t._data.dtype != dtype:
                return None
            if t.requires_grad and not wanted and grad_enabled():
                return None
        for t in self.updates:
            if any(np.may_share_memory(t._data, a) for a in arrays):
                return None
        binding = getattr(self.local, "binding", None)
        if binding is None:
            binding = self.local.binding = self.program.bind()
        with self.lock:
            before = self._draw()
            refs = [np.asarray(t._data, order="C") for t in self.refs]
            status, out = binding.run(arrays, refs)
            if status:
                for generator, state in before:
                    generator.set_state(state)
                return None
            kept = len(out) - len(self.updates)
            for t, x in zip(self.updates, out[kept:], strict=True):
                np.copyto(t._data, x)
                mark_changed(t)
        return (self.rebuild([wrap(x) for x in out[:kept]]),)

    def _draw(self):
        """Reserve this run's draws; returns the generators and the states they had before."""
        before = []
        for generator, count, seed, stream, first in self.draws:
            before.insert(0, (generator, generator.get_state()))
            words = (generator.initial_seed(), generator.stream, generator.advance(count))
            for t, word in zip((seed, stream, first), words, strict=True):
                t._data[...] = np.array(word, np.uint64).view(np.int64)
        return before


def _rebuild(structure, fixed):
    """Return the function that puts tensors back among the numbers of a result."""

    def rebuild(tensors):
        walk = iter(tensors)
        return unflatten(structure, [next(walk) if x is _TENSOR else x for x in fixed])

    return rebuild


_TENSOR = object()  # where a tensor stands among the leaves of a result
_FIXED = (bool, int, float, complex, str, bytes, type(None))


def _version(x):
    """Return what an argument means for the choice of a version."""
    if isinstance(x, TensorBase):
        return x._data.shape, x._data.dtype
    # 0.0 and -0.0 are equal, nan is not equal to itself: neither is what is meant here.
    return (type(x), x.hex()) if type(x) is float else (type(x), x)


def _apart(x, others):
    """Return `x`, or a copy if it may share memory with one of the arrays `others`."""
    shared = any(np.may_share_memory(x._data, a) for a in others)
    return wrap(np.array(x._data)) if shared else x


class CompiledFunction:
    """A function with its compiled paths; see `compile`."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.reason = None
        self._versions = {}

    def __call__(self, *args, **kwargs):
        if not settings.jit or recorder() is not None:
            return self.fn(*args, **kwargs)
        leaves, structure = flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, TensorBase)]
        if grad_enabled() and any(t.requires_grad for t in tensors):
            return self.fn(*args, **kwargs)
        key = (structure, tuple(map(_version, leaves)), grad_enabled(), promotion_rules())
        try:
            paths = self._versions.get(key, ())
        except TypeError:
            return self.fn(*args, **kwargs)
        if paths:
            arrays = [np.asarray(t._data, order="C") for t in tensors]
            for i, path in enumerate(paths):
                out = path.run(arrays)
                if out is not None:
                    if i:
                        self._versions[key] = [path, *(p for p in paths if p is not path)]
                    return out[0]
        if self.reason is not None:
            return self.fn(*args, **kwargs)
        return self._record(leaves, structure, tensors, key)

    def _record(self, leaves, structure, tensors, key):
        found = []

        def flat(*stand_ins):
            walk = iter(stand_ins)
            items = [next(walk) if isinstance(x, TensorBase) else x for x in leaves]
            args, kwargs = unflatten(structure, items)
            found[:] = flatten(self.fn(*args, **kwargs))
            return tuple(x for x in found[0] if isinstance(x, TensorBase))

        rec, result = record(flat, [wrap(t._data) for t in tensors], frozen=False)
        out, out_structure = found
        fixed = [_TENSOR if isinstance(x, TensorBase) else x for x in out]
        if any(x is not _TENSOR and type(x) not in _FIXED for x in fixed):
            rec.refuse("a result that is neither a tensor nor a number")
        if any(x.requires_grad for x in result):
            rec.refuse("a gradient that flows to a tensor outside the arguments")
        rec.shared_updates()
        rec.graph.outputs += [rec.value_of(t) for t in rec.updates.values()]
        paths = self._versions.get(key, [])
        if rec.unsupported:
            self._give_up(*rec.unsupported[0])
        elif len(paths) < MAX_PATHS:
            try:
                program = Program(rec.graph)
            except CompileError as e:
                self._give_up(f"{e.subject}: {e.got}", e.location)
            else:
                path = _Path(program, _rebuild(out_structure, fixed), rec)
                self._versions[key] = [*paths, path]
                # As on every later call, results share no memory with what goes in.
                others = [t._data for t in (*tensors, *path.refs)] + program.consts
                return path.rebuild([_apart(x, others) for x in result])
        else:
            place = rec.graph.guards[-1][2].place if rec.graph.guards else ""
            self._give_up(f"more than {MAX_PATHS} different paths were met", place)
        return unflatten(out_structure, out)

    def _give_up(self, reason, location):
        self.reason = (reason, location)
        warn_eager(self.name, reason, location)

    def _paths(self):
        return [p for paths in self._versions.values() for p in paths]

    def explain(self):
        """Return a text: versions, paths, guards, loop nests, or why the function runs eagerly."""
        return describe(
            self.name, [(p.program.graph, p.program) for p in self._paths()], self.reason
        )

    def source(self):
        """Return the generated LLVM IR of all paths."""
        return "\n\n".join(p.program.ir for p in self._paths())
