"""`Target`: a log density on R^dim, which is all that a sampler knows of a model.

A model becomes a target in two steps. It is run once to find its latent sites; each gets a slice of
one flat float64 vector `q` and a bijection from R^n onto the support of its distribution. After
that, a handler gives the sites their values from `q` (slots.py), and the density is the sum of all
log densities and log-determinants of that run:

    log p(q) = sum over sites of log p(x_s, data) + sum over latent sites of log |det dx_s / dq_s|,
    x_s = bijection(q_s).

The bijection is looked up anew at every run, so a support may depend on sites before it (garch:
beta1 in (0, 1 - alpha1)). All is Tensor ops, so the compiler turns the model's run, its gradient
and the way back to constrained values into native code.

Read effects/runtime.py, slots.py and target_base.py first; model_runs.py says what holds around a
run, initialization.py finds where to start, labels.py names the dims for what results.py makes of
draws.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.compiler.density import NativeDensity
from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.dtype import float64
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.enumerable import as_annotated
from probtorch.effects.handlers import trace, uncondition
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Site, as_value
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.enumeration.choices import Choices, ModelBranch, branches_of
from probtorch.infer.enumeration.enumerated_check import GiveValues
from probtorch.infer.enumeration.summed import (
    OneValue,
    Sums,
    is_summed,
    leftmost_plate,
    marginal_likelihoods,
)
from probtorch.infer.forgotten import no_latent_sites, observes_elsewhere, without_data
from probtorch.infer.gaps import with_gaps_told
from probtorch.infer.holes import packed, partly_observed
from probtorch.infer.labels import array_arguments, labels_of, masked_data, with_gaps
from probtorch.infer.mapping import DrawMap
from probtorch.infer.missing_codes import MissingCodes
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import (
    OUTSIDE,
    RunSurroundings,
    check_densities,
    in_float64,
    leave_no_garbage,
    lifted,
)
from probtorch.infer.parts import (
    AcrossRanks,
    OverBlocks,
    RowParts,
    no_whole_density,
    parts_of,
    whole_deterministic,
)
from probtorch.infer.slots import Discovery, Evaluation, Inversion, Slot
from probtorch.infer.starts.initialization import (
    Strategy,
    uniform_point,
)
from probtorch.infer.target_base import TargetBase

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["DensityTarget", "ModelTarget", "Target"]

# Parameters that a draw is multiplied with, in families that have a non-centred form.
SCALES = ("scale", "scale_tril", "covariance_matrix", "precision_matrix")
# Tries to find a first point at which the model runs at all.
FIRST_RUNS = 100
# Values of discrete sites at which deterministic ones are compared.
MANY_VALUES = 8


# Unconstrained values, a vector or by name.
Example: TypeAlias = TensorLike | Mapping[str, TensorLike]


class Target(TargetBase):
    """A log density on R^dim with its gradient, and the way from there to named values.

    Made by `from_model`, `from_density` or `from_potential`, never by calling the class. It is the
    density of the data and of the Python state that its model finds at the first evaluation.

    Attributes
    ----------
    dim : int
        Number of unconstrained coordinates.
    name : str
        The model's name, for messages and results.
    slots : dict of str to Slot
        Where each latent site lives in the flat vector.
    dims, coords : dict
        Names of the dims of each variable, and labels along them, from the model's plates.
    parts : RowParts
        Which plates work on a part of their rows at a time: none, as a rule.
    observed_data, constant_data : dict of str to ndarray
        Values at observed sites; array arguments of the model that are not among them.
    discrete_data : frozenset of str
        The observed sites whose values are discrete.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Target
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> target = Target.from_model(coin, y)
    >>> target.dim
    1
    >>> value, gradient = target.value_and_grad([0.0])
    >>> round(value, 4), gradient
    (-4.1589, array([1.]))
    """

    @classmethod
    def from_model(
        cls, model: Callable[..., object], /, *args: object, **kwargs: object
    ) -> ModelTarget:
        """Return the posterior of a model, given its arguments.

        Parameters
        ----------
        model : callable
            With sample statements; is run once now.
        *args, **kwargs
            What it is called with; float32 tensors and arrays are lifted to float64.

        Raises
        ------
        InferenceError
            If a discrete latent site has an infinite support, or its sum is intractable; if a plate
            draws subsamples, or there is no continuous latent site.
        ModelError
            If a site has batch dims outside any plate, or two sites share a name.
        """
        return ModelTarget(model, args, kwargs)

    @classmethod
    def from_density(
        cls,
        fn: Callable[[object], TensorBase],
        dim: int | None = None,
        *,
        example: Example | None = None,
    ) -> DensityTarget:
        """Return a hand-written log density.

        Parameters
        ----------
        fn : callable
            Log density up to a constant, a 0-d Tensor: of a float64 Tensor of shape (dim,), or with
            `example` of a dict of tensors.
        dim : int, optional
            Number of coordinates; not needed with `example`.
        example : dict of str to array_like, or array_like of shape (dim,), optional
            Gives names and shapes of the (unconstrained) variables.

        Raises
        ------
        ArgumentError
            Unless one of `dim` and `example` is given.
        """
        return DensityTarget(fn, dim, example)

    @classmethod
    def from_potential(
        cls,
        potential_fn: Callable[[object], TensorBase],
        example: Example | None = None,
        dim: int | None = None,
    ) -> DensityTarget:
        """Return the target of a potential, minus a log density; otherwise as `from_density`."""
        fn = functools.partial(_minus, potential_fn)
        return DensityTarget(fn, dim, example, potential_fn)


class ModelTarget(Target):
    """The posterior of a model; see `Target.from_model`.

    Attributes
    ----------
    model : callable
    args, kwargs
        Its arguments, lifted to float64.
    observed, deterministic : tuple of str
        Names of the observed and of the deterministic sites; of the latter those that depend on a
        summed site, or are inside of a plate that works on a part of its rows, are left out.
    without_data : tuple of str, or None
        None if a site is observed or there is a factor, in the first run or where others go; else
        the sites that have ``obs=None``.
    summed : dict of str to int
        The finite discrete latent sites, which are summed out of the density, and their numbers of
        values. `infer_discrete` draws them.
    """

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        whole: bool = False,
    ) -> None:
        self.model = model
        self.name = getattr(model, "__name__", type(model).__name__)
        check_model(model, "Target.from_model")
        check_model_call(model, args, kwargs, "run")
        self.given = args, kwargs
        with in_float64():
            self.args, self.kwargs = lifted(args), lifted(kwargs)
        self._surroundings = RunSurroundings()
        found, first, self.summed = self._first_run()
        super().__init__(found[-1].stop if found else 0, {slot.name: slot for slot in found})
        if not found:
            raise no_latent_sites(self.name, first, self.summed)
        check_densities(first)
        self.parts = self._find_parts(first)
        if type(self) is ModelTarget and not whole and not self.parts:
            self._pack_holes(found, first)
        self._in_part = False  # while a part of the density is computed
        self.without_data = without_data(first.values())
        if self.without_data is not None and observes_elsewhere(self.run):
            self.without_data = None
        arguments = array_arguments(self.model, self.args, self.kwargs)
        self.array_arguments = tuple(arguments)
        self.observed = tuple(first.observation_nodes)
        self.discrete_data = frozenset(
            n for n in self.observed if getattr(first[n].fn, "is_discrete", False)
        )
        self.deterministic = whole_deterministic(first, self.parts)
        evaluation = functools.partial(Evaluation, slots=self.slots, sites=False)
        branches, leftmost = self._find_branches(first)
        # When it was found out, and what: see `centred_sites`.
        self._centred: tuple[int, list[str]] | None = None
        self._sums = Sums(self.run, evaluation, leftmost - 1, self.sums_out, branches)
        self._in_plates = {n for n in self.summed if n in first and first[n].plates}
        if self.summed:
            self._check_sum()
        shown = (*self.slots, *self.deterministic, *self.summed)
        labels = labels_of(first, shown, arguments)
        self.dims, self.coords = labels.dims, labels.coords
        self.observed_data, self.constant_data = labels.observed, labels.constant
        self._masked = masked_data(first)
        if self.parts.stored:
            # Of a dataset on the disk the run saw one block.
            for name in list(labels.observed):
                if self.parts.inside(first[name]):
                    del self.observed_data[name]
        self._log_likelihood_map = DrawMap(self._log_likelihood_one)
        del first
        leave_no_garbage(self.observed_data.values())

    def _log_likelihood_one(self, inputs: dict[str, TensorBase]) -> dict[str, TensorBase]:
        return self.log_likelihood_at(inputs["q"])

    # ----------------------------------------------------------------------------------------- runs

    def run(self, *handlers: Handler) -> object:
        """Run the model under handlers, outermost first, and return its result."""
        with self._surroundings.under(*handlers):
            return self.model(*self.args, **self.kwargs)

    def unconditioned(self) -> object:
        """Run the model with its data taken away, under the handlers that are active now too."""
        with self._surroundings.under(*STATE.handlers, uncondition()):
            return self.model(*self.args, **self.kwargs)

    def trace_at(self, q: TensorBase) -> Trace:
        """Return the trace of a run with the latent sites at a Tensor `q`."""
        tracer = trace()
        self.run(tracer, Evaluation(q, self.slots, density=False), *self._discrete())
        return tracer.trace

    def run_at(self, q: TensorBase, *handlers: Handler) -> None:
        """Run the model under handlers that may give sites values, the others being at `q`."""
        self.run(Evaluation(q, self.slots, density=False), *handlers, *self._discrete())

    def trace_of_all_at(self, q: TensorBase) -> Trace:
        """Return the trace of a run at a Tensor `q` with all values of the sites summed out.

        Without such sites it is `trace_at`. Log densities have been computed.
        """
        return self._sums.run(q)[1] if self.summed else self.trace_at(q)

    def centred_sites(self, q: TensorBase) -> list[str]:
        """Return the latent sites whose spread depends on other latent sites, at an array `q`.

        They are what a non-centred form changes: loc + scale * z in place of a draw with such a
        scale. A model whose density is one path does the same everywhere, and is asked once.
        """
        paths = self.density.paths
        everywhere = len(paths) == 1 and paths.reason is None and paths.aside is None
        if everywhere and self._centred is not None and self._centred[0] == paths.epoch:
            return list(self._centred[1])
        point = wrap(np.array(q, np.float64)).requires_grad_()
        before = set_grad_enabled(True)
        try:
            sites = self.trace_at(point)
        finally:
            set_grad_enabled(before)
        found = [n for n in self.slots if n in sites and _latent_spread(sites[n].fn)]
        self._centred = (paths.epoch, found) if everywhere else None
        return list(found)

    def _discrete(self, position: int = 0) -> tuple[OneValue, ...]:
        """The handler that gives summed sites one value, if there are such sites."""
        return (OneValue(position, self.sums_out),) if self.summed else ()

    def sums_out(self, site: Site) -> bool:
        """Whether a latent site that has no value is summed out."""
        return is_summed(site)

    def _finder(self, generator: Generator | None) -> Discovery:
        """The handler that gives slots in a first run."""
        return Discovery(generator)

    def _first_run(self) -> tuple[list[Slot], Trace, dict[str, int]]:
        """Find the latent sites: slots, trace and discrete sites of a run where the model runs."""
        failures: list[Exception] = []
        rng = Generator(0)
        while len(failures) < FIRST_RUNS:
            tracer, finder = trace(), self._finder(rng if failures else None)
            discrete = OneValue(0, self.sums_out)
            try:
                with MissingCodes():
                    self.run(tracer, finder, discrete)
            except OUTSIDE as error:
                failures.append(error)
            else:
                return finder.slots, tracer.trace, discrete.sizes
        raise with_gaps_told(failures[0], self.model, self.args, self.kwargs)

    def _pack_holes(self, found: list[Slot], first: Trace) -> None:
        """Give coordinates to the holes of partly observed sites alone, where the mask is one."""
        if not partly_observed(first, found):
            return
        tracer, q = trace(), wrap(uniform_point(Generator(1), (self.dim,)))
        evaluation = Evaluation(q, self.slots, density=False)
        before = set_grad_enabled(False)
        try:
            with contextlib.suppress(*OUTSIDE):
                self.run(tracer, evaluation, *self._discrete(1))
                slots = packed(found, (first, tracer.trace))
                super().__init__(slots[-1].stop, {slot.name: slot for slot in slots})
        finally:
            set_grad_enabled(before)

    @cached_property
    def density(self) -> NativeDensity:
        """The log density and its gradient; of a model in parts it is put together in Python."""
        if not self.parts:
            return self._density_of(self.logdensity)
        if self.parts.stored is None:
            made = self._density_of(self._of_part)
        else:
            over = OverBlocks(self._of_part, self.dim, self.name, self._surroundings.rows)
            made = NativeDensity.from_python(over, self.dim, name=over.name)
        if self.parts.ranks == 1:
            return made
        return NativeDensity.from_python(AcrossRanks(made), self.dim, name=made.name)

    def _find_parts(self, first: Trace) -> RowParts:
        return parts_of(first, self._surroundings.rows, self.slots, self.summed)

    def _of_part(self, q: TensorBase) -> TensorBase:
        """The log density, of the rows that are at hand."""
        before, self._in_part = self._in_part, True
        try:
            return self.logdensity(q)
        finally:
            self._in_part = before

    def logdensity(self, q: TensorBase) -> TensorBase:
        """Return the log joint density plus log-determinants at `q`; see `Target.logdensity`.

        Raises
        ------
        InferenceError
            If plates share their rows between processes, or read them from the disk: then there is
            `density` only.
        """
        if self.parts and not self._in_part:
            raise no_whole_density(self.name, self.parts)
        self._check_point(q.array.shape)
        if self.summed:
            return self._sums.log_density(q)
        evaluation = Evaluation(q, self.slots)
        self.run(evaluation)
        return evaluation.total()

    def _find_branches(self, first: Trace) -> tuple[list[ModelBranch], int]:
        """Paths through the model, where sites are enumerated sequentially, and the leftmost dim
        of a plate on them.
        """
        leftmost = leftmost_plate(first)
        if not any(as_annotated(first[name]) == "sequential" for name in self.summed):
            return [], leftmost
        values = {name: first[name].value for name in self.slots}

        def run(choices: Choices) -> Trace:
            nonlocal leftmost
            tracer = trace()
            self.run(tracer, GiveValues(values, first), OneValue(0, self.sums_out), choices)
            leftmost = min(leftmost, leftmost_plate(tracer.trace))
            return tracer.trace

        found = branches_of(run, self.name)
        return (found if any(branch.names for branch in found) else []), leftmost

    def _check_sum(self) -> None:
        """Sum the discrete sites out once; find the deterministic sites that depend on them.

        Those differ between runs at different values of the discrete sites.
        """
        q = wrap(uniform_point(Generator(0), (self.dim,)))
        before = set_grad_enabled(False)
        try:
            with contextlib.suppress(*OUTSIDE):
                self._sums.check(q)
            if not self.deterministic:
                return
            runs = []
            positions = range(min(max(self.summed.values()), MANY_VALUES))
            for position, branch in itertools.product(positions, self._sums.branches or (None,)):
                evaluation = Evaluation(q, self.slots, density=False)
                choices = () if branch is None else (branch.handler(),)
                self.run(evaluation, *self._discrete(position), *choices)
                runs.append(evaluation.computed)
        finally:
            set_grad_enabled(before)
        self.deterministic = tuple(
            name
            for name in self.deterministic
            if all(_equal(run.get(name), runs[0].get(name)) for run in runs)
        )

    def log_joint(self, draws: np.ndarray) -> np.ndarray:
        """Return the log joint density of data and constrained values, discrete sites summed out.

        Parameters
        ----------
        draws : ndarray, shape (..., dim)
            Unconstrained.

        Returns
        -------
        ndarray, shape (...)
        """
        return self._sums.log_joint(np.asarray(draws, np.float64))

    def discrete_at(
        self, draws: np.ndarray, temperature: int = 1, generator: Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Return values of the summed sites given the others, jointly; see `infer_discrete`.

        Parameters
        ----------
        draws : ndarray, shape (..., dim)
            Unconstrained.
        temperature : {0, 1}
            0 for the most probable values, 1 for a draw.
        generator : Generator, optional
            The one in force if None.

        Returns
        -------
        dict of str to ndarray, each (..., *shape)
        """
        found = self._sums.values_at(np.asarray(draws, np.float64), temperature, generator)
        # For the others there is no value in some rows.
        return {name: x for name, x in found.items() if self._sums.on_all_paths(name)}

    def shared_discrete_at(
        self, draws: np.ndarray, generator: Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Return a posterior draw of the summed sites that stand in no plate; see `discrete_at`.

        New data share them, where a row of a plate has its own. Of a model with branches those of
        all of them are there; a run comes to what its branch has.
        """
        if self.summed.keys() <= self._in_plates and not self._sums.branches:
            return {}
        found = self._sums.values_at(np.asarray(draws, np.float64), 1, generator)
        return {name: x for name, x in found.items() if name not in self._in_plates}

    def constrain(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the values of latent and deterministic sites at `q`; see `Target.constrain`."""
        self._check_point(q.array.shape)
        evaluation = Evaluation(q, self.slots, density=False)
        self.run(evaluation, *self._discrete())
        computed = evaluation.computed
        if self.summed or self.parts:
            computed = {name: x for name, x in computed.items() if name in self.deterministic}
        return evaluation.values | computed

    def unconstrain(self, values: Mapping[str, TensorLike]) -> np.ndarray:
        """Return the point at which the latent sites have these values; see `Target`."""
        self._check_names(values, "unconstrain")
        return self._invert(lambda site: values[site.name])

    def start(self, strategy: Strategy, generator: Generator) -> np.ndarray:
        """Return the point that a strategy amounts to; see `Target.start`."""

        def value(site: Site) -> TensorLike:
            site.generator = generator
            return strategy(site)

        return self._invert(value)

    def _invert(self, value: Callable[[Site], TensorLike]) -> np.ndarray:
        """Run the model with ``value(site)`` at the latent sites; return the point."""
        inversion = Inversion(value, self.slots, self.dim)
        before = set_grad_enabled(False)
        try:
            self.run(inversion, *self._discrete())
        finally:
            set_grad_enabled(before)
        return inversion.q

    # ------------------------------------------------------------------------------ data and labels

    def data_at(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Return the data as results show them: nan where a mask takes them out of the density."""
        masked = {n: y for n, y in self.observed_data.items() if n in self._masked}
        if not masked or not np.size(positions):
            return self.observed_data
        q = np.asarray(positions, np.float64).reshape(-1, self.dim)
        runs = [self.trace_of_all_at(wrap(q[i].copy())) for i in (0, -1)]
        return self.observed_data | with_gaps(masked, runs)

    def log_likelihood(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Return the log density of each observation for many unconstrained draws.

        Parameters
        ----------
        draws : ndarray, shape (..., dim)

        Returns
        -------
        dict of str to ndarray, each (..., *batch shape of the observed site)
            Unscaled; masked elements are 0.
        """
        draws = np.asarray(draws, np.float64)
        return self._log_likelihood_map({"q": draws}, draws.ndim - 1)

    def log_likelihood_at(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return what `log_likelihood` does, at one point, as tensors."""
        if self.parts.stored:
            raise InferenceError(
                f"the log likelihood of each row of plate {self.parts.stored!r}",
                expected="rows in memory",
                got="rows on the disk, of which blocks are looked at",
                fix="evaluate the model on the rows that you need, in a loop over the loader",
            )
        if self._sums.branches:
            return {}  # data of one run are data of all its branches: rows depend on each other
        if self.summed:
            _, found, enumeration = self._sums.run(q)
            return marginal_likelihoods(found, enumeration)
        evaluation = Evaluation(q, self.slots, density=False)
        likelihood = _Likelihood()
        self.run(likelihood, evaluation)
        return likelihood.terms


class DensityTarget(Target):
    """A hand-written log density; see `Target.from_density`."""

    def __init__(
        self,
        fn: Callable[[object], TensorBase],
        dim: int | None,
        example: Example | None,
        named: Callable[..., object] | None = None,
    ) -> None:
        if dim is None and example is None:
            raise ArgumentError(
                "Target.from_density",
                expected="dim, or an example point",
                got="neither",
                fix="pass dim=n for a function of a vector, example={'x': array} for one of a dict",
            )
        self.fn = fn
        self.name = getattr(named or fn, "__name__", "density")
        self._of_dict = isinstance(example, Mapping)
        if not isinstance(example, Mapping):
            size = dim or 0
            if example is not None:
                size = np.size(as_value(example, "example").array)
            example = {"x": np.empty(size)}
        slots, start = {}, 0
        for name, value in example.items():
            shape = tuple(as_value(value, name).array.shape)
            slots[name] = Slot(name, start, start + math.prod(shape), shape, shape)
            start = slots[name].stop
        super().__init__(start, slots)

    def logdensity(self, q: TensorBase) -> TensorBase:
        """Return the user's log density at `q`."""
        self._check_point(q.array.shape)
        with in_float64():
            return cast(as_tensor(self.fn(self.unpack(q) if self._of_dict else q)), float64)

    def constrain(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the parts of `q` by name."""
        self._check_point(q.array.shape)
        return self.unpack(q)

    def unconstrain(self, values: Mapping[str, TensorLike]) -> np.ndarray:
        """Return the values as one vector: there are no constraints."""
        return self.pack(values)

    def start(self, strategy: Strategy, generator: Generator) -> np.ndarray:
        """Refuse: there are no sites a strategy could be asked about."""
        raise InferenceError(
            f"initial values of {self.name}",
            expected="init_to_uniform, or starting points: a hand-written density has no sites",
            got=getattr(strategy, "__name__", repr(strategy)),
            fix="pass init_params to run()",
        )


def _minus(potential_fn: Callable[[object], TensorBase], x: dict[str, TensorBase]) -> TensorBase:
    return -as_tensor(potential_fn(x))


class _Likelihood(Handler):
    """Collect the log density of each observation."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = {}

    def after_sample(self, site: Site) -> None:
        if site.observed:
            site.compute_log_prob()
            self.terms[site.name] = site.unscaled_log_prob


def _latent_spread(fn: Distribution) -> bool:
    """Whether the scale depends on latent values, in a family that has one.

    Others have no non-centred form: bounds are taken out by the bijection onto the support, and a
    draw from a beta distribution is no number times another.
    """
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    fields = getattr(fn, "__tree_fields__", ())
    return any(
        getattr(getattr(fn, name, None), "requires_grad", False)
        for name in SCALES
        if name in fields
    )


def _equal(a: object, b: object) -> bool:
    """Whether two deterministic values are the same; nan is nan."""
    if not (isinstance(a, TensorBase) and isinstance(b, TensorBase)):
        return False
    return np.array_equal(to_host(a.array), to_host(b.array), equal_nan=a.array.dtype.kind == "f")
