"""Random loops over turns: bodies of a few operations, with turns that differ now and then."""

import numpy as np

import probtorch
from probtorch.ops.pieces import cat, stack

__all__ = ["random_loop"]

TURNS = 60
DATA = np.random.default_rng(0).standard_normal((TURNS, 3))
CONSTANTS = [probtorch.tensor(row) for row in DATA]
TABLE = probtorch.tensor(DATA)


def bounded(x):
    return x.tanh()


def random_loop(seed):
    """Return a function of a vector of 3 numbers, which walks through random turns."""
    rng = np.random.default_rng(seed)
    states = int(rng.integers(1, 4))
    outer = int(rng.choice([1, 1, 1, 3]))
    body = [_instruction(rng, states, k) for k in range(int(rng.integers(2, 8)))]
    last = [int(rng.integers(0, states + len(body))) for _ in range(states)]
    turns = TURNS if outer == 1 else int(rng.integers(8, 40))
    kept = int(rng.choice([0, 0, 1, 3]))
    odd = {
        int(t): int(rng.integers(0, 6)) for t in rng.integers(5, TURNS, rng.choice([0, 1, 1, 3]))
    }

    def fn(q):
        box = q * 1.0
        values = [q * (k + 1.0) for k in range(states)]
        told = []
        for _ in range(outer):
            values[0] = values[0] * 1.0
            for t in range(turns):
                local = list(values)
                for instruction in body:
                    local.append(instruction(local, t, q, box))
                if t in odd:
                    local[-1] = _oddity(odd[t], local[-1], q, box)
                values = [local[i] for i in last]
                if kept and t % kept == 0:
                    told.append(local[-1])
        total = sum((v * v).sum() for v in values)
        if told:
            total = (
                total
                + stack(told).sum()
                + cat(told[::-1]).tanh().sum()
                + told[len(told) // 2].sum()
            )
        return total + box.sum()

    return fn


def _instruction(rng, states, position):
    """Return one operation on what there is so far: all results are vectors of 3 numbers."""
    i, j = (int(rng.integers(0, states + position)) for _ in range(2))
    number = float(rng.choice([0.0, -0.0, 0.5, -1.5]))
    kinds = [
        lambda x, t, q, box: bounded(x[i] + x[j]),
        lambda x, t, q, box: bounded(x[i] * number - x[j]),
        lambda x, t, q, box: bounded(x[i] * TABLE[t]),
        lambda x, t, q, box: x[i] * 0.5 + CONSTANTS[t],
        lambda x, t, q, box: bounded(x[i]) * (0.9**t),
        lambda x, t, q, box: (x[i][:, None] * 0.1 + x[j]).logsumexp(0),
        lambda x, t, q, box: x[i].log_softmax(0),
        lambda x, t, q, box: bounded(x[i]) + x[j].max(0)[0] * 0.1,
        lambda x, t, q, box: bounded(x[i]) * box[t % 3],
        lambda x, t, q, box: bounded(x[i]) + probtorch.tensor([0.1 * t, 1.0, 2.0]).double() * 2.0,
        lambda x, t, q, box: cat([x[i][1:], x[j][:1]]),
        lambda x, t, q, box: bounded(x[i] - x[j].detach()),
        lambda x, t, q, box: probtorch.where(x[i] > 0.0, x[j], q),
        lambda x, t, q, box: bounded(x[i] + (q if t < 40 else box)),
    ]
    return kinds[int(rng.integers(0, len(kinds)))]


def _oddity(kind, x, q, box):
    """What one turn does besides."""
    if kind == 0:
        return x.exp().tanh()
    if kind == 1:
        return x + 0.0
    if kind == 2:
        return x * 2.0 if x.sum() > 0.0 else x * 0.5
    if kind == 3:
        box += 1.0
        return x
    if kind == 4:
        return q * 1.0
    return x.detach() + q
