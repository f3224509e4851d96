"""Gaussian processes of evenly spaced series, by Pyro's names: in time linear in their length.

A Matern kernel of order 1/2, 3/2 or 5/2 is a state space model, so `GaussianHMM` has the density of
a series, and forecasts need its last state alone.
"""

from typing import TYPE_CHECKING

from probtorch.contrib.timeseries.matern import MaternKernel
from probtorch.contrib.timeseries.models import IndependentMaternGP, LinearlyCoupledMaternGP
from probtorch.core.rooms import late_beside

__all__ = ["IndependentMaternGP", "LinearlyCoupledMaternGP", "MaternKernel"]

INSTEAD = {
    "DependentMaternGP": "LinearlyCoupledMaternGP; of correlated noise a distributions.GaussianHMM",
    "GenericLGSSM": "distributions.GaussianHMM with parameters of a PyroModule",
    "GenericLGSSMWithGPNoiseModel": "distributions.GaussianHMM with a state of both parts",
    "TimeSeriesModel": "PyroModule",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
