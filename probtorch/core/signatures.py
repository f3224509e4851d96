"""Calls that do not fit a signature, answered with the three parts of every other message.

People arrive with the spellings of other libraries: ``NUTS(max_treedepth=8)``, ``Adam(lr=0.1)``.
Python says which argument is wrong; `explained` adds what the function takes, the name that was
probably meant, and what to write. The check is made after Python has refused the call; where a call
fits it costs a frame, 0.1 to 0.3 us. So it is not around the functions that are called for every
operation on tensors: there Python's own words have to do.

`explain_calls` at the end of a module explains all that the module shows. `SPELLINGS` has the words
that other libraries use throughout; what only one class is asked for stands beside that class.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from types import FunctionType, MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar

from probtorch.core.late import difflib
from probtorch.core.misuse import misused
from probtorch.errors import ArgumentError

__all__ = ["also_called", "closest", "explain_calls", "explained", "misfit"]

P = ParamSpec("P")
R = TypeVar("R")

# Names that a message lists of a signature before it says how many more there are.
SHOWN = 8

# What PyTorch, Pyro, NumPyro, PyMC, Stan, NumPy, SciPy and Keras call an argument, and what it may
# be called here: the first of these names that the function has.
SPELLINGS = {
    "axes": ("dim", "dims", "axis"),
    "axis": ("dim", "dims"),
    "batchsize": ("batch_size",),
    "chains": ("num_chains",),
    "clip": ("clip_norm",),
    "coord": ("coords",),
    "cores": ("num_threads", "num_workers"),
    "data": ("obs", "posterior_samples"),
    "draws": ("num_samples", "posterior_samples"),
    "factor": ("gamma", "scale"),
    "fn": ("model", "func", "f"),
    "generator": ("rng_seed", "seed"),
    "hdi_prob": ("prob",),
    "hidden": ("hide", "hidden_dims", "hidden_size"),
    "in_axes": ("in_dims",),
    "init_fn": ("init_loc_fn", "init_strategy"),
    "initvals": ("initial_params", "init_params"),
    "iter": ("num_samples", "num_steps", "max_iter"),
    "jobs": ("num_workers",),
    "key": ("seed", "rng_seed", "generator"),
    "learning_rate": ("lr",),
    "lower": ("low", "lower_bound"),
    "max_iters": ("max_iter",),
    "max_norm_value": ("max_norm",),
    "n": ("size", "num_samples"),
    "n_jobs": ("num_workers",),
    "n_particles": ("num_particles",),
    "n_samples": ("num_samples",),
    "num": ("steps", "num_samples"),
    "num_sample": ("num_samples", "num_particles"),
    "num_samples": ("num_particles",),
    "num_warmup": ("warmup_steps",),
    "observed": ("obs", "data"),
    "optimizer": ("optim",),
    "out_axes": ("out_dims",),
    "progressbar": ("progress_bar",),
    "random_seed": ("seed", "rng_seed", "generator"),
    "random_state": ("seed", "rng_seed", "generator"),
    "rng": ("generator", "seed"),
    "rng_key": ("seed", "rng_seed", "generator"),
    "seed": ("rng_seed", "generator"),
    "shape": ("size", "sample_shape", "batch_shape"),
    "size": ("sample_shape",),
    "step_size": ("lr",),
    "stop": ("end",),
    "subsample": ("subsample_size",),
    "temp": ("temperature",),
    "upper": ("high", "upper_bound"),
    "var_names": ("names",),
    "weights": ("weight", "mixture_distribution"),
}


def explain_calls(
    namespace: dict[str, Any],
    *,
    methods: Mapping[str, str] | None = None,
    names: Iterable[str] | None = None,
) -> None:
    """Let calls of what a module shows raise `ArgumentError` where they do not fit.

    Parameters
    ----------
    namespace : dict
        ``globals()`` of the module, at its end. Functions of its ``__all__`` and constructors of
        its classes are explained, if they are its own and are not explained already.
    methods : dict of str to str, optional
        For a class the names of methods to explain, with spaces between them.
    names : iterable of str, optional
        What to explain, instead of all that is in ``__all__``.
    """
    home = namespace["__name__"]
    for name in namespace["__all__"] if names is None else names:
        found = namespace.get(name)
        if getattr(found, "__module__", None) != home or hasattr(found, _MARK):
            continue
        if isinstance(found, FunctionType):
            namespace[name] = explained(name)(found)
        elif isinstance(found, type):
            made = vars(found).get("__init__")
            if isinstance(made, FunctionType) and not hasattr(made, _MARK):
                setattr(found, "__init__", explained(None)(made))  # noqa: B010  # mypy: no method
    for name, listed in (methods or {}).items():
        for method in listed.split():
            fn = vars(namespace[name]).get(method) or getattr(namespace[name], method)
            setattr(namespace[name], method, explained(f"{name}.{method}")(fn))


# What `explained` has been around.
_MARK = "__explained__"


def explained(
    subject: str | None,
    *,
    meant: Mapping[str, str] | None = None,
    advice: Callable[..., str | None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: calls that do not fit the signature raise `ArgumentError`.

    Parameters
    ----------
    subject : str or None
        What the function is called in messages; None for a constructor: the name of its class.
    meant : dict of str to str, optional
        For names that other libraries use: a name of this signature, or a whole sentence. Beside
        it `SPELLINGS` is looked at.
    advice : callable, optional
        ``advice(args, kwargs)`` may return the fix line for calls it recognises, or None.

    Notes
    -----
    A `TypeError` from inside the function is told in our words where an argument is clearly not
    what its annotation says; otherwise it passes through, as do those of the user's functions.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return fn(*args, **kwargs)
            except TypeError as error:
                if _entered(inspect.unwrap(fn), error.__traceback__):
                    shown = subject or _class_of(args[0], call)
                    found = misused(shown, fn, args, kwargs, error, certain=True)
                    if found is None:
                        raise
                    raise found from error
                known = list(inspect.signature(fn).parameters.values())
                given: tuple[object, ...] = args
                if known and known[0].name in ("self", "cls"):
                    known, given = known[1:], args[1:]
                shown = subject or _class_of(args[0], call)
                found = misfit(shown, known, given, kwargs, meant=meant, advice=advice)
                if found is None:
                    raise
                cause = error
            raise found from cause

        setattr(call, _MARK, True)
        return call

    return decorate


def also_called(
    subject: str | None, **names: str | None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: keywords that other libraries use are taken beside those of a signature.

    Parameters
    ----------
    subject : str or None
        As for `explained`, which calls go through.
    **names : str or None
        By the other name that of the signature; None for what has no use here.

    Notes
    -----
    The names are the attribute ``also`` of the function; type checkers do not know them.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        told = explained(subject)(fn)

        @functools.wraps(told)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs:
                return told(*args, **kwargs)
            for given in [name for name in kwargs if name in names]:
                value, name = kwargs.pop(given), names[given]
                if name is None:
                    continue
                if name in kwargs:
                    raise ArgumentError(
                        f"{subject or _class_of(args[0], call)}({given}=...)",
                        expected=f"one of {name} and {given}, which are the same",
                        got="both",
                        fix="leave one of them out",
                    )
                kwargs[name] = value
            return told(*args, **kwargs)

        setattr(call, "also", names)  # noqa: B010  # functions have no such attribute for mypy
        return call

    return decorate


def misfit(
    subject: str,
    parameters: Sequence[Parameter],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    meant: Mapping[str, str] | None = None,
    advice: Callable[..., str | None] | None = None,
) -> ArgumentError | None:
    """Return the error for arguments that do not fit `parameters`, or None if they fit.

    Parameters
    ----------
    subject : str
    parameters : sequence of inspect.Parameter
        Without ``self``.
    args, kwargs
        What was given.
    meant, advice : optional
        See `explained`.
    """
    fix = None if advice is None else advice(args, kwargs)
    named = {
        p.name: p
        for p in parameters
        if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    places = [
        p
        for p in parameters
        if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    kinds = {p.kind for p in parameters}
    written = f"{subject}({_signature(parameters)})"
    unknown = [name for name in kwargs if name not in named]
    if unknown and Parameter.VAR_KEYWORD not in kinds:
        name = unknown[0]
        return ArgumentError(
            f"{subject}({name}=...)",
            expected=f"a name among {_few(named)}" if named else written,
            got=f"the unknown argument {name!r}",
            fix=fix or _instead(name, list(named), meant or {}),
        )
    if len(args) > len(places) and Parameter.VAR_POSITIONAL not in kinds:
        rest = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
        return ArgumentError(
            subject,
            expected=written,
            got=f"{len(args)} arguments by position",
            fix=fix
            or (
                f"name the arguments after the first {len(places)}: {', '.join(rest[:SHOWN])}"
                if rest
                else "leave out what is too much"
            ),
        )
    twice = [p.name for p in places[: len(args)] if p.name in kwargs and p.name in named]
    if twice:
        return ArgumentError(
            f"{subject}({twice[0]}=...)",
            expected=written,
            got=f"{twice[0]!r} by position and by name",
            fix=fix or "leave one of them out",
        )
    missing = [
        p.name
        for p in [*places[len(args) :], *(p for p in named.values() if p not in places)]
        if p.default is Parameter.empty and p.name not in kwargs
    ]
    if missing:
        return ArgumentError(
            f"{subject}: missing {', '.join(map(repr, missing))}",
            expected=written,
            got=_given(args, kwargs),
            fix=fix or f"pass {missing[0]}",
        )
    return None


def closest(
    name: str, known: Iterable[str], spellings: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str | None:
    """Return the name among `known` that `name` was probably meant to be, or None.

    That is the first of ``spellings[name]`` that is known, else the name that is most alike.
    """
    for spelling in spellings.get(name, ()):
        if spelling in known:
            return spelling
    folded = {candidate.lower().replace("_", ""): candidate for candidate in reversed(list(known))}
    found = difflib.get_close_matches(name.lower().replace("_", ""), folded, 1)
    return folded[found[0]] if found else None


def _instead(name: str, known: list[str], meant: Mapping[str, str]) -> str:
    if name in meant:
        told = meant[name]
        if told in known:
            return f"write {told}=..."
        if not told.isidentifier():
            return told
    near = closest(name, known, SPELLINGS)
    return f"did you mean {near}=...?" if near else "leave it out, or see help()"


def _entered(fn: Callable[..., object], traceback: TracebackType | None) -> bool:
    """Whether an error comes from inside a function, and not from the call itself."""
    code = getattr(fn, "__code__", None)
    while traceback is not None:
        if traceback.tb_frame.f_code is code:
            return True
        traceback = traceback.tb_next
    return False


def _class_of(made: object, init: Callable[..., object]) -> str:
    """The class that was called, or the one that a subclass handed its arguments to."""
    for cls in type(made).__mro__:
        if vars(cls).get("__init__") is init:
            return type(made).__name__ if type(made).__init__ is init else cls.__name__
    return type(made).__name__


def _few(names: Iterable[str]) -> str:
    names = list(names)
    if len(names) <= SHOWN + 2:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def _signature(parameters: Iterable[Parameter]) -> str:
    """The parameters in short: defaults are not shown, and of many only the first."""
    marks: dict[int, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    texts, starred = [], False
    for p in parameters:
        starred = starred or p.kind is Parameter.VAR_POSITIONAL
        if p.kind is Parameter.KEYWORD_ONLY and not starred:
            texts.append("*")
            starred = True
        optional = "" if p.default is Parameter.empty else "=..."
        texts.append(f"{marks.get(p.kind, '')}{p.name}{optional}")
    if len(texts) <= SHOWN + 2:
        return ", ".join(texts)
    return f"{', '.join(texts[:SHOWN])}, and {len(texts) - SHOWN} more"


def _given(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """What was given, in short."""
    named = ", ".join(f"{name}=..." for name in kwargs)
    count = f"{len(args)} argument{'s' * (len(args) != 1)} by position" if args else ""
    return " and ".join(filter(None, [count, named])) or "no arguments"
