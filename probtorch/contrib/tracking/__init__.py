"""Moving objects, of which something is seen: Pyro's room, with a filter for any functions."""

from typing import TYPE_CHECKING

from probtorch.contrib.tracking.nonlinear_hmm import NonlinearGaussianHMM
from probtorch.core.rooms import late_beside

__all__ = ["NonlinearGaussianHMM"]

_MODEL = "NonlinearGaussianHMM, of the functions by which states and values follow"

INSTEAD = {
    "EKFDistribution": _MODEL,
    "EKFState": "NonlinearGaussianHMM(...).filter(x), a MultivariateNormal",
    "MarginalAssignment": "distributions.OneOneMatching",
    "MarginalAssignmentPersistent": "distributions.OneTwoMatching",
    "NcpContinuous": _MODEL,
    "NcvContinuous": _MODEL,
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
