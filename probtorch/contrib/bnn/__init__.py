"""Bayesian layers: weights with a normal posterior, and noise that suits the layer.

A `VariationalLayer` wraps a linear or convolution layer. Its weights are independent and normal,
and its estimators give the output of weights drawn from them with less variance than one draw for
the whole batch. `to_variational` makes a network of any other, `variational_module` states it in a
model, with the divergence from the prior as one factor, and `network_kl` is that divergence, for
loops of one's own. Pyro's ``HiddenLayer`` is a `VariationalLayer` around `Linear` with
``estimator="local"``. Read layers.py first.
"""

from probtorch.contrib.bnn.layers import VariationalLayer
from probtorch.contrib.bnn.networks import network_kl, to_variational, variational_module

__all__ = [
    "VariationalLayer",
    "network_kl",
    "to_variational",
    "variational_module",
]
