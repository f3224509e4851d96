"""`AutoASVI`: the priors themselves, their parameters mixed with learned ones.

At each latent site the guide has the family of the prior. Each parameter is ``weight * theta +
(1 - weight) * alpha`` with the prior's own theta, which follows the sites before, and a learned
alpha and weight: at weight 1 the prior, at weight 0 a distribution of its own. What depends on what
is taken over from the model, at the cost of two numbers for each parameter.

References
----------
L. Ambrogioni, K. Lin, E. Fertig, S. Vikram, M. Hinne, D. Moore, M. van Gerven, "Automatic
structured variational inference", AISTATS (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution, Independent, MaskedDistribution
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.primitives import param
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.latents import Latent
from probtorch.infer.guides.messenger import AutoMessenger
from probtorch.infer.starts.initialization import Strategy, init_to_feasible

__all__ = ["AutoASVI"]

# Sets that the mean of two members is a member of; a parameter of another kind stays the prior's.
CONVEX = (
    constraints.real, constraints.real_vector, constraints.positive, constraints.nonnegative,
    constraints.unit_interval, constraints.simplex, constraints.positive_definite,
    constraints.lower_cholesky, constraints.softplus_positive,
)  # fmt: skip


class AutoASVI(AutoMessenger):
    """Automatic structured variational inference [ambrogioni2021]_.

    The guide for models whose sites follow each other, in time or in a hierarchy: dependences of
    the posterior that the prior has already cost nothing. `AutoStructured` learns them anew, and
    can have others.

    Parameters
    ----------
    model : callable
    prior_weight : float, in (0, 1)
        How much of the prior's parameters a site has at the start.
    init_loc_fn, amortized_plates, prefix, dtype
        See `AutoMessenger`; the guide starts at the priors themselves.

    Raises
    ------
    InferenceError
        At the first call: if a prior has no parameter that can be mixed without moving its support,
        as of Uniform.

    Notes
    -----
    Parameters are ``{site}_auto_{parameter}``, on the set of the prior's parameter, and
    ``{site}_auto_{parameter}_weight``. The parameters of transforms, and those that move the
    support (the bounds of truncated distributions) or are whole numbers, are the prior's.

    References
    ----------
    [ambrogioni2021]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoASVI, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> def walk(y):
    ...     x = 0.0
    ...     for t in range(len(y)):
    ...         x = probtorch.sample(f"x_{t}", dist.Normal(x, 1.0))
    ...         probtorch.sample(f"y_{t}", dist.Normal(x, 1.0), obs=y[t])
    >>> guide = AutoASVI(walk)
    >>> svi = SVI(walk, guide, Adam({"lr": 0.02}), Trace_ELBO(num_particles=10), seed=0)
    >>> result = svi.run(800, probtorch.tensor([1.0, 2.0, 3.0]), progress_bar=False)
    >>> bool(abs(guide.median()["x_2"] - 2.385) < 0.2)
    True
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        prior_weight: float = 0.5,
        init_loc_fn: Strategy = init_to_feasible,
        amortized_plates: Collection[str] = (),
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model,
            init_loc_fn=init_loc_fn,
            amortized_plates=amortized_plates,
            prefix=prefix,
            dtype=dtype,
        )
        if not (isinstance(prior_weight, (int, float)) and 0.0 < prior_weight < 1.0):
            raise ArgumentError(
                "AutoASVI(prior_weight=...)",
                expected="a number in (0, 1)",
                got=repr(prior_weight),
                fix="leave it out for 0.5",
            )
        self.prior_weight = float(prior_weight)

    def get_posterior(self, name: str, prior: Distribution) -> Distribution:
        """Return the prior with mixed parameters; see `AutoMessenger.get_posterior`."""
        return self._mixed(self.latents[name], prior, 0)

    def _mixed(self, latent: Latent, prior: Distribution, inside: int) -> Distribution:
        """The prior with mixed parameters; so many of its last batch dims are of an event."""
        if isinstance(prior, Independent):
            n = prior.reinterpreted_batch_ndims
            return Independent(self._mixed(latent, prior.base_dist, inside + n), n)
        if isinstance(prior, MaskedDistribution):
            return self._mixed(latent, prior.base_dist, inside)
        if type(prior) is TransformedDistribution:
            base = self._mixed(latent, prior.base_dist, inside)
            return TransformedDistribution(base, prior.transforms, validate_args=False)
        mixable = _mixable(prior)
        if not mixable:
            raise InferenceError(
                f"{self.__name__}: the prior of site {latent.name!r}",
                expected="a distribution with a parameter that can change and leave the support",
                got=type(prior).__name__,
                fix="take AutoNormal or AutoStructured for this model; or write the site as a "
                "function of one that has such a parameter",
                at=latent.location,
            )
        names = list(prior.arg_constraints)
        learned = {
            field: self._learned_of(latent, prior, field, constraint, inside)
            for field, constraint in mixable.items()
        }
        shape = tuple(prior.batch_shape)
        for field, (alpha, _) in learned.items():
            batch = alpha.array.shape[: alpha.array.ndim - mixable[field].event_dim]
            shape = broadcast_shapes(shape, batch, op=f"posterior of {latent.name!r}")
        parameters, structure = flatten(prior.expand(shape))
        for i, field in enumerate(names):
            if field in learned:
                alpha, weight = learned[field]
                parameters[i] = weight * parameters[i] + (1.0 - weight) * alpha
        return cast("Distribution", unflatten(structure, parameters))

    def _learned_of(
        self, latent: Latent, prior: Distribution, field: str, constraint: Constraint, inside: int
    ) -> tuple[TensorBase, TensorBase]:
        """What a parameter is mixed with, and the weight of the prior's, of the rows in use."""
        ends = constraint.event_dim

        def start() -> np.ndarray:
            value = to_host(getattr(prior, field).array)
            rest = value.shape[value.ndim - ends :]
            value = np.broadcast_to(value, (*prior.batch_shape, *rest))
            # Rows of plates, those of particles before them, and what is inside of the event.
            last = inside + ends
            rows, event = value.shape[: value.ndim - last], value.shape[value.ndim - last :]
            value = value.reshape(-1, *rows[max(len(rows) - latent.batch_ndim, 0) :], *event)
            value = value.mean(axis=0)
            full = list(latent.free_shape[: latent.batch_ndim])
            for frame in latent.frames:
                if frame.name in self.amortized_plates and frame.dim is not None:
                    full[frame.dim] = 1
            value = value.reshape((1,) * (len(full) - value.ndim + last) + value.shape)
            for axis, size in enumerate(full):
                if value.shape[axis] != size:
                    value = value.mean(axis=axis, keepdims=True)
            return np.array(np.broadcast_to(value, (*full, *event)), self.dtype)

        def start_of_weight() -> np.ndarray:
            shape = start().shape
            kept = shape[: len(shape) - ends] + (1,) * ends
            return np.full(kept, self.prior_weight, self.dtype)

        label = f"{latent.name}_{self.prefix}_{field}"
        alpha = param(label, start, constraint, inside + ends)
        weight = param(f"{label}_weight", start_of_weight, constraints.unit_interval, inside + ends)
        return alpha, weight


def _mixable(prior: Distribution) -> dict[str, Constraint]:
    """The parameters that can be mixed, with the sets they are of."""
    found = {}
    for field, constraint in prior.arg_constraints.items():
        inner = constraint
        while hasattr(inner, "base_constraint"):
            inner = inner.base_constraint
        if inner in CONVEX and not _moves_support(prior, field, constraint):
            # Probabilities are given up to a factor, and are learned without.
            found[field] = constraints.simplex if _is_shares(prior, field) else constraint
    return found


def _is_shares(prior: Distribution, field: str) -> bool:
    return field == "probs" and prior.arg_constraints[field].event_dim == 1


def _moves_support(prior: Distribution, field: str, constraint: Constraint) -> bool:
    """Whether another value of a parameter has another support."""
    parameters, structure = flatten(prior)
    i = list(prior.arg_constraints).index(field)
    free = biject_to(constraint).inv(parameters[i])
    parameters[i] = biject_to(constraint)(free + wrap(np.ones((), free.array.dtype)))
    return repr(unflatten(structure, parameters).support) != repr(prior.support)
