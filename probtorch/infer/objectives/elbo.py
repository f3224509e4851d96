"""`ELBO`: what all objectives share, and `Trace_ELBO`, the plain evidence lower bound.

An objective turns runs of guide and model into estimates: a value, and a surrogate whose gradient
is an unbiased estimate of the gradient of the expected value. Where all draws are differentiable
the two are one tensor; a draw that is not (a category, a count) adds its score-function term
(score.py).

Names and signatures are Pyro's. Losses are negative bounds, in nats: lower is better.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probtorch.autograd.modes import no_grad
from probtorch.core.arguments import count_of
from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.effects.handlers import trace
from probtorch.effects.params import get_param_store
from probtorch.errors import ArgumentError, ModelError
from probtorch.estimators.registry import as_estimator
from probtorch.estimators.score_function import ScoreFunction
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.runs import Run, Vectorised, run_pair
from probtorch.infer.objectives.score import Baselined, Relevant, all_costs, score_terms
from probtorch.infer.objectives.site_estimators import (
    EstimatorWatch,
    Peers,
    choice_refused,
    needs_peers,
    site_term,
)

if TYPE_CHECKING:
    from probtorch.effects.site import Site
    from probtorch.estimators.protocol import Estimator, Memory


__all__ = ["ELBO", "BoundLoss", "Trace_ELBO"]

# What subclasses of Pyro's objectives override, to change how one particle is made and counted.
_PYROS = (
    "_compute_dice_elbo",
    "_differentiable_loss_particle",
    "_differentiable_loss_parts",
    "_get_trace",
    "_get_traces",
    "_get_vectorized_trace",
    "_loss_and_grads_particle",
    "_loss_and_surrogate_loss",
    "_loss_and_surrogate_loss_particle",
)


class ELBO(abc.ABC):
    """Base of all objectives.

    Parameters
    ----------
    num_particles : int
        Runs of guide and model per estimate.
    max_plate_nesting : int, optional
        Accepted for Pyro's sake: plates place themselves.
    vectorize_particles : bool
        Run all particles at once along a batch dim of their own, left of all plates. Model and
        guide have to bear it, which the first run checks.
    retain_graph : bool, optional
        Keep the tape after `loss_and_grads`.
    allow_missing : bool
        Leave latent sites that the guide lacks to the prior, instead of refusing.

    Raises
    ------
    ArgumentError
        If `num_particles` is not a count of at least 1.
    """

    def __init__(
        self,
        num_particles: int = 1,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
    ) -> None:
        self.num_particles = count_of(
            type(self).__name__,
            "num_particles",
            num_particles,
            self.min_particles,
            expected="a number",
            fix=f"for example num_particles={max(self.min_particles, 10)}",
        )
        self.vectorize_particles = bool(vectorize_particles)
        self.retain_graph, self.allow_missing = retain_graph, allow_missing
        self._vectorised = Vectorised(self.num_particles, allow_missing)
        # What the estimators of sites remember from step to step, by site.
        self._memory: dict[str, Memory] = {}
        # Estimators of sites that choose none themselves.
        self._by_site: dict[str, Estimator] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in _PYROS:
            if name in cls.__dict__:
                raise ModelError(
                    f"class {cls.__name__}: {name} is a step of Pyro's, which nothing calls here",
                    expected="a method that objectives have: estimates, loss or loss_and_grads",
                    got=f"{cls.__name__}.{name}",
                    fix="write a function of model, guide and their arguments that returns the "
                    "loss, and pass it: SVI(model, guide, optim, loss=fn)",
                )

    min_particles = 1
    # Whether sites of the guide may choose a gradient estimator.
    estimators_per_site = False

    def __repr__(self) -> str:
        return call_of(self)

    # ------------------------------------------------------------------------- for subclasses

    @abc.abstractmethod
    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield estimates whose sum is that of the objective; their tapes are independent."""

    def settled(self, model: Model, guide: Guide) -> bool:
        """Whether all is known of this pair that the first of its `runs` finds out."""
        return not self.vectorize_particles or self._vectorised.settled(model, guide)

    def runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Run]:
        """Yield the runs of guide and model that an estimate needs."""
        many = self.vectorize_particles and self.num_particles > 1
        for _ in range(1 if many else self.num_particles):
            with EstimatorWatch(self._by_site) as watch:
                if many:
                    run = self._vectorised(model, guide, args, kwargs)
                else:
                    run = run_pair(model, guide, args, kwargs, allow_missing=self.allow_missing)
            if watch.chosen:
                run = self._with_estimators(run, watch, model, guide, args, kwargs)
            yield run

    def _with_estimators(
        self,
        run: Run,
        watch: EstimatorWatch,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Run:
        """The run with what the estimators of its sites need."""
        if not self.estimators_per_site:
            site = run.guide.nodes[next(iter(watch.chosen))]
            raise choice_refused(site, type(self).__name__)
        again = functools.partial(
            run_pair, model, guide, args, kwargs,
            size=run.size, dim=run.dim, allow_missing=self.allow_missing,
        )  # fmt: skip
        return dataclasses.replace(run, again=again, watch=watch)

    # ------------------------------------------------------------------------------------ losses

    @property
    def own_gradients(self) -> bool:
        """Whether `loss_and_grads` is not the one below: on the class, or put on the object."""
        return getattr(self.loss_and_grads, "__func__", None) is not ELBO.loss_and_grads

    def loss(self, model: Model, guide: Guide, *args: object, **kwargs: object) -> float:
        """Return an estimate of the loss, without gradients.

        Parameters
        ----------
        model, guide : callable
            Called with ``*args, **kwargs``.

        Returns
        -------
        float
        """
        with no_grad():
            values = [e.value for e in self.estimates(model, guide, args, kwargs)]
        return -sum(float(v.item()) for v in values)

    def differentiable_loss(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> TensorBase:
        """Return an estimate of the loss whose gradient estimates that of the expected loss.

        Returns
        -------
        Tensor, shape ()
        """
        found: Any = 0.0
        for estimate in self.estimates(model, guide, args, kwargs):
            value, surrogate = estimate
            if surrogate is not value:
                # The value of the one with the gradient of the other.
                value = value.detach() + (surrogate - surrogate.detach())
            found = found + value
        return -found

    def loss_and_grads(self, model: Model, guide: Guide, *args: object, **kwargs: object) -> float:
        """Return an estimate of the loss and add its gradients to the ``.grad`` of the parameters.

        Particles that are run one by one are also differentiated one by one, so that memory does
        not grow with their number.
        """
        loss = 0.0
        for value, surrogate in self.estimates(model, guide, args, kwargs):
            loss -= float(value.item())
            if surrogate.requires_grad:
                (-surrogate).backward(retain_graph=self.retain_graph)
        return loss

    def __call__(self, model: Model, guide: Guide) -> BoundLoss:
        """Return the differentiable loss as a function of the data, for training loops."""
        return BoundLoss(self, model, guide)

    def state_dict(self) -> dict[str, Tree]:
        """Return what the objective remembers from step to step: nothing, unless it says so."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Take over what `state_dict` returned."""
        if state:
            raise ArgumentError(
                f"{type(self).__name__}.load_state_dict",
                expected="an empty state: this objective remembers nothing",
                got=f"entries {', '.join(map(str, state))}",
                fix="load it with the objective that it was saved with",
            )


class BoundLoss:
    """An objective with its model and guide: ``loss_fn(*args)`` is a differentiable loss.

    Parameters
    ----------
    objective : ELBO
    model, guide : callable
    """

    def __init__(self, objective: ELBO, model: Model, guide: Guide) -> None:
        self.objective, self.model, self.guide = objective, model, guide
        self._leaves: dict[str, TensorBase] = {}

    def __call__(self, *args: object, **kwargs: object) -> TensorBase:
        """Return the differentiable loss; see `ELBO.differentiable_loss`."""
        with trace(param_only=True) as met:
            loss = self.objective.differentiable_loss(self.model, self.guide, *args, **kwargs)
        store = get_param_store()
        self._leaves.update({n: store.unconstrained(n) for n in met if n in store})
        return loss

    def parameters(self) -> list[TensorBase]:
        """Return the unconstrained leaves of the param sites met so far: call the loss first."""
        return list(self._leaves.values())

    def named_parameters(self) -> list[tuple[str, TensorBase]]:
        """Return the same with their names."""
        return list(self._leaves.items())


class Trace_ELBO(ELBO):
    """The evidence lower bound, E_q[log p(x, z) - log q(z)], estimated from draws of the guide.

    Gradients go through reparameterised draws. A site without them is estimated by its score
    function times the densities of everything in its plates (Ranganath et al. 2014); the variance
    of that is what `TraceGraph_ELBO` reduces. A site of the guide may ask for another estimator,
    for example ``infer={"estimator": DisARM()}`` or ``infer={"estimator": "enumerate"}`` (see
    `probtorch.estimators`); those that need the cost at other values rerun guide and model.

    Parameters
    ----------
    num_particles, max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.
    estimator : "auto", optional
        Before its first step SVI measures the variance of the gradient with each unbiased estimator
        that applies to a site of the guide without a path, and takes the one whose variance times
        runs of the guide is least. `SVI.picks` says which, and `SVI.explain`. Sites that choose
        theirs keep it. Outside of SVI nothing is measured.

    Attributes
    ----------
    picked : dict of str to str, or None
        Names of the estimators by site, once they are measured.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> def guide(y):
    ...     loc = probtorch.param("loc", 0.0)
    ...     probtorch.sample("mu", dist.Normal(loc, 0.5))
    >>> svi = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO(), seed=0)
    >>> result = svi.run(300, probtorch.tensor([1.0, 2.0, 3.0, 2.0]), progress_bar=False)
    >>> round(result.params["loc"].item())
    2
    """

    estimators_per_site = True

    def __init__(
        self,
        num_particles: int = 1,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        allow_missing: bool = False,
        estimator: str | None = None,
    ) -> None:
        super().__init__(
            num_particles,
            max_plate_nesting,
            vectorize_particles,
            retain_graph,
            allow_missing=allow_missing,
        )
        if estimator is not None and (estimator != "auto" or not self.estimators_per_site):
            raise ArgumentError(
                f"{type(self).__name__}(estimator=...)",
                expected='"auto"'
                if self.estimators_per_site
                else "nothing: sites choose none here",
                got=repr(estimator),
                fix="choose an estimator at its site: infer={'estimator': 'disarm'}"
                if self.estimators_per_site
                else "use Trace_ELBO or TraceGraph_ELBO",
            )
        self.estimator = estimator
        self.picked: dict[str, str] | None = None

    def pick(self, picked: Mapping[str, str]) -> None:
        """Use estimators at sites that choose none themselves.

        Parameters
        ----------
        picked : dict of str to str
            Names of estimators by site; "leave_one_out" is the score function with that baseline.
        """
        self.picked = dict(picked)
        self._by_site = {name: estimator_called(given) for name, given in picked.items()}

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield one estimate per run."""
        held = []
        for run in self.runs(model, guide, args, kwargs):
            if run.watch is not None and run.dim is None and grad_enabled() and needs_peers(run):
                held.append(run)
            else:
                yield scaled(self.estimate(run), run.size, self.num_particles)
        peers = Peers(held, self.costs_of) if held else None
        for run in held:
            yield scaled(self.estimate(run, peers), run.size, self.num_particles)

    @staticmethod
    def costs_of(run: Run, taped: bool = False) -> Relevant:
        """Return the function that gives a site of the guide its costs in a run."""
        return all_costs(run, taped)

    def estimate(self, run: Run, peers: Peers | None = None) -> Estimate:
        """Return the mean over the particles of one run."""
        value = averaged(run.log_model() - run.log_guide(), run)
        relevant = self.costs_of(run)
        scores = score_terms(
            run, relevant, self.baseline(run), chosen=self.chosen(run, relevant, peers)
        )
        if scores is None:
            return Estimate(value, value)
        return Estimate(value, value + scores / run.size)

    def baseline(self, run: Run) -> Baselined | None:
        """Return what reduces the costs of sites without an estimator; None for nothing."""
        return None

    def chosen(
        self, run: Run, relevant: Relevant, peers: Peers | None
    ) -> Callable[[Site], TensorBase | None] | None:
        """Return the function that gives a site its term by an estimator of its own."""
        if run.watch is None or not grad_enabled():
            return None
        return lambda site: site_term(run, site, relevant, self.costs_of, self._memory, peers)

    def state_dict(self) -> dict[str, Tree]:
        """Return what the estimators of sites remember: running means of costs."""
        memory = {
            site: {name: wrap(x.array.copy()) for name, x in kept.items()}
            for site, kept in self._memory.items()
            if kept
        }
        picked = {} if self.picked is None else {"picked": dict(self.picked)}
        return {**({"memory": memory} if memory else {}), **picked}

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Take over what `state_dict` returned."""
        rest = {n: value for n, value in state.items() if n not in ("memory", "picked")}
        super().load_state_dict(rest)
        # Only what is new: compiled code would take an attribute that is set for a change.
        if state.get("picked") != self.picked:
            self.pick(state.get("picked", {}))
            self.picked = self.picked if "picked" in state else None
        # The same dict, for compiled code watches it.
        self._memory.clear()
        for site, kept in state.get("memory", {}).items():
            self._memory[site] = {name: wrap(x.array.copy()) for name, x in kept.items()}


# The score function with the mean cost of the other particles as its baseline.
LEAVE_ONE_OUT = "leave_one_out"


def estimator_called(name: str) -> Estimator:
    """Return an estimator by its name, or the score function with a baseline by that of it."""
    return ScoreFunction(LEAVE_ONE_OUT) if name == LEAVE_ONE_OUT else as_estimator(name)


def averaged(x: TensorBase, run: Run) -> TensorBase:
    """Return the mean over the particles of a run."""
    return x.mean() if x.array.ndim else x


def scaled(estimate: Estimate, part: int, whole: int) -> Estimate:
    """Return the share of an estimate over `part` of `whole` particles in their mean."""
    if part == whole:
        return estimate
    value = estimate.value * (part / whole)
    if estimate.surrogate is estimate.value:
        return Estimate(value, value)
    return Estimate(value, estimate.surrogate * (part / whole))


explain_calls(globals())
