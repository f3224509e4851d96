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
    """Change settings inside a block and restore them after, errors included.

    Raises
    ------
    ArgumentError
        For a setting that does not exist.
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
    return _changed(changes)


@contextlib.contextmanager
def _changed(changes):
    before = {name: getattr(settings, name) for name in changes}
    for name, value in changes.items():
        setattr(settings, name, value)
    try:
        yield settings
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
