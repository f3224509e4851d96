"""Best of several rounds, contestants taking turns.

A round times every contestant once, so a slow spell of the machine hits all of them. The figure
quoted is the best round: other processes only ever add time. The spread (median / best) says how
far to trust it.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Timing", "race"]


@dataclass(frozen=True)
class Timing:
    """Seconds per call."""

    best: float
    median: float
    rounds: int

    @property
    def spread(self) -> float:
        """Median over best; 1 on a quiet machine."""
        return self.median / self.best


def race(
    contestants: dict[str, Callable[[], object]],
    *,
    rounds: int = 9,
    round_seconds: float = 0.1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each callable, in turns.

    Parameters
    ----------
    contestants : dict of callables
        Each does the work once per call and waits for its result.
    rounds : int
        How many times each is timed; the best counts.
    round_seconds : float
        Calls are repeated within a round until about this long; the clock is read twice per round.
    clock : callable
        What is read, in seconds; `time.process_time` leaves out what other processes took.

    Returns
    -------
    timings : dict of Timing
        Seconds per call, under the same names.
    """
    loops = {name: _calibrate(fn, round_seconds, clock) for name, fn in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, fn in contestants.items():
            samples[name].append(_seconds(fn, loops[name], clock) / loops[name])
    return {
        name: Timing(min(times), statistics.median(times), rounds)
        for name, times in samples.items()
    }


def _seconds(fn: Callable[[], object], loops: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(loops):
        fn()
    return clock() - start


def _calibrate(fn: Callable[[], object], round_seconds: float, clock: Callable[[], float]) -> int:
    """Warm up, and return how many calls fill a round."""
    fn()
    loops = 1
    while (seconds := _seconds(fn, loops, clock)) < 0.2 * round_seconds:
        loops *= 4
    return max(1, round(loops * round_seconds / seconds))
