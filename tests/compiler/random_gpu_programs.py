"""Random programs as CUDA C on the processor, against eager execution, here and by `fuzz`."""

import dataclasses
import warnings

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from probtorch.compiler.render import cuda, cuda_phases
from probtorch.core.dispatch import wrap
from probtorch.errors import CompileError
from tests.compiler.gpu_programs import Job
from tests.compiler.program_strategy import programs

__all__ = ["MAGNIFIED", "attempt", "check_random", "give_nests_many_kernels"]

# The differences magnify what SciPy and we round differently. SciPy's upper incomplete gamma
# function has errors of 3e-14 near a = 0.5, where ours has none (test_cuda_math.py).
MAGNIFIED = {"lgamma_difference", "digamma_difference", "gammainc", "gammaincc"}

# Limits under which a nest has kernels of its own, and a sum is cut.
CUTS = {"_SLICE": 3, "_SHORT_ROW": 1, "_LONG_DOT": 2, "_OWNERS": 4, "_COLUMN_TERMS": 2}


def give_nests_many_kernels(monkeypatch):
    """Give every nest its own kernels, and cut every sum, as if all arrays were large."""
    monkeypatch.setattr(cuda, "_SMALL", 0)
    monkeypatch.setattr(cuda, "_SMALL_IN_LOOP", 0)
    for name, value in CUTS.items():
        monkeypatch.setattr(cuda_phases, name, value)


def attempt(fn, *calls):
    """Return a `Job`, or None where an op has no form on a GPU."""
    try:
        return Job(fn, *calls)
    except CompileError as error:
        if "CPU only" not in str(error):
            raise
        return None


def check_random(count, steps, number=None):
    """Compare so many programs: those of the test suite, or those that `number` gives.

    Returns
    -------
    int
        How many of them have a form on a GPU.
    """
    found = []

    @settings(
        deadline=None,
        derandomize=number is None,
        database=None,
        max_examples=count,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs(max_steps=steps), st.booleans())
    def collect(program, gradients):
        found.append((program, gradients))

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UserWarning)
        collect() if number is None else seed(number)(collect)()
        jobs = _jobs_of(found)
        assert len(jobs) > 0.25 * count
        for program, job in jobs:
            wrong = job.compare()
            assert not wrong, f"{wrong}\n{program!r}"
    return len(jobs)


def _op_names(program):
    return {step.settings.get(k) for step in program.steps for k in ("op", "then", "other", "kind")}


def _solves_finite_systems(program):
    """Return whether solutions of linear systems are finite: how far nan spreads is LAPACK's."""
    first = len(program.inputs[0]) + len(program.captured)
    solutions = [first + i for i, step in enumerate(program.steps) if step.action == "solve"]
    found = dataclasses.replace(program, outputs=tuple(solutions))
    return not solutions or all(
        np.isfinite(x.array).all()
        for inputs in program.inputs
        for x in found.run(*([wrap(x.copy()) for x in xs] for xs in (inputs, program.captured)))
    )


def _jobs_of(found):
    jobs = []
    for program, gradients in found:
        if _op_names(program) & MAGNIFIED or not _solves_finite_systems(program):
            continue
        run = program.with_gradients if gradients else program.run
        captured = [wrap(x.copy()) for x in program.captured]

        def fn(*xs, run=run, captured=captured):
            return run(xs, captured)

        jobs.append((program, attempt(fn, *program.inputs)))
    return [(program, job) for program, job in jobs if job is not None]
