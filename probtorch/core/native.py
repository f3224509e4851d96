"""How an op says which native function carries it out in compiled code.

An op on matrices or rows declares a `Routine`, an op on numbers that has no formula a
`NativeFunction`; the compiler's `lower/` calls either without knowing the op. Ops that become part
of a loop nest name what they become instead ("view", "reduce", "scan"); the rest have a rule of
their own there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["NativeFunction", "Routine", "Space"]


@dataclass(frozen=True)
class Space:
    """Working memory of a routine: so many elements, "float" of its dtype, "integer" of LAPACK's
    size, or "byte".
    """

    kind: str
    count: int


@dataclass(frozen=True)
class Routine:
    """A function that carries out an op on matrices, or rows, that lie one after the other.

    Attributes
    ----------
    name : str
        Its symbol without ``pt_``; ``{letter}`` in it is LAPACK's letter for the dtype of the first
        input, ``{type}`` LLVM's name of it.
    arguments : str
        What it takes, in order. Pointers: names of inputs and outputs, and of working memory.
        Integers: names of core dims and of attributes, "count" (how many matrices or rows),
        "size(x)" (of working memory x) and "step(a)" (from one matrix of `a` to the next, 0 if
        there is one for all).
    outputs : str
        Names of the outputs; that of an input for what is left in its place.
    columns : str
        Inputs and outputs whose matrices lie by columns, as LAPACK has them; others lie by rows.
    keeps : str
        Inputs that it does not overwrite.
    space : callable or None
        ``space(dtype, count=, **core dims) -> dict of Space``.
    fails : bool or str
        Whether it returns a flag on which the run ends, or the attribute that says whether.
    empty : tuple of int
        The elements of each output for inputs without any; 0 where it says nothing.
    small : str or None
        An item of a loop nest that does the same for matrices of few rows.
    """

    name: str
    arguments: str
    outputs: str
    columns: str = ""
    keeps: str = ""
    space: Callable[..., dict[str, Space]] | None = None
    fails: bool | str = False
    empty: tuple[int, ...] = ()
    small: str | None = None
    kind: ClassVar[str] = "routine"


@dataclass(frozen=True)
class NativeFunction:
    """A function of numbers that carries out an op element by element, in a loop nest.

    Attributes
    ----------
    name : str
        Its symbol without ``pt_``, with attributes in braces.
    numbers : callable or None
        ``numbers(**attrs)`` gives integers that it takes after the inputs.
    refuses : bool
        Whether the run ends where it gives nan.
    """

    name: str
    numbers: Callable[..., Sequence[int]] | None = None
    refuses: bool = False
    kind: ClassVar[str] = "function"
