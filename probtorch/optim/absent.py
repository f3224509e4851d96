"""What stands in for optimizers of Pyro's and NumPyro's that are not in `probtorch.optim`."""

from __future__ import annotations

__all__ = ["INSTEAD"]

INSTEAD = {
    "DCTAdam": "ClippedAdam: time series have guides that know their order, such as AutoGaussian",
    "HorovodOptimizer": "SVI(..., distributed=True) has the gradients of all processes",
    "Minimize": "LBFGS, for losses without noise; AutoLaplaceApproximation finds its mode itself",
    "optax_to_numpyro": "optimizers are those of this module",
}
