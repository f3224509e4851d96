"""`SMCFilter` against the exact normal law of a linear series."""

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.effects import handlers, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import SMCFilter

SIGMAS = 4.0
Y = np.array([0.4, 1.6, 0.9])
PRIOR = np.minimum.outer(np.arange(2, 5), np.arange(2, 5)).astype(float)  # a walk after its start
GAIN = PRIOR @ np.linalg.inv(PRIOR + 0.25 * np.eye(3))
EVIDENCE = stats.multivariate_normal(np.zeros(3), PRIOR + 0.25 * np.eye(3)).logpdf(Y)


class Walk:
    def init(self, state):
        state["z"] = sample("z", dist.Normal(0.0, 1.0))

    def step(self, state, y):
        state["z"] = sample("z", dist.Normal(state["z"], 1.0))
        sample("y", dist.Normal(state["z"], 0.5), obs=y)


class Seeing:
    """Proposes the next state by the exact law given the last one and the observation."""

    def init(self, state):
        sample("z", dist.Normal(0.5, 1.2))

    def step(self, state, y):
        sample("z", dist.Normal((state["z"] + 4.0 * y) / 5.0, 5.0**-0.5))


class Pairs:
    """Two walks in a plate."""

    def init(self, state):
        with plate("pair", 2):
            state["z"] = sample("z", dist.Normal(0.0, 1.0))

    def step(self, state, y):
        with plate("pair", 2):
            state["z"] = sample("z", dist.Normal(state["z"], 1.0))
            sample("y", dist.Normal(state["z"], 0.5), obs=y)


def filtered(model, guide, nesting=0, num_particles=4000, seed=0):
    smc = SMCFilter(model, guide, num_particles, nesting, seed=seed)
    smc.init()
    for y in Y:
        smc.step(probtorch.tensor(y) if not nesting else probtorch.tensor([y, y]))
    return smc


@pytest.mark.parametrize("guide", [None, Walk(), Seeing()], ids=["none", "prior", "seeing"])
def test_filter_agrees_with_the_exact_normal_law(guide):
    if isinstance(guide, Walk):
        guide.step = lambda state, y: sample("z", dist.Normal(state["z"], 1.0))
        guide.init = lambda state: sample("z", dist.Normal(0.0, 1.0))
    smc = filtered(Walk(), guide)
    last = smc.get_empirical()["z"]
    sd = np.sqrt((PRIOR - GAIN @ PRIOR)[-1, -1])
    assert abs(last.mean.item() - (GAIN @ Y)[-1]) < SIGMAS * sd / np.sqrt(800)
    assert last.stddev.item() == pytest.approx(sd, rel=0.12)
    # The spread of the estimate over seeds is 0.03.
    assert abs(smc.log_evidence - EVIDENCE) < SIGMAS * 0.03
    assert smc.log_weights.shape == (4000,) and smc.ess <= 4000


def test_particles_lie_left_of_plates():
    smc = filtered(Pairs(), None, nesting=1)
    assert smc.state["z"].shape == (4000, 2)
    assert abs(smc.log_evidence - 2.0 * EVIDENCE) < SIGMAS * 0.06
    np.testing.assert_allclose(smc.get_empirical()["z"].mean.numpy(), (GAIN @ Y)[-1], atol=0.12)


def test_nothing_is_seen_outside_and_a_run_begins_anew_by_init():
    with handlers.trace() as seen:
        smc = filtered(Walk(), None, num_particles=50)
    assert not list(seen)
    before = smc.log_evidence
    smc.init()
    assert smc.log_evidence == 0.0 and before < 0.0


def test_bad_models_are_refused():
    with pytest.raises(InferenceError, match="init"):
        SMCFilter(Walk(), None, 10).step(probtorch.tensor(0.0))
    with pytest.raises(ArgumentError, match="init and step"):
        SMCFilter(lambda y: None, None, 10)

    class Level(Walk):
        def init(self, state):
            state["level"] = probtorch.tensor(1.0)

    with pytest.raises(ShapeError, match="level"):
        SMCFilter(Level(), None, 10).init()
