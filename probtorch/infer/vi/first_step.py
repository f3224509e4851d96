"""What the first step of SVI shows that was forgotten: data, or a prior.

The step is listened to as it is (`Statements`); only a model with an improper prior is looked at
once more, as a density, since an improper prior is right where data reach it. forgotten.py has the
verdicts, which samplers share.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from probtorch.core.rng import Generator
from probtorch.effects.runtime import Handler
from probtorch.errors import ProbtorchError
from probtorch.infer.forgotten import (
    Statements,
    observes_elsewhere,
    refuse_flat,
    warn_of_no_data,
)
from probtorch.infer.labels import array_arguments
from probtorch.infer.potential import Target

__all__ = ["judge_statements"]


def judge_statements(
    said: Statements,
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """Warn of a model without data, refuse one whose posterior is no distribution.

    Parameters
    ----------
    said : Statements
        What the first step ran.
    model, args, kwargs
        The model and its arguments.

    Raises
    ------
    InferenceError
        If the log density does not fall off in the direction of a site with an improper prior.
    """
    waiting = said.without_data()

    def run(*handlers: Handler) -> None:
        with ExitStack() as stack:
            for handler in handlers:
                stack.enter_context(handler)
            model(*args, **kwargs)

    if waiting is not None and not observes_elsewhere(run):
        warn_of_no_data(waiting, array_arguments(model, args, kwargs), optimised=True)
    if not said.improper():
        return
    try:
        target = Target.from_model(model, *args, **kwargs)
        start = target.initial(1, Generator(0))[0]
    except ProbtorchError:
        return  # no density of its own, as with subsamples: nobody can tell
    refuse_flat(target, start)
