"""An index with -1, as pandas numbers a missing category, is warned of in the first run."""

import warnings

import numpy as np
import pytest

from probtorch import InferenceWarning
from probtorch.distributions import Normal
from probtorch.effects import plate, sample
from probtorch.infer import SVI, AutoNormal, Target
from probtorch.optim import Adam
from probtorch.tensor import tensor

Y = tensor(np.linspace(-1.0, 1.0, 6))


def groups(codes, y):
    with plate("group", 3):
        effect = sample("effect", Normal(0.0, 1.0))
    with plate("row", len(y)):
        sample("y", Normal(effect[codes], 1.0), obs=y)


MISSING = np.array([0, 1, -1, 2, 2, -1], np.int8)


def test_a_missing_category_is_told_of_with_its_rows():
    told = r"(?s)takes the last row.*from 0 to 2.*-1 at index \(2,\), the first of 2 among 6"
    with pytest.warns(InferenceWarning, match=told) as caught:
        Target.from_model(groups, MISSING, Y)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_svi_tells_of_it_in_its_first_step():
    svi = SVI(groups, AutoNormal(groups), Adam({"lr": 0.1}), seed=0)
    with pytest.warns(InferenceWarning, match="takes the last row"):
        svi.step(MISSING, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svi.step(MISSING, Y)


@pytest.mark.parametrize(
    "codes",
    [
        MISSING % 4 % 3,
        np.array([-1, 0, 1]),  # the neighbour before, round a circle
        np.array([-1, -1, -1, -1, -1, -1]),
        np.array([-3, -2, -1, 0, 0, 0]),
    ],
    ids=["none missing", "circle", "all of them", "counted from the end"],
)
def test_other_indices_are_left_alone(codes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = Target.from_model(groups, codes, Y[: len(codes)])
    value, _ = target.value_and_grad(np.zeros(target.dim))
    assert np.isfinite(float(value))
