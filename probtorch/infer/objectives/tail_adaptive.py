"""`TraceTailAdaptive_ELBO`: a guide that covers the posterior's tails, weighted by ranks.

Importance weights would make a guide cover all of the posterior, and have no variance to speak of
where they are needed most. Their ranks are bounded whatever their tails: each draw moves along the
path of its log weight with a power of the share of weights that are no smaller than its own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

from probtorch.core.dispatch import grad_enabled
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.importance import cut_runs, through_draws
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.renyi import log_weights
from probtorch.ops.reduction import sum as total

__all__ = ["TraceTailAdaptive_ELBO"]


class TraceTailAdaptive_ELBO(ELBO):
    """Variational inference with the tail-adaptive f-divergence, for guides with pathwise draws.

    Parameters
    ----------
    num_particles : int, at least 2
        Draws whose weights are ranked; tens of them for a rank to mean something.
    max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.
    tail_adaptive_beta : float
        Power of the share of weights that are no smaller. -1, the default, is the paper's; 0 gives
        the gradient of the evidence lower bound.

    Raises
    ------
    ArgumentError
        For a positive `tail_adaptive_beta`, or fewer than 2 particles.
    InferenceError
        At the first estimate: if the guide has a draw without a pathwise gradient, or a factor.

    Notes
    -----
    The loss that is reported is minus the evidence lower bound, which is not what is minimised: it
    may rise. Parameters of the model follow the weighted log density. Pyro's gradient also holds
    the direct dependence of the guide's density on its parameters, which has mean 0 only without
    weights; as in the paper it is left out here.

    References
    ----------
    Wang, Liu, Liu (2018), "Variational inference with tail-adaptive f-divergence".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoNormal, TraceTailAdaptive_ELBO
    >>> from probtorch.optim import Adam
    >>> def model():
    ...     probtorch.sample("x", dist.Normal(3.0, 2.0))
    >>> loss = TraceTailAdaptive_ELBO(num_particles=20, vectorize_particles=True)
    >>> svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), loss, seed=0)
    >>> result = svi.run(2000, progress_bar=False)
    >>> bool(abs(svi.guide.median()["x"] - 3.0) < 0.2)
    True
    """

    min_particles = 2

    def __init__(
        self,
        num_particles: int = 10,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
        tail_adaptive_beta: float = -1.0,
    ) -> None:
        super().__init__(
            num_particles,
            max_plate_nesting,
            vectorize_particles,
            retain_graph,
            allow_missing=allow_missing,
        )
        if not tail_adaptive_beta <= 0.0:
            raise ArgumentError(
                "TraceTailAdaptive_ELBO(tail_adaptive_beta=...)",
                expected="a number of at most 0: larger weights count for more",
                got=repr(tail_adaptive_beta),
                fix="leave it out for -1",
            )
        self.tail_adaptive_beta = float(tail_adaptive_beta)

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield the evidence lower bound, with the gradient of the tail-adaptive divergence."""
        if not grad_enabled():
            value = log_weights(list(self.runs(model, guide, args, kwargs))).mean()
            yield Estimate(value, value)
            return
        found = list(cut_runs(self, _OTHERWISE, model, guide, args, kwargs))
        log_w = log_weights([run for run, _ in found]).detach()
        weights = rank_weights(log_w, self.tail_adaptive_beta)
        terms, start = [], 0
        for run, cut in found:
            mine = weights[start : start + run.size]
            start += run.size
            terms.append(total(mine * run.log_model()) + through_draws(run, cut, mine))
        yield Estimate(log_w.mean(), functools.reduce(operator.add, terms))


_OTHERWISE = "use Trace_ELBO, or RenyiELBO with alpha below 1, which covers more too"


def rank_weights(log_w: TensorBase, power: float) -> TensorBase:
    """Return normalised weights of particles by the share of weights no smaller than theirs.

    Parameters
    ----------
    log_w : Tensor, shape (particles,)
    power : float
    """
    no_smaller = (log_w.unsqueeze(0) >= log_w.unsqueeze(1)).to(log_w.dtype).sum(-1)
    weights = no_smaller**power
    return weights / weights.sum()


explain_calls(globals())
