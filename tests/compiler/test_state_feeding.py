"""Programs that feed on what their earlier calls wrote: compiled is what eager is."""

import pytest

from tests.compiler.state_feeding import check
from tests.compiler.state_places import PLACES


@pytest.mark.parametrize("block", range(4))
def test_calls_read_what_calls_before_them_wrote(block):
    found = [check(seed) for seed in range(25 * block, 25 * (block + 1))]
    assert [f for f in found if f is not None] == []


def test_programs_that_once_differed():
    # Hits of a cache that replays do not make; steps of SVI that raised, and were made again.
    found = [check(seed) for seed in (8, 75, 131, 246, 318)]
    assert [f for f in found if f is not None] == []


@pytest.mark.slow
def test_many_more_programs_that_feed_on_state():
    found = [check(seed) for seed in range(10_000, 12_000)]
    assert [f for f in found if f is not None] == []


def test_every_place_is_written_read_and_changed_from_outside():
    assert len(PLACES) > 45
    assert all(place.reads and place.changes for place in PLACES.values())
    assert all(place.writes for place in PLACES.values())
