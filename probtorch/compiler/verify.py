"""Replays are verified: now and then a compiled call is made eagerly too, and both are compared.

Guards see what a recording depends on. Should there be something that they do not see, a replay
goes on with old values, and nobody would know. So native calls number 1, 2, 4, 8, 16 of a path are
also computed by Python, from the same state and with the same random bits; 64, 256 ... as soon as
all comparisons together take less than half a per cent of the time (`ComparisonCosts`), and so is
the log density where chains stand. All that the eager run changed is put back: results do not
depend on being verified.

Native sums run in another order, so numbers differ by rounding. Where they differ by more than that
explains, the eager run is repeated a few times in other roundings (rounding.py): what answers that
with as large a change is ill-conditioned, or at a jump, and no verdict is given.
"""

import contextlib
import io
import math
import sys
import threading
from dataclasses import dataclass
from typing import TextIO, cast

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.compiler.graph import GraphValue
from probtorch.compiler.native.host import InternalCompilerError
from probtorch.compiler.rounding import OtherOutcome

__all__ = [
    "EARLY",
    "OPERATION",
    "QUICK",
    "WARM_SHARE",
    "ComparisonCosts",
    "unshown",
    "ReplayError",
    "coarsest",
    "difference",
    "next_due",
    "wavers",
]

# What comparisons of a path's calls may take, in seconds, and as a share of its native time: a loop
# over a long series takes Python seconds, for which nobody should wait at the second call. The
# seconds are for the first calls, EARLY of them; a step that takes 2 us takes Python a thousand
# times as long, so that comparing the later ones too would take most of a run. Half a per cent, so
# that there is as much for the check of the gradient in the one that all checks may take.
FREE, SHARE, EARLY = 1.0, 0.005, 16
# The share where the warm-up of a chain has ended, in the midst of the posterior, and Python is
# quick.
WARM_SHARE = 0.02
# Seconds up to which Python may take for a comparison at the end of a run that has none to spare.
QUICK = 0.01
# What an operation on small tensors takes eagerly, in seconds: for a first guess.
OPERATION = 3e-6

# Relative differences that rounding in another order explains without asking further.
_TOLERANCE = {2: 3e-2, 4: 1e-4, 8: 1e-9}
# Of what a change in the last place brings about.
_AMPLIFIED = 1e3
# Of the largest number: results that lose two digits to a change in the last place may as well be
# infinite, such as the logarithm of the determinant of a singular matrix.
_NO_DIGITS = 1e-2
# Of the largest number as well, where that is a quotient by rounding, as the condition number of a
# singular matrix is: what a change in the last place halves or more has not even a size.
_NO_SIZE = 0.5
# Runs with numbers moved. At a jump each of them falls to the other side with a chance of about a
# half.
_RUNS = 8
# Runs with nothing moved. They may differ by rounding too: sums of arrays that lie elsewhere.
_PLAIN_RUNS = 3
# Elements of an array up to which it is put behind others to be compared.
_SMALL = 10_000


class ReplayError(InternalCompilerError):
    """A compiled call gave other results than Python does; what it was called for is eager now."""

    def __init__(self, name, what, since):
        super().__init__(
            f"compiled {name} does not give what Python gives",
            expected="the results of an eager call",
            got=what,
            fix=f"results since {since} may be wrong: run it again, it is eager from now on. Then "
            "look for state outside of its arguments that changes where no guard can see it, or "
            "report a fault of the compiler",
        )


def next_due(count):
    """Return the number of the first native call after number `count` that is verified.

    From 1 on these are 1, 2, 4, 8, 16, 64, 256, ...
    """
    bits = count.bit_length()  # of the next power of two
    return 1 << (bits if bits <= 4 else bits + bits % 2)


@dataclass
class ComparisonCosts:
    """What native runs took so far, in seconds: of a path, or of a log density over all chains.

    Attributes
    ----------
    native : float
    eager : float
        The last run in Python, which a comparison needs.
    compared : float
        Comparisons that were made.
    """

    native: float = 0.0
    eager: float = 0.0
    compared: float = 0.0

    def allow_another(self, runs=EARLY + 1, share=SHARE):
        """Whether one more comparison, of native run number `runs`, leaves all of them below what
        they may take.
        """
        return self.compared + self.eager <= _free(runs) + share * self.native

    def wait(self, runs):
        """Return the native seconds after which `allow_another` would say so."""
        return (self.compared + self.eager - _free(runs)) / SHARE


def _free(runs):
    return FREE if runs <= EARLY else 0.0


def coarsest(graph):
    """Return the size in bytes of the smallest floats that a recorded graph computes with."""
    return min((dtype.itemsize for dtype in _dtypes(graph) if dtype.kind == "f"), default=8)


def _dtypes(graph):
    """The dtypes of all values of a graph: of thousands, mostly one, so its hash is not asked."""
    found, last = {v.dtype for v in graph.inputs}, None
    for node in graph.nodes:
        for x in (*node.inputs, *node.outs):
            if type(x) is GraphValue and x.dtype is not last:
                last = x.dtype
                found.add(last)
        if node.attrs:
            for inner in node.subgraphs():
                found |= _dtypes(inner)
    return found


def difference(native, eager, again=None, size=8):
    """Return what of two lists of arrays differs, in words; None where nothing does.

    Parameters
    ----------
    native, eager : list of (str, array)
        What was computed, with names to call it by.
    again : callable, optional
        ``again(seed)`` returns the arrays of another eager run, in another rounding of all numbers.
        With the seed None nothing is moved: should that differ too, then by a state of the
        function's own, and rounding explains nothing.
    size : int
        Of the `coarsest` floats on the way to them, in bytes.
    """
    if _plainly_alike(native, eager, size):
        return None
    others: list[list] = []
    for i, ((name, a), (_, b)) in enumerate(zip(native, eager, strict=True)):
        a, b = np.asarray(to_host(a)), np.asarray(to_host(b))
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} of {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        far, largest = _distance(a, b)
        if far <= _tolerance(b, size) * largest:
            continue
        if again is not None:
            try:
                if not _restless(again, i, b, _tolerance(b, size) * largest) and any(
                    _explains(other[i], b, far, largest) for other in _repeated(again, others)
                ):
                    continue
            except Exception:
                return None  # it cannot be asked further
        where = np.unravel_index(np.argmax(_apart(a, b)), b.shape)
        at = f" at {list(map(int, where))}" if b.ndim else ""
        return f"{name}{at} is {a[where]!s}, where Python computes {b[where]!s}"
    return None


def _plainly_alike(native, eager, size):
    """Whether numbers agree one by one, as they nearly always do: all small arrays at a time."""
    kinds = {}
    for (_, a), (_, b) in zip(native, eager, strict=True):
        a, b = np.asarray(to_host(a)), np.asarray(to_host(b))
        if a.shape != b.shape or a.dtype != b.dtype or a.size > _SMALL:
            return False
        mine, theirs = kinds.setdefault(a.dtype, ([], []))
        mine.append(a.reshape(-1))
        theirs.append(b.reshape(-1))
    with np.errstate(all="ignore"):
        for dtype, found in kinds.items():
            a, b = map(np.concatenate, found)
            if dtype.kind not in "fc":
                alike = a == b
            else:
                far = np.abs(a - b)
                alike = (far <= _tolerance(b, size) * np.abs(b)) & np.isfinite(far)
            if not alike.all():
                return False
    return True


def _restless(again, i, b, tolerance):
    """Whether result `i` is another in every run, though no number is moved."""
    runs = (again(None)[i] for _ in range(_PLAIN_RUNS))
    return all(_distance(np.asarray(to_host(x)), b)[0] > tolerance for x in runs)


def _repeated(again, others):
    """Yield the results of runs with numbers moved: those in a list, then new ones, kept there."""
    for seed in range(_RUNS):
        if seed == len(others):
            others.append(again(seed))
        yield others[seed]


def wavers(again, form):
    """Whether runs with numbers moved take another form: other Python numbers, draws or errors.

    Parameters
    ----------
    again : callable
        ``again(seed)`` returns the form of another run in Python, as in `difference`.
    form
        What was found; None for an error.
    """

    def found(seed):
        try:
            return again(seed)
        except OtherOutcome as other:
            return other
        except Exception:
            return None

    settled = any(found(None) == form for _ in range(_PLAIN_RUNS))
    return settled and any(found(seed) != form for seed in range(_RUNS))


def _explains(other, b, far, largest):
    """Whether a result that other rounding led to is about as far from `b`."""
    other = np.asarray(to_host(other))
    if other.shape != b.shape:
        return True
    shift, _ = _distance(other, b)
    if not np.isfinite(shift) or (np.isinf(far) and shift > _NO_DIGITS * largest):
        return True
    if (
        b.dtype.kind in "fc"
        and largest * np.finfo(b.dtype).eps > 1.0
        and shift > _NO_SIZE * largest
    ):
        return True
    return far <= _AMPLIFIED * shift


def _tolerance(x, size):
    return _TOLERANCE.get(min(size, x.dtype.itemsize), 1e-9) if x.dtype.kind in "fc" else 0.0


def _apart(a, b):
    """Absolute differences; inf where one is a number and the other is none."""
    if b.dtype.kind not in "fc":
        return (a != b).astype(np.float64)
    with np.errstate(all="ignore"):
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        apart = np.where(same, 0.0, np.abs(x - y))
    return np.where(np.isfinite(apart), apart, np.inf)


def _distance(a, b):
    """The largest difference, and the size of the largest number."""
    if not b.size:
        return 0.0, 0.0
    if b.dtype.kind == "f":
        with np.errstate(all="ignore"):
            apart, size = float(np.abs(a - b).max()), float(np.abs(b).max())
        if math.isfinite(apart) and math.isfinite(size):
            return apart, size
    apart = float(_apart(a, b).max())
    if b.dtype.kind not in "fc":
        return apart, 0.0
    return apart, float(np.abs(b[np.isfinite(b)]).astype(np.float64).max(initial=0.0))


@contextlib.contextmanager
def unshown():
    """Context manager: what this thread prints is not shown, in a run that is made for a comparison
    alone; yields the stream that keeps it. What other threads print is shown.
    """
    kept, shown = io.StringIO(), sys.stdout
    if shown is None:  # as where there is no terminal
        yield kept
        return
    aside = _OtherThreads(shown, kept)
    sys.stdout = cast(TextIO, aside)
    try:
        yield kept
    finally:
        aside.ended = True  # whoever has put another stream around it keeps it
        if cast(object, sys.stdout) is aside:
            sys.stdout = shown


class _OtherThreads:
    """A stream for all threads but the one that makes it, whose writing is kept aside."""

    def __init__(self, shown, kept):
        self._shown, self._kept, self._own = shown, kept, threading.get_ident()
        self.ended = False

    def __getattr__(self, name):
        return getattr(self._shown, name)

    def write(self, text):
        aside = not self.ended and threading.get_ident() == self._own
        return (self._kept if aside else self._shown).write(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)
