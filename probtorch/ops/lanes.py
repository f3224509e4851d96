"""`Lanes`: the algebra of formulas with branches, loops and integrals, on flat arrays.

A formula over it serves native code as well: `compiler/lang/function.py` has the same names, where
a branch is a branch. Here each element goes its own way: those that a branch concerns are picked
out, a loop goes on with those that are not done, and an integral takes all nodes at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.ops.scalar import NumpyAlgebra

__all__ = ["Lanes", "gauss_rule", "on_chunks"]

# Elements per pass: the work arrays of (elements, nodes) stay near the second-level cache.
_CHUNK = 4096


# A value for each lane, or one for all; and what is computed of such.
Numbers: TypeAlias = np.ndarray | float
Formula: TypeAlias = Callable[..., np.ndarray]


@functools.cache
def gauss_rule(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return tuple((0.5 * (nodes + 1.0)).tolist()), tuple((0.5 * weights).tolist())


@functools.cache
def _arrays(rule: tuple[tuple[float, ...], ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(x) for x in rule)


def on_chunks(formula: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Return ``formula(s, *arrays)`` of broadcast arrays, in float64, a chunk at a time."""
    arrays = np.broadcast_arrays(*arrays)
    shape, dtype = arrays[0].shape, np.result_type(*arrays)
    flat = [np.asarray(a, np.float64).reshape(-1) for a in arrays]
    out = np.empty(flat[0].size)
    with np.errstate(all="ignore"):
        for i in range(0, out.size, _CHUNK):
            out[i : i + _CHUNK] = formula(Lanes(), *(a[i : i + _CHUNK] for a in flat))
    return out.reshape(shape).astype(dtype, copy=False)


def _taken(x: Numbers, index: np.ndarray | tuple[slice, None]) -> Numbers:
    """Elements of an operand; a Python number is one for all."""
    return x if isinstance(x, (int, float)) else x[index]


class Lanes(NumpyAlgebra):
    """The algebra on flat float64 arrays of one length."""

    hypot = staticmethod(np.hypot)

    def part(self, index: np.ndarray) -> Lanes:
        """Return the algebra of some of the elements."""
        return self

    def choose(
        self, condition: np.ndarray, yes: Formula, no: Formula, operands: Sequence[Numbers]
    ) -> np.ndarray:
        """Return ``yes(s, *operands)`` for the elements where `condition` holds, else `no`."""
        out = np.empty(condition.shape)
        for index, fn in ((np.flatnonzero(condition), yes), (np.flatnonzero(~condition), no)):
            if index.size:
                out[index] = fn(self.part(index), *(_taken(x, index) for x in operands))
        return out

    def either(
        self, condition: np.ndarray, test: Formula, operands: Sequence[Numbers]
    ) -> np.ndarray:
        """Return where `condition` holds, or else ``test(s, *operands)``."""
        out: np.ndarray = condition.copy()
        index = np.flatnonzero(~condition)
        if index.size:
            out[index] = test(self.part(index), *(_taken(x, index) for x in operands))
        return out

    def until(
        self,
        step: Callable[..., tuple[np.ndarray, Sequence[np.ndarray]]],
        state: Sequence[np.ndarray],
        operands: Sequence[Numbers] = (),
    ) -> tuple[np.ndarray, ...]:
        """Repeat ``done, state = step(s, *state, *operands)`` for each element until it is done."""
        out = [np.array(x) for x in state]
        todo, s = np.arange(out[0].size), self
        while todo.size:
            done, state = step(s, *state, *operands)
            for whole, x in zip(out, state, strict=True):
                whole[todo] = x
            kept = np.flatnonzero(~done)
            if not kept.size:
                break
            todo, s = todo[kept], s.part(kept)
            state = tuple(x[kept] for x in state)
            operands = tuple(_taken(x, kept) for x in operands)
        return tuple(out)

    def fold(
        self,
        start: int,
        stop: int,
        step: Callable[..., Sequence[Numbers]],
        state: Sequence[Numbers],
    ) -> Sequence[Numbers]:
        """Return the state after ``state = step(s, k, *state)`` for k = start, ..., stop - 1."""
        for k in range(start, stop):
            state = step(self, float(k), *state)
        return state

    def series(
        self,
        count: int,
        ratio: Formula,
        parts: Callable[..., Sequence[np.ndarray]],
        starts: Sequence[Numbers],
        operands: Sequence[Numbers],
    ) -> list[np.ndarray]:
        """Add ``parts(term, k, *operands)`` to `starts` for k = 1, ..., count, where each term is
        ``ratio(k, *operands)`` times the one before, which was 1.
        """
        k = np.arange(1.0, count + 1.0)
        columns = [_taken(x, (slice(None), None)) for x in operands]
        terms = np.cumprod(ratio(k, *columns), axis=1)
        added = parts(terms, k, *columns)
        return [start + part.sum(1) for start, part in zip(starts, added, strict=True)]

    def quadrature(
        self,
        rule: tuple[tuple[float, ...], ...],
        integrand: Formula,
        low: Numbers,
        width: np.ndarray,
        operands: Sequence[Numbers],
    ) -> np.ndarray:
        """Integrate ``integrand(s, at, *operands)`` from `low` to `low` + `width`."""
        nodes, weights = _arrays(rule)
        at = np.asarray(low)[..., None] + width[:, None] * nodes
        columns = (_taken(x, (slice(None), None)) for x in operands)
        return width * (integrand(self, at, *columns) @ weights)

    def panels(
        self,
        length: np.ndarray,
        cuts: Sequence[Numbers],
        integral: Formula,
        operands: Sequence[Numbers],
    ) -> np.ndarray:
        """Add up ``integral(s, low, width, *operands)`` over the parts of [0, length]."""
        edges = np.stack([np.broadcast_to(c, length.shape) for c in (0.0, *cuts, length)], 1)
        edges = np.sort(np.clip(edges, 0.0, length[:, None]), axis=1)
        width = np.diff(edges, axis=1)
        element, panel = np.nonzero(width > 0.0)
        picked = (_taken(x, element) for x in operands)
        parts = integral(self, edges[element, panel], width[element, panel], *picked)
        return np.bincount(element, parts, minlength=length.size)
