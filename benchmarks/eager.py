"""Small tensors, one operation at a time: what an eager engine costs by itself.

The cases are written once, in PyTorch's vocabulary, and run by both libraries; both must give the
same numbers.
"""

import time

import numpy as np

from benchmarks.peers import OURS, adapter
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["run"]

PEERS = ("torch",)
METHOD = (
    "Best of {rounds} rounds of about 0.1 s each, the libraries taking turns; one thread, its "
    "processor time; float64. "
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


def classifier_loss(torch):
    x, rows = leaf(torch, 64, 100), np.random.default_rng(4).integers(0, 100, 64)
    classes = torch.tensor(rows)

    def step():
        x.grad = None
        torch.nn.functional.cross_entropy(x, classes).backward()
        return x.grad

    return step


def layer_norm(torch):
    x, scale, shift = leaf(torch, 64, 100), leaf(torch, 100, seed=1), leaf(torch, 100, seed=2)
    weights = leaf(torch, 64, 100, grad=False, seed=3)

    def step():
        x.grad = scale.grad = shift.grad = None
        y = torch.nn.functional.layer_norm(x, (100,), scale, shift)
        (y * weights).sum().backward()
        return x.grad

    return step


def linear_layer(torch):
    x = leaf(torch, 64, 100, grad=False)
    weight, bias = leaf(torch, 64, 100, seed=1), leaf(torch, 64, seed=2)

    def step():
        weight.grad = bias.grad = None
        torch.relu(torch.nn.functional.linear(x, weight, bias)).sum().backward()
        return weight.grad

    return step


def activation(torch):
    x, weights = leaf(torch, 64, 100), leaf(torch, 64, 100, grad=False, seed=1)

    def step():
        x.grad = None
        (torch.nn.functional.elu(x - 1.0) * weights).sum().backward()
        return x.grad

    return step


def rows_of_a_table(torch):
    table_ = leaf(torch, 1000, 64)
    rows = torch.tensor(np.random.default_rng(6).integers(0, 1000, (32, 20)))

    def step():
        table_.grad = None
        torch.nn.functional.embedding(rows, table_).sum().backward()
        return table_.grad

    return step


def running_sums(torch):
    x, weights = leaf(torch, 64, 100), leaf(torch, 64, 100, grad=False, seed=1)

    def step():
        x.grad = None
        (x.cumsum(1) * weights).sum().backward()
        return x.grad

    return step


def batch_norm(torch):
    x, weights = leaf(torch, 64, 100), leaf(torch, 64, 100, grad=False, seed=3)
    scale, shift = leaf(torch, 100, seed=1), leaf(torch, 100, seed=2)

    def step():
        x.grad = scale.grad = shift.grad = None
        y = torch.nn.functional.batch_norm(x, None, None, scale, shift, training=True)
        (y * weights).sum().backward()
        return x.grad

    return step


def recurrent(kind):
    """Return the case of a layer of 10 steps, 4 rows, 8 inputs and 16 units."""

    def case(torch):
        layer = getattr(torch.nn, kind)(8, 16, dtype=torch.float64)
        with torch.no_grad():
            for k, p in enumerate(layer.parameters()):
                p.copy_(leaf(torch, *p.shape, grad=False, seed=k) - 1.0)
        x = leaf(torch, 10, 4, 8)

        def step():
            x.grad = None
            layer.zero_grad()
            layer(x)[0].sum().backward()
            return x.grad

        return step

    return case


def pooling(torch):
    x = leaf(torch, 2, 3, 12, 12)

    def step():
        x.grad = None
        torch.nn.functional.max_pool2d(x, 2).sum().backward()
        return x.grad

    return step


def cholesky(torch):
    half = np.random.default_rng(5).standard_normal((200, 200))
    a = torch.tensor(half @ half.T + 200.0 * np.eye(200), requires_grad=True)

    def step():
        a.grad = None
        torch.linalg.cholesky(a).log1p().sum().backward()
        return a.grad

    return step


def one_operation(fn):
    """Return the case of one operation off the tape, on two vectors of 8 and a matrix of 4 x 8."""

    def case(torch):
        x, y = leaf(torch, 8, grad=False), leaf(torch, 8, grad=False, seed=1)
        m = leaf(torch, 4, 8, grad=False, seed=2)
        return lambda: fn(torch, x, y, m)

    return case


CASES = {
    "a + b, 8 elements, no tape": add_without_tape,
    "a + b, 8 elements, with tape": add_with_tape,
    "20 multiply-adds, 8 elements, forward and backward": multiply_adds,
    "exp, log1p, tanh of a scalar, forward and backward": scalar_functions,
    "normal log density, 1000 points, forward and backward": normal_log_density,
    "two-layer network 64 x 32, forward and backward": two_layer_network,
    "919 of 85 rows, logsumexp, forward and backward": gather_and_reduce,
    "cross entropy, 64 x 100, forward and backward": classifier_loss,
    "layer norm, 64 x 100, forward and backward": layer_norm,
    "linear layer and relu, 64 x 100, forward and backward": linear_layer,
    "elu, 64 x 100, forward and backward": activation,
    "batch norm, 64 x 100, forward and backward": batch_norm,
    "cumsum, 64 x 100, forward and backward": running_sums,
    "640 rows of 1000 x 64, forward and backward": rows_of_a_table,
    "max_pool2d, 2 x 3 x 12 x 12, forward and backward": pooling,
    "LSTM, 10 steps of 4 x 16, forward and backward": recurrent("LSTM"),
    "GRU, 10 steps of 4 x 16, forward and backward": recurrent("GRU"),
    "Cholesky factor of 200 x 200, forward and backward": cholesky,
    "x.expand(3, 8)": one_operation(lambda torch, x, y, m: x.expand(3, 8)),
    "x.reshape(2, 4)": one_operation(lambda torch, x, y, m: x.reshape(2, 4)),
    "x[3]": one_operation(lambda torch, x, y, m: x[3]),
    "x.max()": one_operation(lambda torch, x, y, m: x.max()),
    "x.sum()": one_operation(lambda torch, x, y, m: x.sum()),
    "x.mul_(1.0)": one_operation(lambda torch, x, y, m: x.mul_(1.0)),
    "x.add_(y).sub_(y)": one_operation(lambda torch, x, y, m: x.add_(y).sub_(y)),
    "x.median()": one_operation(lambda torch, x, y, m: x.median()),
    "m.unbind()": one_operation(lambda torch, x, y, m: m.unbind(0)[1]),
    "m.diagonal()": one_operation(lambda torch, x, y, m: m.diagonal()),
    "einsum of m and m": one_operation(lambda torch, x, y, m: torch.einsum("ij,kj->ik", m, m)),
    "topk(x, 3)": one_operation(lambda torch, x, y, m: torch.topk(x, 3).values),
    "sort(x)": one_operation(lambda torch, x, y, m: torch.sort(x).values),
    "softmax(x)": one_operation(lambda torch, x, y, m: torch.softmax(x, 0)),
    "dot(x, y)": one_operation(lambda torch, x, y, m: torch.dot(x, y)),
    "linear(x, m)": one_operation(lambda torch, x, y, m: torch.nn.functional.linear(x, m)),
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
        timings = race(steps, rounds=rounds, clock=time.process_time)
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
