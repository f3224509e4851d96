"""How tensors are printed: PyTorch's layout, with its settings.

All numbers of a tensor have one format: whole ones a point and no digits, others four digits, and
an exponent where the largest is more than 1000 times the smallest, above 1e8, or the smallest below
1e-4. Of tensors with more than `threshold` elements the first and last of each dim are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError

__all__ = ["layout", "set_printoptions", "table"]


@dataclass(frozen=True)
class _Options:
    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}
_options = _Options()
_Format: TypeAlias = tuple[Callable[[complex], str], int]


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Say how tensors are printed from now on; what is left out stays as it is.

    Parameters
    ----------
    precision : int
        Digits behind the point.
    threshold : int
        With more elements than these, only some are shown.
    edgeitems : int
        How many then, at both ends of each dim.
    linewidth : int
        Characters in a line.
    profile : {"default", "short", "full"}
        Settings to begin with.
    sci_mode : bool
        Whether numbers have exponents; left out, their sizes say so.
    """
    global _options
    if profile is not None and profile not in _PROFILES:
        raise ArgumentError(
            "set_printoptions(profile=...)",
            expected='"default", "short" or "full"',
            got=repr(profile),
            fix="choose one of them",
        )
    new = _options if profile is None else _PROFILES[profile]
    _options = replace(
        new,
        precision=new.precision if precision is None else precision,
        threshold=new.threshold if threshold is None else threshold,
        edgeitems=new.edgeitems if edgeitems is None else edgeitems,
        linewidth=new.linewidth if linewidth is None else linewidth,
        sci_mode=sci_mode,
    )


def layout(array: np.ndarray, notes: list[str]) -> str:
    """Return the text of a tensor: its elements, and notes behind them."""
    prefix = "tensor("
    if array.size:
        few = array.size > _options.threshold
        text = prefix + _rows(array, _format(_edges(array) if few else array), len(prefix), few)
    else:
        text = prefix + "[]"
        notes = notes if array.ndim == 1 else [f"size={tuple(array.shape)}", *notes]
    width = len(text) - text.rfind("\n") + 1
    for note in notes:
        if width + len(note) + 2 > _options.linewidth:
            text += ",\n" + " " * len(prefix) + note
            width = len(prefix) + len(note)
        else:
            text += ", " + note
            width += len(note) + 2
    return text + ")"


def table(array: np.ndarray) -> str:
    """Return a matrix, or a vector as its one row, as a table of HTML without a long middle."""
    array = array if array.ndim == 2 else array[None]
    few, k = array.size > _options.threshold, _options.edgeitems
    shown = _edges(array) if few else array
    form, _ = _format(shown)
    far, wide = (few and n > 2 * k for n in array.shape)

    def line(row: np.ndarray) -> str:
        cells = [f'<td style="text-align: right">{form(v).strip()}</td>' for v in row.tolist()]
        return (
            "<tr>" + "".join([*cells[:k], "<td>...</td>", *cells[k:]] if wide else cells) + "</tr>"
        )

    lines = [line(row) for row in shown]
    lines = [*lines[:k], "<tr><td>...</td></tr>", *lines[k:]] if far else lines
    return f"<table>{''.join(lines)}</table>"


def _rows(array: np.ndarray, how: _Format, indent: int, few: bool) -> str:
    """The elements in brackets, which open at this column."""
    form, width = how
    if array.ndim == 0:
        return form(array.item())
    room, indent = _options.linewidth - indent, indent + 1
    k = _options.edgeitems
    cut = few and len(array) > 2 * k
    ends = (array[:k], array[len(array) - k :]) if cut else (array, array[:0])
    if array.ndim > 1:
        first, last = ([_rows(row, how, indent, few) for row in part] for part in ends)
        between = "," + "\n" * (array.ndim - 1) + " " * indent
        return "[" + between.join([*first, *["..."] * cut, *last]) + "]"
    first, last = ([form(v) for v in part.tolist()] for part in ends)
    words = [*first, *[" ..."] * cut, *last]
    in_line = max(1, room // (width + 2))
    lines = [", ".join(words[i : i + in_line]) for i in range(0, len(words), in_line)]
    return "[" + (",\n" + " " * indent).join(lines) + "]"


def _edges(array: np.ndarray) -> np.ndarray:
    """The elements at both ends of each dim."""
    k = _options.edgeitems
    for dim, n in enumerate(array.shape):
        if n > 2 * k:
            array = array.take([*range(k), *range(n - k, n)], axis=dim)
    return array


def _format(values: np.ndarray) -> _Format:
    """Return what makes texts of elements, and their length, which only inf and nan may exceed."""
    if values.dtype.kind == "c":
        (real, long), (imaginary, longer) = _format(values.real), _format(values.imag)

        def pair(v: complex) -> str:
            text = imaginary(v.imag).lstrip()
            return f"{real(v.real)}{'' if text.startswith('-') else '+'}{text}j"

        return pair, long + longer + 1
    form: Callable[[complex], str] = str
    counted = values.reshape(-1)
    if values.dtype.kind == "f":
        counted = counted[np.isfinite(counted) & (counted != 0)]
        form = _of_floats(np.abs(counted.astype(np.float64)))
    width = max((len(form(v)) for v in counted.tolist()), default=1)
    return lambda v: form(v).rjust(width), width


def _of_floats(sizes: np.ndarray) -> Callable[[complex], str]:
    digits, whole, exponents = _options.precision, True, False
    if sizes.size:
        least, most = np.min(sizes), np.max(sizes)
        whole = bool((sizes == np.ceil(sizes)).all())
        exponents = bool(most / least > 1000.0 or most > 1.0e8 or (not whole and least < 1.0e-4))
    if _options.sci_mode is not None:
        exponents = _options.sci_mode
    if exponents:
        return lambda v: f"{v:.{digits}e}"
    if whole:
        return lambda v: f"{v:.0f}" + "." * math.isfinite(v.real)
    return lambda v: f"{v:.{digits}f}"


explain_calls(globals())
