"""What the checks of gradients and of replays cost, as a share of runs of the usual length.

Each run is made in this process with the checks on, after a short one that filled the caches; the
time that is spent inside them is taken by the clock of the thread, so that other work on the
machine does not count. (Runs with the checks off differ by less than the noise between two runs.)
NUTS: 4 chains of 1000 + 1000, as in the nuts suite; SVI: 10,000 steps of a mean-field guide, and of
the autoencoder of the svi suite.

Run as ``python -m benchmarks.checks``; it takes a few minutes on one core.
"""

import contextlib
import time
import warnings

from benchmarks.machine import restrict_to_one_core

restrict_to_one_core()

from benchmarks.peers import adapter  # noqa: E402 - after the thread settings
from benchmarks.problems import PROBLEMS  # noqa: E402
from benchmarks.report import duration  # noqa: E402
from benchmarks.svi import autoencoder, batches  # noqa: E402
from probtorch.compiler import compiled_function  # noqa: E402
from probtorch.compiler.calls.replay import Path  # noqa: E402
from probtorch.compiler.density import NativeDensity  # noqa: E402
from probtorch.infer import SVI, AutoNormal  # noqa: E402
from probtorch.infer.gradient_check import DensityCheck  # noqa: E402
from probtorch.infer.vi import svi_check  # noqa: E402
from probtorch.optim import Adam  # noqa: E402

CHAINS, WARMUP, DRAWS, STEPS = 4, 1000, 1000, 10_000
# Steps of the run that fills the caches.
FEW = 40
SAMPLED = ("eight_schools", "logistic", "varying_intercepts")
GUIDED = ("eight_schools", "logistic", "varying_intercepts")


class Stopwatch:
    """Seconds spent in what was wrapped, by name; calls from within others count once."""

    def __init__(self):
        self.seconds, self._depth = {}, 0

    @contextlib.contextmanager
    def on(self, places):
        """Time the attributes at ``(name, owner, attribute)`` inside a block."""
        before = [(owner, attribute, getattr(owner, attribute)) for _, owner, attribute in places]
        for (name, owner, attribute), (_, _, fn) in zip(places, before, strict=True):
            setattr(owner, attribute, self._timed(name, fn))
        try:
            yield
        finally:
            for owner, attribute, fn in before:
                setattr(owner, attribute, fn)

    def _timed(self, name, fn):
        def timed(*args, **kwargs):
            if self._depth:
                return fn(*args, **kwargs)
            self._depth, begin = 1, time.thread_time()
            try:
                return fn(*args, **kwargs)
            finally:
                self._depth = 0
                spent = time.thread_time() - begin
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

        return timed


def places():
    """Return where the checks are made: the column of the table, and what to time."""
    return [
        ("gradients", DensityCheck, "before"),
        ("gradients", DensityCheck, "after"),
        ("gradients", svi_check, "check_svi"),
        ("replays", NativeDensity, "verify"),
        ("replays", compiled_function, "called_twice"),
        ("replays", compiled_function, "made_again"),
        ("replays", Path, "compare_recorded"),
    ]


def shares(run):
    """Return the seconds of ``run(None)`` in this process, and of the checks in it by name."""
    run(FEW)  # fills the caches
    watch = Stopwatch()
    begin = time.process_time()
    with watch.on(places()):
        run(None)
    return time.process_time() - begin, watch.seconds


def guided(name):
    """Return a run of SVI on a problem, from its first step on."""
    model, data = adapter("probtorch").model(PROBLEMS[name])

    def run(steps):
        SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0).run(
            steps or STEPS, **data, progress_bar=False
        )

    return run


def sampled(name):
    """Return a run of NUTS on a problem."""
    run = adapter("probtorch").sampler(PROBLEMS[name])
    return lambda draws: run(0, CHAINS, draws or WARMUP, draws or DRAWS)


def trained(steps):
    """Train the autoencoder."""
    step = autoencoder("probtorch", batches())
    for _ in range(steps or STEPS):
        step()


def main() -> None:
    """Print the table."""
    runs = {f"NUTS, {name}": sampled(name) for name in SAMPLED}
    runs |= {f"SVI, {name}": guided(name) for name in GUIDED}
    runs["SVI, autoencoder"] = trained
    print("| run | all of it | gradients | replays |")
    print("|-----|-----------|-----------|---------|")
    total, sums = 0.0, dict.fromkeys(("gradients", "replays"), 0.0)
    for name, run in runs.items():
        seconds, parts = shares(run)
        total += seconds
        for part in sums:
            sums[part] += parts.get(part, 0.0)
        shown = [f"{duration(x)}, {x / seconds:.2%}" for x in map(parts.get, sums, (0.0, 0.0))]
        print(f"| {name} | {duration(seconds)} | {' | '.join(shown)} |")
    shown = [f"{duration(x)}, {x / total:.2%}" for x in sums.values()]
    print(f"| together | {duration(total)} | {' | '.join(shown)} |")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
