"""Random functions with gradients inside and outside are compiled to what they are in Python."""

import pytest

from tests.compiler.gradient_programs import differs


@pytest.mark.parametrize("part", range(4))
def test_gradients_of_random_functions_are_those_of_python(part):
    assert [differs(seed) for seed in range(5 * part, 5 * part + 5)] == [None] * 5


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_gradients_of_many_random_functions_are_those_of_python(part):
    found = [differs(seed) for seed in range(100 + 100 * part, 200 + 100 * part)]
    assert [x for x in found if x is not None] == []
