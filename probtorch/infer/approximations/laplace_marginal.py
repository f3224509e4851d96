"""`LaplaceMarginal`: a model's hyperparameters as a target of their own, its field integrated out.

A latent Gaussian field is integrated out by Laplace's method, as in nested_laplace.py, but inside
of the density: what is left are the hyperparameters, of which any sampler draws. Their posterior
has none of the funnels and correlations that the field makes, and few dimensions.

The mode x* of the field is found by Newton's method off the tape. One step from there that is on
it has the mode's slope in theta, by the implicit function theorem; so the gradient of

    log p(x*, theta, y) + dim/2 log(2 pi) - log|H(x*, theta)| / 2

is exact, third derivatives of the model included, at the price of one backward pass.

References
----------
C. C. Margossian, A. Vehtari, D. Simpson, R. Agrawal, "Hamiltonian Monte Carlo using an
adjoint-differentiated Laplace approximation: Bayesian inference for latent Gaussian models and
beyond", NeurIPS (2020). B. Christianson, "Reverse accumulation and attractive fixed points",
Optimization Methods and Software 3 (1994), for the one step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np
from scipy import linalg, special

from probtorch.autograd.jacobians import hessian
from probtorch.autograd.modes import no_grad
from probtorch.autograd.transforms import grad
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.psis import MIN_DRAWS, psis
from probtorch.infer.approximations.gaussians import LOG_2PI
from probtorch.infer.approximations.nested_laplace import Fields, parted
from probtorch.infer.approximations.result import target_of
from probtorch.infer.model_runs import in_float64
from probtorch.infer.potential import DensityTarget, Target
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.weights import uniforms
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky_ex
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

__all__ = ["LaplaceMarginal"]

# Newton's steps end when no more is to be gained, in nats, or after so many, tries included. What
# could then still be gained makes a place without a mode.
AT_THE_TOP, MOST_STEPS, LEFT = 1e-12, 100, 1e-6
# Hyperparameters that it is meant for, at most.
MOST = 1000
# Modes that are found at a time when draws are completed.
BLOCK = 64

# Steps, position, log density, its gradient, Newton's step, what it gains, and the share of it.
_Climb: TypeAlias = tuple[
    TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase
]


class LaplaceMarginal(DensityTarget):
    """The posterior of a model without its latent field, by Laplace's method [margossian2020]_.

    Give it to a kernel in place of the model: ``NUTS(LaplaceMarginal(model, "field", y))``. Where
    hyperparameters are at most four, `INLA` needs no chain.

    Parameters
    ----------
    model : callable or Target
    latent : str or sequence of str
        Names of the sites that are the field: Gaussian given the others, or near it.
    *args, **kwargs
        What the model is called with.

    Raises
    ------
    ArgumentError
        If `latent` names no site, or leaves nothing.

    Notes
    -----
    Draws are of the other sites, on their own scale; `completed` adds the field. The density is
    -inf where the field has no mode or is not concave there. An evaluation costs as many gradients
    of the model as the field has numbers, and its cube of arithmetic, for each of some five steps.

    References
    ----------
    [margossian2020]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, LaplaceMarginal
    >>> def counts(y):
    ...     scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    ...     with probtorch.plate("group", len(y)):
    ...         effect = probtorch.sample("effect", dist.Normal(0.0, scale))
    ...         probtorch.sample("y", dist.Poisson(effect.exp()), obs=y)
    >>> marginal = LaplaceMarginal(counts, "effect", probtorch.tensor([3.0, 1.0, 7.0, 0.0]))
    >>> mcmc = MCMC(NUTS(marginal), 500, 300, num_chains=2, seed=1, progress_bar=False)
    >>> whole = marginal.completed(mcmc.run(), seed=0)
    >>> whole["effect"].shape, bool(whole.attrs["pareto_k"] < 0.7)
    ((2, 500, 4), True)
    """

    def __init__(
        self,
        model: Callable[..., object] | Target,
        latent: str | Sequence[str],
        *args: object,
        **kwargs: object,
    ) -> None:
        names = (latent,) if isinstance(latent, str) else tuple(latent)
        joint = target_of("LaplaceMarginal", model, args, kwargs)
        self.joint, self.latent = joint, names
        self.many, self.few = parted("LaplaceMarginal", joint, names, MOST)
        kept = {n: slot for n, slot in joint.slots.items() if n not in names}
        example = {n: np.empty(slot.free_shape) for n, slot in kept.items()}
        super().__init__(self._of_values, None, example)
        self.name = f"{joint.name} without {', '.join(names)}"
        # Values have the shapes of their sites, of which unconstrained ones may have fewer numbers.
        self.slots = {
            n: dataclasses.replace(kept[n], start=slot.start, stop=slot.stop)
            for n, slot in self.slots.items()
        }
        self._order = wrap(np.argsort(np.concatenate([self.few, self.many])))

    def logdensity(self, q: TensorBase) -> TensorBase:
        """Return the log density of the hyperparameters at `q`, unconstrained."""
        with in_float64():
            return self._marginal(q)

    def constrain(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the sites' values by name."""
        nothing = wrap(np.zeros(self.many.size))
        found = self.joint.constrain(self._whole(nothing, q))
        return {name: found[name] for name in self.slots}

    def unconstrain(self, values: Mapping[str, TensorLike]) -> np.ndarray:
        """Return the values of sites as one vector."""
        with no_grad():
            anywhere = self.joint.constrain(wrap(np.zeros(self.joint.dim)))
        fields = {name: anywhere[name] for name in self.latent}
        return self.joint.unconstrain({**fields, **values})[self.few]

    def completed(
        self, draws: SampledDraws, *, seed: int | Generator | None = None
    ) -> SampledDraws:
        """Return draws of all sites of the model, the field by its Laplace approximation.

        Parameters
        ----------
        draws : SampledDraws
            Of this target.
        seed : int or Generator, optional
            Where random numbers come from; the default generator if None.

        Returns
        -------
        SampledDraws
            `sample_stats` has ``log_weight`` besides, smoothed importance weights by which draws
            would be of the posterior, and ``attrs["pareto_k"]`` says how far to trust both.
        """
        shape = draws.positions.shape[:2]
        theta = draws.positions.reshape(-1, self.dim)
        fields = Fields(self.joint, self.many, self.few)
        z = special.ndtri(uniforms(generator_of(seed), len(theta) * self.many.size))
        z = z.reshape(len(theta), self.many.size)
        points, ratios = np.empty((len(theta), self.joint.dim)), np.empty(len(theta))
        points[:, self.few] = theta
        for begin in range(0, len(theta), BLOCK):
            rows = slice(begin, begin + BLOCK)
            found = fields(theta[rows])
            fields.last = found.mode[-1]
            noise = [
                linalg.solve_triangular(root, each, lower=True, trans="T")
                for root, each in zip(found.root, z[rows])
            ]
            points[rows, self.many] = found.mode + np.array(noise)
            logs = np.log(np.diagonal(found.root, axis1=1, axis2=2)).sum(axis=1)
            normal = logs - 0.5 * ((z[rows] ** 2).sum(axis=1) + self.many.size * LOG_2PI)
            ratios[rows] = fields.evaluate(points[rows])[0] - normal - found.marginal
        attrs, stats = dict(draws.attrs), dict(draws.sample_stats)
        attrs["pareto_k"] = float("nan")
        if ratios.size >= MIN_DRAWS:
            weights, attrs["pareto_k"] = psis(ratios)
            stats["log_weight"] = np.asarray(weights).reshape(shape)
        return make_draws(self.joint, points.reshape(*shape, -1), stats, attrs)

    # ------------------------------------------------------------------------------ the density

    def _whole(self, field: TensorBase, theta: TensorBase) -> TensorBase:
        """A point of the model, of field and hyperparameters."""
        return cat([theta, field], 0)[self._order]

    def _at(self, theta: TensorBase) -> Callable[[TensorBase], TensorBase]:
        """The log density as a function of the field."""
        return lambda field: self.joint.logdensity(self._whole(field, theta))

    def _of_values(self, values: object) -> TensorBase:
        """The log density of unconstrained values by name."""
        named = cast("Mapping[str, TensorBase]", values)
        return self._marginal(cat([reshape(named[n], (-1,)) for n in self.slots], 0))

    def _marginal(self, theta: TensorBase) -> TensorBase:
        fixed = theta.detach()
        mode, curvature, gain = self._mode(fixed)
        slope = grad(self._at(theta))(mode)
        # Nothing of it but its slope: the mode is at the top.
        field = mode + solve(curvature, slope)
        root, info = cholesky_ex(-hessian(self._at(theta))(field))
        logs = total(log(diagonal(root)))
        found = self._at(theta)(field) + 0.5 * self.many.size * LOG_2PI - logs
        good = isfinite(found) & (info == 0) & (gain < LEFT)
        return where(good, found, -np.inf)

    def _mode(self, theta: TensorBase) -> tuple[TensorBase, TensorBase, TensorBase]:
        """The mode of the field, the curvature there, and what is left to gain; off the tape."""
        density = self._at(theta)

        def looked(field: TensorBase) -> tuple[TensorBase, TensorBase, TensorBase, TensorBase]:
            slope = grad(density)(field)
            step = solve(-hessian(density)(field), slope)
            return density(field), slope, step, 0.5 * total(step * slope)

        def going(carry: _Climb) -> TensorBase:
            count, *_, gain, share = carry
            return (count < MOST_STEPS) & ~(gain < AT_THE_TOP) & (share > 1e-12)

        def advance(carry: _Climb) -> _Climb:
            count, field, value, slope, step, gain, share = carry
            tried = field + share * step
            there = density(tried)
            up = there > value - 1e-13 * (value * value + 1.0) ** 0.5
            kept = where(up, tried, field)
            value, slope, step, gain = looked(kept)
            return count + 1, kept, value, slope, step, gain, where(up, 1.0, 0.5 * share)

        begin = wrap(np.zeros(self.many.size))
        first = wrap(np.zeros((), np.int64)), begin, *looked(begin), wrap(np.ones(()))
        _, field, _, _, _, gain, _ = while_loop(going, advance, first)
        field = field.detach()
        return field, -hessian(density)(field).detach(), gain.detach()


explain_calls(globals())
