"""`AutoDAIS`: a guide that carries its draws towards the posterior by annealed, learned dynamics.

A draw of a normal base is moved by a few steps of Hamiltonian dynamics at rising temperatures, with
momenta that are refreshed in part after each. No step is refused, so the whole is differentiable,
and step sizes, temperatures and base are learned together. The density of the last point alone is
not known; what stands in its place, ratios of the momenta's densities, makes a bound that is valid
all the same (an annealed importance sampler's weight).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.autograd.tape import grad
from probtorch.core.arguments import choice_of, count_of
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block, substitute, trace
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.placing import replicate
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.effects.runtime import Handler, generator_in_force
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.base import SummarisedByDraws, off_tape, particles_here
from probtorch.infer.guides.joint import ScaledGuide
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.ops.arithmetic import maximum, minimum, sqrt
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.reduction import cumsum
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
    ``eta_0 + eta_coeff b``, ``auto_gamma``, ``auto_beta_increments``, whose cumulated sum, scaled
    to end at 1, are the temperatures, and ``auto_inv_mass_matrix`` (dim,).

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
        self.K = count_of("AutoDAIS", "K", K, expected="a number of annealing steps")
        self.base_dist = choice_of("AutoDAIS", "base_dist", base_dist, BASES)
        for name, value, most in (
            ("eta_max", eta_max, math.inf),
            ("eta_init", eta_init, eta_max),
            ("gamma_init", gamma_init, 1.0),
        ):
            if not isinstance(value, (int, float)) or not 0.0 < value < most:
                raise ArgumentError(
                    f"AutoDAIS({name}=...)",
                    expected=f"a number > 0 and < {most:g}",
                    got=repr(value),
                    fix="leave it out for the default",
                )
        self.eta_init, self.eta_max, self.gamma_init = eta_init, eta_max, gamma_init
        # What the first call was given, and how many batch dims the model has.
        self._given: tuple[tuple[object, ...], dict[str, object]] = ((), {})
        self._depth = 0

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model to find its latent sites, and keep the arguments."""
        if self.latents:
            return
        given = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
        in_force = generator_in_force() or default_generator
        with contextlib.ExitStack() as stack:
            stack.enter_context(no_grad())
            if self.precise:
                stack.enter_context(in_float64())
            stack.enter_context(block())
            seen = stack.enter_context(trace())
            stack.enter_context(seed_handler(None, Generator(*in_force.get_state())))
            self.model(*given[0], **given[1])
        for name in seen.stochastic_nodes:
            if getattr(seen[name].fn, "is_discrete", False):
                raise InferenceError(
                    f"{self.__name__}: site {name!r} is discrete",
                    expected="a model with a gradient in all of its latent sites",
                    got=f"a latent {type(seen[name].fn).__name__}",
                    fix="sum it out in the model (MixtureSameFamily, logsumexp), or use AutoNormal "
                    "with TraceEnum_ELBO",
                    at=seen[name].location,
                )
        frames = [f for site in seen.nodes.values() for f in site.plates]
        self._depth = max((-f.dim for f in frames if f.dim is not None), default=0)
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
        raise InferenceError(
            f"{self.__name__}.draw",
            expected="this guide alone, for all sites: its steps need the density of them all",
            got="a part of an AutoGuideList",
            fix="call it with the model's arguments, or put another guide into the list",
        )

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
        betas, etas, gamma, spread = self._schedule()
        # Momenta divided by their standard deviation, so that all are standard normal.
        p = noise[..., 0, :]
        log_ratio = total(p, -1) * 0.0
        for k in range(self.K):
            step, beta = etas[k] * spread, betas[k]
            z = z + 0.5 * step * p
            slope = self._slope(z, base, beta, args, kwargs)
            moved = p + step * slope
            z = z + 0.5 * step * moved
            log_ratio = log_ratio + 0.5 * total(p * p - moved * moved, -1)
            p = gamma * moved + sqrt(1.0 - gamma * gamma) * noise[..., k + 1, :]
        return sample(f"_{self.prefix}_latent", Delta(z, -log_ratio, 1), infer=helper)

    def _schedule(self) -> tuple[TensorBase, TensorBase, TensorBase, TensorBase]:
        """Temperatures, step sizes, share of the momentum left, root of the inverse masses."""

        def learned(name: str, init: object, constraint: constraints.Constraint) -> TensorBase:
            start = np.asarray(init, self.dtype)
            return param(f"{self.prefix}_{name}", lambda: start, constraint)

        steps = learned("beta_increments", np.ones(self.K), constraints.softplus_positive)
        summed = cumsum(steps, 0)
        betas = summed / summed[-1]
        eta = learned("eta_0", self.eta_init, constraints.interval(0.0, self.eta_max))
        rise = learned("eta_coeff", 0.0, constraints.real)
        # Between 1 % of the largest step and the largest.
        least, most = (betas * 0.0 + c * self.eta_max for c in (0.01, 1.0))
        etas = maximum(minimum(eta + rise * betas, most), least)
        gamma = learned("gamma", self.gamma_init, constraints.unit_interval)
        masses = learned("inv_mass_matrix", np.ones(self.dim), constraints.softplus_positive)
        return betas, etas, gamma, sqrt(masses)

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
        raise InferenceError(
            f"{self.__name__}.get_posterior",
            expected="a guide with a density in closed form",
            got="draws that were moved by the model's gradients",
            fix="use sample_posterior(), or result.draws() for draws with importance weights",
        )

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws on the unconstrained scale; see `AutoGuide.free_draws`."""
        count = math.prod(shape)
        hidden = block(hide_fn=lambda site: site.kind != "param")
        with hidden, seed_handler(None, generator), replicate(None, count, -1 - self._depth):
            z = self._annealed(*self._given)
        z = reshape(z, (*shape, self.dim))
        return off_tape(self._cut(z, 0))
