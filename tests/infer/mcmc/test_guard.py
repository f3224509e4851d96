"""The look at the end of warm-up: chains whose mass matrix is that of another place go on."""

from types import SimpleNamespace

import numpy as np
import pytest

from probtorch.diagnostics.findings import ConvergenceWarning
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.warm_up.guard import ROUNDS, WarmupGuard

DIM, LENGTH = 40, 400


def chain(*, nats=0.0, higher=0.0, steps=7.0, extensions=()):
    """Return what the guard sees of a warm chain, whose volume and log density are off so much."""
    metric = DiagonalMetric.from_inverse_mass(np.full(DIM, np.exp(2.0 * nats / DIM)))
    course = higher + np.random.default_rng(0).normal(-600.0, 5.0, LENGTH)
    run = SimpleNamespace(
        warming_up=True,
        warmup=SimpleNamespace(does_something=True, follows=False, tuner=None),
        course=[course],
        learner=None,
        runner=SimpleNamespace(row=None, held=lambda name: metric, chain=None),
        step_size=0.5,
        effort=steps,
        num_warmup=LENGTH,
        extensions=list(extensions),
    )
    run.extend = lambda length, donor: run.extensions.append(length)
    return run


def looked_at(*chains):
    """Return the numbers of the chains that shall go on, and the guard."""
    guard = WarmupGuard(list(chains))
    again = guard.look(list(chains))
    return [i for i, run in enumerate(chains) if any(run is other for other in again)], guard


def test_two_chains_of_four_with_the_matrix_of_a_neck_go_on():
    # As of rats after 400 draws: neither is far from the median of steps, 22, nor lower.
    left = chain(nats=-57.0, higher=9.0, steps=38.0)
    leaving = chain(nats=-75.0, higher=57.0, steps=37.0)
    again, guard = looked_at(chain(), left, leaving, chain(steps=8.0))
    assert again == [1, 2] and not guard.left
    assert left.extensions == leaving.extensions == [LENGTH // 2]


def test_a_matrix_that_is_too_wide_is_of_another_place_too():
    assert looked_at(chain(), chain(nats=15.0, higher=-20.0, steps=20.0), chain())[0] == [1]


def test_a_chain_that_is_at_home_in_a_neck_without_weight_goes_on():
    # Its steps fit where it is: the volume is smaller by more than the log density makes up for.
    assert looked_at(chain(), chain(nats=-260.0, higher=220.0), chain(), chain())[0] == [1]


@pytest.mark.parametrize(
    "other",
    [
        chain(steps=28.0),  # the same matrix
        chain(nats=-7.0, steps=15.0),  # what estimates differ by
        chain(nats=-40.0, higher=40.0),  # a narrow mode of as much weight, and at home there
        chain(nats=40.0, higher=-40.0, steps=13.0),  # a wide one
    ],
    ids=["steps", "noise", "narrow", "wide"],
)
def test_warm_chains_are_let_be(other):
    again, guard = looked_at(chain(), other, chain(), chain())
    assert not again and not guard.left


def test_a_chain_whose_matrix_stays_elsewhere_is_told_of():
    stuck = chain(nats=-240.0, higher=180.0, steps=20.0, extensions=[200] * ROUNDS)
    again, guard = looked_at(chain(), chain(), stuck, chain())
    assert not again and len(stuck.extensions) == ROUNDS
    with pytest.warns(ConvergenceWarning, match=r"(?s)chain 2 did .* place: its volume is -240"):
        guard.warn(1)
