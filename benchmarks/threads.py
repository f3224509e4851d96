"""Large loops on one thread and on all processors, beside PyTorch where it is installed.

Elementwise work and a sum on 10^7 numbers, value and gradient of two densities of many rows, and
one elementwise loop at sizes around which it starts to be shared. Results are checked before
anything is timed: ours have the same bits for any number of threads, PyTorch's agree with them.

Run as ``python -m benchmarks.threads``; ``--write`` updates docs/benchmarks.md. Unlike the other
suites it is not pinned to a core: on a machine with other work on it the best rounds say most.
"""

import argparse
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

import probtorch
from benchmarks.machine import cpu_model, version
from benchmarks.report import duration, table, write_section
from benchmarks.timing import race
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.program import NativeProgram
from probtorch.distributions import Bernoulli, Normal

ROUNDS, ROUND_SECONDS = 200, 0.004
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)


def elementwise(rng):
    """log1p(exp(x)) of 10^7 numbers."""
    x = rng.normal(size=10**7)

    def theirs(torch):
        given, out = torch.tensor(x), torch.empty(len(x), dtype=torch.float64)
        return lambda: torch.log1p(torch.exp(given, out=out), out=out)

    return _resident(lambda x: (x.exp()).log1p(), x), theirs


def full_sum(rng):
    """The sum of 10^7 numbers."""
    x = rng.normal(size=10**7)

    def theirs(torch):
        given = torch.tensor(x)
        return lambda: given.sum()

    return _resident(lambda x: x.sum(), x), theirs


def special(rng):
    """The sum of log-gamma of 10^6 numbers."""
    x = rng.gamma(2.0, size=10**6)

    def theirs(torch):
        given = torch.tensor(x)
        return lambda: torch.lgamma(given).sum()

    return _resident(lambda x: x.lgamma().sum(), x), theirs


def hierarchical(rng):
    """10^6 rows in 1000 groups, normal: 1003 parameters."""
    rows, groups = 10**6, 1000
    group, x = rng.integers(0, groups, rows), rng.normal(size=rows)
    y = rng.normal(size=groups)[group] + 0.5 * x + rng.normal(size=rows)
    g_, x_, y_ = map(probtorch.tensor, (group, x, y))

    def log_density(q):
        z, slope, width, scale = q[:groups], q[groups], q[groups + 1].exp(), q[groups + 2].exp()
        prior = Normal(0.0, width, validate_args=False).log_prob(z).sum()
        rows = Normal(z[g_] + slope * x_, scale, validate_args=False).log_prob(y_)
        return prior + rows.sum() + q[groups + 1] + q[groups + 2]

    def theirs(torch):
        given, at = [torch.tensor(a) for a in (group, x, y)], torch.tensor(point)

        def value_and_grad():
            q = at.detach().requires_grad_()
            z, slope = q[:groups], q[groups]
            width, scale = q[groups + 1].exp(), q[groups + 2].exp()
            normal = torch.distributions.Normal
            rows = normal(z[given[0]] + slope * given[1], scale, validate_args=False)
            total = normal(0.0, width, validate_args=False).log_prob(z).sum()
            total = total + rows.log_prob(given[2]).sum() + q[groups + 1] + q[groups + 2]
            total.backward()
            return torch.cat([total.detach()[None], q.grad])

        return value_and_grad

    point = rng.normal(size=groups + 3) / 2.0
    return _density(log_density, point), theirs


def logistic(rng):
    """Logistic regression, 200 000 rows of 20 numbers."""
    design = rng.normal(size=(200_000, 20))
    y = (design[:, 0] + rng.normal(size=len(design)) > 0).astype(float)
    design_, y_ = probtorch.tensor(design), probtorch.tensor(y)

    def log_density(q):
        rows = Bernoulli(logits=design_ @ q, validate_args=False).log_prob(y_)
        return rows.sum() + Normal(0.0, 1.0, validate_args=False).log_prob(q).sum()

    def theirs(torch):
        given, at = [torch.tensor(a) for a in (design, y)], torch.tensor(point)

        def value_and_grad():
            q = at.detach().requires_grad_()
            family = torch.distributions
            rows = family.Bernoulli(logits=given[0] @ q, validate_args=False).log_prob(given[1])
            prior = family.Normal(0.0, 1.0, validate_args=False).log_prob(q)
            total = rows.sum() + prior.sum()
            total.backward()
            return torch.cat([total.detach()[None], q.grad])

        return value_and_grad

    point = rng.normal(size=20) / 3.0
    return _density(log_density, point), theirs


CASES = (elementwise, full_sum, special, hierarchical, logistic)


def _resident(fn, x) -> Callable[[], np.ndarray]:
    """A compiled function on fixed memory: no time goes into new pages."""
    resident = NativeProgram(fn, probtorch.tensor(x)).resident(probtorch.tensor(x))

    def run():
        resident.run()
        return resident.outputs[0]

    return run


def _density(fn, point) -> Callable[[], np.ndarray]:
    density = NativeDensity(fn, len(point))
    density.value_and_grad(point)

    def run():
        value, gradient = density.value_and_grad(point)
        return np.concatenate(([value], gradient))

    return run


def on(count: int, fn: Callable, set_count: Callable) -> Callable:
    """Return `fn` with a number of threads."""

    def run():
        set_count(count)
        return fn()

    return run


def measure(case, counts) -> tuple[list[str], list[float]]:
    """Return a row of the table, and the spreads of its timings."""
    ours, theirs = case(np.random.default_rng(0))
    ours_on = {n: on(n, ours, probtorch.set_num_threads) for n in counts}
    expected = np.array(ours_on[1]())
    for fn in ours_on.values():
        assert fn().tobytes() == expected.tobytes(), "bits depend on the number of threads"
    contestants = {f"ours {n}": fn for n, fn in ours_on.items()}
    if find_spec("torch"):
        import torch

        fn = theirs(torch)
        got = fn().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-6 * np.abs(expected).max())
        contestants |= {f"torch {n}": on(n, fn, torch.set_num_threads) for n in counts}
    times = race(contestants, rounds=ROUNDS, round_seconds=ROUND_SECONDS)
    row = [(case.__doc__ or "").rstrip(".")]
    for who in ("ours", "torch"):
        if f"{who} 1" in times:
            one, most = times[f"{who} 1"].best, times[f"{who} {counts[-1]}"].best
            row += [duration(one), duration(most), f"{one / most:.2f}"]
    return row, [t.spread for t in times.values()]


def sizes(counts) -> str:
    """Return the table of one loop at several sizes."""
    rows = []
    for n in SIZES:
        x = np.random.default_rng(0).normal(size=n)
        fn = _resident(lambda x: x.exp().log1p(), x)
        times = race(
            {str(k): on(k, fn, probtorch.set_num_threads) for k in counts},
            rounds=ROUNDS,
            round_seconds=ROUND_SECONDS,
        )
        one, most = times["1"].best, times[str(counts[-1])].best
        rows.append([f"{n:,}", duration(one), duration(most), f"{one / most:.2f}"])
    return table(["numbers", "1 thread", f"{counts[-1]} threads", "ratio"], rows)


def main() -> int:
    """Print, or write, both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__)
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    options = parser.parse_args()
    probtorch.set_default_dtype(probtorch.float64)
    counts = (1, len(os.sched_getaffinity(0)))
    if counts[-1] == 1:
        print("one processor: nothing to compare")
        return 1
    measured = [measure(case, counts) for case in CASES]
    most = f"{counts[-1]} threads"
    head = ["", "1 thread", most, "ratio"]
    if find_spec("torch"):
        head += ["PyTorch, 1", f"PyTorch, {counts[-1]}", "ratio"]
    text = table(head, [row for row, _ in measured])
    text += f"\n\n`log1p(exp(x))` at several sizes:\n\n{sizes(counts)}"
    spread = max(max(spreads) for _, spreads in measured)
    names = ("numpy", "llvmlite", "torch")
    found = ", ".join(f"{n} {version(n)}" for n in names if version(n))
    text += (
        f"\n\nMeasured on {cpu_model()}, {counts[-1]} processors; {found}. Best of {ROUNDS} "
        f"rounds; the median round was up to {spread:.2f} times as long."
    )
    print(text)
    if options.write:
        write_section("threads", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
