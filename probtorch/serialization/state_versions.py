"""Versions of classes in a state dict: by which those that load know an older form.

A module's `state_dict` has them in an attribute, as PyTorch's does. They are 1 unless a class says
otherwise by `_version`, and only then a file has them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

from probtorch.core.typed import StateDict, Tree

__all__ = ["versions_of", "with_versions"]


def versions_of(value: Tree) -> list[object]:
    """Return a list with one list, of names and versions in turn; empty if all versions are 1."""
    metadata = getattr(value, "_metadata", {}) if type(value) is OrderedDict else {}
    versions = [(name, about.get("version")) for name, about in metadata.items()]
    if all(version == 1 for _, version in versions):
        return []
    return [[part for pair in versions for part in pair]]


def with_versions(read: dict[object, object], versions: Sequence[object]) -> StateDict:
    """Give a state dict that was read the versions that it was written with."""
    state = cast(StateDict, read)
    names, numbers = versions[::2], versions[1::2]
    if not all(type(name) is str for name in names) or not all(
        type(number) is int or number is None for number in numbers
    ):
        raise ValueError("versions of a state dict that are no numbers by name")
    pairs = zip(names, numbers, strict=True)
    state._metadata = OrderedDict((n, {"version": v}) for n, v in pairs)  # type: ignore[attr-defined]
    return state
