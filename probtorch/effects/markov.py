"""`markov`: a loop, a block or a recursion whose steps see only the last few steps before them.

Statements mean the same with or without it. It is a promise to inference: a step depends on at most
`history` steps before it, so what lies further back can be summed out and its batch dims be given
to others. `enumeration.py` reads that promise; a chain of any length then needs a few dims.

Like the plates, the chains around a statement are a scoped setting of the handler stack. Read
`runtime.py` first. The name and the three spellings are Pyro's.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any, NamedTuple

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.effects.runtime import STATE, Chains
from probtorch.errors import ArgumentError

__all__ = ["Link", "MarkovStep", "markov"]


class MarkovStep:
    """One pass through a chain: an identity, nothing else."""

    __slots__ = ()


class Link(NamedTuple):
    """Where a statement stands in one of the chains around it.

    Attributes
    ----------
    owner : markov
    steps : tuple of Step
        The steps in sight, the current one last; one more than `history` asks for lies before them,
        if there is one.
    position : int
        Number of the current step, from 0.
    """

    owner: markov
    steps: tuple[MarkovStep, ...]
    position: int

    @property
    def in_sight(self) -> tuple[MarkovStep, ...]:
        """The steps that a statement here may depend on."""
        return self.steps[-1 - self.owner.history :]

    @property
    def in_use(self) -> tuple[MarkovStep, ...]:
        """The steps whose dims must not be taken yet: those in sight, and one before them.

        So a statement that looks one step too far back meets a dim that is nobody's, and is refused
        (enumeration.py). Steps of a chain that keeps them may come into sight again.
        """
        return tuple(self.owner.kept) if self.owner.keep else self.steps


class markov:
    """State that each step depends on the last few steps only.

    Parameters
    ----------
    fn : iterable or callable, optional
        An iterable, as in ``for t in markov(range(100))``; or a recursive function. Without it the
        result is a decorator, and a context manager whose nested entries are the steps.
    history : int
        How many steps back a step may depend on; 0 makes the steps independent given what is
        outside.
    keep : bool
        Whether branches at the same depth may depend on each other, as in a grid: the inner loop is
        one ``markov(range(n), keep=True)`` that is iterated in every step of the outer one.
    dim, name : optional
        Accepted for Pyro's sake.

    Raises
    ------
    ArgumentError
        If `history` is no count.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.distributions.categorical import Categorical
    >>> from probtorch.effects.primitives import sample
    >>> stay = probtorch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> x = 0
    >>> for t in markov(range(3)):
    ...     x = sample(f"x_{t}", Categorical(stay[x]))
    """

    def __init__(
        self,
        fn: Callable[..., object] | Iterable[object] | None = None,
        history: int = 1,
        keep: bool = False,
        dim: int | None = None,
        name: str | None = None,
    ) -> None:
        try:
            self.history = operator.index(history)
        except TypeError:
            self.history = -1
        if self.history < 0:
            raise ArgumentError(
                "markov",
                expected="history, the number of steps that a step depends on, >= 0",
                got=repr(history),
                fix="write markov(range(n), history=1)",
            )
        self.keep = bool(keep)
        self.kept: list[MarkovStep] = []
        self.fn = fn if callable(fn) else None
        self.iterable: Iterable[object] | None = None if callable(fn) else fn
        if self.fn is not None:
            functools.update_wrapper(self, self.fn, updated=())

    def _enter(self, before: Link | None) -> Link:
        """Put the step after `before` in force; return its link."""
        position = 0 if before is None else before.position + 1
        if self.keep:
            while len(self.kept) <= position:
                self.kept.append(MarkovStep())
            steps = tuple(self.kept[max(0, position - self.history - 1) : position + 1])
        else:
            steps = (() if before is None else before.steps)[-1 - self.history :] + (MarkovStep(),)
        link = Link(self, steps, position)
        now = STATE.chains
        others = tuple(other for other in now.links if other.owner is not self)
        STATE.chains = Chains(others + (link,), now)
        return link

    def _current(self) -> Link | None:
        """The link of this chain that is in force."""
        return next((link for link in STATE.chains.links if link.owner is self), None)

    def __enter__(self) -> markov:
        self._enter(self._current())
        return self

    def __exit__(self, *exc: object) -> None:
        STATE.chains = STATE.chains.outer

    def __iter__(self) -> Iterator[Tree]:
        if self.iterable is None:
            raise ArgumentError(
                "markov",
                expected="an iterable",
                got="none",
                fix="write `for t in markov(range(n))`",
            )
        link = self._current()
        for value in self.iterable:
            outer = STATE.chains
            link = self._enter(link)
            try:
                yield value
            finally:
                STATE.chains = outer

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        if self.fn is None:
            fn: Callable[..., object] = args[0]
            return markov(fn, self.history, self.keep)
        with self:
            return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: object = None) -> Any:
        # A decorated method binds like any other.
        return self if instance is None or self.fn is None else MethodType(self, instance)


explain_calls(globals())
