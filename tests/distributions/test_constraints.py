"""Membership tests of the constraints, on values inside, at the edge and outside."""

import math

import numpy as np
import pytest

from probtorch.distributions import Uniform, constraints
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor

EYE = np.eye(2)
TWO = tensor([1.0, 2.0]).double()

MEMBERS = [
    (constraints.real, [0.0, -1e300, math.inf], [math.nan]),
    (constraints.positive, [1e-300, 3.0], [0.0, -1.0, math.nan]),
    (constraints.nonnegative, [0.0, 3.0], [-1e-300, math.nan]),
    (constraints.greater_than(2.0), [2.1], [2.0]),
    (constraints.greater_than_eq(2.0), [2.0], [1.9]),
    (constraints.less_than(2.0), [1.9], [2.0, math.nan]),
    (constraints.less_than_eq(2.0), [2.0], [2.1]),
    (constraints.unit_interval, [0.0, 0.5, 1.0], [-0.1, 1.1, math.nan]),
    (constraints.interval(-1.0, 1.0), [-1.0, 1.0], [1.5]),
    (constraints.half_open_interval(-1.0, 1.0), [-1.0], [1.0]),
    (constraints.left_open_interval(-1.0, 1.0), [1.0], [-1.0]),
    (constraints.open_interval(-1.0, 1.0), [0.0], [-1.0, 1.0]),
    (constraints.boolean, [0.0, 1.0], [0.5, 2.0, -1.0, math.nan]),
    (constraints.integer, [-3.0, 0.0], [0.5, math.nan]),
    (constraints.nonnegative_integer, [0.0, 7.0], [-1.0, 0.5]),
    (constraints.positive_integer, [1.0], [0.0, 1.5]),
    (constraints.integer_interval(1, 3), [1.0, 3.0], [0.0, 4.0, 2.5]),
    (constraints.one_hot, [[0.0, 1.0]], [[1.0, 1.0], [0.5, 0.5], [0.0, 0.0]]),
    (constraints.multinomial(3), [[3.0, 0.0], [1.0, 2.0]], [[1.0, 1.0], [4.0, -1.0], [1.5, 1.5]]),
    (constraints.simplex, [[0.2, 0.8], [1.0, 0.0]], [[0.5, 0.6], [-0.1, 1.1]]),
    (constraints.ordered_vector, [[-1.0, 2.0]], [[1.0, 1.0], [2.0, 1.0]]),
    (
        constraints.ordered_within(constraints.interval(1.0, 3.0)),
        [[1.0, 3.0], [1.5, 2.0]],
        [[2.0, 1.5], [0.5, 2.0], [2.0, 3.5]],
    ),
    (constraints.ordered_within(constraints.greater_than(3.0)), [[4.0, 9.0]], [[1.0, 3.5]]),
    (constraints.positive_ordered_vector, [[1.0, 2.0]], [[-1.0, 2.0], [2.0, 1.0]]),
    (constraints.sphere, [[0.6, 0.8]], [[0.6, 0.9]]),
    (constraints.zero_sum(1), [[1.5, -1.5]], [[1.0, 0.0]]),
    (constraints.real_vector, [[0.0, 1.0]], [[0.0, math.nan]]),
    (constraints.square, [EYE], [EYE * math.nan]),
    (constraints.symmetric, [EYE], [[[1.0, 0.1], [0.0, 1.0]]]),
    (constraints.positive_definite, [EYE], [[[1.0, 2.0], [2.0, 1.0]], EYE * 0.0, EYE * math.nan]),
    (constraints.positive_semidefinite, [EYE, EYE * 0.0], [[[1.0, 2.0], [2.0, 1.0]]]),
    (constraints.lower_triangular, [[[1.0, 0.0], [2.0, -1.0]]], [[[1.0, 0.1], [0.0, 1.0]]]),
    (constraints.lower_cholesky, [[[1.0, 0.0], [2.0, 1.0]]], [[[1.0, 0.0], [2.0, 0.0]]]),
    (constraints.unit_lower_cholesky, [[[1.0, 0.0], [2.0, 1.0]]], [[[1.0, 0.0], [2.0, 1.1]]]),
    (constraints.corr_cholesky, [[[1.0, 0.0], [0.6, 0.8]]], [[[1.0, 0.0], [0.6, 0.9]]]),
    (constraints.corr_matrix, [[[1.0, 0.6], [0.6, 1.0]]], [[[1.0, 0.6], [0.6, 1.1]]]),
    (constraints.independent(constraints.positive, 1), [[1.0, 2.0]], [[1.0, -2.0]]),
    (
        constraints.cat([constraints.simplex, constraints.simplex], 0, [1, 1]),
        [],
        [],
    ),
]


@pytest.mark.parametrize("constraint, inside, outside", MEMBERS, ids=lambda c: str(c)[:30])
def test_members_are_told_from_others(constraint, inside, outside):
    for value in inside:
        assert constraint.check(tensor(np.array(value))).numpy().all(), value
    for value in outside:
        assert not constraint.check(tensor(np.array(value))).numpy().any(), value
    if inside and outside:
        both = tensor(np.array([inside[0], outside[0]]))
        assert constraint.check(both).tolist() == [True, False]


@pytest.mark.parametrize("constraint, inside, outside", MEMBERS, ids=lambda c: str(c)[:30])
def test_the_interior_point_is_inside(constraint, inside, outside):
    for value in (np.array(v) for v in inside):
        point = constraint.interior(tensor(value))
        filled = tensor(np.zeros_like(value)) + point
        assert constraint.check(filled).numpy().all()


def test_tensor_bounds_hold_elementwise():
    c = constraints.interval(-TWO, TWO)
    assert c.check(tensor([1.5, 1.5]).double()).tolist() == [False, True]


def test_pieces_have_constraints_of_their_own():
    c = constraints.cat([constraints.positive, constraints.real], -1, [1, 2])
    assert c.check(tensor([1.0, -1.0, -1.0])).tolist() == [True, True, True]
    assert c.check(tensor([-1.0, -1.0, math.nan])).tolist() == [False, True, False]
    s = constraints.stack([constraints.positive, constraints.boolean], -1)
    assert s.check(tensor([2.0, 2.0])).tolist() == [True, False]
    assert s.is_discrete and not c.is_discrete


@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_the_simplex_allows_for_the_rounding_of_a_long_sum(size):
    x = np.random.default_rng(0).dirichlet(np.ones(size)).astype(np.float32)
    assert constraints.simplex.check(tensor(x)).item()
    assert not constraints.simplex.check(tensor(x * np.float32(1.1))).item()


def test_a_dependent_support_is_known_for_instances_only():
    assert constraints.is_dependent(Uniform.support)
    assert Uniform.support.event_dim == 0 and not Uniform.support.is_discrete
    with pytest.raises(ArgumentError) as caught:
        Uniform.support.check(tensor(0.5))
    assert "instance" in caught.value.fix
    assert repr(Uniform(0.0, 2.0).support) == "half_open_interval(lower_bound=0, upper_bound=2)"


def test_independent_needs_the_event_dims():
    with pytest.raises(ShapeError) as caught:
        constraints.real_vector.check(tensor(1.0))
    assert "at least 1 dims" in caught.value.expected and "()" in caught.value.got


@pytest.mark.parametrize(
    "constraint, text",
    [
        (constraints.positive, "positive"),
        (constraints.greater_than(0.5), "greater_than(lower_bound=0.5)"),
        (
            constraints.interval(tensor(1.0), TWO),
            "interval(lower_bound=1, upper_bound=<shape (2,)>)",
        ),
        (constraints.independent(constraints.simplex, 2), "independent(simplex, 2)"),
        (constraints.integer_interval(0, 3), "integer_interval(lower_bound=0, upper_bound=3)"),
        (constraints.zero_sum(2), "zero_sum(event_dim=2)"),
    ],
    ids=str,
)
def test_constraints_print_as_they_are_written(constraint, text):
    assert repr(constraint) == text


def test_equal_constraints_are_equal():
    assert constraints.greater_than(0.0) == constraints.positive
    assert constraints.greater_than(0.0) != constraints.greater_than(1.0)
    assert constraints.greater_than_eq(0.0) != constraints.positive
    assert constraints.independent(constraints.real, 1) == constraints.real_vector
    assert hash(constraints.greater_than(0.0)) == hash(constraints.positive)
