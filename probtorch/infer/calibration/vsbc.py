"""`vsbc`: whether the marginals of an approximation lie around the truth, too wide or narrow aside.

An approximation is hardly ever calibrated as `sbc` has it: most are too narrow. What can still be
asked is whether they lie too low or too high. Over data sets that the model simulates, the share of
the approximation below the true value is then as often p as 1 - p: its law is symmetric around 1/2
[yao2018b].

The paper compares p with 1 - p by the Kolmogorov-Smirnov test of two samples, which these are not.
Here signs are counted: values are walked through from the farthest from 1/2 inwards, with +1 for
those above and -1 for those below. Under symmetry that is a simple random walk, whose largest
distance from 0 has a law that is known exactly.

References
----------
Y. Yao, A. Vehtari, D. Simpson, A. Gelman, "Yes, but did it work? Evaluating variational inference",
ICML (2018), section 3. C. C. Butler, "A test for symmetry using the sample distribution function",
Annals of Mathematical Statistics 40 (1969).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.infer.calibration.calibrated import Calibration
from probtorch.infer.calibration.sbc import sbc
from probtorch.infer.calibration.uniformity import holm

__all__ = ["VariationalCalibration", "symmetry_pvalue", "vsbc"]

# Rows of a repr.
SHOWN = 30


@dataclass(frozen=True, eq=False, repr=False)
class VariationalCalibration:
    """What `vsbc` found.

    Attributes
    ----------
    calibration : Calibration
        The ranks that it rests on, and whether they are uniform, which is more than is asked here.
    pvalues : dict of str to float
        Of symmetry, by quantity; see `symmetry_pvalue`.
    adjusted : dict of str to float
        The same, adjusted for the number of quantities (Holm).
    below : dict of str to float
        Mean share of the approximation below the true value: beneath 1/2 where it lies too high.
    """

    calibration: Calibration
    pvalues: dict[str, float] = field(init=False)
    adjusted: dict[str, float] = field(init=False)
    below: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        ranks, num_draws = self.calibration.ranks, self.calibration.num_draws
        found = {name: symmetry_pvalue(x, num_draws) for name, x in ranks.items()}
        adjusted = holm(np.array(list(found.values())))
        below = {name: float((x + 0.5).mean() / (num_draws + 1)) for name, x in ranks.items()}
        object.__setattr__(self, "pvalues", found)
        object.__setattr__(self, "adjusted", dict(zip(found, map(float, adjusted))))
        object.__setattr__(self, "below", below)

    @property
    def unbiased(self) -> bool:
        """Whether no quantity speaks against symmetry, at the level for all together."""
        return min(self.adjusted.values()) > self.calibration.level

    def __repr__(self) -> str:
        level, of = self.calibration.level, self.calibration
        order = sorted(self.pvalues, key=lambda name: self.pvalues[name])
        width = max(len("quantity"), *(len(name) for name in order[:SHOWN]))
        lines = [
            f"Marginals of {of.name}: {of.replications} replications, {of.num_draws} draws each",
            f"{'quantity':{width}}  p-value  adjusted  below  marginals",
        ]
        for name in order[:SHOWN]:
            words = "symmetric"
            if self.adjusted[name] <= level:
                words = "too low" if self.below[name] > 0.5 else "too high"
            lines.append(
                f"{name:{width}}  {self.pvalues[name]:7.3g}  {self.adjusted[name]:8.3g}  "
                f"{self.below[name]:5.3f}  {words}"
            )
        if len(order) > SHOWN:
            lines.append(f"and {len(order) - SHOWN} more with larger p-values")
        bad = sum(p <= level for p in self.adjusted.values())
        lines.append(
            f"no bias, as far as this can tell (chance of a false alarm: {level:g})"
            if not bad
            else f"biased: {bad} of {len(order)} quantities (chance of a false alarm: {level:g})"
        )
        return "\n".join(lines)


@explained("vsbc", meant={"num_simulations": "replications", "num_svi_steps": "num_steps"})
def vsbc(
    model: Callable[..., object],
    approximation: Callable[..., object],
    replications: int = 100,
    *,
    args: tuple[object, ...] = (),
    kwargs: dict[str, object] | None = None,
    observed: tuple[str, ...] = (),
    num_samples: int = 255,
    num_steps: int = 1000,
    level: float = 0.01,
    seed: int | Generator | None = 0,
    progress_bar: bool = True,
) -> VariationalCalibration:
    """Check whether the marginals of an approximation lie around the truth [yao2018b]_.

    Use it where `sbc` finds an approximation too narrow, as it mostly does, and point estimates are
    what is wanted: those of a quantity that passes have no bias over the prior.

    Parameters
    ----------
    model : callable
        As for `sbc`.
    approximation : callable
        From a model to what approximates its posterior: ``lambda m: SVI(m, AutoNormal(m), Adam,
        lr=0.02)``, `LaplaceApproximation`, `Pathfinder`.
    replications : int
        Data sets; 100 find a shift of a third of a standard deviation.
    args, kwargs, observed, num_steps, seed, progress_bar
        As for `sbc`.
    num_samples : int
        Draws of the approximation that shares are taken among.
    level : float
        Largest chance of calling marginals biased that are not.

    Returns
    -------
    VariationalCalibration
        Prints as a table; ``.unbiased`` is the verdict.

    Raises
    ------
    ArgumentError, InferenceError
        As `sbc`.

    Notes
    -----
    Symmetry on average over the prior says little of one data set: for that see ``pareto_k``.

    References
    ----------
    [yao2018b]_, [butler1969]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import LaplaceApproximation
    >>> from probtorch.testing import vsbc
    >>> def coin(tosses, y=None):
    ...     p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    ...     probtorch.sample("y", dist.Binomial(tosses, p), obs=y)
    >>> found = vsbc(coin, LaplaceApproximation, 50, args=(10,), progress_bar=False)
    >>> found.unbiased
    True
    """
    found = sbc(
        model,
        approximation,
        replications,
        args=args,
        kwargs=kwargs,
        observed=observed,
        log_likelihood=False,
        num_samples=num_samples,
        num_steps=num_steps,
        level=level,
        seed=seed,
        progress_bar=progress_bar,
    )
    return VariationalCalibration(found)


def symmetry_pvalue(ranks: np.ndarray, num_draws: int) -> float:
    """Return the p-value of ranks being symmetric around the middle; small where they are not.

    Parameters
    ----------
    ranks : ndarray of int, shape (replications,)
        In 0 ... num_draws.
    num_draws : int

    Returns
    -------
    float
        Chance that a simple random walk of as many steps gets as far from 0 as the signs do,
        counted from the farthest rank inwards; exact but for ties, which make it larger.
    """
    off = 2 * np.asarray(ranks) - num_draws
    off = off[off != 0]
    order = np.argsort(-np.abs(off), kind="stable")
    off = off[order]
    way = np.cumsum(np.sign(off))
    # Equal distances from the middle have no order: only what is there behind all of them counts.
    last = np.append(np.abs(off[1:]) != np.abs(off[:-1]), True) if off.size else np.zeros(0, bool)
    farthest = int(np.abs(way[last]).max(initial=0))
    return _chance_to_reach(farthest, off.size)


def _chance_to_reach(distance: int, steps: int) -> float:
    """How likely a simple random walk comes as far from 0 within so many steps."""
    if distance == 0:
        return 1.0
    inside = np.zeros(2 * distance - 1)  # chances of -distance + 1 ... distance - 1
    inside[distance - 1] = 1.0
    for _ in range(steps):
        moved = np.zeros_like(inside)
        moved[1:] += 0.5 * inside[:-1]
        moved[:-1] += 0.5 * inside[1:]
        inside = moved
    return float(min(max(1.0 - inside.sum(), 0.0), 1.0))


explain_calls(globals())
