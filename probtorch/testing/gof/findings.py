"""What `check` returns, and what its parts share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from probtorch.core.signatures import explain_calls
from probtorch.infer.calibration.uniformity import holm
from probtorch.testing.compare import to_array

__all__ = ["FitFinding", "Verdict", "mean_pvalue", "stated_value"]


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


def stated_value(method: Callable[[], object]) -> np.ndarray | None:
    """What a method returns, None where the distribution does not have it."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(to_array(method()), float)
    except NotImplementedError:
        return None


def mean_pvalue(values: np.ndarray, expected: np.ndarray | float) -> float:
    """P-value of the means over draws of `values`, shape (draws, tests)."""
    n = len(values)
    error = values.std(0, ddof=1) / math.sqrt(n)
    gap = np.abs(values.mean(0) - expected)
    # Where nothing varies, equality to rounding is all there is.
    z = gap / np.maximum(error, 1e-9 * max(float(np.abs(values).max(initial=0.0)), 1e-300))
    return float(min(1.0, 2.0 * stats.t(n - 1).sf(z).min(initial=0.5) * max(values.shape[1], 1)))


explain_calls(globals())
