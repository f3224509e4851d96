"""The handlers: what can be done to a model without touching it.

Each is a small class over `runtime.Handler`, usable as a wrapper (``condition(model, data)``), as a
decorator and as a context manager. Where two handlers of one kind meet a site, the inner one acts
first, so that the outer one has the last word. Names and signatures are Pyro's; NumPyro's keyword
spellings work too.

Read `runtime.py` first; given_values.py has the handlers that give sites their values, reparams.py
the reparameterisations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike, Tree
from probtorch.effects.given_values import condition, do, replay, substitute
from probtorch.effects.markov import markov
from probtorch.effects.placing import place
from probtorch.effects.priors import Prior, fit_prior
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Mask, Site, as_mask
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError
from probtorch.ops.comparisons import logical_and

__all__ = [
    "block",
    "condition",
    "do",
    "get_mask",
    "infer_config",
    "lift",
    "markov",
    "mask",
    "replay",
    "scale",
    "scope",
    "seed",
    "substitute",
    "trace",
    "uncondition",
]


class trace(Handler):
    """Record the sites of a run.

    Parameters
    ----------
    fn : callable, optional
    graph_type : {"flat"}
        Accepted for Pyro's sake.
    param_only : bool
        Record parameters alone.

    Raises
    ------
    ModelError
        While running, if two sites share a name; both source lines are in the message.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> from probtorch.effects.primitives import sample
    >>> def model():
    ...     return sample("x", Normal(0.0, 1.0))
    >>> tr = trace(model).get_trace()
    >>> tr.nodes["x"]["value"] is tr.nodes["_RETURN"]["value"]
    True
    >>> with trace() as tr:
    ...     x = model()
    >>> tr["x"]["value"] is x
    True
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        graph_type: str = "flat",
        param_only: bool = False,
    ) -> None:
        super().__init__(fn)
        if graph_type != "flat":
            raise ArgumentError(
                "trace",
                expected="graph_type='flat'",
                got=repr(graph_type),
                fix="leave graph_type out: which sites depend on which is read from the tape",
            )
        self.param_only = param_only
        self.trace = Trace()

    def __enter__(self) -> Trace:  # type: ignore[override]  # as in Pyro
        super().__enter__()
        self.trace = Trace()
        return self.trace

    def get_trace(self, *args: object, **kwargs: object) -> Trace:
        """Run the wrapped function and return the trace of that run."""
        run = trace(None, param_only=self.param_only)
        with run as recorded:
            recorded.args, recorded.kwargs = args, kwargs
            recorded.returned = None if self.fn is None else self.fn(*args, **kwargs)
        self.trace = recorded
        return recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        if self.fn is None:
            return self._wrap(*args, **kwargs)
        return self.get_trace(*args, **kwargs).returned

    def after_param(self, site: Site) -> None:
        """Keep the site."""
        self.trace.add(site)

    def after_sample(self, site: Site) -> None:
        """Keep the site, unless only parameters are wanted."""
        if not self.param_only:
            self.trace.add(site)

    after_deterministic = after_factor = after_plate = after_sample


class block(Handler):
    """Hide sites from the handlers outside.

    Parameters
    ----------
    fn : callable, optional
    hide_fn, expose_fn : callable, optional
        ``f(site) -> bool``: hide what it accepts, or all but what it accepts.
    hide_all, expose_all : bool
        What happens to sites that nothing else names; everything is hidden unless a list says
        otherwise.
    hide, expose : list of str, optional
        Names to hide, or not to hide.
    hide_types, expose_types : list of str, optional
        Kinds ("sample", "param", ...) to hide, or not to hide. The kind of an observed site is
        "observe" here.

    Notes
    -----
    A hidden site still draws from the `seed` handler around it, and keeps its plates.
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        hide_fn: Callable[[Site], bool | None] | None = None,
        expose_fn: Callable[[Site], bool | None] | None = None,
        hide_all: bool = True,
        expose_all: bool = False,
        hide: Collection[str] | None = None,
        expose: Collection[str] | None = None,
        hide_types: Collection[str] | None = None,
        expose_types: Collection[str] | None = None,
    ) -> None:
        super().__init__(fn)
        if hide_fn is not None and expose_fn is not None:
            raise ArgumentError(
                "block",
                expected="hide_fn or expose_fn",
                got="both",
                fix="write one function that says what to hide",
            )
        if hide_fn is not None:
            self.hides = hide_fn
        elif expose_fn is not None:
            self.hides = functools.partial(_not, expose_fn)
        else:
            # Pyro's rule: a list of what to hide exposes the rest, a list of what to expose hides
            # it.
            hide_the_rest = hide_all and not expose_all
            for names, rest in (
                (hide, False),
                (expose, True),
                (hide_types, False),
                (expose_types, True),
            ):
                if names is not None:
                    hide_the_rest = rest
            self.hides = _chooser(hide, expose, hide_types, expose_types, hide_the_rest)

    def on_sample(self, site: Site) -> None:
        """Stop the site here if it is to be hidden."""
        if self.hides(site):
            site.stop = True

    on_param = on_deterministic = on_factor = on_plate = on_sample


def _chooser(
    hide: Iterable[str] | None,
    expose: Iterable[str] | None,
    hide_types: Iterable[str] | None,
    expose_types: Iterable[str] | None,
    hide_the_rest: bool,
) -> Callable[[Site], bool]:
    """The `hide_fn` that the lists of `block` amount to; see there."""
    hide, expose = set(hide or ()), set(expose or ())
    hide_types, expose_types = set(hide_types or ()), set(expose_types or ())
    for kind, a, b in (("names", hide, expose), ("types", hide_types, expose_types)):
        if a & b:
            raise ArgumentError(
                "block",
                expected=f"{kind} to hide and to expose that differ",
                got=f"{', '.join(sorted(a & b))} in both",
                fix="take them out of one of the lists",
            )

    return functools.partial(_chosen, hide, expose, hide_types, expose_types, hide_the_rest)


def _chosen(
    hide: Collection[str],
    expose: Collection[str],
    hide_types: Collection[str],
    expose_types: Collection[str],
    hide_the_rest: bool,
    site: Site,
) -> bool:
    kind = "observe" if site.observed and site.kind == "sample" else site.kind
    if site.name in hide or kind in hide_types:
        return True
    return hide_the_rest and site.name not in expose and kind not in expose_types


def _not(fn: Callable[[Site], object], site: Site) -> bool:
    return not fn(site)


class mask(Handler):
    """Let only some elements of the sites count.

    Parameters
    ----------
    fn : callable, optional
    mask : bool, or bool Tensor that broadcasts with the plates
        Elements that are False get log density 0 and no gradient, whatever their values; False
        switches the density off altogether. Masks of nested handlers are combined with "and".
    """

    def __init__(
        self, fn: Callable[..., object] | None = None, mask: TensorLike | None = None
    ) -> None:
        if mask is None and not callable(fn):
            fn, mask = None, fn
        super().__init__(fn)
        self.mask: Mask = as_mask(True if mask is None else mask, "mask")

    def on_sample(self, site: Site) -> None:
        """Combine the masks."""
        site.mask = _both(site.mask, self.mask)

    on_factor = on_sample


def _both(one: Mask, other: Mask) -> Mask:
    """Where both masks let elements count."""
    if one is None or one is True:
        return other
    if one is False or other is False:
        return False
    return one if other is None or other is True else logical_and(one, other)


def get_mask() -> Mask:
    """Return the mask in force, to leave out work whose result would not count.

    Returns
    -------
    None, bool or bool Tensor
        The masks of all `mask` handlers around, combined with "and"; None without any.

    Examples
    --------
    >>> with mask(mask=False):
    ...     get_mask()
    False
    """
    found: Mask = None
    for handler in reversed(STATE.handlers):
        if isinstance(handler, mask):
            found = _both(found, handler.mask)
    return found


class scale(Handler):
    """Multiply the log density of the sites.

    Parameters
    ----------
    fn : callable, optional
    scale : float or Tensor, > 0
        Nested scales multiply, also with those of subsampling plates. One for each row has the
        shape of the plates around the sites, as a mask has.
    """

    def __init__(self, fn: Any = None, scale: Any = None) -> None:
        if scale is None and not callable(fn):
            fn, scale = None, fn
        super().__init__(fn)
        number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if scale is None or (number and not scale > 0):
            raise ArgumentError(
                "scale",
                expected="a factor > 0",
                got=repr(scale),
                fix="to switch sites off use mask(mask=False)",
            )
        self.scale = float(scale) if number else as_tensor(scale, "scale")

    def on_sample(self, site: Site) -> None:
        """Multiply the scales."""
        site.scale = self.scale * site.scale

    on_factor = on_sample


class seed(Handler):
    """Draw from a generator of one's own: every run of the wrapped function draws the same.

    Parameters
    ----------
    fn : callable, optional
    rng_seed : int or Generator
        An int starts a fresh generator at each run; a Generator is used as it is, and goes on.

    Notes
    -----
    The innermost `seed` counts. It serves all draws that are given no generator of their own:
    sample statements, subsampling plates, and ``probtorch.rand``, dropout or the initial value of a
    parameter in between. Loaders shuffle by the default generator (`manual_seed`).
    """

    def __init__(
        self, fn: Callable[..., object] | None = None, rng_seed: int | Generator | None = None
    ) -> None:
        if rng_seed is None and not callable(fn):
            fn, rng_seed = None, fn
        super().__init__(fn)
        if rng_seed is None:
            raise ArgumentError(
                "seed",
                expected="rng_seed, an int or a Generator",
                got="None",
                fix="write seed(model, rng_seed=0)",
            )
        # Made once already, so that a seed that is none is refused here and not inside a run.
        self.rng_seed = (
            rng_seed if isinstance(rng_seed, Generator) else Generator(rng_seed).initial_seed()
        )

    def __enter__(self) -> seed:
        given = self.rng_seed
        self.generator = given if isinstance(given, Generator) else Generator(given)
        return super().__enter__()

    def for_one_run(self) -> seed:
        """Return a handler with a generator of its own."""
        return seed(None, self.rng_seed)


class uncondition(Handler):
    """Make observed sites latent again; their data are kept in ``site.notes["obs"]``."""

    def on_sample(self, site: Site) -> None:
        """Take the data away."""
        if site.observed:
            site.notes["obs"] = site.value
            site.value, site.observed = None, False


class infer_config(Handler):
    """Set inference options of sites.

    Parameters
    ----------
    fn : callable, optional
    config_fn : callable
        ``config_fn(site) -> dict``, merged into ``site.infer``.
    """

    def __init__(
        self,
        fn: Callable[..., object] | None = None,
        config_fn: Callable[[Site], dict[str, object]] | None = None,
    ) -> None:
        super().__init__(fn)
        if config_fn is None:
            raise ArgumentError(
                "infer_config",
                expected="config_fn, a function from a site to a dict",
                got="None",
                fix="write infer_config(model, lambda site: {...})",
            )
        self.config_fn = config_fn

    def on_sample(self, site: Site) -> None:
        """Merge the options."""
        site.infer.update(self.config_fn(site))

    on_param = on_sample


class lift(Handler):
    """Turn parameters into random sites.

    Parameters
    ----------
    fn : callable, optional
    prior : Distribution, or dict from names to distributions, or callable
        A callable is given the site and returns its prior or None. Parameters without a prior stay
        parameters. Those of modules have priors that broadcast to their shape.
    """

    def __init__(self, fn: Callable[..., object] | None = None, prior: Prior | None = None) -> None:
        super().__init__(fn)
        if prior is None:
            raise ArgumentError(
                "lift",
                expected="prior as a distribution, a dict of them, or a function",
                got="None",
                fix="write lift(model, prior={'w': Normal(0., 1.)})",
            )
        self.prior = prior

    def on_param(self, site: Site) -> None:
        """Make the site a sample site of the prior; handlers further out see only that."""
        prior: Any = None
        if isinstance(self.prior, Mapping):
            prior = self.prior.get(site.name)
        elif hasattr(self.prior, "log_prob"):
            prior = self.prior
        else:
            prior = self.prior(site)
        if prior is None:
            return
        leaf = site.notes.get("leaf")
        if leaf is not None:
            prior = fit_prior(prior, tuple(leaf.shape), f"lift: prior of {site.name!r}")
        site.kind = "sample"
        site.fn = place(prior, site.name, site.plates, site.plate_shape)
        site.args, site.event_dim, site.scale = (), None, STATE.plates.scale


class scope(Handler):
    """Prefix the names of sites, so that a model can be used twice in another.

    Parameters
    ----------
    fn : callable, optional
    prefix : str
    divider : str, default "/"
        Put between prefix and name.
    """

    def __init__(
        self, fn: Callable[..., object] | None = None, prefix: str = "", divider: str = "/"
    ) -> None:
        if isinstance(fn, str):
            fn, prefix = None, fn
        super().__init__(fn)
        self.prefix = prefix + divider

    def on_sample(self, site: Site) -> None:
        """Prefix the name."""
        site.name = self.prefix + site.name

    on_param = on_deterministic = on_factor = on_plate = on_sample


explain_calls(globals())
