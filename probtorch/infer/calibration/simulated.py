"""What `sbc` and `geweke` share: data simulated from a model, and the posterior given any of them.

`simulate` runs a model forwards with its data taken away. `SimulatedTarget` is the posterior whose
data can be exchanged: it is compiled once (compiler/data_density.py), whatever the number of data
sets. `scores` of draws, what is compared, come from one compiled function of a draw and its data.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from probtorch.compiler.data_density import DataDensity
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.tree import replace
from probtorch.core.typed import TensorLike, Tree
from probtorch.diagnostics.layout import entry_labels
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.handlers import condition, seed, trace, uncondition
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError
from probtorch.infer.enumeration.summed import marginal_density
from probtorch.infer.gradient_check import ParameterCheck
from probtorch.infer.mapping import DrawMap
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mixed import MixedTarget
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.names import unknown_name
from probtorch.infer.potential import ModelTarget
from probtorch.infer.prediction.predictive import Predictive
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = [
    "LOG_LIKELIHOOD",
    "Arrays",
    "Quantity",
    "SimulatedMixedTarget",
    "SimulatedTarget",
    "data_sites",
    "kernel_for",
    "simulate",
]

# The quantity that a posterior which ignores part of the data gets wrong [modrak2023].
LOG_LIKELIHOOD = "log_likelihood"
# Numbers that are looked at in one go.
BLOCK_ELEMENTS = 2**22
# Points from which on the way to unconstrained space is worth compiling.
MANY_POINTS = 500
# Unconstrained stand-in for infinity: a chance of 1 - 2e-16, a positive number of 2e-16.
EDGE = 36.0

Arrays: TypeAlias = dict[str, np.ndarray]
# A test quantity: of parameters and data by name.
Quantity: TypeAlias = Callable[[dict[str, Tensor]], TensorLike]


# ---------------------------------------------------------------------------------------- forwards


def data_sites(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    observed: Iterable[str],
    caller: str,
) -> tuple[str, ...]:
    """Return the names of the sites that are data.

    They are those that the model observes and those named; where there are none, those that say
    ``obs=`` and have got None.

    Raises
    ------
    ArgumentError
        If there are none, if a name is unknown, or if a factor says what no draw can follow.
    """
    check_model(model, caller)
    check_model_call(model, args, kwargs, f"{caller}(..., args=...)")
    with in_float64(), trace() as found, seed(None, Generator(0)):
        model(*lifted(args), **lifted(dict(kwargs)))
    sites = {name: site for name, site in found.items() if site.kind == "sample"}
    for name, site in found.items():
        if site.kind == "factor":
            raise ArgumentError(
                f"{caller}: factor {name!r}",
                expected="data that the model can simulate: sample statements alone",
                got=f"a factor, which has no distribution to draw from ({site.location})",
                fix="write it as sample(name, distribution, obs=data)",
            )
    wanted = (observed,) if isinstance(observed, str) else tuple(observed)
    for name in wanted:
        if name not in sites:
            raise unknown_name(f"{caller}(observed=...): no site {name!r}", name, list(sites))
    names = tuple(name for name, site in sites.items() if site.observed or name in wanted)
    names = names or tuple(name for name, s in sites.items() if s.notes.get("no_data"))
    if not names:
        raise ArgumentError(
            f"{caller}(observed=...)",
            expected="the names of the sites that are data",
            got="none, and the model observes nothing",
            fix=f"write observed={tuple(sites)[-1:]!r}, or give the model data with args=",
        )
    return names


def simulate(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    count: int,
    generator: Generator,
    latent: Arrays | None = None,
) -> Arrays:
    """Return draws of all sites by name, each (count, *shape), float64: parameters, then data.

    Parameters
    ----------
    latent : dict of ndarray, optional
        Values (count, *shape) of parameters that are given; the rest follows from them.
    """
    args, kwargs = lifted(args), lifted(dict(kwargs))

    def forwards() -> object:
        with in_float64(), uncondition():
            return model(*args, **kwargs)

    # `batch_ndims` is not said where nothing is given: there is nothing to count it on.
    given: dict[str, Any] = {"posterior_samples": latent, "batch_ndims": 1} if latent else {}
    found = Predictive(forwards, num_samples=count, seed=generator, **given)()
    return {name: np.asarray(x) for name, x in found.items()}


# --------------------------------------------------------------------------------------- backwards


class SimulatedTarget(ModelTarget):
    """The posterior of a model, given data that can be exchanged.

    Parameters
    ----------
    model, args, kwargs
    data : dict of ndarray
        The first data, by site.
    quantities : dict of str to callable
        Test quantities: functions of a dict of tensors, parameters and data by name.
    log_likelihood : bool
        Whether the log likelihood is one of them.
    """

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        data: Arrays,
        quantities: Mapping[str, Quantity] | None = None,
        log_likelihood: bool = True,
    ) -> None:
        self._shapes = {name: (x.shape, x.dtype) for name, x in data.items()}
        self._data = {name: wrap(np.array(x)) for name, x in data.items()}
        self._tests, self._log_likelihood_too = dict(quantities or {}), log_likelihood
        super().__init__(model, args, kwargs)
        self._check_tests()
        self._scores_map = DrawMap(self._scores)

    def run(self, *handlers: Handler) -> Tree:
        """Run the model with the data at hand, under handlers, outermost first."""
        return super().run(*handlers, condition(None, self._data, strict=False))

    def exchange(self, data: Arrays) -> None:
        """Use other data from now on."""
        self._data = {name: wrap(np.array(data[name])) for name in self._shapes}
        for density in ("density", "curved_density"):
            if density in vars(self):  # it is compiled; others begin with the data at hand
                getattr(self, density).set_data(self.pack_data(data))

    def pack_data(self, data: Arrays, lead: int = 0) -> np.ndarray:
        """Return data as one float64 vector; with `lead` leading dims as an array of vectors."""
        parts = [
            np.asarray(data[name], np.float64).reshape(*np.shape(data[name])[:lead], math.prod(s))
            for name, (s, _) in self._shapes.items()
        ]
        return np.concatenate(parts, axis=-1)

    @contextlib.contextmanager
    def _given(self, flat: Tensor) -> Iterator[dict[str, Tensor]]:
        """Return a context in which the data are those of a vector, a Tensor."""
        before, at, found = self._data, 0, {}
        for name, (shape, dtype) in self._shapes.items():
            size = math.prod(shape)
            part = flat[at] if shape == () else reshape(flat[at : at + size], shape)
            found[name] = part if dtype == np.float64 else cast(part, dtype)
            at += size
        self._data = found
        try:
            yield found
        finally:
            self._data = before

    def _joint(self, q: Tensor, flat: Tensor) -> Tensor:
        with self._given(flat):
            return self.logdensity(q)

    def _curved_joint(self, q_and_matrix: Tensor, flat: Tensor) -> Tensor:
        with self._given(flat):
            return self._curved(q_and_matrix)

    @cached_property
    def density(self) -> Any:  # a NativeDensity in all that samplers ask of it
        """The log density and its gradient as native code, with the data exchangeable."""
        return DataDensity(
            self._joint,
            self.dim,
            self._packed(),
            name=f"the log density of {self.name}",
            check=ParameterCheck(self.name, self.slots, self.dim),
        )

    @cached_property
    def curved_density(self) -> DataDensity:  # type: ignore[override]  # as `density` is one
        """The same with its Hessian, as `Target.curved_density`, for kernels that ask for it."""
        return DataDensity(
            self._curved_joint,
            self.dim + self.dim**2,
            self._packed(),
            name=f"the log density of {self.name}, with its curvature",
        )

    def _packed(self) -> np.ndarray:
        return self.pack_data({name: x.array for name, x in self._data.items()})

    def points(self, drawn: Arrays) -> Callable[[int], np.ndarray]:
        """Return a function from the number of a draw of the parameters to its point (dim,).

        It raises `DomainError` for a draw on the edge of a support. For many draws the way to
        unconstrained space is compiled.
        """
        latent = {name: np.asarray(drawn[name], np.float64) for name in self.slots}
        count = len(next(iter(latent.values())))
        many = count >= MANY_POINTS
        found = self._points_map(latent)["q"] if many else np.full((count, self.dim), np.nan)

        def point(i: int) -> np.ndarray:
            if np.isfinite(found[i]).all():
                return found[i]
            return self.unconstrain({name: x[i] for name, x in latent.items()})

        return point

    def points_of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the points (n, dim) at which the sites have values (n, *shape), by name.

        Values on the edge of their support, where rounding has brought them, are put just inside:
        their ranks are the same.
        """
        latent = {name: np.asarray(values[name], np.float64) for name in self.slots}
        return np.nan_to_num(self._points_map(latent)["q"], nan=np.nan, posinf=EDGE, neginf=-EDGE)

    @cached_property
    def _points_map(self) -> DrawMap:
        return DrawMap(self._inverted)

    def _inverted(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"q": self._position_of(values)}

    def _position_of(self, values: dict[str, Tensor]) -> Tensor:
        handler = _Inverting(values)
        self.run(handler, *self._discrete())
        return cat([reshape(x, (-1,)) for x in handler.free])

    def constrain_many(self, draws: np.ndarray) -> Arrays:
        """Return the draws as they are: what becomes of them is asked of `scores`."""
        return {"q": np.asarray(draws, np.float64)}

    # ----------------------------------------------------------------------------- what is compared

    def scores(self, draws: np.ndarray, data: np.ndarray) -> Arrays:
        """Return the quantities at many draws with their data.

        Parameters
        ----------
        draws : ndarray, shape (n, dim)
        data : ndarray, shape (n, size)

        Returns
        -------
        dict of ndarray, each (n, *shape), float64
        """
        return self._scores_map({"q": draws, "data": data})

    def _scores(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        q = inputs["q"]
        with self._given(inputs["data"]) as data:
            values = self.constrain(q)
            found = dict(values)
            if self._log_likelihood_too:
                found[LOG_LIKELIHOOD] = self._likelihood(q)
            for name, fn in self._tests.items():
                found[name] = as_tensor(fn({**values, **data}))
        return {name: cast(x, float64) for name, x in found.items()}

    def _likelihood(self, q: Tensor) -> Tensor:
        """The log likelihood of all data, discrete sites summed out, a 0-d tensor.

        Of a model with branches, sites that are enumerated sequentially, the joint density.
        """
        if not self.summed:
            terms = self.log_likelihood_at(q).values()
            return sum((x.sum() for x in terms), wrap(np.zeros(())))
        if self._sums.branches:
            # With the priors, which may differ from branch to branch.
            return self._sums.log_joint_at(q)
        _, found, enumeration = self._sums.run(q)
        density = marginal_density(found, enumeration)
        for site in found.values():
            if site.kind == "sample" and site.name in self.slots:
                prior = site.compute_log_prob()
                # A prior that depends on a discrete site is summed with the data.
                if prior.array.shape == tuple(site.plate_shape):
                    density = density - prior.sum()
        return density

    def columns(self, found: Arrays) -> tuple[list[str], np.ndarray]:
        """Return labels of all scalars, and their values (n, scalars)."""
        labels, parts = [], []
        for name, x in found.items():
            labels += entry_labels(name, x.shape[1:], self.dims, self.coords)
            parts.append(x.reshape(len(x), -1))
        return labels, np.concatenate(parts, axis=1)

    def _check_tests(self) -> None:
        taken = {*self.slots, *self.deterministic, *self._shapes}
        if self._log_likelihood_too:
            taken.add(LOG_LIKELIHOOD)
        for name, fn in self._tests.items():
            if name in taken or not callable(fn):
                raise ArgumentError(
                    f"quantities[{name!r}]",
                    expected="a function of a dict of tensors, under a name of its own",
                    got="a name that is taken" if name in taken else type(fn).__name__,
                    fix="write quantities={'ratio': lambda values: values['a'] / values['b']}",
                )


class SimulatedMixedTarget(SimulatedTarget, MixedTarget):
    """The same with discrete sites as coordinates, as `Gibbs` moves them; they have ranks, too."""

    def _position_of(self, values: dict[str, Tensor]) -> Tensor:
        return self.position_of(values, values)[0]


class _Inverting(Handler):
    """Give the latent sites their values, and collect the unconstrained ones, in their order."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.values, self.free = values, []

    def on_sample(self, site: Site) -> None:
        if site.observed or site.name not in self.values:
            return
        site.value = self.values[site.name]
        self.free.append(biject_to(site.fn.support).inv(site.value))


def kernel_for(kernel: object, target: ModelTarget, caller: str) -> Kernel:
    """Return the user's kernel for a target: of a class or function, or with another's settings.

    Raises
    ------
    ArgumentError
        If it is neither.
    """
    if isinstance(kernel, Kernel):
        return replace(kernel, model=target, potential_fn=None)
    made = kernel(target) if callable(kernel) else None
    if isinstance(made, Kernel):
        return made
    raise ArgumentError(
        f"{caller}(kernel)",
        expected="NUTS, HMC, or a function that makes one for a model",
        got=f"{type(kernel).__name__} {kernel!r:.60}",
        fix=f"write {caller}(model, NUTS), or {caller}(model, lambda m: NUTS(m, full_mass=True))",
    )
