"""Geweke's joint test of the moves of particles, at a temperature between prior and posterior."""

import functools

import numpy as np
import pytest

from probtorch import plate, sample
from probtorch.core.rng import Generator
from probtorch.distributions import LogNormal, Normal
from probtorch.infer import MALA, NUTS, RandomWalk, Slice, Target
from probtorch.infer.sequential.mutation import Mutation
from probtorch.infer.sequential.tempering import TemperedPath
from probtorch.tensor import tensor
from probtorch.testing.joint import _compare
from tests.testing.broken_kernels import BrokenHMC

SPREAD, NOISE, TEMPERATURE = 0.5, 0.8, 0.3
# Chance of a false alarm of one test, were the seed not fixed.
NEVER = 1e-6


def model(y):
    with plate("each", len(y)):
        mu = sample("mu", LogNormal(0.0, SPREAD))
        sample("y", Normal(mu, NOISE), obs=y)


def joint_pvalue(kernel, count, steps, transitions, seed):
    """The p-value of `count` chains, which are coordinates of one particle.

    A normal likelihood to a power is that of more noise, so parameters and data have a joint law at
    each temperature, which both of Geweke's simulators draw from.
    """
    rng = np.random.default_rng(seed)
    noise = NOISE / np.sqrt(TEMPERATURE)
    # Fitted to data of its own, the kernel stays as it is.
    mu = np.exp(SPREAD * rng.normal(size=count))
    path = TemperedPath(Target.from_model(model, tensor(rng.normal(mu, noise))), None)
    mutation = Mutation(kernel(model), path, Generator(seed), 1)
    mutation.fit(path.target, SPREAD * rng.normal(size=(300, count)), TEMPERATURE)
    saved, found = mutation.snapshot(np.zeros(count)), []
    mu = np.exp(SPREAD * rng.normal(size=count))
    for _ in range(steps):
        target = Target.from_model(model, tensor(rng.normal(mu, noise)))
        mutation = Mutation(kernel(model), TemperedPath(target, None), Generator(seed), 1)
        mutation.restore(saved)
        moved = mutation.move(np.log(mu)[None], TEMPERATURE, transitions)
        saved = mutation.snapshot(np.zeros(count))
        mu = np.exp(moved.positions.array[0, -1])
        found.append(mu)
    marginal = np.exp(SPREAD * rng.normal(size=100 * count))
    return _compare(marginal, np.transpose(found))[1]


KERNELS = {"RandomWalk": RandomWalk, "MALA": MALA, "NUTS": NUTS, "Slice": Slice}


def test_moves_leave_the_density_between_prior_and_posterior_as_it_is():
    assert joint_pvalue(MALA, 40, 20, 3, seed=1) > NEVER


def test_moves_with_a_mistake_are_told():
    kernel = functools.partial(BrokenHMC, mistake="refreshment")
    assert joint_pvalue(kernel, 40, 20, 3, seed=1) < NEVER


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_moves_of_every_kernel_for_long(name):
    for transitions in (1, 8):
        assert joint_pvalue(KERNELS[name], 10, 1000, transitions, seed=2) > NEVER
