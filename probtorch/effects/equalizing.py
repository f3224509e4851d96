"""`equalize`: sites that share one value."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Self

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import expand

__all__ = ["equalize"]


class equalize(Handler):
    """Give sites the value of the first of them that a run meets.

    Parameters
    ----------
    fn : callable, optional
    sites : str or collection of str
        A regular expression that whole names match, or names.
    type : {"sample", "param"}
        Which kind of sites.
    keep_dist : bool
        Let the later sample sites count: their densities at the shared value are part of the
        joint density. Otherwise they are deterministic.

    Raises
    ------
    ShapeError
        While running, if the value of the first does not broadcast to the shape of another.

    Examples
    --------
    Two coins of one bias:

    >>> from probtorch.distributions import Beta
    >>> from probtorch.effects.primitives import sample
    >>> def model():
    ...     return sample("bias_1", Beta(2.0, 2.0)), sample("bias_2", Beta(2.0, 2.0))
    >>> one, two = equalize(model, "bias_.*")()
    >>> bool(one == two)
    True
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        sites: str | Collection[str] = (),
        type: str = "sample",
        keep_dist: bool = False,
    ) -> None:
        if type not in ("sample", "param"):
            raise ArgumentError(
                "equalize(type=...)",
                expected="'sample' or 'param'",
                got=repr(type),
                fix="write one handler for each kind",
            )
        super().__init__(fn)
        self.sites, self.type, self.keep_dist = sites, type, keep_dist
        self._first: Site | None = None

    def __enter__(self) -> Self:
        self._first = None
        return super().__enter__()

    def _matches(self, site: Site) -> bool:
        if site.kind != self.type or site.observed:
            return False
        if isinstance(self.sites, str):
            return re.fullmatch(self.sites, site.name) is not None
        return site.name in self.sites

    def on_sample(self, site: Site) -> None:
        """Take the value of the first."""
        if self._first is None or not self._matches(site):
            return
        site.value = _in_shape_of(site, self._first)
        if not self.keep_dist:
            site.event_dim = len(site.fn.event_shape)
            site.kind, site.fn = "deterministic", None

    def after_sample(self, site: Site) -> None:
        """Remember the first."""
        if self._first is None and self._matches(site):
            self._first = site

    def on_param(self, site: Site) -> None:
        """Take the value of the first."""
        if self._first is not None and self._matches(site):
            site.value = self._first.value

    after_param = after_sample


def _in_shape_of(site: Site, first: Site) -> Tree:
    """Return the value of the first site, broadcast to the shape of another one."""
    value, shape = first.value, (*site.fn.batch_shape, *site.fn.event_shape)
    have = tuple(getattr(value, "shape", ()))
    if have == shape or site.free_dim is not None or not isinstance(value, TensorBase):
        return value
    if len(have) > len(shape) or any(
        m not in (1, n) for m, n in zip(have[::-1], shape[::-1], strict=False)
    ):
        raise ShapeError(
            f"equalize: site {site.name!r}",
            expected=f"a shape that {have} of {first.name!r} broadcasts to",
            got=str(shape),
            fix="equalise sites of one shape",
            at=site.location,
        )
    return expand(value, shape)


explain_calls(globals())
