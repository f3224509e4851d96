"""Handlers that give sites their values: data, interventions, values of another run.

Their home is handlers.py, where all handlers are found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from probtorch.core.late import difflib
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.runtime import Handler, outside, perform
from probtorch.effects.site import Site, as_value
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.tensor import Tensor
from probtorch.utils.data.loader import DataLoader

__all__ = ["Data", "condition", "do", "replay", "substitute"]

# Values by the names of sites, or the sites of a run.
Data: TypeAlias = Mapping[str, TensorLike | None] | Trace | None

# Attributes of which `__environment__` says what counts; names met are for an error alone.
_SAID_OTHERWISE = ("data", "_tensors", "_met")


class _Values(Handler):
    """Base of the handlers that give values to named sites.

    The dict stays the caller's: a run meets what is in it by then. Arrays become tensors once,
    which share their memory. A name that no run has met is an error at the end of a run when
    `strict`.
    """

    _kinds: tuple[str, ...] = ("sample",)

    def __init__(self, fn: Callable[..., object] | Data, data: Data, strict: bool) -> None:
        if data is None and not callable(fn):
            fn, data = None, fn
        super().__init__(fn)  # type: ignore[arg-type]  # what is there beside data is a function
        kind = type(self).__name__
        if isinstance(data, Trace):
            data = {name: site.value for name, site in data.items() if site.kind in self._kinds}
        if not isinstance(data, Mapping):
            raise ArgumentError(
                kind,
                expected="data as a dict from site names to values, or a Trace",
                got=type(data).__name__,
                fix=f"write {kind}(model, data={{'x': value}})",
            )
        self.data: Mapping[str, TensorLike | None] = data
        self._tensors: dict[str, tuple[object, Tensor]] = {}  # of arrays, by name, and the array
        for name in data:
            self._value(name)
        self.strict = strict
        # Names met in any run: it only grows, so that runs in several threads do not disturb each
        # other.
        self._met: set[str] = set()

    def _value(self, name: str) -> Tensor | None:
        """What the data say of a site now, as a tensor; None where that is nothing."""
        value = self.data.get(name)
        if value is None or isinstance(value, TensorBase):
            return value
        array, t = self._tensors.get(name, (None, None))
        if t is None or array is not value:
            t = as_value(value, name)
            if isinstance(value, np.ndarray):
                self._tensors[name] = value, t
        return t

    def __getstate__(self) -> dict[str, object]:
        # In a copy the tensors would share no memory with the arrays.
        return {**vars(self), "_tensors": {}}

    def __environment__(self) -> list[object]:
        """What counts of it in a compiled function: of arrays their tensors, whose elements are
        read anew at each call; a dict without any as it is, floats in it among that.
        """
        others = {k: x for k, x in vars(self).items() if k not in _SAID_OTHERWISE}
        data = dict(self.data)
        if not any(isinstance(x, np.ndarray) for x in data.values()):
            return [*others, *others.values(), self.data]
        found = (self._value(k) if isinstance(x, np.ndarray) else x for k, x in data.items())
        return [*others, *others.values(), *data, *found]

    def __exit__(self, kind: object = None, *exc: object) -> None:
        super().__exit__(kind, *exc)
        if kind is None and self.strict and not self._met.issuperset(self.data):
            raise self._unknown()

    def _unknown(self) -> ModelError:
        name = next(name for name in self.data if name not in self._met)
        close = difflib.get_close_matches(name, self._met, 1)
        return ModelError(
            f"{type(self).__name__}: the model has no site {name!r}",
            expected=f"one of {', '.join(sorted(map(repr, self._met))) or '(no site was met)'}",
            got=repr(name),
            fix=f"did you mean {close[0]!r}?" if close else "drop the name, or pass strict=False",
        )


class condition(_Values):
    """Observe values at sites of the model.

    Parameters
    ----------
    fn : callable, optional
    data : dict or Trace
        Values by site name. They replace values the model observes itself; None makes a site
        latent. A dict is not copied: runs meet what it holds by then.
    strict : bool, default True
        Whether a name that the model does not have is an error.

    Raises
    ------
    ModelError
        At the end of a run, for a name the model does not have, with the closest one it has.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> from probtorch.effects.primitives import sample
    >>> def model():
    ...     return sample("x", Normal(0.0, 1.0))
    >>> condition(model, data={"x": 2.0})().item()
    2.0
    """

    def __init__(
        self, fn: Callable[..., object] | Data = None, data: Data = None, *, strict: bool = True
    ) -> None:
        super().__init__(fn, data, strict)

    def on_sample(self, site: Site) -> None:
        """Give the site its value and make it observed."""
        self._met.add(site.name)
        if site.name in self.data:
            site.value = self._value(site.name)
            site.observed = site.value is not None


class substitute(_Values):
    """Fix the values of latent sites and parameters by name; observed sites are left alone.

    Parameters
    ----------
    fn : callable, optional
    data : dict or Trace
        Values by name; constrained ones.
    substitute_fn : callable, optional
        ``substitute_fn(site) -> value or None``, asked instead of `data`.
    strict : bool, default False
        Whether a name that the model does not have is an error.
    """

    _kinds = ("sample", "param")

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        data: Data = None,
        *,
        substitute_fn: Callable[[Site], TensorLike | None] | None = None,
        strict: bool = False,
    ) -> None:
        if substitute_fn is not None and data is None and (fn is None or callable(fn)):
            data = {}
        super().__init__(fn, data, strict)
        self.substitute_fn = substitute_fn

    def on_sample(self, site: Site) -> None:
        """Give the site its value."""
        self._met.add(site.name)
        if site.observed:
            return
        value: TensorLike | None = self._value(site.name)
        if value is None and self.substitute_fn is not None:
            value = self.substitute_fn(site)
        if value is not None:
            site.value = as_value(value, site.name)

    on_param = on_sample


class replay(Handler):
    """Reuse the values of another run: latent sites by a trace, parameters by a dict.

    Parameters
    ----------
    fn : callable, optional
    trace : Trace, optional
        Its latent values, and the subsamples of its plates, are used where the names agree.
    params : dict, optional
        Parameters by name.

    Raises
    ------
    ModelError
        If the trace has an observed value where the model is latent.
    ShapeError
        If a value has not the shape that the model's site has.
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        trace: Mapping[str, Site] | None = None,
        params: dict[str, TensorLike] | None = None,
        *,
        guide_trace: Mapping[str, Site] | None = None,
    ) -> None:
        if isinstance(fn, Trace):
            fn, trace = None, fn
        super().__init__(fn)
        self.trace: Mapping[str, Site] = (guide_trace if trace is None else trace) or {}
        self.params = params or {}

    def on_sample(self, site: Site) -> None:
        """Take the value from the trace."""
        if site.observed or site.name not in self.trace:
            return
        other = self.trace[site.name]
        if other.kind != "sample" or other.observed:
            raise ModelError(
                f"site {site.name!r}",
                expected=f"a latent sample site in the trace to replay, as at {site.location}",
                got=f"{'an observed' if other.observed else 'a'} {other.kind} site "
                f"at {other.location}",
                fix="rename one of them, or make both latent",
                at=site.location,
            )
        self._check_shape(site, other)
        site.value = other.value
        site.infer = dict(other.infer)

    def _check_shape(self, site: Site, other: Site) -> None:
        shape, have = getattr(site.fn, "batch_shape", None), getattr(other.value, "shape", None)
        if shape is None or have is None:
            return
        shape = tuple(shape) + tuple(site.fn.event_shape)
        if tuple(have) != shape and site.free_dim is None and other.free_dim is None:
            raise ShapeError(
                f"Model and guide shapes disagree at site {site.name!r}: {shape} vs {tuple(have)}",
                expected=f"a value of shape {shape}, as at {site.location}",
                got=f"a value of shape {tuple(have)} from {other.location}",
                fix="give both the same plates and to_event dims",
                at=site.location,
            )

    def on_param(self, site: Site) -> None:
        """Take the value from `params`."""
        if site.name in self.params:
            site.value = as_value(self.params[site.name], site.name)

    def on_plate(self, site: Site) -> None:
        """Take the subsample from the trace."""
        other = self.trace.get(site.name)
        if other is None or other.kind != "plate":
            return
        loader = site.notes.get("loader")
        if other.notes.get("loader") is not loader:
            raise ModelError(
                f"plate {site.name!r}",
                expected=f"the same loader, or none, as at {other.location}",
                got=_described(loader) + f", there {_described(other.notes.get('loader'))}",
                fix="give model and guide one loader; for an automatic guide say it with "
                "create_plates=lambda loader: plate(..., loader)",
                at=site.location,
            )
        if loader is not None:
            site.value = other.value
        elif other.notes["full_size"] == site.notes["full_size"] and "whole" not in other.notes:
            # Also where the plate here says nothing of a subsample: the rows are the trace's.
            site.value = other.value
            site.notes.pop("whole", None)


def _described(loader: DataLoader | None) -> str:
    return "no loader" if loader is None else f"a loader of {type(loader.dataset).__name__}"


class do(_Values):
    """Intervene: downstream of a site the model sees the given value; the site stays as it was.

    The site is drawn and traced as before, so nothing that depends on the intervention informs its
    parents (Pearl 2009, ch. 3).

    Parameters
    ----------
    fn : callable, optional
    data : dict
        Values by site name.
    strict : bool, default True
        Whether a name that the model does not have is an error.
    """

    def __init__(
        self, fn: Callable[..., object] | Data = None, data: Data = None, *, strict: bool = True
    ) -> None:
        super().__init__(fn, data, strict)

    def on_sample(self, site: Site) -> None:
        """Send a copy of the site on its way, and give the model the value."""
        self._met.add(site.name)
        value = self._value(site.name)
        if value is None:
            return
        with outside(self):
            perform(dataclasses.replace(site))
        # Hidden from the handlers outside; a trace inside sees the intervention under Pyro's name
        # for it.
        site.value, site.observed, site.stop = value, False, True
        site.name, site.kind, site.fn = f"{site.name}__CF", "deterministic", None


explain_calls(globals())
