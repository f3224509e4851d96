"""`GaussianMRF`: a chain of hidden states tied by undirected normal factors, and what is seen.

Passing messages backwards in information form turns the factors into a directed chain with
parameters of its own at each step (Koller and Friedman 2009, ch. 14): a `GaussianHMM`, which does
all the rest.
"""

from __future__ import annotations

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core import dtype as dtypes
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.gaussian_hmm import GaussianHMM, check_normal
from probtorch.distributions.hidden_markov import HiddenMarkovModel
from probtorch.distributions.linear_hmm import mean_and_covariance
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.series import Steps, broadcast, same_dtype
from probtorch.distributions.source import Source
from probtorch.errors import ShapeError
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import movedim
from probtorch.tensor import Tensor

__all__ = ["GaussianMRF"]


class GaussianMRF(HiddenMarkovModel):
    """A Markov random field over time: normal factors of neighbouring states, and of what is seen.

    The density of all states and values is proportional to the product of that of the first state,
    those of each state and the next, and those of each state and its value. The first state has no
    value. Values that are nan are missing: they are summed out.

    Density ``f(x) = integral(g(z, x) for z in states(n + 1)) / integral(integral(g(z, y) for z in
    states(n + 1)) for y in values(n))`` with ``n = len(x)``.

    There g, the product of all factors, is ``initial_dist(z[0])`` times, for each step t,
    ``transition_dist(z[t], z[t + 1]) * observation_dist(z[t + 1], x[t])``; integrals are over all
    states and values.

    Parameters
    ----------
    initial_dist : MultivariateNormal or Normal(...).to_event(1), event shape (h,)
        Of the state before the first step.
    transition_dist : as initial_dist, event shape (2 h,), batch shape () or (..., steps or 1)
        Of a state and the next one, side by side.
    observation_dist : as initial_dist, event shape (h + n,), batch shape () or (..., steps or 1)
        Of a state and its value, side by side.
    validate_args : bool, optional
    duration : int, optional
        Number of steps, for draws where no parameter has a time dim.

    Raises
    ------
    ArgumentError
        If a factor is not normal.
    ShapeError
        If the factors do not agree in sizes or steps.

    Notes
    -----
    The signature is Pyro's. Costs O(steps (h^3 + n^3)).
    """

    _may_miss = True
    _parts = ("initial_dist", "transition_dist", "observation_dist")
    initial_dist: Distribution
    transition_dist: Distribution
    observation_dist: Distribution
    support = constraints.real_matrix
    has_rsample = True

    def __init__(
        self,
        initial_dist: Distribution,
        transition_dist: Distribution,
        observation_dist: Distribution,
        validate_args: bool | None = None,
        duration: int | None = None,
    ) -> None:
        for d in (initial_dist, transition_dist, observation_dist):
            check_normal("GaussianMRF", d)
        self._take(
            initial_dist=initial_dist,
            transition_dist=transition_dist,
            observation_dist=observation_dist,
        )
        h, both, seen = (getattr(self, name)._event_shape[0] for name in self._parts)
        if both != 2 * h or seen <= h:
            raise ShapeError(
                "GaussianMRF",
                expected="event shapes (h,), (2 h,) and (h + n,), n from 1 on",
                got=f"({h},), ({both},) and ({seen},)",
                fix="put a state and the next one, and a state and its value, side by side",
            )
        self.hidden_dim, self.obs_dim = h, seen - h
        shape = broadcast_shapes(
            (*initial_dist._batch_shape, 1),
            tuple(transition_dist._batch_shape),
            tuple(observation_dist._batch_shape),
            op="GaussianMRF",
        )
        self._shape_over(shape, (seen - h,), duration, validate_args)

    def directed(self, steps: int | None = None) -> GaussianHMM:
        """Return the same distribution as a chain from the first state on, to filter and smooth.

        Parameters
        ----------
        steps : int, optional
            How many; the duration if there is one.

        Raises
        ------
        ArgumentError
            If neither is known.
        """
        if steps is None:
            self._needs_duration("directed")
        count, h = self._event_shape[0] if steps is None else steps, self.hidden_dim
        parts = [mean_and_covariance("GaussianMRF", getattr(self, name)) for name in self._parts]
        dtype = dtypes.promote([x.array for pair in parts for x in pair])
        like = parts[0][0].new_zeros(()).to(dtype)
        (loc, cov), (between, spread), (seen, noise) = (
            (same_dtype(m, like), same_dtype(c, like)) for m, c in parts
        )
        pairs, state = _inverse(spread), _inverse(noise[..., :h, :h])
        factors = {
            "old": (pairs[..., :h, :h], 2),
            "cross": (pairs[..., :h, h:], 2),
            "new": (pairs[..., h:, h:] + state, 2),
            "pull_old": (_times(pairs, between)[..., :h], 1),
            "pull_new": (_times(pairs, between)[..., h:] + _times(state, seen[..., :h]), 1),
        }
        over = Steps(factors, count, dtype, "GaussianMRF")
        batch = broadcast_shapes(
            loc.array.shape[:-1], cov.array.shape[:-2], over.batch, op="GaussianMRF"
        )

        def step(
            message: tuple[Tensor, Tensor], now: dict[str, Tensor] | None
        ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
            # What the rest of the chain says of the new state; then, of the old one.
            (precision, pull), p = message, over.at(now or {})
            Q = _inverse(p["new"] + precision)
            c, F = _times(Q, p["pull_new"] + pull), -(p["cross"] @ Q)
            precision = p["old"] + F @ p["cross"].mT
            pull = p["pull_old"] - _times(p["cross"], c)
            return (precision, pull), (F, c, Q)

        start = like.new_zeros((*batch, h, h)), like.new_zeros((*batch, h))
        if over.sliced:
            (precision, pull), (F, c, Q) = scan(step, start, over.sliced, reverse=True)
        else:
            (precision, pull), (F, c, Q) = scan(step, start, length=count, reverse=True)
        first = _inverse(cov)
        after = _inverse(first + precision)
        H = state @ noise[..., :h, h:]
        rest = noise[..., h:, h:] - noise[..., :h, h:].mT @ H
        d = seen[..., h:] - _times(H.mT, seen[..., :h])
        normal = MultivariateNormal
        return GaussianHMM(
            normal(
                broadcast(_times(after, _times(first, loc) + pull), batch, 1),
                after,
                validate_args=False,
            ),
            movedim(F, 0, -3),
            normal(movedim(c, 0, -2), movedim(Q, 0, -3), validate_args=False),
            H,
            normal(d, rest, validate_args=False),
            validate_args=self._validate_args,
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        return self.directed(value.array.shape[-2])._log_prob(value)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._rsample(rng, shape)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        self._needs_duration("sample")
        return self.directed()._rsample(rng, shape)

    def _mean(self) -> Tensor:
        return self.directed().mean

    def _variance(self) -> Tensor:
        return self.directed().variance


def _inverse(cov: Tensor) -> Tensor:
    """The inverse of a positive definite matrix."""
    tril = cholesky(cov)
    eye = broadcast(tril.new_tensor(np.eye(tril.array.shape[-1])), tril.array.shape[:-2], 2)
    inverse = solve_triangular(tril, eye, upper=False)
    return inverse.mT @ inverse


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """Matrix x, for vectors x and batches that broadcast."""
    return (matrix @ x.unsqueeze(-1))[..., 0]


explain_calls(globals())
