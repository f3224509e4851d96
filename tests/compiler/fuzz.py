"""Random programs without end: ``python -m tests.compiler.fuzz [--seed N] [--minutes M] [--gpu]``.

Each round draws a few hundred new programs of every kind from the strategies of the test suite and
compares compiled with eager execution. A mismatch stops the run with the program shrunk; the seed
that is printed with each round repeats it. With ``--gpu`` the programs are CUDA C, run on the
processor (gpu_programs.py); a mismatch shows the program as it is.
"""

import argparse
import os
import tempfile
import time

from hypothesis import given, seed, settings
from hypothesis import strategies as st

__all__ = ["main"]

# Programs per round: (small ones, longer ones, densities, samplers, updates of tensors outside).
ROUND = (400, 100, 150, 50, 100)


def checks(number):
    """Return the five checks of a round as functions without arguments."""
    from tests.compiler import test_random_programs as suite
    from tests.compiler.program_strategy import programs

    small, long, densities, samplers, updates = (
        settings(suite.QUICK, max_examples=n, derandomize=False) for n in ROUND
    )

    @small
    @seed(4 * number)
    @given(programs(max_steps=8), st.booleans())
    def check_small(program, gradients):
        with suite.quiet():
            suite.check_compiled(program, gradients)

    @long
    @seed(4 * number + 1)
    @given(programs(max_steps=40), st.booleans())
    def check_long(program, gradients):
        with suite.quiet():
            suite.check_compiled(program, gradients)

    @densities
    @seed(4 * number + 2)
    @given(programs(max_steps=15, first="float64", nonempty=True))
    def check_density(program):
        with suite.quiet():
            suite.check_density(program)

    @samplers
    @seed(4 * number + 3)
    @given(programs(max_steps=15))
    def check_sampler(program):
        with suite.quiet():
            suite.check_sampler(program)

    @updates
    @seed(4 * number + 3)
    @given(programs(max_steps=15))
    def check_updates(program):
        with suite.quiet():
            suite.check_updates(program)

    return check_small, check_long, check_density, check_sampler, check_updates


# Of each round on the stand-in for a GPU: so many programs of so many steps.
GPU_ROUND = ((100, 20), (100, 15))


def gpu_round(number):
    """Check a round of programs for a GPU; returns how many had a form there."""
    import pytest

    from tests.compiler.gpu_programs import put_in_place
    from tests.compiler.random_gpu_programs import check_random, give_nests_many_kernels

    with pytest.MonkeyPatch.context() as monkeypatch:
        put_in_place("fake", monkeypatch)
        count = check_random(*GPU_ROUND[0], 2 * number)
        give_nests_many_kernels(monkeypatch)
        return count + check_random(*GPU_ROUND[1], 2 * number + 1)


def cpu_round(number):
    """Check a round of compiled programs; returns how many there were."""
    for check in checks(number):
        check()
    return sum(ROUND)


def main():
    """Run rounds until time is up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="number of the first round")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--gpu", action="store_true", help="kernels for a GPU, run by g++'s code")
    options = parser.parse_args()
    check_round = gpu_round if options.gpu else cpu_round
    end = time.monotonic() + 60.0 * options.minutes
    number, count = options.seed, 0
    with tempfile.TemporaryDirectory(prefix="probtorch-fuzz-") as folder:
        # The user's own cache would grow by a file per program.
        os.environ["PROBTORCH_CACHE_DIR"] = folder
        while time.monotonic() < end:
            count += check_round(number)
            number += 1
            print(f"round {number - 1}: {count} programs so far, no mismatch", flush=True)


if __name__ == "__main__":
    main()
