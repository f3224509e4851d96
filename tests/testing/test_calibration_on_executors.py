"""Calibration on workers: the same ranks for any number of them."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError
from probtorch.infer import NUTS
from probtorch.testing import sbc
from tests.infer.remote.forked import forked_pool, quiet


def coin(tosses, y=None):
    p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    probtorch.sample("y", dist.Binomial(tosses, p), obs=y)


def ranks(replications=20, **settings):
    named = {"args": (10,), "num_samples": 15, "warmup_steps": 50, "progress_bar": False}
    return sbc(coin, NUTS, replications, **named, **settings)


@quiet
def test_ranks_do_not_depend_on_the_workers():
    found = []
    for workers in (1, 2):
        with forked_pool(workers) as pool:
            found.append(ranks(executor=pool))
    assert found[0].replications == 20 and not found[0].failed
    np.testing.assert_array_equal(found[0].ranks["p"], found[1].ranks["p"])
    with forked_pool() as pool:
        fixed = ranks(thinning=2, executor=pool)
    np.testing.assert_array_equal(fixed.ranks["p"], ranks(thinning=2).ranks["p"])


def test_what_is_no_executor_is_refused():
    with pytest.raises(ArgumentError, match=r"(?s)sbc\(executor=.*ProcessPoolExecutor"):
        ranks(executor=4)
