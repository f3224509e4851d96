"""Why a sampler cannot start at a point: which site is at fault there, by what, and what to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.autograd.anomaly import detect_anomaly
from probtorch.autograd.listener import Listener
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.validation import validation_enabled
from probtorch.errors import (
    ArgumentError,
    AutogradError,
    DomainError,
    DTypeError,
    InferenceError,
    ModelError,
    ShapeError,
    user_location,
)
from probtorch.infer.gaps import CURES, gaps_among

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op, Operand, Output
    from probtorch.distributions.constraints import Constraint
    from probtorch.effects.site import Site
    from probtorch.effects.trace import Trace
    from probtorch.infer.potential import ModelTarget, Target

__all__ = ["bad_start"]

# Rows of the table in an error; the first bad site is always among them.
TABLE_ROWS = 5
ELSEWHERE = (
    "start elsewhere: init_strategy=init_to_median(), init_to_uniform(radius=0.1) "
    "or init_to_value(values={...})"
)


def bad_start(target: Target, q: np.ndarray, subject: str, otherwise: str = "") -> InferenceError:
    """Return the error for a point without a finite log density and gradient.

    Parameters
    ----------
    target : Target
    q : ndarray, shape (dim,)
        The point: what each site has to say there is told.
    subject : str
        What went wrong, the first line of the error.
    otherwise : str
        A cure that is offered after that for the site's own fault; by default another strategy.
    """
    value, gradient = target.value_and_grad(q)
    parts = {"subject": subject, "expected": "a point with a finite log density and gradient"}
    if not hasattr(target, "trace_of_all_at"):
        what = f"log density {value}"
        if math.isfinite(value):
            what += f", whose gradient has {_kind(gradient)} among its elements"
        return InferenceError(**parts, got=what, fix=otherwise or "pass init_params to run()")
    try:
        with validation_enabled(False), np.errstate(all="ignore"), _FirstNan() as first:
            trace = target.trace_of_all_at(wrap(q))
            terms = {n: _log_prob_at(s) for n, s in trace.items() if s.has_density}
    except (ModelError, ShapeError, DTypeError, ArgumentError):
        raise  # these do not depend on where the search looked
    except Exception as error:
        # Whatever the model raises there is the reason that the search failed, so it is what the
        # user has to read.
        reason = f"{type(error).__name__}: {error}".replace("\n", ";")
        return InferenceError(
            **parts,
            got=f"an error at every point; the last one was {reason}",
            fix="correct the model there, or "
            + (otherwise or "start elsewhere: init_strategy=init_to_value(...)"),
        )
    site, cause, fix = _diagnosis(
        cast("ModelTarget", target), trace, terms, gradient, otherwise or ELSEWHERE
    )
    origin = first.origin or _origin_in_gradient(target, q)
    if origin and "nan" in cause and not (site is not None and _data_outside(site)):
        cause += f", first made by {origin}"
    table = "".join(f"\n            {row}" for row in _table(trace, terms, site))
    return InferenceError(
        **parts,
        got=f"{cause}; at one of the points:{table}",
        fix=fix,
        at=site.location if site else None,
    )


class _FirstNan(Listener):
    """Note the first operation that makes a nan of numbers, as "op at file:line"."""

    origin = ""

    def applied(
        self,
        op: Op,
        inputs: tuple[Operand, ...],
        attrs: Attrs,
        out: Output,
    ) -> None:
        """Look at the result of one operation."""
        if not self.origin and any(map(_has_nan, out if isinstance(out, tuple) else (out,))):
            self.origin = f"{op.name} at {user_location(2)}"
        super().applied(op, inputs, attrs, out)


def _has_nan(t: TensorBase) -> bool:
    return t.array.dtype.kind == "f" and bool(np.isnan(to_host(t.array)).any())


def _origin_in_gradient(target: Target, q: np.ndarray) -> str:
    """Which operation's gradient is the first nan at `q`, as "op at file:line"; "" if none is."""
    try:
        with detect_anomaly():
            target.density.eager(q)
    except AutogradError as error:
        return f"the gradient of {error.subject.partition(':')[0]} at {error.location}"
    except DomainError:
        pass  # there is no density at the point, let alone a gradient
    return ""


def _log_prob_at(site: Site) -> float:
    """The log density of a site, under the values of summed sites that suit each row best."""
    log_prob = to_host(site.compute_log_prob().array)
    return float(log_prob.max(axis=_summed_axes(site, log_prob.ndim), initial=-math.inf).sum())


def _summed_axes(site: Site, ndim: int) -> tuple[int, ...]:
    """Axes of a site's batch that belong to sites summed out."""
    return () if site.free_dim is None else tuple(range(ndim + site.free_dim + 1))


def _diagnosis(
    target: ModelTarget, trace: Trace, terms: dict[str, float], gradient: np.ndarray, elsewhere: str
) -> tuple[Site | None, str, str]:
    """Return ``(site, what is wrong with it, what to do)`` for the first site at fault."""
    for name, term in terms.items():
        site = trace[name]
        if math.isfinite(term):
            continue
        role = "observed site" if site.observed else "latent site"
        role = "factor" if site.kind == "factor" else role
        cause = f"log density {term} at {role} {name!r}"
        parameter = _bad_parameter(site.fn)
        # Bounds of a support may come from the bad parameter: then that is at fault.
        excused = parameter is not None and _has_nan_bound(site.fn.support)
        if parameter is not None and (excused or not _data_outside(site)):
            what, kind = parameter
            cause += f", whose parameter {what} is {kind}"
            kind = kind.lstrip("-")
            gaps = gaps_among(target.model, target.args, target.kwargs, kind)
            if gaps:
                return site, f"{cause}; {gaps}", CURES[kind]
            fix = f"look at how {what} is computed: overflow, log or sqrt of a negative number, 0/0"
            return site, cause, fix
        if site.kind == "factor":
            return site, cause, f"look at how the factor is computed, or {elsewhere}"
        outside = _outside(site)
        if _data_outside(site):
            fix = (
                "check the data, mask missing values with handlers.mask, "
                "or choose a distribution whose support contains them"
            )
            return site, f"{cause}: {outside}", fix
        infinite = np.argwhere(np.isinf(to_host(site.value.array)))
        if site.observed and len(infinite):
            first = tuple(int(i) for i in infinite[0])
            found = f"{len(infinite)} of {site.value.array.size} values are inf or -inf"
            return site, f"{cause}: {found}, the first at index {first}", CURES["inf"]
        return site, f"{cause}: {outside or 'the value is too far out'}", elsewhere
    for name, slot in target.slots.items():
        part = gradient[slot.start : slot.stop]
        if not np.isfinite(part).all():
            cause = f"a finite log density, but the gradient for site {name!r} is {_kind(part)}"
            fix = f"look for sqrt, abs, a norm or a power of 0 in what depends on {name!r}"
            return trace[name], cause, f"{fix}, or {elsewhere}"
    return None, "the model refused every point", elsewhere


def _data_outside(site: Site) -> bool:
    """Whether it is the data that no parameter can explain: nothing that was computed made them."""
    return site.observed and site.kind != "factor" and _outside(site) is not None


def _kind(array: np.ndarray) -> str:
    """Which non-finite numbers an array holds: nan where there is one, since it tells more."""
    array = np.asarray(array)
    return "nan" if np.isnan(array).any() else "inf" if (array == np.inf).any() else "-inf"


def _bad_parameter(fn: object) -> tuple[str, str] | None:
    """The first parameter of a distribution that is not finite, as ``(name, kind)``."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    for name in getattr(fn, "arg_constraints", ()):
        values = to_host(getattr(fn, name).array)
        if not np.isfinite(values).all():
            return name, _kind(values)
    return None


def _has_nan_bound(support: Constraint) -> bool:
    """Whether a bound of a support is nan somewhere."""
    support = getattr(support, "base_constraint", support)
    bounds = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    return any(isinstance(b, TensorBase) and _has_nan(b) for b in bounds)


def _outside(site: Site) -> str | None:
    """What lies outside the support, as text; None when nothing does.

    Where the support depends on sites that are summed out, that is outside for all their values.
    """
    support = site.fn.support
    value = to_host(site.value.array)
    inside = to_host(support.check(site.value).array)
    inside = np.asarray(inside.any(axis=_summed_axes(site, inside.ndim)))
    if inside.all():
        return None
    value = np.broadcast_to(value, inside.shape + value.shape[value.ndim - support.event_dim :])
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


def _table(trace: Trace, terms: dict[str, float], worst: Site | None) -> list[str]:
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


def _shown(site: Site) -> str:
    value = to_host(site.value.array)
    if value.size == 1:
        return f"{value.reshape(-1)[0]:.6g}"
    if not value.size:
        return f"shape {value.shape}"
    lost = _kind(value) == "nan" and not np.isnan(value).all()
    least, most = (np.nanmin(value), np.nanmax(value)) if lost else (value.min(), value.max())
    return f"{least:.4g} to {most:.4g}{', nan' * lost}, shape {value.shape}"
