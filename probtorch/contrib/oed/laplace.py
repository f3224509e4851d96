"""Laplace's approximation of the posterior of every outcome, all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from probtorch.autograd import grad
from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.backends.registry import to_host
from probtorch.contrib.oed.bounds import prior_entropy
from probtorch.contrib.oed.terms import (
    Labels,
    Model,
    dtype_of,
    lexpand,
    listed,
    log_density,
    run,
    summed,
    summed_right,
    values,
)
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.distributions import biject_to
from probtorch.distributions.distribution import Distribution
from probtorch.effects.handlers import condition
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError
from probtorch.ops.movement import reshape
from probtorch.ops.sampling import randn
from probtorch.tensor import Tensor

__all__ = ["laplace_eig"]

# A search ends where a Newton step promises less than this (nats); a step is halved so often.
TOLERANCE, HALVINGS = 1e-10, 30
# Draws of each normal for the mean of log |d theta / d z|, where targets are constrained.
DRAWS = 32


def laplace_eig(
    model: Model,
    design: Tensor,
    observation_labels: Labels,
    target_labels: Labels,
    guide: object = None,
    loss: object = None,
    optim: object = None,
    num_steps: int = 100,
    final_num_samples: int = 100,
    y_dist: Distribution | None = None,
    eig: bool = True,
    **prior_entropy_kwargs: int | bool,
) -> Tensor:
    """Estimate the gain by Laplace's approximation of the posterior of simulated outcomes.

    The entropy of the prior less the mean entropy of normals with the modes of the posteriors as
    their means, and the curvature there: exact for linear models with normal noise.

    Parameters
    ----------
    model, design, observation_labels, target_labels
        See `posterior_eig`. Latent sites are continuous.
    guide, loss, optim : optional
        Accepted for Pyro's sake: modes are found by Newton's method, which needs none.
    num_steps : int
        Steps of Newton's method at most; some ten are enough as a rule.
    final_num_samples : int
        Outcomes that posteriors are found for.
    y_dist : Distribution, optional
        What outcomes are drawn from, stacked over labels: ``(labels, *designs)``. By default they
        are those of the model.
    eig : bool
        False returns the mean entropy of the posterior, and leaves the prior out.
    **prior_entropy_kwargs
        ``num_prior_samples`` and ``mean_field``; see `posterior_eig`.

    Returns
    -------
    Tensor, shape designs
        In nats, without a gradient with respect to the design.

    Raises
    ------
    ArgumentError
        If a label is no site.
    InferenceError
        If a latent site is discrete, or a mode was not found.

    Notes
    -----
    Searches begin at the targets that made the outcome. The normals are those of all latent sites,
    on the unconstrained scale; for targets that are constrained the change of volume is a mean over
    draws.

    References
    ----------
    [tierney1986]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.oed import laplace_eig
    >>> def model(design):
    ...     with probtorch.plate_stack("designs", design.shape[:-1]):
    ...         w = probtorch.sample("w", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(w * design[..., 0], 1.0))
    >>> gains = laplace_eig(model, probtorch.tensor([[0.0], [1.0]]), "y", "w", final_num_samples=5)
    >>> [round(x, 4) for x in gains.tolist()]
    [0.0, 0.3466]
    """
    observed, targets = listed(observation_labels), listed(target_labels)
    wide = lexpand(design.detach(), final_num_samples)
    with no_grad():
        outer = run(model, wide)
        y = values(outer, observed, "observation_labels")
        if y_dist is not None:
            drawn = y_dist.sample((final_num_samples,))
            y = {label: drawn[:, i] for i, label in enumerate(observed)}
    posterior = _Posteriors(condition(model, data=y), wide, outer, observed)
    z, precision = posterior.modes(num_steps)
    entropy = posterior.entropies(z, precision, targets).mean(axis=0)
    found = wrap(entropy.astype(dtype_of(design)))
    if not eig:
        return found
    options: Mapping[str, int | bool] = prior_entropy_kwargs
    with no_grad():
        return prior_entropy(model, design, observed, targets, options) - found


class _Posteriors:
    """The posteriors of many outcomes, each of some unconstrained numbers z, its last dim."""

    def __init__(self, model: Model, wide: Tensor, outer: Trace, observed: tuple[str, ...]) -> None:
        self.model, self.wide, self.ndim = model, wide, len(wide.shape) - 1
        self.observed = observed
        self.names = [name for name in outer.stochastic_nodes if name not in observed]
        self.transforms, self.shapes, parts = {}, {}, []
        for name in self.names:
            site = outer[name]
            if site.fn.support.is_discrete:
                raise InferenceError(
                    f"laplace_eig: site {name!r}",
                    expected="continuous latent sites, whose posterior has a curvature",
                    got=f"a {type(site.fn).__name__}",
                    fix="use nmc_eig, marginal_eig or posterior_eig",
                    at=site.location,
                )
            self.transforms[name] = biject_to(site.fn.support)
            z = self.transforms[name].inv(cast(site.value, dtypes.float64)).detach()
            self.shapes[name] = tuple(z.shape[self.ndim :])
            parts.append(to_host(z.array).reshape(*z.shape[: self.ndim], -1))
        ends = np.cumsum([part.shape[-1] for part in parts]).tolist()
        starts = [0, *ends[:-1]]
        self.places = {n: slice(a, b) for n, a, b in zip(self.names, starts, ends, strict=True)}
        self.start = np.concatenate(parts, axis=-1)

    def _parts(self, z: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Latent sites at z, and the logs of their changes of volume, by name."""
        theta, volumes = {}, {}
        for name, transform in self.transforms.items():
            part = z[..., self.places[name]]
            part = reshape(part, (*z.shape[: self.ndim], *self.shapes[name]))
            theta[name] = transform(part)
            volume = transform.log_abs_det_jacobian(part, theta[name])
            volumes[name] = summed_right(volume, self.ndim)
        return theta, volumes

    def log_joint(self, z: Tensor) -> Tensor:
        """Log density of latent sites, on the scale of z, and outcomes."""
        theta, volumes = self._parts(z)
        seen = run(condition(self.model, data=theta), self.wide)
        density = log_density(seen, (*self.names, *self.observed), self.ndim, "target_labels")
        return density + summed(list(volumes.values()))

    def _values(self, z: np.ndarray) -> np.ndarray:
        with no_grad():
            return to_host(self.log_joint(wrap(z)).array)

    def _derivatives(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients (..., k) and precisions (..., k, k): outcomes do not depend on each other."""
        with enable_grad():
            at = wrap(z.copy()).requires_grad_()
            (slope,) = grad(self.log_joint(at).sum(), [at], create_graph=True)
            rows = [
                grad(slope[..., j].sum(), [at], retain_graph=True, allow_unused=True)[0]
                for j in range(z.shape[-1])
            ]
        hessian = [np.zeros_like(z) if row is None else to_host(row.array) for row in rows]
        return to_host(slope.detach().array), -np.stack(hessian, -2)

    def modes(self, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Climb to the modes by Newton's method; returns them, and the precisions there."""
        z = self.start
        value = self._values(z)
        for _ in range(num_steps):
            slope, precision = self._derivatives(z)
            sizes, axes = np.linalg.eigh(precision)
            # Uphill also where the density is not concave.
            sizes = np.maximum(abs(sizes), 1e-8)
            along = np.einsum("...ji,...j->...i", axes, slope)
            step = np.einsum("...ij,...j->...i", axes, along / sizes)
            gain = 0.5 * (along**2 / sizes).sum(-1)
            open_ = gain > TOLERANCE
            if not open_.any():
                return z, _checked(precision)
            length = np.where(open_, 1.0, 0.0)
            for _ in range(HALVINGS):
                there = self._values(z + length[..., None] * step)
                short = ~(there >= value) & (length > 0.0)
                if not short.any():
                    break
                length = np.where(short, 0.5 * length, length)
            better = there >= value
            z = np.where(better[..., None], z + length[..., None] * step, z)
            value = np.where(better, there, value)
        raise InferenceError(
            "laplace_eig: modes of posteriors",
            expected=f"all of them within {num_steps} steps of Newton's method",
            got=f"{int(open_.sum())} of {open_.size} not found",
            fix="allow more num_steps, or use posterior_eig",
        )

    def entropies(
        self, z: np.ndarray, precision: np.ndarray, targets: tuple[str, ...]
    ) -> np.ndarray:
        """Entropies of the targets, shape (outcomes, *designs), in nats."""
        covariance = np.linalg.inv(precision)
        rows = np.concatenate([np.arange(z.shape[-1])[self.places[name]] for name in targets])
        _, log_det = np.linalg.slogdet(covariance[..., rows[:, None], rows])
        normal = 0.5 * (log_det + len(rows) * (1.0 + math.log(2.0 * math.pi)))
        factors, volume = np.linalg.cholesky(covariance), np.zeros_like(normal)
        with no_grad():
            noise = to_host(randn(DRAWS, *z.shape, dtype=dtypes.float64).array)
            for e in noise:
                drawn = z + np.einsum("...ij,...j->...i", factors, e)
                volumes = self._parts(wrap(drawn))[1]
                volume = volume + sum(to_host(volumes[name].array) for name in targets) / DRAWS
        return normal + volume


def _checked(precision: np.ndarray) -> np.ndarray:
    """Refuse points that are no modes."""
    least = np.linalg.eigvalsh(precision).min()
    if not least > 0.0:
        raise InferenceError(
            "laplace_eig: modes of posteriors",
            expected="a log density that is concave at the points reached",
            got=f"a precision matrix with least eigenvalue {least:.3g}",
            fix="reparameterise the model, or use posterior_eig or nmc_eig",
        )
    return precision


explain_calls(globals())
