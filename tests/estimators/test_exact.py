"""Proof by enumeration: the mean of an estimate over its own randomness is the exact gradient.

For every program and every unbiased estimator that applies, all outcomes of the estimator's draws
are taken in turn (exhaustive.py), so no tolerance for chance is needed.
"""

import itertools

import numpy as np
import pytest

from probtorch.autograd import grad
from probtorch.estimators import (
    ARM,
    REBAR,
    RELAX,
    DiCE,
    DisARM,
    Enumerate,
    MeasureValued,
    ScoreFunction,
    SumAndSample,
    UnorderedSet,
    expectation,
)
from probtorch.estimators.registry import refusal
from tests.estimators.exhaustive import Exhaustive, Fed, double_exponential
from tests.estimators.programs import PROGRAMS

# (estimator, samples): with two samples where they meet.
DISCRETE = {
    "score function": (ScoreFunction(), 1),
    "constant baseline": (ScoreFunction(0.7), 1),
    "leave one out": (ScoreFunction("leave_one_out"), 2),
    "DiCE": (DiCE(), 1),
    "DiCE, leave one out": (DiCE("leave_one_out"), 2),
    "enumerate": (Enumerate(), 1),
    "sum and sample 0": (SumAndSample(0), 1),
    "sum and sample 1": (SumAndSample(1), 1),
    "sum and sample 2": (SumAndSample(2), 1),
    "unordered set 2": (UnorderedSet(2), 1),
    "unordered set 3": (UnorderedSet(3), 1),
    "measure valued": (MeasureValued(), 1),
    "ARM": (ARM(), 1),
    "DisARM": (DisARM(), 1),
}


def breaks(program):
    """Where the opposite draw of a pair changes, as the uniform behind a draw runs from 0 to 1."""
    p = program.probs(program.leaf()).detach().numpy()[:, -1]
    return [*(1.0 - p) / p, *(1.0 - 2.0 * p) / (1.0 - p)]


def outcomes(program, estimator, samples, order=1):
    """Yield (probability, value, gradient) for everything that the estimator may draw."""

    def run(draws):
        theta = program.leaf()
        found = expectation(
            program.q(theta),
            lambda z: program.f(z, theta),
            estimator=estimator,
            num_samples=samples,
            draws=draws,
        )
        found = found.sum() if program.rows else found
        return found.item(), grad(found, [theta])[0].numpy()

    for weight, (value, slope) in Exhaustive(breaks(program), order).everything(run):
        yield weight, value, slope


def exact(program):
    theta = program.leaf()
    value = program.exact(theta)
    return value.item(), grad(value, [theta])[0].numpy()


def feasible(program, estimator):
    """Whether the program has as many outcomes as a set asks for."""
    count = len(program.values) ** (1 if program.rows else max(program.elements, 1))
    return not isinstance(estimator, UnorderedSet) or estimator.set_size <= count


def applies(program, estimator):
    return refusal(estimator, program.q(program.leaf())) is None


CASES = [
    pytest.param(program, *DISCRETE[name], id=f"{program.name}-{name}")
    for program in PROGRAMS
    for name in DISCRETE
    if applies(program, DISCRETE[name][0]) and feasible(program, DISCRETE[name][0])
]


def test_there_are_thirty_programs_and_each_estimator_meets_some():
    assert len(PROGRAMS) >= 30
    for name, (estimator, _) in DISCRETE.items():
        assert sum(applies(p, estimator) for p in PROGRAMS) >= 5, name


@pytest.mark.parametrize("program, estimator, samples", CASES)
def test_the_mean_over_all_outcomes_is_the_exact_value_and_gradient(program, estimator, samples):
    mass, value, slope = 0.0, 0.0, 0.0
    for weight, v, g in outcomes(program, estimator, samples):
        mass, value, slope = mass + weight, value + weight * v, slope + weight * g
    assert abs(mass - 1.0) < 1e-12
    expected, gradient = exact(program)
    assert abs(value - expected) < 1e-10
    np.testing.assert_allclose(slope, gradient, rtol=0, atol=1e-10)


# ------------------------------------------------------------- estimators with continuous noise


def every_outcome(program):
    """All draws of the program's elements, and quadrature nodes for a uniform per logit.

    Returns
    -------
    codes : ndarray of int, shape (rows, elements)
    uniforms : ndarray, shape (rows, logits)
    weights : ndarray, shape (rows,)
        Of the quadrature alone.
    rows : int
    """
    k, elements = len(program.values), max(program.elements, 1)
    hot = not np.isscalar(program.values[0])
    logits = elements * k if hot or isinstance(program.values[0], int) else elements
    count = {1: 81, 2: 81, 3: 53}[logits]
    nodes, weights = double_exponential(count, 3.0)
    grid = np.stack(np.meshgrid(*[nodes] * logits, indexing="ij"), -1).reshape(-1, logits)
    mass = np.prod(
        np.stack(np.meshgrid(*[weights] * logits, indexing="ij"), -1).reshape(-1, logits), -1
    )
    codes = np.array(list(itertools.product(range(k), repeat=elements)))
    rows = len(codes) * len(grid)
    return (
        np.repeat(codes, len(grid), 0),
        np.tile(grid, (len(codes), 1)),
        np.tile(mass, len(codes)),
        rows,
    )


CONTROLLED = ("coin", "rare coin", "bent logit", "cost of its own", "probability", "two coins",
              "two coins of shared parameters", "two probabilities", "one-hot of two", "one-hot",
              "two rows of coins")  # fmt: skip


CONTROLS = [
    pytest.param(lambda control: REBAR(), id="REBAR"),
    pytest.param(lambda control: REBAR(0.4, 0.7), id="REBAR, colder and smaller"),
    pytest.param(RELAX, id="RELAX"),
]


@pytest.mark.parametrize("make", CONTROLS)
@pytest.mark.parametrize("name", CONTROLLED)
def test_the_mean_with_a_control_variate_is_the_exact_gradient(name, make):
    # The estimate is a sum of a function of the first uniforms and one of the second: so their
    # means can be taken along together. Each outcome is a row of its own.
    program = next(p for p in PROGRAMS if p.name == name)
    codes, grid, mass, rows = every_outcome(program)
    theta = program.leaf((rows,))
    q = program.q(theta)
    values = np.array(program.values)[codes]
    drawn = values if program.elements else values[:, 0]
    shape = (1, *q.batch_shape, *((len(program.values),) if q.event_shape else ()))
    draws = Fed([drawn[None]], [grid.reshape(shape), grid.reshape(shape)])
    joint = bool(program.elements) and not program.rows
    inner = tuple(range(-len(q.event_shape) - joint, 0))

    def control(z):
        # Of no merit: any function will do.
        found = (0.8 * z + 0.1).tanh() * 1.5
        found = found.sum(inner) if inner else found
        return found.unsqueeze(-1) if joint else found

    def cost(z):
        found = program.f(z, theta)
        return found.unsqueeze(-1) if joint else found

    found = expectation(q, cost, estimator=make(control), draws=draws, vectorized=True)
    (slopes,) = grad(found.sum(), [theta])
    chance = program.probs(program.leaf()).detach().numpy()
    weights = mass * np.prod(chance[np.arange(codes.shape[1]), codes], -1)
    value, gradient = exact(program)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights @ slopes.numpy(), gradient, rtol=0, atol=1e-10)
    per_row = found.detach().numpy().reshape(rows, -1).sum(-1)
    np.testing.assert_allclose(weights @ per_row, value, rtol=0, atol=1e-10)
