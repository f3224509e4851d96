"""`EnergyDistance`: guides whose predictions are like the data, without a density of the data.

The energy distance of two distributions is 0 where they are the same. It needs draws only: of the
data there is one, the data, of the model's prediction there are some, made of draws of the guide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.distribution import MaskedDistribution
from probtorch.distributions.validation import require, without_tape
from probtorch.effects.handlers import replay, uncondition
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import has_score
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.effects.site import Site

__all__ = ["EnergyDistance"]

# Added to squared distances, so that their roots have a gradient where they are 0.
TINY = 1e-30


class EnergyDistance(ELBO):
    """The energy distance from the posterior prediction to the data, less a share of the prior.

    ``E|X - x|^beta - E|X - X'|^beta / 2 - prior_scale E[log p(z)]``, with X and X' two predictions
    of all data x as one vector, made of draws z of the guide.

    Parameters
    ----------
    beta : float, in (0, 2)
        Power of the Euclidean distance.
    prior_scale : float, at least 0
        Share of the prior. With 0 it plays no part, and parameters are fitted by the data alone.
    num_particles : int, at least 2
        Predictions per estimate.
    max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.

    Raises
    ------
    ArgumentError
        For a `beta` outside of (0, 2), a negative `prior_scale`, or fewer than 2 particles; at an
        estimate, if data are not finite, unless they are masked.
    InferenceError
        At the first estimate: if predictions or draws have no pathwise gradients, or there are no
        data.
    ModelError
        At the first estimate: if the guide lacks a latent site, unless `allow_missing`.

    Notes
    -----
    It asks the observed sites for differentiable draws in place of densities, for models that can
    be simulated only. What it finds is no posterior: nothing in it keeps a guide wide, whatever
    `prior_scale` is, and where the prediction has noise of its own the guide shrinks to a point (in
    a regression to 0.05 of the posterior's standard deviations, and on).
    Scales of plates weigh the squares of differences, and what is masked is left out. All particles
    have the same rows of plates that work on subsamples. The loss is the distance, no bound of the
    evidence.

    References
    ----------
    Szekely, Rizzo (2013), "Energy statistics: a class of statistics based on distances"; Gneiting,
    Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", sec. 4.3.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, EnergyDistance
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     loc = probtorch.sample("loc", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Stable(1.7, 0.0, 0.3, loc), obs=y)
    >>> def guide(y):
    ...     probtorch.sample("loc", dist.Delta(probtorch.param("at", 0.0)))
    >>> y = probtorch.tensor([1.6, 1.9, 2.0, 2.1, 2.4])
    >>> svi = SVI(model, guide, Adam({"lr": 0.02}), EnergyDistance(num_particles=4), seed=0)
    >>> bool(abs(svi.run(500, y, progress_bar=False).params["at"] - 2.0) < 0.2)
    True
    """

    min_particles = 2

    def __init__(
        self,
        beta: float = 1.0,
        prior_scale: float = 0.0,
        num_particles: int = 2,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
    ) -> None:
        # The data are left to the model, as sites that the guide lacks.
        super().__init__(
            num_particles, max_plate_nesting, vectorize_particles, retain_graph, allow_missing=True
        )
        for name, value, good, what in (
            ("beta", beta, 0.0 < beta < 2.0, "a number in (0, 2)"),
            ("prior_scale", prior_scale, 0.0 <= prior_scale < math.inf, "a number of at least 0"),
        ):
            if not good:
                raise ArgumentError(
                    f"EnergyDistance({name}=...)", expected=what, got=repr(value),
                    fix="leave it out for the default",
                )  # fmt: skip
        self.beta, self.prior_scale = float(beta), float(prior_scale)
        self.leaves_latents = bool(allow_missing)
        # The model, and the one without its data.
        self._free: tuple[Model, Model] | None = None

    def _without_data(self, model: Model) -> Model:
        known = self._free
        if known is None or known[0] is not model:
            known = self._free = model, uncondition(model)
        return known[1]

    def settled(self, model: Model, guide: Guide) -> bool:
        """Whether all is known of this pair that the first of its `runs` finds out."""
        return super().settled(self._without_data(model), guide)

    def runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Run]:
        """Yield the runs of guide and model, with data of the model's own, all of the same rows."""
        made = super().runs(self._without_data(model), guide, args, kwargs)
        rows: dict[str, Site] = {}
        while True:
            # Predictions of other rows would be far apart, whatever the guide.
            with replay(trace=rows):
                run = next(made, None)
            if run is None:
                return
            self._check(run)
            sites = {**run.guide.nodes, **run.model.nodes}
            rows = {name: site for name, site in sites.items() if site.kind == "plate"}
            yield run

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield minus the distance."""
        runs = list(self.runs(model, guide, args, kwargs))
        names = [name for name, site in runs[0].model.nodes.items() if "obs" in site.notes]
        away = [_joined([_weighted(run, name, minus=True) for run in runs]) for name in names]
        drawn = [_joined([_weighted(run, name, minus=False) for run in runs]) for name in names]
        error = _power(_squares(away), self.beta).mean()
        count = self.num_particles
        apart = [unsqueeze(x, 0) - unsqueeze(x, 1) for x in drawn]
        # The diagonal, of a draw with itself, is nothing but rounding of 0.
        entropy = total(_power(_squares(apart), self.beta)) / (count * (count - 1))
        found = 0.5 * entropy - error
        if self.prior_scale:
            prior = _joined([_log_prior(run, names) for run in runs]).mean()
            found = found + self.prior_scale * prior
        yield Estimate(found, found)

    def _check(self, run: Run) -> None:
        """Refuse what has no pathwise gradient, and what the guide forgot."""
        data = [site for site in run.model.nodes.values() if "obs" in site.notes]
        if not data:
            raise InferenceError(
                "EnergyDistance: the model's data",
                expected="sample statements with obs=",
                got="none",
                fix="give the model its data, or use Trace_ELBO",
            )
        for name, site in run.guide.nodes.items():
            mine = run.model.nodes.get(name)
            left = mine is site and "obs" not in site.notes
            if left and not self.leaves_latents:
                raise ModelError(
                    f"the guide has no site {name!r}",
                    expected="a draw for every latent site of the model",
                    got="none of it",
                    fix=f"add sample({name!r}, ...) to the guide, or leave it to the prior with "
                    "allow_missing=True",
                    at=site.location,
                )
            if has_score(site):
                raise _no_path(site)


def _no_path(site: Site) -> InferenceError:
    kind = "prediction" if "obs" in site.notes else "draw"
    return InferenceError(
        f"EnergyDistance: site {site.name!r} has no pathwise gradient",
        expected=f"a {kind} that is a differentiable function of the parameters (has_rsample)",
        got=f"a {type(site.fn).__name__}, which has none",
        fix="use Trace_ELBO or TraceGraph_ELBO, which take any density",
        at=site.location,
    )


def _weighted(run: Run, name: str, *, minus: bool) -> TensorBase:
    """A predicted site, less its data if asked, times the roots of its weights: (size, numbers)."""
    site = run.model.nodes[name]
    value, shape = site.value, site.value.array.shape
    data = as_tensor(site.notes["obs"], name)
    events = (1,) * len(tuple(site.fn.event_shape))
    own = site.fn._mask if isinstance(site.fn, MaskedDistribution) else None
    for mask in (site.mask, own):
        if mask is not None:
            seen = as_tensor(mask, name)
            seen = reshape(seen, (*seen.array.shape, *events))
            # Not a product: what is missing may be NaN.
            value, data = where(seen, value, 0.0), where(seen, data, 0.0)
    if minus:
        _require_finite(site, data)
        value = value - data
    weight = as_tensor(site.scale, name)
    root = reshape(sqrt(weight), (*weight.array.shape, *events)).to(site.value.dtype)
    return reshape(expand(value * root, shape), (run.size, -1))


def _require_finite(site: Site, data: TensorBase) -> None:
    """Refuse data that are at no distance from anything, now and in every replay."""

    def error() -> ArgumentError:
        bad = ~np.isfinite(to_host(data.array))
        return ArgumentError(
            f"EnergyDistance: the data of site {site.name!r}",
            expected="finite numbers, from which there is a distance",
            got=f"{int(bad.sum())} of {bad.size} that are not",
            fix="mask missing data with .mask(isfinite(value))",
            at=site.location,
        )

    require(without_tape(isfinite, data), error)


def _joined(parts: Sequence[TensorBase]) -> TensorBase:
    return parts[0] if len(parts) == 1 else cat(list(parts), 0)


def _squares(sites: Sequence[TensorBase]) -> TensorBase:
    """Squared lengths of vectors whose parts are those of several sites, along the last dim."""
    found = total(sites[0] * sites[0], -1)
    for x in sites[1:]:
        found = found + total(x * x, -1)
    return found


def _power(squares: TensorBase, beta: float) -> TensorBase:
    return (squares + TINY) ** (0.5 * beta)


def _log_prior(run: Run, data: Sequence[str]) -> TensorBase:
    """Log density of the latent sites, shape (size,)."""
    found = run.log_model()
    for name in data:
        found = found - run.per_particle(run.model.nodes[name].compute_log_prob())
    return expand(reshape(found, (-1,)), (run.size,))


explain_calls(globals())
