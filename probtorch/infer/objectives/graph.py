"""`TraceGraph_ELBO`: score-function terms with less variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError
from probtorch.infer.objectives.elbo import Trace_ELBO
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import Baselined, Relevant, later_costs
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total

__all__ = ["TraceGraph_ELBO"]

OPTIONS = (
    "use_decaying_avg_baseline",
    "baseline_beta",
    "baseline_value",
    "nn_baseline",
    "nn_baseline_input",
)


class TraceGraph_ELBO(Trace_ELBO):
    """The evidence lower bound with Rao-Blackwellised score-function terms and baselines.

    The score of a draw is multiplied only by densities that may depend on it: those of the same row
    of its plates, drawn with it or after it. Where all draws are differentiable this is
    `Trace_ELBO`.

    A site of the guide may ask for a baseline, which is subtracted from what its score is
    multiplied with: ``infer={"baseline": {...}}`` with

    - ``"use_decaying_avg_baseline": True``: the running mean of the costs, of which
      ``"baseline_beta"`` (0.9) is kept at each step;
    - ``"baseline_value"``: a tensor that does not depend on the draw;
    - ``"nn_baseline"`` and ``"nn_baseline_input"``: a module, trained along by least squares, whose
      parameters the optimizer has to know.

    Parameters
    ----------
    num_particles, max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.

    References
    ----------
    Schulman, Heess, Weber, Abbeel (2015), "Gradient estimation using stochastic computation
    graphs"; Mnih and Gregor (2014), "Neural variational inference and learning in belief networks".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._averages: dict[str, TensorBase] = {}

    @staticmethod
    def costs_of(run: Run, taped: bool = False) -> Relevant:
        """Return the function that gives a site of the guide its costs in a run."""
        return later_costs(run, taped)

    def baseline(self, run: Run) -> Baselined:
        """Return what reduces the cost of a site by the baseline that it asks for."""
        return lambda site, cost: self._reduced(run, site, cost)

    def _reduced(
        self, run: Run, site: Site, cost: TensorBase | float
    ) -> tuple[TensorBase | float, TensorBase | None]:
        """The cost of a site without its baseline, and what trains the baseline."""
        options = site.infer.get("baseline")
        if not options:
            return cost, None
        _check(site, options)
        base: TensorBase | float = 0.0
        cost, extra = as_tensor(cost), None
        if options.get("use_decaying_avg_baseline"):
            base = base + self._average(run, site, cost, options.get("baseline_beta", 0.9))
        network = options.get("nn_baseline")
        if network is not None:
            base = base + network(options["nn_baseline_input"])
        if "baseline_value" in options:
            base = base + options["baseline_value"]
        if isinstance(base, TensorBase) and base.requires_grad:
            # Least squares for the baseline, a term whose gradient touches nothing else.
            error = cost - base
            extra, base = -total(error * error), base.detach()
        return cost - base, extra

    def _average(self, run: Run, site: Site, cost: TensorBase, beta: float) -> TensorBase | float:
        """The running mean of the cost before this draw; then take this one in."""
        now = cost
        if run.dim is not None and now.array.ndim >= -run.dim:
            now = mean(now, run.dim, keepdim=True)
        before = self._averages.get(site.name)
        if before is not None and before.array.shape != now.array.shape:
            # Another number of rows, as in the last minibatch: their common mean serves.
            before = wrap((now.array * 0.0) + before.array.mean())
        if grad_enabled():
            new = now * (1.0 - beta) if before is None else now * (1.0 - beta) + before * beta
            self._averages[site.name] = new.detach()
        return 0.0 if before is None else before

    def state_dict(self) -> dict[str, Tree]:
        """Return the running means of the costs."""
        averages = {n: wrap(x.array.copy()) for n, x in self._averages.items()}
        return {"averages": averages, **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict({n: x for n, x in state.items() if n != "averages"})
        self._averages.clear()
        self._averages.update({n: wrap(x.array.copy()) for n, x in state["averages"].items()})


def _check(site: Site, options: Mapping[str, object]) -> None:
    unknown = [name for name in options if name not in OPTIONS]
    if unknown or ("nn_baseline" in options) != ("nn_baseline_input" in options):
        raise ArgumentError(
            f"baseline of site {site.name!r}",
            expected=f"options among {', '.join(OPTIONS)}, the last two together",
            got=", ".join(map(str, options)),
            fix='for example {"use_decaying_avg_baseline": True}',
            at=site.location,
        )


explain_calls(globals())
