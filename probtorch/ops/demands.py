"""What is demanded of parameters: checks that a replay makes, too.

While a function is recorded, conditions on parameters are recorded: a replay in which one fails
runs eagerly, and raises the error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.casting import to_float
from probtorch.core.dispatch import apply
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError
from probtorch.ops.families import structured

__all__ = ["check_allowed", "check_elements", "demand", "distinct", "probabilities"]


def _run_demand(x: np.ndarray, ok: np.ndarray) -> np.ndarray:
    return x.copy()


# Eager execution raises the error beforehand, so there the flag is always true.
_DEMAND = structured(
    "demand",
    "sampling",
    run=_run_demand,
    vjp=lambda g, out, inputs, attrs, needs: (g, None),
    jvp=lambda tangents, out, inputs, attrs: tangents[0],
    saves="",
    core="(),()->()",
    samples=lambda rng: [((rng.standard_normal((2, 3)), np.ones((2, 1), bool)), {})],
    reference=lambda x, ok: x,
    complex=True,
    doc="x unchanged; a replay in which a flag is false ends, and the function runs eagerly.",
)


def demand(x: TensorBase, ok: TensorBase) -> TensorBase:
    """Return `x`; where a boolean tensor that broadcasts with it is not true throughout, a replay
    of what is being recorded ends, and the function runs eagerly.
    """
    return apply(_DEMAND, (x, ok))


def check_elements(
    name: str, x: float | np.ndarray, bad: np.bool_ | np.ndarray, expected: str, fix: str
) -> None:
    """Raise DomainError if any element of the mask `bad` is set, showing the first of `x`."""
    if bad.any():
        at = tuple(int(i[0]) for i in np.nonzero(bad)) if np.ndim(bad) else ()
        raise DomainError(
            name,
            expected=expected,
            got=f"{float(np.asarray(x)[at])!r}" + (f" at index {at}" if at else ""),
            fix=fix,
        )


def check_allowed(
    name: str, x: np.ndarray, allows: Callable[[np.ndarray], np.ndarray], expected: str, fix: str
) -> None:
    """Raise DomainError unless ``allows(x)`` holds throughout, for an array or a number."""
    if x.ndim == 0:
        if allows(x.item()):
            return
    else:
        x = distinct(x)
    check_elements(name, x, np.logical_not(allows(x)), expected, fix)


def distinct(x: np.ndarray) -> np.ndarray:
    """Return a view of an array in which what broadcasting has repeated is there once."""
    if 0 not in x.strides:
        return x
    return x[tuple(slice(None) if step else slice(1) for step in x.strides)]


def probabilities(name: str, p: TensorLike) -> TensorBase:
    """Return probabilities as a float tensor, checked."""
    p = to_float(as_tensor(p, name))
    check_allowed(
        name, to_host(p.array), lambda x: (x >= 0.0) & (x <= 1.0), "probabilities in [0, 1]",
        "pass sigmoid(logits) if these are logits",
    )  # fmt: skip
    return p
