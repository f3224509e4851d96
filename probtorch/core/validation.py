"""Whether distributions check their parameters and values; what they check is their own matter.

A process has one default, and a thread that is inside a `validation_enabled` block has its own: so
an inference that looks past bad values does not switch off the checks of what runs beside it.
Compiled functions read it too: what was recorded without checks is not used where they are on.
"""

from __future__ import annotations

import threading

__all__ = [
    "enable_validation",
    "is_validation_enabled",
    "validation_enabled",
    "validation_in_force",
]

_DEFAULT = True


class _Thread(threading.local):
    """What the block that this thread is in says; None outside of any."""

    chosen: bool | None = None


_THREAD = _Thread()


def validation_in_force() -> bool:
    """Return the default of `validate_args` for distributions that this thread makes now."""
    chosen = _THREAD.chosen
    return _DEFAULT if chosen is None else chosen


# Pyro's name for the question.
is_validation_enabled = validation_in_force


def enable_validation(is_validate: bool = True) -> None:
    """Switch the default of `validate_args` on or off for distributions made from now on.

    For all threads; within a `validation_enabled` block for this thread, to the end of the block.

    Parameters
    ----------
    is_validate : bool
    """
    global _DEFAULT
    if _THREAD.chosen is None:
        _DEFAULT = bool(is_validate)
    else:
        _THREAD.chosen = bool(is_validate)


class validation_enabled:
    """Context manager: the default of `validate_args` for this thread inside its block.

    Parameters
    ----------
    is_validate : bool
    """

    def __init__(self, is_validate: bool = True) -> None:
        self._value = bool(is_validate)

    def __enter__(self) -> None:
        self._before, _THREAD.chosen = _THREAD.chosen, self._value

    def __exit__(self, *exc: object) -> None:
        _THREAD.chosen = self._before
