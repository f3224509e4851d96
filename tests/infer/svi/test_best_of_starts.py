"""Fits from several starts: the best is kept, wherever they ran."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import SVI, AutoDelta, best_of_starts, init_to_uniform
from probtorch.infer.remote import parcels
from probtorch.optim import Adam
from tests.infer.remote.forked import forked_pool, quiet

Y = probtorch.tensor(3.0)


def two_modes(y):
    """Of the signs of x the positive one is better."""
    x = probtorch.sample("x", dist.Normal(0.0, 10.0))
    probtorch.sample("y", dist.Normal(x * x * (1.0 + 0.05 * probtorch.tanh(x)), 0.05), obs=y)
    probtorch.factor("right", 5.0 * probtorch.tanh(x))


def make(generator):
    guide = AutoDelta(two_modes, init_loc_fn=init_to_uniform)
    return SVI(two_modes, guide, Adam({"lr": 0.05}), seed=generator)


@quiet
def test_best_start_is_kept_and_the_same_on_an_executor():
    found = best_of_starts(make, 300, Y, num_starts=5, seed=0)
    with forked_pool() as pool:
        elsewhere = best_of_starts(make, 300, Y, num_starts=5, seed=0, executor=pool)
    assert found.number == elsewhere.number == min(found.final, key=found.final.get)
    for i, losses in found.losses.items():
        np.testing.assert_array_equal(losses, elsewhere.losses[i])
    # Both signs were found.
    assert max(found.final.values()) - min(found.final.values()) > 5.0
    assert float(next(iter(found.best.params.values()))) > 1.0
    assert "5" in repr(found)


def test_closures_need_nothing_that_packs_them_here(monkeypatch):
    monkeypatch.setattr(parcels, "cloudpickle", None)

    def model(y):
        probtorch.sample("y", dist.Normal(probtorch.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def of_closure(generator):
        return SVI(model, AutoDelta(model), Adam({"lr": 0.05}), seed=generator)

    found = best_of_starts(of_closure, 200, Y, num_starts=2, seed=0)
    assert not found.failed
    assert float(next(iter(found.best.params.values()))) == pytest.approx(1.5, abs=0.1)


def test_what_fails_is_named():
    with pytest.raises(ArgumentError, match=r"(?s)returns a new SVI.*returns int"):
        best_of_starts(lambda generator: 3, 10, Y, num_starts=2)
    with pytest.raises(ArgumentError, match="at least 1"):
        best_of_starts(make, 10, Y, num_starts=0)

    def bad(y):
        probtorch.factor("nan", probtorch.sample("x", dist.Normal(0.0, 1.0)) * float("nan"))

    with pytest.raises(InferenceError):
        best_of_starts(lambda g: SVI(bad, AutoDelta(bad), Adam({"lr": 0.1}), seed=g), 10, Y)
