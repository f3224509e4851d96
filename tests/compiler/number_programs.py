"""Random expressions with floats that change between calls: a `Number` does what a float does.

`check(seed)` makes an expression of tensors, Python's numbers and floats that an object and a list
hold, calls a function with it eagerly and compiled while the floats change, and returns what
differs, in type, dtype, shape or value. Every other function writes floats to the object as well;
what it holds afterwards is compared, too, and no `Number` is to be left there.
``python -m tests.compiler.number_programs [--first N] [--programs M]`` goes on with new ones.
"""

import argparse
import decimal
import fractions
import functools
import math
import numbers
import operator
import random
import statistics
import warnings
from collections.abc import Iterable

import numpy as np

import probtorch
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.record.number import Number
from probtorch.tensor import tensor

__all__ = ["check", "main"]

X = tensor(np.array([1.0, -2.0, 3.0], np.float32))
VALUES = [0.1, 0.2, 0.3, 0.5, 0.4, 1.0, 0.7, 0.25, 0.3, 0.1]
_NAMES = {
    **{m.__name__: m for m in (decimal, fractions, functools, math, numbers, operator, statistics)},
    "pt": probtorch,
    "np": np,
    "tensor": tensor,
    "Iterable": Iterable,
}
LEAVES = ("h.b", "h.b", "h.b", "X", "0.5", "2", "h.n", "h.w[0]", "h.w[1]")
ONE = """
-{a} | +{a} | abs({a}) | round({a}, 1) | float({a}) | bool({a}) | not ({a} > 0.3)
complex({a}).real | math.sqrt(abs({a})) | math.floor({a} * 10) | int({a} * 10)
math.isclose({a}, 0.3) | math.copysign(1, {a} - 0.3) | math.fsum([{a}, 1])
{a} ** 2 | 1 / {a} | 2 ** {a} | pow({a}, 2)
5 // {a} | 5 % {a} | {a} // 0.2 | {a} % 0.2 | divmod({a}, 0.3)[1] | {a}.__add__(1)
max({a}, 0.25) | min({a}, 0.3) | {a} if {a} < 0.35 else 2 * {a} | sum([{a}, 0.1])
sorted([{a}, 0.2, 0.4])[1] | {a}.real | {a}.conjugate() | {a}.is_integer() | any([{a} > 0.3])
({a} == 0.3) * 1.0 | ({a} != {a}) * 1.0 | (0.1 < {a} < 0.4) * 1.0 | ({a} in (0.1, 0.2)) * 1.0
[{a}, 0.5].index({a}) | {{0.1: 2.0, 0.3: 5.0}}.get({a}, 1.0)
len(format({a}, ".2f")) | str({a}) == "0.3" | isinstance({a}, float) * 1.0
"%g" % {a} == "0.3" | {a} if isinstance({a}, numbers.Real) else 0.0
{a} if not hasattr({a}, "shape") else X | {a} if not isinstance({a}, Iterable) else X
{a} if not pt.is_tensor({a}) else X | {a} if not isinstance({a}, pt.Tensor) else X
statistics.mean([{a}, 1.0]) | fractions.Fraction(1, 2) * {a} | decimal.Decimal({a}) > 0
operator.add({a}, 1) | functools.reduce(lambda p, q: p * q, [{a}, 2, 3]) | X * np.float32({a})
np.float64({a}) | np.sqrt({a}) | np.exp({a}) | np.clip({a}, 0.2, 0.4) | np.maximum({a}, 0.2)
np.where({a} > 0.2, 1.0, 2.0) | np.add({a}, 1) | np.arange(3) * {a} | np.array([{a}] * 3)
tensor(np.array([{a}] * 3)) | tensor({a}) | pt.as_tensor({a}) | pt.full((3,), {a})
tensor([{a}, 1, 2])
pt.ones(3) * {a} | {a} * pt.ones(()) | pt.zeros(()) + {a} | pt.arange(3) * {a}
pt.arange(3) / {a}
pt.where(X > 0, {a}, 0.0) | pt.clamp(X, max={a}) | X ** {a} | {a} ** X.abs() | X.abs().pow({a})
pt.maximum(X, tensor({a})) | X > {a} | X // {a} | X % {a} | pt.lerp(X, 2 * X, {a})
pt.exp(X * {a})
X.sum() * {a} | X.double() * {a} | X.long() * {a} | X.add(X, alpha={a}) | pt.normal(0.0, {a}, (3,))
(X * {a}).sum().item() | pt.atan2(X, tensor({a}))
"""
TWO = """
{a} + {b} | {a} - {b} | {a} * {b} | {a} / {b} | max({a}, {b}) | {a} ** {b}
{a} if {b} else X | {a} < {b} | [{a}, {b}][int(h.b * 10) % 2]
(lambda p, q={b}: p * q){a}
"""
WRITES = """
h.b = abs(h.b) | h.b, h.last = h.last, h.b | h.last = h.b | h.last = max(h.w) | h.b += 0.0
h.w.sort() | h.w.reverse() | h.w.append(h.w.pop(0)) | h.w[:] = [v / sum(h.w) for v in h.w]
h.w = list(h.w) | h.w[1] = h.b | h.w[0] *= 1
h.table["b"] *= 1 | h.cls.shared *= 1 | h.slots.a *= 1
h.table["b"] = h.b | h.table.update(w=h.w[0]) | h.pair = h.b, (h.w[0], 1)
h.slots.a = h.b | h.last = h.slots.a | h.slots.a, h.b = h.b, h.slots.a
h.cls.shared = h.b | h.last = h.cls.shared
if h.b > 0.35: h.last = h.b
if h.b > 0.35: h.w.reverse()
"""
_ONE, _TWO, _WRITES = (
    [t.strip() for line in x.strip().splitlines() for t in line.split(" | ")]
    for x in (ONE, TWO, WRITES)
)


class Holder:
    """Where the floats are."""


class Slots:
    """An attribute in a slot."""

    __slots__ = ("a",)


def holder():
    """Return an object with floats, in a class as well."""
    h = Holder()
    h.cls = type("Shared", (), {"shared": 0.35})
    h.b, h.n, h.w, h.last, h.pair = 0.1, 3, [0.4, 0.6], 0.9, ()
    h.table, h.slots = {"b": 0.8}, Slots()
    h.slots.a = 0.2
    return h


def held(h):
    """What such an object holds, as a text; a `Number` by that name."""

    def text(x):
        if isinstance(x, (list, tuple)):
            return [type(x).__name__, *map(text, x)]
        if isinstance(x, dict):
            return {key: text(y) for key, y in x.items()}
        return "a Number" if type(x) is Number else f"{x:.10g}"

    own = {**vars(h), "slots": h.slots.a, "cls": h.cls.shared}
    return str(text(own))


def expression(rng, depth):
    """Return the text of a random expression."""
    if depth == 0:
        return f"({rng.choice(LEAVES)})"
    if rng.random() < 0.6:
        return f"({rng.choice(_ONE).format(a=expression(rng, depth - 1))})"
    first, second = expression(rng, depth - 1), expression(rng, rng.randrange(depth))
    return f"({rng.choice(_TWO).format(a=first, b=second)})"


def outcome(fn):
    """The kind of a result and its value, or the type of the error."""
    try:
        x = fn(X)[1]
    except Exception as error:
        return type(error).__name__, 0.0
    if isinstance(x, probtorch.Tensor):
        return ("Tensor", str(x.dtype), tuple(x.shape)), x.numpy()
    if isinstance(x, np.ndarray):
        return ("array", str(x.dtype), x.shape), x
    return type(x).__name__, x if isinstance(x, (bool, int, float, complex, np.generic)) else 0.0


def check(seed):
    """Return None, or what differs between an expression eagerly and compiled."""
    rng = random.Random(seed)
    text = expression(rng, rng.randrange(1, 5))
    writes = rng.choices(_WRITES, k=rng.randrange(1, 3)) if seed % 2 else []
    body = "\n    ".join((*writes, f"return (X * 1, {text})"))
    text, sides = "; ".join((*writes, text)), []
    for wrap in (lambda fn: fn, lambda fn: compile(fn, verify=False)):
        names = {**_NAMES, "h": holder(), "X": X}
        exec(f"def fn(X):\n    {body}", names)  # noqa: S102
        sides.append((wrap(names["fn"]), names["h"]))
    for turn, value in enumerate(VALUES):
        found, left = [], []
        for called, h in sides:
            if not writes or turn % 2 == 0:  # in between, what is written may be there already
                h.b, h.w[0] = value, value * 2 if turn % 3 else 0.4
            if seed % 4 == 1:  # so that most of it is
                exec("\n".join(writes), {"h": h})  # noqa: S102
            probtorch.manual_seed(turn)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore", CompileWarning)
                found.append(outcome(called))
            left.append(held(h))
        if left[0] != left[1]:
            return f"program {seed}, {text}: at {value} it leaves {left[1]}, eager {left[0]}"
        (kind, a), (other, b) = found
        if kind != other or not np.allclose(a, b, 1e-4, 1e-5, equal_nan=True):
            return f"program {seed}, {text}: at {value} it is {b} ({other}), eager {a} ({kind})"
    return None


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--programs", type=int, default=1000)
    options = parser.parse_args(argv)
    found = map(check, range(options.first, options.first + options.programs))
    wrong = [print(x, flush=True) for x in found if x is not None]
    return len(wrong)


if __name__ == "__main__":
    raise SystemExit(bool(main()))
