"""What is wrong with a run, as a value: `Finding`, and the kinds of warnings."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ConvergenceWarning",
    "DivergenceWarning",
    "EnergyWarning",
    "Finding",
    "InferenceWarning",
    "TreeDepthWarning",
]


class InferenceWarning(UserWarning):
    """A result of inference that is doubtful."""


class DivergenceWarning(InferenceWarning):
    """The sampler met curvature that its step size could not follow, so a region may be missing."""


class ConvergenceWarning(InferenceWarning):
    """Chains disagree, or hold too few independent draws for reliable estimates."""


class TreeDepthWarning(InferenceWarning):
    """Trajectories were cut off before they turned: correct, but slow."""


class EnergyWarning(InferenceWarning):
    """Momentum resampling explores the energy too slowly; tails may be missing."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, about a run.

    Parameters
    ----------
    kind : str
        ``non_finite stuck divergence excess_variance replicas unsolved outside_support
        short_run rhat ess treedepth energy few_chains``.
    subject, expected, got, fix : str
        The message: what it is about, what would be right, what was found, what to do.
    parameters : tuple of str
        Labels of the parameters that show it most, worst first.
    category : type or None
        The warning it deserves; None for a note.
    """

    kind: str
    subject: str
    expected: str
    got: str
    fix: str
    parameters: tuple[str, ...] = ()
    category: type[InferenceWarning] | None = None

    def __str__(self) -> str:
        return (
            f"{self.subject}\n  expected: {self.expected}\n"
            f"  got:      {self.got}\n  fix:      {self.fix}"
        )
