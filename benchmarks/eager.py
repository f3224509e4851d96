"""Small tensors, one operation at a time: what an eager engine costs by itself.

The cases are written once, in PyTorch's vocabulary, and run by both libraries; both must give the
same numbers.
"""

import numpy as np

from benchmarks.peers import OURS, adapter
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["run"]

PEERS = ("torch",)
METHOD = (
    "Best of {rounds} rounds of about 0.1 s each, the libraries taking turns; one thread; float64. "
    "Every case is checked to give the same numbers in both before it is timed."
)


def leaf(torch, *shape, grad=True, seed=0):
    values = np.random.default_rng(seed).uniform(0.5, 1.5, shape)
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def add_without_tape(torch):
    a, b = leaf(torch, 8, grad=False), leaf(torch, 8, grad=False, seed=1)
    return lambda: a + b


def add_with_tape(torch):
    a, b = leaf(torch, 8), leaf(torch, 8, grad=False, seed=1)
    return lambda: a + b


def multiply_adds(torch):
    a, b, c = leaf(torch, 8), leaf(torch, 8, grad=False, seed=1), leaf(torch, 8, grad=False, seed=2)

    def step():
        a.grad = None
        x = a
        for _ in range(20):
            x = x * b + c
        x.sum().backward()
        return a.grad

    return step


def scalar_functions(torch):
    a = leaf(torch)

    def step():
        a.grad = None
        (torch.exp(-a * a) + torch.log1p(a) * torch.tanh(a)).backward()
        return a.grad

    return step


def normal_log_density(torch):
    x = leaf(torch, 1000, grad=False)
    loc, log_scale = leaf(torch, seed=1), leaf(torch, seed=2)

    def step():
        loc.grad = log_scale.grad = None
        z = (x - loc) / torch.exp(log_scale)
        (-0.5 * z * z - log_scale).sum().backward()
        return log_scale.grad

    return step


def two_layer_network(torch):
    x = leaf(torch, 64, 32, grad=False)
    first, second = leaf(torch, 32, 64, seed=1), leaf(torch, 64, 1, seed=2)

    def step():
        first.grad = second.grad = None
        (torch.tanh(x @ first * 0.02) @ second).mean().backward()
        return first.grad

    return step


def gather_and_reduce(torch):
    table_, rows = leaf(torch, 85), np.random.default_rng(3).integers(0, 85, 919)
    index = torch.tensor(rows)

    def step():
        table_.grad = None
        torch.logsumexp(table_[index], 0).backward()
        return table_.grad

    return step


CASES = {
    "a + b, 8 elements, no tape": add_without_tape,
    "a + b, 8 elements, with tape": add_with_tape,
    "20 multiply-adds, 8 elements, forward and backward": multiply_adds,
    "exp, log1p, tanh of a scalar, forward and backward": scalar_functions,
    "normal log density, 1000 points, forward and backward": normal_log_density,
    "two-layer network 64 x 32, forward and backward": two_layer_network,
    "919 of 85 rows, logsumexp, forward and backward": gather_and_reduce,
}


def run(names, rounds=9):
    """Time the cases with the systems in `names`; returns (text for people, what went wrong)."""
    libraries, problems = {}, []
    for name in [n for n in names if n == OURS or n in PEERS]:
        try:
            libraries[name] = adapter(name).tensor_library()
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    peers = [name for name in libraries if name != OURS]
    rows = []
    for title, case in CASES.items():
        steps, values = {}, {}
        for name, library in libraries.items():
            try:
                step = case(library)
                values[name] = np.asarray(step().detach().numpy())
                steps[name] = step
            except Exception as error:
                problems.append(f"{name}, {title}: {type(error).__name__}: {error}")
        first = next(iter(values), None)
        for name in list(steps):
            if not np.allclose(values[name], values[first], rtol=1e-10):
                problems.append(f"{name}, {title}: other numbers than {first}")
                del steps[name]
        timings = race(steps, rounds=rounds)
        row = [title]
        row += [duration(timings[n].best) if n in timings else "failed" for n in libraries]
        for peer in peers:
            both = OURS in timings and peer in timings
            row.append(f"{timings[OURS].best / timings[peer].best:.2f}" if both else "-")
        row.append(f"{max((t.spread for t in timings.values()), default=1.0):.2f}")
        rows.append(row)
    ratios = [f"{OURS} / {peer}" for peer in peers] if OURS in libraries else ["-"] * len(peers)
    header = ["case", *libraries, *ratios, "spread"]
    return f"{table(header, rows)}\n\n{METHOD.format(rounds=rounds)}", problems
