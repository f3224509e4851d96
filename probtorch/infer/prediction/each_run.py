"""A model run once for each draw, for draws of whole runs, each of which may have other sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.trace import Trace
from probtorch.infer.model_runs import untraced

__all__ = [
    *("UNSHARED", "Values", "log_likelihood_by_runs", "predicted_by_runs", "shared_sites"),
    "unshared_sites",
]

# One run, by the names of its sites.
Values = Mapping[str, np.ndarray]
# The attribute of draws that names what only some runs have; files do not have the runs.
UNSHARED = "sites_of_some_runs"


def shared_sites(values: Sequence[Sequence[Values]]) -> dict[str, np.ndarray]:
    """Return what all runs have in one shape, as arrays (chain, draw, ...).

    Parameters
    ----------
    values : sequence of sequence of dict
        By chain and draw; of at least one.
    """
    every = [draw for chain in values for draw in chain]
    names = [
        name
        for name, x in every[0].items()
        if all(name in draw and draw[name].shape == x.shape for draw in every)
    ]
    return {name: np.array([[draw[name] for draw in chain] for chain in values]) for name in names}


def unshared_sites(
    values: Sequence[Sequence[Values]], shared: Mapping[str, np.ndarray]
) -> dict[str, str]:
    """Return the attribute of draws that says which sites only some runs have, if there are any.

    Parameters
    ----------
    values : sequence of sequence of dict
        By chain and draw.
    shared : dict of str to ndarray
        What all runs have, by name.
    """
    names = {name for chain in values for draw in chain for name in draw if name not in shared}
    return {UNSHARED: ", ".join(sorted(names))} if names else {}


def predicted_by_runs(
    model: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    values: Sequence[Sequence[Values]],
    seed: int | Generator | None = None,
) -> dict[str, np.ndarray]:
    """Run a model once for each draw, with its values, and return what else it draws or computes.

    Parameters
    ----------
    model : callable
        Draws what is to be predicted: without data for it.
    args, kwargs
        What it is called with.
    values : sequence of sequence of dict
        By chain and draw.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    Returns
    -------
    dict of str to ndarray, each (chain, draw, *shape)
        Sites that all runs have in one shape: those without value and data, and deterministic ones.
    """

    def predicted(seen: Trace, draw: Values) -> Values:
        return {
            name: to_host(site.value.array)
            for name, site in seen.nodes.items()
            if site.kind == "deterministic"
            or (site.kind == "sample" and not site.observed and name not in draw)
        }

    return shared_sites(_at_draws(model, args, kwargs, values, seed, predicted))


def log_likelihood_by_runs(
    model: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    values: Sequence[Sequence[Values]],
) -> dict[str, np.ndarray]:
    """Run a model once for each draw, with its values, and return the log density of its data.

    Parameters
    ----------
    model : callable
    args, kwargs
        What it is called with, data included.
    values : sequence of sequence of dict
        By chain and draw.

    Returns
    -------
    dict of str to ndarray, each (chain, draw, *observations)
        Natural log; unscaled, 0 where masked. Of observed sites that all runs have in one shape.
    """

    def likelihood(seen: Trace, draw: Values) -> Values:
        out: dict[str, np.ndarray] = {}
        for name in seen.observation_nodes:
            seen[name].compute_log_prob()
            density = seen[name].unscaled_log_prob
            assert density is not None  # it has just been computed
            out[name] = to_host(density.array)
        return out

    return shared_sites(_at_draws(model, args, kwargs, values, None, likelihood))


def _at_draws(
    model: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    values: Sequence[Sequence[Values]],
    seed: int | Generator | None,
    take: Callable[[Trace, Values], Values],
) -> list[list[Values]]:
    """What is taken of the model's trace at each draw, by chain and draw."""
    generator = default_generator if seed is None else seed
    generator = generator if isinstance(generator, Generator) else Generator(generator)
    found: list[list[Values]] = []
    with no_grad(), untraced(), seed_handler(None, generator):
        for chain in values:
            found.append([])
            for draw in chain:
                known = {name: wrap(x) for name, x in draw.items()}
                with trace() as seen, substitute(data=known):
                    model(*args, **kwargs)
                found[-1].append(take(seen, draw))
    return found


explain_calls(globals())
