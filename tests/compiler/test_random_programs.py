"""Random programs: compiled equals eager, in values and gradients, however they are run.

See program_strategy.py for how programs are made, agreement.py for how closely results must agree.
The default run is the same 2000 programs every time, most of them small; the slow one is larger,
and ``python -m tests.compiler.fuzz`` goes on with new ones for as long as it is let.
"""

import contextlib
import functools
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.errors import CompileError
from tests.compiler.agreement import differences, spread
from tests.compiler.program_strategy import programs

# Shrinking is worth its time where a failure was found by hand: pytest -k ... with all phases.
QUICK = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
# Where rounding does not explain a difference: sums that cancel need more than the usual few.
MANY_RUNS = 40
LONG = settings(QUICK, max_examples=4000)


def arrays(tensors):
    return [np.asarray(x.array) for x in tensors]


def tensors(values):
    return [wrap(a.copy()) for a in values]


def assert_agreement(program, got, run, what, widened=lambda expected: expected):
    """Compare with what `run` gives, to rounding; where that fails, with what perturbed runs allow.

    Those take most of the time, and allow more: where all is equal to rounding they say nothing.
    """
    wrong = differences(got, [(a, np.zeros(a.shape), np.ones(a.shape, bool)) for a in run()])
    if wrong:
        wrong = differences(got, widened(spread(run, MANY_RUNS)))
    assert not wrong, f"{what}: {wrong}\n{program!r}"


def check_compiled(program, gradients):
    """Call a compiled program on both sets of inputs, on new paths and on known ones."""
    run = program.with_gradients if gradients else program.run
    captured = tensors(program.captured)
    native = compile(lambda *xs: run(xs, captured))
    for k in (0, 0, 1, 0):
        inputs = tensors(program.inputs[k])
        got = arrays(native(*inputs))

        def eager(k=k):
            return arrays(run(tensors(program.inputs[k]), tensors(program.captured)))

        assert_agreement(program, got, eager, f"inputs {k}")
        for before, after in zip(program.inputs[k], arrays(inputs), strict=True):
            assert before.tobytes() == after.tobytes(), "an argument was changed"
    assert native.reason is None, (native.reason, program)


def check_density(program):
    """Evaluate the sum of the results as a density of the float64 inputs."""
    places = [i for i, a in enumerate(program.inputs[0]) if a.dtype == np.float64 and a.size]
    captured = tensors(program.captured)

    summed = []  # sizes of the results that are added up

    def log_density(q):
        summed.clear()
        xs, at = [wrap(a) for a in program.inputs[0]], 0
        for i in places:
            shape, size = xs[i].array.shape, xs[i].array.size
            xs[i] = q[at : at + size].reshape(shape)
            at += size
        total = q[0] * 0.0
        for x in program.run(xs, captured):
            if x.array.dtype.kind == "f":
                summed.append(x.array.size)
                total = total + x.double().sum()
        return total

    points = [np.concatenate([xs[i].ravel() for i in places]) for xs in program.inputs]
    density = NativeDensity(log_density, points[0].size)
    for k in (0, 0, 1, 0):
        value, gradient = density.value_and_grad(points[k])

        def eager(k=k):
            found, g = density.eager(points[k].copy())
            return [np.asarray(found), g]

        def widened(expected):
            (total, gap, agree), *rest = expected
            # NumPy adds in pairs, native code in lanes: rounding that no perturbed run shows.
            gap = gap + np.finfo(np.float64).eps * np.sqrt(sum(summed)) * np.abs(total)
            return [(total, np.where(np.isfinite(gap), gap, 0.0), agree), *rest]

        got = [np.asarray(value), gradient]
        assert_agreement(program, got, eager, f"point {k}", widened)
    assert density.reason is None, (density.reason, program)


def check_sampler(program):
    """Run the program recorded abstractly, as samplers are, from the first set of inputs."""

    def run(xs):
        return program.run(xs, tensors(program.captured))

    try:
        native = NativeProgram(run, tuple(tensors(program.inputs[0])))
    except CompileError:
        return  # a Python branch on a value, or an op without a rule: refused, as it should be
    for k in (1, 0):
        got = arrays(native(tuple(tensors(program.inputs[k]))))
        eager = functools.partial(lambda k: arrays(run(tensors(program.inputs[k]))), k)
        assert_agreement(program, got, eager, f"inputs {k}")


def check_updates(program):
    """Let the program add what it gives to tensors outside of it, call after call."""
    first = program.run(tensors(program.inputs[0]), tensors(program.captured))
    shapes = [x.shape for x in arrays(first)]

    def step(states, captured, xs):
        results = program.run(xs, captured)
        for state, x in zip(states, results, strict=True):
            # On the second inputs shapes may be others, after a branch.
            if x.array.shape == state.array.shape:
                state.mul_(0.5).add_(x)
        return tuple(state.sum() for state in states)

    def states():
        return [wrap(np.ones(shape)) for shape in shapes]

    mine, captured = states(), tensors(program.captured)
    native = compile(lambda *xs: step(mine, captured, xs))
    calls = (0, 0, 1, 0, 1)
    for k in calls:
        native(*tensors(program.inputs[k]))

    def eager():
        theirs, held = states(), tensors(program.captured)
        for k in calls:
            step(theirs, held, tensors(program.inputs[k]))
        return arrays(theirs)

    assert_agreement(program, arrays(mine), eager, f"calls with {calls}")
    assert native.reason is None, (native.reason, program)


@contextlib.contextmanager
def quiet():
    """Silence what random programs have every reason to warn of."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", CompileWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


@QUICK
@given(programs(), st.booleans())
def test_compiled_program_agrees_with_eager(program, gradients):
    with quiet():
        check_compiled(program, gradients)


@settings(QUICK, max_examples=60)
@given(programs(max_steps=6), st.booleans())
def test_small_compiled_program_agrees_with_eager(program, gradients):
    with quiet():
        check_compiled(program, gradients)


@settings(QUICK, max_examples=60)
@given(programs(max_steps=6, first="float64", nonempty=True))
def test_small_native_density_agrees_with_eager(program):
    with quiet():
        check_density(program)


@settings(QUICK, max_examples=25)
@given(programs(max_steps=60))
def test_long_compiled_program_agrees_with_eager(program):
    with quiet():
        check_compiled(program, False)


@QUICK
@given(programs(max_steps=20, first="float64", nonempty=True))
def test_native_density_agrees_with_eager(program):
    with quiet():
        check_density(program)


@settings(QUICK, max_examples=25)
@given(programs(max_steps=15))
def test_native_program_agrees_with_eager(program):
    with quiet():
        check_sampler(program)


@settings(QUICK, max_examples=20)
@given(programs(max_steps=15))
def test_compiled_updates_agree_with_eager(program):
    with quiet():
        check_updates(program)


@pytest.mark.slow
@LONG
@given(programs(max_steps=40), st.booleans())
def test_many_compiled_programs_agree_with_eager(program, gradients):
    with quiet():
        check_compiled(program, gradients)


@pytest.mark.slow
@LONG
@given(programs(max_steps=40, first="float64", nonempty=True))
def test_many_native_densities_agree_with_eager(program):
    with quiet():
        check_density(program)


@pytest.mark.slow
@LONG
@given(programs(max_steps=40))
def test_many_native_programs_agree_with_eager(program):
    with quiet():
        check_sampler(program)
