"""Pyro's name for what a model is on the unconstrained scale; see `probtorch.infer.util`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.transforms.transform import Transform
from probtorch.effects.trace import Trace
from probtorch.infer import util
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.starts.initialization import Strategy, init_to_uniform

__all__ = ["Predictive", "initialize_model"]


def initialize_model(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Mapping[str, object] | None = None,
    *,
    init_strategy: Strategy = init_to_uniform,
    seed: int | Generator | None = None,
) -> tuple[
    dict[str, TensorBase],
    Callable[[Mapping[str, TensorLike]], TensorBase],
    dict[str, Transform],
    Trace,
]:
    """Return what a sampler of one's own needs of a model, in Pyro's order.

    Parameters
    ----------
    model, model_args, model_kwargs
        The model and what it is called with.
    init_strategy : callable
        Where to start: `init_to_uniform` and its kin.
    seed : int or Generator, optional
        The default generator if None.

    Returns
    -------
    initial_params : dict of str to Tensor
        Unconstrained values by site.
    potential_fn : callable
        From such values to minus the log density.
    transforms : dict of str to Transform
        From the support of each site to its unconstrained values.
    prototype_trace : Trace
        Of a run at the starting point.
    """
    info = util.initialize_model(
        model, model_args, model_kwargs, init_strategy=init_strategy, seed=seed
    )
    run, start = info.model_trace, info.param_info.z
    values: dict[str, TensorLike] = {name: run[name].value for name in start}
    found = util.get_transforms(model, model_args, model_kwargs, values)
    return start, info.potential_fn, {name: t.inv for name, t in found.items()}, run


explain_calls(globals())
