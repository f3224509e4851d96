"""NumPyro's functions on the unconstrained scale: draws in front of values, and what is refused."""

import numpy as np
import pytest

import probtorch
from probtorch.distributions import Dirichlet, HalfNormal
from probtorch.effects import deterministic, sample
from probtorch.errors import ShapeError
from probtorch.infer.mcmc import util as mcmc_util
from probtorch.infer.util import constrain_fn
from probtorch.tensor import tensor


def model():
    scale = sample("scale", HalfNormal(1.0))
    sample("w", Dirichlet(tensor(np.ones(3))))
    deterministic("twice", 2.0 * scale)


def test_draws_are_constrained_one_by_one():
    free = {"scale": np.arange(10.0).reshape(2, 5) / 10.0, "w": np.zeros((2, 5, 2))}
    free["w"][1, 3] = 0.3, -0.7
    found = constrain_fn(model, (), {}, free, return_deterministic=True, batch_ndims=2)
    np.testing.assert_allclose(found["scale"].numpy(), np.exp(free["scale"]), rtol=1e-12)
    np.testing.assert_allclose(found["twice"].numpy(), 2.0 * np.exp(free["scale"]), rtol=1e-12)
    one = constrain_fn(model, (), {}, {n: x[1, 3] for n, x in free.items()})
    assert set(one) == {"scale", "w"}
    np.testing.assert_allclose(found["w"].numpy()[1, 3], one["w"].numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "batch_ndims", "got"),
    [((2, 4, 2), 2, r"\(2, 5, 2\)\s+got: +shape \(2, 4, 2\)"), ((5, 2), 0, "batch_ndims")],
)
def test_dims_of_draws_that_differ_are_refused(shape, batch_ndims, got):
    lead = (2, 5) if batch_ndims else ()
    with pytest.raises(ShapeError, match=rf"(?s)value of 'w'.*{got}"):
        constrain_fn(
            model, (), {}, {"scale": np.zeros(lead), "w": np.zeros(shape)}, batch_ndims=batch_ndims
        )


def test_a_summary_of_what_are_no_draws_says_so():
    for samples, options in (
        ({"x": probtorch.tensor(1.0)}, {}),
        ({"x": probtorch.ones(5)}, {}),
        ({"x": probtorch.tensor(1.0)}, {"group_by_chain": False}),
    ):
        for table in (mcmc_util.summary, mcmc_util.diagnostics):
            with pytest.raises(ShapeError, match=r"draws of shape \(.*draw"):
                table(samples, **options)
