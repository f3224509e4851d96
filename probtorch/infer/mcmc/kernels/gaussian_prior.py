"""The Gaussian prior of a model, found from the gradient of its log density.

The log density of a Gaussian has the gradient ``-P (q - loc)``. So dim + 1 gradients of the log
density of the latent sites, log-determinants included, give `loc` and the precision P; and two
more at other points tell whether it was a Gaussian. That finds random walks, regressions on latent
values and fields with a covariance as well as independent sites; and a LogNormal, whose
unconstrained coordinate is normal.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.density import NativeDensity
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.core.typed import TensorLike
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.mcmc.metrics import DenseMetric, DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.slots import Evaluation
from probtorch.ops.contraction import matmul
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.infer.mcmc.metrics import Metric

__all__ = [
    *("TOLERANCE", "Ellipse", "Gaussian", "check_together", "gaussian_prior", "given_gaussian"),
]

# What differs from a Gaussian's by no more than this share of its size is rounding.
TOLERANCE = 1e-7


@record
class Ellipse:
    """The points ``loc + here cos(angle) + there sin(angle)``, as likely as each other.

    Parameters
    ----------
    loc : Tensor, shape (dim,)
        Mean of a Gaussian.
    here, there : Tensor, shape (dim,)
        From there to the present point, and to a draw of the Gaussian.
    here2, both, there2 : Tensor, 0-d
        Their products in the precision: minus twice the Gaussian's log density along the ellipse is
        ``here2 cos^2 + 2 both cos sin + there2 sin^2``.
    counter : Tensor, 0-d int64
        The first random counter not used yet.
    """

    loc: TensorBase
    here: TensorBase
    there: TensorBase
    here2: TensorBase
    both: TensorBase
    there2: TensorBase
    counter: TensorBase


@record
class Gaussian:
    """A Gaussian on R^dim, as programs have it.

    Parameters
    ----------
    loc : Tensor, shape (dim,)
    metric : DiagonalMetric or DenseMetric
        Its covariance, factored.
    precision : Tensor, shape (dim,) or (dim, dim)
        The inverse of it, the diagonal alone where that is all.
    """

    loc: TensorBase
    metric: Metric
    precision: TensorBase

    @classmethod
    def of(cls, loc: np.ndarray, covariance: np.ndarray) -> Gaussian:
        """Return it for a covariance of shape (dim,), its diagonal, or (dim, dim).

        Raises
        ------
        DomainError
            Unless the covariance is symmetric and positive definite.
        """
        if covariance.ndim == 1:
            diagonal = DiagonalMetric.from_inverse_mass(covariance)
            return cls(wrap(loc), diagonal, wrap(1.0 / covariance))
        dense = DenseMetric.from_inverse_mass(covariance)
        inverse = np.linalg.inv(covariance)
        return cls(wrap(loc), dense, wrap(0.5 * (inverse + inverse.T)))

    @classmethod
    def blank(cls, dim: int, *, dense: bool) -> Gaussian:
        """Return a standard one."""
        return cls.of(np.zeros(dim), np.eye(dim) if dense else np.ones(dim))

    def times_precision(self, x: TensorBase) -> TensorBase:
        """Return the product of the precision with a vector."""
        if self.precision.array.ndim == 1:
            return self.precision * x
        return matmul(self.precision, x)

    def ellipse(self, key: Key, counter: TensorBase, position: TensorBase) -> Ellipse:
        """Return the ellipse through a position and a draw."""
        (dim,) = position.array.shape
        z = normals(key, counter, dim)
        here, there = position - self.loc, self.metric.velocity(z)
        pull = self.times_precision(here)
        here2, both, there2 = total(pull * here), total(pull * there), total(z * z)
        return Ellipse(self.loc, here, there, here2, both, there2, counter + dim)


def check_together(owner: str, loc: object, covariance: object, instead: str) -> None:
    """Refuse a mean without a covariance, or the other way round.

    Parameters
    ----------
    owner : str
        The kernel that they are given to.
    loc, covariance
    instead : str
        What leaving both out means.
    """
    if (loc is None) != (covariance is None):
        raise ArgumentError(
            owner,
            expected="loc and covariance together, or neither",
            got="covariance alone" if loc is None else "loc alone",
            fix=f"leave both out {instead}",
        )


def given_gaussian(
    owner: str,
    loc: TensorLike | Mapping[str, TensorLike] | None,
    covariance: TensorLike | None,
    target: Target,
) -> Gaussian:
    """Return the Gaussian that a user states for the coordinates of a target.

    Parameters
    ----------
    owner : str
        The kernel that it is given to.
    loc : array_like, shape (dim,), or dict of arrays by site
    covariance : array_like, shape (dim,) or (dim, dim)
    target : Target

    Raises
    ------
    ShapeError
        If they do not fit the target.
    """
    mean = target.pack(loc) if isinstance(loc, Mapping) else _array(loc)
    spread, dim = _array(covariance), target.dim
    if mean.shape != (dim,) or spread.shape not in ((dim,), (dim, dim)):
        raise ShapeError(
            f"{owner}(loc=..., covariance=...)",
            expected=f"shape ({dim},), and ({dim},) or ({dim}, {dim})",
            got=f"{mean.shape} and {spread.shape}",
            fix="give a number for each unconstrained coordinate, in the order of the sites",
        )
    return Gaussian.of(mean, spread)


def _array(value: TensorLike | None) -> np.ndarray:
    return np.asarray(as_tensor(value).array, np.float64)


class _LatentDensity(Handler):
    """Collect the log densities of the sites that are not observed."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: list[TensorBase] = []

    def after_sample(self, site: Site) -> None:
        if not site.observed:
            self.terms.append(site.compute_log_prob_sum())


_found: weakref.WeakKeyDictionary[Target, Gaussian] = weakref.WeakKeyDictionary()


def gaussian_prior(target: Target, owner: str) -> Gaussian:
    """Return the Gaussian that the latent sites of a model have before there are data.

    Parameters
    ----------
    target : Target
    owner : str
        Whom a message is from.

    Raises
    ------
    InferenceError
        If there is none: for a hand-written density, or where the prior is of another kind.
    """
    if target not in _found:
        _found[target] = _look(target, owner)
    return _found[target]


def _look(target: Target, owner: str) -> Gaussian:
    fix = f"give {owner}(loc=..., covariance=...) of a Gaussian near the posterior, or use NUTS"
    what = f"{owner}: the prior of {target.name}"
    if not isinstance(target, ModelTarget):
        raise InferenceError(
            what,
            expected="a model with a Gaussian prior",
            got="a density, of which nobody knows what the prior is",
            fix=fix,
        )
    gradient = _gradient_of(target)
    generator = np.random.default_rng(0)
    at_zero = gradient(np.zeros(target.dim))
    precision = np.stack([at_zero - gradient(row) for row in np.eye(target.dim)])
    tries = generator.normal(size=(2, target.dim)) * np.array([[0.7], [3.0]])
    with np.errstate(all="ignore"):
        predicted = at_zero - tries @ precision
        size = np.abs(tries) @ np.abs(precision) + np.abs(at_zero)
        off = np.abs(np.stack([gradient(q) for q in tries]) - predicted)
        bad = np.flatnonzero(~(off <= TOLERANCE * size).all(axis=0))
    if not bad.size and np.allclose(precision, precision.T, rtol=1e-6, atol=1e-9):
        precision = 0.5 * (precision + precision.T)
        try:
            np.linalg.cholesky(precision)
            return _of_precision(at_zero, precision)
        except np.linalg.LinAlgError:
            bad = np.flatnonzero(np.diag(precision) <= 0.0)
    names = [
        n for n, slot in target.slots.items() if ((slot.start <= bad) & (bad < slot.stop)).any()
    ]
    raise InferenceError(
        what,
        expected="a Gaussian, all latent sites together",
        got=f"another density of {', '.join(map(repr, names)) or 'the latent sites'}",
        fix=fix,
    )


def _of_precision(at_zero: np.ndarray, precision: np.ndarray) -> Gaussian:
    diagonal = np.diag(precision)
    if np.array_equal(precision, np.diag(diagonal)):
        return Gaussian.of(at_zero / diagonal, 1.0 / diagonal)
    covariance = np.linalg.inv(precision)
    covariance = 0.5 * (covariance + covariance.T)
    return Gaussian.of(covariance @ at_zero, covariance)


def _gradient_of(target: ModelTarget) -> Callable[[np.ndarray], np.ndarray]:
    def prior(q: TensorBase) -> TensorBase:
        latent = _LatentDensity()
        evaluation = Evaluation(q, target.slots, sites=False)
        target.run(latent, evaluation)
        found = evaluation.total()
        for term in latent.terms:
            found = found + term
        return found

    density = NativeDensity(prior, target.dim, name=f"the prior of {target.name}")
    return lambda q: density.value_and_grad(q)[1]
