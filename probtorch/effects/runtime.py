"""One handler stack, and the walk of a site through it.

A model statement makes a `Site` and hands it to `perform`. Handlers see it from the innermost to
the outermost, each through the hook for its kind (`on_sample`, `on_param`, `on_plate` ...); then
the default behaviour supplies what is still missing (a draw, a parameter's value), and the handlers
that saw the site see it again, outermost first (`after_sample` ...). Hooks are found once per
class. A handler is a context manager, a decorator and a wrapper of a function, all through
`Handler`.

Plates are a scoped setting of the same stack, and a draw asks the whole stack for a generator: so
`block`, which hides a site from the handlers outside, can neither take it out of its plates nor
unseed it.

The stack belongs to the thread, so that chains may run in threads. What `perform` does is algebraic
effects (Plotkin and Pretnar 2009) as Pyro spells them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, SupportsIndex, TypeVar

from probtorch.core.naming import importable_name
from probtorch.core.rng import Generator
from probtorch.core.showing import call_of
from probtorch.core.signatures import explained
from probtorch.core.typed import Tree
from probtorch.effects.site import Frame, Site

if TYPE_CHECKING:
    from probtorch.effects.markov import Link
    from probtorch.effects.minibatches import RowSource
    from probtorch.effects.params import ParamStore
    from probtorch.effects.plates import plate

__all__ = [
    "STATE",
    "Chains",
    "Handler",
    "Placement",
    "default_for",
    "draw",
    "generator_in_force",
    "outside",
    "perform",
    "perform_together",
]


_Default = TypeVar("_Default", bound=Callable[[Site], object])


class Placement(NamedTuple):
    """The plates in force.

    Attributes
    ----------
    frames : tuple of Frame
        Outermost first.
    shape : tuple of int
        Batch shape of what is inside, 1 at dims that no plate takes.
    scale : float
        Product of the frames' scales.
    outer : Placement or None
        What was in force before the innermost plate.
    waiting : tuple of plate
        Those that were made without a size, which the first statement inside gives them.
    """

    frames: tuple[Frame, ...] = ()
    shape: tuple[int, ...] = ()
    scale: float = 1.0
    outer: Placement | None = None
    waiting: tuple[plate, ...] = ()


class Chains(NamedTuple):
    """The chains in force: see markov.py.

    Attributes
    ----------
    links : tuple of Link
        Outermost first.
    outer : Chains or None
        What was in force before the innermost step was entered.
    """

    links: tuple[Link, ...] = ()
    outer: Any = None


class _State(threading.local):
    """What is active in this thread; every field is an immutable value, replaced and put back."""

    handlers: tuple[Handler, ...] = ()
    plates: Placement = Placement()
    chains: Chains = Chains()
    params: ParamStore | None = None
    rows: RowSource | None = None
    performed: int = 0


STATE = _State()


# What a kind of site does when no handler gave it a value; filled in by the module that owns the
# primitive.
_DEFAULTS: dict[str, Callable[[Site], Tree]] = {}


def default_for(kind: str) -> Callable[[_Default], _Default]:
    """Decorator: make a function the default behaviour of sites of `kind` without a value."""

    def register(fn: _Default) -> _Default:
        _DEFAULTS[kind] = fn
        return fn

    return register


def perform(site: Site) -> Tree:
    """Send `site` through the handler stack and return its value."""
    STATE.performed += 1
    stack = STATE.handlers
    if not stack:
        if site.value is None:
            site.value = _DEFAULTS[site.kind](site)
        return site.value
    seen = len(stack)
    while seen:
        seen -= 1
        handler = stack[seen]
        hook = handler._before.get(site.kind)
        if hook is not None:
            hook(handler, site)
            if site.stop:
                break
    if site.value is None:
        site.value = _DEFAULTS[site.kind](site)
    for handler in stack[seen:]:
        hook = handler._after.get(site.kind)
        if hook is not None:
            hook(handler, site)
    return site.value


def perform_together(sites: Sequence[Site], complete: Callable[[], None]) -> None:
    """Send sites through the handler stack, of which no one can be drawn without the others.

    Parameters
    ----------
    sites : sequence of Site
    complete : callable
        Called when the handlers have seen all of them on the way out; gives those a value that have
        none.
    """
    STATE.performed += len(sites)
    stack = STATE.handlers
    reached = []
    for site in sites:
        seen = len(stack)
        while seen:
            seen -= 1
            hook = stack[seen]._before.get(site.kind)
            if hook is not None:
                hook(stack[seen], site)
                if site.stop:
                    break
        reached.append(seen)
    complete()
    for site, seen in zip(sites, reached, strict=True):
        for handler in stack[seen:]:
            hook = handler._after.get(site.kind)
            if hook is not None:
                hook(handler, site)


def generator_in_force() -> Generator | None:
    """Return the innermost handler's generator; None stands for the default generator."""
    for handler in reversed(STATE.handlers):
        if handler.generator is not None:
            return handler.generator
    return None


@contextlib.contextmanager
def outside(handler: Handler) -> Iterator[None]:
    """Context manager: what a hook of `handler` states goes to the handlers outside of it.

    Those inside have had their say on the statement at hand. Only the ones that merely watch, such
    as traces, see the new statements too.
    """
    stack = STATE.handlers
    position = len(stack) - 1 - stack[::-1].index(handler)
    watching = tuple(inner for inner in stack[position + 1 :] if not inner._before)
    STATE.handlers = stack[:position] + watching
    try:
        yield
    finally:
        STATE.handlers = stack


@default_for("sample")
def draw(site: Site) -> Tree:
    """Return a draw from the site's distribution; a reparameterised one where there is one."""
    fn = site.fn
    if not hasattr(fn, "log_prob"):
        return fn(*site.args, **(site.kwargs or {}))
    if hasattr(fn, "remembering"):
        fn = site.fn = fn.remembering()
    method = fn.rsample if fn.has_rsample else fn.sample
    site.inside = True
    generator = site.generator
    if generator is None:
        generator = site.generator = generator_in_force()
    return method() if generator is None else method(generator=generator)


class Handler:
    """Base of all effect handlers.

    A subclass defines hooks by name: ``on_KIND(site)`` on the way out and ``after_KIND(site)`` on
    the way back, with KIND one of sample, param, deterministic, factor, plate.

    Parameters
    ----------
    fn : callable, optional
        With it the handler is a wrapped function: calling it runs `fn` under the handler. Without
        it, it is a context manager and a decorator.
    """

    _before: ClassVar[dict[str, Callable[..., None]]] = {}
    _after: ClassVar[dict[str, Callable[..., None]]] = {}

    fn: Callable[..., Tree] | None = None
    generator: Generator | None = None
    # Whether it holds inside the steps of a `scan`, too, and not for their sites as a whole alone.
    enters_steps: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        hooks = {
            name: getattr(cls, name) for name in dir(cls) if name.startswith(("on_", "after_"))
        }
        cls._before = {k.removeprefix("on_"): h for k, h in hooks.items() if k.startswith("on_")}
        cls._after = {
            k.removeprefix("after_"): h for k, h in hooks.items() if k.startswith("after_")
        }

    @explained(None)
    def __init__(self, fn: Callable[..., object] | None = None) -> None:
        self.fn = fn
        if fn is not None:
            functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        return call_of(self)

    def __copy__(self) -> Handler:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        # A decorated function of a module is found by its name, as others are.
        return importable_name(self) or super().__reduce_ex__(protocol)

    def __enter__(self) -> Self:
        STATE.handlers += (self,)
        return self

    def __exit__(self, *exc: object) -> None:
        STATE.handlers = STATE.handlers[:-1]

    def for_one_run(self) -> Handler:
        """Return the handler that one call of the wrapped function enters.

        A handler that keeps state per run returns a copy, so that calls in several threads do not
        meet.
        """
        return self

    def for_a_step(self) -> Handler:
        """Return the handler that a step of `scan` enters; asked of those with `enters_steps`."""
        return self.for_one_run()

    def __get__(self, instance: object, owner: object = None) -> Any:
        # A decorated method binds like any other.
        return self if instance is None or self.fn is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        if self.fn is None:
            return self._wrap(*args, **kwargs)
        with self.for_one_run():
            return self.fn(*args, **kwargs)

    def _wrap(self, fn: Callable[..., object]) -> Handler:
        """Use as a decorator: a copy of the handler that wraps `fn`."""
        wrapped = copy.copy(self)
        Handler.__init__(wrapped, fn)
        return wrapped
