"""Whether a guide can stand for the posterior: what its importance ratios say.

Two answers, from the same draws. The shape k of the ratios' tail (diagnostics/psis.py) says whether
weighted draws give reliable estimates. It says little about a guide that sits in the right place
and is too narrow, as mean-field guides are: normal draws with half of the posterior's standard
deviation have k = 1 - 1/4, hardly above the limit, and 1000 draws miss it every other time. So the
weights are also used: where they would widen a parameter by half, the guide is too narrow. Of
normal guides with half the standard deviation of a normal posterior that finds 95 % in one
dimension and 98 % in more, and of those with 80 % none or next to none up to five dimensions, one
in five in twenty (1000 draws; the script is benchmarks/guide_checks.py).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probtorch.diagnostics.findings import InferenceWarning
from probtorch.diagnostics.psis import MIN_DRAWS, pareto_k_limit, psis
from probtorch.errors import user_frame

if TYPE_CHECKING:
    from probtorch.diagnostics.draws import Draws
    from probtorch.infer.results import SampledDraws


__all__ = ["GuideWarning", "Quality", "judge", "quality_of", "verdict"]

# How much wider the weights may make a parameter before the guide counts as too narrow.
LARGEST_SD_RATIO = 1.5


class GuideWarning(InferenceWarning):
    """A guide that is too far from the posterior to stand for it."""


@dataclass(frozen=True)
class Quality:
    """What the importance ratios of a guide's draws say.

    Attributes
    ----------
    pareto_k : float
        Shape of their tail; nan if unknown.
    log_weight : ndarray, shape (draws,), or None
        Smoothed weights, normalised.
    sd_ratio : float
        The largest quotient of weighted and plain standard deviation of an unconstrained number.
    widest : str
        The number it belongs to, such as ``"theta[3]"``.
    """

    pareto_k: float = math.nan
    log_weight: np.ndarray | None = None
    sd_ratio: float = math.nan
    widest: str = ""

    @property
    def attrs(self) -> dict[str, object]:
        """The attributes that go with draws."""
        found: dict[str, object] = {"pareto_k": self.pareto_k, "sd_ratio": self.sd_ratio}
        return {**found, "sd_ratio_of": self.widest}


def quality_of(log_ratio: np.ndarray, values: Mapping[str, np.ndarray]) -> Quality:
    """Judge draws by their importance ratios.

    Parameters
    ----------
    log_ratio : ndarray, shape (draws,)
        Log joint density minus log density of the guide.
    values : dict of str to ndarray, each (draws, ...)
        Unconstrained values by site.

    Returns
    -------
    Quality
        Unknown for few draws, or if no ratio is finite.
    """
    # A weight of 0 is a draw outside of the support; no finite weight at all is no weight.
    usable = not np.isnan(log_ratio).any() and np.isfinite(log_ratio.max())
    if log_ratio.size < MIN_DRAWS or not usable:
        return Quality()
    log_weight, k = psis(log_ratio)
    weight = np.exp(log_weight)
    largest, widest = math.nan, ""
    for name, x in values.items():
        x = x.reshape(log_ratio.size, -1)
        spread = x.std(axis=0)
        moving = spread > 1e-12 * (1.0 + np.abs(x).max(axis=0, initial=0.0))
        if not moving.any():
            continue
        x, index = x[:, moving], np.flatnonzero(moving)
        middle = weight @ x
        ratio = np.sqrt(weight @ (x - middle) ** 2) / spread[moving]
        i = int(ratio.argmax())
        if not ratio[i] <= largest:
            place = np.unravel_index(index[i], values[name].shape[1:])
            subscript = f"[{', '.join(map(str, place))}]" if place else ""
            largest, widest = float(ratio[i]), f"{name}{subscript}"
    return Quality(k, log_weight, largest, widest)


def verdict(draws: Draws) -> str:
    """Return the verdict on a guide as a sentence, for summaries."""
    k, limit = draws.attrs["pareto_k"], pareto_k_limit(max(draws.num_draws, 2))
    if math.isnan(k):
        return "Pareto k of the importance ratios: unknown (subsampled data, or too few draws)."
    word = "within" if k <= limit else "above"
    sentence = f"Pareto k of the importance ratios: {k:.2f}, {word} the limit of {limit:.2f}."
    if _too_narrow(draws):
        ratio, name = draws.attrs["sd_ratio"], draws.attrs["sd_ratio_of"]
        sentence += f" Importance weights make {name} {ratio:.1f} times as wide."
    return sentence


def judge(draws: Draws, what: str = "the guide", cure: str = "") -> None:
    """Warn of a guide, or whatever the draws are of, that cannot stand for the posterior.

    Parameters
    ----------
    draws : Draws
    what : str
        Its name in the message.
    cure : str
        What to do; for a guide, what has more freedom.
    """
    k, limit = draws.attrs["pareto_k"], pareto_k_limit(max(draws.num_draws, 2))
    if k > limit:
        _warn(
            f"{what} is far from the posterior\n  expected: a Pareto k of at most {limit:.2f}\n"
            f"  got:      {k:.2f} from {draws.num_draws} draws\n"
            f"  fix:      {cure or f'train longer, {_richer(draws)}, {_OTHERWISE}'}"
        )
    elif _too_narrow(draws):
        ratio, name = draws.attrs["sd_ratio"], draws.attrs["sd_ratio_of"]
        _warn(
            f"{what} is narrower than the posterior\n"
            f"  expected: importance weights that widen nothing by more than {LARGEST_SD_RATIO:g}\n"
            f"  got:      a standard deviation of {name} that is {ratio:.2f} times as large with "
            "the weights (unconstrained scale)\n"
            f"  fix:      {cure or f'train longer, {_richer(draws)}, or sample with NUTS'}"
        )


_OTHERWISE = "reparameterise the model, or sample with NUTS"
_FULL = "use a guide with correlations (AutoMultivariateNormal)"
_FLOW = "use a guide that is no Gaussian (AutoIAFNormal)"
# What has more freedom than a guide has; others are the user's own.
_NEXT = {
    "AutoDelta": "use a guide with a spread (AutoNormal)",
    "AutoNormal": _FULL,
    "AutoDiagonalNormal": _FULL,
    "AutoStructured": _FULL,
    "AutoLowRankMultivariateNormal": "use a larger rank or AutoMultivariateNormal",
    "AutoMultivariateNormal": _FLOW,
    "AutoLaplaceApproximation": _FLOW,
    "AutoIAFNormal": "use a flow of more layers",
    "AutoNormalizingFlow": "use a flow of more layers",
}


def _richer(draws: Draws | SampledDraws) -> str:
    return _NEXT.get(str(draws.attrs.get("guide")), "use a richer guide")


def _too_narrow(draws: Draws) -> bool:
    if draws.attrs.get("resampled"):
        return False  # the weights have made it wider
    return bool(draws.attrs["sd_ratio"] > LARGEST_SD_RATIO)


def _warn(message: str) -> None:
    warnings.warn_explicit(message, GuideWarning, *(user_frame() or ("<unknown>", 0)))
