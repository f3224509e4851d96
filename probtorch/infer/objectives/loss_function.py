"""`LossFunction`: a loss of the user's, as the objective that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.infer.objectives.elbo import ELBO
from probtorch.infer.objectives.protocol import Estimate, Guide, Model, Objective
from probtorch.infer.objectives.runs import Run, run_pair

__all__ = ["LossFunction", "as_objective"]


# A loss is an objective, or a function of model, guide and their arguments.
Loss: TypeAlias = Objective | Callable[..., TensorBase | float]


def as_objective(given: Loss) -> Objective:
    """Return `given` if it is an objective, else the one that it stands for."""
    return given if isinstance(given, (ELBO, Objective)) else LossFunction(given)


class LossFunction:
    """A loss of the user's as an objective: a function, or an object with some of the methods.

    Parameters
    ----------
    given : callable, or object with `loss` or `loss_and_grads`
        ``given(model, guide, *args, **kwargs)`` returns a differentiable tensor.
    """

    def __init__(self, given: Callable[..., TensorBase | float]) -> None:
        # What else it has is asked for by name.
        self.given: Any = given
        self.own_gradients = hasattr(given, "loss_and_grads")

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield the one that the function returns."""
        negative = -self.given(model, guide, *args, **kwargs)
        yield Estimate(negative, negative)

    def loss(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> TensorBase | float:
        """Return what the function returns."""
        return getattr(self.given, "loss", self.given)(model, guide, *args, **kwargs)

    def loss_and_grads(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> TensorBase | float:
        """Differentiate what the function returns, unless it does that itself."""
        if self.own_gradients:
            return self.given.loss_and_grads(model, guide, *args, **kwargs)
        loss = self.given(model, guide, *args, **kwargs)
        if getattr(loss, "requires_grad", False):
            loss.backward()
        return loss

    def runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Run]:
        """Yield the function's own runs, or one of guide and model."""
        own = getattr(self.given, "runs", None)
        if own is not None:
            yield from own(model, guide, args, kwargs)
        else:
            yield run_pair(model, guide, args, kwargs)

    def settled(self, model: Model, guide: Guide) -> bool:
        """Nothing is found out."""
        return True

    def state_dict(self) -> dict[str, Tree]:
        """Return the function's own, if it has one."""
        state: dict[str, Tree] = getattr(self.given, "state_dict", dict)()
        return state

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Give the function its own back."""
        if hasattr(self.given, "load_state_dict"):
            self.given.load_state_dict(state)
