"""Whose a source file is: this package's, the standard library's, an installed package's, or the
user's own.

Errors name lines of the user's; compiled code watches what the user's own code may change, and
takes the library's for settled. Packages are mostly in a folder of a telling name, but not those
that were put next to a program (``pip install --target``) or that a path variable leads to: they
are known by the metadata that installers leave beside them, file by file.
"""

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator

__all__ = ["owner"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = tuple(
    {
        os.path.dirname(os.__file__) + os.sep,
        *(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "platstdlib")),
    }
)
_SITES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))


@functools.cache
def owner(file: str) -> str:
    """Return "ours", "installed", "standard" or "user"; code without a file counts as ours."""
    if file.startswith((_PACKAGE, "<")):
        return "ours"
    real = os.path.realpath(file)
    if real.startswith(_PACKAGE):
        return "ours"
    if any(site in path for site in _SITES for path in (file, real)):
        return "installed"
    if file.startswith(_STANDARD) or real.startswith(_STANDARD):
        return "standard"
    return "installed" if any(name in _names(folder) for folder, name in _on_path(real)) else "user"


def _on_path(real: str) -> Iterator[tuple[str, str]]:
    """The folders of sys.path that a file is below, and the name in each that leads to it."""
    # By number: to ask for the real path of each entry takes a question for each of its parts.
    entries = {_number(entry or os.curdir) for entry in tuple(sys.path)} - {None}
    name = real
    while (folder := os.path.dirname(name)) != name:
        if _number(folder) in entries:
            yield folder, os.path.basename(name)
        name = folder


def _number(folder: str) -> tuple[int, int] | None:
    """What a folder is known by, whatever leads to it; None of what is not there."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


@functools.cache
def _names(folder: str) -> frozenset[str]:
    """What the packages installed in a folder have at its top, files and folders."""
    try:
        entries = os.listdir(folder)
    except OSError:  # a zip file, or nothing
        return frozenset()
    if not any(entry.endswith((".dist-info", ".egg-info")) for entry in entries):
        return frozenset()
    # Here, because it brings parsers of mail and of zip files along, and this is rarely asked.
    from importlib import metadata

    return frozenset(
        file.parts[0]
        for package in metadata.distributions(path=[folder])
        for file in package.files or ()
    )
