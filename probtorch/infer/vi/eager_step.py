"""A step of a fit, taken in Python: loss, gradients, the check that all is finite, the update.

A loss or gradient that is not finite moves nothing. When it comes `patience` times in a row, the
run stops: the fit goes back to the state before the last step that was well, and the error names
the step and the first site that is not finite.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.compiler.record.record import rarely_searched
from probtorch.distributions.validation import validation_enabled
from probtorch.errors import DomainError, InferenceError
from probtorch.infer.forgotten import Statements
from probtorch.infer.gaps import with_gaps_told
from probtorch.infer.missing_codes import MissingCodes
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.objectives.runs import same_draws
from probtorch.infer.vi.begun_anew import note_a_beginning
from probtorch.infer.vi.first_step import judge_statements
from probtorch.infer.vi.fit_memory import FitMemory
from probtorch.infer.vi.fit_state import FitState, StepInfo
from probtorch.infer.vi.non_finite import bad_entries, first_non_finite
from probtorch.infer.vi.shared_steps import shared_loss_and_grads
from probtorch.infer.vi.svi_check import checkable
from probtorch.infer.vi.unlearned import warn_of_unlearned, weights_without_gradients

if TYPE_CHECKING:
    from probtorch.infer.vi.fit_state import GeneratorStates


__all__ = ["eager_step"]


@rarely_searched()
def eager_step(fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]) -> StepInfo:
    """Take a step; its number and its batches are counted by the caller.

    Parameters
    ----------
    fit : FitMemory
        Whose memory moves.
    args, kwargs
        What model and guide are called with.

    Returns
    -------
    StepInfo

    Raises
    ------
    InferenceError
        If this step is refused, once too often.
    """
    first = not fit.num_steps
    around, error = fit.around(), None
    start = around["generators"]
    said = Statements() if first else contextlib.nullcontext()
    weights = weights_without_gradients((fit.model, fit.guide)) if first else {}
    quick = None if first else fit.quick_gradients(args, kwargs)
    with enable_grad(), contextlib.ExitStack() as around_model:
        if quick is None:
            around_model.enter_context(fit.active())
        try:
            with said, MissingCodes() if first else contextlib.nullcontext():
                if quick is None:
                    loss = fit.loss_and_grads(fit.model, fit.guide, *args, **kwargs)
                else:  # has what is active around a model with it
                    loss = shared_loss_and_grads(fit, quick)
        except OUTSIDE as refusal:
            if first:
                raise with_gaps_told(refusal, fit.model, args, kwargs) from None
            error, loss = refusal, math.nan
        if quick is not None:
            around_model.enter_context(fit.active())
        if error is None:
            fit.updater.adopt(dict(fit.params.named_parameters()))
        # Loaders may have been met just now; where they stood before this batch they know.
        around["loaders"] = fit.feed.state_dict()
        moved = fit.updater.take()
        before = FitState(**around, params=moved["params"], optimizer=moved["optimizer"])
        bad = _bad(fit, loss, error)
        if bad is not None:
            _undo(fit, before)
            _refuse(fit, loss, bad, error, start, args, kwargs)
            return StepInfo(loss, bad)
        if isinstance(said, Statements):
            warn_of_unlearned(weights, fit.updater.parameters.values())
            note_a_beginning(fit.trained_before, fit.params, fit.model, fit.guide)
            fit.trained_before = {}
            try:
                _check(fit, said, args, kwargs, start)
            except InferenceError:
                _undo(fit, before)
                raise
        fit.failures = 0
        fit.good = lambda: before
        fit.updater.step(lambda: _again(fit, args, kwargs, start))
        fit.updater.zero_grad()
    return StepInfo(loss)


def _undo(fit: FitMemory, before: FitState) -> None:
    fit.updater.zero_grad()
    fit.restore(before)


def _check(
    fit: FitMemory,
    said: Statements,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    start: GeneratorStates,
) -> None:
    """Look for what was forgotten, and compare the gradients with differences; once."""
    check = checkable(fit)
    with same_draws():
        judge_statements(said, fit.model, args, kwargs)
    if check is not None:
        check(fit, args, kwargs, start)


def _again(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object], start: GeneratorStates
) -> float:
    """The loss of this step at other parameters: with the same draws."""
    fit.updater.zero_grad()
    fit.set_generator_states(start)
    with enable_grad():
        return fit.loss_and_grads(fit.model, fit.guide, *args, **kwargs)


def _bad(fit: FitMemory, loss: float, error: Exception | None) -> str | None:
    """What is not finite about this step, None if all is well."""
    if error is not None:
        return f"{type(error).__name__}: {error}".split("\n")[0]
    if not math.isfinite(loss):
        return f"a loss of {loss}"
    for name, p in fit.updater.parameters.items():
        if p.grad is not None and not _all_finite(p.grad.array):
            return f"a gradient of parameter {name!r} that is {bad_entries(p.grad)}"
    return None


def _all_finite(array: np.ndarray) -> bool:
    """Whether all entries are finite, by their sum unless that is not."""
    with np.errstate(all="ignore"):
        return math.isfinite(float(array.sum())) or bool(np.max(abs(array)) < math.inf)


def _refuse(
    fit: FitMemory,
    loss: float,
    bad: str,
    error: Exception | None,
    start: GeneratorStates,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """Count a step that moved nothing; stop if that has been so often enough."""
    fit.failures += 1
    if fit.patience is None or fit.failures < fit.patience:
        return
    step, after = fit.num_steps, fit.generator_states()
    fit.set_generator_states(start)
    what, at = (bad, None) if math.isfinite(loss) else _blame(fit, args, kwargs)
    fit.set_generator_states(after)
    restored = ""
    if fit.good is not None:
        fit.put(fit.good())
        restored = f"; parameters are those before step {fit.num_steps}"
    fit.failures = 0
    raise InferenceError(
        f"SVI stopped at step {step}: {bad}{restored}",
        expected="a finite loss with finite gradients",
        got=what,
        fix=_cure(fit, error, args, kwargs)
        + "a smaller learning rate, another init_scale or init_loc_fn, or patience=10 to pass over "
        "single bad draws",
        at=at,
    ) from error


def _cure(
    fit: FitMemory, error: Exception | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> str:
    """What to do about a value or a parameter that is refused, in front of what helps anyway."""
    if not isinstance(error, DomainError):
        return ""
    with validation_enabled(False), contextlib.suppress(*OUTSIDE):
        for run in as_objective(fit.objective).runs(fit.model, fit.guide, args, kwargs):
            for name in run.guide.nodes:
                wanted = run.model.nodes[name].fn.support if name in run.model.nodes else None
                if wanted is not None and error.subject.startswith(f"site {name!r}"):
                    return (
                        f"let the guide draw {name!r} from {wanted}, as in the model: "
                        f"TransformedDistribution(..., [biject_to(constraints.{wanted})]); else "
                    )
    return f"{error.fix}; else " if error.fix else ""


def _blame(
    fit: FitMemory, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[str, str | None]:
    """The first site that is not finite in the runs of this step."""
    with validation_enabled(False):
        objective = as_objective(fit.objective)
        return first_non_finite(objective.runs(fit.model, fit.guide, args, kwargs))
