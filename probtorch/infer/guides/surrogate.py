"""`AutoSurrogateLikelihoodDAIS`: draws moved by the gradients of a cheaper model.

Each step of `AutoDAIS` takes a gradient of the model. With much data that is dear, and a minibatch
makes the steps noisy. A surrogate with few data (some rows with learned weights, say) gives exact
gradients of a density that is near enough: what it lacks, the weights of the bound make up for.
"""

from __future__ import annotations

from collections.abc import Callable

from probtorch.core.dtype import float64
from probtorch.core.typed import DTypeLike
from probtorch.effects.handlers import block, trace
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.dais import AutoDAIS
from probtorch.infer.starts.initialization import Strategy, init_to_median

__all__ = ["AutoSurrogateLikelihoodDAIS"]


class AutoSurrogateLikelihoodDAIS(AutoDAIS):
    """Differentiable annealed importance sampling along the density of a surrogate.

    Parameters
    ----------
    model : callable
        With continuous latent sites, none of them in a plate that works on subsamples; its data may
        be.
    surrogate_model : callable
        Called without arguments: the same latent sites with the same supports, and a likelihood
        that is cheap. What it learns are `param` statements.
    K, base_dist, eta_init, eta_max, gamma_init, init_loc_fn, init_scale, prefix, dtype
        As for `AutoDAIS`.

    Raises
    ------
    ArgumentError
        If the surrogate is no callable, and as for `AutoDAIS`.
    InferenceError, ModelError
        At the first call: as for `AutoDAIS`, and if the latent sites of the surrogate are not those
        of the model.

    Notes
    -----
    The bound is that of the model, whatever the surrogate is: one that is far from it moves draws
    to where they weigh little, which costs tightness. Parameters of the surrogate are learned with
    the others. The data of the model are met once a step, by the bound, and may be minibatches.

    References
    ----------
    Zhang, Hsu, Li, Finn and Grosse (2021), "Differentiable annealed importance sampling and the
    perils of gradient noise"; Jankowiak and Phan (2022), "Surrogate likelihoods for variational
    annealed importance sampling".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoSurrogateLikelihoodDAIS
    >>> from probtorch.optim import Adam
    >>> x = probtorch.linspace(-2.0, 2.0, 1000)
    >>> y = 1.5 * x
    >>> def model():
    ...     slope = probtorch.sample("slope", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("row", 1000, subsample_size=100) as rows:
    ...         probtorch.sample("y", dist.Normal(slope * x[rows], 1.0), obs=y[rows])
    >>> def surrogate():
    ...     slope = probtorch.sample("slope", dist.Normal(0.0, 1.0))
    ...     few = probtorch.arange(50, 1000, 100)
    ...     weight = probtorch.param("weight", probtorch.full((10,), 100.0))
    ...     with probtorch.plate("few", 10), probtorch.handlers.scale(scale=weight):
    ...         probtorch.sample("y", dist.Normal(slope * x[few], 1.0), obs=y[few])
    >>> guide = AutoSurrogateLikelihoodDAIS(model, surrogate, K=3)
    >>> result = SVI(model, guide, Adam({"lr": 0.01}), seed=0).run(3, progress_bar=False)
    >>> result.params["weight"].shape
    Size([10])
    """

    def __init__(
        self,
        model: Callable[..., object],
        surrogate_model: Callable[[], object],
        *,
        K: int = 4,
        base_dist: str = "diagonal",
        eta_init: float = 0.01,
        eta_max: float = 0.1,
        gamma_init: float = 0.9,
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, K=K, base_dist=base_dist, eta_init=eta_init, eta_max=eta_max,
            gamma_init=gamma_init, init_loc_fn=init_loc_fn, init_scale=init_scale, prefix=prefix,
            dtype=dtype,
        )  # fmt: skip
        if not callable(surrogate_model):
            raise ArgumentError(
                "AutoSurrogateLikelihoodDAIS(surrogate_model=...)",
                expected="a model that takes no arguments",
                got=repr(surrogate_model),
                fix="write a function with the latent sites and a likelihood of few data",
            )
        self.surrogate_model = surrogate_model

    def _hidden(self) -> Handler:
        """Hide all but the parameters, which nobody else states."""
        return block(hide_fn=lambda site: site.kind != "param")

    def _run_density(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Run the surrogate, whose latent sites have to be the model's."""
        with trace() as seen:
            self.surrogate_model()
        found = seen.stochastic_nodes
        if set(found) != set(self.latents):
            raise InferenceError(
                "AutoSurrogateLikelihoodDAIS: the latent sites of the surrogate",
                expected=f"those of the model: {', '.join(map(repr, self.latents))}",
                got=", ".join(map(repr, found)) or "none",
                fix="state each with the name that it has in the model",
            )
