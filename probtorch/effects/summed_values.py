"""Values of enumerated sites stay in the tensors: Python is not told them.

An enumerated site has all its values at once, so there is nothing that ``if z:`` could look at.
``z.any()`` has one element again and would be an answer, to another question. So no shape tells
which reads are wrong; dependence does. `SummedValues` listens to every operation of an enumerated
run, follows what is computed from the values, and refuses the reads that reach Python: branches,
numbers, lists and arrays.

What the library itself looks at, to check parameters say, goes by: it looks at all elements alike.

It also refuses what would never end: a tensor with an entry for each combination of values of many
sites. Each site more makes such a tensor several times as large, so that it is refused while it is
still small.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

from probtorch.autograd.closures import captured
from probtorch.autograd.function import Function, FunctionCtx
from probtorch.autograd.listener import Listener
from probtorch.core.dispatch import wrap
from probtorch.core.interpreter import NUMBERS, Interpreter
from probtorch.core.op import Attrs, Op, Operand, Output
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, leaves, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import InferenceError, ShapeError, TensorIndexError, is_users
from probtorch.tensor import Tensor

__all__ = ["Marks", "SummedValues", "refuse_combinations"]

ROOT = str(Path(__file__).resolve().parent.parent) + "/"
# Rooms whose own reads are of all elements alike: checks of values and parameters, step sizes of
# solvers, what inference does with a run. The others act for the user who called them.
TRUSTED = (
    "compiler/",
    "diagnostics/",
    "distributions/",
    "effects/",
    "estimators/",
    "infer/",
    "numerics/",
    "ode/",
)
# Reads that no result depends on.
HARMLESS = ("the text of a tensor",)
SHOWN = 3
# Combinations of values that a table of a sum has at most, where so many sites or more meet in it:
# 32 MB a table, some of which a gradient keeps. Few sites may have as many values as they like.
MOST_COMBINATIONS, MANY_SITES = 2**22, 8
NOTHING: frozenset[str] = frozenset()


R = TypeVar("R")
S = TypeVar("S")


class Marks:
    """Which tensors of an enumerated run depend on which enumerated sites.

    Attributes
    ----------
    cure : str
        What else than tensor operations there is for the model at hand, to end the error's fix.
    """

    def __init__(self) -> None:
        # By id; the reference tells a tensor from a later one in its place.
        self._sites: dict[int, tuple[weakref.ref[Tensor], frozenset[str]]] = {}
        self.cure = ""
        self.started: list[str] = []
        self.sizes: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._sites)

    def of(self, t: Tensor) -> frozenset[str]:
        """Return the names of the sites that a tensor depends on."""
        return self._own(t) if t._base is None else self._own(t) | self._own(t._base)

    def _own(self, t: object) -> frozenset[str]:
        entry = self._sites.get(id(t))
        return entry[1] if entry is not None and entry[0]() is t else NOTHING

    def add(self, t: Tensor, names: frozenset[str]) -> None:
        """Note that a tensor depends on sites, and with it the tensor whose memory it views."""
        if names:
            for x in (t,) if t._base is None else (t, t._base):
                own = self._own(x)
                self._sites[id(x)] = (weakref.ref(x), names | own if own else names)

    def start(self, t: Tensor, name: str, size: int) -> None:
        """Note the values of an enumerated site; the steps of a chain may share one tensor."""
        self.sizes[name] = size
        if name not in self.started:
            self.started.append(name)
        self._sites[id(t)] = (weakref.ref(t), frozenset((name,)))


class SummedValues(Listener):
    """Follows the values of enumerated sites through a run, and refuses to let Python read them.

    Parameters
    ----------
    marks : Marks
        Shared by the runs of a guide and its model.
    """

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    # ------------------------------------------------------------------------------ dependence

    def _among(self, tensors: Iterable[object]) -> frozenset[str]:
        # Asked at every operation of a run: as little as can be.
        sites = self.marks._sites
        found: frozenset[str] = NOTHING
        for t in tensors:
            if isinstance(t, TensorBase):
                for x in (t,) if t._base is None else (t, t._base):
                    entry = sites.get(id(x))
                    if entry is not None and entry[0]() is x and entry[1] is not found:
                        found = found | entry[1] if found else entry[1]
        return found

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Let results depend on what their inputs depend on."""
        if self.outer is not None:
            self.outer.applied(op, inputs, attrs, out)
        if self.marks:
            names = self._among(inputs)
            if names:
                for t in out if isinstance(out, tuple) else (out,):
                    self.marks.add(t, names)
                    if len(names) >= MANY_SITES and t.array.size > MOST_COMBINATIONS:
                        refuse_combinations({name: self.marks.sizes.get(name, 1) for name in names})

    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Sequence[object],
        outs: Sequence[Tensor],
    ) -> None:
        """The same for a custom function, which may compute with arrays."""
        super().function_applied(function, ctx, inputs, outs)
        names = self._among(inputs)
        for t in outs:
            self.marks.add(t, names)

    def excuses(self, inside: TensorBase) -> bool:
        """Some values of an enumerated site may leave data without a support: they have no mass."""
        if not self.marks.of(inside):
            return super().excuses(inside)
        return not (inside.array.all() and self.is_constant(inside))

    def in_place(self, target: Tensor, value: Tensor) -> None:
        """Let `target` depend on what is written into it."""
        super().in_place(target, value)
        self.marks.add(target, self.marks.of(value))

    def alias(self, source: Tensor, t: Tensor, taped: bool) -> None:
        """Let `t` depend on what `source` depends on."""
        super().alias(source, t, taped)
        self.marks.add(t, self.marks.of(source))

    def __exit__(self, *exc: object) -> None:
        """Tell of the dims of the values where shapes did not go together."""
        left = super().__exit__(*exc)
        error = exc[1] if len(exc) > 1 else None
        names = self.marks.started
        if (
            isinstance(error, (ShapeError, TensorIndexError))
            and names
            and is_users(error.location.rpartition(":")[0])
        ):
            shown = ", ".join(map(repr, names[:SHOWN])) + (" ..." if len(names) > SHOWN else "")
            raise type(error)(
                error.subject,
                expected=error.expected,
                got=f"{error.got}; all values of {shown} at once lie along dims of their own, to "
                "the left, and rows of a plate that are summed out one by one have size 1",
                fix=f"compute elementwise with {names[0]}, count dims from the right, and do not "
                "mix the rows of its plate: their sums run over each row alone"
                if isinstance(error, ShapeError)
                else f"put what depends on {names[0]} inside of its plate, or write that plate as "
                "a loop, for i in plate(...)",
                at=error.location,
            ) from error
        return left

    # -------------------------------------------------------------- loops that are recorded whole

    @property
    def records_loops(self) -> bool:
        """Whether the recorder outside takes loops whole."""
        return self.outer is not None and self.outer.records_loops

    def while_loop(
        self,
        cond_fn: Callable[[S], Tensor],
        body_fn: Callable[[S], S],
        items: Sequence[Tensor],
        structure: Structure,
    ) -> S:
        """Have a loop recorded; its result depends on what its body reads."""
        with self._silent() as outer:
            out = outer.while_loop(cond_fn, body_fn, items, structure)
        if out is NotImplemented:
            return out  # its parts are heard here
        self._follow(out, items, structure, lambda state: (cond_fn(state), body_fn(state)))
        return out

    def cond(
        self,
        pred: Tensor,
        true_fn: Callable[..., R],
        false_fn: Callable[..., R],
        items: Sequence[Tensor],
        structure: Structure,
    ) -> R:
        """Have a branch recorded, if it is not one on a value that is summed out."""
        self._refuse(pred, "bool()")
        with self._silent() as outer:
            out = outer.cond(pred, true_fn, false_fn, items, structure)
        if out is NotImplemented:
            return out  # its parts are heard here
        self._follow(out, items, structure, lambda state: (true_fn(*state), false_fn(*state)))
        return out

    @contextlib.contextmanager
    def _silent(self) -> Iterator[Interpreter]:
        """Context manager: the recorder outside takes a loop, whose parts are not heard here."""
        # Not installed while it runs: the recorder of the body would not be the outer one.
        self.__exit__()
        try:
            assert self.outer is not None  # else it records no loops
            yield self.outer
        finally:
            self.__enter__()

    def _follow(
        self, out: Tree, items: Sequence[Tensor], structure: Structure, run: Callable[..., object]
    ) -> None:
        if not self.marks:
            return
        names = self._among(items)
        copies = [wrap(x.array.copy()) for x in items]
        closed_over: list[Tensor] = []
        try:
            found = captured(
                lambda: run(unflatten(structure, copies)), copies, branches=True, others=closed_over
            )
        except Exception:
            found = None
        if found is None:
            # Nobody knows what it reads: anything.
            names = frozenset().union(*(names for _, names in self.marks._sites.values()))
        else:
            names |= self._among((*found, *closed_over))
        for t in leaves(out):
            if isinstance(t, TensorBase):
                self.marks.add(t, names)

    # ------------------------------------------------------------------------------------- reads

    def read(self, what: str, t: Tensor | None, value: R) -> R:
        """Refuse branches, numbers, lists, arrays, and results whose shape depends on a value."""
        if t is not None and what not in HARMLESS:
            kind = type(value).__name__ if isinstance(value, NUMBERS) else ""
            number = "bool()" if kind == "bool" else f"{kind}() or item()"
            self._refuse(t, number if kind else what.removesuffix("()"))
        return super().read(what, t, value)

    def not_one(self, what: str, t: Tensor) -> None:
        """Refuse the same where the shape refuses it too, for another reason."""
        self._refuse(t, what)
        super().not_one(what, t)

    def _refuse(self, t: Tensor, what: str) -> None:
        names = sorted(self.marks.of(t))
        if not names or _of_the_library():
            return
        shown = ", ".join(map(repr, names[:SHOWN])) + (" ..." if len(names) > SHOWN else "")
        one = len(names) == 1
        site = f"site {shown}" if one else f"sites {shown}"
        z = names[0] if names[0].isidentifier() else "z"
        if "bool" in what:
            fix = f"write the branch as probtorch.where({z} == 1, a, b), or choose from a table by "
            fix += f"its value: table[{z}.long()]"
        elif "number" in what or "()" in what or what == "index":
            fix = f"compute with {z} itself; choose from a table by its value: table[{z}.long()]"
        else:
            fix = f"use the function of probtorch of that name on {z} itself, probtorch.where, or "
            fix += f"a table: table[{z}.long()]"
        raise InferenceError(
            f"{site} {'is' if one else 'are'} being summed out: there is no one value for Python "
            "to see",
            expected=f"operations on tensors: {'it has' if one else 'they have'} all values at "
            f"once, along {'a dim of its own' if one else 'dims of their own'}",
            got=f"{what} of a tensor of shape {tuple(t.array.shape)} that depends on {site}",
            fix=fix + self.marks.cure,
        )


def refuse_combinations(sizes: Mapping[str, int]) -> None:
    """Refuse a table with an entry for each combination of values of these sites, if it is large.

    Parameters
    ----------
    sizes : dict of str to int
        How many values each of the sites has.

    Raises
    ------
    InferenceError
    """
    count = math.prod(sizes.values())
    if len(sizes) < MANY_SITES or count <= MOST_COMBINATIONS:
        return
    names = sorted(sizes)
    raise InferenceError(
        f"intractable: {len(names)} discrete sites meet in one sum, "
        f"{', '.join(map(repr, names[:SHOWN]))} ...",
        expected=f"at most {MOST_COMBINATIONS:,} combinations of values of sites that depend on "
        "each other, or on the same data",
        got=f"{count:.3g} combinations" if count > 1e9 else f"{count:,} combinations",
        fix="draw them along with the rest, MCMC(Gibbs(model)); if each depends on the ones just "
        "before only, write the loop as `for t in markov(range(n))`",
    )


def _of_the_library() -> bool:
    """Whether the library itself reads, to check what it was given."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(ROOT):
            return False
        if name[len(ROOT) :].startswith(TRUSTED) and name != __file__:
            return True
        frame = frame.f_back
    return False
