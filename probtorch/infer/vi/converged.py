"""`Converged`: when an optimisation has got where it goes, told from its losses alone.

The last quarter of the run is compared with the quarter before. Quarters grow with the run, so what
is slow is seen, only later: where the loss falls like 1 / steps, what is left to gain at the end is
2.1 times the difference of the two means, and less where it falls faster. How far noise may have
moved that difference is told by means of batches, which bear losses that depend on each other.

A rule is a function of the losses and is asked after the same steps in every run, so a run that was
killed and goes on ends where it would have ended.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError, user_frame

__all__ = ["Converged", "Trend", "Until", "as_rule", "is_met", "warn_of_the_end"]

# Between two looks a run grows by a quarter; a function of the user's is asked every 100 steps.
GROWTH, EVERY = 1.25, 100
# Means of so many batches say how uncertain the mean of a quarter is; twice that error is a 95 %
# interval, with the 18 degrees of freedom that two quarters have.
BATCHES, ERRORS = 10, 2.0


@dataclass(frozen=True)
class Trend:
    """How the loss went at the end of a run.

    Attributes
    ----------
    gain : float
        By how much the mean loss of the last quarter is below that of the quarter before, in nats.
    error : float
        Standard error of `gain`.
    noise : float
        Standard deviation of the losses of the last quarter.
    """

    gain: float
    error: float
    noise: float

    @property
    def seen(self) -> bool:
        """Whether the loss still falls, or rises, beyond its noise."""
        return not abs(self.gain) <= ERRORS * self.error

    @property
    def bound(self) -> float:
        """What the gain, or the loss, of the last quarter may have been at most."""
        return abs(self.gain) + ERRORS * self.error

    def __str__(self) -> str:
        sign = "fell" if self.gain >= 0.0 else "rose"
        return (
            f"the mean loss {sign} by {abs(self.gain):.3g} from the third quarter to the last, "
            f"standard error {self.error:.2g}"
        )


@dataclass(frozen=True)
class Converged:
    """Stop an optimisation when the loss has stopped falling.

    Parameters
    ----------
    tolerance : float
        In nats. The run ends when the mean loss of its last quarter surely (by two standard errors)
        differs by less from that of the quarter before.
    resolution : float
        Where noise hides so small a difference, the run also ends when no difference is seen and
        two standard errors are less than this share of the standard deviation of one loss.
    min_steps : int
        Steps before it looks for the first time.

    Notes
    -----
    Steps are looked at when the run is `min_steps` long, and whenever it has grown by a quarter.
    What the bound may still have to gain is about twice the difference that was allowed. More
    particles make losses less noisy, and so the second criterion sharper. A learning rate that is
    too large keeps the loss above its least value, and is not seen by any rule of this kind: the
    loss has stopped falling.

    Examples
    --------
    >>> import numpy as np
    >>> from probtorch.infer import Converged
    >>> rule = Converged(tolerance=0.01)
    >>> steps = np.arange(1.0, 2001.0)
    >>> rule(10.0 + 100.0 / steps), rule(10.0 + 4.0 / steps)
    (False, True)
    """

    tolerance: float = 0.01
    resolution: float = 0.1
    min_steps: int = 500

    def __post_init__(self) -> None:
        for name, least in (("tolerance", 0.0), ("resolution", 0.0), ("min_steps", 80)):
            value = getattr(self, name)
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not number or not least <= float(value) < math.inf:
                raise ArgumentError(
                    f"Converged({name}=...)",
                    expected=f"a number of at least {least:g}",
                    got=repr(value),
                    fix=f"leave it out for {getattr(type(self), name)}",
                )

    def trend(self, losses: Sequence[float] | np.ndarray) -> Trend:
        """Return how the mean loss went from the third quarter of the run to the last.

        Parameters
        ----------
        losses : sequence of float, shape (steps,)
            Those that are not finite are left out; at least 80 are.

        Returns
        -------
        Trend
        """
        found = np.asarray(losses, np.float64)
        quarter = len(found) // 4
        means, errors = [], []
        for part in (found[-2 * quarter : len(found) - quarter], found[len(found) - quarter :]):
            part = part[np.isfinite(part)]
            if len(part) < 2 * BATCHES:
                return Trend(math.nan, math.nan, math.nan)
            batches = [float(x.mean()) for x in np.array_split(part, BATCHES)]
            means.append(float(part.mean()))
            errors.append(float(np.std(batches, ddof=1)) / math.sqrt(BATCHES))
        return Trend(means[0] - means[1], math.hypot(*errors), float(part.std()))

    def __call__(self, losses: Sequence[float] | np.ndarray) -> bool:
        """Whether these are the losses of a run that has converged."""
        trend = self.trend(losses)
        hidden = not trend.seen and ERRORS * trend.error <= self.resolution * trend.noise
        return hidden or trend.bound <= self.tolerance

    def next_look(self, step: int) -> int:
        """Return the first step after `step` at which to look."""
        look = math.ceil(self.min_steps)
        while look <= step:
            look = math.ceil(look * GROWTH)
        return look


# What may end a run: a rule, its name, or a function of all losses so far.
Until: TypeAlias = Converged | Callable[[np.ndarray], bool] | str | None


@dataclass(frozen=True)
class _Asked:
    """A function of the losses as a rule, asked every 100 steps, or when its `next_look` says."""

    function: Callable[[np.ndarray], bool]

    def __call__(self, losses: Sequence[float] | np.ndarray) -> bool:
        return bool(self.function(np.asarray(losses, np.float64)))

    def next_look(self, step: int) -> int:
        own = getattr(self.function, "next_look", None)
        return step - step % EVERY + EVERY if own is None else int(own(step))


def as_rule(until: Until) -> Converged | _Asked | None:
    """Return what was given as `until` as a rule.

    Raises
    ------
    ArgumentError
        If it is none.
    """
    if until is None or isinstance(until, Converged):
        return until
    if until == "converged":
        return Converged()
    if not callable(until) or isinstance(until, type):
        raise ArgumentError(
            "SVI.run(until=...)",
            expected='"converged", a Converged, or a function of the losses so far',
            got=f"{type(until).__name__} {until!r:.60}",
            fix="write until=Converged(tolerance=0.01)",
        )
    return _Asked(until)


def is_met(rule: Converged | _Asked | None, losses: Sequence[float]) -> bool:
    """Whether it is time to look at the losses, and the rule ends the run."""
    step = len(losses)
    return rule is not None and step > 0 and rule.next_look(step - 1) == step and rule(losses)


def warn_of_the_end(rule: Converged | _Asked, losses: Sequence[float]) -> None:
    """Tell that a run ended without having converged."""
    seen = isinstance(rule, Converged) and len(losses) >= rule.min_steps
    got = (
        str(rule.trend(losses)) if isinstance(rule, Converged) and seen else "its rule was not met"
    )
    warnings.warn_explicit(
        f"SVI.run: not converged after {len(losses)} steps\n"
        f"  expected: that the loss stops falling, by {rule!r}\n"
        f"  got:      {got}\n"
        "  fix:      allow more steps, or more particles; where the loss moves up and down, take a "
        "smaller learning rate",
        InferenceWarning,
        *(user_frame() or ("<unknown>", 0)),
    )


explain_calls(globals())
