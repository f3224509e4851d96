"""What may be enumerated: by annotation, by `config_enumerate`, and why not."""

from __future__ import annotations

import functools
from collections.abc import Callable

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.effects.handlers import infer_config
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError

__all__ = ["HOW", "as_annotated", "can_enumerate", "why_not", "config_enumerate"]

HOW = ("parallel", "sequential")


def as_annotated(site: Site) -> str | None:
    """Return what ``infer={"enumerate": ...}`` asks for at a site: "parallel", "sequential", None.

    Raises
    ------
    ArgumentError
        If it is something else.
    InferenceError
        If the support of the site is not finite.
    """
    how = site.infer.get("enumerate")
    if not how:
        return None
    if how not in HOW:
        raise ArgumentError(
            f"site {site.name!r}: infer['enumerate']",
            expected="'parallel' or 'sequential'",
            got=repr(how),
            fix="write infer={'enumerate': 'parallel'}",
            at=site.location,
        )
    if not can_enumerate(site) and site.infer.get("num_samples") is None:
        raise why_not(site)
    return how


def can_enumerate(site: Site) -> bool:
    """Whether a site has a finite support that its distribution can list."""
    return bool(getattr(site.fn, "has_enumerate_support", False))


def why_not(site: Site) -> InferenceError:
    """Return the error that says why a site cannot be enumerated."""
    kind, support = type(site.fn).__name__, site.fn.support
    if not support.is_discrete:
        got, fix = f"{kind}, which is continuous", "take the annotation away"
    elif hasattr(site.fn, "reinterpreted_batch_ndims"):
        got = f"{kind} over {site.fn.base_dist!r}, all whose values are a product of supports"
        fix = "use a plate instead of to_event(): its rows are enumerated one by one"
    else:
        got = f"{kind}, whose support {support!r} is not listed"
        fix = "truncate it to a Categorical, or draw it in the guide"
    return InferenceError(
        f"site {site.name!r} cannot be enumerated",
        expected="a distribution with a finite support (has_enumerate_support)",
        got=got,
        fix=fix,
        at=site.location,
    )


def config_enumerate(
    guide: Callable[..., object] | None = None,
    default: str | None = "parallel",
    expand: bool = False,
    num_samples: int | None = None,
    tmc: str = "diagonal",
) -> Callable[..., Tree]:
    """Ask for the enumeration of all sites of a guide (or a model) that can be enumerated.

    Parameters
    ----------
    guide : callable, optional
        Without it, a decorator.
    default : {"parallel", "sequential"} or None
        For the sites whose own ``infer`` does not say.
    expand : bool
        Give values the full shape of their plates, instead of size 1.
    num_samples : int, optional
        Take so many draws, each of equal weight, in place of the whole support.
    tmc : {"diagonal"}
        Accepted for Pyro's sake.

    Raises
    ------
    ArgumentError
        If an option is none of these.

    Examples
    --------
    >>> from probtorch.distributions import Bernoulli
    >>> from probtorch.effects.handlers import trace
    >>> from probtorch.effects.primitives import sample
    >>> @config_enumerate
    ... def guide():
    ...     return sample("z", Bernoulli(0.3))
    >>> trace(guide).get_trace()["z"].infer["enumerate"]
    'parallel'
    """
    if default is not None and default not in HOW:
        raise ArgumentError(
            "config_enumerate",
            expected="default='parallel', 'sequential' or None",
            got=repr(default),
            fix="leave it out for 'parallel'",
        )
    if num_samples is not None and (default != "parallel" or not num_samples >= 1):
        raise ArgumentError(
            "config_enumerate",
            expected="num_samples >= 1, with default='parallel'",
            got=f"num_samples={num_samples!r}, default={default!r}",
            fix="leave num_samples out to take the whole support",
        )
    if tmc != "diagonal":
        raise ArgumentError(
            "config_enumerate",
            expected="tmc='diagonal'",
            got=repr(tmc),
            fix="leave it out",
        )
    if guide is None:
        return lambda guide: config_enumerate(guide, default, expand, num_samples)

    return infer_config(guide, functools.partial(_asked, default, expand, num_samples))


def _asked(
    default: str | None, expand: bool, num_samples: int | None, site: Site
) -> dict[str, object]:
    """What `config_enumerate` asks of a site."""
    if site.kind != "sample" or site.observed or not hasattr(site.fn, "log_prob"):
        return {}
    if num_samples is None and not can_enumerate(site):
        return {}
    asked: dict[str, object] = {"enumerate": default, "expand": expand}
    if num_samples is not None:
        asked["num_samples"] = num_samples
    return {} if site.infer.get("enumerate", default) != default else {**asked, **site.infer}


explain_calls(globals())
