"""Numbers in groups, each group around an unknown mean that is summed out."""

from __future__ import annotations

from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param
from probtorch.distributions.normal import HALF_LOG_2PI, Normal
from probtorch.distributions.source import Source
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import log, log1p
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import expand
from probtorch.ops.reduction import sum as total
from probtorch.ops.scattering import index_add
from probtorch.tensor import Tensor

__all__ = ["GroupedNormalNormal"]


class GroupedNormalNormal(Distribution):
    """Normal numbers whose means, one for each group, are normal and have been integrated out.

    The mean of group g is Normal(prior_loc[g], prior_scale[g]), and value i is normal around that
    of group ``group_idx[i]`` with standard deviation ``obs_scale[i]``.

    Density ``f(x) = N(x, prior_loc[group_idx], diag(obs_scale ** 2) + G @ diag(prior_scale ** 2) @
    transpose(G))`` with ``G = one_hot(group_idx)``.

    Parameters
    ----------
    prior_loc : Tensor, shape (..., groups)
    prior_scale : Tensor, shape (..., groups), positive
    obs_scale : Tensor, shape (..., n) or (..., 1), positive
    group_idx : Tensor of int, shape (n,)
        The group of each value, from 0 on.

    Notes
    -----
    The signature is Pyro's; draws and batches are new. A density costs O(n), without a matrix.
    """

    prior_loc: Parameter = param(constraints.real_vector)
    prior_scale: Parameter = param(constraints.independent(constraints.positive, 1))
    obs_scale: Parameter = param(constraints.independent(constraints.positive, 1))
    group_idx: Parameter = param(
        constraints.dependent(
            lambda self: constraints.independent(
                constraints.integer_interval(0, self._groups() - 1), 1
            ),
            event_dim=1,
        )
    )
    support = constraints.real_vector

    def _infer_event_shape(self) -> Shape:
        if self.group_idx.array.ndim != 1:
            raise ShapeError(
                "GroupedNormalNormal",
                expected="group_idx of shape (n,)",
                got=f"shape {self.group_idx.array.shape}",
                fix="all of a batch have their values in the same groups",
            )
        n = self.group_idx.array.shape[0]
        if self.obs_scale.array.shape[-1] not in (1, n):
            raise ShapeError(
                "GroupedNormalNormal",
                expected=f"an obs_scale of shape (..., {n}) or (..., 1), to match group_idx",
                got=f"shape {self.obs_scale.array.shape}",
                fix="give one scale for each value, or one for all",
            )
        return (n,)

    def _groups(self) -> int:
        sizes = (self.prior_loc.array.shape[-1], self.prior_scale.array.shape[-1])
        return max(sizes)

    def _index(self) -> Tensor:
        return cast(self.group_idx, int64)

    def _of_each(self, x: Tensor) -> Tensor:
        """Return the entry of its group for each value."""
        wide = expand(x, (*x.array.shape[:-1], self._groups()))
        return index_select(wide, -1, self._index())

    def _sums(self, x: Tensor) -> Tensor:
        """Return the sums over each group of a number for each value."""
        wide = expand(x, (*x.array.shape[:-1], self._event_shape[0]))
        zeros = wide.new_zeros((*wide.array.shape[:-1], self._groups()))
        return index_add(zeros, -1, self._index(), wide)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        means = self.prior_loc + self.prior_scale * rng.normal((*shape[:-1], self._groups()))
        return self._of_each(means) + self.obs_scale * rng.normal(shape)

    def _log_prob(self, x: Tensor) -> Tensor:
        n, prior = self._event_shape[0], self.prior_scale * self.prior_scale
        precision = 1.0 / (self.obs_scale * self.obs_scale)
        ratio = prior * self._sums(precision)
        apart = x - self._of_each(self.prior_loc)
        seen = self._sums(apart * precision)
        square = total(apart * apart * precision, -1) - total(
            prior * seen * seen / (1.0 + ratio), -1
        )
        logs = log(self.obs_scale)
        size = total(expand(logs, (*logs.array.shape[:-1], n)), -1) + 0.5 * total(log1p(ratio), -1)
        return square * -0.5 - (size + n * HALF_LOG_2PI)

    def _mean(self) -> Tensor:
        return self._of_each(self.prior_loc)

    _mode = _mean

    def _variance(self) -> Tensor:
        scale = self._of_each(self.prior_scale)
        return scale * scale + self.obs_scale * self.obs_scale

    def get_posterior(self, value: TensorLike) -> Normal:
        """Return the distribution of the means of the groups, given values.

        Parameters
        ----------
        value : Tensor, shape (..., n)

        Returns
        -------
        Normal, batch shape (..., groups)
        """
        x = self._as_value(value)
        precision = 1.0 / (self.obs_scale * self.obs_scale)
        prior = 1.0 / (self.prior_scale * self.prior_scale)
        whole = prior + self._sums(precision)
        loc = (self._sums(x * precision) + self.prior_loc * prior) / whole
        return Normal(loc, sqrt(1.0 / whole))
