"""Normals whose rows are independent: one for each row of the plates that all sites share.

A model of many rows without anything in common (one regression for each shop) has a posterior
without correlations between rows. The guides here have a covariance, or a few directions, for each
row, and none across: rows times the square of a row's numbers in place of the square of all.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.vectors import LowRankMultivariateNormal
from probtorch.effects.primitives import param
from probtorch.errors import InferenceError
from probtorch.infer.guides.base import as_quantiles
from probtorch.infer.guides.joint import ScaledGuide
from probtorch.infer.guides.low_rank import check_rank, directions
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.special import ndtri

__all__ = ["AutoBatchedLowRankMultivariateNormal", "AutoBatchedMultivariateNormal"]


class _RowsGuide(ScaledGuide):
    """Base of guides over one vector for each row.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the mean starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    batch_ndim : int
        How many leading dims of every latent site are rows; of all sites the same ones.
    prefix, dtype
        See `AutoGuide`.
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        *,
        batch_ndim: int = 1,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale, prefix=prefix, dtype=dtype)
        fix = "leave it out for 1; without rows use the guide without Batched in its name"
        self.batch_ndim = count_of(
            self.__name__, "batch_ndim", batch_ndim, expected="a number of dims", fix=fix
        )

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model once to find its latent sites, which have to have the same rows."""
        if self.latents:
            return
        super().setup(*args, **kwargs)
        rows = {name: latent.free_shape[: self.batch_ndim] for name, latent in self.latents.items()}
        several = len(set(rows.values())) > 1
        if several or any(len(shape) < self.batch_ndim for shape in rows.values()):
            found = ", ".join(f"{name!r} {latent.shape}" for name, latent in self.latents.items())
            name = next(iter(self.latents))
            location = self.latents[name].location
            self.latents = {}
            raise InferenceError(
                f"{self.__name__}: the rows of the latent sites",
                expected=f"the same {self.batch_ndim} leading dims in all of them",
                got=f"shapes {found}",
                fix="give those without rows another guide in an AutoGuideList, or use "
                "AutoStructured, which takes both",
                at=location,
            )

    @property
    def rows(self) -> tuple[int, ...]:
        """Shape of the rows."""
        latent = next(iter(self.latents.values()))
        return latent.free_shape[: self.batch_ndim]

    @property
    def row_dim(self) -> int:
        """Numbers of a row."""
        return self.dim // max(math.prod(self.rows), 1)

    @abc.abstractmethod
    def row_distribution(self) -> Distribution:
        """Return the distribution of the vectors, batch shape `rows`, from `param` statements."""

    def distribution(self) -> Distribution:
        """Return the distribution of all rows, event shape (*rows, row_dim)."""
        return self.row_distribution().to_event(self.batch_ndim)

    def _loc_and_scale(self, share: float = 1.0) -> tuple[TensorBase, TensorBase]:
        scale = np.full((*self.rows, self.row_dim), self.init_scale * share, self.dtype)
        return (
            param(f"{self.prefix}_loc", self._start),
            param(f"{self.prefix}_scale", lambda: scale, constraints.softplus_positive),
        )

    def _start(self) -> np.ndarray:
        """The starting point, shape (*rows, row_dim)."""
        parts = [latent.free_init.reshape(*self.rows, -1) for latent in self.latents.values()]
        return np.concatenate(parts, axis=-1).astype(self.dtype)

    def _cut(self, vector: TensorBase, batch_ndim: int | None = None) -> dict[str, TensorBase]:
        """The parts of vectors (..., *rows, row_dim) by site."""
        lead, found, start = vector.array.shape[: -1 - self.batch_ndim], {}, 0
        count = max(math.prod(self.rows), 1)
        for name, latent in self.latents.items():
            stop = start + latent.size // count
            padding = latent.batch_ndim if batch_ndim is None else batch_ndim
            kept = lead[: max(len(lead) - padding, 0)]
            found[name] = reshape(vector[..., start:stop], (*kept, *latent.free_shape))
            start = stop
        return found

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Return quantiles of each number on its own, by name; see `AutoGuide.quantiles`."""
        levels = as_quantiles(quantiles)
        posterior = self.get_posterior()
        with self._asked():
            z = to_host(ndtri(wrap(levels)).array).astype(self.dtype)
            z = z.reshape(-1, *(1,) * (self.batch_ndim + 1))
            return self._constrained(posterior.mean + wrap(z) * sqrt(posterior.variance))


class AutoBatchedMultivariateNormal(_RowsGuide):
    """A normal with a full covariance for each row, and none between rows.

    Parameters
    ----------
    model : callable
        Whose latent sites all have the same leading dims: rows of a plate, mostly.
    init_loc_fn : callable
        Where the mean starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    batch_ndim : int
        How many leading dims are rows.
    prefix, dtype
        See `AutoGuide`.

    Raises
    ------
    ArgumentError
        If `batch_ndim` is no integer of at least 1.
    InferenceError
        At the first call: if sites have other rows than others, or a plate works on subsamples.

    Notes
    -----
    Parameters are ``auto_loc`` and ``auto_scale``, shape (*rows, numbers of a row), and
    ``auto_scale_tril`` (lower triangular with a diagonal of ones), as of `AutoMultivariateNormal`
    for each row. It is exact for a normal posterior whose rows are independent. `AutoStructured`
    also ties rows to what they have in common.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoBatchedMultivariateNormal
    >>> from probtorch.optim import Adam
    >>> def shops(y):
    ...     with probtorch.plate("shop", 3):
    ...         level = probtorch.sample("level", dist.Normal(0.0, 1.0))
    ...         trend = probtorch.sample("trend", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("y", dist.Normal(level + trend, 0.5), obs=y)
    >>> guide = AutoBatchedMultivariateNormal(shops)
    >>> svi = SVI(shops, guide, Adam({"lr": 0.01}), seed=0)
    >>> result = svi.run(3, probtorch.tensor([1.0, 2.0, 3.0]), progress_bar=False)
    >>> guide.get_posterior().event_shape
    Size([3, 2])
    """

    def row_distribution(self) -> MultivariateNormal:
        """Return the normals of the rows."""
        loc, scale = self._loc_and_scale()
        n, rows = self.row_dim, self.rows
        tril = param(
            f"{self.prefix}_scale_tril",
            lambda: np.broadcast_to(np.eye(n, dtype=self.dtype), (*rows, n, n)).copy(),
            constraints.unit_lower_cholesky,
        )
        return MultivariateNormal(loc, scale_tril=unsqueeze(scale, -1) * tril, validate_args=False)


class AutoBatchedLowRankMultivariateNormal(_RowsGuide):
    """A normal for each row, whose covariance is a diagonal plus a few directions.

    Parameters
    ----------
    model, init_loc_fn, init_scale, batch_ndim, prefix, dtype
        As for `AutoBatchedMultivariateNormal`.
    rank : int, optional
        Number of directions; the square root of the numbers of a row by default.

    Raises
    ------
    ArgumentError
        If `batch_ndim` or `rank` is no integer of at least 1.
    InferenceError
        As for `AutoBatchedMultivariateNormal`.

    Notes
    -----
    Parameters are ``auto_loc`` and ``auto_scale``, shape (*rows, numbers of a row), and
    ``auto_cov_factor`` (*rows, numbers, rank): the covariance of a row is ``S (I + F F^T) S`` with
    S the diagonal matrix of its scales.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoBatchedLowRankMultivariateNormal
    >>> from probtorch.optim import Adam
    >>> def shops():
    ...     with probtorch.plate("shop", 3):
    ...         probtorch.sample("x", dist.Normal(0.0, 1.0).expand([3, 10]).to_event(1))
    >>> guide = AutoBatchedLowRankMultivariateNormal(shops, rank=2)
    >>> svi = SVI(shops, guide, Adam({"lr": 0.01}), seed=0)
    >>> result = svi.run(3, progress_bar=False)
    >>> result.params["auto_cov_factor"].shape
    Size([3, 10, 2])
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        rank: int | None = None,
        *,
        batch_ndim: int = 1,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, init_loc_fn, init_scale, batch_ndim=batch_ndim, prefix=prefix, dtype=dtype
        )
        check_rank(rank, self.__name__, "the numbers of a row")
        self.rank = rank

    def row_distribution(self) -> LowRankMultivariateNormal:
        """Return the normals of the rows."""
        n = self.row_dim
        rank = self.rank or math.isqrt(n - 1) + 1
        # Half of the variance each for the diagonal and for the directions.
        loc, scale = self._loc_and_scale(math.sqrt(0.5))
        shape = (*self.rows, n, rank)
        factor = param(f"{self.prefix}_cov_factor", lambda: directions(shape, self.dtype))
        return LowRankMultivariateNormal(
            loc, unsqueeze(scale, -1) * factor, scale * scale, validate_args=False
        )
