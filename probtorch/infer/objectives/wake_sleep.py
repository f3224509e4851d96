"""`ReweightedWakeSleep`: one loss for the model, another for the guide."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.handlers import replay, trace, uncondition
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.renyi import log_weights
from probtorch.infer.objectives.runs import Run, run_pair
from probtorch.infer.objectives.site_estimators import choice_refused
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp
from probtorch.ops.reduction import sum as total

__all__ = ["ReweightedWakeSleep"]


class ReweightedWakeSleep(ELBO):
    """Reweighted wake-sleep: the model climbs the importance-weighted bound, the guide follows.

    The guide's parameters are moved towards the posterior from the other side, by KL(p || q): in
    the wake phase by the log density of its own draws, weighted by their importance; in the sleep
    phase by that of draws of the model. No draw needs a gradient, so discrete sites are as good as
    any.

    Parameters
    ----------
    num_particles : int, at least 2
        Draws of the guide in the wake phase.
    insomnia : float, in [0, 1]
        Share of the wake phase in the guide's loss.
    model_has_params : bool
        Whether the model has parameters to learn.
    num_sleep_particles : int, optional
        Draws of the model in the sleep phase; `num_particles` by default.
    vectorize_particles, max_plate_nesting, retain_graph, allow_missing
        See `ELBO`.

    Raises
    ------
    ArgumentError
        For an `insomnia` outside [0, 1], or a count below 1.
    InferenceError
        In a sleep phase: if the guide takes no argument `observations`, a dict from the names of
        observed sites to draws of the model, or is an automatic guide.

    Notes
    -----
    The loss that is reported is minus the importance-weighted bound.

    References
    ----------
    Bornschein and Bengio (2015), "Reweighted wake-sleep"; Le, Kosiorek, Siddharth, Teh, Wood
    (2019), "Revisiting reweighted wake-sleep for models with stochastic control flow".
    """

    min_particles = 2

    def __init__(
        self,
        num_particles: int = 2,
        insomnia: float = 1.0,
        model_has_params: bool = True,
        num_sleep_particles: int | None = None,
        vectorize_particles: bool = False,
        max_plate_nesting: int | None = None,
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
        if not 0.0 <= insomnia <= 1.0:
            raise ArgumentError(
                "ReweightedWakeSleep(insomnia=...)",
                expected="a share in [0, 1]",
                got=repr(insomnia),
                fix="1 for the wake phase alone, 0 for the sleep phase alone",
            )
        if num_sleep_particles is not None and not num_sleep_particles >= 1:
            raise ArgumentError(
                "ReweightedWakeSleep(num_sleep_particles=...)",
                expected="a count of at least 1",
                got=repr(num_sleep_particles),
                fix="leave it out for num_particles",
            )
        self.insomnia, self.model_has_params = float(insomnia), bool(model_has_params)
        self.num_sleep_particles = num_sleep_particles or self.num_particles

    def runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Run]:
        """Yield runs whose draws are off the tape."""
        if self.vectorize_particles:
            yield self._vectorised(model, guide, args, kwargs, (_Detach(),))
            return
        for _ in range(self.num_particles):
            yield run_pair(
                model,
                guide,
                args,
                kwargs,
                handlers=(_Detach(),),
                allow_missing=self.allow_missing,
            )

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield the bound, and the losses of model and guide as its surrogate."""
        runs = list(self.runs(model, guide, args, kwargs))
        log_w = log_weights(runs)
        value = (logsumexp(log_w, -1) - math.log(self.num_particles)).detach()
        weights = exp(log_w - logsumexp(log_w, -1, keepdim=True)).detach()
        surrogate: Any = 0.0
        start = 0
        for run in runs:
            mine = weights[start : start + run.size]
            start += run.size
            if self.model_has_params:
                surrogate = surrogate + total(mine * run.log_model())
            if self.insomnia:
                surrogate = surrogate + total(mine * run.log_guide()) * self.insomnia
        if self.insomnia < 1.0:
            asleep = self._sleep(model, guide, args, kwargs)
            surrogate = surrogate + asleep * (1.0 - self.insomnia)
        yield Estimate(value, surrogate)

    def _sleep(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> TensorBase | float:
        """Mean log density of the guide at draws of the model."""
        _check_observations(guide)
        found: TensorBase | float = 0.0
        for _ in range(self.num_sleep_particles):
            with no_grad(), trace() as dream, uncondition():
                model(*args, **kwargs)
            data = {n: s.value for n, s in dream.items() if "obs" in s.notes}
            with trace() as seen, replay(None, dream):
                guide(*args, **{**kwargs, "observations": data})
            for name, site in seen.items():
                if site.kind == "sample" and site.infer.get("is_auxiliary"):
                    raise _not_evaluable(site)
                if site.kind == "sample" and not site.observed and name not in dream:
                    raise _not_evaluable(site)
            found = found + seen.log_prob_sum()
        return found * (1.0 / self.num_sleep_particles)


class _Detach(Handler):
    """Take draws off the tape."""

    def after_sample(self, site: Site) -> None:
        """Put the draw's elements in its place."""
        if "estimator" in site.infer:
            raise choice_refused(site, "ReweightedWakeSleep")
        if not site.observed:
            site.value = site.value.detach()


def _check_observations(guide: Guide) -> None:
    """Refuse a guide that cannot be told of other data."""
    try:
        parameters = inspect.signature(guide).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = {p.kind for p in parameters}
    named = any(p.name == "observations" for p in parameters)
    if not named and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise InferenceError(
            "ReweightedWakeSleep: the guide takes no observations",
            expected="a guide with an argument `observations`, from which it takes the data",
            got=f"{getattr(guide, '__name__', guide)}{inspect.signature(guide)}",
            fix="add observations=None to model and guide, or pass insomnia=1.0",
        )


def _not_evaluable(site: Site) -> InferenceError:
    return InferenceError(
        f"ReweightedWakeSleep: guide site {site.name!r} is no site of the model",
        expected="a guide whose density can be evaluated at draws of the model",
        got="an automatic guide, or one with helper sites" if site.infer.get("is_auxiliary")
        else "a site without a value",
        fix="write the guide with the sites of the model alone, or pass insomnia=1.0",
        at=site.location,
    )  # fmt: skip


explain_calls(globals())
