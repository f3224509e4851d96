"""What models without a density are compared by: a problem, and the settings of who solves it.

`SimulationProblem` is a model with data to come close to, as functions of many parameters at once:
simulations, summaries, distances. `Simulating` is what `ABC` and `ABCSMC` have in common:
their settings, and the look at one run that makes a problem of model and data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probtorch.backends.registry import to_host
from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.typed import TensorLike, Tree
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import trace, uncondition
from probtorch.effects.site import Site, as_value
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.infer.labels import Labels, array_arguments, labels_of
from probtorch.infer.mcmc.kernel import checked
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import in_float64, lifted, untraced
from probtorch.infer.names import unknown_name
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.saved_particles import TOLERANCE

__all__ = ["Arrays", "Distance", "Simulating", "SimulationProblem", "Summary"]

Arrays = dict[str, np.ndarray]
Summary = Callable[[Mapping[str, np.ndarray]], ArrayLike]
Distance = Callable[[np.ndarray, np.ndarray], ArrayLike]


@dataclass
class SimulationProblem:
    """A model with data to be close to, as functions of many parameters at once."""

    model: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    observed: Arrays
    parameters: list[str]
    first: Mapping[str, Site]  # the sites of a run
    summary: Summary | None
    distance: Distance | None
    called: CalledModel
    labels: Labels
    nuisance: list[str]  # latent sites that are drawn anew in each run
    scale: np.ndarray | None = None

    def simulated(self, generator: Generator, params: Arrays | None, count: int) -> Arrays:
        """Parameters and data of `count` runs, at given parameters or at draws of the prior."""
        wanted = list(self.observed) if params else [*self.parameters, *self.observed]
        predictive = Predictive(
            uncondition(self.model),
            params,
            num_samples=None if params else count,
            return_sites=wanted,
            batch_ndims=1 if params else None,
            seed=generator,
        )
        with in_float64(), untraced():
            found = predictive(*self.args, **self.kwargs)
        return {name: np.asarray(to_host(x.array)) for name, x in found.items()}

    def summaries(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Of each of many simulations, shape (count, numbers)."""
        data = {name: values[name] for name in self.observed}
        count = len(next(iter(data.values())))
        if self.summary is None:
            rows = [np.asarray(x, np.float64).reshape(count, -1) for x in data.values()]
            return np.concatenate(rows, axis=1)
        each = ({name: x[i] for name, x in data.items()} for i in range(count))
        return np.stack([np.asarray(self.summary(x), np.float64).reshape(-1) for x in each])

    def real_summary(self) -> np.ndarray:
        """What the data are compared by, shape (numbers,)."""
        return self.summaries({name: x[None] for name, x in self.observed.items()})[0]

    def distances(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """How far each of many simulations is from the data, shape (count,)."""
        found = self.summaries(values)
        real = self.real_summary()
        if self.distance is not None:
            away = np.asarray(self.distance(found, real), np.float64)
        else:
            if self.scale is None:
                # By median absolute deviations of what the prior predicts.
                middle = np.median(found, axis=0)
                self.scale = np.median(np.abs(found - middle), axis=0)
                self.scale[self.scale == 0.0] = 1.0
            away = np.sqrt((((found - real) / self.scale) ** 2).mean(axis=1))
        if away.shape != (len(found),):
            raise ShapeError(
                "ABC(distance=...)",
                expected=f"a distance for each of {len(found)} simulations, shape ({len(found)},)",
                got=f"shape {away.shape}",
                fix="take summaries (simulations, numbers) and those of the data (numbers,), and "
                "reduce over the last dim",
            )
        # A simulation that fails, with nan, is far from everything.
        return np.where(np.isnan(away), np.inf, away)

    def comparison(self, values: Arrays) -> dict[str, object]:
        """Return what tells another summary or distance: simulations, and how they compare."""
        return {
            "simulations": values,
            "summary": self.real_summary(),
            "distance": self.distances(values),
        }

    def check_comparison(self, owner: str, saved: Tree) -> None:
        """Refuse to go on with another summary or distance than `comparison` was made with.

        Raises
        ------
        ArgumentError
            If they give other numbers.
        """
        for name in ("summary", "distance"):
            was = np.asarray(saved[name])
            now = self.real_summary() if name == "summary" else self.distances(saved["simulations"])
            if was.shape == now.shape and np.allclose(was, now, TOLERANCE, TOLERANCE, True):
                continue
            raise ArgumentError(
                f"{owner}.run(checkpoint=...)",
                expected=f"the {name} of the saved run, which gives {_few(was)}",
                got=_few(now),
                fix=f"give the {name} it was begun with, or choose another folder",
            )


def _few(x: np.ndarray) -> str:
    """Return the first numbers of a row as text."""
    return ", ".join(f"{v:.6g}" for v in x[:3]) + (f", ... ({x.size} in all)" if x.size > 3 else "")


class Simulating:
    """What both have in common: the model, and how data are compared."""

    def __init__(
        self,
        model: Callable[..., object],
        summary: Summary | None,
        distance: Distance | None,
        epsilon: float | None,
        parameters: Sequence[str] | None,
        seed: int | Generator | None,
    ) -> None:
        check_model(model, self.name)
        for name, fn in (("summary", summary), ("distance", distance)):
            if fn is not None and not callable(fn):
                raise ArgumentError(
                    f"{self.name}({name}=...)",
                    expected="a function",
                    got=repr(fn)[:60],
                    fix="leave it out: all data count, in units of their spread",
                )
        self.model, self.summary, self.distance = model, summary, distance
        self.epsilon = None
        if epsilon is not None:
            self.epsilon = checked(self.name, "epsilon", epsilon, 0.0, math.inf)
        self.parameters = None if parameters is None else list(parameters)
        self._generator = None if seed is None else generator_of(seed)

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def _model_name(self) -> str:
        return getattr(self.model, "__name__", type(self.model).__name__)

    def _problem(
        self,
        observed: Mapping[str, TensorLike],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> SimulationProblem:
        """Look at one run of the model, and check that it simulates what was observed."""
        check_model_call(self.model, args, kwargs, f"{self.name}(...).run", "observed, ")
        if not isinstance(observed, Mapping) or not observed:
            raise ArgumentError(
                f"{self.name}.run(observed)",
                expected="a dict from names of simulated sites to data",
                got=f"{type(observed).__name__} {observed!r:.60}",
                fix='write run({"y": y}, ...), and leave the data out of the arguments',
            )
        generator = self._generator or default_generator
        called = CalledModel(self.model, lifted(args), lifted(kwargs), (), ())
        with in_float64():
            args, kwargs = lifted(args), lifted(kwargs)
            data = {n: to_host(lifted(as_value(x, n)).array) for n, x in observed.items()}
            with untraced(), trace() as first, seed_handler(None, generator), uncondition():
                self.model(*args, **kwargs)
        sites = {n: s for n, s in first.items() if s.kind in ("sample", "deterministic")}
        for name in (*data, *(self.parameters or ())):
            if name not in sites:
                raise unknown_name(f"the model has no site {name!r}", name, sites)
        for name, x in data.items():
            shape = tuple(sites[name].value.array.shape)
            if shape != x.shape:
                raise ShapeError(
                    f"{self.name}.run(observed): {name!r}",
                    expected=f"shape {shape}, as the model simulates it",
                    got=f"shape {x.shape}",
                    fix="give the model the sizes that the data have",
                    at=sites[name].location,
                )
        chosen = self.parameters
        if chosen is None:
            chosen = [
                n
                for n, s in sites.items()
                if s.kind == "sample" and n not in data and not s.fn.is_discrete
            ]
        if not chosen or any(sites[n].kind != "sample" or sites[n].fn.is_discrete for n in chosen):
            raise ModelError(
                f"{self.name}: the parameters",
                expected="continuous latent sample sites",
                got=", ".join(map(repr, chosen)) or "none",
                fix="sample them in the model; other sites are drawn anew in each simulation",
            )
        nuisance = [
            n for n, s in sites.items() if s.kind == "sample" and n not in data and n not in chosen
        ]
        labels = labels_of(first, {*chosen, *data}, array_arguments(self.model, args, kwargs))
        return SimulationProblem(
            self.model, args, kwargs, data, chosen, sites, self.summary, self.distance, called,
            labels, nuisance,
        )  # fmt: skip

    def _draws(
        self,
        problem: SimulationProblem,
        params: Arrays,
        distance: np.ndarray,
        facts: dict[str, object],
    ) -> SampledDraws:
        attrs = {
            "inference_library": "probtorch",
            "inference_method": self.name,
            "model_name": self._model_name(),
            **facts,
        }
        posterior = {name: x[None] for name, x in params.items()}
        dims, coords = problem.labels.dims, problem.labels.coords
        used = {dim for names in dims.values() for dim in names}
        return SampledDraws(
            posterior,
            {"distance": distance[None]},
            dims=dims,
            coords={d: c for d, c in coords.items() if d in used},
            groups={"observed_data": problem.observed, "constant_data": problem.labels.constant},
            attrs=attrs,
            call=dataclasses.replace(
                problem.called,
                latent=tuple(posterior),
                observed=tuple(problem.observed),
                unseen=tuple(problem.nuisance),
                data=problem.observed,
            ),
        )
