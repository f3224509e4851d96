"""`AutoDAIS`: a guide that carries its draws towards the posterior by annealed, learned dynamics.

A draw of a normal base is moved by a few steps of Hamiltonian dynamics at rising temperatures, with
momenta that are refreshed in part after each. No step is refused, so the whole is differentiable,
and step sizes, temperatures and base are learned together. The density of the last point alone is
not known; what stands in its place, ratios of the momenta's densities, makes a bound that is valid
all the same (an annealed importance sampler's weight).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.arguments import choice_of
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block, substitute, trace
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.effects.runtime import Handler
from probtorch.infer.guides.annealing import (
    AnnealingSteps,
    annealed,
    depth_of,
    no_closed_form,
    no_part,
    run_of_continuous,
)
from probtorch.infer.guides.base import SummarisedByDraws, drawn_side_by_side, particles_here
from probtorch.infer.guides.joint import ScaledGuide
from probtorch.infer.model_runs import lifted
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["AutoDAIS"]

BASES = ("diagonal", "cholesky")


class AutoDAIS(SummarisedByDraws, ScaledGuide):
    """Differentiable annealed importance sampling from a normal base.

    Parameters
    ----------
    model : callable
        Differentiable in its latent sites, all of which are continuous.
    K : int
        Annealing steps, each with one gradient of the model.
    base_dist : {"diagonal", "cholesky"}
        Whether the normal that draws begin with has correlations.
    eta_init, eta_max : float
        Step size at the start, and at most.
    gamma_init : float, in (0, 1)
        Share of the momentum that a step leaves, at the start.
    init_loc_fn : callable
        Where the base starts; see `AutoGuide`.
    init_scale : float
        Standard deviation of the base to start with, on the unconstrained scale.
    prefix, dtype
        See `AutoGuide`.

    Raises
    ------
    InferenceError
        At the first call: if the model has discrete latent sites or works on subsamples of latent
        rows; in an `AutoGuideList`.

    Notes
    -----
    Parameters are ``auto_loc``, ``auto_scale`` (and ``auto_scale_tril`` with a diagonal of ones) of
    the base, ``auto_eta_0`` and ``auto_eta_coeff``, so that the step size at temperature b is
    ``eta_max sigmoid(logit(eta_0 / eta_max) + eta_coeff b)``, ``auto_gamma``,
    ``auto_beta_increments``, whose cumulated sum, scaled to end at 1, are the temperatures, and
    ``auto_inv_mass_matrix`` (dim,).

    Where the model works on a minibatch of its data, so do the steps, on one of their own. Draws,
    medians and quantiles, those of 10 000 draws, are made with the arguments of the first call.
    There is no `get_posterior`: the guide has no density in closed form.

    References
    ----------
    Zhang, Hsu, Li, Finn and Grosse (2021), "Differentiable annealed importance sampling and the
    perils of gradient noise"; Geffner and Domke (2021), "MCMC variational inference via uncorrected
    Hamiltonian annealing".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoDAIS
    >>> from probtorch.optim import Adam
    >>> def banana():
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(x * x, 0.5))
    >>> guide = AutoDAIS(banana, K=3)
    >>> result = SVI(banana, guide, Adam({"lr": 0.01}), seed=0).run(3, progress_bar=False)
    >>> guide.sample_posterior(100)["x"].shape
    Size([100])
    """

    def __init__(
        self,
        model: Callable[..., object],
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
        super().__init__(model, init_loc_fn, init_scale, prefix=prefix, dtype=dtype)
        self.base_dist = choice_of("AutoDAIS", "base_dist", base_dist, BASES)
        self.steps = AnnealingSteps("AutoDAIS", K, eta_init, eta_max, gamma_init)
        self.K, self.eta_init, self.eta_max, self.gamma_init = K, eta_init, eta_max, gamma_init
        # What the first call was given, and how many batch dims the model has.
        self._given: tuple[tuple[object, ...], dict[str, object]] = ((), {})
        self._depth = 0

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model to find its latent sites, and keep the arguments."""
        if self.latents:
            return
        given = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
        self._depth = depth_of(run_of_continuous(self, *given))
        self._given = given
        super().setup(*args, **kwargs)

    # -------------------------------------------------------------------------------- drawing

    def forward(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Draw all latent sites; return their values by name."""
        self.setup(*args, **kwargs)
        with self._in_store():
            return self._put(self._annealed(args, kwargs), self._plates(args, kwargs))

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """Refuse: in a list of guides the density of the other sites is not known here."""
        raise no_part(self.__name__)

    def distribution(self) -> Distribution:
        """Return the distribution of the vector that annealing begins with."""
        loc, scale = self._loc_and_scale()
        if self.base_dist == "diagonal":
            return Normal(loc, scale).to_event(1)
        tril = param(
            f"{self.prefix}_scale_tril",
            lambda: np.eye(self.dim, dtype=self.dtype),
            constraints.unit_lower_cholesky,
        )
        return MultivariateNormal(loc, scale_tril=unsqueeze(scale, -1) * tril, validate_args=False)

    def _annealed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TensorBase:
        """Draw from the base, move the draw, and state it as the helper site of the vector."""
        if self.precise:
            args, kwargs = lifted(args), lifted(kwargs)
        base, helper = self.distribution(), {"is_auxiliary": True}
        z = sample(f"_{self.prefix}_base", base, infer=helper)
        unit = Normal(wrap(np.zeros((self.K + 1, self.dim), self.dtype)), 1.0).to_event(2)
        # Their densities are in the ratios below.
        noise = sample(f"_{self.prefix}_momentum", unit.mask(False), infer=helper)
        schedule = self.steps.schedule(self.prefix, self.dim, self.dtype)
        z, log_ratio = annealed(
            z, noise, schedule, lambda at, beta: self._slope(at, base, total(beta), args, kwargs)
        )
        return sample(f"_{self.prefix}_latent", Delta(z, -log_ratio, 1), infer=helper)

    def _slope(
        self,
        z: TensorBase,
        base: Distribution,
        beta: TensorBase,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> TensorBase:
        """Gradient of the tempered log density at each particle's point."""
        recording = z.requires_grad
        with enable_grad():
            at = z if recording else z.detach().requires_grad_()
            density = beta * self._log_joint(at, args, kwargs)
            density = density + (1.0 - beta) * total(base.log_prob(at))
            # Particles do not see each other, so the gradient of the sum is that of each.
            (slope,) = grad(density, [at], create_graph=recording)
        return slope

    def _log_joint(
        self, z: TensorBase, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> TensorBase:
        """Log density of the model, with Jacobians, summed over all particles."""
        values, found = {}, total(z) * 0.0
        for name, free in self._cut(z).items():
            values[name], log_det = self.latents[name].transform.call_and_ladj(free)
            found = found + total(log_det)
        # Handlers outside do not see this run, but several particles are several here too.
        with contextlib.ExitStack() as stack:
            for handler in (self._hidden(), *particles_here()):
                stack.enter_context(handler)
            seen = stack.enter_context(trace())
            stack.enter_context(substitute(data=values))
            self._run_density(args, kwargs)
        for site in seen.nodes.values():
            if site.has_density:
                found = found + total(site.compute_log_prob())
        return found

    def _hidden(self) -> Handler:
        """What keeps the run of the density from handlers outside."""
        return block()

    def _run_density(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Run what draws are moved by: the model."""
        self.model(*args, **kwargs)

    # ------------------------------------------------------------------------------- questions

    def get_posterior(self) -> NoReturn:
        """Refuse: the guide has no density in closed form; ask for draws."""
        raise no_closed_form(self.__name__)

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws on the unconstrained scale; see `AutoGuide.free_draws`."""
        hidden = block(hide_fn=lambda site: site.kind != "param")
        # The model's density is part of each draw: draws side by side have to be draws apart.
        with hidden, seed_handler(None, generator):
            return drawn_side_by_side(lambda: self._cut(self._annealed(*self._given), 0), shape)
