"""`log_density`: the joint log density of a model at given values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.trace import Trace
from probtorch.errors import ModelError
from probtorch.tensor import Tensor

__all__ = ["log_density"]


def log_density(
    model: Callable[..., object],
    model_args: tuple[object, ...] = (),
    model_kwargs: dict[str, object] | None = None,
    params: Mapping[str, TensorLike] | None = None,
) -> tuple[Tensor, Trace]:
    """Return the joint log density of a model at given latent values, and the trace of that run.

    Parameters
    ----------
    model : callable
    model_args, model_kwargs
        What it is called with.
    params : dict
        A value for every latent site, constrained; parameters may be given too.

    Returns
    -------
    log_joint : Tensor, shape ()
        Natural log, scaled and masked; differentiable in `params`.
    trace : Trace

    Raises
    ------
    ModelError
        If a latent site has no value, a name is unknown, or a site has batch dims outside any
        plate.
    """
    values = params or {}
    wrapped = substitute(model, data=values, strict=True)
    run = trace(wrapped).get_trace(*model_args, **(model_kwargs or {}))
    latent = run.stochastic_nodes
    missing = [name for name in latent if name not in values]
    if missing:
        raise ModelError(
            f"log_density: no value for site {missing[0]!r}",
            expected=f"values for all latent sites: {', '.join(map(repr, latent))}",
            got=f"values for {', '.join(map(repr, values)) or 'none'}",
            fix="add it to params, or observe it with condition",
            at=run[missing[0]].location,
        )
    return run.log_prob_sum(), run


explain_calls(globals())
