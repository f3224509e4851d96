"""Settings: one typed record, read from the environment once, changed by `configure`.

Every setting has the environment variable ``PROBTORCH_<NAME>``; 0, false, no and off switch a
boolean off.
"""

import contextlib
import dataclasses
import os

from probtorch.errors import ArgumentError

__all__ = ["Settings", "configure", "settings"]

# As in pyproject.toml; a test compares them.
VERSION = "0.1.0"
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

    def get(self, alias=None):
        """Return a setting by its name, or all of them as a dict.

        Parameters
        ----------
        alias : str, optional
        """
        every = dataclasses.asdict(self)
        if alias is None:
            return every
        _check_names("settings.get", [alias])
        return every[alias]

    def set(self, **changes):
        """Change settings for good; `configure` of this library's own, by Pyro's name.

        Parameters
        ----------
        **changes
            Settings by name.
        """
        configure(**changes)

    def context(self, **changes):
        """Return a context manager and decorator that changes settings while it is entered.

        Parameters
        ----------
        **changes
            Settings by name.
        """
        _check_names("settings.context", changes)
        return _Later(changes)


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
    _check_names("configure", changes)
    return _Changed(changes)


def _check_names(asked, names):
    """See that there are settings of these names; `asked` is who asks."""
    known = [f.name for f in dataclasses.fields(Settings)]
    for name in names:
        if name not in known:
            raise ArgumentError(
                asked,
                expected=f"one of {', '.join(known)}",
                got=name,
                fix="check the spelling",
            )


class _Later(contextlib.ContextDecorator):
    """Changes settings when it is entered."""

    def __init__(self, changes):
        self._changes, self._entered = changes, []

    def __enter__(self):
        self._entered.append(_Changed(self._changes))
        return settings

    def __exit__(self, *error):
        self._entered.pop().__exit__(*error)


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
