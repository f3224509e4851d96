"""`VarianceTable`: how much the gradients of several estimators vary, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from probtorch.core.tree import record

__all__ = ["VarianceRow", "VarianceTable"]


@record
class VarianceRow:
    """One estimator.

    Attributes
    ----------
    estimator : str
    unbiased : bool
    total : float
        Sum of the variances of all elements of the gradient.
    variances : dict of ndarray
        Variance of each element, by parameter.
    means : dict of ndarray
        Mean gradient, by parameter.
    seconds : float
        Per estimate, of value and gradient.
    evaluations : float or None
        Of the cost, per estimate; None where they were not counted.
    """

    estimator: str
    unbiased: bool
    total: float
    variances: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    seconds: float
    evaluations: float | None = None

    @classmethod
    def of(
        cls,
        estimator: str,
        unbiased: bool,
        gradients: Mapping[str, np.ndarray],
        seconds: float,
        evaluations: float | None = None,
    ) -> VarianceRow:
        """Return the row of gradients with the estimates along their first dim."""
        variances = {
            name: g.var(0, ddof=1) if len(g) > 1 else g[0] * math.nan
            for name, g in gradients.items()
        }
        means = {name: g.mean(0) for name, g in gradients.items()}
        whole = float(sum(np.sum(v) for v in variances.values()))
        return cls(estimator, unbiased, whole, variances, means, seconds, evaluations)


@record
class VarianceTable:
    """The gradient variance of several estimators side by side; printed, it is a table.

    Attributes
    ----------
    rows : tuple of VarianceRow
        Least total variance first.
    num_samples : int
        Estimates per estimator: a variance has a relative standard error of about
        ``sqrt(2 / num_samples)``, more where gradients have heavy tails.
    """

    rows: tuple[VarianceRow, ...]
    num_samples: int

    def __getitem__(self, estimator: str) -> VarianceRow:
        for row in self.rows:
            if row.estimator == estimator:
                return row
        raise KeyError(estimator)

    def __iter__(self) -> Iterator[VarianceRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        names = list(self.rows[0].variances) if self.rows else []
        head = ["estimator", *names, "total", "ms", "total x ms"]
        counted = any(row.evaluations is not None for row in self.rows)
        if counted:
            head.append("evaluations")
        lines = [head]
        for row in self.rows:
            ms = row.seconds * 1e3
            line = [row.estimator + ("" if row.unbiased else " (biased)")]
            line += [f"{np.sum(row.variances[name]):.3g}" for name in names]
            line += [f"{row.total:.3g}", f"{ms:.3g}", f"{row.total * ms:.3g}"]
            if counted:
                line.append("" if row.evaluations is None else f"{row.evaluations:g}")
            lines.append(line)
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [
            "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(l, widths))
            )
            for l in lines
        ]
        title = f"gradient variance, from {self.num_samples} estimates each"
        return "\n".join([title, *text])
