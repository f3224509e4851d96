"""`TraceEnum_ELBO`: the evidence lower bound with finite discrete sites summed exactly.

Guide and model run once. Sites enumerated in the guide make each log density a function of their
values; the bound is the mean of those functions under the guide, taken exactly. Sites enumerated in
the model are summed out of its density first (factors.py).

The means and the score-function terms of other draws are taken in enumerated_bound.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.backends.registry import device_of, to_device
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.effects.enumerable import as_annotated, can_enumerate
from probtorch.effects.enumeration import DeeperPlates, Enumeration, enumerate_sites
from probtorch.effects.handlers import trace
from probtorch.effects.placing import particles
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Frame, Site
from probtorch.errors import InferenceError
from probtorch.infer.enumeration.choices import ONE_BY_ONE, Choices
from probtorch.infer.enumeration.decode import decode
from probtorch.infer.enumeration.enumerated_check import (
    GiveValues,
    check_against_one,
    crossed_particles,
)
from probtorch.infer.enumeration.factors import (
    axes_of,
    compute_densities,
    factor_of,
    marginal_terms,
)
from probtorch.infer.model_runs import lifted
from probtorch.infer.objectives.elbo import ELBO, scaled
from probtorch.infer.objectives.enumerated_bound import (
    EnumeratedRun,
    as_factor,
    bound_terms,
    chosen_weight,
    means,
    score_terms,
    times,
    weights_of,
)
from probtorch.infer.objectives.enumerated_branches import (
    FACTOR,
    NoBranchesError,
    as_one_factor,
    no_branches,
)
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.runs import (
    FEW,
    Run,
    is_precise,
    plate_depth,
    precision,
    run_pair,
    same_draws,
)
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import log
from probtorch.ops.movement import permute, reshape
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.effects.trace import Trace
    from probtorch.infer.enumeration.sum_product import Factor


__all__ = ["TraceEnum_ELBO"]

T = TypeVar("T")


class TraceEnum_ELBO(ELBO):
    """The evidence lower bound, with finite discrete sites summed out exactly.

    - A latent site of the model that the guide does not have is summed out if its support is
      finite; the bound is that of the model without it.
    - A site of the guide with ``infer={"enumerate": "parallel"}`` (see `config_enumerate`) takes
      all its values in one run, each weighted by its probability.
    - With "sequential", in guide or model, there is one run for each combination of values; control
      flow may then depend on them.
    - All other sites are drawn, as in `Trace_ELBO`; several particles may be drawn at once, along a
      dim between those of plates and those of enumerated sites (`vectorize_particles`).

    Plates need no dims, and chains of any length are summed in linear time when their loop is a
    `markov`.

    Parameters
    ----------
    num_particles, max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`. With `allow_missing` only annotated sites are summed out.
    strict_enumeration_warning : bool
        Accepted for Pyro's sake.

    Raises
    ------
    InferenceError
        While running: if a sum is intractable, a site cannot be enumerated, or a site depends on
        values that are out of sight of its chain.

    Notes
    -----
    Where a mask hides an enumerated site its values are averaged, not summed: it adds nothing.

    References
    ----------
    Obermeyer et al. (2019), "Tensor variable elimination for plated factor graphs".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> def model(y):
    ...     with probtorch.plate("data", len(y)):
    ...         z = probtorch.sample("z", dist.Bernoulli(0.5))
    ...         probtorch.sample("y", dist.Normal(4.0 * z, 1.0), obs=y)
    >>> y = probtorch.tensor([0.3, 4.1, 3.8])
    >>> loss = TraceEnum_ELBO().loss(model, lambda y: None, y)
    >>> round(loss, 4)  # minus the log evidence
    4.9042
    """

    def __init__(
        self,
        num_particles: int = 1,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        strict_enumeration_warning: bool = True,
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
        # The pair that ran last, and how many batch dims its plates took.
        self._known: tuple[Model, Guide, int] | None = None
        # The pair that was compared with runs at single values.
        self._checked: tuple[Model, Guide] | None = None

    # -------------------------------------------------------------------------------------- runs

    def runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[EnumeratedRun]:
        """Yield the runs of guide and model: one per particle and combination of chosen values."""
        for _ in range(1 if self._at_once else self.num_particles):
            paths: list[tuple[int, ...]] = [()]
            while paths:
                yield self._run(paths.pop(), paths, model, guide, args, kwargs)

    @property
    def _at_once(self) -> int:
        """How many particles a run has beside each other, 0 for one without a dim of its own."""
        return self.num_particles if self.vectorize_particles and self.num_particles > 1 else 0

    def settled(self, model: Model, guide: Guide) -> bool:
        """Whether this pair has been checked."""
        checked = self._checked
        return checked is not None and _alike(checked[0], model) and _alike(checked[1], guide)

    def _run(
        self,
        path: tuple[int, ...],
        paths: list[tuple[int, ...]],
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> EnumeratedRun:
        size = self._at_once
        if size > FEW and not self.settled(model, guide):
            # A few to begin with: what crosses particles with particles would fill the memory.
            with same_draws():
                self._sized(FEW, path, [], model, guide, args, kwargs)
        return self._sized(size, path, paths, model, guide, args, kwargs)

    def _sized(
        self,
        size: int,
        path: tuple[int, ...],
        paths: list[tuple[int, ...]],
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> EnumeratedRun:
        known = self._known
        if known is None or not (_alike(known[0], model) and _alike(known[1], guide)):
            known = self._known = (model, guide, self._depth(model, guide, args, kwargs))
        while True:
            try:
                run = self._enumerated(known[2], size, path, paths, model, guide, args, kwargs)
                break
            except DeeperPlates:
                deeper = known[2] + 1
            except Exception as error:
                # Plates may have met variables at their dims before a site could tell.
                deeper = self._depth(model, guide, args, kwargs)
                if deeper <= known[2]:
                    told = isinstance(error, NoBranchesError)
                    if told or not size or self.settled(model, guide):
                        raise
                    # Bears one particle (or says why not), so it does not bear several.
                    self._enumerated(known[2], 0, path, [], model, guide, args, kwargs)
                    what = f"{type(error).__name__}: {error}".split("\n")[0]
                    raise crossed_particles(what) from error
            known = self._known = (model, guide, deeper)
        if not self.settled(model, guide):
            self._check(run, size, model, guide, args, kwargs)
            self._checked = (model, guide)
        return run

    def _check(
        self,
        run: EnumeratedRun,
        size: int,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        """Compare a run with one at single values; see enumerated_check.py."""

        def again(handlers: list[GiveValues]) -> tuple[Trace, ...]:
            in_guide, in_model = handlers
            alone = run_pair(
                model,
                guide,
                args,
                kwargs,
                handlers=(in_guide,),
                model_handlers=lambda: (in_model,),
                allow_missing=True,
            )
            return alone.guide, alone.model

        # The tape is as it is outside: a guide may differentiate on its own account.
        with same_draws():
            check_against_one((run.guide, run.model), run.enumeration, again, size)

    def _depth(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> int:
        """Number of batch dims that plates take, from a run without enumeration."""

        def first_branch() -> tuple[Choices, ...]:
            return (Choices(()),)

        with same_draws():
            alone = run_pair(
                model, guide, args, kwargs, model_handlers=first_branch, allow_missing=True
            )
        return plate_depth(alone)

    def _enumerated(
        self,
        depth: int,
        size: int,
        path: tuple[int, ...],
        paths: list[tuple[int, ...]],
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> EnumeratedRun:
        dim = -1 - depth
        enumeration = Enumeration(dim - 1 if size else dim)
        enumeration.marks.cure = ONE_BY_ONE
        chooser = Choices(path, _in_plate)
        branching = Choices((), _in_plate)
        guided: list[int] = []

        def in_model() -> tuple[Handler, ...]:
            guided.extend(enumeration.variables)
            return (enumerate_sites(None, enumeration, self._in_model), branching)

        with particles(size, dim) if size else nullcontext():
            found = run_pair(
                model,
                guide,
                args,
                kwargs,
                handlers=(enumerate_sites(None, enumeration, _in_parallel), chooser),
                model_handlers=in_model,
                allow_missing=self.allow_missing,
            )
        if plate_depth(found) > depth:
            raise DeeperPlates("more plates than the first run had")
        if branching.names:
            found, enumeration = self._with_branches(
                found,
                branching,
                bool(guided or chooser.names),
                size,
                dim,
                model,
                guide,
                args,
                kwargs,
            )
        with enumeration.watch():
            compute_densities(found.guide, found.model)
        for site in found.guide.nodes.values():
            if site.infer.get("estimator") is not None:
                raise _no_estimators(site)
        paths.extend(chooser.others())
        axes = axes_of(enumeration, found.guide, found.model)
        chosen = tuple(chooser.names)
        return EnumeratedRun(
            found.model,
            found.guide,
            enumeration=enumeration,
            axes=axes,
            guided=frozenset(guided),
            chosen=chosen,
        )

    def _with_branches(
        self,
        found: Run,
        branching: Choices,
        guided: bool,
        size: int,
        dim: int,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> tuple[Run, Enumeration]:
        """The run with the branches of its model summed; see enumerated_branches.py."""
        site = found.model[branching.names[0]]
        if guided:
            raise no_branches(
                site, "sites that the guide enumerates", "take the annotations out of the guide"
            )
        if size:
            raise no_branches(site, f"{size} particles at once", "leave vectorize_particles out")

        def run(*handlers: Handler) -> Trace:
            lift = lifted if is_precise(guide) else _as_they_are
            with trace() as seen, precision(guide), contextlib.ExitStack() as stack:
                for handler in handlers:
                    stack.enter_context(handler)
                model(*lift(args), **lift(kwargs))
            return seen

        enumeration = Enumeration(dim)
        check = not self.settled(model, guide)
        summed = as_one_factor(run, found.model, enumeration, self._in_model, check)
        return replace(found, model=summed), enumeration

    def _in_model(self, site: Site) -> str | None:
        how = as_annotated(site)
        if how == "sequential":
            how = "parallel"  # in a plate: outside, it has one of its values
        if how is not None and site.infer.get("num_samples") is not None:
            raise _refused(site, "a sum over num_samples draws, which is biased", "leave it out")
        if how is None and not self.allow_missing and can_enumerate(site):
            how = "parallel"
        return how

    # --------------------------------------------------------------------------------- estimates

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield one estimate per run."""
        for run in self.runs(model, guide, args, kwargs):
            yield scaled(self.estimate(run), 1, self.num_particles)

    def estimate(self, run: EnumeratedRun) -> Estimate:
        """Return what one run adds to the bound."""
        terms = bound_terms(run)
        weights = {v: weights_of(run, v) for v in run.guided}
        weight = chosen_weight(run)
        if weight is not None and weight.axes:
            terms = [(times(as_factor(run, t, m), weight, run.axes), m) for t, m in terms]
        value: TensorBase | float = 0.0
        factors = []
        for term, of_model in terms:
            if term.factor is None:
                log_prob = term.sites[0].compute_log_prob_sum()
                value = value + log_prob if of_model else value - log_prob
            else:
                factors.append(term.factor)
        for factor in means(factors, weights, run.axes):
            value = value + factor.value
        value = value if isinstance(value, TensorBase) else wrap(np.zeros(()))
        score = score_terms(run, terms, weights)
        surrogate = value if score is None else value + score
        if weight is None or weight.axes:
            return Estimate(value, surrogate)
        w, v = weight.value, value
        finite = where(eq(w, 0.0), 0.0, v)
        slope = w.detach() * where(eq(w, 0.0), 0.0, surrogate) + w * finite.detach()
        return Estimate((w * finite).detach(), slope)

    # ----------------------------------------------------------------- what was summed, afterwards

    def compute_marginals(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> dict[str, Distribution]:
        """Return the marginal posteriors of the sites that are summed out in the model.

        Parameters
        ----------
        model, guide : callable
            Called with ``*args, **kwargs``. What the guide draws is held fixed.

        Returns
        -------
        dict of str to Distribution
            With the plates of the site as batch: Bernoulli, Categorical or OneHotCategorical where
            the site is one, else a Categorical over the positions in its support.

        Raises
        ------
        InferenceError
            If the guide enumerates sites, or there are several particles.
        """
        run = self._single(model, guide, args, kwargs, "compute_marginals")
        axes, found = run.axes, {}
        with enable_grad():
            unit = {v: _unit(run, v) for v in sorted(run.summed)}
            terms = marginal_terms(
                run.model, run.summed, axes, scaled=False, extra=[f for f, _ in unit.values()]
            )
            joint = wrap(np.zeros(()))
            for term in terms:
                if term.factor is not None:
                    joint = joint + total(term.factor.value)
            leaves = [leaf for _, leaf in unit.values()]
            shares = grad(joint, leaves) if leaves else ()
        for v, share in zip(unit, shares):
            variable = run.enumeration.variables[v]
            found[variable.name] = _marginal(variable.fn, share)
        return found

    def sample_posterior(self, model: Model, guide: Guide, *args: object, **kwargs: object) -> Tree:
        """Return what the model returns at a draw from the joint posterior of its summed sites.

        Parameters
        ----------
        model, guide : callable
            Called with ``*args, **kwargs``. The other latent sites have the guide's values.

        Raises
        ------
        InferenceError
            If the guide enumerates sites, or there are several particles.
        """
        run = self._single(model, guide, args, kwargs, "sample_posterior")
        values = decode(run.model, run.enumeration, run.axes, temperature=1)
        with GiveValues(values, run.model):
            return model(*args, **kwargs)

    def _single(
        self,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        what: str,
    ) -> EnumeratedRun:
        if self.num_particles != 1:
            raise InferenceError(
                f"TraceEnum_ELBO.{what}",
                expected="one particle",
                got=f"num_particles={self.num_particles}",
                fix="use TraceEnum_ELBO()",
            )
        (run, *others) = self.runs(model, guide, args, kwargs)
        if others or run.guided:
            names = run.chosen or [run.axes.names[v] for v in run.guided]
            raise InferenceError(
                f"TraceEnum_ELBO.{what}",
                expected="a guide that draws its sites",
                got=f"sites {', '.join(map(repr, sorted(names)))} enumerated in the guide",
                fix="take infer={'enumerate': ...} out of the guide",
            )
        if FACTOR in run.model:
            raise InferenceError(
                f"TraceEnum_ELBO.{what}",
                expected="a model whose discrete sites are enumerated in parallel",
                got="a model with branches, sites that are enumerated sequentially",
                fix="infer_discrete(model) draws their values from the posterior",
            )
        return run


def _alike(a: object, b: object) -> bool:
    """Whether two callables run the same code: a function made anew for each call is the same."""
    code = getattr(a, "__code__", None)
    return a is b or (code is not None and code is getattr(b, "__code__", None))


def _as_they_are(x: T) -> T:
    return x


def _in_parallel(site: Site) -> str | None:
    how = as_annotated(site)
    return how if how == "parallel" else None


# ---------------------------------------------------------------------------------------- marginals


def _unit(run: EnumeratedRun, v: int) -> tuple[Factor, TensorBase]:
    """A factor of 1 for each value and row of a variable, and the leaf it is made of."""
    variable = run.enumeration.variables[v]
    site = run.model.nodes[variable.name]
    shape = tuple(site.plate_shape)
    leaf = wrap(to_device(np.zeros((variable.size, *shape)), device_of(site.value.array)))
    leaf.requires_grad = True
    value = reshape(leaf, (variable.size, *(1,) * (-variable.dim - 1 - len(shape)), *shape))
    return factor_of(site, value, run.axes), leaf


def _marginal(fn: Distribution, probabilities: TensorBase) -> Distribution:
    """The distribution of a site with these probabilities, values first."""
    dims = (*range(1, probabilities.array.ndim), 0)
    table = permute(probabilities, dims) if probabilities.array.ndim > 1 else probabilities
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    if isinstance(fn, Bernoulli):
        return Bernoulli(probs=table[..., 1])
    kind = OneHotCategorical if isinstance(fn, OneHotCategorical) else Categorical
    return kind(logits=log(table))


# ------------------------------------------------------------------------------------------- errors


def _refused(site: Site, what: str, fix: str) -> InferenceError:
    return InferenceError(
        f"site {site.name!r} of the model: {what} is for guides",
        expected="parallel enumeration of sites that are summed out in the model",
        got=repr(site.infer),
        fix=fix,
        at=site.location,
    )


def _no_estimators(site: Site) -> InferenceError:
    return InferenceError(
        f"site {site.name!r}: estimator {site.infer['estimator']!r}",
        expected="an objective that takes estimators per site: Trace_ELBO, TraceGraph_ELBO",
        got="TraceEnum_ELBO",
        fix='for exact sums write infer={"enumerate": "parallel"}; else change the objective',
        at=site.location,
    )


def _in_plate(site: Site, frame: Frame) -> InferenceError:
    return InferenceError(
        f"site {site.name!r} cannot be enumerated sequentially in plate {frame.name!r}",
        expected="a site outside of vectorised plates: one run for each of its values",
        got=f"{frame.size} rows, whose values would have to be combined",
        fix=f"use 'parallel', or a loop: for i in plate({frame.name!r}, {frame.size})",
        at=site.location,
    )


explain_calls(globals())
