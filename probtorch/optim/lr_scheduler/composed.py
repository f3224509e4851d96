"""Several schedules as one: one after the other, or all at once."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.told import repeated
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError, DTypeError
from probtorch.optim.lr_scheduler.base import (
    LRScheduler,
    check_optimizer,
    copied,
    set_lr,
)
from probtorch.optim.lr_scheduler.plateau import ReduceLROnPlateau
from probtorch.optim.optimizer import Optimizer

__all__ = ["ChainedScheduler", "SequentialLR"]


class ChainedScheduler(LRScheduler):
    """Several schedulers that step together, each multiplying what the one before has set.

    Parameters
    ----------
    schedulers : sequence of LRScheduler
        All of one optimizer.
    optimizer : Optimizer, optional
        That of the schedulers if None.

    Raises
    ------
    ArgumentError, DTypeError
        If there are none, the optimizers differ, or one is a `ReduceLROnPlateau`.

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.optim import SGD
    >>> from probtorch.optim.lr_scheduler import ConstantLR, ExponentialLR
    >>> optimizer = SGD([tensor([1.0], requires_grad=True)], lr=1.0)
    >>> parts = [ConstantLR(optimizer, factor=0.5, total_iters=2), ExponentialLR(optimizer, 0.5)]
    >>> schedule = ChainedScheduler(parts, optimizer)
    >>> for _ in range(3):
    ...     schedule.step()
    >>> schedule.get_last_lr()  # 0.5^3; the constant's half was for two steps only
    [0.125]
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if len(schedulers) < 1:
            raise ArgumentError(
                "ChainedScheduler",
                expected="at least one scheduler to be chained",
                got="no scheduler",
                fix="pass a list of schedulers of one optimizer",
            )
        for i, scheduler in enumerate(schedulers):
            if not isinstance(scheduler, LRScheduler):
                raise DTypeError(
                    f"ChainedScheduler: scheduler {i}",
                    expected="a scheduler, which has an optimizer",
                    got=f"{type(scheduler).__name__} {scheduler!r:.60}",
                    fix="the schedulers come first, the optimizer last",
                )
        self.optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        for i, scheduler in enumerate(schedulers):
            if scheduler.optimizer is not self.optimizer or isinstance(
                scheduler, ReduceLROnPlateau
            ):
                raise ArgumentError(
                    f"ChainedScheduler: scheduler {i}",
                    expected="a scheduler of the same optimizer that counts steps by itself",
                    got=type(scheduler).__name__,
                    fix="build all of them with one optimizer, and step ReduceLROnPlateau beside "
                    "the chain",
                )
        self._schedulers = list(schedulers)
        self._last_lr = self._present()

    def _begin(self) -> None:
        for scheduler in self._schedulers:
            scheduler._begin()
        self._last_lr = self._present()

    def _undo(self) -> None:
        for scheduler in self._schedulers:
            scheduler._undo()

    @repeated
    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step of all schedulers, or to `epoch`."""
        for scheduler in self._schedulers:
            scheduler.step() if epoch is None else scheduler.step(epoch)
        self._last_lr = self._present()

    def state_dict(self) -> StateDict:
        """Return the state, that of the schedulers included."""
        return _state_with_parts(self, self._schedulers)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict(_load_parts(self._schedulers, state_dict))


class SequentialLR(LRScheduler):
    """One scheduler after the other.

    Parameters
    ----------
    optimizer : Optimizer
    schedulers : list of LRScheduler
        All of this optimizer.
    milestones : list of int
        Steps at which the next scheduler begins, from its own step 0; one less than schedulers.
    last_epoch : int

    Raises
    ------
    ArgumentError
        If numbers of schedulers and milestones do not go together, or the optimizers differ.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "SequentialLR")
        if len(schedulers) < 1 or len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                "SequentialLR",
                expected="one milestone less than schedulers",
                got=f"{len(schedulers)} schedulers and {len(milestones)} milestones",
                fix="a milestone is the step at which the next scheduler begins",
            )
        for i, scheduler in enumerate(schedulers):
            if scheduler.optimizer is not optimizer or isinstance(
                scheduler, (ReduceLROnPlateau, SequentialLR)
            ):
                raise ArgumentError(
                    f"SequentialLR: scheduler {i}",
                    expected="a scheduler of the same optimizer that counts steps by itself",
                    got=type(scheduler).__name__,
                    fix="build all of them with this optimizer; ReduceLROnPlateau and another "
                    "SequentialLR cannot be parts",
                )
        self.optimizer = optimizer
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        # Each scheduler took its first step when it was built; only the first one's counts.
        for group in optimizer.param_groups:
            set_lr(group, group["initial_lr"])
        for scheduler in self._schedulers:
            scheduler._undo()
        first = self._schedulers[bisect.bisect_right(self._milestones, 0)]
        first._begin()
        self._last_lr = first.get_last_lr()

    @repeated
    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step of the scheduler whose turn it is."""
        if epoch is not None:
            raise ArgumentError(
                "SequentialLR.step",
                expected="no epoch",
                got=str(epoch),
                fix="call step() once per step",
            )
        self.last_epoch += 1
        turn = bisect.bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[turn]
        if turn > 0 and self._milestones[turn - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> StateDict:
        """Return the state, that of the schedulers included."""
        return _state_with_parts(self, self._schedulers)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict(_load_parts(self._schedulers, state_dict))


def _state_with_parts(schedule: LRScheduler, parts: Sequence[LRScheduler]) -> StateDict:
    """Return the state of a schedule that has others for parts, theirs included."""
    own = {k: v for k, v in schedule.__dict__.items() if k not in ("optimizer", "_schedulers")}
    states = [part.state_dict() for part in parts]
    return {**{k: copied(v) for k, v in own.items()}, "_schedulers": states}


def _load_parts(parts: Sequence[LRScheduler], state: StateDict) -> StateDict:
    """Give the parts their states, and return the rest."""
    for part, theirs in zip(parts, state["_schedulers"], strict=True):
        part.load_state_dict(theirs)
    return {k: v for k, v in state.items() if k != "_schedulers"}


explain_calls(globals())
