"""Whole networks: wrapping their layers, adding up divergences, stating them in a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from probtorch.contrib.bnn.layers import LAYERS, VariationalLayer
from probtorch.core.signatures import explain_calls, explained
from probtorch.effects.modules import module
from probtorch.effects.primitives import factor
from probtorch.effects.priors import Prior
from probtorch.effects.runtime import STATE
from probtorch.errors import DTypeError, ModelError
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = ["network_kl", "to_variational", "variational_module"]


def to_variational(
    net: Module,
    estimator: str = "flipout",
    prior: Prior | None = None,
    init_scale: float = 0.1,
) -> Module:
    """Return a copy of a network whose linear and convolution layers have normal weights.

    Parameters
    ----------
    net : Module
        Its weights are the means at the start: a trained network is a good one.
    estimator, prior, init_scale
        As for `VariationalLayer`. Subclasses of layers are left as they are, and so are layers
        without weights of their own kind (embeddings, norms, recurrent ones), which are learned.

    Returns
    -------
    Module

    Raises
    ------
    DTypeError
        If `net` is no module, or has no layer to wrap.

    Examples
    --------
    >>> from probtorch import nn
    >>> from probtorch.contrib.bnn import to_variational
    >>> to_variational(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), "local")
    Sequential(
      (0): VariationalLayer(
        estimator='local'
        (layer): Linear(in_features=1, out_features=4, bias=True)
      )
      (1): Tanh()
      (2): VariationalLayer(
        estimator='local'
        (layer): Linear(in_features=4, out_features=1, bias=True)
      )
    )
    """
    if not isinstance(net, Module):
        raise DTypeError(
            "to_variational",
            expected="an instance of nn.Module",
            got=type(net).__name__,
            fix="make the network first: to_variational(Net(...))",
        )
    net = copy.deepcopy(net)
    if type(net) in LAYERS:
        return VariationalLayer(net, estimator, prior, init_scale)
    wrapped: dict[int, Module] = {}
    for parent in list(net.modules()):
        if isinstance(parent, VariationalLayer):
            continue
        for name, child in list(parent._modules.items()):  # shared ones in all their places
            if child is not None and type(child) in LAYERS:
                # A layer that stands in two places is one layer.
                if id(child) not in wrapped:
                    wrapped[id(child)] = VariationalLayer(child, estimator, prior, init_scale)
                setattr(parent, name, wrapped[id(child)])
    if not wrapped:
        raise DTypeError(
            "to_variational",
            expected="a network with linear or convolution layers",
            got=f"{type(net).__name__}, which has none that is not wrapped already",
            fix="random_module gives the weights of any network a prior",
        )
    return net


def network_kl(net: Module) -> Tensor:
    """Return the divergence of a network's weights from their prior, in nats: that of all layers.

    Parameters
    ----------
    net : Module
        With at least one `VariationalLayer`; one that stands in several places counts once.

    Returns
    -------
    Tensor, shape ()

    Raises
    ------
    DTypeError
        If there is no such layer.

    Examples
    --------
    A loop without a model, on batches of a dataset of 60 000 rows::

        loss = cross_entropy(net(x), y) + network_kl(net) / 60_000
    """
    terms = [layer.kl() for layer in _layers(net)]
    if not terms:
        raise DTypeError(
            "network_kl",
            expected="a network with variational layers",
            got=f"{type(net).__name__} without one",
            fix="make it by to_variational(net)",
        )
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@explained("variational_module", meant={"nn_module": "net", "module": "net"})
def variational_module(name: str, net: Module) -> Module:
    """State a network of variational layers in a model, and return it.

    The posterior of its weights is learned with the parameters of the guide, and the divergence
    from their prior is one factor of the model, which no plate scales: minibatches count it as
    often as the whole dataset does, once.

    Parameters
    ----------
    name : str
        Parameters are called ``{name}.{dotted name}``, the factor ``{name}.kl``.
    net : Module
        With at least one `VariationalLayer`.

    Returns
    -------
    Module
        The network, as `module` returns it.

    Raises
    ------
    ModelError
        If it stands inside a plate.
    DTypeError
        If there is no variational layer.

    Notes
    -----
    It belongs into the model; the guide has what else is unknown, and may be empty. Under
    ``handlers.scale`` the divergence is scaled with the rest, which anneals it. It is for
    variational inference alone: to a sampler the density would be another at each evaluation
    (a warning tells of the draw), and `random_module` gives weights that are sampled.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch import nn
    >>> from probtorch.contrib.bnn import to_variational, variational_module
    >>> from probtorch.infer import SVI, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> net = to_variational(nn.Linear(2, 1))
    >>> def model(x, y):
    ...     mean = variational_module("net", net)(x).squeeze(-1)
    ...     with probtorch.plate("data", 1000, subsample_size=len(x)):
    ...         probtorch.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> def guide(x, y):
    ...     pass
    >>> svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO())
    >>> _ = svi.step(probtorch.ones(10, 2), probtorch.zeros(10))
    """
    if STATE.plates.frames:
        names = ", ".join(repr(frame.name) for frame in STATE.plates.frames)
        raise ModelError(
            f"variational_module {name!r}",
            expected="a statement outside of plates: there is one posterior of the weights",
            got=f"one inside {names}",
            fix="state it before the plate, and call what it returns inside",
        )
    stated = module(name, net)
    factor(f"{name}.kl", -network_kl(stated))
    return stated


def _layers(net: Module) -> Iterator[VariationalLayer]:
    for m in net.modules():
        if isinstance(m, VariationalLayer):
            yield m


explain_calls(globals())
