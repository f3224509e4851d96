"""What the threads of a block do together: sums and their kin, and the best of many values.

Each thread has a value, and all get the result. The order in which values are combined depends on
nothing but the number of threads. Of a processor's one thread it is the value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from probtorch.compiler.lang.builder import Builder
from probtorch.compiler.lang.cells import Array
from probtorch.compiler.lang.function import KernelFunction, KernelRoutine
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.types import BYTES

__all__ = ["BLOCKS", "better", "combined", "of_block"]


def combined(w: Builder, kind: str, a: Value, b: Value) -> Value:
    """Write the step of a reduction: "sum", "prod", "amax" or "amin"."""
    if kind in ("sum", "prod"):
        return w.binary("add" if kind == "sum" else "mul", a, b, "reassoc contract")
    return w.maximum(a, b) if kind == "amax" else w.minimum(a, b)


def better(w: Builder, kind: str, a: Value, at: Value, b: Value, other: Value) -> Value:
    """Whether number `a`, at place `at`, is better than `b` at `other`: "argmax" or "argmin".

    Of equal ones the first is, nan before all numbers. Places below 0 mean that there is none.
    """
    beyond, first = (a > b if kind == "argmax" else a < b), at < other
    found = w.where(a == b, first, beyond)
    number = w.logical_not(w.isnan(b))
    found = w.where(w.isnan(a), w.logical_or(number, first), w.logical_and(found, number))
    return w.logical_and(at >= 0, w.logical_or(other < 0, found))


def of_block(w: Builder, kind: str, v: Value, *place: Value) -> Value:
    """Combine a value of each thread; of "argmax" and "argmin", the place of the best."""
    if w.printer.threads == 1:
        return place[0] if place else v
    result = "i64" if place else v.ty
    return w.runtime(f"pt_block_{kind}_{v.ty}", result, Value("shared", "ptr", w), v, *place)


def _halving(w: KernelFunction, step: Callable[[Value, Value], None]) -> None:
    """Let each of the first threads take in what that of another half has, until one is left."""
    w.barrier()
    half = w.variable("i64", w.threads // 2)
    with w.repeat_while(lambda: half.value > 0):
        with w.when(w.thread < half.value):
            step(w.thread, w.thread + half.value)
        w.barrier()
        half.value = half.value >> 1


def _combine(w: KernelFunction, values: Array, v: Value, *, kind: str) -> Value:
    values[w.thread] = v

    def step(i: Value, j: Value) -> None:
        values[i] = combined(w, kind, values[i], values[j])

    _halving(w, step)
    found = values[0]
    w.barrier()
    return found


def _best(w: KernelFunction, values: Array, v: Value, place: Value, *, kind: str) -> Value:
    places = values.at(w.threads, "i64")
    values[w.thread], places[w.thread] = v, place

    def step(i: Value, j: Value) -> None:
        with w.when(better(w, kind, values[j], places[j], values[i], places[i])):
            values[i], places[i] = values[j], places[j]

    _halving(w, step)
    found = places[0]
    w.barrier()
    return found


def _exchange(w: KernelFunction, one: Array, other: Array, n: Value) -> None:
    """Exchange the elements of two arrays."""
    with w.share(n, everyone=True) as i:
        x = one[i]
        one[i] = other[i]
        other[i] = x


BLOCKS = {}
for _ty in BYTES:
    BLOCKS[f"pt_exchange_{_ty}"] = KernelRoutine(_exchange, f"{_ty}* {_ty}* i64", "void", grid=True)
    for _kind in ("sum", "prod", "amax", "amin"):
        BLOCKS[f"pt_block_{_kind}_{_ty}"] = KernelRoutine(
            functools.partial(_combine, kind=_kind), f"{_ty}* {_ty}", _ty
        )
    for _kind in ("argmax", "argmin"):
        BLOCKS[f"pt_block_{_kind}_{_ty}"] = KernelRoutine(
            functools.partial(_best, kind=_kind), f"{_ty}* {_ty} i64", "i64"
        )
