"""The JSON of a header, read piece by piece.

Parsed at once, a header takes up to 18 times its length in memory, nearly all of it for lists that
are looked at once. So its own lists stay text, and each element is parsed when it is asked for.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from probtorch.core.typed import Tree

__all__ = ["Header", "Pieces", "parse"]

# What JSON holds under names.
Header: TypeAlias = dict[str, Any]

# From here to the next place that is not white.
_BLACK = re.compile(r"[^ \t\n\r]|\Z")


def _pairs(pairs: Sequence[tuple[str, object]]) -> Header:
    """A JSON object; two readers may take different ones of two values under one name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice in one object")
    return found


# ``raw_decode`` without its copies: the value at a place, and the place after it.
_scan: Callable[[str, int], tuple[Tree, int]] = getattr(  # noqa: B009  # types do not have it
    json.JSONDecoder(object_pairs_hook=_pairs), "scan_once"
)


class Pieces:
    """A list in a JSON text. Elements are parsed anew whenever they are asked for.

    Attributes
    ----------
    text : str
        The whole text that it is part of.
    """

    def __init__(self, text: str, places: array[int]) -> None:
        self.text, self._places = text, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, i: int) -> Tree:
        return _scan(self.text, self._places[i])[0]

    def __iter__(self) -> Iterator[Tree]:
        return (_scan(self.text, at)[0] for at in self._places)


def parse(data: bytes, pieces: frozenset[str]) -> Header:
    """Return the JSON object that a text holds.

    Parameters
    ----------
    data : bytes
        In ASCII.
    pieces : frozenset of str
        Under these names lists become `Pieces`.

    Raises
    ------
    ValueError, RecursionError
        If it is no object, if anything in it is no JSON, or if a name is in an object twice.
    """
    text = data.decode("ascii")
    try:
        pairs, at = _object(text, _after(text, 0), pieces)
    except (StopIteration, IndexError):  # which is how the scanner says it
        raise ValueError("no JSON") from None
    if at != len(text):
        raise ValueError("something behind its end")
    return _pairs(pairs)


def _after(text: str, at: int) -> int:
    """The first place from `at` on that is not white."""
    found = _BLACK.search(text, at)
    return len(text) if found is None else found.start()


def _object(text: str, at: int, pieces: frozenset[str]) -> tuple[list[tuple[str, object]], int]:
    """Names and values of the object at a place, and the place after it."""
    pairs: list[tuple[str, object]] = []
    _expect(text, at, "{")
    at = _after(text, at + 1)
    if text[at] == "}":
        return pairs, _after(text, at + 1)
    while True:
        name, at = _scan(text, at)
        if not isinstance(name, str):
            raise ValueError("a name that is no text")
        at = _after(text, at)
        _expect(text, at, ":")
        at = _after(text, at + 1)
        if name in pieces and text[at] == "[":
            value, at = _list(text, at)
        else:
            value, at = _scan(text, at)
        pairs.append((name, value))
        at = _after(text, at)
        if text[at] == "}":
            return pairs, _after(text, at + 1)
        _expect(text, at, ",")
        at = _after(text, at + 1)


def _list(text: str, at: int) -> tuple[Pieces, int]:
    """The list at a place, as `Pieces`, and the place after it."""
    places = array("Q")
    at = _after(text, at + 1)
    if text[at] == "]":
        return Pieces(text, places), at + 1
    while True:
        places.append(at)
        _, at = _scan(text, at)
        if text[at] != "," and text[at] != "]":
            at = _after(text, at)
        if text[at] == "]":
            return Pieces(text, places), at + 1
        _expect(text, at, ",")
        at = _after(text, at + 1)


def _expect(text: str, at: int, mark: str) -> None:
    if text[at] != mark:
        raise ValueError(f"{text[at]!r} in place of {mark!r}")
