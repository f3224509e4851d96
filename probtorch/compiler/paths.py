"""`Paths`: the compiled ways through a function; `Compiled`: what functions that have some share.

A path is what one run of the function became: machine code or kernels, guarded by what Python saw.
A call tries the paths of its version (shapes of its arguments, a size of blocks) until one fits,
the one that fitted last first. None fits: the call is Python's, and recorded, and its path joins,
up to a limit. What cannot be compiled at all has a reason, told once, with the user's line.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, overload

from probtorch.compiler.explain.explain import Explanation, explain
from probtorch.compiler.graph import Graph, GraphValue, Node
from probtorch.compiler.guards.kinds import is_library_file
from probtorch.compiler.run.executable import Executable
from probtorch.errors import CompileError

__all__ = [
    "SWITCHED_OFF",
    "TOO_MANY_NUMBERS",
    "CompileWarning",
    "Compiled",
    "Paths",
    "PrintWarning",
    "home_of",
    "tell_of_prints",
]

P = TypeVar("P")

# Of one version: each takes a guard or more to tell from the others, and memory.
MAX_PATHS = 64
# Numbers that one float() or item() may give: each is a path of its own, and a number that is
# computed from a latent value or a batch hardly ever comes back.
MAX_NUMBERS = 8
TOO_MANY_NUMBERS = (
    f"float() or item() gave more than {MAX_NUMBERS} different numbers, each a path of its own"
)
SWITCHED_OFF = "compiling is switched off (PROBTORCH_JIT=0)", ""


class CompileWarning(UserWarning):
    """A function runs eagerly because it could not be compiled."""


class PrintWarning(UserWarning):
    """A line that prints has printed what was recorded, and prints no more."""


class Paths(Sequence[P]):
    """The paths of a function, and why it has no more of them.

    Parameters
    ----------
    name : str
        Of the function, for messages.
    limit : int, optional
        Paths of a version; `MAX_PATHS` without it.
    quiet : bool
        Say nothing where the function runs eagerly: `reason` tells.
    home : str
        The function's own line, for reasons that have no other.
    whole : bool
        Raise an error where the function would run eagerly.

    Attributes
    ----------
    reason : (str, str) or None
        Why calls that no path fits are Python's, and the user's line as "file:line" or "".
    aside : (str, str) or None
        Why some calls are Python's all the same, for `explain`.
    epoch : int
        How often paths have come, gone or changed places.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int | None = None,
        quiet: bool = False,
        home: str = "",
        whole: bool = False,
    ) -> None:
        self.name, self.quiet, self.home, self.whole = name, quiet, home, whole
        self.limit = MAX_PATHS if limit is None else limit
        self.reason: tuple[str, str] | None = None
        self.aside: tuple[str, str] | None = None
        self.told = False  # whether users know that it, or some calls of it, run eagerly
        self.muted = False  # while something is tried that may come to nothing
        self.epoch = 0
        self._versions: dict[Hashable, list[P]] = {}
        self._guards: dict[Hashable, set[Hashable]] = {}
        # Floats that Python saw, by version and the user's line.
        self._numbers: dict[tuple[Hashable, str], set[str]] = {}

    def __iter__(self) -> Iterator[P]:
        return (path for paths in self._versions.values() for path in paths)

    def __len__(self) -> int:
        return sum(map(len, self._versions.values()))

    @overload
    def __getitem__(self, index: int) -> P: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[P]: ...
    def __getitem__(self, index: int | slice) -> P | Sequence[P]:
        return list(self)[index]

    @property
    def versions(self) -> Sequence[Hashable]:
        """The versions that have paths."""
        return list(self._versions)

    def of(self, version: Hashable = None) -> Sequence[P]:
        """Return the paths of a version in the order in which they are to be tried."""
        return self._versions.get(version, ())

    def are_full(self, version: Hashable = None) -> bool:
        """Whether a version has as many paths as it may have."""
        return len(self.of(version)) >= self.limit

    def know(self, guards: Hashable, version: Hashable = None) -> bool:
        """Whether a version has a path whose guards saw the same, see `graph.path_key`."""
        return guards in self._guards.get(version, ())

    def restless_number(
        self, guards: Iterable[tuple[GraphValue, object, Node]], version: Hashable = None
    ) -> Node | None:
        """Return the node of a guard that took too many different floats by now, or None."""
        for _, value, node in guards:
            if type(value) is float:
                seen = self._numbers.setdefault((version, node.location), set())
                seen.add(repr(value))
                if len(seen) > MAX_NUMBERS:
                    return node
        return None

    def add(self, path: P, version: Hashable = None, guards: Hashable = None) -> None:
        """Take in a path, behind those that there are."""
        self.epoch += 1
        self._versions.setdefault(version, []).append(path)
        self._guards.setdefault(version, set()).add(guards)

    def promote(self, path: P, version: Hashable = None) -> None:
        """Let a path be tried first from now on."""
        self.epoch += 1
        # A new list: another thread may be going through the old one.
        self._versions[version] = [path, *(p for p in self.of(version) if p is not path)]

    def remove(self, path: P, version: Hashable) -> None:
        """Drop a path."""
        self.epoch += 1
        self._versions[version] = [p for p in self.of(version) if p is not path]

    def forget(self, version: Hashable) -> None:
        """Drop the paths of a version."""
        self.epoch += 1
        self._versions.pop(version, None)
        self._guards.pop(version, None)

    def clear(self) -> None:
        """Drop all paths."""
        self.epoch += 1
        self._versions.clear()
        self._guards.clear()

    def give_up(self, reason: str, place: str = "", *, loud: bool = False) -> None:
        """Make no more paths: those there are stay in use, their guards hold or do not.

        The first reason counts and is told, if need be by one that is quiet.
        """
        if self.reason is None:
            place = place or self.home
            self.reason = (reason, place)
            self.warn(reason, place, loud=loud)

    def give_up_refused(self, error: CompileError) -> None:
        """Give up because something in a recorded graph cannot be compiled."""
        self.give_up(f"{error.subject}: {error.got}", error.location)

    def give_up_full(self, graph: Graph, changed: str | None = None) -> None:
        """Give up because the path of a recorded graph is one too many.

        `changed` is a Python value that is not what it was on the path before.
        """
        reason, place = f"more than {self.limit} different paths through it were met", ""
        if changed is not None:
            reason = f"{reason}; {changed} is not what it was in the call before"
        elif graph.guards:
            reason, place = f"{reason}; here is the last branch of one", graph.guards[-1][2].place
        self.give_up(reason, place)

    def give_up_wrong(self, what: str) -> None:
        """Drop all paths for good: a replay did not give what Python gives."""
        self.clear()
        self.reason = (f"a replay was wrong: {what}", "")

    def refuse(self) -> NoReturn:
        """Raise an error in place of a call that would run eagerly, for `whole`."""
        reason, place = self.reason or self.aside or ("this call is not compiled", self.home)
        raise CompileError(
            self.name,
            expected="a function that is compiled whole, as fullgraph=True says",
            got=f"{reason}{place and f', at {place}'}",
            fix="rewrite that part, or leave out fullgraph=True: it then runs eagerly",
        )

    def warn_of_many(self, place: str, seconds: float) -> None:
        """Say that values lead to ever other branches of Python, each of which is compiled."""
        self._issue(
            f"{self.name} takes other branches of Python for other values\n"
            f"  reason:   {len(self)} paths by now, {seconds:.2g} s to compile them, and at most "
            f"{self.limit}; here is a branch of the last one\n"
            f"  at:       {place}\n"
            "  fix:      choose by where(condition, a, b) in place of if, for all rows at once "
            "where it stands in a loop; or sum a discrete choice out",
            place,
        )

    def warn(self, reason: str, place: str = "", *, loud: bool = False) -> None:
        """Say that the function, or some calls of it, run eagerly: at the user's line, if known."""
        if self.muted:
            return
        if self.whole:
            self.aside = self.aside or (reason, place)
            self.refuse()
        if self.quiet and (self.told or not loud):
            return
        self.told = True
        place = place or self.home
        at = f"\n  at:       {place}" if place else ""
        message = (
            f"{self.name} runs eagerly, which is slower\n  reason:   {reason}{at}\n"
            f"  fix:      {_cure(reason)}; results are those of eager execution"
        )
        self._issue(message, place)

    @staticmethod
    def _issue(message: str, place: str) -> None:
        file, _, line = place.rpartition(":")
        if file and line.isdigit():
            warnings.warn_explicit(message, CompileWarning, file, int(line))
        else:
            warnings.warn(message, CompileWarning, stacklevel=4)


# What to write where Python takes numbers that each call may change, by how the reason begins.
_TENSORS = (
    "make tensors of arrays that are indexed by a tensor, X = probtorch.tensor(X), and let tensors "
    "compute"
)
_CURES = {
    "numpy()": _TENSORS,
    "memoryview()": _TENSORS,  # how NumPy asks from Python 3.12 on
    "nonzero": "choose by where(mask, x, 0.0) in place of x[mask]",
    "tolist()": "index and compute with the tensor itself",
}


def _cure(reason: str) -> str:
    begin = reason.partition(",")[0]
    if "has changed ahead of" in reason:
        return (
            "keep a number that changes in an attribute or a variable as a float, which can be an "
            "input, or pass it as a tensor"
        )
    return _CURES.get(begin, "rewrite that part if speed matters")


class Compiled:
    """A function of which there are compiled paths.

    Attributes
    ----------
    name : str
        For messages.
    paths : Paths
    """

    name: str
    paths: Paths[Any]  # executables, or what stands around them

    @property
    def reason(self) -> tuple[str, str] | None:
        """Why it runs eagerly, ``(reason, place)``; None where it does not."""
        return self.paths.reason

    def executables(self) -> Sequence[Executable]:
        """Return what its paths run."""
        return list(self.paths)

    def explain(self, *, format: str = "text", profile: bool = False) -> Explanation | str:
        """Return what became of it: paths, guards, loop nests, or why it runs eagerly.

        Parameters
        ----------
        format : "text" or "html"
            A text, which notebooks show as a page, or that page: one file, no scripts, no network.
        profile : bool
            Run each path again on the arguments that it last met (a density: at the point where it
            was recorded), if they are still there, and give the time of each nest and call. Nothing
            else changes by that; it takes a fraction of a second per path.

        Returns
        -------
        Explanation or str
        """
        found, reason = self.executables(), self.reason or self.paths.aside
        return explain(self.name, found, reason, notes=self.notes(), format=format, profile=profile)

    def notes(self) -> tuple[str, ...]:
        """Return sentences about all of its paths, for `explain`."""
        return ()


def home_of(fn: Callable[..., object]) -> str:
    """Return the line where a function of the user's is defined, "" for others."""
    found: object = inspect.unwrap(fn)
    while isinstance(found, functools.partial):
        found = found.func
    if not inspect.isroutine(found):
        found = getattr(found, "forward", None) or getattr(found, "__call__", None)  # noqa: B004
    code = getattr(found, "__code__", None)
    if code is None or is_library_file(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"


# Lines that were told of: functions are recorded path by path and size by size.
_PRINTING: set[str] = set()


def tell_of_prints(what: str, prints: Iterable[str]) -> None:
    """Warn, once for each line, that what a recording printed is not printed by native code."""
    places = [place for place in dict.fromkeys(prints) if place not in _PRINTING]
    if not places:
        return
    _PRINTING.update(places)
    file, _, line = places[0].rpartition(":")
    others = f" and {len(places) - 1} more" if len(places) > 1 else ""
    message = (
        f"{what} prints while it is recorded, and not in each native run\n"
        "  expected: lines that show values to people and change nothing\n"
        f"  got:      values of the run that was recorded, shown at {places[0]}{others}\n"
        "  fix:      to see every run, call it inside `with probtorch.configure(jit=False):`, "
        "or set PROBTORCH_JIT=0"
    )
    warnings.warn_explicit(message, PrintWarning, file, int(line or 0))
