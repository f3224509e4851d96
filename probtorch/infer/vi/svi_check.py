"""The gradient check of SVI: an objective against differences, with the draws of one step.

See gradient_check.py, which has the check of log densities, and what the two have in common.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.escapes import Watch, check_alike, hold, restore
from probtorch.autograd.tape import grad
from probtorch.compiler.record.record import unheard
from probtorch.config import settings
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.uniform import Delta
from probtorch.effects.runtime import Handler
from probtorch.errors import InferenceError
from probtorch.infer.gradient_check import quotient, random_direction, wrong
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.vi.fit_memory import FitMemory
from probtorch.infer.vi.jumps import Side, warn_of_a_jump

if TYPE_CHECKING:
    from probtorch.effects.site import Site
    from probtorch.infer.vi.fit_state import GeneratorStates

__all__ = ["check_svi", "checkable"]

# Parameters that are also moved one by one, where a value left the tape.
MAX_ALONE = 16


class _Names(Handler):
    """Tells the watch what the values of sites and parameters are called."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def after_sample(self, site: Site) -> None:
        if site.observed or not isinstance(site.value, TensorBase):
            return
        self._watch.named(site.value, f"site {site.name!r}")
        if not site.value.requires_grad and not isinstance(site.fn, Delta):
            hold(self._watch, site.value)

    def after_param(self, site: Site) -> None:
        if isinstance(site.value, TensorBase):
            self._watch.named(site.value, f"param {site.name!r}")


def check_svi(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object], start: GeneratorStates
) -> None:
    """Compare the gradient of a fit's objective with differences, with the draws of this step.

    Parameters
    ----------
    fit : FitMemory
        Whose parameters exist; everything is put back to where it was.
    args, kwargs
        What model and guide are called with.
    start
        States of the generators that the step began with.

    Raises
    ------
    InferenceError
        If they disagree, or a value that left the tape comes back.
    """
    leaves = {n: p for n, p in fit.updater.parameters.items() if p.requires_grad}
    single = any(p.array.dtype.itemsize < 8 for p in leaves.values())
    after = fit.generator_states()
    for precise in (True, False) if single else (True,):
        given = (lifted(args), lifted(kwargs)) if precise else (args, kwargs)
        try:
            with _borrowed(fit, leaves, precise):
                _check_runs(fit, leaves, *given, start, precise)
            return
        except InferenceError as error:
            if error.subject.startswith("the gradient"):
                raise
        except Exception:  # what it raises, it raises for the step itself
            continue
        finally:
            fit.set_generator_states(after)


@contextlib.contextmanager
def _borrowed(fit: FitMemory, leaves: Mapping[str, TensorBase], precise: bool) -> Iterator[None]:
    """Context manager: leaves may be moved, objects may remember; all is put back at the end."""
    held = [(p, p.array) for p in leaves.values()]
    buffers = [(b, b.array.copy()) for b in fit.params.buffers.values()]
    remembered = as_objective(fit.objective).state_dict()
    try:
        for p, array in held:
            p.array = array.astype(np.float64) if precise else array.copy()
        yield
    finally:
        for p, array in held:
            p.array = array
        for b, array in buffers:
            b.array[...] = array
        as_objective(fit.objective).load_state_dict(remembered)


def _check_runs(
    fit: FitMemory,
    leaves: Mapping[str, TensorBase],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    start: GeneratorStates,
    precise: bool,
) -> None:
    """The comparison itself."""
    names, tensors = list(leaves), list(leaves.values())
    if not leaves:
        return
    base = [p.array for p in tensors]
    whole = random_direction(sum(p.array.size for p in tensors))
    parts, at = [], 0
    for array in base:
        part = whole[at : at + array.size].reshape(array.shape)
        parts.append(part * np.maximum(np.abs(array), 1.0))
        at += array.size

    def run(like: Watch | None) -> tuple[float, Sequence[TensorBase | None] | None, Watch]:
        fit.set_generator_states(start)
        with unheard(), in_float64() if precise else contextlib.nullcontext():
            with Watch(like) as watch, fit.active(), _Names(watch), np.errstate(all="ignore"):
                for name, p in zip(names, tensors, strict=True):
                    watch.named(p, f"parameter {name!r}")
                found = _surrogate(fit, args, kwargs)
            gradients = None
            if like is None and found.requires_grad:
                with fit.active():
                    gradients = grad(found, tensors, allow_unused=True)
            restore(watch)
            return float(found.array), gradients, watch

    def moved(
        h: float, moving: Iterable[int], like: Watch | None
    ) -> tuple[float, Sequence[TensorBase | None] | None, Watch]:
        for i in moving:
            tensors[i].array = (base[i] + h * parts[i]).astype(base[i].dtype)
        try:
            return run(like)
        finally:
            for p, array in zip(tensors, base, strict=True):
                p.array = array

    value, gradients, watch = run(None)
    slopes = [
        0.0 if g is None else float((g.array * d).sum())
        for g, d in zip(gradients or [None] * len(tensors), parts, strict=True)
    ]
    if not (np.isfinite(slopes).all() and math.isfinite(value)):
        return

    def probe(h: float, moving: Sequence[int]) -> float:
        found, _, again = moved(h, moving, watch)
        check_alike(again)
        return found

    every = range(len(tensors))
    name = getattr(fit.model, "__name__", type(fit.model).__name__)
    # Where something left the tape, what it was made of may weigh little among all parameters.
    alone = every[:MAX_ALONE] if watch.escapes and len(tensors) > 1 else ()
    for moving in (every, *((i,) for i in alone)):
        slope = sum(slopes[i] for i in moving)
        found = quotient(partial(probe, moving=moving), value, slope, watch)
        if found is not None and found != slope:
            raise wrong(f"the objective of {name}", "values", slope, found, watch)

    def side(h: float) -> Side:
        found, _, seen = moved(h, every, None)
        return found, seen

    warn_of_a_jump(name, (value, watch), side)


def _surrogate(fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]) -> TensorBase:
    """The tensor whose gradient a step follows."""
    total: TensorBase | float = 0.0
    for _, surrogate in as_objective(fit.objective).estimates(fit.model, fit.guide, args, kwargs):
        total = total - surrogate
    return as_tensor(total)


def checkable(fit: FitMemory) -> Callable[..., object] | None:
    """Return the check for a fit; None where its gradient is nobody's but its own."""
    return check_svi if settings.check_gradients and fit.own_gradients() is None else None
