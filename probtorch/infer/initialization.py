"""Where chains start: the strategies, and the search for a point that a sampler can start from.

A strategy is asked at each latent site of a run and answers with a value inside the site's support.
Names and signatures are Pyro's; without a site (``init_to_uniform(radius=1.0)``) a strategy returns
itself with its settings bound. `find_initial` tries up to 100 points until log density and gradient
are finite; if there is none, its error says at which site it fails, with what value, and whether by
nan or by -inf.

Stan's rule, uniform between -2 and 2 on the unconstrained scale, is the default.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from probtorch.autograd.anomaly import detect_anomaly
from probtorch.autograd.listener import Listener
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, bits_to_uniform, consecutive_bits, default_generator
from probtorch.core.signatures import explain_calls
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.validation import validation_enabled
from probtorch.effects.site import Site
from probtorch.errors import AutogradError, DomainError, InferenceError, user_location
from probtorch.infer.names import unknown_name

__all__ = [
    "check_value_names",
    "find_initial",
    "for_one_start",
    "init_to_feasible",
    "init_to_generated",
    "init_to_mean",
    "init_to_median",
    "init_to_sample",
    "init_to_uniform",
    "init_to_value",
    "uniform_point",
]

TRIES = 100
# Rows of the table in an error; the first bad site is always among them.
TABLE_ROWS = 5


# --------------------------------------------------------------------------------------- strategies


def init_to_uniform(site: Site | None = None, radius: float = 2.0) -> Any:
    """Start uniformly between -radius and radius on the unconstrained scale.

    Parameters
    ----------
    site : Site, optional
        Without it, return the strategy with its settings bound.
    radius : float
        0 means the middle, exactly.

    Returns
    -------
    Tensor of the site's shape, or callable
    """
    if site is None:
        return functools.partial(init_to_uniform, radius=radius)
    transform = biject_to(site.fn.support)
    shape = tuple(transform.inverse_shape(_shape_of(site)))
    return transform(wrap(uniform_point(_generator_of(site), shape, radius)))


def init_to_feasible(site: Site | None = None) -> Any:
    """Start at 0 on the unconstrained scale, whatever the distribution's parameters."""
    return init_to_feasible if site is None else init_to_uniform(site, radius=0.0)


def init_to_sample(site: Site | None = None) -> Any:
    """Start at a draw from the prior."""
    if site is None:
        return init_to_sample
    return site.fn.sample(generator=_generator_of(site))


def init_to_median(
    site: Site | None = None,
    num_samples: int = 15,
    *,
    fallback: Callable[..., Any] = init_to_feasible,
) -> Any:
    """Start at the median of a few draws from the prior.

    Parameters
    ----------
    site : Site, optional
    num_samples : int
    fallback : callable
        The strategy for distributions that cannot be sampled.

    Notes
    -----
    The median is taken element by element on the unconstrained scale, so that it lies in the
    support, also in a simplex.
    """
    if site is None:
        return functools.partial(init_to_median, num_samples=num_samples, fallback=fallback)
    try:
        draws = site.fn.sample((num_samples,), generator=_generator_of(site))
    except NotImplementedError:
        return fallback(site)
    transform = biject_to(site.fn.support)
    middle = np.median(to_host(transform.inv(draws)._data), axis=0)
    return transform(wrap(middle)) if np.isfinite(middle).all() else fallback(site)


def init_to_mean(site: Site | None = None, *, fallback: Callable[..., Any] = init_to_median) -> Any:
    """Start at the prior mean.

    Parameters
    ----------
    site : Site, optional
    fallback : callable
        The strategy for distributions without a (finite) mean.
    """
    if site is None:
        return functools.partial(init_to_mean, fallback=fallback)
    try:
        mean = site.fn.mean
    except NotImplementedError:
        return fallback(site)
    usable = np.isfinite(to_host(mean._data)).all() and bool(site.fn.support.check(mean).all())
    return mean if usable else fallback(site)


def init_to_value(
    site: Site | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    fallback: Callable[..., Any] = init_to_uniform,
) -> Any:
    """Start at given (constrained) values, and elsewhere by another strategy.

    Parameters
    ----------
    site : Site, optional
    values : dict of str to array_like
    fallback : callable
        The strategy for sites that `values` does not name.
    """
    values = values or {}
    if site is None:
        return functools.partial(init_to_value, values=values, fallback=fallback)
    return values[site.name] if site.name in values else fallback(site)


def init_to_generated(
    site: Site | None = None, generate: Callable[[], Any] = lambda: init_to_uniform
) -> Any:
    """Start by a strategy that is made anew for each try, for example with random values.

    Parameters
    ----------
    site : Site, optional
    generate : callable
        Returns a strategy.
    """
    if site is None:
        return functools.partial(init_to_generated, generate=generate)
    return generate()(site)


def _shape_of(site):
    return tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)


def _generator_of(site):
    return default_generator if site.generator is None else site.generator


def uniform_point(generator: Generator, shape: tuple[int, ...], radius: float = 2.0) -> np.ndarray:
    """Return float64 draws from Uniform(-radius, radius)."""
    size = math.prod(shape)
    first = generator.advance(size)
    bits = consecutive_bits(generator.initial_seed(), generator.stream, first, size)
    return (radius * (2.0 * bits_to_uniform(bits) - 1.0)).reshape(shape)


# --------------------------------------------------------------------------------------- the search


def find_initial(target: Any, generator: Generator, strategy: Callable[..., Any]) -> np.ndarray:
    """Return a point where the log density and its gradient are finite.

    Parameters
    ----------
    target : Target
    generator : Generator
    strategy : callable

    Returns
    -------
    ndarray, shape (dim,)

    Raises
    ------
    InferenceError
        If 100 tries found none; a strategy that gives the same point twice is not asked again.
    DomainError
        If the strategy never gave values inside the supports.
    ModelError
        If `init_to_value` names a site that the model does not have.
    """
    check_value_names(strategy, target.slots, target.name)
    strategy, settings, per_try = _opened(strategy)
    previous, tries = None, 0
    refused: Exception | None = None
    while tries < TRIES:
        made, chosen = (strategy, settings) if per_try is None else _opened(per_try())[:2]
        if made is init_to_uniform:
            # All sites at once: no run of the model is needed, and no round trip through the
            # support.
            q = uniform_point(generator, (target.dim,), chosen.get("radius", 2.0))
        else:
            try:
                q = target.start(functools.partial(made, **chosen), generator)
            except (DomainError, np.linalg.LinAlgError) as error:
                refused, tries = error, tries + 1
                continue
        if previous is not None and np.array_equal(q, previous):
            break
        tries += 1
        value, gradient = target.value_and_grad(q)
        if math.isfinite(value) and np.isfinite(gradient).all():
            return q
        previous = q
    if refused is not None and previous is None:
        raise refused
    raise _no_start(target, previous, tries)


def _opened(strategy):
    """A strategy as ``(function, settings, maker of a strategy per try or None)``."""
    settings = {}
    while isinstance(strategy, functools.partial):
        settings = {**strategy.keywords, **settings}
        strategy = strategy.func
    maker = settings.get("generate") if strategy is init_to_generated else None
    return strategy, settings, maker


def for_one_start(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """Return the strategy of one start: what `init_to_generated` makes is made now, for all sites.

    Parameters
    ----------
    strategy : callable
    """
    generate = _opened(strategy)[2]
    return strategy if generate is None else for_one_start(generate())


def check_value_names(strategy: Callable[..., Any], known: Iterable[str], subject: str) -> None:
    """Refuse `init_to_value` for a site that `subject` does not have.

    Parameters
    ----------
    strategy : callable
        Any strategy; others have nothing to be checked.
    known : iterable of str
        Names of the latent sites.
    subject : str

    Raises
    ------
    ModelError
    """
    function, settings, _ = _opened(strategy)
    for name in settings.get("values") or {} if function is init_to_value else ():
        if name not in known:
            raise unknown_name(f"init_to_value: {subject} has no latent site {name!r}", name, known)


# -------------------------------------------------------------------------------- why there is none


def _no_start(target, q, tries):
    """The error for a search in vain: what each site has to say at the last point tried."""
    value, gradient = target.value_and_grad(q)
    times = "1 try" if tries == 1 else f"{tries} tries"
    parts = {
        "subject": f"no starting point for {target.name} in {times}",
        "expected": "a point with a finite log density and gradient",
    }
    if not hasattr(target, "trace_at"):
        what = f"log density {value}"
        if math.isfinite(value):
            what += f", whose gradient has {_kind(gradient)} among its elements"
        return InferenceError(**parts, got=what, fix="pass init_params to run()")
    try:
        with validation_enabled(False), np.errstate(all="ignore"), _FirstNan() as first:
            trace = target.trace_at(wrap(q))
            terms = {n: _log_prob_at(s) for n, s in trace.items() if s.has_density}
    except Exception as error:
        # Whatever the model raises there is the reason that the search failed, so it is what the
        # user has to read.
        reason = f"{type(error).__name__}: {error}".replace("\n", ";")
        return InferenceError(
            **parts,
            got=f"an error at every point; the last one was {reason}",
            fix="correct the model there, or start elsewhere: init_strategy=init_to_value(...)",
        )
    site, cause, fix = _diagnosis(target, trace, terms, gradient)
    origin = first.origin or _origin_in_gradient(target, q)
    if origin and "nan" in cause:
        cause += f", first made by {origin}"
    table = "".join(f"\n            {row}" for row in _table(trace, terms, site))
    return InferenceError(
        **parts,
        got=f"{cause}; at the last point:{table}",
        fix=fix,
        at=site.location if site else None,
    )


class _FirstNan(Listener):
    """Note the first operation that makes a nan of numbers, as "op at file:line"."""

    origin = ""

    def record(self, op, inputs, attrs, out):
        """Look at the result of one operation."""
        if not self.origin and any(map(_has_nan, out if type(out) is tuple else (out,))):
            self.origin = f"{op.name} at {user_location(2)}"
        super().record(op, inputs, attrs, out)


def _has_nan(t):
    return t._data.dtype.kind == "f" and bool(np.isnan(to_host(t._data)).any())


def _origin_in_gradient(target, q):
    """Which operation's gradient is the first nan at `q`, as "op at file:line"; "" if none is."""
    try:
        with detect_anomaly():
            target.density.eager(q)
    except AutogradError as error:
        return f"the gradient of {error.subject.partition(':')[0]} at {error.location}"
    except DomainError:
        pass  # there is no density at the point, let alone a gradient
    return ""


def _log_prob_at(site):
    return float(site.compute_log_prob_sum()._data)


def _diagnosis(target, trace, terms, gradient):
    """Return ``(site, what is wrong with it, what to do)`` for the first site at fault."""
    elsewhere = (
        "start elsewhere: init_strategy=init_to_median(), init_to_uniform(radius=0.1) "
        "or init_to_value(values={...})"
    )
    for name, term in terms.items():
        site = trace[name]
        if math.isfinite(term):
            continue
        role = "observed site" if site.observed else "latent site"
        role = "factor" if site.kind == "factor" else role
        cause = f"log density {term} at {role} {name!r}"
        parameter = _bad_parameter(site.fn)
        if parameter is not None:
            what, kind = parameter
            fix = f"look at how {what} is computed: overflow, log or sqrt of a negative number, 0/0"
            return site, f"{cause}, whose parameter {what} is {kind}", fix
        if site.kind == "factor":
            return site, cause, f"look at how the factor is computed, or {elsewhere}"
        outside = _outside(site)
        if outside is not None and site.observed:
            fix = (
                "check the data, mask missing values with handlers.mask, "
                "or choose a distribution whose support contains them"
            )
            return site, f"{cause}: {outside}", fix
        return site, f"{cause}: {outside or 'the value is too far out'}", elsewhere
    for name, slot in target.slots.items():
        part = gradient[slot.start : slot.stop]
        if not np.isfinite(part).all():
            cause = f"a finite log density, but the gradient for site {name!r} is {_kind(part)}"
            fix = f"look for sqrt, abs, a norm or a power of 0 in what depends on {name!r}"
            return trace[name], cause, f"{fix}, or {elsewhere}"
    return None, "the model refused every point", elsewhere


def _kind(array):
    """Which non-finite numbers an array holds: nan where there is one, since it tells more."""
    array = np.asarray(array)
    return "nan" if np.isnan(array).any() else "inf" if (array == np.inf).any() else "-inf"


def _bad_parameter(fn):
    """The first parameter of a distribution that is not finite, as ``(name, kind)``."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    for name in getattr(fn, "arg_constraints", ()):
        values = to_host(getattr(fn, name)._data)
        if not np.isfinite(values).all():
            return name, _kind(values)
    return None


def _outside(site):
    """What lies outside the support, as text; None when nothing does."""
    support = site.fn.support
    value = to_host(site.value._data)
    inside = to_host(support.check(site.value)._data)
    if inside.all():
        return None
    places = np.argwhere(~inside)
    first = tuple(int(i) for i in places[0])
    shown = value[first]
    text = f"{shown:g}" if shown.ndim == 0 else np.array2string(shown, precision=4, threshold=6)
    if not inside.ndim:
        return f"the value {text} is not in {support!r}"
    return (
        f"{len(places)} of {inside.size} values are not in {support!r}, "
        f"the first {text} at index {first}"
    )


def _table(trace, terms, worst):
    """Lines of site, value, log density and distribution: the first few, and the one at fault."""
    names = list(terms)
    if len(names) > TABLE_ROWS:
        keep = set(names[: TABLE_ROWS - 1]) | ({worst.name} if worst is not None else set())
        names = [name for name in names if name in keep]
    rows = [("site", "value", "log_prob", "distribution")]
    for name in names:
        site = trace[name]
        kind = "factor" if site.fn is None else f"{site.fn!r:.48}"
        rows.append((name, _shown(site), f"{terms[name]:.6g}", kind))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[3]]) for row in rows]
    if len(terms) > len(names):
        lines.append(f"and {len(terms) - len(names)} more")
    return lines


def _shown(site):
    value = to_host(site.value._data)
    if value.size == 1:
        return f"{value.reshape(-1)[0]:.6g}"
    if not value.size:
        return f"shape {value.shape}"
    return f"{value.min():.4g} to {value.max():.4g}, shape {value.shape}"


explain_calls(globals())
