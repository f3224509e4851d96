"""Neural networks as parts of a model: `module`, whose weights are learned, and `random_module`,
whose weights are random.

Both state one site per weight, named as the network names it (``"net.0.weight"``), and return a
network to call. Where every weight kept its own value that is the network itself. Where a handler
or an inference gave others, it is a copy of the tree of modules that shares everything but those
weights (`nn.utils.with_weights`). The network is never written to: runs in several threads do not
meet, and an error leaves nothing to put back.

pyro_module.py has modules that state their weights themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import CodeType

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.effects.params import get_param_store
from probtorch.effects.primitives import owned_param, sample_from
from probtorch.effects.priors import Prior, check_priors, fit_prior, prior_of
from probtorch.errors import DTypeError
from probtorch.nn.module import Module
from probtorch.nn.utils import with_weights
from probtorch.tensor import Tensor

__all__ = [
    "module",
    "name_tree",
    "random_module",
    "state_weights",
    "stated_weights",
]


def module(name: str, nn_module: Module, update_module_params: bool = False) -> Module:
    """State the parameters of a network, so that inference learns them; return the network.

    Parameters
    ----------
    name : str
        Sites are called ``{name}.{dotted name of the parameter}``.
    nn_module : Module
        Model and guide may state the same one.
    update_module_params : bool
        If the parameter store has other parameters under these names (they were loaded, or belong
        to a network made anew in each run), take their values. By default that is an error in an
        inference; outside of one, a network is used as it is.

    Returns
    -------
    Module
        The network itself, unless a handler gave some parameter another value: then one that
        computes with these values and shares all else.

    Raises
    ------
    DTypeError
        If `nn_module` is not an instance of `nn.Module`, or `name` is not a string.
    ModelError
        If an inference has met another network of this name.
    ShapeError
        If values from the store have other shapes than the parameters.

    Notes
    -----
    Parameters belong to the network: the store refers to them, and ``state_dict``, ``parameters``
    and an optimizer over them work as ever. Frozen ones (``requires_grad=False``) are not stated.
    Training and evaluation mode are left as they are. What `forward` assigns to plain attributes is
    lost where a copy computes; buffers are shared.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch import nn
    >>> from probtorch.infer import SVI, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> net = nn.Linear(2, 1)
    >>> def model(x, y):
    ...     loc = module("net", net)(x).squeeze(-1)
    ...     with probtorch.plate("data", len(x)):
    ...         probtorch.sample("y", dist.Normal(loc, 1.0), obs=y)
    >>> def guide(x, y):
    ...     pass
    >>> svi = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO())
    >>> x = probtorch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> _ = svi.step(x, probtorch.tensor([1.0, 2.0]))
    >>> sorted(svi.get_params())
    ['net.bias', 'net.weight']
    """
    frame = sys._getframe(2)
    _check("module", name, nn_module)
    name_tree(nn_module, name)
    found = state_weights(name, nn_module, (frame.f_code, frame.f_lasti), update_module_params)
    if found and update_module_params:
        _take_from_store(name, nn_module)
    return with_weights(nn_module, found)


def random_module(name: str, nn_module: Module, prior: Prior) -> Module:
    """Return a network whose weights are random sites, for this run of the model.

    Parameters
    ----------
    name : str
        Sites are called ``{name}.{dotted name of the parameter}``.
    nn_module : Module
        It is not changed. Its own values only say the shapes.
    prior : Distribution, dict or callable
        A distribution for all parameters; a dict by dotted name (``"0.weight"``), or by its last
        part (``"bias"``); or ``prior(name, shape)``, a distribution or None. Distributions
        broadcast to the shape of the parameter, which is one draw. Parameters without a prior are
        learned, as by `module`; frozen ones have a prior only if a dict names them.

    Returns
    -------
    Module
        Computes with the weights drawn; buffers and all else are those of `nn_module`. It is called
        at once, as in NumPyro; Pyro's function of this name returns one to draw it with.

    Raises
    ------
    ArgumentError
        If a dict names a parameter that is not there.
    DTypeError
        If `nn_module` is no module, or a prior is no distribution.
    ShapeError
        If a prior does not broadcast to the shape of its parameter.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch import nn
    >>> from probtorch.effects.handlers import trace
    >>> mlp = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> def model(x):
    ...     net = random_module("net", mlp, {"weight": dist.Normal(0.0, 1.0),
    ...                                      "bias": dist.Normal(0.0, 0.1)})
    ...     return net(x)
    >>> list(trace(model).get_trace(probtorch.zeros(5, 1)))
    ['net.0.weight', 'net.0.bias', 'net.2.weight', 'net.2.bias']
    """
    frame = sys._getframe(2)
    where_from = frame.f_code, frame.f_lasti
    _check("random_module", name, nn_module)
    name_tree(nn_module, name)
    named = list(stated_weights(name, nn_module))
    inner = [full[len(name) + 1 :] for full, _ in named]
    check_priors(f"random_module {name!r}", prior, inner)
    by_name = isinstance(prior, Mapping)
    found = {}
    for (full, p), short in zip(named, inner, strict=True):
        shape = tuple(p.shape)
        chosen = prior_of(prior, short, shape) if by_name or p.requires_grad else None
        if chosen is not None:
            fn = fit_prior(chosen, shape, f"random_module: prior of {full!r}")
            found[id(p)] = p, sample_from(full, fn, (), {}, None, None, None, where_from)
        elif p.requires_grad:
            _keep(found, p, owned_param(full, p, constraints.real, None, where_from))
    _see_buffers(name, nn_module)
    return with_weights(nn_module, found)


# ------------------------------------------------------------------------------- stating weights

# Weights by the id of the parameter they replace, which is kept beside them so that it stays alive.
Weights = dict[int, tuple[Tensor, Tensor]]


def stated_weights(name: str, net: Module) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(site name, parameter)``, each parameter once; not those that hold a `PyroParam`."""
    seen = set()
    for path, m in net.named_modules(prefix=name):
        constrained = m.__dict__.get("_pyro_params", {})
        for attribute, p in m._parameters.items():
            if (
                p is None
                or id(p) in seen
                or attribute.removesuffix("_unconstrained") in constrained
            ):
                continue
            seen.add(id(p))
            yield f"{path}.{attribute}" if path else attribute, p


def state_weights(
    name: str, net: Module, where_from: tuple[CodeType, int], from_store: bool = False
) -> Weights:
    """State the parameters of a network that are not frozen; return those with another value."""
    found: Weights = {}
    for full, p in stated_weights(name, net):
        if p.requires_grad:
            value = owned_param(full, p, constraints.real, None, where_from, from_store)
            _keep(found, p, value)
    _see_buffers(name, net)
    return found


def _keep(found: Weights, p: Tensor, value: Tensor) -> None:
    if value is not p:
        found[id(p)] = p, value


def _see_buffers(name: str, net: Module) -> None:
    buffers = get_param_store().buffers
    for full, b in net.named_buffers(prefix=name):
        buffers[full] = b


def name_tree(net: Module, name: str) -> None:
    """Tell the modules below `net` that state their own weights what they are called."""
    for path, m in net.named_modules(prefix=name):
        if "_pyro_name" in m.__dict__:
            m.__dict__["_pyro_name"] = path


def _take_from_store(name: str, net: Module) -> None:
    """Copy the values of the store into the parameters that it does not refer to."""
    store = get_param_store()
    for full, p in stated_weights(name, net):
        if full in store and store.unconstrained(full) is not p:
            Module._overwrite(p, store.unconstrained(full).detach())


def _check(statement: str, name: object, net: object) -> None:
    if not isinstance(name, str):
        raise DTypeError(
            statement,
            expected="a name as its first argument",
            got=f"{type(name).__name__} {name!r:.60}",
            fix=f"write {statement}('net', net)",
        )
    if not isinstance(net, Module):
        is_class = isinstance(net, type)
        raise DTypeError(
            f"{statement} {name!r}",
            expected="an instance of nn.Module",
            got=f"the class {net.__name__}"
            if isinstance(net, type)
            else f"{type(net).__name__} {net!r:.60}",
            fix="make the network first: net = Net(...)"
            if is_class
            else "pass the network itself, or use param for a single tensor",
        )


explain_calls(globals())
