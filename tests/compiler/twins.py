"""Pairs of functions that differ in one detail, for the names of recorded graphs.

As a script: prints the name of each, for `test_keys.py` to compare between processes.
"""

import struct

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch import cond, scan, tensor, while_loop
from probtorch.compiler.native import keys
from probtorch.compiler.record.record import record
from probtorch.core.dispatch import wrap
from probtorch.ops.arithmetic import clamp

__all__ = ["PAIRS", "graph_of", "names"]

X = np.linspace(-1.0, 2.0, 12).reshape(3, 4)
SQUARE = np.arange(9.0).reshape(3, 3) + 4.0 * np.eye(3)
LONG = np.linspace(0.0, 1.0, 200)
WHOLE = np.arange(100) % 3
NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]  # a quiet nan with a payload


def graph_of(fn, *arrays, frozen=True, abstract=False):
    """Record a function of arrays."""
    with np.errstate(all="ignore"):
        rec, _ = record(fn, [wrap(np.array(a)) for a in arrays], frozen=frozen, abstract=abstract)
    assert not rec.unsupported
    return rec.graph


def of(fn, *arrays, **how):
    return lambda: graph_of(fn, *(arrays or (X,)), **how)


def plus(constant):
    """Add a constant array, as it lies in memory."""
    return of(lambda x: x.sum() + wrap(constant))  # not folded: x varies


def shared(first, second):
    return of(lambda x: (x.sum() + wrap(first), x.sum() + wrap(second)))


def taken(index):
    return of(lambda x: x[wrap(index)])


def looped(body, length=5):
    return of(
        lambda x: (
            scan(lambda c, t: (body(c, t), c), x[0], x[:, 0], length=None)[0]
            if length is None
            else scan(lambda c, t: (body(c, t), c.sum()), x[0], None, length=length)[0]
        )
    )


def repeated(test, body):
    def fn(x):
        start = x, tensor(0)
        return while_loop(lambda s: test(s[1]), lambda s: (body(s[0]), s[1] + 1), start)[0]

    return of(fn)


def branched(yes, no):
    return of(lambda x: cond(x.sum() > 0, yes, no, x))


def guarded(limit):
    def fn(x):
        if x.sum() > limit:
            pass
        return x * 2.0

    return of(fn)


def seen(x):
    return x * x.sum().item()


def ordered(x, first):
    a, b = x.exp(), x.sin()
    return (a, b) if first else (b, a)


def referring(count):
    """One tensor from outside, or two."""
    one, two = tensor(LONG), tensor(LONG)
    return of(
        lambda x: x.sum() + one.sum() + (two if count == 2 else one).cos().sum(), frozen=False
    )


def dead(x):
    x.exp()
    return x.sin()


def drawn(law):
    """A draw whose counters are given anew at each run."""

    def fn(x):
        probtorch.manual_seed(3)
        return x + law.sample((3, 4))

    return of(fn, frozen=False)


def cast(to):
    return of(lambda x: x.to(to))


PAIRS = {
    "op": (of(lambda x: x.exp()), of(lambda x: x.sin())),
    "op of the same shape": (of(lambda x: x.sum(0)), of(lambda x: x.prod(0))),
    "wiring": (of(lambda x, y: x - y, X, X), of(lambda x, y: y - x, X, X)),
    "which intermediate": (
        of(lambda x: x.exp() * x.exp().sin()),
        of(lambda x: x.exp().sin() * x.exp().sin()),
    ),
    "output order": (of(lambda x: ordered(x, True)), of(lambda x: ordered(x, False))),
    "number of outputs": (of(lambda x: x.exp()), of(lambda x: (x.exp(), x.exp()))),
    "output given twice": (of(lambda x: [x.exp()] * 2), of(lambda x: [x.exp(), x])),
    "number of inputs": (of(lambda x: x.exp()), of(lambda x, y: x.exp(), X, X)),
    "which input": (of(lambda x, y: x.exp(), X, X), of(lambda x, y: y.exp(), X, X)),
    "input shape": (of(lambda x: x.exp(), X), of(lambda x: x.exp(), X.T)),
    "input rank": (of(lambda x: x.sum(), X), of(lambda x: x.sum(), X[None])),
    "input dtype": (of(lambda x: x.exp(), X), of(lambda x: x.exp(), X.astype(np.float32))),
    "input signedness": (
        of(lambda x: x + x, X.astype(np.int8)),
        of(lambda x: x + x, X.astype(np.int8).astype(np.uint8)),
    ),
    "a dead op": (of(lambda x: x.sin()), of(dead)),
    "cast": (cast(probtorch.float32), cast(probtorch.float16)),
    "number": (of(lambda x: x * 2.0), of(lambda x: x * 2.5)),
    "number in its last bit": (of(lambda x: x * 0.1), of(lambda x: x * np.nextafter(0.1, 1.0))),
    "number type": (of(lambda x: x**2), of(lambda x: x**2.0)),
    "truth or one": (of(lambda x: x * True), of(lambda x: x * 1)),
    "sign of zero": (of(lambda x: x + 0.0), of(lambda x: x + -0.0)),
    "nan payload": (of(lambda x: x * float("nan")), of(lambda x: x * NAN)),
    "infinity": (of(lambda x: x + np.inf), of(lambda x: x + -np.inf)),
    "side of a number": (of(lambda x: x - 2.0), of(lambda x: 2.0 - x)),
    "limit": (of(lambda x: clamp(x, 0.0, 1.0)), of(lambda x: clamp(x, 0.0, 1.5))),
    "limit left out": (of(lambda x: clamp(x, 0.0, None)), of(lambda x: clamp(x, None, 0.0))),
    "dim": (of(lambda x: x.sum(0), SQUARE), of(lambda x: x.sum(1), SQUARE)),
    "dims": (of(lambda x: x.sum((0, 1))), of(lambda x: x.sum(0).sum(0))),
    "keepdim": (of(lambda x: x.sum(0, keepdim=True)), of(lambda x: x.sum(0)[None])),
    "permutation": (
        of(lambda x: x.permute(0, 2, 1), np.zeros((2, 2, 2))),
        of(lambda x: x.permute(2, 1, 0), np.zeros((2, 2, 2))),
    ),
    "reshape": (of(lambda x: x.reshape(4, 3)), of(lambda x: x.reshape(6, 2))),
    "expand": (
        of(lambda x: x.expand(2, 3), np.zeros((1, 3))),
        of(lambda x: x.expand(3, 3), np.zeros((1, 3))),
    ),
    "slice start": (of(lambda x: x[0:2]), of(lambda x: x[1:3])),
    "slice step": (of(lambda x: x[:, 0:3:2]), of(lambda x: x[:, 0:2:1])),
    "diagonal": (of(lambda x: x.diagonal(1)[:2]), of(lambda x: x.diagonal(-1)[:2])),
    "concatenation dim": (
        of(lambda x: probtorch.cat([x, x], 0), SQUARE[:1, :1]),
        of(lambda x: probtorch.cat([x, x], 1), SQUARE[:1, :1]),
    ),
    "concatenation order": (
        of(lambda x: probtorch.cat([x, x.exp()], 0)),
        of(lambda x: probtorch.cat([x.exp(), x], 0)),
    ),
    "descending": (
        of(lambda x: x.argsort(1, descending=True)),
        of(lambda x: x.argsort(1, descending=False)),
    ),
    "triangle": (
        of(lambda x: probtorch.linalg.solve_triangular(x, x, upper=True), SQUARE),
        of(lambda x: probtorch.linalg.solve_triangular(x, x, upper=False), SQUARE),
    ),
    "cumulative dim": (of(lambda x: x.cumsum(0), SQUARE), of(lambda x: x.cumsum(1), SQUARE)),
    "constant": (plus(np.array(1.0)), plus(np.array(1.5))),
    "constant of one element": (plus(np.array([[2.0]])), plus(np.array([[3.0]]))),
    "array beside an expanded number": (
        shared(np.broadcast_to(np.array(2.0), (3,)), np.full(3, 2.0)),
        shared(np.broadcast_to(np.array(2.0), (3,)), np.array([2.0, 3.0, 4.0])),
    ),
    "expanded constant": (
        plus(np.broadcast_to(np.array(2.0), (200,))),
        plus(np.broadcast_to(np.array(3.0), (200,))),
    ),
    "sign of zero in a constant": (plus(np.array(0.0)), plus(np.array(-0.0))),
    "nan in a constant": (plus(np.array(np.nan)), plus(np.array(NAN))),
    "constant dtype": (plus(np.zeros(100)), plus(np.zeros(100, np.float32))),
    "constant shape": (plus(LONG.reshape(2, 100)), plus(LONG.reshape(100, 2))),
    "strides": (plus(LONG.reshape(10, 20)[:, :10]), plus(LONG[:100].reshape(10, 10))),
    "strides of zero": (plus(np.broadcast_to(LONG, (3, 200))), plus(np.tile(LONG, (3, 1)))),
    "transposed": (plus(LONG[:196].reshape(14, 14)), plus(LONG[:196].reshape(14, 14).T)),
    "the same memory": (shared(LONG, LONG[:]), shared(LONG, LONG.copy())),
    "the same elements": (
        shared(LONG[:3], LONG[:3].copy()),
        shared(LONG[:3], LONG[:3] + 1.0),
    ),
    "the same elements in other memory": (
        shared(LONG[:6].reshape(2, 3), LONG[:6].reshape(2, 3).T.copy().T),
        shared(LONG[:6].reshape(2, 3), LONG[:6].reshape(3, 2).copy().T),
    ),
    "the same elements as another shape": (
        shared(LONG[:6].reshape(2, 3), LONG[:6].reshape(2, 3).copy()),
        shared(LONG[:6].reshape(2, 3), LONG[:6].reshape(2, 3, 1).copy()),
    ),
    "index": (taken(np.array([0, 1])), taken(np.array([0, 2]))),
    "index below zero": (taken(np.array([0, 1])), taken(np.array([0, -1]))),
    "long index below zero": (taken(WHOLE), taken(WHOLE - 1)),
    "long index beyond the end": (taken(WHOLE), of(lambda x: x[wrap(WHOLE)][:, None][:, 0])),
    "indexed dim": (
        of(lambda x: probtorch.index_select(x, 0, tensor([0, 1])), SQUARE[:2, :2]),
        of(lambda x: probtorch.index_select(x, 1, tensor([0, 1])), SQUARE[:2, :2]),
    ),
    "scan body": (looped(lambda c, t: c * 0.5), looped(lambda c, t: c * 0.25)),
    "scan length": (looped(lambda c, t: c * 0.5, 5), looped(lambda c, t: c * 0.5, 6)),
    "scan over rows": (
        looped(lambda c, t: c * t, None),
        looped(lambda c, t: c + t, None),
    ),
    "what a loop reads outside": (
        of(lambda x: scan(lambda c, t: (c + x.exp().sum(), c), x[0], None, length=4)[0]),
        of(lambda x: scan(lambda c, t: (c + x.sin().sum(), c), x[0], None, length=4)[0]),
    ),
    "loop test": (
        repeated(lambda k: k < 3, lambda x: x * 2.0),
        repeated(lambda k: k < 4, lambda x: x * 2.0),
    ),
    "loop body": (
        repeated(lambda k: k < 3, lambda x: x * 2.0),
        repeated(lambda k: k < 3, lambda x: x.exp()),
    ),
    "branches the other way": (
        branched(lambda x: x.exp(), lambda x: x.sin()),
        branched(lambda x: x.sin(), lambda x: x.exp()),
    ),
    "one branch": (
        branched(lambda x: x.exp(), lambda x: x.sin()),
        branched(lambda x: x.exp(), lambda x: x.cos()),
    ),
    "guard outcome": (guarded(0.0), guarded(1000.0)),
    "guarded number": (of(seen, X), of(seen, X + 1.0)),
    "frozen or not": (
        of(lambda x: x.sum() + tensor(LONG).sum(), frozen=True),
        referring(1),
    ),
    "one tensor outside or two": (referring(1), referring(2)),
    "law drawn from": (drawn(dist.Normal(0.0, 1.0)), drawn(dist.Uniform(0.0, 1.0))),
    "sampler": (drawn(dist.Gamma(2.0, 1.0)), drawn(dist.Poisson(2.0))),
}


def names():
    """Return the two names of each pair."""
    found = {}
    for what, pair in PAIRS.items():
        made = [keys.key_of_graph(build()) for build in pair]
        found[what] = [None if key is None else key.name for key in made]
    return found


if __name__ == "__main__":
    keys.sources = lambda: "the same"
    for what, pair in names().items():
        print(what, *pair, sep="\t")
