"""Base of the schedules, and what they read and write of an optimizer's groups.

`LRScheduler.get_lr` is what a subclass defines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.core.in_place import assign
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import numbers_shown, repeated
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError, DTypeError
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.typed import Group
from probtorch.tensor import Tensor

__all__ = [
    "LRScheduler",
    "check_momentum",
    "check_optimizer",
    "copied",
    "number_of",
    "per_group",
    "set_lr",
    "set_momentum",
]

_Value = TypeVar("_Value")


class LRScheduler:
    """Base of schedulers.

    Parameters
    ----------
    optimizer : Optimizer
    last_epoch : int
        Steps already taken; -1 for a new schedule. To resume, build a new one and use
        `load_state_dict`.

    Raises
    ------
    DTypeError
        If `optimizer` is none.
    ArgumentError
        If `last_epoch` is given and the groups do not remember their "initial_lr".
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer, type(self).__name__)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                lr = group["lr"]
                group.setdefault("initial_lr", number_of(lr))
            elif "initial_lr" not in group:
                raise ArgumentError(
                    f"param 'initial_lr' is not specified in param_groups[{i}]",
                    expected="groups that a scheduler has seen before, as last_epoch is given",
                    got=f"options {', '.join(k for k in group if k != 'params')}",
                    fix="load the optimizer's state first, or leave last_epoch out",
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._begin()

    def _begin(self) -> None:
        """Take the first step, which sets the rate of step 0 or of where it goes on."""
        self._last_lr: list[float] = []
        self.step()

    def _undo(self) -> None:
        """Take the first step back, before a sequence sets out."""
        self.last_epoch -= 1

    def __repr__(self) -> str:
        return call_of(self, "optimizer", "optimizers", "schedulers", "last_epoch")

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def get_last_lr(self) -> list[float]:
        """Return the learning rates set last, one per group."""
        numbers_shown()
        return self._last_lr

    @repeated
    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step of the schedule.

        Parameters
        ----------
        epoch : int, optional
            Go to this one instead, with the closed form where the class has one.
        """
        if epoch is None:
            self.last_epoch += 1
            values = self.get_lr()
        else:
            self.last_epoch = epoch
            closed = getattr(self, "_closed_form", None)
            values = closed() if closed is not None else self.get_lr()
        self._set(values)

    def _set(self, values: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, values, strict=True):
            set_lr(group, lr)
        self._last_lr = [number_of(group["lr"]) for group in self.optimizer.param_groups]

    def _beginning(self) -> bool:
        """Whether no rate has been set yet: the present ones then stand for this step already."""
        return not self._last_lr

    def _present(self) -> list[float]:
        return [number_of(group["lr"]) for group in self.optimizer.param_groups]

    # What is called in a step only, whose code may read all that steps change.
    __repeats__ = ("get_lr", "_closed_form")

    def __followed__(self) -> list[tuple[dict[str, object], dict[str, tuple[str, ...]]]]:
        """What of it its steps change, by the names by which others get at that. Steps that are
        not ours may change anything.
        """
        if not type(self).step.__module__.startswith("probtorch."):
            return []
        own = vars(self)
        return [(own, {name: (name, "get_lr") for name, value in own.items() if _plain(value)})]

    def remember(self) -> tuple[StateDict, list[Group]]:
        """Return what a step changes."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self._groups]
        return self.state_dict(), groups

    def recall(self, state: tuple[StateDict, list[Group]]) -> None:
        """Put back what `remember` returned."""
        self.load_state_dict(state[0])
        for group, options in zip(self._groups, state[1], strict=True):
            group.update(options)

    @property
    def _groups(self) -> list[Group]:
        return self.optimizer.param_groups

    def state_dict(self) -> StateDict:
        """Return everything but the optimizer; plain numbers and lists."""
        numbers_shown()
        return {k: copied(v) for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what `state_dict` returned. The optimizer's own state is loaded separately."""
        self.__dict__.update({k: copied(v) for k, v in state_dict.items()})


def _plain(value: object) -> bool:
    """Whether a value is a number, None, a text, or a list of those."""
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def check_optimizer(optimizer: object, name: str) -> None:
    """Raise unless an optimizer was given."""
    if not isinstance(optimizer, Optimizer):
        raise DTypeError(
            name,
            expected="an Optimizer",
            got=type(optimizer).__name__,
            fix="for options instead of an optimizer use optim.PyroLRScheduler",
        )


def per_group(value: _Value | Sequence[_Value], optimizer: Optimizer, name: str) -> list[_Value]:
    """Return `value` repeated for each group, or the list that it is."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [cast(_Value, value)] * count  # other sequences are refused as values
    if len(value) != count:
        raise ArgumentError(
            name,
            expected=f"one value, or one per parameter group ({count})",
            got=f"{len(value)} values",
            fix="match the groups of the optimizer",
        )
    return list(value)


def number_of(lr: float | Tensor) -> float:
    """Return a rate as a number."""
    return lr.array.item() if isinstance(lr, TensorBase) else lr


def set_lr(group: Group, lr: float) -> None:
    """Set the rate of a group; one that is a tensor keeps being that tensor."""
    present = group["lr"]
    if isinstance(present, TensorBase):
        with no_grad():
            assign(present, wrap(np.asarray(lr, present.array.dtype)), "lr")
    else:
        group["lr"] = lr


def check_momentum(optimizer: Optimizer) -> None:
    """Raise unless the optimizer has a momentum that `set_momentum` can set."""
    if not {"momentum", "betas"} & optimizer.defaults.keys():
        raise ArgumentError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled",
            expected='an option "momentum" or "betas"',
            got=type(optimizer).__name__,
            fix="pass cycle_momentum=False",
        )


def set_momentum(group: Group, value: float) -> None:
    """Set the momentum of a group, or its first beta."""
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def copied(value: object) -> object:
    """Return a copy of a list, and anything else as it is."""
    return list(value) if isinstance(value, list) else value


explain_calls(globals())
