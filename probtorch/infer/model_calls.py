"""What a model is called with, checked before it is run: missing arguments, keys in front.

The model's own `TypeError` would name the model only, and not where its arguments come from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import misfit
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError

__all__ = ["check_model", "check_model_call", "is_rng_key"]

# What people ask runs for that is asked for otherwise.
_TO_STOP = "where run() has them: until_ess=400, max_seconds=60; until='converged' for SVI"
_TIMES = ("max_time", "timeout", "time_limit")
OF_RUNS = {
    **dict.fromkeys(("stop", "until", "until_ess", *_TIMES), _TO_STOP),
    "blocking": "run it by itself: in_background(engine.run, ...) returns a handle",
}


def check_model_call(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    call: str,
    first: str = "",
) -> None:
    """Refuse arguments that the model does not take.

    Parameters
    ----------
    model : callable
        Handlers around a function are looked through.
    args, kwargs
        What it is going to be called with.
    call : str
        How the user passes them, such as ``mcmc.run``; goes into the fix line.
    first : str
        What that call takes before the model's arguments.

    Raises
    ------
    ArgumentError
        Naming what is missing or too much; a key or seed in front is told apart.
    """
    while isinstance(model, Handler) and model.fn is not None and callable(model.fn):
        model = model.fn
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return  # builtins and the like do not say
    fits = _binds(signature, args, kwargs)
    name = getattr(model, "__name__", type(model).__name__)
    parameters = list(signature.parameters.values())
    wanted = ", ".join(
        p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    )
    jax_key = bool(args) and type(args[0]).__module__.partition(".")[0] in ("jax", "jaxlib")
    if (jax_key or (args and not fits and is_rng_key(args[0]))) and _binds(
        signature, args[1:], kwargs
    ):
        raise ArgumentError(
            f"model {name}: a random number key in front of its arguments",
            expected=f"{call}({first}{wanted})",
            got=f"{type(args[0]).__name__} {args[0]!s:.40}, then {len(args) - 1} more",
            fix="leave the key out: no keys are needed here; a seed is given as seed=0 where the "
            "inference object is made",
        )
    if fits:
        return
    unknown = next((n for n in kwargs if n not in signature.parameters), "")
    fix = OF_RUNS.get(unknown, f"write {call}({first}{wanted})")
    if call == "fit" and unknown in (*_TIMES, "max_seconds"):
        fix = f"fit calls it seconds: write fit({first}{wanted}, seconds=60)"
    error = misfit(f"model {name}", parameters, args, kwargs, advice=lambda *_: fix)
    if error is not None:
        raise error


def check_model(model: object, call: str, what: str = "model") -> None:
    """Refuse what is no function in place of a model or guide.

    Parameters
    ----------
    model : object
    call : str
        The class that was given it, such as ``SVI``.
    what : str
        Name of the argument.

    Raises
    ------
    ArgumentError
        With what was given, and what it may have been mistaken for.
    """
    if callable(model) and not isinstance(model, TensorBase):
        return
    fix = f"pass the function itself: {call}(model, ...), not the result of calling it"
    if what == "guide":
        fix = "write AutoNormal(model), or a function with sample statements like the model's"
    raise ArgumentError(
        f"{call}({what})",
        expected=f"a {what}: a function with sample statements, or a module",
        got="None" if model is None else f"{type(model).__name__} {model!r:.60}",
        fix=fix,
    )


def is_rng_key(value: object) -> bool:
    """Whether a value looks like the key, seed or generator that other libraries want first."""
    if isinstance(value, (Generator, np.random.Generator, np.random.RandomState)):
        return True
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return True
    shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", ""))
    return dtype.startswith("key<") or (tuple(shape or ()) == (2,) and dtype.endswith("uint32"))


def _binds(
    signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
