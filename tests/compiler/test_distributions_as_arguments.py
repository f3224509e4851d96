"""Distributions among the arguments of a compiled function are read as they were given."""

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import compile, tensor
from probtorch.core.tree import flatten

WEIGHTS = {"probs": [2.0, 3.0, 5.0], "logits": [0.1, 0.2, -0.5]}
CLASSES = [dist.Categorical, dist.OneHotCategorical, lambda **kw: dist.Multinomial(3, **kw)]


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("make", CLASSES, ids=["Categorical", "OneHotCategorical", "Multinomial"])
def test_weights_that_read_as_normalised_compile(make, name):
    entropy = compile(lambda p: dist.kl_divergence(p, uniform) if categories else p.variance.sum())
    uniform, categories = dist.Categorical(logits=tensor(np.zeros(3))), make is dist.Categorical
    for shift in (0.0, 1.0):
        given = tensor(np.array(WEIGHTS[name]) * (1.0 + shift), requires_grad=True)
        p = make(**{name: given})
        (leaf,) = [x for x in flatten(p)[0] if x.shape == (3,)]
        assert leaf is given
        expected = dist.kl_divergence(p, uniform) if categories else p.variance.sum()
        np.testing.assert_allclose(entropy(p).item(), expected.item(), rtol=1e-12)
    assert entropy.reason is None
