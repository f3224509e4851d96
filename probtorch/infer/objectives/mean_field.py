"""`TraceMeanField_ELBO`: divergences in closed form where they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.divergences import kl_divergence
from probtorch.effects.site import Site
from probtorch.infer.objectives.elbo import Trace_ELBO, averaged
from probtorch.infer.objectives.protocol import Estimate
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import CostTerm, score_terms
from probtorch.ops.arithmetic import where

if TYPE_CHECKING:
    from probtorch.infer.objectives.site_estimators import Peers


__all__ = ["TraceMeanField_ELBO"]


class TraceMeanField_ELBO(Trace_ELBO):
    """The evidence lower bound with KL(q || p) of a site in closed form where one is registered.

    A divergence stands for the mean of log q - log p over the site's own draw, given the draws
    before it. So it is used only where nothing that the two distributions depend on may have been
    drawn after the site: all latent sites before it in the model are before it in the guide too.
    Elsewhere, and where no closed form is known, the site is estimated from its draw as in
    `Trace_ELBO`. The bound is the same in expectation, with less variance.

    Parameters
    ----------
    num_particles, max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.
    """

    estimators_per_site = False

    def estimate(self, run: Run, peers: Peers | None = None) -> Estimate:
        """Return the mean over the particles of one run."""
        divergences = _divergences(run)
        value, costs = None, []
        for found, of_model in ((run.model, True), (run.guide, False)):
            for name, site in found.nodes.items():
                if not site.has_density:
                    continue
                if name in divergences:
                    if not of_model:
                        continue
                    term = -divergences[name]
                else:
                    term = site.compute_log_prob() if of_model else -site.compute_log_prob()
                costs.append(CostTerm(term.detach(), site, of_model))
                term = run.per_particle(term)
                value = term if value is None else value + term
        value = averaged(wrap(np.zeros(())) if value is None else value, run)
        scores = score_terms(run, lambda site: costs, integrated=divergences)
        return Estimate(value, value if scores is None else value + scores / run.size)


def _divergences(run: Run) -> dict[str, TensorBase]:
    """KL(q || p) of the sites that have one, scaled and masked, by name."""
    position = {name: i for i, name in enumerate(run.guide.nodes)}
    latest, found = -1, {}
    for name, site in run.model.nodes.items():
        if site.kind != "sample" or site.observed or name not in position:
            continue
        other = run.guide.nodes[name]
        if latest < position[name] and other is not site and _alike(site, other):
            kl = _divergence(other, site)
            if kl is not None:
                found[name] = kl
        latest = max(latest, position[name])
    return found


def _alike(site: Site, other: Site) -> bool:
    """Whether both sites count the same elements, as often."""
    number = isinstance(site.scale, float) and isinstance(other.scale, float)
    return site.mask is other.mask and (
        bool(site.scale == other.scale) if number else site.scale is other.scale
    )


def _divergence(guide: Site, model: Site) -> TensorBase | None:
    try:
        kl = kl_divergence(guide.fn, model.fn)
    except NotImplementedError:
        return None
    if model.mask is not None and model.mask is not True:
        kl = where(model.mask, kl, 0.0) if model.mask is not False else kl.new_zeros(kl.shape)
    return kl * model.scale if type(model.scale) is not float or model.scale != 1.0 else kl


explain_calls(globals())
