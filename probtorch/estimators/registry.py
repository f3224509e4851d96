"""The estimators by name, and the check that one applies, with what would apply instead."""

from __future__ import annotations

from probtorch.core.late import difflib
from probtorch.distributions.distribution import Distribution, MaskedDistribution
from probtorch.errors import ArgumentError
from probtorch.estimators.antithetic import ARM, DisARM
from probtorch.estimators.control_variates import REBAR, RELAX
from probtorch.estimators.finite import Enumerate, SumAndSample, UnorderedSet
from probtorch.estimators.measure_valued import MeasureValued
from probtorch.estimators.multi_sample import VIMCO
from probtorch.estimators.pathwise import Pathwise
from probtorch.estimators.protocol import Estimator, Refusal, unwrapped
from probtorch.estimators.relaxed import GumbelSoftmax, StraightThrough
from probtorch.estimators.score_function import DiCE, ScoreFunction

__all__ = ["ESTIMATORS", "applicable", "as_estimator", "check"]

ESTIMATORS: dict[str, type[Estimator]] = {
    kind.name: kind
    for kind in (
        Pathwise,
        ScoreFunction,
        DiCE,
        Enumerate,
        SumAndSample,
        UnorderedSet,
        ARM,
        DisARM,
        REBAR,
        RELAX,
        MeasureValued,
        GumbelSoftmax,
        StraightThrough,
        VIMCO,
    )
}

# Those that also serve a distribution with a mask: they ask for nothing but densities and paths.
_BEAR_MASKS = (Pathwise, ScoreFunction, DiCE)


def as_estimator(given: object, subject: str = "estimator", at: str | None = None) -> Estimator:
    """Return an estimator from an estimator or a name.

    Parameters
    ----------
    given : Estimator or str
    subject : str
        What the message is about.
    at : str, optional
        The "file:line" to blame.

    Raises
    ------
    ArgumentError
        If it is neither, with the closest name.
    """
    if isinstance(given, Estimator):
        return given
    if isinstance(given, type) and issubclass(given, Estimator):
        fix = f"write {given.__name__}()"
    elif isinstance(given, str):
        if given in ESTIMATORS:
            return ESTIMATORS[given]()
        near = difflib.get_close_matches(given.lower(), ESTIMATORS, 1)
        fix = f"did you mean {near[0]!r}?" if near else "see probtorch.estimators.ESTIMATORS"
        if given.lower() == "auto":
            fix = (
                'leave it out at sites, and write Trace_ELBO(estimator="auto"), which picks for all'
            )
    else:
        fix = "for example estimator=ScoreFunction() or estimator='score_function'"
    raise ArgumentError(
        subject,
        expected=f"an estimator, or one of {', '.join(map(repr, ESTIMATORS))}",
        got=repr(given),
        fix=fix,
        at=at,
    )


def refusal(estimator: Estimator, q: Distribution) -> Refusal | None:
    """Return why an estimator does not apply to a distribution, None if it does."""
    base, _ = unwrapped(q)
    if not isinstance(base, Distribution):
        return Refusal("a distribution", f"{q!r:.60}")
    if isinstance(base, MaskedDistribution):
        if isinstance(estimator, _BEAR_MASKS):
            return estimator.refusal(base)
        return Refusal("a distribution without a mask", "a masked one")
    return estimator.refusal(base)


def applicable(q: Distribution) -> list[str]:
    """Return the names of the estimators that apply to a distribution as they are.

    Those of single expectations: VIMCO, whose objective is another, is left out, and RELAX, which
    wants a control variate.
    """
    return [n for n, kind in ESTIMATORS.items() if n != VIMCO.name and not refusal(kind(), q)]


def check(estimator: Estimator, q: Distribution, subject: str = "", at: str | None = None) -> None:
    """Raise ArgumentError if an estimator does not apply to q: with the reason and what would."""
    found = refusal(estimator, q)
    if found is None:
        return
    base, _ = unwrapped(q)
    raise ArgumentError(
        f"{subject}{type(estimator).__name__} does not apply to {type(base).__name__}",
        expected=found.expected,
        got=found.got,
        fix=f"what applies: {', '.join(applicable(q)) or 'nothing'}",
        at=at,
    )
