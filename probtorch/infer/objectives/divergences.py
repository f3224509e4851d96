"""`FDivergence` and `CUBO`: divergences other than KL(q || p), by draws along their paths.

With the weights t = p(z | x) / q(z), a divergence D_f = E_q[f(t)] of a convex f with f(1) = 0 has
the gradient

    -E_q[t^2 f''(t) (dz / dphi) (d log t / dz)],

in which the direct dependence of q on its parameters is gone. So all of them move draws along the
path of their log weight; they differ by how much for which weight: as much for all (KL(q || p)),
for the larger ones (KL(p || q), chi^2), or for the smaller ones. Weights are normalised by their
mean over the particles, which costs a bias of order 1 / particles.

References
----------
D. Wang, H. Liu, Q. Liu, "Variational inference with tail-adaptive f-divergence", NeurIPS 2018,
proposition 3.1, for the gradient. N. Wan, D. Li, N. Hovakimyan, "f-divergence variational
inference", NeurIPS 2020. A. B. Dieng, D. Tran, R. Ranganath, J. Paisley, D. Blei, "Variational
inference via chi upper bound minimization", NeurIPS 2017.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from probtorch.core.dispatch import grad_enabled
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.importance import cut_runs, through_draws
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.renyi import log_weights
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log1p
from probtorch.ops.reduction import sum as total

__all__ = ["CUBO", "DIVERGENCES", "FDivergence"]


class DivergenceForm(NamedTuple):
    """A convex function and what the paths of draws are weighted with, both of log t.

    Attributes
    ----------
    value : callable
        f(t), for weights whose mean is 1: what is linear in t - 1 does not matter.
    slope : callable
        t^2 f''(t).
    """

    value: Callable[[TensorBase], TensorBase]
    slope: Callable[[TensorBase], TensorBase]


def _jensen_shannon(s: TensorBase) -> TensorBase:
    t = exp(s)
    return 0.5 * (t * s - (1.0 + t) * (log1p(t) - math.log(2.0)))


# Of log t, with t = p / q; `p` is the posterior.
DIVERGENCES: dict[str, DivergenceForm] = {
    "reverse_kl": DivergenceForm(lambda s: -s, lambda s: exp(0.0 * s)),
    "forward_kl": DivergenceForm(lambda s: s * exp(s), exp),
    "jeffreys": DivergenceForm(lambda s: (exp(s) - 1.0) * s, lambda s: exp(s) + 1.0),
    "jensen_shannon": DivergenceForm(_jensen_shannon, lambda s: 0.5 / (1.0 + exp(-s))),
    "hellinger": DivergenceForm(lambda s: 1.0 - exp(0.5 * s), lambda s: 0.25 * sqrt(exp(s))),
    "chi2": DivergenceForm(lambda s: exp(2.0 * s) - 1.0, lambda s: 2.0 * exp(2.0 * s)),
}


def _alpha(order: float) -> DivergenceForm:
    """The alpha-divergence ``(E_q[t^alpha] - 1) / (alpha (alpha - 1))``."""
    scale = 1.0 / (order * (order - 1.0))
    return DivergenceForm(lambda s: scale * (exp(order * s) - 1.0), lambda s: exp(order * s))


class _Divergence(ELBO):
    """Draws moved along the paths of their log weights, by factors that weights decide on."""

    min_particles = 2

    @abc.abstractmethod
    def value(self, log_w: TensorBase) -> TensorBase:
        """Return what is minimised, of log weights (particles,)."""

    @abc.abstractmethod
    def factors(self, log_w: TensorBase) -> TensorBase:
        """Return by how much each draw follows the gradient of its log weight."""

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield minus the divergence, with its gradient along the paths of draws."""
        if not grad_enabled():
            value = -self.value(log_weights(list(self.runs(model, guide, args, kwargs))))
            yield Estimate(value, value)
            return
        found = list(cut_runs(self, _OTHERWISE, model, guide, args, kwargs))
        log_w = log_weights([run for run, _ in found]).detach()
        factors = self.factors(log_w)
        weights = exp(log_w - logsumexp(log_w, -1))
        surrogate, start = log_w.sum() * 0.0, 0
        for run, cut in found:
            mine = slice(start, start + run.size)
            start += run.size
            surrogate = surrogate + total(weights[mine] * run.log_model())
            surrogate = surrogate + through_draws(run, cut, factors[mine])
        yield Estimate(-self.value(log_w), surrogate)


_OTHERWISE = "use ReweightedWakeSleep, which minimises KL(p || q) by any draws, or Trace_ELBO"


class FDivergence(_Divergence):
    """Variational inference by an f-divergence of posterior p and guide q.

    KL(q || p), which `Trace_ELBO` minimises, fits a guide inside of the posterior: it is too narrow
    where they differ. Divergences that large weights p / q count for more in, KL(p || q) and chi^2,
    make it cover the posterior, at the price of gradients whose variance rises with the dimensions.

    Parameters
    ----------
    divergence : str or float
        "reverse_kl", KL(q || p); "forward_kl", KL(p || q); "jeffreys", the sum of both;
        "jensen_shannon"; "hellinger", ``1 - E_q[sqrt(p / q)]``; "chi2", ``E_q[(p / q)^2] - 1``; or
        the order alpha of an alpha-divergence, ``(E_q[(p / q)^alpha] - 1) / (alpha (alpha - 1))``.
    num_particles : int, at least 2
        Draws that weights are normalised over; tens of them, or hundreds for "chi2".
    max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.

    Raises
    ------
    ArgumentError
        For another divergence, an alpha of 0 or 1, or fewer than 2 particles.
    InferenceError
        At the first estimate: if the guide has a draw without a pathwise gradient, or a factor.

    Notes
    -----
    The loss is the divergence itself, with p normalised by the mean weight: 0 where guide and
    posterior are equal, and too small where the particles miss what is large. Parameters of the
    model follow the weighted log density, as in `TraceTailAdaptive_ELBO`.

    References
    ----------
    [wang2018tail]_ for the gradient, [wan2020]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoNormal, FDivergence
    >>> from probtorch.optim import Adam
    >>> def model():
    ...     probtorch.sample("x", dist.Normal(3.0, 2.0))
    >>> loss = FDivergence("forward_kl", num_particles=50, vectorize_particles=True)
    >>> svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), loss, seed=0)
    >>> result = svi.run(1000, progress_bar=False)
    >>> bool(abs(svi.guide.median()["x"] - 3.0) < 0.3)
    True
    """

    def __init__(
        self,
        divergence: str | float = "forward_kl",
        num_particles: int = 20,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
    ) -> None:
        super().__init__(
            num_particles,
            max_plate_nesting,
            vectorize_particles,
            retain_graph,
            allow_missing=allow_missing,
        )
        if isinstance(divergence, str):
            known = divergence in DIVERGENCES
        else:
            number = isinstance(divergence, (int, float)) and not isinstance(divergence, bool)
            known = number and math.isfinite(divergence) and divergence not in (0, 1)
        if not known:
            raise ArgumentError(
                "FDivergence(divergence=...)",
                expected=f"one of {', '.join(map(repr, DIVERGENCES))}, or an alpha other than "
                "0 and 1",
                got=repr(divergence),
                fix='the limits at alpha 0 and 1 are "reverse_kl" and "forward_kl"',
            )
        self.divergence = divergence

    def form(self) -> DivergenceForm:
        """Return the function and the factor of the divergence."""
        found = DIVERGENCES.get(self.divergence) if isinstance(self.divergence, str) else None
        return _alpha(float(self.divergence)) if found is None else found

    def value(self, log_w: TensorBase) -> TensorBase:
        """Return the mean of f over the weights, which are divided by their mean."""
        return self.form().value(_normalised(log_w)).mean()

    def factors(self, log_w: TensorBase) -> TensorBase:
        """Return the mean's share of t^2 f''(t)."""
        return self.form().slope(_normalised(log_w)) / log_w.shape[-1]


class CUBO(_Divergence):
    """The chi upper bound of the log evidence, ``log(E_q[(p(x, z) / q(z))^n]) / n``.

    The smaller it is, the closer is the guide in the chi^n divergence, and it is never below the
    log evidence, as the evidence lower bound is never above: both together say where it is.
    A guide that minimises it covers the posterior; its standard deviations are too large rather
    than too small.

    Parameters
    ----------
    order : float, above 1
        n; 2 for the chi^2 divergence.
    num_particles : int, at least 2
        Draws that weights are normalised over; hundreds of them.
    max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.

    Raises
    ------
    ArgumentError
        For an order that is not above 1, or fewer than 2 particles.
    InferenceError
        At the first estimate: if the guide has a draw without a pathwise gradient, or a factor.

    Notes
    -----
    The loss is the bound itself. An estimate from few particles is too small in the mean, and can
    be below the evidence: evaluate with many. It is infinite where the guide's tails are much
    lighter than the posterior's, which few particles do not tell either: look at `pareto_k`.
    Parameters of the model follow the weighted log density; an upper bound has nothing to tell
    them.

    References
    ----------
    [dieng2017]_; the gradient is doubly reparameterised as in [wang2018tail]_.

    Examples
    --------
    >>> import numpy as np
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import CUBO, SVI, AutoNormal, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     x = probtorch.sample("x", dist.Normal(0.0, 2.0))
    ...     probtorch.sample("y", dist.Bernoulli(logits=x), obs=y)
    >>> y, many = probtorch.tensor(1.0), {"num_particles": 5000, "vectorize_particles": True}
    >>> guide = AutoNormal(model)
    >>> loss = CUBO(num_particles=100, vectorize_particles=True)
    >>> svi = SVI(model, guide, Adam({"lr": 0.02}), loss, seed=0)
    >>> result = svi.run(1000, y, progress_bar=False)
    >>> upper = CUBO(**many).loss(model, guide, y)
    >>> lower = -Trace_ELBO(**many).loss(model, guide, y)
    >>> bool(lower < np.log(0.5) < upper < lower + 0.2)
    True
    """

    def __init__(
        self,
        order: float = 2.0,
        num_particles: int = 50,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
    ) -> None:
        super().__init__(
            num_particles,
            max_plate_nesting,
            vectorize_particles,
            retain_graph,
            allow_missing=allow_missing,
        )
        if not (isinstance(order, (int, float)) and 1.0 < order < math.inf):
            raise ArgumentError(
                "CUBO(order=...)",
                expected="a number above 1: only then is it an upper bound",
                got=repr(order),
                fix="leave it out for 2; below 1 there is RenyiELBO(alpha=1 - order)",
            )
        self.order = float(order)

    def value(self, log_w: TensorBase) -> TensorBase:
        """Return the bound."""
        n = self.order
        return (logsumexp(log_w * n, -1) - math.log(log_w.shape[-1])) * (1.0 / n)

    def factors(self, log_w: TensorBase) -> TensorBase:
        """Return the shares of the powers of the weights, times n - 1."""
        powers = log_w * self.order
        return (self.order - 1.0) * exp(powers - logsumexp(powers, -1))


def _normalised(log_w: TensorBase) -> TensorBase:
    """Log weights whose mean weight is 1."""
    return log_w - logsumexp(log_w, -1) + math.log(log_w.shape[-1])


explain_calls(globals())
