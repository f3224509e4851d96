"""Priors of weights: which one a parameter of a network has, fitted to its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, DTypeError, ShapeError

__all__ = ["Prior", "check_priors", "fit_prior", "prior_of"]

# One for all parameters, one each by name, or a function of name and shape (or of a module).
Prior: TypeAlias = Distribution | Mapping[str, Distribution] | Callable[..., Distribution]


def prior_of(prior: Prior, name: str, shape: tuple[int, ...]) -> Distribution | None:
    """Return the prior of the parameter `name`, None if it has none.

    Parameters
    ----------
    prior : Distribution, dict or callable
        One for all; by dotted name, or by the last part of it (``"bias"``); or ``prior(name,
        shape)``.
    name : str
        Dotted name within the network.
    shape : tuple of int
    """
    if isinstance(prior, Mapping):
        return prior.get(name, prior.get(name.rpartition(".")[2]))
    if hasattr(prior, "log_prob"):
        return cast(Distribution, prior)  # a class of one's own may do
    return prior(name, shape)


def check_priors(subject: str, prior: Prior, names: Iterable[str]) -> None:
    """Refuse what is no prior, and a dict that names parameters which are not there."""
    if isinstance(prior, Mapping):
        names = list(names)
        known = {*names, *(name.rpartition(".")[2] for name in names)}
        strays = [key for key in prior if key not in known]
        if strays:
            raise ArgumentError(
                f"{subject}: priors by name",
                expected=f"names among {', '.join(map(repr, names)) or '(no parameters)'}, or "
                "their last parts",
                got=", ".join(map(repr, strays)),
                fix="use the names of net.named_parameters()",
            )
    elif not callable(prior) and not hasattr(prior, "log_prob"):
        raise DTypeError(
            subject,
            expected="a distribution, a dict of them by name, or a function of name and shape",
            got=f"{type(prior).__name__} {prior!r:.60}",
            fix="for example Normal(0., 1.)",
        )


def fit_prior(prior: Distribution, shape: tuple[int, ...], subject: str) -> Distribution:
    """Return `prior` as the distribution of one draw of `shape`: expanded, all dims of the event.

    Raises
    ------
    DTypeError
        If it is no distribution.
    ShapeError
        If it does not broadcast to `shape`.
    """
    if not hasattr(prior, "log_prob"):
        raise DTypeError(
            subject,
            expected="a distribution as its prior",
            got=f"{type(prior).__name__} {prior!r:.60}",
            fix="for example Normal(0., 1.)",
        )
    batch, event = tuple(prior.batch_shape), tuple(prior.event_shape)
    count = len(shape) - len(event)
    fits = count >= len(batch) and shape[count:] == event
    wanted = shape[:count] if fits else ()
    padded = (1,) * (len(wanted) - len(batch)) + batch
    if not fits or any(have not in (1, want) for have, want in zip(padded, wanted)):
        raise ShapeError(
            subject,
            expected=f"a prior that broadcasts to its shape {shape}",
            got=f"batch shape {batch}, event shape {event}",
            fix="give a prior of single numbers, Normal(0., 1.), or one of the parameter's shape",
        )
    return (prior if batch == wanted else prior.expand(wanted)).to_event(count)
