"""`autoname` and its `sample`: names from distributions, functions and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar, overload

from probtorch.core.signatures import explain_calls
from probtorch.effects import primitives
from probtorch.effects.runtime import STATE, Handler
from probtorch.errors import ArgumentError
from probtorch.tensor import Tensor

__all__ = ["autoname", "sample"]

T = TypeVar("T")
_STATED: Callable[..., Tensor] = primitives.sample


class _Autoname(Handler):
    """A scope of names, entered by each run of a function, each turn of a loop, or a block.

    Names are counted within it: ``x``, ``x1``, ``x2`` of sites, ``f``, ``f__1`` of scopes.
    """

    def __init__(
        self, fn: Callable[..., object] | None = None, name: str | None = None, turn: int = 0
    ) -> None:
        super().__init__(fn)
        self.name, self._turn = name, turn
        self._path = ""
        self._counts: dict[str, int] = {}

    def _wrap(self, fn: Callable[..., object]) -> Handler:
        # A loop comes here, too: the handler is called with what it is to be a scope of.
        return autoname(fn, self.name)

    def for_one_run(self) -> Handler:
        return _Autoname(None, self.name)

    def __enter__(self) -> Self:
        around, name = _innermost(), str(self.name)
        count = self._turn if around is None else around.count(name)
        self._path = ("" if around is None else f"{around._path}/") + name
        self._path += f"__{count}" if count else ""
        self._counts = {}
        return super().__enter__()

    def count(self, name: str) -> int:
        """How often the name was there before."""
        self._counts[name] = self._counts.get(name, -1) + 1
        return self._counts[name]

    def fresh(self, name: str) -> str:
        """Return the full name of a site."""
        count = self.count(name)
        return f"{self._path}/{name}" + (str(count) if count else "")


class _Turns(Iterable[T]):
    """A loop of which each turn is a scope."""

    def __init__(self, rows: Iterable[T], name: str) -> None:
        self.rows, self.name = rows, name

    def __iter__(self) -> Iterator[T]:
        for turn, row in enumerate(self.rows):
            with _Autoname(None, self.name, turn):
                yield row


def _innermost() -> _Autoname | None:
    """The scope that a name is in; no handler is between it and the statement by Pyro's rules."""
    return next((h for h in reversed(STATE.handlers) if isinstance(h, _Autoname)), None)


@overload
def autoname(fn: None = None, name: str | None = None) -> _Autoname: ...
@overload
def autoname(fn: Iterable[T], name: str | None = None) -> Iterable[T]: ...
@overload
def autoname(fn: Callable[..., object], name: str | None = None) -> Handler: ...
def autoname(
    fn: Callable[..., object] | Iterable[T] | None = None, name: str | None = None
) -> Handler | Iterable[T]:
    """Make a function, a loop or a block a scope, in which sites have names of their own.

    Parameters
    ----------
    fn : callable or iterable, optional
        A function whose calls are scopes, or what a loop runs over, whose turns are. Without it,
        the result is a context manager, and takes the function or iterable later.
    name : str, optional
        Of the scope; by default that of the function, or of the plate.

    Returns
    -------
    the same again, as a scope

    Notes
    -----
    Sites are stated by `autoname.sample`. Statements of `probtorch` itself keep their names.

    Examples
    --------
    >>> from probtorch import distributions as dist, handlers
    >>> @autoname
    ... def step():
    ...     return sample(dist.Normal(0.0, 1.0))
    >>> @autoname(name="model")
    ... def walk():
    ...     for _ in autoname(range(2), name="time"):
    ...         step()
    ...     sample("end", dist.Normal(0.0, 1.0))
    >>> list(handlers.trace(walk).get_trace().nodes)
    ['model/time/step/Normal', 'model/time__1/step/Normal', 'model/end']
    """
    if fn is None:
        return _Autoname(None, name)
    if isinstance(fn, Iterable):
        name = getattr(fn, "name", None) if name is None else name
        if name is None:
            raise ArgumentError(
                "autoname of a loop",
                expected="a name, or a plate, which has one",
                got=type(fn).__name__,
                fix='write autoname(range(3), name="time")',
            )
        return _Turns(fn, name)
    if not callable(fn):
        raise ArgumentError(
            "autoname",
            expected="a function or an iterable",
            got=type(fn).__name__,
            fix='write `with autoname(name="prefix"):` for a block',
        )
    return Handler._wrap(_Autoname(None, fn.__name__ if name is None else name), fn)


def sample(*args: object, **kwargs: object) -> Tensor:
    """`probtorch.sample`, whose name is completed by `autoname`, and may be left out.

    Parameters
    ----------
    *args
        A name and a distribution, as of `probtorch.sample`; or the distribution alone.
    name : str, optional
        In place of that of the distribution, where it comes first.
    **kwargs
        As of `probtorch.sample`.

    Returns
    -------
    value : Tensor
    """
    if not args:
        raise ArgumentError(
            "autoname.sample",
            expected="a distribution, or a name and a distribution",
            got="nothing",
            fix="write sample(Normal(0.0, 1.0))",
        )
    if isinstance(args[0], str):
        name, args = args[0], args[1:]
    else:
        name = str(kwargs.pop("name", None) or type(args[0]).__name__)
    scope = _innermost()
    return _STATED(name if scope is None else scope.fresh(name), *args, **kwargs)


explain_calls(globals())
