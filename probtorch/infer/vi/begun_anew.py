"""A note for those who expect a second `SVI` to go on where the first one stood, as Pyro's does.

There one store holds the parameters of all runs until it is cleared. Here each `SVI` has its own,
and begins anew. Who writes as in Pyro, without `params=` and without a seed, is told so, once in a
process, where parameters of `param` statements of the same functions had been trained before.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping

from probtorch.core.tensor_base import TensorBase
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.effects.params import ParamStore, get_param_store
from probtorch.errors import user_frame

__all__ = ["note_a_beginning", "trained_before"]

# The last run that was taken a step of: its store, its model and its guide.
_LAST: list[Callable[[], object]] = []
_TOLD: list[bool] = []


def _reference(x: object) -> Callable[[], object]:
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: None  # not to be known again


def trained_before(model: object, guide: object) -> dict[str, TensorBase]:
    """Return the parameters that a run of the same functions has trained and scripts still see."""
    store = get_param_store()
    if not _LAST or any(
        ref() is not x for ref, x in zip(_LAST, (store, model, guide), strict=True)
    ):
        return {}
    return dict(store.named_parameters())


def note_a_beginning(
    before: Mapping[str, TensorBase], store: ParamStore, model: object, guide: object
) -> None:
    """Say, once, that a run has begun anew; called after its first step.

    Parameters
    ----------
    before : dict of Tensor
        What `trained_before` returned when it was made.
    store : ParamStore
        The parameters of the run.
    model, guide : callable
        Its functions, known from now on.

    Warns
    -----
    InferenceWarning
        Naming parameters.
    """
    _LAST[:] = map(_reference, (store, model, guide))
    names = [n for n, p in store.named_parameters() if n in before and before[n] is not p]
    if not names or _TOLD:
        return
    _TOLD.append(True)
    shown = ", ".join(map(repr, names[:3])) + (", ..." if names[3:] else "")
    message = (
        "SVI begins anew, and does not go on where the SVI before it stood\n"
        "  expected: params= or seed=, or a store that was cleared, where functions that were "
        "trained are trained again\n"
        f"  got:      the starting values of {shown}, which the run before has trained\n"
        "  fix:      SVI(..., params=first.params) goes on from there; if a new beginning is "
        "meant, probtorch.clear_param_store() ahead of it, or seed=, says so"
    )
    warnings.warn_explicit(message, InferenceWarning, *(user_frame() or ("<unknown>", 0)))
