"""Settings: one typed record, read from the environment once, changed by `configure`.

Every setting has the environment variable ``PROBTORCH_<NAME>``; 0, false, no and off switch a
boolean off.
"""

import contextlib
import dataclasses
import os

from probtorch.errors import ArgumentError

__all__ = ["Settings", "configure", "settings"]

_OFF = ("0", "false", "no", "off", "")


@dataclasses.dataclass
class Settings:
    """The settings of the process.

    Attributes
    ----------
    jit : bool
        Compile what can be compiled; off, everything runs eagerly.
    progress : bool
        Show progress of long work.
    check_gradients : bool
        Compare the gradient of each density and each SVI objective with differences of its values,
        once, at its first point.
    verify : bool
        Now and then make a compiled call eagerly too, and raise if the results differ.
    cuda_fallback : bool
        Take the CPU, with one warning, where a program asks for a GPU that cannot be used; off,
        asking for it is an error.
    """

    jit: bool = True
    progress: bool = True
    check_gradients: bool = True
    verify: bool = True
    cuda_fallback: bool = False


def _from_environment():
    found = Settings()
    for field in dataclasses.fields(Settings):
        text = os.environ.get(f"PROBTORCH_{field.name.upper()}")
        if text is not None:
            setattr(found, field.name, text.strip().lower() not in _OFF)
    return found


settings = _from_environment()


def configure(**changes):
    """Change settings: as a statement for good, around a block until its end, errors included.

    Parameters
    ----------
    **changes
        Settings by name, see `Settings`.

    Returns
    -------
    context manager and decorator
        It puts back what the settings were before.

    Raises
    ------
    ArgumentError
        For a setting that does not exist.

    Examples
    --------
    >>> from probtorch import configure
    >>> with configure(jit=False):
    ...     pass  # everything runs eagerly here
    """
    names = [f.name for f in dataclasses.fields(Settings)]
    for name in changes:
        if name not in names:
            raise ArgumentError(
                "configure",
                expected=f"one of {', '.join(names)}",
                got=name,
                fix="check the spelling",
            )
    return _Changed(changes)


class _Changed(contextlib.ContextDecorator):
    """Settings that were changed when this was made."""

    def __init__(self, changes):
        self._changes = changes
        self._before = {name: getattr(settings, name) for name in changes}
        self._set(changes)

    def _set(self, values):
        for name, value in values.items():
            setattr(settings, name, value)

    def __call__(self, func):
        self._set(self._before)  # a decorator changes settings while the function runs
        return super().__call__(func)

    def _recreate_cm(self):
        return _Changed(self._changes)

    def __enter__(self):
        return settings

    def __exit__(self, *error):
        self._set(self._before)
