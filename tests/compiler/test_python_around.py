"""Random worlds of Python objects that change between calls: compiled is what eager is."""

import pytest

from tests.compiler.python_around import ADDED, PLACES, SINCE, check


@pytest.mark.parametrize("first", [*range(0, 125, 25), SINCE])
def test_a_compiled_function_goes_with_the_world_around_it(first):
    found = [check(seed) for seed in range(first, first + 25)]
    assert [f for f in found if f is not None] == []


def test_gradients_outside_go_with_the_world_around_the_function():
    # The last one has a cache that is filled anew, with as many misses as before.
    found = [check(seed, taped=True) for seed in (*range(700, 718), 9331487)]
    assert [f for f in found if f is not None] == []


@pytest.mark.slow
def test_many_more_worlds():
    found = [check(seed) for seed in range(10_000, 12_000)]
    assert [f for f in found if f is not None] == []


def test_every_kind_of_place_occurs():
    places = PLACES + ADDED
    assert len(places) == len({p.__name__ for p in places}) > 55
