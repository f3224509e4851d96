"""`RenyiELBO`: bounds that several particles make together."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError
from probtorch.infer.enumeration.factors import unscaled
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import has_score
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

__all__ = ["RenyiELBO", "log_weights"]


class RenyiELBO(ELBO):
    """Renyi's bound of order alpha, ``log(mean of w^(1 - alpha)) / (1 - alpha)``.

    The weights w = p(x, z) / q(z) are those of all particles together.
    At alpha = 0 this is the importance-weighted bound (Burda et al. 2016); towards alpha = 1 it
    becomes the evidence lower bound. Alpha below 0 gives upper bounds as particles grow in number.

    Parameters
    ----------
    alpha : float, not 1
    num_particles : int, at least 2
    max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.

    Raises
    ------
    ArgumentError
        For alpha = 1.

    Notes
    -----
    A draw without a pathwise gradient gets its score times what its particle adds to the bound: the
    bound minus that of the other particles, which is a baseline (Mnih and Rezende 2016, VIMCO, with
    the mean of the others in place of the left-out weight). With subsampled plates the weights are
    estimates themselves, and the bound is not one of the evidence.

    References
    ----------
    Li and Turner (2016), "Renyi divergence variational inference".
    """

    min_particles = 2

    def __init__(
        self,
        alpha: float = 0.0,
        num_particles: int = 2,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
    ) -> None:
        if alpha == 1.0 or not math.isfinite(alpha):
            raise ArgumentError(
                "RenyiELBO(alpha=...)",
                expected="a finite number other than 1",
                got=repr(alpha),
                fix="the limit at 1 is Trace_ELBO",
            )
        super().__init__(
            num_particles,
            max_plate_nesting,
            vectorize_particles,
            retain_graph,
            allow_missing=allow_missing,
        )
        self.alpha = float(alpha)

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield the bound."""
        runs = list(self.runs(model, guide, args, kwargs))
        log_w = log_weights(runs)
        value = self.bound(log_w)
        scores = self._scores(runs, log_w)
        yield Estimate(value, value if scores is None else value + scores)

    def bound(self, log_w: TensorBase) -> TensorBase:
        """Return the bound from the log weights of all particles, shape (num_particles,)."""
        power = 1.0 - self.alpha
        return (logsumexp(log_w * power, -1) - math.log(log_w.shape[-1])) * (1.0 / power)

    def _scores(self, runs: list[Run], log_w: TensorBase) -> TensorBase | None:
        """Sum over particles of their score times what they add to the bound."""
        # All runs are of one guide: all of them have a score, or none.
        scores = [score for run in runs if (score := _score(run)) is not None]
        if not scores:
            return None
        score = _joined(scores, runs)
        return total(score * self.gains(log_w))

    def gains(self, log_w: TensorBase) -> TensorBase:
        """Return what each particle adds to the bound: the factor of its score."""
        # What is left of two bounds is small against either: in double precision.
        log_w = log_w.detach().double()
        count = log_w.shape[-1]
        return self.bound(log_w) - self.bound(log_w[wrap(_others(count))])


def log_weights(runs: list[Run]) -> TensorBase:
    """Return log p(x, z) - log q(z) of all particles, shape (num_particles,)."""
    return _joined([run.log_model() - run.log_guide() for run in runs], runs)


def _others(count: int) -> np.ndarray:
    """Positions of the other particles, for each of `count`: (count, count - 1)."""
    positions = np.arange(count - 1)
    return positions + (positions >= np.arange(count)[:, None])


def _joined(parts: list[TensorBase], runs: list[Run]) -> TensorBase:
    """One vector of the particles of several runs."""
    return cat([reshape(x, (1,)).expand((run.size,)) if not x.array.ndim else x
                for x, run in zip(parts, runs)], 0)  # fmt: skip


def _score(run: Run) -> TensorBase | None:
    """Log densities of the draws without a pathwise gradient, per particle; None without any."""
    found = None
    for site in run.guide.nodes.values():
        if has_score(site):
            site.compute_log_prob()
            term = run.per_particle(unscaled(site))
            found = term if found is None else found + term
    return found


explain_calls(globals())
