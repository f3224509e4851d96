"""Gradient estimators chosen per site: ``infer={"estimator": ...}`` in a guide.

While guide and model run, `EstimatorWatch` reads the choices, cuts the path of draws whose
gradient is to come from elsewhere, and notes where the generators stood before each draw. An
estimator that needs the cost at another value of its site gets it from a rerun of both
(`SiteCosts`): the value is substituted there, and all other draws are made from the same random
bits.

What a site contributes is then the estimate of one derivative: that of the mean cost in the law of
this site, given the draws before it and the noise of those after it. The law of total expectation
makes the sum over sites that of the bound (docs/internals/estimators.md).

score.py has the costs of a site; probtorch/estimators the estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.autograd.modes import set_grad_enabled
from probtorch.autograd.tape import grad
from probtorch.backends.registry import to_host
from probtorch.core.making import as_tensor
from probtorch.core.rng import GeneratorState, default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import TensorLike
from probtorch.effects.runtime import Handler, generator_in_force
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.estimators.control_variates import RELAX
from probtorch.estimators.costs import Costs
from probtorch.estimators.multi_sample import VIMCO
from probtorch.estimators.pathwise import Pathwise
from probtorch.estimators.protocol import Estimator, Memory, Problem, SiteDraws, unwrapped
from probtorch.estimators.registry import as_estimator, check
from probtorch.estimators.score_function import DiCE, ScoreFunction
from probtorch.infer.enumeration.factors import unscaled
from probtorch.infer.objectives.runs import Run
from probtorch.infer.objectives.score import Relevant, downstream, shared_dims
from probtorch.ops.families import unbroadcast
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.infer.objectives.score import CostTerm


__all__ = ["RERUNS", "EstimatorWatch", "Peers", "choice_refused", "needs_peers", "site_term"]

# From a run to the function that gives a site its costs.
CostsOf: TypeAlias = Callable[..., Relevant]
# Why a step is eager that an estimator takes apart: whoever chose it knows.
RERUNS = "reruns of the model for estimator"
# Where generators stand: that in force, and the default one.
States: TypeAlias = tuple[GeneratorState | None, GeneratorState]


# ------------------------------------------------------------------------------ while running


class EstimatorWatch(Handler):
    """Entered around a run of guide and model.

    Attributes
    ----------
    chosen : dict of Estimator
        By site.

    Parameters
    ----------
    picked : dict of Estimator
        By site, of those that choose none themselves.
    """

    def __init__(self, picked: Mapping[str, Estimator] = MappingProxyType({})) -> None:
        super().__init__()
        self.picked = picked
        self.chosen: dict[str, Estimator] = {}
        self._start = _states()
        # Where the generators stood when a site was about to draw, and after.
        # Those of plates under a pair.
        self._ahead: dict[str | tuple[str, str], States] = {}
        self._behind: dict[str, States] = {}

    def on_sample(self, site: Site) -> None:
        """Note where the generators stand."""
        if site.value is None:
            site.notes["drawn"] = True
            self._ahead[site.name] = _states()

    def on_plate(self, site: Site) -> None:
        """Note the same for a subsample."""
        if site.value is None:
            self._ahead["plate", site.name] = _states()

    def after_sample(self, site: Site) -> None:
        """Read the choice, and cut the path of the draw if the gradient comes from elsewhere."""
        if "drawn" not in site.notes:
            return
        self._behind[site.name] = _states()
        given = site.infer.get("estimator", self.picked.get(site.name))
        if given is None:
            return
        estimator = as_estimator(given, f"estimator of site {site.name!r}", site.location)
        _check_site(estimator, site)
        site.notes["estimator"] = self.chosen[site.name] = estimator
        if not isinstance(estimator, Pathwise) and site.value.requires_grad:
            site.value = site.value.detach()

    def again(self, run: Run, name: str, value: TensorBase, taped: bool) -> Run:
        """Run the pair again with another value at one site, all else from the same bits."""
        now, before = _states(), set_grad_enabled(taped)
        try:
            _set_states(self._start)
            with _Substitute(self, name, value):
                assert run.again is not None  # made by ELBO.runs
                return run.again()
        finally:
            set_grad_enabled(before)
            _set_states(now)


class _Substitute(Handler):
    """Entered around a rerun: see `Watch.again`."""

    def __init__(self, watch: EstimatorWatch, name: str, value: TensorBase) -> None:
        super().__init__()
        self.watch, self.name, self.new = watch, name, value

    def on_sample(self, site: Site) -> None:
        if site.value is not None:
            return
        if site.name == self.name:
            site.value = self.new
            # Relaxed values lie between those of the support; no density is to look.
            site.inside = site.infer["inside"] = True
            _set_states(self.watch._behind[site.name])
        elif site.name in self.watch._ahead:
            _set_states(self.watch._ahead[site.name])

    def on_plate(self, site: Site) -> None:
        known = self.watch._ahead.get(("plate", site.name))
        if site.value is None and known is not None:
            _set_states(known)


def choice_refused(site: Site, objective: str) -> InferenceError:
    """Return the error of an objective that takes no estimators per site."""
    return InferenceError(
        f"site {site.name!r}: estimator {site.infer['estimator']!r}",
        expected="an objective that takes estimators per site: Trace_ELBO, TraceGraph_ELBO",
        got=objective,
        fix="change the objective, or take the estimator out of infer={...}",
        at=site.location,
    )


def _states() -> States:
    generator = generator_in_force()
    return None if generator is None else generator.get_state(), default_generator.get_state()


def _set_states(states: States) -> None:
    own, default = states
    generator = generator_in_force()
    if generator is not None and own is not None:
        generator.set_state(own)
    default_generator.set_state(default)


def _check_site(estimator: Estimator, site: Site) -> None:
    check(estimator, site.fn, f"site {site.name!r}: ", site.location)
    if isinstance(estimator, VIMCO):
        raise InferenceError(
            f"site {site.name!r}: VIMCO",
            expected="an estimator of this site's share of the bound",
            got="one of the bound that all particles make together",
            fix='use ImportanceWeightedELBO(gradient="vimco"), without an estimator here',
            at=site.location,
        )
    masked = site.mask is not None and site.mask is not True
    if masked and not isinstance(estimator, (Pathwise, ScoreFunction, DiCE)):
        raise InferenceError(
            f"site {site.name!r}: {type(estimator).__name__}",
            expected="a site without a mask",
            got="a masked one",
            fix="use ScoreFunction or Pathwise there, or draw the masked elements at another site",
            at=site.location,
        )


# ------------------------------------------------------------------------------ the terms


def needs_peers(run: Run) -> bool:
    """Whether a site of the run compares with the other particles, which ran on their own."""
    return any(_leaves_one_out(site.notes.get("estimator")) for site in run.guide.nodes.values())


def _leaves_one_out(estimator: object) -> bool:
    return isinstance(estimator, (ScoreFunction, DiCE)) and estimator._is("leave_one_out")


class Peers:
    """The particles of an estimate, each with its costs.

    Parameters
    ----------
    runs : sequence of Run
    costs_of : callable
    """

    def __init__(self, runs: Sequence[Run], costs_of: CostsOf) -> None:
        self.runs = runs
        self._relevant = [costs_of(run) for run in runs]
        self._known: dict[tuple[int, str], TensorBase] = {}

    def others(self, run: Run, name: str) -> list[TensorBase]:
        """Return the cost of site `name` in all runs but one."""
        found = []
        for i, other in enumerate(self.runs):
            if other is not run and name in other.guide.nodes:
                found.append(self._cost(i, name))
        return found

    def _cost(self, i: int, name: str) -> TensorBase:
        if (i, name) not in self._known:
            run = self.runs[i]
            site = run.guide.nodes[name]
            self._known[i, name] = as_tensor(downstream(run, site, self._relevant[i](site)))
        return self._known[i, name]


def site_term(
    run: Run,
    site: Site,
    relevant: Relevant,
    costs_of: CostsOf,
    memory: dict[str, Memory],
    peers: Peers | None,
) -> TensorBase | None:
    """Return what a site contributes to the surrogate, by the estimator that it asks for.

    Parameters
    ----------
    run : Run
    site : Site
        Of the guide.
    relevant : callable
        From a site to its costs in this run.
    costs_of : callable
        Makes `relevant` for another run.
    memory : dict
        What estimators remember from step to step, by site.
    peers : Peers or None
        The other particles, where they ran on their own.

    Returns
    -------
    Tensor, shape (), or None
        Only its gradient means anything; None where the plain score function is asked for.
    """
    estimator = site.notes.get("estimator")
    if estimator is None:
        return None
    log_q = site.compute_log_prob()
    if isinstance(estimator, (ScoreFunction, DiCE)):
        if estimator.baseline is None:
            return None
        cost = as_tensor(downstream(run, site, relevant(site)))
        if _leaves_one_out(estimator):
            base, loss = _mean_of_others(run, site, cost, peers), None
        else:
            if estimator._is("moving_average"):
                read("a baseline that is a moving average")
            cost = expand(cost, log_q.array.shape)
            base, loss = _own_baseline(estimator, run, cost, memory.setdefault(site.name, {}))
        term = total(unscaled(site) * (cost - base))
    else:
        read(f"{RERUNS} {type(estimator).__name__}")
        q, _ = unwrapped(site.fn)
        costs = SiteCosts(run, site, relevant, costs_of, estimator.mixes)
        problem = Problem(q, costs, _SiteDraws(site, q), learn=isinstance(estimator, RELAX))
        _, surrogate, loss = estimator.estimate(problem)
        term = total(surrogate)
    # The gradient of -log q is in the bound too; it is 0 in expectation, and taken out.
    term = term + total(log_q)
    return term if loss is None else term - loss


def _own_baseline(
    estimator: ScoreFunction | DiCE, run: Run, cost: TensorBase, memory: Memory
) -> tuple[TensorBase, TensorBase | None]:
    """The baseline of costs whose particles are not compared."""
    # Particles are the samples of the estimator: its first dim.
    first = run.dim is not None and cost.array.ndim == -run.dim
    base, loss = estimator.reduced(cost if first else unsqueeze(cost, 0), memory)
    assert base is not None  # asked of estimators with a baseline alone
    return (base if first or base.array.ndim <= cost.array.ndim else base[0]), loss


def _mean_of_others(run: Run, site: Site, cost: TensorBase, peers: Peers | None) -> TensorBase:
    if run.dim is not None:
        if cost.array.ndim < -run.dim or cost.array.shape[run.dim] == 1:
            return cost
        return (total(cost, run.dim, True) - cost) / (run.size - 1)
    others = [] if peers is None else peers.others(run, site.name)
    if peers is None or len(peers.runs) < 2:
        raise InferenceError(
            f"site {site.name!r}: the baseline 'leave_one_out'",
            expected="at least 2 particles, which are compared with each other",
            got="1",
            fix="pass num_particles=2 or more to the objective",
            at=site.location,
        )
    alike = [other for other in others if other.array.shape == cost.array.shape]
    return total(stack(alike), 0) / len(alike) if alike else cost * 0.0


class _SiteDraws(SiteDraws):
    """Draws whose first one of the site's distribution is the value that the run has."""

    def __init__(self, site: Site, q: Distribution) -> None:
        super().__init__(generator_in_force())
        self._q, self._value = q, site.value.detach()
        self._fresh = True

    def sample(self, q: Distribution, n: int) -> TensorBase:
        if q is not self._q or not self._fresh:
            return super().sample(q, n)
        self._fresh = False
        first = unsqueeze(self._value, 0)
        return first if n == 1 else cat([first, super().sample(q, n - 1)], 0)


class SiteCosts:
    """The cost of a run as a function of the value at one site; see `Costs` for the shapes.

    Parameters
    ----------
    run : Run
    site : Site
        Of the guide, with the value that the run has.
    relevant, costs_of : callable
        See `site_term`.
    mixes : bool
        Whether an entry may have a part in common with others (`Estimator.mixes`).
    """

    def __init__(
        self,
        run: Run,
        site: Site,
        relevant: Relevant,
        costs_of: CostsOf,
        mixes: bool,
    ) -> None:
        self.run, self.site, self.costs_of = run, site, costs_of
        self._batch = tuple(site.fn.batch_shape)
        self._events = unwrapped(site.fn)[1]
        costs = list(relevant(site))
        self._kept = None if mixes else _common(run, site, costs)
        self._value = to_host(site.value.array)
        self._here = self._shaped(run, site, costs)

    def __call__(self, z: TensorBase) -> TensorBase:
        """Return the costs of n values, each by a run of its own."""
        return stack([self._at(z[i]) for i in range(z.array.shape[0])])

    def like(self, fn: Callable[[TensorBase], TensorLike]) -> Costs:
        """Return the costs of a function of the same values."""
        return Costs(fn, self.site.fn)

    def _at(self, z: TensorBase) -> TensorBase:
        if not z.requires_grad:
            if np.array_equal(to_host(z.array), self._value):
                return self._here
            return self._rerun(z, False)
        leaf = z.detach().requires_grad_()
        cost = self._rerun(leaf, True)
        if not cost.requires_grad:
            return cost
        (slope,) = grad(total(cost), leaf, materialize_grads=True)
        moved = (z - z.detach()) * slope
        inner = tuple(range(-len(unwrapped(self.site.fn)[0].event_shape), 0))
        moved = total(moved, inner) if inner else moved
        return cost.detach() + unbroadcast(moved, cost.array.shape)

    def _rerun(self, z: TensorBase, taped: bool) -> TensorBase:
        name = self.site.name
        watch = self.run.watch
        assert watch is not None  # it has the choice of this estimator
        run = watch.again(self.run, name, z, taped)
        site = run.guide.nodes[name]
        return self._shaped(run, site, self.costs_of(run, taped)(site))

    def _shaped(self, run: Run, site: Site, costs: Iterable[CostTerm]) -> TensorBase:
        """The costs summed, in the shape C of the site."""
        found = as_tensor(downstream(run, site, costs, self._kept))
        batch = self._batch
        shape = tuple(
            size if self._kept is None or i - len(batch) in self._kept else 1
            for i, size in enumerate(batch)
        )
        return reshape(expand(found, shape), (*shape, *(1,) * self._events))


def _common(run: Run, site: Site, costs: Sequence[CostTerm]) -> set[int | None]:
    """The dims of the site that all of its costs have rows along."""
    kept = [shared_dims(run, site, cost) for cost in costs]
    return set.intersection(*kept) if kept else set()
