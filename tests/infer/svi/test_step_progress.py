"""The line of a run is the same whether steps are counted one by one or many at once."""

import numpy as np
import pytest

from probtorch.infer.vi import step_progress
from probtorch.infer.vi.step_progress import SMOOTHING, StepProgress
from tests.infer.watched import watched

RNG = np.random.default_rng(0)
LOSSES = [*map(float, RNG.normal(10.0, 3.0, 9000))]
LOSSES[5] = LOSSES[300] = float("nan")


def smoothed(losses):
    """Weights 1 / n of the first losses, then 1 / SMOOTHING."""
    found = None
    for n, loss in enumerate(losses, 1):
        if loss == loss:
            weight = 1.0 / min(n, SMOOTHING)
            found = loss if found is None else (1.0 - weight) * found + weight * loss
    return found


@pytest.mark.parametrize("together", [1, 7, 1000, 9000])
@pytest.mark.parametrize("count", [1, 3, 200, 9000])
def test_losses_are_smoothed_whenever_somebody_looks(together, count):
    progress = StepProgress(count, done=0, shown=False)
    for first in range(0, count, together):
        progress.update(*LOSSES[:count][first : first + together])
        if first % 3 == 0:
            assert progress.loss == pytest.approx(smoothed(LOSSES[: progress.done]), rel=1e-9)
    assert progress.done == count
    assert f"loss {smoothed(LOSSES[:count]):.6g}" in progress.line()


def test_a_run_that_nobody_looks_at_keeps_few_losses():
    progress = StepProgress(9000, shown=False)
    for loss in LOSSES:
        progress.update(loss)
    assert len(progress._unseen) <= step_progress.MEMORY
    assert progress.loss == pytest.approx(smoothed(LOSSES), rel=1e-9)


@pytest.mark.parametrize("together", [1, 7])
def test_each_loss_counts_once_whenever_a_handle_looks(together):
    losses, progress = LOSSES[:21], StepProgress(21, shown=False)

    def look():
        if progress._looking.locked() or not progress.done:  # who comes then waits
            return
        loss, known = progress.loss, (progress.done, progress.done + together)
        assert any(loss == pytest.approx(smoothed(losses[:n]), rel=1e-9) for n in known)

    def step():
        for first in range(0, 21, together):
            progress.update(*losses[first : first + together])

    watched(step, look, step_progress)
    assert progress.loss == pytest.approx(smoothed(losses), rel=1e-9)
