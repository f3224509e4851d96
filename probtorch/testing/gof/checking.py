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
from dataclasses import dataclass

import numpy as np
from scipy import stats

from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing.compare import to_array
from probtorch.testing.gof.integrals import Masses, counted, integrated, log_density
from probtorch.testing.gof.pvalues import (
    ends_pvalue,
    ks_pvalue,
    location_pvalue,
    multinomial_goodness_of_fit,
    spread_pvalue,
)
from probtorch.testing.uniformity import holm

__all__ = ["FitFinding", "Verdict", "check"]

LEAST_DRAWS = 1000
# Relative error of an integral by the trapezoidal rule over a kink, of sums in single precision.
INTEGRAL, SINGLE = 1e-4, 1e-3
# Pairs of coordinates of which Stein's identities are tested: all, up to so many dims.
ALL_PAIRS = 8


@dataclass(frozen=True)
class FitFinding:
    """What one test found.

    Attributes
    ----------
    name : str
    ok : bool or None
        None where it could not be tested, or where `pvalue` says it.
    pvalue : float or None
        Chance of a result like this or worse if all is right; None for comparisons without chance.
    detail : str
    """

    name: str
    ok: bool | None
    pvalue: float | None
    detail: str


@dataclass(frozen=True, repr=False)
class Verdict:
    """What `check` found; true if nothing speaks against the distribution.

    Attributes
    ----------
    name : str
        Of the class.
    num_samples : int
    level : float
        Chance of a false alarm of all tests together.
    findings : tuple of FitFinding
    """

    name: str
    num_samples: int
    level: float
    findings: tuple[FitFinding, ...]

    @property
    def pvalues(self) -> dict[str, float]:
        """P-values by name, each adjusted for how many there are (Holm)."""
        found = {f.name: f.pvalue for f in self.findings if f.pvalue is not None}
        adjusted = holm(np.array(list(found.values()))) if found else np.zeros(0)
        return {name: float(p) for name, p in zip(found, adjusted, strict=True)}

    @property
    def failures(self) -> tuple[FitFinding, ...]:
        """Findings that speak against the distribution."""
        small = {name for name, p in self.pvalues.items() if p <= self.level}
        return tuple(f for f in self.findings if f.ok is False or f.name in small)

    @property
    def passed(self) -> bool:
        """Whether there are none."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        failed = self.failures
        words = f"{len(failed)} of {len(self.findings)} speak against it" if failed else "it fits"
        head = f"{self.name}, {self.num_samples} draws: {words} (level {self.level:g})"
        rows = []
        for f in self.findings:
            mark = "FAILS" if f in failed else "ok"
            mark = "-" if f.ok is None and f.pvalue is None else mark
            p = "" if f.pvalue is None else f"p = {f.pvalue:.2g}"
            rows.append(f"  {f.name:<22} {mark:<6} {p:<12} {f.detail}".rstrip())
        return "\n".join([head, *rows])


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
        findings += _of_vectors(d, x, rng) if d._event_shape else _of_numbers(d, x, rng)
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


def _stated(method: Callable[[], object]) -> np.ndarray | None:
    """What a method returns, None where the distribution does not have it."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(to_array(method()), float)
    except NotImplementedError:
        return None


def _worst(pvalue: Callable[..., float], *columns: np.ndarray) -> float:
    """The smallest p-value over the batch, times their number."""
    found = [pvalue(*parts) for parts in zip(*(c.T for c in columns), strict=True)]
    return min(1.0, min(found) * len(found)) if found else 1.0


def _by_t(values: np.ndarray, expected: np.ndarray | float) -> float:
    """P-value of the means over draws of `values`, shape (draws, tests)."""
    n = len(values)
    error = values.std(0, ddof=1) / math.sqrt(n)
    gap = np.abs(values.mean(0) - expected)
    # Where nothing varies, equality to rounding is all there is.
    z = gap / np.maximum(error, 1e-9 * max(float(np.abs(values).max(initial=0.0)), 1e-300))
    return float(min(1.0, 2.0 * stats.t(n - 1).sf(z).min(initial=0.5) * max(values.shape[1], 1)))


def _entropy(d: Distribution, logs: np.ndarray) -> list[FitFinding]:
    stated = _stated(d.entropy)
    if stated is None:
        return []
    stated = stated.reshape(-1)
    if not np.isfinite(stated).all():
        return [FitFinding("entropy", None, None, "not tested: it is not finite")]
    return [FitFinding("entropy", None, _by_t(-logs, stated), "mean of minus the log density")]


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
    findings = [_normalised(masses, why, rounding)]
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
                FitFinding("cdf", gap < 10.0 * rounding, None, f"{gap:.1e} off the density's")
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


def _normalised(masses: Masses | None, why: str, rounding: float) -> FitFinding:
    if masses is None:
        return FitFinding("normalisation", None, None, why)
    if not masses.whole.all():
        return FitFinding(
            "normalisation", None, None, "not tested: mass beyond the range of floats"
        )
    total = masses.total
    worst = total[np.abs(total - 1.0).argmax()]
    fits = bool(abs(worst - 1.0) < rounding)
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
        stated = _stated(functools.partial(getattr, d, name))
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
    x = _stated(lambda: d.icdf(tensor(wide.astype(dtype))))
    up = None if x is None else _stated(lambda: d.cdf(tensor(x.astype(dtype))))
    if x is None or up is None:
        return []
    # The least value whose cdf reaches the level: nothing just below it does, unless values end.
    step = 1.0 if d.is_discrete else np.spacing(np.abs(x).astype(dtype))
    lower = _stated(lambda: d.cdf(tensor((x - step).astype(dtype))))
    assert lower is not None  # as at x
    last = ~to_array(d.support.check(tensor((x + step).astype(dtype))))
    gap = float(np.maximum(np.where(last, 0.0, wide - up), lower - wide).max())
    return [FitFinding("icdf", gap < rounding, None, f"{max(gap, 0.0):.1e} off the cdf at most")]


# ------------------------------------------------------------------------------------ vectors


def _of_vectors(d: Distribution, x: np.ndarray, rng: np.random.Generator) -> list[FitFinding]:
    findings = _means(d, x)
    if d.is_discrete:
        return [*_of_points(d, x), *findings]
    return [*_by_scores(d, x, rng), *findings]


def _means(d: Distribution, x: np.ndarray) -> list[FitFinding]:
    n, findings = len(x), []
    mean, variance = _stated(lambda: d.mean), _stated(lambda: d.variance)
    flat = x.reshape(n, -1).astype(float)
    if variance is None or not np.isfinite(variance).all() or mean is None:
        return []
    mean, variance = mean.reshape(-1), variance.reshape(-1)
    findings.append(FitFinding("mean", None, _by_t(flat, mean), "of draws"))
    square = (flat - mean) ** 2
    if (((square / np.maximum(square.mean(0), 1e-300)) ** 2).mean(0) < 50.0).all():
        findings.append(FitFinding("variance", None, _by_t(square, variance), "of draws"))
    return findings


def _of_points(d: Distribution, x: np.ndarray) -> list[FitFinding]:
    """Pearson's test of the vectors that are common enough."""
    batch, event = tuple(d._batch_shape), tuple(d._event_shape)
    n, pvalues, totals = len(x), [], []
    columns = x.reshape(n, -1, *event)
    for i in range(columns.shape[1]):
        points, counts = np.unique(columns[:, i], axis=0, return_counts=True)
        grid = np.broadcast_to(points[:, None], (len(points), columns.shape[1], *event))
        logs = log_density(d, grid.reshape(len(points), *batch, *event))
        mass = np.exp(logs.reshape(len(points), -1)[:, i])
        totals.append(mass.sum())
        common = n * mass * (1.0 - np.minimum(mass, 1.0)) > 5.0
        if common.any():
            pvalues.append(
                multinomial_goodness_of_fit(
                    np.minimum(mass[common], 1.0), counts[common], total_count=n
                )
                if mass[common].sum() < 1.0 + 1e-6
                else 0.0
            )
    worst = float(max(totals))
    findings = [
        FitFinding("normalisation", worst < 1.0 + SINGLE, None, f"points that came: {worst:.7g}")
    ]
    if pvalues:
        p = min(1.0, min(pvalues) * len(pvalues))
        return [*findings, FitFinding("draws: counts", None, p, "Pearson's test")]
    return [*findings, FitFinding("draws: counts", None, None, "not tested: no point is common")]


def _by_scores(d: Distribution, x: np.ndarray, rng: np.random.Generator) -> list[FitFinding]:
    """Stein's identities in unconstrained space, and the integral by importance sampling."""
    try:
        transform = biject_to(d.support)
        with np.errstate(all="ignore"):
            z = to_array(transform.inv(tensor(x.astype(float)))).astype(float)
    except NotImplementedError:
        return [
            FitFinding("draws: scores", None, None, "not tested: no bijection onto the support")
        ]
    if not np.isfinite(z).all():
        return [
            FitFinding("draws: scores", None, None, "not tested: draws on bounds of the support")
        ]
    rest = z.ndim - 1 - len(d._batch_shape)
    shape = z.shape[z.ndim - rest :]
    count = math.prod(shape)

    def logs(at: np.ndarray, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
        leaf = tensor(at, requires_grad=slopes)
        y, slope = transform.call_and_ladj(leaf)
        value = d.log_prob_inside(y) + slope
        scores = to_array(grad(value.sum(), [leaf])[0]) if slopes else at
        return to_array(value).reshape(len(at), -1), scores.reshape(len(at), -1, count)

    _, scores = logs(z, True)
    flat = z.reshape(len(z), -1, count)
    batch = flat.shape[1]
    flat = (flat - flat.mean(0)) / np.maximum(flat.std(0), 1e-300)
    scores = scores * np.maximum(z.reshape(len(z), -1, count).std(0), 1e-300)
    pairs = [(i, j) for i in range(count) for j in range(count)]
    if count > ALL_PAIRS:
        pairs = [(i, j) for i, j in pairs if 0 <= j - i <= 1]
    terms = [scores[:, b, i] for b in range(batch) for i in range(count)]
    terms += [flat[:, b, j] * scores[:, b, i] + (i == j) for b in range(batch) for i, j in pairs]
    p = _by_t(np.stack(terms, 1), 0.0)
    findings = [FitFinding("draws: scores", None, p, "Stein's identities, unconstrained")]
    return [_by_importance(z.reshape(len(z), batch, count), z.shape, logs, rng), *findings]


def _by_importance(
    z: np.ndarray,
    shape: tuple[int, ...],
    logs: Callable[[np.ndarray, bool], tuple[np.ndarray, np.ndarray]],
    rng: np.random.Generator,
) -> FitFinding:
    """The integral of the density, by draws of Student's t with 5 degrees of freedom."""
    n, batch, count = z.shape
    at, log_q = np.empty(z.shape), np.empty((n, batch))
    for b in range(batch):
        scatter = np.cov(z[:, b], rowvar=False).reshape(count, count)
        law = stats.multivariate_t(
            z[:, b].mean(0), scatter + 1e-12 * np.eye(count) * np.trace(scatter), 5, seed=rng
        )
        at[:, b] = law.rvs(n).reshape(n, count)
        log_q[:, b] = law.logpdf(at[:, b])
    with np.errstate(all="ignore"):
        weights = np.exp(logs(at.reshape(shape), False)[0] - log_q)
    weights = np.where(np.isfinite(weights), weights, 0.0)
    effective = weights.sum(0) ** 2 / np.maximum((weights**2).sum(0), 1e-300)
    if (effective < 0.05 * n).any():
        detail = "not tested: importance sampling fails"
        return FitFinding("normalisation", None, None, detail)
    total = weights.mean(0)
    detail = f"the total is {total[np.abs(total - 1.0).argmax()]:.3g} by importance sampling"
    return FitFinding("normalisation", None, _by_t(weights, 1.0), detail)


explain_calls(globals())
