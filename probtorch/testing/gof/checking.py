"""`check`: one call that tests a distribution against what it says of itself.

Draws are compared with the density: numbers by their probabilities under it, which are uniform
(counts after they are spread over their step), vectors by Stein's identities, which need the
gradient of the log density only. All else is compared with integrals or sums of the density.

References
----------
C. Stein, "A bound for the error in the normal approximation to the distribution of a sum of
dependent random variables", 6th Berkeley Symposium (1972).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing.compare import to_array
from probtorch.testing.gof.findings import FitFinding, Verdict, mean_pvalue, stated_value
from probtorch.testing.gof.integrals import Masses, counted, integrated
from probtorch.testing.gof.pvalues import (
    ends_pvalue,
    ks_pvalue,
    location_pvalue,
    spread_pvalue,
)
from probtorch.testing.gof.vectors import check_vectors

__all__ = ["check"]

LEAST_DRAWS = 1000
# Relative error of an integral by the trapezoidal rule over a kink, of sums in single precision.
INTEGRAL, SINGLE = 1e-4, 1e-3


def check(
    distribution: Distribution,
    *,
    num_samples: int = 10_000,
    seed: int = 0,
    level: float = 1e-3,
) -> Verdict:
    """Test a distribution against itself: draws, density, cdf, quantiles, moments, support.

    For distributions of one's own: a density without its constant, a sampler with a wrong scale, a
    cdf off by one, a stated variance that is none.

    Parameters
    ----------
    distribution : Distribution
        With any batch shape; every element is tested.
    num_samples : int
        Draws, from 1000 on. With 10 000 a scale that is off by 5 % is found nearly always.
    seed : int
    level : float
        Chance of a false alarm, of all tests that are left to chance together.

    Returns
    -------
    Verdict
        True if all is well; its repr is a table. What could not be tested is said there, with the
        reason.

    Raises
    ------
    ArgumentError
        If it is no distribution, or there are too few draws.
    ShapeError
        If draws or log densities have another shape than the distribution says.

    Examples
    --------
    >>> import probtorch.distributions as dist
    >>> from probtorch.testing import gof
    >>> gof.check(dist.Gamma(2.0, 3.0)).passed
    True
    >>> class Rough(dist.Normal):
    ...     def _rsample(self, rng, shape):
    ...         return self.loc + 1.05 * self.scale * rng.normal(shape)
    >>> verdict = gof.check(Rough(0.0, 1.0))
    >>> [finding.name for finding in verdict.failures]
    ['draws: spread', 'entropy']
    """
    d = distribution
    if not isinstance(d, Distribution):
        raise ArgumentError(
            "gof.check",
            expected="a distribution",
            got=type(d).__name__,
            fix="pass an instance, such as Normal(0.0, 1.0)",
        )
    if num_samples < LEAST_DRAWS:
        raise ArgumentError(
            "gof.check",
            expected=f"num_samples from {LEAST_DRAWS} on",
            got=repr(num_samples),
            fix="leave it out: 10 000 draws are the default",
        )
    draws = d.sample((num_samples,), Generator(seed))
    x = to_array(draws)
    _same("a draw", x.shape, (num_samples, *d._batch_shape, *d._event_shape), d)
    inside = to_array(d.support.check(draws))
    findings = [_supported(d, inside)]
    if not inside.all():
        return _verdict(d, num_samples, level, findings)
    with np.errstate(all="ignore"):
        logs = to_array(d.log_prob(draws)).astype(float)
    _same("a log density", logs.shape, (num_samples, *d._batch_shape), d)
    bad = ~np.isfinite(logs)
    findings.append(
        FitFinding("log density", not bad.any(), None, f"{bad.sum()} of {bad.size} are not finite")
    )
    if not bad.any():
        logs = logs.reshape(num_samples, -1)
        rng = np.random.default_rng(seed)
        findings += check_vectors(d, x, rng) if d._event_shape else _of_numbers(d, x, rng)
        cut = any("floats" in f.detail or "repeat" in f.detail for f in findings)
        findings += [] if cut else _entropy(d, logs)
    return _verdict(d, num_samples, level, findings)


def _verdict(d: Distribution, n: int, level: float, findings: list[FitFinding]) -> Verdict:
    return Verdict(type(d).__name__, n, level, tuple(findings))


def _same(what: str, got: tuple[int, ...], expected: tuple[int, ...], d: Distribution) -> None:
    if tuple(got) != tuple(expected):
        raise ShapeError(
            "gof.check",
            expected=f"{what} of shape {tuple(expected)} from {type(d).__name__}",
            got=f"shape {tuple(got)}",
            fix="sum log_prob over the event dims, and let draws have sample_shape in front",
        )


def _supported(d: Distribution, inside: np.ndarray) -> FitFinding:
    outside = int((~inside).sum())
    return FitFinding("support", not outside, None, f"{outside} of {inside.size} draws outside")


def _worst(pvalue: Callable[..., float], *columns: np.ndarray) -> float:
    """The smallest p-value over the batch, times their number."""
    found = [pvalue(*parts) for parts in zip(*(c.T for c in columns), strict=True)]
    return min(1.0, min(found) * len(found)) if found else 1.0


def _entropy(d: Distribution, logs: np.ndarray) -> list[FitFinding]:
    stated = stated_value(d.entropy)
    if stated is None:
        return []
    stated = stated.reshape(-1)
    if not np.isfinite(stated).all():
        return [FitFinding("entropy", None, None, "not tested: it is not finite")]
    return [
        FitFinding("entropy", None, mean_pvalue(-logs, stated), "mean of minus the log density")
    ]


# ------------------------------------------------------------------------------------ numbers


def _of_numbers(d: Distribution, draws: np.ndarray, rng: np.random.Generator) -> list[FitFinding]:
    x = draws.reshape(len(draws), -1).astype(float)
    dtype = draws.dtype if draws.dtype.kind == "f" else np.dtype(np.float64)
    jitter = rng.random(x.shape)
    # Draws that are alike, of what is said to be continuous: masses at points.
    steps = d.is_discrete or any(len(np.unique(c)) < 0.99 * len(c) for c in x.T)
    rounding = INTEGRAL if dtype.itemsize > 4 else SINGLE
    masses, why = None, ""
    if steps and not d.is_discrete:
        why = "not tested: draws repeat, so that points have mass"
    else:
        try:
            masses = counted(d, x) if d.is_discrete else integrated(d, x)
        except NotImplementedError:
            why = "not tested: no bijection onto the support"
    findings = [_normalised(masses, why, rounding, not d.is_discrete)]
    if masses is not None and not masses.whole.all():
        masses = None
    tails = _by_cdf(d, x, steps, dtype)
    if masses is not None:
        found = masses.steps(x) if d.is_discrete else masses.tails(x)
        if tails is None:
            tails = (found[0], 1.0 - found[0] - found[1]) if d.is_discrete else found
        else:
            gap = float(np.abs(found[0] - tails[0]).max())
            findings.append(
                FitFinding("cdf", gap < 20.0 * rounding, None, f"{gap:.1e} off the density's")
            )
    if tails is None:
        findings.append(
            FitFinding("draws", None, None, "not tested: neither a cdf nor a whole sum")
        )
    else:
        findings += _uniform(*tails, jitter)
    if masses is not None and d.support is not constraints.circular:
        # Moments of angles are those of points on the circle.
        findings += _moments(d, masses, rounding)
    return findings + _quantiles(d, rounding, dtype)


def _normalised(masses: Masses | None, why: str, rounding: float, continuous: bool) -> FitFinding:
    if masses is None:
        return FitFinding("normalisation", None, None, why)
    if not masses.whole.all():
        return FitFinding(
            "normalisation", None, None, "not tested: mass beyond the range of floats"
        )
    total = masses.total
    worst = total[np.argmax(np.abs(total - 1.0))]
    doubt = 3.0 * masses.error if continuous else 0.0
    fits = bool(abs(worst - 1.0) < rounding + doubt)
    return FitFinding("normalisation", fits, None, f"the total is {worst:.7g}")


def _by_cdf(
    d: Distribution, x: np.ndarray, steps: bool, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray] | None:
    """Probabilities below and above draws, from the cdf."""
    shape = (len(x), *d._batch_shape)

    def at(method: Callable[..., object], v: np.ndarray) -> np.ndarray:
        found = to_array(method(tensor(v.reshape(shape).astype(dtype)))).astype(float)
        return np.broadcast_to(found, shape).reshape(x.shape)

    try:
        with np.errstate(all="ignore"):
            low, above = at(d.cdf, x), at(d.survival, x)
            if steps:
                before = x - 1.0 if d.is_discrete else np.nextafter(x.astype(dtype), -np.inf)
                low = at(d.cdf, before)
    except NotImplementedError:
        return None
    if steps and not d.is_discrete:
        # Draws that end at the last floats of a support stand for all that lies beyond.
        first, last = x == x.min(0), x == x.max(0)
        low = np.where(first & (first.sum(0) > 1), 0.0, low)
        above = np.where(last & (last.sum(0) > 1), 0.0, above)
    return low, above


def _uniform(below: np.ndarray, above: np.ndarray, jitter: np.ndarray) -> list[FitFinding]:
    """Tests of probabilities; what lies between them is the step at a draw."""
    step = np.maximum(1.0 - below - above, 0.0)
    below, above = below + jitter * step, above + (1.0 - jitter) * step
    below, above = np.clip(below, 0.0, 1.0), np.clip(above, 0.0, 1.0)
    return [
        FitFinding("draws: distribution", None, _worst(ks_pvalue, below), "Kolmogorov's test"),
        FitFinding("draws: location", None, _worst(location_pvalue, below), "mean, as a normal"),
        FitFinding("draws: spread", None, _worst(spread_pvalue, below), "squares, as a normal"),
        FitFinding("draws: ends", None, _worst(ends_pvalue, below, above), "smallest and largest"),
    ]


def _moments(d: Distribution, masses: Masses, rounding: float) -> list[FitFinding]:
    findings = []
    center = masses.moment(1)
    exact = {"mean": center, "variance": masses.moment(2, center)}
    size = np.sqrt(np.maximum(exact["variance"], 0.0))
    for name, scale in (("mean", np.maximum(size, np.abs(center))), ("variance", size**2)):
        stated = stated_value(functools.partial(getattr, d, name))
        if stated is None or np.isnan(stated).all():
            # As of categories, which are no numbers.
            continue
        stated = stated.reshape(-1)
        known = np.isfinite(exact[name]) & np.isfinite(scale) & (scale > 0.0)
        if not known.any():
            findings.append(
                FitFinding(name, None, None, "not tested: the integral does not converge")
            )
            continue
        gap = np.abs(stated - exact[name])[known] / scale[known]
        worst = float(np.where(np.isfinite(gap), gap, math.inf).max())
        detail = f"{worst:.1e} of its size off the density's"
        findings.append(FitFinding(name, worst < 10.0 * rounding, None, detail))
    return findings


def _quantiles(d: Distribution, rounding: float, dtype: np.dtype) -> list[FitFinding]:
    levels = np.array([0.01, 0.2, 0.5, 0.77, 0.99])
    wide = np.broadcast_to(levels.reshape(-1, *(1,) * len(d._batch_shape)), (5, *d._batch_shape))
    x = stated_value(lambda: d.icdf(tensor(wide.astype(dtype))))
    up = None if x is None else stated_value(lambda: d.cdf(tensor(x.astype(dtype))))
    if x is None or up is None:
        return []
    # The least value whose cdf reaches the level: nothing just below it does, unless values end.
    step = 1.0 if d.is_discrete else np.spacing(np.abs(x).astype(dtype))
    lower = stated_value(lambda: d.cdf(tensor((x - step).astype(dtype))))
    assert lower is not None  # as at x
    last = ~to_array(d.support.check(tensor((x + step).astype(dtype))))
    gap = float(np.maximum(np.where(last, 0.0, wide - up), lower - wide).max())
    return [FitFinding("icdf", gap < rounding, None, f"{max(gap, 0.0):.1e} off the cdf at most")]


explain_calls(globals())
