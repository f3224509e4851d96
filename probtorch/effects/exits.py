"""Runs that are left at a site: `escape`, and `queue`, which tries all values of discrete sites.

A handler may raise `NonlocalExit` where a run meets a site that it was not told about; whoever
started the run extends what is known by each value of the site and runs again. Searches over the
executions of a program are made of this, as in Pyro.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from queue import Queue

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.effects.handlers import block, replay, trace
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError

__all__ = ["NonlocalExit", "escape", "queue"]


class NonlocalExit(Exception):
    """Leaves a run at a site.

    Parameters
    ----------
    site : Site
        Where; it has no value yet.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(f"left at site {site.name!r}")
        self.site = site


class escape(Handler):
    """Leave the run at the first sample site that a function accepts.

    Parameters
    ----------
    fn : callable, optional
    escape_fn : callable
        ``f(site) -> bool``.

    Raises
    ------
    NonlocalExit
        While running.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> from probtorch.effects.primitives import sample
    >>> def model():
    ...     return sample("x", Normal(0.0, 1.0)) + sample("y", Normal(0.0, 1.0))
    >>> try:
    ...     escape(model, lambda site: site.name == "y")()
    ... except NonlocalExit as left:
    ...     print(left.site.name)
    y
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        escape_fn: Callable[[Site], bool] | None = None,
    ) -> None:
        super().__init__(fn)
        self.escape_fn = escape_fn

    def on_sample(self, site: Site) -> None:
        """Leave, if this is the site."""
        if self.escape_fn is not None and self.escape_fn(site):
            raise NonlocalExit(site)


def _undecided(known: Trace, site: Site) -> bool:
    """Whether a site is latent, discrete and finite, and has no value in a trace."""
    finite = getattr(site.fn, "has_enumerate_support", False)
    return not site.observed and site.value is None and site.name not in known and finite


def _every_value(known: Trace, site: Site, num_samples: int) -> Iterator[Trace]:
    """Yield the trace extended by each value of a site, or by the first `num_samples` of them."""
    for i, value in enumerate(site.fn.enumerate_support(expand=True)):
        if 0 <= num_samples <= i:
            return
        longer, decided = known.copy(), copy.copy(site)
        decided.value = value
        longer.add(decided)
        yield longer


def queue(
    fn: Callable[..., Tree],
    queue: Queue[Trace],
    max_tries: int = 1_000_000,
    extend_fn: Callable[[Trace, Site, int], Iterator[Trace]] | None = None,
    escape_fn: Callable[[Trace, Site], bool] | None = None,
    num_samples: int = -1,
) -> Callable[..., Tree]:
    """Return `fn` run under partial traces from a queue until one of them is complete.

    Each call takes traces from the queue. A run that meets a site it has no value for puts back one
    longer trace for each value, and the next is tried; a run that comes to its end is returned. So
    calls until the queue is empty visit every execution of a program with discrete sites.

    Parameters
    ----------
    fn : callable
    queue : queue.Queue of Trace
        To begin with one empty `Trace`. A `LifoQueue` goes deep first.
    max_tries : int
    extend_fn : callable, optional
        ``(trace, site, num_samples) -> traces``; by default one for each value of the support.
    escape_fn : callable, optional
        ``(trace, site) -> bool``: where to leave; by default at finite discrete latent sites that
        the trace does not have.
    num_samples : int
        The most values to extend a trace by; -1 for all.

    Returns
    -------
    callable
        As `fn`. Under `trace` its sites are those of the run that came to its end.

    Raises
    ------
    queue.Empty
        By a call, when there is no trace left to try.
    InferenceError
        After `max_tries` runs, none of which came to an end.
    """
    extend = _every_value if extend_fn is None else extend_fn
    leave = _undecided if escape_fn is None else escape_fn

    def call(*args: object, **kwargs: object) -> Tree:
        for _ in range(max_tries):
            known = queue.get(block=False)
            try:
                trial = escape(replay(fn, trace=known), functools.partial(leave, known))
                # Handlers outside hear of the run that comes to its end, and of no other.
                found = block(trace(trial).get_trace)(*args, **kwargs)
            except NonlocalExit as left:
                for longer in extend(known, left.site, num_samples):
                    queue.put(longer)
                continue
            return replay(fn, trace=found)(*args, **kwargs)
        raise InferenceError(
            "queue",
            expected=f"a run that ends within {max_tries} tries",
            got="sites without values in all of them",
            fix="allow more tries, or take a queue.LifoQueue, which completes one run first",
        )

    return call


explain_calls(globals())
