"""Layouts: where the elements of a value lie in a buffer, as an offset and a stride per dim (in
elements).

A movement op changes a layout instead of moving memory, exactly as NumPy's views do; `None` means
that it cannot and that the value must be copied first.
"""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Layout", "contiguous"]


def contiguous(shape):
    """Return the row-major layout of `shape`."""
    return Layout(tuple(shape), _row_major(shape), 0)


def _row_major(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides and offset of a value in its buffer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def view(self, name, attrs):
        """Return the layout after the movement op `name`, or None if it needs a copy."""
        return _VIEWS[name](self, **attrs)

    def broadcast(self, shape):
        """Return the strides that read this value at the indices of a larger `shape`."""
        pad = len(shape) - len(self.shape)
        strides = [0] * pad + list(self.strides)
        for i, size in enumerate(self.shape, pad):
            if size == 1 and shape[i] != 1:
                strides[i] = 0
        return tuple(strides)

    def is_whole(self):
        """Whether the elements are all of the buffer in row-major order (sizes of 1 aside)."""
        want = _row_major(self.shape)
        return self.offset == 0 and all(
            a == b or n == 1 for a, b, n in zip(self.strides, want, self.shape, strict=True)
        )


def _reshape(layout, shape):
    # Group old and new dims whose products agree; within a group the old dims must be evenly
    # spaced.
    old = [(n, s) for n, s in zip(layout.shape, layout.strides, strict=True) if n != 1]
    if 0 in shape:
        return Layout(shape, _row_major(shape), layout.offset)
    strides, i = [], 0
    todo = list(shape)
    j = 0
    while j < len(todo):
        if todo[j] == 1:
            strides.append(0)
            j += 1
            continue
        have, want, first, start = old[i][0], todo[j], i, j
        while have != want:
            if have < want:
                i += 1
                have *= old[i][0]
            else:
                j += 1
                want *= todo[j]
        for a, b in zip(old[first:i], old[first + 1 : i + 1], strict=True):
            if a[1] != b[0] * b[1]:
                return None
        step = old[i][1]
        inner = []
        for size in reversed(todo[start : j + 1]):
            inner.append(step)
            step *= size
        strides += reversed(inner)
        i += 1
        j += 1
    return Layout(shape, tuple(strides), layout.offset)


def _permute(layout, dims):
    return Layout(
        tuple(layout.shape[d] for d in dims), tuple(layout.strides[d] for d in dims), layout.offset
    )


def _expand(layout, shape):
    return Layout(shape, layout.broadcast(shape), layout.offset)


def _slice(layout, spec):
    offset = layout.offset + sum(
        a * s for (a, _, n), s in zip(spec, layout.strides, strict=True) if n
    )
    return Layout(
        tuple(n for _, _, n in spec),
        tuple(st * s for (_, st, _), s in zip(spec, layout.strides, strict=True)),
        offset,
    )


def _diagonal(layout, offset):
    (n, m), (a, b) = layout.shape[-2:], layout.strides[-2:]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    start = max(-offset, 0) * a + max(offset, 0) * b
    return Layout((*layout.shape[:-2], count), (*layout.strides[:-2], a + b), layout.offset + start)


def _strided(layout, size, stride, offset):
    step = layout.strides[-1]
    return Layout(
        (*layout.shape[:-1], *size),
        (*layout.strides[:-1], *(s * step for s in stride)),
        layout.offset + offset * step,
    )


_VIEWS: dict[str, Callable[..., Layout | None]] = {
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "diagonal": _diagonal,
    "strided": _strided,
}
