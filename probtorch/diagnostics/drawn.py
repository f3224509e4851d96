"""`drawn`: the draws of what was handed over in their place, as an `MCMC` that has run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    from probtorch.diagnostics.draws import Draws

__all__ = ["HasDraws", "drawn"]


class HasDraws(Protocol):
    """An engine or a result that has draws, as an attribute or by a call."""

    @property
    def draws(self) -> object:
        """Its draws, or a method that returns them."""
        ...


def drawn(given: Draws | HasDraws, subject: str) -> Draws:
    """Return draws, those of what has draws.

    Raises
    ------
    ArgumentError
        If it is neither; as the engine does, if it has not run yet.
    """
    if hasattr(type(given), "num_draws"):
        return cast("Draws", given)
    found = getattr(given, "draws", None)
    found = found() if callable(found) else found
    if hasattr(type(found), "num_draws"):
        return cast("Draws", found)
    fix = "pass what run() returned: draws know their model, statistics and data"
    if hasattr(given, "posterior"):
        fix = "ArviZ's own functions take its data: arviz.loo(data), arviz.summary(data)"
    elif isinstance(given, Mapping):
        fix = "pass mcmc.draws; arrays alone are Draws(posterior={name: array})"
    raise ArgumentError(
        f"{subject}(draws)",
        expected="draws, or an engine that has run: mcmc.draws, mcmc",
        got=type(given).__name__,
        fix=fix,
    )
