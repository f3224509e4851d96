"""What `SVI` is given, checked before the first step, and advice on what others call it."""

from __future__ import annotations

import numpy as np

from probtorch.errors import ArgumentError
from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.model_calls import check_model, is_rng_key
from probtorch.infer.objectives.elbo import ELBO
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroOptim

__all__ = ["advice", "check_count", "check_parts"]


def advice(args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
    """The fix line for names that NumPyro and others use."""
    if "optimizer" in kwargs:
        return "write optim=..., or pass the optimizer third: SVI(model, guide, optim, loss)"
    if len(args) + ("optim" in kwargs) < 3:
        return 'write SVI(model, AutoNormal(model), Adam({"lr": 0.01}), Trace_ELBO())'
    return None


def check_parts(model: object, guide: object, loss: object, patience: int | None) -> None:
    """Refuse what is no model, guide or loss, before the first step fails somewhere inside."""
    if patience is not None and (isinstance(patience, bool) or not patience >= 1):
        raise ArgumentError(
            "SVI(patience=...)",
            expected="a number of at least 1, or None to never stop",
            got=repr(patience),
            fix="leave it out to stop at the first loss that is not finite",
        )
    if not (loss is None or isinstance(loss, (ELBO, type, str))):
        return  # a loss of the user's own may do with other things
    check_model(model, "SVI")
    if isinstance(guide, (Optimizer, PyroOptim)) or (
        isinstance(guide, type) and issubclass(guide, (AutoGuide, Optimizer))
    ):
        automatic = issubclass(guide, AutoGuide) if isinstance(guide, type) else False
        raise ArgumentError(
            "SVI(guide)",
            expected="a guide: a function with sample statements, or an automatic one",
            got=guide.__name__ if isinstance(guide, type) else f"an optimizer, {guide!r:.40}",
            fix=f"make it: {guide.__name__}(model)"  # type: ignore[union-attr]  # a class then
            if automatic
            else "write SVI(model, guide, optim, loss), in this order",
        )
    check_model(guide, "SVI", "guide")
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        if not hasattr(loss, "loss") or isinstance(loss, type):
            raise ArgumentError(
                "SVI(loss=...)",
                expected="an objective, or a function loss(model, guide, *args, **kwargs)",
                got=f"the class {loss.__name__}" if isinstance(loss, type) else repr(loss),
                fix=f"make it: {loss.__name__}()"
                if isinstance(loss, type)
                else "write Trace_ELBO(), or leave it out",
            )


def check_count(num_steps: int, args: tuple[object, ...]) -> None:
    """Refuse what is no number of steps."""
    count = None if isinstance(num_steps, bool) or np.ndim(num_steps) else num_steps
    if not hasattr(count, "__index__") or num_steps < 0:
        key = is_rng_key(num_steps) and bool(args)
        raise ArgumentError(
            "SVI.run",
            expected="num_steps, a count",
            got=f"{num_steps!r:.60}",
            fix="leave the key out: svi.run(1000, *args); a seed is given as SVI(..., seed=0)"
            if key
            else "write svi.run(1000, *args)",
        )
