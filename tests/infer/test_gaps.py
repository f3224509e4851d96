"""Errors of models whose arguments or data have gaps name the argument or datum, and the row."""

import math

import numpy as np
import pytest

from probtorch.distributions import Gamma, NegativeBinomial2, Normal
from probtorch.effects import plate, sample
from probtorch.errors import DomainError, InferenceError
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, Target
from probtorch.ops.exponentials import exp
from probtorch.optim import Adam

X = np.linspace(-1.0, 1.0, 6)
COUNTS = np.array([0.0, 2.0, 1.0, 3.0, 0.0, 5.0])


def line(data, y):
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("row", len(y)):
        sample("y", Normal(slope * data["x"], 1.0), obs=y)


def counts(offset, y):
    # Starts far out have rates beyond all numbers: no reason to overlook the data.
    slope = sample("slope", Normal(0.0, 500.0))
    shape = sample("shape", Gamma(2.0, 0.5))
    with plate("row", len(y)):
        sample("y", NegativeBinomial2(exp(slope + offset), shape), obs=y)


def with_one(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def test_a_covariate_with_nan_is_named_with_its_row():
    told = r"(?s)parameter loc.*argument data\['x'\] has nan in 1 of 6 places.*\(4,\).*obs_mask="
    with pytest.raises(DomainError, match=told):
        Target.from_model(line, {"x": with_one(X, 4, math.nan)}, X)
    svi = SVI(line, AutoNormal(line), Adam({"lr": 0.1}), seed=0)
    with pytest.raises(DomainError, match=told):
        svi.step({"x": with_one(X, 4, math.nan)}, X)


def test_an_infinite_offset_is_named():
    mcmc = MCMC(NUTS(counts), num_samples=10, seed=1, progress_bar=False)
    told = r"(?s)argument 'offset' has inf in 1 of 6 places, the first at index \(2,\).*log of 0"
    with pytest.raises(InferenceError, match=told):
        mcmc.run(with_one(X, 2, -math.inf), COUNTS)


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1"), (1.5, "1.5"), (math.nan, "nan")])
def test_impossible_data_are_told_of_before_parameters_far_out(value, shown):
    mcmc = MCMC(NUTS(counts), num_samples=10, seed=1, progress_bar=False)
    told = rf"(?s)'y': 1 of 6 values are not in nonnegative_integer, the first {shown} at index \(3"
    with pytest.raises(InferenceError, match=told):
        mcmc.run(X, with_one(COUNTS, 3, value))
