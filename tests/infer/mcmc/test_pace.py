"""When chains are saved: by draws, by seconds, and by what that costs."""

import pytest

from probtorch.infer.mcmc import pace
from probtorch.infer.mcmc.pace import Pace


@pytest.fixture
def clock(monkeypatch):
    """Two clocks that are set by hand: of the wall, and of the processor."""
    now = {"wall": 100.0, "cpu": 10.0}
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(pace.time, "thread_time", lambda: now["cpu"])
    return now


def test_file_is_due_after_draws_or_seconds_whichever_comes_first(clock):
    found = Pace(None)
    assert not found.due(pace.FILE_DRAWS - 1) and found.due(pace.FILE_DRAWS)
    clock["wall"] += pace.FILE_SECONDS
    assert found.due(1)
    assert pace.FILE_DRAWS + pace.SNAPSHOT_DRAWS <= 50
    assert pace.FILE_SECONDS + pace.SNAPSHOT_SECONDS <= 2.0


def test_saving_takes_no_more_than_its_share_of_the_time(clock):
    """A save of 0.07 s waits for 10 s, for the processor's time and not the disk's."""
    found = Pace(None)
    with found.saving():
        clock["cpu"] += 0.07
        clock["wall"] += 5.0
    clock["wall"] += 9.9
    assert not found.due(10**6)
    clock["wall"] += 0.2
    assert found.due(10**6)
    assert pace.FILE_SHARE + pace.SNAPSHOT_SHARE <= 0.01


def test_seconds_that_were_asked_for_are_kept_to(clock):
    found = Pace(3.0)
    with found.saving():
        clock["cpu"] += 1.0
    assert not found.due(10**6)
    clock["wall"] += 3.0
    assert found.due(0)
