"""What variational inference asks of an objective and of a guide.

`ELBO` (elbo.py) is a base that has all of `Objective` but `estimates`. SVI also takes a function,
or an object with some of the methods, of which loss_function.py makes a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.infer.objectives.runs import Run

__all__ = ["Estimate", "Guide", "Model", "Objective"]

Model: TypeAlias = Callable[..., object]


class Estimate(NamedTuple):
    """What an objective makes of a run.

    Attributes
    ----------
    value : Tensor, shape ()
        A lower bound of the log evidence, in expectation.
    surrogate : Tensor, shape ()
        Its gradient estimates that of the expected value.
    """

    value: TensorBase
    surrogate: TensorBase


class Guide(Protocol):
    """What a guide is: a program with the model's arguments that draws its latent sites.

    One that also has an attribute ``precise = True``, as the automatic ones do, makes the model run
    in float64 (`runs.is_precise`).
    """

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Draw the latent sites of the model."""


@runtime_checkable
class Objective(Protocol):
    """What a step asks for, and what is asked about a step; losses are in nats, lower is better."""

    @property
    def own_gradients(self) -> bool:
        """Whether `loss_and_grads` does something else than differentiate the `estimates`: then
        steps are eager, and nobody checks their gradients.
        """

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield estimates whose sum is the negative loss; their tapes are independent."""

    def loss(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> TensorBase | float:
        """Return an estimate of the loss, without gradients."""

    def loss_and_grads(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> TensorBase | float:
        """Return an estimate of the loss and add its gradients to those of the parameters."""

    def runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Run]:
        """Yield runs as an estimate needs them: what is not finite is looked for there."""

    def settled(self, model: Model, guide: Guide) -> bool:
        """Whether all is known of this pair that the first of its `runs` finds out."""

    def state_dict(self) -> dict[str, Tree]:
        """Return copies of what is remembered from step to step."""

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Take over what `state_dict` returned."""
