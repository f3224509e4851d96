"""An engine that the user gives to `fit`: made for the model, run, and brought to draws.

It is what `sbc` takes, too: a kernel, or anything with a method `run` that is called with the
model's arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Protocol, cast

from probtorch.core.rng import Generator, drawing_as
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.plans.until import Until
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.run_draws import RunDraws
from probtorch.infer.vi.svi import SVI

__all__ = ["as_sampled", "made_for", "run_given"]

# Steps of what asks for a number of them and has no rule to end by.
STEPS = 2000


class _Runs(Protocol):
    run: Callable[..., object]


class _HasDraws(Protocol):
    draws: Callable[..., object]


def made_for(make: object, model: Callable[..., object]) -> object:
    """Return what a user's class or function makes for a model: a kernel, or what has a `run`.

    Raises
    ------
    ArgumentError
        If it is neither.
    """
    made = make(model) if callable(make) else None
    if isinstance(made, Kernel) or callable(getattr(made, "run", None)):
        return made
    raise ArgumentError(
        "fit(engine=...)",
        expected="a class or function that makes a kernel for a model, or an engine with a method "
        "run",
        got=f"{type(make).__name__} {make!r:.60}",
        fix="write engine=lambda m: SMC(NUTS(m), 1000), or engine=HMC",
    )


def run_given(
    engine: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    count: int,
    max_steps: int,
    seconds: float | None,
    seed: Generator,
    shown: bool,
    name: str,
) -> tuple[SampledDraws, object, RunDraws | None]:
    """Call an engine's `run`; returns draws, what it returned, and runs whose sites may differ.

    Parameters
    ----------
    engine : object
    args, kwargs
        What the model is called with.
    count : int
        Draws, of what is asked for as many as are wanted.
    max_steps : int
        Of an `SVI`, which ends when its loss has stopped falling.
    seconds : float or None
        That are left, for an engine that can be told.
    seed : Generator
        Of what has no seed of its own.
    shown : bool
        Whether it may show its progress.
    name : str
        Of the model.
    """
    run = cast(_Runs, engine).run
    takes = inspect.signature(run).parameters
    options: dict[str, object] = {}
    if "num_steps" in takes:
        run = functools.partial(run, max_steps if isinstance(engine, SVI) else STEPS)
    if isinstance(engine, SVI):
        options["until"] = Until(None)
    if "max_seconds" in takes and seconds is not None:
        options["max_seconds"] = seconds
    if "progress_bar" in takes:
        options["progress_bar"] = shown
    elif hasattr(engine, "progress_bar"):
        engine.progress_bar = engine.progress_bar and shown
    own, of_draws = seed.spawn(2)
    with drawing_as(own), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = run(*args, **kwargs, **options)
        drawn = _draws(found, count, of_draws, type(engine).__name__)
    for w in heard:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    told = [
        str(w.message).splitlines()[0] for w in heard if issubclass(w.category, InferenceWarning)
    ]
    draws = as_sampled(drawn, name)
    draws = dataclasses.replace(draws, attrs={**draws.attrs, "engine_warnings": told})
    return draws, found, drawn if isinstance(drawn, RunDraws) else None


def _draws(found: object, count: int, seed: Generator, name: str) -> Draws:
    """Draws of equal weight, of what an engine returned."""
    if not isinstance(found, Draws) and callable(getattr(found, "draws", None)):
        found = cast(_HasDraws, found).draws(count, seed=seed)
    if isinstance(found, Draws):
        return found
    raise ArgumentError(
        f"fit(engine=...): what {name}.run returns",
        expected="Draws, WeightedDraws, or a result with a method draws(num_draws, seed=...)",
        got=type(found).__name__,
        fix="let run return draws of all latent sites",
    )


def as_sampled(draws: Draws, name: str) -> SampledDraws:
    """Return draws as those of a model of this name."""
    fields = {f.name: getattr(draws, f.name) for f in dataclasses.fields(Draws)}
    if isinstance(draws, SampledDraws):
        fields = {f.name: getattr(draws, f.name) for f in dataclasses.fields(SampledDraws)}
    fields["attrs"] = {"model_name": name, **draws.attrs}
    return SampledDraws(**fields)


explain_calls(globals())
