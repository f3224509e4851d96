"""`TraceTMC_ELBO`: importance weights of all combinations of a few draws of each site.

Sites with ``infer={"enumerate": "parallel", "num_samples": K}`` have K draws along a dim of their
own, and the weight p / q is averaged over all combinations of them: K to the power of the number of
sites, by the same sums that take discrete sites out of a model (enumeration/sum_product.py), in
linear time where the model is a chain or a tree.
"""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.enumerable import as_annotated, can_enumerate
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.choices import Choices
from probtorch.infer.enumeration.factors import factor_of, has_variables, marginal_terms, unscaled
from probtorch.infer.enumeration.sum_product import Factor
from probtorch.infer.objectives.enumerated import TraceEnum_ELBO
from probtorch.infer.objectives.enumerated_bound import EnumeratedRun, means
from probtorch.infer.objectives.enumerated_branches import no_branches
from probtorch.infer.objectives.protocol import Estimate
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import has_score

__all__ = ["TraceTMC_ELBO"]


class TraceTMC_ELBO(TraceEnum_ELBO):
    """Tensor Monte Carlo: the log of the mean weight over all combinations of draws.

    - Sites of the guide with ``infer={"enumerate": "parallel", "num_samples": K}`` (all of them, by
      ``config_enumerate(guide, "parallel", num_samples=K)``) have K draws each; a site that depends
      on such a site has K for each of its draws.
    - Sites of the model that are annotated so, and that the guide does not have, are drawn from the
      prior.
    - Finite sites that are annotated without `num_samples`, and those of the model that the guide
      does not have, are summed out exactly.
    - All other sites are drawn once.

    Parameters
    ----------
    num_particles, max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.
    strict_enumeration_warning : bool
        Accepted for Pyro's sake.

    Raises
    ------
    InferenceError
        While running: if a draw has no pathwise gradient, a site with several draws is masked, the
        guide enumerates sequentially, or a sum is intractable.

    Notes
    -----
    The mean weight is an unbiased estimate of the evidence, so its log is a lower bound in
    expectation; for one site with K draws it is the importance-weighted bound of K particles.

    References
    ----------
    Aitchison (2019), "Tensor Monte Carlo: particle methods for the GPU era".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import TraceTMC_ELBO, config_enumerate
    >>> def model(y):
    ...     a = probtorch.sample("a", dist.Normal(0.0, 1.0))
    ...     b = probtorch.sample("b", dist.Normal(a, 1.0))
    ...     probtorch.sample("y", dist.Normal(b, 1.0), obs=y)
    >>> def guide(y):
    ...     probtorch.sample("a", dist.Normal(0.5, 1.0))
    ...     probtorch.sample("b", dist.Normal(1.0, 1.0))
    >>> many = config_enumerate(guide, "parallel", num_samples=100)
    >>> y = probtorch.tensor(1.5)
    >>> loss = TraceTMC_ELBO().loss(model, many, y)
    >>> bool(abs(-loss - dist.Normal(0.0, 3.0**0.5).log_prob(y)) < 0.2)
    True
    """

    def _in_model(self, site: Site) -> str | None:
        how = as_annotated(site)
        if how == "sequential" or (how is None and not self.allow_missing and can_enumerate(site)):
            how = "parallel"
        return how

    def _with_branches(self, found: Run, branching: Choices, *rest: object) -> NoReturn:
        raise no_branches(
            found.model[branching.names[0]], "TraceTMC_ELBO", "use TraceEnum_ELBO, or 'parallel'"
        )

    def estimate(self, run: EnumeratedRun) -> Estimate:
        """Return the log of the mean weight of one run."""
        if run.chosen:
            raise InferenceError(
                f"TraceTMC_ELBO: guide site {run.chosen[0]!r} is enumerated sequentially",
                expected="sites with all their values, or several draws, in one run",
                got='infer={"enumerate": "sequential"}',
                fix='write infer={"enumerate": "parallel"}, or use TraceEnum_ELBO',
                at=run.guide.nodes[run.chosen[0]].location,
            )
        value: TensorBase | float = 0.0
        proposals = []
        for name, site in run.guide.nodes.items():
            if not site.has_density or self._is_exact(run, site):
                continue
            _check(site, run.model.nodes.get(name), self._count(run, site))
            log_q = site.compute_log_prob()
            if has_variables(site, log_q):
                proposals.append(self._proposal(run, site))
            else:
                value = value - site.compute_log_prob_sum()
        for name, site in run.model.nodes.items():
            drawn = "variable" in site.notes and name not in run.guide.nodes
            if drawn and site.has_density and not self._is_exact(run, site):
                _check(site, site, self._count(run, site))
                if has_variables(site, site.compute_log_prob()):
                    proposals.append(self._proposal(run, site))
                else:
                    value = value - site.compute_log_prob_sum()
        factors = []
        variables = set(run.enumeration.variables)
        for term in marginal_terms(run.model, variables, run.axes, extra=proposals):
            if term.factor is None:
                value = value + term.sites[0].compute_log_prob_sum()
            else:
                factors.append(term.factor)
        for factor in means(factors, {}, run.axes):
            value = value + factor.value
        found = value if isinstance(value, TensorBase) else wrap(np.zeros(()))
        return Estimate(found, found)

    @staticmethod
    def _is_exact(run: EnumeratedRun, site: Site) -> bool:
        """Whether a site has all the values of its support: a sum over them asks for no weights."""
        number = site.notes.get("variable")
        return number is not None and not run.enumeration.variables[number].sampled

    @staticmethod
    def _count(run: EnumeratedRun, site: Site) -> int:
        """How many draws a site has along a dim of its own."""
        number = site.notes.get("variable")
        return 1 if number is None else run.enumeration.variables[number].size

    def _proposal(self, run: EnumeratedRun, site: Site) -> Factor:
        """Minus the log density that a site was drawn from, and the share of each draw."""
        site.compute_log_prob()
        found = factor_of(site, -unscaled(site), run.axes)
        share = math.log(self._count(run, site))
        return Factor(found.value - share, found.axes, found.plates, found.origin)


def _check(site: Site, twin: Site | None, count: int) -> None:
    """Refuse draws whose weights would be wrong, or have wrong gradients."""
    if has_score(site):
        raise InferenceError(
            f"TraceTMC_ELBO: site {site.name!r} has no pathwise gradient",
            expected="draws by differentiable functions of the parameters (has_rsample)",
            got=f"a {type(site.fn).__name__}",
            fix="leave num_samples out, so that a finite support is summed, or use RenyiELBO",
            at=site.location,
        )
    masked = any(s is not None and s.mask is not None and s.mask is not True for s in (site, twin))
    if count > 1 and masked:
        raise InferenceError(
            f"TraceTMC_ELBO: site {site.name!r} has several draws and a mask",
            expected="sites that are there in all rows",
            got="a mask",
            fix="leave num_samples out at this site",
            at=site.location,
        )


explain_calls(globals())
