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
    for folder in {os.path.realpath(entry or os.curdir) + os.sep for entry in tuple(sys.path)}:
        if real.startswith(folder) and real.removeprefix(folder).split(os.sep)[0] in _names(folder):
            return "installed"
    return "user"


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
