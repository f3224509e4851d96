"""Networks that take part in a fit and are not learned: nobody stated them with `module`.

The gradients of the first step reach their weights, and no optimizer moves these. They are looked
for where functions find networks: among their globals and closures, the attributes of the object
whose method they are, and the attributes of those objects.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator

from probtorch.core.tensor_base import TensorBase
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import user_frame
from probtorch.nn.module import Module

__all__ = ["weights_without_gradients", "warn_of_unlearned"]

# How far to go from a function to functions that it calls.
DEPTH = 2
NAMED = 3


def weights_without_gradients(functions: Iterable[Callable[..., object]]) -> dict[str, TensorBase]:
    """Return the parameters that have no gradient yet, of all networks that functions know by name.

    Parameters
    ----------
    functions : iterable of callable
        A model and a guide.

    Returns
    -------
    dict from str to Tensor
        By the name of the network, as the function calls it, and of the parameter.
    """
    found: dict[str, TensorBase] = {}
    for function in functions:
        for name, net in _networks(function, DEPTH):
            for place, p in net.named_parameters():
                if p.requires_grad and p.grad is None:
                    found.setdefault(f"{name}.{place}", p)
    return found


def _networks(function: Callable[..., object], depth: int) -> Iterator[tuple[str, Module]]:
    owner = getattr(function, "__self__", None)
    if isinstance(function, Module):
        owner, function = function, type(function).forward
    if isinstance(owner, Module):
        yield from owner.named_children()
    elif owner is not None:
        yield from _among(getattr(owner, "__dict__", {}).items(), 0)
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(function):
        return
    known = {n: function.__globals__.get(n) for n in function.__code__.co_names}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from _among(known.items(), depth)


def _among(known: Iterable[tuple[str, object]], depth: int) -> Iterator[tuple[str, Module]]:
    for name, value in known:
        if isinstance(value, Module):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", v) for i, v in enumerate(value) if isinstance(v, Module))
        elif depth and inspect.isfunction(value):
            yield from _networks(value, depth - 1)


def warn_of_unlearned(weights: dict[str, TensorBase], learned: Iterable[TensorBase]) -> None:
    """Warn of weights to which the first step has given a gradient and which nothing moves.

    Parameters
    ----------
    weights : dict from str to Tensor
        What `weights_without_gradients` returned before the step.
    learned : iterable of Tensor
        What the optimizer moves.

    Warns
    -----
    InferenceWarning
        Naming the networks.
    """
    known = {id(p) for p in learned}
    left = [n for n, p in weights.items() if p.grad is not None and id(p) not in known]
    if not left:
        return
    shown = ", ".join(left[:NAMED]) + (f" and {len(left) - NAMED} more" if left[NAMED:] else "")
    net = left[0].split(".")[0].split("[")[0]
    message = (
        "a network takes part in the objective and is not learned\n"
        "  expected: every network that is to be trained stated with module()\n"
        f"  got:      gradients of {shown}, which no optimizer of this SVI moves\n"
        f"  fix:      write module({net!r}, {net}) where it is used, or let the model be a "
        f"PyroModule; if it is to stay as it is, {net}.requires_grad_(False)"
    )
    warnings.warn_explicit(message, InferenceWarning, *(user_frame() or ("<unknown>", 0)))
