"""Draws that the diagnostics tests share."""

import warnings

import numpy as np
import pytest

from probtorch.diagnostics import Draws


@pytest.fixture(scope="session")
def az():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pytest.importorskip("arviz")


@pytest.fixture
def schools():
    """A small posterior in the shape of eight schools, with named dims and sampler statistics."""
    rng = np.random.default_rng(8)
    shape = (4, 200)
    names = ["Choate", "Deerfield", "Phillips"]
    return Draws(
        {
            "mu": rng.normal(4.0, 3.0, shape),
            "tau": np.exp(rng.normal(size=shape)),
            "theta": rng.normal(size=(*shape, 3)),
        },
        {
            "diverging": np.zeros(shape, bool),
            "energy": rng.normal(size=shape),
            "lp": rng.normal(size=shape),
            "tree_depth": rng.integers(1, 5, shape),
            "reached_max_treedepth": np.zeros(shape, bool),
        },
        dims={"theta": ("school",), "y": ("school",)},
        coords={"school": names},
        groups={
            "observed_data": {"y": np.array([28.0, 8.0, -3.0])},
            "log_likelihood": {"y": rng.normal(-2.0, 0.1, (*shape, 3))},
            "posterior_predictive": {"y": rng.normal(size=(*shape, 3))},
        },
        attrs={"model_name": "schools", "sampling_time": 0.25, "tuning_steps": 100},
    )
