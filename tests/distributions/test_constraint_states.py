"""Constraints to plain data and back."""

import io

import numpy as np
import pytest

from probtorch.distributions import constraints
from probtorch.distributions.constraint_states import constraint_of, constraint_state
from probtorch.distributions.constraints import Constraint, Dependent
from probtorch.errors import ArgumentError
from probtorch.serialization import load, save
from probtorch.tensor import tensor

NAMED = {
    name: found
    for name, found in vars(constraints).items()
    if isinstance(found, Constraint) and not isinstance(found, Dependent)
}
MADE = {
    "interval": constraints.interval(-1.0, 2.5),
    "greater_than": constraints.greater_than(3.0),
    "less_than_eq": constraints.less_than_eq(-0.5),
    "integers": constraints.integer_interval(2, 7),
    "counts": constraints.multinomial(5),
    "sums": constraints.zero_sum(2),
    "scaled": constraints.offset_multiplier(1.0, 3.0),
    "circulant": constraints.PositiveDefiniteCirculantVector(4),
    "independent": constraints.independent(constraints.positive, 2),
    "nested": constraints.independent(constraints.interval(0.0, 3.0), 1),
    "pieces": constraints.cat([constraints.positive, constraints.simplex], -1, [2, 3]),
    "ascending": constraints.ordered_within(constraints.interval(0.0, 4.0)),
    "slices": constraints.stack([constraints.positive, constraints.interval(0.0, 4.0)], -1),
}


def again(constraint):
    file = io.BytesIO()
    save(constraint_state(constraint), file)
    file.seek(0)
    return constraint_of(load(file))


@pytest.mark.parametrize("name", NAMED)
def test_named_constraints_come_back_as_themselves(name):
    assert again(NAMED[name]) == NAMED[name]
    assert repr(again(NAMED[name])) == repr(NAMED[name])


@pytest.mark.parametrize("name", MADE)
def test_constraints_with_arguments_come_back(name):
    found = again(MADE[name])
    assert found == MADE[name]
    assert repr(found) == repr(MADE[name])
    assert (found.event_dim, found.is_discrete) == (MADE[name].event_dim, MADE[name].is_discrete)


def test_every_class_of_constraint_is_covered():
    classes = {
        found
        for found in vars(constraints).values()
        if isinstance(found, type) and issubclass(found, Constraint)
    } - {Constraint, constraints.Dependent, constraints.dependent_property}
    tried = {type(c) for c in (*NAMED.values(), *MADE.values())}
    untried = {c.__name__ for c in classes - tried}
    # These differ from one that was tried in their comparison only.
    assert untried <= {"LessThan", "HalfOpenInterval", "LeftOpenInterval", "OpenInterval"}


def test_bounds_that_are_tensors_come_back():
    found = again(constraints.greater_than(tensor([1.0, 2.0])))
    np.testing.assert_array_equal(found.lower_bound.numpy(), [1.0, 2.0])


def test_a_constraint_of_ones_own_is_refused():
    class Even(Constraint):
        pass

    with pytest.raises(ArgumentError, match="Even"):
        constraint_state(Even())
    with pytest.raises(ArgumentError, match="constraint"):
        constraint_state(constraints.dependent())


@pytest.mark.parametrize(
    "state",
    [
        "os", "Constraint", "GreaterThan", "_named", "dependent", "__name__", 3, None, [],
        {"class": "Constraint"}, {"class": "Dependent", "arguments": {}},
        {"class": "GreaterThan", "arguments": {"a": 1}}, {"class": "GreaterThan"},
        {"class": "Independent", "arguments": {"base_constraint": 3,
                                               "reinterpreted_batch_ndims": 1}},
        {"class": "Cat", "arguments": {"cseq": 3}},
    ],
    ids=str,
)  # fmt: skip
def test_what_names_no_constraint_is_refused(state):
    with pytest.raises(ArgumentError, match="loading a constraint"):
        constraint_of(state)
