"""`Importance`: draws of a guide, or of the prior, weighted to be draws of the posterior.

Guide and model are run together (objectives/runs.py), all draws at once where the model bears that,
else one by one: then the sites of a model may differ from run to run, with the branches that Python
takes. What comes out is `WeightedDraws` with an estimate of the evidence.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of as checked_count
from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.validation import validation_enabled
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute
from probtorch.effects.site import Site
from probtorch.errors import InferenceError, user_frame
from probtorch.infer.control import Interrupt, positive
from probtorch.infer.labels import Labels, array_arguments, labels_of, with_gaps
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import OUTSIDE, untraced
from probtorch.infer.objectives.runs import Run, Vectorised, is_latent, run_pair
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.sequential.weighted_draws import ImportanceWarning, WeightedDraws, weighted
from probtorch.infer.sequential.weights import effective_size

__all__ = ["Importance", "checked_count", "prior", "psis_diagnostic", "refuse_subsample"]

# Elements of all sites together in one vectorised run: 64 MiB of float64.
BLOCK_ELEMENTS = 2**23
# Draws unless told: Pareto k is known to 0.1 or so, a mean to 3 % of a standard deviation.
NUM_SAMPLES = 1000
# Draws for each that was asked for, at most, where the weights are to be worth so many.
MOST = 100

Arrays = dict[str, np.ndarray]


def prior(*args: object, **kwargs: object) -> None:
    """The guide without a site: all are left to the model, and drawn from there."""


prior.precise = True  # type: ignore[attr-defined]  # what `is_precise` looks for


@dataclass
class _Found:
    """What was drawn: in parts of vectorised runs, or run by run.

    Attributes
    ----------
    parts : list of (dict of str to ndarray, ndarray)
        Values and log ratios.
    rows, ratios : list of dict, list of float
        The same of single runs.
    """

    parts: list[tuple[Arrays, np.ndarray]] = field(default_factory=list)
    rows: list[Arrays] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def log_ratios(self) -> np.ndarray:
        return np.concatenate([*(ratios for _, ratios in self.parts), np.array(self.ratios)])

    @property
    def is_possible(self) -> bool:
        """Whether a draw has any weight."""
        return bool(np.isfinite(self.log_ratios).any())

    def samples(self) -> Arrays:
        if self.rows:
            return _stacked(self.rows)
        return {
            n: np.concatenate([values[n] for values, _ in self.parts]) for n in self.parts[0][0]
        }


class Importance:
    """Importance sampling of a model's posterior, with Pareto smoothed weights [vehtari2024]_.

    It is exact in the limit of many draws, for any model that can be run: with discrete sites, and
    with sites that come and go. It works where the guide is close to the posterior; the draws of
    the prior, without a guide, do for a few parameters and little data.

    Parameters
    ----------
    model : callable
    guide : callable, optional
        Proposes latent sites by name; those that it lacks are drawn from the prior, as all are
        without a guide.
    num_samples : int, optional
        Number of draws, 1000 by default.
    params : dict, optional
        Values for `param` sites, such as those of an `SVIResult`.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    Raises
    ------
    ArgumentError
        If the number of draws is no positive integer.

    References
    ----------
    [vehtari2024]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Importance
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> found = Importance(coin, num_samples=10000, seed=0).run(y)
    >>> bool(abs(found.log_evidence - np.log(1 / 20)) < 4 * found.log_evidence_error)
    True
    >>> bool(abs(found.expectation("p") - 4 / 6) < 0.01)
    True
    """

    @explained("Importance", meant={"draws": "num_samples", "rng_key": "seed"})
    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object] | None = None,
        num_samples: int | None = None,
        *,
        params: Mapping[str, TensorLike] | None = None,
        seed: int | Generator | None = None,
    ) -> None:
        check_model(model, "Importance")
        self.params = dict(params or {})
        self.model, self.guide = model, guide
        self.num_samples = checked_count(
            "Importance", "num_samples", NUM_SAMPLES if num_samples is None else num_samples
        )
        self._generator = None if seed is None else generator_of(seed)

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def __repr__(self) -> str:
        parts = (self.model,) if self.guide is None else (self.model, self.guide)
        names = ", ".join(getattr(part, "__name__", type(part).__name__) for part in parts)
        return f"{self.name}({names}, num_samples={self.num_samples})"

    def run(
        self,
        *args: object,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> WeightedDraws:
        """Draw and weight.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.
        until_ess : float, optional
            Go on beyond `num_samples`, as many draws at a time, until the weights are worth so many
            draws, or there are a hundred times as many, of which it warns.
        max_seconds : float, optional
            Draw no more after this time, as after Ctrl-C.

        Returns
        -------
        WeightedDraws

        Raises
        ------
        ModelError
            If the guide has a site that the model has not.
        InferenceError
            If no draw has any weight, or a plate works on a subsample.

        Warns
        -----
        ImportanceWarning
            If the weights cannot be trusted, or are worth less than `until_ess` in the end.
        """
        check_model_call(self.model, args, kwargs, f"{self.name}(...).run")
        wanted = positive(f"{self.name}.run", "until_ess", until_ess, 400)
        interrupt = Interrupt(f"{self.name}.run", max_seconds)
        generator = self._generator or default_generator
        state = generator.get_state()
        with self._surroundings():
            called = CalledModel(self.model, args, kwargs, (), ())
        with (
            no_grad(),
            untraced(),
            self._surroundings(),
            seed_handler(None, generator),
            interrupt,
        ):
            try:
                return self._drawn(called, generator, wanted, interrupt)
            except OUTSIDE as error:
                # Draws that cannot have made the data have no weight; unless it is a parameter
                # that is bad, which then makes weights that are nan.
                generator.set_state(state)
                with validation_enabled(False):
                    try:
                        return self._drawn(called, generator, wanted, interrupt)
                    except InferenceError as other:
                        raise (error if "nan" in str(other.got) else other) from None

    def _surroundings(self) -> contextlib.AbstractContextManager[object]:
        """What holds around the runs."""
        return substitute(None, self.params) if self.params else contextlib.nullcontext()

    def _drawn(
        self,
        called: CalledModel,
        generator: Generator,
        wanted: float | None,
        interrupt: Interrupt,
    ) -> WeightedDraws:
        args, kwargs = called.args, dict(called.kwargs)
        guide = prior if self.guide is None else self.guide
        first = run_pair(self.model, guide, args, kwargs, allow_missing=True)
        for site in first.model.nodes.values():
            refuse_subsample(site)
        state = generator.get_state()
        found = _Found()
        interrupt.shows(
            lambda: self._result(called, first, found, True) if found.is_possible else None
        )
        try:
            self._together(first, guide, args, kwargs, found, interrupt)
        except Exception:
            # Whatever it is, it says that the model cannot be run for several draws at once; what
            # single runs cannot bear they will say.
            generator.set_state(state)
            found.parts.clear()
            self._one_by_one(guide, args, kwargs, found, interrupt)
        while (
            wanted is not None
            and effective_size(found.log_ratios) < wanted
            and found.log_ratios.size < MOST * self.num_samples
            and not interrupt.asked
        ):
            if found.rows:
                self._one_by_one(guide, args, kwargs, found, interrupt)
            else:
                self._together(first, guide, args, kwargs, found, interrupt)
        count = found.log_ratios.size
        few = wanted is not None and effective_size(found.log_ratios) < wanted
        interrupted = (few or count < self.num_samples) and interrupt.asked
        if wanted is not None and few and not interrupted:
            _warn_of_few(self.name, wanted, effective_size(found.log_ratios), count)
        return self._result(called, first, found, interrupted, warns=True)

    def _result(
        self,
        called: CalledModel,
        first: Run,
        found: _Found,
        interrupted: bool,
        *,
        warns: bool = False,
    ) -> WeightedDraws:
        """What was drawn, with its weights."""
        samples = found.samples()
        labels = self._labels(first, samples, called.args, dict(called.kwargs))
        same = all(row.keys() == samples.keys() for row in found.rows)
        return weighted(
            samples,
            found.log_ratios,
            self.name,
            values=() if same else tuple(found.rows),
            dims=labels.dims,
            coords=labels.coords,
            groups={"observed_data": labels.observed, "constant_data": labels.constant},
            call=replace(called, latent=tuple(_latent(first)), observed=tuple(labels.observed)),
            warns=warns,
            attrs={
                "inference_library": "probtorch",
                "inference_method": self.name,
                "interrupted": interrupted,
                "model_name": getattr(self.model, "__name__", type(self.model).__name__),
            },
        )

    def _labels(
        self,
        first: Run,
        samples: Mapping[str, np.ndarray],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Labels:
        found = labels_of(first.model, samples, array_arguments(self.model, args, kwargs))
        dims = {n: d for n, d in found.dims.items() if n in {*samples, *found.observed}}
        used = {d for names in dims.values() for d in names}
        coords = {d: list(c) for d, c in found.coords.items() if d in used}
        return Labels(dims, coords, with_gaps(found.observed, [first.model]), found.constant)

    def _together(
        self,
        first: Run,
        guide: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        found: _Found,
        interrupt: Interrupt,
    ) -> None:
        """Add values and log ratios of vectorised runs, a part each."""
        elements = sum(
            s.value.array.size
            for s in first.model.nodes.values()
            if isinstance(s.value, TensorBase)
        )
        block = max(2, min(self.num_samples, BLOCK_ELEMENTS // max(elements, 1)))
        many = Vectorised(block, allow_missing=True)
        for begin in range(0, self.num_samples, block):
            size = min(block, self.num_samples - begin)
            runner = many if size == block else Vectorised(size, allow_missing=True)
            run = runner(self.model, guide, args, kwargs)
            values = {n: _rows(run, n, first) for n in first.model.nodes if n in _latent(first)}
            values |= self._computed(first, values, args, kwargs)
            found.parts.append((values, _log_ratios(run)))
            if interrupt.asked:
                break

    def _computed(
        self, first: Run, values: Arrays, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Arrays:
        """Deterministic sites at many draws, which `Predictive` compares with single runs."""
        names = [n for n, s in first.model.nodes.items() if s.kind == "deterministic"]
        if not names:
            return {}
        predictive = Predictive(self.model, values, return_sites=names, batch_ndims=1)
        return {n: np.asarray(to_host(x.array)) for n, x in predictive(*args, **kwargs).items()}

    def _one_by_one(
        self,
        guide: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        found: _Found,
        interrupt: Interrupt,
    ) -> None:
        """Add values and log ratios of single runs."""
        begun = len(found.rows)
        while len(found.rows) == begun or (
            len(found.rows) - begun < self.num_samples and not interrupt.asked
        ):
            run = run_pair(self.model, guide, args, kwargs, allow_missing=True)
            for site in run.model.nodes.values():
                refuse_subsample(site)
            found.ratios.append(float(_log_ratios(run)[0]))
            names = [n for n, s in run.model.nodes.items() if s.kind == "deterministic"]
            names = [n for n in run.model.nodes if n in {*names, *_latent(run)}]
            found.rows.append({n: to_host(run.model[n].value.array) for n in names})


def psis_diagnostic(
    model: Callable[..., object],
    guide: Callable[..., object],
    *args: object,
    num_particles: int = NUM_SAMPLES,
    params: Mapping[str, TensorLike] | None = None,
    seed: int | Generator | None = None,
    **kwargs: object,
) -> float:
    """Return the Pareto k of a guide: whether it is close enough to the posterior to be weighted.

    Parameters
    ----------
    model, guide : callable
    *args, **kwargs
        What both are called with.
    num_particles : int
        Number of draws of the guide.
    params : dict, optional
        Values for `param` sites, such as those of an `SVIResult`; of the parameter store if None.
    seed : int or Generator, optional
        The default generator if None.

    Returns
    -------
    float
        Below ``pareto_k_limit(num_particles)``, at most 0.7, weighted draws can be trusted; above,
        the guide lacks tails that matter. ``Importance(model, guide).run(*args).pareto_k``, without
        its warning.

    References
    ----------
    [vehtari2024]_.
    """
    found = Importance(model, guide, num_particles, params=params, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportanceWarning)
        run: Callable[..., WeightedDraws] = found.run
        return float(run(*args, **kwargs).pareto_k)


def _warn_of_few(owner: str, wanted: float, found: float, count: int) -> None:
    """Say that weights are worth less than was asked for, at most draws that there may be."""
    warnings.warn_explicit(
        f"{owner}.run(until_ess={wanted:g}) gave up\n"
        f"  expected: weights worth {wanted:g} draws, from at most {MOST} x num_samples\n"
        f"  got:      {found:.1f} from {count} draws\n"
        "  fix:      give a guide that is closer to the posterior, more num_samples, or use SMC",
        ImportanceWarning,
        *(user_frame() or ("<unknown>", 0)),
    )


def _latent(run: Run) -> list[str]:
    return [n for n, s in run.model.nodes.items() if is_latent(s)]


def _log_ratios(run: Run) -> np.ndarray:
    """Log model minus log guide per particle, shape (size,), float64."""
    ratio = to_host((run.log_model() - run.log_guide()).array).astype(np.float64)
    return np.broadcast_to(ratio.reshape(-1), (run.size,)).copy()


def _rows(run: Run, name: str, first: Run) -> np.ndarray:
    """The values of a site of a vectorised run, shape (size, *shape)."""
    shape = first.model[name].value.array.shape
    rows = to_host(run.model[name].value.array).reshape(-1, *shape)
    return rows if len(rows) == run.size else np.broadcast_to(rows, (run.size, *shape)).copy()


def _stacked(rows: Sequence[Arrays]) -> Arrays:
    """Sites that all runs have in one shape, the draws in front."""
    return {
        name: np.stack([row[name] for row in rows])
        for name, x in rows[0].items()
        if all(name in row and row[name].shape == x.shape for row in rows)
    }


def refuse_subsample(site: Site) -> None:
    """Raise if a site stands in a plate that works on a part of its rows."""
    for frame in site.plates:
        if frame.subsampled:
            raise InferenceError(
                f"plate {frame.name!r} draws a subsample",
                expected="all rows: weights are ratios of whole densities",
                got="a random subsample",
                fix="leave subsample_size out, or use SVI",
                at=site.location,
            )


explain_calls(globals())
