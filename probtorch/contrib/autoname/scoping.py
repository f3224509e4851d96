"""`scope` and `name_count`: prefixes of names, and numbers behind names that come again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from probtorch.core.signatures import explain_calls
from probtorch.effects.runtime import Handler, default_for, perform
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError

__all__ = ["name_count", "scope"]


@default_for("scope")
def _as_stated(site: Site) -> str:
    """The name of a scope, when nobody counts them: its last part."""
    return site.name.rpartition("/")[2]


class _Scope(Handler):
    """Puts ``prefix/`` before the names of random, deterministic and factor sites, and plates."""

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        prefix: str | None = None,
        inner: bool = False,
    ) -> None:
        super().__init__(fn)
        self.prefix = self.stated = prefix
        self.inner = inner

    def _wrap(self, fn: Callable[..., object]) -> Handler:
        wrapped = super()._wrap(fn)
        assert isinstance(wrapped, _Scope)
        if wrapped.stated is None:
            wrapped.stated = fn.__name__
        return wrapped

    def for_one_run(self) -> Handler:
        return _Scope(None, self.stated, self.inner)

    def __enter__(self) -> Self:
        if self.stated is None:
            raise ArgumentError(
                "scope",
                expected="a prefix",
                got="None",
                fix='write `with scope(prefix="a"):`; decorated functions have their own name',
            )
        # Stated to the handlers around, so that one that counts names may number it.
        self.prefix = self.stated if self.inner else str(perform(Site("scope", self.stated)))
        return super().__enter__()

    def on_sample(self, site: Site) -> None:
        """Put the prefix before the name."""
        site.name = f"{self.prefix}/{site.name}"

    on_deterministic = on_factor = on_plate = on_scope = on_sample


def scope(
    fn: Callable[..., object] | None = None, prefix: str | None = None, inner: bool | None = None
) -> Handler:
    """Put ``prefix/`` before the names of sites; those of parameters stay.

    Parameters
    ----------
    fn : callable, optional
        With it, it is wrapped; without, the result is a context manager and a decorator.
    prefix : str, optional
        That of a decorated function is its name, unless given.
    inner : bool
        Whether `name_count` numbers names inside and leaves the prefix as it is.

    Notes
    -----
    `probtorch.handlers.scope` has the names of parameters, too, and a divider of one's choice.

    Examples
    --------
    >>> from probtorch import distributions as dist, handlers
    >>> @scope
    ... def model():
    ...     with scope(prefix="a"):
    ...         return sample("x", dist.Normal(0.0, 1.0))
    >>> from probtorch import sample
    >>> list(handlers.trace(model).get_trace().nodes)
    ['model/a/x']
    """
    made = _Scope(None, prefix, bool(inner))
    return made if fn is None else made._wrap(fn)


class _NameCount(Handler):
    """Numbers names that were there before, in one run."""

    def __init__(self, fn: Callable[..., object] | None = None) -> None:
        super().__init__(fn)
        self.names: set[tuple[bool, str]] = set()

    def for_one_run(self) -> Handler:
        return _NameCount()

    def __enter__(self) -> Self:
        self.names = set()
        return super().__enter__()

    def on_sample(self, site: Site) -> None:
        """Give the site the first number that makes its name a new one."""
        name, count = site.name, 0
        stem, divider, number = name.rpartition("__")
        if divider and number.isdigit():
            name, count = stem, int(number)
        kind = site.kind == "scope"
        while (kind, site.name) in self.names:
            count += 1
            site.name = f"{name}__{count}"
        self.names.add((kind, site.name))

    on_deterministic = on_factor = on_plate = on_scope = on_sample


def name_count(fn: Callable[..., object] | None = None) -> Handler:
    """Put ``__1``, ``__2`` ... behind names, and prefixes of `scope`, that come again in a run.

    Parameters
    ----------
    fn : callable, optional
        With it, it is wrapped; without, the result is a context manager and a decorator.

    Examples
    --------
    >>> from probtorch import distributions as dist, handlers, sample
    >>> @name_count
    ... def model():
    ...     for _ in range(2):
    ...         with scope(prefix="a"):
    ...             sample("x", dist.Normal(0.0, 1.0))
    >>> list(handlers.trace(model).get_trace().nodes)
    ['a/x', 'a__1/x']
    """
    made = _NameCount()
    return made if fn is None else made._wrap(fn)


explain_calls(globals())
