"""`ImportanceWeightedELBO`: the bound of several particles, with gradients that stay sharp.

The signal-to-noise ratio of the plain gradient of this bound with respect to the guide falls as
particles grow in number (Rainforth et al. 2018): log q depends on the parameters directly, besides
through the draw, and that part is noise around 0. "Sticking the landing" leaves it out, which is
biased for more than one particle; the doubly reparameterised gradient replaces it exactly, by
weighting paths with the squared normalised weights.

Draws are cut off from the parameters (`Cut`): the densities are differentiated with respect to the
draws, and the result is sent through the draws to the parameters.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

from probtorch.autograd.tape import grad
from probtorch.core.dispatch import grad_enabled
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.uniform import Delta
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.estimators.multi_sample import vimco_signals
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.renyi import RenyiELBO, log_weights
from probtorch.infer.objectives.runs import Run, run_pair
from probtorch.infer.objectives.site_estimators import choice_refused
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import sum as total

__all__ = ["Cut", "ImportanceWeightedELBO", "cut_runs", "through_draws"]

# The power of the normalised weights that the paths of the draws are weighted with.
POWERS = {"stl": 1, "dreg": 2}
_OTHERWISE = 'pass gradient="vimco" or gradient="standard"'


class ImportanceWeightedELBO(RenyiELBO):
    """The importance-weighted bound, log of the mean of p(x, z) / q(z) over the particles.

    Parameters
    ----------
    num_particles : int
        With one particle, the evidence lower bound.
    gradient : {"dreg", "stl", "standard", "vimco"}
        Of the guide's parameters: doubly reparameterised (unbiased); "sticking the landing"
        (biased for more than one particle, unbiased for one); or the plain derivative, which also
        serves draws without pathwise gradients. "vimco" is the plain derivative with the baseline
        of Mnih and Rezende: in place of a particle's weight the geometric mean of the others.
    vectorize_particles, retain_graph, allow_missing
        See `ELBO`.

    Raises
    ------
    ArgumentError
        For another `gradient`, or "vimco" with one particle.
    InferenceError
        At the first estimate: if the guide has a draw without a pathwise gradient, or a factor, and
        `gradient` is neither "standard" nor "vimco".

    References
    ----------
    Burda, Grosse, Salakhutdinov (2016), "Importance weighted autoencoders"; Mnih, Rezende (2016),
    "Variational inference for Monte Carlo objectives"; Roeder, Wu, Duvenaud
    (2017), "Sticking the landing"; Tucker, Lawson, Gu, Maddison (2019), "Doubly reparameterized
    gradient estimators for Monte Carlo objectives".
    """

    min_particles = 1

    def __init__(
        self,
        num_particles: int = 10,
        gradient: str = "dreg",
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
    ) -> None:
        if gradient not in ("standard", "vimco", *POWERS):
            raise ArgumentError(
                "ImportanceWeightedELBO(gradient=...)",
                expected="'dreg', 'stl', 'standard' or 'vimco'",
                got=repr(gradient),
                fix="leave it out for 'dreg'",
            )
        if gradient == "vimco" and num_particles == 1:
            raise ArgumentError(
                "ImportanceWeightedELBO(gradient='vimco')",
                expected="at least 2 particles, which are each other's baselines",
                got="num_particles=1",
                fix="for one particle use Trace_ELBO",
            )
        super().__init__(
            0.0, num_particles, None, vectorize_particles, retain_graph, allow_missing=allow_missing
        )
        self.gradient = gradient

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield the bound."""
        if self.gradient not in POWERS or not grad_enabled():
            yield from super().estimates(model, guide, args, kwargs)
            return
        cuts = []
        runs = []
        for run, cut in cut_runs(self, _OTHERWISE, model, guide, args, kwargs):
            runs.append(run)
            cuts.append(cut)
        log_w = log_weights(runs)
        value = self.bound(log_w)
        weights = exp(log_w - logsumexp(log_w, -1, keepdim=True)).detach()
        terms, start = [], 0
        for run, cut in zip(runs, cuts):
            mine = weights[start : start + run.size]
            start += run.size
            through = through_draws(run, cut, mine ** POWERS[self.gradient])
            terms.append(total(mine * run.log_model()) + through)
        yield Estimate(value.detach(), functools.reduce(operator.add, terms))

    def gains(self, log_w: TensorBase) -> TensorBase:
        """Return the factors of the particles' scores."""
        return vimco_signals(log_w) if self.gradient == "vimco" else super().gains(log_w)


def cut_runs(
    objective: ELBO,
    otherwise: str,
    model: Model,
    guide: Guide,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Iterator[tuple[Run, Cut]]:
    """Yield an objective's runs, draws replaced by leaves, each with the draws as they were.

    `otherwise` is the advice for a guide that has a draw without a pathwise gradient.
    """
    name = type(objective).__name__
    if objective.vectorize_particles and objective.num_particles > 1:
        cut = Cut(name, otherwise)
        yield objective._vectorised(model, guide, args, kwargs, (cut,)), cut
        return
    for _ in range(objective.num_particles):
        cut = Cut(name, otherwise)
        missing = objective.allow_missing
        run = run_pair(model, guide, args, kwargs, handlers=(cut,), allow_missing=missing)
        yield run, cut


class Cut(Handler):
    """Put a leaf in the place of every draw, and keep the draw.

    Parameters
    ----------
    objective : str
        Whose runs these are, for messages.
    otherwise : str
        What to do where a draw has no pathwise gradient.
    """

    def __init__(self, objective: str, otherwise: str) -> None:
        super().__init__()
        self.objective, self.otherwise = objective, otherwise
        self.draws: list[tuple[TensorBase, TensorBase]] = []

    def after_sample(self, site: Site) -> None:
        """Cut the draw off the tape."""
        if site.observed or isinstance(site.fn, Delta):
            # A point mass is computed from other draws, and follows their leaves.
            return
        if "estimator" in site.infer:
            raise choice_refused(site, self.objective)
        if not site.fn.has_rsample:
            raise self._no_path(site, f"a {type(site.fn).__name__}, which has none")
        draw = site.value
        site.value = draw.detach().requires_grad_()
        self.draws.append((draw, site.value))

    def on_factor(self, site: Site) -> None:
        """Refuse: its direct dependence on the parameters is not noise around 0."""
        raise self._no_path(site, "a factor")

    def _no_path(self, site: Site, got: str) -> InferenceError:
        return InferenceError(
            f"{self.objective}: guide site {site.name!r} has no pathwise gradient",
            expected="draws by differentiable functions of the parameters (has_rsample)",
            got=got,
            fix=self.otherwise,
            at=site.location,
        )


def through_draws(run: Run, cut: Cut, coefficients: TensorBase) -> TensorBase | float:
    """Return a tensor whose gradient is that of the log weights along the draws alone.

    With leaves z', the log weight has a gradient at each; the last draw passes its own on to the
    leaves before it that it was computed from, and so on to the first.
    """
    leaves = [leaf for _, leaf in cut.draws]
    if not leaves:
        return 0.0
    log_w = run.log_model() - run.log_guide()
    found = grad(total(log_w), leaves, retain_graph=True, materialize_grads=True)
    slopes = [g * _spread(coefficients, leaf, run) for g, leaf in zip(found, leaves)]
    surrogate = None
    for j in reversed(range(len(leaves))):
        draw, _ = cut.draws[j]
        if draw.requires_grad:
            if j:
                passed = grad(
                    draw, leaves[:j], slopes[j], retain_graph=True, materialize_grads=True
                )
                slopes[:j] = [a + b for a, b in zip(slopes, passed)]
            term = total(draw * slopes[j].detach())
            surrogate = term if surrogate is None else surrogate + term
    return 0.0 if surrogate is None else surrogate


def _spread(coefficients: TensorBase, leaf: TensorBase, run: Run) -> TensorBase:
    """Coefficients of the particles, shaped to meet a draw with its plates and event dims."""
    if run.dim is None:
        return coefficients[0]
    # Under `replicate` the particles are the first dim of every draw.
    return reshape(coefficients, (run.size, *(1,) * (leaf.array.ndim - 1)))


explain_calls(globals())
