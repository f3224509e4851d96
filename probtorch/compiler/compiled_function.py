"""`CompiledFunction`: a function with its paths, by version: what a call of it does.

A call looks for a path of its version (shapes and types of its arguments) that fits; else the
function runs in Python, is recorded, and has a path more. Shapes that come when there are others
are recorded when they come back (room.py). A result that needs a gradient is one
entry on the tape (differentiable.py). Read compile.py first, then replay.py, whose paths these are.
"""

import contextlib
import functools
import inspect
import threading
import types

from probtorch.compiler.calls.changes import Changes
from probtorch.compiler.calls.differentiable import Differentiable
from probtorch.compiler.calls.kept import Links
from probtorch.compiler.calls.known import KnownOutside
from probtorch.compiler.calls.left import floats_again
from probtorch.compiler.calls.rebuilt import Rebuilt, boxes
from probtorch.compiler.calls.replay import path_of
from probtorch.compiler.calls.room import Admissions
from probtorch.compiler.calls.same_call import same_call
from probtorch.compiler.calls.ties import Ties
from probtorch.compiler.calls.varying import VaryingNumbers
from probtorch.compiler.calls.verified_call import Apart, called_twice, made_again, others_at_work
from probtorch.compiler.calls.versions import (
    FIXED,
    as_given,
    hand_over,
    same_ones,
    stand_ins,
    version_of,
)
from probtorch.compiler.guards.calls import Calls
from probtorch.compiler.guards.environment import (
    Environment,
    kept_by_structure,
    objects_among,
)
from probtorch.compiler.paths import TOO_MANY_NUMBERS, Compiled, Paths, home_of, tell_of_prints
from probtorch.compiler.record.number import Number
from probtorch.compiler.record.record import Recorder, record
from probtorch.compiler.record.returned import ReturnedNumbers
from probtorch.compiler.verify import ReplayError, next_due
from probtorch.config import settings
from probtorch.core.dispatch import grad_enabled, recorder
from probtorch.core.dtype import promotion_rules
from probtorch.core.history import hooked, hooks_changed
from probtorch.core.naming import importable_name
from probtorch.core.signatures import explain_calls
from probtorch.core.surroundings import surroundings
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import flatten, unflatten
from probtorch.core.validation import validation_in_force
from probtorch.errors import CompileError

__all__ = ["MAX_CHANGED", "CompiledFunction"]

_PYTHON = object()  # in place of a path
_CALLED = "a call of {}, which may answer otherwise each time"
_OF_LEAVES = "an optimizer that it may make of an argument, which has to be the caller's own tensor"
_NUMBERED = "the id of an argument, which has to be the caller's own tensor"
_FILLED = "{} that it changes"
_NO_KEY = (
    "an argument with an attribute that may change (a list, say) and is none of its parameters"
)
_DRAWN = "draws from {}, a random generator that is not ours and cannot be replayed"
# Calls in a row that are recorded anew, as Python values were changed between them.
MAX_CHANGED = 8


def _modes():
    """Return the modes that belong to a version."""
    return grad_enabled(), promotion_rules(), validation_in_force()


def _compiled_anew(fn, options):
    return CompiledFunction(fn, **options)


class CompiledFunction(Compiled):
    """A function with its compiled paths; see `compile`.

    Parameters
    ----------
    fn : callable
    roots : callable, optional
        Returns objects whose Python values count besides those that `fn` can reach.
    values : callable, optional
        Returns a tuple of further Python values that a path depends on.
    saving : bool
        Keep what updated tensors held before the last run, and compile every shape at once.
    convert : callable, optional
        Applied to each leaf of the arguments.
    quiet : bool
        Do not warn where it runs eagerly; `reason` tells.
    name : str, optional
        For messages.
    verify : bool
        Now and then run `fn` too, and compare.
    whole : bool
        Raise an error where it cannot be compiled.
    """

    def __init__(
        self,
        fn,
        *,
        roots=tuple,
        values=None,
        saving=False,
        convert=None,
        quiet=False,
        name=None,
        verify=True,
        whole=False,
    ):
        functools.update_wrapper(self, fn, updated=())
        if inspect.isroutine(fn):
            # What a function has for attributes, not what any other object consists of; and none of
            # those that are of this class.
            own = getattr(fn, "__dict__", {})
            vars(self).update({k: x for k, x in own.items() if not hasattr(CompiledFunction, k)})
        self.fn = fn
        self.name = name or getattr(fn, "__name__", type(fn).__name__)
        # By shapes and types of arguments.
        self.paths = Paths(self.name, quiet=quiet, home=home_of(fn), whole=whole)
        # The path that served the last call, and the one that it recorded, if any.
        self.last = self.recorded = None
        self.acted = (
            False  # whether it drew, or changed tensors outside, where it must not run twice
        )
        self.comparing = False  # whether `fn` is run beside a path, whose state is put back
        self._before = None  # the form of the last call, where the next one is told from it quickly
        self.roots, self.values, self.saving = roots, values, saving
        self._convert, self.verify = convert, verify
        self._taped = {}  # versions whose result needs a gradient
        self._untaped = False  # whether calls that need a gradient are always eager
        self._known, self._varying = KnownOutside(), VaryingNumbers()
        self._versions = Admissions(self.paths, self._taped, at_once=saving)
        self._changes, self._changed = Changes(), 0
        self._statements = False  # whether it performs model statements
        self._told_of_hooks = False
        self._lock = threading.Lock()  # of all paths that draw or change tensors

    def __repr__(self):
        return f"compile({self.name})"

    def __reduce__(self):
        # Recordings and native code stay behind; the copy makes its own.
        options = ("roots", "values", "saving", "name", "verify")
        kept = {name: getattr(self, name) for name in options}
        paths = self.paths
        kept |= {"convert": self._convert, "quiet": paths.quiet, "whole": paths.whole}
        return importable_name(self) or (_compiled_anew, (self.fn, kept))

    def __get__(self, instance, owner=None):
        # A decorated method binds like any other.
        return self if instance is None else types.MethodType(self, instance)

    def __environment__(self):
        """What counts of it where another compiled function calls it."""
        return [self.fn, *self.roots()]

    def __call__(self, *args, **kwargs):
        self.last = self.recorded = None
        if not settings.jit or recorder() is not None or (self._statements and self._surrounded()):
            return self.fn(*args, **kwargs)
        before, epoch = self._before, self.paths.epoch
        if before is not None and before.epoch == epoch and not kwargs and not hooks_changed():
            path = before.path
            arrays = before.arrays(args) if before.modes == _modes() else None
            if arrays is not None and path.count + 1 < path.due:
                out = path.run(arrays)
                if out is not None:
                    self.last = path
                    return out[0]
        self._before = None
        leaves, structure, tensors, key = self._leaves(args, kwargs)
        try:
            self._versions.met(key)
            paths = self.paths.of(key)
        except TypeError:  # a list, say, in an attribute of a distribution that somebody wrote
            self.paths.give_up(_NO_KEY, loud=True)
            return self._in_python(args, kwargs)
        if hooks_changed() and any(map(hooked, tensors)):
            self._hooked("an argument")
            return self._in_python(args, kwargs)
        wanted = grad_enabled() and any(t.requires_grad for t in tensors)
        if wanted or key in self._taped:
            return self._on_tape(key, leaves, structure, tensors, args, kwargs)
        out, path = self._native(key, paths, leaves, structure, tensors, args, kwargs)
        # Of paths that take turns none is tried ahead of the others. What is known of tensors
        # outside, and whether there is room, changes where paths do.
        plain = not (kwargs or self._convert or self._known.ones or self._versions.full)
        plain = plain and not self._varying
        plain = plain and not (self._known.asks and boxes((args, kwargs), everything=True))
        if plain and paths and path is paths[0]:
            self._before = same_call(args, path, _modes(), epoch)
        return out

    def _in_python(self, args, kwargs):
        """Call the function itself, unless it was to be compiled whole."""
        if self.paths.whole:
            self.paths.refuse()
        return self.fn(*args, **kwargs)

    def _hooked(self, what):
        """Say, once, that hooks make a call eager."""
        if not self._told_of_hooks:
            self._told_of_hooks = True
            self.paths.warn(f"a gradient hook of {what}")

    def off_tape(self, args, kwargs):
        """Call as if no result needed a gradient, though some argument does.

        Returns
        -------
        result : object
        path : Path or None
            What made it; None if Python did, and it is on the tape. So it is where the function
            `acted`, as a gradient would have to make it act again.
        """
        self.last, self.recorded, self.acted = None, None, False
        leaves, structure, tensors, key = self._leaves(args, kwargs)
        given = key, self.paths.of(key), leaves, structure, tensors, args, kwargs
        found, path = self._native(*given, detached=True)
        return found, None if path is _PYTHON else path

    def _native(self, key, paths, leaves, structure, tensors, args, kwargs, detached=False):
        """Return the result by a path, recorded now if there is none, or by Python; and that path,
        `_PYTHON`, or None for a recording that came to nothing.
        """
        if detached and not all(path.repeatable for path in paths):
            self.acted = True
            return self._in_python(args, kwargs), _PYTHON
        if paths:
            arrays = [t.array for t in tensors]
            for path in paths:
                if path.count + 1 < path.due:
                    out = path.run(arrays)
                elif self.verify and settings.verify:
                    out = self._due(path, arrays, leaves, structure, tensors, (args, kwargs))
                else:
                    path.due = next_due(path.count + 1)
                    out = path.run(arrays)
                if out is not None:
                    if path is not paths[0]:
                        self.paths.promote(path, key)
                    self.last, self._changed = path, 0
                    return out[0], path
        if self.reason is not None:
            return self._in_python(args, kwargs), _PYTHON
        if not paths and self._follow_arguments(key):
            return self._native_again(args, kwargs, detached)
        if paths and not self._varying.follow_changed(paths[0].environment):
            self._outdated(paths[0])
            if self.reason is not None:
                return self._in_python(args, kwargs), _PYTHON
        if not paths and not self._versions.admit(key):
            return self._in_python(args, kwargs), _PYTHON
        try:
            if self._varying.inputs(structure):
                found = self._with_inputs(leaves, structure, tensors, key, (args, kwargs), detached)
                if found is not None:
                    return found
                return self._native_again(args, kwargs, detached)  # some are constants now
            return self._record(leaves, structure, tensors, key, (args, kwargs), detached)
        except Exception:
            self._versions.dismiss(key, counted=not paths)
            raise

    def _native_again(self, args, kwargs, detached):
        """Go on where other floats are inputs."""
        leaves, structure, tensors, key = self._leaves(args, kwargs)
        paths = self.paths.of(key)
        return self._native(key, paths, leaves, structure, tensors, args, kwargs, detached)

    def _follow_arguments(self, key):
        """Make inputs of floats among arguments that have changed; returns whether any have."""
        found = self._varying.new_arguments(key)
        if found is None or not self.paths.of(found[1]):
            return False
        self._varying.follow_arguments(key[0], found[0])
        return True

    def _with_inputs(self, leaves, structure, tensors, key, arguments, detached):
        """Record a call with tensors in the places of floats that have changed.

        Returns
        -------
        (object, Path or None) or None
            The result, and the new path; None where some of the floats have to be constants, and
            nothing was done.
        """
        if self._varying.places() and others_at_work():  # they would find the tensors there
            self._varying.leave(structure)
            return None
        known = self.paths.of(key) or self.paths
        if not known:  # one is there for a comparison first, or that was made before a run resumed
            given = leaves, structure, tensors, key, arguments, detached
            return self._record(*given, fixed=self._varying.unsettled)
        environment = self._environment(*flatten(arguments))
        environment.extend((), [("an argument", x) for x in boxes(arguments)])
        apart = Apart(known[0], self.fn, arguments, environment)
        if not apart.possible:
            self._varying.leave(structure)
            return None
        paths = self.paths
        before = paths.reason, paths.aside
        out = apart.call()
        if out is not None:
            # The next recording, with floats, tells what else the function changes.
            self._varying.leave(structure, for_good=False)
            self._note_changed(key, environment.changed())
            return out[0], _PYTHON
        paths.muted = True  # what is said of tensors need not hold of floats
        try:
            out, path = self._record(leaves, structure, tensors, key, arguments, detached)
            recorded = path is not None and path is not _PYTHON
            if recorded and path.looks <= known[0].looks:
                with self._compares():
                    same = apart.agrees(out)
                if same:
                    self._changed = 0
                    self._varying.settle()
                    return out, path
            if recorded:
                paths.remove(path, key)
        except Exception:  # of a tensor, where a float is taken
            self._versions.dismiss(key, counted=True)
        finally:
            paths.muted = False
        apart.put_back()
        paths.reason, paths.aside = before
        self.recorded = None
        self._varying.leave(structure)
        return None

    @property
    def changes(self):
        """How many calls in a row no path fitted since a Python value was changed ahead of them;
        above `MAX_CHANGED` the function is left alone. Whoever keeps it between runs sets it.
        """
        return self._changed

    @changes.setter
    def changes(self, count):
        self._changed = count

    @property
    def inputs(self):
        """Which floats of Python's are inputs, since they changed: numbers that mean the same in
        another process. Whoever keeps them between runs sets them.
        """
        return tuple(self._varying.labels)

    @inputs.setter
    def inputs(self, labels):
        self._varying.resume(labels)

    def _outdated(self, path):
        """Leave the function alone where a Python value is changed ahead of every call."""
        changed = path.environment.changed()
        self._changed = self._changed + 1 if changed is not None else 0
        if self._changed > MAX_CHANGED:
            self.paths.give_up(
                f"{changed}, which it can reach, has changed ahead of {MAX_CHANGED} calls in a row"
            )

    def _due(self, path, arrays, leaves, structure, tensors, arguments):
        """Run a path, and the function in Python from the same state, unless that would take too
        long; see `verify`.
        """
        if not path.affords_comparison():
            return path.run_before_comparison(arrays)
        return self._compared(path, leaves, structure, tensors, arguments)

    @contextlib.contextmanager
    def _compares(self):
        self.comparing = True
        try:
            yield
        finally:
            self.comparing = False

    def _compared(self, path, leaves, structure, tensors, arguments):
        """Run a path, and the function in Python from the same state."""

        def rebuilt(items):
            if self._convert is not None or self._varying:
                items = as_given(items, flatten(arguments)[0])
            return Rebuilt(arguments, structure, items, self._known.ones)

        with self._compares():
            out, what, error = called_twice(path, self.fn, leaves, rebuilt, tensors)
        if what is None:
            return out
        self.paths.give_up_wrong(what)
        raise ReplayError(self.name, what, f"native call {path.count // 2 + 1}") from error

    def _leaves(self, args, kwargs):
        """Return the leaves of arguments, their structure, the tensors, and the version's key."""
        leaves, structure = flatten((args, kwargs))
        if self._convert is not None:
            leaves = list(map(self._convert, leaves))
        if self._varying:
            leaves = self._varying.as_inputs(leaves, structure)
        tensors = [x for x in leaves if is_tensor(x)]
        of_tensors = same_ones(tensors), self._known.who(tensors, (args, kwargs))
        key = (structure, tuple(map(version_of, leaves)), *_modes(), *of_tensors)
        return leaves, structure, tensors, key

    def _surrounded(self):
        """Whether handlers or plates outside may change what model statements in it mean."""
        return self._statements and surroundings().active()

    def _on_tape(self, key, leaves, structure, tensors, args, kwargs):
        """Call as one entry on the tape; eagerly where the function may not run twice."""
        if self._untaped or self.reason is not None:
            return self._in_python(args, kwargs)
        if key not in self._taped and not self._versions.admit_shapes(key):
            return self._in_python(args, kwargs)
        version = self._taped.get(key)
        if version is not None and not version.holds():
            if not self._varying.follow_changed(version.environment):
                self._outdated(version)
            if self.reason is not None:
                return self._in_python(args, kwargs)
            version = None
        if version is None:
            numbers = self._varying.places()
            environment, placed = self._snapshot(leaves, structure, tensors, numbers)
            if environment.opaque is not None:
                self._untape(environment.opaque, "")
                return self._in_python(args, kwargs)
            if environment.takes_leaves and any(t.is_leaf and t.requires_grad for t in tensors):
                self._untape(_OF_LEAVES, "")
                return self._in_python(args, kwargs)
            if environment.asks_id:
                self._untape(_NUMBERED, "")
                return self._in_python(args, kwargs)
            key = self._known.met(environment, tensors, (args, kwargs), key)
            if key[-1] is not None:
                self._untape("a gradient through an argument that it finds outside, too", "")
                return self._in_python(args, kwargs)
            performed = surroundings().performed()
            given = leaves, structure, environment, (args, kwargs), numbers, placed
            version = Differentiable(self, *given)
            for reason, place in version.refusals[:1]:
                self.paths.warn(reason, place)
                self.paths.aside = self.paths.aside or (reason, place)
            self._met_statements(performed, version.environment)
            first, version.first = version.first, None
            # Where each call changes what it reads, all are Python's own.
            changed = version.environment.changed()
            often = self._changes.reason(key, changed)
            if changed is not None:
                self._forget()
            self._taped[key] = version
            told = version.environment.tells_apart(version.read, tensors)
            touched = [*version.replaced, *told]
            if touched:
                self._varying.leave_tensors(touched)
                self._taped[key] = None
            if version.filled is not None:
                self._untape(_FILLED.format(version.filled), "")
            elif version.called is not None:
                self._untape(_CALLED.format(version.called[0]), version.called[1])
            elif often is not None:
                self._untape(often, "")
            return first
        if not version.repeatable:
            return self._in_python(args, kwargs)
        if hooks_changed() and any(map(hooked, (*tensors, *version.closed_over))):
            self._hooked("a tensor outside")
            return self._in_python(args, kwargs)
        plain = self._convert is None and not self._varying
        return version(tensors, (args, kwargs) if plain else None)

    def _untape(self, reason, location):
        self._untaped = True
        self.paths.give_up(reason, location, loud=True)

    def tied(self):
        """Hear that a gradient is asked for between two results of a call."""
        self._untape("a gradient of one of its results in another one", "")

    def _environment(self, leaves, structure, apart=()):
        objects = [*objects_among(leaves), *kept_by_structure(structure)]
        return Environment((self.fn, *self.roots()), self.values, objects, apart)

    def _snapshot(self, leaves, structure, tensors, places):
        """Return a snapshot without the floats in `places`, and without tensors in whose places
        others come; and the places of these.
        """
        placed = self._varying.tensors()
        while True:
            found = self._environment(leaves, structure, [*places, *placed])
            told = set(map(id, found.tells_apart(placed, tensors)))
            if not told:
                return found, placed
            self._varying.leave_shared([p for p in placed if id(p) in told])
            placed = [p for p in placed if id(p) not in told]

    def _met_statements(self, performed, environment):
        """Note whether model statements were performed, and what they read in a plain script."""
        if surroundings().performed() != performed:
            self._statements = True
            if self.roots is tuple:  # whoever names roots has named these
                environment.extend(surroundings().roots())

    def find(self, *args, **kwargs):
        """Return ``(path, arrays)``, the path that a call would try first; None without one."""
        _, _, tensors, key = self._leaves(args, kwargs)
        self._versions.met(key)
        paths = self.paths.of(key)
        arrays = [t.array for t in tensors]
        return (paths[0] if paths and not self._surrounded() else None), arrays

    def taken_again(self, result, put_back, *args):
        """Make the call that was just recorded once more, natively, and compare it with what Python
        had computed: no other run in Python is needed for that.

        Parameters
        ----------
        result : object
            Of the recorded call, whose path is `recorded`.
        put_back : callable
            Puts what that call changed back to what it was.
        *args
            Those of the call.
        """
        path = self.recorded
        if self.verify and settings.verify:
            out = made_again(path, result, self.find(*args)[1], put_back)
            if out is not None:
                self.last = path
                return out[0]
        put_back()
        return self(*args)

    def settle(self, *args):
        """Compare one more call with Python, if `Path.owes_comparison`; whoever asks puts back what
        it changed.
        """
        leaves, structure, tensors, key = self._leaves(args, {})
        paths = self.paths.of(key)
        if paths and paths[0].owes_comparison() and not self._surrounded():
            self._compared(paths[0], leaves, structure, tensors, (args, {}))

    def _record(self, leaves, structure, tensors, key, arguments, detached, fixed=False):
        """Run in Python, and record that, with floats as they are if `fixed`; returns the result,
        and the new path if there is one.
        """
        self._varying.find(lambda apart: self._environment(leaves, structure, apart))
        places = [] if fixed else self._varying.places()
        before, placed = self._snapshot(leaves, structure, tensors, places)
        given = leaves, structure, tensors, key, arguments, detached, places, placed, before
        if not places and not self._varying.inputs(structure):
            return self._recorded(*given)
        with floats_again(
            before,
            lambda: self._environment(leaves, structure),
            boxes(arguments, everything=True),
        ):
            return self._recorded(*given)

    def _recorded(
        self, leaves, structure, tensors, key, arguments, detached, places, placed, before
    ):
        """Record, with tensors in the places of floats, what reads what is in an environment."""
        found, plain, made = [], [], []
        rec = Recorder(frozen=False)
        for table, name in placed:
            rec.place(table, name)
        rec.pins = not detached  # what goes backwards later may meet another mask

        def flat(*stand_ins):
            walk = iter(stand_ins)
            items = [next(walk) if is_tensor(x) else x for x in leaves]
            made.append(Rebuilt(arguments, structure, items, self._known.ones))
            with self._varying.standing_in(rec, places):
                out, structure_of_it = flatten(self.fn(*made[-1].args, **made[-1].kwargs))
            found[:] = [returned.tensor_of(x) for x in out], structure_of_it
            plain[:] = map(returned.plain, out)
            return tuple(x for x in found[0] if is_tensor(x))

        returned = rec.returned = ReturnedNumbers(self.fn, flat.__code__)
        key = self._known.met(before, tensors, arguments, key)
        if before.opaque is not None or (before.asks_id and tensors):
            self.paths.give_up(before.opaque or _NUMBERED, loud=True)
            args, kwargs = arguments
            return self._in_python(args, kwargs), _PYTHON
        performed = surroundings().performed()
        given, filled = stand_ins(tensors, key[-1] or (), before), None
        typed = before.asks_type and bool(places or any(type(x) is Number for x in tensors))
        links = Links(given, tensors)
        try:
            with Calls(before.suspicious, before.unread, before.going, typed=typed) as calls:
                _, result = record(flat, given, recorder=rec, turns=True)
        except BaseException:
            links.close()
            # It is made again and again for nothing where every call also changes what it reads.
            often = self._changes.reason(key, before.changed())
            if often is not None:
                self.paths.give_up(often)
            raise
        finally:
            links.note_changes()
            for again in made:
                filled = again.hand_over()
        if calls.asked_type:
            rec.refuse("type() where a number that changes may be meant")
        hand_over(given, tensors)
        made.clear()
        out, path = self._made_of(
            rec, (before, performed, calls, filled), key, found, result, plain, tensors, detached
        )
        if path is None:
            links.close()
            out = [x.array.item() if type(x) is Number else links.callers(x) for x in out]
            return unflatten(found[1], out), None
        return out, path

    def _made_of(self, rec, around, key, found, result, plain, tensors, detached):
        """Return the result of a recording and its new path; the leaves of the result, and None,
        where it came to nothing.
        """
        before, performed, calls, filled = around
        if filled is not None:
            self.paths.give_up(_FILLED.format(filled), loud=True)
            return plain, None
        if calls.found is not None and not self._surrounded():
            name, place = calls.found
            self.paths.give_up(_CALLED.format(name), place, loud=True)
            return plain, None
        self._met_statements(performed, before)
        if self._surrounded():
            return plain, None
        drawn = before.drew()
        if drawn is not None:
            self.paths.give_up(_DRAWN.format(drawn), loud=True)
            return plain, None
        if rec.asked_who and before.asks_hash:
            self.paths.give_up(_NUMBERED, loud=True)
            return plain, None
        asked, self._known.asks = self._known.asks, self._known.asks or rec.asked_who
        rec.followed.judge(before, rec.refuse)
        read = [(p.table, p.key) for p in rec.placed if p.now is p.first]
        touched = [*rec.more_than_read(), *before.tells_apart(read, tensors)]
        if touched:
            self._varying.leave_tensors(touched)
            return plain, None
        if self._note_changed(key, None if rec.unsupported else before.changed()):
            return plain, None
        if tensors and self._known.asks and not asked:
            return plain, None  # the key of the next call says who its arguments are
        if not before.watch_elements(rec.pinned):
            rec.refuse("a mask or an index that it changes, whose values shapes depend on")
        if any(not is_tensor(x) and type(x) not in FIXED for x in found[0]):
            rec.refuse("a result that is neither a tensor nor a number")
        ties = Ties(result, rec._made_here)
        if ties.obstacle() is not None:
            rec.refuse(ties.obstacle())
        if ties.flow(result) and grad_enabled() and not detached:
            # For a tensor outside: from the next call on, an entry on the tape.
            ties.mark(result, self.tied)
            self._taped[key] = None
            return plain, None
        rec.shared_updates()
        met = before.tensors()
        if any(id(g) in met for g in rec.gradients_met()):
            rec.refuse("a read of a .grad that the function finds elsewhere, too")
        if rec.unsupported:
            self.paths.give_up(*rec.unsupported[0])
        elif (number := self.paths.restless_number(rec.graph.guards, key)) is not None:
            self.paths.give_up(TOO_MANY_NUMBERS, number.place)
        elif self.paths.are_full(key):
            last = self.paths.of(key)[0]
            self.paths.give_up_full(rec.graph, last.environment.changed())
        else:
            try:
                path = path_of(rec, tensors, (*found, ties), before, self._lock, self.saving)
                if detached and not path.repeatable:
                    self.acted = True
                    return plain, None
                if self.verify and settings.verify:
                    path.compare_recorded(result, tensors)
            except CompileError as e:
                self.paths.give_up_refused(e)
            else:
                self.paths.add(path, key)
                self.paths.promote(path, key)
                self.recorded = path
                tell_of_prints(self.name, rec.prints)
                return path.rebuild(path.apart(result, tensors)), path
        return plain, None

    def _note_changed(self, key, changed):
        """Note what a call has changed that the function reads, None where it has not; returns
        whether it has: then no path holds any more.
        """
        often = self._changes.reason(key, changed)
        if changed is None:
            return False
        self._forget()
        if often is not None:
            self.paths.give_up(often)
        return True

    def _forget(self):
        """Drop all that was recorded: a call has changed what it reads. Perhaps that is made once,
        at the first call; or it is a cache that was filled anew and looks again as it did.
        """
        self.paths.clear()
        self._taped.update(dict.fromkeys(self._taped))

    def notes(self):
        """Return what `explain` says besides."""
        return self._versions.notes()

    def executables(self):
        """Return what its paths run."""
        return [path.program for path in self.paths]

    def source(self):
        """Return the generated LLVM IR or CUDA C of all paths."""
        return "\n\n".join(program.ir for program in self.executables())


explain_calls(globals())
