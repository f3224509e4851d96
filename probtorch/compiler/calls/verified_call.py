"""A native call that is made in Python too, from the same state: what `verify` compares.

Both runs draw random numbers and write to tensors outside, so before the second all that is put
back to what the first one met. Which calls these are, and how close numbers must be, is in
verify.py.
"""

import contextlib
import sys
import threading
import time
from typing import NamedTuple

from probtorch.compiler.guards.calls import Calls
from probtorch.compiler.record.record import rarely_searched
from probtorch.compiler.rounding import OtherRounding, moved
from probtorch.compiler.verify import difference, unshown, wavers
from probtorch.core.dispatch import mark_changed, wrap
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import flatten

__all__ = ["Apart", "called_twice", "made_again", "others_at_work"]


# Whose threads show progress, serve a notebook or a debugger, send logs: they run no code that
# changes tensors.
_BYSTANDERS = {
    *("tqdm", "ipykernel", "IPython", "zmq", "jupyter_client", "debugpy", "pydevd"),
    *("_pydevd_bundle", "wandb", "tensorboardX", "tensorboard", "sentry_sdk"),
}


def others_at_work():
    """Whether there are threads that may change tensors meanwhile."""
    if threading.active_count() == 1:
        return False
    own = threading.current_thread()
    return not all(t is own or _is_bystander(t) for t in threading.enumerate())


def _is_bystander(thread):
    target = getattr(thread, "_target", None)
    modules = type(thread).__module__, getattr(target, "__module__", None) or ""
    return any(name.partition(".")[0] in _BYSTANDERS for name in modules)


def called_twice(path, fn, leaves, rebuilt, tensors):
    """Run a path, and the function in Python from the same state.

    Parameters
    ----------
    path : Path
    fn : callable
        What it was recorded of.
    leaves : list
        Of the arguments of the call.
    rebuilt : callable
        From other leaves to the arguments around them, see `Rebuilt`.
    tensors : list of Tensor
        Those among the leaves.

    Returns
    -------
    out : tuple or None
        What ``path.run`` returns: None if the path does not fit.
    what : str or None
        What is not as in Python; then the state is what Python left, if that raised no error.
    error : Exception or None
        What Python raised.
    """
    arrays = [t.array for t in tensors]
    if any(leaf._grad is None for leaf in path.graded):
        return None, None, None
    state = _State(path)
    shared = bool(state) and others_at_work()
    if shared:
        return path.run(arrays), None, None  # with others at work the state may change meanwhile

    def run(arguments):
        """Run in Python and go back; returns what was computed."""
        walk = iter(arguments)
        items = [next(walk) if is_tensor(x) else x for x in leaves]
        given = rebuilt(items)
        try:
            with rarely_searched():
                found, kind = flatten(fn(*given.args, **given.kwargs))
            return _tensors_and_rest(found, kind, path), state.get()
        finally:
            state.put(before)

    def rounded(seed):
        with unshown():
            if seed is None:
                return run(tensors)
            close = [wrap(moved(t.array, (seed, i), path.size)) for i, t in enumerate(tensors)]
            with OtherRounding(seed):
                return run(close)

    def again(seed):
        (computed, _), after = rounded(seed)
        return [*computed, *after.changed]

    def settled(found):
        """Whether rounding does not lead to another form: a loop may end one turn earlier."""
        return not wavers(lambda seed: _form(rounded(seed)), found)

    # The native run first: only then is it known that the path fits, and that Python, which is
    # expected to take the same, changes no other tensors.
    before, error = state.get(), None
    began = time.perf_counter()
    out = path.run(arrays)
    if out is None:
        return None, None, None
    ran = time.perf_counter()
    mine = state.get()
    state.put(before)
    try:
        (computed, rest), after = run(tensors)
    except Exception as e:
        error = e
    eager = time.perf_counter() - ran
    what = None
    if error is not None:
        if settled(None):
            what = f"a result, where Python raises {type(error).__name__}"
    else:
        got, got_rest = _tensors_and_rest(*flatten(out[0]), path)
        native = [*got, *mine.changed]
        names = [f"result {i}" for i in range(len(got))]
        names += [f"updated tensor {i}" for i in range(len(mine.updates))]
        names += [f"gradient {i}" for i in range(len(mine.changed) - len(mine.updates))]
        found = _form(((computed, rest), after))
        if len(got) != len(computed) or repr(got_rest) != repr(rest):
            what = "a result of another structure" if settled(found) else None
        elif mine.filled != after.filled:
            what = "a gradient where Python leaves none, or none where it leaves one"
        elif mine.drawn != after.drawn:
            what = "another number of random draws" if settled(found) else None
        else:
            wanted = [*computed, *after.changed]
            pairs = [list(zip(names, x, strict=True)) for x in (native, wanted)]
            what = difference(pairs[0], pairs[1], again, path.size)
    state.put(mine if what is None or error is not None else after)
    path.compared(ran - began, eager, time.perf_counter() - ran)
    return out, what, error


def made_again(path, result, arrays, put_back):
    """Run the path of a call that was just recorded, and compare it with that call.

    Parameters
    ----------
    path : Path
    result : object
        What Python returned while it was recorded.
    arrays : list
        Those of the arguments.
    put_back : callable
        Puts all that Python changed back.

    Returns
    -------
    tuple or None
        What ``path.run`` returns; None where that is not what Python left, or the path does not
        fit. The next run is then one to be compared.
    """
    state = _State(path)
    wanted, after = _tensors_and_rest(*flatten(result), path), state.get()
    put_back()
    out = path.run(arrays)
    if out is None:
        return None
    native = _tensors_and_rest(*flatten(out[0]), path), state.get()
    if _same_runs(native, (wanted, after), path.size):
        path.agreed()
        return out
    path.due = path.count + 1
    return None


class Apart:
    """A call in Python whose changes are put back, where a path of the function knows them all.

    Parameters
    ----------
    path : Path
    fn : callable
    arguments : (tuple, dict)
    environment : Environment
        What the function reads, as it is now.

    Attributes
    ----------
    possible : bool
        Whether they can be put back.
    """

    def __init__(self, path, fn, arguments, environment):
        self._path, self._fn, self._arguments = path, fn, arguments
        self._state, self._environment = _State(path), environment
        shared = bool(self._state) and others_at_work()
        self.possible = not shared and all(leaf._grad is not None for leaf in path.graded)
        self._before, self._found = self._state.get(), None
        given = {id(x): x for x in flatten(arguments)[0] if is_tensor(x)}
        self._tensors = list((given | environment.tensors()).values())
        self._generators = environment.generators()

    def call(self):
        """Make the call.

        Returns
        -------
        tuple or None
            ``(result,)`` where it changed, drew or called what the path does not know: then that
            is the call, and nothing is put back. So it is with one that raises an error.
        """
        others, watch = self._others(), self._environment
        args, kwargs = self._arguments
        done = False
        try:
            with (
                unshown() as printed,  # the recording prints it again
                rarely_searched(),
                Calls(watch.suspicious, watch.unread, watch.going) as calls,
            ):
                out = self._fn(*args, **kwargs)
            known = calls.found is None and watch.drew() is None and watch.changed() is None
            done = known and others == self._others()
        finally:
            if not done and sys.stdout is not None:
                sys.stdout.write(printed.getvalue())
        if not done:
            return (out,)
        self._found = _tensors_and_rest(*flatten(out), self._path), self._state.get()
        self.put_back()
        return None

    def _others(self):
        """What tensors and generators are that the path does not change."""
        changed, regraded, drawn = self._state.known()
        found = [g.get_state() for g in self._generators if id(g) not in drawn]
        for t in self._tensors:
            found.append(None if id(_root(t)) in changed else _root(t)._version)
            g = None if id(t) in regraded else t._grad
            found.append(None if g is None else id(g))
            found.append(None if g is None or id(_root(g)) in changed else _root(g)._version)
        return found

    def _run(self):
        args, kwargs = self._arguments
        try:
            with rarely_searched():
                found, kind = flatten(self._fn(*args, **kwargs))
            return _tensors_and_rest(found, kind, self._path), self._state.get()
        finally:
            self.put_back()

    def put_back(self):
        """Put all that the path changes back to what it was before the call."""
        self._state.put(self._before)

    def agrees(self, result):
        """Whether another call, made since, has the same result, and left the same."""
        after = self._state.get()
        mine = _tensors_and_rest(*flatten(result), self._path), after

        def again(seed):
            self.put_back()
            listener = OtherRounding(seed) if seed is not None else contextlib.nullcontext()
            with unshown(), listener:
                (computed, _), left = self._run()
            return [*computed, *left.changed]

        try:
            return _same_runs(mine, self._found, self._path.size, again)
        finally:
            self._state.put(after)


def _same_runs(mine, wanted, size, again=None):
    if _form(mine) != _form(wanted):
        return False
    pairs = [[("", x) for x in (*found[0], *after.changed)] for found, after in (mine, wanted)]
    return difference(pairs[0], pairs[1], again, size) is None


def _root(t):
    return t if t._base is None else t._base


class _State:
    """What a path changes besides its results: tensors outside, gradients, random generators."""

    def __init__(self, path):
        # A gradient that is changed in place is the tensor that it is now.
        self._updates = [getattr(t, "now", t) for t in path.updates]
        self._leaves = [leaf for leaf, _ in path.regraded]
        self._owners = path.numbers.owners
        self._generators = list({id(g): g for g, *_ in path.draws}.values())

    def __bool__(self):
        return bool(self._updates or self._leaves or self._generators or self._owners)

    def known(self):
        """Return the ids of tensors, of leaves whose gradients are set, and of generators."""
        parts = map(_root, self._updates), self._leaves, self._generators
        return [set(map(id, x)) for x in parts]

    def get(self):
        return _Saved(
            [t.array.copy() for t in self._updates],
            [leaf._grad for leaf in self._leaves],
            [g.get_state() for g in self._generators],
            [x.remember() for x in self._owners],
        )

    def put(self, saved):
        for leaf, g in zip(self._leaves, saved.gradients, strict=True):
            leaf._grad = g
        for t, x in zip(self._updates, saved.updates, strict=True):
            t.array[...] = x
        mark_changed(*self._updates)
        for g, x in zip(self._generators, saved.drawn, strict=True):
            g.set_state(x)
        for owner, state in zip(self._owners, saved.remembered, strict=True):
            owner.recall(state)


class _Saved(NamedTuple):
    """What all that was at some time."""

    updates: list
    gradients: list  # these tensors, which no run changes: those that one does are updates
    drawn: list
    remembered: list  # by objects whose methods replays call

    @property
    def filled(self):
        """Which leaves have a gradient."""
        return [g is not None for g in self.gradients]

    @property
    def changed(self):
        """All arrays, to be compared with those of another run."""
        return [*self.updates, *(g.array for g in self.gradients if g is not None)]


def _tensors_and_rest(found, structure, path):
    """Return the arrays among the leaves of a result, and what it holds besides."""
    found = path.with_tensors(found)
    rest = [None if is_tensor(x) else x for x in found]
    # Copies: a result may be a tensor that is put back.
    return [x.array.copy() for x in found if is_tensor(x)], (rest, structure)


def _form(found):
    """Return the form of a run, which rounding changes only where a branch goes another way."""
    (computed, rest), after = found
    return len(computed), repr(rest), after.filled, after.drawn
