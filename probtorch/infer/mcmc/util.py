"""Pyro's room beside its samplers: a model on the unconstrained scale, and tables of draws.

See `probtorch.infer.util`, and `probtorch.diagnostics` for tables that say more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from probtorch.core.dtype import get_default_dtype
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.diagnostics import tensor_stats
from probtorch.diagnostics.older_forms import print_summary
from probtorch.distributions.transforms.transform import Transform
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import full
from probtorch.infer import util
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.starts.initialization import Strategy, init_to_uniform
from probtorch.ops.pieces import stack

__all__ = ["Predictive", "diagnostics", "initialize_model", "print_summary", "summary"]

# By site, by statistic.
Table: TypeAlias = dict[str, dict[str, TensorBase]]


def initialize_model(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Mapping[str, object] | None = None,
    *,
    max_plate_nesting: int | None = None,
    jit_compile: bool = False,
    jit_options: Mapping[str, object] | None = None,
    skip_jit_warnings: bool = False,
    num_chains: int = 1,
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
    max_plate_nesting, jit_compile, jit_options, skip_jit_warnings
        Accepted for Pyro's sake: plates place themselves, and the density is compiled.
    num_chains : int
        Of several, each starts somewhere else.
    init_strategy : callable
        Where to start: `init_to_uniform` and its kin.
    seed : int or Generator, optional
        The default generator if None.

    Returns
    -------
    initial_params : dict of str to Tensor
        Unconstrained values by site; of several chains, with a dim of chains in front.
    potential_fn : callable
        From such values to minus the log density.
    transforms : dict of str to Transform
        From the support of each site to its unconstrained values.
    prototype_trace : Trace
        Of a run at the starting point.
    """
    if num_chains < 1:
        raise ArgumentError(
            "initialize_model",
            expected="num_chains >= 1",
            got=str(num_chains),
            fix="say how many chains start",
        )
    source = seed if isinstance(seed, Generator) or seed is None else Generator(int(seed))
    infos = [
        util.initialize_model(
            model, model_args, model_kwargs, init_strategy=init_strategy, seed=source
        )
        for _ in range(num_chains)
    ]
    info = infos[0]
    run, start = info.model_trace, info.param_info.z
    values: dict[str, TensorLike] = {name: run[name].value for name in start}
    found = util.get_transforms(model, model_args, model_kwargs, values)
    if num_chains > 1:
        start = {name: stack([i.param_info.z[name] for i in infos]) for name in start}
    return start, info.potential_fn, {name: t.inv for name, t in found.items()}, run


def diagnostics(samples: Mapping[str, TensorLike], group_by_chain: bool = True) -> Table:
    """Return Pyro's effective sample size, `n_eff`, and `r_hat` of each site.

    Parameters
    ----------
    samples : dict of str to Tensor
        Of shape (chain, draw, *event), without chains (draw, *event).
    group_by_chain : bool
        Whether there is a dim of chains in front.

    Notes
    -----
    They are of the draws as they are, and nan for fewer than four. Prefer
    `probtorch.diagnostics.summary`, whose ranks see more.
    """
    found: Table = {}
    for name, given in samples.items():
        x = _by_chain(given, name, group_by_chain)
        few = x.array.shape[1] < 4
        nothing = full(x.array.shape[2:], math.nan, dtype=x.dtype)
        n_eff = nothing if few else tensor_stats.effective_sample_size(x)
        r_hat = nothing if few else tensor_stats.split_gelman_rubin(x)
        found[name] = {"n_eff": n_eff, "r_hat": r_hat}
    return found


def summary(
    samples: Mapping[str, TensorLike], prob: float = 0.9, group_by_chain: bool = True
) -> Table:
    """Return moments, median, the narrowest interval and diagnostics of each site, by name.

    Parameters
    ----------
    samples, group_by_chain
        As for `diagnostics`.
    prob : float, in (0, 1)
        Share of the draws in the interval, whose ends are named after it: "5.0%" and "95.0%".

    Returns
    -------
    dict of str to dict of str to Tensor
        By site "mean", "std", "median", both ends, "n_eff" and "r_hat", each of the event's shape.
    """
    checks = diagnostics(samples, group_by_chain)
    found: Table = {}
    for name, given in samples.items():
        x = _by_chain(given, name, group_by_chain)
        flat = x.reshape((-1, *x.array.shape[2:]))
        low, high = tensor_stats.hpdi(flat, prob)
        found[name] = {
            "mean": flat.mean(0),
            "std": flat.std(0),
            "median": flat.median(0).values,
            f"{50.0 * (1.0 - prob):.1f}%": low,
            f"{50.0 * (1.0 + prob):.1f}%": high,
            **checks[name],
        }
    return found


def _by_chain(given: TensorLike, name: str, group_by_chain: bool) -> TensorBase:
    x = as_tensor(given, name)
    x = x if x.is_floating_point() else x.to(dtype=get_default_dtype())
    if x.array.ndim < 1 + group_by_chain:
        raise ShapeError(
            name,
            expected="draws of shape (chain, draw, *event)"
            if group_by_chain
            else "draws of shape (draw, *event)",
            got=f"shape {tuple(x.array.shape)}",
            fix="pass group_by_chain=False for draws of one chain"
            if x.array.ndim
            else "pass all draws of the site, as mcmc.get_samples() returns them",
        )
    return x if group_by_chain else x.unsqueeze(0)


explain_calls(globals())
